//! The Byte Latent Transformer (Pagnoni et al. 2024, arXiv 2412.09871), as Hugging Face's transformers 5.24 computes it without a
//! cache.
//!
//! patcher → entropies → patches; bytes and n-grams → encoder → patch vectors → global transformer → decoder → logits.
//!
//! A patch ends with each symbol after which the patcher, a small decoder of its own, is uncertain about the next one. The
//! decoder's cross-attention reads the vectors of the latest closed patch only. In reading order: [`Architecture`]; the rows of
//! n-grams; [`BltState`], one sequence; [`Work`], a thread's buffers; [`Blt`], the weights and the three steps; loading.

use crate::checkpoint::row_table::RowTable;
use crate::checkpoint::{self, Config, require};
use crate::contract::{
    BoundaryOptions, Card, Cost, KvMemory, MAX_THRESHOLD, Model, PageUse, Scratch, SequenceRow, State, StepCost,
    StepStatus, SymbolBoundary, check_mode, state_mut, state_ref,
};
use crate::family::hourglass::{RecentSymbols, SegmentEnds};
use crate::family::parts::{
    self, Batch, Check, HeadWork, StackCaches, StackOf, Tensors, Watcher, check_rollback, watch, with_status, work_mut,
};
use crate::family::t5_layers::{matrix, norm};
use crate::family::{Blueprint, Parts, TensorSpec};
use crate::nn::attention::FeedForward;
use crate::nn::kv_cache::KvCache;
use crate::nn::mamba2::{HybridLayer, HybridStack, HybridWork, Mixer};
use crate::nn::position::{PositionScheme, RoundedRotary};
use crate::nn::window::{CHUNK, ROLLBACK, Window};
use crate::nn::{Activation, ConfigError, Position, sized};
use serde::Deserialize;
use std::{ops::Range, path::Path, sync::Arc};
use weir_kernels::attention::{POSITIONS, PageLayout};
use weir_kernels::distribution::entropy;
use weir_kernels::error::{Error, Result};
use weir_kernels::linear::{Epilogue, Linear, QuantizedRows, WeightArena};
use weir_kernels::pages::PagePool;
use weir_kernels::rowwise::{RmsNorm, rms_norm};
use weir_kernels::{Compute, Dtype};

/// The `architecture` in `config.json`. E = width of encoder and decoder, P = patcher's, G = global transformer's, k =
/// `patch_vectors`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Architecture {
    /// The decoder whose entropies place boundaries.
    pub patcher: BltStack,
    /// Reads symbols.
    pub encoder: BltStack,
    /// Reads patches.
    pub global: BltStack,
    /// Reads symbols and the latest closed patch.
    pub decoder: BltStack,
    /// Vectors of width E that stand for a patch.
    pub patch_vectors: usize,
    /// True if each layer of the decoder reads the patch; else the first one alone.
    pub cross_every_layer: bool,
    /// Embeddings of n-grams, if the model has them.
    pub ngrams: Option<HashedNgrams>,
    /// A patch ends with a symbol after which the entropy, in nats, is above this.
    pub threshold: f32,
    /// Maximum symbols of a patch, if it has one.
    pub max_patch: Option<usize>,
    /// True if the head is the encoder's embedding.
    pub tied: bool,
}

/// One of the four stacks: norms before the sub-layers, rotary positions, gated feed-forwards.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BltStack {
    /// Layers.
    pub layers: usize,
    /// Width D.
    pub dim: usize,
    /// Attention heads H.
    pub heads: usize,
    /// Heads of keys and values, which divide H.
    pub kv_heads: usize,
    /// Inner width F of the feed-forward.
    pub feed_forward: usize,
    /// Base of the rotations' angles.
    pub rotary_base: f64,
    /// Added to the mean square in every norm.
    pub norm_eps: f32,
    /// Positions that a position attends to.
    pub window: Window,
}

impl BltStack {
    /// Width of a head.
    pub fn head_dim(&self) -> usize {
        self.dim / self.heads
    }

    fn validate(&self, name: &str, check: Check<'_>) -> Result<()> {
        let key = |key: &str| format!("{name}.{key}");
        let Self { dim, heads, kv_heads, .. } = *self;
        check.layers(key("layers"), self.layers)?;
        let dims = [("dim", dim), ("heads", heads), ("kv_heads", kv_heads), ("feed_forward", self.feed_forward)];
        dims.into_iter().try_for_each(|(name, dim)| check.dim(key(name), dim))?;
        check.require(
            dim % heads == 0 && dim / heads % 2 == 0,
            key("heads"),
            format!("a divisor of {dim}, the width, that leaves heads of an even width"),
            heads,
        )?;
        check.require(heads % kv_heads == 0, key("kv_heads"), format!("a divisor of {heads}, the heads"), kv_heads)?;
        check.require((1.0..=1e12).contains(&self.rotary_base), key("rotary_base"), "1 to 1e12", self.rotary_base)?;
        check.fraction(key("norm_eps"), self.norm_eps)?;
        let error =
            |ConfigError { key: own, expected, found }| check.fail(key(&format!("window.{own}")), expected, found);
        match self.window {
            Window::Blockwise { length } => {
                check.fail(key("window"), "full or sliding", format!("blocks of {}", length / 2))
            }
            window => window.validate().or_else(error),
        }
    }

    fn tensors(&self, name: &str, out: &mut Vec<TensorSpec>) {
        let Self { dim, kv_heads, feed_forward, .. } = *self;
        let keys = kv_heads * self.head_dim();
        for index in 0..self.layers {
            let key = |part: &str| format!("{name}.{index}.{part}");
            out.push(norm(key("attention.norm"), dim));
            out.push(matrix(key("attention.query"), dim, dim));
            out.push(matrix(key("attention.key"), keys, dim));
            out.push(matrix(key("attention.value"), keys, dim));
            out.push(matrix(key("attention.output"), dim, dim));
            out.push(norm(key("feed_forward.norm"), dim));
            out.push(matrix(key("feed_forward.gate"), feed_forward, dim));
            out.push(matrix(key("feed_forward.up"), feed_forward, dim));
            out.push(matrix(key("feed_forward.down"), dim, feed_forward));
        }
    }

    /// Appends the tensors of a cross-attention with this stack's heads.
    fn cross_tensors(&self, name: &str, out: &mut Vec<TensorSpec>) {
        let dim = self.dim;
        let keys = self.kv_heads * self.head_dim();
        let key = |part: &str| format!("{name}.{part}");
        out.push(norm(key("query_norm"), dim));
        out.push(norm(key("key_norm"), dim));
        out.push(matrix(key("query"), dim, dim));
        out.push(matrix(key("key"), keys, dim));
        out.push(matrix(key("value"), keys, dim));
        out.push(matrix(key("output"), dim, dim));
    }
}

/// `ngrams` of an architecture: a symbol also gets, for each function and size, the row of the n-gram that ends with it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HashedNgrams {
    /// The lengths n of the n-grams.
    pub sizes: Vec<usize>,
    /// Number of hash functions.
    pub functions: usize,
    /// Rows of each function and size.
    pub rows: usize,
}

/// Maximum sizes, functions, and n.
const MAX_NGRAMS: usize = 64;

/// Maximum rows of a function and size.
const MAX_ROWS: usize = 1 << 30;

/// Maximum of [`Architecture::max_patch`].
const MAX_PATCH: usize = 1 << 24;

/// Maximum symbols of a patch of a request that sets another threshold than the model's: all of them are kept until it closes.
pub const MAX_REQUESTED_PATCH: usize = 4096;

/// Maximum of [`Architecture::patch_vectors`].
const MAX_PATCH_VECTORS: usize = 64;

impl HashedNgrams {
    fn validate(&self, check: Check<'_>) -> Result<()> {
        let sizes = format!("1 to {MAX_NGRAMS} sizes from 1 to {MAX_NGRAMS}");
        let valid = (1..=MAX_NGRAMS).contains(&self.sizes.len())
            && self.sizes.iter().all(|size| (1..=MAX_NGRAMS).contains(size));
        check.require(valid, "ngrams.sizes", sizes, format!("{:?}", self.sizes))?;
        check.range("ngrams.functions", self.functions, 1..=MAX_NGRAMS)?;
        check.range("ngrams.rows", self.rows, 1..=MAX_ROWS)
    }

    /// Rows that a symbol gets.
    pub fn tables(&self) -> usize {
        self.functions * self.sizes.len()
    }

