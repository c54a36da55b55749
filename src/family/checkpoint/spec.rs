//! The tensors that a checkpoint must hold.

/// A tensor that a checkpoint must hold.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorSpec {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// How `weir init` fills it.
    pub init: Init,
    /// True if its numbers are trained, and so counted as parameters.
    pub trained: bool,
}

impl TensorSpec {
    /// How many numbers it has; `usize::MAX` if that overflows.
    pub fn numbers(&self) -> usize {
        self.shape.iter().fold(1, |product: usize, &dim| product.saturating_mul(dim))
    }
}

/// How `weir init` fills a tensor.
#[derive(Debug, Clone, PartialEq)]
pub enum Init {
    /// Normally distributed, with this mean and standard deviation.
    Normal(f32, f32),
    /// These numbers.
    Values(Vec<f32>),
}
