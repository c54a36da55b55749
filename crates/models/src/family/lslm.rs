//! Latent Segment Language Models: a causal encoder reads segments, and a decoder writes them one by one.
//!
//! Written from the paper (anonymous ACL submission), whose authors released no code: docs/checkpoints.md lists the decisions
//! where it is silent. The three stacks are T5's (Raffel et al. 2020, v1.0), checked against `T5Stack` of Hugging Face
//! transformers 4.33.3, `modeling_t5.py`.
//!
//! token encoder → boundary predictor → pool → context encoder → segment decoder, with cross-attention to the closed
//! segments.
//!
//! In reading order: [`Architecture`]; [`LslmState`], one sequence; [`Work`], a thread's buffers; [`Lslm`], the weights and the
//! three steps; the functions that move vectors between states and buffers, for the encoders and for the decoder; loading.

use crate::checkpoint::{self, Config, require};
use crate::contract::{
    self, BoundaryMode, BoundaryOptions, Card, Cost, KvMemory, Model, PageUse, Scratch, SequenceRow, State, StepStatus,
    SymbolBoundary, Want, check_mode, state_mut, state_ref,
};
use crate::family::parts::{
    self, Batch, Check, StackCaches, StackOf, Tensors, Watcher, check_feed, check_rollback, clone_with_capacity,
    deliver_logits, first_logits, watch, with_status, work_mut,
};
use crate::family::t5_layers::{T5LayerShape, matrix, norm};
use crate::family::{Blueprint, Parts, TensorSpec};
use crate::nn::attention::{Caches, MemoryPart, StackWork};
use crate::nn::boundary::{self, Summed};
use crate::nn::kv_cache::KvCache;
use crate::nn::pooling::Pooling;
use crate::nn::position::{Buckets, PositionScheme};
use crate::nn::t5::T5Stack;
use crate::nn::{Activation, Position, sized};
use crate::text::SpecialSymbols;
use serde::Deserialize;
use std::{ops::Range, path::Path, sync::Arc};
use weir_kernels::Compute;
use weir_kernels::attention::PageLayout;
use weir_kernels::distribution::{log_probability, sigmoid};
use weir_kernels::error::{Error, Result};
use weir_kernels::linear::{Epilogue, Linear};
use weir_kernels::pages::{Page, PagePool};

/// The latent segment model's `architecture` in `config.json`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Architecture {
    /// The token encoder, which reads symbols.
    pub token: T5Shape,
    /// The context encoder, which reads segments.
    pub context: T5Shape,
    /// The segment decoder.
    pub decoder: T5Shape,
    /// Added to the mean square in every norm.
    pub norm_eps: f32,
    /// Reduces a segment to one vector.
    pub pooling: Pooling,
    /// Ends segments of a prompt.
    pub boundaries: Predictor,
    /// Changes a segment vector's width to the context encoder's.
    pub widths: Widths,
    /// True if token encoder and decoder share one embedding.
    pub shared_embedding: bool,
    /// True if the head is the decoder's embedding.
    pub tied_head: bool,
    /// Ends segments of generated text, unless the request names another mode.
    pub driver: Driver,
}

/// One of the three stacks.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct T5Shape {
    /// Layers.
    pub layers: usize,
    /// Width D of the residual stream.
    pub dim: usize,
    /// Attention heads H.
    pub heads: usize,
    /// Width h of a head; not necessarily D/H.
    pub head_dim: usize,
    /// Width F of the feed-forward's inner layer.
    pub feed_forward: usize,
    /// Buckets B of distances.
    pub buckets: usize,
    /// The first distance that may share the last bucket.
    pub max_distance: usize,
    /// True if half of the buckets are for later keys, which a causal stack does not have.
    pub bidirectional_buckets: bool,
}

/// The boundary predictor: b = Σ W₂·relu(W₁·h), a boundary where sigmoid(b) reaches the threshold.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Predictor {
    /// Always `learned`.
    pub kind: PredictorKind,
    /// Width of its hidden layer.
    pub hidden: usize,
    /// Least probability of a boundary.
    pub threshold: f32,
}

/// The kind of predictor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PredictorKind {
    /// A learned predictor on the token encoder's output.
    Learned,
}

/// Changes a segment vector's width from the token encoder's to the context encoder's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Widths {
    /// The widths are equal.
    Equal,
    /// A matrix between pooling and context encoder.
    Projection,
    /// The first layer's attention changes the width, without a residual around it.
    FirstLayer,
}

weir_kernels::named!(Widths { Equal: "equal", Projection: "projection", FirstLayer: "first-layer" });

/// Ends segments of generated text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Driver {
    /// The decoder, by generating its end symbol.
    Nxt,
    /// The predictor, as in a prompt.
    Predictor,
}

impl Driver {
    /// Both boundary modes, the default first.
    pub fn modes(self) -> Vec<BoundaryMode> {
        match self {
            Self::Nxt => vec![BoundaryMode::Nxt, BoundaryMode::Predictor],
            Self::Predictor => vec![BoundaryMode::Predictor, BoundaryMode::Nxt],
        }
    }
}

impl T5Shape {
    /// Maps distances to buckets.
    pub fn buckets(&self) -> Buckets {
        Buckets { count: self.buckets, max_distance: self.max_distance, bidirectional: self.bidirectional_buckets }
    }

    fn validate(&self, name: &str, check: Check<'_>) -> Result<()> {
        let key = |key: &str| format!("{name}.{key}");
        let Self { dim, heads, head_dim, feed_forward, buckets, max_distance, .. } = *self;
        check.layers(key("layers"), self.layers)?;
        let dims = [("dim", dim), ("heads", heads), ("head_dim", head_dim), ("feed_forward", feed_forward)];
        let all = dims.into_iter().chain([("buckets", buckets), ("max_distance", max_distance)]);
        all.into_iter().try_for_each(|(name, dim)| check.dim(key(name), dim))?;
        let min_buckets = if self.bidirectional_buckets { 4 } else { 2 };
        let expected = format!("at least {min_buckets}, half of them for single distances");
        check.require(buckets >= min_buckets, key("buckets"), expected, buckets)?;
        let expected = "more than the distances that have buckets of their own";
        check.require(self.buckets().is_valid(), key("max_distance"), expected, max_distance)?;
        check.distance_table(key("max_distance"), self.buckets().table_numbers(heads))
    }
}

/// A validated latent segment model.
#[derive(Debug, Clone)]
pub struct LslmBlueprint {
    /// The validated architecture.
    pub architecture: Architecture,
    /// Vocabulary size V.
    pub symbols: usize,
}

