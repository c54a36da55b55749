//! Position schemes: how attention takes the positions of queries and keys, or their distance, into account.
//!
//! A scheme acts in up to four steps. Before the first layer it may add to a stack's input ([`PositionScheme::embed`]). Before
//! attention it turns projections into queries and may change keys ([`PositionScheme::prepare`]). In attention it provides each
//! distance with a vector ([`PositionScheme::distances`]) or a number ([`PositionScheme::bias`]). Stored keys never change.
//!
//! To add a scheme: its type, a variant of [`PositionKind`] and of [`PositionScheme`], and their arms.

use crate::nn::{ConfigError, Position, window::Window};
use serde::Deserialize;
use std::sync::{Arc, OnceLock};
use weir_kernels::Compute;
use weir_kernels::attention::{Bias, DistanceTable, POSITIONS, PageLayout, Query, QueryBuffer, QueryVariants};
use weir_kernels::error::Result;
use weir_kernels::linear::{Epilogue, Linear, QuantizedRows};
use weir_kernels::memory::Arena;

/// `position` of a checkpoint's architecture.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum PositionKind {
    /// Relative distances with learned projections (Dai et al. 2019).
    TransformerXl,
    /// Keys and queries rotated by their position (Su et al. 2021).
    Rotary,
    /// Rotary positions with scores that decay with the distance (Sun et al. 2023).
    Xpos {
        /// B, the unit of distance in which scores decay.
        scale_base: f64,
    },
    /// Scores that decrease linearly with the distance (Press et al. 2022).
    Alibi,
    /// A learned number for each bucket of distances (Raffel et al. 2020).
    Buckets {
        /// Number of buckets.
        count: usize,
        /// Distances from this one on are in the last bucket.
        max_distance: usize,
    },
    /// Sines and cosines, added to the stack's input (Vaswani et al. 2017).
    Sinusoidal,
    /// A learned vector for each position, added to the stack's input.
    Learned {
        /// Number of vectors: the maximum length of a sequence.
        positions: usize,
    },
    /// No positions: only the causal window orders the keys.
    None,
}

/// Maximum buckets, and maximum `max_distance`.
const MAX_BUCKETS: usize = 1 << 20;

/// Maximum positions of a learned table.
const MAX_LEARNED: usize = 1 << 24;

impl PositionKind {
    /// Checks that it fits heads of `head_dim` numbers in a stack of width `dim` with `window`. The error names the key.
    pub fn validate(self, dim: usize, head_dim: usize, window: Window) -> Result<(), ConfigError> {
        match self {
            Self::TransformerXl | Self::Sinusoidal if !dim.is_multiple_of(2) => {
                Err(ConfigError::new("dim", "an even number (half sines, half cosines)", dim))
            }
            Self::Rotary | Self::Xpos { .. } if !head_dim.is_multiple_of(2) => {
                let expected = "an even number: this position scheme turns pairs of numbers";
                Err(ConfigError::new("head_dim", expected, head_dim))
            }
            Self::Xpos { scale_base } if !(1.0..=1e9).contains(&scale_base) => {
                Err(ConfigError::new("position.xpos.scale_base", "1 to 1e9", scale_base))
            }
            Self::Xpos { scale_base } => {
                // A query is rotated from the start of a block, which may lie before its window.
                let block = scale_base.ceil() as usize + POSITIONS;
                let limit = max_distance(head_dim, scale_base).saturating_sub(block);
                match window.max_keys() {
                    Some(keys) if keys > limit => {
                        let expected = format!(
                            "at most {limit} keys: with position.xpos.scale_base {scale_base} the scale of keys further off leaves f32's range"
                        );
                        Err(ConfigError::new("window", expected, keys))
                    }
                    _ => Ok(()),
                }
            }
            Self::Buckets { count, .. } if !(2..=MAX_BUCKETS).contains(&count) || !count.is_multiple_of(2) => {
                let expected = format!("an even number from 2 to {MAX_BUCKETS}");
                Err(ConfigError::new("position.buckets.count", expected, count))
            }
            Self::Buckets { count, max_distance } if !(count / 2 + 1..=MAX_BUCKETS).contains(&max_distance) => {
                let expected = format!("{} to {MAX_BUCKETS}: more than half the buckets", count / 2 + 1);
                Err(ConfigError::new("position.buckets.max_distance", expected, max_distance))
            }
            Self::Learned { positions } if !(1..=MAX_LEARNED).contains(&positions) => {
                Err(ConfigError::new("position.learned.positions", format!("1 to {MAX_LEARNED}"), positions))
            }
            _ => Ok(()),
        }
    }

