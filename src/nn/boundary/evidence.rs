//! What a boundary source sees and returns, one entry a symbol.

use crate::{error::Result, nn::Position};

/// What a source may look at: one entry or row for each symbol of a step.
pub struct Evidence<'a> {
    /// Where the symbols stand.
    pub positions: &'a [Position],
    /// The symbols.
    pub symbols: &'a [u32],
    /// Their positions in the streams that the sequences are cut from.
    pub stream_positions: &'a [usize],
    /// The pre stack's output, (rows, D).
    pub hidden: &'a [f32],
    /// Uniform noise for the rows whose boundaries are sampled; none for those decided by threshold.
    pub noise: &'a [Option<f32>],
    /// A sequence's conditional entropies (nats) by the companion, from position 0 to at least its last row here; empty
    /// where there is no companion.
    pub entropies: &'a dyn Fn(usize) -> Result<&'a [f64]>,
}

/// What a source says of one symbol.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BoundaryDecision {
    /// Whether a segment ends with it.
    pub closes: bool,
    /// A learned predictor's output.
    pub probability: Option<f32>,
}

impl BoundaryDecision {
    pub(super) fn certain(closes: bool) -> Self {
        Self { closes, probability: None }
    }
}
