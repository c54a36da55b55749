//! Fewer vectors: what stands between two layers of an encoder (Trainable Representation Pooling, arXiv 2009.05169).
//!
//! A pooling takes n vectors and, if it chooses, their scores, and gives k. Scores, sorting and mixing are f32 whatever the
//! model's weights are stored in: in bf16 thousands of scores would be equal. Equal scores are sorted by position, the earlier
//! first, so what comes out is a function of what went in.

pub mod halving;
pub mod pooler;
pub mod simple;

use halving::Halving;
use pooler::Pooler;
use simple::{HardTopK, WindowPooler};

/// The kinds of poolings there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolerKind {
    /// See [`Halving`]: whether the best meets the worst, and whether what is left goes back to the document's order.
    Halving {
        /// The best meets the worst.
        flip_right: bool,
        /// Back to the document's order.
        sort_back: bool,
    },
    /// See [`HardTopK`].
    HardTopK {
        /// Back to the document's order.
        sort_back: bool,
    },
    /// See [`WindowPooler`].
    Mean,
    /// The same with maxima.
    Max,
}

impl PoolerKind {
    /// The pooling of that kind from `from` vectors to `to`.
    ///
    /// # Errors
    /// The rule that the two lengths break.
    pub fn pooler(self, from: usize, to: usize) -> Result<Box<dyn Pooler>, String> {
        let window = |largest| match to {
            1.. if from.is_multiple_of(to) => {
                Ok(Box::new(WindowPooler { size: from / to, count: to, largest }) as Box<dyn Pooler>)
            }
            _ => Err(format!("a divisor of {from}")),
        };
        match self {
            Self::Halving { flip_right, sort_back } => Ok(Box::new(Halving::new(from, to, (flip_right, sort_back))?)),
            // a divisor, so that a shorter document is cut alike
            Self::HardTopK { sort_back } => {
                window(false).map(|_| Box::new(HardTopK { kept: to, sort_back }) as Box<dyn Pooler>)
            }
            Self::Mean => window(false),
            Self::Max => window(true),
        }
    }

    /// Whether it chooses, by scores.
    pub fn scores(self) -> bool {
        matches!(self, Self::Halving { .. } | Self::HardTopK { .. })
    }

    /// The same as a choice of vectors as they are.
    #[must_use]
    pub fn hardened(self) -> Self {
        match self {
            Self::Halving { sort_back, .. } => Self::HardTopK { sort_back },
            other => other,
        }
    }
}