    /// Returns the maximum length of a sequence with this scheme and `window`, and the reason; `None` if unlimited.
    pub fn max_length(self, head_dim: usize, window: Window) -> Option<(usize, &'static str)> {
        match self {
            Self::Xpos { scale_base } if window == Window::Full => {
                let why = "without a window, xpos's scale of keys further off leaves f32's range";
                Some((max_distance(head_dim, scale_base), why))
            }
            Self::Learned { positions } => Some((positions, "no more positions were learned")),
            _ => None,
        }
    }

    /// Returns the scheme's human-readable name.
    pub fn name(self) -> &'static str {
        match self {
            Self::TransformerXl => "transformer-xl",
            Self::Rotary => "rotary",
            Self::Xpos { .. } => "xpos",
            Self::Alibi => "alibi",
            Self::Buckets { .. } => "buckets",
            Self::Sinusoidal => "sinusoidal",
            Self::Learned { .. } => "learned",
            Self::None => "no positions",
        }
    }
}

/// A scheme with its weights, for the layers of one stack.
pub enum PositionScheme {
    /// See [`TransformerXl`].
    TransformerXl(TransformerXl),
    /// Rotary positions or xPos: see [`Rotary`].
    Rotary(Rotary),
    /// See [`RoundedRotary`].
    RoundedRotary(RoundedRotary),
    /// ALiBi: each head's slope.
    Alibi(Vec<f32>),
    /// T5: each head's number for each distance, see [`Buckets::tables`]. Stacks may share the tables.
    Buckets(Arc<[Vec<f32>]>),
    /// See [`Absolute`].
    Absolute(Absolute),
    /// No positions.
    None,
}

impl PositionScheme {
    /// Adds absolute positions, if the scheme has them, to a stack's input: (positions, dim).
    pub fn embed(&self, x: &mut [f32], positions: &[Position]) {
        if let Self::Absolute(scheme) = self {
            scheme.add(x, positions);
        }
    }

    /// Turns a layer's `qkv`, (positions, 3 · heads · head_dim), into queries; may change keys in place.
    pub fn prepare(
        &self,
        compute: &Compute,
        layout: &PageLayout,
        window: Window,
        positions: &[Position],
        qkv: &mut [f32],
        queries: &mut Queries,
    ) {
        match self {
            Self::TransformerXl(scheme) => scheme.prepare(layout, positions, qkv, queries),
            Self::Rotary(scheme) => {
                scheme.prepare(layout, positions, &|position| window.first_key(position), qkv, queries);
            }
            Self::RoundedRotary(scheme) => scheme.prepare(layout, positions, qkv, queries),
            Self::Alibi(_) | Self::Buckets(_) | Self::Absolute(_) | Self::None => {
                queries.assign(positions, |_| 1);
                let inner = layout.heads * layout.head_dim;
                let content = queries.content.values_mut(positions.len() * inner);
                for (row, content) in qkv.chunks_exact(3 * inner).zip(content.chunks_exact_mut(inner)) {
                    content.copy_from_slice(&row[..inner]);
                }
            }
        }
        for buffer in [&mut queries.content, &mut queries.distance] {
            buffer.finish(compute, layout.dtype, layout.head_dim);
        }
    }

    /// Returns the positions of a block of keys, for which a query has a variant; `usize::MAX` for a single variant.
    pub fn block(&self) -> usize {
        match self {
            Self::Rotary(scheme) => scheme.block(),
            _ => usize::MAX,
        }
    }

