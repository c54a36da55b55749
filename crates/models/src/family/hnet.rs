//! H-Net: dynamic chunking (Hwang, Wang, Gu 2025, arXiv 2507.07955), with any number of stages.
//!
//! Read from goombalab/hnet at commit 3673fe1: `hnet/models/hnet.py` (stages), `hnet/modules/dc.py` (router, chunking, moving
//! average), `hnet/modules/block.py` (layers). Every mode computes what its recurrences define, in f32; the official bulk form
//! rounds the moving average to bf16.
//!
//! Each stage but the innermost: encoder → router → the vectors at which chunks begin → next stage → moving average + residual →
//! decoder. A segment of the contract is a chunk of the outermost router, and it closes with the *first* symbol of the chunk:
//! that symbol's vector is the chunk's.
//!
//! In reading order: [`Architecture`]; [`HnetState`], one sequence, which snapshots make rewindable; [`Hnet`], the weights and the
//! steps; the passes through the stages; loading; random weights for `weir init`.

use crate::checkpoint::{self, Column, Config, Init, require};
use crate::contract::{
    BoundaryMode, BoundaryOptions, Card, Cost, KvMemory, Model, PageUse, Scratch, SequenceRow, State, StepCost,
    StepStatus, SymbolBoundary, check_mode, state_mut, state_ref,
};
use crate::family::parts::{
    self, Check, HeadWork, MAX_LAYERS, Tensors, check_rollback, linear, matrix, with_status, work_mut,
};
use crate::family::{Blueprint, Parts, TensorSpec};
use crate::nn::attention::{Caches, FeedForward};
use crate::nn::kv_cache::KvCache;
use crate::nn::mamba2::{
    self, HybridLayer, HybridStack, HybridWork, Mamba2, Mixer, RecurrentMemory, RecurrentRun, page_bytes,
};
use crate::nn::pooling::{Router, RouterWork, begins_chunk, boundary_probability, move_average};
use crate::nn::position::{PositionScheme, ROTARY_BASE, Rotary};
use crate::nn::window::{CHUNK, ROLLBACK, Window};
use crate::nn::{Activation, Position, sized};
use crate::text::Vocabulary;
use crate::usage::{LevelCounts, MAX_LEVELS};
use serde::Deserialize;
use std::{collections::VecDeque, path::Path, sync::Arc};
use weir_kernels::attention::PageLayout;
use weir_kernels::error::{Error, Result};
use weir_kernels::linear::{Epilogue, Linear, QuantizedRows, WeightArena};
use weir_kernels::pages::{Page, PagePool};
use weir_kernels::ssm::{HEAD, Taps};
use weir_kernels::{Compute, Dtype};

/// Maximum stages, the innermost included.
const MAX_STAGES: usize = MAX_LEVELS + 1;

const MAX_TAPS: usize = 64;

/// The H-Net's `architecture` in `config.json`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Architecture {
    /// The stages, outermost first. The innermost has `main`, all others `encoder` and `decoder`.
    pub stages: Vec<StageConfig>,
    /// Added to the mean square in every RMSNorm.
    pub norm_eps: f32,
    /// True if the head is the embedding.
    pub tied: bool,
}

/// One stage's part of the architecture.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageConfig {
    /// Width D; at least the width of the stage around it.
    pub dim: usize,
    /// Layers before the router, such as `T1m4`: letters with counts. `m` is a Mamba-2 mixer, `t` self-attention; an upper-case
    /// letter adds a feed-forward.
    pub encoder: Option<String>,
    /// Layers after the moving average.
    pub decoder: Option<String>,
    /// Layers of the innermost stage.
    pub main: Option<String>,
    /// Inner width F of the feed-forwards.
    pub feed_forward: usize,
    /// Attention heads; each has width D / heads.
    pub heads: usize,
    /// Numbers of a head that rotary positions turn, from the first on.
    pub rotary_dim: usize,
    /// Positions of this stage that a position attends to.
    pub window: Window,
    /// Columns N of each Mamba-2 head's state.
    pub state_dim: usize,
    /// Taps W of the convolutions.
    pub conv_width: usize,
    /// Inner width of the Mamba-2 mixers, in units of D.
    pub expand: usize,
}

/// One layer of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerKind {
    /// True for self-attention, false for a Mamba-2 mixer.
    pub attention: bool,
    /// True if a feed-forward follows.
    pub feed_forward: bool,
}

/// A stack of one stage. Stacks are in the order in which a symbol passes them.
#[derive(Debug, Clone)]
pub struct StackConfig {
    /// Index of its stage.
    pub stage: usize,
    /// Name within its stage, and prefix of its tensors' names there.
    pub name: &'static str,
    /// Its layers.
    pub layers: Vec<LayerKind>,
}

/// A validated H-Net.
#[derive(Debug, Clone)]
pub struct HnetBlueprint {
    /// The validated architecture.
    pub architecture: Architecture,
    /// Encoders from the outside in, the main stack, decoders from the inside out.
    pub stacks: Vec<StackConfig>,
    /// Vocabulary size V.
    pub symbols: usize,
    /// For each level, the symbols with which its chunks begin if `weir init` drew the weights.
    pub beginnings: Vec<Vec<u32>>,
}

/// Parses layers such as `T1m4`: letters of `mMtT`, each with a count. An empty text means no layers.
pub fn parse_layers(text: &str) -> std::result::Result<Vec<LayerKind>, String> {
    let wrong = || format!("{text:?}");
    let mut layers = Vec::new();
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        if !"mMtT".contains(letter) {
            return Err(wrong());
        }
        let digits = rest[1..].len() - rest[1..].trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let count: usize = rest[1..=digits].parse().map_err(|_| wrong())?;
        if count > MAX_LAYERS - layers.len() {
            return Err(wrong());
        }
        let kind = LayerKind { attention: "tT".contains(letter), feed_forward: letter.is_ascii_uppercase() };
        layers.extend(std::iter::repeat_n(kind, count));
        rest = &rest[1 + digits..];
    }
    Ok(layers)
}

impl HnetBlueprint {
    /// Checks every bound of the architecture. The error names the first key that is out of bounds, and the bound.
    pub(crate) fn new(architecture: Architecture, symbols: usize, file: &Path) -> Result<Self> {
        let check = Check { file };
        let count = architecture.stages.len();
        let expected = format!("2 to {MAX_STAGES} stages: one that chunks, and one inside it");
        check.require((2..=MAX_STAGES).contains(&count), "stages", expected, count)?;
        check.fraction("norm_eps", architecture.norm_eps)?;
        let mut encoders = Vec::new();
        let mut decoders = Vec::new();
        for (stage, config) in architecture.stages.iter().enumerate() {
            let key = |name: &str| format!("stages[{stage}].{name}");
            check.dim(key("dim"), config.dim)?;
            let outer = stage.checked_sub(1).map_or(1, |outer| architecture.stages[outer].dim);
            let expected = format!("at least {outer}, the width of the stage around it");
            check.require(config.dim >= outer, key("dim"), expected, config.dim)?;
            let innermost = stage + 1 == count;
            for (name, layers) in [("encoder", &config.encoder), ("decoder", &config.decoder), ("main", &config.main)] {
                match layers {
                    None if (name == "main") == innermost => {
                        check.fail(key(name), "layers, such as \"m4\"", "nothing")?
                    }
                    Some(_) if (name == "main") != innermost => {
                        let expected =
                            if innermost { "nothing: the innermost stage has main alone" } else { "nothing" };
                        check.fail(key(name), expected, "layers")?;
                    }
                    None => {}
                    Some(text) => {
                        let layers = parse_layers(text).or_else(|found| {
                            let expected = format!("letters of mMtT with counts, at most {MAX_LAYERS} layers");
                            check.fail(key(name), expected, found).map(|()| Vec::new())
                        })?;
                        config.validate(stage, &layers, check)?;
                        let stack = StackConfig { stage, name, layers };
                        if name == "decoder" { decoders.push(stack) } else { encoders.push(stack) }
                    }
                }
            }
        }
        decoders.reverse();
        encoders.extend(decoders);
        let blueprint = Self { architecture, stacks: encoders, symbols, beginnings: Vec::new() };
        check.parameters("stages", blueprint.parameters())?;
        Ok(blueprint)
    }

