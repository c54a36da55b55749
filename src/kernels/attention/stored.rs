//! How keys, values and distances are stored, and how they are written.

use super::{Outs, POSITIONS, PageLayout, SPAN, Span, layout::scales_bytes, query::Query};
use crate::kernels::{
    Dtype,
    dtype::{from_bf16, inverse_of, scale_of, to_bf16, to_byte},
    isa::Simd,
    memory::{self, cast, cast_mut},
};
use std::marker::PhantomData;

/// A format of keys, values and distances.
pub(super) trait Stored: Copy {
    /// What is stored.
    type Number: memory::Number;
    /// How many pages ahead to ask for: some KiB.
    const AHEAD: usize;

    /// The products of some queries with a page's keys, or with as many distances: each its own chain over the query's
    /// numbers in order.
    fn products<S: Simd, const B: usize>(
        simd: S,
        queries: &[Query<'_>; B],
        columns: Columns<'_, Self>,
    ) -> [[f32; POSITIONS]; B];

    /// The rows' `out` += Σ weights · values of a span. Weights are used up.
    fn weigh<S: Simd, const B: usize>(
        simd: S,
        span: &Span<'_, B>,
        weights: &mut [[f32; SPAN]; B],
        outs: &mut Outs<'_, B>,
    );
}

/// How sixteen numbers become floats.
pub(super) trait Load: memory::Number {
    /// Sixteen numbers.
    ///
    /// # Safety
    /// They are there.
    unsafe fn load<S: Simd>(simd: S, from: *const Self) -> S::V;
    /// One number.
    fn one(number: Self) -> f32;
}

impl Load for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const f32) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { simd.load_at(from) }
    }

    #[inline(always)]
    fn one(number: f32) -> f32 {
        number
    }
}

/// bf16.
impl Load for u16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const u16) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { simd.load_bf16(from) }
    }

    #[inline(always)]
    fn one(number: u16) -> f32 {
        from_bf16(number)
    }
}

/// Numbers that become floats.
#[derive(Clone, Copy)]
pub(super) struct Floats<L>(PhantomData<L>);

/// Bytes, with a scale for each position's key and value.
#[derive(Clone, Copy)]
pub(super) struct Bytes;

/// [`POSITIONS`] keys, values or distances of one head.
pub(super) struct Columns<'a, N: Stored> {
    pub(super) numbers: &'a [N::Number],
    /// (POSITIONS), of bytes.
    pub(super) scales: &'a [f32],
}

impl<N: Stored> Clone for Columns<'_, N> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<N: Stored> Copy for Columns<'_, N> {}

impl<'a, N: Stored> Columns<'a, N> {
    #[inline(always)]
    pub(super) fn of(numbers: &'a [u8], scales: &'a [u8]) -> Self {
        Self { numbers: cast(numbers), scales: cast(scales) }
    }
}

/// One head of a page.
pub(super) struct Head<'a, N: Stored> {
    pub(super) keys: Columns<'a, N>,
    pub(super) values: Columns<'a, N>,
}

impl<'a, N: Stored> Head<'a, N> {
    /// The head whose bytes start at `at` of a page.
    #[inline(always)]
    pub(super) fn of(layout: &PageLayout, page: &'a [u8], at: usize) -> Self {
        let (half, scales) = (layout.keys_bytes(), scales_bytes(layout.dtype));
        let (keys, rest) = page[at..at + layout.head_bytes()].split_at(half);
        let (values, rest) = rest.split_at(half);
        let (of_keys, of_values) = rest.split_at(scales);
        Self { keys: Columns::of(keys, of_keys), values: Columns::of(values, of_values) }
    }
}

/// Writes keys and values of a layer, each (heads, head_dim), at a slot of a page.
pub fn write(layout: &PageLayout, page: &mut [u8], layer: usize, slot: usize, keys: &[f32], values: &[f32]) {
    let (dim, half) = (layout.head_dim, layout.keys_bytes());
    for (head, (keys, values)) in keys.chunks_exact(dim).zip(values.chunks_exact(dim)).enumerate() {
        let bytes = &mut page[layout.head_offset(layer, head)..][..layout.head_bytes()];
        let (all_keys, rest) = bytes.split_at_mut(half);
        let (all_values, scales) = rest.split_at_mut(half);
        match layout.dtype {
            Dtype::F32 => {
                place_key::<_, 1>(cast_mut(all_keys), slot, keys, |x| x);
                place_value::<_, 1>(cast_mut(all_values), slot, values, |x| x);
            }
            Dtype::Bf16 => {
                place_key::<_, 1>(cast_mut(all_keys), slot, keys, to_bf16);
                place_value::<_, 1>(cast_mut(all_values), slot, values, to_bf16);
            }
            Dtype::Int8 => {
                let both = [scale_of(keys), scale_of(values)];
                let [key_inverse, value_inverse] = both.map(inverse_of);
                place_key::<_, 4>(cast_mut(all_keys), slot, keys, |x| to_byte(x, key_inverse));
                place_value::<_, 2>(cast_mut(all_values), slot, values, |x| to_byte(x, value_inverse));
                let scales: &mut [f32] = cast_mut(scales);
                (scales[slot], scales[POSITIONS + slot]) = (both[0], both[1]);
            }
        }
    }
}

/// Into (head_dim/CELL, POSITIONS, CELL).
#[inline(always)]
pub(super) fn place_key<T, const CELL: usize>(all: &mut [T], slot: usize, key: &[f32], number: impl Fn(f32) -> T) {
    for (cells, key) in all.chunks_exact_mut(CELL * POSITIONS).zip(key.chunks(CELL)) {
        for (to, &x) in cells[CELL * slot..].iter_mut().zip(key) {
            *to = number(x);
        }
    }
}

/// Into (POSITIONS/CELL, head_dim, CELL).
#[inline(always)]
fn place_value<T, const CELL: usize>(all: &mut [T], slot: usize, value: &[f32], number: impl Fn(f32) -> T) {
    let cells = all[slot / CELL * CELL * value.len()..].chunks_exact_mut(CELL);
    for (cell, &x) in cells.zip(value) {
        cell[slot % CELL] = number(x);
    }
}