impl LslmBlueprint {
    fn validate(&self, file: &Path) -> Result<()> {
        let a = &self.architecture;
        let check = Check { file };
        for (name, stack) in self.stacks() {
            stack.validate(name, check)?;
        }
        check.fraction("norm_eps", a.norm_eps)?;
        check.dim("boundaries.hidden", a.boundaries.hidden)?;
        check.fraction("boundaries.threshold", a.boundaries.threshold)?;
        let [token, context, decoder] = self.stacks().map(|(_, stack)| stack.dim);
        let expected = match token == context {
            true => "equal, as both widths are",
            false => "projection or first-layer, as widths differ",
        };
        let expected = format!("{expected} (token encoder {token}, context encoder {context})");
        check.require((a.widths == Widths::Equal) == (token == context), "widths", expected, a.widths.name())?;
        let expected = format!("false: token encoder and decoder have widths {token} and {decoder}");
        check.require(!a.shared_embedding || token == decoder, "shared_embedding", expected, true)?;
        check.tensors("token.dim", &self.tensors())
    }

    /// The three stacks with their names.
    pub fn stacks(&self) -> [(&'static str, &T5Shape); 3] {
        let a = &self.architecture;
        [("token", &a.token), ("context", &a.context), ("decoder", &a.decoder)]
    }

    fn layer(&self, stack: &str, shape: &T5Shape, index: usize) -> T5LayerShape {
        let T5Shape { dim, heads, head_dim, feed_forward, .. } = *shape;
        let a = &self.architecture;
        let changes_width = stack == "context" && index == 0 && a.widths == Widths::FirstLayer;
        T5LayerShape {
            inputs: if changes_width { a.token.dim } else { dim },
            dim,
            heads,
            head_dim,
            memory: (stack == "decoder").then_some(a.context.dim),
            feed_forward,
            activation: Activation::Relu,
            gated: false,
            small_queries: false,
        }
    }
}

// All progress of a sequence follows from its caches and segment ends: a row waits while `context` is behind `segment_ends`, and
// is unfinished while `finished` is behind. The decoder and the token encoder may be behind: later steps compute missing
// positions from the symbols. So a fork is a clone, and a rollback truncates.

/// Initial capacities in segments and symbols, so that a usual sequence never reallocates during a step.
const SEGMENT_CAPACITY: usize = 1024;

const SYMBOL_CAPACITY: usize = 4 * SEGMENT_CAPACITY;

/// One sequence of a latent segment model.
pub struct LslmState {
    /// The token encoder: position 0 is the start symbol, position t + 1 symbol t; with its outputs, which pooling reads.
    pub token: KvCache,
    /// The context encoder: position 0 is the start symbol's own segment, position m + 1 segment m.
    pub context: KvCache,
    /// The decoder's keys and values of the same segments, for cross-attention.
    pub memory: KvCache,
    /// The decoder, in one segment: position 0 is the segment's opening symbol, position i its i-th symbol.
    pub decoder: KvCache,
    /// The segment in `decoder`.
    pub decoder_segment: usize,
    /// The fed symbols.
    pub symbols: Vec<u32>,
    /// True for each symbol that the token encoder has read and after which the predictor ends a segment.
    pub predicted: Vec<bool>,
    /// Position of each closed segment's last symbol.
    pub segment_ends: Vec<usize>,
    /// Symbols that have had their finish step; later ones are in flight.
    pub finished: usize,
    /// Segments closed at the last finish step: a segment may close without a symbol.
    pub finished_segments: usize,
    /// Leading segments that the predictor would have cut the same way.
    pub agreed_segments: usize,
    /// True if a feed is in flight, which may have no symbols.
    pub in_flight: bool,
}

/// The caches of a sequence that has read the start symbol only.
#[derive(Clone)]
pub struct StartCaches {
    /// See [`LslmState::token`].
    pub token: KvCache,
    /// See [`LslmState::context`].
    pub context: KvCache,
    /// See [`LslmState::memory`].
    pub memory: KvCache,
}

impl LslmState {
    /// Returns a sequence that has read the start symbol only; `decoder` is empty.
    pub fn new(start: StartCaches, decoder: KvCache) -> Self {
        let StartCaches { token, context, memory } = start;
        Self {
            token,
            context,
            memory,
            decoder,
            decoder_segment: 0,
            symbols: Vec::with_capacity(SYMBOL_CAPACITY),
            predicted: Vec::with_capacity(SYMBOL_CAPACITY),
            segment_ends: Vec::with_capacity(SEGMENT_CAPACITY),
            finished: 0,
            finished_segments: 0,
            agreed_segments: 0,
            in_flight: false,
        }
    }

    /// True if the context encoder has not read all closed segments.
    pub fn needs_segment_step(&self) -> bool {
        self.context.len() < self.segment_ends.len() + 1
    }

    /// First position of segment `m`, which may be the open one.
    pub fn segment_start(&self, m: usize) -> usize {
        m.checked_sub(1).map_or(0, |before| self.segment_ends[before] + 1)
    }

    /// Positions of segment `m`, which may be the open one.
    pub fn segment(&self, m: usize) -> Range<usize> {
        self.segment_start(m)..self.segment_ends.get(m).map_or(self.symbols.len(), |&end| end + 1)
    }

    /// Number of symbols in the open segment.
    pub fn open_len(&self) -> usize {
        self.segment(self.segment_ends.len()).len()
    }

    /// Number of symbols that the token encoder has read.
    pub fn encoded(&self) -> usize {
        self.predicted.len()
    }

    /// Empties the decoder's cache if it holds a segment that has closed, whose keys nothing reads any more.
    pub fn switch_to_open_segment(&mut self) {
        if self.decoder_segment != self.segment_ends.len() {
            self.decoder.truncate(0);
            self.decoder_segment = self.segment_ends.len();
        }
    }

    /// Counts the leading segments that the predictor would have cut the same way, as far as the token encoder has read.
    pub fn count_agreed(&mut self) {
        while let Some(&end) = self.segment_ends.get(self.agreed_segments) {
            let Some(predicted) = self.predicted.get(self.segment_start(self.agreed_segments)..=end) else { return };
            // the predictor closes the segment at its last symbol and not before
            if predicted.iter().position(|&closes| closes) != Some(predicted.len() - 1) {
                return;
            }
            self.agreed_segments += 1;
        }
    }

