//! Scores of vectors, by which poolings choose: f32 at the end and f64 on the way, whatever the weights are stored in.

use crate::{
    decode::random::{Purpose, uniform},
    kernels::distribution::sigmoid,
    nn::topk::{halving::EPSILON, pooler::PoolerInput},
};

/// Where a pooling's scores come from. D = width.
pub(super) enum Scores {
    /// Of w·x + b, w of (D)
    Linear(Vec<f32>, f32),
    /// Of w·tanh(W·x + c) + b: W (D, D), c (D), w (D)
    Ffn { dense: Vec<f32>, shift: Vec<f32>, weight: Vec<f32>, bias: f32 },
    /// Of this number of each vector.
    Embedding(usize),
    /// Of the place: 1 at every so many.
    Index(usize),
    /// The attention that each vector got, which is not looked up here.
    Attention,
    /// Of the place, noise: a seed of the layer's own.
    Random(u64),
}

impl Scores {
    /// σ(logit) + 1e-5 of what stands at each place, or what the place itself says, or the attention that the vectors got: `mass`,
    /// and for those that it does not list, `alike`. What is alike is scored once.
    pub(super) fn of(&self, input: &PoolerInput<'_>, (mass, alike): (&[f32], f32)) -> Vec<f32> {
        match *self {
            Self::Attention => {
                return input.index.iter().map(|&row| mass.get(row as usize).copied().unwrap_or(alike)).collect();
            }
            Self::Index(every) => {
                return (0..input.index.len()).map(|place| f32::from(u8::from(place.is_multiple_of(every)))).collect();
            }
            Self::Random(seed) => {
                return (0..input.index.len()).map(|place| uniform(seed, Purpose::Scores, place)).collect();
            }
            _ => {}
        }
        let of_row: Vec<f32> =
            (0..input.vectors.len()).map(|row| sigmoid(self.logit(input.vectors.vector(row))) + EPSILON).collect();
        input.index.iter().map(|&row| of_row[row as usize]).collect()
    }

    fn logit(&self, x: &[f32]) -> f32 {
        match self {
            Self::Embedding(dimension) => x[*dimension],
            // these look at positions, not at vectors
            Self::Index(_) | Self::Random(_) | Self::Attention => 0.0,
            Self::Linear(weight, bias) => (dot(weight, x) + f64::from(*bias)) as f32,
            Self::Ffn { dense, shift, weight, bias } => {
                let inner = dense.chunks_exact(x.len()).zip(shift).map(|(row, shift)| dot(row, x) + f64::from(*shift));
                let sum: f64 = inner.zip(weight).map(|(inner, weight)| inner.tanh() * f64::from(*weight)).sum();
                (sum + f64::from(*bias)) as f32
            }
        }
    }
}

/// Σ a·b in eight chains, added up in order.
fn dot(a: &[f32], b: &[f32]) -> f64 {
    let mut sums = [0f64; 8];
    for (a, b) in a.chunks(8).zip(b.chunks(8)) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += f64::from(*a) * f64::from(*b);
        }
    }
    sums.iter().sum()
}
