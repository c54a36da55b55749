//! What a model that reads documents is to everyone else: tokens in, piece by piece; a document out, from which rows begin.
//!
//! An [`Encoding`] takes tokens while they arrive and is worked on a few *blocks* at a time: one block is at most
//! [`DocumentLimits::block`] vectors through one layer, so whoever shares out a machine knows what he gives. Up to the first pooling a
//! block needs nothing behind it and can run as soon as its tokens are there; from there on each layer waits for all of the
//! layer before. What comes out is a [`Document`]: it never changes and is shared by all rows that read it, each of which is an
//! ordinary [`State`], stepped by the [`Model`](super::contract::Model) in any mixture with rows of other documents.
//!
//! A document's numbers depend neither on how its tokens were cut into pushes nor on how the work was cut into blocks, nor on
//! what ran in between: bit for bit.

use super::contract::{Scratch, State};
use crate::error::{Error, Result};
use std::{any::Any, sync::Arc};

/// What a model that reads documents can do beside stepping rows.
pub trait DocumentEncoder: Send + Sync {
    /// What there may be of everything, and what a request gets that asks for nothing else.
    fn limits(&self) -> &DocumentLimits;

    /// An encoding that has read nothing. It holds no pages yet.
    fn open(&self) -> Box<dyn Encoding>;

    /// The same, with vectors chosen as they are where the model mixes them (hard top-k instead of soft).
    ///
    /// # Errors
    /// [`Error::WrongKind`] if the model has no pooling that chooses.
    fn open_hard(&self) -> Result<Box<dyn Encoding>>;

    /// The most bytes of key-value memory that the encoding of `tokens` can hold at any time, the document that comes of it
    /// included; rows of the document are not (see [`Model::bytes_for`](super::contract::Model::bytes_for)).
    fn bytes_for(&self, tokens: usize) -> usize;

    /// Multiply-adds of encoding a document of so many tokens: matrix products and attention.
    fn multiply_adds(&self, tokens: usize) -> usize;

    /// Runs at most `blocks` of what can run now; returns how many ran. None ran if the encoding [waits](Stage::Waiting) or is
    /// [done](Stage::Done).
    ///
    /// # Errors
    /// [`Error::OutOfPages`] if the key-value pool is exhausted; [`Error::Internal`] if the encoding is another model's. The
    /// encoding of a failed advance is lost: drop it.
    fn advance(&self, encoding: &mut dyn Encoding, blocks: usize, scratch: &mut Scratch) -> Result<usize>;

    /// A row of a document: fed nothing yet. What it is to be fed first is [`SpecialIds::start`]; logits after symbol t predict
    /// symbol t + 1. Beside its own pages the row refers to the document's.
    ///
    /// # Errors
    /// [`Error::Internal`] if the document is another model's.
    fn begin(&self, document: &dyn Document) -> Result<Box<dyn State>>;
}

/// A document that is being read. Dropping it gives its pages back.
pub trait Encoding: Any + Send {
    /// Takes the next tokens, exactly as the encoder is to read them: whoever wants the end mark behind the last token pushes it.
    /// Takes no pages and does no work.
    ///
    /// # Errors
    /// [`Error::TooLong`] if there are more than [`DocumentLimits::tokens`] together, [`Error::UnknownSymbol`] for an id that is none;
    /// the encoding is then as it was. [`Error::Internal`] after [`close`](Self::close).
    fn push(&mut self, tokens: &[u32]) -> Result<()>;

    /// Says that no token follows. Closing twice changes nothing.
    ///
    /// # Errors
    /// [`Error::BadOption`] if there was no token at all.
    fn close(&mut self) -> Result<()>;

    /// Tokens pushed.
    fn tokens(&self) -> usize;

    /// Where it stands.
    fn progress(&self) -> EncodingProgress;

    /// What poolings that choose have chosen so far, first pooling first; the document tells it once that is there.
    fn choices(&self) -> &[PoolingChoice];

    /// The document, once it is done.
    fn document(&self) -> Option<Arc<dyn Document>>;

    /// Bytes of the pages that it holds, the document's included.
    fn bytes(&self) -> usize;
}

/// Where an encoding stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodingProgress {
    /// What comes next.
    pub stage: EncodingStage,
    /// Blocks that ran.
    pub blocks: usize,
    /// Blocks in all: known once no token follows.
    pub total: Option<usize>,
}