    /// Maximum bytes of pages that extending the decoder's cache to `positions` can take; unshared pages are freed first.
    pub fn decoder_growth(&self, positions: usize) -> usize {
        let layout = self.decoder.layout();
        if self.decoder.pages().iter().any(Page::is_shared) {
            return layout.bytes_for(positions);
        }
        layout.bytes_for(positions).saturating_sub(self.decoder.bytes())
    }

    /// Truncates everything to the first `len` symbols and `segments` segments.
    fn truncate(&mut self, len: usize, segments: usize) {
        self.segment_ends.truncate(segments);
        self.symbols.truncate(len);
        self.predicted.truncate(len);
        self.token.truncate(len + 1);
        self.context.truncate(segments + 1);
        self.memory.truncate(segments + 1);
        self.switch_to_open_segment();
        self.decoder.truncate(self.open_len() + 1);
        self.finished = self.finished.min(len);
        self.finished_segments = self.finished_segments.min(segments);
        self.agreed_segments = self.agreed_segments.min(segments);
    }

    fn caches(&self) -> [&KvCache; 4] {
        [&self.token, &self.context, &self.memory, &self.decoder]
    }
}

impl State for LslmState {
    fn len(&self) -> usize {
        self.symbols.len()
    }

    fn segments(&self) -> usize {
        self.segment_ends.len()
    }

    fn fork(&self) -> Box<dyn State> {
        let mut fork = Self {
            token: self.token.clone(),
            context: self.context.clone(),
            memory: self.memory.clone(),
            decoder: self.decoder.clone(),
            symbols: clone_with_capacity(&self.symbols, SYMBOL_CAPACITY),
            predicted: clone_with_capacity(&self.predicted, SYMBOL_CAPACITY),
            segment_ends: clone_with_capacity(&self.segment_ends, SEGMENT_CAPACITY),
            in_flight: false,
            ..*self
        };
        fork.truncate(self.finished, self.finished_segments);
        Box::new(fork)
    }

    fn rollback(&mut self, len: usize) -> Result<()> {
        check_rollback(self, !self.in_flight, len)?;
        self.truncate(len, self.segment_ends.partition_point(|&end| end < len));
        Ok(())
    }

    fn restart(&mut self, _offset: usize) {
        // boundaries do not depend on the position in the stream
        self.truncate(0, 0);
        self.in_flight = false;
    }

    fn boundary_before(&self, len: usize) -> usize {
        let closed = self.segment_ends.partition_point(|&end| end < len);
        closed.checked_sub(1).map_or(0, |last| self.segment_ends[last] + 1)
    }

    fn bytes(&self) -> usize {
        self.caches().into_iter().map(KvCache::bytes).sum()
    }

    fn pages(&self, each: &mut dyn FnMut(PageUse)) {
        parts::own_pages(self.caches(), each);
    }

    fn own_bytes(&self) -> usize {
        let lists = self.symbols.capacity() * size_of::<u32>()
            + self.predicted.capacity() * size_of::<bool>()
            + self.segment_ends.capacity() * size_of::<usize>();
        size_of::<Self>() + self.caches().into_iter().map(KvCache::own_bytes).sum::<usize>() + lists
    }

    fn agreed(&self) -> usize {
        self.segment_start(self.agreed_segments)
    }
}

/// Names an intermediate result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LslmStage {
    /// The token encoder's output; position 0 is the start symbol, t + 1 symbol t.
    Token,
    /// The predictor's logit at the same position.
    Boundary,
    /// A segment's pooled vector; position m + 1 is segment m.
    Pooled,
    /// The context encoder's output at the same position.
    Context,
}

/// Symbols of a row that the token encoder reads in this step: from `start` to the last.
#[derive(Debug, Clone, Copy)]
struct UnreadSymbols {
    row: usize,
    start: usize,
}

/// Consecutive positions of one segment in the decoder.
#[derive(Debug, Clone, Copy)]
struct SegmentRun {
    /// The row, by its index in the step.
    row: usize,
    /// Index in the wanted vectors of the row's first.
    slot: usize,
    segment: usize,
    /// First position.
    start: usize,
    /// One past the last position.
    end: usize,
    /// Index of the spare cache with its keys; `None` if the sequence has them.
    spare: Option<usize>,
}

/// The decision on the symbol that ends a segment: `rows[row].decisions[decision]`.
#[derive(Debug, Clone, Copy)]
struct EndDecision {
    row: usize,
    decision: usize,
}

/// The head's inputs.
#[derive(Default)]
struct WantedVectors {
    /// Vectors whose logits are wanted, row after row: (wanted, E)
    vectors: Vec<f32>,
    /// Each row's first index in `vectors`.
    slots: Vec<usize>,
    /// Vectors that predict the ends of closed segments: (segments, E)
    end_vectors: Vec<f32>,
    /// The decision that each of `end_vectors` belongs to.
    end_decisions: Vec<EndDecision>,
    /// The next closed segment to decode: index among the step's rows, and segment, if not the row's first.
    next_row: usize,
    next_segment: Option<usize>,
}

/// Working memory of one thread.
#[derive(Default)]
pub struct Work {
    /// Receives the vectors of each stage.
    pub watcher: Option<Watcher<LslmStage>>,
    stack: StackWork,
    predictor: boundary::SummedWork,
    batch: Batch,
    chosen: Vec<usize>,
    /// The projection's input: (segments, D)
    unprojected: Vec<f32>,
    /// The predictor's logit for each of `positions` that the token encoder has read.
    boundary_logits: Vec<f32>,
    unread: Vec<UnreadSymbols>,
    runs: Vec<SegmentRun>,
    /// The decoder's caches of segments that are closed and scored in the same step.
    spare_caches: Vec<KvCache>,
    /// Pages of the spare caches. They are limited by the runs of a pass, and not counted as key-value memory.
    spare_pages: Option<Arc<PagePool>>,
    wanted: WantedVectors,
    /// (wanted, V)
    logits: Vec<f32>,
}

impl Work {
    /// Provides at least `count` spare caches, all of them empty.
    fn clear_spare_caches(&mut self, count: usize, layout: PageLayout) {
        let pages = self.spare_pages.get_or_insert_with(|| PagePool::new(usize::MAX));
        while self.spare_caches.len() < count {
            self.spare_caches.push(KvCache::new(layout, pages.clone()));
        }
        self.spare_caches.iter_mut().for_each(|cache| cache.truncate(0));
    }

    fn show(&mut self, stage: LslmStage) {
        let numbers = if stage == LslmStage::Boundary { &self.boundary_logits } else { &self.batch.x };
        watch(&mut self.watcher, stage, &self.batch.positions, numbers);
    }
}

