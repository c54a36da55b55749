//! Relative positions of Transformer-XL (Dai et al. 2019, §3.3), as Dynamic Token Pooling uses them.
//!
//! score(i, j) = ((q_i + u)·k_j + (q_i + v)·R_{i−j}) / √h with R_d = W·p(d), p(d) = [sin(d·f), cos(d·f)], sines first.
//! All layers of all stacks share u and v; each layer has its own W. R depends on weights only, so one table per layer serves
//! every sequence, and keys carry no position.

use super::queries::Queries;
use crate::{
    error::Result,
    kernels::{
        Compute,
        attention::{DistanceTable, PageLayout},
        linear::{Epilogue, Linear, QuantizedRows},
        memory::Arena,
    },
    nn::Position,
};
use std::sync::Arc;

/// Bytes that the tables of a stack map at a time.
const ARENA: usize = 2 << 20;

/// Weights that all layers of all stacks share.
pub struct SharedTerms {
    /// f: (dim / 2)
    pub inverse_frequency: Vec<f32>,
    /// u: (heads · head_dim)
    pub content_bias: Vec<f32>,
    /// v: (heads · head_dim)
    pub distance_bias: Vec<f32>,
}

/// Weights and distance tables of one stack.
pub struct TransformerXl {
    shared: Arc<SharedTerms>,
    layers: Vec<LayerDistances>,
}

struct LayerDistances {
    /// W: (heads · head_dim, dim)
    projection: Linear,
    table: DistanceTable,
}

impl TransformerXl {
    /// Creates the scheme from the layers' projections; distances are below `positions`. Projections are f32 for every
    /// storage type, because each table is computed only once.
    pub fn new(shared: Arc<SharedTerms>, projections: Vec<Linear>, layout: &PageLayout, positions: usize) -> Self {
        let arena = Arc::new(Arena::new(ARENA));
        let table = || DistanceTable::new(layout.dtype, layout.heads, layout.head_dim, positions, arena.clone());
        let layers = projections.into_iter().map(|projection| LayerDistances { projection, table: table() });
        Self { shared, layers: layers.collect() }
    }

    /// Writes q + u and q + v of each position, (positions, heads · head_dim) each.
    pub(super) fn prepare(&self, layout: &PageLayout, positions: &[Position], qkv: &[f32], queries: &mut Queries) {
        let inner = layout.heads * layout.head_dim;
        queries.assign(positions, |_| 1);
        let content = queries.content.values_mut(positions.len() * inner);
        let distance = queries.distance.values_mut(positions.len() * inner);
        let targets = content.chunks_exact_mut(inner).zip(distance.chunks_exact_mut(inner));
        for (row, (content, distance)) in qkv.chunks_exact(3 * inner).zip(targets) {
            for (number, &q) in row[..inner].iter().enumerate() {
                content[number] = q + self.shared.content_bias[number];
                distance[number] = q + self.shared.distance_bias[number];
            }
        }
    }

    pub(super) fn distances(&self, compute: &Compute, layer: usize, furthest: usize) -> Result<&DistanceTable> {
        let LayerDistances { projection, table } = &self.layers[layer];
        table.cover(furthest, |range| {
            let encodings: Vec<f32> = range.clone().flat_map(|distance| self.encoding(distance)).collect();
            let mut out = vec![0.0; range.len() * projection.outputs()];
            let mut work = QuantizedRows::default();
            projection.apply(compute, &encodings, Epilogue::None, &mut work, &mut out); // (distances, heads · head_dim)
            out
        })?;
        Ok(table)
    }

    /// Returns p(d): (dim). Rounds the angle to f32 before the sine, as the official code does.
    fn encoding(&self, distance: usize) -> Vec<f32> {
        let angles = || self.shared.inverse_frequency.iter().map(|frequency| f64::from(distance as f32 * frequency));
        angles().map(f64::sin).chain(angles().map(f64::cos)).map(|x| x as f32).collect()
    }
}

/// Returns the bytes of R for the distances of `keys` keys in each layer, and of u and v.
pub(super) fn bytes_for(layout: &PageLayout, keys: usize) -> usize {
    let inner = layout.heads * layout.head_dim;
    layout.layers * layout.distance_bytes(keys) + 2 * inner * size_of::<f32>()
}

/// Returns 10000^(−2i/D) for i = 0 … D/2 − 1.
pub fn inverse_frequencies(dim: usize) -> Vec<f32> {
    (0..dim / 2).map(|i| 10_000f64.powf(-2.0 * i as f64 / dim as f64) as f32).collect()
}
