//! A stack of Transformer layers with causal attention over cached keys.
//!
//! [`Stack::forward`] takes any mixture of positions: many of one sequence (a prefill chunk, a whole text), one of many
//! sequences (a decode step), or both. There is no separate step function: a position's arithmetic is the same in every
//! mixture, so incremental and bulk results agree to the bit.

use super::{
    cross,
    layer::{Caches, HookPoint, Layer, NormOrder, StackPass, StackWork, add, copy_norm},
    self_attention::SelfAttention,
};
use crate::{
    error::Result,
    kernels::{
        Compute,
        attention::PageLayout,
        linear::{Epilogue, Linear},
        rowwise::{add_layer_norm, layer_norm},
    },
    nn::{Activation, Position, kv_cache::KvCache, position::PositionScheme, sized, window::Window},
};

/// Layers that share a cache.
pub struct Stack {
    /// Layers, bottom first.
    pub layers: Vec<Layer>,
    /// Position scheme of all layers.
    pub position: PositionScheme,
    /// Keys that a position attends to.
    pub window: Window,
    /// Placement of the norms.
    pub order: NormOrder,
    /// Layout of the cache's pages.
    pub layout: PageLayout,
    /// Nonlinearity of the feed-forwards.
    pub activation: Activation,
}

impl Stack {
    /// Runs `x`, (positions, D), through all layers in place, and writes keys and values into the caches.
    ///
    /// The caches must have the positions reserved. Positions of one sequence come in rising order, without a gap after
    /// the cache's end. Fails if a cache cannot be found or lacks reserved positions.
    pub fn forward(
        &self,
        compute: &Compute,
        x: &mut [f32],
        positions: &[Position],
        caches: &mut impl Caches,
        work: &mut StackWork,
    ) -> Result<()> {
        self.position.embed(x, positions);
        let mut pass = StackPass { compute, positions, caches, work };
        for (index, layer) in self.layers.iter().enumerate() {
            match self.order {
                NormOrder::Post => {
                    self.attention(index).forward(x, &mut pass)?;
                    add_layer_norm(compute, x, &pass.work.delta, &layer.attention_norm);
                    if let Some(weights) = &layer.cross {
                        cross::forward(index, weights, x, &mut pass)?;
                        add_layer_norm(compute, x, &pass.work.delta, &weights.norm);
                    }
                    self.feed_forward(compute, layer, x, pass.work);
                    add_layer_norm(compute, x, &pass.work.delta, &layer.feed_forward_norm);
                }
                NormOrder::Pre => {
                    let mut normed = std::mem::take(&mut pass.work.normed);
                    copy_norm(compute, x, &layer.attention_norm, &mut normed);
                    self.attention(index).forward(&normed, &mut pass)?;
                    add(x, &pass.work.delta);
                    if let Some(weights) = &layer.cross {
                        copy_norm(compute, x, &weights.norm, &mut normed);
                        cross::forward(index, weights, &normed, &mut pass)?;
                        add(x, &pass.work.delta);
                    }
                    copy_norm(compute, x, &layer.feed_forward_norm, &mut normed);
                    self.feed_forward(compute, layer, &normed, pass.work);
                    add(x, &pass.work.delta);
                    pass.work.normed = normed;
                }
            }
            if let Some(hook) = &mut pass.work.hook {
                hook(HookPoint::Layer, index, positions, x);
            }
        }
        Ok(())
    }

    /// Reserves `more` positions in a sequence's cache, after freeing the pages that no later position attends to.
    /// Fails as [`KvCache::reserve`] does.
    pub fn reserve(&self, cache: &mut KvCache, more: usize) -> Result<()> {
        cache.free_before(self.window.first_kept(cache.len()));
        cache.reserve(more)
    }

    /// Returns the maximum bytes of pages in a cache of `positions`.
    pub fn bytes_for(&self, positions: usize) -> usize {
        self.layout.bytes_for(self.window.max_held(positions))
    }

    /// Returns the maximum bytes of pages that extending a cache to `len` positions allocates.
    pub fn growth(&self, cache: &KvCache, len: usize) -> usize {
        let copy = if cache.copies() { self.layout.page_bytes() } else { 0 };
        cache.growth(len).min(self.bytes_for(len) + copy)
    }

    /// Returns the projections of a memory to keys and values, (2·I, C), with their layers.
    pub fn memory_projections(&self) -> impl Iterator<Item = (usize, &Linear)> {
        self.layers.iter().enumerate().filter_map(|(index, layer)| Some((index, &layer.cross.as_ref()?.memory)))
    }

    fn attention(&self, index: usize) -> SelfAttention<'_> {
        let Layer { qkv, output, context_norm, .. } = &self.layers[index];
        SelfAttention {
            layer: index,
            qkv,
            output,
            context_norm: context_norm.as_ref(),
            position: &self.position,
            window: self.window,
            layout: &self.layout,
        }
    }

    /// Writes the feed-forward of `x`, (positions, D), to `work.delta`.
    fn feed_forward(&self, compute: &Compute, layer: &Layer, x: &[f32], work: &mut StackWork) {
        let hidden = sized(&mut work.hidden, x.len() / layer.up.inputs() * layer.up.outputs());
        layer.up.apply(compute, x, self.activation.epilogue(), &mut work.quantized, hidden); // (positions, F)
        if let Some(norm) = &layer.hidden_norm {
            layer_norm(compute, hidden, norm);
        }
        let delta = sized(&mut work.delta, x.len());
        layer.down.apply(compute, hidden, Epilogue::None, &mut work.quantized, delta); // (positions, D)
    }
}
