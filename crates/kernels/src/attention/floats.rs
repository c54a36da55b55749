//! Products and weighted sums of f32 and bf16 keys and values, computed in f32.

use crate::LANES;
use crate::attention::layout::{POSITIONS, PageLayout, columns_bytes, scales_bytes};
use crate::attention::queries::{
    Ahead, AttentionHead, LINE, MAX_COLUMNS, Products, Query, ROW_TILE, Run, Span, TileSums, Work,
};
use crate::dtype::LoadAsF32;
use crate::isa::{Simd, WIDTH};
use crate::memory::{Pod, cast};
use crate::rowwise::{add_up, exp};
use std::{marker::PhantomData, ops::Range};

impl<L: LoadAsF32> Stored for FloatStorage<L> {
    type Number = L;

    #[inline(always)]
    fn products<S: Simd, const B: usize>(
        simd: S,
        queries: &[Query<'_>; B],
        columns: Columns<'_, L>,
        next: *const u8,
    ) -> [[f32; POSITIONS]; B] {
        let dim = queries[0].numbers.len();
        assert!(queries.iter().all(|query| query.numbers.len() == dim) && dim * POSITIONS <= columns.numbers.len());
        let mut sums = [[simd.splat(0.0); POSITIONS / WIDTH]; B];
        let mut from = columns.numbers.as_ptr();
        for row in 0..dim {
            for line in (0..POSITIONS * size_of::<L>()).step_by(LINE) {
                simd.prefetch(next.wrapping_add(row * POSITIONS * size_of::<L>() + line));
            }
            for v in 0..POSITIONS / WIDTH {
                // SAFETY: the vector is within row `row` of the columns, as checked above.
                let column = unsafe { L::load(simd, from.wrapping_add(v * WIDTH)) };
                for (query, sums) in queries.iter().zip(&mut sums) {
                    // SAFETY: each query has `dim` numbers, as checked above.
                    let factor = simd.splat(*unsafe { query.numbers.get_unchecked(row) });
                    sums[v] = simd.madd(factor, column, sums[v]);
                }
            }
            from = from.wrapping_add(POSITIONS);
        }
        let mut products = [[0f32; POSITIONS]; B];
        for (products, sums) in products.iter_mut().zip(sums) {
            for (v, sum) in sums.into_iter().enumerate() {
                simd.store(sum, &mut products[v * WIDTH..]);
            }
        }
        products
    }

    #[inline(always)]
    fn add_run<S: Simd>(
        self,
        simd: S,
        head: &AttentionHead<'_>,
        span: &Span<'_>,
        run: &Run,
        work: &mut Work,
        outs: &mut [&mut [f32]],
    ) {
        let list = run.rows.list();
        let values = run_values::<L>(head, span, run);
        let part = Part { span, run, values: &values[..run.pages.len()], weights: &work.scores };
        let (tiles, rest) = list.rows().as_chunks::<VECTOR_ROWS>();
        for rows in tiles {
            part.add_rows(simd, rows, &mut work.ahead, outs);
        }
        for row in rest {
            part.add_rows(simd, &[*row], &mut work.ahead, outs);
        }
    }
}

/// Outputs of `B` query rows, (head_dim) each.
type Outs<'a, const B: usize> = [&'a mut [f32]; B];

/// Values of a run, and the weights of all rows.
struct Part<'a, L> {
    span: &'a Span<'a>,
    run: &'a Run,
    /// (positions, head_dim) for each page.
    values: &'a [Columns<'a, L>],
    weights: &'a [Products],
}

