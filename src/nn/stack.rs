//! A stack of post-norm Transformer layers with causal attention over cached keys.
//!
//! [`Stack::forward`] takes any mixture of rows: many positions of one sequence (a prefill chunk, a whole text), one position
//! of many (a decode step), or both. There is no separate step: a row's arithmetic is the same in every mixture, which is why
//! incremental and bulk results agree to the bit.

use super::{
    Activation, Place,
    cache::Cache,
    position::{Position, Queries},
    sized,
};
use crate::{
    error::Result,
    kernels::{
        Compute,
        attention::{Layout, Query, attend},
        linear::{Linear, Quantized, Then},
        rowwise::{Norm, add_norm},
    },
};

/// Layers that share a cache.
pub struct Stack {
    /// Bottom first.
    pub layers: Vec<Layer>,
    /// Their position scheme.
    pub position: Position,
    /// What their cache looks like.
    pub layout: Layout,
    /// The feed-forwards' nonlinearity.
    pub activation: Activation,
}

/// One layer's weights. D = width, I = heads · head_dim, F = inner width of the feed-forward.
pub struct Layer {
    /// (3·I, D): queries, keys, values.
    pub qkv: Linear,
    /// (D, I)
    pub output: Linear,
    /// After attention and residual.
    pub attention_norm: Norm,
    /// (F, D)
    pub up: Linear,
    /// (D, F)
    pub down: Linear,
    /// After feed-forward and residual.
    pub feed_forward_norm: Norm,
}

/// Finds the caches of a step's sequences.
pub trait Caches: Sync {
    /// A sequence's cache.
    fn cache(&self, sequence: usize) -> Result<&Cache>;
    /// The same, to write.
    fn cache_mut(&mut self, sequence: usize) -> Result<&mut Cache>;
}

/// Buffers of a pass, kept between steps.
#[derive(Default)]
pub struct StackWork {
    /// The products'.
    pub quantized: Quantized,
    qkv: Vec<f32>,
    queries: Queries,
    mixed: Vec<f32>,
    wide: Vec<f32>,
    change: Vec<f32>,
}

/// What one pass through all layers works with.
struct Pass<'a, C> {
    compute: &'a Compute,
    places: &'a [Place],
    caches: &'a mut C,
    work: &'a mut StackWork,
}

/// Multiply-adds of attention below which waking other threads costs more than it brings.
const WORTH_SHARING: usize = 1 << 15;

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
        let mut pass = Pass { compute, places, caches, work };
        for (index, layer) in self.layers.iter().enumerate() {
            self.attention(index, x, &mut pass)?;
            add_norm(compute, x, &pass.work.change, &layer.attention_norm);
            self.feed_forward(compute, layer, x, pass.work);
            add_norm(compute, x, &pass.work.change, &layer.feed_forward_norm);
        }
        Ok(())
    }

    /// `change` (rows, D) = attention of `x`.
    fn attention(&self, index: usize, x: &[f32], pass: &mut Pass<'_, impl Caches>) -> Result<()> {
        let Pass { compute, places, caches, work } = pass;
        let (layer, layout, rows) = (&self.layers[index], &self.layout, places.len());
        let inner = layout.heads * layout.head_dim;
        let qkv = sized(&mut work.qkv, rows * 3 * inner);
        layer.qkv.apply(compute, x, Then::Nothing, &mut work.quantized, qkv); // (rows, 3·I)
        self.position.prepare(layout, places, qkv, &mut work.queries); // (rows, I) each
        for (place, row) in places.iter().zip(qkv.chunks_exact(3 * inner)) {
            let (keys, values) = row[inner..].split_at(inner);
            caches.cache_mut(place.sequence)?.write(index, place.position, keys, values)?;
        }
        self.mix(index, pass)?; // (rows, I)
        let Pass { compute, work, .. } = pass;
        let change = sized(&mut work.change, x.len());
        layer.output.apply(compute, &work.mixed, Then::Nothing, &mut work.quantized, change); // (rows, D)
        Ok(())
    }

    /// `mixed` (rows, I) = each head's weighted values.
    fn mix(&self, layer: usize, pass: &mut Pass<'_, impl Caches>) -> Result<()> {
        let Pass { compute, places, caches, work } = pass;
        let (layout, rows) = (&self.layout, places.len());
        let Layout { heads, head_dim, .. } = *layout;
        let last = places.iter().map(|place| place.position).max().unwrap_or(0);
        let distances = self.position.distances(compute, layer, last)?;
        let scale = 1.0 / (head_dim as f32).sqrt();
        let (caches, queries) = (&**caches, &work.queries);
        let one = |(row, head): (usize, usize), out: &mut [f32]| {
            let place = places[row];
            // it was found a moment ago, when the keys were written; else nothing here is to pass for a number
            let Ok(cache) = caches.cache(place.sequence) else { return out.fill(f32::NAN) };
            let at = (row * heads + head) * head_dim;
            let content = &queries.content[at..at + head_dim];
            let distance = distances.map(|table| (&queries.distance[at..at + head_dim], table));
            let (pages, position) = (cache.pages(), place.position);
            // the row before, in a chunk of the same sequence, has just read the same pages
            let near = row > 0 && places[row - 1].sequence == place.sequence;
            let query = Query { pages, layout, layer, head, position, content, distance, scale, near };
            attend(compute.isa, &query, out);
        };
        let keys: usize = places.iter().map(|place| place.position + 1).sum();
        let share = keys * heads * head_dim >= WORTH_SHARING;
        let mixed = sized(&mut work.mixed, rows * heads * head_dim);
        // a head's rows come one after the other: they read the same distances
        compute.pool.columns(mixed, (rows, heads), share, &one);
        Ok(())
    }

    /// `work.change` (rows, D) = feed-forward of `x`.
    fn feed_forward(&self, compute: &Compute, layer: &Layer, x: &[f32], work: &mut StackWork) {
        let width = layer.up.outputs();
        let wide = sized(&mut work.wide, x.len() / layer.up.inputs() * width);
        layer.up.apply(compute, x, self.activation.then(), &mut work.quantized, wide); // (rows, F)
        let change = sized(&mut work.change, x.len());
        layer.down.apply(compute, wide, Then::Nothing, &mut work.quantized, change); // (rows, D)
    }
}
