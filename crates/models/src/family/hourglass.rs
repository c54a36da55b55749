//! Dynamic Token Pooling's hourglass (Nawrot et al. 2023, arXiv 2211.09761), with fixed pooling and the vanilla baseline.
//!
//! Read from PiotrNawrot/dynamic-pooling at commit 1e6f360d13dd: `hourglass.py` (stacks, boundary predictor) and
//! `shortening.py` (pooling, upsampling).
//!
//! pre stack → boundaries → pool → middle stack → upsample + residual → post stack → logits.
//!
//! In reading order: [`Architecture`]; the embeddings of n-grams; [`HourglassState`], one sequence; [`Work`], a thread's buffers;
//! [`Hourglass`], the weights and the three steps; the functions that move vectors between states and buffers; loading.

use crate::checkpoint::{self, Config, Weights, require};
use crate::contract::{
    BoundaryMode, BoundaryOptions, Card, Cost, KvMemory, Model, Noise, PageUse, ReplayStart, Scratch, SequenceRow,
    SkippedSegments, State, StepCost, StepStatus, SymbolBoundary, Want, advance, check_mode, state_mut, state_ref,
};
use crate::family::parts::{
    self, Batch, Check, HeadWork, Loader, StackCaches, StackOf, StackShape, StackSpec, Watcher, check_rollback,
    clone_with_capacity, linear, matrix, norm, watch, with_status, work_mut,
};
use crate::family::settings::Bounds;
use crate::family::{Blueprint, Parts, TensorSpec};
use crate::nn::attention::{Caches, NormOrder, Stack, StackWork};
use crate::nn::boundary::{
    self, Boundaries, BoundaryConfig, BoundaryDecision, Evidence, Fixed, Learned, Spikes, Whitespace,
};
use crate::nn::kv_cache::KvCache;
use crate::nn::pooling::{Pooling, mean_of_sum};
use crate::nn::position::PositionKind;
use crate::nn::window::Window;
use crate::nn::{Activation, ConfigError, Position};
use crate::text::Vocabulary;
use serde::Deserialize;
use std::{ops::RangeInclusive, path::Path, sync::Arc};
use weir_kernels::Compute;
use weir_kernels::distribution::entropy;
use weir_kernels::error::{Error, Result};
use weir_kernels::linear::Linear;
use weir_kernels::pages::PagePool;
use weir_kernels::rowwise::{LayerNorm, layer_norm};

/// The hourglass's `architecture` in `config.json`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Architecture {
    /// Layers of each stack.
    pub layers: StackLayers,
    /// Width D of the residual stream.
    pub dim: usize,
    /// Attention heads H.
    pub heads: usize,
    /// Width h of a head; not necessarily D/H.
    pub head_dim: usize,
    /// Width F of the feed-forward's inner layer.
    pub feed_forward: usize,
    /// Nonlinearity between the feed-forward's two products.
    pub activation: Activation,
    /// Added to the variance in every LayerNorm.
    pub layer_norm_eps: f32,
    /// The position scheme of all stacks.
    pub position: PositionKind,
    /// Embeddings of n-grams, if the model has them.
    pub ngrams: Option<NgramConfig>,
    /// Symbols that pre and post stack attend to.
    #[serde(default = "full")]
    pub window: Window,
    /// Segments that the middle stack attends to.
    #[serde(default = "full")]
    pub middle_window: Window,
    /// Reduces a segment to one vector; absent in vanilla models.
    pub pooling: Option<Pooling>,
    /// Source of segment boundaries.
    pub boundaries: BoundaryConfig,
}

impl Architecture {
    /// The dimensions that the layers of all stacks share.
    pub fn stack_shape(&self) -> StackShape {
        let Self { dim, heads, head_dim, feed_forward, activation, position, .. } = *self;
        StackShape { dim, heads, head_dim, feed_forward, activation, position, sub_norms: false }
    }
}

fn full() -> Window {
    Window::Full
}

/// Layers of each stack; a vanilla model has `pre` alone.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StackLayers {
    /// Full resolution, before pooling.
    pub pre: usize,
    /// Segment resolution.
    pub middle: Option<usize>,
    /// Full resolution, after upsampling.
    pub post: Option<usize>,
}

/// A validated hourglass.
#[derive(Debug, Clone)]
pub struct HourglassBlueprint {
    /// The validated architecture.
    pub architecture: Architecture,
    /// Vocabulary size V.
    pub symbols: usize,
}

/// Positions of the middle stack before the first segment's: the null group's.
const NULL_GROUP: usize = 1;

impl HourglassBlueprint {
    fn validate(&self, vocabulary: &Vocabulary, file: &Path) -> Result<()> {
        let a = &self.architecture;
        let check = Check { file };
        check.layers("layers.pre", a.layers.pre)?;
        a.layers.middle.map_or(Ok(()), |middle| check.layers("layers.middle", middle))?;
        a.layers.post.map_or(Ok(()), |post| check.layers("layers.post", post))?;
        if a.layers.middle.is_some() != a.layers.post.is_some() {
            let found = if a.layers.middle.is_some() { "middle without post" } else { "post without middle" };
            return check.fail("layers", "pre alone, or pre, middle and post", found);
        }
        check.dims([("dim", a.dim), ("heads", a.heads), ("head_dim", a.head_dim), ("feed_forward", a.feed_forward)])?;
        for (name, window) in [("window", a.window), ("middle_window", a.middle_window)] {
            check.part(name, window.validate())?;
            if let Err(ConfigError { key, expected, found }) = a.position.validate(a.dim, a.head_dim, window) {
                return check.fail(if key == "window" { name } else { &key }, expected, found);
            }
        }
        check.fraction("layer_norm_eps", a.layer_norm_eps)?;
        self.validate_pooling(vocabulary, check)?;
        self.validate_lookback(check)?;
        check.part("ngrams", a.ngrams.as_ref().map_or(Ok(()), NgramConfig::validate))?;
        check.distance_table("position.buckets.max_distance", parts::table_numbers(&a.stack_shape()))?;
        check.tensors("dim", &self.tensors())?;
        // the middle stack needs a position for a segment too
        let lead = a.layers.middle.map_or(0, |_| NULL_GROUP);
        match a.position {
            PositionKind::Learned { positions } if positions <= lead => {
                let expected = format!("room for {} positions: the null group's and a symbol's", lead + 1);
                check.fail("position", expected, positions)
            }
            _ => Ok(()),
        }
    }

    /// Checks that boundaries, pooling and middle window are given exactly if there is a middle stack.
    fn validate_pooling(&self, vocabulary: &Vocabulary, check: Check<'_>) -> Result<()> {
        let a = &self.architecture;
        let pooled = a.layers.middle.is_some();
        if a.boundaries.pools() != pooled {
            let expected = if pooled { "a kind that closes segments" } else { "none: there is no middle stack" };
            return check.fail("boundaries.kind", expected, a.boundaries.name());
        }
        if !pooled && a.middle_window != Window::Full {
            return check.fail("middle_window", "nothing: there is no middle stack", a.middle_window.describe());
        }
        if a.pooling.is_some() != pooled {
            let expected = if pooled { "mean, last or hops" } else { "nothing: there is no middle stack" };
            return check.fail("pooling", expected, if pooled { "nothing" } else { "a pooling" });
        }
        check.part("boundaries", a.boundaries.validate(&|character| vocabulary.id_of(character)))
    }

    /// Checks that pooling reads only outputs that the pre stack's cache still holds, also after a rollback.
    fn validate_lookback(&self, check: Check<'_>) -> Result<()> {
        let a = &self.architecture;
        // without a window the cache holds all outputs
        let (Some(pooling), Some(held)) = (a.pooling, a.window.min_keys()) else { return Ok(()) };
        match pooling {
            Pooling::Hops(hops) if hops >= held => {
                let limit = held - 1;
                let expected = format!("at most {limit} (the pre stack keeps {held} outputs with this `window`)");
                check.fail("pooling.hops", expected, hops)
            }
            Pooling::Mean if held < 2 => {
                let expected = "at least 2 (`mean` pooling adds each output to the sum at the previous position)";
                check.fail("window.sliding.keys", expected, held)
            }
            _ => Ok(()),
        }
    }

    /// Names and layers of the stacks.
    pub fn stacks(&self) -> impl Iterator<Item = (&'static str, usize)> {
        let layers = self.architecture.layers;
        let middle = layers.middle.map(|count| ("middle", count));
        let post = layers.post.map(|count| ("post", count));
        std::iter::once(("pre", layers.pre)).chain(middle).chain(post)
    }
}

// Embeddings of hashed n-grams (Byte Latent Transformer, Pagnoni et al. 2024, arXiv 2412.09871, §3.2.1): a symbol also gets,
// from each table, the row of the n-gram that ends with it, which a hash chooses. Hot path: no allocation.

/// `ngrams` of an architecture.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NgramConfig {
    /// Each n, in increasing order; there is one table for each.
    pub sizes: Vec<usize>,
    /// Rows of each table.
    pub rows: usize,
}

/// Maximum tables.
const MAX_TABLES: usize = 8;

const MIN_SIZE: usize = 2;
const MAX_SIZE: usize = 16;
const MAX_ROWS: usize = 1 << 24;