const TOKEN: StackOf<LslmState> = StackOf(|state| Ok(&state.token), |state| Ok(&mut state.token));
const CONTEXT: StackOf<LslmState> = StackOf(|state| Ok(&state.context), |state| Ok(&mut state.context));

fn state(rows: &mut [SequenceRow], index: usize) -> Result<&mut LslmState> {
    state_mut(&mut *rows[index].state)
}

// The weights and the three steps. Hot path: no allocation once the buffers in `Work` have grown, no locks, no logging.

/// A loaded latent segment model. D, C, E = widths of token encoder, context encoder, decoder; V = vocabulary size.
pub struct Lslm {
    card: Card,
    compute: Compute,
    specials: SpecialSymbols,
    /// (V, D)
    token_embedding: Arc<[f32]>,
    /// (V, E)
    decoder_embedding: Arc<[f32]>,
    token: T5Stack,
    predictor: Summed,
    pooling: Pooling,
    /// (C, D), between pooling and context encoder, if their widths differ and the first layer does not change the width.
    projection: Option<Linear>,
    context: T5Stack,
    decoder: T5Stack,
    /// (V, E)
    head: Linear,
    /// Factor of the head's input: 1, unless the head is the embedding.
    head_scale: f32,
    /// Layout of the decoder's keys and values of segments.
    memory: PageLayout,
    /// The state after the start symbol, computed once: every sequence begins with it.
    start: StartCaches,
    pages: Arc<PagePool>,
    /// Bytes of pages that the model itself holds: the start symbol's.
    own_bytes: usize,
}

impl Model for Lslm {
    fn card(&self) -> &Card {
        &self.card
    }

    fn begin(&self, boundaries: BoundaryOptions) -> Result<Box<dyn State>> {
        check_mode(&boundaries, &self.card)?;
        let decoder = KvCache::new(self.decoder.layout, self.pages.clone());
        Ok(Box::new(LslmState::new(self.start.clone(), decoder)))
    }

    /// Symbol step: token encoder → boundary predictor → segment ends. Symbols with boundaries are read in the segment step.
    fn symbol_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        let work: &mut Work = work_mut(scratch)?;
        which.iter().try_for_each(|&index| append_feed(&self.card, &mut rows[index]))?;
        gather_unread_symbols(rows, which, work)?;
        self.encode_symbols(rows, work)?; // (symbols, D), boundary logits (symbols)
        cut_segments(&self.predictor, rows, which, work)
    }

    /// Segment step: token encoder for symbols not yet read → pool → context encoder → the decoder's keys and values.
    fn segment_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        let work: &mut Work = work_mut(scratch)?;
        let Some(waiting) = with_status(StepStatus::Waiting, rows, which, &mut work.chosen) else { return Ok(()) };
        gather_closed_symbols(rows, &waiting, work)?;
        self.encode_symbols(rows, work)?; // (symbols, D)
        pool_segments(self.pooling, self.width(), rows, &waiting, work)?; // (segments, D)
        self.encode_segments(rows, work)?; // (segments, C)
        for &index in &waiting {
            state(rows, index)?.count_agreed();
            rows[index].status = StepStatus::Unfinished;
        }
        work.chosen = waiting;
        Ok(())
    }

    /// Finish step: segment decoder, with cross-attention to the closed segments → logits, some dozens of segments at a time.
    fn finish_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        let work: &mut Work = work_mut(scratch)?;
        let Some(unfinished) = with_status(StepStatus::Unfinished, rows, which, &mut work.chosen) else {
            return Ok(());
        };
        reserve_wanted(self.head.inputs(), rows, &unfinished, work);
        while gather_closed_segments(self.decoder.layout, rows, &unfinished, work)? {
            self.decode_segments(rows, work)?;
        }
        gather_open_segments(rows, &unfinished, work)?;
        self.decode_segments(rows, work)?;
        self.apply_head(work, true); // (closed segments, V)
        end_logprobs(self.head.outputs(), self.specials.segment_end, rows, work)?;
        self.apply_head(work, false); // (wanted, V)
        deliver_logits(rows, &unfinished, &work.logits, self.head.outputs())?;
        finish_rows(rows, &unfinished)?;
        work.chosen = unfinished;
        Ok(())
    }

    fn bytes_for(&self, symbols: usize) -> usize {
        // every symbol may end a segment, or none
        let layouts = [&self.token.layout, &self.context.layout, &self.memory, &self.decoder.layout];
        layouts.into_iter().map(|layout| layout.bytes_for(symbols + 1)).sum()
    }

    fn growth(&self, state: &dyn State, more: usize) -> usize {
        // the step rejects another model's state
        let Ok(state) = state_ref::<LslmState>(state) else { return 0 };
        let segments = state.segment_ends.len() + more;
        state.token.growth(state.symbols.len() + more + 1)
            + state.context.growth(segments + 1)
            + state.memory.growth(segments + 1)
            + state.decoder_growth(state.open_len() + more + 1)
    }

    fn memory(&self) -> KvMemory {
        // admission counts on the complete limit, so the start symbol's pages are taken off it
        KvMemory { in_use: self.pages.in_use() - self.own_bytes, limit: self.pages.limit() - self.own_bytes }
    }

    fn cost(&self, symbols: usize, segments: usize) -> Cost {
        let mut cost = Cost::default();
        cost.symbol += parts::t5_stack_cost(&self.token, symbols + 1, 0);
        for matrix in self.predictor.matrices() {
            cost.symbol += parts::linear_cost(matrix);
        }
        let open = symbols.div_ceil(segments.max(1)) + 1;
        cost.symbol += parts::t5_stack_cost(&self.decoder, open, segments + 1);
        cost.segment += parts::t5_stack_cost(&self.context, segments + 1, 0);
        let memory = self.decoder.layers.iter().filter_map(|layer| layer.cross.as_ref()).map(|cross| &cross.memory);
        for matrix in self.projection.iter().chain(memory) {
            cost.segment += parts::linear_cost(matrix);
        }
        cost.logits += parts::linear_cost(&self.head);
        cost
    }
}

