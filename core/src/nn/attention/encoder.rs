//! Encoder layers: each vector attends to all vectors of its block, or of the document, on both sides.
//!
//! Vectors in blocks go through a layer in one call, in place ([`EncoderStack::blocks`]). Where vectors attend to the whole
//! document ([`encoder_attention`](super::encoder_attention)), a layer has two halves. [`EncoderStack::project`] returns queries,
//! keys and values of some vectors; when all keys are written, [`EncoderStack::finish`] takes the same vectors through the rest
//! of the layer. In both forms a vector's result depends on the keys that it attends to and on nothing else.

use super::{
    encoder_attention::{AttentionPattern, EncoderAttention},
    layer::{Layer, NormOrder, add, copy_norm},
};
use crate::{
    kernels::{
        Compute,
        attention::{DenseLayout, attend_dense},
        linear::{Epilogue, QuantizedRows},
        rowwise::add_layer_norm,
    },
    nn::{Activation, sized},
};

/// Layers of an encoder. D = width, I = heads · head_dim, F = inner width of the feed-forward.
pub struct EncoderStack {
    /// Layers, bottom first.
    pub layers: Vec<Layer>,
    /// Placement of the norms.
    pub order: NormOrder,
    /// Nonlinearity of the feed-forwards.
    pub activation: Activation,
    /// Attention heads.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Attention across the document, where a layer has two halves.
    pub pattern: AttentionPattern,
}

/// Buffers of a pass, kept between passes.
#[derive(Default)]
pub struct EncoderWork {
    /// Quantized inputs of matrix products.
    pub quantized: QuantizedRows,
    /// Queries that [`EncoderStack::project`] computed: (vectors, I), scaled in the heads that use a softmax over keys.
    pub queries: Vec<f32>,
    /// Outputs of the heads, which [`EncoderStack::finish`] reads: (vectors, I).
    pub head_outputs: Vec<f32>,
    qkv: Vec<f32>,
    store: Vec<f32>,
    normed: Vec<f32>,
    hidden: Vec<f32>,
    delta: Vec<f32>,
}