impl NgramConfig {
    /// Checks every bound. Fails if a number is out of bounds or the sizes do not increase.
    fn validate(&self) -> Result<(), ConfigError> {
        if !(1..=MAX_TABLES).contains(&self.sizes.len()) {
            return Err(ConfigError::new("sizes", format!("1 to {MAX_TABLES} sizes"), self.sizes.len()));
        }
        if let Some(size) = self.sizes.iter().find(|size| !(MIN_SIZE..=MAX_SIZE).contains(*size)) {
            return Err(ConfigError::new("sizes", format!("sizes from {MIN_SIZE} to {MAX_SIZE}"), size));
        }
        if !self.sizes.is_sorted_by(|a, b| a < b) {
            return Err(ConfigError::new("sizes", "increasing sizes", format!("{:?}", self.sizes)));
        }
        if !(1..=MAX_ROWS).contains(&self.rows) {
            return Err(ConfigError::new("rows", format!("1 to {MAX_ROWS}"), self.rows));
        }
        Ok(())
    }

    /// Returns the names of the tables' tensors, (rows, D) each.
    fn tensors(&self) -> impl Iterator<Item = String> {
        self.sizes.iter().map(|size| format!("ngrams.{size}.weight"))
    }

    /// Returns a human-readable summary.
    fn describe(&self) -> String {
        let sizes: Vec<_> = self.sizes.iter().map(usize::to_string).collect();
        format!("n-grams of {} × {} rows", sizes.join(", "), self.rows)
    }
}

/// The tables. D = width.
struct Ngrams {
    rows: usize,
    /// The tables in the order of their n.
    tables: Vec<Table>,
}

struct Table {
    /// n
    size: usize,
    /// (rows, D)
    weight: Vec<f32>,
}

/// The hash multiplies by this number, modulo the prime 2³¹ − 1.
const FACTOR: u64 = 1_000_003;

const PRIME: u64 = (1 << 31) - 1;

impl Ngrams {
    fn load(config: &NgramConfig, weights: &mut Weights) -> Result<Self> {
        let table = |(&size, name): (&usize, String)| Ok(Table { size, weight: weights.take(&name)? });
        let tables: Result<Vec<_>> = config.sizes.iter().zip(config.tensors()).map(table).collect();
        Ok(Self { rows: config.rows, tables: tables? })
    }

    fn largest(&self) -> usize {
        self.tables.last().map_or(0, |table| table.size)
    }

    /// Adds to `x` (D), the embedding of the symbol at `position`, the rows of the n-grams that end there. Fails if `recent` lacks
    /// the symbol.
    fn add(&self, recent: &RecentSymbols, position: usize, x: &mut [f32]) -> Result<()> {
        let mut newest_first = recent.newest_first(position).ok_or_else(|| missing(position))?;
        let mut chosen: [&[f32]; MAX_TABLES] = [&[]; MAX_TABLES];
        let mut hash = 0;
        let mut read = 0;
        for (chosen, table) in chosen.iter_mut().zip(&self.tables) {
            for id in newest_first.by_ref().take(table.size - read) {
                hash = (hash * FACTOR + u64::from(id) + 1) % PRIME;
            }
            read = table.size;
            let row = hash as usize % self.rows;
            *chosen = &table.weight[row * x.len()..][..x.len()]; // (D)
        }
        let chosen = &chosen[..self.tables.len()];
        // as in training: the sum of the rows is added to the embedding
        for (index, x) in x.iter_mut().enumerate() {
            *x += chosen.iter().map(|row| row[index]).sum::<f32>();
        }
        Ok(())
    }
}

fn missing(position: usize) -> Error {
    Error::Internal(format!("the symbol at position {position} is not kept"))
}

/// Initial capacity in segments, so that a usual sequence never reallocates during a step.
const CAPACITY: usize = 1024;

/// The position of each closed segment's last symbol, in order.
#[derive(Debug)]
pub struct SegmentEnds {
    /// Segments closed before the first listed one.
    dropped: usize,
    /// Start of the first listed segment.
    start: usize,
    listed: Vec<usize>,
    /// Length of the list at which the next entries are dropped.
    full: usize,
}

impl Clone for SegmentEnds {
    fn clone(&self) -> Self {
        Self { listed: clone_with_capacity(&self.listed, CAPACITY), ..*self }
    }
}

impl SegmentEnds {
    /// Returns a list of `dropped` segments, none of them listed; the open segment starts at position `start`.
    pub fn from_segment(dropped: usize, start: usize) -> Self {
        Self { dropped, start, listed: Vec::with_capacity(CAPACITY), full: CAPACITY / 2 }
    }

    /// Closed segments, dropped ones included.
    pub fn len(&self) -> usize {
        self.dropped + self.listed.len()
    }

    /// True if no segment has closed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends a segment that ends at `position`, after all others.
    pub fn push(&mut self, position: usize) {
        self.listed.push(position);
    }

    /// Counts the segments that end before `position`, whose segment must not be dropped.
    pub fn count_before(&self, position: usize) -> usize {
        self.dropped + self.listed.partition_point(|&end| end < position)
    }

    /// The position after the last listed segment that ends before `position`; 0 if none does.
    pub fn boundary_before(&self, position: usize) -> usize {
        let last = self.count_before(position).checked_sub(1);
        last.and_then(|last| self.end(last)).map_or(0, |end| end + 1)
    }

    /// First position of the open segment.
    pub fn open_start(&self) -> usize {
        self.listed.last().map_or(self.start, |end| end + 1)
    }

    /// First position of segment `m`, unless it is dropped.
    pub fn start(&self, m: usize) -> Option<usize> {
        match m.checked_sub(self.dropped)? {
            0 => Some(self.start),
            later => self.listed.get(later - 1).map(|end| end + 1),
        }
    }

    /// Last position of segment `m`, unless it is dropped.
    pub fn end(&self, m: usize) -> Option<usize> {
        self.listed.get(m.checked_sub(self.dropped)?).copied()
    }

    /// Removes the segments that end at `position` or later; all of them, dropped ones too, if that is 0.
    pub fn truncate(&mut self, position: usize) {
        self.listed.truncate(self.listed.partition_point(|&end| end < position));
        if position == 0 {
            self.dropped = 0;
            self.start = 0;
        }
    }

    /// True if it is time to drop entries, which happens for many at a time.
    pub fn is_full(&self) -> bool {
        self.listed.len() >= self.full
    }

    /// Drops the segments before `m`.
    pub fn drop_before(&mut self, m: usize) {
        let count = m.saturating_sub(self.dropped).min(self.listed.len());
        if let Some(last) = self.listed.drain(..count).next_back() {
            self.dropped += count;
            self.start = last + 1;
        }
        self.full = CAPACITY / 2 + self.listed.len();
    }

    /// Bytes of memory that the list occupies.
    pub fn own_bytes(&self) -> usize {
        self.listed.capacity() * size_of::<usize>()
    }
}

impl Default for SegmentEnds {
    fn default() -> Self {
        Self::from_segment(0, 0)
    }
}

/// The symbols from some position on, up to the end of the sequence.
#[derive(Debug)]
pub struct RecentSymbols {
    /// Symbols before an n-gram's last one that the largest n reads.
    context: usize,
    /// Position of the first listed symbol.
    start: usize,
    listed: Vec<u32>,
    /// Length of the list at which the next entries are dropped.
    full: usize,
}

impl Clone for RecentSymbols {
    fn clone(&self) -> Self {
        Self { listed: clone_with_capacity(&self.listed, SYMBOL_CAPACITY), ..*self }
    }
}

impl RecentSymbols {
    /// Returns the list of an empty sequence; `largest` is the largest n.
    pub fn new(largest: usize) -> Self {
        let listed = Vec::with_capacity(SYMBOL_CAPACITY);
        Self { context: largest.saturating_sub(1), start: 0, listed, full: SYMBOL_CAPACITY / 2 }
    }

    /// Symbols before a position that its n-grams read.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Empties the list of a sequence whose next position is `position`.
    pub fn start_at(&mut self, position: usize) {
        self.listed.clear();
        self.start = position;
        self.full = SYMBOL_CAPACITY / 2;
    }

    /// Appends symbols.
    pub fn extend(&mut self, symbols: &[u32]) {
        self.listed.extend_from_slice(symbols);
    }

    /// Iterates without end from the symbol at `position` backwards; symbols before the text or dropped count as 0.
    pub fn newest_first(&self, position: usize) -> Option<impl Iterator<Item = u32> + Clone> {
        let up_to = self.listed.get(..=position.checked_sub(self.start)?)?;
        Some(up_to.iter().rev().copied().chain(std::iter::repeat(0)))
    }

    /// Truncates the sequence to its first `len` symbols.
    pub fn truncate(&mut self, len: usize) {
        match len.checked_sub(self.start) {
            Some(listed) if len > 0 => self.listed.truncate(listed),
            _ => self.start_at(len),
        }
    }

    /// Drops the symbols that a sequence of `len` or more symbols never reads. It does so for many at a time.
    pub fn drop_before(&mut self, len: usize) {
        if self.listed.len() < self.full {
            return;
        }
        let count = len.saturating_sub(self.context).saturating_sub(self.start).min(self.listed.len());
        self.listed.drain(..count);
        self.start += count;
        self.full = SYMBOL_CAPACITY / 2 + self.listed.len();
    }

    /// Bytes of memory that the list occupies.
    pub fn own_bytes(&self) -> usize {
        self.listed.capacity() * size_of::<u32>()
    }
}