    fn parameters(&self) -> Option<usize> {
        let stages = &self.architecture.stages;
        let mut sum = self.symbols.checked_mul(2)?.checked_mul(stages.first()?.dim)?;
        for stage in stages {
            // two router matrices and the residual projection, with its bias, the padding and the norms
            sum = sum.checked_add(stage.dim.checked_mul(3)?.checked_add(8)?.checked_mul(stage.dim)?)?;
        }
        for stack in &self.stacks {
            let stage = &stages[stack.stage];
            let inner = stage.dim.checked_mul(stage.expand)?;
            let states = stage.state_dim.checked_mul(2)?;
            // x, z, the output and the step sizes; then B and C
            let mamba =
                inner.checked_mul(4)?.checked_add(states)?.checked_add(stage.conv_width)?.checked_mul(stage.dim)?;
            let convolution = inner.checked_add(states)?.checked_mul(stage.conv_width.checked_add(8)?)?;
            let attention = stage.dim.checked_mul(4)?.checked_mul(stage.dim)?;
            let feed_forward = stage.feed_forward.checked_mul(3)?.checked_mul(stage.dim)?;
            for layer in &stack.layers {
                let mixer = if layer.attention { attention } else { mamba.checked_add(convolution)? };
                let rest = if layer.feed_forward { feed_forward } else { 0 };
                sum = sum.checked_add(mixer)?.checked_add(rest)?.checked_add(8 * stage.dim)?;
            }
        }
        Some(sum)
    }

    /// Returns the number of stages that chunk.
    pub fn levels(&self) -> usize {
        self.architecture.stages.len() - 1
    }

    /// Returns the width of the padding that a stage appends to its input.
    pub fn padding(&self, stage: usize) -> usize {
        let stages = &self.architecture.stages;
        stage.checked_sub(1).map_or(0, |outer| stages[stage].dim - stages[outer].dim)
    }
}

impl StageConfig {
    /// Checks the window, and the dimensions that the stack's layers need.
    fn validate(&self, stage: usize, layers: &[LayerKind], check: Check<'_>) -> Result<()> {
        let key = |name: &str| format!("stages[{stage}].{name}");
        // memory and cost are computed with the window even if no layer attends
        check.part(&key("window"), self.window.validate())?;
        if layers.iter().any(|layer| layer.feed_forward) {
            check.dim(key("feed_forward"), self.feed_forward)?;
        }
        if layers.iter().any(|layer| layer.attention) {
            check.dim(key("heads"), self.heads)?;
            let divides = self.dim.is_multiple_of(self.heads);
            check.require(divides, key("heads"), format!("a divisor of dim, {}", self.dim), self.heads)?;
            let limit = self.dim / self.heads;
            let valid = self.rotary_dim <= limit && self.rotary_dim.is_multiple_of(2);
            let expected = format!("an even number of at most {limit}, the width of a head");
            check.require(valid, key("rotary_dim"), expected, self.rotary_dim)?;
        }
        if layers.iter().any(|layer| !layer.attention) {
            check.dim(key("state_dim"), self.state_dim)?;
            check.dim(key("expand"), self.expand)?;
            check.range(key("conv_width"), self.conv_width, 1..=MAX_TAPS)?;
            let inner = self.inner();
            let expected = format!("expand · dim divisible by {HEAD}, the width of a head");
            check.require(inner.is_multiple_of(HEAD), key("expand"), expected, inner)?;
        }
        Ok(())
    }

    /// Returns the inner width E of a Mamba-2 mixer.
    pub fn inner(&self) -> usize {
        self.expand.saturating_mul(self.dim)
    }

    /// Returns the channels of a Mamba-2 mixer's convolution: x, B and C.
    pub fn channels(&self) -> usize {
        self.inner() + 2 * self.state_dim
    }
}

// A snapshot refers to the pages of the recurrent memories, which the sequence copies before it writes them, remembers lengths
// of the caches, and copies the few vectors of routers and averages.

/// Symbols that a rollback can always remove, and minimum distance of two snapshots.
const REWIND: usize = ROLLBACK;

/// Distance after which a snapshot is taken although no chunk begins.
const OVERDUE: usize = 2 * REWIND;

/// Symbols of a feed from which the steps take a snapshot on their way, [`REWIND`] symbols before its end.
const LONG_FEED: usize = 2 * REWIND;

/// Maximum snapshots of a sequence, one that is being taken included.
const MAX_SNAPSHOTS: usize = 3;

/// Maximum symbols between the oldest snapshot and the end of a sequence whose symbols have all been finished.
const MAX_REPLAY: usize = OVERDUE + LONG_FEED + REWIND;

/// One stack's state.
#[derive(Clone)]
pub struct StackState {
    /// Keys and values of the attention layers. Its length counts the positions of any stack, also without such layers.
    pub cache: KvCache,
    /// States of the Mamba-2 layers.
    pub memory: RecurrentMemory,
}

/// The vectors that a chunking stage keeps between positions; empty before the first.
#[derive(Debug, Clone, Default)]
pub struct LevelState {
    /// The router's query of the last position: (D).
    pub query: Vec<f32>,
    /// Moving average of the chunks' outputs: (D).
    pub average: Vec<f32>,
}

/// A state to return to.
#[derive(Clone)]
pub struct Snapshot {
    /// Number of symbols before it.
    pub position: usize,
    /// True if a chunk began with the last of them.
    pub ends_segment: bool,
    stacks: Vec<StackSnapshot>,
    levels: Vec<LevelState>,
}

/// One stack's part of a snapshot.
#[derive(Clone)]
pub struct StackSnapshot {
    /// Length of the cache.
    pub len: usize,
    /// Page of the recurrent memory; `None` if it was never written.
    pub page: Option<Page>,
}

impl Snapshot {
    /// Returns the pages that it refers to.
    pub fn pages(&self) -> impl Iterator<Item = &Page> {
        self.stacks.iter().filter_map(|stack| stack.page.as_ref())
    }
}

impl StackSnapshot {
    /// Returns the part of a snapshot that is taken now.
    pub fn of(stack: &StackState) -> Self {
        Self { len: stack.cache.len(), page: stack.memory.page().cloned() }
    }
}

/// A snapshot within a feed, which each stack takes when it has come so far; the finished state has the missing parts.
#[derive(Default)]
pub struct SnapshotPlan {
    /// Number of symbols before it.
    pub position: usize,
    /// The snapshot's position in each stage, once the router of the stage around it has found it.
    pub stages: Vec<Option<usize>>,
    /// The stacks' parts.
    pub stacks: Vec<Option<StackSnapshot>>,
    /// The routers' queries.
    pub queries: Vec<Option<Vec<f32>>>,
    /// The moving averages.
    pub averages: Vec<Option<Vec<f32>>>,
}

impl SnapshotPlan {
    /// Plans a snapshot before symbol `position` of a model with that many stacks and chunking stages.
    pub fn new(position: usize, stacks: usize, levels: usize) -> Self {
        let mut stages = vec![None; levels + 1];
        stages[0] = Some(position);
        Self { position, stages, stacks: vec![None; stacks], queries: vec![None; levels], averages: vec![None; levels] }
    }

