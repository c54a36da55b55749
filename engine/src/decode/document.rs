//! The encoder of an encoder-decoder model: tokens in, piece by piece; a document out, from which rows begin.
//!
//! An [`Encoding`] takes tokens while they arrive and runs a few *blocks* at a time. One block is at most
//! [`DocumentLimits::block`] vectors through one layer, so the cost of a call is bounded. Up to the first pooling a
//! block needs no later tokens and can run as soon as its own tokens are there; after it, each layer waits for the complete
//! layer before. The result is a [`Document`], which never changes and is shared by all rows that read it. Each row is an
//! ordinary [`State`], stepped by the [`Model`](super::contract::Model) together with rows of other documents.
//!
//! How tokens were cut into pushes, or work into blocks, does not change a bit of a document.

use super::{
    search_rules::{EarlyStopping, SearchRules},
    state::{Scratch, State},
};
use crate::{
    error::{Error, Result},
    text::{StreamTokenizer, TokenSpan, Vocabulary},
};
use serde::{Deserialize, Serialize};
use std::{any::Any, sync::Arc};

/// Encodes documents for a model whose rows begin from them.
pub trait DocumentEncoder: Send + Sync {
    /// Limits of documents and rows, and defaults of requests.
    fn limits(&self) -> &DocumentLimits;

    /// Returns an empty encoding, which holds no pages yet.
    fn open(&self) -> Box<dyn Encoding>;

    /// Returns an empty encoding that keeps chosen vectors as they are where the model mixes them (hard top-k instead
    /// of soft). Fails with [`Error::WrongKind`] if the model has no top-k pooling.
    fn open_hard(&self) -> Result<Box<dyn Encoding>>;

    /// Maximum bytes of key-value memory that the encoding of `tokens` tokens can hold, the resulting document included. Rows of
    /// the document are not included (see [`Model::bytes_for`](super::contract::Model::bytes_for)).
    fn bytes_for(&self, tokens: usize) -> usize;

    /// Multiply-adds of encoding `tokens` tokens to a document of `vectors` vectors: matrix products and attention.
    fn multiply_adds(&self, tokens: usize, vectors: usize) -> usize;

    /// Runs at most `blocks` blocks that are ready and returns how many ran: 0 if the encoding
    /// [waits](EncodingStage::Waiting) or is [done](EncodingStage::Done). Fails with [`Error::OutOfPages`] if the key-value
    /// pool is exhausted, and with [`Error::Internal`] if the encoding is another model's. The encoding of a failed call is
    /// lost: drop it.
    fn advance(&self, encoding: &mut dyn Encoding, blocks: usize, scratch: &mut Scratch) -> Result<usize>;

    /// Returns an empty row of a document. Its first symbol is [`SpecialIds::start`]; the logits after symbol t predict
    /// symbol t + 1. The row refers to the document's pages in addition to its own. Fails with [`Error::Internal`] if the
    /// document is another model's.
    fn begin(&self, document: &dyn Document) -> Result<Box<dyn State>>;
}

/// A document that is being encoded. Dropping it frees its pages.
pub trait Encoding: Any + Send {
    /// Takes the next tokens, exactly as the encoder reads them: the caller pushes the end mark after the last token.
    /// Takes no pages and computes nothing. Fails with [`Error::TooLong`] if the total exceeds
    /// [`DocumentLimits::tokens`], and with [`Error::UnknownSymbol`] for an id outside of the vocabulary; the encoding
    /// is then unchanged. Fails with [`Error::Internal`] after [`close`](Self::close).
    fn push(&mut self, tokens: &[u32]) -> Result<()>;

    /// Marks the document as complete. A second call has no effect. Fails with [`Error::BadOption`] if no token was pushed.
    fn close(&mut self) -> Result<()>;

    /// Number of tokens pushed.
    fn tokens(&self) -> usize;

    /// Its progress.
    fn progress(&self) -> EncodingProgress;

    /// Choices of the top-k poolings made until now, first pooling first. Moves to the document when that is done.
    fn choices(&self) -> &[PoolingChoice];

    /// The document, once the encoding is done.
    fn document(&self) -> Option<Arc<dyn Document>>;

    /// Bytes of the pages that it holds, the document's pages included.
    fn bytes(&self) -> usize;
}

