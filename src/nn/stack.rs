//! A stack of Transformer layers with causal attention over cached keys: rows flow through all layers side by side, in place,
//! and leave their keys and values in the caches; each then attends to what its window shows it there.
//!
//! [`Stack::forward`] takes any mixture of rows: many positions of one sequence (a prefill chunk, a whole text), one position
//! of many (a decode step), or both. There is no separate step: a row's arithmetic is the same in every mixture, which is why
//! incremental and bulk results agree to the bit.

use super::{
    Activation, Place,
    cache::Cache,
    memory::{Cross, recall},
    mix::{Mixing, mix},
    position::{Position, Queries},
    resolution::Scores,
    sized,
    window::Window,
};
use crate::{
    error::Result,
    kernels::{
        Compute,
        attention::{AttentionHead, DistanceTable, POSITIONS, PageLayout, QueryBuffer, QueryRow, ROW_TILE, scores},
        linear::{Epilogue, Linear, QuantizedRows},
        rowwise::{LayerNorm, add_layer_norm, layer_norm},
    },
};

/// Layers that share a cache.
pub struct Stack {
    /// Bottom first.
    pub layers: Vec<Layer>,
    /// Their position scheme.
    pub position: Position,
    /// Which keys they attend to.
    pub window: Window,
    /// Where their norms stand.
    pub order: Order,
    /// What their cache looks like.
    pub layout: PageLayout,
    /// The feed-forwards' nonlinearity.
    pub activation: Activation,
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
    pub mixed_norm: Option<LayerNorm>,
    /// (F, D)
    pub up: Linear,
    /// (D, F)
    pub down: Linear,
    /// After feed-forward and residual, or before the feed-forward.
    pub feed_forward_norm: LayerNorm,
    /// Between the nonlinearity and `down`, (F): a sub-layer norm, where there is one.
    pub wide_norm: Option<LayerNorm>,
    /// Attention to a memory, between the other two, where there is one.
    pub cross: Option<Cross>,
}

/// Finds the caches of a step's sequences.
pub trait Caches: Sync {
    /// A sequence's cache.
    fn cache(&self, sequence: usize) -> Result<&Cache>;
    /// The same, to write.
    fn cache_mut(&mut self, sequence: usize) -> Result<&mut Cache>;
    /// What a sequence's rows attend to beside their own past.
    fn memory(&self, _sequence: usize) -> Result<Option<&Cache>> {
        Ok(None)
    }
}

/// An intermediate result of a layer, for whoever watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Each head's weighted values, side by side: (rows, I).
    Heads,
    /// What attention adds to the residual stream, or is added to it before a norm: (rows, D).
    Attention,
    /// What leaves the layer: (rows, D).
    Layer,
}

/// Is shown a layer's intermediate results: which, the layer, the rows' places, and the rows.
pub type Watcher = Box<dyn FnMut(Stage, usize, &[Place], &[f32]) + Send>;

/// Buffers of a pass, kept between steps.
#[derive(Default)]
pub struct StackWork {
    /// Watches intermediate results; golden tests do, servers do not.
    pub watcher: Option<Watcher>,
    /// The products'.
    pub quantized: QuantizedRows,
    /// Notes every score, if somebody wants to know them; servers do not.
    pub scores: Option<Scores>,
    qkv: Vec<f32>,
    queries: Queries,
    /// Those for a memory.
    pub(super) asking: QueryBuffer,
    normed: Vec<f32>,
    pub(super) mixed: Vec<f32>,
    wide: Vec<f32>,
    pub(super) change: Vec<f32>,
}

/// What one pass through all layers works with.
pub(super) struct Pass<'a, C> {
    pub(super) compute: &'a Compute,
    pub(super) places: &'a [Place],
    pub(super) caches: &'a mut C,
    pub(super) work: &'a mut StackWork,
}

impl Stack {
    /// Runs rows `x`, (rows, D), at `places` through all layers, in place; their keys and values go into the caches, whose
    /// positions must be reserved. Rows of one sequence come in rising position, none left out since the cache's end.
    ///
    /// # Errors
    /// A cache that cannot be found or was not reserved.
    pub fn forward(
        &self,
        compute: &Compute,
        x: &mut [f32],
        places: &[Place],
        caches: &mut impl Caches,
        work: &mut StackWork,
    ) -> Result<()> {
        self.position.embed(x, places);
        let mut pass = Pass { compute, places, caches, work };
        for (index, layer) in self.layers.iter().enumerate() {
            match self.order {
                Order::Post => {
                    self.attention(index, x, &mut pass)?;
                    add_layer_norm(compute, x, &pass.work.change, &layer.attention_norm);
                    if let Some(cross) = &layer.cross {
                        recall(index, cross, x, &mut pass)?;
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
                        recall(index, cross, &normed, &mut pass)?;
                        add(x, &pass.work.change);
                    }
                    copy_norm(compute, x, &layer.feed_forward_norm, &mut normed);
                    self.feed_forward(compute, layer, &normed, pass.work);
                    add(x, &pass.work.change);
                    pass.work.normed = normed;
                }
            }
            if let Some(watcher) = &mut pass.work.watcher {
                watcher(Stage::Layer, index, places, x);
            }
        }
        Ok(())
    }

