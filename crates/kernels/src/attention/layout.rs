//! How keys and values lie in a page, and how a position is written.

use crate::dtype::{inverse_of, to_bf16, to_byte};
use crate::isa::{Simd, multiversion};
use crate::memory::cast_mut;
use crate::rowwise::scale_of;
use crate::{CacheDtype, LANES};

// Layout of a page of keys and values, and how these are written.

/// Positions in a page.
pub const POSITIONS: usize = 2 * LANES;

/// Positions whose int8 values share a cell.
pub(crate) const QUAD: usize = 4;

/// Layout of the pages of one stack of layers. Each layer and head has its keys as (head_dim, positions), then its values as
/// (positions, head_dim), so that attention reads one stream. int8 is stored in cells of four: keys as (head_dim/4, positions,
/// 4), values as (positions/4, head_dim, 4), with the scales of both between them. The outputs of the stack, (positions, output)
/// in f32, follow all layers.
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
    /// Returns the bytes of one head's keys, values and scales.
    #[inline]
    pub fn head_bytes(&self) -> usize {
        2 * (columns_bytes(self.dtype, self.head_dim) + scales_bytes(self.dtype))
    }

    /// Returns the bytes of the encodings of `keys` distances, in all heads of one layer.
    pub fn distance_bytes(&self, keys: usize) -> usize {
        keys * self.heads * self.head_bytes() / 2 / POSITIONS
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
pub(crate) fn columns_bytes(dtype: CacheDtype, head_dim: usize) -> usize {
    let numbers = if dtype == CacheDtype::Int8 { head_dim.next_multiple_of(4) } else { head_dim };
    numbers * POSITIONS * dtype.bytes()
}

/// Returns the bytes of the scales of [`POSITIONS`] keys, values or distances.
#[inline]
pub(crate) fn scales_bytes(dtype: CacheDtype) -> usize {
    if dtype == CacheDtype::Int8 { POSITIONS * size_of::<f32>() } else { 0 }
}

multiversion! {
    /// Writes the keys and values of a layer, (heads, head_dim) each, at position `slot` of a page.
    pub fn write(
        layout: &PageLayout, page: &mut [u8], layer: usize, slot: usize, keys: &[f32], values: &[f32],
    ) = write_body
}

#[inline(always)]
fn write_body<S: Simd>(
    simd: S,
    layout: &PageLayout,
    page: &mut [u8],
    layer: usize,
    slot: usize,
    keys: &[f32],
    values: &[f32],
) {
    let dim = layout.head_dim;
    for (head, (key, value)) in keys.chunks_exact(dim).zip(values.chunks_exact(dim)).enumerate() {
        let bytes = &mut page[layout.head_offset(layer, head)..][..layout.head_bytes()];
        let columns_bytes = columns_bytes(layout.dtype, dim);
        let (page_keys, rest) = bytes.split_at_mut(columns_bytes);
        let (scales, page_values) = rest.split_at_mut(rest.len() - columns_bytes);
        let (key_scales, value_scales) = scales.split_at_mut(scales_bytes(layout.dtype));
        match layout.dtype {
            CacheDtype::F32 => {
                write_key::<_, _, 1>(cast_mut(page_keys), slot, key, |x| x);
                write_value(&mut cast_mut(page_values)[slot * dim..], value, |x| x);
            }
            CacheDtype::Bf16 => {
                write_key::<_, _, 1>(cast_mut(page_keys), slot, key, to_bf16);
                write_value(&mut cast_mut(page_values)[slot * dim..], value, to_bf16);
            }
            CacheDtype::Int8 => {
                let [key_scale, value_scale] = [scale_of(simd, key), scale_of(simd, value)];
                let [key_inverse, value_inverse] = [inverse_of(key_scale), inverse_of(value_scale)];
                write_key_bytes(cast_mut(page_keys), slot, key, key_inverse);
                write_value_bytes(&mut cast_mut(page_values)[slot / QUAD * QUAD * dim..], slot, value, value_inverse);
                cast_mut(key_scales)[slot] = key_scale;
                cast_mut(value_scales)[slot] = value_scale;
            }
        }
    }
}

/// Writes a key into (head_dim/CELL, POSITIONS, CELL).
#[inline(always)]
pub(crate) fn write_key<T, X: Copy, const CELL: usize>(
    all: &mut [T],
    slot: usize,
    key: &[X],
    convert: impl Fn(X) -> T,
) {
    for (cells, key) in all.chunks_exact_mut(CELL * POSITIONS).zip(key.chunks(CELL)) {
        for (to, &x) in cells[CELL * slot..].iter_mut().zip(key) {
            *to = convert(x);
        }
    }
}

/// Numbers that are quantized at a time: the compiler uses vectors for them, but not for the scattered bytes of a cell.
const PART: usize = 64;

/// Quantizes up to [`PART`] numbers.
#[inline(always)]
fn to_bytes(numbers: &[f32], inverse: f32) -> [i8; PART] {
    let mut bytes = [0; PART];
    for (byte, &x) in bytes.iter_mut().zip(numbers) {
        *byte = to_byte(x, inverse);
    }
    bytes
}

#[inline(always)]
pub(crate) fn write_key_bytes(all: &mut [i8], slot: usize, key: &[f32], inverse: f32) {
    for (columns, numbers) in all.chunks_mut(PART * POSITIONS).zip(key.chunks(PART)) {
        write_key::<_, _, 4>(columns, slot, &to_bytes(numbers, inverse)[..numbers.len()], |x| x);
    }
}

#[inline(always)]
fn write_value<T, X: Copy>(all: &mut [T], value: &[X], convert: impl Fn(X) -> T) {
    for (to, &x) in all.iter_mut().zip(value) {
        *to = convert(x);
    }
}

#[inline(always)]
fn write_value_bytes(all: &mut [i8], slot: usize, value: &[f32], inverse: f32) {
    for (cells, numbers) in all.chunks_mut(PART * QUAD).zip(value.chunks(PART)) {
        for (cell, byte) in cells.chunks_exact_mut(QUAD).zip(&to_bytes(numbers, inverse)[..numbers.len()]) {
            cell[slot % QUAD] = *byte;
        }
    }
}