/// Progress of an encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodingProgress {
    /// The next stage.
    pub stage: EncodingStage,
    /// Blocks completed.
    pub blocks: usize,
    /// Total number of blocks, known once the document is complete.
    pub total: Option<usize>,
}

/// The next stage of an encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EncodingStage {
    /// The encoding needs more tokens, or to be closed.
    Waiting,
    /// A block of this layer of the encoder, counted from 0, can run.
    Layer(usize),
    /// A block of the decoder's keys and values can be computed from the encoder's output.
    Memory,
    /// The document is complete.
    Done,
}

/// A document as the decoder sees it. Its pages are freed when neither a reference nor a row refers to them.
pub trait Document: Any + Send + Sync {
    /// Number of tokens read.
    fn tokens(&self) -> usize;

    /// Number of vectors that the decoder attends to.
    fn vectors(&self) -> usize;

    /// Bytes of its pages: keys and values of all decoder layers.
    fn bytes(&self) -> usize;

    /// Bytes of keys and values without pooling.
    fn unpooled_bytes(&self) -> usize;

    /// Bytes of memory outside of its pages.
    fn own_bytes(&self) -> usize;

    /// The choice of each top-k pooling, first pooling first.
    fn choices(&self) -> &[PoolingChoice];

    /// Time of each encoder layer, in order.
    fn timings(&self) -> &[LayerTime];

    /// Time of computing the decoder's keys and values, in nanoseconds.
    fn memory_ns(&self) -> u64;
}

/// The vectors that a top-k pooling kept.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolingChoice {
    /// The encoder layer that it follows, or whose input a deletion gate reads; counted from 0.
    pub layer: usize,
    /// The kept vectors, in the order in which the next layer reads them.
    pub kept: Vec<KeptVector>,
}

/// One vector that a pooling kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeptVector {
    /// Token of the vector that won every mix. Padding if at least [`Document::tokens`].
    pub token: usize,
    /// Its score after the pooling, or the value of a deletion gate.
    pub score: f32,
}

/// Returns the share of a document's `tokens` that the last of its `choices` kept; 1 if no pooling reduced its `vectors`. `None` if
/// poolings reduced them without choosing.
pub fn kept_share(choices: &[PoolingChoice], vectors: usize, tokens: usize) -> Option<f64> {
    let Some(choice) = choices.last() else { return (vectors >= tokens).then_some(1.0) };
    let mut kept: Vec<usize> = choice.kept.iter().map(|kept| kept.token).filter(|&token| token < tokens).collect();
    kept.sort_unstable();
    kept.dedup();
    (tokens > 0).then(|| kept.len() as f64 / tokens as f64)
}

/// Time of one encoder layer, its pooling included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerTime {
    /// Number of input vectors, padding included.
    pub length: usize,
    /// Nanoseconds.
    pub ns: u64,
}

/// Limits of a model that encodes documents, and its defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct DocumentLimits {
    /// Maximum tokens of a document, the end mark included.
    pub tokens: usize,
    /// Maximum symbols that a row can be fed, [`SpecialIds::start`] included.
    pub targets: usize,
    /// True if every document is padded to [`tokens`](Self::tokens); all documents then have the same number of vectors.
    pub padded: bool,
    /// Maximum vectors of one block.
    pub block: usize,
    /// The poolings, in order.
    pub poolings: Vec<PoolingStep>,
    /// Ids of the special symbols.
    pub marks: SpecialIds,
    /// Defaults of requests.
    pub generation: GenerationDefaults,
}

impl DocumentLimits {
    /// Returns the tokenizer of a document that is sent as text; `field` names it in errors. The end mark, which the caller
    /// appends, counts as a token, too.
    pub fn tokenizer(&self, vocabulary: Arc<Vocabulary>, field: &'static str) -> StreamTokenizer {
        StreamTokenizer::new(vocabulary, field, self.tokens.saturating_sub(1)).with_prefix(&self.generation.prefix)
    }
}

/// Returns true if a token covers text of its document. The tokens of a prefix cover none.
pub fn covers_text(tokens: &[TokenSpan]) -> bool {
    tokens.iter().any(|token| token.end > 0)
}

/// Returns the error of a document without a token that [covers text](covers_text): a prefix alone is not a document.
pub fn no_text(field: &'static str) -> Error {
    Error::bad_option(field, "none", "text of at least one token")
}

