//! Pooling of segments, shared by [`hourglass`](super::hourglass) and [`lslm`](super::lslm).

use super::tensors::table;
use candle_core::{Result as CandleResult, Tensor};
use serde::Deserialize;
use std::ops::Range;

/// `pooling`: how a segment's vectors become one.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum SegmentPooling {
    Mean,
    Last,
    Hops(usize),
}

impl SegmentPooling {
    /// Returns the pooled vector of each closed segment: (len, D) → (segments, D), and `None` if no segment is closed.
    pub(super) fn pool(self, x: &Tensor, ends: &[bool]) -> CandleResult<Option<Tensor>> {
        let segments = closed(ends);
        if segments.is_empty() {
            return Ok(None);
        }
        let weights = table(segments.len(), ends.len(), |segment, position| {
            let Range { start, end } = segments[segment];
            let pooled = match self {
                Self::Mean => end - start,
                Self::Last => 1,
                Self::Hops(hops) => hops.saturating_add(1).min(end - start),
            };
            if (end - pooled..end).contains(&position) { 1.0 / pooled as f64 } else { 0.0 }
        })?;
        weights.matmul(x).map(Some)
    }
}

/// Returns the positions of each closed segment. `ends` is true at the last position of each.
pub(super) fn closed(ends: &[bool]) -> Vec<Range<usize>> {
    let mut start = 0;
    let mut segments = Vec::new();
    for (position, _) in ends.iter().enumerate().filter(|(_, ends)| **ends) {
        segments.push(start..position + 1);
        start = position + 1;
    }
    segments
}
