//! Attention of one query over keys that were chosen for it, wherever they lie; softmax included.
//!
//! Each score is eight chains over the head's numbers, added up in order, each number of the outcome one chain over the keys in
//! the order in which they were chosen: a query's outcome depends on those alone.

use super::{LANES, softmax::Softmax};
use crate::kernels::isa::{Isa, Simd, WIDTH, multiversion};

/// Keys whose scores are held at a time.
const HELD: usize = 128;
/// What stands for the score of a key that is the query itself: it counts only where there is no other.
const OWN: f32 = -1e5;

/// One head's keys and values, (keys, head_dim) each.
#[derive(Clone, Copy)]
pub struct HeadKeyValues<'a> {
    /// Keys.
    pub keys: &'a [f32],
    /// Values.
    pub values: &'a [f32],
}

/// `out` (head_dim) = the values of chosen keys, weighted by the softmax of their products with `query`. Keys are chosen in runs of
/// places, and meet the query as often as they occur there; the one at `own` has a score of −10⁵ instead. Not numbers, if a
/// score is none or infinite.
///
/// # Panics
/// If a place has no key, or none is chosen.
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
    let mut softmax = Softmax::NEW;
    out.fill(0.0);
    for places in runs.iter().flat_map(|run| run.chunks(HELD)) {
        let mut scores = [f32::NEG_INFINITY; HELD];
        for (score, &place) in scores.iter_mut().zip(places) {
            let key = &head.keys[place as usize * dim..][..dim];
            *score = if place == own { OWN } else { dot(simd, query, key) };
        }
        let scores = &mut scores[..places.len().next_multiple_of(LANES)];
        softmax.take::<S>(scores, out);
        for (&weight, &place) in scores.iter().zip(places) {
            add(simd, weight, &head.values[place as usize * dim..][..dim], out);
        }
    }
    softmax.end(out);
}

/// Σ a·b
#[inline(always)]
fn dot<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> f32 {
    let (mut sums, mut lanes) = (simd.splat(0.0), [0f32; WIDTH]);
    let (wide, rest) = (a.len() / WIDTH * WIDTH, a.len() % WIDTH);
    for at in (0..wide).step_by(WIDTH) {
        sums = simd.madd(simd.load(&a[at..]), simd.load(&b[at..]), sums);
    }
    simd.store(sums, &mut lanes);
    for (lane, (a, b)) in lanes.iter_mut().zip(a[wide..].iter().zip(&b[wide..wide + rest])) {
        *lane = S::madd1(*a, *b, *lane);
    }
    lanes.iter().sum()
}

/// `out` += weight · x
#[inline(always)]
fn add<S: Simd>(simd: S, weight: f32, x: &[f32], out: &mut [f32]) {
    let (wide, factor) = (x.len() / WIDTH * WIDTH, simd.splat(weight));
    for at in (0..wide).step_by(WIDTH) {
        let sum = simd.madd(factor, simd.load(&x[at..]), simd.load(&out[at..]));
        simd.store(sum, &mut out[at..]);
    }
    for (out, x) in out[wide..].iter_mut().zip(&x[wide..]) {
        *out = S::madd1(weight, *x, *out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn numbers(seed: u32, count: usize) -> Vec<f32> {
        let mut state = seed | 1;
        let next = || {
            state = state.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
            (state >> 9) as f32 / (1 << 22) as f32 - 1.0
        };
        std::iter::repeat_with(next).take(count).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn agrees_with_the_naive_twin(
            dim in 1usize..40, runs in prop::collection::vec(prop::collection::vec(0u8..90, 0..300), 1..6), own in 0u8..90, seed: u32,
        ) {
            prop_assume!(runs.iter().any(|run| !run.is_empty()));
            let (keys, values, query) = (numbers(seed, 90 * dim), numbers(seed ^ 1, 90 * dim), numbers(seed ^ 2, dim));
            let of = |all: &[f32], place: u8| -> Vec<f64> {
                all[usize::from(place) * dim..][..dim].iter().map(|&x| f64::from(x)).collect()
            };
            let score = |place: u8| -> f64 {
                if place == own { -1e5 } else { of(&keys, place).iter().zip(&query).map(|(k, &q)| k * f64::from(q)).sum() }
            };
            let chosen: Vec<u8> = runs.concat();
            let top = chosen.iter().map(|&place| score(place)).fold(f64::MIN, f64::max);
            let total: f64 = chosen.iter().map(|&place| (score(place) - top).exp()).sum();
            let mut want = vec![0.0; dim];
            for &place in &chosen {
                let weight = (score(place) - top).exp() / total;
                want.iter_mut().zip(of(&values, place)).for_each(|(want, x)| *want += weight * x);
            }
            let places: Vec<Vec<f32>> = runs.iter().map(|run| run.iter().map(|&place| f32::from(place)).collect()).collect();
            let runs: Vec<&[f32]> = places.iter().map(Vec::as_slice).collect();
            for isa in Isa::all() {
                let mut out = vec![f32::NAN; dim];
                let head = HeadKeyValues { keys: &keys, values: &values };
                attend_selected(isa, head, &query, &runs, f32::from(own), &mut out);
                for (got, want) in out.iter().zip(&want) {
                    prop_assert!((f64::from(*got) - want).abs() < 1e-5, "{got} {want}");
                }
            }
        }
    }

    #[test]
    fn the_query_itself_counts_only_where_it_is_alone_and_what_is_no_number_shows() {
        let (mut keys, values) = (numbers(3, 20), numbers(4, 20));
        for isa in Isa::all() {
            let mut out = [0.0; 4];
            attend_selected(isa, HeadKeyValues { keys: &keys, values: &values }, &[1.0; 4], &[&[2.0]], 2.0, &mut out);
            assert_eq!(out, values[8..12]);
            attend_selected(
                isa,
                HeadKeyValues { keys: &keys, values: &values },
                &[1.0; 4],
                &[&[2.0], &[1.0]],
                2.0,
                &mut out,
            );
            assert_eq!(out, values[4..8]);
        }
        keys[5] = f32::INFINITY;
        for isa in Isa::all() {
            let mut out = [0.0; 4];
            attend_selected(
                isa,
                HeadKeyValues { keys: &keys, values: &values },
                &[1.0; 4],
                &[&[2.0, 1.0]],
                9.0,
                &mut out,
            );
            assert!(out.iter().all(|x| x.is_nan()));
        }
    }
}