// All progress of a sequence follows from its caches and segment ends: a row waits for its segment step while `middle` is behind
// `segment_ends`, and is unfinished while `post` is behind `pre`. So a fork is a clone, and a rollback truncates. The state only
// counts the symbols that its windows have left behind.

/// One sequence of an hourglass. D = width.
pub struct HourglassState {
    /// The symbols that n-grams of later ones read; `None` in a model without n-grams.
    pub recent: Option<RecentSymbols>,
    /// The pre stack's keys and values; with what pooling reads at each symbol: the sum of its segment's outputs up to it, or
    /// its own output.
    pub pre: KvCache,
    /// Window of pre and post stack.
    pub window: Window,
    /// The part above the pre stack; `None` in a vanilla model.
    pub pooled: Option<PooledState>,
    /// Symbols that have had their finish step; later ones are in flight.
    pub finished: usize,
    /// The pre stack's outputs in flight, (D) each: of all symbols, for the residual; in a vanilla model of those whose logits
    /// are wanted, for the head.
    pub hidden: Vec<f32>,
    /// Noise of sampled boundaries; `None` if boundaries are not sampled.
    pub noise: Option<Noise>,
    /// Position of the first symbol in its stream.
    pub offset: usize,
    /// The entropy model's sequence, if the model has an entropy model.
    pub entropy_model: Option<EntropyState>,
    /// Start of a resumed sequence; `None` if it starts with the text.
    pub resumed: Option<ReplayStart>,
}

/// Initial capacity in symbols of per-symbol lists, so that a usual sequence never reallocates during a step.
pub const SYMBOL_CAPACITY: usize = 4096;

/// The part of a sequence above the pre stack.
pub struct PooledState {
    /// The middle cache of a sequence without closed segments: the null group, which a window may drop from `middle`.
    pub null_group: KvCache,
    /// The middle stack: position 0 is the null group, position m + 1 segment m; with its output, which upsampling reads.
    pub middle: KvCache,
    /// Window of the middle stack.
    pub middle_window: Window,
    /// The post stack.
    pub post: KvCache,
    /// Last position of each closed segment.
    pub segment_ends: SegmentEnds,
    /// Pooled vectors of the segments that symbols in flight closed: (segments, D)
    pub closed_vectors: Vec<f32>,
    /// The middle stack's outputs from position `middle_outputs_start` on that symbols in flight see, (segments, D); empty if
    /// these closed no segment, so that all see the latest one.
    pub middle_outputs: Vec<f32>,
    /// Position in the middle stack of the first of `middle_outputs`.
    pub middle_outputs_start: usize,
}

/// An entropy model's sequence.
pub struct EntropyState {
    /// Taken out while the entropy model steps it.
    pub row: Option<SequenceRow>,
    /// H_t in nats for every symbol fed.
    pub entropies: Vec<f64>,
}

impl HourglassState {
    /// True if the middle stack has not seen all closed segments.
    pub fn needs_segment_step(&self) -> bool {
        self.pooled.as_ref().is_some_and(|pooled| pooled.waiting_segments() > 0)
    }

    /// True if no symbol is in flight.
    pub fn is_ready(&self) -> bool {
        self.finished == self.pre.len()
    }

    /// Clears the vectors of the last feed, and drops symbols and segment ends that no later step needs.
    pub fn start_feed(&mut self) {
        let earliest = self.earliest();
        self.hidden.clear();
        if let Some(recent) = &mut self.recent {
            recent.drop_before(earliest);
        }
        if let Some(pooled) = &mut self.pooled {
            pooled.middle_outputs.clear();
            pooled.closed_vectors.clear();
            pooled.drop_segment_ends(self.window, earliest);
        }
    }

    /// Truncates everything but the entropy model's sequence to the first `len` symbols.
    fn truncate(&mut self, len: usize) {
        if let Some(pooled) = &mut self.pooled {
            pooled.segment_ends.truncate(len);
            pooled.middle_outputs.clear();
            pooled.closed_vectors.clear();
            match len {
                // a window may have dropped the null group
                0 => pooled.middle = pooled.null_group.clone(),
                _ => pooled.middle.truncate(pooled.segment_ends.len() + 1),
            }
            pooled.post.truncate(len);
        }
        if let Some(entropy_model) = &mut self.entropy_model {
            entropy_model.entropies.truncate(len);
        }
        if let Some(recent) = &mut self.recent {
            recent.truncate(len);
        }
        self.pre.truncate(len);
        self.finished = self.finished.min(len);
        self.resumed = self.resumed.filter(|_| len > 0);
    }

    fn caches(&self) -> impl Iterator<Item = &KvCache> {
        let pooled = self.pooled.iter().flat_map(|pooled| [&pooled.middle, &pooled.post]);
        std::iter::once(&self.pre).chain(pooled)
    }

    /// The entropy model's state, unless a step has taken it out.
    fn entropy_state(&self) -> Option<&dyn State> {
        Some(&*self.entropy_model.as_ref()?.row.as_ref()?.state)
    }

    /// Returns the part above the pre stack. Fails in a vanilla model.
    pub fn pooled(&self) -> Result<&PooledState> {
        self.pooled.as_ref().ok_or_else(no_segments)
    }

    /// Returns the part above the pre stack, mutably. Fails in a vanilla model.
    pub fn pooled_mut(&mut self) -> Result<&mut PooledState> {
        self.pooled.as_mut().ok_or_else(no_segments)
    }
}

fn no_segments() -> Error {
    Error::Internal("a vanilla sequence has no segments".into())
}

impl Clone for PooledState {
    /// Clones all but the vectors in flight, which belong to one row.
    fn clone(&self) -> Self {
        Self {
            null_group: self.null_group.clone(),
            middle: self.middle.clone(),
            middle_window: self.middle_window,
            post: self.post.clone(),
            segment_ends: self.segment_ends.clone(),
            closed_vectors: Vec::new(),
            middle_outputs: Vec::new(),
            middle_outputs_start: 0,
        }
    }
}

impl PooledState {
    /// Number of closed segments that the middle stack has not seen.
    fn waiting_segments(&self) -> usize {
        (self.segment_ends.len() + 1).saturating_sub(self.middle.len())
    }

    /// The middle stack's output, (D), for the last segment that ended at or before symbol `t`, which is in flight or the last
    /// symbol.
    pub fn upsampled(&self, t: usize) -> &[f32] {
        let position = self.segment_ends.count_before(t + 1);
        let dim = self.middle.layout().output;
        let in_flight = position
            .checked_sub(self.middle_outputs_start)
            .and_then(|index| self.middle_outputs.get(index * dim..(index + 1) * dim));
        in_flight.unwrap_or_else(|| self.middle.output(position))
    }

    /// The leading segments that no state of `len` or more symbols depends on; `None` if it depends on all.
    pub fn skippable_segments(&self, window: Window, len: usize) -> Option<SkippedSegments> {
        // The post stack's last layer has keys from its window on, and the first layer's symbols see segments from that symbol
        // on. Through the middle stack, these segments depend on earlier ones.
        let first_seen =
            self.segment_ends.count_before(window.first_key_through(len, self.post.layout().layers.max(1)) + 1);
        let count = self.middle_window.first_key_through(first_seen, self.middle.layout().layers).checked_sub(1)?;
        let next_start = self.segment_ends.start(count)?;
        let next_end = self.segment_ends.end(count)?;
        (next_start > 0).then_some(SkippedSegments { count, next_start, next_end })
    }

    /// Drops the segment ends that no state of `len` or more symbols reads.
    fn drop_segment_ends(&mut self, window: Window, len: usize) {
        if window == Window::Full || !self.segment_ends.is_full() {
            return;
        }
        let needed = match self.middle_window {
            // such a sequence can only be computed again from its beginning
            Window::Full => self.segment_ends.count_before(len),
            _ => self.skippable_segments(window, len).map_or(0, |skipped| skipped.count),
        };
        // the end before a needed segment is where that one starts
        self.segment_ends.drop_before(needed.saturating_sub(2));
    }
}

impl State for HourglassState {
    fn len(&self) -> usize {
        self.pre.len()
    }

    fn segments(&self) -> usize {
        self.pooled.as_ref().map_or(0, |pooled| pooled.segment_ends.len())
    }

    fn fork(&self) -> Box<dyn State> {
        // if the windows have moved past the start of the feed, only an empty sequence is left
        let target = if self.finished < self.earliest() { 0 } else { self.finished };
        let entropy_model = self.entropy_model.as_ref().map(|entropy_model| {
            let fork = |row: &SequenceRow| {
                let mut state = row.state.fork();
                // an entropy model that cannot be rolled back is lost; the next step reports it
                state.rollback(target).ok().map(|()| SequenceRow::new(state))
            };
            let entropies = clone_with_capacity(&entropy_model.entropies, SYMBOL_CAPACITY);
            EntropyState { row: entropy_model.row.as_ref().and_then(fork), entropies }
        });
        let mut fork = Self {
            recent: self.recent.clone(),
            pre: self.pre.clone(),
            pooled: self.pooled.clone(),
            hidden: Vec::new(),
            noise: self.noise.clone(),
            entropy_model,
            ..*self
        };
        fork.truncate(target);
        Box::new(fork)
    }

