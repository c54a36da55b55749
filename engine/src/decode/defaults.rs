//! Sampling options of requests that state none: those of the checkpoint, or those of the API.

/// Temperature of requests and checkpoints that state none, over gRPC, over HTTP and on the command line. OpenAI's default.
pub const DEFAULT_TEMPERATURE: f32 = 1.0;

/// Defaults of a request's sampling options.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingDefaults {
    /// Default of `temperature`.
    pub temperature: f32,
    /// Default of `top_k`.
    pub top_k: usize,
    /// Default of `top_p`.
    pub top_p: f32,
    /// Default of `min_p`.
    pub min_p: f32,
    /// Default of `repetition_penalty`.
    pub repetition_penalty: f32,
}

impl Default for SamplingDefaults {
    fn default() -> Self {
        Self { temperature: DEFAULT_TEMPERATURE, top_k: 0, top_p: 1.0, min_p: 0.0, repetition_penalty: 1.0 }
    }
}
