//! Transformer layers and their attention.
//!
//! A [`Stack`] runs decoder layers over cached keys and may attend to a memory. [`Stack::forward`] takes any mixture of positions:
//! many of one sequence (a prefill chunk, a whole text), one of many sequences (a decode step), or both. There is no separate step
//! function: a position's arithmetic is the same in every mixture, so incremental and bulk results agree to the bit.
//!
//! [`encoder`](super::encoder) has the layers that look both ways.

use crate::nn::{
    Activation, Position,
    kv_cache::KvCache,
    position::{PositionScheme, Queries},
    sized,
    window::Window,
};
use weir_kernels::{
    Compute,
    attention::{
        AttentionHead, DistanceTable, KeyPages, POSITIONS, PageLayout, QueryBuffer, QueryRow, QueryVariants, ROW_TILE,
        attend, scores,
    },
    error::{Error, Result},
    linear::{Epilogue, Linear, QuantizedRows},
    rowwise::{LayerNorm, RmsNorm, add_layer_norm, layer_norm, rms_norm},
};

/// Weights of a layer's cross-attention to a memory of vectors of width C. D = width, I = heads · head_dim.
pub struct Cross<N> {
    /// Applied after the residual sum, or before attention: (D)
    pub norm: N,
    /// (I, D)
    pub query: Linear,
    /// (2·I, C): keys, values.
    pub memory: Linear,
    /// (D, I)
    pub output: Linear,
}

/// Placement of a layer's norms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormOrder {
    /// x ← norm(x + sublayer(x)).
    Post,
    /// x ← x + sublayer(norm(x)).
    Pre,
}

/// One layer's weights. D = width, I = heads · head_dim, F = inner width of the feed-forward.
pub struct Layer {
    /// (3·I, D): queries, keys, values.
    pub qkv: Linear,
    /// (D, I)
    pub output: Linear,
    /// Applied after attention's residual sum, or before attention.
    pub attention_norm: LayerNorm,
    /// Optional norm between the heads and `output`, (I): a sub-layer norm (Wang et al. 2022).
    pub context_norm: Option<LayerNorm>,
    /// (F, D)
    pub up: Linear,
    /// (D, F)
    pub down: Linear,
    /// Applied after the feed-forward's residual sum, or before the feed-forward.
    pub feed_forward_norm: LayerNorm,
    /// Optional sub-layer norm between the nonlinearity and `down`: (F).
    pub hidden_norm: Option<LayerNorm>,
    /// Optional cross-attention, between self-attention and feed-forward.
    pub cross: Option<Cross<LayerNorm>>,
}

/// Finds the caches of a step's sequences.
pub trait Caches: Sync {
    /// Returns a sequence's cache.
    fn cache(&self, sequence: usize) -> Result<&KvCache>;
    /// Returns a sequence's cache for writing.
    fn cache_mut(&mut self, sequence: usize) -> Result<&mut KvCache>;
    /// Returns the memory that a sequence's cross-attention reads. Fails if it has none.
    fn memory(&self, sequence: usize) -> Result<MemoryPart<'_>> {
        Err(Error::Internal(format!("sequence {sequence} has no memory")))
    }
}

/// The part of a memory that a position attends to.
pub struct MemoryPart<'a> {
    /// Keys and values of all vectors.
    pub cache: &'a KvCache,
    /// Index of the last vector.
    pub last: usize,
}

/// Intermediate result of a layer that a [`Hook`] receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HookPoint {
    /// The heads' outputs, concatenated: (positions, I).
    Heads,
    /// Output of the attention sub-layer, before the residual sum: (positions, D).
    Attention,
    /// Output of the layer: (positions, D).
    Layer,
}

/// Receives a layer's intermediate results: which one, the layer, the positions, and the vectors.
pub type Hook = Box<dyn FnMut(HookPoint, usize, &[Position], &[f32]) + Send>;

