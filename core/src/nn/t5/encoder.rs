//! T5 layers that look both ways: over the whole document, or over a band with or without global tokens (LongT5).
//!
//! A layer has two halves. [`T5Encoder::project`] returns queries, keys and values of some vectors. When all keys are written,
//! [`T5Encoder::attend`] and [`T5Encoder::finish`] take the same vectors through the rest of the layer. A vector's result depends
//! on the keys that it attends to and on nothing else.
//!
//! Global tokens (Guo et al. 2022, "transient global"): the normed vectors of each group are summed, normed again and projected
//! with the layer's own matrices. Every vector attends to them in addition to its band, in one softmax.

use super::layer::{FeedForwardBuffers, FeedForwardHidden, T5Layer};
use crate::{
    kernels::{
        Compute,
        attention::{DenseKeys, DenseLayout, RelativeKeys, attend_sections},
        linear::{Epilogue, QuantizedRows},
        rowwise::{RmsNorm, rms_norm},
    },
    nn::{attention::layer::add, sized},
};

/// Layers of an encoder. D = width, I = heads · head_dim.
pub struct T5Encoder {
    /// Layers, bottom first.
    pub layers: Vec<T5Layer>,
    /// Attention heads.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// For each head the bias of the distances from −M to M: (heads, 2·M + 1).
    pub bias: Vec<Vec<f32>>,
    /// Largest distance at which a vector attends to another; none: any.
    pub radius: Option<usize>,
    /// Global tokens, in addition to the band.
    pub global: Option<GlobalTokens>,
    /// True if every softmax has one more key, of score zero and value zero.
    pub sink: bool,
    /// Norm after the last layer: (D)
    pub norm: RmsNorm,
}

/// Global tokens of all layers.
pub struct GlobalTokens {
    /// Vectors of a group. Those after the last whole group belong to the last group.
    pub group: usize,
    /// Norm of each layer's sums: (layers), (D) each.
    pub norms: Vec<RmsNorm>,
    /// Bias by the distance between groups, as in [`T5Encoder::bias`].
    pub bias: Vec<Vec<f32>>,
}

/// Keys of a layer that vectors attend to.
pub struct EncoderKeys<'a> {
    /// Keys and values of the document's vectors.
    pub store: &'a [f32],
    /// Number of vectors: keys in the store, and its capacity.
    pub count: usize,
    /// Position of each vector in the document, if some were deleted.
    pub positions: Option<&'a [u32]>,
    /// Keys and values of the global tokens; empty without global tokens.
    pub side_store: &'a [f32],
    /// Number of global tokens.
    pub side_count: usize,
}

/// Buffers of a pass, kept between passes.
#[derive(Default)]
pub struct T5EncoderWork {
    /// Quantized inputs of matrix products.
    pub quantized: QuantizedRows,
    /// Queries that [`T5Encoder::project`] computed: (vectors, I).
    pub queries: Vec<f32>,
    /// Inputs of the projection that [`T5Encoder::project`] used: (vectors, D).
    pub normed: Vec<f32>,
    head_outputs: Vec<f32>,
    qkv: Vec<f32>,
    hidden: FeedForwardHidden,
    delta: Vec<f32>,
    positions: Vec<u32>,
    groups: Vec<u32>,
}

impl T5Encoder {
    /// Returns the layout of a store of `capacity` keys and values.
    pub fn store(&self, capacity: usize) -> DenseLayout {
        DenseLayout { heads: self.heads, head_dim: self.head_dim, capacity }
    }

    /// Returns the number of global tokens of a document of `tokens` tokens.
    pub fn global_tokens(&self, tokens: usize) -> usize {
        self.global.as_ref().map_or(0, |global| tokens / global.group)
    }

    /// Returns the multiply-adds of `count` vectors in one layer: matrix products and attention.
    pub fn multiply_adds(&self, layer: usize, count: usize) -> usize {
        let products: usize = self.layers[layer].matrices().map(|matrix| matrix.inputs() * matrix.outputs()).sum();
        let keys = self.radius.map_or(count, |radius| (2 * radius + 1).min(count)) + self.global_tokens(count);
        count * (products + 2 * keys * self.heads * self.head_dim)
    }

