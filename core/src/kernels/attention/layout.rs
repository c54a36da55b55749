//! Layout of a page of keys and values.

use crate::kernels::{CacheDtype, LANES};

/// Positions in a page.
pub const POSITIONS: usize = 2 * LANES;

/// Positions whose int8 values share a cell.
pub(super) const QUAD: usize = 4;

/// Returns the index of a position's int8 value in its cell. The even bytes of a cell then hold two neighbouring positions, and the
/// odd bytes the next two.
#[inline(always)]
pub(super) const fn byte_of(position: usize) -> usize {
    [0, 2, 1, 3][position % QUAD]
}

/// Layout of the pages of one stack of layers.
///
/// Each layer and head has its keys as (head_dim, positions), followed by its values as (positions, head_dim), so that attention
/// reads one stream. int8 is stored in cells that one instruction multiplies and sums: keys as (head_dim/4, positions, 4) with
/// unspecified padding, values as (positions/4, head_dim, 4) with the four positions in the order 0, 2, 1, 3, then the scales of
/// the keys, (positions), and of the values, (positions). The outputs of the stack, (positions, output) in f32, follow all layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageLayout {
    /// Type of keys and values.
    pub dtype: CacheDtype,
    /// Number of layers.
    pub layers: usize,
    /// Number of heads.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width of the output that is kept for each position; 0 if none is kept.
    pub output: usize,
}

impl PageLayout {
    /// Returns the bytes of one head's keys, which equal those of its values.
    #[inline]
    pub fn keys_bytes(&self) -> usize {
        columns_bytes(self.dtype, self.head_dim)
    }

    /// Returns the bytes of one head's keys, values and scales.
    #[inline]
    pub fn head_bytes(&self) -> usize {
        2 * (self.keys_bytes() + scales_bytes(self.dtype))
    }

    /// Returns the bytes of the encodings of `keys` distances, in all heads of one layer.
    pub fn distance_bytes(&self, keys: usize) -> usize {
        keys * self.heads * (self.keys_bytes() + scales_bytes(self.dtype)) / POSITIONS
    }

    /// Returns the offset of a head of a layer.
    #[inline]
    pub fn head_offset(&self, layer: usize, head: usize) -> usize {
        (layer * self.heads + head) * self.head_bytes()
    }

    /// Returns the offset of the outputs.
    pub fn outputs_offset(&self) -> usize {
        self.layers * self.heads * self.head_bytes()
    }

    /// Returns the bytes of a page.
    pub fn page_bytes(&self) -> usize {
        (self.outputs_offset() + POSITIONS * self.output * size_of::<f32>()).next_multiple_of(64)
    }

    /// Returns the bytes of the pages for `positions` positions.
    pub fn bytes_for(&self, positions: usize) -> usize {
        positions.div_ceil(POSITIONS) * self.page_bytes()
    }

    /// Returns the bytes that one query per layer and head reads for one key and its value.
    pub fn bytes_per_key(&self) -> usize {
        self.layers * self.heads * self.head_bytes() / POSITIONS
    }
}

/// Returns the bytes of [`POSITIONS`] keys, values or distances of one head.
#[inline]
pub(super) fn columns_bytes(dtype: CacheDtype, head_dim: usize) -> usize {
    let numbers = if dtype == CacheDtype::Int8 { head_dim.next_multiple_of(4) } else { head_dim };
    numbers * POSITIONS * dtype.bytes()
}

/// Returns the bytes of the scales of [`POSITIONS`] keys, values or distances.
#[inline]
pub(super) fn scales_bytes(dtype: CacheDtype) -> usize {
    if dtype == CacheDtype::Int8 { POSITIONS * size_of::<f32>() } else { 0 }
}
