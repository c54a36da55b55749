//! Absolute positions: a vector for each position of a sequence, added to a stack's input.

use crate::nn::Position;
use std::sync::Arc;

/// Source of a position's vector.
pub enum Absolute {
    /// sin(n·f_i), then cos(n·f_i), n counted from `first`: fairseq's form of Vaswani et al. 2017.
    Sinusoidal {
        /// f: (dim / 2)
        frequencies: Vec<f32>,
        /// n of a sequence's first position.
        first: usize,
    },
    /// A learned vector for each position (GPT-2).
    Learned {
        /// (max positions, dim); stacks may share it.
        table: Arc<[f32]>,
    },
}

/// Returns fairseq's frequencies: 10000^(−i/(D/2 − 1)).
pub fn frequencies(dim: usize) -> Vec<f32> {
    let step = 10_000f64.ln() / (dim / 2).saturating_sub(1).max(1) as f64;
    // Rounds the exponent to f32 first, as the official code does.
    (0..dim / 2).map(|i| (i as f32 * -step as f32).exp()).collect()
}

impl Absolute {
    /// Adds the vectors of `positions` to `x`: (positions, dim).
    pub(super) fn add(&self, x: &mut [f32], positions: &[Position]) {
        let dim = x.len() / positions.len().max(1);
        for (position, x) in positions.iter().zip(x.chunks_exact_mut(dim.max(1))) {
            match self {
                Self::Sinusoidal { frequencies, first } => {
                    let (sines, cosines) = x.split_at_mut(frequencies.len());
                    let angles = frequencies.iter().map(|f| f64::from((position.index + first) as f32 * f));
                    for ((sine, cosine), angle) in sines.iter_mut().zip(cosines).zip(angles) {
                        *sine += angle.sin() as f32;
                        *cosine += angle.cos() as f32;
                    }
                }
                Self::Learned { table } => {
                    for (x, learned) in x.iter_mut().zip(&table[position.index * dim..][..dim]) {
                        *x += learned;
                    }
                }
            }
        }
    }
}
