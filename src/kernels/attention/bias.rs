//! Attention bias: a term of the score that depends on the distance alone.

/// Term that is added to the scaled scores of one head, a function of the distance between query and key.
#[derive(Debug, Clone, Copy, Default)]
pub enum Bias<'a> {
    /// No bias.
    #[default]
    None,
    /// −slope · distance (ALiBi).
    Slope(f32),
    /// Bias per distance (T5's buckets). Larger distances use the last entry. Never empty.
    Table(&'a [f32]),
}

impl Bias<'_> {
    /// Adds the bias to the `scores` of consecutive keys from position `first` on, for a query at `position`. The scores of
    /// keys after the query become unspecified.
    #[inline(always)]
    pub(super) fn add(self, scores: &mut [f32], position: usize, first: usize) {
        let distance = |lane: usize| position.saturating_sub(first + lane);
        match self {
            Self::None => {}
            Self::Slope(slope) => {
                for (lane, score) in scores.iter_mut().enumerate() {
                    *score -= slope * distance(lane) as f32;
                }
            }
            Self::Table(table) => {
                let last = table.len() - 1;
                for (lane, score) in scores.iter_mut().enumerate() {
                    *score += table[distance(lane).min(last)];
                }
            }
        }
    }
}
