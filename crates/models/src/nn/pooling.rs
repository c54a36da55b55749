//! Pooling of a segment's vectors into one; the router of dynamic chunking.

use crate::nn::sized;
use serde::Deserialize;
use weir_kernels::Compute;
use weir_kernels::linear::{Epilogue, Linear, QuantizedRows};

/// How a segment becomes one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pooling {
    /// Mean of all hidden vectors (Dynamic Token Pooling).
    Mean,
    /// The last hidden vector.
    Last,
    /// N-hops pooling: mean of the last N + 1 hidden vectors (Latent Segment Language Models, §2.3).
    Hops(usize),
}

impl Pooling {
    /// Returns true if it needs only the sum of a segment's vectors: see [`mean_of_sum`].
    pub fn sums(self) -> bool {
        matches!(self, Self::Mean)
    }

    /// Returns how many of a segment's last vectors it reads at most.
    pub fn lookback(self) -> usize {
        match self {
            Self::Mean => usize::MAX,
            Self::Last => 1,
            Self::Hops(hops) => hops.saturating_add(1),
        }
    }

    /// Writes the segment's vector, (D), to `out`. `hidden` yields the symbols' hidden vectors, (D) each, at least one, in order.
    pub fn pool<'a>(self, hidden: impl Iterator<Item = &'a [f32]> + Clone, out: &mut [f32]) {
        match self {
            Self::Mean => mean(hidden, out),
            Self::Last => hidden.last().into_iter().for_each(|last| out.copy_from_slice(last)),
            // the divisor is min(hops + 1, n), the number of summands
            Self::Hops(hops) => {
                let skipped = hidden.clone().count().saturating_sub(hops.saturating_add(1));
                mean(hidden.skip(skipped), out);
            }
        }
    }
}

/// Writes the mean of `hidden` to `out`, summed in the order of the symbols.
fn mean<'a>(hidden: impl Iterator<Item = &'a [f32]>, out: &mut [f32]) {
    out.fill(0.0);
    let mut count = 0f32;
    for hidden in hidden {
        count += 1.0;
        for (out, hidden) in out.iter_mut().zip(hidden) {
            *out += hidden;
        }
    }
    for out in out {
        *out /= count;
    }
}

/// Writes sum / count to `out`. For a sum in the order of the symbols the result has the same bits as [`Pooling::Mean`].
pub fn mean_of_sum(sum: &[f32], count: usize, out: &mut [f32]) {
    let count = count as f32;
    for (out, sum) in out.iter_mut().zip(sum) {
        *out = sum / count;
    }
}

// The router of dynamic chunking (Hwang, Wang, Gu 2025, arXiv 2507.07955), read from goombalab/hnet at commit 3673fe1,
// `hnet/modules/dc.py`. The probability of a boundary at position t is (1 − cos(q of t−1, k of t)) / 2. The first position of a
// sequence always begins a chunk.

/// Minimum norm in the denominator of the cosine.
const MIN_NORM: f64 = 1e-12;

/// A boundary's probability is above this.
const THRESHOLD: f32 = 0.5;

/// Smallest and largest weight of a chunk in the moving average; the largest is one minus the smallest.
const MIN_WEIGHT: f32 = 1e-4;

/// Weights of a router. D = width.
pub struct Router {
    /// (D, D), applied to the position before.
    pub query: Linear,
    /// (D, D)
    pub key: Linear,
}

/// Projections of a step's positions.
#[derive(Default)]
pub struct RouterWork {
    quantized: QuantizedRows,
    queries: Vec<f32>,
    keys: Vec<f32>,
}

impl RouterWork {
    /// Returns the query of the step's position `row`: (D).
    pub fn query(&self, row: usize, dim: usize) -> &[f32] {
        &self.queries[row * dim..][..dim]
    }
}

impl Router {
    /// Projects `x`, (positions, D).
    pub fn project(&self, compute: &Compute, x: &[f32], work: &mut RouterWork) {
        let queries = sized(&mut work.queries, x.len());
        self.query.apply(compute, x, Epilogue::None, &mut work.quantized, queries); // (positions, D)
        let keys = sized(&mut work.keys, x.len());
        self.key.apply(compute, x, Epilogue::None, &mut work.quantized, keys); // (positions, D)
    }
}

