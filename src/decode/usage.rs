//! What a request has taken: symbols, segments and time.

/// What was processed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Symbols of the prompt.
    pub prompt_chars: usize,
    /// Of these, found in the segment cache.
    pub cached_chars: usize,
    /// Symbols generated, stop strings included.
    pub generated_chars: usize,
    /// Segments closed within the prompt.
    pub prompt_segments: usize,
    /// Segments closed by generated symbols, or after them by the model's marks.
    pub generated_segments: usize,
    /// Times that the model chose its mark for the end of a segment: picks that made no symbol.
    pub nxt_steps: usize,
}

impl Usage {
    /// Symbols per closed segment; none if no segment closed.
    pub fn shortening_factor(&self) -> Option<f64> {
        let (chars, segments) =
            (self.prompt_chars + self.generated_chars, self.prompt_segments + self.generated_segments);
        (segments > 0).then(|| chars as f64 / segments as f64)
    }
}

/// Where the time went, nanoseconds. Steps are shared by all rows that take part; a step's time counts in full for each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timing {
    /// From arrival to admission.
    pub queue_ns: u64,
    /// From admission to the first logits that follow the prompt.
    pub prefill_ns: u64,
    /// From arrival to the first symbol.
    pub time_to_first_char_ns: u64,
    /// From the first symbol to the last.
    pub decode_ns: u64,
    /// From arrival to the end.
    pub total_ns: u64,
    /// Symbol steps taken.
    pub steps: u64,
    /// Symbol steps that others took while the job's row waited for a segment step.
    pub wait_steps: u64,
    /// Segment steps taken.
    pub middle_steps: u64,
    /// Time in segment steps.
    pub middle_ns: u64,
    /// What it would have taken without pooling, if that can be estimated.
    pub unpooled: Option<UnpooledTiming>,
}

/// An estimate, in nanoseconds: what a job would have taken had the middle layers run at each symbol.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UnpooledTiming {
    /// From admission to the first logits that follow the prompt.
    pub prefill_ns: u64,
    /// From the first symbol to the last.
    pub decode_ns: u64,
}