impl EncoderStack {
    /// Returns a layer's attention across up to `capacity` vectors of a document.
    pub fn attention(&self, layer: usize, capacity: usize) -> EncoderAttention<'_> {
        EncoderAttention { pattern: &self.pattern, layer, heads: self.heads, head_dim: self.head_dim, capacity }
    }

    /// Returns the layout of a store of `capacity` keys and values.
    pub fn store(&self, capacity: usize) -> DenseLayout {
        DenseLayout { heads: self.heads, head_dim: self.head_dim, capacity }
    }

    /// Returns the multiply-adds of one vector in a layer's matrix products.
    pub fn products(&self, layer: usize) -> usize {
        let Layer { qkv, output, up, down, .. } = &self.layers[layer];
        [qkv, output, up, down].iter().map(|matrix| matrix.inputs() * matrix.outputs()).sum()
    }

    /// Takes `x`, (vectors, D), through a layer in place. Every `block` vectors are a block; the last one may be shorter.
    pub fn blocks(&self, compute: &Compute, layer: usize, x: &mut [f32], block: usize, work: &mut EncoderWork) {
        let inner = self.heads * self.head_dim;
        let layout = self.store(block);
        let mut store = std::mem::take(&mut work.store);
        let blocks = (x.len() / self.layers[layer].qkv.inputs()).div_ceil(block);
        // The store is not cleared: the kernel discards what stale padding lanes contribute.
        store.resize(blocks * layout.floats(), 0.0);
        self.project(compute, layer, x, work, |index, keys, values| {
            let block_store = &mut store[index / block * layout.floats()..][..layout.floats()];
            layout.write(block_store, index % block, keys, values);
        });
        let EncoderWork { queries, head_outputs, .. } = work;
        let head_outputs = sized(head_outputs, queries.len());
        let block_rows = queries.chunks(block * inner).zip(head_outputs.chunks_mut(block * inner));
        for ((queries, outputs), store) in block_rows.zip(store.chunks_exact(layout.floats())) {
            attend_dense(compute, layout, store, queries.len() / inner, queries, outputs);
        }
        work.store = store;
        self.finish(compute, layer, x, work);
    }

    /// Appends to `mass`, for each vector of the layer that [`blocks`](Self::blocks) ran last, the attention weight that its key
    /// received from all queries of its block, summed over heads.
    pub fn block_mass(&self, compute: &Compute, block: usize, work: &EncoderWork, mass: &mut Vec<f32>) {
        let inner = self.heads * self.head_dim;
        let layout = self.store(block);
        for (queries, store) in work.queries.chunks(block * inner).zip(work.store.chunks_exact(layout.floats())) {
            let start = mass.len();
            mass.resize(start + queries.len() / inner, 0.0);
            self.add_mass(compute, layout, store, queries, &mut mass[start..]);
        }
    }

    /// Adds to `mass`, (keys), the weight that each key receives from `queries`, (vectors, I), summed over heads in order.
    pub fn add_mass(&self, compute: &Compute, layout: DenseLayout, store: &[f32], queries: &[f32], mass: &mut [f32]) {
        let mut head_sums = vec![0.0; self.heads * mass.len()]; // (heads, keys)
        compute.pool.for_chunks(&mut head_sums, mass.len(), true, &|head, sums| {
            let rows = queries.chunks_exact(self.heads * self.head_dim);
            let head_queries = rows.map(|row| &row[head * self.head_dim..(head + 1) * self.head_dim]);
            layout.add_weights(store, head, head_queries, sums);
        });
        for sums in head_sums.chunks_exact(mass.len()) {
            mass.iter_mut().zip(sums).for_each(|(mass, sum)| *mass += sum);
        }
    }

    /// Writes the queries of `x`, (vectors, D), to `work.queries`, and passes each vector's index, keys and values, (I) each, to
    /// `write`. Queries of heads that use a softmax over keys are scaled.
    pub fn project(
        &self,
        compute: &Compute,
        layer: usize,
        x: &[f32],
        work: &mut EncoderWork,
        mut write: impl FnMut(usize, &[f32], &[f32]),
    ) {
        let layer = &self.layers[layer];
        let inner = self.heads * self.head_dim;
        let EncoderWork { quantized, queries, qkv, normed, .. } = work;
        let x = match self.order {
            NormOrder::Post => x,
            NormOrder::Pre => copy_norm(compute, x, &layer.attention_norm, normed),
        };
        let vectors = x.len() / layer.qkv.inputs();
        let qkv = sized(qkv, vectors * 3 * inner);
        layer.qkv.apply(compute, x, Epilogue::None, quantized, qkv); // (vectors, 3·I)
        let scale = 1.0 / (self.head_dim as f32).sqrt();
        let scaled = self.pattern.softmax_heads(self.heads) * self.head_dim;
        let queries = sized(queries, vectors * inner);
        for (index, (qkv, query)) in qkv.chunks_exact(3 * inner).zip(queries.chunks_exact_mut(inner)).enumerate() {
            query.copy_from_slice(&qkv[..inner]);
            query[..scaled].iter_mut().for_each(|x| *x *= scale);
            let (keys, values) = qkv[inner..].split_at(inner);
            write(index, keys, values);
        }
    }

    /// Takes `x`, (vectors, D), through the rest of a layer in place, from the heads' outputs in `work.head_outputs`.
    pub fn finish(&self, compute: &Compute, layer: usize, x: &mut [f32], work: &mut EncoderWork) {
        let layer = &self.layers[layer];
        let EncoderWork { quantized, head_outputs, normed, hidden, delta, .. } = work;
        let delta = sized(delta, x.len());
        layer.output.apply(compute, head_outputs, Epilogue::None, quantized, delta); // (vectors, D)
        let hidden = sized(hidden, x.len() / layer.up.inputs() * layer.up.outputs());
        match self.order {
            NormOrder::Post => {
                add_layer_norm(compute, x, delta, &layer.attention_norm);
                layer.up.apply(compute, x, self.activation.epilogue(), quantized, hidden); // (vectors, F)
                layer.down.apply(compute, hidden, Epilogue::None, quantized, delta); // (vectors, D)
                add_layer_norm(compute, x, delta, &layer.feed_forward_norm);
            }
            NormOrder::Pre => {
                add(x, delta);
                let normed = copy_norm(compute, x, &layer.feed_forward_norm, normed);
                layer.up.apply(compute, normed, self.activation.epilogue(), quantized, hidden); // (vectors, F)
                layer.down.apply(compute, hidden, Epilogue::None, quantized, delta); // (vectors, D)
                add(x, delta);
            }
        }
    }
}
