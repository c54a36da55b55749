//! Parts of models: pure, `&self`, buffers in and out, and their own state. A part knows no family and no channel.
//!
//! Reading order: [`cache`] (keys and values of one stack), [`stack`] (layers; [`memory`], what
//! they may attend to beside their own past), [`encoder`] (layers that look both ways; [`meeting`], across a whole document;
//! [`topk`], fewer vectors), [`position`], [`window`], [`boundary`], [`pooling`]; [`t5`] (another kind of layers); [`resolution`] measures what a scheme achieves.
//! Shapes: a *row* is one position of one sequence; buffers are (rows, width), row-major.

pub mod boundary;
pub mod cache;
pub mod encoder;
pub mod meeting;
pub mod memory;
mod mix;
pub mod pooling;
pub mod position;
pub mod resolution;
pub mod rows;
pub mod stack;
pub mod t5;
pub mod topk;
pub mod window;

use crate::kernels::linear::Epilogue;
use serde::Deserialize;

/// Where a row belongs: which sequence of the step, and its position in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The sequence, by its index in the step.
    pub sequence: usize,
    /// The position, from 0.
    pub position: usize,
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
