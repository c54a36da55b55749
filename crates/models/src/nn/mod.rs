//! Building blocks of models. Each takes `&self`, buffers in and out, and state of its own; none depends on a model family.
//! Buffers are row-major: (positions, D) has one row of width D for each [`Position`] of a step.

pub mod attention;
pub mod boundary;
pub mod encoder;
pub mod kv_cache;
pub mod mamba2;
pub mod pooling;
pub mod position;
pub mod t5;
pub mod topk;
pub mod window;

use serde::Deserialize;
use std::ops::Range;
use weir_kernels::linear::Epilogue;

/// One position of one of a step's sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Index of the sequence in the step.
    pub sequence: usize,
    /// Index of the position in the sequence, from 0.
    pub index: usize,
}

impl Position {
    /// Iterates over consecutive positions of one sequence.
    pub fn run(sequence: usize, indices: Range<usize>) -> impl Iterator<Item = Self> {
        indices.map(move |index| Self { sequence, index })
    }
}

/// Nonlinearity of a feed-forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Activation {
    /// x·Φ(x), by the error function.
    Gelu,
    /// The tanh approximation of GELU: GPT-2's `gelu_new`.
    GeluTanh,
    /// x·σ(x), also called swish.
    Silu,
    /// max(x, 0).
    Relu,
}

impl Activation {
    /// Returns the epilogue that applies it to a matrix product.
    pub fn epilogue(self) -> Epilogue {
        match self {
            Self::Gelu => Epilogue::Gelu,
            Self::GeluTanh => Epilogue::GeluTanh,
            Self::Silu => Epilogue::Silu,
            Self::Relu => Epilogue::Relu,
        }
    }
}

/// A key of a configuration whose value is not allowed.
#[derive(Debug)]
pub struct ConfigError {
    /// Path of the key.
    pub key: String,
    /// Values that are allowed.
    pub expected: String,
    /// The actual value.
    pub found: String,
}

impl ConfigError {
    /// Creates an error for `key`.
    pub fn new(key: impl Into<String>, expected: impl Into<String>, found: impl ToString) -> Self {
        Self { key: key.into(), expected: expected.into(), found: found.to_string() }
    }
}

/// Resizes a reused buffer to exactly `len` elements of unspecified content.
pub fn sized(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    buffer.resize(len, 0.0);
    buffer
}