/// Buffers of a pass, kept between steps.
#[derive(Default)]
pub struct StackWork {
    /// Receives intermediate results in golden tests; `None` in servers.
    pub hook: Option<Hook>,
    /// Quantized inputs of matrix products.
    pub quantized: QuantizedRows,
    /// Sums the weights of cross-attention by vector of the memory, over heads and layers, if they are wanted.
    pub attended: Option<Vec<f32>>,
    pub(super) qkv: Vec<f32>,
    queries: Queries,
    cross_queries: QueryBuffer,
    pub(super) normed: Vec<f32>,
    pub(super) head_outputs: Vec<f32>,
    pub(super) hidden: Vec<f32>,
    gate: Vec<f32>,
    /// Output of the last sub-layer: (positions, D).
    pub(super) delta: Vec<f32>,
}

pub(super) struct StackPass<'a, C> {
    pub(super) compute: &'a Compute,
    pub(super) positions: &'a [Position],
    pub(super) caches: &'a mut C,
    pub(super) work: &'a mut StackWork,
}

/// Copies the norm of `x`, (positions, D), into `normed`.
pub(super) fn copy_norm<'a>(compute: &Compute, x: &[f32], norm: &LayerNorm, normed: &'a mut Vec<f32>) -> &'a [f32] {
    normed.clear();
    normed.extend_from_slice(x);
    layer_norm(compute, normed, norm);
    normed
}

/// Keeps of `count` rows of equal length those with the indices `kept`, in rising order.
fn keep_rows(rows: &mut Vec<f32>, count: usize, kept: &[usize]) {
    let len = rows.len() / count.max(1);
    for (to, from) in kept.iter().enumerate() {
        rows.copy_within(from * len..(from + 1) * len, to * len);
    }
    rows.truncate(kept.len() * len);
}

/// Adds `delta` to `x`, which has the same length.
pub fn add(x: &mut [f32], delta: &[f32]) {
    for (x, delta) in x.iter_mut().zip(delta) {
        *x += delta;
    }
}

// Causal attention of many queries over their sequences' caches. Positions that share pages, such as those of a prompt or of forks, read them together.

/// Multiply-adds of attention below which waking other threads costs more than it saves.
pub(crate) const WORTH_SHARING: usize = 1 << 18;

/// Maximum rows of one call of the kernel if neighbouring rows share no pages: with smaller tasks threads wait less.
const UNSHARED_TILE: usize = 8;

const _: () = assert!(UNSHARED_TILE <= ROW_TILE);

/// The weights and settings of a layer's self-attention. D = width, I = heads · head_dim.
pub(super) struct SelfAttention<'a> {
    pub(super) layer: usize,
    /// (3·I, D): queries, keys, values.
    pub(super) qkv: &'a Linear,
    /// (D, I)
    pub(super) output: &'a Linear,
    /// Norm between the heads and `output`: (I).
    pub(super) context_norm: Option<&'a LayerNorm>,
    pub(super) position: &'a PositionScheme,
    pub(super) window: Window,
    pub(super) layout: &'a PageLayout,
    pub(super) softmax: Softmax,
}

/// Settings of a softmax over keys.
#[derive(Clone, Copy)]
pub(super) struct Softmax {
    /// Factor of every score.
    pub(super) scale: f32,
    /// True if there is one more key, of score zero and value zero.
    pub(super) sink: bool,
}

impl Softmax {
    /// Returns a softmax over scores that are divided by √head_dim.
    pub(super) fn scaled(layout: &PageLayout) -> Self {
        Self { scale: 1.0 / (layout.head_dim as f32).sqrt(), sink: false }
    }

    fn add_weights(self, scores: &[f32], sums: &mut [f32]) {
        let max = scores.iter().copied().fold(if self.sink { 0.0 } else { f32::NEG_INFINITY }, f32::max);
        let sink = if self.sink { (-max).exp() } else { 0.0 };
        let total = scores.iter().fold(sink, |total, score| total + (score - max).exp());
        sums.iter_mut().zip(scores).for_each(|(sum, score)| *sum += (score - max).exp() / total);
    }
}

