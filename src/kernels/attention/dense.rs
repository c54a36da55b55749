//! Dense attention without a causal mask: every query attends to all keys of a store, as in an encoder.
//!
//! For each query and head it computes out (head_dim) = softmax(query · keys) · values. A store is temporary, so it is f32
//! for every weight type. Groups of queries stay in the nearest cache while they pass spans of keys that start at fixed
//! indices. Scores and weighted values are computed in tiles of six queries.
//!
//! Order of summation: each score is one sum over the numbers of the head, and each output number one sum over the keys, in
//! order. A query's result depends on the keys alone, not on the batch. Tests compare with a naive f64 implementation.

use super::softmax::Softmax;
use crate::kernels::{
    Compute, LANES,
    isa::{Simd, WIDTH, multiversion},
};

/// Queries that pass the keys together.
const GROUP: usize = 48;
const TILE: usize = 6;
/// Keys whose scores are held at a time.
const SPAN: usize = 512;
/// Minimum multiply-adds for which it pays to use other threads.
const MIN_SHARED: usize = 1 << 15;

/// Layout of a store: the keys of each head, (panels of sixteen keys, head_dim, 16), then the values of each head,
/// (keys, head_dim padded to whole vectors). Padding is unspecified and does not affect results.
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

    /// Adds the attention weights of the first `count` keys of a head to `sums` (count), summed over scaled queries,
    /// (head_dim) each: column sums of the attention matrix. Each is one sum over the queries, in order. Panics if the
    /// store has fewer than `sums.len()` keys.
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

/// Input that all tasks share.
struct DenseJob<'a> {
    layout: DenseLayout,
    store: &'a [f32],
    count: usize,
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
    let inner = layout.heads * layout.head_dim;
    assert!(queries.len() == out.len() && out.len().is_multiple_of(inner));
    assert!((1..=layout.capacity).contains(&count) && store.len() == layout.floats());
    let job = DenseJob { layout, store, count, queries };
    let share = out.len() * count >= MIN_SHARED;
    compute.pool.for_columns::<GROUP>(out, queries.len() / inner, layout.heads, share, &|first, head, outs| {
        group(compute.isa, &job, first, head, outs);
    });
}

multiversion! { fn group(job: &DenseJob<'_>, first: usize, head: usize, outs: &mut [&mut [f32]]) = group_body }

#[inline(always)]
fn group_body<S: Simd>(simd: S, job: &DenseJob<'_>, first: usize, head: usize, outs: &mut [&mut [f32]]) {
    let mut softmax = [Softmax::NEW; GROUP];
    outs.iter_mut().for_each(|out| out.fill(0.0));
    for start in (0..job.count).step_by(SPAN) {
        let span = KeySpan::new(job, head, start);
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
    for (softmax, out) in softmax.iter().zip(outs) {
        softmax.finish(out);
    }
}

/// Consecutive keys of one head.
struct KeySpan<'a> {
    job: &'a DenseJob<'a>,
    head: usize,
    /// (panels, head_dim, 16)
    keys: &'a [f32],
    /// (count, padded head_dim)
    values: &'a [f32],
    count: usize,
}

impl<'a> KeySpan<'a> {
    #[inline(always)]
    fn new(job: &'a DenseJob<'a>, head: usize, start: usize) -> Self {
        let layout = &job.layout;
        let count = SPAN.min(job.count - start);
        let keys = &job.store[head * layout.head_keys() + start * layout.head_dim..];
        let values = &job.store[layout.values_offset() + (head * layout.capacity + start) * layout.padded_dim()..];
        let keys = &keys[..count.next_multiple_of(LANES) * layout.head_dim];
        Self { job, head, keys, values: &values[..count * layout.padded_dim()], count }
    }

    #[inline(always)]
    fn tile<S: Simd, const R: usize>(&self, simd: S, first: usize, outs: &mut [&mut [f32]], softmax: &mut [Softmax]) {
        let DenseLayout { heads, head_dim, .. } = self.job.layout;
        let queries: [&[f32]; R] =
            std::array::from_fn(|row| &self.job.queries[((first + row) * heads + self.head) * head_dim..][..head_dim]);
        let mut scores = [[0f32; SPAN]; R];
        for (index, panel) in self.keys.chunks_exact(LANES * head_dim).enumerate() {
            panel_scores::<S, R>(simd, &queries, panel, index * LANES, &mut scores);
        }
        let padded = self.count.next_multiple_of(LANES);
        for row in 0..R {
            let scores = &mut scores[row][..padded];
            scores[self.count..].fill(f32::NEG_INFINITY);
            softmax[row].push_span::<S>(scores, outs[row]);
        }
        let mut done = 0;
        while S::ACROSS == 2 && done + 2 * WIDTH <= head_dim {
            self.columns::<S, R, 2>(simd, &scores, outs, done);
            done += 2 * WIDTH;
        }
        while done < head_dim {
            self.columns::<S, R, 1>(simd, &scores, outs, done);
            done += WIDTH;
        }
    }

    /// Adds Σ weights · values to `W` vectors of the outputs, from number `done` on. The last vector may exceed head_dim.
    #[inline(always)]
    fn columns<S: Simd, const R: usize, const W: usize>(
        &self,
        simd: S,
        weights: &[[f32; SPAN]; R],
        outs: &mut [&mut [f32]],
        done: usize,
    ) {
        let padded_dim = self.job.layout.padded_dim();
        assert!(done + W * WIDTH <= padded_dim && self.count * padded_dim <= self.values.len() && self.count <= SPAN);
        let used = (W * WIDTH).min(self.job.layout.head_dim - done);
        let mut sums = [[simd.splat(0.0); W]; R];
        let mut numbers = [[0f32; 2 * WIDTH]; R];
        for (row, (sums, numbers)) in sums.iter_mut().zip(&mut numbers).enumerate() {
            numbers[..used].copy_from_slice(&outs[row][done..done + used]);
            for (v, sum) in sums.iter_mut().enumerate() {
                *sum = simd.load(&numbers[v * WIDTH..]);
            }
        }
        let mut next = self.values.as_ptr().wrapping_add(done);
        for key in 0..self.count {
            for v in 0..W {
                // SAFETY: the vector is within the padded numbers of the key, as checked above.
                let values = unsafe { simd.load_at(next.wrapping_add(v * WIDTH)) };
                for (weights, sums) in weights.iter().zip(&mut sums) {
                    // SAFETY: each row has SPAN weights, and there are at most SPAN keys, as checked above.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{assert_near, computes, dot, naive_attention, numbers};
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
}
