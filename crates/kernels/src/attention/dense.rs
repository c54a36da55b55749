//! Dense attention without a causal mask: queries attend to keys on both sides, as in an encoder.
//!
//! For each query and head it computes out (head_dim) = softmax(query · keys + bias) · values; [`attend_selected`] does so for
//! keys that were selected for one query. A store is temporary, so it is f32 for every weight type. One softmax may run over
//! several sections of keys, each with a bias by distance and a window.
//!
//! Order of summation: each score is one sum over the numbers of the head, and each output number one sum over the keys, in
//! order. A query's result depends on the keys alone, not on the batch.

use crate::attention::floats::Softmax;
use crate::isa::{Isa, Simd, WIDTH, multiversion};
use crate::{Compute, LANES};
use std::ops::Range;

/// Queries that pass the keys together.
const GROUP: usize = 48;

const TILE: usize = 6;

/// Keys whose scores are held at a time.
const SPAN: usize = 512;

/// Minimum multiply-adds for which it pays to use other threads.
const MIN_SHARED: usize = 1 << 15;

struct DenseJob<'a> {
    sections: &'a [DenseKeys<'a>],
    /// True if the softmax has one more key, of score zero and value zero.
    sink: bool,
    heads: usize,
    head_dim: usize,
    /// (rows, heads, head_dim), scaled.
    queries: &'a [f32],
}

/// Computes `out` (rows, heads, head_dim): softmax(query · keys) · values over the first `count` keys of a store, for scaled
/// `queries` of the same shape. NaN if a score is NaN or +∞. Panics if a length does not match.
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

/// Computes `out` (rows, heads, head_dim) as [`attend_dense`] does, with one softmax over all `sections`, and with a `sink` over
/// one more key of score and value zero. Panics if a length does not match or a section is empty.
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

struct KeySpan<'a> {
    job: &'a DenseJob<'a>,
    section: &'a DenseKeys<'a>,
    head: usize,
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

/// Layout of a store: keys (heads, panels, head_dim, 16), then values (heads, keys, head_dim padded to whole vectors).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DenseLayout {
    /// Number of heads.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Maximum keys.
    pub capacity: usize,
}

impl DenseLayout {
    /// Returns the number of floats of a store.
    pub fn floats(&self) -> usize {
        self.values_offset() + self.heads * self.capacity * self.padded_dim()
    }

    fn padded_dim(&self) -> usize {
        self.head_dim.next_multiple_of(WIDTH)
    }

    fn head_keys(&self) -> usize {
        self.capacity.next_multiple_of(LANES) * self.head_dim
    }

    fn values_offset(&self) -> usize {
        self.heads * self.head_keys()
    }

    /// Adds the attention weights of the first `count` keys of a head to `sums` (count), summed over scaled queries, (head_dim)
    /// each, in order. Panics if the store has fewer than `sums.len()` keys.
    pub fn add_weights<'a>(
        &self,
        store: &[f32],
        head: usize,
        queries: impl Iterator<Item = &'a [f32]>,
        sums: &mut [f32],
    ) {
        let keys = &store[head * self.head_keys()..][..sums.len().next_multiple_of(LANES) * self.head_dim];
        let mut weights = vec![[0f32; LANES]; keys.len() / (LANES * self.head_dim)];
        for query in queries {
            for (scores, panel) in weights.iter_mut().zip(keys.chunks_exact(LANES * self.head_dim)) {
                *scores = [0.0; LANES];
                for (lanes, x) in panel.chunks_exact(LANES).zip(query) {
                    scores.iter_mut().zip(lanes).for_each(|(score, key)| *score += x * key);
                }
            }
            let weights = &mut weights.as_flattened_mut()[..sums.len()];
            let top = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            weights.iter_mut().for_each(|score| *score = (*score - top).exp());
            let factor = 1.0 / weights.iter().sum::<f32>();
            sums.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += factor * *weight);
        }
    }

    /// Writes the keys and values at index `index`, (heads, head_dim) each. Panics if `index` is not below the capacity.
    pub fn write(&self, store: &mut [f32], index: usize, keys: &[f32], values: &[f32]) {
        assert!(index < self.capacity);
        let (all_keys, all_values) = store.split_at_mut(self.values_offset());
        let heads = all_keys.chunks_exact_mut(self.head_keys()).zip(keys.chunks_exact(self.head_dim));
        for (all, key) in heads {
            let panel = &mut all[index / LANES * LANES * self.head_dim..][..LANES * self.head_dim];
            for (lanes, &x) in panel.chunks_exact_mut(LANES).zip(key) {
                lanes[index % LANES] = x;
            }
        }
        let heads =
            all_values.chunks_exact_mut(self.capacity * self.padded_dim()).zip(values.chunks_exact(self.head_dim));
        for (all, value) in heads {
            all[index * self.padded_dim()..][..self.head_dim].copy_from_slice(value);
        }
    }
}

