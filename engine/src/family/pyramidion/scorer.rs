//! Scores of vectors, by which poolings select. Logits are summed in f64 and scores are f32, for all types of weights.

use crate::{
    decode::random::{Purpose, uniform},
    kernels::distribution::sigmoid,
    nn::topk::{halving::EPSILON, pooler::PoolerInput},
};

/// Source of one pooling's scores, with its weights. D = width.
pub(super) enum Scorer {
    /// w·x + b, w of (D)
    Linear(Vec<f32>, f32),
    /// w·tanh(W·x + c) + b: W (D, D), c (D), w (D)
    Ffn { dense: Vec<f32>, shift: Vec<f32>, weight: Vec<f32>, bias: f32 },
    /// One number of each vector.
    Embedding(usize),
    /// 1 at every k-th position.
    Index(usize),
    /// The attention weight that each vector received.
    Attention,
    /// Noise by position, from a seed of the layer's own.
    Random(u64),
}

impl Scorer {
    /// Returns a score for each position: σ(logit) + 1e-5 of its vector, a function of the position, or the attention weight.
    ///
    /// `mass` lists the attention weights by vector; vectors beyond it received `padding_mass`. Positions that share a vector are
    /// scored once.
    pub(super) fn scores(&self, input: &PoolerInput<'_>, mass: &[f32], padding_mass: f32) -> Vec<f32> {
        let positions = 0..input.index.len();
        match *self {
            Self::Attention => {
                let vectors = input.index.iter();
                vectors.map(|&vector| mass.get(vector as usize).copied().unwrap_or(padding_mass)).collect()
            }
            Self::Index(every) => {
                positions.map(|position| f32::from(u8::from(position.is_multiple_of(every)))).collect()
            }
            Self::Random(seed) => positions.map(|position| uniform(seed, Purpose::Scores, position)).collect(),
            Self::Linear(..) | Self::Ffn { .. } | Self::Embedding(_) => {
                let vectors = (0..input.vectors.len()).map(|index| input.vectors.vector(index));
                let scores: Vec<f32> = vectors.map(|x| sigmoid(self.logit(x)) + EPSILON).collect();
                input.index.iter().map(|&vector| scores[vector as usize]).collect()
            }
        }
    }

    fn logit(&self, x: &[f32]) -> f32 {
        match self {
            Self::Embedding(dimension) => x[*dimension],
            // These score positions, not vectors.
            Self::Index(_) | Self::Random(_) | Self::Attention => 0.0,
            Self::Linear(weight, bias) => (dot(weight, x) + f64::from(*bias)) as f32,
            Self::Ffn { dense, shift, weight, bias } => {
                let hidden = dense.chunks_exact(x.len()).zip(shift).map(|(row, shift)| dot(row, x) + f64::from(*shift));
                let sum: f64 = hidden.zip(weight).map(|(hidden, weight)| hidden.tanh() * f64::from(*weight)).sum();
                (sum + f64::from(*bias)) as f32
            }
        }
    }
}

/// Returns Σ a·b, in eight chains that are added up in order.
fn dot(a: &[f32], b: &[f32]) -> f64 {
    let mut sums = [0f64; 8];
    for (a, b) in a.chunks(8).zip(b.chunks(8)) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += f64::from(*a) * f64::from(*b);
        }
    }
    sums.iter().sum()
}