    /// Returns the snapshot, with the parts of the finished state where none was taken.
    pub fn complete(self, stacks: &[StackState], levels: &[LevelState], ends_segment: bool) -> Snapshot {
        let taken = self.stacks.into_iter().zip(stacks);
        let stacks = taken.map(|(taken, stack)| taken.unwrap_or_else(|| StackSnapshot::of(stack))).collect();
        let vectors = self.queries.into_iter().zip(self.averages);
        let complete = levels.iter().zip(vectors).map(|(level, (query, average))| LevelState {
            query: query.unwrap_or_else(|| level.query.clone()),
            average: average.unwrap_or_else(|| level.average.clone()),
        });
        Snapshot { position: self.position, ends_segment, stacks, levels: complete.collect() }
    }

    /// Takes a stack's part if the stack is exactly at the snapshot's position in its stage.
    pub fn take_stack(&mut self, index: usize, stage: usize, stack: &StackState) {
        if self.stages[stage] == Some(stack.cache.len()) && self.stacks[index].is_none() {
            self.stacks[index] = Some(StackSnapshot::of(stack));
        }
    }
}

// Keys and values can be truncated, everything else only moves forward. A rollback therefore restores a snapshot and keeps the
// symbols after it: the next step feeds these again first.

/// One sequence of an H-Net.
pub struct HnetState {
    /// The stacks' states, in the order of [`HnetBlueprint::stacks`].
    pub stacks: Vec<StackState>,
    /// The chunking stages' vectors, outermost first.
    pub levels: Vec<LevelState>,
    /// The symbols from position `start` on, each with its boundaries once the routers have decided them.
    pub history: Vec<FedSymbol>,
    /// Position of the first of `history`: the oldest snapshot's, or 0.
    pub start: usize,
    /// Chunks that begin before `start`.
    pub earlier_segments: LevelCounts,
    /// Symbols that the stacks have seen. After a rollback fewer than the sequence has: the next step feeds the rest again.
    pub computed: usize,
    /// Symbols that have had their finish step, or were kept by a rollback; later ones are in flight.
    pub ready: usize,
    /// Snapshots, oldest first, at least `REWIND` symbols apart.
    pub snapshots: VecDeque<Snapshot>,
    /// False once a long feed has given up the states before it; see [`fork`](State::fork).
    pub can_rewind_feed: bool,
    /// Vectors of the symbols in flight.
    pub flight: Flight,
}

/// A symbol that was fed.
#[derive(Debug, Clone, Copy)]
pub struct FedSymbol {
    /// Its id.
    pub symbol: u32,
    /// Levels at which a chunk begins with it, the outermost included. Complete once the symbol has had its segment step.
    pub depth: u8,
}

/// Symbols between symbol step and finish step, those that a rollback kept included. D = width of the outermost stage.
#[derive(Default)]
pub struct Flight {
    /// Residual projections: (symbols, D).
    pub residual: Vec<f32>,
    /// Boundary probabilities: (symbols).
    pub probabilities: Vec<f32>,
    /// The encoder's outputs at which chunks begin: (chunks, D).
    pub chunks: Vec<f32>,
    /// The next stage's outputs for them: (chunks, D).
    pub outputs: Vec<f32>,
    /// The snapshot that the steps take on their way, if the feed is long.
    pub plan: Option<SnapshotPlan>,
}

impl Flight {
    /// Forgets all vectors; keeps the memory.
    pub fn clear(&mut self) {
        self.residual.clear();
        self.probabilities.clear();
        self.chunks.clear();
        self.outputs.clear();
        self.plan = None;
    }
}

impl HnetState {
    /// Returns a sequence without symbols.
    pub fn new(stacks: Vec<StackState>, levels: usize) -> Self {
        Self {
            stacks,
            levels: vec![LevelState::default(); levels],
            history: Vec::with_capacity(256),
            start: 0,
            earlier_segments: LevelCounts::default(),
            computed: 0,
            ready: 0,
            snapshots: VecDeque::new(),
            can_rewind_feed: true,
            flight: Flight::default(),
        }
    }

    /// Returns true if no symbol is in flight.
    pub fn is_ready(&self) -> bool {
        self.ready == self.len()
    }

    /// Returns the number of chunks that begin before position `end`, which is not before `start`.
    fn segments_before(&self, end: usize) -> LevelCounts {
        let mut counts = self.earlier_segments;
        self.history[..end - self.start].iter().for_each(|fed| counts.add(usize::from(fed.depth)));
        counts
    }

    /// Returns the symbols that the next symbol step feeds to the stacks if `more` symbols are fed.
    pub fn to_compute(&self, more: usize) -> usize {
        self.len() - self.computed + more
    }

    /// Removes everything from position `len` on. Restores a snapshot if the stacks are further, or `must_restore`.
    fn truncate(&mut self, len: usize, must_restore: bool) {
        self.flight.clear();
        if len < self.computed || must_restore {
            while self.snapshots.back().is_some_and(|snapshot| snapshot.position > len) {
                self.snapshots.pop_back();
            }
            self.restore();
        }
        self.history.truncate(len - self.start);
        self.ready = len;
    }

    /// Returns to the latest snapshot, or to the sequence's start if there is none.
    fn restore(&mut self) {
        match self.snapshots.back() {
            Some(snapshot) => {
                for (stack, kept) in self.stacks.iter_mut().zip(&snapshot.stacks) {
                    stack.cache.truncate(kept.len);
                    stack.memory.put(kept.page.clone());
                }
                self.levels.clone_from(&snapshot.levels);
                self.computed = snapshot.position;
            }
            None => {
                for stack in &mut self.stacks {
                    stack.cache.truncate(0);
                    stack.memory.clear();
                }
                self.levels.iter_mut().for_each(|level| *level = LevelState::default());
                self.computed = 0;
            }
        }
    }

    fn reset(&mut self) {
        self.snapshots.clear();
        self.start = 0;
        self.earlier_segments = LevelCounts::default();
        self.can_rewind_feed = true;
        self.history.clear();
        self.restore();
        self.flight.clear();
        self.ready = 0;
    }
}

impl HnetState {
    /// Ends the flight: stores the planned snapshot, or takes one if it is due, and drops those that no rollback needs.
    pub fn finish_flight(&mut self) {
        if let Some(plan) = self.flight.plan.take() {
            let ends_segment = self.is_boundary_before(plan.position);
            self.snapshots.push_back(plan.complete(&self.stacks, &self.levels, ends_segment));
        }
        self.ready = self.len();
        self.computed = self.ready;
        self.flight.clear();
        let distance = self.ready - self.snapshots.back().map_or(self.start, |last| last.position);
        let ends_segment = self.is_boundary_before(self.ready);
        if distance >= OVERDUE || distance >= REWIND && ends_segment {
            let stacks = self.stacks.iter().map(StackSnapshot::of).collect();
            let levels = self.levels.clone();
            self.snapshots.push_back(Snapshot { position: self.ready, ends_segment, stacks, levels });
        }
        self.drop_old_snapshots();
    }

    /// Returns true if a chunk began with the symbol before `position`, which is after `start`.
    fn is_boundary_before(&self, position: usize) -> bool {
        let index = position.checked_sub(self.start + 1);
        index.and_then(|index| self.history.get(index)).is_some_and(|fed| fed.depth > 0)
    }

    /// Drops the oldest states while a later snapshot is still [`REWIND`] symbols before the end.
    fn drop_old_snapshots(&mut self) {
        let far = |snapshot: &Snapshot| snapshot.position + REWIND <= self.ready;
        let is_far = self.snapshots.iter().map(far).collect::<Vec<_>>();
        let Some(oldest) = is_far.iter().rposition(|&far| far) else { return };
        self.snapshots.drain(..oldest);
        let Some(position) = self.snapshots.front().map(|snapshot| snapshot.position) else { return };
        self.earlier_segments = self.segments_before(position);
        self.history.drain(..position - self.start);
        self.start = position;
        self.can_rewind_feed = true;
    }