impl<L: LoadAsF32> Part<'_, L> {
    #[inline(always)]
    fn add_rows<S: Simd, const B: usize>(
        &self,
        simd: S,
        rows: &[usize; B],
        ahead: &mut Ahead,
        outs: &mut [&mut [f32]],
    ) {
        let Self { span, run, values, weights } = *self;
        let Ok(outs) = outs.get_disjoint_mut(*rows) else { return };
        let mut outs: Outs<'_, B> = outs.map(|out| &mut **out);
        for (columns, page) in values.iter().zip(run.pages.clone()) {
            let values = columns.numbers;
            ahead.fetch(simd, size_of_val(values) / LINE);
            let in_page = |keys: usize| keys.saturating_sub(page * POSITIONS).min(POSITIONS);
            let from = rows.map(|row| in_page(span.from[row]));
            let to = rows.map(|row| in_page(span.to[row]));
            let weights = rows.map(|row| &weights[row][page * POSITIONS..][..POSITIONS]);
            // all rows share these keys; some rows also attend to keys before or after them
            let start = from.into_iter().max().unwrap_or(0);
            let common = start..to.into_iter().min().unwrap_or(0).max(start);
            for row in 0..B {
                add_unshared::<S, L>(simd, weights[row], values, from[row]..common.start.min(to[row]), outs[row]);
            }
            if !common.is_empty() {
                let values = &values[common.start * outs[0].len()..];
                add_values::<S, L, B>(simd, weights.map(|weights| &weights[common.clone()]), values, &mut outs);
            }
            for row in 0..B {
                add_unshared::<S, L>(simd, weights[row], values, common.end.max(from[row])..to[row], outs[row]);
            }
        }
    }
}

/// Adds Σ weights · values of the keys of a page that only one row attends to.
#[inline(always)]
fn add_unshared<S: Simd, L: LoadAsF32>(
    simd: S,
    weights: &[f32],
    values: &[L],
    keys: Range<usize>,
    mut out: &mut [f32],
) {
    if !keys.is_empty() {
        let values = &values[keys.start * out.len()..];
        add_values::<S, L, 1>(simd, [&weights[keys]], values, std::array::from_mut(&mut out));
    }
}

/// Adds Σ weights · values to the outputs of `B` rows. Each output number is one sum over the positions, in order.
#[inline(always)]
fn add_values<S: Simd, L: LoadAsF32, const B: usize>(
    simd: S,
    weights: [&[f32]; B],
    values: &[L],
    outs: &mut Outs<'_, B>,
) {
    let head_dim = outs[0].len();
    assert!(weights.iter().all(|row| row.len() == weights[0].len() && row.len() * head_dim <= values.len()));
    let mut done = 0;
    if B == 1 {
        while done + 4 * WIDTH <= head_dim {
            add_columns::<S, L, B, 4>(simd, weights, values, outs, done);
            done += 4 * WIDTH;
        }
    }
    while done + 2 * WIDTH <= head_dim {
        add_columns::<S, L, B, 2>(simd, weights, values, outs, done);
        done += 2 * WIDTH;
    }
    while done + WIDTH <= head_dim {
        add_columns::<S, L, B, 1>(simd, weights, values, outs, done);
        done += WIDTH;
    }
    // the numbers that do not fill a vector, in the same order
    for (out, weights) in outs.iter_mut().zip(weights).filter(|_| done < head_dim) {
        for (&weight, values) in weights.iter().zip(values.chunks_exact(head_dim)) {
            for (out, &value) in out[done..].iter_mut().zip(&values[done..]) {
                *out = S::madd1(weight, L::to_f32(value), *out);
            }
        }
    }
}

/// Adds Σ weights · values to `W` vectors of the outputs, from number `done` on.
#[inline(always)]
fn add_columns<S: Simd, L: LoadAsF32, const B: usize, const W: usize>(
    simd: S,
    weights: [&[f32]; B],
    values: &[L],
    outs: &mut Outs<'_, B>,
    done: usize,
) {
    let head_dim = outs[0].len();
    let positions = weights[0].len();
    assert!(done + W * WIDTH <= head_dim && positions * head_dim <= values.len());
    assert!(weights.iter().all(|row| row.len() == positions));
    let mut sums = [[simd.splat(0.0); W]; B];
    for (sums, out) in sums.iter_mut().zip(&*outs) {
        for (v, sum) in sums.iter_mut().enumerate() {
            *sum = simd.load(&out[done + v * WIDTH..]);
        }
    }
    let mut next = values.as_ptr().wrapping_add(done);
    for position in 0..positions {
        for v in 0..W {
            // SAFETY: the vector is within the numbers of the position, as checked above.
            let values = unsafe { L::load(simd, next.wrapping_add(v * WIDTH)) };
            for (weights, sums) in weights.iter().zip(&mut sums) {
                // SAFETY: each row has `positions` weights, as checked above.
                let weight = simd.splat(*unsafe { weights.get_unchecked(position) });
                sums[v] = simd.madd(weight, values, sums[v]);
            }
        }
        next = next.wrapping_add(head_dim);
    }
    for (sums, out) in sums.iter().zip(outs) {
        for (v, &sum) in sums.iter().enumerate() {
            simd.store(sum, &mut out[done + v * WIDTH..]);
        }
    }
}