impl SelfAttention<'_> {
    /// Writes the self-attention of `x`, (positions, D), to `work.delta`; the output matrix may have another width. Fails if a
    /// cache cannot be found or lacks reserved positions.
    pub(super) fn forward(&self, x: &[f32], pass: &mut StackPass<'_, impl Caches>) -> Result<()> {
        self.write(x, pass)?;
        self.attend(pass)
    }

    /// Writes the keys and values of `x`, (positions, D), to the caches, and its queries to `work`. Fails as
    /// [`forward`](Self::forward) does.
    fn write(&self, x: &[f32], pass: &mut StackPass<'_, impl Caches>) -> Result<()> {
        let StackPass { compute, positions, caches, work } = pass;
        let inner = self.layout.heads * self.layout.head_dim;
        let qkv = sized(&mut work.qkv, positions.len() * 3 * inner);
        self.qkv.apply(compute, x, Epilogue::None, &mut work.quantized, qkv); // (positions, 3·I)
        self.position.prepare(compute, self.layout, self.window, positions, qkv, &mut work.queries); // (positions, I) each
        for (position, row) in positions.iter().zip(qkv.chunks_exact(3 * inner)) {
            let (keys, values) = row[inner..].split_at(inner);
            caches.cache_mut(position.sequence)?.write(compute.isa, self.layer, position.index, keys, values)?;
        }
        Ok(())
    }

    /// Writes the attention of the queries in `work` to `work.delta`.
    fn attend(&self, pass: &mut StackPass<'_, impl Caches>) -> Result<()> {
        self.mix(pass)?; // (positions, I)
        let StackPass { compute, positions, work, .. } = pass;
        if let Some(hook) = &mut work.hook {
            hook(HookPoint::Heads, self.layer, positions, &work.head_outputs);
        }
        if let Some(norm) = self.context_norm {
            layer_norm(compute, &mut work.head_outputs, norm);
        }
        let delta = sized(&mut work.delta, positions.len() * self.output.outputs());
        self.output.apply(compute, &work.head_outputs, Epilogue::None, &mut work.quantized, delta); // (positions, D)
        if let Some(hook) = &mut work.hook {
            hook(HookPoint::Attention, self.layer, positions, delta);
        }
        Ok(())
    }

    /// Writes the weighted values of each head, (positions, I), to `work.head_outputs`.
    fn mix(&self, pass: &mut StackPass<'_, impl Caches>) -> Result<()> {
        let StackPass { compute, positions, caches, work } = pass;
        let heads = self.layout.heads;
        let first_key = |position: &Position| self.window.first_key(position.index);
        // The kernel reads whole pages of keys.
        let furthest = positions.iter().map(|p| p.index - first_key(p) / POSITIONS * POSITIONS).max();
        let distances = self.position.distances(compute, self.layer, furthest.unwrap_or(0))?;
        let caches = &**caches;
        let queries = &work.queries;
        let query = |row: usize, head: usize| QueryRow {
            first_key: first_key(&positions[row]),
            position: positions[row].index,
            content: queries.content(row, head, heads),
            distance: queries.distance(row, head, heads),
            ..QueryRow::default()
        };
        let tile = |first: usize, column: usize, outputs: &mut [&mut [f32]]| {
            let mut rows = [QueryRow::default(); ROW_TILE];
            let rows = &mut rows[..outputs.len()];
            for (index, row) in (first..).zip(&mut *rows) {
                let sequence = positions[index].sequence;
                let Ok(cache) = caches.cache(sequence) else {
                    // Unreachable: writing the keys found the cache. NaN keeps a stale buffer from passing for a result.
                    return outputs.iter_mut().for_each(|out| out.fill(f32::NAN));
                };
                *row = query(index, column);
                // A sequence that was resumed in its middle holds no earlier keys.
                row.first_key = row.first_key.max(cache.first());
                // the tile before this one ended with the same sequence
                let recently_read = index == first && index > 0 && positions[index - 1].sequence == sequence;
                row.keys = KeyPages { recently_read, ..cache.key_pages() };
            }
            attend(compute.isa, &self.head(column, distances), rows, outputs);
        };
        let inner = heads * self.layout.head_dim;
        let keys: usize = positions.iter().map(|position| position.index + 1 - first_key(position)).sum();
        let share = keys * inner >= WORTH_SHARING;
        let outputs = sized(&mut work.head_outputs, positions.len() * inner);
        let neighbours_share = positions.windows(2).any(|pair| {
            let keys = |position: Position| caches.cache(position.sequence).map(KvCache::key_pages);
            keys(pair[0]).is_ok_and(|first| keys(pair[1]).is_ok_and(|second| first.share_with(&second)))
        });
        // A head's positions run one after another because they read the same distance table.
        if neighbours_share {
            compute.pool.for_columns::<ROW_TILE>(outputs, positions.len(), heads, share, &tile);
        } else {
            compute.pool.for_columns::<UNSHARED_TILE>(outputs, positions.len(), heads, share, &tile);
        }
        Ok(())
    }

    /// Returns the terms of a head's scores.
    fn head<'a>(&'a self, head: usize, distances: Option<&'a DistanceTable>) -> AttentionHead<'a> {
        let Softmax { scale, sink } = self.softmax;
        AttentionHead {
            block: self.position.block(),
            distances,
            bias: self.position.bias(head),
            scale,
            sink,
            ..AttentionHead::new(self.layout, self.layer, head)
        }
    }
}

