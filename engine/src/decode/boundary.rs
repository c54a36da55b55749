//! Segment boundaries of one sequence: the options that decide them, and the decision for each symbol.

use super::random::{Purpose, uniform};
use crate::error::{Error, Result};
use std::sync::Arc;

/// The boundary source's decision for one symbol.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SymbolBoundary {
    /// True if a segment ends with this symbol; in a model with levels of chunking, if a chunk begins with it.
    pub boundary: bool,
    /// Levels at which a chunk begins with this symbol, the outermost included. 0 in a model whose segments end with their
    /// boundary. Complete once the row is ready.
    pub depth: u8,
    /// Output of a learned predictor. Not calibrated: the official training applies the sigmoid twice.
    pub probability: Option<f32>,
    /// ln p of the segment-end mark after this symbol. Present if a mark ends the segment here and all logits were wanted.
    pub end_logprob: Option<f32>,
}

impl SymbolBoundary {
    /// True if the text is cut before this symbol.
    pub fn begins_segment(self) -> bool {
        self.boundary && self.depth > 0
    }

    /// True if the text is cut after this symbol.
    pub fn ends_segment(self) -> bool {
        self.boundary && self.depth == 0
    }

    /// Levels at which a segment ends, or a chunk begins, with this symbol: 1 for a boundary of a model without levels.
    pub fn closed_levels(self) -> usize {
        if self.boundary { usize::from(self.depth.max(1)) } else { 0 }
    }
}

/// Returns each level's boundaries, outermost first: one number for each symbol, then one for each chunk of the level around
/// it, 1 where a chunk begins. `depths` has the [depth](SymbolBoundary::depth) of each symbol. Empty if the model has no levels.
pub fn levels(depths: impl IntoIterator<Item = u8>) -> Vec<Vec<u8>> {
    let depths: Vec<u8> = depths.into_iter().collect();
    let level = |level: u8| {
        let in_level = depths.iter().filter(move |depth| **depth >= level);
        in_level.map(|depth| u8::from(*depth > level)).collect()
    };
    (0..depths.iter().copied().max().unwrap_or(0)).map(level).collect()
}

/// How a sequence's boundaries are decided, where the model leaves a choice.
#[derive(Debug, Clone, Default)]
pub struct BoundaryOptions {
    /// The mode; the model's default if none. A mode that the model lacks is an error.
    pub mode: Option<BoundaryMode>,
    /// Source of the noise for sampled boundaries.
    pub noise: Noise,
    /// Position of the sequence's first symbol in its stream. Fixed boundaries count from the stream's start, so a window cut
    /// out of a longer text keeps the text's phase.
    pub offset: usize,
}

/// How a learned predictor's output becomes a boundary. Other boundary sources have exactly one mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BoundaryMode {
    /// The model leaves no choice: no boundaries, fixed, whitespace, entropy spikes.
    Given,
    /// Boundary if the predictor's output is above the threshold.
    Threshold,
    /// Boundary with the predictor's probability (the official behaviour of gumbel checkpoints).
    Sampled,
    /// The predictor cuts the prompt; the model's own marks cut generated text.
    Nxt,
    /// The predictor cuts prompt and generated text of a model that writes marks; the marks are never chosen.
    Predictor,
}

impl BoundaryMode {
    /// All modes.
    pub const ALL: [Self; 5] = [Self::Given, Self::Threshold, Self::Sampled, Self::Nxt, Self::Predictor];

    /// The name on the wire and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Given => "given",
            Self::Threshold => "threshold",
            Self::Sampled => "sampled",
            Self::Nxt => "nxt",
            Self::Predictor => "predictor",
        }
    }

    /// Returns the mode called `name`.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// Uniform noise in (0, 1), one number per position. A fork, a rollback or a second run reads the same numbers.
#[derive(Debug, Clone)]
pub enum Noise {
    /// Drawn from this seed.
    Seeded(u64),
    /// Recorded numbers, to compare with recorded runs. A position beyond the end is an error.
    Given(Arc<[f32]>),
}

impl Default for Noise {
    fn default() -> Self {
        Self::Seeded(0)
    }
}

impl Noise {
    /// Returns the number at `position`. Fails with [`Error::Internal`] beyond the end of recorded noise.
    pub fn at(&self, position: usize) -> Result<f32> {
        match self {
            Self::Seeded(seed) => Ok(uniform(*seed, Purpose::Boundary, position)),
            Self::Given(values) => values.get(position).copied().ok_or_else(|| {
                let len = values.len();
                Error::Internal(format!("recorded noise has {len} positions, position {position} was read"))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_list_the_chunks_of_the_level_around_them() {
        let decision = |depth| SymbolBoundary { boundary: depth > 0, depth, probability: None, end_logprob: None };
        let decisions: Vec<_> = [2, 0, 1, 2, 0, 0, 1].map(decision).into();
        let depths = decisions.iter().map(|decision: &SymbolBoundary| decision.depth);
        assert_eq!(levels(depths), [vec![1, 0, 1, 1, 0, 0, 1], vec![1, 0, 1, 0]]);
        assert!(levels([0, 0]).is_empty() && levels([]).is_empty());
        assert_eq!([decisions[0], decisions[1]].map(SymbolBoundary::closed_levels), [2, 0]);
        assert_eq!(SymbolBoundary { boundary: true, ..decision(0) }.closed_levels(), 1);
        let cuts = |decision: SymbolBoundary| (decision.begins_segment(), decision.ends_segment());
        assert_eq!(cuts(decision(1)), (true, false));
        assert_eq!(cuts(SymbolBoundary { boundary: true, ..decision(0) }), (false, true));
        assert_eq!(cuts(decision(0)), (false, false));
    }
}
