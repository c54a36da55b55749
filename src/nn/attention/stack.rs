//! A stack of Transformer layers with causal attention over cached keys: rows flow through all layers side by side, in position,
//! and leave their keys and values in the caches; each then attends to what its window shows it there.
//!
//! [`Stack::forward`] takes any mixture of rows: many positions of one sequence (a prefill chunk, a whole text), one position
//! of many (a decode step), or both. There is no separate step: a row's arithmetic is the same in every mixture, which is why
//! incremental and bulk results agree to the bit.

use super::{
    cross::forward,
    layer::{Caches, HookPoint, Layer, Order, Pass, StackWork, add, copy_norm},
    mix::{Mixing, mix},
};
use crate::{
    error::Result,
    kernels::{
        Compute,
        attention::{AttentionHead, DistanceTable, POSITIONS, PageLayout, QueryRow, ROW_TILE, scores},
        linear::Epilogue,
        rowwise::{add_layer_norm, layer_norm},
    },
    nn::{Activation, Position, kv_cache::KvCache, position::PositionScheme, sized, window::Window},
};

/// Layers that share a cache.
pub struct Stack {
    /// Bottom first.
    pub layers: Vec<Layer>,
    /// Their position scheme.
    pub position: PositionScheme,
    /// Which keys they attend to.
    pub window: Window,
    /// Where their norms stand.
    pub order: Order,
    /// What their cache looks like.
    pub layout: PageLayout,
    /// The feed-forwards' nonlinearity.
    pub activation: Activation,
}

impl Stack {
    /// Runs rows `x`, (rows, D), at `positions` through all layers, in position; their keys and values go into the caches, whose
    /// positions must be reserved. PagedVectors of one sequence come in rising position, none left out since the cache's end.
    ///
    /// # Errors
    /// A cache that cannot be found or was not reserved.
    pub fn forward(
        &self,
        compute: &Compute,
        x: &mut [f32],
        positions: &[Position],
        caches: &mut impl Caches,
        work: &mut StackWork,
    ) -> Result<()> {
        self.position.embed(x, positions);
        let mut pass = Pass { compute, positions, caches, work };
        for (index, layer) in self.layers.iter().enumerate() {
            match self.order {
                Order::Post => {
                    self.attention(index, x, &mut pass)?;
                    add_layer_norm(compute, x, &pass.work.change, &layer.attention_norm);
                    if let Some(cross) = &layer.cross {
                        forward(index, cross, x, &mut pass)?;
                        add_layer_norm(compute, x, &pass.work.change, &cross.norm);
                    }
                    self.feed_forward(compute, layer, x, pass.work);
                    add_layer_norm(compute, x, &pass.work.change, &layer.feed_forward_norm);
                }
                Order::Pre => {
                    let mut normed = std::mem::take(&mut pass.work.normed);
                    copy_norm(compute, x, &layer.attention_norm, &mut normed);
                    self.attention(index, &normed, &mut pass)?;
                    add(x, &pass.work.change);
                    if let Some(cross) = &layer.cross {
                        copy_norm(compute, x, &cross.norm, &mut normed);
                        forward(index, cross, &normed, &mut pass)?;
                        add(x, &pass.work.change);
                    }
                    copy_norm(compute, x, &layer.feed_forward_norm, &mut normed);
                    self.feed_forward(compute, layer, &normed, pass.work);
                    add(x, &pass.work.change);
                    pass.work.normed = normed;
                }
            }
            if let Some(hook) = &mut pass.work.hook {
                hook(HookPoint::Layer, index, positions, x);
            }
        }
        Ok(())
    }

    /// Makes room in a sequence's cache for `more` positions; what no later row attends to is forgotten first.
    ///
    /// # Errors
    /// As for [`KvCache::reserve`].
    pub fn reserve(&self, cache: &mut KvCache, more: usize) -> Result<()> {
        cache.forget_before(self.window.first_kept(cache.len()));
        cache.reserve(more)
    }

    /// The most bytes of pages that a cache of `positions` holds.
    pub fn bytes_for(&self, positions: usize) -> usize {
        self.layout.bytes_for(self.window.max_held(positions))
    }

    /// The most bytes of pages that it takes to go on to `len` positions.
    pub fn growth(&self, cache: &KvCache, len: usize) -> usize {
        let copy = if cache.copies() { self.layout.page_bytes() } else { 0 };
        cache.growth(len).min(self.bytes_for(len) + copy)
    }