// Cross-attention to a memory: the keys and values of an encoder's output, projected once and read by every position.
// Neighbouring positions of several sequences, as the hypotheses of a beam, read shared pages together.

/// Projects the vectors of a memory, (vectors, C), with each layer's matrix, (2·I, C), to keys and values, (I) each, and passes
/// them to `write` with the layer and the vector's index.
pub fn project_memory<'a>(
    compute: &Compute,
    projections: impl Iterator<Item = (usize, &'a Linear)>,
    vectors: &[f32],
    buffer: &mut Vec<f32>,
    quantized: &mut QuantizedRows,
    mut write: impl FnMut(usize, usize, &[f32], &[f32]) -> Result<()>,
) -> Result<()> {
    for (layer, projection) in projections {
        let projected = sized(buffer, vectors.len() / projection.inputs() * projection.outputs());
        projection.apply(compute, vectors, Epilogue::None, quantized, projected); // (vectors, 2·I)
        for (index, key_value) in projected.chunks_exact(projection.outputs()).enumerate() {
            let (keys, values) = key_value.split_at(key_value.len() / 2);
            write(layer, index, keys, values)?;
        }
    }
    Ok(())
}

impl<N> Cross<N> {
    /// Writes the attention of `x`, (positions, D), to the sequences' memories into `work.delta`. Fails if a memory is missing.
    pub(super) fn forward(
        &self,
        layer: usize,
        softmax: Softmax,
        x: &[f32],
        pass: &mut StackPass<'_, impl Caches>,
    ) -> Result<()> {
        let StackPass { compute, positions, caches, work } = pass;
        let caches = &**caches;
        let Some(first) = positions.first() else { return Ok(()) };
        let layout = *caches.memory(first.sequence)?.cache.layout();
        let queries = work.cross_queries.values_mut(positions.len() * self.query.outputs());
        self.query.apply(compute, x, Epilogue::None, &mut work.quantized, queries); // (positions, I)
        work.cross_queries.finish(compute, layout.dtype, layout.head_dim);
        let mut keys = 0;
        for position in *positions {
            keys += caches.memory(position.sequence)?.last + 1;
        }
        let queries = &work.cross_queries;
        let Softmax { scale, sink } = softmax;
        let tile = |first: usize, column: usize, outputs: &mut [&mut [f32]]| {
            let mut rows = [QueryRow::default(); ROW_TILE];
            let rows = &mut rows[..outputs.len()];
            for (index, row) in (first..).zip(&mut *rows) {
                let Ok(MemoryPart { cache, last }) = caches.memory(positions[index].sequence) else {
                    // Unreachable: the memory was found above. NaN keeps a stale buffer from passing for a result.
                    return outputs.iter_mut().for_each(|out| out.fill(f32::NAN));
                };
                let content = QueryVariants::single(queries, index * layout.heads + column);
                *row = QueryRow { keys: cache.key_pages(), position: last, content, ..QueryRow::default() };
            }
            let head = AttentionHead { scale, sink, ..AttentionHead::new(&layout, layer, column) };
            attend(compute.isa, &head, rows, outputs);
        };
        let head_outputs = sized(&mut work.head_outputs, positions.len() * layout.heads * layout.head_dim);
        let share = keys * layout.heads * layout.head_dim >= WORTH_SHARING;
        compute.pool.for_columns::<ROW_TILE>(head_outputs, positions.len(), layout.heads, share, &tile);
        if let Some(sums) = &mut work.attended {
            let mut row_scores = Vec::new();
            for (row, head) in (0..positions.len()).flat_map(|row| (0..layout.heads).map(move |head| (row, head))) {
                let MemoryPart { cache, last } = caches.memory(positions[row].sequence)?;
                let content = QueryVariants::single(queries, row * layout.heads + head);
                let query = QueryRow { keys: cache.key_pages(), position: last, content, ..QueryRow::default() };
                let terms = AttentionHead { scale, sink, ..AttentionHead::new(&layout, layer, head) };
                scores(compute.isa, &terms, &query, &mut row_scores);
                softmax.add_weights(&row_scores, sums);
            }
        }
        let delta = sized(&mut work.delta, x.len());
        self.output.apply(compute, head_outputs, Epilogue::None, &mut work.quantized, delta); // (positions, D)
        Ok(())
    }
}

