//! T5's relative positions: a score's bias is a learned number for each head and bucket of distances.
//!
//! score(i, j) = q_i · k_j + b[head][bucket(i − j)]. Buckets grow with the distance; everything at or beyond the largest one
//! shares the last, so there is no longest sequence. One table serves all layers of a stack. Attention knows distances as
//! products (see [`DistanceTable`]), so b is the product of a constant query with a constant vector for each distance: in
//! f32 and int8 it is that vector's first number, in bf16 the sum of three that together hold all its bits.

use crate::{
    error::Result,
    kernels::{
        Dtype,
        attention::{DistanceTable, Layout, Probes},
        memory::Arena,
    },
};
use std::sync::Arc;

/// Memory that is mapped at a time for a table.
const ARENA: usize = 1 << 20;

/// How distances fall into buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buckets {
    /// Rows of the learned table.
    pub count: usize,
    /// The first distance that may share the last bucket.
    pub max_distance: usize,
    /// Whether half of the rows are for keys that come later, of which a causal stack has none: T5's rule for encoders,
    /// where only the masks were changed.
    pub bidirectional: bool,
}

impl Buckets {
    /// Rows for keys that came before.
    fn used(self) -> usize {
        if self.bidirectional { self.count / 2 } else { self.count }
    }

    /// Whether there are exact buckets, and a range left for the growing ones.
    pub fn are_sound(self) -> bool {
        let exact = self.used() / 2;
        exact >= 1 && self.max_distance > exact
    }

    /// The bucket of a distance from a query back to a key. The first half are one distance each, the rest grow
    /// logarithmically.
    pub fn of(self, distance: usize) -> usize {
        let (used, exact) = (self.used(), self.used() / 2);
        if distance < exact {
            return distance;
        }
        let ratio = (distance as f64 / exact as f64).ln() / (self.max_distance as f64 / exact as f64).ln();
        // where the exact value is whole, no rounding of a logarithm is to take it below
        let step = (ratio * (used - exact) as f64 + 1e-9).floor() as usize;
        (exact + step).min(used - 1)
    }
}

/// A stack's biases, ready for attention.
pub struct Bias {
    buckets: Buckets,
    /// (buckets, heads)
    weights: Vec<f32>,
    layout: Layout,
    table: DistanceTable,
}

impl Bias {
    /// From the learned table, (buckets, heads), for sequences of up to `positions`.
    pub fn new(buckets: Buckets, weights: Vec<f32>, layout: &Layout, positions: usize) -> Self {
        let arena = Arc::new(Arena::new(ARENA));
        let table = DistanceTable::new(layout.dtype, (layout.heads, layout.head_dim), positions, arena);
        Self { buckets, weights, layout: *layout, table }
    }

    /// The distances, ready for queries up to position `last`.
    ///
    /// # Errors
    /// No memory for them.
    pub(super) fn distances(&self, last: usize) -> Result<&DistanceTable> {
        self.table.cover(last, |range| {
            let Layout { heads, head_dim, .. } = self.layout;
            let mut rows = vec![0.0; range.len() * heads * head_dim];
            for (distance, row) in range.zip(rows.chunks_exact_mut(heads * head_dim)) {
                let biases = &self.weights[self.buckets.of(distance) * heads..][..heads];
                for (row, &bias) in row.chunks_exact_mut(head_dim).zip(biases) {
                    let parts = parts(bias);
                    match self.parts() {
                        1 => row[0] = bias,
                        count => row[..count].copy_from_slice(&parts[..count]),
                    }
                }
            }
            rows
        })?;
        Ok(&self.table)
    }

    /// Writes the constant queries of so many rows and heads.
    pub(super) fn queries(&self, rows: usize, probes: &mut Probes) {
        let Layout { heads, head_dim, .. } = self.layout;
        let numbers = probes.numbers(rows * heads * head_dim);
        numbers.fill(0.0);
        for query in numbers.chunks_exact_mut(head_dim) {
            query[..self.parts()].fill(1.0);
        }
    }

    /// Bytes that one row's queries of all layers read of the table, for so many keys.
    pub fn bytes_for(&self, keys: usize) -> usize {
        self.layout.layers * self.layout.distance_bytes(keys)
    }

    /// Numbers that a bias is spread over.
    fn parts(&self) -> usize {
        if self.layout.dtype == Dtype::Bf16 { self.layout.head_dim.min(3) } else { 1 }
    }
}

/// A number as the sum of three that bf16 holds exactly: eight bits each.
fn parts(x: f32) -> [f32; 3] {
    let top = |x: f32| f32::from_bits(x.to_bits() & 0xffff_0000);
    let first = top(x);
    let second = top(x - first);
    [first, second, x - first - second]
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Buckets = Buckets { count: 32, max_distance: 128, bidirectional: false };

    /// Where each bucket begins.
    fn firsts(buckets: Buckets) -> Vec<usize> {
        let mut firsts: Vec<usize> = Vec::new();
        for distance in 0..1000 {
            let bucket = buckets.of(distance);
            assert!(bucket == firsts.len() || bucket + 1 == firsts.len(), "{distance}: {bucket}");
            if bucket == firsts.len() {
                firsts.push(distance);
            }
        }
        firsts
    }

    #[test]
    fn buckets_are_those_of_t5() {
        let exact = 0..16;
        let grown = [16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113];
        assert_eq!(firsts(USUAL), exact.chain(grown).collect::<Vec<_>>());
        let both = Buckets { bidirectional: true, ..USUAL };
        assert_eq!(firsts(both), [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]);
        assert_eq!(USUAL.of(usize::MAX / 2), 31);
    }

    #[test]
    fn other_sizes_are_sound_or_refused() {
        assert!(USUAL.are_sound() && Buckets { count: 2, ..USUAL }.are_sound());
        assert!(!Buckets { count: 1, ..USUAL }.are_sound());
        assert!(!Buckets { count: 2, bidirectional: true, ..USUAL }.are_sound());
        assert!(!Buckets { max_distance: 16, ..USUAL }.are_sound());
        // a wrong largest distance moves the first bucket that is shared
        assert_ne!(Buckets { max_distance: 64, ..USUAL }.of(60), USUAL.of(60));
    }

    #[test]
    fn three_parts_hold_all_bits() {
        for bits in (0..1000u32).map(|i| i.wrapping_mul(2_654_435_761) & 0xbfff_ffff) {
            let x = f32::from_bits(bits);
            if !x.is_normal() || x.abs() < 1e-30 {
                continue;
            }
            let parts = parts(x);
            assert_eq!(parts[0] + parts[1] + parts[2], x);
            assert!(parts.iter().all(|part| part.to_bits() & 0xffff == 0), "{x}: {parts:?}");
        }
    }
}
