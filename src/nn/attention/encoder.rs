//! Layers of an encoder: vectors attend to all vectors of their block, or to all there are, before and behind them.
//!
//! A run of whole blocks goes through a layer at once, in position ([`Encoder::blocks`]). Where vectors attend to the whole document
//! ([`attention`](super::encoder_attention) says how), a layer has two halves: the first ([`Encoder::project`]) leaves queries, keys and values of some vectors; once all have left
//! theirs, the second ([`Encoder::finish`]) takes the same vectors through the rest. In both a vector's numbers depend on the
//! keys that it meets and on nothing else.

use super::{
    encoder_attention::{AttentionPattern, EncoderAttention},
    layer::{Layer, Order, add, copy_norm},
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

/// An encoder's layers. D = width, I = heads · head_dim.
pub struct Encoder {
    /// Bottom first.
    pub layers: Vec<Layer>,
    /// Where their norms stand.
    pub order: Order,
    /// The feed-forwards' nonlinearity.
    pub activation: Activation,
    /// Heads.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// How vectors attend to each other where a layer has two halves.
    pub attending: AttentionPattern,
}

/// Buffers of a pass, kept between passes.
#[derive(Default)]
pub struct EncoderWork {
    /// The products'.
    pub quantized: QuantizedRows,
    /// (rows, I), scaled where they meet a softmax over keys: what [`Encoder::project`] left.
    pub queries: Vec<f32>,
    /// (rows, I): what [`Encoder::finish`] takes.
    pub mixed: Vec<f32>,
    qkv: Vec<f32>,
    store: Vec<f32>,
    normed: Vec<f32>,
    wide: Vec<f32>,
    change: Vec<f32>,
}

impl Encoder {
    /// A layer's attention across `room` vectors.
    pub fn attention(&self, layer: usize, room: usize) -> EncoderAttention<'_> {
        EncoderAttention { attending: &self.attending, layer, heads: self.heads, head_dim: self.head_dim, room }
    }

    /// A store of so many keys.
    pub fn store(&self, room: usize) -> DenseLayout {
        DenseLayout { heads: self.heads, head_dim: self.head_dim, capacity: room }
    }

    /// Multiply-adds of one row in a layer's matrix products.
    pub fn products(&self, layer: usize) -> usize {
        let Layer { qkv, output, up, down, .. } = &self.layers[layer];
        [qkv, output, up, down].iter().map(|matrix| matrix.inputs() * matrix.outputs()).sum()
    }

    /// Takes `x`, (rows, D), through a layer, in position: each run of `block` rows is a block, the last of which may be shorter.
    pub fn blocks(&self, compute: &Compute, layer: usize, x: &mut [f32], block: usize, work: &mut EncoderWork) {
        let (inner, layout) = (self.heads * self.head_dim, self.store(block));
        let mut store = std::mem::take(&mut work.store);
        let blocks = (x.len() / self.layers[layer].qkv.inputs()).div_ceil(block);
        // what fills up panels and vectors is met and left out again, whatever it is
        store.resize(blocks * layout.floats(), 0.0);
        self.project(compute, layer, x, work, |row, keys, values| {
            layout.write(&mut store[row / block * layout.floats()..][..layout.floats()], row % block, keys, values);
        });
        let EncoderWork { queries, mixed, .. } = work;
        let mixed = sized(mixed, queries.len());
        let runs = queries.chunks(block * inner).zip(mixed.chunks_mut(block * inner));
        for ((queries, mixed), store) in runs.zip(store.chunks_exact(layout.floats())) {
            attend_dense(compute, layout, store, queries.len() / inner, queries, mixed);
        }
        work.store = store;
        self.finish(compute, layer, x, work);
    }

    /// What each key of the layer that [`blocks`](Self::blocks) ran last weighs with all queries of its block, summed over heads:
    /// appended to `mass`, one number a row.
    pub fn block_mass(&self, compute: &Compute, block: usize, work: &EncoderWork, mass: &mut Vec<f32>) {
        let (inner, layout) = (self.heads * self.head_dim, self.store(block));
        for (queries, store) in work.queries.chunks(block * inner).zip(work.store.chunks_exact(layout.floats())) {
            let from = mass.len();
            mass.resize(from + queries.len() / inner, 0.0);
            self.add_mass(compute, (layout, store), queries, &mut mass[from..]);
        }
    }

    /// `mass` (keys) += what each key of a store weighs with some queries, (rows, I), summed over heads in order.
    pub fn add_mass(
        &self,
        compute: &Compute,
        (layout, store): (DenseLayout, &[f32]),
        queries: &[f32],
        mass: &mut [f32],
    ) {
        let mut sums = vec![0.0; self.heads * mass.len()];
        compute.pool.for_chunks(&mut sums, mass.len(), true, &|head, sums| {
            let rows = queries.chunks_exact(self.heads * self.head_dim);
            let of_head = rows.map(|row| &row[head * self.head_dim..(head + 1) * self.head_dim]);
            layout.add_weights(store, head, of_head, sums);
        });
        for sums in sums.chunks_exact(mass.len()) {
            mass.iter_mut().zip(sums).for_each(|(mass, sum)| *mass += sum);
        }
    }

    /// Leaves the queries of `x`, (rows, D), in `work`, scaled where they meet a softmax over keys, and hands keys and values, (I) each, to `write`, with the row.
    pub fn project(
        &self,
        compute: &Compute,
        layer: usize,
        x: &[f32],
        work: &mut EncoderWork,
        mut write: impl FnMut(usize, &[f32], &[f32]),
    ) {
        let (layer, inner) = (&self.layers[layer], self.heads * self.head_dim);
        let EncoderWork { quantized, queries, qkv, normed, .. } = work;
        let x = match self.order {
            Order::Post => x,
            Order::Pre => copy_norm(compute, x, &layer.attention_norm, normed),
        };
        let rows = x.len() / layer.qkv.inputs();
        let qkv = sized(qkv, rows * 3 * inner);
        layer.qkv.apply(compute, x, Epilogue::None, quantized, qkv); // (rows, 3·I)
        let (scale, scaled) = (1.0 / (self.head_dim as f32).sqrt(), self.attending.scaled(self.heads) * self.head_dim);
        let queries = sized(queries, rows * inner);
        for (row, (qkv, query)) in qkv.chunks_exact(3 * inner).zip(queries.chunks_exact_mut(inner)).enumerate() {
            let (own, rest) = qkv.split_at(inner);
            query.copy_from_slice(own);
            query[..scaled].iter_mut().for_each(|x| *x *= scale);
            let (keys, values) = rest.split_at(inner);
            write(row, keys, values);
        }
    }

    /// Takes `x`, (rows, D), through the rest of a layer, in position, by `work.mixed`.
    pub fn finish(&self, compute: &Compute, layer: usize, x: &mut [f32], work: &mut EncoderWork) {
        let layer = &self.layers[layer];
        let EncoderWork { quantized, mixed, normed, wide, change, .. } = work;
        let change = sized(change, x.len());
        layer.output.apply(compute, mixed, Epilogue::None, quantized, change); // (rows, D)
        let wide = sized(wide, x.len() / layer.up.inputs() * layer.up.outputs());
        match self.order {
            Order::Post => {
                add_layer_norm(compute, x, change, &layer.attention_norm);
                layer.up.apply(compute, x, self.activation.then(), quantized, wide); // (rows, F)
                layer.down.apply(compute, wide, Epilogue::None, quantized, change);
                add_layer_norm(compute, x, change, &layer.feed_forward_norm);
            }
            Order::Pre => {
                add(x, change);
                let normed = copy_norm(compute, x, &layer.feed_forward_norm, normed);
                layer.up.apply(compute, normed, self.activation.then(), quantized, wide);
                layer.down.apply(compute, wide, Epilogue::None, quantized, change);
                add(x, change);
            }
        }
    }
}