    fn rollback(&mut self, len: usize) -> Result<()> {
        check_rollback(self, self.is_ready(), len)?;
        if let Some(row) = self.entropy_model.as_mut().and_then(|entropy_model| entropy_model.row.as_mut()) {
            row.state.rollback(len)?;
        }
        self.truncate(len);
        Ok(())
    }

    fn cut(&mut self, len: usize) -> Result<()> {
        let in_flight = self.len() - self.finished;
        let kept = len.saturating_sub(self.finished);
        let middle_ran = self.pooled.as_ref().is_some_and(|pooled| !pooled.middle_outputs.is_empty());
        if !(1..=in_flight).contains(&kept) || middle_ran || len < self.earliest() {
            let Self { finished, .. } = self;
            return Err(Error::Internal(format!(
                "cannot cut at {len} of {finished} and {in_flight} symbols in flight"
            )));
        }
        if let Some(entropy_model) = &mut self.entropy_model {
            entropy_model.entropies.truncate(len);
            if let Some(row) = &mut entropy_model.row {
                row.state.rollback(len)?;
            }
        }
        if let Some(recent) = &mut self.recent {
            recent.truncate(len);
        }
        self.pre.truncate(len);
        if let Some(pooled) = &mut self.pooled {
            let before = pooled.waiting_segments();
            pooled.segment_ends.truncate(len);
            let dim = pooled.closed_vectors.len() / before.max(1);
            pooled.closed_vectors.truncate(pooled.waiting_segments() * dim);
            let dim = self.hidden.len() / in_flight;
            self.hidden.truncate(kept * dim);
        }
        Ok(())
    }

    fn earliest(&self) -> usize {
        let entropy_model = self.entropy_state().map_or(0, State::earliest);
        let resumed = self.resumed.map_or(0, |start| start.valid_from);
        let own = entropy_model.max(self.window.earliest_rollback(self.pre.start())).max(resumed);
        let Some(pooled) = &self.pooled else { return own };
        let own = own.max(self.window.earliest_rollback(pooled.post.start()));
        // the middle stack is rolled back by segments, after the null group; ends are dropped later than keys
        let middle = pooled.middle_window.earliest_rollback(pooled.middle.start());
        let closed = middle.checked_sub(2).map_or(0, |last| pooled.segment_ends.end(last).map_or(0, |end| end + 1));
        own.max(closed)
    }

    fn replay_start(&self) -> Option<ReplayStart> {
        let valid_from = self.earliest();
        // an entropy model's sequence cannot be resumed
        if self.entropy_model.is_some() || !self.is_ready() || !(1..=self.len()).contains(&valid_from) {
            return None;
        }
        let skipped = match &self.pooled {
            Some(pooled) => Some(pooled.skippable_segments(self.window, valid_from)?),
            None => None,
        };
        // pooling needs the pre stack's outputs from the start of the first segment on
        let from = skipped.map_or(valid_from, |skipped| skipped.next_start);
        let first_read = self.window.first_key_through(from, self.pre.layout().layers);
        // its n-grams begin earlier
        let context = self.recent.as_ref().map_or(0, RecentSymbols::context);
        let symbol = first_read.saturating_sub(context);
        (symbol > 0).then_some(ReplayStart { symbol, valid_from, skipped })
    }

    fn resume(&mut self, start: ReplayStart) -> Result<()> {
        if !(self.is_empty() && self.entropy_model.is_none() && self.pooled.is_some() == start.skipped.is_some()) {
            return Err(Error::Internal(format!("cannot resume a sequence of {} symbols from {start:?}", self.len())));
        }
        if let Some((pooled, skipped)) = self.pooled.as_mut().zip(start.skipped) {
            pooled.segment_ends = SegmentEnds::from_segment(skipped.count, skipped.next_start);
            pooled.middle = pooled.middle.from_position(skipped.count + 1);
            pooled.post = pooled.post.from_position(skipped.next_end);
        }
        if let Some(recent) = &mut self.recent {
            recent.start_at(start.symbol);
        }
        self.pre = self.pre.from_position(start.symbol);
        self.finished = start.symbol;
        self.resumed = Some(start);
        Ok(())
    }

    fn restart(&mut self, offset: usize) {
        if let Some(row) = self.entropy_model.as_mut().and_then(|entropy_model| entropy_model.row.as_mut()) {
            row.state.restart(offset);
        }
        self.truncate(0);
        self.hidden.clear();
        self.offset = offset;
    }

    fn boundary_before(&self, len: usize) -> usize {
        let len = len.min(self.len());
        let end = match &self.pooled {
            None => len,
            Some(pooled) => pooled.segment_ends.boundary_before(len),
        };
        if end < self.earliest() { 0 } else { end }
    }

    fn bytes(&self) -> usize {
        self.caches().map(KvCache::bytes).sum::<usize>() + self.entropy_state().map_or(0, State::bytes)
    }

    fn pages(&self, each: &mut dyn FnMut(PageUse)) {
        parts::own_pages(self.caches(), each);
        if let Some(entropy_model) = self.entropy_state() {
            entropy_model.pages(each);
        }
    }

    fn own_bytes(&self) -> usize {
        let ends = self.pooled.as_ref().map_or(0, |pooled| pooled.segment_ends.own_bytes());
        let entropies = self
            .entropy_model
            .as_ref()
            .map_or(0, |entropy_model| entropy_model.entropies.capacity() * size_of::<f64>());
        let entropy_model = self.entropy_state().map_or(0, State::own_bytes);
        let recent = self.recent.as_ref().map_or(0, RecentSymbols::own_bytes);
        size_of::<Self>()
            + self.caches().map(KvCache::own_bytes).sum::<usize>()
            + ends
            + entropies
            + entropy_model
            + recent
    }
}

fn state(rows: &mut [SequenceRow], index: usize) -> Result<&mut HourglassState> {
    state_mut(&mut *rows[index].state)
}

/// Names an intermediate result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HourglassStage {
    /// The pre stack's output at a symbol.
    PreOutput,
    /// A segment's pooled vector; its position is the segment's in the middle stack, where the null group is 0.
    Pooled,
    /// The same, normed.
    PooledNormed,
    /// The middle stack's output for a segment.
    MiddleOutput,
    /// The post stack's input at a symbol.
    PostInput,
    /// The post stack's output at a symbol.
    PostOutput,
}

/// Working memory of one thread.
#[derive(Default)]
pub struct Work {
    /// Receives vectors of (D).
    pub watcher: Option<Watcher<HourglassStage>>,
    stack: StackWork,
    boundary: boundary::LearnedWork,
    entropy_model: EntropyWork,
    batch: Batch,
    /// The fed symbol at each position.
    symbols: Vec<u32>,
    /// The boundary noise at each position.
    noise: Vec<Option<f32>>,
    /// Each position, counted from the start of its stream.
    stream_positions: Vec<usize>,
    decisions: Vec<BoundaryDecision>,
    /// Symbols of each row's feed that the current stack has processed.
    processed: Vec<usize>,
    /// The indices of the positions whose vectors are wanted of the post stack.
    wanted: Vec<usize>,
    chosen: Vec<usize>,
    head: HeadWork,
    /// Empty buffers for the outputs of later prompts' chunks.
    outputs: Vec<Vec<f32>>,
}

/// Maximum capacity, in floats, of an output buffer that a sequence keeps for itself.
const OWN_OUTPUTS: usize = 1 << 13;

/// Maximum capacity, in floats, of all buffers that are kept for later prompts: 4 MiB, because no budget counts them. The outputs of a chunk
/// of the default model take 256 KiB.
const SPARE_OUTPUTS: usize = 1 << 20;

impl Work {
    /// Replaces a sequence's own empty buffer with an earlier prompt's, because the system would clear the memory of a new one.
    fn take_outputs(&mut self, buffer: &mut Vec<f32>) {
        if buffer.capacity() <= OWN_OUTPUTS
            && let Some(spare) = self.outputs.pop()
        {
            *buffer = spare;
        }
    }

    /// Takes back the buffer of a finished prompt. Frees it if the others have no room for it.
    fn keep_outputs(&mut self, buffer: &mut Vec<f32>) {
        if buffer.capacity() <= OWN_OUTPUTS {
            return;
        }
        let mut outputs = std::mem::take(buffer);
        let kept: usize = self.outputs.iter().map(Vec::capacity).sum();
        if kept + outputs.capacity() <= SPARE_OUTPUTS {
            outputs.clear();
            self.outputs.push(outputs);
        }
    }

    fn show(&mut self, stage: HourglassStage) {
        watch(&mut self.watcher, stage, &self.batch.positions, &self.batch.x);
    }
}

const PRE: StackOf<HourglassState> = StackOf(|state| Ok(&state.pre), |state| Ok(&mut state.pre));
const MIDDLE: StackOf<HourglassState> =
    StackOf(|state| Ok(&state.pooled()?.middle), |state| Ok(&mut state.pooled_mut()?.middle));
const POST: StackOf<HourglassState> =
    StackOf(|state| Ok(&state.pooled()?.post), |state| Ok(&mut state.pooled_mut()?.post));

/// Buffers of the steps of the entropy model, whose entropies place boundaries.
#[derive(Default)]
struct EntropyWork {
    rows: Vec<SequenceRow>,
    which: Vec<usize>,
    scratch: Option<Scratch>,
}

