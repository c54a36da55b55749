//! A section of keys of dense attention: a store, and the bias and window by the distance between query and key.

use super::layout::DenseLayout;
use std::ops::Range;

/// Keys and values of one store. Queries attend to all of them, or to those within a window.
#[derive(Debug, Clone, Copy)]
pub struct DenseKeys<'a> {
    /// Layout of the store.
    pub layout: DenseLayout,
    /// Keys and values.
    pub store: &'a [f32],
    /// Number of keys written.
    pub count: usize,
    /// Bias and window; none: every query attends to all keys.
    pub relative: Option<RelativeKeys<'a>>,
}

/// Bias and window of a section, by distance: the key's position minus the query's.
#[derive(Debug, Clone, Copy)]
pub struct RelativeKeys<'a> {
    /// For each head the bias of the distances from −M to M, (2·M + 1). Larger distances take the first or the last entry.
    pub tables: &'a [Vec<f32>],
    /// Position of each query, in rising order; a position may repeat. (rows)
    pub query_positions: &'a [u32],
    /// Position of each key, in strictly rising order; none: its index. (count)
    pub key_positions: Option<&'a [u32]>,
    /// Largest distance, on both sides, at which a query attends to a key; none: any.
    pub radius: Option<usize>,
}

impl DenseKeys<'_> {
    /// Checks the lengths against heads and queries. Returns the number of keys.
    pub(super) fn check(&self, heads: usize, head_dim: usize, rows: usize) -> usize {
        let Self { layout, store, count, relative } = self;
        assert!(layout.heads == heads && layout.head_dim == head_dim);
        assert!((1..=layout.capacity).contains(count) && store.len() == layout.floats());
        if let Some(relative) = relative {
            assert!(relative.tables.len() == heads && relative.tables.iter().all(|table| table.len() % 2 == 1));
            assert!(relative.query_positions.len() == rows);
            assert!(relative.key_positions.is_none_or(|positions| positions.len() == *count));
        }
        *count
    }

    /// Returns the keys that query `row` attends to.
    #[inline(always)]
    pub(super) fn range(&self, row: usize) -> Range<usize> {
        match self.relative {
            Some(relative @ RelativeKeys { radius: Some(radius), .. }) => {
                relative.within(relative.query_positions[row] as usize, radius, self.count)
            }
            _ => 0..self.count,
        }
    }

    /// Adds the bias to the `scores` of consecutive keys from index `first` on.
    #[inline(always)]
    pub(super) fn add_bias(&self, head: usize, row: usize, first: usize, scores: &mut [f32]) {
        let Some(relative) = &self.relative else { return };
        let table = &relative.tables[head];
        let max = table.len() / 2;
        let position = relative.query_positions[row] as usize;
        let near = relative.within(position, max, self.count);
        let start = near.start.clamp(first, first + scores.len());
        let end = near.end.clamp(start, first + scores.len());
        let (before, rest) = scores.split_at_mut(start - first);
        let (near, after) = rest.split_at_mut(end - start);
        before.iter_mut().for_each(|score| *score += table[0]);
        after.iter_mut().for_each(|score| *score += table[2 * max]);
        match relative.key_positions {
            _ if near.is_empty() => {}
            None => {
                let biases = &table[start + max - position..];
                near.iter_mut().zip(biases).for_each(|(score, bias)| *score += bias);
            }
            Some(positions) => {
                let biases = positions[start..end].iter().map(|&key| table[key as usize + max - position]);
                near.iter_mut().zip(biases).for_each(|(score, bias)| *score += bias);
            }
        }
    }
}

impl RelativeKeys<'_> {
    /// Returns the keys at a distance of at most `radius` from a position.
    #[inline(always)]
    fn within(&self, position: usize, radius: usize, count: usize) -> Range<usize> {
        match self.key_positions {
            None => {
                let start = position.saturating_sub(radius).min(count);
                start..(position + radius + 1).clamp(start, count)
            }
            Some(positions) => {
                let start = positions.partition_point(|&key| key as usize + radius < position);
                let end = positions.partition_point(|&key| key as usize <= position + radius);
                start..end
            }
        }
    }
}
