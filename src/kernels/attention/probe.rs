//! Queries as they meet keys.

use crate::kernels::{Compute, Dtype, linear::Quantized};

/// One head's query, or its query for distances.
#[derive(Clone, Copy, Default)]
pub struct Probe<'a> {
    /// (head_dim)
    pub(super) numbers: &'a [f32],
    /// The same as bytes, (head_dim/4), filled up with zeros; empty where keys are floats.
    pub(super) cells: &'a [[i8; 4]],
    /// What the bytes were divided by.
    pub(super) scale: f32,
}

/// The queries of a step's rows and heads, kept between steps.
#[derive(Default)]
pub struct Probes {
    numbers: Vec<f32>,
    bytes: Quantized,
    head_dim: usize,
}

impl Probes {
    /// Room for so many numbers, to be written; what it holds is unspecified.
    pub fn numbers(&mut self, len: usize) -> &mut [f32] {
        self.numbers.resize(len, 0.0);
        &mut self.numbers
    }

    /// Makes the numbers ready to meet keys that are stored so.
    pub fn settle(&mut self, compute: &Compute, dtype: Dtype, head_dim: usize) {
        self.head_dim = head_dim;
        let numbers = if dtype == Dtype::Int8 { &self.numbers[..] } else { &[] };
        self.bytes.fill(compute, numbers, head_dim);
    }

    /// One of them, counted by rows and heads; nothing, if none were written.
    pub fn get(&self, index: usize) -> Probe<'_> {
        let (dim, cells) = (self.head_dim, self.head_dim.div_ceil(4));
        let numbers = self.numbers.get(index * dim..(index + 1) * dim).unwrap_or(&[]);
        let bytes = self.bytes.cells().get(index * cells..(index + 1) * cells).unwrap_or(&[]);
        Probe { numbers, cells: bytes, scale: self.bytes.scales().get(index).copied().unwrap_or(0.0) }
    }
}
