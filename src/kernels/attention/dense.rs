//! Attention without an order: each query meets all keys of a store, as an encoder's blocks do; softmax included.
//!
//! A store is made for one pass and thrown away, so it holds f32 whatever the weights are stored in. Queries come in groups that
//! stay in the near cache while they pass the keys, in spans that start at fixed keys; scores and weighted values are tiles of
//! six queries. Each score is one chain over the head's numbers, each number of an outcome one chain over the keys, in order: so
//! a query's outcome depends on the keys alone.

use super::softmax::Softmax;
use crate::kernels::{
    Compute, LANES,
    isa::{Simd, WIDTH, multiversion},
};

/// Queries that pass the keys together.
const GROUP: usize = 48;
/// Queries of a tile.
const TILE: usize = 6;
/// Keys whose scores are held at a time.
const SPAN: usize = 512;
/// Multiply-adds below which waking other threads costs more than it brings.
const WORTH_SHARING: usize = 1 << 15;

/// A store of keys and values: for each head the keys, (panels of sixteen, head_dim, 16), and behind all of them for each head
/// the values, (keys, head_dim filled up to whole vectors). What fills up is met and left out again, whatever it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DenseLayout {
    /// Heads.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Keys that there is room for.
    pub capacity: usize,
}

impl DenseLayout {
    /// Numbers of a store.
    pub fn floats(&self) -> usize {
        self.values_at() + self.heads * self.capacity * self.wide()
    }

    fn wide(&self) -> usize {
        self.head_dim.next_multiple_of(WIDTH)
    }

    fn head_keys(&self) -> usize {
        self.capacity.next_multiple_of(LANES) * self.head_dim
    }

    fn values_at(&self) -> usize {
        self.heads * self.head_keys()
    }

    /// `sums` (count) += what each of the first `count` keys of a head weighs with some queries of that head, (head_dim) each and
    /// scaled: columns of the attention matrix. Each is one chain over the queries in order.
    ///
    /// # Panics
    /// If there are not so many keys.
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
            let share = 1.0 / weights.iter().sum::<f32>();
            sums.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += share * *weight);
        }
    }

    /// Writes a key and its value, (heads, head_dim) each.
    ///
    /// # Panics
    /// If there is no room for it.
    pub fn write(&self, store: &mut [f32], at: usize, keys: &[f32], values: &[f32]) {
        assert!(at < self.capacity);
        let (keys_of_all, values_of_all) = store.split_at_mut(self.values_at());
        let heads = keys_of_all.chunks_exact_mut(self.head_keys()).zip(keys.chunks_exact(self.head_dim));
        for (all, key) in heads {
            let panel = &mut all[at / LANES * LANES * self.head_dim..][..LANES * self.head_dim];
            for (lanes, &x) in panel.chunks_exact_mut(LANES).zip(key) {
                lanes[at % LANES] = x;
            }
        }
        let heads = values_of_all.chunks_exact_mut(self.capacity * self.wide()).zip(values.chunks_exact(self.head_dim));
        for (all, value) in heads {
            all[at * self.wide()..][..self.head_dim].copy_from_slice(value);
        }
    }
}

/// What all tasks share.
struct Job<'a> {
    layout: DenseLayout,
    store: &'a [f32],
    /// Keys that are there.
    count: usize,
    /// (rows, heads, head_dim), scaled.
    queries: &'a [f32],
}

/// `out` (rows, heads, head_dim) = each head's values, weighted by the softmax of the products of `queries`, of the same shape
/// and scaled already, with the first `count` keys of a store; not numbers, if a score is none or infinite.
///
/// # Panics
/// If the lengths do not fit, or there is no key.
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
    let job = Job { layout, store, count, queries };
    let share = out.len() * count >= WORTH_SHARING;
    compute.pool.for_columns::<GROUP>(out, queries.len() / inner, layout.heads, share, &|first, head, outs| {
        group(compute.isa, &job, first, head, outs);
    });
}