    /// Returns the position of a stack from which its keys must be kept: where the oldest state to return to is.
    pub fn kept_from(&self, index: usize) -> usize {
        let oldest = self.snapshots.front().filter(|oldest| oldest.position == self.start);
        oldest.map_or(0, |oldest| oldest.stacks[index].len)
    }
}

impl State for HnetState {
    fn len(&self) -> usize {
        self.start + self.history.len()
    }

    fn segments(&self) -> usize {
        self.level_segments().level(0)
    }

    fn level_segments(&self) -> LevelCounts {
        self.segments_before(self.len())
    }

    fn fork(&self) -> Box<dyn State> {
        let mut fork = Self {
            stacks: self.stacks.clone(),
            levels: self.levels.clone(),
            history: self.history.clone(),
            snapshots: self.snapshots.clone(),
            flight: Flight::default(),
            ..*self
        };
        if !self.is_ready() {
            // a long feed has dropped what it started from; then only an empty sequence is left
            if self.can_rewind_feed { fork.truncate(self.ready, true) } else { fork.reset() }
        }
        Box::new(fork)
    }

    fn rollback(&mut self, len: usize) -> Result<()> {
        check_rollback(self, self.is_ready(), len)?;
        if len == 0 {
            self.reset()
        } else {
            self.truncate(len, false)
        }
        Ok(())
    }

    fn earliest(&self) -> usize {
        self.start
    }

    fn restart(&mut self, _: usize) {
        self.reset();
    }

    fn boundary_before(&self, len: usize) -> usize {
        let held = len.min(self.len()).checked_sub(self.start);
        let last = held.and_then(|held| self.history[..held].iter().rposition(|fed| fed.depth > 0));
        match last {
            Some(index) => self.start + index + 1,
            // the symbol before the oldest snapshot may have been a boundary
            None => self
                .snapshots
                .front()
                .map_or(0, |first| if first.ends_segment && len >= self.start { self.start } else { 0 }),
        }
    }

    fn pages(&self, each: &mut dyn FnMut(PageUse)) {
        parts::own_pages(self.stacks.iter().map(|stack| &stack.cache), each);
        let current = self.stacks.iter().filter_map(|stack| stack.memory.page());
        let mut recurrent: Vec<_> = current.chain(self.snapshots.iter().flat_map(Snapshot::pages)).collect();
        // a snapshot shares its pages with the sequence until that goes on
        recurrent.sort_by_key(|page| page.id());
        let mut rest = &recurrent[..];
        while let Some(page) = rest.first() {
            let own = rest.iter().take_while(|other| other.id() == page.id()).count();
            each(PageUse { id: page.id(), bytes: page.bytes().len(), references: page.references(), own });
            rest = &rest[own..];
        }
    }

    fn own_bytes(&self) -> usize {
        let vectors = |levels: &[LevelState]| -> usize {
            levels.iter().map(|level| (level.query.capacity() + level.average.capacity()) * size_of::<f32>()).sum()
        };
        let snapshots: usize = self.snapshots.iter().map(|snapshot| vectors(&snapshot.levels)).sum();
        let caches: usize = self.stacks.iter().map(|stack| stack.cache.own_bytes() + size_of::<StackState>()).sum();
        size_of::<Self>()
            + caches
            + vectors(&self.levels)
            + snapshots
            + self.history.capacity() * size_of::<FedSymbol>()
    }
}

fn state(rows: &mut [SequenceRow], index: usize) -> Result<&mut HnetState> {
    state_mut(&mut *rows[index].state)
}

#[derive(Default)]
struct Work {
    stages: Vec<StageWork>,
    pass: PassWork,
    chosen: Vec<usize>,
    head: HeadWork,
}

/// Vectors of one stage in a step. D = width.
#[derive(Default)]
struct StageWork {
    positions: Vec<Position>,
    /// Index among its row's fed symbols of the symbol with which each position begins; `None` for a symbol fed again.
    symbols: Vec<Option<usize>>,
    /// (positions, D)
    x: Vec<f32>,
    /// (positions, D)
    residual: Vec<f32>,
    /// Boundary probability of each position.
    probabilities: Vec<f32>,
}

/// Buffers that all stages share.
#[derive(Default)]
struct PassWork {
    hybrid: HybridWork,
    router: RouterWork,
    quantized: QuantizedRows,
    /// Taken pages of recurrent memories, one for each sequence of a pass.
    pages: Vec<Option<Page>>,
}

/// The caches of one stack, in the states of a step's rows.
struct StackCaches<'a> {
    rows: &'a mut [SequenceRow],
    stack: usize,
}

impl Caches for StackCaches<'_> {
    fn cache(&self, sequence: usize) -> Result<&KvCache> {
        Ok(&state_ref::<HnetState>(&*self.rows[sequence].state)?.stacks[self.stack].cache)
    }

    fn cache_mut(&mut self, sequence: usize) -> Result<&mut KvCache> {
        Ok(&mut state(self.rows, sequence)?.stacks[self.stack].cache)
    }
}

// The weights and the steps. Hot path: no locks, no logging. Symbols that a rollback kept but whose states it dropped are fed
// again, before the row's feed.

/// A loaded H-Net. D = width of the outermost stage, V = vocabulary size.
pub struct Hnet {
    card: Card,
    compute: Compute,
    /// (V, D)
    embedding: Vec<f32>,
    /// Appended to each stage's inputs; empty where the stage is as wide as the one around it.
    padding: Vec<Vec<f32>>,
    /// Encoders from the outside in, the main stack, decoders from the inside out.
    stacks: Vec<HybridStack>,
    /// Weights of the stages that chunk, outermost first.
    chunking: Vec<ChunkingStage>,
    /// (V, D)
    head: Linear,
    pages: Arc<PagePool>,
}

/// Weights of a stage that chunks, in addition to its stacks. D = width.
struct ChunkingStage {
    router: Router,
    /// Projects the encoder's output to the decoder's input: (D, D), in f32.
    residual: Linear,
}

impl Model for Hnet {
    fn card(&self) -> &Card {
        &self.card
    }

    fn begin(&self, boundaries: BoundaryOptions) -> Result<Box<dyn State>> {
        check_mode(&boundaries, &self.card)?;
        let stack = |stack: &HybridStack| StackState {
            cache: KvCache::new(stack.layout, self.pages.clone()),
            memory: RecurrentMemory::new(self.pages.clone(), stack.recurrent_numbers()),
        };
        Ok(Box::new(HnetState::new(self.stacks.iter().map(stack).collect(), self.chunking.len())))
    }

    fn scratch(&self) -> Scratch {
        let stages = self.padding.iter().map(|_| StageWork::default()).collect();
        Scratch(Box::new(Work { stages, ..Work::default() }))
    }

