//! Fewer vectors: what stands between two layers of an encoder (Trainable Representation Pooling, arXiv 2009.05169).
//!
//! A pooling takes n vectors and, if it chooses, their scores, and gives k. Scores, sorting and mixing are f32 whatever the
//! model's weights are stored in: in bf16 thousands of scores would be equal. Equal scores are sorted by place, the earlier
//! first, so what comes out is a function of what went in.

pub mod halving;
pub mod hard;

use super::rows::Rows;
use crate::error::Result;

/// What a pooling gives.
pub struct Pooled {
    /// (k, dim)
    pub rows: Rows,
    /// (k), in order of the rows.
    pub scores: Vec<f32>,
    /// For each row its winner's place among the n: of all vectors mixed into it, the one that had the better score every time.
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