impl Lslm {
    /// Token encoder and boundary predictor over the symbols of `work.batch.positions`.
    fn encode_symbols(&self, rows: &mut [SequenceRow], work: &mut Work) -> Result<()> {
        embed_symbols(&self.token_embedding, self.width(), rows, work)?; // (symbols, D)
        if work.batch.positions.is_empty() {
            return Ok(());
        }
        let caches = &mut StackCaches(rows, TOKEN);
        self.token.forward(&self.compute, &mut work.batch.x, &work.batch.positions, caches, &mut work.stack)?;
        work.show(LslmStage::Token);
        self.predictor.logits(&self.compute, &work.batch.x, &mut work.predictor, &mut work.boundary_logits); // (symbols)
        work.show(LslmStage::Boundary);
        scatter_symbols(&self.predictor, rows, work)
    }

    /// Context encoder over the pooled vectors `work.batch.x` (segments, D), and the decoder's keys and values of its outputs.
    fn encode_segments(&self, rows: &mut [SequenceRow], work: &mut Work) -> Result<()> {
        if let Some(projection) = &self.projection {
            std::mem::swap(&mut work.batch.x, &mut work.unprojected);
            let x = sized(&mut work.batch.x, work.batch.positions.len() * projection.outputs());
            projection.apply(&self.compute, &work.unprojected, Epilogue::None, &mut work.stack.quantized, x); // (segments, C)
        }
        let caches = &mut StackCaches(rows, CONTEXT);
        self.context.forward(&self.compute, &mut work.batch.x, &work.batch.positions, caches, &mut work.stack)?; // (segments, C)
        work.show(LslmStage::Context);
        let positions = &work.batch.positions;
        self.decoder.project_memory(&self.compute, &work.batch.x, &mut work.stack, |layer, index, keys, values| {
            let position = positions[index];
            state(rows, position.sequence)?.memory.write(self.compute.isa, layer, position.index, keys, values)
        })?;
        for position in positions {
            let state = state(rows, position.sequence)?;
            state.context.advance(1);
            state.memory.advance(1);
        }
        Ok(())
    }

    /// Decoder over the segments' positions in `work.runs`.
    fn decode_segments(&self, rows: &mut [SequenceRow], work: &mut Work) -> Result<()> {
        gather_runs(&self.decoder_embedding, self.head.inputs(), self.specials.segment_start, rows, work)?; // (positions, E)
        let mut caches = SegmentCaches { rows, runs: &work.runs, spare: &mut work.spare_caches };
        self.decoder.forward(&self.compute, &mut work.batch.x, &work.batch.positions, &mut caches, &mut work.stack)?; // (positions, E)
        scatter_runs(self.head.inputs(), rows, work)
    }

    /// `work.logits` (vectors, V) = logits of the wanted vectors, or of the closed segments' last vectors.
    fn apply_head(&self, work: &mut Work, segment_ends: bool) {
        let vectors = if segment_ends { &mut work.wanted.end_vectors } else { &mut work.wanted.vectors };
        work.logits.clear();
        if vectors.is_empty() {
            return;
        }
        if self.head_scale != 1.0 {
            vectors.iter_mut().for_each(|x| *x *= self.head_scale);
        }
        let logits = sized(&mut work.logits, vectors.len() / self.head.inputs() * self.head.outputs());
        self.head.apply(&self.compute, vectors, Epilogue::None, &mut work.stack.quantized, logits);
    }

    fn width(&self) -> usize {
        self.token.norm.weight.len()
    }
}

// Between the rows' states and `work.batch`, for the two encoders. Hot path, as the steps are.

/// Checks a row's feed and appends its symbols to the sequence; their boundaries follow in [`cut_segments`].
fn append_feed(card: &Card, row: &mut SequenceRow) -> Result<()> {
    check_feed(card, row, !state_ref::<LslmState>(&*row.state)?.in_flight)?;
    let SequenceRow { state, feed, .. } = row;
    let state: &mut LslmState = state_mut(&mut **state)?;
    let before = state.symbols.len();
    match feed[..] {
        [contract::END] if state.open_len() == 0 => {
            return Err(Error::Internal("cannot end a segment without symbols".into()));
        }
        [contract::BEGIN] if before > 0 => {
            return Err(Error::Internal(format!("cannot begin a sequence that has {before} symbols")));
        }
        [contract::END | contract::BEGIN] => {}
        _ => {
            state.symbols.extend(feed.iter().map(|&item| contract::symbol(item)));
            let checked = card.vocabulary.check_ids("feed", &state.symbols[before..]);
            if checked.is_err() {
                state.symbols.truncate(before);
            }
            checked?;
        }
    }
    state.in_flight = true;
    Ok(())
}