// Softmax over scores that arrive span by span, with a running maximum.

pub(super) struct Softmax {
    /// Largest score so far.
    max: f32,
    /// Sum of the weights so far, relative to the weight of the largest score.
    total: f32,
    /// True if a score was NaN or +∞.
    invalid: bool,
}

impl Softmax {
    /// Returns the softmax over no scores. A `sink` is one more key of score and value zero ("softmax1").
    pub(super) const fn new(sink: bool) -> Self {
        let empty = Self { max: f32::NEG_INFINITY, total: 0.0, invalid: false };
        if sink { Self { max: 0.0, total: 1.0, invalid: false } } else { empty }
    }

    /// Replaces scores with weights. Scales down `out`, the weighted values so far, if the largest score grows.
    #[inline(always)]
    pub(super) fn push_span<S: Simd>(&mut self, scores: &mut [f32], out: &mut [f32]) {
        let max = largest(scores);
        if max > self.max {
            let factor = exp::<S>(self.max - max);
            self.max = max;
            self.total *= factor;
            for out in out {
                *out *= factor;
            }
        }
        let mut sums = [0f32; LANES];
        for scores in scores.chunks_exact_mut(LANES) {
            for (score, sum) in scores.iter_mut().zip(&mut sums) {
                // `exp` would return a finite number for these
                self.invalid |= score.is_nan() | (*score == f32::INFINITY);
                // a masked key has weight zero
                *score = if *score > f32::NEG_INFINITY { exp::<S>(*score - self.max) } else { 0.0 };
                *sum += *score;
            }
        }
        self.total += add_up(sums);
    }

    /// Divides the weighted values by the sum of the weights.
    #[inline(always)]
    pub(super) fn finish(&self, out: &mut [f32]) {
        let factor = if self.invalid { f32::NAN } else { 1.0 / self.total };
        for out in out {
            *out *= factor;
        }
    }
}

/// Returns the largest score; the number of scores is a multiple of [`LANES`].
#[inline(always)]
pub(super) fn largest(scores: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for scores in scores.chunks_exact(LANES) {
        for (lane, &score) in lanes.iter_mut().zip(scores) {
            *lane = larger(*lane, score);
        }
    }
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] = larger(lanes[lane], lanes[lane + half]);
        }
        half /= 2;
    }
    lanes[0]
}

// Storage formats of keys, values and distances, and the operations that each format implements.

/// Rows that vectors multiply together.
pub(super) const VECTOR_ROWS: usize = 3;

/// Rows that vectors multiply with keys together on processors with 32 vector registers.
const MAX_VECTOR_ROWS: usize = 8;

/// Storage format of keys, values and distances.
pub(super) trait Stored: Copy {
    type Number: Pod;

