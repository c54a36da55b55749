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
        attention::{Layout, Row, Source, TOGETHER, attend},
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
        self.position.prepare(compute, layout, places, qkv, &mut work.queries); // (rows, I) each
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
        let some = |(first, head): (usize, usize), outs: &mut [&mut [f32]]| {
            let mut queries_at = [Row::default(); TOGETHER];
            for (index, row) in queries_at.iter_mut().enumerate().take(outs.len()) {
                let (at, position) = ((first + index) * heads + head, places[first + index].position);
                *row = Row { position, content: queries.content.get(at), distance: queries.distance.get(at) };
            }
            let mut rest = (first, &queries_at[..outs.len()], outs);
            while let (first, [_, ..], _) = rest {
                let run = run_of(&places[first..first + rest.1.len()]);
                let (rows, later_rows) = rest.1.split_at(run);
                let (outs, later_outs) = rest.2.split_at_mut(run);
                let sequence = places[first].sequence;
                // the rows before, in a chunk of the same sequence, have just read the same pages
                let near = first > 0 && places[first - 1].sequence == sequence;
                match caches.cache(sequence) {
                    Ok(cache) => {
                        let source = Source { pages: cache.pages(), layout, layer, head, distances, scale, near };
                        attend(compute.isa, &source, rows, outs);
                    }
                    // it was found a moment ago, when the keys were written; else nothing here is to pass for a number
                    Err(_) => outs.iter_mut().for_each(|out| out.fill(f32::NAN)),
                }
                rest = (first + run, later_rows, later_outs);
            }
        };
        let keys: usize = places.iter().map(|place| place.position + 1).sum();
        let share = keys * heads * head_dim >= WORTH_SHARING;
        let mixed = sized(&mut work.mixed, rows * heads * head_dim);
        // a head's rows come one after the other: they read the same distances
        compute.pool.columns::<TOGETHER>(mixed, (rows, heads), share, &some);
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

/// How many rows from the first on are neighbours in one sequence.
fn run_of(places: &[Place]) -> usize {
    let follows = |pair: &&[Place]| pair[0].sequence == pair[1].sequence && pair[0].position + 1 == pair[1].position;
    1 + places.windows(2).take_while(follows).count()
}