/// Lists the symbols of rows that need the predictor: some fed symbol came without a boundary.
fn gather_unread_symbols(rows: &[SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
    work.unread.clear();
    work.batch.positions.clear();
    for &index in which {
        let SequenceRow { feed, state, .. } = &rows[index];
        let state: &LslmState = state_ref(&**state)?;
        if !contract::is_control(feed) && feed.iter().any(|&item| contract::ends_segment(item).is_none()) {
            let start = state.encoded();
            work.unread.push(UnreadSymbols { row: index, start });
            let unread = start..state.symbols.len();
            work.batch.positions.extend(unread.map(|t| Position { sequence: index, index: t + 1 }));
        }
    }
    Ok(())
}

/// Lists the symbols of closed segments that the token encoder has not read.
fn gather_closed_symbols(rows: &mut [SequenceRow], waiting: &[usize], work: &mut Work) -> Result<()> {
    work.batch.positions.clear();
    for &index in waiting {
        let state = state(rows, index)?;
        let closed = state.segment_start(state.segment_ends.len());
        work.batch.positions.extend((state.encoded()..closed).map(|t| Position { sequence: index, index: t + 1 }));
    }
    Ok(())
}

/// `work.batch.x` (symbols, `dim`) = the embeddings of the symbols at `work.batch.positions`; makes room in the token encoder's caches.
fn embed_symbols(embedding: &[f32], dim: usize, rows: &mut [SequenceRow], work: &mut Work) -> Result<()> {
    if work.batch.positions.is_empty() {
        return Ok(());
    }
    work.batch.x.clear();
    let mut offset = 0;
    while let Some(&Position { sequence, index: position }) = work.batch.positions.get(offset) {
        let run = work.batch.positions[offset..].iter().take_while(|position| position.sequence == sequence).count();
        let state = state(rows, sequence)?;
        state.token.reserve(run)?;
        work.batch.embed(embedding, dim, &state.symbols[position - 1..][..run]);
        offset += run;
    }
    Ok(())
}

/// Stores the token encoder's outputs and the predictor's decisions in the rows.
fn scatter_symbols(predictor: &Summed, rows: &mut [SequenceRow], work: &Work) -> Result<()> {
    for ((position, x), &logit) in work.batch.iter().zip(&work.boundary_logits) {
        let state = state(rows, position.sequence)?;
        state.token.write_output(position.index, x)?;
        state.token.advance(1);
        state.predicted.push(predictor.closes(logit));
    }
    Ok(())
}

/// Appends segment ends and boundary decisions. Rows that closed a segment wait; all others can be finished.
fn cut_segments(predictor: &Summed, rows: &mut [SequenceRow], which: &[usize], work: &Work) -> Result<()> {
    let mut unread = work.unread.iter().peekable();
    let mut logits = &work.boundary_logits[..work.batch.positions.len()];
    for &index in which {
        let SequenceRow { state, feed, decisions, status, .. } = &mut rows[index];
        let state: &mut LslmState = state_mut(&mut **state)?;
        decisions.clear();
        if contract::is_control(feed) {
            let boundary = feed[..] == [contract::END];
            decisions.push(SymbolBoundary { boundary, ..SymbolBoundary::default() });
            if boundary {
                state.segment_ends.push(state.symbols.len() - 1);
            }
        } else {
            // the logits of this row's last symbols, if the token encoder read them in this step
            let read = unread.next_if(|unread| unread.row == index).map_or(0, |row| state.symbols.len() - row.start);
            let (own, others) = logits.split_at(read);
            logits = others;
            let first_fed = state.symbols.len() - feed.len();
            let first_read = state.symbols.len() - read;
            for (t, &item) in (first_fed..).zip(feed.iter()) {
                let logit = t.checked_sub(first_read).and_then(|offset| own.get(offset)).copied();
                let predicted = logit.is_some_and(|logit| predictor.closes(logit));
                let boundary = contract::ends_segment(item).unwrap_or(predicted);
                let probability = logit.map(sigmoid);
                decisions.push(SymbolBoundary { boundary, probability, ..SymbolBoundary::default() });
                if boundary {
                    state.segment_ends.push(t);
                }
            }
        }
        *status = if state.needs_segment_step() { StepStatus::Waiting } else { StepStatus::Unfinished };
    }
    Ok(())
}

/// `work.batch.x` (segments, `dim`) = the pooled vectors of the segments that the context encoder has not read; makes room for them.
fn pool_segments(
    pooling: Pooling,
    dim: usize,
    rows: &mut [SequenceRow],
    waiting: &[usize],
    work: &mut Work,
) -> Result<()> {
    work.batch.positions.clear();
    for &index in waiting {
        let state = state(rows, index)?;
        let more = state.segment_ends.len() + 1 - state.context.len();
        state.context.reserve(more)?;
        state.memory.reserve(more)?;
        work.batch.extend(index, &state.context, more);
    }
    work.batch.fill(dim, |Position { sequence, index: position }, x| {
        let state = state(rows, sequence)?;
        let symbols = state.segment(position - 1);
        pooling.pool(symbols.map(|t| state.token.output(t + 1)), x);
        Ok(())
    })?;
    work.show(LslmStage::Pooled);
    Ok(())
}

// Between the rows' states and `work.batch`, for the segment decoder. It reads a segment's opening symbol and then its
// symbols. The symbol after t is predicted by the vector at t, or, if a segment ends with t, by the next segment's first vector;
// the vector at t then predicts the segment's end. Keys of open segments live in their sequences; segments that close while all
// logits are wanted use spare caches.

/// Maximum closed segments that one pass decodes.
const MAX_RUNS: usize = 64;

struct SegmentCaches<'a> {
    rows: &'a mut [SequenceRow],
    runs: &'a [SegmentRun],
    spare: &'a mut [KvCache],
}

impl Caches for SegmentCaches<'_> {
    fn cache(&self, run: usize) -> Result<&KvCache> {
        let SegmentRun { row, spare, .. } = self.runs[run];
        match spare {
            Some(index) => Ok(&self.spare[index]),
            None => Ok(&state_ref::<LslmState>(&*self.rows[row].state)?.decoder),
        }
    }

    fn cache_mut(&mut self, run: usize) -> Result<&mut KvCache> {
        let SegmentRun { row, spare, .. } = self.runs[run];
        match spare {
            Some(index) => Ok(&mut self.spare[index]),
            None => Ok(&mut state_mut::<LslmState>(&mut *self.rows[row].state)?.decoder),
        }
    }

    fn memory(&self, run: usize) -> Result<MemoryPart<'_>> {
        let SegmentRun { row, segment, .. } = self.runs[run];
        // memory position 0 is the start symbol's segment, so segment m attends up to position m
        Ok(MemoryPart { cache: &state_ref::<LslmState>(&*self.rows[row].state)?.memory, last: segment })
    }
}

fn wants_all(row: &SequenceRow) -> bool {
    row.want == Want::All && !contract::is_control(&row.feed)
}

/// Reserves room for the wanted vectors, (wanted, `dim`), of the rows `which`.
fn reserve_wanted(dim: usize, rows: &[SequenceRow], which: &[usize], work: &mut Work) {
    let wanted = &mut work.wanted;
    let mut count = 0;
    wanted.slots.clear();
    for &index in which {
        wanted.slots.push(count);
        count += rows[index].wanted();
    }
    // a vector that no run fills must not pass for a number
    wanted.vectors.clear();
    wanted.vectors.resize(count * dim, f32::NAN);
    wanted.end_vectors.clear();
    wanted.end_decisions.clear();
    wanted.next_row = 0;
    wanted.next_segment = None;
}

/// Lists in `work.runs` the next closed segments of rows that want all logits; false if there are none left.
fn gather_closed_segments(
    layout: PageLayout,
    rows: &mut [SequenceRow],
    which: &[usize],
    work: &mut Work,
) -> Result<bool> {
    work.runs.clear();
    while let Some(&row) = which.get(work.wanted.next_row).filter(|_| work.runs.len() < MAX_RUNS) {
        let scored = wants_all(&rows[row]);
        let state = state(rows, row)?;
        let segment = work.wanted.next_segment.unwrap_or(state.finished_segments);
        if !scored || segment == state.segment_ends.len() {
            work.wanted.next_row += 1;
            work.wanted.next_segment = None;
            continue;
        }
        // the segment that was open until this step continues in its sequence's cache
        let own = state.decoder_segment == segment;
        work.runs.push(SegmentRun {
            row,
            slot: work.wanted.slots[work.wanted.next_row],
            segment,
            start: if own { state.decoder.len() } else { 0 },
            end: state.segment(segment).len() + 1,
            spare: (!own).then_some(work.runs.len()),
        });
        work.wanted.next_segment = Some(segment + 1);
    }
    work.clear_spare_caches(work.runs.len(), layout);
    Ok(!work.runs.is_empty())
}

