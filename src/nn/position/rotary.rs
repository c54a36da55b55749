//! Rotary positions (Su et al. 2021) and xPos (LeX, Sun et al. 2023, §3.2): keys and queries turned by their position.
//!
//! Pairs of neighbouring numbers turn by n·θ_m, θ_m = 10000^(−m/(h/2)); xPos also scales them, queries by ζ_m^(n/B) and keys
//! by its inverse, ζ_m = (2m + γh)/((1 + γ)h), so that a score decays with the distance. A key is turned once, by its position in
//! its block of positions, and stored so; a query is turned anew for each block that it meets, by its distance from that
//! block's start. No number depends on how far from the sequence's start they stand, and no key is ever turned again.

use super::queries::Queries;
use crate::{
    kernels::attention::{POSITIONS, PageLayout},
    nn::Position,
};
use std::sync::OnceLock;

/// γ of the paper.
const GAMMA: f64 = 0.4;
/// Base of θ.
const BASE: f64 = 10_000.0;
/// Positions of a part of a table.
const PART: usize = 256;

/// The scheme for one stack.
pub struct Rotary {
    /// Positions that a key's turn counts from; `usize::MAX`: all from the sequence's start.
    block: usize,
    queries: Turns,
    keys: Turns,
}

/// ζ_m, for heads of `dim` numbers.
pub fn zeta(dim: usize, pair: usize) -> f64 {
    (2.0 * pair as f64 + GAMMA * dim as f64) / ((1.0 + GAMMA) * dim as f64)
}

/// The longest distance at which xPos's scale is still a normal f32.
pub fn longest(dim: usize, scale_base: f64) -> usize {
    let decay = -zeta(dim, 0).ln() / scale_base;
    (-f64::from(f32::MIN_POSITIVE).ln() / decay) as usize
}

impl Rotary {
    /// For heads of `dim` numbers; keys reach back `reach` positions, or all of the sequence's; with xPos's `scale_base` B,
    /// or without scales. Sequences have at most `positions`.
    pub fn new(dim: usize, scale_base: Option<f64>, reach: Option<usize>, positions: usize) -> Self {
        let pages = |positions: usize| positions.max(1).next_multiple_of(POSITIONS);
        // scales within a block stay near one, which fewer bits hold better
        let near = scale_base.map(|base| pages(base.ceil() as usize));
        // blockwise windows are two blocks
        let window = reach.map(|reach| pages(reach.div_ceil(2)));
        let block = near.unwrap_or(usize::MAX).min(window.unwrap_or(usize::MAX));
        let far = reach.map_or(positions, |reach| reach.saturating_add(block)).max(1);
        let rates = (0..dim / 2).map(|m| BASE.powf(-(m as f64) / (dim as f64 / 2.0))).collect::<Vec<_>>();
        let growth = |sign: f64| match scale_base {
            Some(base) => (0..dim / 2).map(|m| sign * zeta(dim, m).ln() / base).collect(),
            None => vec![0.0; dim / 2],
        };
        let table = |sign, positions| Turns::new(rates.clone(), growth(sign), positions);
        Self { block, queries: table(1.0, far), keys: table(-1.0, block.min(positions.max(1))) }
    }

    /// See [`AttentionHead::block`](crate::kernels::attention::AttentionHead::block).
    pub fn block(&self) -> usize {
        self.block
    }

    /// Turns a key's heads, (head_dim) each, by its position in its block.
    pub fn turn_key<'a>(&self, position: usize, heads: impl Iterator<Item = &'a mut [f32]>) {
        self.keys.turn(position, heads);
    }

    /// Turns a query's heads by its distance from a block's start.
    pub fn turn_query<'a>(&self, distance: usize, heads: impl Iterator<Item = &'a mut [f32]>) {
        self.queries.turn(distance, heads);
    }

    /// Turns keys in position, and each query into its forms, (forms, heads, head_dim), its own block's first. `low` gives a
    /// row's first key.
    pub(super) fn prepare(
        &self,
        layout: &PageLayout,
        positions: &[Position],
        low: &dyn Fn(usize) -> usize,
        qkv: &mut [f32],
        queries: &mut Queries,
    ) {
        let (dim, inner) = (layout.head_dim, layout.heads * layout.head_dim);
        queries.number(positions, |position| position / self.block - low(position) / self.block + 1);
        let forms: usize = queries.forms.iter().map(|forms| forms.count).sum();
        let mut out = queries.content.values_mut(forms * inner).chunks_exact_mut(inner);
        for (position, row) in positions.iter().zip(qkv.chunks_exact_mut(3 * inner)) {
            let (block, within) = (position.index / self.block, position.index % self.block);
            let (query, rest) = row.split_at_mut(inner);
            self.turn_key(within, rest[..inner].chunks_exact_mut(dim));
            for back in 0..=block - low(position.index) / self.block {
                let Some(form) = out.next() else { return };
                form.copy_from_slice(query);
                self.turn_query(within + back * self.block, form.chunks_exact_mut(dim));
            }
        }
    }
}

/// cos and sin of n·θ_m times e^(n·growth_m), made from f64 in parts, each once, when a sequence first gets so far.
struct Turns {
    rates: Vec<f64>,
    growth: Vec<f64>,
    parts: Vec<OnceLock<Box<[f32]>>>,
}

impl Turns {
    fn new(rates: Vec<f64>, growth: Vec<f64>, positions: usize) -> Self {
        Self { rates, growth, parts: (0..positions.div_ceil(PART)).map(|_| OnceLock::new()).collect() }
    }

    /// Turns heads, (head_dim) each, by `n` positions.
    fn turn<'a>(&self, n: usize, heads: impl Iterator<Item = &'a mut [f32]>) {
        let turns = self.at(n);
        for head in heads {
            for (pair, turn) in head.as_chunks_mut::<2>().0.iter_mut().zip(turns.as_chunks::<2>().0) {
                let ([a, b], [cos, sin]) = (*pair, *turn);
                *pair = [a * cos - b * sin, b * cos + a * sin];
            }
        }
    }

    /// (head_dim): cos and sin of each pair in turn.
    fn at(&self, n: usize) -> &[f32] {
        let width = 2 * self.rates.len();
        let part = self.parts[n / PART].get_or_init(|| {
            let first = n / PART * PART;
            (first..first + PART).flat_map(|n| self.row(n as f64)).collect()
        });
        &part[n % PART * width..][..width]
    }

    fn row(&self, n: f64) -> impl Iterator<Item = f32> {
        self.rates.iter().zip(&self.growth).flat_map(move |(rate, growth)| {
            let (scale, angle) = ((n * growth).exp(), n * rate);
            [(angle.cos() * scale) as f32, (angle.sin() * scale) as f32]
        })
    }
}
