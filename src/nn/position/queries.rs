//! The queries of a layer as attention takes them.

use crate::{
    kernels::attention::{Query, QueryBuffer, QueryVariants},
    nn::Position,
};

/// The queries that attention takes.
#[derive(Default)]
pub struct Queries {
    /// For the keys: (rows' forms, heads, head_dim).
    pub(super) content: QueryBuffer,
    /// For the distances: (rows, heads, head_dim), or empty.
    pub(super) distance: QueryBuffer,
    /// Which forms are a row's.
    pub(super) forms: Vec<RowForms>,
}

/// The forms of one row, among those of all rows.
#[derive(Clone, Copy)]
pub(super) struct RowForms {
    pub(super) first: usize,
    pub(super) count: usize,
}

impl Queries {
    /// Numbers the rows' forms, of which a row at a position has so many.
    pub(super) fn number(&mut self, positions: &[Position], forms: impl Fn(usize) -> usize) {
        self.forms.clear();
        let mut first = 0;
        for position in positions {
            let count = forms(position.index);
            self.forms.push(RowForms { first, count });
            first += count;
        }
    }

    /// A row's query for the keys, of one head.
    pub(in crate::nn) fn content(&self, row: usize, head: usize, heads: usize) -> QueryVariants<'_> {
        let RowForms { first, count } = self.forms[row];
        QueryVariants::new(&self.content, first * heads + head, heads, count)
    }

    /// A row's query for the distances, of one head.
    pub(in crate::nn) fn distance(&self, row: usize, head: usize, heads: usize) -> Query<'_> {
        self.distance.get(row * heads + head)
    }
}