multiversion! { fn group(job: &Job<'_>, first: usize, head: usize, outs: &mut [&mut [f32]]) = group_body }

#[inline(always)]
fn group_body<S: Simd>(simd: S, job: &Job<'_>, first: usize, head: usize, outs: &mut [&mut [f32]]) {
    let mut softmax = [Softmax::NEW; GROUP];
    outs.iter_mut().for_each(|out| out.fill(0.0));
    for start in (0..job.count).step_by(SPAN) {
        let span = Span::of(job, head, start);
        for (index, outs) in outs.chunks_mut(TILE).enumerate() {
            let (at, softmax) = (first + index * TILE, &mut softmax[index * TILE..]);
            match outs.len() {
                1 => span.tile::<S, 1>(simd, at, outs, softmax),
                2 => span.tile::<S, 2>(simd, at, outs, softmax),
                3 => span.tile::<S, 3>(simd, at, outs, softmax),
                4 => span.tile::<S, 4>(simd, at, outs, softmax),
                5 => span.tile::<S, 5>(simd, at, outs, softmax),
                _ => span.tile::<S, TILE>(simd, at, outs, softmax),
            }
        }
    }
    for (softmax, out) in softmax.iter().zip(outs) {
        softmax.end(out);
    }
}

/// Some keys of one head.
struct Span<'a> {
    job: &'a Job<'a>,
    head: usize,
    /// (panels, head_dim, 16)
    keys: &'a [f32],
    /// (count, wide)
    values: &'a [f32],
    count: usize,
}

impl<'a> Span<'a> {
    #[inline(always)]
    fn of(job: &'a Job<'a>, head: usize, start: usize) -> Self {
        let (layout, count) = (&job.layout, SPAN.min(job.count - start));
        let keys = &job.store[head * layout.head_keys() + start * layout.head_dim..];
        let values = &job.store[layout.values_at() + (head * layout.capacity + start) * layout.wide()..];
        let keys = &keys[..count.next_multiple_of(LANES) * layout.head_dim];
        Self { job, head, keys, values: &values[..count * layout.wide()], count }
    }

    #[inline(always)]
    fn tile<S: Simd, const R: usize>(&self, simd: S, at: usize, outs: &mut [&mut [f32]], softmax: &mut [Softmax]) {
        let DenseLayout { heads, head_dim, .. } = self.job.layout;
        let queries: [&[f32]; R] =
            std::array::from_fn(|row| &self.job.queries[((at + row) * heads + self.head) * head_dim..][..head_dim]);
        let mut scores = [[0f32; SPAN]; R];
        for (index, panel) in self.keys.chunks_exact(LANES * head_dim).enumerate() {
            panel_scores::<S, R>(simd, &queries, panel, index * LANES, &mut scores);
        }
        let met = self.count.next_multiple_of(LANES);
        for row in 0..R {
            let scores = &mut scores[row][..met];
            scores[self.count..].fill(f32::NEG_INFINITY);
            softmax[row].take::<S>(scores, outs[row]);
        }
        let mut done = 0;
        while S::ACROSS == 2 && done + 2 * WIDTH <= head_dim {
            self.columns::<S, R, 2>(simd, &scores, (outs, done));
            done += 2 * WIDTH;
        }
        while done < head_dim {
            self.columns::<S, R, 1>(simd, &scores, (outs, done));
            done += WIDTH;
        }
    }

    /// `W` vectors of the outcomes' numbers, from `done` on; the last one may reach beyond the head.
    #[inline(always)]
    fn columns<S: Simd, const R: usize, const W: usize>(
        &self,
        simd: S,
        weights: &[[f32; SPAN]; R],
        (outs, done): (&mut [&mut [f32]], usize),
    ) {
        let wide = self.job.layout.wide();
        assert!(done + W * WIDTH <= wide && self.count * wide <= self.values.len() && self.count <= SPAN);
        let within = (W * WIDTH).min(self.job.layout.head_dim - done);
        let (mut sums, mut numbers) = ([[simd.splat(0.0); W]; R], [[0f32; 2 * WIDTH]; R]);
        for (row, (sums, numbers)) in sums.iter_mut().zip(&mut numbers).enumerate() {
            numbers[..within].copy_from_slice(&outs[row][done..done + within]);
            for (v, sum) in sums.iter_mut().enumerate() {
                *sum = simd.load(&numbers[v * WIDTH..]);
            }
        }
        let mut at = self.values.as_ptr().wrapping_add(done);
        for key in 0..self.count {
            for v in 0..W {
                // SAFETY: within a key's numbers, as checked above.
                let values = unsafe { simd.load_at(at.wrapping_add(v * WIDTH)) };
                for (weights, sums) in weights.iter().zip(&mut sums) {
                    // SAFETY: each row has SPAN weights, and no more keys are met, as checked above.
                    let weight = simd.splat(*unsafe { weights.get_unchecked(key) });
                    sums[v] = simd.madd(weight, values, sums[v]);
                }
            }
            at = at.wrapping_add(wide);
        }
        for (row, (sums, numbers)) in sums.iter().zip(&mut numbers).enumerate() {
            for (v, &sum) in sums.iter().enumerate() {
                simd.store(sum, &mut numbers[v * WIDTH..]);
            }
            outs[row][done..done + within].copy_from_slice(&numbers[..within]);
        }
    }
}

/// The scores of sixteen keys, from `first` on.
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
    let mut at = panel.as_ptr();
    for number in 0..dim {
        // SAFETY: the panel has sixteen floats for each of the head's numbers, as checked above.
        let keys = unsafe { simd.load_at(at) };
        for (query, sum) in queries.iter().zip(&mut sums) {
            // SAFETY: each query has `dim` numbers, as checked above.
            let factor = simd.splat(*unsafe { query.get_unchecked(number) });
            *sum = simd.madd(factor, keys, *sum);
        }
        at = at.wrapping_add(LANES);
    }
    for (&sum, scores) in sums.iter().zip(scores) {
        simd.store(sum, &mut scores[first..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{Isa, ThreadPool};
    use proptest::prelude::*;
    use std::sync::Arc;

    fn numbers(seed: u32, count: usize) -> Vec<f32> {
        let mut state = seed | 1;
        let next = || {
            state = state.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
            (state >> 9) as f32 / (1 << 22) as f32 - 1.0
        };
        std::iter::repeat_with(next).take(count).collect()
    }

    fn computes(threads: usize) -> Vec<Compute> {
        let pool = Arc::new(ThreadPool::new(threads));
        Isa::all().into_iter().map(|isa| Compute { isa, pool: pool.clone() }).collect()
    }

    /// The naive twin, in f64: one query of one head over (count, heads, head_dim).
    fn naive(query: &[f32], keys: &[f32], values: &[f32], (head, heads): (usize, usize)) -> Vec<f64> {
        let dim = query.len();
        let of_head = |all: &[f32]| -> Vec<Vec<f64>> {
            let own = |row: &[f32]| row[head * dim..][..dim].iter().map(|&x| f64::from(x)).collect();
            all.chunks_exact(heads * dim).map(own).collect()
        };
        let dot = |key: &Vec<f64>| key.iter().zip(query).map(|(k, &q)| k * f64::from(q)).sum::<f64>();
        let scores: Vec<f64> = of_head(keys).iter().map(dot).collect();
        let top = scores.iter().copied().fold(f64::MIN, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - top).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut out = vec![0.0; dim];
        for (value, weight) in of_head(values).iter().zip(&weights) {
            out.iter_mut().zip(value).for_each(|(out, value)| *out += weight / total * value);
        }
        out
    }

    fn stored(layout: DenseLayout, keys: &[f32], values: &[f32]) -> Vec<f32> {
        let (mut store, inner) = (vec![0.0; layout.floats()], layout.heads * layout.head_dim);
        for (at, (key, value)) in keys.chunks_exact(inner).zip(values.chunks_exact(inner)).enumerate() {
            layout.write(&mut store, at, key, value);
        }
        store
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn agrees_with_the_naive_twin_and_a_query_alone_has_the_same_bits(
            rows in 1usize..110, count in 1usize..600, heads in 1usize..4, head_dim in 1usize..50, spare in 0usize..40, seed: u32,
        ) {
            let inner = heads * head_dim;
            let (keys, values) = (numbers(seed, count * inner), numbers(seed ^ 1, count * inner));
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
                        let want = naive(&query[own.clone()], &keys, &values, (head, heads));
                        for (got, want) in single[own].iter().zip(want) {
                            prop_assert!((f64::from(*got) - want).abs() < 1e-5, "{got} {want}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn weights_of_keys_add_up_over_queries() {
        let layout = DenseLayout { heads: 2, head_dim: 5, capacity: 40 };
        let (keys, values, queries) = (numbers(1, 370), numbers(2, 370), numbers(3, 80));
        let store = stored(layout, &keys, &values);
        let mut sums = vec![0.0; 37];
        layout.add_weights(&store, 1, queries.chunks(10).map(|query| &query[5..]), &mut sums);
        assert!((sums.iter().sum::<f32>() - 8.0).abs() < 1e-5);
        // a key's weight is what the mean of values is that are one there and zero elsewhere
        for key in [0, 15, 36] {
            let alone: Vec<f32> = (0..370).map(|at| f32::from(u8::from(at / 10 == key))).collect();
            let of = |query: &[f32]| naive(&query[5..], &keys, &alone, (1, 2))[0];
            let want: f64 = queries.chunks(10).map(of).sum();
            assert!((f64::from(sums[key]) - want).abs() < 1e-5, "{key}: {} {want}", sums[key]);
        }
    }

    #[test]
    fn what_is_no_number_does_not_pass_for_one() {
        let layout = DenseLayout { heads: 1, head_dim: 4, capacity: 20 };
        let (mut keys, values) = (numbers(1, 80), numbers(2, 80));
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