    /// Symbol step: embed → encoder → router. A row at which a chunk begins waits.
    fn symbol_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        let Work { stages, pass, .. } = work_mut(scratch)?;
        let own = &mut stages[0];
        own.positions.clear();
        own.x.clear();
        for &index in which {
            self.start_feed(&mut rows[index])?;
            self.gather_symbols(rows, index, own)?;
        }
        if own.positions.is_empty() {
            return Ok(());
        }
        self.run_stack(0, 0, rows, own, pass)?; // (symbols, D)
        self.route(0, rows, own, pass)?; // (symbols)
        self.scatter_symbols(rows, which, own)
    }

    /// Segment step, for rows at which chunks begin: the stages inside.
    fn segment_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        let work: &mut Work = work_mut(scratch)?;
        let Some(waiting) = with_status(StepStatus::Waiting, rows, which, &mut work.chosen) else { return Ok(()) };
        let Work { stages, pass, .. } = work;
        let inner = &mut stages[1..];
        let dim = self.dim(0);
        inner[0].positions.clear();
        inner[0].symbols.clear();
        inner[0].x.clear();
        for &index in &waiting {
            let state = state(rows, index)?;
            let first = state.stacks[1].cache.len();
            for (chunk, vector) in state.flight.chunks.chunks_exact(dim).enumerate() {
                inner[0].positions.push(Position { sequence: index, index: first + chunk });
                self.push_padded(1, vector, &mut inner[0].x);
            }
            let fed = (state.computed..).zip(&state.flight.probabilities);
            let begun = fed.filter(|(_, probability)| begins_chunk(**probability));
            inner[0].symbols.extend(begun.map(|(position, _)| position.checked_sub(state.ready)));
        }
        self.run_stage(1, rows, inner, pass)?; // (chunks, D of the next stage)
        let outputs = inner[0].x.chunks_exact(self.dim(1));
        for (position, output) in inner[0].positions.iter().zip(outputs) {
            state(rows, position.sequence)?.flight.outputs.extend_from_slice(&output[..dim]);
        }
        waiting.iter().for_each(|&index| rows[index].status = StepStatus::Unfinished);
        work.chosen = waiting;
        Ok(())
    }

    /// Finish step: moving average + residual → decoder → logits.
    fn finish_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        let work: &mut Work = work_mut(scratch)?;
        let Some(unfinished) = with_status(StepStatus::Unfinished, rows, which, &mut work.chosen) else {
            return Ok(());
        };
        let Work { stages, pass, head, .. } = work;
        let own = &mut stages[0];
        self.gather_averages(rows, &unfinished, own)?;
        self.run_stack(self.decoder(0), 0, rows, own, pass)?; // (symbols, D)
        let dim = self.dim(0);
        head.wanted.clear();
        let mut end = 0;
        for &index in &unfinished {
            end += own.positions[end..].iter().take_while(|position| position.sequence == index).count();
            head.wanted.extend_from_slice(&own.x[(end - rows[index].wanted()) * dim..end * dim]);
            state(rows, index)?.finish_flight();
        }
        head.deliver(&self.head, &self.compute, &mut pass.quantized, rows, &unfinished)?;
        work.chosen = unfinished;
        Ok(())
    }

    fn bytes_for(&self, symbols: usize) -> usize {
        // every symbol may begin a chunk, in every stage
        let held = |stack: &HybridStack| match stack.window.max_keys() {
            Some(keys) => symbols.min(keys + MAX_REPLAY + 2 * CHUNK),
            None => symbols,
        };
        let cached: usize = self.stacks.iter().map(|stack| cache_bytes(stack, held(stack))).sum();
        cached + self.recurrent_bytes() * (MAX_SNAPSHOTS + 1)
    }

    fn growth(&self, state: &dyn State, more: usize) -> usize {
        // the step rejects another model's state
        let Ok(state) = state_ref::<HnetState>(state) else { return 0 };
        let fed = state.to_compute(more);
        let mut bytes = 0;
        for (stack, own) in self.stacks.iter().zip(&state.stacks) {
            if stack.layout.layers > 0 {
                bytes += own.cache.growth(own.cache.len() + fed);
            }
            bytes += own.memory.growth();
        }
        if fed >= LONG_FEED { bytes + self.recurrent_bytes() } else { bytes }
    }

    fn memory(&self) -> KvMemory {
        KvMemory { in_use: self.pages.in_use(), limit: self.pages.limit() }
    }

    fn cost(&self, symbols: usize, segments: usize) -> Cost {
        let mut cost = Cost::default();
        let last = self.stacks.len() - 1;
        for (index, stack) in self.stacks.iter().enumerate() {
            let stage = index.min(last - index);
            let positions = if stage == 0 { symbols } else { segments };
            *in_stage(&mut cost, stage) += parts::hybrid_stack_cost(stack, positions);
        }
        for (stage, ChunkingStage { router, residual }) in self.chunking.iter().enumerate() {
            for matrix in [&router.query, &router.key, residual] {
                *in_stage(&mut cost, stage) += parts::linear_cost(matrix);
            }
        }
        cost.logits += parts::linear_cost(&self.head);
        cost
    }
}

impl Hnet {
    fn dim(&self, stage: usize) -> usize {
        self.stacks[stage].dim
    }

    /// Returns the index of a chunking stage's decoder among the stacks.
    fn decoder(&self, stage: usize) -> usize {
        self.stacks.len() - 1 - stage
    }

    /// Returns the bytes of one sequence's recurrent memories, all stacks together.
    fn recurrent_bytes(&self) -> usize {
        self.stacks.iter().map(|stack| page_bytes(stack.recurrent_numbers())).sum()
    }

    /// Checks a row's feed and plans its snapshot.
    fn start_feed(&self, row: &mut SequenceRow) -> Result<()> {
        parts::start_feed(&self.card, row, state_ref::<HnetState>(&*row.state)?.is_ready())?;
        let SequenceRow { state, feed, .. } = row;
        let state: &mut HnetState = state_mut(&mut **state)?;
        state.flight.clear();
        let fed = state.to_compute(feed.len());
        state.history.extend(feed.iter().map(|&symbol| FedSymbol { symbol, depth: 0 }));
        if fed >= LONG_FEED {
            let position = state.len() - REWIND;
            state.flight.plan = Some(SnapshotPlan::new(position, self.stacks.len(), self.chunking.len()));
        }
        if fed > CHUNK {
            // windows move on during such a feed, so nothing before it can be restored
            state.snapshots.clear();
            state.can_rewind_feed = false;
        }
        Ok(())
    }

    /// Appends the embeddings of a row's symbols that the stacks have not seen.
    fn gather_symbols(&self, rows: &mut [SequenceRow], index: usize, own: &mut StageWork) -> Result<()> {
        let dim = self.dim(0);
        let state = state(rows, index)?;
        for (position, fed) in (state.start..).zip(&state.history).skip(state.computed - state.start) {
            own.positions.push(Position { sequence: index, index: position });
            own.x.extend_from_slice(&self.embedding[fed.symbol as usize * dim..][..dim]);
        }
        Ok(())
    }

    /// Stores residuals, boundaries and the chunks' vectors in the rows. Rows at which a chunk begins wait.
    fn scatter_symbols(&self, rows: &mut [SequenceRow], which: &[usize], own: &StageWork) -> Result<()> {
        let dim = self.dim(0);
        for (row, &Position { sequence, index }) in own.positions.iter().enumerate() {
            let probability = own.probabilities[row];
            let boundary = begins_chunk(probability);
            let state = state(rows, sequence)?;
            let is_new = index >= state.ready;
            let first = state.start;
            if is_new {
                // one that is fed again has its complete depth
                state.history[index - first].depth = u8::from(boundary);
            }
            state.flight.residual.extend_from_slice(&own.residual[row * dim..][..dim]);
            state.flight.probabilities.push(probability);
            if boundary {
                state.flight.chunks.extend_from_slice(&own.x[row * dim..][..dim]);
            }
            if is_new {
                let depth = u8::from(boundary);
                let probability = Some(probability);
                rows[sequence].decisions.push(SymbolBoundary {
                    boundary,
                    depth,
                    probability,
                    ..SymbolBoundary::default()
                });
            }
        }
        for &index in which {
            let waits = !state(rows, index)?.flight.chunks.is_empty();
            rows[index].status = if waits { StepStatus::Waiting } else { StepStatus::Unfinished };
        }
        Ok(())
    }

