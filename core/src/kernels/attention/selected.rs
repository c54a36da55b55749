//! Attention of one query over keys that were selected for it, in any order.
//!
//! Order of summation: each score is summed in sixteen lanes over the numbers of the head, and the lanes are added in order.
//! Each output number is one sum over the keys in the order of selection. The result therefore depends only on the selected
//! keys, not on the batch. The tests compare with a naive implementation in f64.

use super::softmax::Softmax;
use crate::kernels::{
    LANES,
    isa::{Isa, Simd, WIDTH, multiversion},
};

/// Keys whose scores are held at a time.
const SPAN: usize = 128;
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

/// Computes `out` (head_dim): softmax(query · keys) · values over the selected keys. `runs` contains the indices of the
/// selected keys, as floats; a key counts as often as its index occurs. The key at index `own` has a score of −10⁵
/// instead. The output is NaN if a score is NaN or infinite. Panics if an index has no key, or no key is selected.
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
    for indices in runs.iter().flat_map(|run| run.chunks(SPAN)) {
        let mut scores = [f32::NEG_INFINITY; SPAN];
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

/// Adds weight · x to `out`.
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
    use super::*;
    use crate::kernels::testing::{assert_near, dot, naive_attention, numbers};
    use proptest::prelude::*;

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
