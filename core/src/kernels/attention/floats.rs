//! Products and weighted sums of f32 and bf16 keys and values, computed in f32.

use super::{
    layout::POSITIONS,
    query::Query,
    span::{Outs, SPAN, Span, VECTORS},
    stored::{Columns, FloatStorage, PageHead, Stored},
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
        columns: Columns<'_, Self>,
    ) -> [[f32; POSITIONS]; B] {
        let dim = queries[0].numbers.len();
        assert!(queries.iter().all(|query| query.numbers.len() == dim) && dim * POSITIONS <= columns.numbers.len());
        let mut sums = [[simd.splat(0.0); VECTORS]; B];
        let mut next = columns.numbers.as_ptr();
        for row in 0..dim {
            for v in 0..VECTORS {
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
    fn add_weighted_values<S: Simd, const B: usize>(
        simd: S,
        span: &Span<'_, B>,
        weights: &mut [[f32; SPAN]; B],
        outs: &mut Outs<'_, B>,
    ) {
        let head = span.head;
        let offset = head.layout.head_offset(head.layer, head.head);
        for (index, page) in span.pages.iter().enumerate() {
            span.prefetch(simd, span.pages.len() + index + Self::PREFETCH_PAGES);
            let values = PageHead::<Self>::new(head.layout, page.bytes(), offset).values.numbers;
            let in_page = |keys: usize| keys.saturating_sub(index * POSITIONS).min(POSITIONS);
            let from = span.from.map(in_page);
            let to = span.to.map(in_page);
            let mut page_weights: [&[f32]; B] = [&[]; B];
            for (to, from) in page_weights.iter_mut().zip(&*weights) {
                *to = &from[index * POSITIONS..][..POSITIONS];
            }
            // all rows share these keys; earlier rows also attend to keys before them, later rows to keys after them
            let common = from[B - 1]..to[0].max(from[B - 1]);
            for row in 0..B - 1 {
                add_unshared::<S, L>(simd, page_weights[row], values, from[row]..common.start.min(to[row]), outs[row]);
            }
            if !common.is_empty() {
                let values = &values[common.start * outs[0].len()..];
                add_values::<S, L, B>(simd, page_weights.map(|weights| &weights[common.clone()]), values, outs);
            }
            for row in 1..B {
                add_unshared::<S, L>(simd, page_weights[row], values, common.end.max(from[row])..to[row], outs[row]);
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