    /// Multiplies `B` queries with a page's keys, or with as many distances. Each product is one ordered sum over a query's
    /// numbers. Prefetches as many bytes at `next`.
    fn products<S: Simd, const B: usize>(
        simd: S,
        queries: &[Query<'_>; B],
        columns: Columns<'_, Self::Number>,
        next: *const u8,
    ) -> [[f32; POSITIONS]; B];

    /// Multiplies all queries of a job with all its columns.
    #[inline(always)]
    fn multiply<S: Simd>(
        self,
        simd: S,
        job: &Job<'_, Self::Number>,
        out: &mut [Products],
        _sums: &mut TileSums,
        ahead: &mut Ahead,
    ) {
        multiply_vectors::<S, Self>(simd, job, out, ahead);
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
    pub(super) const fn empty() -> Self {
        Self { numbers: &[], scales: &[] }
    }

    #[inline(always)]
    pub(super) fn new(numbers: &'a [u8], scales: &'a [u8]) -> Self {
        Self { numbers: cast(numbers), scales: cast(scales) }
    }
}

pub(super) struct PageHead<'a, T> {
    pub(super) keys: Columns<'a, T>,
    pub(super) values: Columns<'a, T>,
}

impl<'a, T: Pod> PageHead<'a, T> {
    #[inline(always)]
    pub(super) fn new(layout: &PageLayout, head: &'a [u8]) -> Self {
        let columns_bytes = columns_bytes(layout.dtype, layout.head_dim);
        let (keys, rest) = head.split_at(columns_bytes);
        let (scales, values) = rest.split_at(rest.len() - columns_bytes);
        let (key_scales, value_scales) = scales.split_at(scales_bytes(layout.dtype));
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
        *values = PageHead::new(head.layout, span.bytes(list.rows()[0], page)).values;
    }
    values
}

/// Queries of some rows, and columns that all of them are multiplied with.
pub(super) struct Job<'a, T> {
    /// Indices of the rows.
    pub(super) rows: &'a [usize],
    /// One query for each of `rows`.
    pub(super) queries: &'a [Query<'a>],
    /// Columns, at most [`MAX_COLUMNS`].
    pub(super) columns: &'a [Columns<'a, T>],
    /// Index of the product with the first column, by row of the call.
    pub(super) first: &'a [usize; ROW_TILE],
    /// True if the columns are the keys of the next pages in [`Ahead`].
    pub(super) is_ahead: bool,
}

/// Multiplies all queries of a job with all its columns, with vectors.
#[inline(always)]
pub(super) fn multiply_vectors<S: Simd, N: Stored>(
    simd: S,
    job: &Job<'_, N::Number>,
    out: &mut [Products],
    ahead: &mut Ahead,
) {
    if S::ACROSS == 2 {
        multiply_tiles::<S, N, MAX_VECTOR_ROWS>(simd, job, out, ahead);
    } else {
        multiply_tiles::<S, N, VECTOR_ROWS>(simd, job, out, ahead);
    }
}

#[inline(always)]
fn multiply_tiles<S: Simd, N: Stored, const B: usize>(
    simd: S,
    job: &Job<'_, N::Number>,
    out: &mut [Products],
    ahead: &mut Ahead,
) {
    let (row_tiles, rest) = job.rows.as_chunks::<B>();
    let (query_tiles, rest_queries) = job.queries.as_chunks::<B>();
    for (rows, queries) in row_tiles.iter().zip(query_tiles) {
        multiply_tile::<S, N, B>(simd, job, rows, queries, out, ahead);
    }
    for (row, query) in rest.iter().zip(rest_queries) {
        multiply_tile::<S, N, 1>(simd, job, &[*row], &[*query], out, ahead);
    }
}

#[inline(always)]
fn multiply_tile<S: Simd, N: Stored, const B: usize>(
    simd: S,
    job: &Job<'_, N::Number>,
    rows: &[usize; B],
    queries: &[Query<'_>; B],
    out: &mut [Products],
    ahead: &mut Ahead,
) {
    // the first rows read the columns, the others find them in a cache
    let reads = job.is_ahead && rows[0] == job.rows[0];
    for (index, &columns) in job.columns.iter().enumerate() {
        ahead.read_if(reads);
        let next = ahead.take(size_of_val(columns.numbers) / LINE).unwrap_or(columns.numbers.as_ptr().cast());
        let products = N::products::<S, B>(simd, queries, columns, next);
        for (&row, products) in rows.iter().zip(&products) {
            out[row][job.first[row] + index * POSITIONS..][..POSITIONS].copy_from_slice(products);
        }
    }
}
