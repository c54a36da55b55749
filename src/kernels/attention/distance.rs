//! The projected encodings of relative distances, one layer's.

use super::POSITIONS;
use crate::{
    error::Result,
    kernels::{
        Dtype,
        dtype::to_bf16,
        memory::{Arena, Number, Region},
    },
};
use std::sync::{Arc, OnceLock};

/// Distances in a block of a [`DistanceTable`].
pub(super) const BLOCK: usize = 512;
/// Chunks of a page's size in a block.
const CHUNKS: usize = BLOCK / POSITIONS;

/// R_d for every distance d ≥ 0, one layer's: computed in blocks, each once, when a sequence first gets that long. In f32
/// beside f32 keys, else in bf16.
///
/// Distances lie in chunks of a page's size, laid out like a page's keys, so that a query reads each chunk once and as one
/// stream; where a page's distances straddle two chunks, it is their products that are put together.
pub struct DistanceTable {
    dtype: Dtype,
    heads: usize,
    head_dim: usize,
    arena: Arc<Arena>,
    /// (heads, chunks, head_dim, POSITIONS), chunks and places by falling distance, like keys.
    blocks: Vec<OnceLock<Region>>,
}

impl DistanceTable {
    /// A table for sequences of up to `positions`, beside keys in `dtype`.
    pub fn new(dtype: Dtype, (heads, head_dim): (usize, usize), positions: usize, arena: Arc<Arena>) -> Self {
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
        let mut region = self.arena.cut(self.heads * self.head_dim * BLOCK * distance_bytes(self.dtype))?;
        match self.dtype {
            Dtype::F32 => self.lay(&rows, region.numbers_mut(), |x| x),
            Dtype::Bf16 | Dtype::Int8 => self.lay(&rows, region.numbers_mut(), to_bf16),
        }
        Ok(region)
    }

    fn lay<T>(&self, rows: &[f32], block: &mut [T], number: impl Fn(f32) -> T) {
        let dim = self.head_dim;
        for (distance, row) in rows.chunks_exact(self.heads * dim).enumerate() {
            let (chunk, place) = (CHUNKS - 1 - distance / POSITIONS, POSITIONS - 1 - distance % POSITIONS);
            for (index, &x) in row.iter().enumerate() {
                let (head, d) = (index / dim, index % dim);
                block[((head * CHUNKS + chunk) * dim + d) * POSITIONS + place] = number(x);
            }
        }
    }

    /// R of one head for the distances `chunk` · POSITIONS and on, by falling distance: (head_dim, POSITIONS).
    #[inline(always)]
    pub(super) fn chunk<T: Number>(&self, head: usize, chunk: usize) -> &[T] {
        let block = self.blocks.get(chunk / CHUNKS).and_then(OnceLock::get).map_or(&[][..], |block| block.numbers());
        let size = self.head_dim * POSITIONS;
        &block[(head * CHUNKS + CHUNKS - 1 - chunk % CHUNKS) * size..][..size]
    }
}

/// Bytes of a number of a distance, beside keys in `dtype`.
pub fn distance_bytes(dtype: Dtype) -> usize {
    match dtype {
        Dtype::F32 => 4,
        Dtype::Bf16 | Dtype::Int8 => 2,
    }
}