    /// Returns a layer's vectors of the distances up to `furthest`, if the scheme has any. Fails if memory runs out.
    pub fn distances(&self, compute: &Compute, layer: usize, furthest: usize) -> Result<Option<&DistanceTable>> {
        match self {
            Self::TransformerXl(scheme) => scheme.distances(compute, layer, furthest).map(Some),
            _ => Ok(None),
        }
    }

    /// Returns the bias that a head adds to scores by distance.
    pub fn bias(&self, head: usize) -> Bias<'_> {
        match self {
            Self::Alibi(slopes) => Bias::Slope(slopes[head]),
            Self::Buckets(tables) => Bias::Table(&tables[head]),
            _ => Bias::None,
        }
    }

    /// Returns the bytes, shared by sequences, that all layers read next to keys and values for a query with `keys` keys.
    pub fn bytes_for(&self, layout: &PageLayout, keys: usize) -> usize {
        match self {
            Self::TransformerXl(_) => bytes_for(layout, keys),
            Self::Buckets(tables) => {
                layout.layers * tables.iter().map(|table| 4 * table.len().min(keys)).sum::<usize>()
            }
            // The other schemes read one or two table rows a step.
            _ => 0,
        }
    }

    /// Returns the dot products of a query with each key: one for the content, and one for the distance if the scheme has it.
    pub fn products(&self) -> usize {
        match self {
            Self::TransformerXl(_) => 2,
            _ => 1,
        }
    }
}

/// Queries of a step's positions.
#[derive(Default)]
pub struct Queries {
    /// Queries for the keys: (variants of all positions, heads, head_dim).
    content: QueryBuffer,
    /// Queries for the distances, (positions, heads, head_dim), or empty.
    distance: QueryBuffer,
    /// Variants of each position.
    variants: Vec<VariantRange>,
    /// Rotations that the layers of a stack share.
    rotations: LatestRotations,
}

/// Range of one position's variants among all positions' variants.
#[derive(Clone, Copy)]
struct VariantRange {
    first: usize,
    count: usize,
}

impl Queries {
    /// Assigns variants to positions; `count` returns how many the position with an index has.
    fn assign(&mut self, positions: &[Position], count: impl Fn(usize) -> usize) {
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

/// Source of a position's vector.
pub enum Absolute {
    /// sin(n·f_i), then cos(n·f_i), n counted from `first`: fairseq's form of Vaswani et al. 2017.
    Sinusoidal {
        /// f: (dim / 2)
        frequencies: Vec<f32>,
        /// n of a sequence's first position.
        first: usize,
    },
    /// A learned vector for each position (GPT-2).
    Learned {
        /// (max positions, dim); stacks may share it.
        table: Arc<[f32]>,
    },
}

/// Returns fairseq's frequencies: 10000^(−i/(D/2 − 1)).
pub fn frequencies(dim: usize) -> Vec<f32> {
    let step = 10_000f64.ln() / (dim / 2).saturating_sub(1).max(1) as f64;
    // Rounds the exponent to f32 first, as the official code does.
    (0..dim / 2).map(|i| (i as f32 * -step as f32).exp()).collect()
}

impl Absolute {
    fn add(&self, x: &mut [f32], positions: &[Position]) {
        let dim = x.len() / positions.len().max(1);
        for (position, x) in positions.iter().zip(x.chunks_exact_mut(dim.max(1))) {
            match self {
                Self::Sinusoidal { frequencies, first } => {
                    let (sines, cosines) = x.split_at_mut(frequencies.len());
                    let angles = frequencies.iter().map(|f| f64::from((position.index + first) as f32 * f));
                    for ((sine, cosine), angle) in sines.iter_mut().zip(cosines).zip(angles) {
                        *sine += angle.sin() as f32;
                        *cosine += angle.cos() as f32;
                    }
                }
                Self::Learned { table } => {
                    for (x, learned) in x.iter_mut().zip(&table[position.index * dim..][..dim]) {
                        *x += learned;
                    }
                }
            }
        }
    }
}

/// Returns the published slopes: 2^(−8k/H) for k = 1 … H if H is a power of two, else interpolated ones.
pub fn slopes(heads: usize) -> Vec<f32> {
    let powers = |heads: usize| (1..=heads).map(move |k| (-8.0 * k as f64 / heads as f64).exp2() as f32);
    let below = if heads.is_power_of_two() { heads } else { heads.next_power_of_two() / 2 };
    powers(below).chain(powers(2 * below).step_by(2)).take(heads).collect()
}

// T5's buckets (Raffel et al. 2020, §2.1): a learned number for each head and bucket of distances, added to the score.

/// Mapping of distances to buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buckets {
    /// Rows of the learned table.
    pub count: usize,
    /// Distances from this one on are in the last bucket.
    pub max_distance: usize,
    /// True if half of the rows are for later keys: T5's rule for encoders, kept by causal stacks that changed only the mask.
    pub bidirectional: bool,
}

impl Buckets {
    /// Returns the number of rows for earlier keys.
    fn used(self) -> usize {
        if self.bidirectional { self.count / 2 } else { self.count }
    }