    fn largest(&self) -> usize {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// Appends to `rows` the row of each n-gram that ends at a position, functions outer, sizes inner. `newest_first` yields the
    /// symbols from that position backwards, and 0 before the text.
    pub fn rows_at(&self, newest_first: impl Iterator<Item = u32> + Clone, rows: &mut Vec<usize>) {
        for (function, prime) in PRIMES.iter().cycle().enumerate().take(self.functions) {
            for (index, &size) in self.sizes.iter().enumerate() {
                // Σ a_i · prime^i with the oldest symbol first, in wrapping signed arithmetic
                let hash = newest_first
                    .clone()
                    .take(size)
                    .fold(0_i64, |hash, id| hash.wrapping_mul(*prime).wrapping_add(i64::from(id)));
                let table = function * self.sizes.len() + index;
                rows.push(table * self.rows + hash.rem_euclid(self.rows as i64) as usize);
            }
        }
    }
}

/// The official primes, one for each hash function; they repeat after the last.
const PRIMES: [i64; 11] = [
    1_000_000_007,
    5_915_587_277,
    1_500_450_271,
    3_267_000_013,
    5_754_853_343,
    4_093_082_899,
    9_576_890_767,
    3_628_273_133,
    2_860_486_313,
    5_463_458_053,
    3_367_900_313,
];

/// A validated Byte Latent Transformer.
#[derive(Debug, Clone)]
pub struct BltBlueprint {
    /// The validated architecture.
    pub architecture: Architecture,
    /// Vocabulary size V.
    pub symbols: usize,
}

impl BltBlueprint {
    /// The four stacks with their names.
    pub fn stacks(&self) -> [(&'static str, &BltStack); 4] {
        let a = &self.architecture;
        [("patcher", &a.patcher), ("encoder", &a.encoder), ("global", &a.global), ("decoder", &a.decoder)]
    }

    /// Width k·E of a patch between encoder and global transformer, and between that and the decoder.
    fn patch_width(&self) -> usize {
        self.architecture.patch_vectors * self.architecture.encoder.dim
    }

    /// Layers of the decoder that read the patch.
    fn crosses(&self) -> usize {
        if self.architecture.cross_every_layer { self.architecture.decoder.layers } else { 1 }
    }

    fn validate(&self, file: &Path) -> Result<()> {
        let a = &self.architecture;
        let check = Check { file };
        self.stacks().into_iter().try_for_each(|(name, stack)| stack.validate(name, check))?;
        let dim = a.encoder.dim;
        check.require(a.decoder.dim == dim, "decoder.dim", format!("{dim}, the encoder's"), a.decoder.dim)?;
        let window = a.global.window;
        check.require(window == Window::Full, "global.window", "full", window.describe())?;
        check.range("patch_vectors", a.patch_vectors, 1..=MAX_PATCH_VECTORS)?;
        if let Some(ngrams) = &a.ngrams {
            ngrams.validate(check)?;
            // both factors of each product are checked
            check.parameters("ngrams.rows", (ngrams.tables() * ngrams.rows).checked_mul(dim))?;
        }
        let valid = (0.0..=MAX_THRESHOLD).contains(&a.threshold);
        check.require(valid, "threshold", format!("0 to {MAX_THRESHOLD}, in nats"), a.threshold)?;
        a.max_patch.map_or(Ok(()), |longest| check.range("max_patch", longest, 1..=MAX_PATCH))?;
        check.tensors("global.dim", &self.tensors())
    }
}

// All progress of a sequence follows from its caches and patch ends: a row waits while `global` is behind `patch_ends`, and is
// unfinished while `finished` is behind `encoder`. So a fork is a clone, and a rollback truncates. The encoder's cache keeps its
// outputs back to the start of the open patch, from which the patch's vectors are computed when it closes.

/// One sequence. E = width of encoder and decoder, k = vectors of a patch.
pub struct BltState {
    /// The symbols that n-grams of later ones read.
    pub recent: RecentSymbols,
    /// The patcher.
    pub patcher: KvCache,
    /// The encoder, with its outputs.
    pub encoder: KvCache,
    /// The global transformer: position m is patch m; with its outputs, from which the decoder's keys follow.
    pub global: KvCache,
    /// The decoder.
    pub decoder: KvCache,
    /// Windows of patcher, encoder and decoder.
    windows: LocalWindows,
    /// Last position of each closed patch.
    pub patch_ends: SegmentEnds,
    /// Symbols that have had their finish step; later ones are in flight.
    pub finished: usize,
    /// The encoder's outputs at the symbols in flight, and then the decoder's: (symbols, E).
    hidden: Vec<f32>,
    /// Width k·E of a patch's vectors.
    patch_width: usize,
    /// Vectors of the patches that symbols in flight closed: (patches, k·E).
    closed_vectors: Vec<f32>,
    /// The next patch without vectors, if it is long and was partly read.
    long: LongPatch,
    /// The decoder's keys and values of a closed patch.
    context: PatchContext,
    /// A patch ends with a symbol after which the entropy is above this.
    threshold: f32,
    /// Maximum symbols of a patch, if it has one.
    max_patch: Option<usize>,
}

/// Windows of the stacks that read symbols.
#[derive(Debug, Clone, Copy)]
struct LocalWindows {
    patcher: Window,
    encoder: Window,
    decoder: Window,
}

/// A closed patch that several steps read: first the maximum of its symbols, then attention to them.
#[derive(Default)]
struct LongPatch {
    /// Symbols in `maximum`, the maximum of the encoder's outputs: (E).
    compared: usize,
    maximum: Vec<f32>,
    /// Symbols in `mixed` and `sums`, which are as in [`ClosingWork`] for one patch.
    attended: usize,
    mixed: Vec<f32>,
    sums: Vec<SoftmaxSum>,
}

/// Keys and values of one patch, for each cross-attention of the decoder. Computed from the global transformer's output, so a
/// state may lack it.
#[derive(Default)]
struct PatchContext {
    patch: Option<usize>,
    /// (crosses, k, 2·E)
    rows: Vec<f32>,
}

impl BltState {
    fn is_ready(&self) -> bool {
        self.finished == self.encoder.len()
    }

    fn waiting_patches(&self) -> usize {
        self.patch_ends.len().saturating_sub(self.global.len())
    }

    /// The closed patches whose vectors are not known.
    fn patches_without_vectors(&self) -> Range<usize> {
        self.global.len() + self.closed_vectors.len() / self.patch_width..self.patch_ends.len()
    }

    /// Clears the vectors of the last feed, and drops symbols and patch ends that no later step needs.
    fn start_feed(&mut self) {
        self.hidden.clear();
        self.closed_vectors.clear();
        let earliest = self.earliest();
        self.recent.drop_before(earliest);
        if self.patch_ends.is_full() {
            // the end before the first needed patch is where that one starts
            let needed = self.patch_ends.count_before(self.encoder.start());
            self.patch_ends.drop_before(needed.saturating_sub(2));
        }
    }

    /// Makes room for `more` symbols in the encoder's cache. It keeps the outputs of patches without vectors, and of the patch that
    /// is open after any rollback.
    fn reserve_encoder(&mut self, more: usize) -> Result<()> {
        let len = self.encoder.len();
        let open = self.patch_ends.count_before(len.saturating_sub(ROLLBACK)).min(self.patches_without_vectors().start);
        let start = self.patch_ends.start(open).unwrap_or(0);
        self.encoder.free_before(self.windows.encoder.first_kept(len).min(start));
        self.encoder.reserve(more)
    }

    /// The shortest length at which the cache has all of the encoder's outputs of the open patch.
    fn earliest_open_patch(&self) -> usize {
        let start = self.encoder.start();
        if start == 0 {
            return 0;
        }
        let patch = self.patch_ends.count_before(start);
        match self.patch_ends.start(patch) {
            Some(own) if own >= start => own,
            _ => self.patch_ends.end(patch).map_or(self.encoder.len(), |end| end + 1),
        }
    }

    fn truncate(&mut self, len: usize) {
        self.recent.truncate(len);
        self.patch_ends.truncate(len);
        self.patcher.truncate(len);
        self.encoder.truncate(len);
        self.global.truncate(self.patch_ends.len());
        self.decoder.truncate(len);
        self.finished = self.finished.min(len);
        self.hidden.clear();
        self.closed_vectors.clear();
        self.long = LongPatch::default();
        self.context.patch = self.context.patch.filter(|&patch| patch < self.patch_ends.len());
    }

    fn caches(&self) -> [&KvCache; 4] {
        [&self.patcher, &self.encoder, &self.global, &self.decoder]
    }
}

impl State for BltState {
    fn len(&self) -> usize {
        self.encoder.len()
    }

    fn segments(&self) -> usize {
        self.patch_ends.len()
    }

    fn fork(&self) -> Box<dyn State> {
        // if the windows have moved past the start of the feed, only an empty sequence is left
        let target = if self.finished < self.earliest() { 0 } else { self.finished };
        let mut fork = Self {
            recent: self.recent.clone(),
            patcher: self.patcher.clone(),
            encoder: self.encoder.clone(),
            global: self.global.clone(),
            decoder: self.decoder.clone(),
            patch_ends: self.patch_ends.clone(),
            hidden: Vec::new(),
            closed_vectors: Vec::new(),
            long: LongPatch::default(),
            context: PatchContext::default(),
            ..*self
        };
        fork.truncate(target);
        Box::new(fork)
    }

    fn rollback(&mut self, len: usize) -> Result<()> {
        check_rollback(self, self.is_ready(), len)?;
        self.truncate(len);
        Ok(())
    }

