//! Storage formats of keys, values and distances, and the operations that each format implements.

use super::{
    layout::{POSITIONS, PageLayout, scales_bytes},
    queries::{AttentionHead, MAX_COLUMNS, Products, Query, ROW_TILE, Run, Span, TileSums, Work},
};
use crate::kernels::{
    isa::Simd,
    memory::{Pod, cast},
};
use std::marker::PhantomData;

/// Rows that vectors multiply together.
pub(super) const VECTOR_ROWS: usize = 3;
/// Bytes of a cache line.
const LINE: usize = 64;
/// Storage format of keys, values and distances.
pub(super) trait Stored: Copy {
    /// Type of a stored number.
    type Number: Pod;
    /// Pages to prefetch ahead: a few KiB.
    const PREFETCH_PAGES: usize;

    /// Multiplies `B` queries with a page's keys, or with as many distances. Each product is one ordered sum over a query's
    /// numbers.
    fn products<S: Simd, const B: usize>(
        simd: S,
        queries: &[Query<'_>; B],
        columns: Columns<'_, Self::Number>,
    ) -> [[f32; POSITIONS]; B];

    /// Multiplies all queries of a job with all its columns.
    #[inline(always)]
    fn multiply<S: Simd>(self, simd: S, job: &Job<'_, Self::Number>, out: &mut [Products], _sums: &mut TileSums) {
        multiply_vectors::<S, Self>(simd, job, out);
    }

    /// Prepares a row's weights of a span for `add_run`.
    #[inline(always)]
    fn prepare_weights<S: Simd>(
        self,
        _simd: S,
        _head: &AttentionHead<'_>,
        _span: &Span<'_>,
        _row: usize,
        _work: &mut Work,
    ) {
    }

    /// Adds Σ weights · values of a run to the sums of its rows.
    fn add_run<S: Simd>(
        self,
        simd: S,
        head: &AttentionHead<'_>,
        span: &Span<'_>,
        run: &Run,
        work: &mut Work,
        outs: &mut [&mut [f32]],
    );

    /// Adds a row's sums of a span to its output.
    #[inline(always)]
    fn finish_sums(self, _row: usize, _work: &Work, _out: &mut [f32]) {}
}

/// f32 or bf16, multiplied as f32.
#[derive(Clone, Copy)]
pub(super) struct FloatStorage<L>(pub(super) PhantomData<L>);

/// int8, with a scale for each key and each value.
#[derive(Clone, Copy)]
pub(super) struct Int8Storage;

/// [`POSITIONS`] keys, values or distances of one head.
#[derive(Clone, Copy)]
pub(super) struct Columns<'a, T> {
    pub(super) numbers: &'a [T],
    /// (POSITIONS) for int8, otherwise empty.
    pub(super) scales: &'a [f32],
}

impl<'a, T: Pod> Columns<'a, T> {
    /// Returns empty columns.
    pub(super) const fn empty() -> Self {
        Self { numbers: &[], scales: &[] }
    }

    #[inline(always)]
    pub(super) fn new(numbers: &'a [u8], scales: &'a [u8]) -> Self {
        Self { numbers: cast(numbers), scales: cast(scales) }
    }

    #[inline(always)]
    pub(super) fn prefetch<S: Simd>(&self, simd: S) {
        self.numbers.chunks(LINE / size_of::<T>()).for_each(|line| simd.prefetch(line.as_ptr().cast()));
        self.prefetch_scales(simd);
    }

    #[inline(always)]
    pub(super) fn prefetch_scales<S: Simd>(&self, simd: S) {
        self.scales.chunks(LINE / size_of::<f32>()).for_each(|line| simd.prefetch(line.as_ptr().cast()));
    }
}

/// Keys and values of one head in a page.
pub(super) struct PageHead<'a, T> {
    pub(super) keys: Columns<'a, T>,
    pub(super) values: Columns<'a, T>,
}

impl<'a, T: Pod> PageHead<'a, T> {
    /// Returns a head of a page.
    #[inline(always)]
    pub(super) fn new(head: &AttentionHead<'_>, page: &'a [u8]) -> Self {
        let layout: &PageLayout = head.layout;
        let bytes = &page[layout.head_offset(head.layer, head.head)..][..layout.head_bytes()];
        let (keys, rest) = bytes.split_at(layout.keys_bytes());
        let (values, rest) = rest.split_at(layout.keys_bytes());
        let (key_scales, value_scales) = rest.split_at(scales_bytes(layout.dtype));
        Self { keys: Columns::new(keys, key_scales), values: Columns::new(values, value_scales) }
    }
}

/// Returns the values of a run's pages.
#[inline(always)]
pub(super) fn run_values<'a, T: Pod>(
    head: &AttentionHead<'_>,
    span: &Span<'a>,
    run: &Run,
) -> [Columns<'a, T>; MAX_COLUMNS] {
    let list = run.rows.list();
    let mut values = [Columns::empty(); MAX_COLUMNS];
    for (values, page) in values.iter_mut().zip(run.pages.clone()) {
        *values = PageHead::new(head, span.bytes(list.rows()[0], page)).values;
    }
    values
}

/// Queries of some rows, and columns that all of them are multiplied with.
pub(super) struct Job<'a, T> {
    /// Indices of the rows.
    pub(super) rows: &'a [usize],
    /// One query for each of `rows`.
    pub(super) queries: &'a [Query<'a>],
    /// At most [`MAX_COLUMNS`].
    pub(super) columns: &'a [Columns<'a, T>],
    /// For each row of the call, the index of its product with the first column.
    pub(super) first: &'a [usize; ROW_TILE],
    /// True if the columns may have to be fetched from memory.
    pub(super) prefetch: bool,
}

/// Multiplies all queries of a job with all its columns, with vectors.
#[inline(always)]
pub(super) fn multiply_vectors<S: Simd, N: Stored>(simd: S, job: &Job<'_, N::Number>, out: &mut [Products]) {
    let (row_tiles, rest) = job.rows.as_chunks::<VECTOR_ROWS>();
    let (query_tiles, rest_queries) = job.queries.as_chunks::<VECTOR_ROWS>();
    let mut prefetch = job.prefetch;
    for (rows, queries) in row_tiles.iter().zip(query_tiles) {
        multiply_tile::<S, N, VECTOR_ROWS>(simd, job, rows, queries, prefetch, out);
        prefetch = false;
    }
    for (row, query) in rest.iter().zip(rest_queries) {
        multiply_tile::<S, N, 1>(simd, job, &[*row], &[*query], prefetch, out);
        prefetch = false;
    }
}

#[inline(always)]
fn multiply_tile<S: Simd, N: Stored, const B: usize>(
    simd: S,
    job: &Job<'_, N::Number>,
    rows: &[usize; B],
    queries: &[Query<'_>; B],
    prefetch: bool,
    out: &mut [Products],
) {
    if prefetch {
        job.columns.iter().take(N::PREFETCH_PAGES).skip(1).for_each(|columns| columns.prefetch(simd));
    }
    for (index, &columns) in job.columns.iter().enumerate() {
        if prefetch && let Some(columns) = job.columns.get(index + N::PREFETCH_PAGES) {
            columns.prefetch(simd);
        }
        let products = N::products::<S, B>(simd, queries, columns);
        for (&row, products) in rows.iter().zip(&products) {
            out[row][job.first[row] + index * POSITIONS..][..POSITIONS].copy_from_slice(products);
        }
    }
}