    /// Returns true if there are exact buckets and a range of distances for the growing ones.
    pub fn is_valid(self) -> bool {
        let exact = self.used() / 2;
        exact >= 1 && self.max_distance > exact
    }

    /// Returns the bucket of a distance from a query back to a key. The first half of the buckets hold one distance each, the
    /// others grow. Rounds in f32 as T5's code does.
    pub fn bucket(self, distance: usize) -> usize {
        let used = self.used();
        let exact = used / 2;
        if distance < exact {
            return distance;
        }
        let far = (distance as f32 / exact as f32).ln() / (self.max_distance as f64 / exact as f64).ln() as f32;
        (exact + (far * (used - exact) as f32) as usize).min(used - 1)
    }

    /// Returns how many numbers the [`tables`](Self::tables) of `heads` heads hold; `usize::MAX` if that overflows.
    pub fn table_numbers(self, heads: usize) -> usize {
        self.max_distance.saturating_add(1).saturating_mul(heads)
    }

    /// Returns how many numbers the [`two_sided_tables`](Self::two_sided_tables) of `heads` heads hold; `usize::MAX` if that
    /// overflows.
    pub fn two_sided_table_numbers(self, heads: usize) -> usize {
        self.max_distance.saturating_mul(2).saturating_add(1).saturating_mul(heads)
    }

    /// Returns each head's number for each distance from −`max_distance` (earlier keys) on, from the learned (count, heads).
    pub fn two_sided_tables(self, bias: &[f32]) -> Vec<Vec<f32>> {
        let heads = bias.len() / self.count;
        let number = |head: usize, bucket: usize| bias[bucket * heads + head];
        let table = |head: usize| {
            let earlier = (0..=self.max_distance).rev().map(|distance| number(head, self.bucket(distance)));
            let later = (1..=self.max_distance).map(|distance| number(head, self.used() + self.bucket(distance)));
            earlier.chain(later).collect()
        };
        (0..heads).map(table).collect()
    }

