//! A learned predictor on the pre stack's output (Dynamic Token Pooling, §3.1, eq. 3):
//! p = sigmoid(w₂·act(W₁·h + b₁) + b₂).
//!
//! The threshold mode sets a boundary if p > threshold, strictly, as the official code does for `unigram` and `entropy`. The
//! sampled mode sets one if u > 1 − p for uniform u. That is the rounded Gumbel-sigmoid of eq. 4; its temperature has no effect.

use super::evidence::{BoundaryDecision, Evidence};
use crate::{
    kernels::{
        Compute,
        distribution::sigmoid,
        linear::{Epilogue, Linear, QuantizedRows},
    },
    nn::{Activation, sized},
};

/// Weights of the predictor.
pub struct Learned {
    /// (hidden, D)
    pub hidden: Linear,
    /// (1, hidden)
    pub output: Linear,
    /// Nonlinearity of the hidden layer.
    pub activation: Activation,
    /// A boundary needs a probability above this.
    pub threshold: f32,
}

/// Buffers, kept between steps.
#[derive(Default)]
pub struct LearnedWork {
    quantized: QuantizedRows,
    hidden: Vec<f32>,
    logits: Vec<f32>,
}

impl Learned {
    pub(super) fn decide(
        &self,
        compute: &Compute,
        evidence: &Evidence<'_>,
        work: &mut LearnedWork,
        decisions: &mut Vec<BoundaryDecision>,
    ) {
        let positions = evidence.positions.len();
        let hidden = sized(&mut work.hidden, positions * self.hidden.outputs());
        let epilogue = self.activation.epilogue();
        self.hidden.apply(compute, evidence.hidden, epilogue, &mut work.quantized, hidden); // (positions, hidden)
        let logits = sized(&mut work.logits, positions);
        self.output.apply(compute, hidden, Epilogue::None, &mut work.quantized, logits); // (positions, 1)
        for (logit, noise) in logits.iter().zip(evidence.noise) {
            let probability = sigmoid(*logit);
            let closes = match noise {
                Some(noise) => *noise > 1.0 - probability.clamp(f32::EPSILON, 1.0 - f32::EPSILON),
                None => probability > self.threshold,
            };
            decisions.push(BoundaryDecision { closes, probability: Some(probability) });
        }
    }
}