    fn cut(&mut self, len: usize) -> Result<()> {
        let Self { finished, .. } = *self;
        let in_flight = self.len() - finished;
        let kept = len.saturating_sub(finished);
        let global_ran = self.waiting_patches() == 0 && !self.closed_vectors.is_empty();
        if !(1..=in_flight).contains(&kept) || global_ran || len < self.earliest() {
            return Err(Error::Internal(format!(
                "cannot cut at {len} of {finished} and {in_flight} symbols in flight"
            )));
        }
        self.recent.truncate(len);
        self.patcher.truncate(len);
        self.encoder.truncate(len);
        self.patch_ends.truncate(len);
        self.closed_vectors.truncate(self.waiting_patches() * self.patch_width);
        self.long = LongPatch::default();
        self.hidden.truncate(self.hidden.len() / in_flight * kept);
        Ok(())
    }

    fn earliest(&self) -> usize {
        let LocalWindows { patcher, encoder, decoder } = self.windows;
        let stacks = [(patcher, &self.patcher), (encoder, &self.encoder), (decoder, &self.decoder)];
        let windows = stacks.into_iter().map(|(window, cache)| window.earliest_rollback(cache.start()));
        windows.fold(self.earliest_open_patch(), usize::max)
    }

    fn restart(&mut self, _: usize) {
        self.truncate(0);
    }

    fn boundary_before(&self, len: usize) -> usize {
        let end = self.patch_ends.boundary_before(len.min(self.len()));
        if end < self.earliest() { 0 } else { end }
    }

    fn bytes(&self) -> usize {
        self.caches().into_iter().map(KvCache::bytes).sum()
    }

    fn pages(&self, each: &mut dyn FnMut(PageUse)) {
        parts::own_pages(self.caches(), each);
    }

    fn own_bytes(&self) -> usize {
        let LongPatch { maximum, mixed, sums, .. } = &self.long;
        let vectors = [&self.hidden, &self.closed_vectors, &self.context.rows, maximum, mixed];
        let floats: usize = vectors.into_iter().map(Vec::capacity).sum();
        let lists = self.recent.own_bytes() + self.patch_ends.own_bytes() + floats * size_of::<f32>();
        let lists = lists + sums.capacity() * size_of::<SoftmaxSum>();
        size_of::<Self>() + lists + self.caches().into_iter().map(KvCache::own_bytes).sum::<usize>()
    }
}

fn state(rows: &mut [SequenceRow], index: usize) -> Result<&mut BltState> {
    state_mut(&mut *rows[index].state)
}

/// Names an intermediate result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BltStage {
    /// A symbol's embedding, n-grams included.
    Embedded,
    /// The patcher's logits at a symbol.
    PatcherLogits,
    /// The encoder's output at a symbol.
    Encoded,
    /// A patch's vectors, (k·E), before any projection.
    Patch,
    /// The global transformer's output for a patch.
    Global,
    /// The decoder's output at a symbol, before the norm.
    Decoded,
}

/// Working memory of one thread.
#[derive(Default)]
pub struct Work {
    /// Receives vectors of each stage.
    pub watcher: Option<Watcher<BltStage>>,
    /// Symbols of a closed patch to which a step attends at most; 1,024 if `None`.
    pub closing_symbols: Option<usize>,
    layers: HybridWork,
    quantized: QuantizedRows,
    /// Vectors of the stack that runs, and their positions.
    batch: Batch,
    /// The patcher's: (symbols, P).
    patcher: Vec<f32>,
    /// (symbols, V)
    logits: Vec<f32>,
    /// The fed symbol at each position.
    symbols: Vec<u32>,
    /// Symbols of each row's feed that the current stack has processed.
    processed: Vec<usize>,
    chosen: Vec<usize>,
    ngrams: NgramWork,
    closing: ClosingWork,
    contexts: ContextWork,
    head: HeadWork,
    normed: Vec<f32>,
}

#[derive(Default)]
struct NgramWork {
    /// Rows of the n-grams of each symbol: (symbols, tables).
    rows: Vec<usize>,
    /// The same rows in the order of the file.
    sorted: Vec<usize>,
    bytes: Vec<u8>,
    numbers: Vec<f32>,
}

/// Symbols whose keys and values are computed at once when patches close.
const CLOSING_BLOCK: usize = 512;

/// Symbols of a closed patch to which a step attends. A longer patch takes several steps, between which other rows are fed.
const CLOSING_SYMBOLS: usize = 1024;

/// Symbols of a closed patch that a step adds to its maximum, in multiples of [`CLOSING_SYMBOLS`]: that takes less time.
const COMPARED: usize = 16;

/// Buffers of the vectors of patches that close. I = E.
#[derive(Default)]
struct ClosingWork {
    patches: Vec<ClosingPatch>,
    /// Maximum of the encoder's outputs: (patches, E).
    maxima: Vec<f32>,
    /// (patches · k, E)
    vectors: Vec<f32>,
    normed: Vec<f32>,
    /// (patches · k, I)
    queries: Vec<f32>,
    /// (symbols, E), then their keys and values, (symbols, 2·I)
    outputs: Vec<f32>,
    memory: Vec<f32>,
    /// Weighted sums of values, (patches · k, I), with their softmax: (patches · k, heads).
    mixed: Vec<f32>,
    sums: Vec<SoftmaxSum>,
    delta: Vec<f32>,
}

/// A patch that closes, from `start` to before `end`.
struct ClosingPatch {
    sequence: usize,
    start: usize,
    end: usize,
    /// End of the symbols that are in its maximum.
    compared: usize,
    /// The symbols to which this step attends; none before all are in its maximum.
    part: Range<usize>,
}

impl ClosingPatch {
    /// True if this step attends to the last of its symbols.
    fn is_complete(&self) -> bool {
        self.part.end == self.end
    }
}

/// Buffers of the decoder's cross-attention.
#[derive(Default)]
struct ContextWork {
    /// Index of each position's patch in `patches`.
    slots: Vec<usize>,
    patches: Vec<ContextPatch>,
    /// The global transformer's outputs of patches without context, (patches, G), then their vectors, (patches · k, E).
    global: Vec<f32>,
    vectors: Vec<f32>,
    normed: Vec<f32>,
    /// Keys and values of the computed patches, then of all: (patches, k, 2·I).
    computed: Vec<f32>,
    memory: Vec<f32>,
    queries: Vec<f32>,
    mixed: Vec<f32>,
    delta: Vec<f32>,
}

struct ContextPatch {
    row: usize,
    patch: usize,
    /// Index among the computed ones; `None` if the state has it.
    computed: Option<usize>,
    /// True if it is the last of its row, which the state keeps.
    last: bool,
}

impl Work {
    fn show(&mut self, stage: BltStage) {
        watch(&mut self.watcher, stage, &self.batch.positions, &self.batch.x);
    }
}

const PATCHER: StackOf<BltState> = StackOf(|state| Ok(&state.patcher), |state| Ok(&mut state.patcher));
const ENCODER: StackOf<BltState> = StackOf(|state| Ok(&state.encoder), |state| Ok(&mut state.encoder));
const GLOBAL: StackOf<BltState> = StackOf(|state| Ok(&state.global), |state| Ok(&mut state.global));
const DECODER: StackOf<BltState> = StackOf(|state| Ok(&state.decoder), |state| Ok(&mut state.decoder));

// Cross-attention between a symbol's or patch's queries and a few rows: all of one patch's symbols, or its k vectors. The softmax
// is kept as a running maximum and sum, so that the rows may come in parts. There is no rotation.

/// Weights of a cross-attention. I = E, the width: keys of grouped heads are repeated.
struct PatchAttention {
    heads: usize,
    /// Norm of the vectors that ask: (E)
    query_norm: RmsNorm,
    /// Norm of the vectors that are read: (E)
    key_norm: RmsNorm,
    /// (I, E)
    query: Linear,
    /// Keys and values: (2·I, E).
    memory: Linear,
    /// (E, I)
    output: Linear,
}

/// A softmax over the rows that were read until now.
#[derive(Clone, Copy)]
struct SoftmaxSum {
    max: f32,
    sum: f32,
}

impl Default for SoftmaxSum {
    fn default() -> Self {
        Self { max: f32::NEG_INFINITY, sum: 0.0 }
    }
}

impl SoftmaxSum {
    /// Adds the value of a row with this score to `mixed`, (head_dim).
    fn add(&mut self, score: f32, value: &[f32], mixed: &mut [f32]) {
        if score > self.max {
            let scale = (self.max - score).exp();
            self.sum *= scale;
            mixed.iter_mut().for_each(|mixed| *mixed *= scale);
            self.max = score;
        }
        let weight = (score - self.max).exp();
        self.sum += weight;
        mixed.iter_mut().zip(value).for_each(|(mixed, value)| *mixed += weight * value);
    }