    /// Returns each head's number for each distance up to `max_distance`, from the learned `bias`: (count, heads).
    pub fn tables(self, bias: &[f32]) -> Vec<Vec<f32>> {
        let heads = bias.len() / self.count;
        let number = |head: usize, distance: usize| bias[self.bucket(distance) * heads + head];
        (0..heads).map(|head| (0..=self.max_distance).map(|distance| number(head, distance)).collect()).collect()
    }
}

// Rotary positions (Su et al. 2021) and xPos (LeX, Sun et al. 2023, §3.2). Pairs of neighbouring numbers rotate by n·θ_m, θ_m =
// base^(−m/(h/2)), where the base is mostly 10000. xPos also scales queries by ζ_m^(n/B) and keys by its inverse, ζ_m = (2m + γh)/((1 + γ)h). A key is rotated
// once, by its offset in its block of positions, and a query for each block that it attends to, by its distance from that
// block's start: no number depends on the distance from the sequence's start, and no stored key is ever rotated again.

/// γ of the xPos paper.
const GAMMA: f64 = 0.4;

/// The paper's base of θ.
pub const ROTARY_BASE: f64 = 10_000.0;

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
    /// Creates tables for heads of `dim` numbers and sequences of at most `positions`. `base` is θ's, `scale_base` is xPos's B.
    pub fn new(dim: usize, base: f64, scale_base: Option<f64>, max_keys: Option<usize>, positions: usize) -> Self {
        let whole_pages = |positions: usize| positions.max(1).next_multiple_of(POSITIONS);
        // Within B positions the scales stay near one, which short dtypes store more exactly.
        let scale_block = scale_base.map(|base| whole_pages(base.ceil() as usize));
        // A blockwise window is two blocks.
        let window_block = max_keys.map(|keys| whole_pages(keys.div_ceil(2)));
        let block = scale_block.unwrap_or(usize::MAX).min(window_block.unwrap_or(usize::MAX));
        let query_positions = max_keys.map_or(positions, |keys| keys.saturating_add(block)).max(1);
        let rates = (0..dim / 2).map(|m| base.powf(-(m as f64) / (dim as f64 / 2.0))).collect::<Vec<_>>();
        let growth = |sign: f64| match scale_base {
            Some(base) => (0..dim / 2).map(|m| sign * zeta(dim, m).ln() / base).collect(),
            None => vec![0.0; dim / 2],
        };
        let table = |sign, positions| RotationTable::new(rates.clone(), growth(sign), positions);
        Self { block, queries: table(1.0, query_positions), keys: table(-1.0, block.min(positions.max(1))) }
    }

    /// Returns [`AttentionHead::block`](weir_kernels::attention::AttentionHead::block).
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

    /// Rotates keys in place, and each query into its variants, (variants, heads, head_dim), its own block's first.
    fn prepare(
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
        let parts = (0..positions.div_ceil(PART)).map(|_| OnceLock::new()).collect();
        Self { rates, growth, parts }
    }

    /// Rotates heads, (head_dim) each, by `n` positions.
    fn rotate<'a>(&self, n: usize, heads: impl Iterator<Item = &'a mut [f32]>) {
        let width = 2 * self.rates.len();
        let part = self.parts[n / PART].get_or_init(|| {
            let first = n / PART * PART;
            (first..first + PART).flat_map(|n| self.compute(n as f64)).collect()
        });
        rotate_pairs(heads, &part[n % PART * width..][..width]);
    }

    /// Returns cos and sin of each pair in turn: (head_dim).
    fn compute(&self, n: f64) -> impl Iterator<Item = f32> {
        self.rates.iter().zip(&self.growth).flat_map(move |(rate, growth)| {
            let scale = (n * growth).exp();
            [((n * rate).cos() * scale) as f32, ((n * rate).sin() * scale) as f32]
        })
    }
}

/// Turns each head's pairs by the cos and sin in `rotations`, (head_dim) each.
fn rotate_pairs<'a>(heads: impl Iterator<Item = &'a mut [f32]>, rotations: &[f32]) {
    for head in heads {
        for (pair, rotation) in head.as_chunks_mut::<2>().0.iter_mut().zip(rotations.as_chunks::<2>().0) {
            let [a, b] = *pair;
            let [cos, sin] = *rotation;
            *pair = [a * cos - b * sin, b * cos + a * sin];
        }
    }
}

/// Rotary positions that count from the sequence's start, with rates and angles that are rounded to f32. transformers rounds them,
/// and after hundreds of positions that moves logits more than all other rounding in f32. There is no table, which would grow
/// with the longest text: a step computes the rotations of its positions, and its layers share them.
pub struct RoundedRotary {
    rates: Vec<f32>,
}

/// The rotations of the latest positions.
#[derive(Default)]
struct LatestRotations {
    rates: Vec<f32>,
    positions: Vec<usize>,
    /// cos and sin of each pair in turn: (positions, head_dim).
    values: Vec<f32>,
}

