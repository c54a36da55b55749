//! Products and weighted sums of int8 keys and values, computed with exact integer arithmetic.
//!
//! Integer sums are exact, so their order does not matter. Every instruction set gives the same bits.

use super::{
    inputs::{AttentionHead, ROW_TILE},
    layout::{POSITIONS, QUAD, byte_of},
    query::Query,
    runs::{Run, SPAN, Span},
    softmax::largest,
    stored::{Columns, Int8Storage, PageHead, Stored, VECTOR_ROWS, run_values},
    work::Work,
};
use crate::kernels::{
    LANES,
    dtype::{ROUND, inverse_of},
    isa::{Simd, WIDTH, pack_bytes, pack_words},
    rowwise::add_up,
};

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
        columns: Columns<'_, i8>,
    ) -> [[f32; POSITIONS]; B] {
        let cells = queries[0].cells.len();
        assert!(queries.iter().all(|query| query.cells.len() == cells));
        assert!(cells * 4 * POSITIONS <= columns.numbers.len());
        // start at minus the contribution of the offset
        let mut sums = [[simd.splat_int(0); POSITIONS / WIDTH]; B];
        for (query, sums) in queries.iter().zip(&mut sums) {
            sums.fill(simd.splat_int(query.sum.wrapping_mul(S::OFFSET).wrapping_neg()));
        }
        let mut next = columns.numbers.as_ptr();
        for cell in 0..cells {
            for v in 0..POSITIONS / WIDTH {
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
        for ((products, sums), query) in products.iter_mut().zip(&sums).zip(queries) {
            let scale = simd.splat(query.scale);
            for (v, &sum) in sums.iter().enumerate() {
                let scale = simd.mul(scale, simd.load(&columns.scales[v * WIDTH..]));
                simd.store(simd.mul(simd.to_floats(sum), scale), &mut products[v * WIDTH..]);
            }
        }
        products
    }

    #[inline(always)]
    fn prepare_weights<S: Simd>(self, simd: S, head: &AttentionHead<'_>, span: &Span<'_>, row: usize, work: &mut Work) {
        round_weights(simd, head, span, row, work);
        let dim = head.layout.head_dim;
        // for all rows at once, so that a later step with more rows allocates nothing
        work.sums.resize(work.sums.len().max(ROW_TILE * dim), 0);
        work.sums[row * dim..][..dim].fill(0);
    }

    #[inline(always)]
    fn add_run<S: Simd>(
        self,
        simd: S,
        head: &AttentionHead<'_>,
        span: &Span<'_>,
        run: &Run,
        work: &mut Work,
        _outs: &mut [&mut [f32]],
    ) {
        let list = run.rows.list();
        let (tiles, rest) = list.rows().as_chunks::<VECTOR_ROWS>();
        let mut prefetch = !span.rows[list.rows()[0]].keys.recently_read;
        for rows in tiles {
            add_rows(simd, head, span, run, rows, prefetch, work);
            prefetch = false;
        }
        for row in rest {
            add_rows(simd, head, span, run, &[*row], prefetch, work);
            prefetch = false;
        }
    }

    #[inline(always)]
    fn finish_sums(self, row: usize, work: &Work, out: &mut [f32]) {
        let sums = &work.sums[row * out.len()..];
        let unit = work.units[row];
        out.iter_mut().zip(sums).for_each(|(out, &sum)| *out += sum as f32 * unit);
    }
}

/// Adds weights · values of a run to the sums of some of its rows.
#[inline(always)]
fn add_rows<S: Simd, const B: usize>(
    simd: S,
    head: &AttentionHead<'_>,
    span: &Span<'_>,
    run: &Run,
    rows: &[usize; B],
    prefetch: bool,
    work: &mut Work,
) {
    let values = run_values(head, span, run);
    let last = rows.iter().map(|&row| span.to[row]).max().unwrap_or(0);
    let keys = last.min(run.pages.end * POSITIONS) - run.pages.start * POSITIONS;
    let part = Part {
        values: &values[..run.pages.len()],
        keys,
        weights: rows.map(|row| &work.weights[row][run.pages.start * POSITIONS..]),
        head_dim: head.layout.head_dim,
        prefetch,
    };
    let sums = &mut work.sums;
    let dim = part.head_dim;
    let mut done = 0;
    if B == 1 {
        while done + 4 * WIDTH <= dim {
            part.add_columns::<S, 4>(simd, rows, sums, done);
            done += 4 * WIDTH;
        }
    }
    while done + 2 * WIDTH <= dim {
        part.add_columns::<S, 2>(simd, rows, sums, done);
        done += 2 * WIDTH;
    }
    while done + WIDTH <= dim {
        part.add_columns::<S, 1>(simd, rows, sums, done);
        done += WIDTH;
    }
    if done < dim {
        part.add_rest(rows, sums, done);
    }
}

/// Multiplies a row's weights with the scales of their values and rounds them to integers. Stores their unit.
#[inline(always)]
fn round_weights<S: Simd>(simd: S, head: &AttentionHead<'_>, span: &Span<'_>, row: usize, work: &mut Work) {
    let weights = &mut work.scores[row];
    let pages = span.pages(row);
    let keys = span.from[row]..span.to[row];
    let mut maxima = simd.splat(0.0);
    let mut nans = simd.splat(0.0);
    let mut edge_max = 0f32;
    let mut edge_nan = 0f32;
    for index in pages.clone() {
        let scales = PageHead::<i8>::new(head, span.bytes(row, index)).values.scales;
        for first in (0..POSITIONS).step_by(WIDTH) {
            let vector = index * POSITIONS + first;
            let weights = &mut weights[vector..][..WIDTH];
            let scales = &scales[first..][..WIDTH];
            if keys.start <= vector && vector + WIDTH <= keys.end {
                let products = simd.mul(simd.load(weights), simd.load(scales));
                simd.store(products, weights);
                maxima = simd.max(products, maxima);
                // NaN or infinity become NaN
                nans = simd.add(nans, simd.mul(products, simd.splat(0.0)));
            } else {
                // outside the window, weights are zero already and scales are unspecified
                for (key, (weight, scale)) in (vector..).zip(weights.iter_mut().zip(scales)) {
                    if keys.contains(&key) {
                        *weight *= scale;
                        edge_max = if *weight > edge_max { *weight } else { edge_max };
                        edge_nan += *weight * 0.0;
                    }
                }
            }
        }
    }
    let mut lanes = [0f32; LANES];
    simd.store(maxima, &mut lanes);
    let max = largest(&lanes).max(edge_max);
    simd.store(nans, &mut lanes);
    let unit = max / MAX_WEIGHT;
    let inverse = inverse_of(unit);
    let keys = pages.start * POSITIONS..pages.end * POSITIONS;
    for (int, weight) in work.weights[row][keys.clone()].iter_mut().zip(&weights[keys]) {
        *int = (*weight * inverse + ROUND).to_bits().wrapping_sub(ROUND.to_bits()) as i16;
    }
    work.units[row] = unit + add_up(lanes) + edge_nan;
}

/// Values of a run, and the weights of some of its rows.
struct Part<'a, const B: usize> {
    /// (positions/4, head_dim, 4) for each page.
    values: &'a [Columns<'a, i8>],
    /// Keys that may have a weight.
    keys: usize,
    weights: [&'a [i16]; B],
    head_dim: usize,
    /// True if the values may have to be fetched from memory.
    prefetch: bool,
}