    /// `change` (rows, D) = attention of `x`.
    fn attention(&self, index: usize, x: &[f32], pass: &mut Pass<'_, impl Caches>) -> Result<()> {
        let Pass { compute, positions, caches, work } = pass;
        let (layer, layout, rows) = (&self.layers[index], &self.layout, positions.len());
        let inner = layout.heads * layout.head_dim;
        let qkv = sized(&mut work.qkv, rows * 3 * inner);
        layer.qkv.apply(compute, x, Epilogue::None, &mut work.quantized, qkv); // (rows, 3·I)
        self.position.prepare((compute, layout, self.window), positions, qkv, &mut work.queries); // (rows, I) each
        for (position, row) in positions.iter().zip(qkv.chunks_exact(3 * inner)) {
            let (keys, values) = row[inner..].split_at(inner);
            caches.cache_mut(position.sequence)?.write(index, position.index, keys, values)?;
        }
        self.mix(index, pass)?; // (rows, I)
        let Pass { compute, positions, work, .. } = pass;
        if let Some(hook) = &mut work.hook {
            hook(HookPoint::Heads, index, positions, &work.mixed);
        }
        if let Some(parameters) = &layer.context_norm {
            layer_norm(compute, &mut work.mixed, parameters);
        }
        let change = sized(&mut work.change, x.len());
        layer.output.apply(compute, &work.mixed, Epilogue::None, &mut work.quantized, change); // (rows, D)
        if let Some(hook) = &mut work.hook {
            hook(HookPoint::Attention, index, positions, change);
        }
        Ok(())
    }

    /// `mixed` (rows, I) = each head's weighted values.
    fn mix(&self, layer: usize, pass: &mut Pass<'_, impl Caches>) -> Result<()> {
        let Pass { compute, positions, caches, work } = pass;
        let (layout, rows) = (&self.layout, positions.len());
        let heads = layout.heads;
        let low = |position: &Position| self.window.first_key(position.index);
        // whole pages of keys are met, and those of the row before
        let beside = self.window.max_keys().map_or(0, |_| ROW_TILE);
        let furthest = positions.iter().map(|position| position.index - low(position) / POSITIONS * POSITIONS).max();
        let distances = self.position.distances(compute, layer, furthest.unwrap_or(0) + beside)?;
        let (caches, queries) = (&**caches, &work.queries);
        let row = |at: usize, head: usize| {
            let (content, distance) = (queries.content(at, head, heads), queries.distance(at, head, heads));
            QueryRow { first_key: low(&positions[at]), position: positions[at].index, content, distance }
        };
        let source = |cache, head, near| self.source(cache, (layer, head), distances, near);
        let keys = positions.iter().map(|position| position.index + 1 - low(position)).sum();
        let mixing = Mixing { compute, layout, positions, keys };
        mix(&mixing, &|sequence| caches.cache(sequence), &row, &source, &mut work.mixed);
        if let Some(noted) = &mut work.scores {
            let mut found = Vec::new();
            for (at, head) in (0..rows).flat_map(|at| (0..heads).map(move |head| (at, head))) {
                let cache = caches.cache(positions[at].sequence)?;
                let mut row = row(at, head);
                row.first_key = row.first_key.max(cache.first());
                scores(compute.isa, &self.source(cache, (layer, head), distances, false), &row, &mut found);
                noted.add(layer, &found);
            }
        }
        Ok(())
    }

    /// Where a head's keys and values are.
    fn source<'a>(
        &'a self,
        cache: &'a KvCache,
        (layer, head): (usize, usize),
        distances: Option<&'a DistanceTable>,
        near: bool,
    ) -> AttentionHead<'a> {
        let (pages, start, layout) = (cache.pages(), cache.start(), &self.layout);
        let (block, bias) = (self.position.block(), self.position.bias(head));
        let scale = 1.0 / (layout.head_dim as f32).sqrt();
        AttentionHead { pages, start, layout, layer, head, block, distances, bias, scale, recently_read: near }
    }

    /// `work.change` (rows, D) = feed-forward of `x`.
    fn feed_forward(&self, compute: &Compute, layer: &Layer, x: &[f32], work: &mut StackWork) {
        let width = layer.up.outputs();
        let wide = sized(&mut work.wide, x.len() / layer.up.inputs() * width);
        layer.up.apply(compute, x, self.activation.then(), &mut work.quantized, wide); // (rows, F)
        if let Some(parameters) = &layer.hidden_norm {
            layer_norm(compute, wide, parameters);
        }
        let change = sized(&mut work.change, x.len());
        layer.down.apply(compute, wide, Epilogue::None, &mut work.quantized, change); // (rows, D)
    }
}
