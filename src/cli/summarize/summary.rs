//! A summary and its document, from an engine in this process or from a server.

use super::input::Document;
use crate::{decode::spans::KeptSpan, error::Result};

/// A summary and its document.
pub(super) struct Summary {
    /// Best first.
    pub(super) hypotheses: Vec<SummaryText>,
    /// Why the best hypothesis ended.
    pub(super) reason: &'static str,
    pub(super) poolings: Vec<KeptTokens>,
    pub(super) document: DocumentUsage,
    /// Tokens of the best hypothesis, with the end-of-text token.
    pub(super) summary_tokens: usize,
    pub(super) timing: SummaryTimes,
    /// The parts of a document that was summarized in parts. Token counts and times are sums over them and the last round. The
    /// other fields are those of the last round.
    pub(super) parts: Vec<DocumentPart>,
}

/// A part of a long document, with its summary.
pub(super) struct DocumentPart {
    /// Number of the round, from 1. A later round reads the summaries of the one before.
    pub(super) round: usize,
    /// Number of the part in its round, from 1.
    pub(super) number: usize,
    /// First byte of the round's text that the model read.
    pub(super) start: u64,
    /// Byte after the last one.
    pub(super) end: u64,
    /// Bytes of the round's text.
    pub(super) round_bytes: u64,
    pub(super) tokens: usize,
    pub(super) summary_tokens: usize,
    pub(super) summary: String,
    /// Tokens that were kept; spans are bytes of the round's text.
    pub(super) poolings: Vec<KeptTokens>,
}

/// A hypothesis.
pub(super) struct SummaryText {
    pub(super) ids: Vec<u32>,
    pub(super) score: f32,
    /// Text, without the end-of-text token.
    pub(super) text: String,
    pub(super) logprobs: Vec<f32>,
}

/// The tokens that one pooling layer kept.
pub(super) struct KeptTokens {
    pub(super) layer: usize,
    /// Number of tokens.
    pub(super) tokens: usize,
    /// Parts of the text, in its order.
    pub(super) spans: Vec<KeptSpan>,
    /// Positions and scores in the order of the next layer. A server does not send them.
    pub(super) order: Option<Vec<KeptPosition>>,
}

/// A token that a pooling layer kept.
pub(super) struct KeptPosition {
    pub(super) position: usize,
    pub(super) score: f32,
}

/// Size of a document.
pub(super) struct DocumentUsage {
    pub(super) tokens: usize,
    /// Bytes of the text up to the end of the last token that was read. `None` if the document came as ids.
    pub(super) bytes: Option<u64>,
    /// True if the document continues after the tokens that were read.
    pub(super) cut: bool,
    pub(super) vectors: usize,
    pub(super) cross_attention_bytes: usize,
    pub(super) unpooled_cross_attention_bytes: usize,
    /// Share of the tokens that the last pooling kept.
    pub(super) kept_share: Option<f64>,
}

/// Time spent per phase, in nanoseconds.
#[derive(Clone)]
pub(super) struct SummaryTimes {
    /// Encoding: all layers, and the decoder's keys and values.
    pub(super) encode_ns: u64,
    /// Time of each encoder layer.
    pub(super) layers: Vec<LayerTime>,
    pub(super) memory_ns: u64,
    pub(super) decode_ns: u64,
    pub(super) total_ns: u64,
}

impl SummaryTimes {
    /// Returns the sums of the times of two summaries by one model.
    pub(super) fn plus(self, other: &Self) -> Self {
        let sum = |(a, b): (&LayerTime, &LayerTime)| LayerTime { length: a.length + b.length, ns: a.ns + b.ns };
        Self {
            encode_ns: self.encode_ns + other.encode_ns,
            layers: self.layers.iter().zip(&other.layers).map(sum).collect(),
            memory_ns: self.memory_ns + other.memory_ns,
            decode_ns: self.decode_ns + other.decode_ns,
            total_ns: self.total_ns + other.total_ns,
        }
    }
}

/// Time of an encoder layer.
#[derive(Clone)]
pub(super) struct LayerTime {
    /// Input vectors.
    pub(super) length: usize,
    pub(super) ns: u64,
}

impl Summary {
    /// Text of the best hypothesis.
    pub(super) fn text(&self) -> &str {
        self.hypotheses.first().map_or("", |best| &best.text)
    }
}

/// Progress of a summary.
pub(super) enum SummaryEvent<'a> {
    /// The document is encoded.
    Encoded(&'a EncodedText<'a>),
    /// A part of a long document is summarized.
    Part(PartProgress),
    /// Next part of the summary.
    Text(&'a str),
}

/// Progress of a round over the parts of a text.
pub(super) struct PartProgress {
    pub(super) round: usize,
    /// Number of parts that are summarized.
    pub(super) part: usize,
    /// Bytes that were read.
    pub(super) read: u64,
    /// Bytes of the text.
    pub(super) bytes: u64,
}

/// An encoded document, with the tokens that its pooling layers kept.
pub(super) struct EncodedText<'a> {
    /// Text that was read.
    pub(super) text: &'a str,
    /// Number of tokens.
    pub(super) tokens: usize,
    pub(super) poolings: &'a [KeptTokens],
}

/// Receives the progress of a summary.
pub(super) type OnEvent<'a> = dyn FnMut(SummaryEvent<'_>) -> Result<()> + 'a;

/// Summarizes one document.
pub(super) type Summarizer<'a> = dyn FnMut(&Document, &mut OnEvent<'_>) -> Result<Summary> + 'a;
