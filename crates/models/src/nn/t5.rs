//! The layers of T5 (Raffel et al. 2020, v1.0 and v1.1), in encoders and decoders: x += attention(rms(x)); in a decoder x +=
//! attention(rms(x), memory); x += feed-forward(rms(x)); one more norm after the last layer. There are no biases, and scores are
//! unscaled with a learned number for each bucket of distances. A [`T5Stack`] is causal and caches its keys; a [`T5Encoder`]
//! looks both ways.

use crate::nn::attention::{
    self, Caches, Cross, FeedForward, HookPoint, SelfAttention, Softmax, StackPass, StackWork, add,
};
use crate::nn::position::PositionScheme;
use crate::nn::window::Window;
use crate::nn::{Position, sized};
use weir_kernels::Compute;
use weir_kernels::attention::{DenseKeys, DenseLayout, PageLayout, RelativeKeys, attend_sections};
use weir_kernels::error::Result;
use weir_kernels::linear::{Epilogue, Linear};
use weir_kernels::rowwise::{RmsNorm, rms_norm};

/// One layer's weights. D = width, I = heads · head_dim.
pub struct T5Layer {
    /// (D), or (E) if the layer takes vectors of another width E.
    pub attention_norm: RmsNorm,
    /// Queries, keys, values: (3·I, D), or (3·I, E).
    pub qkv: Linear,
    /// (D, I). A layer that takes another width has no residual around its attention.
    pub output: Linear,
    /// Cross-attention, in a decoder.
    pub cross: Option<Cross<RmsNorm>>,
    /// Gated in v1.1.
    pub feed_forward: FeedForward,
}

impl T5Layer {
    /// Returns its matrices, in the order in which a position passes them. Those that project a memory are not among them.
    pub fn matrices(&self) -> impl Iterator<Item = &Linear> {
        let cross = self.cross.iter().flat_map(|cross| [&cross.query, &cross.output]);
        [&self.qkv, &self.output].into_iter().chain(cross).chain(self.feed_forward.matrices())
    }
}

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

impl T5Stack {
    /// Runs `x`, (positions, D) or of the width that the first layer takes, through all layers in place, and writes keys and
    /// values into the caches, which have the positions reserved. Positions of one sequence come in rising order, without a gap.
    pub fn forward(
        &self,
        compute: &Compute,
        x: &mut Vec<f32>,
        positions: &[Position],
        caches: &mut impl Caches,
        work: &mut StackWork,
    ) -> Result<()> {
        if positions.is_empty() {
            return Ok(());
        }
        let softmax = Softmax { scale: 1.0, sink: self.sink };
        let mut pass = StackPass { compute, positions, caches, work };
        for (index, layer) in self.layers.iter().enumerate() {
            let T5Layer { attention_norm, qkv, output, cross, feed_forward } = layer;
            let mut normed = std::mem::take(&mut pass.work.normed);
            rms_norm(compute, x, attention_norm, sized(&mut normed, x.len()));
            let attention = SelfAttention {
                layer: index,
                qkv,
                output,
                context_norm: None,
                position: &self.position,
                window: Window::Full,
                layout: &self.layout,
                softmax,
            };
            attention.forward(&normed, &mut pass)?; // (positions, D)
            if output.outputs() == qkv.inputs() {
                add(x, &pass.work.delta);
            } else {
                x.clear();
                x.extend_from_slice(&pass.work.delta); // (positions, E) → (positions, D)
            }
            if let Some(cross) = cross {
                rms_norm(compute, x, &cross.norm, sized(&mut normed, x.len()));
                cross.forward(index, softmax, &normed, &mut pass)?; // (positions, D)
                add(x, &pass.work.delta);
            }
            pass.work.normed = normed;
            feed_forward.forward(compute, x, pass.work);
            if let Some(hook) = &mut pass.work.hook {
                hook(HookPoint::Layer, index, positions, x);
            }
        }
        let normed = sized(&mut pass.work.normed, x.len());
        rms_norm(compute, x, &self.norm, normed);
        x.copy_from_slice(normed);
        Ok(())
    }

    /// Projects the vectors of a memory, (vectors, C): see [`attention::project_memory`]. Returns the first error of `write`.
    pub fn project_memory(
        &self,
        compute: &Compute,
        vectors: &[f32],
        work: &mut StackWork,
        write: impl FnMut(usize, usize, &[f32], &[f32]) -> Result<()>,
    ) -> Result<()> {
        let layers = self.layers.iter().enumerate();
        let projections = layers.filter_map(|(index, layer)| Some((index, &layer.cross.as_ref()?.memory)));
        attention::project_memory(compute, projections, vectors, &mut work.qkv, &mut work.quantized, write)
    }
}

// T5 layers that look both ways: over the whole document, or over a band with or without global tokens (LongT5).
// `T5Encoder::project` returns queries, keys and values; when all keys are written, `attend` and `finish` take the vectors
// through the rest. Global tokens (Guo et al. 2022, "transient global"): the normed vectors of each group are summed, normed
// again and projected; every vector attends to them in addition to its band, in one softmax.

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
    stack: StackWork,
    /// Queries that [`T5Encoder::project`] computed: (vectors, I).
    pub queries: Vec<f32>,
    positions: Vec<u32>,
    groups: Vec<u32>,
}

impl T5EncoderWork {
    /// Inputs of the projection that [`T5Encoder::project`] used: (vectors, D).
    pub fn normed(&self) -> &[f32] {
        &self.stack.normed
    }
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

    /// Writes the queries of `x`, (vectors, D), to `work.queries`, and passes index, keys and values, (I) each, to `write`.
    pub fn project(
        &self,
        compute: &Compute,
        layer: usize,
        x: &[f32],
        work: &mut T5EncoderWork,
        write: impl FnMut(usize, &[f32], &[f32]),
    ) {
        let normed = sized(&mut work.stack.normed, x.len());
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
        let normed = sized(&mut work.stack.normed, sums.len());
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
        let T5EncoderWork { stack: StackWork { quantized, qkv, normed, .. }, queries, .. } = work;
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

    /// Computes the attention of `queries`, (vectors, I), from index `first` on, for [`finish`](Self::finish).
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
        let outputs = sized(&mut work.stack.head_outputs, queries.len());
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
        let StackWork { quantized, head_outputs, delta, .. } = &mut work.stack;
        let out = sized(delta, x.len());
        layer.output.apply(compute, head_outputs, Epilogue::None, quantized, out); // (vectors, D)
        add(x, out);
        layer.feed_forward.forward(compute, x, &mut work.stack);
    }
}
