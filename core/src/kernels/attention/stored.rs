//! Storage formats of keys, values and distances, and the operations that each format implements.

use super::{
    layout::{POSITIONS, PageLayout, scales_bytes},
    query::Query,
    span::{Outs, SPAN, Span},
};
use crate::kernels::{
    isa::Simd,
    memory::{Pod, cast},
};
use std::marker::PhantomData;

/// Storage format of keys, values and distances.
pub(super) trait Stored: Copy {
    /// Type of a stored number.
    type Number: Pod;
    /// Pages to prefetch ahead: a few KiB.
    const PREFETCH_PAGES: usize;

    /// Multiplies queries with a page's keys, or as many distances. Each product is one ordered sum over a query's numbers.
    fn products<S: Simd, const B: usize>(
        simd: S,
        queries: &[Query<'_>; B],
        columns: Columns<'_, Self>,
    ) -> [[f32; POSITIONS]; B];

    /// Adds Σ weights · values of a span to the outputs of the rows. Overwrites the weights.
    fn add_weighted_values<S: Simd, const B: usize>(
        simd: S,
        span: &Span<'_, B>,
        weights: &mut [[f32; SPAN]; B],
        outs: &mut Outs<'_, B>,
    );
}

/// f32 or bf16, multiplied as f32.
#[derive(Clone, Copy)]
pub(super) struct FloatStorage<L>(PhantomData<L>);

/// int8, with a scale for each key and each value.
#[derive(Clone, Copy)]
pub(super) struct Int8Storage;

/// [`POSITIONS`] keys, values or distances of one head.
#[derive(Clone, Copy)]
pub(super) struct Columns<'a, N: Stored> {
    pub(super) numbers: &'a [N::Number],
    /// (POSITIONS) for int8, otherwise empty.
    pub(super) scales: &'a [f32],
}

impl<'a, N: Stored> Columns<'a, N> {
    #[inline(always)]
    pub(super) fn new(numbers: &'a [u8], scales: &'a [u8]) -> Self {
        Self { numbers: cast(numbers), scales: cast(scales) }
    }
}

/// Keys and values of one head in a page.
pub(super) struct PageHead<'a, N: Stored> {
    pub(super) keys: Columns<'a, N>,
    pub(super) values: Columns<'a, N>,
}

impl<'a, N: Stored> PageHead<'a, N> {
    /// Returns the head that starts at `offset` of a page.
    #[inline(always)]
    pub(super) fn new(layout: &PageLayout, page: &'a [u8], offset: usize) -> Self {
        let (keys, rest) = page[offset..][..layout.head_bytes()].split_at(layout.keys_bytes());
        let (values, rest) = rest.split_at(layout.keys_bytes());
        let (key_scales, value_scales) = rest.split_at(scales_bytes(layout.dtype));
        Self { keys: Columns::new(keys, key_scales), values: Columns::new(values, value_scales) }
    }
}