/// A feed-forward with a norm before it, and optionally a gate. D = width, F = inner width.
pub struct FeedForward {
    /// (D)
    pub norm: RmsNorm,
    /// The nonlinearity.
    pub activation: Activation,
    /// (F, D): goes through the nonlinearity and multiplies the output of `up`.
    pub gate: Option<Linear>,
    /// (F, D): goes through the nonlinearity itself if there is no gate.
    pub up: Linear,
    /// (D, F)
    pub down: Linear,
}

impl FeedForward {
    /// Adds the feed-forward of `x`, (positions, D), to it.
    pub(super) fn forward(&self, compute: &Compute, x: &mut [f32], work: &mut StackWork) {
        let StackWork { quantized, normed, hidden, gate, delta, .. } = work;
        let normed = sized(normed, x.len());
        rms_norm(compute, x, &self.norm, normed);
        let inner = x.len() / self.up.inputs() * self.up.outputs();
        let up = sized(hidden, inner);
        match &self.gate {
            None => self.up.apply(compute, normed, self.activation.epilogue(), quantized, up), // (positions, F)
            Some(matrix) => {
                let gate = sized(gate, inner);
                matrix.apply(compute, normed, self.activation.epilogue(), quantized, gate); // (positions, F)
                self.up.apply(compute, normed, Epilogue::None, quantized, up); // (positions, F)
                up.iter_mut().zip(gate).for_each(|(up, gate)| *up *= *gate);
            }
        }
        let delta = sized(delta, x.len());
        self.down.apply(compute, up, Epilogue::None, quantized, delta); // (positions, D)
        add(x, delta);
    }