    /// Divides the weighted sums of values by the sum of weights.
    fn normalize(&self, mixed: &mut [f32]) {
        mixed.iter_mut().for_each(|mixed| *mixed /= self.sum);
    }
}

/// Lanes of a dot product, which the compiler turns into vectors.
const DOT_LANES: usize = 8;

/// Returns the dot product of two vectors of the same length.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a_lanes, a_rest) = a.as_chunks::<DOT_LANES>();
    let (b_lanes, b_rest) = b.as_chunks::<DOT_LANES>();
    let mut sums = [0.0; DOT_LANES];
    for (a, b) in a_lanes.iter().zip(b_lanes) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

impl PatchAttention {
    fn head_dim(&self) -> usize {
        self.query.outputs() / self.heads
    }

    /// Attends with a head's part of a `query`, (I), to `rows` of keys and values, (rows, 2·I), and adds to `mixed`, (head_dim),
    /// and `sum`.
    fn attend(&self, head: usize, query: &[f32], rows: &[f32], sum: &mut SoftmaxSum, mixed: &mut [f32]) {
        let inner = query.len();
        let head_dim = self.head_dim();
        let part = head * head_dim..(head + 1) * head_dim;
        let scale = 1.0 / (head_dim as f32).sqrt();
        for row in rows.chunks_exact(2 * inner) {
            let (keys, values) = row.split_at(inner);
            sum.add(dot(&query[part.clone()], &keys[part.clone()]) * scale, &values[part.clone()], mixed);
        }
    }

    /// Writes the queries of `x`, (vectors, E), to `queries`, (vectors, I).
    fn queries(
        &self,
        compute: &Compute,
        x: &[f32],
        normed: &mut Vec<f32>,
        quantized: &mut QuantizedRows,
        queries: &mut Vec<f32>,
    ) {
        let normed = sized(normed, x.len());
        rms_norm(compute, x, &self.query_norm, normed);
        let queries = sized(queries, x.len());
        self.query.apply(compute, normed, Epilogue::None, quantized, queries); // (vectors, I)
    }

    /// Writes the keys and values of `x`, (vectors, E), to `memory`, (vectors, 2·I).
    fn memory(
        &self,
        compute: &Compute,
        x: &[f32],
        normed: &mut Vec<f32>,
        quantized: &mut QuantizedRows,
        memory: &mut Vec<f32>,
    ) {
        let normed = sized(normed, x.len());
        rms_norm(compute, x, &self.key_norm, normed);
        let memory = sized(memory, 2 * x.len());
        self.memory.apply(compute, normed, Epilogue::None, quantized, memory); // (vectors, 2·I)
    }

    /// x = 2·x + output · `mixed`: the official module adds its input, and so does its caller.
    fn finish(
        &self,
        compute: &Compute,
        x: &mut [f32],
        mixed: &[f32],
        quantized: &mut QuantizedRows,
        delta: &mut Vec<f32>,
    ) {
        let delta = sized(delta, x.len());
        self.output.apply(compute, mixed, Epilogue::None, quantized, delta); // (vectors, E)
        for (x, delta) in x.iter_mut().zip(delta) {
            *x = 2.0 * *x + *delta;
        }
    }

    fn matrices(&self) -> [&Linear; 3] {
        [&self.query, &self.memory, &self.output]
    }
}

// The weights and the three steps. Hot path: no allocation once the buffers in `Work` have grown, no locks, no logging; a symbol
// reads its rows of the table of n-grams from the file's pages. Stacks take at most `CHUNK` positions of a row at a time.

/// A loaded Byte Latent Transformer. V = vocabulary size.
pub struct Blt {
    card: Card,
    compute: Compute,
    patch_vectors: usize,
    max_patch: Option<usize>,
    /// Default of a request's threshold.
    threshold: f32,
    /// (V, P)
    patcher_embedding: Vec<f32>,
    patcher: HybridStack,
    /// (V, P)
    patcher_head: Linear,
    /// (V, E)
    embedding: Vec<f32>,
    ngrams: Option<Ngrams>,
    encoder: HybridStack,
    /// (k·E, E)
    patch_queries: Linear,
    encoder_cross: PatchAttention,
    /// (G, k·E); `None` if the widths are equal.
    global_input: Option<Linear>,
    global: HybridStack,
    /// (k·E, G)
    patch_contexts: Linear,
    /// The cross-attention of the first layers of the decoder, which read the patch.
    decoder_cross: Vec<PatchAttention>,
    decoder: HybridStack,
    /// The norm before the head.
    decoder_norm: RmsNorm,
    /// (V, E)
    head: Linear,
    pages: Arc<PagePool>,
}

/// The n-grams with their vectors.
struct Ngrams {
    hashed: HashedNgrams,
    /// (functions · sizes · rows, E)
    table: RowTable,
}

impl Model for Blt {
    fn card(&self) -> &Card {
        &self.card
    }

    fn begin(&self, boundaries: BoundaryOptions) -> Result<Box<dyn State>> {
        check_mode(&boundaries, &self.card)?;
        let cache = |stack: &HybridStack| KvCache::new(stack.layout, self.pages.clone());
        let dim = self.encoder.dim;
        let largest = self.ngrams.as_ref().map_or(0, |ngrams| ngrams.hashed.largest());
        let threshold = boundaries.threshold.unwrap_or(self.threshold);
        let max_patch = match threshold == self.threshold {
            true => self.max_patch,
            false => Some(self.max_patch.unwrap_or(MAX_REQUESTED_PATCH).min(MAX_REQUESTED_PATCH)),
        };
        Ok(Box::new(BltState {
            recent: RecentSymbols::new(largest),
            patcher: cache(&self.patcher),
            encoder: cache(&self.encoder),
            global: cache(&self.global),
            decoder: cache(&self.decoder),
            windows: LocalWindows {
                patcher: self.patcher.window,
                encoder: self.encoder.window,
                decoder: self.decoder.window,
            },
            patch_ends: SegmentEnds::default(),
            finished: 0,
            patch_width: self.patch_vectors * dim,
            // enough for a decode step, which then never reallocates
            hidden: Vec::with_capacity(dim),
            closed_vectors: Vec::with_capacity(self.patch_vectors * dim),
            long: LongPatch::default(),
            context: PatchContext { patch: None, rows: Vec::with_capacity(self.context_len()) },
            threshold,
            max_patch,
        }))
    }

    /// Symbol step: patcher → boundaries; encoder → vectors of the patches that close.
    fn symbol_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        let work: &mut Work = work_mut(scratch)?;
        self.start_feed(rows, which, work)?;
        while self.gather_symbols(rows, which, work)? {
            self.predict(rows, work)?; // (symbols, V)
            self.embed(rows, work)?; // (symbols, E)
            let caches = &mut StackCaches(rows, ENCODER);
            let Work { batch: Batch { positions, x }, layers, .. } = &mut *work;
            self.encoder.forward(&self.compute, x, positions, caches, &mut [], layers)?; // (symbols, E)
            work.show(BltStage::Encoded);
            self.decide(rows, which, work)?; // (symbols)
            self.close_patches(rows, which, work)?; // (patches, k·E)
        }
        for &index in which {
            let waits = state(rows, index)?.waiting_patches() > 0;
            rows[index].status = if waits { StepStatus::Waiting } else { StepStatus::Unfinished };
        }
        Ok(())
    }

