//! Products and weighted sums of f32 and bf16 keys and values, computed in f32.

use super::{
    layout::POSITIONS,
    queries::{AttentionHead, Products, Query, Run, Span, Work},
    stored::{Columns, FloatStorage, Stored, VECTOR_ROWS, run_values},
};
use crate::kernels::{
    dtype::LoadAsF32,
    isa::{Simd, WIDTH},
};
use std::ops::Range;

impl<L: LoadAsF32> Stored for FloatStorage<L> {
    type Number = L;
    const PREFETCH_PAGES: usize = 1;

    #[inline(always)]
    fn products<S: Simd, const B: usize>(
        simd: S,
        queries: &[Query<'_>; B],
        columns: Columns<'_, L>,
    ) -> [[f32; POSITIONS]; B] {
        let dim = queries[0].numbers.len();
        assert!(queries.iter().all(|query| query.numbers.len() == dim) && dim * POSITIONS <= columns.numbers.len());
        let mut sums = [[simd.splat(0.0); POSITIONS / WIDTH]; B];
        let mut next = columns.numbers.as_ptr();
        for row in 0..dim {
            for v in 0..POSITIONS / WIDTH {
                // SAFETY: the vector is within row `row` of the columns, as checked above.
                let column = unsafe { L::load(simd, next.wrapping_add(v * WIDTH)) };
                for (query, sums) in queries.iter().zip(&mut sums) {
                    // SAFETY: each query has `dim` numbers, as checked above.
                    let factor = simd.splat(*unsafe { query.numbers.get_unchecked(row) });
                    sums[v] = simd.madd(factor, column, sums[v]);
                }
            }
            next = next.wrapping_add(POSITIONS);
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
        let mut prefetch = !span.rows[list.rows()[0]].keys.recently_read;
        for rows in tiles {
            part.add_rows(simd, rows, prefetch, outs);
            prefetch = false;
        }
        for row in rest {
            part.add_rows(simd, &[*row], prefetch, outs);
            prefetch = false;
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
    /// Adds Σ weights · values to the outputs of some of the run's rows. Fetches the values from memory if `prefetch`.
    #[inline(always)]
    fn add_rows<S: Simd, const B: usize>(&self, simd: S, rows: &[usize; B], prefetch: bool, outs: &mut [&mut [f32]]) {
        let Self { span, run, values, weights } = *self;
        let Ok(outs) = outs.get_disjoint_mut(*rows) else { return };
        let mut outs: Outs<'_, B> = outs.map(|out| &mut **out);
        for (index, (columns, page)) in values.iter().zip(run.pages.clone()).enumerate() {
            if prefetch && let Some(columns) = values.get(index + FloatStorage::<L>::PREFETCH_PAGES) {
                columns.prefetch(simd);
            }
            let values = columns.numbers;
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
