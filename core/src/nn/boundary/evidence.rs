//! Input and output of a boundary source: one entry for each symbol of the step.

use crate::{error::Result, nn::Position};

/// Everything that a boundary source may read: one entry or row for each symbol of a step.
pub struct Evidence<'a> {
    /// Positions of the symbols.
    pub positions: &'a [Position],
    /// The symbols.
    pub symbols: &'a [u32],
    /// Positions of the symbols in the streams that the sequences are cut from.
    pub stream_positions: &'a [usize],
    /// Output of the pre stack: (positions, D).
    pub hidden: &'a [f32],
    /// Uniform noise where the boundary is sampled; `None` where a threshold decides.
    pub noise: &'a [Option<f32>],
    /// Returns a sequence's conditional entropies (nats) by the companion, from position 0 to at least its last position in
    /// this step; empty without a companion.
    pub entropies: &'a dyn Fn(usize) -> Result<&'a [f64]>,
}

/// Decision of a boundary source for one symbol.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BoundaryDecision {
    /// True if a segment ends with the symbol.
    pub closes: bool,
    /// Output of a learned predictor.
    pub probability: Option<f32>,
}

impl BoundaryDecision {
    pub(super) fn certain(closes: bool) -> Self {
        Self { closes, probability: None }
    }
}
