//! The stack of T5 (Raffel et al. 2020, v1.0), made causal, over cached keys: norms by the root of the mean square before each
//! part, no biases, scores without a scale but with a learned number for each bucket of distances, and, in a decoder, attention
//! to a memory.
//!
//! x += attention(rms(x)); in a decoder x += attention(rms(x), memory); x += down(relu(up(rms(x)))); after the last layer one
//! more norm. As in [`nn::stack`](crate::nn::stack) any mixture of rows is one pass, and a row's arithmetic is the same in all.

use super::{
    Position,
    attention::{
        layer::{Caches, add},
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
    /// Bottom first.
    pub layers: Vec<T5Layer>,
    /// What scores owe to their distances, in all layers: buckets, or nothing.
    pub position: PositionScheme,
    /// What the cache of their own keys looks like.
    pub layout: PageLayout,
    /// After the last layer: (D)
    pub norm: RmsNorm,
}

/// One layer's weights. D = width, I = heads · head_dim, F = inner width of the feed-forward.
pub struct T5Layer {
    /// (D), or (E) where the layer takes vectors of another width E.
    pub attention_norm: RmsNorm,
    /// (3·I, D): queries, keys, values; (3·I, E) in such a layer.
    pub qkv: Linear,
    /// (D, I). A layer that takes another width has no residual around its attention.
    pub output: Linear,
    /// Attention to a memory, in a decoder.
    pub cross: Option<T5Cross>,
    /// (D)
    pub feed_forward_norm: RmsNorm,
    /// (F, D)
    pub up: Linear,
    /// (D, F)
    pub down: Linear,
}

/// Attention to a memory of vectors of width C.
pub struct T5Cross {
    /// (D)
    pub norm: RmsNorm,
    /// (I, D)
    pub query: Linear,
    /// (2·I, C): keys, values.
    pub memory: Linear,
    /// (D, I)
    pub output: Linear,
}

/// A memory: up to which position of its sequence's each row sees it, and where a sequence's is.
pub struct T5Memory<'a, C> {
    /// One position a row.
    pub positions: &'a [Position],
    /// A sequence's cache.
    pub cache: fn(&C, usize) -> Result<&KvCache>,
}

/// Buffers of a pass, kept between steps.
#[derive(Default)]
pub struct T5Work {
    /// The products'.
    pub quantized: QuantizedRows,
    normed: Vec<f32>,
    qkv: Vec<f32>,
    queries: QueryBuffer,
    mixed: Vec<f32>,
    wide: Vec<f32>,
    change: Vec<f32>,
}

/// What one pass through all layers works with.
struct Pass<'a, C> {
    compute: &'a Compute,
    positions: &'a [Position],
    caches: &'a mut C,
    work: &'a mut T5Work,
}

