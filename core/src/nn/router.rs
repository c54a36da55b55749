//! The router of dynamic chunking (Hwang, Wang, Gu 2025, arXiv 2507.07955): a chunk begins where a vector is unlike the one
//! before it.
//!
//! Read from goombalab/hnet at commit 3673fe1, `hnet/modules/dc.py`. The probability of a boundary at position t is
//! (1 − cos(q of t−1, k of t)) / 2. The first position of a sequence always begins a chunk.

use super::sized;
use crate::kernels::{
    Compute,
    linear::{Epilogue, Linear, QuantizedRows},
};

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

/// Returns the probability that a chunk begins at the step's position `row`. `previous` is the query of the position before,
/// (D), or empty at the start of a sequence.
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
