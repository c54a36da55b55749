//! A causal stack of T5 layers over cached keys, with or without cross-attention.
//!
//! One pass takes any mixture of positions, as in [`attention::stack`](crate::nn::attention::stack), and a position's arithmetic
//! is the same in all of them.

use super::layer::{FeedForwardBuffers, FeedForwardHidden, T5Layer};
use crate::{
    error::Result,
    kernels::{
        Compute,
        attention::{AttentionHead, PageLayout, QueryBuffer, QueryRow, QueryVariants},
        linear::{Epilogue, QuantizedRows},
        rowwise::{RmsNorm, rms_norm},
    },
    nn::{
        Position,
        attention::{
            cross::{self, MemoryAttention, MemoryPart},
            layer::{Caches, Cross, Hook, HookPoint, add},
            mix::{Mixing, mix},
        },
        kv_cache::KvCache,
        position::PositionScheme,
        sized,
    },
};

/// Layers that share caches.
pub struct T5Stack {
    /// Layers, bottom first.
    pub layers: Vec<T5Layer>,
    /// Score bias by distance, shared by all layers: buckets or none.
    pub position: PositionScheme,
    /// Layout of the self-attention cache's pages.
    pub layout: PageLayout,
    /// True if every softmax has one more key, of score zero and value zero.
    pub sink: bool,
    /// Norm after the last layer: (D)
    pub norm: RmsNorm,
}

/// The memories of a step's sequences.
pub struct T5Memory<'a, C> {
    /// The last memory position that each position of the step attends to, with its sequence.
    pub positions: &'a [Position],
    /// Finds the cache of a sequence's memory.
    pub cache: fn(&C, usize) -> Result<&KvCache>,
}

/// Buffers of a pass, kept between steps.
#[derive(Default)]
pub struct T5Work {
    /// Quantized inputs of matrix products.
    pub quantized: QuantizedRows,
    normed: Vec<f32>,
    qkv: Vec<f32>,
    queries: QueryBuffer,
    head_outputs: Vec<f32>,
    hidden: FeedForwardHidden,
    /// Output of the last sub-layer: (positions, D).
    delta: Vec<f32>,
    /// Receives the output of each layer in golden tests; `None` in servers.
    pub hook: Option<Hook>,
}

/// Arguments that all sub-layers of one pass share.
struct T5Pass<'a, C> {
    compute: &'a Compute,
    positions: &'a [Position],
    caches: &'a mut C,
    work: &'a mut T5Work,
}

impl T5Stack {
    /// Runs `x` through all layers in place, and writes keys and values into the caches.
    ///
    /// `x` is (positions, D), or of the width that the first layer takes. The caches must have the positions reserved.
    /// Positions of one sequence come in rising order, without a gap after the cache's end. Fails if a cache cannot be found
    /// or lacks reserved positions.
    pub fn forward<C: Caches>(
        &self,
        compute: &Compute,
        x: &mut Vec<f32>,
        positions: &[Position],
        caches: &mut C,
        memory: Option<&T5Memory<'_, C>>,
        work: &mut T5Work,
    ) -> Result<()> {
        if positions.is_empty() {
            return Ok(());
        }
        let mut pass = T5Pass { compute, positions, caches, work };
        for (index, layer) in self.layers.iter().enumerate() {
            self.attention(index, x, &mut pass)?;
            if layer.output.outputs() == layer.qkv.inputs() {
                add(x, &pass.work.delta);
            } else {
                x.clear();
                x.extend_from_slice(&pass.work.delta); // (positions, E) → (positions, D)
            }
            if let (Some(cross), Some(memory)) = (&layer.cross, memory) {
                cross_attention(index, cross, memory, self.sink, x, &mut pass)?;
                add(x, &pass.work.delta);
            }
            let T5Work { quantized, normed, hidden, delta, hook, .. } = &mut *pass.work;
            let buffers = FeedForwardBuffers { quantized, normed, hidden, delta };
            layer.feed_forward(compute, x, buffers);
            if let Some(hook) = hook {
                hook(HookPoint::Layer, index, positions, x);
            }
        }
        let normed = sized(&mut pass.work.normed, x.len());
        rms_norm(compute, x, &self.norm, normed);
        x.copy_from_slice(normed);
        Ok(())
    }

