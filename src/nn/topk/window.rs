//! Means and maxima of windows: neighbours become one vector, and nothing is chosen (arXiv 2009.05169, appendix A).

use super::{Input, Make, Pooled, Select};
use crate::error::Result;

/// From windows of `from / to` neighbours to one vector each; the last window may be shorter, and where nothing stands at all is
/// a zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Vectors of a window.
    pub size: usize,
    /// Windows.
    pub count: usize,
    /// Whether each number is the largest of the window's, rather than their mean.
    pub largest: bool,
}

impl Select for Window {
    fn select(&self, input: &Input<'_>, _: Vec<f32>, make: Make<'_>) -> Result<Pooled> {
        let mut rows = make();
        rows.extend(self.count)?;
        let per_page = rows.per_page();
        for page in 0..rows.pages() {
            let first = page * per_page;
            let target = rows.page_mut(page)?;
            let dim = target.len() / per_page.min(self.count - first);
            for (window, target) in (first..).zip(target.chunks_exact_mut(dim)) {
                let from = (window * self.size).min(input.places.len());
                self.pool(input, from..(from + self.size).min(input.places.len()), target);
            }
        }
        Ok(Pooled { rows, scores: Vec::new(), winners: Vec::new() })
    }
}

impl Window {
    fn pool(&self, input: &Input<'_>, places: std::ops::Range<usize>, target: &mut [f32]) {
        target.fill(0.0);
        let share = 1.0 / places.len().max(1) as f32;
        for (index, place) in places.enumerate() {
            for (target, x) in target.iter_mut().zip(input.at(place)) {
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
    use crate::{kernels::pages::PagePool, nn::rows::Rows};

    #[test]
    fn windows_are_those_of_the_definition() {
        let pool = PagePool::new(1 << 20);
        let make = || Rows::new(pool.clone(), 2, 2);
        let mut rows = make();
        rows.extend(5).unwrap();
        for page in 0..rows.pages() {
            for (index, x) in rows.page_mut(page).unwrap().iter_mut().enumerate() {
                *x = (page * 4 + index) as f32;
            }
        }
        // the third vector stands at two places
        let input = Input { rows: &rows, places: &[0, 1, 2, 2, 4] };
        let all = |largest| {
            let pooled = Window { size: 2, count: 4, largest }.select(&input, Vec::new(), &make).unwrap();
            (0..4).map(|row| pooled.rows.row(row).to_vec()).collect::<Vec<_>>()
        };
        assert_eq!(all(false), [[1.0, 2.0], [4.0, 5.0], [8.0, 9.0], [0.0, 0.0]]);
        assert_eq!(all(true), [[2.0, 3.0], [4.0, 5.0], [8.0, 9.0], [0.0, 0.0]]);
    }
}
