//! Hard top-k: the k vectors with the best scores, as they are.

use super::{Input, Make, Pooled, Select, by_score};
use crate::error::Result;

/// The `kept` best.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hard {
    /// k.
    pub kept: usize,
    /// Whether they keep the order in which they stood, rather than that of falling scores.
    pub sort_back: bool,
}

impl Select for Hard {
    fn select(&self, input: &Input<'_>, scores: Vec<f32>, make: Make<'_>) -> Result<Pooled> {
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
