//! Products and weighted sums of int8 keys and values, computed with exact integer arithmetic.
//!
//! Integer sums are exact, so their order does not matter. Every instruction set gives the same bits.

use super::{
    layout::POSITIONS,
    query::Query,
    softmax::largest,
    span::{Outs, SPAN, Span, VECTORS},
    stored::{Columns, Int8Storage, PageHead, Stored},
};
use crate::kernels::{
    LANES,
    dtype::{ROUND, inverse_of},
    isa::{Simd, WIDTH, pack_bytes, pack_words},
    rowwise::add_up,
};
use std::ops::Range;

/// Integer that the largest weight of a span is rounded to. Sums of a span cannot overflow 32 bits.
const MAX_WEIGHT: f32 = 32767.0;
const _: () = assert!(SPAN as i64 * 32767 * 127 <= i32::MAX as i64);

impl Stored for Int8Storage {
    type Number = i8;
    const PREFETCH_PAGES: usize = 4;

    #[inline(always)]
    fn products<S: Simd, const B: usize>(
        simd: S,
        queries: &[Query<'_>; B],
        columns: Columns<'_, Self>,
    ) -> [[f32; POSITIONS]; B] {
        let cells = queries[0].cells.len();
        assert!(queries.iter().all(|query| query.cells.len() == cells));
        assert!(cells * 4 * POSITIONS <= columns.numbers.len());
        // start at minus the contribution of the offset
        let mut sums = [[simd.splat_int(0); VECTORS]; B];
        for (query, sums) in queries.iter().zip(&mut sums) {
            sums.fill(simd.splat_int(query.sum.wrapping_mul(S::OFFSET).wrapping_neg()));
        }
        let mut next = columns.numbers.as_ptr();
        for cell in 0..cells {
            for v in 0..VECTORS {
                // SAFETY: the vector is within row `cell` of the columns, as checked above.
                let column = simd.offset(unsafe { simd.load_bytes(next.wrapping_add(v * 4 * WIDTH)) });
                for (query, sums) in queries.iter().zip(&mut sums) {
                    // SAFETY: each query has `cells` cells, as checked above.
                    let query = simd.splat_int(pack_bytes(*unsafe { query.cells.get_unchecked(cell) }));
                    sums[v] = simd.dot_bytes(query, column, sums[v]);
                }
            }
            next = next.wrapping_add(4 * POSITIONS);
        }
        let mut products = [[0f32; POSITIONS]; B];
        let (scales, _) = columns.scales[..POSITIONS].as_chunks::<WIDTH>();
        for ((products, sums), query) in products.iter_mut().zip(&sums).zip(queries) {
            let (products, _) = products.as_chunks_mut::<WIDTH>();
            for ((products, sum), scales) in products.iter_mut().zip(sums).zip(scales) {
                let mut ints = [0i32; WIDTH];
                // SAFETY: `ints` has WIDTH elements.
                unsafe { simd.store_ints(*sum, ints.as_mut_ptr()) };
                for ((product, int), scale) in products.iter_mut().zip(&ints).zip(scales) {
                    *product = *int as f32 * (query.scale * scale);
                }
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
        let mut ints = [[0i16; SPAN]; B];
        let mut units = [0f32; B];
        for row in 0..B {
            units[row] = round_weights(span, span.from[row]..span.to[row], &mut weights[row], &mut ints[row]);
        }
        let head_dim = outs[0].len();
        let mut done = 0;
        if B == 1 {
            while done + 4 * WIDTH <= head_dim {
                add_columns::<S, B, 4>(simd, span, &ints, units, outs, done);
                done += 4 * WIDTH;
            }
        }
        while done + 2 * WIDTH <= head_dim {
            add_columns::<S, B, 2>(simd, span, &ints, units, outs, done);
            done += 2 * WIDTH;
        }
        while done + WIDTH <= head_dim {
            add_columns::<S, B, 1>(simd, span, &ints, units, outs, done);
            done += WIDTH;
        }
        if done < head_dim {
            add_rest(span, &ints, units, outs, done);
        }
    }
}

/// Multiplies the weights of `row_keys` with the scales of their values and rounds them to integers. Returns their unit.
#[inline(always)]
fn round_weights<const B: usize>(
    span: &Span<'_, B>,
    row_keys: Range<usize>,
    weights: &mut [f32; SPAN],
    ints: &mut [i16; SPAN],
) -> f32 {
    let head = span.head;
    let offset = head.layout.head_offset(head.layer, head.head);
    let mut maxima = [0f32; LANES];
    let mut nans = [0f32; LANES];
    for (index, (page, weights)) in span.pages.iter().zip(weights.as_chunks_mut::<POSITIONS>().0).enumerate() {
        let scales = PageHead::<Int8Storage>::new(head.layout, page.bytes(), offset).values.scales;
        // outside the window, weights are zero already and scales are unspecified
        let page_end = (index + 1) * POSITIONS;
        let keys = row_keys.start.clamp(index * POSITIONS, page_end)..row_keys.end.min(page_end);
        if keys.len() == POSITIONS {
            let (scales, _) = scales.as_chunks::<LANES>();
            for (weights, scales) in weights.as_chunks_mut::<LANES>().0.iter_mut().zip(scales) {
                // one loop for each operation: the compiler does not vectorise a loop with all of them
                weights.iter_mut().zip(scales).for_each(|(weight, scale)| *weight *= scale);
                weights
                    .iter()
                    .zip(&mut maxima)
                    .for_each(|(&weight, max)| *max = if weight > *max { weight } else { *max });
                weights.iter().zip(&mut nans).for_each(|(weight, nan)| *nan += weight * 0.0);
            }
        } else {
            for key in keys.map(|key| key % POSITIONS) {
                weights[key] *= scales[key];
                track(weights[key], &mut maxima[key % LANES], &mut nans[key % LANES]);
            }
        }
    }
    let max = largest(&maxima);
    let unit = max / MAX_WEIGHT;
    let inverse = inverse_of(unit);
    let count = span.pages.len() * POSITIONS;
    for (int, weight) in ints[..count].iter_mut().zip(&weights[..count]) {
        *int = (*weight * inverse + ROUND).to_bits().wrapping_sub(ROUND.to_bits()) as i16;
    }
    unit + add_up(nans)
}

/// Updates the largest weight, and `nan`, which becomes NaN if the weight is NaN or infinite and stays zero otherwise.
#[inline(always)]
fn track(weight: f32, max: &mut f32, nan: &mut f32) {
    *max = if weight > *max { weight } else { *max };
    *nan += weight * 0.0;
}

/// Adds unit · Σ weights · values to `W` vectors of the outputs, from number `done` on.
#[inline(always)]
fn add_columns<S: Simd, const B: usize, const W: usize>(
    simd: S,
    span: &Span<'_, B>,
    weights: &[[i16; SPAN]; B],
    units: [f32; B],
    outs: &mut Outs<'_, B>,
    done: usize,
) {
    let head_dim = outs[0].len();
    assert!(done + W * WIDTH <= head_dim);
    let mut sums = [[simd.splat_int(0); W]; B];
    for index in 0..span.pages.len() {
        let values = values(span, index);
        if done == 0 {
            span.prefetch(simd, span.pages.len() + index + Int8Storage::PREFETCH_PAGES);
        }
        assert!(POSITIONS * head_dim <= values.len());
        let mut next = values.as_ptr().wrapping_add(2 * done);
        // the last row has the most keys; the weights of other rows are zero after their last key
        let keys = span.to[B - 1] - index * POSITIONS;
        for pair in 0..keys.min(POSITIONS).div_ceil(2) {
            for v in 0..W {
                // SAFETY: the vector is within the numbers of the pair, as checked above.
                let values = unsafe { simd.load_words(next.wrapping_add(2 * v * WIDTH)) };
                for (weights, sums) in weights.iter().zip(&mut sums) {
                    let [low, high] = [0, 1].map(|second| weights[index * POSITIONS + 2 * pair + second]);
                    sums[v] = simd.dot_words(values, simd.splat_int(pack_words(low, high)), sums[v]);
                }
            }
            next = next.wrapping_add(2 * head_dim);
        }
    }
    for ((sums, out), unit) in sums.iter().zip(outs).zip(units) {
        let mut ints = [0i32; WIDTH];
        for (&sum, out) in sums.iter().zip(out[done..].chunks_exact_mut(WIDTH)) {
            // SAFETY: `ints` has sixteen elements.
            unsafe { simd.store_ints(sum, ints.as_mut_ptr()) };
            for (out, int) in out.iter_mut().zip(ints) {
                *out += int as f32 * unit;
            }
        }
    }
}

/// Adds unit · Σ weights · values to the output numbers from `done` on, which do not fill a vector.
#[inline(always)]
fn add_rest<const B: usize>(
    span: &Span<'_, B>,
    weights: &[[i16; SPAN]; B],
    units: [f32; B],
    outs: &mut Outs<'_, B>,
    done: usize,
) {
    for row in 0..B {
        let out = &mut *outs[row];
        let mut sums = [0i32; WIDTH];
        for (index, weights) in weights[row][..span.to[row]].chunks(POSITIONS).enumerate() {
            let values = values(span, index);
            for (position, &weight) in weights.iter().enumerate() {
                let values = &values[position / 2 * 2 * out.len()..];
                for (number, sum) in (done..out.len()).zip(&mut sums) {
                    *sum += i32::from(weight) * i32::from(values[2 * number + position % 2]);
                }
            }
        }
        for (out, sum) in out[done..].iter_mut().zip(sums) {
            *out += sum as f32 * units[row];
        }
    }
}

#[inline(always)]
fn values<'a, const B: usize>(span: &Span<'a, B>, page: usize) -> &'a [i8] {
    let head = span.head;
    let offset = head.layout.head_offset(head.layer, head.head);
    PageHead::<Int8Storage>::new(head.layout, span.pages[page].bytes(), offset).values.numbers
}