impl EntropyWork {
    /// Feeds the symbols of rows `which` to the entropy model, in one batch, and appends the entropy of each prediction.
    fn step(&mut self, model: &dyn Model, rows: &mut [SequenceRow], which: &[usize]) -> Result<()> {
        self.rows.clear();
        for &index in which {
            let entropy_model = state(rows, index)?.entropy_model.as_mut();
            let row = entropy_model.and_then(|entropy_model| entropy_model.row.take());
            let mut row = row.ok_or_else(|| Error::Internal("a sequence lacks that of the entropy model".into()))?;
            row.set(&rows[index].feed, Want::All);
            self.rows.push(row);
        }
        self.which.clear();
        self.which.extend(0..which.len());
        let scratch = self.scratch.get_or_insert_with(|| model.scratch());
        advance(model, &mut self.rows, &self.which, scratch)?;
        let symbols = model.card().vocabulary.len();
        for (&index, row) in which.iter().zip(self.rows.drain(..)) {
            if let Some(entropy_model) = &mut state(rows, index)?.entropy_model {
                entropy_model.entropies.extend(row.logits.chunks_exact(symbols).map(entropy)); // (symbols)
                entropy_model.row = Some(row);
            }
        }
        Ok(())
    }
}

// The weights and the three steps. Hot path: no allocation once the buffers in `Work` have grown, no locks, no logging. The
// `gather` functions collect vectors of many rows into `work.batch` and return false when no row has any left: a windowed stack
// takes a chunk of each row at a time, so that its cache stays small.

/// A loaded hourglass. D = width, V = vocabulary size.
pub struct Hourglass {
    card: Card,
    compute: Compute,
    /// (V, D)
    embedding: Vec<f32>,
    /// Added to the embedding, if the checkpoint has them.
    ngrams: Option<Ngrams>,
    pre: Stack,
    boundaries: Boundaries,
    /// The model whose entropies place boundaries, if the checkpoint has one.
    entropy_model: Option<Arc<dyn Model>>,
    /// `None` in a vanilla model.
    pooled: Option<PooledWeights>,
    /// (V, D)
    head: Linear,
    pages: Arc<PagePool>,
    /// Bytes of pages that the model itself holds: the null group's.
    own_bytes: usize,
}

/// The weights above the pre stack.
struct PooledWeights {
    pooling: Pooling,
    /// Between pooling and middle stack; applied to the null group too.
    norm: LayerNorm,
    middle: Stack,
    post: Stack,
    /// The null group's keys, values and output, computed once: the start of every sequence's middle cache.
    null_group: KvCache,
}

impl Model for Hourglass {
    fn card(&self) -> &Card {
        &self.card
    }

    fn begin(&self, boundaries: BoundaryOptions) -> Result<Box<dyn State>> {
        check_mode(&boundaries, &self.card)?;
        let mode = boundaries.mode.unwrap_or(self.card.boundary_modes[0]);
        let pooled = self.pooled.as_ref().map(|pooled| PooledState {
            null_group: pooled.null_group.clone(),
            middle: pooled.null_group.clone(),
            middle_window: pooled.middle.window,
            post: KvCache::new(pooled.post.layout, self.pages.clone()),
            segment_ends: SegmentEnds::default(),
            // enough for a decode step, which then never reallocates
            closed_vectors: Vec::with_capacity(self.head.inputs()),
            middle_outputs: Vec::with_capacity(2 * self.head.inputs()),
            middle_outputs_start: 0,
        });
        let entropy_model = self.entropy_model.as_ref().map(|model| -> Result<_> {
            let state = model.begin(BoundaryOptions { offset: boundaries.offset, ..Default::default() })?;
            let entropies = Vec::with_capacity(SYMBOL_CAPACITY);
            Ok(EntropyState { row: Some(SequenceRow::new(state)), entropies })
        });
        Ok(Box::new(HourglassState {
            recent: self.ngrams.as_ref().map(|ngrams| RecentSymbols::new(ngrams.largest())),
            pre: KvCache::new(self.pre.layout, self.pages.clone()),
            window: self.pre.window,
            pooled,
            finished: 0,
            hidden: Vec::new(),
            noise: (mode == BoundaryMode::Sampled).then_some(boundaries.noise),
            offset: boundaries.offset,
            entropy_model: entropy_model.transpose()?,
            resumed: None,
        }))
    }

    /// Symbol step: embed → pre stack → boundaries → pool.
    fn symbol_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        let work: &mut Work = work_mut(scratch)?;
        self.start_feed(rows, which, work)?;
        let embedding = Embedding { weight: &self.embedding, dim: self.head.inputs(), ngrams: self.ngrams.as_ref() };
        while gather_symbols(&self.pre, rows, which, work)? {
            embed(&embedding, rows, work)?; // (symbols, D)
            let caches = &mut StackCaches(rows, PRE);
            self.pre.forward(&self.compute, &mut work.batch.x, &work.batch.positions, caches, &mut work.stack)?; // (symbols, D)
            work.show(HourglassStage::PreOutput);
            decide_boundaries(&self.boundaries, &self.compute, rows, work)?; // (symbols)
            pool_closed(self.pooled.as_ref().map(|pooled| pooled.pooling), rows, which, work)?; // (closed segments, D)
        }
        for &index in which {
            let waits = state(rows, index)?.needs_segment_step();
            rows[index].status = if waits { StepStatus::Waiting } else { StepStatus::Unfinished };
        }
        Ok(())
    }

    /// Segment step, for rows that closed a segment: pooled vectors → norm → middle stack.
    fn segment_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        let work: &mut Work = work_mut(scratch)?;
        let Some(PooledWeights { norm: pool_norm, middle, .. }) = &self.pooled else { return Ok(()) };
        let Some(waiting) = with_status(StepStatus::Waiting, rows, which, &mut work.chosen) else { return Ok(()) };
        keep_last_closed(rows, &waiting)?;
        while gather_segments(middle, rows, &waiting, work)? {
            layer_norm(&self.compute, &mut work.batch.x, pool_norm); // (segments, D)
            work.show(HourglassStage::PooledNormed);
            let caches = &mut StackCaches(rows, MIDDLE);
            middle.forward(&self.compute, &mut work.batch.x, &work.batch.positions, caches, &mut work.stack)?; // (segments, D)
            scatter_middle(rows, work)?;
        }
        waiting.iter().for_each(|&index| rows[index].status = StepStatus::Unfinished);
        work.chosen = waiting;
        Ok(())
    }

    /// Finish step: upsample + residual → post stack → logits.
    fn finish_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        let work: &mut Work = work_mut(scratch)?;
        let Some(unfinished) = with_status(StepStatus::Unfinished, rows, which, &mut work.chosen) else {
            return Ok(());
        };
        if let Some(PooledWeights { post, .. }) = &self.pooled {
            count_post(rows, &unfinished, work)?;
            while gather_upsampled(post, rows, &unfinished, work)? {
                select_wanted(rows, work)?;
                let Work { batch, wanted, stack, .. } = &mut *work;
                let caches = &mut StackCaches(rows, POST);
                post.forward_wanted(&self.compute, &mut batch.x, &batch.positions, wanted, caches, stack)?; // (wanted, D)
                scatter_post(rows, &unfinished, work)?;
            }
        }
        gather_wanted(rows, &unfinished, work)?; // (wanted, D)
        work.head.deliver(&self.head, &self.compute, &mut work.stack.quantized, rows, &unfinished)?;
        for &index in &unfinished {
            let state = state(rows, index)?;
            state.finished = state.pre.len();
        }
        work.chosen = unfinished;
        Ok(())
    }

    fn bytes_for(&self, symbols: usize) -> usize {
        let pooled = self.pooled.as_ref().map_or(0, |pooled| {
            let segments = self.boundaries.max_segments(symbols);
            pooled.post.bytes_for(symbols) + pooled.middle.bytes_for(segments + 1)
        });
        let entropy_model = self.entropy_model.as_ref().map_or(0, |model| model.bytes_for(symbols));
        self.pre.bytes_for(symbols) + pooled + entropy_model
    }

    fn growth(&self, state: &dyn State, more: usize) -> usize {
        // the step rejects another model's state
        let Ok(state) = state_ref::<HourglassState>(state) else { return 0 };
        let len = state.len() + more;
        let pooled = self.pooled.as_ref().zip(state.pooled.as_ref()).map_or(0, |(model, pooled)| {
            let segments = self.boundaries.max_segments(len).min(pooled.segment_ends.len() + more);
            model.post.growth(&pooled.post, len) + model.middle.growth(&pooled.middle, segments + 1)
        });
        let entropy_model = self.entropy_model.as_ref().zip(state.entropy_state());
        self.pre.growth(&state.pre, len) + pooled + entropy_model.map_or(0, |(model, state)| model.growth(state, more))
    }

    fn memory(&self) -> KvMemory {
        let entropy_model = self.entropy_model.as_ref().map_or(0, |model| model.memory().in_use);
        // admission counts on the complete limit, so the null group's pages are taken off it
        let limit = self.pages.limit() - self.own_bytes;
        KvMemory { in_use: self.pages.in_use() - self.own_bytes + entropy_model, limit }
    }

    fn cost(&self, symbols: usize, segments: usize) -> Cost {
        let mut cost = Cost::default();
        if let Some(entropy_model) = &self.entropy_model {
            // boundaries need the entropy model's logits after every symbol
            let own = entropy_model.cost(symbols, segments);
            cost = Cost { logits: StepCost::default(), ..own };
            cost.symbol += own.logits;
        }
        cost.symbol += parts::stack_cost(&self.pre, symbols);
        for matrix in self.boundaries.matrices() {
            cost.symbol += parts::linear_cost(matrix);
        }
        if let Some(pooled) = &self.pooled {
            cost.symbol += parts::stack_cost(&pooled.post, symbols);
            cost.segment += parts::norm_cost(&pooled.norm);
            // segments attend to the null group too
            cost.segment += parts::stack_cost(&pooled.middle, segments + 1);
        }
        cost.logits += parts::linear_cost(&self.head);
        cost
    }
}

