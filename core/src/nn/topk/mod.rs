//! Pooling of a document's vectors between two encoder layers (Trainable Representation Pooling, arXiv 2009.05169).
//!
//! A pooling takes n vectors and, if it selects by score, their scores, and returns k vectors. Scores, sorting and mixing
//! are f32 for every storage type: in bf16 thousands of scores would be equal. Equal scores are ordered by position, the
//! earlier first, so the output depends on the input alone.

pub mod halving;
pub mod pooler;
pub mod simple;

use halving::Halving;
use pooler::Pooler;
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
    /// Creates the pooling of this kind from `from` vectors to `to`. The error says what `to` must be, such as "a divisor of 12".
    pub fn pooler(self, from: usize, to: usize) -> Result<Box<dyn Pooler>, String> {
        let window = |largest| match to {
            1.. if from.is_multiple_of(to) => {
                Ok(Box::new(WindowPooler { size: from / to, count: to, largest }) as Box<dyn Pooler>)
            }
            _ => Err(format!("a divisor of {from}")),
        };
        match self {
            Self::Halving { flip_right, sort_back } => Ok(Box::new(Halving::new(from, to, flip_right, sort_back)?)),
            // `to` must divide `from` here too, so that shorter documents shrink by the same factor.
            Self::HardTopK { sort_back } => {
                window(false).map(|_| Box::new(HardTopK { kept: to, sort_back }) as Box<dyn Pooler>)
            }
            Self::Mean => window(false),
            Self::Max => window(true),
        }
    }

    /// Returns true if it selects by scores.
    pub fn uses_scores(self) -> bool {
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
