//! Checkpoints on disk: format `weir/1` (docs/checkpoints.md). Files may come from anywhere, so every number in them is checked
//! against the configuration before memory is allocated for it. An error names file, key, expected and actual value.

pub mod config;
pub mod files;
pub mod hugging_face;
pub mod json;
pub mod ngrams;
pub mod source;
pub mod weights;
pub mod writer;

pub use crate::checkpoint::{
    config::{CONFIG_FILE, Config, VocabularyConfig, architecture},
    source::CheckpointSource,
    weights::{
        FileDtype, INDEX_FILE, PICKLE_FILE, PICKLE_INDEX_FILE, Tensor, WEIGHTS_FILE, Weights, read_from, read_weights,
        read_weights_with_progress,
    },
    writer::{Writer, WrittenCheckpoint},
};

/// A tensor that a checkpoint must hold.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorSpec {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// How `weir init` fills it.
    pub init: Init,
    /// True if its elements are trained, and so counted as parameters.
    pub trained: bool,
    /// Name of the tensor that it is tied to: files have one of them, or copies of both.
    pub tied_to: Option<&'static str>,
}

impl TensorSpec {
    /// Returns a trained tensor that `weir init` draws from a normal distribution.
    pub fn normal(name: impl Into<String>, shape: Vec<usize>, mean: f32, deviation: f32) -> Self {
        Self { name: name.into(), shape, init: Init::Normal(mean, deviation), trained: true, tied_to: None }
    }

    /// Returns a tensor that `weir init` fills with zeros.
    pub fn zeros(name: impl Into<String>, shape: Vec<usize>) -> Self {
        Self::normal(name, shape, 0.0, 0.0)
    }

    /// Element count; `usize::MAX` if that overflows.
    pub fn numbers(&self) -> usize {
        self.shape.iter().fold(1, |product: usize, &dim| product.saturating_mul(dim))
    }
}

/// How `weir init` fills a tensor.
#[derive(Debug, Clone, PartialEq)]
pub enum Init {
    /// Normally distributed, with this mean and standard deviation.
    Normal(f32, f32),
    /// These elements.
    Values(Vec<f32>),
    /// Normally distributed around 0 with this standard deviation, except for these columns of the matrix.
    Columns(f32, Vec<Column>),
}

/// A column of a matrix.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// Its index.
    pub index: usize,
    /// Its elements, one for each row.
    pub values: Vec<f32>,
}
