//! One layer's weights, where a step's caches are found, and the buffers of a pass.

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

/// A layer's attention to a memory of vectors of width C. D = width, I = heads · head_dim.
pub struct Cross {
    /// After attention and residual, or before attention: (D)
    pub norm: LayerNorm,
    /// (I, D)
    pub query: Linear,
    /// (2·I, C): keys, values.
    pub memory: Linear,
    /// (D, I)
    pub output: Linear,
}

/// Where a layer's norms stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// x ← norm(x + change(x)).
    Post,
    /// x ← x + change(norm(x)).
    Pre,
}

/// One layer's weights. D = width, I = heads · head_dim, F = inner width of the feed-forward.
pub struct Layer {
    /// (3·I, D): queries, keys, values.
    pub qkv: Linear,
    /// (D, I)
    pub output: Linear,
    /// After attention and residual, or before attention.
    pub attention_norm: LayerNorm,
    /// Between the heads and `output`, (I): a sub-layer norm (Wang et al. 2022), where there is one.
    pub context_norm: Option<LayerNorm>,
    /// (F, D)
    pub up: Linear,
    /// (D, F)
    pub down: Linear,
    /// After feed-forward and residual, or before the feed-forward.
    pub feed_forward_norm: LayerNorm,
    /// Between the nonlinearity and `down`, (F): a sub-layer norm, where there is one.
    pub hidden_norm: Option<LayerNorm>,
    /// Attention to a memory, between the other two, where there is one.
    pub cross: Option<Cross>,
}

/// Finds the caches of a step's sequences.
pub trait Caches: Sync {
    /// A sequence's cache.
    fn cache(&self, sequence: usize) -> Result<&KvCache>;
    /// The same, to write.
    fn cache_mut(&mut self, sequence: usize) -> Result<&mut KvCache>;
    /// What a sequence's rows attend to beside their own past.
    fn memory(&self, _sequence: usize) -> Result<Option<&KvCache>> {
        Ok(None)
    }
}

/// An intermediate result of a layer, for whoever watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HookPoint {
    /// Each head's weighted values, side by side: (rows, I).
    Heads,
    /// What attention adds to the residual stream, or is added to it before a norm: (rows, D).
    Attention,
    /// What leaves the layer: (rows, D).
    Layer,
}

/// Is shown a layer's intermediate results: which, the layer, the rows' positions, and the rows.
pub type Hook = Box<dyn FnMut(HookPoint, usize, &[Position], &[f32]) + Send>;

/// Buffers of a pass, kept between steps.
#[derive(Default)]
pub struct StackWork {
    /// Watches intermediate results; golden tests do, servers do not.
    pub hook: Option<Hook>,
    /// The products'.
    pub quantized: QuantizedRows,
    /// Notes every score, if somebody wants to know them; servers do not.
    pub scores: Option<ScoresByDistance>,
    pub(super) qkv: Vec<f32>,
    pub(super) queries: Queries,
    /// Those for a memory.
    pub(super) cross_queries: QueryBuffer,
    pub(super) normed: Vec<f32>,
    pub(super) mixed: Vec<f32>,
    pub(super) wide: Vec<f32>,
    pub(super) change: Vec<f32>,
}

/// What one pass through all layers works with.
pub(super) struct Pass<'a, C> {
    pub(super) compute: &'a Compute,
    pub(super) positions: &'a [Position],
    pub(super) caches: &'a mut C,
    pub(super) work: &'a mut StackWork,
}

/// The norm of `x`, (rows, D).
pub(super) fn copy_norm<'a>(
    compute: &Compute,
    x: &[f32],
    parameters: &LayerNorm,
    normed: &'a mut Vec<f32>,
) -> &'a [f32] {
    normed.clear();
    normed.extend_from_slice(x);
    layer_norm(compute, normed, parameters);
    normed
}

/// `x` += `change`.
pub(in crate::nn) fn add(x: &mut [f32], change: &[f32]) {
    for (x, change) in x.iter_mut().zip(change) {
        *x += change;
    }
}