/// Keys and values of one store. Queries attend to all of them, or to those within a window.
#[derive(Debug, Clone, Copy)]
pub struct DenseKeys<'a> {
    /// Layout of the store.
    pub layout: DenseLayout,
    /// Keys and values.
    pub store: &'a [f32],
    /// Number of keys written.
    pub count: usize,
    /// Bias and window; none: every query attends to all keys.
    pub relative: Option<RelativeKeys<'a>>,
}

/// Bias and window of a section, by distance: the key's position minus the query's.
#[derive(Debug, Clone, Copy)]
pub struct RelativeKeys<'a> {
    /// For each head the bias of the distances from −M to M, (2·M + 1). Larger distances take the first or the last entry.
    pub tables: &'a [Vec<f32>],
    /// Position of each query, in rising order; a position may repeat. (rows)
    pub query_positions: &'a [u32],
    /// Position of each key, in strictly rising order; none: its index. (count)
    pub key_positions: Option<&'a [u32]>,
    /// Largest distance, on both sides, at which a query attends to a key; none: any.
    pub radius: Option<usize>,
}

impl DenseKeys<'_> {
    /// Checks the lengths against heads and queries. Returns the number of keys.
    fn check(&self, heads: usize, head_dim: usize, rows: usize) -> usize {
        let Self { layout, store, count, relative } = self;
        assert!(layout.heads == heads && layout.head_dim == head_dim);
        assert!((1..=layout.capacity).contains(count) && store.len() == layout.floats());
        if let Some(relative) = relative {
            assert!(relative.tables.len() == heads && relative.tables.iter().all(|table| table.len() % 2 == 1));
            assert!(relative.query_positions.len() == rows);
            assert!(relative.key_positions.is_none_or(|positions| positions.len() == *count));
        }
        *count
    }

    /// Returns the keys that query `row` attends to.
    #[inline(always)]
    fn range(&self, row: usize) -> Range<usize> {
        match self.relative {
            Some(relative @ RelativeKeys { radius: Some(radius), .. }) => {
                relative.within(relative.query_positions[row] as usize, radius, self.count)
            }
            _ => 0..self.count,
        }
    }

    #[inline(always)]
    fn add_bias(&self, head: usize, row: usize, first: usize, scores: &mut [f32]) {
        let Some(relative) = &self.relative else { return };
        let table = &relative.tables[head];
        let max = table.len() / 2;
        let position = relative.query_positions[row] as usize;
        let near = relative.within(position, max, self.count);
        let start = near.start.clamp(first, first + scores.len());
        let end = near.end.clamp(start, first + scores.len());
        let (before, rest) = scores.split_at_mut(start - first);
        let (near, after) = rest.split_at_mut(end - start);
        before.iter_mut().for_each(|score| *score += table[0]);
        after.iter_mut().for_each(|score| *score += table[2 * max]);
        match relative.key_positions {
            _ if near.is_empty() => {}
            None => {
                let biases = &table[start + max - position..];
                near.iter_mut().zip(biases).for_each(|(score, bias)| *score += bias);
            }
            Some(positions) => {
                let biases = positions[start..end].iter().map(|&key| table[key as usize + max - position]);
                near.iter_mut().zip(biases).for_each(|(score, bias)| *score += bias);
            }
        }
    }
}

impl RelativeKeys<'_> {
    /// Returns the keys at a distance of at most `radius` from a position.
    #[inline(always)]
    fn within(&self, position: usize, radius: usize, count: usize) -> Range<usize> {
        match self.key_positions {
            None => {
                let start = position.saturating_sub(radius).min(count);
                start..(position + radius + 1).clamp(start, count)
            }
            Some(positions) => {
                let start = positions.partition_point(|&key| key as usize + radius < position);
                let end = positions.partition_point(|&key| key as usize <= position + radius);
                start..end
            }
        }
    }
}

// Order of summation of selected keys: each score is summed in sixteen lanes, which are added in order, and each output number
// over the keys in the order of selection. The result depends only on the selected keys, not on the batch.

/// Keys whose scores are held at a time.
const SELECTED_SPAN: usize = 128;

/// Score of the key at the query's own index, which then only matters if it is the only one.
const OWN_SCORE: f32 = -1e5;

