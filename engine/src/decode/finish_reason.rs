//! The reason for which a generation ended.

/// The reason for which a generation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// `max_chars` symbols were generated.
    MaxChars,
    /// `max_segments` segments were closed.
    MaxSegments,
    /// The text ends with the stop string of this index.
    Stop(usize),
    /// The sequence reached the model's maximum length.
    MaxContext,
    /// The model ended the text: the last emitted symbol is its end mark or end byte.
    EndOfText,
    /// The scored text ended.
    End,
}

impl FinishReason {
    /// The name on the wire and in JSON.
    pub fn name(&self) -> &'static str {
        match self {
            Self::MaxChars => "max_chars",
            Self::MaxSegments => "max_segments",
            Self::Stop(_) => "stop",
            Self::MaxContext => "max_context",
            Self::EndOfText => "end_of_text",
            Self::End => "end",
        }
    }
}
