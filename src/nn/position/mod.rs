//! Position schemes: how attention knows how far apart a query and a key are.
//!
//! To add one: a file with its type, a variant in each of the two tables here, and its arms below; stacks need no change.

pub mod transformer_xl;

use super::Place;
use crate::{
    error::Result,
    kernels::{
        Compute,
        attention::{DistanceTable, Layout, Probes},
    },
};
use serde::Deserialize;
use transformer_xl::TransformerXl;

/// The names in a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PositionKind {
    /// Relative distances with learned projections (Dai et al. 2019).
    TransformerXl,
}

impl PositionKind {
    /// What `weir init` writes as `position.inverse_frequency`.
    pub fn inverse_frequencies(self, dim: usize) -> Vec<f32> {
        match self {
            Self::TransformerXl => transformer_xl::inverse_frequencies(dim),
        }
    }
}

/// A scheme with its weights, for the layers of one stack.
pub enum Position {
    /// See [`TransformerXl`].
    TransformerXl(TransformerXl),
}

/// The queries that attention takes.
#[derive(Default)]
pub struct Queries {
    /// For the keys: (rows, heads, head_dim).
    pub content: Probes,
    /// For the distances: the same shape, or empty.
    pub distance: Probes,
}

impl Position {
    /// Turns a layer's `qkv`, (rows, 3 · heads · head_dim), into the queries for `places`; keys may be changed in place.
    pub fn prepare(
        &self,
        compute: &Compute,
        layout: &Layout,
        places: &[Place],
        qkv: &mut [f32],
        queries: &mut Queries,
    ) {
        match self {
            Self::TransformerXl(scheme) => scheme.prepare(layout, places, qkv, queries),
        }
        for probes in [&mut queries.content, &mut queries.distance] {
            probes.settle(compute, layout.dtype, layout.head_dim);
        }
    }

    /// The layer's distances, ready for queries up to position `last`.
    ///
    /// # Errors
    /// No memory for them.
    pub fn distances(&self, compute: &Compute, layer: usize, last: usize) -> Result<Option<&DistanceTable>> {
        match self {
            Self::TransformerXl(scheme) => scheme.distances(compute, layer, last).map(Some),
        }
    }

    /// What all layers of a stack read, beside keys and values, for a query that attends to `keys` keys: bytes that
    /// sequences share.
    pub fn bytes_for(&self, layout: &Layout, keys: usize) -> usize {
        match self {
            Self::TransformerXl(_) => transformer_xl::bytes_for(layout, keys),
        }
    }

    /// Products of a query with each key: its content's, and its distance's where a scheme has one.
    pub fn products(&self) -> usize {
        match self {
            Self::TransformerXl(_) => 2,
        }
    }
}
