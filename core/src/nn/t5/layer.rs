//! One layer of T5: its weights, and its feed-forward.

use crate::{
    kernels::{
        Compute,
        linear::{Epilogue, Linear, QuantizedRows},
        rowwise::{RmsNorm, rms_norm},
    },
    nn::{
        Activation,
        attention::layer::{Cross, add},
        sized,
    },
};

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
    /// Nonlinearity of the feed-forward.
    pub activation: Activation,
    /// (F, D): goes through the nonlinearity and multiplies the output of `up`, in a gated feed-forward (v1.1).
    pub gate: Option<Linear>,
    /// (F, D): goes through the nonlinearity itself if there is no gate.
    pub up: Linear,
    /// (D, F)
    pub down: Linear,
}

/// Inner vectors of a feed-forward: (positions, F) each.
#[derive(Default)]
pub(super) struct FeedForwardHidden {
    up: Vec<f32>,
    gate: Vec<f32>,
}

/// Buffers of a feed-forward.
pub(super) struct FeedForwardBuffers<'a> {
    pub(super) quantized: &'a mut QuantizedRows,
    pub(super) normed: &'a mut Vec<f32>,
    pub(super) hidden: &'a mut FeedForwardHidden,
    pub(super) delta: &'a mut Vec<f32>,
}

impl T5Layer {
    /// Adds the feed-forward of `x`, (positions, D), to it.
    pub(super) fn feed_forward(&self, compute: &Compute, x: &mut [f32], buffers: FeedForwardBuffers<'_>) {
        let FeedForwardBuffers { quantized, normed, hidden, delta } = buffers;
        let normed = sized(normed, x.len());
        rms_norm(compute, x, &self.feed_forward_norm, normed);
        let inner = x.len() / self.up.inputs() * self.up.outputs();
        let up = sized(&mut hidden.up, inner);
        match &self.gate {
            None => self.up.apply(compute, normed, self.activation.epilogue(), quantized, up), // (positions, F)
            Some(matrix) => {
                let gate = sized(&mut hidden.gate, inner);
                matrix.apply(compute, normed, self.activation.epilogue(), quantized, gate); // (positions, F)
                self.up.apply(compute, normed, Epilogue::None, quantized, up); // (positions, F)
                up.iter_mut().zip(gate).for_each(|(up, gate)| *up *= *gate);
            }
        }
        let delta = sized(delta, x.len());
        self.down.apply(compute, up, Epilogue::None, quantized, delta); // (positions, D)
        add(x, delta);
    }

    /// Returns its matrices, in the order in which a position passes them. Those that project a memory are not among them.
    pub fn matrices(&self) -> impl Iterator<Item = &Linear> {
        let cross = self.cross.iter().flat_map(|cross| [&cross.query, &cross.output]);
        [&self.qkv, &self.output].into_iter().chain(cross).chain(&self.gate).chain([&self.up, &self.down])
    }
}