impl T5Stack {
    /// Runs rows `x` at `positions` through all layers, in position: (rows, D), or of another width that the first layer takes. Their
    /// keys and values go into the caches, whose positions must be reserved. PagedVectors of one sequence come in rising position, none
    /// left out since the cache's end.
    ///
    /// # Errors
    /// A cache that cannot be found or was not reserved.
    pub fn forward<C: Caches>(
        &self,
        compute: &Compute,
        x: &mut Vec<f32>,
        positions: &[Position],
        (caches, memory): (&mut C, Option<&T5Memory<'_, C>>),
        work: &mut T5Work,
    ) -> Result<()> {
        if positions.is_empty() {
            return Ok(());
        }
        let mut pass = Pass { compute, positions, caches, work };
        for (index, layer) in self.layers.iter().enumerate() {
            self.attention(index, x, &mut pass)?;
            if layer.output.outputs() == layer.qkv.inputs() {
                add(x, &pass.work.change);
            } else {
                x.clear();
                x.extend_from_slice(&pass.work.change);
            }
            if let (Some(cross), Some(memory)) = (&layer.cross, memory) {
                forward(index, cross, memory, x, &mut pass)?;
                add(x, &pass.work.change);
            }
            feed_forward(compute, layer, x, pass.work);
            add(x, &pass.work.change);
        }
        let normed = sized(&mut pass.work.normed, x.len());
        rms_norm(compute, x, &self.norm, normed);
        x.copy_from_slice(normed);
        Ok(())
    }

    /// `change` (rows, D) = attention of `x`.
    fn attention<C: Caches>(&self, index: usize, x: &[f32], pass: &mut Pass<'_, C>) -> Result<()> {
        let Pass { compute, positions, caches, work } = pass;
        let (layer, layout, rows) = (&self.layers[index], &self.layout, positions.len());
        let inner = layout.heads * layout.head_dim;
        let normed = sized(&mut work.normed, x.len());
        rms_norm(compute, x, &layer.attention_norm, normed);
        let qkv = sized(&mut work.qkv, rows * 3 * inner);
        layer.qkv.apply(compute, normed, Epilogue::None, &mut work.quantized, qkv); // (rows, 3·I)
        let queries = work.queries.values_mut(rows * inner);
        for ((position, row), query) in
            positions.iter().zip(qkv.chunks_exact(3 * inner)).zip(queries.chunks_exact_mut(inner))
        {
            query.copy_from_slice(&row[..inner]);
            let (keys, values) = row[inner..].split_at(inner);
            caches.cache_mut(position.sequence)?.write(index, position.index, keys, values)?;
        }
        let caches = &**caches;
        let (cache, bias) = (|sequence| caches.cache(sequence), |head| self.position.bias(head));
        unscaled((compute, layout, index), positions, &cache, &bias, &mut work.queries, &mut work.mixed); // (rows, I)
        let change = sized(&mut work.change, rows * layer.output.outputs());
        layer.output.apply(compute, &work.mixed, Epilogue::None, &mut work.quantized, change); // (rows, D)
        Ok(())
    }

    /// Hands the keys and values, (I) each, that each layer has for the vectors of a memory, (rows, C), to `write`, with the
    /// layer and the row.
    ///
    /// # Errors
    /// What `write` says.
    pub fn project_memory(
        &self,
        compute: &Compute,
        rows: &[f32],
        work: &mut T5Work,
        mut write: impl FnMut((usize, usize), &[f32], &[f32]) -> Result<()>,
    ) -> Result<()> {
        for (index, cross) in
            self.layers.iter().enumerate().filter_map(|(index, layer)| Some((index, layer.cross.as_ref()?)))
        {
            let (width, both) = (cross.memory.inputs(), cross.memory.outputs());
            let qkv = sized(&mut work.qkv, rows.len() / width * both);
            cross.memory.apply(compute, rows, Epilogue::None, &mut work.quantized, qkv); // (rows, 2·I)
            for (row, both) in qkv.chunks_exact(both).enumerate() {
                let (keys, values) = both.split_at(both.len() / 2);
                write((index, row), keys, values)?;
            }
        }
        Ok(())
    }
}

/// `change` (rows, D) = attention of `x` to a memory.
fn forward<C: Caches>(
    layer: usize,
    cross: &T5Cross,
    memory: &T5Memory<'_, C>,
    x: &[f32],
    pass: &mut Pass<'_, C>,
) -> Result<()> {
    let Pass { compute, caches, work, .. } = pass;
    let Some(first) = memory.positions.first() else { return Ok(()) };
    let caches = &**caches;
    let layout = *(memory.cache)(caches, first.sequence)?.layout();
    let normed = sized(&mut work.normed, x.len());
    rms_norm(compute, x, &cross.norm, normed);
    let queries = work.queries.values_mut(memory.positions.len() * cross.query.outputs());
    cross.query.apply(compute, normed, Epilogue::None, &mut work.quantized, queries); // (rows, I)
    let cache = |sequence: usize| (memory.cache)(caches, sequence);
    unscaled((compute, &layout, layer), memory.positions, &cache, &|_| Bias::None, &mut work.queries, &mut work.mixed); // (rows, I)
    let change = sized(&mut work.change, x.len());
    cross.output.apply(compute, &work.mixed, Epilogue::None, &mut work.quantized, change); // (rows, D)
    Ok(())
}

/// `work.change` (rows, D) = feed-forward of `x`.
fn feed_forward(compute: &Compute, layer: &T5Layer, x: &[f32], work: &mut T5Work) {
    let normed = sized(&mut work.normed, x.len());
    rms_norm(compute, x, &layer.feed_forward_norm, normed);
    let wide = sized(&mut work.wide, x.len() / layer.up.inputs() * layer.up.outputs());
    layer.up.apply(compute, normed, Epilogue::Relu, &mut work.quantized, wide); // (rows, F)
    let change = sized(&mut work.change, x.len());
    layer.down.apply(compute, wide, Epilogue::None, &mut work.quantized, change); // (rows, D)
}

/// `mixed` (rows, I) = each head's values up to each row's position, weighted by the softmax of the queries' unscaled scores.
fn unscaled<'a>(
    (compute, layout, layer): (&Compute, &PageLayout, usize),
    positions: &[Position],
    cache: &(impl Fn(usize) -> Result<&'a KvCache> + Sync),
    bias: &(impl Fn(usize) -> Bias<'a> + Sync),
    queries: &mut QueryBuffer,
    mixed: &mut Vec<f32>,
) {
    queries.finish(compute, layout.dtype, layout.head_dim);
    let queries = &*queries;
    let row = |at: usize, head: usize| {
        let content = QueryVariants::single(queries, at * layout.heads + head);
        QueryRow { first_key: 0, position: positions[at].index, content, ..QueryRow::default() }
    };
    let source = |cache: &'a KvCache, head: usize, near: bool| {
        let (pages, start, block, layout) = (cache.pages(), cache.start(), usize::MAX, cache.layout());
        let (distances, bias) = (None, bias(head));
        AttentionHead { pages, start, layout, layer, head, block, distances, bias, scale: 1.0, recently_read: near }
    };
    let keys = positions.iter().map(|position| position.index + 1).sum();
    let mixing = Mixing { compute, layout, positions, keys };
    mix(&mixing, cache, &row, &source, mixed);
}