    /// Segment step, for rows that closed a patch: global transformer. A row with a long patch waits until all of it is read.
    fn segment_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        let work: &mut Work = work_mut(scratch)?;
        let Some(waiting) = with_status(StepStatus::Waiting, rows, which, &mut work.chosen) else { return Ok(()) };
        self.close_patches(rows, &waiting, work)?; // (patches, k·E)
        while self.gather_patches(rows, &waiting, work)? {
            let caches = &mut StackCaches(rows, GLOBAL);
            let Work { batch: Batch { positions, x }, layers, .. } = &mut *work;
            self.global.forward(&self.compute, x, positions, caches, &mut [], layers)?; // (patches, G)
            work.show(BltStage::Global);
            for (Position { sequence, index }, x) in work.batch.iter() {
                let global = &mut state(rows, sequence)?.global;
                global.write_output(index, x)?;
                global.advance(1);
            }
        }
        for &index in &waiting {
            if state(rows, index)?.waiting_patches() == 0 {
                rows[index].status = StepStatus::Unfinished;
            }
        }
        work.chosen = waiting;
        Ok(())
    }

    /// Finish step: decoder with cross-attention to each symbol's latest closed patch → logits.
    fn finish_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        let work: &mut Work = work_mut(scratch)?;
        let Some(unfinished) = with_status(StepStatus::Unfinished, rows, which, &mut work.chosen) else {
            return Ok(());
        };
        while self.gather_undecoded(rows, &unfinished, work)? {
            self.gather_contexts(rows, work)?; // (patches · k, E)
            for layer in 0..self.decoder.layers.len() {
                if let Some(cross) = self.decoder_cross.get(layer) {
                    self.read_contexts(layer, rows, work)?; // (patches · k, 2·I)
                    self.cross(cross, work); // (symbols, E)
                }
                let caches = &mut StackCaches(rows, DECODER);
                let Work { batch: Batch { positions, x }, layers, .. } = &mut *work;
                self.decoder.forward_layer(layer, &self.compute, x, positions, caches, layers)?; // (symbols, E)
            }
            work.show(BltStage::Decoded);
            self.scatter_decoded(rows, work)?;
        }
        self.gather_wanted(rows, &unfinished, work)?; // (wanted, E)
        work.head.deliver(&self.head, &self.compute, &mut work.quantized, rows, &unfinished)?;
        for &index in &unfinished {
            let state = state(rows, index)?;
            state.finished = state.encoder.len();
        }
        work.chosen = unfinished;
        Ok(())
    }

    fn bytes_for(&self, symbols: usize) -> usize {
        // without a longest patch, all symbols may belong to the open one
        let longest =
            |patch: usize| self.encoder.window.max_held(symbols).saturating_add(patch + POSITIONS).min(symbols);
        let encoded = self.max_patch.map_or(symbols, longest);
        self.patcher.bytes_for(symbols)
            + self.encoder.layout.bytes_for(encoded)
            + self.global.bytes_for(symbols)
            + self.decoder.bytes_for(symbols)
    }

    fn growth(&self, state: &dyn State, more: usize) -> usize {
        // the step rejects another model's state
        let Ok(state) = state_ref::<BltState>(state) else { return 0 };
        let len = state.len() + more;
        let patches = len.min(state.patch_ends.len() + more);
        self.patcher.growth(&state.patcher, len)
            + state.encoder.growth(len)
            + self.global.growth(&state.global, patches)
            + self.decoder.growth(&state.decoder, len)
    }

    fn memory(&self) -> KvMemory {
        KvMemory { in_use: self.pages.in_use(), limit: self.pages.limit() }
    }

    fn cost(&self, symbols: usize, segments: usize) -> Cost {
        let vectors = self.patch_vectors;
        let times = |cost: StepCost| StepCost { multiply_adds: vectors * cost.multiply_adds, ..cost };
        let mut cost = Cost::default();
        cost.symbol += parts::hybrid_stack_cost(&self.patcher, symbols);
        cost.symbol += parts::linear_cost(&self.patcher_head);
        cost.symbol += parts::hybrid_stack_cost(&self.encoder, symbols);
        cost.symbol += parts::hybrid_stack_cost(&self.decoder, symbols);
        if let Some(Ngrams { hashed, table }) = &self.ngrams {
            cost.symbol.own_bytes += hashed.tables() * table.row_bytes();
        }
        cost.segment += parts::linear_cost(&self.patch_queries);
        let [query, memory, output] = self.encoder_cross.matrices();
        // each symbol has keys and values, but they are computed when its patch closes
        let keys = parts::linear_cost(memory);
        cost.symbol.multiply_adds += keys.multiply_adds;
        cost.segment.shared_bytes += keys.shared_bytes;
        for matrix in [query, output] {
            cost.segment += times(parts::linear_cost(matrix));
        }
        self.global_input.iter().for_each(|matrix| cost.segment += parts::linear_cost(matrix));
        cost.segment += parts::hybrid_stack_cost(&self.global, segments);
        cost.segment += parts::linear_cost(&self.patch_contexts);
        for cross in &self.decoder_cross {
            let [query, memory, output] = cross.matrices();
            cost.segment += times(parts::linear_cost(memory));
            cost.symbol += parts::linear_cost(query);
            cost.symbol += parts::linear_cost(output);
        }
        cost.logits += parts::linear_cost(&self.head);
        cost
    }
}

impl Blt {
    /// Numbers of the decoder's keys and values of one patch: (crosses, k, 2·I).
    fn context_len(&self) -> usize {
        self.decoder_cross.len() * self.context_layer_len()
    }

    fn context_layer_len(&self) -> usize {
        2 * self.patch_vectors * self.decoder.dim
    }

    /// Checks the feeds and the file of the table, and clears what earlier steps left in the rows.
    fn start_feed(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        self.ngrams.as_ref().map_or(Ok(()), |ngrams| ngrams.table.check())?;
        for &index in which {
            let row = &mut rows[index];
            parts::start_feed(&self.card, row, state_ref::<BltState>(&*row.state)?.is_ready())?;
            state(rows, index)?.start_feed();
        }
        work.processed.clear();
        work.processed.resize(which.len(), 0);
        Ok(())
    }