    /// Returns its matrices, in the order in which a position passes them.
    pub fn matrices(&self) -> impl Iterator<Item = &Linear> {
        self.gate.iter().chain([&self.up, &self.down])
    }
}

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
    /// Runs `x`, (positions, D), through all layers in place, and writes keys and values into the caches, which have the
    /// positions reserved. Positions of one sequence come in rising order, without a gap after the cache's end.
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
        for index in 0..self.layers.len() {
            self.write_keys(index, x, &mut pass)?;
            self.finish_layer(index, x, &mut pass)?;
        }
        Ok(())
    }

    /// Does the same, and leaves in `x` only the outputs of the positions with the indices `wanted`, in rising order. The last layer only
    /// writes keys and values of the others.
    pub fn forward_wanted(
        &self,
        compute: &Compute,
        x: &mut Vec<f32>,
        positions: &[Position],
        wanted: &[usize],
        caches: &mut impl Caches,
        work: &mut StackWork,
    ) -> Result<()> {
        let Some(last) = self.layers.len().checked_sub(1).filter(|_| wanted.len() < positions.len()) else {
            return self.forward(compute, x, positions, caches, work);
        };
        self.position.embed(x, positions);
        let mut pass = StackPass { compute, positions, caches, work };
        for index in 0..last {
            self.write_keys(index, x, &mut pass)?;
            self.finish_layer(index, x, &mut pass)?;
        }
        self.write_keys(last, x, &mut pass)?;
        let StackPass { caches, work, .. } = pass;
        keep_rows(x, positions.len(), wanted);
        if wanted.is_empty() {
            return Ok(());
        }
        keep_rows(&mut work.qkv, positions.len(), wanted);
        let kept: Vec<Position> = wanted.iter().filter_map(|&index| positions.get(index).copied()).collect();
        self.position.prepare(compute, &self.layout, self.window, &kept, &mut work.qkv, &mut work.queries);
        self.finish_layer(last, x, &mut StackPass { compute, positions: &kept, caches, work })
    }

    /// Writes a layer's keys and values of `x`, (positions, D), to the caches, and its queries to the pass.
    fn write_keys(&self, index: usize, x: &[f32], pass: &mut StackPass<'_, impl Caches>) -> Result<()> {
        match self.order {
            NormOrder::Post => self.attention(index).write(x, pass),
            NormOrder::Pre => {
                let mut normed = std::mem::take(&mut pass.work.normed);
                copy_norm(pass.compute, x, &self.layers[index].attention_norm, &mut normed);
                self.attention(index).write(&normed, pass)?;
                pass.work.normed = normed;
                Ok(())
            }
        }
    }

    /// Runs `x`, (positions, D), through the rest of a layer in place.
    fn finish_layer(&self, index: usize, x: &mut [f32], pass: &mut StackPass<'_, impl Caches>) -> Result<()> {
        let layer = &self.layers[index];
        let compute = pass.compute;
        let softmax = Softmax::scaled(&self.layout);
        self.attention(index).attend(pass)?;
        match self.order {
            NormOrder::Post => {
                add_layer_norm(compute, x, &pass.work.delta, &layer.attention_norm);
                if let Some(weights) = &layer.cross {
                    weights.forward(index, softmax, x, pass)?;
                    add_layer_norm(compute, x, &pass.work.delta, &weights.norm);
                }
                self.feed_forward(compute, layer, x, pass.work);
                add_layer_norm(compute, x, &pass.work.delta, &layer.feed_forward_norm);
            }
            NormOrder::Pre => {
                add(x, &pass.work.delta);
                let mut normed = std::mem::take(&mut pass.work.normed);
                if let Some(weights) = &layer.cross {
                    copy_norm(compute, x, &weights.norm, &mut normed);
                    weights.forward(index, softmax, &normed, pass)?;
                    add(x, &pass.work.delta);
                }
                copy_norm(compute, x, &layer.feed_forward_norm, &mut normed);
                self.feed_forward(compute, layer, &normed, pass.work);
                add(x, &pass.work.delta);
                pass.work.normed = normed;
            }
        }
        if let Some(hook) = &mut pass.work.hook {
            hook(HookPoint::Layer, index, pass.positions, x);
        }
        Ok(())
    }

    /// Reserves `more` positions in a sequence's cache as [`Window::reserve`] does.
    pub fn reserve(&self, cache: &mut KvCache, more: usize) -> Result<()> {
        self.window.reserve(cache, more)
    }

    /// Returns the maximum bytes of pages in a cache of `positions`.
    pub fn bytes_for(&self, positions: usize) -> usize {
        self.window.bytes_for(&self.layout, positions)
    }

    /// Returns the maximum bytes of pages that extending a cache to `len` positions allocates.
    pub fn growth(&self, cache: &KvCache, len: usize) -> usize {
        self.window.growth(&self.layout, cache, len)
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
            softmax: Softmax::scaled(&self.layout),
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
