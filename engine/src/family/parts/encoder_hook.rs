//! Hooks for the intermediate results of encoders.

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
