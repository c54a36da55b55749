//! Fewer vectors: what stands between two layers of an encoder (Trainable Representation Pooling, arXiv 2009.05169).
//!
//! A pooling takes n vectors and, if it chooses, their scores, and gives k. Scores, sorting and mixing are f32 whatever the
//! model's weights are stored in: in bf16 thousands of scores would be equal. Equal scores are sorted by place, the earlier
//! first, so what comes out is a function of what went in.

pub mod halving;
pub mod hard;
pub mod window;

use super::rows::Rows;
use crate::error::Result;

use halving::Halving;
use hard::Hard;
use window::Window;

/// The kinds of poolings there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// See [`Halving`]: whether the best meets the worst, and whether what is left goes back to the document's order.
    Halving {
        /// The best meets the worst.
        flip_right: bool,
        /// Back to the document's order.
        sort_back: bool,
    },
    /// See [`Hard`].
    Hard {
        /// Back to the document's order.
        sort_back: bool,
    },
    /// See [`Window`].
    Mean,
    /// The same with maxima.
    Max,
}

impl Kind {
    /// The pooling of that kind from `from` vectors to `to`.
    ///
    /// # Errors
    /// The rule that the two lengths break.
    pub fn of(self, from: usize, to: usize) -> Result<Box<dyn Select>, String> {
        let window = |largest| match to {
            1.. if from.is_multiple_of(to) => {
                Ok(Box::new(Window { size: from / to, count: to, largest }) as Box<dyn Select>)
            }
            _ => Err(format!("a divisor of {from}")),
        };
        match self {
            Self::Halving { flip_right, sort_back } => Ok(Box::new(Halving::new(from, to, (flip_right, sort_back))?)),
            // a divisor, so that a shorter document is cut alike
            Self::Hard { sort_back } => {
                window(false).map(|_| Box::new(Hard { kept: to, sort_back }) as Box<dyn Select>)
            }
            Self::Mean => window(false),
            Self::Max => window(true),
        }
    }

    /// Whether it chooses, by scores.
    pub fn chooses(self) -> bool {
        matches!(self, Self::Halving { .. } | Self::Hard { .. })
    }

    /// The same as a choice of vectors as they are.
    #[must_use]
    pub fn hardened(self) -> Self {
        match self {
            Self::Halving { sort_back, .. } => Self::Hard { sort_back },
            other => other,
        }
    }
}

/// What a pooling gives.
pub struct Pooled {
    /// (k, dim)
    pub rows: Rows,
    /// (k), in order of the rows; none where nothing was chosen.
    pub scores: Vec<f32>,
    /// The same: for each row its winner's place among the n: of all vectors mixed into it, the one that had the better score every time.
    pub winners: Vec<usize>,
}

/// The vectors that go in: more places than there are vectors, where some are alike.
pub struct Input<'a> {
    /// Vectors.
    pub rows: &'a Rows,
    /// Which of them stands at each place: (n)
    pub places: &'a [u32],
}

impl Input<'_> {
    /// The vector at a place.
    pub fn at(&self, place: usize) -> &[f32] {
        self.rows.row(self.places[place] as usize)
    }
}

/// The order of falling scores; of equal ones the earlier first.
pub fn by_score(scores: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    order
}

/// Where pooled vectors go: empty rows of the right width, with so many to a page.
pub type Make<'a> = &'a dyn Fn() -> Rows;

/// Something that keeps k of n.
pub trait Select {
    /// # Errors
    /// No memory for what comes out.
    fn select(&self, input: &Input<'_>, scores: Vec<f32>, make: Make<'_>) -> Result<Pooled>;
}