impl<const B: usize> Part<'_, B> {
    /// Adds Σ weights · values to `W` vectors of the sums, from number `done` on.
    #[inline(always)]
    fn add_columns<S: Simd, const W: usize>(&self, simd: S, rows: &[usize; B], all_sums: &mut [i32], done: usize) {
        let dim = self.head_dim;
        assert!(done + W * WIDTH <= dim);
        let mut sums = [[simd.splat_int(0); W]; B];
        for (index, page) in self.values.iter().enumerate() {
            if done == 0
                && self.prefetch
                && let Some(page) = self.values.get(index + Int8Storage::PREFETCH_PAGES)
            {
                page.prefetch(simd);
            }
            assert!(POSITIONS * dim <= page.numbers.len());
            let mut next = page.numbers.as_ptr().wrapping_add(QUAD * done);
            // the weights of a row are zero after its last key
            let keys = (self.keys - index * POSITIONS).min(POSITIONS);
            for quad in 0..keys.div_ceil(QUAD) {
                let weight = index * POSITIONS + QUAD * quad;
                for v in 0..W {
                    // SAFETY: the vector is within the numbers of four positions, as checked above.
                    let bytes = unsafe { simd.load_bytes(next.wrapping_add(QUAD * v * WIDTH)) };
                    let [first, second] = simd.words(bytes);
                    for (weights, sums) in self.weights.iter().zip(&mut sums) {
                        let [a, b, c, d] = weights[weight..][..QUAD] else { continue };
                        sums[v] = simd.dot_words(first, simd.splat_int(pack_words(a, b)), sums[v]);
                        sums[v] = simd.dot_words(second, simd.splat_int(pack_words(c, d)), sums[v]);
                    }
                }
                next = next.wrapping_add(QUAD * dim);
            }
        }
        for (sums, row) in sums.iter().zip(rows) {
            for (&sum, out) in sums.iter().zip(all_sums[row * dim + done..].chunks_exact_mut(WIDTH)) {
                let mut ints = [0i32; WIDTH];
                // SAFETY: `ints` has WIDTH elements.
                unsafe { simd.store_ints(sum, ints.as_mut_ptr()) };
                out.iter_mut().zip(ints).for_each(|(out, int)| *out = out.wrapping_add(int));
            }
        }
    }

    /// Adds Σ weights · values to the sums from number `done` on, which do not fill a vector.
    #[inline(always)]
    fn add_rest(&self, rows: &[usize; B], all_sums: &mut [i32], done: usize) {
        let dim = self.head_dim;
        for (weights, row) in self.weights.iter().zip(rows) {
            let sums = &mut all_sums[row * dim..][..dim];
            for (page, weights) in self.values.iter().zip(weights[..self.keys].chunks(POSITIONS)) {
                for (position, &weight) in weights.iter().enumerate() {
                    let values = &page.numbers[position / QUAD * QUAD * dim..][QUAD * done..QUAD * dim];
                    let (quads, _) = values.as_chunks::<QUAD>();
                    for (sum, quad) in sums[done..].iter_mut().zip(quads) {
                        // never wraps, as MAX_WEIGHT ensures: this only omits the check for an overflow
                        *sum = sum.wrapping_add(i32::from(weight) * i32::from(quad[byte_of(position)]));
                    }
                }
            }
        }
    }
}
