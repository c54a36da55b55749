//! Causal self-attention of one layer over cached keys, for every position scheme and window.

use super::{
    layer::{Caches, HookPoint, StackPass},
    mix::{Mixing, mix},
};
use crate::{
    error::Result,
    kernels::{
        attention::{AttentionHead, DistanceTable, POSITIONS, PageLayout, QueryRow, scores},
        linear::{Epilogue, Linear},
        rowwise::{LayerNorm, layer_norm},
    },
    nn::{Position, position::PositionScheme, sized, window::Window},
};

/// The weights and settings of a layer's self-attention. D = width, I = heads · head_dim.
pub(in crate::nn) struct SelfAttention<'a> {
    /// Index of the layer in the cache.
    pub(in crate::nn) layer: usize,
    /// (3·I, D): queries, keys, values.
    pub(in crate::nn) qkv: &'a Linear,
    /// (D, I)
    pub(in crate::nn) output: &'a Linear,
    /// Norm between the heads and `output`: (I).
    pub(in crate::nn) context_norm: Option<&'a LayerNorm>,
    pub(in crate::nn) position: &'a PositionScheme,
    pub(in crate::nn) window: Window,
    pub(in crate::nn) layout: &'a PageLayout,
}

impl SelfAttention<'_> {
    /// Writes the self-attention of `x`, (positions, D), to `work.delta`. Fails if a cache cannot be found or lacks reserved
    /// positions.
    pub(in crate::nn) fn forward(&self, x: &[f32], pass: &mut StackPass<'_, impl Caches>) -> Result<()> {
        let StackPass { compute, positions, caches, work } = pass;
        let inner = self.layout.heads * self.layout.head_dim;
        let qkv = sized(&mut work.qkv, positions.len() * 3 * inner);
        self.qkv.apply(compute, x, Epilogue::None, &mut work.quantized, qkv); // (positions, 3·I)
        self.position.prepare(compute, self.layout, self.window, positions, qkv, &mut work.queries); // (positions, I) each
        for (position, row) in positions.iter().zip(qkv.chunks_exact(3 * inner)) {
            let (keys, values) = row[inner..].split_at(inner);
            caches.cache_mut(position.sequence)?.write(self.layer, position.index, keys, values)?;
        }
        self.mix(pass)?; // (positions, I)
        let StackPass { compute, positions, work, .. } = pass;
        if let Some(hook) = &mut work.hook {
            hook(HookPoint::Heads, self.layer, positions, &work.head_outputs);
        }
        if let Some(norm) = self.context_norm {
            layer_norm(compute, &mut work.head_outputs, norm);
        }
        let delta = sized(&mut work.delta, x.len());
        self.output.apply(compute, &work.head_outputs, Epilogue::None, &mut work.quantized, delta); // (positions, D)
        if let Some(hook) = &mut work.hook {
            hook(HookPoint::Attention, self.layer, positions, delta);
        }
        Ok(())
    }

    /// Writes the weighted values of each head, (positions, I), to `work.head_outputs`.
    fn mix(&self, pass: &mut StackPass<'_, impl Caches>) -> Result<()> {
        let StackPass { compute, positions, caches, work } = pass;
        let heads = self.layout.heads;
        let first_key = |position: &Position| self.window.first_key(position.index);
        // The kernel reads whole pages of keys.
        let furthest = positions.iter().map(|p| p.index - first_key(p) / POSITIONS * POSITIONS).max();
        let distances = self.position.distances(compute, self.layer, furthest.unwrap_or(0))?;
        let caches = &**caches;
        let queries = &work.queries;
        let query = |row: usize, head: usize| QueryRow {
            first_key: first_key(&positions[row]),
            position: positions[row].index,
            content: queries.content(row, head, heads),
            distance: queries.distance(row, head, heads),
            ..QueryRow::default()
        };
        let terms = |head| self.head(head, distances);
        let keys = positions.iter().map(|position| position.index + 1 - first_key(position)).sum();
        let mixing = Mixing { compute, layout: self.layout, positions, keys };
        mix(&mixing, &|sequence| caches.cache(sequence), &query, &terms, &mut work.head_outputs);
        if let Some(collected) = &mut work.scores {
            let mut row_scores = Vec::new();
            for (row, head) in (0..positions.len()).flat_map(|row| (0..heads).map(move |head| (row, head))) {
                let cache = caches.cache(positions[row].sequence)?;
                let mut query = query(row, head);
                query.first_key = query.first_key.max(cache.first());
                query.keys = cache.key_pages();
                scores(compute.isa, &self.head(head, distances), &query, &mut row_scores);
                collected.add(self.layer, &row_scores);
            }
        }
        Ok(())
    }

    /// Returns the terms of a head's scores.
    fn head<'a>(&'a self, head: usize, distances: Option<&'a DistanceTable>) -> AttentionHead<'a> {
        AttentionHead {
            block: self.position.block(),
            distances,
            bias: self.position.bias(head),
            ..AttentionHead::new(self.layout, self.layer, head)
        }
    }
}