    /// `own.x` (symbols, D) = the moving average plus the residual, for all symbols in flight.
    fn gather_averages(&self, rows: &mut [SequenceRow], which: &[usize], own: &mut StageWork) -> Result<()> {
        let dim = self.dim(0);
        own.positions.clear();
        own.x.clear();
        for &index in which {
            let state = state(rows, index)?;
            let first = state.computed;
            let probabilities = std::mem::take(&mut state.flight.probabilities);
            let residual = std::mem::take(&mut state.flight.residual);
            let outputs = std::mem::take(&mut state.flight.outputs);
            let mut chunks = outputs.chunks_exact(dim);
            for ((position, probability), residual) in (first..).zip(&probabilities).zip(residual.chunks_exact(dim)) {
                let output = if begins_chunk(*probability) { chunks.next() } else { None };
                let average = self.average(0, state, position, *probability, output);
                own.positions.push(Position { sequence: index, index: position });
                own.x.extend(average.iter().zip(residual).map(|(average, residual)| average + residual));
            }
            // the vectors keep their memory for the next feed
            state.flight.probabilities = probabilities;
            state.flight.residual = residual;
            state.flight.outputs = outputs;
        }
        Ok(())
    }
}

/// Returns the part of the cost to which a stage adds.
fn in_stage(cost: &mut Cost, stage: usize) -> &mut StepCost {
    match stage {
        0 => &mut cost.symbol,
        1 => &mut cost.segment,
        _ => &mut cost.deeper,
    }
}

fn cache_bytes(stack: &HybridStack, positions: usize) -> usize {
    if stack.layout.layers == 0 { 0 } else { stack.layout.bytes_for(positions) }
}

// The passes of a step through the stages. A pass takes the positions of all rows of a step; it is cut into parts of at most
// `CHUNK` positions, and where a row's planned snapshot lies.

impl Hnet {
    /// Runs the vectors of an inner stage through it and the stages inside it. Outputs replace `stages[0].x`, (positions, D).
    fn run_stage(
        &self,
        stage: usize,
        rows: &mut [SequenceRow],
        stages: &mut [StageWork],
        pass: &mut PassWork,
    ) -> Result<()> {
        let Some((own, inner)) = stages.split_first_mut() else {
            return Err(Error::Internal(format!("no buffers for stage {stage}")));
        };
        // the stack of a stage in is its encoder, or the main stack
        self.run_stack(stage, stage, rows, own, pass)?; // (positions, D)
        let Some(next) = inner.first_mut() else { return Ok(()) };
        self.route(stage, rows, own, pass)?;
        next.positions.clear();
        next.symbols.clear();
        next.x.clear();
        let dim = self.dim(stage);
        for (row, &Position { sequence, .. }) in own.positions.iter().enumerate() {
            if begins_chunk(own.probabilities[row]) {
                let index = match next.positions.last() {
                    Some(last) if last.sequence == sequence => last.index + 1,
                    _ => state(rows, sequence)?.stacks[stage + 1].cache.len(),
                };
                next.positions.push(Position { sequence, index });
                self.push_padded(stage + 1, &own.x[row * dim..][..dim], &mut next.x);
                next.symbols.push(own.symbols[row]);
                if let Some(symbol) = own.symbols[row] {
                    rows[sequence].decisions[symbol].depth += 1;
                    let state = state(rows, sequence)?;
                    let held = state.ready + symbol - state.start;
                    state.history[held].depth += 1;
                }
            }
        }
        if !next.positions.is_empty() {
            self.run_stage(stage + 1, rows, inner, pass)?;
        }
        let inner_dim = self.dim(stage + 1);
        let mut outputs = inner.iter().take(1).flat_map(|next| next.x.chunks_exact(inner_dim));
        for (row, position) in own.positions.iter().enumerate() {
            let probability = own.probabilities[row];
            let output = if begins_chunk(probability) { outputs.next().map(|output| &output[..dim]) } else { None };
            let average = self.average(stage, state(rows, position.sequence)?, position.index, probability, output);
            let x = &mut own.x[row * dim..][..dim];
            for ((x, average), residual) in x.iter_mut().zip(average).zip(&own.residual[row * dim..][..dim]) {
                *x = average + residual;
            }
        }
        self.run_stack(self.decoder(stage), stage, rows, own, pass) // (positions, D)
    }

    /// Appends a vector of the stage around `stage`, with this stage's padding, to `out`.
    fn push_padded(&self, stage: usize, vector: &[f32], out: &mut Vec<f32>) {
        out.extend_from_slice(vector);
        out.extend_from_slice(&self.padding[stage]);
    }

    /// Returns the moving average at a position, after the chunk with that output if one begins there.
    fn average<'a>(
        &self,
        stage: usize,
        state: &'a mut HnetState,
        index: usize,
        probability: f32,
        output: Option<&[f32]>,
    ) -> &'a [f32] {
        let average = &mut state.levels[stage].average;
        if let Some(plan) = &mut state.flight.plan
            && plan.stages[stage] == Some(index)
        {
            plan.averages[stage] = Some(average.clone());
        }
        if let Some(output) = output {
            move_average(average, probability, output);
        }
        average
    }

    /// Computes residuals and boundary probabilities of the encoder's outputs, and moves the routers' queries on.
    fn route(&self, stage: usize, rows: &mut [SequenceRow], own: &mut StageWork, pass: &mut PassWork) -> Result<()> {
        let chunking = &self.chunking[stage];
        let residual = sized(&mut own.residual, own.x.len());
        chunking.residual.apply(&self.compute, &own.x, Epilogue::None, &mut pass.quantized, residual); // (positions, D)
        chunking.router.project(&self.compute, &own.x, &mut pass.router); // (positions, D), twice
        let dim = self.dim(stage);
        own.probabilities.clear();
        // chunks that begin in this pass, in the sequence of the present position
        let mut begun = 0;
        let mut last = None;
        for (row, &Position { sequence, index }) in own.positions.iter().enumerate() {
            if last != Some(sequence) {
                begun = 0;
                last = Some(sequence);
            }
            let state = state(rows, sequence)?;
            let query = &mut state.levels[stage].query;
            if let Some(plan) = &mut state.flight.plan
                && plan.stages[stage] == Some(index)
            {
                plan.queries[stage] = Some(query.clone());
                plan.stages[stage + 1] = Some(state.stacks[stage + 1].cache.len() + begun);
            }
            let probability = boundary_probability(&pass.router, row, query);
            own.probabilities.push(probability);
            begun += usize::from(begins_chunk(probability));
            query.clear();
            query.extend_from_slice(pass.router.query(row, dim));
        }
        Ok(())
    }

    /// Runs the vectors of a stage, (positions, D), through one of its stacks, in place.
    fn run_stack(
        &self,
        index: usize,
        stage: usize,
        rows: &mut [SequenceRow],
        own: &mut StageWork,
        pass: &mut PassWork,
    ) -> Result<()> {
        let dim = self.dim(stage);
        let mut from = 0;
        while from < own.positions.len() {
            let rest = &own.positions[from..];
            let mut count = rest.len().min(CHUNK);
            for (offset, &Position { sequence, index }) in rest[..count].iter().enumerate().skip(1) {
                let plan = &state(rows, sequence)?.flight.plan;
                if plan.as_ref().is_some_and(|plan| plan.stages[stage] == Some(index)) {
                    count = offset;
                    break;
                }
            }
            self.run_part(index, stage, rows, &rest[..count], &mut own.x[from * dim..(from + count) * dim], pass)?;
            from += count;
        }
        Ok(())
    }

    /// Runs a part of a pass, which no planned snapshot divides.
    fn run_part(
        &self,
        index: usize,
        stage: usize,
        rows: &mut [SequenceRow],
        positions: &[Position],
        x: &mut [f32],
        pass: &mut PassWork,
    ) -> Result<()> {
        let stack = &self.stacks[index];
        pass.pages.clear();
        let runs = || positions.chunk_by(|a, b| a.sequence == b.sequence);
        for run in runs() {
            let Position { sequence, index: first } = run[0];
            let state = state(rows, sequence)?;
            if let Some(plan) = &mut state.flight.plan {
                plan.take_stack(index, stage, &state.stacks[index]);
            }
            let kept = match &state.flight.plan {
                Some(plan) if !state.can_rewind_feed => plan.stages[stage].unwrap_or(first).min(first),
                _ => state.kept_from(index),
            };
            let StackState { cache, memory } = &mut state.stacks[index];
            if stack.layout.layers > 0 {
                cache.free_before(stack.window.first_key(kept));
                cache.reserve(run.len())?;
            }
            pass.pages.push(memory.take()?);
        }
        let mut recurrent = Vec::with_capacity(pass.pages.len());
        let mut first = 0;
        for (run, page) in runs().zip(&mut pass.pages) {
            recurrent.push(RecurrentRun { memory: mamba2::recurrent_numbers(page)?, first, count: run.len() });
            first += run.len();
        }
        let caches = &mut StackCaches { rows, stack: index };
        stack.forward(&self.compute, x, positions, caches, &mut recurrent, &mut pass.hybrid)?; // (positions, D)
        drop(recurrent);
        for (run, page) in runs().zip(pass.pages.drain(..)) {
            let stack = &mut state(rows, run[0].sequence)?.stacks[index];
            stack.memory.put(page);
            stack.cache.advance(run.len());
        }
        Ok(())
    }
}