/// Lists in `work.runs` the open segments of rows that want logits.
fn gather_open_segments(rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
    work.runs.clear();
    for (&row, &slot) in which.iter().zip(&work.wanted.slots) {
        let want = rows[row].want;
        let begins = rows[row].feed[..] == [contract::BEGIN];
        let state = state(rows, row)?;
        state.switch_to_open_segment();
        if begins {
            state.decoder.truncate(0);
        }
        if want != Want::Nothing {
            let segment = state.segment_ends.len();
            let start = state.decoder.len();
            let end = state.open_len() + 1;
            work.runs.push(SegmentRun { row, slot, segment, start, end, spare: None });
        }
    }
    Ok(())
}

/// `work.batch.x` (positions, `dim`) = the embeddings of the runs' symbols; makes room in the decoder's caches.
fn gather_runs(
    embedding: &[f32],
    dim: usize,
    segment_start: u32,
    rows: &mut [SequenceRow],
    work: &mut Work,
) -> Result<()> {
    work.batch.clear();
    for (index, run) in work.runs.iter().enumerate() {
        let state = state(rows, run.row)?;
        let cache = run.spare.map_or(&mut state.decoder, |spare| &mut work.spare_caches[spare]);
        cache.reserve(run.end - run.start)?;
        let first = state.segment_start(run.segment);
        for position in run.start..run.end {
            work.batch.positions.push(Position { sequence: index, index: position });
            let symbol = if position == 0 { segment_start } else { state.symbols[first + position - 1] };
            work.batch.embed(embedding, dim, &[symbol]); // (positions, E)
        }
    }
    Ok(())
}

/// Stores the runs' vectors in `work.wanted`.
fn scatter_runs(dim: usize, rows: &mut [SequenceRow], work: &mut Work) -> Result<()> {
    let mut rest = &work.batch.x[..];
    for run in &work.runs {
        let (own, others) = rest.split_at((run.end - run.start) * dim);
        let cache = match run.spare {
            Some(spare) => &mut work.spare_caches[spare],
            None => &mut state(rows, run.row)?.decoder,
        };
        cache.advance(run.end - run.start);
        scatter_run(dim, &rows[run.row], run, own, &mut work.wanted)?;
        rest = others;
    }
    Ok(())
}

/// Copies a run's vectors, `own` (positions, `dim`), to the row's wanted slots and to the end vectors.
fn scatter_run(dim: usize, row: &SequenceRow, run: &SegmentRun, own: &[f32], wanted: &mut WantedVectors) -> Result<()> {
    let state: &LslmState = state_ref(&*row.state)?;
    let all = wants_all(row);
    let closed = run.segment < state.segment_ends.len();
    let first = state.segment_start(run.segment);
    for (position, vector) in (run.start..run.end).zip(own.chunks_exact(dim)) {
        let last = position + 1 == run.end;
        // index among the fed symbols of the symbol that the vector follows
        let fed = (first + position).checked_sub(1 + state.finished);
        let slot = match fed {
            Some(decision) if all && closed && last => {
                wanted.end_vectors.extend_from_slice(vector);
                wanted.end_decisions.push(EndDecision { row: run.row, decision });
                None
            }
            _ if all => fed.map(|fed| run.slot + fed),
            _ => last.then_some(run.slot),
        };
        if let Some(slot) = slot {
            wanted.vectors[slot * dim..][..dim].copy_from_slice(vector);
        }
    }
    Ok(())
}

/// Writes the log-probabilities of segment ends into the rows' decisions, from `work.logits` (segments, V); V = `symbols`.
fn end_logprobs(symbols: usize, segment_end: u32, rows: &mut [SequenceRow], work: &Work) -> Result<()> {
    for (logits, end) in work.logits.chunks_exact(symbols).zip(&work.wanted.end_decisions) {
        let logprob = log_probability(logits, segment_end)?;
        if let Some(decision) = rows[end.row].decisions.get_mut(end.decision) {
            decision.end_logprob = Some(logprob as f32);
        }
    }
    Ok(())
}

/// Records that no symbol of these rows is in flight any more.
fn finish_rows(rows: &mut [SequenceRow], which: &[usize]) -> Result<()> {
    for &index in which {
        let state = state(rows, index)?;
        state.finished = state.symbols.len();
        state.finished_segments = state.segment_ends.len();
        state.in_flight = false;
    }
    Ok(())
}

// Loading: tensors in the names of docs/checkpoints.md, and the model that they make.

/// Reads a latent segment model's architecture. Fails if a key is invalid, or the vocabulary has no special symbols.
pub(crate) fn read(config: &Config, file: &Path) -> Result<Box<dyn Blueprint>> {
    let architecture: Architecture = checkpoint::architecture(config, file)?;
    let vocabulary = config.vocabulary(file)?;
    let expected = "the ids of the model's special symbols";
    require(vocabulary.specials().is_some(), file, "vocabulary.specials", expected, "nothing")?;
    let blueprint = LslmBlueprint { architecture, symbols: vocabulary.len() };
    blueprint.validate(file)?;
    Ok(Box::new(blueprint))
}

impl Blueprint for LslmBlueprint {
    fn tensors(&self) -> Vec<TensorSpec> {
        let a = &self.architecture;
        let embedding = |name: &str, dim| TensorSpec::normal(name, vec![self.symbols, dim], 0.0, 1.0);
        let mut out = if a.shared_embedding {
            vec![embedding("embedding.weight", a.token.dim)]
        } else {
            vec![embedding("token.embedding.weight", a.token.dim), embedding("decoder.embedding.weight", a.decoder.dim)]
        };
        for (name, stack) in self.stacks() {
            for index in 0..stack.layers {
                let part = |part: &str| format!("{name}.{index}.{part}");
                self.layer(name, stack, index).tensors(&mut out, &part, Vec::new());
            }
            out.push(matrix(format!("{name}.distance_bias"), stack.buckets, stack.heads));
            out.push(norm(format!("{name}.norm"), stack.dim));
        }
        out.push(matrix("boundary.hidden", a.boundaries.hidden, a.token.dim));
        out.push(matrix("boundary.output", a.token.dim, a.boundaries.hidden));
        if a.widths == Widths::Projection {
            out.push(matrix("context.projection", a.context.dim, a.token.dim));
        }
        if !a.tied_head {
            out.push(matrix("head", self.symbols, a.decoder.dim));
        }
        out.push(TensorSpec::zeros("head.bias", vec![self.symbols]));
        out
    }