/// A pooling between two encoder layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolingStep {
    /// The encoder layer that it follows, or whose input a deletion gate reads; counted from 0.
    pub layer: usize,
    /// Vectors of the longest document before the pooling.
    pub from: usize,
    /// Vectors of the longest document after it.
    pub to: usize,
}

/// Ids of a model's special symbols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpecialIds {
    /// The first symbol that a row is fed.
    pub start: u32,
    /// Padding: never generated by fairseq's rules.
    pub pad: u32,
    /// Ends a document and a generated text.
    pub end: u32,
    /// Stands for text that the vocabulary lacks.
    pub unknown: u32,
}

/// Default options of a request; `generation` in `config.json`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct GenerationDefaults {
    /// Semantics of the search.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rules: SearchRules,
    /// Beam width: hypotheses followed in parallel.
    pub beam: usize,
    /// A hypothesis' log-probability is divided by its length (end mark included) to this power.
    pub length_penalty: f32,
    /// Minimum symbols before the end mark.
    pub min_tokens: usize,
    /// Maximum symbols: before the end mark by fairseq's rules, with it by those of transformers.
    pub max_tokens: usize,
    /// No run of this many symbols is generated twice; 0 turns the rule off.
    #[serde(default)]
    pub no_repeat_ngram: usize,
    /// When a beam search by the rules of transformers stops.
    #[serde(default, skip_serializing_if = "is_default")]
    pub early_stopping: EarlyStopping,
    /// Penalty on symbols that the text has already, by the rules of transformers; 1 is none.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub repetition_penalty: f32,
    /// Text that precedes every document that is sent as text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prefix: String,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn one() -> f32 {
    1.0
}

fn is_one(value: &f32) -> bool {
    *value == 1.0
}

impl GenerationDefaults {
    /// Returns fairseq's defaults, for texts of at most `max_tokens` tokens.
    pub fn fairseq(max_tokens: usize) -> Self {
        Self {
            rules: SearchRules::Fairseq,
            beam: 5,
            length_penalty: 1.0,
            min_tokens: 1,
            max_tokens,
            no_repeat_ngram: 0,
            early_stopping: EarlyStopping::default(),
            repetition_penalty: 1.0,
            prefix: String::new(),
        }
    }

    /// Returns the defaults of transformers: greedy search of at most 20 tokens.
    pub fn transformers() -> Self {
        Self { rules: SearchRules::Transformers, beam: 1, min_tokens: 0, ..Self::fairseq(20) }
    }

    /// Returns the defaults with at most `max` tokens.
    #[must_use]
    pub fn within(self, max: usize) -> Self {
        Self { max_tokens: self.max_tokens.min(max), ..self }
    }
}

/// Downcasts an encoding to the concrete type of the model that created it. Fails if another model created it.
pub fn encoding_mut<E: Encoding>(encoding: &mut dyn Encoding) -> Result<&mut E> {
    (encoding as &mut dyn Any)
        .downcast_mut()
        .ok_or_else(|| Error::Internal("the encoding belongs to another model".into()))
}

/// Downcasts a document to the concrete type of the model that created it. Fails if another model created it.
pub fn document_ref<D: Document>(document: &dyn Document) -> Result<&D> {
    (document as &dyn Any).downcast_ref().ok_or_else(|| Error::Internal("the document belongs to another model".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_alone_is_not_a_document() {
        let token = |start, end| TokenSpan { id: 7, start, end };
        assert!(!covers_text(&[]) && !covers_text(&[token(0, 0), token(0, 0)]));
        assert!(covers_text(&[token(0, 0), token(0, 1)]));
        assert_eq!(no_text("--file").to_string(), "--file: expected text of at least one token, found none");
    }

    #[test]
    fn the_kept_share_counts_tokens_of_the_document_once() {
        let choice = |tokens: &[usize]| PoolingChoice {
            layer: 0,
            kept: tokens.iter().map(|&token| KeptVector { token, score: 0.5 }).collect(),
        };
        // padding is at 8 and after it
        let choices = [choice(&[0, 1, 2, 3]), choice(&[5, 0, 5, 9])];
        assert_eq!(kept_share(&choices, 4, 8), Some(0.25));
        assert_eq!(kept_share(&[], 8, 8), Some(1.0));
        assert_eq!(kept_share(&[], 16, 8), Some(1.0), "padded");
        assert_eq!(kept_share(&[], 4, 8), None, "a pooling by means");
    }
}
