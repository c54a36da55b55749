//! Writes keys and values into pages.

use super::layout::{POSITIONS, PageLayout, QUAD, byte_of};
use crate::kernels::{
    CacheDtype,
    dtype::{inverse_of, scale_of, to_bf16, to_byte},
    memory::cast_mut,
};

/// Writes the keys and values of a layer, (heads, head_dim) each, at position `slot` of a page.
pub fn write(layout: &PageLayout, page: &mut [u8], layer: usize, slot: usize, keys: &[f32], values: &[f32]) {
    let dim = layout.head_dim;
    for (head, (key, value)) in keys.chunks_exact(dim).zip(values.chunks_exact(dim)).enumerate() {
        let bytes = &mut page[layout.head_offset(layer, head)..][..layout.head_bytes()];
        let (page_keys, rest) = bytes.split_at_mut(layout.keys_bytes());
        let (page_values, scales) = rest.split_at_mut(layout.keys_bytes());
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
                let [key_scale, value_scale] = [scale_of(key), scale_of(value)];
                let [key_inverse, value_inverse] = [inverse_of(key_scale), inverse_of(value_scale)];
                write_key_bytes(cast_mut(page_keys), slot, key, key_inverse);
                write_value_bytes(&mut cast_mut(page_values)[slot / QUAD * QUAD * dim..], slot, value, value_inverse);
                let scales: &mut [f32] = cast_mut(scales);
                scales[slot] = key_scale;
                scales[POSITIONS + slot] = value_scale;
            }
        }
    }
}

/// Writes a key into (head_dim/CELL, POSITIONS, CELL).
#[inline(always)]
pub(super) fn write_key<T, X: Copy, const CELL: usize>(
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

/// Quantizes a key and writes it into (head_dim/4, POSITIONS, 4).
#[inline(always)]
pub(super) fn write_key_bytes(all: &mut [i8], slot: usize, key: &[f32], inverse: f32) {
    for (columns, numbers) in all.chunks_mut(PART * POSITIONS).zip(key.chunks(PART)) {
        write_key::<_, _, 4>(columns, slot, &to_bytes(numbers, inverse)[..numbers.len()], |x| x);
    }
}

/// Writes a value into (head_dim).
#[inline(always)]
fn write_value<T, X: Copy>(all: &mut [T], value: &[X], convert: impl Fn(X) -> T) {
    for (to, &x) in all.iter_mut().zip(value) {
        *to = convert(x);
    }
}

/// Quantizes a value and writes it into (head_dim, 4).
#[inline(always)]
fn write_value_bytes(all: &mut [i8], slot: usize, value: &[f32], inverse: f32) {
    for (cells, numbers) in all.chunks_mut(PART * QUAD).zip(value.chunks(PART)) {
        for (cell, byte) in cells.chunks_exact_mut(QUAD).zip(&to_bytes(numbers, inverse)[..numbers.len()]) {
            cell[byte_of(slot)] = *byte;
        }
    }
}