/// Returns the probability that a chunk begins at `row`; `previous` is the query before it, (D), or empty at the start.
pub fn boundary_probability(work: &RouterWork, row: usize, previous: &[f32]) -> f32 {
    if previous.is_empty() {
        return 1.0;
    }
    let key = &work.keys[row * previous.len()..][..previous.len()];
    let product = |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum() };
    let norm = |x: &[f32]| product(x, x).sqrt().max(MIN_NORM);
    let cosine = product(previous, key) / (norm(previous) * norm(key));
    ((1.0 - cosine) / 2.0).clamp(0.0, 1.0) as f32
}

/// Returns true if a chunk begins where the boundary has this probability.
pub fn begins_chunk(probability: f32) -> bool {
    probability > THRESHOLD
}

/// Moves `average`, (D), towards a chunk's output by the probability of its boundary. An empty average counts as zero.
pub fn move_average(average: &mut Vec<f32>, probability: f32, output: &[f32]) {
    let weight = probability.clamp(MIN_WEIGHT, 1.0 - MIN_WEIGHT);
    average.resize(output.len(), 0.0);
    for (average, output) in average.iter_mut().zip(output) {
        *average = weight * output + (1.0 - weight) * *average;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's eq. 3: H_t^n = z_t · H_t^(n−1) + (1 − z_(t−1)) · H_(t−1)^(n−1), with z before the first symbol 1.
    fn recursion(hidden: &[f32], ends: &[bool], hops: usize) -> Vec<f32> {
        let mut sums = hidden.to_vec();
        for _ in 0..hops {
            let own = |t: usize| if ends[t] { sums[t] } else { 0.0 };
            let before = |t: usize| if t == 0 || ends[t - 1] { 0.0 } else { sums[t - 1] };
            sums = (0..sums.len()).map(|t| own(t) + before(t)).collect();
        }
        sums
    }

    #[test]
    fn hops_agree_with_the_recursion_at_segment_ends() {
        const SYMBOLS: usize = 8;
        let hidden: Vec<[f32; 1]> = (0..SYMBOLS as i32).map(|t| [10f32.powi(t % 6) + t as f32]).collect();
        let flat = hidden.as_flattened();
        for cuts in 0..1 << SYMBOLS {
            let ends: Vec<bool> = (0..SYMBOLS).map(|t| cuts >> t & 1 == 1).collect();
            for hops in [0, 1, 2, 3, 7] {
                let sums = recursion(flat, &ends, hops);
                let mut start = 0;
                for end in (0..SYMBOLS).filter(|&t| ends[t]) {
                    let segment = &hidden[start..=end];
                    let mut out = [0.0];
                    Pooling::Hops(hops).pool(segment.iter().map(|h| &h[..]), &mut out);
                    let count = (hops + 1).min(segment.len()) as f32;
                    assert!((out[0] * count / sums[end] - 1.0).abs() < 1e-5, "{ends:?} {hops} at {end}");
                    start = end + 1;
                }
            }
        }
    }

    fn work(keys: &[f32]) -> RouterWork {
        RouterWork { keys: keys.to_vec(), ..RouterWork::default() }
    }

    #[test]
    fn unlike_vectors_begin_a_chunk() {
        let keys = work(&[2.0, 0.0, 0.0, 3.0, -1.0, 0.0, 0.0, 0.0]);
        let probability = |row| boundary_probability(&keys, row, &[0.5, 0.0]);
        assert_eq!([probability(0), probability(1), probability(2), probability(3)], [0.0, 0.5, 1.0, 0.5]);
        assert!(begins_chunk(probability(2)) && !begins_chunk(probability(1)));
        assert_eq!(boundary_probability(&keys, 0, &[]), 1.0);
    }

    #[test]
    fn an_average_is_never_replaced_entirely() {
        let mut average = Vec::new();
        move_average(&mut average, 1.0, &[2.0, -4.0]);
        assert!((average[0] - 1.9998).abs() < 1e-6 && (average[1] + 3.9996).abs() < 1e-6, "{average:?}");
        move_average(&mut average, 0.75, &[0.0, 0.0]);
        assert!((average[0] - 0.49995).abs() < 1e-6, "{average:?}");
    }
}
