//! Segment boundaries of one sequence: the options that decide them, and the decision for each symbol.

use super::random::{Purpose, uniform};
use crate::error::{Error, Result};
use std::sync::Arc;

/// The boundary source's decision for one symbol.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SymbolBoundary {
    /// True if a segment ends with this symbol.
    pub boundary: bool,
    /// Output of a learned predictor. Not calibrated: the official training applies the sigmoid twice.
    pub probability: Option<f32>,
    /// ln p of the segment-end mark after this symbol. Present if a mark ends the segment here and all logits were wanted.
    pub end_logprob: Option<f32>,
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