    /// Lists the next chunk of each row's feed with its positions, and makes room in the caches of patcher and encoder.
    fn gather_symbols(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<bool> {
        work.batch.clear();
        work.symbols.clear();
        for (&index, processed) in which.iter().zip(&mut work.processed) {
            let SequenceRow { state, feed, .. } = &mut rows[index];
            let state: &mut BltState = state_mut(&mut **state)?;
            let chunk = (feed.len() - *processed).min(CHUNK);
            // making room for none would free pages that a fork of the row still needs
            if chunk == 0 {
                continue;
            }
            let start = state.encoder.len();
            self.patcher.reserve(&mut state.patcher, chunk)?;
            state.reserve_encoder(chunk)?;
            let symbols = &feed[*processed..*processed + chunk];
            work.batch.positions.extend(Position::run(index, start..start + chunk));
            work.symbols.extend_from_slice(symbols);
            state.recent.extend(symbols);
            *processed += chunk;
        }
        Ok(!work.symbols.is_empty())
    }

    /// `work.logits` (symbols, V) = the patcher's predictions.
    fn predict(&self, rows: &mut [SequenceRow], work: &mut Work) -> Result<()> {
        let dim = self.patcher.dim;
        work.patcher.clear();
        for &symbol in &work.symbols {
            work.patcher.extend_from_slice(&self.patcher_embedding[symbol as usize * dim..][..dim]); // (symbols, P)
        }
        let caches = &mut StackCaches(rows, PATCHER);
        let Work { patcher: x, batch: Batch { positions, .. }, layers, quantized, logits, .. } = &mut *work;
        self.patcher.forward(&self.compute, x, positions, caches, &mut [], layers)?; // (symbols, P)
        let logits = sized(logits, positions.len() * self.patcher_head.outputs());
        self.patcher_head.apply(&self.compute, x, Epilogue::None, quantized, logits); // (symbols, V)
        watch(&mut work.watcher, BltStage::PatcherLogits, &work.batch.positions, &work.logits);
        for position in &work.batch.positions {
            state(rows, position.sequence)?.patcher.advance(1);
        }
        Ok(())
    }

    /// `work.batch.x` (symbols, E) = the embeddings of the symbols, plus the vectors of the n-grams that end with them. A row of
    /// `rows` fails alone if one of its vectors is not finite.
    fn embed(&self, rows: &mut [SequenceRow], work: &mut Work) -> Result<()> {
        work.batch.embed(&self.embedding, self.encoder.dim, &work.symbols); // (symbols, E)
        if let Some(Ngrams { hashed, table }) = &self.ngrams {
            let NgramWork { rows: chosen, sorted, bytes, numbers } = &mut work.ngrams;
            chosen.clear();
            for Position { sequence, index } in &work.batch.positions {
                let state: &BltState = state_ref(&*rows[*sequence].state)?;
                let missing = || Error::Internal(format!("the symbol at position {index} is not kept"));
                hashed.rows_at(state.recent.newest_first(*index).ok_or_else(missing)?, chosen);
            }
            sorted.clear();
            sorted.extend_from_slice(chosen);
            table.prefetch(sorted);
            let vectors = work.batch.x.chunks_exact_mut(table.width());
            let chosen = chosen.chunks_exact(hashed.tables());
            for ((Position { sequence, .. }, x), chosen) in work.batch.positions.iter().zip(vectors).zip(chosen) {
                for &row in chosen {
                    match table.read(row, bytes, numbers) {
                        Ok(()) => x.iter_mut().zip(numbers.iter()).for_each(|(x, number)| *x += number),
                        Err(error @ Error::Checkpoint { .. }) => rows[*sequence].failure = Some(error),
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        work.show(BltStage::Embedded);
        Ok(())
    }

    /// Stores the encoder's outputs and the decisions in the rows.
    fn decide(&self, rows: &mut [SequenceRow], which: &[usize], work: &Work) -> Result<()> {
        let predictions = work.logits.chunks_exact(self.patcher_head.outputs());
        for ((Position { sequence, index }, x), logits) in work.batch.iter().zip(predictions) {
            let row = &mut rows[sequence];
            let state: &mut BltState = state_mut(&mut *row.state)?;
            let entropy = entropy(logits) as f32;
            let start = state.patch_ends.open_start();
            let full = state.max_patch.is_some_and(|longest| index + 1 - start >= longest);
            // the first symbol, the start mark, is a patch by itself
            let boundary = index == 0 || entropy > state.threshold || full;
            row.decisions.push(SymbolBoundary { boundary, entropy: Some(entropy), ..SymbolBoundary::default() });
            state.encoder.write_output(index, x)?;
            state.encoder.advance(1);
            state.hidden.extend_from_slice(x);
            if boundary {
                state.patch_ends.push(index);
            }
        }
        for (&index, processed) in which.iter().zip(&work.processed) {
            if rows[index].decisions.len() != *processed {
                return Err(Error::Internal("a row's feed was changed before the row was ready".into()));
            }
        }
        Ok(())
    }

    /// Lists the patches of `which` that need vectors, up to a long one in each row.
    fn list_closing(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        let longest = work.closing_symbols.unwrap_or(CLOSING_SYMBOLS);
        let patches = &mut work.closing.patches;
        patches.clear();
        for &sequence in which {
            let state = state(rows, sequence)?;
            let LongPatch { compared, attended, .. } = state.long;
            for patch in state.patches_without_vectors() {
                let missing = || Error::Internal(format!("patch {patch} is not kept"));
                let start = state.patch_ends.start(patch).ok_or_else(missing)?;
                let end = state.patch_ends.end(patch).ok_or_else(missing)? + 1;
                let compared = end.min(start + compared + COMPARED * longest);
                let first = start + attended;
                let last = if compared == end { end.min(first + longest) } else { first };
                patches.push(ClosingPatch { sequence, start, end, compared, part: first..last });
                if end - start > longest {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Appends the vectors of the patches that close, (k·E) each, to their states: queries from the maximum of the encoder's
    /// outputs, which read the patch's symbols. A long patch, and those after it in its row, may need more such calls.
    fn close_patches(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        self.list_closing(rows, which, work)?;
        if work.closing.patches.is_empty() {
            return Ok(());
        }
        self.compare(rows, &mut work.closing)?; // (patches, E)
        let compute = &self.compute;
        let cross = &self.encoder_cross;
        let width = self.patch_vectors * self.encoder.dim;
        let Work { closing, quantized, .. } = &mut *work;
        let ClosingWork { patches, maxima, vectors, normed, queries, .. } = closing;
        let vectors = sized(vectors, patches.len() * width);
        self.patch_queries.apply(compute, maxima, Epilogue::None, quantized, vectors); // (patches, k·E)
        cross.queries(compute, vectors, normed, quantized, queries); // (patches · k, I)
        self.attend_to_symbols(rows, closing, quantized)?; // (patches · k, I)
        self.keep_incomplete(rows, closing)?;
        let Work { closing: ClosingWork { patches, vectors, mixed, sums, delta, .. }, quantized, watcher, .. } = work;
        let sums = mixed.chunks_exact_mut(cross.head_dim()).zip(sums).filter(|(_, sum)| sum.sum > 0.0);
        sums.for_each(|(mixed, sum)| sum.normalize(mixed));
        cross.finish(compute, vectors, mixed, quantized, delta); // (patches · k, E)
        for (patch, vectors) in patches.iter().zip(vectors.chunks_exact(width)).filter(|(patch, _)| patch.is_complete())
        {
            let state = state(rows, patch.sequence)?;
            if let Some(watcher) = watcher {
                let index = state.patches_without_vectors().start;
                watcher(BltStage::Patch, Position { sequence: patch.sequence, index }, vectors);
            }
            state.closed_vectors.extend_from_slice(vectors);
        }
        Ok(())
    }

    /// Computes the maxima of the patches, (patches, E). Takes the progress of long ones from the rows.
    fn compare(&self, rows: &mut [SequenceRow], closing: &mut ClosingWork) -> Result<()> {
        let ClosingWork { patches, maxima, mixed, sums, .. } = closing;
        let dim = self.encoder.dim;
        let width = self.patch_vectors * dim;
        let heads = self.patch_vectors * self.encoder_cross.heads;
        let maxima = sized(maxima, patches.len() * dim);
        mixed.clear();
        mixed.resize(patches.len() * width, 0.0);
        sums.clear();
        sums.resize(patches.len() * heads, SoftmaxSum::default());
        for (index, patch) in patches.iter().enumerate() {
            let BltState { encoder, long, .. } = state(rows, patch.sequence)?;
            let long = std::mem::take(long);
            let maximum = &mut maxima[index * dim..][..dim];
            match long.compared {
                0 => maximum.fill(f32::NEG_INFINITY),
                _ => maximum.copy_from_slice(&long.maximum),
            }
            for position in patch.start + long.compared..patch.compared {
                maximum.iter_mut().zip(encoder.output(position)).for_each(|(max, &x)| *max = max.max(x));
            }
            if long.attended > 0 {
                mixed[index * width..][..width].copy_from_slice(&long.mixed);
                sums[index * heads..][..heads].copy_from_slice(&long.sums);
            }
        }
        Ok(())
    }

    /// Attends with the patches' queries to the symbols that this step reads.
    fn attend_to_symbols(
        &self,
        rows: &mut [SequenceRow],
        closing: &mut ClosingWork,
        quantized: &mut QuantizedRows,
    ) -> Result<()> {
        let ClosingWork { patches, normed, queries, outputs, memory, mixed, sums, .. } = closing;
        let dim = self.encoder.dim;
        let cross = &self.encoder_cross;
        let width = self.patch_vectors * dim;
        let heads = self.patch_vectors * cross.heads;
        let mut next = 0;
        let mut from = patches[0].part.start;
        while next < patches.len() {
            // the symbols of several patches, or a part of a long one's
            outputs.clear();
            let mut parts = next..next;
            let mut part_from = from;
            while parts.end < patches.len() && outputs.len() < CLOSING_BLOCK * dim {
                let ClosingPatch { sequence, part: Range { end, .. }, .. } = patches[parts.end];
                let room = CLOSING_BLOCK - outputs.len() / dim;
                let to = end.min(part_from + room);
                let encoder = &state(rows, sequence)?.encoder;
                (part_from..to).for_each(|position| outputs.extend_from_slice(encoder.output(position)));
                part_from = to;
                if to < end {
                    break;
                }
                parts.end += 1;
                part_from = patches.get(parts.end).map_or(0, |patch| patch.part.start);
            }
            cross.memory(&self.compute, outputs, normed, quantized, memory); // (symbols, 2·I)
            let mut rest = &memory[..];
            for patch in next..patches.len().min(parts.end + 1) {
                let start = if patch == next { from } else { patches[patch].part.start };
                let stop = if patch == parts.end { part_from } else { patches[patch].part.end };
                let (own, others) = rest.split_at(stop.saturating_sub(start) * 2 * dim);
                rest = others;
                let vectors = queries[patch * width..][..width].chunks_exact(dim);
                let vectors = vectors.flat_map(|query| (0..cross.heads).map(move |head| (head, query)));
                let mixed = mixed[patch * width..][..width].chunks_exact_mut(cross.head_dim());
                let sums = &mut sums[patch * heads..][..heads];
                for (((head, query), mixed), sum) in vectors.zip(mixed).zip(sums) {
                    cross.attend(head, query, own, sum, mixed);
                }
            }
            next = parts.end;
            from = part_from;
        }
        Ok(())
    }

    /// Gives back the progress of long patches of which this step has not read all symbols.
    fn keep_incomplete(&self, rows: &mut [SequenceRow], closing: &ClosingWork) -> Result<()> {
        let dim = self.encoder.dim;
        let width = self.patch_vectors * dim;
        let heads = self.patch_vectors * self.encoder_cross.heads;
        for (index, patch) in closing.patches.iter().enumerate().filter(|(_, patch)| !patch.is_complete()) {
            state(rows, patch.sequence)?.long = LongPatch {
                compared: patch.compared - patch.start,
                maximum: closing.maxima[index * dim..][..dim].to_vec(),
                attended: patch.part.end - patch.start,
                mixed: closing.mixed[index * width..][..width].to_vec(),
                sums: closing.sums[index * heads..][..heads].to_vec(),
            };
        }
        Ok(())
    }

    /// `work.batch` = the vectors of the next chunk of each row's closed patches.
    fn gather_patches(&self, rows: &mut [SequenceRow], waiting: &[usize], work: &mut Work) -> Result<bool> {
        work.batch.positions.clear();
        for &index in waiting {
            let state = state(rows, index)?;
            if !state.patches_without_vectors().is_empty() {
                continue;
            }
            let chunk = state.waiting_patches().min(CHUNK);
            self.global.reserve(&mut state.global, chunk)?;
            work.batch.extend(index, &state.global, chunk);
        }
        let Work { batch, quantized, contexts: ContextWork { vectors, .. }, .. } = work;
        batch.fill(self.patch_vectors * self.encoder.dim, |Position { sequence, index }, x| {
            let state = state(rows, sequence)?;
            let width = state.patch_width;
            let first = state.patch_ends.len() - state.closed_vectors.len() / width;
            x.copy_from_slice(&state.closed_vectors[(index - first) * width..][..width]);
            Ok(())
        })?;
        if let Some(projection) = &self.global_input {
            std::mem::swap(&mut batch.x, vectors);
            let x = sized(&mut batch.x, batch.positions.len() * self.global.dim);
            projection.apply(&self.compute, vectors, Epilogue::None, quantized, x); // (patches, G)
        }
        Ok(!batch.positions.is_empty())
    }

    /// `work.batch` = the encoder's outputs at the next chunk of each row's symbols in flight.
    fn gather_undecoded(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<bool> {
        work.batch.positions.clear();
        for &index in which {
            let state = state(rows, index)?;
            let chunk = (state.encoder.len() - state.decoder.len()).min(CHUNK);
            if chunk == 0 {
                continue;
            }
            self.decoder.reserve(&mut state.decoder, chunk)?;
            work.batch.extend(index, &state.decoder, chunk);
        }
        let dim = self.decoder.dim;
        work.batch.fill(dim, |Position { sequence, index }, x| {
            let state = state(rows, sequence)?;
            x.copy_from_slice(&state.hidden[(index - state.finished) * dim..][..dim]);
            Ok(())
        })?;
        Ok(!work.batch.positions.is_empty())
    }

    /// Finds each symbol's patch, and computes in `work.contexts.vectors`, (patches · k, E), the vectors of those whose keys the
    /// states do not have.
    fn gather_contexts(&self, rows: &mut [SequenceRow], work: &mut Work) -> Result<()> {
        let Work { batch, contexts, quantized, .. } = work;
        let ContextWork { slots, patches, global, vectors, .. } = contexts;
        slots.clear();
        patches.clear();
        global.clear();
        let mut computed = 0;
        for &Position { sequence, index } in &batch.positions {
            let state = state(rows, sequence)?;
            let missing = || Error::Internal(format!("no patch has closed at symbol {index}"));
            let patch = state.patch_ends.count_before(index + 1).checked_sub(1).ok_or_else(missing)?;
            match patches.last_mut() {
                Some(ContextPatch { row, patch: last, .. }) if *row == sequence && *last == patch => {}
                last => {
                    if let Some(before) = last {
                        before.last = before.row != sequence;
                    }
                    let is_known = state.context.patch == Some(patch);
                    patches.push(ContextPatch {
                        row: sequence,
                        patch,
                        computed: (!is_known).then_some(computed),
                        last: true,
                    });
                    if !is_known {
                        computed += 1;
                        global.extend_from_slice(state.global.output(patch));
                    }
                }
            }
            slots.push(patches.len() - 1);
        }
        let vectors = sized(vectors, computed * self.patch_contexts.outputs());
        self.patch_contexts.apply(&self.compute, global, Epilogue::None, quantized, vectors); // (patches, k·E)
        Ok(())
    }

    /// `work.contexts.memory` (patches, k, 2·I) = the keys and values of the patches for one layer. The states keep those of their
    /// last patches.
    fn read_contexts(&self, layer: usize, rows: &mut [SequenceRow], work: &mut Work) -> Result<()> {
        let Work { contexts, quantized, .. } = work;
        let ContextWork { patches, vectors, normed, computed, memory, .. } = contexts;
        self.decoder_cross[layer].memory(&self.compute, vectors, normed, quantized, computed); // (patches · k, 2·I)
        let len = self.context_layer_len();
        memory.clear();
        let is_last_layer = layer + 1 == self.decoder_cross.len();
        for ContextPatch { row, patch, computed: index, last } in &*patches {
            let context = &mut state(rows, *row)?.context;
            let known = layer * len..(layer + 1) * len;
            match index {
                None => memory.extend_from_slice(&context.rows[known]),
                Some(index) => {
                    let own = &computed[index * len..][..len];
                    memory.extend_from_slice(own);
                    // what it replaces was copied before, as the first of the row's patches
                    if *last {
                        context.patch = None;
                        context.rows.resize(self.decoder_cross.len() * len, 0.0);
                        context.rows[known].copy_from_slice(own);
                    }
                }
            }
            if *last && is_last_layer {
                context.patch = Some(*patch);
            }
        }
        Ok(())
    }

    /// Runs the cross-attention of `work.batch.x`, (symbols, E), to the patches in `work.contexts`.
    fn cross(&self, cross: &PatchAttention, work: &mut Work) {
        let Work { batch: Batch { x, positions }, contexts, quantized, .. } = work;
        let ContextWork { slots, normed, queries, memory, mixed, delta, .. } = contexts;
        cross.queries(&self.compute, x, normed, quantized, queries); // (symbols, I)
        let mixed = sized(mixed, x.len());
        let dim = self.decoder.dim;
        let len = self.context_layer_len();
        let share = 2 * x.len() * self.patch_vectors >= WORTH_SHARING;
        self.compute.pool.for_columns::<1>(mixed, positions.len(), cross.heads, share, &|row, head, parts| {
            let query = &queries[row * dim..][..dim];
            let memory = &memory[slots[row] * len..][..len];
            for mixed in parts {
                let mut sum = SoftmaxSum::default();
                mixed.fill(0.0);
                cross.attend(head, query, memory, &mut sum, mixed);
                sum.normalize(mixed);
            }
        });
        cross.finish(&self.compute, x, mixed, quantized, delta); // (symbols, E)
    }

    /// Replaces the encoder's outputs, which are no longer needed, by the decoder's.
    fn scatter_decoded(&self, rows: &mut [SequenceRow], work: &Work) -> Result<()> {
        for (Position { sequence, index }, x) in work.batch.iter() {
            let state = state(rows, sequence)?;
            let offset = (index - state.finished) * x.len();
            state.hidden[offset..offset + x.len()].copy_from_slice(x);
            state.decoder.advance(1);
        }
        Ok(())
    }

    /// `work.head.wanted` (wanted, E) = the normed vectors whose logits are wanted: each row's last ones, row after row.
    fn gather_wanted(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        work.normed.clear();
        for &index in which {
            let wanted = rows[index].wanted() * self.decoder.dim;
            let hidden = &mut state(rows, index)?.hidden;
            let unwanted = hidden.len().saturating_sub(wanted);
            work.normed.extend_from_slice(&hidden[unwanted..]);
            hidden.clear();
        }
        let wanted = sized(&mut work.head.wanted, work.normed.len());
        rms_norm(&self.compute, &work.normed, &self.decoder_norm, wanted);
        Ok(())
    }
}

/// Numbers of a cross-attention below which waking other threads costs more than it saves.
const WORTH_SHARING: usize = 1 << 18;

// Loading: tensors in the names of docs/checkpoints.md, and the model that they make.

/// Reads the architecture. Fails if a key is invalid, or the vocabulary has special symbols.
pub(crate) fn read(config: &Config, file: &Path) -> Result<Box<dyn Blueprint>> {
    let architecture: Architecture = checkpoint::architecture(config, file)?;
    let vocabulary = config.vocabulary(file)?;
    let expected = "nothing: this family has marks, not special symbols";
    require(vocabulary.specials().is_none(), file, "vocabulary.specials", expected, "special symbols")?;
    let blueprint = BltBlueprint { architecture, symbols: vocabulary.len() };
    blueprint.validate(file)?;
    Ok(Box::new(blueprint))
}

/// Name of the tensor of n-grams, without `.weight`.
const NGRAMS: &str = "ngrams";

impl Blueprint for BltBlueprint {
    fn tensors(&self) -> Vec<TensorSpec> {
        let Architecture { patcher, encoder, global, decoder, ngrams, tied, .. } = &self.architecture;
        let width = self.patch_width();
        let embedding =
            |name: &str, dim| TensorSpec::normal(format!("{name}.weight"), vec![self.symbols, dim], 0.0, 1.0);
        let mut out = vec![embedding("patcher.embedding", patcher.dim)];
        patcher.tensors("patcher", &mut out);
        out.push(norm("patcher.norm", patcher.dim));
        // of random weights, the entropies then spread
        let deviation = 2.5 / (patcher.dim as f32).sqrt();
        out.push(TensorSpec::normal("patcher.head.weight", vec![self.symbols, patcher.dim], 0.0, deviation));
        out.iter_mut().for_each(|patcher| patcher.stays_float = true);
        if !tied {
            out.push(embedding("encoder.embedding", encoder.dim));
        }
        encoder.tensors("encoder", &mut out);
        out.push(matrix("encoder.patch", width, encoder.dim));
        encoder.cross_tensors("encoder.cross", &mut out);
        if width != global.dim {
            out.push(matrix("global.input", global.dim, width));
        }
        global.tensors("global", &mut out);
        out.push(matrix("decoder.patch", width, global.dim));
        decoder.tensors("decoder", &mut out);
        (0..self.crosses()).for_each(|layer| decoder.cross_tensors(&format!("decoder.cross.{layer}"), &mut out));
        out.push(norm("decoder.norm", decoder.dim));
        out.push(matrix("head", self.symbols, decoder.dim));
        if let Some(ngrams) = ngrams {
            // last, as files of any type are aligned then
            let shape = vec![ngrams.tables() * ngrams.rows, encoder.dim];
            let table = TensorSpec::normal(format!("{NGRAMS}.weight"), shape, 0.0, 0.3);
            out.push(TensorSpec { stays_in_file: true, ..table });
        }
        out
    }

    fn shape(&self) -> String {
        let Architecture { threshold, max_patch, patch_vectors, ngrams, .. } = &self.architecture;
        let stack = |(name, stack): (&str, &BltStack)| {
            let window = stack.window.max_keys().map(|keys| format!(", window of {keys}")).unwrap_or_default();
            format!("{name} {} × {}, {} heads{window}", stack.layers, stack.dim, stack.heads)
        };
        let stacks: Vec<_> = self.stacks().map(stack).into();
        let mut shape = format!("{}; {patch_vectors} vectors a patch", stacks.join("; "));
        if let Some(HashedNgrams { sizes, rows, functions }) = ngrams {
            let tables = functions * sizes.len();
            shape += &format!("; n-gram table of {} rows ({tables} × {rows})", tables * rows);
        }
        shape += &format!("; boundaries at entropies above {threshold}");
        if let Some(longest) = max_patch {
            shape += &format!(", patches of at most {longest}");
        }
        shape
    }

    fn speculates(&self) -> bool {
        true
    }

    fn build(&self, mut parts: Parts) -> Result<Arc<dyn Model>> {
        let a = &self.architecture;
        let mut card = parts.card("blt", self)?;
        card.pooled = true;
        card.boundary_threshold = Some(a.threshold);
        let ngrams = match &a.ngrams {
            None => None,
            Some(hashed) => {
                let mut table = parts.weights.take_table(&format!("{NGRAMS}.weight"))?;
                if parts.settings.copy_tables {
                    table.copy_into_memory()?;
                }
                table.expect_single_rows();
                Some(Ngrams { hashed: hashed.clone(), table })
            }
        };
        let dtype = parts.settings.dtype;
        let tensors = Tensors::new(&mut parts.weights, a.decoder.norm_eps, patcher_dtype(dtype));
        let mut loader = Loader { tensors };
        let patcher_head = loader.tensors.matrix(&["patcher.head"], a.patcher.dim)?;
        let patcher = HybridStack {
            norm: Some(loader.norm("patcher.norm", &a.patcher)?),
            ..loader.stack("patcher", &a.patcher, 0)?
        };
        loader.tensors.store = WeightArena::new(dtype);
        let width = self.patch_width();
        let crosses = 0..self.crosses();
        let tensors = &mut loader.tensors;
        let head = tensors.weight("head")?;
        let embedding = if a.tied { head.clone() } else { tensors.weight("encoder.embedding")? };
        let head = tensors.pack(&head, &[], a.decoder.dim)?;
        Ok(Arc::new(Blt {
            compute: parts.settings.compute(),
            patch_vectors: a.patch_vectors,
            max_patch: a.max_patch,
            threshold: a.threshold,
            patcher_embedding: tensors.weight("patcher.embedding")?,
            patcher_head,
            embedding,
            ngrams,
            patch_queries: tensors.matrix(&["encoder.patch"], a.encoder.dim)?,
            global_input: (width != a.global.dim).then(|| tensors.matrix(&["global.input"], width)).transpose()?,
            patch_contexts: tensors.matrix(&["decoder.patch"], a.global.dim)?,
            decoder_norm: tensors.rms_norm("decoder.norm")?,
            head,
            patcher,
            // patches are computed from the outputs
            encoder: loader.stack("encoder", &a.encoder, a.encoder.dim)?,
            encoder_cross: loader.cross("encoder.cross", &a.encoder)?,
            global: loader.stack("global", &a.global, a.global.dim)?,
            decoder_cross: crosses
                .map(|layer| loader.cross(&format!("decoder.cross.{layer}"), &a.decoder))
                .collect::<Result<_>>()?,
            decoder: loader.stack("decoder", &a.decoder, 0)?,
            pages: PagePool::new(parts.settings.memory_bytes),
            card,
        }))
    }
}

/// Returns the type of the patcher's weights where the others have `dtype`. Integers would move boundaries, and it is small.
fn patcher_dtype(dtype: Dtype) -> Dtype {
    match dtype {
        Dtype::Int8 | Dtype::Int4 => Dtype::Bf16,
        Dtype::F32 | Dtype::Bf16 => dtype,
    }
}

struct Loader<'a> {
    tensors: Tensors<'a>,
}

impl Loader<'_> {
    fn norm(&mut self, name: &str, stack: &BltStack) -> Result<RmsNorm> {
        Ok(RmsNorm { weight: self.tensors.weight(name)?, eps: stack.norm_eps })
    }

    /// Packs the matrices of keys and values, behind `first`, as one. Those of grouped heads are repeated, one for each query head.
    fn projections(&mut self, mut first: Vec<f32>, name: &str, stack: &BltStack) -> Result<Linear> {
        let group = stack.heads / stack.kv_heads;
        for part in ["key", "value"] {
            let weight = self.tensors.weight(format_args!("{name}.{part}"))?;
            for head in weight.chunks_exact(stack.head_dim() * stack.dim) {
                (0..group).for_each(|_| first.extend_from_slice(head));
            }
        }
        self.tensors.pack(&first, &[], stack.dim)
    }

    /// Loads a stack without its last norm, whose cache keeps outputs of width `output`.
    fn stack(&mut self, name: &str, stack: &BltStack, output: usize) -> Result<HybridStack> {
        let BltStack { dim, heads, window, feed_forward, .. } = *stack;
        let head_dim = stack.head_dim();
        let mut layers = Vec::with_capacity(stack.layers);
        for index in 0..stack.layers {
            let key = |part: &str| format!("{name}.{index}.{part}");
            let query = self.tensors.weight(key("attention.query"))?;
            layers.push(HybridLayer {
                norm: self.norm(&key("attention.norm"), stack)?,
                mixer: Mixer::Attention {
                    qkv: self.projections(query, &key("attention"), stack)?,
                    output: self.tensors.matrix(&[key("attention.output")], dim)?,
                },
                feed_forward: Some(FeedForward {
                    norm: self.norm(&key("feed_forward.norm"), stack)?,
                    activation: Activation::Silu,
                    gate: Some(self.tensors.matrix(&[key("feed_forward.gate")], dim)?),
                    up: self.tensors.matrix(&[key("feed_forward.up")], dim)?,
                    down: self.tensors.matrix(&[key("feed_forward.down")], feed_forward)?,
                }),
            });
        }
        let dtype = self.tensors.store.dtype().cache_dtype();
        let layout = PageLayout { dtype, layers: stack.layers, heads, head_dim, output };
        let position = PositionScheme::RoundedRotary(RoundedRotary::new(head_dim, stack.rotary_base));
        Ok(HybridStack { dim, layers, norm: None, position, window, layout })
    }

    fn cross(&mut self, name: &str, stack: &BltStack) -> Result<PatchAttention> {
        let key = |part: &str| format!("{name}.{part}");
        Ok(PatchAttention {
            heads: stack.heads,
            query_norm: self.norm(&key("query_norm"), stack)?,
            key_norm: self.norm(&key("key_norm"), stack)?,
            query: self.tensors.matrix(&[key("query")], stack.dim)?,
            memory: self.projections(Vec::new(), name, stack)?,
            output: self.tensors.matrix(&[key("output")], stack.dim)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of the official hash for these symbols, the newest last.
    fn rows(ids: &[u32], functions: usize, sizes: &[usize]) -> Vec<usize> {
        let ngrams = HashedNgrams { sizes: sizes.to_vec(), functions, rows: 500_002 };
        let mut rows = Vec::new();
        ngrams.rows_at(ids.iter().rev().copied().chain(std::iter::repeat(0)), &mut rows);
        rows
    }

    #[test]
    fn hashes_wrap_and_are_never_negative() {
        assert_eq!(rows(&[1], 1, &[3]), [443_987]);
        assert_eq!(rows(&[1, 76, 105], 1, &[3]), [393_970]);
        assert_eq!(rows(&[104, 36, 116, 108], 1, &[4]), [242_276]);
        assert_eq!(rows(&[1, 88, 108, 105, 36, 123, 105, 109], 1, &[8]), [440_297]);
        assert_eq!(rows(&[76, 105, 112], 2, &[3])[1], 500_002 + 65_329);
        assert_eq!(rows(&[1, 88, 108, 105, 36], 2, &[3, 5])[3], 3 * 500_002 + 134_744);
    }

    #[test]
    fn a_softmax_does_not_depend_on_parts() {
        let scores = [0.5, -2.0, 3.0, 3.0, 100.0, 99.0];
        let mut sum = SoftmaxSum::default();
        let mut mixed = [0.0];
        for (index, score) in scores.into_iter().enumerate() {
            sum.add(score, &[index as f32], &mut mixed);
        }
        let total: f64 = scores.iter().map(|score| (f64::from(*score) - 100.0).exp()).sum();
        let expected: f64 = scores.iter().enumerate().map(|(i, s)| i as f64 * (f64::from(*s) - 100.0).exp()).sum();
        assert!((f64::from(mixed[0] / sum.sum) - expected / total).abs() < 1e-6);
        let a: Vec<f32> = (0..19).map(|i| i as f32).collect();
        assert_eq!(dot(&a, &a), (0..19).map(|i| (i * i) as f32).sum::<f32>());
    }
}
