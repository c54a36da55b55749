//! Dense attention without a causal mask: queries attend to keys on both sides, as in an encoder.
//!
//! For each query and head it computes out (head_dim) = softmax(query · keys + bias) · values. A store is temporary, so it is
//! f32 for every weight type. Groups of queries stay in the nearest cache while they pass spans of keys that start at fixed
//! indices. Scores and weighted values are computed in tiles of six queries. One softmax may run over several sections of
//! keys, and a section may have a bias by distance and a window.
//!
//! Order of summation: each score is one sum over the numbers of the head, and each output number one sum over the keys, in
//! order. A query's result depends on the keys alone, not on the batch. Tests compare with a naive f64 implementation.

mod layout;
mod section;
#[cfg(test)]
mod tests;

pub use layout::DenseLayout;
pub use section::{DenseKeys, RelativeKeys};

use super::softmax::Softmax;
use crate::kernels::{
    Compute, LANES,
    isa::{Simd, WIDTH, multiversion},
};
use std::ops::Range;

/// Queries that pass the keys together.
const GROUP: usize = 48;
const TILE: usize = 6;
/// Keys whose scores are held at a time.
const SPAN: usize = 512;
/// Minimum multiply-adds for which it pays to use other threads.
const MIN_SHARED: usize = 1 << 15;

/// Input that all tasks share.
struct DenseJob<'a> {
    /// In the order in which the softmax takes them. All have the same heads.
    sections: &'a [DenseKeys<'a>],
    /// True if the softmax has one more key, of score zero and value zero.
    sink: bool,
    heads: usize,
    head_dim: usize,
    /// (rows, heads, head_dim), scaled.
    queries: &'a [f32],
}

/// Computes `out` (rows, heads, head_dim): softmax(query · keys) · values over the first `count` keys of a store.
/// `queries` have the same shape and are scaled already. The output is NaN if a score is NaN or +∞. Panics if a length
/// does not match, or `count` is zero or above the capacity.
pub fn attend_dense(
    compute: &Compute,
    layout: DenseLayout,
    store: &[f32],
    count: usize,
    queries: &[f32],
    out: &mut [f32],
) {
    attend_sections(compute, &[DenseKeys { layout, store, count, relative: None }], false, queries, out);
}

