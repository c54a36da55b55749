//! A stack of pre-norm layers, each with a Mamba-2 mixer or self-attention, and optionally a gated feed-forward (SwiGLU).
//!
//! x += mixer(rms(x)); x += down(up(rms(x)) · silu(gate(rms(x)))); one more norm after the last layer. The residual stream is
//! f32. One pass takes any mixture of positions, as in [`attention::stack`](super::attention::stack), and a position's
//! arithmetic is the same in all of them.

use super::{
    Position,
    attention::{
        layer::{Caches, StackPass, StackWork, add},
        self_attention::SelfAttention,
    },
    mamba2::{Mamba2, Mamba2Work, RecurrentRun},
    position::PositionScheme,
    sized,
    window::Window,
};
use crate::{
    error::Result,
    kernels::{
        Compute,
        attention::PageLayout,
        linear::{Epilogue, Linear},
        rowwise::{RmsNorm, rms_norm},
    },
};

/// Layers that share a cache and a recurrent memory.
pub struct HybridStack {
    /// Layers, bottom first; there may be none.
    pub layers: Vec<HybridLayer>,
    /// Norm after the last layer: (D)
    pub norm: RmsNorm,
    /// Position scheme of the attention layers.
    pub position: PositionScheme,
    /// Keys that a position attends to.
    pub window: Window,
    /// Layout of the pages of the attention layers, which may be none.
    pub layout: PageLayout,
}

/// One layer's weights. D = width.
pub struct HybridLayer {
    /// Norm before the mixer: (D)
    pub norm: RmsNorm,
    /// The part that mixes positions.
    pub mixer: Mixer,
    /// The part that follows it, if any.
    pub feed_forward: Option<GatedFeedForward>,
}

/// The part of a layer that mixes positions.
pub enum Mixer {
    /// A recurrence; boxed because it has more parts.
    Mamba2(Box<Mamba2>),
    /// Self-attention. I = heads · head_dim.
    Attention {
        /// Queries, keys, values: (3·I, D).
        qkv: Linear,
        /// (D, I)
        output: Linear,
    },
}

/// A gated feed-forward (SwiGLU). F = inner width.
pub struct GatedFeedForward {
    /// Norm before it: (D)
    pub norm: RmsNorm,
    /// (F, D)
    pub up: Linear,
    /// (F, D); passes silu.
    pub gate: Linear,
    /// (D, F)
    pub down: Linear,
}

/// Buffers of a pass, kept between steps.
#[derive(Default)]
pub struct HybridWork {
    attention: StackWork,
    mamba2: Mamba2Work,
    /// (positions, F)
    gate: Vec<f32>,
}

impl HybridStack {
    /// Returns the numbers of one sequence's recurrent states, all layers together.
    pub fn recurrent_numbers(&self) -> usize {
        self.layers.iter().map(HybridLayer::recurrent_numbers).sum()
    }

    /// Runs `x`, (positions, D), through all layers in place; writes keys and values into the caches and advances the recurrent
    /// states.
    ///
    /// The caches must have the positions reserved. Positions of one sequence are consecutive, without a gap after the
    /// cache's end, and form one of `runs`. Fails if a cache cannot be found or lacks reserved positions.
    pub fn forward(
        &self,
        compute: &Compute,
        x: &mut [f32],
        positions: &[Position],
        caches: &mut impl Caches,
        runs: &mut [RecurrentRun<'_>],
        work: &mut HybridWork,
    ) -> Result<()> {
        let HybridWork { attention, mamba2, gate } = work;
        let mut pass = StackPass { compute, positions, caches, work: attention };
        let mut cached_layer = 0;
        let mut offset = 0;
        let mut normed = std::mem::take(&mut pass.work.normed);
        for layer in &self.layers {
            rms_norm(compute, x, &layer.norm, sized(&mut normed, x.len()));
            match &layer.mixer {
                Mixer::Mamba2(mixer) => {
                    let delta = sized(&mut pass.work.delta, x.len());
                    mixer.forward(compute, &normed, runs, offset, mamba2, delta); // (positions, D)
                }
                Mixer::Attention { qkv, output } => {
                    self.attention(cached_layer, qkv, output).forward(&normed, &mut pass)?; // (positions, D)
                    cached_layer += 1;
                }
            }
            offset += layer.recurrent_numbers();
            add(x, &pass.work.delta);
            if let Some(feed_forward) = &layer.feed_forward {
                rms_norm(compute, x, &feed_forward.norm, sized(&mut normed, x.len()));
                feed_forward.forward(compute, &normed, gate, pass.work);
                add(x, &pass.work.delta);
            }
        }
        rms_norm(compute, x, &self.norm, sized(&mut normed, x.len()));
        x.copy_from_slice(&normed);
        pass.work.normed = normed;
        Ok(())
    }

    fn attention<'a>(&'a self, layer: usize, qkv: &'a Linear, output: &'a Linear) -> SelfAttention<'a> {
        let Self { position, window, layout, .. } = self;
        SelfAttention { layer, qkv, output, context_norm: None, position, window: *window, layout }
    }
}

impl HybridLayer {
    fn recurrent_numbers(&self) -> usize {
        match &self.mixer {
            Mixer::Mamba2(mixer) => mixer.state_len(),
            Mixer::Attention { .. } => 0,
        }
    }

    /// Returns the layer's matrices.
    pub fn matrices(&self) -> impl Iterator<Item = &Linear> {
        let mixer = match &self.mixer {
            Mixer::Mamba2(mixer) => vec![&mixer.gate, &mixer.input, &mixer.output],
            Mixer::Attention { qkv, output } => vec![qkv, output],
        };
        mixer.into_iter().chain(self.feed_forward.iter().flat_map(|part| [&part.up, &part.gate, &part.down]))
    }
}

impl GatedFeedForward {
    /// Writes the feed-forward of `x`, (positions, D), to `work.delta`.
    fn forward(&self, compute: &Compute, x: &[f32], gate: &mut Vec<f32>, work: &mut StackWork) {
        let numbers = x.len() / self.up.inputs() * self.up.outputs();
        let hidden = sized(&mut work.hidden, numbers);
        self.up.apply(compute, x, Epilogue::None, &mut work.quantized, hidden); // (positions, F)
        let gate = sized(gate, numbers);
        self.gate.apply(compute, x, Epilogue::Silu, &mut work.quantized, gate); // (positions, F)
        for (hidden, gate) in hidden.iter_mut().zip(gate) {
            *hidden *= *gate;
        }
        let delta = sized(&mut work.delta, x.len());
        self.down.apply(compute, hidden, Epilogue::None, &mut work.quantized, delta); // (positions, D)
    }
}
