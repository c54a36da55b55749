//! A second implementation of every family, which checks that a checkpoint computes here what its paper says.
//!
//! A [`Reference`] is one plain forward pass over a whole text, written with candle's operations from the paper's formulas: no
//! cache, no pages, no batch. It reads the same `config.json` and safetensors. It shares no arithmetic with `nn` and `kernels`,
//! so it is unlikely to repeat their errors. It computes in f64, so a small difference is weir's rounding. `hugging_face` differs:
//! there the family itself uses candle's operations, and the reference is mostly that of candle-transformers, in f32.
//!
//! Reading order: [`load`] (the table of families), [`checkpoint`]; `hourglass`, `decoder`, `lslm`, `pyramidion`, `hnet`, `t5` and
//! `hugging_face`; `stack`, `segments`, `pooling`, `document_attention`, `mamba2` and `tensors` (their parts); [`model_outputs`]
//! (weir's side); [`report`].
//!
//! To add a family: a file with a [`Reference`], and a line in [`load::FAMILIES`].

pub mod checkpoint;
pub mod decoder;
mod document_attention;
mod hnet;
mod hourglass;
mod hugging_face;
pub mod load;
mod lslm;
mod mamba2;
pub mod model_outputs;
mod pooling;
mod pyramidion;
pub mod report;
mod segments;
mod stack;
mod t5;
mod tensors;

use crate::decode::{contract::SymbolBoundary, document::PoolingChoice};

/// One family's forward pass.
pub trait Reference {
    /// Returns the maximum length of a text.
    fn limit(&self) -> LengthLimit {
        LengthLimit::PAIRS
    }

    /// Computes all outputs of an input. The outputs' own boundaries are the reference's decisions, whatever is `given`. Fails if
    /// candle fails.
    fn forward(&self, input: &Input, given: Given<'_>) -> candle_core::Result<Outputs>;
}

/// The maximum length of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LengthLimit {
    /// Number of symbols.
    pub symbols: usize,
    /// The reason, for an error.
    pub why: &'static str,
}

impl LengthLimit {
    /// The limit of most references: they have a score for every pair of symbols in memory.
    pub const PAIRS: Self = Self { symbols: 4096, why: "the reference implementation compares every pair of symbols" };
}

/// Decisions that a forward pass takes over.
#[derive(Debug, Clone, Copy, Default)]
pub struct Given<'a> {
    /// True for each symbol with which a segment ends; the reference decides if there are none.
    pub boundaries: Option<&'a [bool]>,
    /// The tokens that a gate keeps; the reference decides if there are none. Poolings decide themselves.
    pub choices: &'a [PoolingChoice],
    /// Near ties with the other outcome: the two scores change places, or the decision is negated.
    pub swapped: &'a [NearTie],
}

/// A decision that is closer than f32 resolves, so that either outcome is right: two neighbours in the order of a top-k pooling's
/// scores, or a boundary of an inner stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NearTie {
    /// Number of the pooling, or of the inner stage.
    pub pooling: usize,
    /// Its round; 0 if it has no rounds.
    pub round: usize,
    /// Rank of the first of two neighbours, or the position that is decided.
    pub rank: usize,
}

/// The input of both implementations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Input {
    /// Symbols of the text. In a model that reads documents: those fed to its decoder, the start mark included.
    pub symbols: Vec<u32>,
    /// Tokens of the document, the end mark included. Empty in other models.
    pub document: Vec<u32>,
}

/// The outputs of one implementation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outputs {
    /// Logits (rows, V): one row for each symbol. A model with a start mark has one row more, before the others.
    pub logits: Vec<f64>,
    /// The decision for each symbol; empty in a model without segments.
    pub boundaries: Vec<SymbolBoundary>,
    /// How far each decision is from the opposite one, in units of the probability, or of the entropy if spikes decide. Infinite
    /// if a rule decides. In a model with a gate: one for each token of the document, in units of the gate's value. Empty on
    /// weir's side.
    pub margins: Vec<f64>,
    /// The vectors that each top-k pooling or gate kept.
    pub choices: Vec<PoolingChoice>,
    /// The smallest difference between two scores that are neighbours in the order of a top-k pooling. Infinite without one.
    pub smallest_gap: f64,
    /// All near ties.
    pub near_ties: Vec<NearTie>,
}