// Loading: tensors in the names of docs/checkpoints.md, and the model that they make.

pub(crate) fn read(config: &Config, file: &Path) -> Result<Box<dyn Blueprint>> {
    let architecture: Architecture = checkpoint::architecture(config, file)?;
    let vocabulary = config.vocabulary(file)?;
    let expected = "nothing: an H-Net has no segment marks";
    require(vocabulary.specials().is_none(), file, "vocabulary.specials", expected, "special symbols")?;
    let expected = "the mark before a text, as there is an `end`";
    require(vocabulary.end_byte().is_none(), file, "vocabulary.start", expected, "nothing")?;
    let mut blueprint = HnetBlueprint::new(architecture, vocabulary.len(), file)?;
    blueprint.beginnings = beginnings(&vocabulary, blueprint.levels(), blueprint.architecture.stages[0].dim);
    Ok(Box::new(blueprint))
}

impl Blueprint for HnetBlueprint {
    fn tensors(&self) -> Vec<TensorSpec> {
        let a = &self.architecture;
        let mut out = vec![self.embedding()];
        for (index, stage) in a.stages.iter().enumerate() {
            let key = |name: &str| format!("stages.{index}.{name}");
            if self.padding(index) > 0 {
                out.push(TensorSpec::zeros(key("padding"), vec![self.padding(index)]));
            }
            if index < self.levels() {
                // the query reads the column that is the same for all symbols, the key the marks of its level
                out.push(self.router("query", index, self.beginnings.len()));
                out.push(self.router("key", index, index));
                linear(&mut out, &key("residual"), stage.dim, stage.dim);
            }
        }
        for stack in &self.stacks {
            stack_tensors(&mut out, stack, &a.stages[stack.stage]);
        }
        if !a.tied {
            out.push(matrix("head.weight", vec![self.symbols, a.stages[0].dim]));
        }
        out
    }

    fn shape(&self) -> String {
        let stages = self.architecture.stages.iter().map(|stage| {
            let layers = [&stage.encoder, &stage.main, &stage.decoder].into_iter().flatten();
            let layers: Vec<_> = layers.map(String::as_str).collect();
            format!("{} × {}", layers.join("+"), stage.dim)
        });
        let stages: Vec<_> = stages.collect();
        let levels = self.levels();
        let unit = if levels == 1 { "level" } else { "levels" };
        format!("{}, {levels} {unit} of dynamic chunking", stages.join(", "))
    }

    fn build(&self, mut parts: Parts) -> Result<Arc<dyn Model>> {
        let mut card = parts.card("hnet", self)?;
        card.pooled = true;
        card.begins_chunks = true;
        card.boundary_modes = vec![BoundaryMode::Threshold];
        let a = &self.architecture;
        let mut builder = Builder {
            blueprint: self,
            tensors: Tensors::new(&mut parts.weights, a.norm_eps, parts.settings.dtype),
            exact: WeightArena::new(Dtype::F32),
            positions: card.max_symbols,
        };
        let mut padding = Vec::new();
        for stage in 0..a.stages.len() {
            padding.push(match self.padding(stage) {
                0 => Vec::new(),
                _ => builder.tensors.weights.take(&format!("stages.{stage}.padding"))?,
            });
        }
        let stacks = self.stacks.iter().map(|stack| builder.stack(stack)).collect::<Result<Vec<_>>>()?;
        let chunking = (0..self.levels()).map(|stage| builder.chunking(stage)).collect::<Result<Vec<_>>>()?;
        let embedding = builder.tensors.weight("embedding")?;
        let head = builder.tensors.head(a.tied.then_some(&embedding), "head", a.stages[0].dim)?;
        let compute = parts.settings.compute();
        let pages = PagePool::new(parts.settings.memory_bytes);
        Ok(Arc::new(Hnet { card, compute, embedding, padding, stacks, chunking, head, pages }))
    }
}

fn rms(name: impl Into<String>, dim: usize) -> TensorSpec {
    TensorSpec::normal(name, vec![dim], 1.0, 0.02)
}

fn stack_tensors(out: &mut Vec<TensorSpec>, stack: &StackConfig, stage: &StageConfig) {
    let StageConfig { dim, feed_forward, conv_width, .. } = *stage;
    let heads = stage.inner() / HEAD;
    for (index, layer) in stack.layers.iter().enumerate() {
        let key = |name: &str| format!("stages.{}.{}.{index}.{name}", stack.stage, stack.name);
        out.push(rms(key("norm.weight"), dim));
        if layer.attention {
            out.push(matrix(key("attention.qkv.weight"), vec![3 * dim, dim]));
            out.push(matrix(key("attention.output.weight"), vec![dim, dim]));
        } else {
            let channels = stage.channels();
            out.push(matrix(key("mamba.gate.weight"), vec![stage.inner(), dim]));
            out.push(matrix(key("mamba.input.weight"), vec![channels + heads, dim]));
            out.push(TensorSpec::normal(key("mamba.convolution.weight"), vec![conv_width, channels], 0.0, 0.3));
            out.push(TensorSpec::zeros(key("mamba.convolution.bias"), vec![channels]));
            // softplus(−4) ≈ 0.018; the official draw is between 0.001 and 0.1
            out.push(TensorSpec::normal(key("mamba.step_bias"), vec![heads], -4.0, 1.0));
            let logs = (0..heads).map(|head| (1.0 + 15.0 * head as f32 / heads as f32).ln()).collect();
            let name = key("mamba.log_rate");
            out.push(TensorSpec { init: Init::Values(logs), ..TensorSpec::zeros(name, vec![heads]) });
            out.push(TensorSpec::normal(key("mamba.skip"), vec![heads], 1.0, 0.0));
            out.push(rms(key("mamba.norm.weight"), stage.inner()));
            out.push(matrix(key("mamba.output.weight"), vec![dim, stage.inner()]));
        }
        if layer.feed_forward {
            out.push(rms(key("feed_forward.norm.weight"), dim));
            out.push(matrix(key("feed_forward.up.weight"), vec![feed_forward, dim]));
            out.push(matrix(key("feed_forward.gate.weight"), vec![feed_forward, dim]));
            out.push(matrix(key("feed_forward.down.weight"), vec![dim, feed_forward]));
        }
    }
    out.push(rms(format!("stages.{}.{}.norm.weight", stack.stage, stack.name), dim));
}

