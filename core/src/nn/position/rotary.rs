//! Rotary positions (Su et al. 2021) and xPos (LeX, Sun et al. 2023, §3.2): keys and queries are rotated by their position.
//!
//! Pairs of neighbouring numbers rotate by n·θ_m, θ_m = 10000^(−m/(h/2)). xPos also scales them, queries by ζ_m^(n/B) and
//! keys by its inverse, ζ_m = (2m + γh)/((1 + γ)h), so that a score decays with the distance. A key is rotated once, by its
//! offset in its block of positions, and stored in that form. A query is rotated for each block that it attends to, by its
//! distance from that block's start. No number depends on the distance from the sequence's start, and no stored key is ever
//! rotated again.

use super::queries::Queries;
use crate::{
    kernels::attention::{POSITIONS, PageLayout},
    nn::Position,
};
use std::sync::OnceLock;

/// γ of the xPos paper.
const GAMMA: f64 = 0.4;
/// Base of θ.
const BASE: f64 = 10_000.0;
/// Positions of one part of a rotation table.
const PART: usize = 256;

/// Rotation tables of one stack.
pub struct Rotary {
    /// Positions of a block, from whose start a key's rotation counts; `usize::MAX` if it counts from the sequence's start.
    block: usize,
    queries: RotationTable,
    keys: RotationTable,
}

/// Returns ζ_m for heads of `dim` numbers.
pub fn zeta(dim: usize, pair: usize) -> f64 {
    (2.0 * pair as f64 + GAMMA * dim as f64) / ((1.0 + GAMMA) * dim as f64)
}

/// Returns the maximum distance at which xPos's scale is still a normal f32.
pub fn max_distance(dim: usize, scale_base: f64) -> usize {
    let decay = -zeta(dim, 0).ln() / scale_base;
    (-f64::from(f32::MIN_POSITIVE).ln() / decay) as usize
}

impl Rotary {
    /// Creates tables for heads of `dim` numbers and sequences of at most `positions`. A position attends to at most `max_keys`
    /// keys, if limited. `scale_base` is B of xPos, or `None` without scales.
    pub fn new(dim: usize, scale_base: Option<f64>, max_keys: Option<usize>, positions: usize) -> Self {
        let whole_pages = |positions: usize| positions.max(1).next_multiple_of(POSITIONS);
        // Within B positions the scales stay near one, which short dtypes store more exactly.
        let scale_block = scale_base.map(|base| whole_pages(base.ceil() as usize));
        // A blockwise window is two blocks.
        let window_block = max_keys.map(|keys| whole_pages(keys.div_ceil(2)));
        let block = scale_block.unwrap_or(usize::MAX).min(window_block.unwrap_or(usize::MAX));
        let query_positions = max_keys.map_or(positions, |keys| keys.saturating_add(block)).max(1);
        let rates = (0..dim / 2).map(|m| BASE.powf(-(m as f64) / (dim as f64 / 2.0))).collect::<Vec<_>>();
        let growth = |sign: f64| match scale_base {
            Some(base) => (0..dim / 2).map(|m| sign * zeta(dim, m).ln() / base).collect(),
            None => vec![0.0; dim / 2],
        };
        let table = |sign, positions| RotationTable::new(rates.clone(), growth(sign), positions);
        Self { block, queries: table(1.0, query_positions), keys: table(-1.0, block.min(positions.max(1))) }
    }

    /// Returns [`AttentionHead::block`](crate::kernels::attention::AttentionHead::block).
    pub fn block(&self) -> usize {
        self.block
    }

    /// Rotates a key's heads, (head_dim) each, by its offset in its block.
    pub fn rotate_key<'a>(&self, offset: usize, heads: impl Iterator<Item = &'a mut [f32]>) {
        self.keys.rotate(offset, heads);
    }

    /// Rotates a query's heads, (head_dim) each, by its distance from a block's start.
    pub fn rotate_query<'a>(&self, distance: usize, heads: impl Iterator<Item = &'a mut [f32]>) {
        self.queries.rotate(distance, heads);
    }

    /// Rotates keys in place, and each query into its variants, (variants, heads, head_dim), starting with that for its own block.
    /// `first_key` returns the first position that a position attends to.
    pub(super) fn prepare(
        &self,
        layout: &PageLayout,
        positions: &[Position],
        first_key: &dyn Fn(usize) -> usize,
        qkv: &mut [f32],
        queries: &mut Queries,
    ) {
        let dim = layout.head_dim;
        let inner = layout.heads * dim;
        queries.assign(positions, |position| position / self.block - first_key(position) / self.block + 1);
        let variants: usize = queries.variants.iter().map(|variants| variants.count).sum();
        let mut out = queries.content.values_mut(variants * inner).chunks_exact_mut(inner);
        for (position, row) in positions.iter().zip(qkv.chunks_exact_mut(3 * inner)) {
            let block = position.index / self.block;
            let offset = position.index % self.block;
            let (query, rest) = row.split_at_mut(inner);
            self.rotate_key(offset, rest[..inner].chunks_exact_mut(dim));
            for back in 0..=block - first_key(position.index) / self.block {
                let Some(variant) = out.next() else { return };
                variant.copy_from_slice(query);
                self.rotate_query(offset + back * self.block, variant.chunks_exact_mut(dim));
            }
        }
    }
}

/// cos and sin of n·θ_m times e^(n·growth_m), rounded from f64. Each part is computed when a sequence first reaches it.
struct RotationTable {
    rates: Vec<f64>,
    growth: Vec<f64>,
    parts: Vec<OnceLock<Box<[f32]>>>,
}

impl RotationTable {
    fn new(rates: Vec<f64>, growth: Vec<f64>, positions: usize) -> Self {
        Self { rates, growth, parts: (0..positions.div_ceil(PART)).map(|_| OnceLock::new()).collect() }
    }

    /// Rotates heads, (head_dim) each, by `n` positions.
    fn rotate<'a>(&self, n: usize, heads: impl Iterator<Item = &'a mut [f32]>) {
        let rotations = self.rotations(n);
        for head in heads {
            for (pair, rotation) in head.as_chunks_mut::<2>().0.iter_mut().zip(rotations.as_chunks::<2>().0) {
                let [a, b] = *pair;
                let [cos, sin] = *rotation;
                *pair = [a * cos - b * sin, b * cos + a * sin];
            }
        }
    }

    /// Returns cos and sin of each pair in turn, for `n` positions: (head_dim).
    fn rotations(&self, n: usize) -> &[f32] {
        let width = 2 * self.rates.len();
        let part = self.parts[n / PART].get_or_init(|| {
            let first = n / PART * PART;
            (first..first + PART).flat_map(|n| self.compute(n as f64)).collect()
        });
        &part[n % PART * width..][..width]
    }

    fn compute(&self, n: f64) -> impl Iterator<Item = f32> {
        self.rates.iter().zip(&self.growth).flat_map(move |(rate, growth)| {
            let scale = (n * growth).exp();
            let angle = n * rate;
            [(angle.cos() * scale) as f32, (angle.sin() * scale) as f32]
        })
    }
}