impl Hourglass {
    /// Checks the feeds, clears what earlier steps left in the rows, and steps the entropy models.
    fn start_feed(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        for &index in which {
            let row = &mut rows[index];
            parts::start_feed(&self.card, row, state_ref::<HourglassState>(&*row.state)?.is_ready())?;
            let floats = row.feed.len() * self.head.inputs();
            let state = state(rows, index)?;
            state.start_feed();
            if let Some(pooled) = &mut state.pooled {
                if floats > OWN_OUTPUTS {
                    let buffers = [&mut state.hidden, &mut pooled.closed_vectors, &mut pooled.middle_outputs];
                    buffers.into_iter().for_each(|buffer| work.take_outputs(buffer));
                }
                state.hidden.reserve_exact(floats);
            }
        }
        if let Some(entropy_model) = self.entropy_model.as_deref().filter(|_| !which.is_empty()) {
            work.entropy_model.step(entropy_model, rows, which)?;
        }
        work.processed.clear();
        work.processed.resize(which.len(), 0);
        Ok(())
    }
}

// Between the rows' states and `work.batch`, in the order of the steps. Hot path, as these are.

fn width(stack: &Stack) -> usize {
    stack.layers[0].qkv.inputs()
}

/// Lists the next chunk of each row's feed with its positions, and makes room in the pre stack's caches.
fn gather_symbols(pre: &Stack, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<bool> {
    work.batch.positions.clear();
    work.symbols.clear();
    work.noise.clear();
    work.stream_positions.clear();
    if work.processed.iter().zip(which).all(|(&processed, &index)| processed == rows[index].feed.len()) {
        return Ok(false);
    }
    for (&index, &processed) in which.iter().zip(&work.processed) {
        let SequenceRow { state, feed, .. } = &mut rows[index];
        let state: &mut HourglassState = state_mut(&mut **state)?;
        let start = state.pre.len();
        let chunk = (feed.len() - processed).min(pre.window.chunk());
        pre.reserve(&mut state.pre, chunk)?;
        for position in start..start + chunk {
            work.batch.positions.push(Position { sequence: index, index: position });
            work.stream_positions.push(state.offset + position);
            work.noise.push(state.noise.as_ref().map(|noise| noise.at(position)).transpose()?);
        }
        let symbols = &feed[processed..processed + chunk];
        work.symbols.extend_from_slice(symbols);
        if let Some(recent) = &mut state.recent {
            recent.extend(symbols);
        }
    }
    Ok(true)
}

struct Embedding<'a> {
    /// (V, D)
    weight: &'a [f32],
    /// D
    dim: usize,
    ngrams: Option<&'a Ngrams>,
}

/// `work.batch.x` (symbols, D) = the embeddings of `work.symbols`, and of the n-grams that end with them.
fn embed(embedding: &Embedding<'_>, rows: &[SequenceRow], work: &mut Work) -> Result<()> {
    let dim = embedding.dim;
    work.batch.x.clear();
    work.batch.embed(embedding.weight, dim, &work.symbols); // (symbols, D)
    let Some(ngrams) = embedding.ngrams else { return Ok(()) };
    work.batch.fill(dim, |Position { sequence, index }, x| {
        let state: &HourglassState = state_ref(&*rows[sequence].state)?;
        if let Some(recent) = &state.recent {
            ngrams.add(recent, index, x)?;
        }
        Ok(())
    })
}

/// Fills `work.decisions` for the symbols in `work.batch`.
fn decide_boundaries(boundaries: &Boundaries, compute: &Compute, rows: &[SequenceRow], work: &mut Work) -> Result<()> {
    work.decisions.clear();
    let entropies = |sequence: usize| -> Result<&[f64]> {
        let state: &HourglassState = state_ref(&*rows[sequence].state)?;
        Ok(state.entropy_model.as_ref().map_or(&[], |entropy_model| &entropy_model.entropies))
    };
    let evidence = Evidence {
        positions: &work.batch.positions,
        symbols: &work.symbols,
        stream_positions: &work.stream_positions,
        hidden: &work.batch.x,
        noise: &work.noise,
        entropies: &entropies,
    };
    boundaries.decide(compute, &evidence, &mut work.boundary, &mut work.decisions)
}

/// Stores the pre stack's outputs and decisions in the rows, and pools each closed segment; `pooling` is `None` without.
fn pool_closed(pooling: Option<Pooling>, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
    for ((Position { sequence, index: position }, x), decision) in work.batch.iter().zip(&work.decisions) {
        let row = &mut rows[sequence];
        let BoundaryDecision { closes: boundary, probability } = *decision;
        row.decisions.push(SymbolBoundary { boundary, probability, ..SymbolBoundary::default() });
        // logits are wanted of the last symbols
        let wanted = row.decisions.len() + row.wanted() > row.feed.len();
        let state: &mut HourglassState = state_mut(&mut *row.state)?;
        state.pre.advance(1);
        if wanted || state.pooled.is_some() {
            state.hidden.extend_from_slice(x);
        }
        let (Some(pooled), Some(pooling)) = (&mut state.pooled, pooling) else { continue };
        let start = pooled.segment_ends.open_start();
        if position < start {
            // A resumed sequence feeds the end of a skipped segment again: nothing closes there.
            row.decisions.iter_mut().next_back().into_iter().for_each(|last| last.boundary = false);
            continue;
        }
        if pooling.sums() {
            state.pre.add_output(position, x, position > start)?;
        } else {
            state.pre.write_output(position, x)?;
        }
        if decision.closes {
            // now, while the cache still holds every output that pooling reads
            let offset = pooled.closed_vectors.len();
            pooled.closed_vectors.resize(offset + x.len(), 0.0);
            pool_segment(pooling, &state.pre, start..=position, &mut pooled.closed_vectors[offset..]);
            pooled.segment_ends.push(position);
        }
    }
    for (&index, processed) in which.iter().zip(&mut work.processed) {
        *processed = rows[index].decisions.len();
    }
    Ok(())
}

/// `out` (D) = the pooled vector of the segment with these symbols, from the outputs that the pre stack's cache keeps.
fn pool_segment(pooling: Pooling, pre: &KvCache, symbols: RangeInclusive<usize>, out: &mut [f32]) {
    if pooling.sums() {
        return mean_of_sum(pre.output(*symbols.end()), symbols.count(), out);
    }
    let from = (symbols.end() + 1).saturating_sub(pooling.lookback()).max(*symbols.start());
    pooling.pool((from..=*symbols.end()).map(|t| pre.output(t)), out);
}

/// Copies the middle stack's last output, which symbols in flight before the first new segment end still see.
fn keep_last_closed(rows: &mut [SequenceRow], waiting: &[usize]) -> Result<()> {
    for &index in waiting {
        let PooledState { middle, middle_outputs, middle_outputs_start, .. } = state(rows, index)?.pooled_mut()?;
        *middle_outputs_start = middle.len() - 1;
        middle_outputs.clear();
        if *middle_outputs_start < middle.first() {
            // no symbol sees the last segment before a resumed sequence's start
            middle_outputs.resize(middle.layout().output, 0.0);
        } else {
            middle_outputs.extend_from_slice(middle.output(*middle_outputs_start));
        }
    }
    Ok(())
}

/// `work.batch` = the pooled vectors of the next chunk of each row's new segments.
fn gather_segments(middle: &Stack, rows: &mut [SequenceRow], waiting: &[usize], work: &mut Work) -> Result<bool> {
    work.batch.positions.clear();
    for &index in waiting {
        let pooled = state(rows, index)?.pooled_mut()?;
        let chunk = (pooled.segment_ends.len() + 1 - pooled.middle.len()).min(middle.window.chunk());
        middle.reserve(&mut pooled.middle, chunk)?;
        work.batch.extend(index, &pooled.middle, chunk);
    }
    let dim = width(middle);
    work.batch.fill(dim, |Position { sequence, index }, x| {
        let pooled = state(rows, sequence)?.pooled_mut()?;
        let index = index - pooled.middle_outputs_start - 1;
        x.copy_from_slice(&pooled.closed_vectors[index * dim..][..dim]);
        Ok(())
    })?;
    work.show(HourglassStage::Pooled);
    Ok(!work.batch.positions.is_empty())
}

fn scatter_middle(rows: &mut [SequenceRow], work: &mut Work) -> Result<()> {
    work.show(HourglassStage::MiddleOutput);
    for (Position { sequence, index: position }, x) in work.batch.iter() {
        let PooledState { middle, middle_outputs, .. } = state(rows, sequence)?.pooled_mut()?;
        middle.write_output(position, x)?;
        middle.advance(1);
        middle_outputs.extend_from_slice(x);
    }
    Ok(())
}