    /// Writes the queries of `x`, (vectors, D), to `work.queries`, and passes each vector's index, keys and values, (I) each, to
    /// `write`.
    pub fn project(
        &self,
        compute: &Compute,
        layer: usize,
        x: &[f32],
        work: &mut T5EncoderWork,
        write: impl FnMut(usize, &[f32], &[f32]),
    ) {
        let normed = sized(&mut work.normed, x.len());
        rms_norm(compute, x, &self.layers[layer].attention_norm, normed);
        self.project_normed(compute, layer, work, write);
    }

    /// Projects the global tokens of a layer from the `sums` of their groups, (groups, D), as [`project`](Self::project) does.
    pub fn project_global(
        &self,
        compute: &Compute,
        layer: usize,
        sums: &[f32],
        work: &mut T5EncoderWork,
        write: impl FnMut(usize, &[f32], &[f32]),
    ) {
        let Some(global) = &self.global else { return };
        let normed = sized(&mut work.normed, sums.len());
        rms_norm(compute, sums, &global.norms[layer], normed);
        self.project_normed(compute, layer, work, write);
    }

    fn project_normed(
        &self,
        compute: &Compute,
        layer: usize,
        work: &mut T5EncoderWork,
        mut write: impl FnMut(usize, &[f32], &[f32]),
    ) {
        let inner = self.heads * self.head_dim;
        let T5EncoderWork { quantized, queries, qkv, normed, .. } = work;
        let matrix = &self.layers[layer].qkv;
        let vectors = normed.len() / matrix.inputs();
        let qkv = sized(qkv, vectors * 3 * inner);
        matrix.apply(compute, normed, Epilogue::None, quantized, qkv); // (vectors, 3·I)
        let queries = sized(queries, vectors * inner);
        for (index, (qkv, query)) in qkv.chunks_exact(3 * inner).zip(queries.chunks_exact_mut(inner)).enumerate() {
            query.copy_from_slice(&qkv[..inner]);
            let (keys, values) = qkv[inner..].split_at(inner);
            write(index, keys, values);
        }
    }

    /// Computes the attention of `queries`, (vectors, I), which belong to the vectors from index `first` on.
    /// [`finish`](Self::finish) takes the result.
    pub fn attend(
        &self,
        compute: &Compute,
        keys: &EncoderKeys<'_>,
        first: usize,
        queries: &[f32],
        work: &mut T5EncoderWork,
    ) {
        let rows = queries.len() / (self.heads * self.head_dim);
        work.positions.clear();
        match keys.positions {
            Some(positions) => work.positions.extend_from_slice(&positions[first..first + rows]),
            None => work.positions.extend((first..first + rows).map(|position| position as u32)),
        }
        let near = DenseKeys {
            layout: self.store(keys.count),
            store: keys.store,
            count: keys.count,
            relative: Some(RelativeKeys {
                tables: &self.bias,
                query_positions: &work.positions,
                key_positions: keys.positions,
                radius: self.radius,
            }),
        };
        let outputs = sized(&mut work.head_outputs, queries.len());
        let Some(global) = self.global.as_ref().filter(|_| keys.side_count > 0) else {
            return attend_sections(compute, &[near], self.sink, queries, outputs);
        };
        let last = keys.side_count - 1;
        work.groups.clear();
        work.groups.extend((first..first + rows).map(|position| (position / global.group).min(last) as u32));
        let side = DenseKeys {
            layout: self.store(keys.side_count),
            store: keys.side_store,
            count: keys.side_count,
            relative: Some(RelativeKeys {
                tables: &global.bias,
                query_positions: &work.groups,
                key_positions: None,
                radius: None,
            }),
        };
        attend_sections(compute, &[near, side], self.sink, queries, outputs);
    }

    /// Takes `x`, (vectors, D), through the rest of a layer in place, after [`attend`](Self::attend).
    pub fn finish(&self, compute: &Compute, layer: usize, x: &mut [f32], work: &mut T5EncoderWork) {
        let layer = &self.layers[layer];
        let T5EncoderWork { quantized, head_outputs, normed, hidden, delta, .. } = work;
        let out = sized(delta, x.len());
        layer.output.apply(compute, head_outputs, Epilogue::None, quantized, out); // (vectors, D)
        add(x, out);
        layer.feed_forward(compute, x, FeedForwardBuffers { quantized, normed, hidden, delta });
    }
}