impl RoundedRotary {
    /// Creates the scheme for heads of `dim` numbers; `base` is θ's.
    pub fn new(dim: usize, base: f64) -> Self {
        let base = f64::from(base as f32);
        let rate = |m: usize| 1.0 / base.powf(f64::from(2.0 * m as f32 / dim as f32)) as f32;
        Self { rates: (0..dim / 2).map(rate).collect() }
    }

    /// Rotates keys in place, and queries into `queries`: (positions, heads, head_dim).
    fn prepare(&self, layout: &PageLayout, positions: &[Position], qkv: &mut [f32], queries: &mut Queries) {
        queries.assign(positions, |_| 1);
        let dim = layout.head_dim;
        let inner = layout.heads * dim;
        let rotations = queries.rotations.at(&self.rates, positions).chunks_exact(dim);
        let out = queries.content.values_mut(positions.len() * inner).chunks_exact_mut(inner);
        for ((row, rotations), out) in qkv.chunks_exact_mut(3 * inner).zip(rotations).zip(out) {
            let (query, rest) = row.split_at_mut(inner);
            rotate_pairs(rest[..inner].chunks_exact_mut(dim), rotations);
            out.copy_from_slice(query);
            rotate_pairs(out.chunks_exact_mut(dim), rotations);
        }
    }
}

impl LatestRotations {
    /// Returns cos and sin of each pair in turn, (positions, head_dim). Computes them if the rates or the positions are new.
    fn at(&mut self, rates: &[f32], positions: &[Position]) -> &[f32] {
        let indices = positions.iter().map(|position| position.index);
        if self.rates != rates || !self.positions.iter().copied().eq(indices.clone()) {
            self.rates.clear();
            self.rates.extend_from_slice(rates);
            self.positions.clear();
            self.positions.extend(indices);
            self.values.clear();
            for &n in &self.positions {
                let angles = rates.iter().map(|rate| f64::from((n as f64 * f64::from(*rate)) as f32));
                self.values.extend(angles.flat_map(|angle| [angle.cos() as f32, angle.sin() as f32]));
            }
        }
        &self.values
    }
}

