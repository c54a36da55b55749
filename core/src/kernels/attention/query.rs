//! Queries in the form in which they are multiplied with keys.

use crate::kernels::{CacheDtype, Compute, linear::QuantizedRows};

/// Query of one head for its keys, or for its distances.
#[derive(Clone, Copy, Default)]
pub struct Query<'a> {
    /// (head_dim)
    pub(super) numbers: &'a [f32],
    /// int8 values, (head_dim/4), padded with zeros; empty if keys are floats.
    pub(super) cells: &'a [[i8; 4]],
    pub(super) scale: f32,
    pub(super) sum: i32,
}

/// A query in one or more variants. Rotary schemes rotate a key by its index in its block of positions. A query then needs
/// one variant per block of keys, rotated by its distance from the start of that block.
#[derive(Clone, Copy, Default)]
pub struct QueryVariants<'a> {
    buffer: Option<&'a QueryBuffer>,
    /// Index of the variant for the query's own block.
    own: usize,
    /// Step from the index of a variant to that for the previous block.
    stride: usize,
    count: usize,
}

impl<'a> QueryVariants<'a> {
    /// Creates `count` variants: that for the query's own block at index `own`, each for an earlier block `stride` further.
    pub fn new(buffer: &'a QueryBuffer, own: usize, stride: usize, count: usize) -> Self {
        Self { buffer: Some(buffer), own, stride, count }
    }

    /// Creates a query with one variant for all keys.
    pub fn single(buffer: &'a QueryBuffer, index: usize) -> Self {
        Self::new(buffer, index, 0, 1)
    }

    /// Returns the variant for keys `blocks_back` blocks before the query. Unspecified for blocks outside its window.
    pub(super) fn get(&self, blocks_back: usize) -> Query<'a> {
        let variant = blocks_back.min(self.count.saturating_sub(1));
        self.buffer.map_or(Query::default(), |buffer| buffer.get(self.own + variant * self.stride))
    }
}

/// Queries of all rows and heads of a step. The memory is reused between steps.
#[derive(Default)]
pub struct QueryBuffer {
    numbers: Vec<f32>,
    bytes: QuantizedRows,
    /// Sum of the bytes of each query.
    sums: Vec<i32>,
    head_dim: usize,
}

impl QueryBuffer {
    /// Returns `len` unspecified values to be overwritten.
    pub fn values_mut(&mut self, len: usize) -> &mut [f32] {
        self.numbers.resize(len, 0.0);
        &mut self.numbers
    }

    /// Prepares the written values for keys of type `dtype`: quantizes them if keys are int8.
    pub fn finish(&mut self, compute: &Compute, dtype: CacheDtype, head_dim: usize) {
        self.head_dim = head_dim;
        let numbers = if dtype == CacheDtype::Int8 { &self.numbers[..] } else { &[] };
        self.bytes.fill(compute, numbers, head_dim);
        let sum = |query| self.bytes.row(query).as_flattened().iter().map(|&byte| i32::from(byte)).sum::<i32>();
        self.sums.clear();
        self.sums.extend((0..numbers.len() / head_dim).map(sum));
    }

    /// Returns the query at an index of (rows, heads), or an empty query if none was written.
    pub fn get(&self, index: usize) -> Query<'_> {
        let dim = self.head_dim;
        let numbers = self.numbers.get(index * dim..(index + 1) * dim).unwrap_or(&[]);
        let cells = self.bytes.row(index);
        let scale = self.bytes.scales().get(index).copied().unwrap_or(0.0);
        Query { numbers, cells, scale, sum: self.sums.get(index).copied().unwrap_or(0) }
    }
}