/// Counts in `work.processed` the symbols in flight that the post stack has processed.
fn count_post(rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
    work.processed.clear();
    for &index in which {
        let fed = rows[index].decisions.len();
        let state = state(rows, index)?;
        work.processed.push((state.pooled()?.post.len() - state.finished).min(fed));
    }
    Ok(())
}

/// `work.batch` = the pre stack's output plus the middle stack's for the last closed segment, of the next chunks.
fn gather_upsampled(post: &Stack, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<bool> {
    work.batch.positions.clear();
    for (&index, &processed) in which.iter().zip(&work.processed) {
        let chunk = (rows[index].decisions.len() - processed).min(post.window.chunk());
        let cache = &mut state(rows, index)?.pooled_mut()?.post;
        post.reserve(cache, chunk)?;
        work.batch.extend(index, cache, chunk);
    }
    let dim = width(post);
    work.batch.fill(dim, |Position { sequence, index: position }, x| {
        let state = state(rows, sequence)?;
        let residual = &state.hidden[(position - state.finished) * dim..][..dim];
        for ((x, residual), middle) in x.iter_mut().zip(residual).zip(state.pooled()?.upsampled(position)) {
            *x = residual + middle;
        }
        Ok(())
    })?;
    work.show(HourglassStage::PostInput);
    Ok(!work.batch.positions.is_empty())
}

/// `work.wanted` = the positions whose logits are wanted; all if somebody watches.
fn select_wanted(rows: &mut [SequenceRow], work: &mut Work) -> Result<()> {
    work.wanted.clear();
    let is_watched = work.watcher.is_some() || work.stack.hook.is_some();
    for (index, position) in work.batch.positions.iter().enumerate() {
        let row = &rows[position.sequence];
        let unwanted = row.decisions.len().saturating_sub(row.wanted());
        let finished = state(rows, position.sequence)?.finished;
        if is_watched || position.index >= finished + unwanted {
            work.wanted.push(index);
        }
    }
    Ok(())
}

/// Replaces the pre stack's outputs of wanted positions, which are no longer needed, by the post stack's.
fn scatter_post(rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
    work.show(HourglassStage::PostOutput);
    for position in &work.batch.positions {
        state(rows, position.sequence)?.pooled_mut()?.post.advance(1);
    }
    let dim = work.batch.x.len() / work.wanted.len().max(1);
    for (&index, x) in work.wanted.iter().zip(work.batch.x.chunks_exact(dim.max(1))) {
        let Position { sequence, index: position } = work.batch.positions[index];
        let state = state(rows, sequence)?;
        let offset = (position - state.finished) * dim;
        state.hidden[offset..offset + dim].copy_from_slice(x);
    }
    count_post(rows, which, work)
}

/// `work.head.wanted` (wanted, D) = the vectors whose logits are wanted: each row's last ones, row after row.
fn gather_wanted(rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
    work.head.wanted.clear();
    for &index in which {
        let fed = rows[index].decisions.len();
        let wanted = rows[index].wanted();
        let state = state(rows, index)?;
        // a vanilla model kept the wanted vectors only
        let kept = if state.pooled.is_some() { fed } else { wanted };
        let unwanted = state.hidden.len() / kept.max(1) * kept.saturating_sub(wanted);
        work.head.wanted.extend_from_slice(state.hidden.get(unwanted..).unwrap_or_default());
        state.hidden.clear();
        if let Some(pooled) = &mut state.pooled {
            work.keep_outputs(&mut state.hidden);
            work.keep_outputs(&mut pooled.closed_vectors);
            work.keep_outputs(&mut pooled.middle_outputs);
        }
    }
    Ok(())
}

// Loading: tensors in the names of docs/checkpoints.md, and the model that they make.

pub(crate) fn read(config: &Config, file: &Path) -> Result<Box<dyn Blueprint>> {
    let architecture: Architecture = checkpoint::architecture(config, file)?;
    let vocabulary = config.vocabulary(file)?;
    let expected = "nothing: an hourglass has no special symbols";
    require(vocabulary.specials().is_none(), file, "vocabulary.specials", expected, "special symbols")?;
    let blueprint = HourglassBlueprint { architecture, symbols: vocabulary.len() };
    blueprint.validate(&vocabulary, file)?;
    parts::trained_within(blueprint.architecture.position, config, file)?;
    Ok(Box::new(blueprint))
}

impl Blueprint for HourglassBlueprint {
    fn tensors(&self) -> Vec<TensorSpec> {
        let a = &self.architecture;
        let mut out = vec![matrix("embedding.weight", vec![self.symbols, a.dim])];
        let tables = a.ngrams.iter().flat_map(|ngrams| ngrams.tensors().map(|name| (name, vec![ngrams.rows, a.dim])));
        out.extend(tables.map(|(name, shape)| TensorSpec::normal(name, shape, 0.0, 0.01)));
        let shape = a.stack_shape();
        parts::position(&mut out, &shape);
        for (stack, layers) in self.stacks() {
            (0..layers).for_each(|index| parts::layer(&mut out, &format!("{stack}.{index}"), &shape));
        }
        if a.layers.middle.is_some() {
            out.push(TensorSpec::normal("null_group", vec![a.dim], 0.0, 1.0));
            norm(&mut out, "pool_norm", a.dim);
        }
        if let BoundaryConfig::Learned { hidden, .. } = a.boundaries {
            linear(&mut out, "boundary.hidden", hidden, a.dim);
            linear(&mut out, "boundary.output", 1, hidden);
        }
        linear(&mut out, "head", self.symbols, a.dim);
        out
    }

    fn shape(&self) -> String {
        let a = &self.architecture;
        let layers: Vec<_> = self.stacks().map(|(_, count)| count.to_string()).collect();
        let layers = layers.join("+");
        let boundaries = a.boundaries.describe();
        let mut shape = format!("{layers} layers × {}, {} heads × {}, {boundaries}", a.dim, a.heads, a.head_dim);
        if a.position != PositionKind::TransformerXl {
            shape += &format!(", {}", a.position.name());
        }
        if let Some(ngrams) = &a.ngrams {
            shape += &format!(", {}", ngrams.describe());
        }
        if a.window != Window::Full {
            shape += &format!(", {}", a.window.describe());
        }
        if a.middle_window != Window::Full {
            shape += &format!(", middle stack: {}", a.middle_window.describe());
        }
        shape
    }

    fn bounds(&self) -> Bounds {
        let a = &self.architecture;
        let middle = a.layers.middle.map(|_| a.middle_window);
        let longest = |window, lead| {
            let (positions, why) = a.position.max_length(a.head_dim, window)?;
            Some((positions - lead, why))
        };
        // every symbol may close a segment, and the null group takes the middle stack's first position
        let stacks = [longest(a.window, 0), middle.and_then(|window| longest(window, NULL_GROUP))];
        let longest = stacks.into_iter().flatten().min_by_key(|(symbols, _)| *symbols);
        let mut windows = std::iter::once(a.window).chain(middle);
        // an entropy model's state keeps the entropy of every symbol
        let endless = windows.all(|window| window.max_keys().is_some()) && a.boundaries.entropy_model().is_none();
        Bounds { longest, endless }
    }

    fn entropy_models(&self) -> Vec<&str> {
        self.architecture.boundaries.entropy_model().into_iter().collect()
    }

    fn speculates(&self) -> bool {
        true
    }

    fn computed_numbers(&self) -> usize {
        parts::table_numbers(&self.architecture.stack_shape())
    }

    fn build(&self, mut parts: Parts) -> Result<Arc<dyn Model>> {
        let mut card = parts.card("hourglass", self)?;
        let compute = parts.settings.compute();
        let pages = PagePool::new(parts.settings.memory_bytes);
        let eps = self.architecture.layer_norm_eps;
        let loader = Loader::new(&mut parts.weights, self.architecture.stack_shape(), eps, parts.settings.dtype)?;
        let mut builder = Builder { blueprint: self, loader, max_symbols: card.max_symbols };
        let pre = builder.stack("pre", self.architecture.layers.pre)?;
        let pooled = builder.pooled(&compute, &pages)?;
        let boundaries = builder.boundaries(&card.vocabulary)?;
        if let Boundaries::Learned(_) = boundaries {
            card.boundary_modes = vec![BoundaryMode::Threshold, BoundaryMode::Sampled];
        }
        card.pooled = pooled.is_some();
        let load_ngrams = |ngrams: &NgramConfig| Ngrams::load(ngrams, builder.loader.tensors.weights);
        let ngrams = self.architecture.ngrams.as_ref().map(load_ngrams).transpose()?;
        Ok(Arc::new(Hourglass {
            card,
            compute,
            embedding: builder.loader.tensors.weight("embedding")?,
            ngrams,
            pre,
            boundaries,
            entropy_model: parts.entropy_models.into_iter().next(),
            pooled,
            head: builder.loader.tensors.linear(&["head"])?,
            own_bytes: pages.in_use(),
            pages,
        }))
    }
}

struct Builder<'a> {
    blueprint: &'a HourglassBlueprint,
    loader: Loader<'a>,
    max_symbols: usize,
}

