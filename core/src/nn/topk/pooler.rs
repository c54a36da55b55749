//! Interface of poolings: n vectors and their scores in, k vectors out.

use crate::{error::Result, nn::paged_vectors::PagedVectors};

/// Output of a pooling.
pub struct PooledVectors {
    /// Pooled vectors, (k, dim).
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
    /// Index of each position's vector, (n).
    pub index: &'a [u32],
}

impl PoolerInput<'_> {
    /// Returns the vector at a position.
    pub fn vector(&self, position: usize) -> &[f32] {
        self.vectors.vector(self.index[position] as usize)
    }
}

/// Returns the positions from the highest score to the lowest. Among equal scores the earlier position comes first.
pub fn by_score(scores: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    order
}

/// A function that creates an empty list for pooled vectors, with their width and page size.
pub type NewVectors<'a> = &'a dyn Fn() -> PagedVectors;

/// A pooling from n vectors to k.
pub trait Pooler {
    /// Pools `input`; `scores` has one number per position, or none if the pooling uses no scores. Fails if memory runs out.
    fn pool(&self, input: &PoolerInput<'_>, scores: Vec<f32>, new_vectors: NewVectors<'_>) -> Result<PooledVectors>;
}
