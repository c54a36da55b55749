//! A learned predictor whose logit is a sum: b = Σ_j (W₂·relu(W₁·h))_j (Latent Segment Language Models, eq. 2).
//!
//! No biases. The sum over j is folded into W₂ when the model is loaded, so a symbol costs one product and one dot. A boundary
//! if sigmoid(b) ≥ threshold, asked of the logit: b = 0 with threshold ½ is one. Numbers are f32 whatever else is stored in:
//! one boundary that fell otherwise would change all that follows.

use crate::{
    error::Result,
    kernels::{
        Compute, Dtype,
        linear::{Epilogue, Linear, QuantizedRows, WeightArena},
    },
    nn::sized,
};

/// The predictor.
pub struct Summed {
    /// W₁: (hidden, D)
    hidden: Linear,
    /// 1ᵀ·W₂: (1, hidden)
    output: Linear,
    /// The least logit that is a boundary.
    least: f32,
}

/// Buffers, kept between steps.
#[derive(Default)]
pub struct SummedWork {
    quantized: QuantizedRows,
    hidden: Vec<f32>,
}

impl Summed {
    /// From W₁, (hidden, dim), and W₂, (dim, hidden).
    ///
    /// # Errors
    /// No memory.
    pub fn new(first: &[f32], second: &[f32], (hidden, dim): (usize, usize), threshold: f32) -> Result<Self> {
        let store = WeightArena::new(Dtype::F32);
        let mut folded = vec![0f64; hidden];
        for row in second.chunks_exact(hidden) {
            folded.iter_mut().zip(row).for_each(|(sum, &weight)| *sum += f64::from(weight));
        }
        let folded: Vec<f32> = folded.into_iter().map(|sum| sum as f32).collect();
        let threshold = f64::from(threshold);
        Ok(Self {
            hidden: Linear::pack(&store, first, &[], hidden, dim)?,
            output: Linear::pack(&store, &folded, &[], 1, hidden)?,
            least: (threshold / (1.0 - threshold)).ln() as f32,
        })
    }

    /// `logits` (rows) = b of each row of `x`, (rows, D).
    pub fn logits(&self, compute: &Compute, x: &[f32], work: &mut SummedWork, logits: &mut Vec<f32>) {
        let rows = x.len() / self.hidden.inputs();
        let hidden = sized(&mut work.hidden, rows * self.hidden.outputs());
        self.hidden.apply(compute, x, Epilogue::Relu, &mut work.quantized, hidden); // (rows, hidden)
        let logits = sized(logits, rows);
        self.output.apply(compute, hidden, Epilogue::None, &mut work.quantized, logits); // (rows, 1)
    }

    /// Whether a logit is a boundary.
    pub fn closes(&self, logit: f32) -> bool {
        logit >= self.least
    }

    /// The matrices that a decision multiplies with.
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
    fn the_folded_sum_is_the_sum() {
        let (hidden, dim) = (5, 3);
        let numbers = |count: usize, k: f32| (0..count).map(|i| (i as f32 * k).sin()).collect::<Vec<_>>();
        let (first, second) = (numbers(hidden * dim, 0.7), numbers(dim * hidden, 1.9));
        let predictor = Summed::new(&first, &second, (hidden, dim), 0.5).unwrap();
        let compute = Compute { isa: Isa::detect(), pool: Arc::new(ThreadPool::new(1)) };
        let (x, mut logits) = (numbers(2 * dim, 0.3), Vec::new());
        predictor.logits(&compute, &x, &mut SummedWork::default(), &mut logits);
        for (x, logit) in x.chunks(dim).zip(&logits) {
            let dot = |row: &[f32], x: &[f32]| row.iter().zip(x).map(|(w, x)| w * x).sum::<f32>();
            let inner: Vec<f32> = first.chunks(dim).map(|row| dot(row, x).max(0.0)).collect();
            let want: f32 = second.chunks(hidden).map(|row| dot(row, &inner)).sum();
            assert!((want - logit).abs() < 1e-5, "{want} {logit}");
        }
    }

    #[test]
    fn the_threshold_itself_is_a_boundary() {
        let at = |threshold| Summed::new(&[1.0], &[1.0], (1, 1), threshold).unwrap();
        // where no hidden unit is alive
        assert!(at(0.5).closes(0.0) && at(0.5).closes(-0.0) && !at(0.5).closes(-1e-8));
        assert!(!at(0.6).closes(0.4) && at(0.6).closes(0.41) && at(0.4).closes(-0.4));
    }
}
