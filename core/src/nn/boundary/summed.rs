//! A learned predictor whose logit is a sum: b = Σ_j (W₂·relu(W₁·h))_j (Latent Segment Language Models, eq. 2).
//!
//! It has no biases. Loading folds the sum over j into W₂, so a symbol costs one matrix product and one dot product. A
//! boundary is sigmoid(b) ≥ threshold, tested on the logit: b = 0 with threshold ½ is a boundary. Weights are f32 for every
//! storage type of the model, because one changed boundary would change everything after it.

use crate::{
    error::Result,
    kernels::{
        Compute, Dtype,
        linear::{Epilogue, Linear, QuantizedRows, WeightArena},
    },
    nn::sized,
};

/// Weights of the predictor.
pub struct Summed {
    /// W₁: (hidden, D)
    hidden: Linear,
    /// 1ᵀ·W₂: (1, hidden)
    output: Linear,
    min_logit: f32,
}

/// Buffers, kept between steps.
#[derive(Default)]
pub struct SummedWork {
    quantized: QuantizedRows,
    hidden: Vec<f32>,
}

impl Summed {
    /// Packs W₁, (hidden, dim), and W₂, (dim, hidden). Fails if memory runs out.
    pub fn new(first: &[f32], second: &[f32], hidden: usize, threshold: f32) -> Result<Self> {
        let arena = WeightArena::new(Dtype::F32);
        let mut folded = vec![0f64; hidden];
        for row in second.chunks_exact(hidden) {
            folded.iter_mut().zip(row).for_each(|(sum, &weight)| *sum += f64::from(weight));
        }
        let folded: Vec<f32> = folded.into_iter().map(|sum| sum as f32).collect();
        let threshold = f64::from(threshold);
        Ok(Self {
            hidden: Linear::pack(&arena, first, &[], hidden, first.len() / hidden)?,
            output: Linear::pack(&arena, &folded, &[], 1, hidden)?,
            min_logit: (threshold / (1.0 - threshold)).ln() as f32,
        })
    }

    /// Writes the logit b of each row of `x`, (positions, D), to `logits`: (positions).
    pub fn logits(&self, compute: &Compute, x: &[f32], work: &mut SummedWork, logits: &mut Vec<f32>) {
        let positions = x.len() / self.hidden.inputs();
        let hidden = sized(&mut work.hidden, positions * self.hidden.outputs());
        self.hidden.apply(compute, x, Epilogue::Relu, &mut work.quantized, hidden); // (positions, hidden)
        let logits = sized(logits, positions);
        self.output.apply(compute, hidden, Epilogue::None, &mut work.quantized, logits); // (positions, 1)
    }

    /// Returns true if a segment ends with a symbol of this logit.
    pub fn closes(&self, logit: f32) -> bool {
        logit >= self.min_logit
    }

    /// Returns the matrices of a decision.
    pub fn matrices(&self) -> [&Linear; 2] {
        [&self.hidden, &self.output]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{Isa, ThreadPool};
    use std::sync::Arc;

    #[test]
    fn the_folded_sum_equals_the_sum() {
        const HIDDEN: usize = 5;
        const DIM: usize = 3;
        let numbers = |count: usize, k: f32| (0..count).map(|i| (i as f32 * k).sin()).collect::<Vec<_>>();
        let first = numbers(HIDDEN * DIM, 0.7);
        let second = numbers(DIM * HIDDEN, 1.9);
        let predictor = Summed::new(&first, &second, HIDDEN, 0.5).unwrap();
        let compute = Compute { isa: Isa::detect(), pool: Arc::new(ThreadPool::new(1)) };
        let x = numbers(2 * DIM, 0.3);
        let mut logits = Vec::new();
        predictor.logits(&compute, &x, &mut SummedWork::default(), &mut logits);
        for (x, logit) in x.chunks(DIM).zip(&logits) {
            let dot = |row: &[f32], x: &[f32]| row.iter().zip(x).map(|(w, x)| w * x).sum::<f32>();
            let inner: Vec<f32> = first.chunks(DIM).map(|row| dot(row, x).max(0.0)).collect();
            let expected: f32 = second.chunks(HIDDEN).map(|row| dot(row, &inner)).sum();
            assert!((expected - logit).abs() < 1e-5, "{expected} {logit}");
        }
    }

    #[test]
    fn the_threshold_itself_is_a_boundary() {
        let predictor = |threshold| Summed::new(&[1.0], &[1.0], 1, threshold).unwrap();
        // A logit of 0 means that no hidden unit is active.
        assert!(predictor(0.5).closes(0.0) && predictor(0.5).closes(-0.0) && !predictor(0.5).closes(-1e-8));
        assert!(!predictor(0.6).closes(0.4) && predictor(0.6).closes(0.41) && predictor(0.4).closes(-0.4));
    }
}
