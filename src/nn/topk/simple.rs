//! Poolings without rounds: the k best vectors as they are, and means or maxima of windows (arXiv 2009.05169, appendix A).

use super::pooler::{Input, NewVectors, Pooled, Pooler, by_score};
use crate::error::Result;

/// The `kept` best.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HardTopK {
    /// k.
    pub kept: usize,
    /// Whether they keep the order in which they stood, rather than that of falling scores.
    pub sort_back: bool,
}

impl Pooler for HardTopK {
    fn pool(&self, input: &Input<'_>, scores: Vec<f32>, make: NewVectors<'_>) -> Result<Pooled> {
        let mut winners = by_score(&scores);
        winners.truncate(self.kept);
        if self.sort_back {
            winners.sort_unstable();
        }
        let mut rows = make();
        // fewer only where whole blocks left over more than was to be left out
        rows.extend(winners.len())?;
        let per_page = rows.per_page();
        for (page, winners) in winners.chunks(per_page).enumerate() {
            let target = rows.page_mut(page)?;
            let dim = target.len() / winners.len();
            for (&winner, target) in winners.iter().zip(target.chunks_exact_mut(dim)) {
                target.copy_from_slice(input.at(winner));
            }
        }
        Ok(Pooled { rows, scores: winners.iter().map(|&winner| scores[winner]).collect(), winners })
    }
}

/// From windows of `from / to` neighbours to one vector each; the last window may be shorter, and where nothing stands at all is
/// a zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowPooler {
    /// Vectors of a window.
    pub size: usize,
    /// Windows.
    pub count: usize,
    /// Whether each number is the largest of the window's, rather than their mean.
    pub largest: bool,
}

impl Pooler for WindowPooler {
    fn pool(&self, input: &Input<'_>, _: Vec<f32>, make: NewVectors<'_>) -> Result<Pooled> {
        let mut rows = make();
        rows.extend(self.count)?;
        let per_page = rows.per_page();
        for page in 0..rows.pages() {
            let first = page * per_page;
            let target = rows.page_mut(page)?;
            let dim = target.len() / per_page.min(self.count - first);
            for (window, target) in (first..).zip(target.chunks_exact_mut(dim)) {
                let from = (window * self.size).min(input.positions.len());
                self.pool_window(input, from..(from + self.size).min(input.positions.len()), target);
            }
        }
        Ok(Pooled { rows, scores: Vec::new(), winners: Vec::new() })
    }
}

impl WindowPooler {
    fn pool_window(&self, input: &Input<'_>, positions: std::ops::Range<usize>, target: &mut [f32]) {
        target.fill(0.0);
        let share = 1.0 / positions.len().max(1) as f32;
        for (index, position) in positions.enumerate() {
            for (target, x) in target.iter_mut().zip(input.at(position)) {
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
    fn windows_are_those_of_the_definition() {
        let pool = PagePool::new(1 << 20);
        let make = || PagedVectors::new(pool.clone(), 2, 2);
        let mut rows = make();
        rows.extend(5).unwrap();
        for page in 0..rows.pages() {
            for (index, x) in rows.page_mut(page).unwrap().iter_mut().enumerate() {
                *x = (page * 4 + index) as f32;
            }
        }
        // the third vector stands at two positions
        let input = Input { rows: &rows, positions: &[0, 1, 2, 2, 4] };
        let all = |largest| {
            let pooled = WindowPooler { size: 2, count: 4, largest }.pool(&input, Vec::new(), &make).unwrap();
            (0..4).map(|row| pooled.rows.row(row).to_vec()).collect::<Vec<_>>()
        };
        assert_eq!(all(false), [[1.0, 2.0], [4.0, 5.0], [8.0, 9.0], [0.0, 0.0]]);
        assert_eq!(all(true), [[2.0, 3.0], [4.0, 5.0], [8.0, 9.0], [0.0, 0.0]]);
    }
}
