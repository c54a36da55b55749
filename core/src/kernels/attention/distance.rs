//! Projected encodings of relative distances (Transformer-XL) of one layer.

use super::{
    layout::{POSITIONS, columns_bytes, scales_bytes},
    write::{write_key, write_key_bytes},
};
use crate::{
    error::Result,
    kernels::{
        CacheDtype,
        dtype::{inverse_of, scale_of, to_bf16},
        memory::{Arena, Region, cast_mut},
    },
};
use std::sync::{Arc, OnceLock};

/// Distances in a block of a [`DistanceTable`].
pub(super) const BLOCK: usize = 512;
/// Chunks of [`POSITIONS`] distances in a block.
const CHUNKS: usize = BLOCK / POSITIONS;

/// Encodings R_d of every distance d ≥ 0 of one layer. Blocks of them are computed once, when a sequence first needs them.
///
/// They are stored like keys (int8 with one scale per distance and head), in chunks of [`POSITIONS`] distances, so that a
/// query reads each chunk once and as one stream. If the distances of a page straddle two chunks, the kernel combines both.
pub struct DistanceTable {
    dtype: CacheDtype,
    heads: usize,
    head_dim: usize,
    arena: Arc<Arena>,
    /// Each block: (heads, chunks), a chunk like the keys of one head of a page. Distances decrease as positions increase.
    blocks: Vec<OnceLock<Region>>,
}

impl DistanceTable {
    /// Creates an empty table for sequences of up to `positions` positions and keys of type `dtype`.
    pub fn new(dtype: CacheDtype, heads: usize, head_dim: usize, positions: usize, arena: Arc<Arena>) -> Self {
        let blocks = (0..positions.div_ceil(BLOCK)).map(|_| OnceLock::new()).collect();
        Self { dtype, heads, head_dim, arena, blocks }
    }

    /// Computes the blocks that a query at `position` needs. `fill` returns R_d, (distances, heads, head_dim), for a
    /// range of distances. Fails if memory runs out.
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
        let columns_bytes = columns_bytes(self.dtype, self.head_dim);
        let chunk_bytes = self.chunk_bytes();
        let mut region = self.arena.allocate(self.heads * CHUNKS * chunk_bytes)?;
        for (distance, row) in rows.chunks_exact(self.heads * self.head_dim).enumerate() {
            let chunk = CHUNKS - 1 - distance / POSITIONS;
            let slot = POSITIONS - 1 - distance % POSITIONS;
            for (head, row) in row.chunks_exact(self.head_dim).enumerate() {
                let bytes = &mut region.bytes_mut()[(head * CHUNKS + chunk) * chunk_bytes..][..chunk_bytes];
                let (columns, scales) = bytes.split_at_mut(columns_bytes);
                match self.dtype {
                    CacheDtype::F32 => write_key::<_, _, 1>(cast_mut(columns), slot, row, |x| x),
                    CacheDtype::Bf16 => write_key::<_, _, 1>(cast_mut(columns), slot, row, to_bf16),
                    CacheDtype::Int8 => {
                        let scale = scale_of(row);
                        write_key_bytes(cast_mut(columns), slot, row, inverse_of(scale));
                        cast_mut(scales)[slot] = scale;
                    }
                }
            }
        }
        Ok(region)
    }

    fn chunk_bytes(&self) -> usize {
        columns_bytes(self.dtype, self.head_dim) + scales_bytes(self.dtype)
    }

    /// Returns one head's encodings of distances from `chunk` · POSITIONS on, in decreasing order, and their scales.
    #[inline(always)]
    pub(super) fn chunk(&self, head: usize, chunk: usize) -> (&[u8], &[u8]) {
        let block = self.blocks.get(chunk / CHUNKS).and_then(OnceLock::get).map_or(&[][..], Region::bytes);
        let size = self.chunk_bytes();
        let bytes = &block[(head * CHUNKS + CHUNKS - 1 - chunk % CHUNKS) * size..][..size];
        bytes.split_at(columns_bytes(self.dtype, self.head_dim))
    }
}
