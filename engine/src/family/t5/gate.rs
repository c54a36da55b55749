//! The gate that deletes tokens (Kallini et al. 2024, "hard deletion"): a token is kept if its gate value exceeds a threshold.
//!
//! Logits are summed in f64 from f32 weights, for all types of weights: a rounding error at the threshold would flip a token.

use super::config::GateFunction;
use crate::kernels::{
    Compute,
    rowwise::{RmsNorm, rms_norm},
};

/// The gate's weights. D = width.
pub struct DeletionGate {
    /// The encoder layer whose input it reads, counted from 0.
    pub layer: usize,
    pub(super) function: GateFunction,
    pub(super) threshold: f32,
    pub(super) norm: Option<RmsNorm>,
    /// (D)
    pub(super) weight: Vec<f32>,
    pub(super) bias: f32,
}

impl DeletionGate {
    /// Appends the gate value of each of `x`, (vectors, D), to `values`.
    pub(super) fn values(&self, compute: &Compute, x: &[f32], normed: &mut Vec<f32>, values: &mut Vec<f32>) {
        normed.clear();
        normed.extend_from_slice(x);
        if let Some(norm) = &self.norm {
            rms_norm(compute, x, norm, normed);
        }
        values.extend(normed.chunks_exact(self.weight.len()).map(|x| self.value(x)));
    }

    fn value(&self, x: &[f32]) -> f32 {
        let products = x.iter().zip(&self.weight).map(|(x, weight)| f64::from(*x) * f64::from(*weight));
        let logit = products.sum::<f64>() + f64::from(self.bias);
        match self.function {
            GateFunction::ScaledSigmoid { scale } => (f64::from(scale) / (1.0 + logit.exp())) as f32,
            // ln σ(a) = −ln(1 + e^−a), without overflow for very negative a
            GateFunction::LogSigmoid => (logit.min(0.0) - (-logit.abs()).exp().ln_1p()) as f32,
        }
    }

    /// Returns the indices of the values that are kept, in order. Keeps the first token if all would be deleted.
    pub(super) fn kept(&self, values: &[f32]) -> Vec<usize> {
        let kept: Vec<usize> = (0..values.len()).filter(|&index| values[index] > self.threshold).collect();
        if kept.is_empty() { vec![0] } else { kept }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(function: GateFunction, threshold: f32) -> DeletionGate {
        DeletionGate { layer: 0, function, threshold, norm: None, weight: vec![1.0], bias: 0.5 }
    }

    #[test]
    fn values_follow_their_definitions_and_the_threshold_is_exclusive() {
        let scaled = gate(GateFunction::ScaledSigmoid { scale: -30.0 }, -15.0);
        assert_eq!([scaled.value(&[-0.5]), scaled.value(&[1e3]), scaled.value(&[-1e3])], [-15.0, -0.0, -30.0]);
        assert_eq!(scaled.kept(&[-15.0, -14.9, -30.0, 0.0]), [1, 3]);
        assert_eq!(scaled.kept(&[-15.0, -20.0]), [0], "one token is left");
        let log = gate(GateFunction::LogSigmoid, -1.0);
        assert!((log.value(&[-0.5]) + std::f32::consts::LN_2).abs() < 1e-7);
        assert_eq!(log.value(&[-1e3]), -999.5);
    }
}
