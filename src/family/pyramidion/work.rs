//! Working memory of one thread, and hooks for the encoder's intermediate results.

use crate::{
    family::decoder::work,
    nn::{Position, attention::encoder::EncoderWork},
};

/// Intermediate result of the encoder that an [`EncoderHook`] receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EncoderHookPoint {
    /// Embeddings of tokens, with positions.
    Embedded,
    /// Output of a layer.
    Layer(usize),
    /// Output of a layer for a block of padding, whose vectors are all equal; without a layer, its input.
    Padding(Option<usize>),
    /// Output of the pooling after a layer.
    Pooled(usize),
    /// Output of the encoder.
    Encoded,
}

/// Receives vectors, (vectors, D), with the index of the first one.
pub type EncoderHook = Box<dyn FnMut(EncoderHookPoint, usize, &[f32]) + Send>;

/// Working memory of one thread.
#[derive(Default)]
pub struct Work {
    /// Working memory of the decoder's steps.
    pub(super) decoder: work::Work,
    pub(super) encoder: EncoderWork,
    /// One page of the encoder's output: (vectors, D)
    pub(super) x: Vec<f32>,
    /// Keys and values of that page in one decoder layer: (vectors, 2·I)
    pub(super) projected: Vec<f32>,
    /// Tokens that are embedded, and their positions.
    pub(super) tokens: Vec<u32>,
    pub(super) positions: Vec<Position>,
    /// Receives intermediate results in golden tests; `None` in servers.
    pub hook: Option<EncoderHook>,
}

impl Work {
    pub(super) fn show(&mut self, point: EncoderHookPoint, first: usize, x: &[f32]) {
        if let Some(hook) = &mut self.hook {
            hook(point, first, x);
        }
    }
}
