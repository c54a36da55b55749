//! The interfaces of an architecture and of its network.

use super::{
    keys::Keys,
    layers::Tensors,
    memory::{LayerMemory, Memory, MemoryShape},
};
use crate::{
    error::Result,
    family::{TensorSpec, settings::Bounds},
};
use candle_core::Tensor;
use std::fmt::Debug;

/// Reads the keys of an architecture. Fails if one is missing, of the wrong type, out of bounds, or has a value that is not
/// supported.
pub(super) type ReadArchitecture = fn(&Keys<'_>) -> Result<Box<dyn Architecture>>;

/// A validated architecture.
pub(super) trait Architecture: Debug + Send + Sync {
    /// Every tensor that the checkpoint must hold.
    fn tensors(&self) -> Vec<TensorSpec>;

    /// One-line description for people.
    fn shape(&self) -> String;

    /// Limits of the model's sequences.
    fn bounds(&self) -> Bounds;

    /// Shape of a sequence's memory.
    fn memory(&self) -> MemoryShape;

    /// The name of the embedding, of which a step reads one row.
    fn embedding(&self) -> &'static str;

    /// The name of the matrix that computes logits: the embedding's, if both are tied.
    fn head(&self) -> &'static str;

    /// Multiply-adds of a token's attention to one key, all layers together; of its recurrence, if there is no attention.
    fn memory_products(&self) -> usize;

    /// Builds the network. Fails if candle fails.
    fn build(&self, tensors: &mut Tensors) -> Result<Box<dyn Network>>;
}

/// The weights of a model.
pub(super) trait Network: Send + Sync {
    /// Computes `tokens`, which follow those of `memory`. Fails if candle fails.
    fn forward(&self, tokens: &Tensor, memory: &Memory, wanted: usize) -> candle_core::Result<Computed>;
}

/// The results of a forward pass of n tokens.
pub(super) struct Computed {
    /// (wanted, V): the logits after the last tokens; none if none are wanted.
    pub(super) logits: Option<Tensor>,
    /// Each layer's keys and values of these tokens, or its state after them.
    pub(super) layers: Vec<LayerMemory>,
}