    fn shape(&self) -> String {
        let a = &self.architecture;
        let stack = |s: &T5Shape| format!("{} × {}", s.layers, s.dim);
        let pooling = match a.pooling {
            Pooling::Mean => "mean pooling".to_owned(),
            Pooling::Last => "0-hops pooling".to_owned(),
            Pooling::Hops(hops) => format!("{hops}-hops pooling"),
        };
        let token = stack(&a.token);
        let context = stack(&a.context);
        let decoder = stack(&a.decoder);
        format!(
            "token encoder {token}, context encoder {context}, segment decoder {decoder}, {pooling}, learned boundaries"
        )
    }

    fn computed_numbers(&self) -> usize {
        let tables = self.stacks().map(|(_, stack)| stack.buckets().table_numbers(stack.heads));
        tables.into_iter().fold(0, usize::saturating_add)
    }

    fn build(&self, mut parts: Parts) -> Result<Arc<dyn Model>> {
        let mut card = parts.card("lslm", self)?;
        card.boundary_modes = self.architecture.driver.modes();
        card.pooled = true;
        let pages = PagePool::new(parts.settings.memory_bytes);
        let specials = card.vocabulary.specials();
        let a = &self.architecture;
        let tensors = &mut Tensors::new(&mut parts.weights, a.norm_eps, parts.settings.dtype);
        let [token_embedding, decoder_embedding] = self.embeddings(tensors)?;
        let token = self.stack(tensors, "token", &a.token)?;
        let context = self.stack(tensors, "context", &a.context)?;
        let decoder = self.stack(tensors, "decoder", &a.decoder)?;
        let (head, head_scale) = self.head(tensors, &decoder_embedding)?;
        let [hidden, output] = [tensors.weight("boundary.hidden")?, tensors.weight("boundary.output")?];
        let projects = a.widths == Widths::Projection;
        // the memory's keys have the decoder's heads, and are stored as its own
        let memory = PageLayout { output: 0, ..decoder.layout };
        let cache = |layout| KvCache::new(layout, pages.clone());
        let start = StartCaches { token: cache(token.layout), context: cache(context.layout), memory: cache(memory) };
        let mut model = Lslm {
            card,
            compute: parts.settings.compute(),
            specials: specials.ok_or_else(|| Error::Internal("a vocabulary without special symbols".into()))?,
            token_embedding,
            decoder_embedding,
            token,
            predictor: Summed::new(&hidden, &output, a.boundaries.hidden, a.boundaries.threshold)?,
            pooling: a.pooling,
            projection: projects.then(|| tensors.matrix(&["context.projection"], a.token.dim)).transpose()?,
            context,
            decoder,
            head,
            head_scale,
            memory,
            start,
            pages,
            own_bytes: 0,
        };
        model.start = model.read_start()?;
        model.own_bytes = model.pages.in_use();
        model.card.first_logits = Some(first_logits(&model)?);
        Ok(Arc::new(model))
    }
}

impl Lslm {
    /// Reads the start symbol into an empty sequence: it is a segment by itself.
    fn read_start(&self) -> Result<StartCaches> {
        let mut work = Work::default();
        let decoder = KvCache::new(self.decoder.layout, self.pages.clone());
        let rows = &mut [SequenceRow::new(Box::new(LslmState::new(self.start.clone(), decoder)))];
        let LslmState { token, context, memory, .. } = state(rows, 0)?;
        [token, context, memory].into_iter().try_for_each(|cache| cache.reserve(1))?;
        work.batch.positions.push(Position { sequence: 0, index: 0 });
        work.batch.embed(&self.token_embedding, self.width(), &[self.specials.start]); // (1, D)
        let caches = &mut StackCaches(rows, TOKEN);
        self.token.forward(&self.compute, &mut work.batch.x, &work.batch.positions, caches, &mut work.stack)?; // (1, D)
        let token = &mut state(rows, 0)?.token;
        token.write_output(0, &work.batch.x)?;
        token.advance(1);
        self.encode_segments(rows, &mut work)?; // (1, C)
        let state: &LslmState = state_ref(&*rows[0].state)?;
        Ok(StartCaches { token: state.token.clone(), context: state.context.clone(), memory: state.memory.clone() })
    }
}

impl LslmBlueprint {
    /// Embeddings of token encoder, (V, D), and decoder, (V, E).
    fn embeddings(&self, tensors: &mut Tensors<'_>) -> Result<[Arc<[f32]>; 2]> {
        if self.architecture.shared_embedding {
            let shared: Arc<[f32]> = tensors.weight("embedding")?.into();
            return Ok([shared.clone(), shared]);
        }
        let mut table = |name: &str| tensors.weight(name).map(Arc::from);
        Ok([table("token.embedding")?, table("decoder.embedding")?])
    }

    fn stack(&self, tensors: &mut Tensors<'_>, name: &str, shape: &T5Shape) -> Result<T5Stack> {
        // pooling reads the token encoder's outputs; the others' are not kept
        let output = if name == "token" { shape.dim } else { 0 };
        let T5Shape { layers, heads, head_dim, .. } = *shape;
        let layout = PageLayout { dtype: tensors.store.dtype().cache_dtype(), layers, heads, head_dim, output };
        let layer = |index| self.layer(name, shape, index).load(tensors, &|part| format!("{name}.{index}.{part}"));
        let layers = (0..layers).map(layer).collect::<Result<_>>()?;
        let table = tensors.weight(format_args!("{name}.distance_bias"))?;
        let position = PositionScheme::Buckets(shape.buckets().tables(&table).into());
        Ok(T5Stack { layers, position, layout, sink: false, norm: tensors.rms_norm(format_args!("{name}.norm"))? })
    }

    /// The head, and the factor of its input: a tied embedding has numbers of size one, unlike a head's.
    fn head(&self, tensors: &mut Tensors<'_>, embedding: &[f32]) -> Result<(Linear, f32)> {
        if !self.architecture.tied_head {
            return Ok((tensors.linear(&["head"])?, 1.0));
        }
        let dim = self.architecture.decoder.dim;
        let bias = tensors.weights.take("head.bias")?;
        Ok((tensors.pack(embedding, &bias, dim)?, (1.0 / (dim as f64).sqrt()) as f32))
    }
}
