//! Poolings in one round: the k best vectors unchanged, and means or maxima of windows (arXiv 2009.05169, appendix A).

use super::pooler::{NewVectors, PooledVectors, Pooler, PoolerInput, by_score};
use crate::error::Result;

/// Hard top-k: keeps the `kept` vectors with the best scores unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HardTopK {
    /// k.
    pub kept: usize,
    /// True if the vectors keep the document's order, false if they come by falling score.
    pub sort_back: bool,
}

impl Pooler for HardTopK {
    fn pool(&self, input: &PoolerInput<'_>, scores: Vec<f32>, new_vectors: NewVectors<'_>) -> Result<PooledVectors> {
        let mut winners = by_score(&scores);
        winners.truncate(self.kept);
        if self.sort_back {
            winners.sort_unstable();
        }
        let mut vectors = new_vectors();
        // There are fewer than k if cutting to whole blocks dropped more than the pooling would.
        vectors.fill(winners.len(), |index, vector| vector.copy_from_slice(input.vector(winners[index])))?;
        Ok(PooledVectors { vectors, scores: winners.iter().map(|&winner| scores[winner]).collect(), winners })
    }
}

/// Pools windows of neighbours to their mean or maximum. The last window may be shorter; an empty window becomes zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowPooler {
    /// Vectors of a window.
    pub size: usize,
    /// Number of windows.
    pub count: usize,
    /// True for the maximum of each number, false for the mean.
    pub largest: bool,
}

impl Pooler for WindowPooler {
    fn pool(&self, input: &PoolerInput<'_>, _: Vec<f32>, new_vectors: NewVectors<'_>) -> Result<PooledVectors> {
        let mut vectors = new_vectors();
        let len = input.index.len();
        vectors.fill(self.count, |window, vector| {
            let start = (window * self.size).min(len);
            self.pool_window(input, start..(start + self.size).min(len), vector);
        })?;
        Ok(PooledVectors { vectors, scores: Vec::new(), winners: Vec::new() })
    }
}

impl WindowPooler {
    fn pool_window(&self, input: &PoolerInput<'_>, positions: std::ops::Range<usize>, target: &mut [f32]) {
        target.fill(0.0);
        let share = 1.0 / positions.len().max(1) as f32;
        for (index, position) in positions.enumerate() {
            for (target, x) in target.iter_mut().zip(input.vector(position)) {
                match self.largest {
                    true if index == 0 => *target = *x,
                    true => *target = target.max(*x),
                    false => *target += share * x,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{kernels::pages::PagePool, nn::paged_vectors::PagedVectors};

    #[test]
    fn windows_agree_with_the_definition() {
        let pool = PagePool::new(1 << 20);
        let new_vectors = || PagedVectors::new(pool.clone(), 2, 2);
        let mut vectors = new_vectors();
        vectors
            .fill(5, |index, vector| vector.copy_from_slice(&[2.0 * index as f32, 2.0 * index as f32 + 1.0]))
            .unwrap();
        // Two positions share the third vector.
        let input = PoolerInput { vectors: &vectors, index: &[0, 1, 2, 2, 4] };
        let pool_all = |largest| {
            let pooler = WindowPooler { size: 2, count: 4, largest };
            let pooled = Pooler::pool(&pooler, &input, Vec::new(), &new_vectors).unwrap();
            (0..4).map(|index| pooled.vectors.vector(index).to_vec()).collect::<Vec<_>>()
        };
        assert_eq!(pool_all(false), [[1.0, 2.0], [4.0, 5.0], [8.0, 9.0], [0.0, 0.0]]);
        assert_eq!(pool_all(true), [[2.0, 3.0], [4.0, 5.0], [8.0, 9.0], [0.0, 0.0]]);
    }
}