/// Keys and values of one head, (keys, head_dim) each.
#[derive(Clone, Copy)]
pub struct HeadKeyValues<'a> {
    /// (keys, head_dim)
    pub keys: &'a [f32],
    /// (keys, head_dim)
    pub values: &'a [f32],
}

/// Computes `out` (head_dim): softmax(query · keys) · values over the keys whose indices `runs` has, as floats; repeated keys
/// count repeatedly. The key at `own` has a score of −10⁵. Panics if an index has no key, or no key is selected.
pub fn attend_selected(isa: Isa, head: HeadKeyValues<'_>, query: &[f32], runs: &[&[f32]], own: f32, out: &mut [f32]) {
    assert!(query.len() == out.len() && runs.iter().any(|run| !run.is_empty()));
    attend(isa, head, query, runs, own, out);
}

multiversion! {
    fn attend(head: HeadKeyValues<'_>, query: &[f32], runs: &[&[f32]], own: f32, out: &mut [f32]) = attend_body
}

#[inline(always)]
fn attend_body<S: Simd>(simd: S, head: HeadKeyValues<'_>, query: &[f32], runs: &[&[f32]], own: f32, out: &mut [f32]) {
    let dim = query.len();
    let mut softmax = Softmax::new(false);
    out.fill(0.0);
    for indices in runs.iter().flat_map(|run| run.chunks(SELECTED_SPAN)) {
        let mut scores = [f32::NEG_INFINITY; SELECTED_SPAN];
        for (score, &index) in scores.iter_mut().zip(indices) {
            let key = &head.keys[index as usize * dim..][..dim];
            *score = if index == own { OWN_SCORE } else { dot(simd, query, key) };
        }
        let scores = &mut scores[..indices.len().next_multiple_of(LANES)];
        softmax.push_span::<S>(scores, out);
        for (&weight, &index) in scores.iter().zip(indices) {
            add(simd, weight, &head.values[index as usize * dim..][..dim], out);
        }
    }
    softmax.finish(out);
}

#[inline(always)]
fn dot<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> f32 {
    let mut sums = simd.splat(0.0);
    let mut lanes = [0f32; WIDTH];
    let wide = a.len() / WIDTH * WIDTH;
    for index in (0..wide).step_by(WIDTH) {
        sums = simd.madd(simd.load(&a[index..]), simd.load(&b[index..]), sums);
    }
    simd.store(sums, &mut lanes);
    for (lane, (a, b)) in lanes.iter_mut().zip(a[wide..].iter().zip(&b[wide..a.len()])) {
        *lane = S::madd1(*a, *b, *lane);
    }
    lanes.iter().sum()
}

#[inline(always)]
fn add<S: Simd>(simd: S, weight: f32, x: &[f32], out: &mut [f32]) {
    let wide = x.len() / WIDTH * WIDTH;
    let factor = simd.splat(weight);
    for index in (0..wide).step_by(WIDTH) {
        let sum = simd.madd(factor, simd.load(&x[index..]), simd.load(&out[index..]));
        simd.store(sum, &mut out[index..]);
    }
    for (out, x) in out[wide..].iter_mut().zip(&x[wide..]) {
        *out = S::madd1(weight, *x, *out);
    }
}

#[cfg(test)]
mod tests {
    //! Tests of dense attention against a naive implementation in f64.
    use super::*;
    use crate::testing::{assert_near, computes, dot, naive_attention, numbers};
    use proptest::prelude::*;

    /// Naive implementation in f64: one query of one head over keys and values, (count, heads, head_dim).
    fn naive(query: &[f32], keys: &[f32], values: &[f32], head: usize, heads: usize) -> Vec<f64> {
        let dim = query.len();
        let rows = keys.chunks_exact(heads * dim).zip(values.chunks_exact(heads * dim));
        let own = head * dim..(head + 1) * dim;
        naive_attention(rows.map(|(key, value)| (dot(query, &key[own.clone()]), &value[own.clone()])))
    }

    fn stored(layout: DenseLayout, keys: &[f32], values: &[f32]) -> Vec<f32> {
        let mut store = vec![0.0; layout.floats()];
        let inner = layout.heads * layout.head_dim;
        for (index, (key, value)) in keys.chunks_exact(inner).zip(values.chunks_exact(inner)).enumerate() {
            layout.write(&mut store, index, key, value);
        }
        store
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn agrees_with_the_naive_implementation_and_does_not_depend_on_the_batch(
            rows in 1usize..110, count in 1usize..600, heads in 1usize..4, head_dim in 1usize..50, spare in 0usize..40, seed: u32,
        ) {
            let inner = heads * head_dim;
            let keys = numbers(seed, count * inner);
            let values = numbers(seed ^ 1, count * inner);
            let queries: Vec<f32> = numbers(seed ^ 2, rows * inner).iter().map(|x| 2.0 * x).collect();
            let layout = DenseLayout { heads, head_dim, capacity: count + spare };
            let store = stored(layout, &keys, &values);
            for (compute, alone) in computes(2).iter().zip(computes(1)) {
                let mut out = vec![f32::NAN; rows * inner];
                attend_dense(compute, layout, &store, count, &queries, &mut out);
                for row in 0..rows {
                    let query = &queries[row * inner..][..inner];
                    let mut single = vec![f32::NAN; inner];
                    attend_dense(&alone, layout, &store, count, query, &mut single);
                    prop_assert_eq!(&single[..], &out[row * inner..][..inner]);
                    if row % 16 == 0 {
                        let head = row / 16 % heads;
                        let own = head * head_dim..(head + 1) * head_dim;
                        let expected = naive(&query[own.clone()], &keys, &values, head, heads);
                        assert_near(&single[own], &expected, 1e-5, "a row");
                    }
                }
            }
        }
    }

    #[test]
    fn weights_of_keys_add_up_over_queries() {
        let layout = DenseLayout { heads: 2, head_dim: 5, capacity: 40 };
        let [keys, values] = [1, 2].map(|seed| numbers(seed, 370));
        let queries = numbers(3, 80);
        let store = stored(layout, &keys, &values);
        let mut sums = vec![0.0; 37];
        layout.add_weights(&store, 1, queries.chunks(10).map(|query| &query[5..]), &mut sums);
        assert!((sums.iter().sum::<f32>() - 8.0).abs() < 1e-5);
        // the weight of a key is the output for values that are one at that key and zero elsewhere
        for key in [0, 15, 36] {
            let indicator: Vec<f32> = (0..370).map(|index| f32::from(u8::from(index / 10 == key))).collect();
            let weight = |query: &[f32]| naive(&query[5..], &keys, &indicator, 1, 2)[0];
            let expected: f64 = queries.chunks(10).map(weight).sum();
            assert!((f64::from(sums[key]) - expected).abs() < 1e-5, "{key}: {} {expected}", sums[key]);
        }
    }

    #[test]
    fn nan_keys_give_nan() {
        let layout = DenseLayout { heads: 1, head_dim: 4, capacity: 20 };
        let mut keys = numbers(1, 80);
        let values = numbers(2, 80);
        keys[77] = f32::NAN;
        let store = stored(layout, &keys, &values);
        for compute in computes(1) {
            let mut out = [0.0; 4];
            attend_dense(&compute, layout, &store, 20, &[1.0; 4], &mut out);
            assert!(out.iter().all(|x| x.is_nan()));
            attend_dense(&compute, layout, &store, 19, &[1.0; 4], &mut out);
            assert!(out.iter().all(|x| x.is_finite()));
        }
    }

    /// Positions in rising order, from differences of 1 to 3.
    fn rising(seed: u32, count: usize) -> Vec<u32> {
        let mut next = 0;
        let mut position = |x: &f32| {
            let position = next;
            next += 1 + (x.abs() * 97.0) as u32 % 3;
            position
        };
        numbers(seed, count).iter().map(&mut position).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// One section of near keys with a bias and a window, and one of side keys with another bias.
        #[test]
        fn sections_agree_with_the_naive_implementation_and_do_not_depend_on_the_batch(
            count in 1usize..700, side in 1usize..40, radius in prop::option::of(0usize..90), max in 1usize..40,
            gaps: bool, sink: bool, seed: u32,
        ) {
            let (heads, head_dim) = (2, 12);
            let inner = heads * head_dim;
            let layout = |count| DenseLayout { heads, head_dim, capacity: count };
            let [keys, values] = [0, 1].map(|salt| numbers(seed ^ salt, count * inner));
            let [side_keys, side_values] = [2, 3].map(|salt| numbers(seed ^ salt, side * inner));
            let queries: Vec<f32> = numbers(seed ^ 4, count * inner).iter().map(|x| 2.0 * x).collect();
            let tables: Vec<Vec<f32>> = (0..heads as u32).map(|head| numbers(seed ^ (9 + head), 2 * max + 1)).collect();
            let positions = if gaps { rising(seed ^ 5, count) } else { (0..count as u32).collect() };
            let groups: Vec<u32> = (0..count as u32).map(|index| (index / 4).min(side as u32 - 1)).collect();
            let store = stored(layout(count), &keys, &values);
            let side_store = stored(layout(side), &side_keys, &side_values);
            let sections = |rows: std::ops::Range<usize>| {
                let near = RelativeKeys {
                    tables: &tables,
                    query_positions: &positions[rows.clone()],
                    key_positions: gaps.then_some(&positions[..]),
                    radius,
                };
                let far = RelativeKeys { query_positions: &groups[rows], key_positions: None, radius: None, ..near };
                [
                    DenseKeys { layout: layout(count), store: &store, count, relative: Some(near) },
                    DenseKeys { layout: layout(side), store: &side_store, count: side, relative: Some(far) },
                ]
            };
            let bias = |head: usize, query: u32, key: u32| {
                let distance = i64::from(key) - i64::from(query);
                f64::from(tables[head][(distance.clamp(-(max as i64), max as i64) + max as i64) as usize])
            };
            for (compute, alone) in computes(2).iter().zip(computes(1)) {
                let mut out = vec![f32::NAN; queries.len()];
                attend_sections(compute, &sections(0..count), sink, &queries, &mut out);
                for row in (0..count).step_by(7) {
                    let query = &queries[row * inner..][..inner];
                    let mut single = vec![f32::NAN; inner];
                    attend_sections(&alone, &sections(row..row + 1), sink, query, &mut single);
                    prop_assert_eq!(&single[..], &out[row * inner..][..inner]);
                    let head = row % heads;
                    let own = head * head_dim..(head + 1) * head_dim;
                    let seen = |key: &usize| {
                        radius.is_none_or(|radius| positions[*key].abs_diff(positions[row]) as usize <= radius)
                    };
                    let near = (0..count).filter(seen).map(|key| {
                        let score = dot(&query[own.clone()], &keys[key * inner..][own.clone()]);
                        (score + bias(head, positions[row], positions[key]), &values[key * inner..][own.clone()])
                    });
                    let far = (0..side).map(|key| {
                        let score = dot(&query[own.clone()], &side_keys[key * inner..][own.clone()]);
                        (score + bias(head, groups[row], key as u32), &side_values[key * inner..][own.clone()])
                    });
                    let zero = [0f32; 12];
                    let extra = sink.then_some((0.0, &zero[..]));
                    let expected = naive_attention(near.chain(far).chain(extra));
                    assert_near(&single[own.clone()], &expected, 1e-5, "a row");
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn agrees_with_the_naive_implementation(
            dim in 1usize..40, runs in prop::collection::vec(prop::collection::vec(0u8..90, 0..300), 1..6), own in 0u8..90, seed: u32,
        ) {
            prop_assume!(runs.iter().any(|run| !run.is_empty()));
            let keys = numbers(seed, 90 * dim);
            let values = numbers(seed ^ 1, 90 * dim);
            let query = numbers(seed ^ 2, dim);
            let scored = |&index: &u8| {
                let own_numbers = usize::from(index) * dim..(usize::from(index) + 1) * dim;
                let score = if index == own { -1e5 } else { dot(&query, &keys[own_numbers.clone()]) };
                (score, &values[own_numbers])
            };
            let expected = naive_attention(runs.iter().flatten().map(scored));
            let indices: Vec<Vec<f32>> = runs.iter().map(|run| run.iter().map(|&index| f32::from(index)).collect()).collect();
            let runs: Vec<&[f32]> = indices.iter().map(Vec::as_slice).collect();
            for isa in Isa::all() {
                let mut out = vec![f32::NAN; dim];
                let head = HeadKeyValues { keys: &keys, values: &values };
                attend_selected(isa, head, &query, &runs, f32::from(own), &mut out);
                assert_near(&out, &expected, 1e-5, isa.name());
            }
        }
    }

    #[test]
    fn the_own_key_counts_only_alone_and_infinity_becomes_nan() {
        let mut keys = numbers(3, 20);
        let values = numbers(4, 20);
        let attend = |isa: Isa, keys: &[f32], runs: &[&[f32]], own: f32| {
            let mut out = [0.0; 4];
            attend_selected(isa, HeadKeyValues { keys, values: &values }, &[1.0; 4], runs, own, &mut out);
            out
        };
        for isa in Isa::all() {
            assert_eq!(attend(isa, &keys, &[&[2.0]], 2.0), values[8..12]);
            assert_eq!(attend(isa, &keys, &[&[2.0], &[1.0]], 2.0), values[4..8]);
        }
        keys[5] = f32::INFINITY;
        for isa in Isa::all() {
            assert!(attend(isa, &keys, &[&[2.0, 1.0]], 9.0).iter().all(|x| x.is_nan()));
        }
    }
}
