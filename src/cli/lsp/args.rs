//! Flags of `weir lsp`.

use crate::cli::{model::count, model_source::ModelSourceArgs};
use clap::{ValueEnum, builder::PossibleValue};
use weir_proto::v1::Until;

/// Completes text in editors, as a language server on standard input and output.
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
pub struct Args {
    /// Number of completions, best first: 1 to 16.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = count(1..=16), env = "WEIR_COUNT")]
    pub(super) count: usize,
    /// End of a completion: the word, the line or the segment.
    #[arg(long, value_name = "END", default_value_t = CompletionEnd::Word, env = "WEIR_UNTIL")]
    pub(super) until: CompletionEnd,
    /// Maximum characters of a completion, 1 to 256.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = count(1..=256), env = "WEIR_COMPLETION_CHARS")]
    pub(super) completion_chars: usize,
    #[command(flatten)]
    pub(super) model: ModelSourceArgs,
}

/// The end of completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CompletionEnd {
    Word,
    Line,
    Segment,
}

impl CompletionEnd {
    fn name(self) -> &'static str {
        match self {
            Self::Word => "word",
            Self::Line => "line",
            Self::Segment => "segment",
        }
    }
}

impl ValueEnum for CompletionEnd {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Word, Self::Line, Self::Segment]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()))
    }
}

impl std::fmt::Display for CompletionEnd {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(self.name())
    }
}

impl From<CompletionEnd> for Until {
    fn from(end: CompletionEnd) -> Self {
        match end {
            CompletionEnd::Word => Self::Word,
            CompletionEnd::Line => Self::Line,
            CompletionEnd::Segment => Self::Segment,
        }
    }
}