    /// Writes the causal self-attention of `x` to `work.delta`: (positions, D). Scores are unscaled.
    fn attention<C: Caches>(&self, index: usize, x: &[f32], pass: &mut T5Pass<'_, C>) -> Result<()> {
        let T5Pass { compute, positions, caches, work } = pass;
        let layer = &self.layers[index];
        let inner = self.layout.heads * self.layout.head_dim;
        let normed = sized(&mut work.normed, x.len());
        rms_norm(compute, x, &layer.attention_norm, normed);
        let qkv = sized(&mut work.qkv, positions.len() * 3 * inner);
        layer.qkv.apply(compute, normed, Epilogue::None, &mut work.quantized, qkv); // (positions, 3·I)
        let queries = work.queries.values_mut(positions.len() * inner).chunks_exact_mut(inner); // (positions, I)
        for ((position, row), query) in positions.iter().zip(qkv.chunks_exact(3 * inner)).zip(queries) {
            query.copy_from_slice(&row[..inner]);
            let (keys, values) = row[inner..].split_at(inner);
            caches.cache_mut(position.sequence)?.write(index, position.index, keys, values)?;
        }
        work.queries.finish(compute, self.layout.dtype, self.layout.head_dim);
        let caches = &**caches;
        let queries = &work.queries;
        let query = |row: usize, head: usize| {
            let content = QueryVariants::single(queries, row * self.layout.heads + head);
            QueryRow { first_key: 0, position: positions[row].index, content, ..QueryRow::default() }
        };
        let terms = |head| self.head(index, head);
        let keys = positions.iter().map(|position| position.index + 1).sum();
        let mixing = Mixing { compute, layout: &self.layout, positions, keys };
        mix(&mixing, &|sequence| caches.cache(sequence), &query, &terms, &mut work.head_outputs); // (positions, I)
        let delta = sized(&mut work.delta, positions.len() * layer.output.outputs());
        layer.output.apply(compute, &work.head_outputs, Epilogue::None, &mut work.quantized, delta); // (positions, D)
        Ok(())
    }

    /// Returns the terms of a head's scores.
    fn head(&self, layer: usize, head: usize) -> AttentionHead<'_> {
        AttentionHead {
            bias: self.position.bias(head),
            scale: 1.0,
            sink: self.sink,
            ..AttentionHead::new(&self.layout, layer, head)
        }
    }

    /// Projects the vectors of a memory, (vectors, C): see [`cross::project_memory`]. Returns the first error of `write`.
    pub fn project_memory(
        &self,
        compute: &Compute,
        vectors: &[f32],
        work: &mut T5Work,
        write: impl FnMut(usize, usize, &[f32], &[f32]) -> Result<()>,
    ) -> Result<()> {
        let layers = self.layers.iter().enumerate();
        let projections = layers.filter_map(|(index, layer)| Some((index, &layer.cross.as_ref()?.memory)));
        cross::project_memory(compute, projections, vectors, &mut work.qkv, &mut work.quantized, write)
    }
}

/// Writes the attention of `x` to the sequences' memories into `work.delta`: (positions, D).
fn cross_attention<C: Caches>(
    index: usize,
    cross: &Cross<RmsNorm>,
    memory: &T5Memory<'_, C>,
    sink: bool,
    x: &[f32],
    pass: &mut T5Pass<'_, C>,
) -> Result<()> {
    let T5Pass { compute, caches, work, .. } = pass;
    let Some(first) = memory.positions.first() else { return Ok(()) };
    let caches = &**caches;
    let layout = *(memory.cache)(caches, first.sequence)?.layout();
    let normed = sized(&mut work.normed, x.len());
    rms_norm(compute, x, &cross.norm, normed);
    let rows = memory.positions.len();
    let queries = work.queries.values_mut(rows * cross.query.outputs());
    cross.query.apply(compute, normed, Epilogue::None, &mut work.quantized, queries); // (positions, I)
    let keys = memory.positions.iter().map(|position| position.index + 1).sum();
    let job = MemoryAttention { compute, layout: &layout, layer: index, rows, keys, scale: 1.0, sink };
    let part = |row: usize| {
        let Position { sequence, index } = memory.positions[row];
        Some(MemoryPart { memory: (memory.cache)(caches, sequence).ok()?, last: index })
    };
    job.run(&part, &mut work.queries, &mut work.head_outputs); // (positions, I)
    let delta = sized(&mut work.delta, x.len());
    cross.output.apply(compute, &work.head_outputs, Epilogue::None, &mut work.quantized, delta); // (positions, D)
    Ok(())
}
