//! Keys and values that are bytes, multiplied as such.

use super::{
    Outs, POSITIONS, SPAN, Span, VECTORS,
    query::Query,
    softmax::largest,
    stored::{Bytes, Columns, Head, Stored},
};
use crate::kernels::{
    LANES,
    dtype::inverse_of,
    isa::{Simd, WIDTH},
    rowwise::add_up,
};

/// What the largest weight of a span becomes. A span's sum of so large weights times bytes has room in 32 bits.
const LARGEST: f32 = 32767.0;
const _: () = assert!(SPAN as i64 * 32767 * 127 <= i32::MAX as i64);

impl Stored for Bytes {
    type Number = i8;
    const AHEAD: usize = 4;

    #[inline(always)]
    fn products<S: Simd, const B: usize>(
        simd: S,
        queries: &[Query<'_>; B],
        columns: Columns<'_, Self>,
    ) -> [[f32; POSITIONS]; B] {
        let cells = queries[0].cells.len();
        assert!(queries.iter().all(|query| query.cells.len() == cells));
        assert!(cells * 4 * POSITIONS <= columns.numbers.len());
        // what the offset adds to a product of all of a query's bytes is taken off beforehand
        let mut sums = [[simd.splat_int(0); VECTORS]; B];
        for (query, sums) in queries.iter().zip(&mut sums) {
            sums.fill(simd.splat_int(query.sum.wrapping_mul(S::OFFSET).wrapping_neg()));
        }
        let mut at = columns.numbers.as_ptr();
        for cell in 0..cells {
            for v in 0..VECTORS {
                // SAFETY: within the cells, as checked above.
                let column = simd.offset(unsafe { simd.load_bytes(at.wrapping_add(v * 4 * WIDTH)) });
                for (query, sums) in queries.iter().zip(&mut sums) {
                    // SAFETY: each query has so many, as checked above.
                    let query = simd.splat_int(four(*unsafe { query.cells.get_unchecked(cell) }));
                    sums[v] = simd.dot_bytes(query, column, sums[v]);
                }
            }
            at = at.wrapping_add(4 * POSITIONS);
        }
        let mut products = [[0f32; POSITIONS]; B];
        for ((products, sums), query) in products.iter_mut().zip(sums).zip(queries) {
            let mut ints = [0i32; POSITIONS];
            for (v, sum) in sums.into_iter().enumerate() {
                // SAFETY: a page has VECTORS times so many positions.
                unsafe { simd.store_ints(sum, ints[v * WIDTH..].as_mut_ptr()) };
            }
            for ((product, int), scale) in products.iter_mut().zip(ints).zip(&columns.scales[..POSITIONS]) {
                *product = int as f32 * (query.scale * scale);
            }
        }
        products
    }

    #[inline(always)]
    fn weigh<S: Simd, const B: usize>(
        simd: S,
        span: &Span<'_, B>,
        weights: &mut [[f32; SPAN]; B],
        outs: &mut Outs<'_, B>,
    ) {
        let mut ints = [[0i16; SPAN]; B];
        let mut units = [0f32; B];
        for row in 0..B {
            units[row] = to_ints(span, (span.from[row], span.to[row]), &mut weights[row], &mut ints[row]);
        }
        let head_dim = outs[0].len();
        let mut done = 0;
        if B == 1 {
            while done + 4 * WIDTH <= head_dim {
                add_columns::<S, B, 4>(simd, span, (&ints, units), (outs, done));
                done += 4 * WIDTH;
            }
        }
        while done + 2 * WIDTH <= head_dim {
            add_columns::<S, B, 2>(simd, span, (&ints, units), (outs, done));
            done += 2 * WIDTH;
        }
        while done + WIDTH <= head_dim {
            add_columns::<S, B, 1>(simd, span, (&ints, units), (outs, done));
            done += WIDTH;
        }
        if done < head_dim {
            add_rest(span, (&ints, units), (outs, done));
        }
    }
}

/// A row's weights, times the scales of their values, as integers, those of its keys from one to before another; what they were
/// divided by.
#[inline(always)]
fn to_ints<const B: usize>(
    span: &Span<'_, B>,
    (from, to): (usize, usize),
    weights: &mut [f32; SPAN],
    ints: &mut [i16; SPAN],
) -> f32 {
    // adding 1.5 · 2^23 leaves the nearest integer in the low bits, in every rounding mode weir runs in
    const ROUND: f32 = 12_582_912.0;
    let source = span.source;
    let at = source.layout.head_offset(source.layer, source.head);
    let (mut tops, mut nothings) = ([0f32; LANES], [0f32; LANES]);
    for (index, (page, weights)) in span.pages.iter().zip(weights.as_chunks_mut::<POSITIONS>().0).enumerate() {
        let scales = Head::<Bytes>::of(source.layout, page.bytes(), at).values.scales;
        // weights outside are zeros already, scales there whatever
        let keys = from.clamp(index * POSITIONS, (index + 1) * POSITIONS)..to.min((index + 1) * POSITIONS);
        if keys.len() == POSITIONS {
            for (weights, scales) in weights.as_chunks_mut::<LANES>().0.iter_mut().zip(scales.chunks_exact(LANES)) {
                for lane in 0..LANES {
                    weights[lane] *= scales[lane];
                    note(weights[lane], &mut tops[lane], &mut nothings[lane]);
                }
            }
        } else {
            for key in keys.map(|key| key % POSITIONS) {
                weights[key] *= scales[key];
                note(weights[key], &mut tops[key % LANES], &mut nothings[key % LANES]);
            }
        }
    }
    let top = largest(&tops);
    let unit = top / LARGEST;
    let inverse = inverse_of(unit);
    let all = span.pages.len() * POSITIONS;
    for (int, weight) in ints[..all].iter_mut().zip(&weights[..all]) {
        *int = (*weight * inverse + ROUND).to_bits().wrapping_sub(ROUND.to_bits()) as i16;
    }
    unit + add_up(nothings)
}

/// The largest weight so far; zero, or no number if a weight is none.
#[inline(always)]
fn note(weight: f32, top: &mut f32, nothing: &mut f32) {
    *top = if weight > *top { weight } else { *top };
    // zero times what is no number is none either
    *nothing += weight * 0.0;
}

/// `out` += unit · Σ weights · values: `W` vectors of numbers side by side, from `done` on.
#[inline(always)]
fn add_columns<S: Simd, const B: usize, const W: usize>(
    simd: S,
    span: &Span<'_, B>,
    (weights, units): (&[[i16; SPAN]; B], [f32; B]),
    (outs, done): (&mut Outs<'_, B>, usize),
) {
    let head_dim = outs[0].len();
    assert!(done + W * WIDTH <= head_dim);
    let mut sums = [[simd.splat_int(0); W]; B];
    for index in 0..span.pages.len() {
        let values = values(span, index);
        if done == 0 {
            span.ask_for(simd, span.pages.len() + index + Bytes::AHEAD);
        }
        assert!(POSITIONS * head_dim <= values.len());
        let mut at = values.as_ptr().wrapping_add(2 * done);
        // of the last page only what the last row attends to, which has the most keys; others' weights are zero there
        let keys = span.to[B - 1] - index * POSITIONS;
        for pair in 0..keys.min(POSITIONS).div_ceil(2) {
            for v in 0..W {
                // SAFETY: within a pair's numbers, as checked above.
                let values = unsafe { simd.load_words(at.wrapping_add(2 * v * WIDTH)) };
                for (weights, sums) in weights.iter().zip(&mut sums) {
                    let [low, high] = [0, 1].map(|second| weights[index * POSITIONS + 2 * pair + second]);
                    sums[v] = simd.dot_words(values, simd.splat_int(two(low, high)), sums[v]);
                }
            }
            at = at.wrapping_add(2 * head_dim);
        }
    }
    for ((sums, out), unit) in sums.iter().zip(outs).zip(units) {
        let mut ints = [0i32; WIDTH];
        for (&sum, out) in sums.iter().zip(out[done..].chunks_exact_mut(WIDTH)) {
            // SAFETY: there is room for sixteen.
            unsafe { simd.store_ints(sum, ints.as_mut_ptr()) };
            for (out, int) in out.iter_mut().zip(ints) {
                *out += int as f32 * unit;
            }
        }
    }
}

/// `out` += unit · Σ weights · values of the numbers from `done` on, which fill no vector.
#[inline(always)]
fn add_rest<const B: usize>(
    span: &Span<'_, B>,
    (weights, units): (&[[i16; SPAN]; B], [f32; B]),
    (outs, done): (&mut Outs<'_, B>, usize),
) {
    for row in 0..B {
        let (out, mut sums) = (&mut *outs[row], [0i32; WIDTH]);
        for (index, weights) in weights[row][..span.to[row]].chunks(POSITIONS).enumerate() {
            let values = values(span, index);
            for (position, &weight) in weights.iter().enumerate() {
                let values = &values[position / 2 * 2 * out.len()..];
                for (at, sum) in (done..out.len()).zip(&mut sums) {
                    *sum += i32::from(weight) * i32::from(values[2 * at + position % 2]);
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
    let source = span.source;
    let at = source.layout.head_offset(source.layer, source.head);
    Head::<Bytes>::of(source.layout, span.pages[page].bytes(), at).values.numbers
}

/// Four bytes in one place.
#[inline(always)]
fn four([a, b, c, d]: [i8; 4]) -> i32 {
    i32::from_ne_bytes([a as u8, b as u8, c as u8, d as u8])
}

/// Two 16-bit integers in one place.
#[inline(always)]
fn two(low: i16, high: i16) -> i32 {
    i32::from(high) << 16 | i32::from(low.cast_unsigned())
}
