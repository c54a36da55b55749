//! Pooling of a document's vectors between two encoder layers (Trainable Representation Pooling, arXiv 2009.05169).
//!
//! A pooling takes n vectors and, if it selects by score, their scores, and returns k vectors. Scores, sorting and mixing
//! are f32 for every storage type: in bf16 thousands of scores would be equal. Equal scores are ordered by position, the
//! earlier first, so the output is a function of the input.

pub mod halving;
pub mod simple;

use crate::{error::Result, nn::paged_vectors::PagedVectors};
use halving::Halving;
use simple::{HardTopK, WindowPooler};

/// Kinds of pooling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolerKind {
    /// See [`Halving`].
    Halving {
        /// True if the best vector is paired with the worst.
        flip_right: bool,
        /// True if the remaining vectors return to the document's order.
        sort_back: bool,
    },
    /// See [`HardTopK`].
    HardTopK {
        /// True if the remaining vectors return to the document's order.
        sort_back: bool,
    },
    /// Means of windows: see [`WindowPooler`].
    Mean,
    /// Maxima of windows: see [`WindowPooler`].
    Max,
}

impl PoolerKind {
    /// Creates the pooling of this kind from `from` vectors to `to`. The error is the rule that the two lengths break.
    pub fn pooler(self, from: usize, to: usize) -> Result<Box<dyn Pooler>, String> {
        let window = |largest| match to {
            1.. if from.is_multiple_of(to) => {
                Ok(Box::new(WindowPooler { size: from / to, count: to, largest }) as Box<dyn Pooler>)
            }
            _ => Err(format!("a divisor of {from}")),
        };
        match self {
            Self::Halving { flip_right, sort_back } => Ok(Box::new(Halving::new(from, to, flip_right, sort_back)?)),
            // Requires a divisor too, so that shorter documents shrink by the same factor.
            Self::HardTopK { sort_back } => {
                window(false).map(|_| Box::new(HardTopK { kept: to, sort_back }) as Box<dyn Pooler>)
            }
            Self::Mean => window(false),
            Self::Max => window(true),
        }
    }

    /// Returns true if it selects by scores.
    pub fn scores(self) -> bool {
        matches!(self, Self::Halving { .. } | Self::HardTopK { .. })
    }

    /// Returns the kind that selects with the same scores but keeps vectors unchanged.
    #[must_use]
    pub fn hardened(self) -> Self {
        match self {
            Self::Halving { sort_back, .. } => Self::HardTopK { sort_back },
            other => other,
        }
    }
}

/// Output of a pooling.
pub struct PooledVectors {
    /// (k, dim)
    pub vectors: PagedVectors,
    /// Scores of the vectors, (k); empty if the pooling uses no scores.
    pub scores: Vec<f32>,
    /// Input position of each vector's winner, (k); empty if the pooling uses no scores. The winner had the better score in
    /// every round that mixed inputs into the vector.
    pub winners: Vec<usize>,
}

/// Input of a pooling: n positions, some of which may share a vector.
pub struct PoolerInput<'a> {
    /// The distinct vectors.
    pub vectors: &'a PagedVectors,
    /// Index of each position's vector: (n)
    pub index: &'a [u32],
}

impl PoolerInput<'_> {
    /// Returns the vector at a position.
    pub fn vector(&self, position: usize) -> &[f32] {
        self.vectors.vector(self.index[position] as usize)
    }
}

/// Returns the positions in the order of falling scores; of equal scores the earlier position first.
pub fn by_score(scores: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    order
}

/// Creates an empty list for pooled vectors, of their width and page size.
pub type NewVectors<'a> = &'a dyn Fn() -> PagedVectors;

/// A pooling from n vectors to k.
pub trait Pooler {
    /// Pools `input`; `scores` has one number a position, or none if the pooling uses no scores. Fails if memory runs out.
    fn pool(&self, input: &PoolerInput<'_>, scores: Vec<f32>, new_vectors: NewVectors<'_>) -> Result<PooledVectors>;
}
