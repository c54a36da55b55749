//! Queries of a layer in the form that the attention kernel takes.

use crate::{
    kernels::attention::{Query, QueryBuffer, QueryVariants},
    nn::Position,
};

/// Queries of a step's positions.
#[derive(Default)]
pub struct Queries {
    /// Queries for the keys: (variants of all positions, heads, head_dim).
    pub(super) content: QueryBuffer,
    /// Queries for the distances, (positions, heads, head_dim), or empty.
    pub(super) distance: QueryBuffer,
    /// Variants of each position.
    pub(super) variants: Vec<VariantRange>,
}

/// Range of one position's variants among those of all positions.
#[derive(Clone, Copy)]
pub(super) struct VariantRange {
    first: usize,
    pub(super) count: usize,
}

impl Queries {
    /// Assigns variants to positions; `count` returns how many the position with an index has.
    pub(super) fn assign(&mut self, positions: &[Position], count: impl Fn(usize) -> usize) {
        self.variants.clear();
        let mut first = 0;
        for position in positions {
            let count = count(position.index);
            self.variants.push(VariantRange { first, count });
            first += count;
        }
    }

    /// Returns the query for the keys of the step's position `row`, in one head.
    pub(crate) fn content(&self, row: usize, head: usize, heads: usize) -> QueryVariants<'_> {
        let VariantRange { first, count } = self.variants[row];
        QueryVariants::new(&self.content, first * heads + head, heads, count)
    }

    /// Returns the query for the distances of the step's position `row`, in one head.
    pub(crate) fn distance(&self, row: usize, head: usize, heads: usize) -> Query<'_> {
        self.distance.get(row * heads + head)
    }
}
