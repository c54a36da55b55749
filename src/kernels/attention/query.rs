//! Queries as they meet keys.

use crate::kernels::{Compute, Dtype, linear::QuantizedRows};

/// One head's query, or its query for distances.
#[derive(Clone, Copy, Default)]
pub struct Query<'a> {
    /// (head_dim)
    pub(super) numbers: &'a [f32],
    /// The same as bytes, (head_dim/4), filled up with zeros; empty where keys are floats.
    pub(super) cells: &'a [[i8; 4]],
    /// What the bytes were divided by.
    pub(super) scale: f32,
    /// What the bytes add up to.
    pub(super) sum: i32,
}

/// A query in each of its forms. Where keys are turned by their place in a block of positions, a query meets each block in
/// a form of its own: turned by its distance from that block's start.
#[derive(Clone, Copy, Default)]
pub struct QueryVariants<'a> {
    probes: Option<&'a QueryBuffer>,
    /// The form for the query's own block.
    own: usize,
    /// From a form to the one for the block before.
    stride: usize,
    /// How many there are.
    count: usize,
}

impl<'a> QueryVariants<'a> {
    /// `count` forms, the one for the query's own block at index `own` of `probes`, each earlier block's `stride` further.
    pub fn new(probes: &'a QueryBuffer, own: usize, stride: usize, count: usize) -> Self {
        Self { probes: Some(probes), own, stride, count }
    }

    /// A query that meets all keys as it is.
    pub fn single(probes: &'a QueryBuffer, index: usize) -> Self {
        Self::new(probes, index, 0, 1)
    }

    /// The form for keys so many blocks back; of those that it does not meet, whatever.
    pub(super) fn get(&self, back: usize) -> Query<'a> {
        let back = back.min(self.count.saturating_sub(1));
        self.probes.map_or(Query::default(), |probes| probes.get(self.own + back * self.stride))
    }
}

/// The queries of a step's rows and heads, kept between steps.
#[derive(Default)]
pub struct QueryBuffer {
    numbers: Vec<f32>,
    bytes: QuantizedRows,
    head_dim: usize,
}

impl QueryBuffer {
    /// Room for so many numbers, to be written; what it holds is unspecified.
    pub fn values_mut(&mut self, len: usize) -> &mut [f32] {
        self.numbers.resize(len, 0.0);
        &mut self.numbers
    }

    /// Makes the numbers ready to meet keys that are stored so.
    pub fn finish(&mut self, compute: &Compute, dtype: Dtype, head_dim: usize) {
        self.head_dim = head_dim;
        let numbers = if dtype == Dtype::Int8 { &self.numbers[..] } else { &[] };
        self.bytes.fill(compute, numbers, head_dim);
    }

    /// One of them, counted by rows and heads; nothing, if none were written.
    pub fn get(&self, index: usize) -> Query<'_> {
        let (dim, cells) = (self.head_dim, self.head_dim.div_ceil(4));
        let numbers = self.numbers.get(index * dim..(index + 1) * dim).unwrap_or(&[]);
        let bytes = self.bytes.cells().get(index * cells..(index + 1) * cells).unwrap_or(&[]);
        let sum = bytes.as_flattened().iter().map(|&byte| i32::from(byte)).sum();
        Query { numbers, cells: bytes, scale: self.bytes.scales().get(index).copied().unwrap_or(0.0), sum }
    }
}
