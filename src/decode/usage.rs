//! Usage of a request: symbols, segments and time.

/// Symbols and segments processed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Symbols of the prompt.
    pub prompt_chars: usize,
    /// Prompt symbols found in the segment cache.
    pub cached_chars: usize,
    /// Generated symbols, stop strings included.
    pub generated_chars: usize,
    /// Segments closed within the prompt.
    pub prompt_segments: usize,
    /// Segments closed by generated symbols, or by the model's marks after them.
    pub generated_segments: usize,
    /// Number of segment-end marks that the model chose: draws that made no symbol.
    pub nxt_steps: usize,
}

impl Usage {
    /// Symbols per closed segment; none if no segment closed.
    pub fn shortening_factor(&self) -> Option<f64> {
        let chars = self.prompt_chars + self.generated_chars;
        let segments = self.prompt_segments + self.generated_segments;
        (segments > 0).then(|| chars as f64 / segments as f64)
    }
}

/// Time spent, in nanoseconds. Rows share steps; a step's time counts in full for each of its rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timing {
    /// From arrival to admission.
    pub queue_ns: u64,
    /// From admission to the first logits after the prompt.
    pub prefill_ns: u64,
    /// From arrival to the first symbol.
    pub time_to_first_char_ns: u64,
    /// From the first symbol to the last.
    pub decode_ns: u64,
    /// From arrival to the end.
    pub total_ns: u64,
    /// Symbol steps taken.
    pub steps: u64,
    /// Symbol steps of other rows while the request's row waited for a segment step.
    pub wait_steps: u64,
    /// Segment steps taken.
    pub middle_steps: u64,
    /// Time in segment steps.
    pub middle_ns: u64,
    /// The estimated time without pooling, if it can be estimated.
    pub unpooled: Option<UnpooledTiming>,
}

/// Estimated time, in nanoseconds, of a request if the middle layers ran at each symbol.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UnpooledTiming {
    /// From admission to the first logits after the prompt.
    pub prefill_ns: u64,
    /// From the first symbol to the last.
    pub decode_ns: u64,
}