impl Builder<'_> {
    fn stack(&mut self, name: &str, layers: usize) -> Result<Stack> {
        let a = &self.blueprint.architecture;
        // pooling reads the pre stack's outputs or their sums, upsampling the middle stack's; the post stack's are not kept
        let keeps_output = a.layers.middle.is_some() && name != "post";
        self.loader.stack(&StackSpec {
            name,
            layers,
            output: if keeps_output { a.dim } else { 0 },
            window: if name == "middle" { a.middle_window } else { a.window },
            order: NormOrder::Post,
            // the middle stack's null group takes one more position
            positions: self.max_symbols + 1,
        })
    }

    fn pooled(&mut self, compute: &Compute, pages: &Arc<PagePool>) -> Result<Option<PooledWeights>> {
        let a = &self.blueprint.architecture;
        let (Some(middle), Some(post), Some(pooling)) = (a.layers.middle, a.layers.post, a.pooling) else {
            return Ok(None);
        };
        let middle = self.stack("middle", middle)?;
        let post = self.stack("post", post)?;
        let norm = self.loader.tensors.layer_norm("pool_norm")?;
        let vector = self.loader.tensors.weights.take("null_group")?;
        let null_group = null_group(compute, &norm, &middle, vector, pages)?;
        Ok(Some(PooledWeights { pooling, norm, middle, post, null_group }))
    }

    fn boundaries(&mut self, vocabulary: &Vocabulary) -> Result<Boundaries> {
        let activation = self.blueprint.architecture.activation;
        Ok(match &self.blueprint.architecture.boundaries {
            BoundaryConfig::None {} => Boundaries::None,
            BoundaryConfig::Fixed { every } => Boundaries::Fixed(Fixed { every: *every }),
            BoundaryConfig::Whitespace { symbol } => {
                let missing = || Error::Internal(format!("boundary symbol {symbol:?} is not in the vocabulary"));
                let source = Whitespace::new(symbol, &|character| vocabulary.id_of(character));
                Boundaries::Whitespace(source.ok_or_else(missing)?)
            }
            BoundaryConfig::Learned { threshold, .. } => Boundaries::Learned(Learned {
                hidden: self.loader.tensors.linear(&["boundary.hidden"])?,
                output: self.loader.tensors.linear(&["boundary.output"])?,
                activation,
                threshold: *threshold,
            }),
            BoundaryConfig::EntropySpikes { window, .. } => Boundaries::Spikes(Spikes { window: *window }),
        })
    }
}

/// Computes the middle cache of a sequence without closed segments: position 0 is the normed null group's `vector`, (D).
fn null_group(
    compute: &Compute,
    pool_norm: &LayerNorm,
    middle: &Stack,
    mut vector: Vec<f32>,
    pages: &Arc<PagePool>,
) -> Result<KvCache> {
    struct OneCache(KvCache);
    impl Caches for OneCache {
        fn cache(&self, _: usize) -> Result<&KvCache> {
            Ok(&self.0)
        }
        fn cache_mut(&mut self, _: usize) -> Result<&mut KvCache> {
            Ok(&mut self.0)
        }
    }
    let mut caches = OneCache(KvCache::new(middle.layout, pages.clone()));
    caches.0.reserve(1)?;
    layer_norm(compute, &mut vector, pool_norm);
    let positions = [Position { sequence: 0, index: 0 }];
    middle.forward(compute, &mut vector, &positions, &mut caches, &mut StackWork::default())?;
    caches.0.write_output(0, &vector)?;
    caches.0.advance(1);
    Ok(caches.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables of width 1 whose row r of table t is 1000·t + r.
    fn numbered(sizes: &[usize], rows: usize) -> Ngrams {
        let weight = |t: usize| (0..rows).map(|row| (1000 * t + row) as f32).collect();
        let tables = sizes.iter().enumerate().map(|(t, &size)| Table { size, weight: weight(t) }).collect();
        Ngrams { rows, tables }
    }

    #[test]
    fn rows_follow_the_definition() {
        let sizes = [2, 3, 7];
        let rows = 101;
        let text: Vec<u32> = (0..40).map(|i| i * i % 256).collect();
        let row = |position: usize, size: usize| {
            let id = |back: usize| position.checked_sub(back).map_or(0, |at| text[at]);
            (0..size).fold(0u128, |hash, back| (hash * 1_000_003 + u128::from(id(back)) + 1) % 2_147_483_647) % 101
        };
        let ngrams = numbered(&sizes, rows);
        let mut recent = RecentSymbols::new(ngrams.largest());
        recent.extend(&text);
        for position in 0..text.len() {
            let mut x = [0.25];
            ngrams.add(&recent, position, &mut x).unwrap();
            let expected: u128 =
                sizes.iter().enumerate().map(|(t, &size)| 1000 * t as u128 + row(position, size)).sum();
            assert_eq!(x, [0.25 + expected as f32], "{position}");
        }
        assert!(ngrams.add(&recent, text.len(), &mut [0.0]).is_err());
    }

    #[test]
    fn validate_rejects_what_is_out_of_bounds() {
        let valid = |sizes: &[usize], rows| NgramConfig { sizes: sizes.to_vec(), rows }.validate().is_ok();
        assert!(valid(&[3, 4, 5], 3840) && valid(&[2], 1) && valid(&[2, 3, 4, 5, 6, 7, 8, 16], 1 << 24));
        for sizes in [&[][..], &[1], &[17], &[3, 3], &[4, 3], &[2, 3, 4, 5, 6, 7, 8, 9, 10]] {
            assert!(!valid(sizes, 10), "{sizes:?}");
        }
        assert!(!valid(&[3], 0) && !valid(&[3], (1 << 24) + 1));
    }

    fn last(recent: &RecentSymbols, position: usize, count: usize) -> Option<Vec<u32>> {
        Some(recent.newest_first(position)?.take(count).collect())
    }

    #[test]
    fn symbols_before_the_text_count_as_zero() {
        let mut recent = RecentSymbols::new(4);
        assert_eq!((recent.context(), last(&recent, 0, 1)), (3, None));
        recent.extend(&[7, 8]);
        recent.extend(&[9]);
        assert_eq!(last(&recent, 2, 5), Some(vec![9, 8, 7, 0, 0]));
        assert_eq!(last(&recent, 1, 2), Some(vec![8, 7]));
        recent.truncate(2);
        recent.extend(&[5]);
        assert_eq!(last(&recent, 2, 4), Some(vec![5, 8, 7, 0]));
        recent.truncate(0);
        recent.extend(&[1]);
        assert_eq!(last(&recent, 0, 2), Some(vec![1, 0]));
        recent.start_at(50);
        recent.extend(&[2, 3]);
        assert_eq!((last(&recent, 51, 3), last(&recent, 49, 1)), (Some(vec![3, 2, 0]), None));
    }

    #[test]
    fn a_long_sequence_keeps_what_its_windows_need() {
        let mut recent = RecentSymbols::new(5);
        let bytes = recent.own_bytes();
        for position in 0..100_000usize {
            let earliest = position.saturating_sub(300);
            recent.drop_before(earliest);
            recent.extend(&[position as u32]);
            let expected: Vec<u32> = (0..5).map(|back| earliest.saturating_sub(back) as u32).collect();
            if earliest >= 5 {
                assert_eq!(last(&recent, earliest, 5), Some(expected), "{position}");
            }
        }
        assert_eq!(recent.own_bytes(), bytes);
        assert!(recent.start > 90_000);
        let fork = recent.clone();
        assert_eq!((fork.own_bytes(), last(&fork, 99_999, 1)), (bytes, Some(vec![99_999])));
        recent.truncate(99_701);
        assert_eq!(last(&recent, 99_700, 2), Some(vec![99_700, 99_699]));
        recent.truncate(0);
        recent.extend(&[6]);
        assert_eq!(last(&recent, 0, 2), Some(vec![6, 0]));
    }

    #[test]
    fn dropped_segments_still_count() {
        let mut dropping = SegmentEnds::default();
        let mut complete = Vec::new();
        for m in 0..5000 {
            let end = m * 3 + m % 2;
            dropping.push(end);
            complete.push(end);
            if dropping.is_full() {
                dropping.drop_before(m.saturating_sub(30));
            }
            assert_eq!(dropping.len(), complete.len());
            for position in [end, end + 1, end.saturating_sub(40)] {
                assert_eq!(dropping.count_before(position), complete.partition_point(|&end| end < position));
            }
            assert_eq!(dropping.end(m), Some(end));
            assert_eq!((dropping.start(m + 1), dropping.open_start()), (Some(end + 1), end + 1));
        }
        assert!(dropping.listed.len() < CAPACITY);
        assert_eq!((dropping.end(4998), dropping.start(4999)), (Some(complete[4998]), Some(complete[4998] + 1)));
        assert_eq!((dropping.end(0), dropping.start(0)), (None, None));
        let first = dropping.dropped;
        assert_eq!(dropping.start(first), Some(complete[first - 1] + 1));
        assert_eq!(dropping.end(first), Some(complete[first]));
        dropping.truncate(complete[4990]);
        assert_eq!(dropping.len(), 4990);
        dropping.truncate(0);
        assert_eq!((dropping.len(), dropping.open_start()), (0, 0));
        let mut resumed = SegmentEnds::from_segment(7, 50);
        assert_eq!((resumed.len(), resumed.open_start()), (7, 50));
        assert_eq!((resumed.start(7), resumed.start(6)), (Some(50), None));
        resumed.push(60);
        assert_eq!((resumed.count_before(60), resumed.count_before(61), resumed.open_start()), (7, 8, 61));
    }
}
