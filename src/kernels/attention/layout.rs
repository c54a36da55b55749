//! What a page of keys and values holds, and where.

use super::POSITIONS;
use crate::kernels::Dtype;

/// The pages of one stack. For each layer and head, one behind the other so that attention reads one stream: the keys as
/// (head_dim, positions), the values as (positions, head_dim), and for int8 the scales of the keys, (positions), and of the
/// values, (positions). Behind all layers the stack's outputs, (positions, output), always f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
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

impl Layout {
    /// Bytes of one head's keys, or values.
    pub fn half(&self) -> usize {
        self.head_dim * POSITIONS * self.dtype.bytes()
    }

    /// Bytes of one head's keys, values and scales.
    pub fn head_bytes(&self) -> usize {
        let scales = if self.dtype == Dtype::Int8 { 2 * POSITIONS * size_of::<f32>() } else { 0 };
        (2 * self.half() + scales).next_multiple_of(64)
    }

    /// Where a head of a layer starts.
    pub fn head_at(&self, layer: usize, head: usize) -> usize {
        (layer * self.heads + head) * self.head_bytes()
    }

    /// Where the outputs start.
    pub fn outputs_at(&self) -> usize {
        self.layers * self.heads * self.head_bytes()
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> usize {
        (self.outputs_at() + POSITIONS * self.output * size_of::<f32>()).next_multiple_of(64)
    }

    /// Bytes that `positions` take.
    pub fn bytes_for(&self, positions: usize) -> usize {
        positions.div_ceil(POSITIONS) * self.page_bytes()
    }

    /// Bytes that a query of each layer reads for one key and its value.
    pub fn bytes_for_key(&self) -> usize {
        self.layers * self.heads * self.head_bytes() / POSITIONS
    }
}
