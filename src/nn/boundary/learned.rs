//! A learned predictor: p = sigmoid(w₂·act(W₁·h + b₁) + b₂) on the pre stack's output (Dynamic Token Pooling, §3.1, eq. 3).
//!
//! By threshold: a boundary if p > threshold, strictly, as the official code decides for `unigram` and `entropy`. Sampled: a
//! boundary if u > 1 − p, u uniform, which is what the Gumbel-sigmoid of eq. 4 amounts to once it is rounded; its temperature
//! has no influence.

use super::evidence::{BoundaryDecision, Evidence};
use crate::{
    kernels::{
        Compute,
        distribution::sigmoid,
        linear::{Epilogue, Linear, QuantizedRows},
    },
    nn::{Activation, sized},
};

/// The predictor.
pub struct Learned {
    /// (hidden, D)
    pub hidden: Linear,
    /// (1, hidden)
    pub output: Linear,
    /// The feed-forwards' nonlinearity.
    pub activation: Activation,
    /// Boundary if the probability is above this.
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
        let (rows, width) = (evidence.positions.len(), self.hidden.outputs());
        let hidden = sized(&mut work.hidden, rows * width);
        self.hidden.apply(compute, evidence.hidden, self.activation.then(), &mut work.quantized, hidden); // (rows, hidden)
        let logits = sized(&mut work.logits, rows);
        self.output.apply(compute, hidden, Epilogue::None, &mut work.quantized, logits); // (rows, 1)
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