// Relative positions of Transformer-XL (Dai et al. 2019, §3.3), as Dynamic Token Pooling uses them: score(i, j) = ((q_i + u)·k_j
// + (q_i + v)·R_{i−j}) / √h with R_d = W·p(d), p(d) = [sin(d·f), cos(d·f)], sines first. All layers of all stacks share u and v;
// each layer has its own W, and so one table of R.

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
    /// Creates the scheme from the layers' projections, which are f32 for every storage type; distances are below `positions`.
    pub fn new(shared: Arc<SharedTerms>, projections: Vec<Linear>, layout: &PageLayout, positions: usize) -> Self {
        let arena = Arc::new(Arena::new(ARENA));
        let table = || DistanceTable::new(layout.dtype, layout.heads, layout.head_dim, positions, arena.clone());
        let layers = projections.into_iter().map(|projection| LayerDistances { projection, table: table() });
        Self { shared, layers: layers.collect() }
    }

    /// Writes q + u and q + v of each position, (positions, heads · head_dim) each.
    fn prepare(&self, layout: &PageLayout, positions: &[Position], qkv: &[f32], queries: &mut Queries) {
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

    fn distances(&self, compute: &Compute, layer: usize, furthest: usize) -> Result<&DistanceTable> {
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
fn bytes_for(layout: &PageLayout, keys: usize) -> usize {
    let inner = layout.heads * layout.head_dim;
    layout.layers * layout.distance_bytes(keys) + 2 * inner * size_of::<f32>()
}

/// Returns 10000^(−2i/D) for i = 0 … D/2 − 1.
pub fn inverse_frequencies(dim: usize) -> Vec<f32> {
    (0..dim / 2).map(|i| 10_000f64.powf(-2.0 * i as f64 / dim as f64) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::position::slopes;

    #[test]
    fn slopes_are_the_published_ones() {
        assert_eq!(slopes(4), [0.25, 0.0625, 0.015_625, 0.003_906_25]);
        assert_eq!(slopes(8)[..2], [0.5, 0.25]);
        // Six heads: the four slopes of 4 heads, then the first and third of 8.
        assert_eq!(slopes(6), [0.25, 0.0625, 0.015_625, 0.003_906_25, 0.5, 0.125]);
        assert_eq!(slopes(1), [1.0 / 256.0]);
    }

    /// cos and sin of torch in f32. Angles that are not rounded differ by 3e-5.
    #[test]
    fn rounded_angles_are_those_of_transformers() {
        let expected = [
            -0.645_884_34,
            -0.763_435_3,
            0.118_795_46,
            -0.992_918_7,
            -0.803_478_24,
            -0.595_334_1,
            0.659_246_2,
            0.751_927_14,
        ];
        let mut rotations = LatestRotations::default();
        let mut at = |base, index| {
            let RoundedRotary { rates } = RoundedRotary::new(8, base);
            rotations.at(&rates, &[Position { sequence: 0, index }]).to_vec()
        };
        let first = at(500_000.0, 7);
        let pairs = at(500_000.0, 16_001);
        assert!(pairs.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-7), "{pairs:?}");
        assert!(at(10_000.0, 16_001)[2..] != pairs[2..], "other rates");
        assert_eq!(at(500_000.0, 7), first);
    }

    const USUAL: Buckets = Buckets { count: 32, max_distance: 128, bidirectional: false };

    fn first_distances(buckets: Buckets) -> Vec<usize> {
        let mut firsts: Vec<usize> = Vec::new();
        for distance in 0..1000 {
            let bucket = buckets.bucket(distance);
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
        assert_eq!(first_distances(USUAL), exact.chain(grown).collect::<Vec<_>>());
        let both = Buckets { bidirectional: true, ..USUAL };
        assert_eq!(first_distances(both), [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]);
        assert_eq!(first_distances(Buckets { count: 8, max_distance: 64, ..USUAL }), [0, 1, 2, 3, 4, 8, 16, 32]);
        assert_eq!(USUAL.bucket(usize::MAX / 2), 31);
    }

    #[test]
    fn tables_end_at_the_maximum_distance() {
        let bias: Vec<f32> = (0..64).map(|number| number as f32).collect();
        let tables = USUAL.tables(&bias);
        assert_eq!((tables.len(), tables[1].len()), (2, 129));
        assert_eq!(USUAL.table_numbers(2), tables.concat().len());
        assert_eq!((tables[0][0], tables[1][0], tables[0][20], tables[1][128]), (0.0, 1.0, 34.0, 63.0));
    }

    #[test]
    fn two_sided_tables_have_the_later_keys_last() {
        let bias: Vec<f32> = (0..64).map(|number| number as f32).collect();
        let tables = Buckets { bidirectional: true, ..USUAL }.two_sided_tables(&bias);
        assert_eq!((tables.len(), tables[0].len()), (2, 257));
        assert_eq!(USUAL.two_sided_table_numbers(2), tables.concat().len());
        assert_eq!(USUAL.two_sided_table_numbers(usize::MAX), usize::MAX);
        // The query's own position, the nearest keys on both sides, and the furthest.
        let head = &tables[1];
        assert_eq!([head[128], head[127], head[129], head[0], head[256]], [1.0, 3.0, 35.0, 31.0, 63.0]);
    }

    #[test]
    fn is_valid_rejects_sizes_without_exact_or_growing_buckets() {
        assert!(USUAL.is_valid() && Buckets { count: 2, ..USUAL }.is_valid());
        assert!(!Buckets { count: 1, ..USUAL }.is_valid());
        assert!(!Buckets { count: 2, bidirectional: true, ..USUAL }.is_valid());
        assert!(!Buckets { max_distance: 16, ..USUAL }.is_valid());
        // Another maximum distance moves the growing buckets.
        assert_ne!(Buckets { max_distance: 64, ..USUAL }.bucket(60), USUAL.bucket(60));
    }
}
