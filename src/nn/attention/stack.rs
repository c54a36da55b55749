//! A stack of Transformer layers with causal attention over cached keys.
//!
//! [`Stack::forward`] takes any mixture of positions: many of one sequence (a prefill chunk, a whole text), one of many
//! sequences (a decode step), or both. There is no separate step function: a position's arithmetic is the same in every
//! mixture, so incremental and bulk results agree to the bit.

use super::{
    cross,
    layer::{Caches, HookPoint, Layer, NormOrder, StackPass, StackWork, add, copy_norm},
    mix::{Mixing, mix},
};
use crate::{
    error::Result,
    kernels::{
        Compute,
        attention::{AttentionHead, DistanceTable, POSITIONS, PageLayout, QueryRow, ROW_TILE, scores},
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
                    self.attention(index, x, &mut pass)?;
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
                    self.attention(index, &normed, &mut pass)?;
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

    /// Writes the self-attention of `x`, (positions, D), to `work.delta`.
    fn attention(&self, index: usize, x: &[f32], pass: &mut StackPass<'_, impl Caches>) -> Result<()> {
        let StackPass { compute, positions, caches, work } = pass;
        let layer = &self.layers[index];
        let inner = self.layout.heads * self.layout.head_dim;
        let qkv = sized(&mut work.qkv, positions.len() * 3 * inner);
        layer.qkv.apply(compute, x, Epilogue::None, &mut work.quantized, qkv); // (positions, 3·I)
        self.position.prepare(compute, &self.layout, self.window, positions, qkv, &mut work.queries); // (positions, I) each
        for (position, row) in positions.iter().zip(qkv.chunks_exact(3 * inner)) {
            let (keys, values) = row[inner..].split_at(inner);
            caches.cache_mut(position.sequence)?.write(index, position.index, keys, values)?;
        }
        self.mix(index, pass)?; // (positions, I)
        let StackPass { compute, positions, work, .. } = pass;
        if let Some(hook) = &mut work.hook {
            hook(HookPoint::Heads, index, positions, &work.head_outputs);
        }
        if let Some(norm) = &layer.context_norm {
            layer_norm(compute, &mut work.head_outputs, norm);
        }
        let delta = sized(&mut work.delta, x.len());
        layer.output.apply(compute, &work.head_outputs, Epilogue::None, &mut work.quantized, delta); // (positions, D)
        if let Some(hook) = &mut work.hook {
            hook(HookPoint::Attention, index, positions, delta);
        }
        Ok(())
    }

    /// Writes the weighted values of each head, (positions, I), to `work.head_outputs`.
    fn mix(&self, layer: usize, pass: &mut StackPass<'_, impl Caches>) -> Result<()> {
        let StackPass { compute, positions, caches, work } = pass;
        let heads = self.layout.heads;
        let first_key = |position: &Position| self.window.first_key(position.index);
        // The kernel reads whole pages of keys, and for a tile of rows also the keys of the earliest one.
        let slack = self.window.max_keys().map_or(0, |_| ROW_TILE);
        let furthest = positions.iter().map(|p| p.index - first_key(p) / POSITIONS * POSITIONS).max();
        let distances = self.position.distances(compute, layer, furthest.unwrap_or(0) + slack)?;
        let caches = &**caches;
        let queries = &work.queries;
        let query = |row: usize, head: usize| QueryRow {
            first_key: first_key(&positions[row]),
            position: positions[row].index,
            content: queries.content(row, head, heads),
            distance: queries.distance(row, head, heads),
        };
        let source = |cache, head, recently_read| self.source(cache, layer, head, distances, recently_read);
        let keys = positions.iter().map(|position| position.index + 1 - first_key(position)).sum();
        let mixing = Mixing { compute, layout: &self.layout, positions, keys };
        mix(&mixing, &|sequence| caches.cache(sequence), &query, &source, &mut work.head_outputs);
        if let Some(collected) = &mut work.scores {
            let mut row_scores = Vec::new();
            for (row, head) in (0..positions.len()).flat_map(|row| (0..heads).map(move |head| (row, head))) {
                let cache = caches.cache(positions[row].sequence)?;
                let mut query = query(row, head);
                query.first_key = query.first_key.max(cache.first());
                scores(compute.isa, &self.source(cache, layer, head, distances, false), &query, &mut row_scores);
                collected.add(layer, &row_scores);
            }
        }
        Ok(())
    }

    /// Returns one head's keys and values in a cache, as the kernel takes them.
    fn source<'a>(
        &'a self,
        cache: &'a KvCache,
        layer: usize,
        head: usize,
        distances: Option<&'a DistanceTable>,
        recently_read: bool,
    ) -> AttentionHead<'a> {
        AttentionHead {
            block: self.position.block(),
            distances,
            bias: self.position.bias(head),
            recently_read,
            ..cache.attention_head(layer, head)
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
