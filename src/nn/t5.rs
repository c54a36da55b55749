//! The stack of T5 (Raffel et al. 2020, v1.0), made causal, over cached keys.
//!
//! x += attention(rms(x)); in a decoder x += attention(rms(x), memory); x += down(relu(up(rms(x)))); one more norm after
//! the last layer. Norms divide by the root of the mean square, there are no biases, and scores are unscaled with a learned
//! number for each bucket of distances. One pass takes any mixture of positions, as in
//! [`attention::stack`](super::attention::stack), and a position's arithmetic is the same in all of them.

use super::{
    Position,
    attention::{
        cross,
        layer::{Caches, Cross, add},
        mix::{Mixing, mix},
    },
    kv_cache::KvCache,
    position::PositionScheme,
    sized,
};
use crate::{
    error::Result,
    kernels::{
        Compute,
        attention::{AttentionHead, Bias, PageLayout, QueryBuffer, QueryRow, QueryVariants},
        linear::{Epilogue, Linear, QuantizedRows},
        rowwise::{RmsNorm, rms_norm},
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
    /// Norm after the last layer: (D)
    pub norm: RmsNorm,
}

/// One layer's weights. D = width, I = heads · head_dim, F = inner width of the feed-forward.
pub struct T5Layer {
    /// (D), or (E) if the layer takes vectors of another width E.
    pub attention_norm: RmsNorm,
    /// Queries, keys, values: (3·I, D), or (3·I, E).
    pub qkv: Linear,
    /// (D, I). A layer that takes another width has no residual around its attention.
    pub output: Linear,
    /// Cross-attention, in a decoder.
    pub cross: Option<Cross<RmsNorm>>,
    /// (D)
    pub feed_forward_norm: RmsNorm,
    /// (F, D)
    pub up: Linear,
    /// (D, F)
    pub down: Linear,
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
    hidden: Vec<f32>,
    /// Output of the last sub-layer: (positions, D).
    delta: Vec<f32>,
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
                cross_attention(index, cross, memory, x, &mut pass)?;
                add(x, &pass.work.delta);
            }
            feed_forward(compute, layer, x, pass.work);
            add(x, &pass.work.delta);
        }
        let normed = sized(&mut pass.work.normed, x.len());
        rms_norm(compute, x, &self.norm, normed);
        x.copy_from_slice(normed);
        Ok(())
    }

    /// Writes the self-attention of `x` to `work.delta`: (positions, D).
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
        let caches = &**caches;
        let job = UnscaledAttention { compute, layout: &self.layout, layer: index, positions };
        let cache = |sequence| caches.cache(sequence);
        job.run(&cache, &|head| self.position.bias(head), &mut work.queries, &mut work.head_outputs); // (positions, I)
        let delta = sized(&mut work.delta, positions.len() * layer.output.outputs());
        layer.output.apply(compute, &work.head_outputs, Epilogue::None, &mut work.quantized, delta); // (positions, D)
        Ok(())
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
    layer: usize,
    cross: &Cross<RmsNorm>,
    memory: &T5Memory<'_, C>,
    x: &[f32],
    pass: &mut T5Pass<'_, C>,
) -> Result<()> {
    let T5Pass { compute, caches, work, .. } = pass;
    let Some(first) = memory.positions.first() else { return Ok(()) };
    let caches = &**caches;
    let layout = *(memory.cache)(caches, first.sequence)?.layout();
    let normed = sized(&mut work.normed, x.len());
    rms_norm(compute, x, &cross.norm, normed);
    let queries = work.queries.values_mut(memory.positions.len() * cross.query.outputs());
    cross.query.apply(compute, normed, Epilogue::None, &mut work.quantized, queries); // (positions, I)
    let job = UnscaledAttention { compute, layout: &layout, layer, positions: memory.positions };
    let cache = |sequence: usize| (memory.cache)(caches, sequence);
    job.run(&cache, &|_| Bias::None, &mut work.queries, &mut work.head_outputs); // (positions, I)
    let delta = sized(&mut work.delta, x.len());
    cross.output.apply(compute, &work.head_outputs, Epilogue::None, &mut work.quantized, delta); // (positions, D)
    Ok(())
}

/// Writes the feed-forward of `x`, (positions, D), to `work.delta`.
fn feed_forward(compute: &Compute, layer: &T5Layer, x: &[f32], work: &mut T5Work) {
    let normed = sized(&mut work.normed, x.len());
    rms_norm(compute, x, &layer.feed_forward_norm, normed);
    let hidden = sized(&mut work.hidden, x.len() / layer.up.inputs() * layer.up.outputs());
    layer.up.apply(compute, normed, Epilogue::Relu, &mut work.quantized, hidden); // (positions, F)
    let delta = sized(&mut work.delta, x.len());
    layer.down.apply(compute, hidden, Epilogue::None, &mut work.quantized, delta); // (positions, D)
}

/// One layer's attention with unscaled scores: each query attends to all keys up to its position.
struct UnscaledAttention<'a> {
    compute: &'a Compute,
    layout: &'a PageLayout,
    layer: usize,
    positions: &'a [Position],
}

impl UnscaledAttention<'_> {
    /// Writes the weighted values of each head, (positions, I), to `head_outputs`.
    fn run<'a>(
        &self,
        cache: &(impl Fn(usize) -> Result<&'a KvCache> + Sync),
        bias: &(impl Fn(usize) -> Bias<'a> + Sync),
        queries: &mut QueryBuffer,
        head_outputs: &mut Vec<f32>,
    ) {
        let Self { compute, layout, layer, positions } = *self;
        queries.finish(compute, layout.dtype, layout.head_dim);
        let queries = &*queries;
        let query = |row: usize, head: usize| {
            let content = QueryVariants::single(queries, row * layout.heads + head);
            QueryRow { first_key: 0, position: positions[row].index, content, ..QueryRow::default() }
        };
        let source = |cache: &'a KvCache, head: usize, recently_read: bool| AttentionHead {
            bias: bias(head),
            scale: 1.0,
            recently_read,
            ..cache.attention_head(layer, head)
        };
        let keys = positions.iter().map(|position| position.index + 1).sum();
        mix(&Mixing { compute, layout, positions, keys }, cache, &query, &source, head_outputs);
    }
}