    /// Makes room in a sequence's cache for `more` positions; what no later row attends to is forgotten first.
    ///
    /// # Errors
    /// As for [`Cache::reserve`].
    pub fn make_room(&self, cache: &mut Cache, more: usize) -> Result<()> {
        cache.forget_before(self.window.keep_from(cache.len()));
        cache.reserve(more)
    }

    /// The most bytes of pages that a cache of `positions` holds.
    pub fn bytes_for(&self, positions: usize) -> usize {
        self.layout.bytes_for(self.window.most_held(positions))
    }

    /// The most bytes of pages that it takes to go on to `len` positions.
    pub fn growth(&self, cache: &Cache, len: usize) -> usize {
        let copy = if cache.copies() { self.layout.page_bytes() } else { 0 };
        cache.growth(len).min(self.bytes_for(len) + copy)
    }

    /// `change` (rows, D) = attention of `x`.
    fn attention(&self, index: usize, x: &[f32], pass: &mut Pass<'_, impl Caches>) -> Result<()> {
        let Pass { compute, places, caches, work } = pass;
        let (layer, layout, rows) = (&self.layers[index], &self.layout, places.len());
        let inner = layout.heads * layout.head_dim;
        let qkv = sized(&mut work.qkv, rows * 3 * inner);
        layer.qkv.apply(compute, x, Epilogue::None, &mut work.quantized, qkv); // (rows, 3·I)
        self.position.prepare((compute, layout, self.window), places, qkv, &mut work.queries); // (rows, I) each
        for (place, row) in places.iter().zip(qkv.chunks_exact(3 * inner)) {
            let (keys, values) = row[inner..].split_at(inner);
            caches.cache_mut(place.sequence)?.write(index, place.position, keys, values)?;
        }
        self.mix(index, pass)?; // (rows, I)
        let Pass { compute, places, work, .. } = pass;
        if let Some(watcher) = &mut work.watcher {
            watcher(Stage::Heads, index, places, &work.mixed);
        }
        if let Some(parameters) = &layer.mixed_norm {
            layer_norm(compute, &mut work.mixed, parameters);
        }
        let change = sized(&mut work.change, x.len());
        layer.output.apply(compute, &work.mixed, Epilogue::None, &mut work.quantized, change); // (rows, D)
        if let Some(watcher) = &mut work.watcher {
            watcher(Stage::Attention, index, places, change);
        }
        Ok(())
    }

    /// `mixed` (rows, I) = each head's weighted values.
    fn mix(&self, layer: usize, pass: &mut Pass<'_, impl Caches>) -> Result<()> {
        let Pass { compute, places, caches, work } = pass;
        let (layout, rows) = (&self.layout, places.len());
        let heads = layout.heads;
        let low = |place: &Place| self.window.low(place.position);
        // whole pages of keys are met, and those of the row before
        let beside = self.window.reach().map_or(0, |_| ROW_TILE);
        let furthest = places.iter().map(|place| place.position - low(place) / POSITIONS * POSITIONS).max();
        let distances = self.position.distances(compute, layer, furthest.unwrap_or(0) + beside)?;
        let (caches, queries) = (&**caches, &work.queries);
        let row = |at: usize, head: usize| {
            let (content, distance) = (queries.content(at, head, heads), queries.distance(at, head, heads));
            QueryRow { first_key: low(&places[at]), position: places[at].position, content, distance }
        };
        let source = |cache, head, near| self.source(cache, (layer, head), distances, near);
        let keys = places.iter().map(|place| place.position + 1 - low(place)).sum();
        let mixing = Mixing { compute, layout, places, keys };
        mix(&mixing, &|sequence| caches.cache(sequence), &row, &source, &mut work.mixed);
        if let Some(noted) = &mut work.scores {
            let mut found = Vec::new();
            for (at, head) in (0..rows).flat_map(|at| (0..heads).map(move |head| (at, head))) {
                let cache = caches.cache(places[at].sequence)?;
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
        cache: &'a Cache,
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
        if let Some(parameters) = &layer.wide_norm {
            layer_norm(compute, wide, parameters);
        }
        let change = sized(&mut work.change, x.len());
        layer.down.apply(compute, wide, Epilogue::None, &mut work.quantized, change); // (rows, D)
    }
}

/// `normed` (rows, D) = norm of `x`.
fn copy_norm(compute: &Compute, x: &[f32], parameters: &LayerNorm, normed: &mut Vec<f32>) {
    normed.clear();
    normed.extend_from_slice(x);
    layer_norm(compute, normed, parameters);
}

/// `x` += `change`.
fn add(x: &mut [f32], change: &[f32]) {
    for (x, change) in x.iter_mut().zip(change) {
        *x += change;
    }
}
