//! Parts of models: pure, `&self`, buffers in and out, and their own state. A part knows no family and no channel.
//!
//! Reading order: [`kv_cache`] (keys and values of one stack), [`attention`] (layers), [`position`], [`window`], [`boundary`],
//! [`pooling`], [`topk`] (fewer vectors of a document, which lie in [`paged_vectors`]); [`t5`] (another kind of layers);
//! [`resolution`] measures what a position scheme achieves.
//! Shapes: a *row* is one position of one sequence; buffers are (rows, width), row-major.

pub mod attention;
pub mod boundary;
pub mod kv_cache;
pub mod paged_vectors;
pub mod pooling;
pub mod position;
pub mod resolution;
pub mod t5;
pub mod topk;
pub mod window;

use crate::kernels::linear::Epilogue;
use serde::Deserialize;

/// Where a row belongs: which sequence of the step, and its position in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The sequence, by its index in the step.
    pub sequence: usize,
    /// The position, from 0.
    pub index: usize,
}

/// A feed-forward's nonlinearity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Activation {
    /// x·Φ(x), by the error function.
    Gelu,
    /// Nearly the same, by tanh: GPT-2's `gelu_new`.
    GeluTanh,
    /// x·σ(x), also called swish.
    Silu,
    /// max(x, 0).
    Relu,
}

impl Activation {
    /// As a product's last touch.
    pub fn then(self) -> Epilogue {
        match self {
            Self::Gelu => Epilogue::Gelu,
            Self::GeluTanh => Epilogue::GeluTanh,
            Self::Silu => Epilogue::Silu,
            Self::Relu => Epilogue::Relu,
        }
    }
}

/// A buffer of exactly `len` numbers, whose memory is kept between steps. What it holds is unspecified.
pub fn sized(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    buffer.resize(len, 0.0);
    buffer
}