struct Builder<'a> {
    blueprint: &'a HnetBlueprint,
    tensors: Tensors<'a>,
    /// Matrices that stay f32, as the official code keeps them.
    exact: WeightArena,
    positions: usize,
}

impl Builder<'_> {
    fn chunking(&mut self, stage: usize) -> Result<ChunkingStage> {
        let dim = self.blueprint.architecture.stages[stage].dim;
        let key = |name: &str| format!("stages.{stage}.{name}");
        let query = self.tensors.matrix(&[key("router.query")], dim)?;
        let key_matrix = self.tensors.matrix(&[key("router.key")], dim)?;
        let (weight, bias) = self.tensors.weight_and_bias(key("residual"))?;
        let residual = Linear::pack(&self.exact, &weight, &bias, dim, dim)?;
        Ok(ChunkingStage { router: Router { query, key: key_matrix }, residual })
    }

    fn stack(&mut self, stack: &StackConfig) -> Result<HybridStack> {
        let stage = self.blueprint.architecture.stages[stack.stage].clone();
        let prefix = format!("stages.{}.{}", stack.stage, stack.name);
        let mut layers = Vec::with_capacity(stack.layers.len());
        for (index, kind) in stack.layers.iter().enumerate() {
            let key = |name: &str| format!("{prefix}.{index}.{name}");
            let norm = self.tensors.rms_norm(key("norm"))?;
            let mixer = match kind.attention {
                true => Mixer::Attention {
                    qkv: self.tensors.matrix(&[key("attention.qkv")], stage.dim)?,
                    output: self.tensors.matrix(&[key("attention.output")], stage.dim)?,
                },
                false => Mixer::Mamba2(Box::new(self.mamba2(&key("mamba"), &stage)?)),
            };
            let feed_forward = match kind.feed_forward {
                true => Some(FeedForward {
                    norm: self.tensors.rms_norm(key("feed_forward.norm"))?,
                    activation: Activation::Silu,
                    up: self.tensors.matrix(&[key("feed_forward.up")], stage.dim)?,
                    gate: Some(self.tensors.matrix(&[key("feed_forward.gate")], stage.dim)?),
                    down: self.tensors.matrix(&[key("feed_forward.down")], stage.feed_forward)?,
                }),
                false => None,
            };
            layers.push(HybridLayer { norm, mixer, feed_forward });
        }
        let norm = Some(self.tensors.rms_norm(format_args!("{prefix}.norm"))?);
        let attending = stack.layers.iter().filter(|layer| layer.attention).count();
        let heads = stage.heads.max(1);
        let layout = PageLayout {
            dtype: self.tensors.store.dtype().cache_dtype(),
            layers: attending,
            heads,
            head_dim: stage.dim / heads,
            output: 0,
        };
        let position = match (attending, stage.rotary_dim) {
            (0, _) | (_, 0) => PositionScheme::None,
            (_, dim) => {
                PositionScheme::Rotary(Rotary::new(dim, ROTARY_BASE, None, stage.window.max_keys(), self.positions))
            }
        };
        Ok(HybridStack { dim: stage.dim, layers, norm, position, window: stage.window, layout })
    }

    fn mamba2(&mut self, prefix: &str, stage: &StageConfig) -> Result<Mamba2> {
        let key = |name: &str| format!("{prefix}.{name}");
        let tensors = &mut self.tensors;
        let rates = tensors.weights.take(&key("log_rate"))?;
        let (weight, bias) = tensors.weight_and_bias(key("convolution"))?;
        Ok(Mamba2 {
            gate: tensors.matrix(&[key("gate")], stage.dim)?,
            input: tensors.matrix(&[key("input")], stage.dim)?,
            taps: Taps { weight, bias },
            step_bias: tensors.weights.take(&key("step_bias"))?,
            rates: rates.into_iter().map(|log| -log.exp()).collect(),
            skip: tensors.weights.take(&key("skip"))?,
            norm: tensors.rms_norm(key("norm"))?,
            output: tensors.matrix(&[key("output")], stage.inner())?,
        })
    }
}

// Random weights whose chunks are as long as trained models', so that benchmarks run the inner stages as often: the two
// outermost routers cut English at fixed letters. The embedding marks these letters in a column for each level, and has one
// column that is the same for all symbols; the router's query reads the latter, its key the former.

/// Letters with which a chunk begins, by level, in models with one level and with more.
const ONE_LEVEL: &[&str] = &[" "];

const SEVERAL_LEVELS: &[&str] = &[" tol", "tl"];

/// Size of the embedding's marks, well above what the layers of an encoder add to them.
const MARK: f32 = 16.0;

/// Standard deviation of the embedding's other numbers.
const EMBEDDING: f32 = 1.0;

/// Norm of a router's column that reads a mark, well above the norm of its random product.
const PULL: f32 = 20.0;

/// Standard deviation of a router's other numbers.
const ROUTER: f32 = 0.02;

/// Returns for each level the symbols with which its chunks begin. Empty if the vocabulary or the embedding cannot mark them.
fn beginnings(vocabulary: &Vocabulary, levels: usize, dim: usize) -> Vec<Vec<u32>> {
    let letters = if levels == 1 { ONE_LEVEL } else { SEVERAL_LEVELS };
    let ids = |letters: &&str| letters.chars().map(|letter| vocabulary.id_of(letter)).collect::<Option<Vec<u32>>>();
    let all: Option<Vec<_>> = letters.iter().map(ids).collect();
    all.filter(|all| all.len() < dim).unwrap_or_default()
}

impl HnetBlueprint {
    /// Returns the embedding with the marks of the symbols that begin chunks.
    fn embedding(&self) -> TensorSpec {
        let shape = vec![self.symbols, self.architecture.stages[0].dim];
        let sign = |begins: bool| if begins { -MARK } else { MARK };
        let level = |begin: &Vec<u32>| (0..self.symbols as u32).map(|symbol| sign(begin.contains(&symbol))).collect();
        let mut columns: Vec<Vec<f32>> = self.beginnings.iter().map(level).collect();
        columns.push(vec![MARK; self.symbols]);
        let columns = (0..).zip(columns).map(|(index, values)| Column { index, values }).collect();
        TensorSpec { init: Init::Columns(EMBEDDING, columns), ..TensorSpec::zeros("embedding.weight", shape) }
    }

    /// Returns the query or the key of a level's router, which reads the column `index`.
    fn router(&self, name: &str, level: usize, index: usize) -> TensorSpec {
        let dim = self.architecture.stages[level].dim;
        let reads = level < self.beginnings.len();
        let column = || Column { index, values: vec![PULL / (dim as f32).sqrt(); dim] };
        let name = format!("stages.{level}.router.{name}.weight");
        let init = Init::Columns(ROUTER, reads.then(column).into_iter().collect());
        TensorSpec { init, ..TensorSpec::zeros(name, vec![dim, dim]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_letters_with_counts() {
        let mixer = |attention, feed_forward| LayerKind { attention, feed_forward };
        let expected = vec![mixer(true, true), mixer(false, false), mixer(false, false), mixer(false, true)];
        assert_eq!(parse_layers("T1m2M1t0"), Ok(expected));
        assert_eq!(parse_layers(""), Ok(Vec::new()));
        for wrong in ["m", "4", "x1", "m4 T1", "m4T", "m-1", "m99999999999999999999", "m1025", "é1"] {
            assert_eq!(parse_layers(wrong), Err(format!("{wrong:?}")));
        }
    }
}
