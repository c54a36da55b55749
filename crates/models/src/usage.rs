//! Usage of a request: symbols, segments and time.

use std::ops::AddAssign;

/// Maximum levels of chunking.
pub const MAX_LEVELS: usize = 7;

/// Counts for each level of chunking, outermost first. The first level's chunks are the segments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LevelCounts([usize; MAX_LEVELS]);

impl LevelCounts {
    /// Returns the counts of a model with one level.
    pub fn one(count: usize) -> Self {
        let mut counts = Self::default();
        counts.0[0] = count;
        counts
    }

    /// Adds one to the first `depth` levels.
    pub fn add(&mut self, depth: usize) {
        self.0.iter_mut().take(depth).for_each(|count| *count += 1);
    }

    /// Returns the count of a level; 0 for a level that does not exist.
    pub fn level(&self, level: usize) -> usize {
        self.0.get(level).copied().unwrap_or_default()
    }

    /// Returns the levels' counts if chunks were counted at several levels, otherwise nothing.
    pub fn nested(&self) -> &[usize] {
        match self.0.iter().rposition(|&count| count > 0) {
            Some(last @ 1..) => &self.0[..=last],
            _ => &[],
        }
    }
}

impl From<&[usize]> for LevelCounts {
    /// Takes at most [`MAX_LEVELS`] counts.
    fn from(counts: &[usize]) -> Self {
        let mut all = Self::default();
        all.0.iter_mut().zip(counts).for_each(|(own, count)| *own = *count);
        all
    }
}

impl AddAssign for LevelCounts {
    fn add_assign(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(own, other)| *own += other);
    }
}

/// Symbols and segments processed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Symbols of the prompt.
    pub prompt_chars: usize,
    /// Symbols of a scored text that were fed again as the context of its windows.
    pub context_chars: usize,
    /// Segments closed within that context.
    pub context_segments: usize,
    /// Prompt symbols found in the segment cache.
    pub cached_chars: usize,
    /// Generated symbols, stop strings and resumed ones included.
    pub generated_chars: usize,
    /// Generated symbols that an earlier run of the request had emitted.
    pub resumed_chars: usize,
    /// Drafted symbols that were fed, see `speculation` of weir-engine.
    pub drafted_chars: usize,
    /// Drafted symbols that were accepted. They also count as generated.
    pub accepted_chars: usize,
    /// Symbols that a constraint forced, fed in chunks. They also count as generated.
    pub forced_chars: usize,
    /// Segments closed within the prompt.
    pub prompt_segments: usize,
    /// Segments closed by generated symbols, or by the model's marks after them.
    pub generated_segments: usize,
    /// Number of segment-end marks that the model chose: draws that made no symbol.
    pub nxt_steps: usize,
    /// Segments of the prompt and the generated symbols, by level of chunking.
    pub levels: LevelCounts,
}

/// One level of a model with several levels of chunking.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LevelUsage {
    /// Chunks of this level that begin with symbols of the request.
    pub chunks: usize,
    /// Symbols per chunk in the outermost level; chunks of the level around it per chunk in the others.
    pub shortening_factor: f64,
    /// Segment steps in which the layers inside this level ran.
    pub middle_steps: usize,
}

impl Usage {
    /// Symbols that this run of the request generated.
    pub fn sampled_chars(&self) -> usize {
        self.generated_chars.saturating_sub(self.resumed_chars)
    }

    /// Symbols per closed segment; none if no segment closed.
    pub fn shortening_factor(&self) -> Option<f64> {
        let chars = self.prompt_chars + self.generated_chars;
        let segments = self.prompt_segments + self.generated_segments;
        (segments > 0).then(|| chars as f64 / segments as f64)
    }

    /// Symbols per closed segment over all windows of a scored text. No window feeds the last symbol. `None` if no segment closed.
    pub fn window_shortening_factor(&self) -> Option<f64> {
        let chars = self.prompt_chars.saturating_sub(1) + self.context_chars;
        let segments = self.prompt_segments + self.context_segments;
        (segments > 0).then(|| chars as f64 / segments as f64)
    }

    /// Returns each level's usage, outermost first; nothing unless chunks began at several levels.
    pub fn by_level(&self, timing: &Timing) -> Vec<LevelUsage> {
        by_level(self.prompt_chars + self.generated_chars, &self.levels, &timing.level_steps)
    }
}

/// Returns the usage of each level that chunked `symbols` symbols, outermost first; nothing for a single level.
pub fn by_level(symbols: usize, chunks: &LevelCounts, steps: &LevelCounts) -> Vec<LevelUsage> {
    let mut around = symbols;
    let level = |(level, &chunks): (usize, &usize)| LevelUsage {
        chunks,
        shortening_factor: std::mem::replace(&mut around, chunks) as f64 / chunks as f64,
        middle_steps: steps.level(level),
    };
    chunks.nested().iter().enumerate().map(level).collect()
}

/// Time spent, in nanoseconds. Rows share steps; a step's time counts in full for each of its rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timing {
    /// Time from arrival to admission.
    pub queue_ns: u64,
    /// Time from admission to the first logits after the prompt.
    pub prefill_ns: u64,
    /// Time from arrival to the first symbol.
    pub time_to_first_char_ns: u64,
    /// Time from the first symbol to the last.
    pub decode_ns: u64,
    /// Time from arrival to the end.
    pub total_ns: u64,
    /// Symbol steps taken.
    pub steps: u64,
    /// Symbol steps of other rows while the request's row waited for a segment step.
    pub wait_steps: u64,
    /// Segment steps taken.
    pub middle_steps: u64,
    /// Segment steps in which the layers inside a level ran, by level of chunking.
    pub level_steps: LevelCounts,
    /// Time in segment steps.
    pub middle_ns: u64,
    /// The estimated time without pooling, if it can be estimated.
    pub unpooled: Option<UnpooledTiming>,
}

/// Estimated time, in nanoseconds, of a request if the middle layers ran at each symbol.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UnpooledTiming {
    /// Time from admission to the first logits after the prompt.
    pub prefill_ns: u64,
    /// Time from the first symbol to the last.
    pub decode_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_measured_in_chunks_of_the_level_around_it() {
        let mut levels = LevelCounts::default();
        [3, 0, 1, 2, 1, 0, 1, 2].into_iter().for_each(|depth| levels.add(depth));
        assert_eq!(levels.nested(), [6, 3, 1]);
        let usage = Usage { prompt_chars: 8, generated_chars: 1, levels, ..Usage::default() };
        let steps = LevelCounts::from(&[5, 2, 1][..]);
        let levels = usage.by_level(&Timing { level_steps: steps, ..Timing::default() });
        let factors: Vec<_> = levels.iter().map(|level| level.shortening_factor).collect();
        assert_eq!(factors, [1.5, 2.0, 3.0]);
        assert_eq!(levels.iter().map(|level| level.middle_steps).collect::<Vec<_>>(), [5, 2, 1]);
        assert_eq!(levels.iter().map(|level| level.chunks).collect::<Vec<_>>(), [6, 3, 1]);
    }

    #[test]
    fn one_level_is_not_nested() {
        let usage = Usage { prompt_chars: 8, levels: LevelCounts::one(3), ..Usage::default() };
        assert!(usage.by_level(&Timing::default()).is_empty() && LevelCounts::default().nested().is_empty());
        let mut all = LevelCounts::one(3);
        all += LevelCounts::from(&[1, 2][..]);
        assert_eq!((all.level(0), all.level(1), all.level(9)), (4, 2, 0));
    }
}
