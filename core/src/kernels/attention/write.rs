//! Writes keys and values into pages.

use super::layout::{POSITIONS, PageLayout};
use crate::kernels::{
    Dtype,
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
            Dtype::F32 => {
                write_key::<_, 1>(cast_mut(page_keys), slot, key, |x| x);
                write_value::<_, 1>(cast_mut(page_values), slot, value, |x| x);
            }
            Dtype::Bf16 => {
                write_key::<_, 1>(cast_mut(page_keys), slot, key, to_bf16);
                write_value::<_, 1>(cast_mut(page_values), slot, value, to_bf16);
            }
            Dtype::Int8 => {
                let [key_scale, value_scale] = [scale_of(key), scale_of(value)];
                let [key_inverse, value_inverse] = [inverse_of(key_scale), inverse_of(value_scale)];
                write_key::<_, 4>(cast_mut(page_keys), slot, key, |x| to_byte(x, key_inverse));
                write_value::<_, 2>(cast_mut(page_values), slot, value, |x| to_byte(x, value_inverse));
                let scales: &mut [f32] = cast_mut(scales);
                scales[slot] = key_scale;
                scales[POSITIONS + slot] = value_scale;
            }
        }
    }
}

/// Writes a key into (head_dim/CELL, POSITIONS, CELL).
#[inline(always)]
pub(super) fn write_key<T, const CELL: usize>(all: &mut [T], slot: usize, key: &[f32], convert: impl Fn(f32) -> T) {
    for (cells, key) in all.chunks_exact_mut(CELL * POSITIONS).zip(key.chunks(CELL)) {
        for (to, &x) in cells[CELL * slot..].iter_mut().zip(key) {
            *to = convert(x);
        }
    }
}

/// Writes a value into (POSITIONS/CELL, head_dim, CELL).
#[inline(always)]
fn write_value<T, const CELL: usize>(all: &mut [T], slot: usize, value: &[f32], convert: impl Fn(f32) -> T) {
    let cells = all[slot / CELL * CELL * value.len()..].chunks_exact_mut(CELL);
    for (cell, &x) in cells.zip(value) {
        cell[slot % CELL] = convert(x);
    }
}
