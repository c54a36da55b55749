//! The projected encodings of relative distances, one layer's.

use super::{
    POSITIONS,
    layout::{columns_bytes, scales_bytes},
    stored::{Columns, Stored, place_key},
};
use crate::{
    error::Result,
    kernels::{
        Dtype,
        dtype::{inverse_of, scale_of, to_bf16, to_byte},
        memory::{Arena, Region, cast_mut},
    },
};
use std::sync::{Arc, OnceLock};

/// Distances in a block of a [`DistanceTable`].
pub(super) const BLOCK: usize = 512;
/// Chunks of a page's size in a block.
const CHUNKS: usize = BLOCK / POSITIONS;

/// R_d for every distance d ≥ 0, one layer's: computed in blocks, each once, when a sequence first gets that long. Stored as
/// keys are: bytes with a scale for each distance and head.
///
/// Distances lie in chunks of a page's size, laid out like a page's keys, so that a query reads each chunk once and as one
/// stream; where a page's distances straddle two chunks, it is their products that are put together.
pub struct DistanceTable {
    dtype: Dtype,
    heads: usize,
    head_dim: usize,
    arena: Arc<Arena>,
    /// (heads, chunks) of what a page's keys of one head are; chunks and places by falling distance, like keys.
    blocks: Vec<OnceLock<Region>>,
}

impl DistanceTable {
    /// A table for sequences of up to `positions`, beside keys in `dtype`.
    pub fn new(dtype: Dtype, heads: usize, head_dim: usize, positions: usize, arena: Arc<Arena>) -> Self {
        let blocks = (0..positions.div_ceil(BLOCK)).map(|_| OnceLock::new()).collect();
        Self { dtype, heads, head_dim, arena, blocks }
    }

    /// Makes sure that the table covers queries at `position`; `fill` gives R_d (heads, head_dim) for the distances asked for.
    ///
    /// # Errors
    /// No memory.
    pub fn cover(&self, position: usize, fill: impl Fn(std::ops::Range<usize>) -> Vec<f32>) -> Result<()> {
        for (index, block) in self.blocks.iter().enumerate().take(position / BLOCK + 1) {
            if block.get().is_none() {
                // if two threads compute it at the same time, one of the equal blocks is dropped
                let _ = block.set(self.block(index, &fill)?);
            }
        }
        Ok(())
    }

    fn block(&self, index: usize, fill: &impl Fn(std::ops::Range<usize>) -> Vec<f32>) -> Result<Region> {
        let rows = fill(index * BLOCK..(index + 1) * BLOCK);
        let (columns, chunk) = (columns_bytes(self.dtype, self.head_dim), self.chunk_bytes());
        let mut region = self.arena.cut(self.heads * CHUNKS * chunk)?;
        for (distance, row) in rows.chunks_exact(self.heads * self.head_dim).enumerate() {
            let (index, place) = (CHUNKS - 1 - distance / POSITIONS, POSITIONS - 1 - distance % POSITIONS);
            for (head, row) in row.chunks_exact(self.head_dim).enumerate() {
                let bytes = &mut region.bytes_mut()[(head * CHUNKS + index) * chunk..][..chunk];
                let (columns, scales) = bytes.split_at_mut(columns);
                match self.dtype {
                    Dtype::F32 => place_key::<_, 1>(cast_mut(columns), place, row, |x| x),
                    Dtype::Bf16 => place_key::<_, 1>(cast_mut(columns), place, row, to_bf16),
                    Dtype::Int8 => {
                        let scale = scale_of(row);
                        let inverse = inverse_of(scale);
                        place_key::<_, 4>(cast_mut(columns), place, row, |x| to_byte(x, inverse));
                        cast_mut(scales)[place] = scale;
                    }
                }
            }
        }
        Ok(region)
    }

    fn chunk_bytes(&self) -> usize {
        columns_bytes(self.dtype, self.head_dim) + scales_bytes(self.dtype)
    }

    /// R of one head for the distances `chunk` · POSITIONS and on, by falling distance.
    #[inline(always)]
    pub(super) fn chunk<N: Stored>(&self, head: usize, chunk: usize) -> Columns<'_, N> {
        let block = self.blocks.get(chunk / CHUNKS).and_then(OnceLock::get).map_or(&[][..], Region::bytes);
        let size = self.chunk_bytes();
        let bytes = &block[(head * CHUNKS + CHUNKS - 1 - chunk % CHUNKS) * size..][..size];
        let (numbers, scales) = bytes.split_at(columns_bytes(self.dtype, self.head_dim));
        Columns::of(numbers, scales)
    }
}