/// What an encoding does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EncodingStage {
    /// It needs more tokens, or to be closed.
    Waiting,
    /// A block of this layer of the encoder, counted from 0, can run.
    Layer(usize),
    /// Some of what the decoder will attend to can be made: keys and values of what the encoder gave.
    Memory,
    /// The document is there.
    Done,
}

/// A document as the decoder sees it. Dropping the last reference gives its pages back, unless rows refer to them.
pub trait Document: Any + Send + Sync {
    /// Tokens that were read.
    fn tokens(&self) -> usize;

    /// Vectors that the decoder attends to.
    fn vectors(&self) -> usize;

    /// Bytes of its pages: keys and values of all layers of the decoder.
    fn bytes(&self) -> usize;

    /// The same, if nothing had been pooled.
    fn unpooled_bytes(&self) -> usize;

    /// Bytes that it occupies beside its pages.
    fn own_bytes(&self) -> usize;

    /// What each pooling that chooses has chosen, first pooling first.
    fn choices(&self) -> &[PoolingChoice];

    /// What the encoder's layers took, in order.
    fn timings(&self) -> &[LayerTime];

    /// What making the decoder's keys and values took, in nanoseconds.
    fn memory_ns(&self) -> u64;
}

/// What a pooling kept.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolingChoice {
    /// The layer of the encoder behind which it stands, counted from 0.
    pub layer: usize,
    /// The kept vectors, in the order in which they go on.
    pub kept: Vec<KeptVector>,
}

/// One vector that a pooling kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeptVector {
    /// The token that it was at first: of all vectors that were mixed into it, the one that won every time. At
    /// [`Document::tokens`] or beyond, it is padding.
    pub token: usize,
    /// Its score when the pooling was over.
    pub score: f32,
}

/// What one layer of the encoder took, its pooling included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerTime {
    /// Vectors that came in, padding included.
    pub length: usize,
    /// Nanoseconds.
    pub ns: u64,
}

/// What there may be of everything in a model that reads documents, and its defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct DocumentLimits {
    /// The most tokens of a document, an end mark included.
    pub tokens: usize,
    /// The most symbols that a row can be fed, [`SpecialIds::start`] included.
    pub targets: usize,
    /// Whether every document is padded to [`tokens`](Self::tokens): then all documents have the same number of vectors.
    pub padded: bool,
    /// The most vectors of one block.
    pub block: usize,
    /// The poolings, in order.
    pub poolings: Vec<PoolingStep>,
    /// Marks among the symbols.
    pub marks: SpecialIds,
    /// What a request gets that asks for nothing else.
    pub generation: GenerationDefaults,
}

/// A pooling between two layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolingStep {
    /// The layer of the encoder behind which it stands, counted from 0.
    pub layer: usize,
    /// Vectors of the longest document before it.
    pub from: usize,
    /// And after it.
    pub to: usize,
}

/// A model's marks, by id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpecialIds {
    /// What a row is fed first.
    pub start: u32,
    /// Padding: never written.
    pub pad: u32,
    /// What ends a document, and a written text.
    pub end: u32,
    /// What the text's normaliser has no symbol for.
    pub unknown: u32,
}

/// How a model writes unless a request says otherwise; fairseq's semantics.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GenerationDefaults {
    /// Hypotheses that are followed.
    pub beam: usize,
    /// A hypothesis' log-probability is divided by its length, its end mark included, to this power.
    pub length_penalty: f32,
    /// Symbols before the end mark, at least.
    pub min_tokens: usize,
    /// And at most.
    pub max_tokens: usize,
    /// No run of so many symbols is written twice; 0 for no such rule.
    pub no_repeat_ngram: usize,
}

/// The concrete encoding behind the contract, for the model that made it.
///
/// # Errors
/// [`Error::Internal`] if another model did.
pub fn encoding_mut<E: Encoding>(encoding: &mut dyn Encoding) -> Result<&mut E> {
    let encoding: &mut dyn Any = encoding;
    encoding.downcast_mut().ok_or_else(|| Error::Internal("an encoding of another model".into()))
}

/// The concrete document behind the contract.
///
/// # Errors
/// [`Error::Internal`] if another model made it.
pub fn document_ref<D: Document>(document: &dyn Document) -> Result<&D> {
    let document: &dyn Any = document;
    document.downcast_ref().ok_or_else(|| Error::Internal("a document of another model".into()))
}
