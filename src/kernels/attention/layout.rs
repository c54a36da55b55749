//! What a page of keys and values holds, and where.

use super::POSITIONS;
use crate::kernels::Dtype;

/// The pages of one stack. For each layer and head, one behind the other so that attention reads one stream: the keys as
/// (head_dim, positions), the values as (positions, head_dim). Bytes come in cells that one instruction multiplies and sums:
/// keys as (head_dim/4, positions, 4), filled up with whatever, values as (positions/2, head_dim, 2), and behind them the
/// scales of the keys, (positions), and of the values, (positions). Behind all layers the stack's outputs, (positions,
/// output), always f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageLayout {
    /// Of keys and values.
    pub dtype: Dtype,
    /// Layers of the stack.
    pub layers: usize,
    /// Heads.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width of the output kept for each position; 0 if none is.
    pub output: usize,
}

impl PageLayout {
    /// Bytes of one head's keys, or values.
    pub fn keys_bytes(&self) -> usize {
        columns_bytes(self.dtype, self.head_dim)
    }

    /// Bytes of one head's keys, values and scales.
    pub fn head_bytes(&self) -> usize {
        2 * (self.keys_bytes() + scales_bytes(self.dtype))
    }

    /// Bytes of R, for the distances of `keys` keys, in all heads of one layer.
    pub fn distance_bytes(&self, keys: usize) -> usize {
        keys * self.heads * (self.keys_bytes() + scales_bytes(self.dtype)) / POSITIONS
    }

    /// Where a head of a layer starts.
    pub fn head_offset(&self, layer: usize, head: usize) -> usize {
        (layer * self.heads + head) * self.head_bytes()
    }

    /// Where the outputs start.
    pub fn outputs_offset(&self) -> usize {
        self.layers * self.heads * self.head_bytes()
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> usize {
        (self.outputs_offset() + POSITIONS * self.output * size_of::<f32>()).next_multiple_of(64)
    }

    /// Bytes that `positions` take.
    pub fn bytes_for(&self, positions: usize) -> usize {
        positions.div_ceil(POSITIONS) * self.page_bytes()
    }

    /// Bytes that a query of each layer reads for one key and its value.
    pub fn bytes_per_key(&self) -> usize {
        self.layers * self.heads * self.head_bytes() / POSITIONS
    }
}

/// Bytes of [`POSITIONS`] keys, values, or distances of one head.
pub(super) fn columns_bytes(dtype: Dtype, head_dim: usize) -> usize {
    let numbers = if dtype == Dtype::Int8 { head_dim.next_multiple_of(4) } else { head_dim };
    numbers * POSITIONS * dtype.bytes()
}

/// Bytes of their scales.
pub(super) fn scales_bytes(dtype: Dtype) -> usize {
    if dtype == Dtype::Int8 { POSITIONS * size_of::<f32>() } else { 0 }
}
