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
/// Numbers in a block for each number of a head: a window of one page may start at its last distance.
pub(super) const STRIDE: usize = BLOCK + POSITIONS;

/// R_d for every distance d ≥ 0, one layer's: computed in blocks, each once, when a sequence first gets that long. In f32
/// beside f32 keys, else in bf16.
pub struct DistanceTable {
    dtype: Dtype,
    heads: usize,
    head_dim: usize,
    arena: Arc<Arena>,
    /// (heads, head_dim, STRIDE), by falling distance: neighbours in a page of keys are one apart in distance.
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
        // place m holds the distance `high − m`; distances below zero belong to keys after the query, which are masked
        let high = ((index + 1) * BLOCK) as isize - 1;
        let low = (high + 1 - STRIDE as isize).max(0);
        let rows = fill(low as usize..high as usize + 1);
        let mut region = self.arena.cut(self.heads * self.head_dim * STRIDE * distance_bytes(self.dtype))?;
        match self.dtype {
            Dtype::F32 => self.lay(&rows, (low, high), region.numbers_mut(), |x| x),
            Dtype::Bf16 | Dtype::Int8 => self.lay(&rows, (low, high), region.numbers_mut(), to_bf16),
        }
        Ok(region)
    }

    fn lay<T>(&self, rows: &[f32], (low, high): (isize, isize), block: &mut [T], number: impl Fn(f32) -> T) {
        let width = self.heads * self.head_dim;
        for distance in low..=high {
            let row = &rows[(distance - low) as usize * width..][..width];
            let place = (high - distance) as usize;
            for (index, &x) in row.iter().enumerate() {
                block[index * STRIDE + place] = number(x);
            }
        }
    }

    /// R of one head for a query and the page of keys starting `offset` positions before it: rows of [`STRIDE`] numbers, the
    /// page's first key at the returned place.
    #[inline(always)]
    pub(super) fn window<T: Number>(&self, head: usize, offset: usize) -> (&[T], usize) {
        let index = offset / BLOCK;
        let block = self.blocks.get(index).and_then(OnceLock::get).map_or(&[][..], |block| block.numbers());
        let rows = &block[head * self.head_dim * STRIDE..][..self.head_dim * STRIDE];
        (rows, (index + 1) * BLOCK - 1 - offset)
    }
}

/// Bytes of a number of a distance, beside keys in `dtype`.
pub fn distance_bytes(dtype: Dtype) -> usize {
    match dtype {
        Dtype::F32 => 4,
        Dtype::Bf16 | Dtype::Int8 => 2,
    }
}
