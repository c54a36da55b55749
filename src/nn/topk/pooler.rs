//! What every pooling of vectors takes and returns.

use crate::{error::Result, nn::paged_vectors::PagedVectors};

/// What a pooling gives.
pub struct Pooled {
    /// (k, dim)
    pub rows: PagedVectors,
    /// (k), in order of the rows; none where nothing was chosen.
    pub scores: Vec<f32>,
    /// The same: for each row its winner's position among the n: of all vectors mixed into it, the one that had the better score every time.
    pub winners: Vec<usize>,
}

/// The vectors that go in: more positions than there are vectors, where some are alike.
pub struct Input<'a> {
    /// Vectors.
    pub rows: &'a PagedVectors,
    /// Which of them stands at each position: (n)
    pub positions: &'a [u32],
}

impl Input<'_> {
    /// The vector at a position.
    pub fn at(&self, position: usize) -> &[f32] {
        self.rows.row(self.positions[position] as usize)
    }
}

/// The order of falling scores; of equal ones the earlier first.
pub fn by_score(scores: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    order
}

/// Where pooled vectors go: empty rows of the right width, with so many to a page.
pub type NewVectors<'a> = &'a dyn Fn() -> PagedVectors;

/// Something that keeps k of n.
pub trait Pooler {
    /// # Errors
    /// No memory for what comes out.
    fn pool(&self, input: &Input<'_>, scores: Vec<f32>, make: NewVectors<'_>) -> Result<Pooled>;
}