/// Computes `out` (rows, heads, head_dim) as [`attend_dense`] does, with one softmax over all `sections`. With a `sink`, the
/// softmax has one more key, of score zero and value zero. Panics if a length does not match, a section is empty, or the
/// sections differ in heads.
pub fn attend_sections(compute: &Compute, sections: &[DenseKeys<'_>], sink: bool, queries: &[f32], out: &mut [f32]) {
    let DenseLayout { heads, head_dim, .. } = sections[0].layout;
    let inner = heads * head_dim;
    assert!(queries.len() == out.len() && out.len().is_multiple_of(inner));
    let rows = queries.len() / inner;
    let keys: usize = sections.iter().map(|section| section.check(heads, head_dim, rows)).sum();
    let job = DenseJob { sections, sink, heads, head_dim, queries };
    let share = out.len() * keys >= MIN_SHARED;
    compute.pool.for_columns::<GROUP>(out, rows, heads, share, &|first, head, outs| {
        group(compute.isa, &job, first, head, outs);
    });
}

multiversion! { fn group(job: &DenseJob<'_>, first: usize, head: usize, outs: &mut [&mut [f32]]) = group_body }

#[inline(always)]
fn group_body<S: Simd>(simd: S, job: &DenseJob<'_>, first: usize, head: usize, outs: &mut [&mut [f32]]) {
    let mut softmax: [Softmax; GROUP] = std::array::from_fn(|_| Softmax::new(job.sink));
    outs.iter_mut().for_each(|out| out.fill(0.0));
    for section in job.sections {
        let keys = section.range(first).start..section.range(first + outs.len() - 1).end;
        for start in (keys.start / SPAN * SPAN..keys.end).step_by(SPAN) {
            let span = KeySpan::new(job, section, head, start);
            for (index, outs) in outs.chunks_mut(TILE).enumerate() {
                let row = first + index * TILE;
                let softmax = &mut softmax[index * TILE..];
                match outs.len() {
                    1 => span.tile::<S, 1>(simd, row, outs, softmax),
                    2 => span.tile::<S, 2>(simd, row, outs, softmax),
                    3 => span.tile::<S, 3>(simd, row, outs, softmax),
                    4 => span.tile::<S, 4>(simd, row, outs, softmax),
                    5 => span.tile::<S, 5>(simd, row, outs, softmax),
                    _ => span.tile::<S, TILE>(simd, row, outs, softmax),
                }
            }
        }
    }
    for (softmax, out) in softmax.iter().zip(outs) {
        softmax.finish(out);
    }
}

/// Consecutive keys of one head.
struct KeySpan<'a> {
    job: &'a DenseJob<'a>,
    section: &'a DenseKeys<'a>,
    head: usize,
    /// Index of the first key.
    start: usize,
    /// (panels, head_dim, 16)
    keys: &'a [f32],
    /// (count, padded head_dim)
    values: &'a [f32],
    count: usize,
}

impl<'a> KeySpan<'a> {
    #[inline(always)]
    fn new(job: &'a DenseJob<'a>, section: &'a DenseKeys<'a>, head: usize, start: usize) -> Self {
        let layout = &section.layout;
        let count = SPAN.min(section.count - start);
        let keys = &section.store[head * layout.head_keys() + start * layout.head_dim..];
        let values = &section.store[layout.values_offset() + (head * layout.capacity + start) * layout.padded_dim()..];
        let keys = &keys[..count.next_multiple_of(LANES) * layout.head_dim];
        Self { job, section, head, start, keys, values: &values[..count * layout.padded_dim()], count }
    }

    /// Returns the keys of the span that query `row` attends to, as indices in the span.
    #[inline(always)]
    fn keys_of(&self, row: usize) -> Range<usize> {
        let Range { start, end } = self.section.range(row);
        let start = start.saturating_sub(self.start).min(self.count);
        start..end.saturating_sub(self.start).clamp(start, self.count)
    }

    #[inline(always)]
    fn tile<S: Simd, const R: usize>(&self, simd: S, first: usize, outs: &mut [&mut [f32]], softmax: &mut [Softmax]) {
        let DenseJob { heads, head_dim, .. } = *self.job;
        // windows never move back from row to row
        let tile_keys = self.keys_of(first).start..self.keys_of(first + R - 1).end;
        if tile_keys.is_empty() {
            return;
        }
        let panels = tile_keys.start / LANES..tile_keys.end.div_ceil(LANES);
        let padded = panels.start * LANES..panels.end * LANES;
        let queries: [&[f32]; R] =
            std::array::from_fn(|row| &self.job.queries[((first + row) * heads + self.head) * head_dim..][..head_dim]);
        let mut scores = [[0f32; SPAN]; R];
        for (index, panel) in self.keys.chunks_exact(LANES * head_dim).enumerate().take(panels.end).skip(panels.start) {
            panel_scores::<S, R>(simd, &queries, panel, index * LANES, &mut scores);
        }
        for row in 0..R {
            let scores = &mut scores[row];
            let keys = self.keys_of(first + row);
            self.section.add_bias(self.head, first + row, self.start + keys.start, &mut scores[keys.clone()]);
            scores[padded.start..keys.start.max(padded.start)].fill(f32::NEG_INFINITY);
            scores[keys.end.max(padded.start)..padded.end].fill(f32::NEG_INFINITY);
            softmax[row].push_span::<S>(&mut scores[padded.clone()], outs[row]);
        }
        let mut done = 0;
        while S::ACROSS == 2 && done + 2 * WIDTH <= head_dim {
            self.columns::<S, R, 2>(simd, &scores, tile_keys.clone(), outs, done);
            done += 2 * WIDTH;
        }
        while done < head_dim {
            self.columns::<S, R, 1>(simd, &scores, tile_keys.clone(), outs, done);
            done += WIDTH;
        }
    }

    /// Adds Σ weights · values of `keys` to `W` vectors of the outputs, from number `done` on. The last vector may exceed head_dim.
    #[inline(always)]
    fn columns<S: Simd, const R: usize, const W: usize>(
        &self,
        simd: S,
        weights: &[[f32; SPAN]; R],
        keys: Range<usize>,
        outs: &mut [&mut [f32]],
        done: usize,
    ) {
        let padded_dim = self.section.layout.padded_dim();
        assert!(done + W * WIDTH <= padded_dim && keys.end * padded_dim <= self.values.len() && keys.end <= SPAN);
        let used = (W * WIDTH).min(self.job.head_dim - done);
        let mut sums = [[simd.splat(0.0); W]; R];
        let mut numbers = [[0f32; 2 * WIDTH]; R];
        for (row, (sums, numbers)) in sums.iter_mut().zip(&mut numbers).enumerate() {
            numbers[..used].copy_from_slice(&outs[row][done..done + used]);
            for (v, sum) in sums.iter_mut().enumerate() {
                *sum = simd.load(&numbers[v * WIDTH..]);
            }
        }
        let mut next = self.values.as_ptr().wrapping_add(keys.start * padded_dim + done);
        for key in keys {
            for v in 0..W {
                // SAFETY: the vector is within the padded numbers of the key, as checked above.
                let values = unsafe { simd.load_at(next.wrapping_add(v * WIDTH)) };
                for (weights, sums) in weights.iter().zip(&mut sums) {
                    // SAFETY: each row has SPAN weights, and the keys end at SPAN or before, as checked above.
                    let weight = simd.splat(*unsafe { weights.get_unchecked(key) });
                    sums[v] = simd.madd(weight, values, sums[v]);
                }
            }
            next = next.wrapping_add(padded_dim);
        }
        for (row, (sums, numbers)) in sums.iter().zip(&mut numbers).enumerate() {
            for (v, &sum) in sums.iter().enumerate() {
                simd.store(sum, &mut numbers[v * WIDTH..]);
            }
            outs[row][done..done + used].copy_from_slice(&numbers[..used]);
        }
    }
}

/// Computes the scores of a panel of sixteen keys and stores them at index `first`.
#[inline(always)]
fn panel_scores<S: Simd, const R: usize>(
    simd: S,
    queries: &[&[f32]; R],
    panel: &[f32],
    first: usize,
    scores: &mut [[f32; SPAN]; R],
) {
    let dim = queries[0].len();
    assert!(queries.iter().all(|query| query.len() == dim) && panel.len() == dim * LANES);
    let mut sums = [simd.splat(0.0); R];
    let mut next = panel.as_ptr();
    for number in 0..dim {
        // SAFETY: the panel has sixteen floats for each of the head's numbers, as checked above.
        let keys = unsafe { simd.load_at(next) };
        for (query, sum) in queries.iter().zip(&mut sums) {
            // SAFETY: each query has `dim` numbers, as checked above.
            let factor = simd.splat(*unsafe { query.get_unchecked(number) });
            *sum = simd.madd(factor, keys, *sum);
        }
        next = next.wrapping_add(LANES);
    }
    for (&sum, scores) in sums.iter().zip(scores) {
        simd.store(sum, &mut scores[first..]);
    }
}
