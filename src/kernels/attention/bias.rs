//! What a score owes to its distance alone, whatever query and key are.

/// Added to scaled scores, one head's: a function of the distance between query and key.
#[derive(Debug, Clone, Copy, Default)]
pub enum Bias<'a> {
    /// Nothing.
    #[default]
    None,
    /// −slope · distance (ALiBi).
    Slope(f32),
    /// The number of the distance; of the last one for all that are further (T5's buckets). Never empty.
    Table(&'a [f32]),
}

impl Bias<'_> {
    /// Adds it to the `scores` of neighbouring keys, the first of which is at `first`, for a query at `position`. What keys
    /// behind the query get is unspecified.
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
