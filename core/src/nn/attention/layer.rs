//! One layer's weights, the trait that finds a step's caches, and the buffers of a pass.

use crate::{
    error::Result,
    kernels::{
        Compute,
        attention::QueryBuffer,
        linear::{Linear, QuantizedRows},
        rowwise::{LayerNorm, layer_norm},
    },
    nn::{Position, kv_cache::KvCache, position::queries::Queries, resolution::ScoresByDistance},
};

/// Weights of a layer's cross-attention to a memory of vectors of width C. D = width, I = heads · head_dim.
pub struct Cross<N> {
    /// Applied after the residual sum, or before attention: (D)
    pub norm: N,
    /// (I, D)
    pub query: Linear,
    /// (2·I, C): keys, values.
    pub memory: Linear,
    /// (D, I)
    pub output: Linear,
}

/// Placement of a layer's norms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormOrder {
    /// x ← norm(x + sublayer(x)).
    Post,
    /// x ← x + sublayer(norm(x)).
    Pre,
}

/// One layer's weights. D = width, I = heads · head_dim, F = inner width of the feed-forward.
pub struct Layer {
    /// (3·I, D): queries, keys, values.
    pub qkv: Linear,
    /// (D, I)
    pub output: Linear,
    /// Applied after attention's residual sum, or before attention.
    pub attention_norm: LayerNorm,
    /// Optional norm between the heads and `output`, (I): a sub-layer norm (Wang et al. 2022).
    pub context_norm: Option<LayerNorm>,
    /// (F, D)
    pub up: Linear,
    /// (D, F)
    pub down: Linear,
    /// Applied after the feed-forward's residual sum, or before the feed-forward.
    pub feed_forward_norm: LayerNorm,
    /// Optional sub-layer norm between the nonlinearity and `down`: (F).
    pub hidden_norm: Option<LayerNorm>,
    /// Optional cross-attention, between self-attention and feed-forward.
    pub cross: Option<Cross<LayerNorm>>,
}

/// Finds the caches of a step's sequences.
pub trait Caches: Sync {
    /// Returns a sequence's cache.
    fn cache(&self, sequence: usize) -> Result<&KvCache>;
    /// Returns a sequence's cache for writing.
    fn cache_mut(&mut self, sequence: usize) -> Result<&mut KvCache>;
    /// Returns the memory that a sequence's cross-attention reads, if it has one.
    fn memory(&self, _sequence: usize) -> Result<Option<&KvCache>> {
        Ok(None)
    }
}

/// Intermediate result of a layer that a [`Hook`] receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HookPoint {
    /// The heads' outputs, concatenated: (positions, I).
    Heads,
    /// Output of the attention sub-layer, before the residual sum: (positions, D).
    Attention,
    /// Output of the layer: (positions, D).
    Layer,
}

/// Receives a layer's intermediate results: which one, the layer, the positions, and the vectors.
pub type Hook = Box<dyn FnMut(HookPoint, usize, &[Position], &[f32]) + Send>;

/// Buffers of a pass, kept between steps.
#[derive(Default)]
pub struct StackWork {
    /// Receives intermediate results in golden tests; `None` in servers.
    pub hook: Option<Hook>,
    /// Quantized inputs of matrix products.
    pub quantized: QuantizedRows,
    /// Collects every attention score for `inspect --resolution`; `None` in servers.
    pub scores: Option<ScoresByDistance>,
    pub(super) qkv: Vec<f32>,
    pub(super) queries: Queries,
    pub(super) cross_queries: QueryBuffer,
    pub(in crate::nn) normed: Vec<f32>,
    pub(super) head_outputs: Vec<f32>,
    pub(in crate::nn) hidden: Vec<f32>,
    /// Output of the last sub-layer: (positions, D).
    pub(in crate::nn) delta: Vec<f32>,
}

/// Arguments that all sub-layers of one pass share.
pub(in crate::nn) struct StackPass<'a, C> {
    pub(in crate::nn) compute: &'a Compute,
    pub(in crate::nn) positions: &'a [Position],
    pub(in crate::nn) caches: &'a mut C,
    pub(in crate::nn) work: &'a mut StackWork,
}

/// Copies the norm of `x`, (positions, D), into `normed`.
pub(super) fn copy_norm<'a>(compute: &Compute, x: &[f32], norm: &LayerNorm, normed: &'a mut Vec<f32>) -> &'a [f32] {
    normed.clear();
    normed.extend_from_slice(x);
    layer_norm(compute, normed, norm);
    normed
}

/// Adds `delta` to `x`, which has the same length.
pub fn add(x: &mut [f32], delta: &[f32]) {
    for (x, delta) in x.iter_mut().zip(delta) {
        *x += delta;
    }
}
