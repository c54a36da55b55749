//! The model trait: a model takes symbols, closes segments, and returns logits.
//!
//! The unit of work is a [`SequenceRow`]: one sequence, the symbols to feed next, and the results. There are three kinds of
//! work, each batched over rows:
//!
//! 1. A *symbol step* feeds each row one symbol (decode) or many (a prefill chunk) and decides where segments end. Rows that
//!    closed a segment are then [`Waiting`](StepStatus::Waiting), all others [`Unfinished`](StepStatus::Unfinished).
//! 2. A *segment step* runs the middle stack over the segments just closed. Its rows are then unfinished; a row whose segment is too
//!    long for one step still waits.
//! 3. A *finish step* computes the logits of unfinished rows, which are then [`Ready`](StepStatus::Ready).
//!
//! The caller chooses when waiting rows run ([`is_due`]). They finish together with rows that
//! did not wait, so a step reads each weight once. A family without segments never waits. Pooling is not otherwise visible.
//!
//! The results of a row are the same, bit for bit, whatever other rows are in its steps and however its symbols are split into
//! steps.

use crate::{
    ngrams::NgramTable,
    random::{Purpose, uniform},
    text::{LimitStatus, PlacedText, StreamTokenizer, TokenSpan, Vocabulary},
    usage::LevelCounts,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    any::Any,
    fmt::{self, Display, Formatter},
    ops::{AddAssign, Range, RangeInclusive},
    path::Path,
    sync::Arc,
};
use weir_kernels::{
    Isa,
    error::{Error, QUOTED, Result, clip},
    named,
};

/// A loaded model. Weights are shared and never change; everything that changes is an argument.
pub trait Model: Send + Sync {
    /// The model's properties, as clients see them.
    fn card(&self) -> &Card;

    /// Returns the state of an empty sequence. Fails for a boundary mode that the model lacks, or if rows begin from documents.
    fn begin(&self, boundaries: BoundaryOptions) -> Result<Box<dyn State>>;

    /// Returns working memory for one thread that runs steps. The first step fills it.
    fn scratch(&self) -> Scratch {
        Scratch(Box::new(()))
    }

    /// Feeds `rows[i].feed` for each `i` of `which`; these rows must be ready. Each is then waiting or unfinished and has its
    /// decisions. The caller leaves `feed` and `want` unchanged until the row is ready again. Fails with
    /// `OutOfPages` if the key-value pool is exhausted. The rows of a failed step are lost: drop them.
    fn symbol_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()>;

    /// Runs the middle stack for those rows of `which` that wait; they are then unfinished, but a row whose segment is too long for
    /// one step still waits for the next. Skips others. Fails as a symbol step does. Without segments no row waits.
    fn segment_step(&self, _rows: &mut [SequenceRow], _which: &[usize], _scratch: &mut Scratch) -> Result<()> {
        Ok(())
    }

    /// Finishes the unfinished rows of `which`, wanted logits included; they are then ready. Skips others. Fails as
    /// a symbol step does.
    fn finish_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()>;

    /// Maximum bytes of key-value memory that a sequence of `symbols` symbols can hold.
    fn bytes_for(&self, symbols: usize) -> usize;

    /// Maximum bytes of key-value memory taken by feeding `more` symbols to `state`: in all steps until the row is ready, and for
    /// copies of shared pages. If `more` is 0, these are the bytes that symbols in flight still take.
    fn growth(&self, state: &dyn State, more: usize) -> usize;

    /// Bytes of key-value memory in use by all sequences, and the limit.
    fn memory(&self) -> KvMemory;

    /// Minimum cost of the last symbol of a sequence of `symbols` symbols and `segments` closed segments. If the last symbol ends
    /// a segment, `segments` includes it.
    fn cost(&self, symbols: usize, segments: usize) -> Cost;

    /// The document encoder of an encoder-decoder model. Rows of such a model begin from documents only.
    fn document_encoder(&self) -> Option<&dyn DocumentEncoder> {
        None
    }
}

/// One sequence in a step.
pub struct SequenceRow {
    /// The sequence.
    pub state: Box<dyn State>,
    /// Symbols of the next symbol step, at least one; [`item`]s for a model that writes marks.
    pub feed: Vec<u32>,
    /// The fed symbols for which logits are wanted.
    pub want: Want,
    /// Logits (wanted symbols, vocabulary), row-major; valid when the row is ready. Those after symbol t predict symbol t + 1.
    pub logits: Vec<f32>,
    /// One decision for each fed symbol, valid after the symbol step.
    pub decisions: Vec<SymbolBoundary>,
    /// The next step that the row needs.
    pub status: StepStatus,
    /// Symbol steps that ran while this feed waited for its segment step. The code that steps the rows counts them.
    pub waited: usize,
    /// Why this row alone failed in the symbol step, which went on for the other rows. It must not be stepped further.
    pub failure: Option<Error>,
}

impl SequenceRow {
    /// Creates a ready row with an empty feed.
    pub fn new(state: Box<dyn State>) -> Self {
        Self {
            state,
            feed: Vec::new(),
            want: Want::Last,
            logits: Vec::new(),
            decisions: Vec::new(),
            status: StepStatus::Ready,
            waited: 0,
            failure: None,
        }
    }

    /// Sets the next feed; the row must be ready.
    pub fn set<'a>(&mut self, symbols: impl Into<SymbolSlices<'a>>, want: Want) {
        self.waited = 0;
        self.failure = None;
        self.feed.clear();
        symbols.into().slices().into_iter().for_each(|slice| self.feed.extend_from_slice(slice));
        self.want = want;
    }

    /// Drops all but the first `len` symbols of the feed, at least one, after its symbol step. Fails as [`State::cut`] does.
    pub fn cut(&mut self, len: usize) -> Result<()> {
        let dropped = self.feed.len().saturating_sub(len.max(1));
        if dropped == 0 {
            return Ok(());
        }
        self.state.cut(self.state.len().saturating_sub(dropped))?;
        self.feed.truncate(self.feed.len() - dropped);
        self.decisions.truncate(self.feed.len());
        if !self.decisions.iter().any(|decision| decision.boundary) {
            self.status = StepStatus::Unfinished;
        }
        Ok(())
    }

    /// Cuts the feed before the first drafted symbol that ends a segment, so that the middle stack runs for accepted ones only.
    pub fn cut_draft(&mut self) -> Result<()> {
        let first_boundary = self.decisions.iter().skip(1).position(|decision| decision.boundary);
        first_boundary.map_or(Ok(()), |drafted| self.cut(1 + drafted))
    }

    /// Drops all but the first `len` symbols of the feed from a row that is ready. Fails as [`State::rollback`] does.
    pub fn take_back(&mut self, len: usize) -> Result<()> {
        let dropped = self.feed.len().saturating_sub(len.max(1));
        if dropped == 0 {
            return Ok(());
        }
        self.state.rollback(self.state.len().saturating_sub(dropped))?;
        let vocabulary = self.logits.len().checked_div(self.wanted()).unwrap_or_default();
        self.feed.truncate(self.feed.len() - dropped);
        self.decisions.truncate(self.feed.len());
        self.logits.truncate(self.wanted() * vocabulary);
        Ok(())
    }

    /// Number of positions in the sequence that the feed occupies.
    pub fn positions(&self) -> usize {
        positions(&self.feed)
    }

    /// Number of fed symbols for which logits are wanted; these are the last ones.
    pub fn wanted(&self) -> usize {
        match self.want {
            Want::Nothing => 0,
            Want::Last => self.feed.len().min(1),
            Want::All => self.feed.len(),
        }
    }

    /// Checks the results of a step that began at position `start`: logits (wanted symbols, `vocabulary`), decisions, length.
    pub fn check_step(&self, start: usize, vocabulary: usize) -> Result<()> {
        let is_valid = self.status == StepStatus::Ready
            && !self.feed.is_empty()
            && self.decisions.len() == self.feed.len()
            && self.logits.len() == self.wanted() * vocabulary
            && self.state.len() == start + self.positions();
        if is_valid {
            return Ok(());
        }
        Err(Error::Internal(format!(
            "a step of {} symbols from position {start} left a row with status {:?}, length {}, {} decisions and {} logits",
            self.feed.len(),
            self.status,
            self.state.len(),
            self.decisions.len(),
            self.logits.len()
        )))
    }
}

/// Which logits a step computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// No logits: a prefill chunk that is not the prompt's last.
    Nothing,
    /// The logits after the last fed symbol.
    Last,
    /// The logits after each fed symbol.
    All,
}

/// The next step that a row needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepStatus {
    /// Its logits are valid, and it may be fed.
    Ready,
    /// It closed a segment and needs a segment step.
    Waiting,
    /// It needs a finish step.
    Unfinished,
}

/// Key-value memory of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvMemory {
    /// Bytes in pages that sequences hold.
    pub in_use: usize,
    /// Maximum bytes.
    pub limit: usize,
}

/// A model's properties, as clients see them.
///
/// ```
/// use weir_models::{checkpoint::CheckpointSource, load::{Settings, load_as}};
///
/// let source = CheckpointSource::default();
/// let model = load_as(&source, &source.name(), &Settings::default())?;
/// let card = model.card();
/// assert_eq!((card.name.as_str(), card.family), ("hourglass-english", "hourglass"));
/// assert!(card.pooled && card.vocabulary.len() == 256);
/// let symbols = card.encode("prompt", "The River")?;
/// assert_eq!(card.vocabulary.decode(&symbols), "The River");
/// # Ok::<(), weir_kernels::error::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Card {
    /// The name under which it is served: its folder's name, unless it was loaded under another one.
    pub name: String,
    /// Its purpose, in a few words; empty if its card does not state one.
    pub scope: String,
    /// Its family, such as `hourglass`.
    pub family: &'static str,
    /// Human-readable summary: layers, width, boundaries.
    pub shape: String,
    /// Number of trained parameters.
    pub parameters: usize,
    /// Its symbols and their normaliser.
    pub vocabulary: Arc<Vocabulary>,
    /// Symbols in one training window.
    pub training_length: usize,
    /// Maximum symbols of one sequence.
    pub max_symbols: usize,
    /// Why the model itself cannot hold more symbols; `None` if `max_symbols` is a setting.
    pub max_symbols_why: Option<&'static str>,
    /// Boundary modes that the model has; the first is the default.
    pub boundary_modes: Vec<BoundaryMode>,
    /// Default threshold of the entropies that end segments, in nats, if requests may set it.
    pub boundary_threshold: Option<f32>,
    /// (V): the logits before the first symbol of a text, if the model has a start mark.
    pub first_logits: Option<Arc<[f32]>>,
    /// True if it pools, that is, if it can close segments.
    pub pooled: bool,
    /// True if a boundary is the first symbol of a segment, as in dynamic chunking. Otherwise it is the last one.
    pub begins_chunks: bool,
    /// True if generations may feed drafts: a rollback of some symbols feeds none again, and a feed can be [cut](SequenceRow::cut).
    pub speculates: bool,
    /// N-grams that drafts may come from, if the checkpoint has them.
    pub ngrams: Option<Arc<NgramTable>>,
    /// True if its pooling was turned off when it was loaded: it is the unpooled baseline of the model with the same weights.
    pub unpooled_baseline: bool,
    /// Storage type of its weights, keys and values: `f32`, `bf16` or `int8`.
    pub dtype: &'static str,
    /// Instruction set of its kernels.
    pub isa: Isa,
    /// SHA-256 of `model.safetensors` (of its shards in order, if there are several), hexadecimal.
    pub sha256: String,
    /// How exactly its results repeat.
    pub exactness: Exactness,
    /// Sampling options of requests that state none.
    pub sampling: SamplingDefaults,
}

/// How exactly a model's results repeat in other steps, in another batch, or on another number of threads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Exactness {
    /// The same bits. Instruction sets with fused multiply-adds also give the same bits.
    Bitwise,
    /// Logits that differ by at most this much.
    Within(f32),
}

impl Exactness {
    /// The name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bitwise => "bitwise",
            Self::Within(_) => "within",
        }
    }

    /// The largest difference between two logits; none if the bits are the same.
    pub fn tolerance(self) -> Option<f32> {
        match self {
            Self::Bitwise => None,
            Self::Within(tolerance) => Some(tolerance),
        }
    }
}

impl Display for Exactness {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bitwise => formatter.write_str("bitwise"),
            Self::Within(tolerance) => write!(formatter, "within {tolerance}"),
        }
    }
}

/// Returns the name of the unpooled baseline of the model `name`.
pub fn unpooled_name(name: &str) -> String {
    format!("{name}-unpooled")
}

impl Card {
    /// Encodes a text of at most `max_symbols` symbols; `field` names it in errors. Fails as [`Vocabulary::encode`] does.
    pub fn encode(&self, field: &'static str, text: &str) -> Result<Vec<u32>> {
        let encoded = self.vocabulary.encode(field, text, self.max_symbols);
        encoded.map_err(|error| error.because(self.max_symbols_why))
    }

    /// Encodes a text as [`encode`](Self::encode) does, and finds the places of its symbols.
    pub fn encode_placed(&self, field: &'static str, text: &str) -> Result<(Vec<u32>, PlacedText)> {
        let encoded = self.vocabulary.encode_placed(field, text, self.max_symbols);
        encoded.map_err(|error| error.because(self.max_symbols_why))
    }

    /// Returns the card of a small pooling model without boundary modes, for the tests of this and other packages.
    #[doc(hidden)]
    pub fn for_tests(vocabulary: Vocabulary) -> Self {
        Self {
            name: "m".into(),
            scope: String::new(),
            family: "fake",
            shape: "none".into(),
            parameters: 0,
            vocabulary: Arc::new(vocabulary),
            training_length: 8,
            max_symbols: 100,
            max_symbols_why: None,
            boundary_modes: Vec::new(),
            boundary_threshold: None,
            first_logits: None,
            pooled: true,
            begins_chunks: false,
            speculates: false,
            ngrams: None,
            unpooled_baseline: false,
            dtype: "f32",
            isa: Isa::detect(),
            sha256: String::new(),
            exactness: Exactness::Bitwise,
            sampling: SamplingDefaults::default(),
        }
    }
}

/// Feeds every row of `which` and makes it ready; no row waits. Fails as [`Model::symbol_step`] does, and if a row fails alone.
pub fn advance(model: &dyn Model, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
    model.symbol_step(rows, which, scratch)?;
    which.iter().try_for_each(|&row| rows[row].failure.take().map_or(Ok(()), Err))?;
    segment_steps(model, rows, which, scratch)?;
    model.finish_step(rows, which, scratch)
}

/// Runs segment steps until no row of `which` waits. Fails as [`Model::segment_step`] does.
pub fn segment_steps(
    model: &dyn Model,
    rows: &mut [SequenceRow],
    which: &[usize],
    scratch: &mut Scratch,
) -> Result<()> {
    while which.iter().any(|&row| rows[row].status == StepStatus::Waiting) {
        model.segment_step(rows, which, scratch)?;
    }
    Ok(())
}

/// One sequence's state: what the model keeps of the symbols fed so far. Dropping it frees its pages.
pub trait State: Any + Send + Sync {
    /// Number of symbols fed.
    fn len(&self) -> usize;

    /// True if no symbol was fed.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of closed segments; 0 in a model without segments.
    fn segments(&self) -> usize {
        0
    }

    /// Number of closed segments by level of chunking; the first level's are [`segments`](Self::segments).
    fn level_segments(&self) -> LevelCounts {
        LevelCounts::one(self.segments())
    }

    /// Returns a second sequence with the same past, ready to be fed; both share pages until one writes. A row that is not ready
    /// is forked as it was before its feed, or empty if its windows have moved on too far.
    fn fork(&self) -> Box<dyn State>;

    /// Drops all symbols from position `len` on. Fails if `len` is not possible ([`earliest`](Self::earliest)) or the row not
    /// ready.
    fn rollback(&mut self, len: usize) -> Result<()>;

    /// Drops the symbols in flight from position `len` on, after their symbol step; segments that they closed are open again.
    /// Fails if `len` leaves no symbol in flight, and if the family's feeds cannot be cut.
    fn cut(&mut self, len: usize) -> Result<()> {
        Err(Error::Internal(format!("a feed of this family cannot be cut at {len}")))
    }

    /// The shortest length, other than 0, that [`rollback`](Self::rollback) accepts: windows drop symbols behind them.
    fn earliest(&self) -> usize {
        0
    }

    /// Drops all symbols. The state is then as [`Model::begin`] returns it, but at `offset` in its stream.
    fn restart(&mut self, offset: usize);

    /// The position from which the text must be fed to rebuild this state; none if all of the text must be fed. The same for
    /// every length that the state can be [rolled back](Self::earliest) to. None for a row that is not ready.
    fn replay_start(&self) -> Option<ReplayStart> {
        None
    }

    /// Continues from the [`replay_start`](Self::replay_start) of another state of the same model. Below
    /// [`ReplayStart::valid_from`] symbols its numbers are invalid. Fails if the state is not empty, or its model never returns
    /// such a start.
    fn resume(&mut self, start: ReplayStart) -> Result<()> {
        Err(Error::Internal(format!("a state that needs its whole text cannot resume from {start:?}")))
    }

    /// Length of the longest prefix of at most `len` symbols that ends with a segment and that the state can be rolled back
    /// to; 0 if there is none. In a model without segments every symbol is such an end.
    fn boundary_before(&self, len: usize) -> usize;

    /// Bytes of the pages that this state refers to, shared pages included.
    fn bytes(&self) -> usize {
        let mut bytes = 0;
        self.pages(&mut |page| bytes += page.bytes);
        bytes
    }

    /// Calls `each` once for each of these pages.
    fn pages(&self, each: &mut dyn FnMut(PageUse));

    /// Bytes of memory outside of its pages.
    fn own_bytes(&self) -> usize;

    /// Length of the longest prefix of whole segments whose boundaries equal the predictor's: plain symbols rebuild it.
    fn agreed(&self) -> usize {
        self.len()
    }
}

/// A page of key-value memory, as page accounting sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageUse {
    /// Unique among all pages of all models while this page is held.
    pub id: usize,
    /// Its size.
    pub bytes: usize,
    /// Number of references to it.
    pub references: usize,
    /// References that the state itself holds, at least one. If these are all, dropping the state frees the page.
    pub own: usize,
}

/// Working memory of one thread that runs steps, opaque to all code but the model's.
pub struct Scratch(pub Box<dyn Any + Send>);

/// Downcasts a state to the concrete type of the family that created it. Fails if another model created the state.
pub fn state_ref<S: State>(state: &dyn State) -> Result<&S> {
    (state as &dyn Any).downcast_ref().ok_or_else(foreign_state)
}

/// Mutable variant of [`state_ref`].
pub fn state_mut<S: State>(state: &mut dyn State) -> Result<&mut S> {
    (state as &mut dyn Any).downcast_mut().ok_or_else(foreign_state)
}

fn foreign_state() -> Error {
    Error::Internal("a row holds the state of another model".into())
}

/// The boundary source's decision for one symbol.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SymbolBoundary {
    /// True if a segment ends with this symbol; in a model with levels of chunking, if a chunk begins with it.
    pub boundary: bool,
    /// Levels at which a chunk begins with this symbol; 0 in a model whose segments end with their boundary.
    pub depth: u8,
    /// Output of a learned predictor. Not calibrated: the official training applies the sigmoid twice.
    pub probability: Option<f32>,
    /// Entropy in nats of the next symbol's prediction by a model that places boundaries; they end segments where it is high.
    pub entropy: Option<f32>,
    /// ln p of the segment-end mark after this symbol. Present if a mark ends the segment here and all logits were wanted.
    pub end_logprob: Option<f32>,
}

impl SymbolBoundary {
    /// True if the text is cut before this symbol.
    pub fn begins_segment(self) -> bool {
        self.boundary && self.depth > 0
    }

    /// True if the text is cut after this symbol.
    pub fn ends_segment(self) -> bool {
        self.boundary && self.depth == 0
    }

    /// Levels at which a segment ends, or a chunk begins, with this symbol: 1 for a boundary of a model without levels.
    pub fn closed_levels(self) -> usize {
        if self.boundary { usize::from(self.depth.max(1)) } else { 0 }
    }
}

/// Returns each level's boundaries, outermost first, from the [depths](SymbolBoundary::depth) of the symbols: one number for
/// each symbol, then one for each chunk of the level around it, 1 where a chunk begins.
pub fn levels(depths: impl IntoIterator<Item = u8>) -> Vec<Vec<u8>> {
    let depths: Vec<u8> = depths.into_iter().collect();
    let level = |level: u8| {
        let in_level = depths.iter().filter(move |depth| **depth >= level);
        in_level.map(|depth| u8::from(*depth > level)).collect()
    };
    (0..depths.iter().copied().max().unwrap_or(0)).map(level).collect()
}

/// How a sequence's boundaries are decided, where the model leaves a choice.
#[derive(Debug, Clone, Default)]
pub struct BoundaryOptions {
    /// The mode; the model's default if none. A mode that the model lacks is an error.
    pub mode: Option<BoundaryMode>,
    /// Source of the noise for sampled boundaries.
    pub noise: Noise,
    /// Position of the sequence's first symbol in its stream, from whose start fixed boundaries count.
    pub offset: usize,
    /// Threshold in nats of the entropies that end segments; the model's default if none. An error in a model without
    /// [one](Card::boundary_threshold).
    pub threshold: Option<f32>,
}

/// How a learned predictor's output becomes a boundary. Other boundary sources have exactly one mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BoundaryMode {
    /// The model leaves no choice: no boundaries, fixed, whitespace, entropy spikes.
    Given,
    /// Boundary if the predictor's output is above the threshold.
    Threshold,
    /// Boundary with the predictor's probability (the official behaviour of gumbel checkpoints).
    Sampled,
    /// The predictor cuts the prompt; the model's own marks cut generated text.
    Nxt,
    /// The predictor cuts prompt and generated text of a model that writes marks; the marks are never chosen.
    Predictor,
}

named!(BoundaryMode { Given: "given", Threshold: "threshold", Sampled: "sampled", Nxt: "nxt", Predictor: "predictor" });

/// Uniform noise in (0, 1), one number per position. A fork, a rollback or a second run reads the same numbers.
#[derive(Debug, Clone)]
pub enum Noise {
    /// Drawn from this seed.
    Seeded(u64),
    /// Recorded numbers, to compare with recorded runs. A position beyond the end is an error.
    Given(Arc<[f32]>),
}

impl Default for Noise {
    fn default() -> Self {
        Self::Seeded(0)
    }
}

impl Noise {
    /// Returns the number at `position`. Fails with [`Error::Internal`] beyond the end of recorded noise.
    pub fn at(&self, position: usize) -> Result<f32> {
        match self {
            Self::Seeded(seed) => Ok(uniform(*seed, Purpose::Boundary, position)),
            Self::Given(values) => values.get(position).copied().ok_or_else(|| {
                let len = values.len();
                Error::Internal(format!("recorded noise has {len} positions, position {position} was read"))
            }),
        }
    }
}

// The policy for waiting rows, which engine and benchmark share. A segment step reads the middle stack's weights once, for any
// number of rows; rows that wait a few symbol steps for others to close a segment share the reading. No number changes.

/// Default number of symbol steps that a row may wait.
pub const BOUNDARY_WAIT: usize = 2;

/// Maximum number of symbol steps that a row may be set to wait.
pub const MAX_BOUNDARY_WAIT: usize = 64;

/// Returns true if the `waiting` rows run their segment step now, all together: if one has waited for `wait` symbol steps, or if
/// no other row could be fed one symbol while they wait (`others` is false). A chunk's segments fill a step by themselves.
pub fn is_due<'a>(mut waiting: impl Iterator<Item = &'a SequenceRow>, others: bool, wait: usize) -> bool {
    waiting.any(|row| !others || row.waited >= wait)
}

/// Counts the symbol step that is about to run for each waiting row.
pub fn count_step(rows: &mut [SequenceRow]) {
    rows.iter_mut().filter(|row| row.status == StepStatus::Waiting).for_each(|row| row.waited += 1);
}

// Encodes symbols together with their boundaries, for models that end their own segments with a mark. A replay of generated text
// feeds each symbol as an `item` with its boundary, since the predictor may not agree with the marks. During generation the
// symbol is fed with an open boundary, and `END`, fed alone, then ends the segment.

/// Control item, fed alone: ends the open segment with the symbol fed last. Occupies no position.
pub const END: u32 = u32::MAX;

/// Control item, fed alone to an empty sequence: requests the logits before the first symbol. Occupies no position.
pub const BEGIN: u32 = u32::MAX - 1;

/// Flags of a symbol that ends no segment and of one that ends a segment: bits above all vocabulary ids.
const OPEN: u32 = 1 << 31;

const CLOSED: u32 = 1 << 30;

/// Encodes a symbol with its boundary.
pub fn item(symbol: u32, ends_segment: bool) -> u32 {
    symbol | if ends_segment { CLOSED } else { OPEN }
}

/// Returns the symbol of an item or of a plain symbol.
pub fn symbol(item: u32) -> u32 {
    item & !(OPEN | CLOSED)
}

/// Returns true if an item's symbol ends a segment; none for a plain symbol, whose boundary the predictor decides.
pub fn ends_segment(item: u32) -> Option<bool> {
    match (item & OPEN != 0, item & CLOSED != 0) {
        (false, false) => None,
        (_, closed) => Some(closed),
    }
}

/// Returns the number of sequence positions that a feed occupies.
pub fn positions(feed: &[u32]) -> usize {
    if is_control(feed) { 0 } else { feed.len() }
}

/// Returns true if a feed is [`END`] or [`BEGIN`].
pub fn is_control(feed: &[u32]) -> bool {
    matches!(feed, [END | BEGIN])
}

// The position from which a text must be fed to rebuild a state. If every layer's window is bounded, a state depends on its last
// symbols only, and one that resumes at a `ReplayStart` equals, bit for bit, the state after the whole text.

/// Minimum distance between positions at which a text is cut.
const STRIDE: usize = 1024;

/// The position from which a state's text must be fed to rebuild the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayStart {
    /// The first symbol to feed; at least 1.
    pub symbol: usize,
    /// The shortest length at which the state equals the state after the whole text.
    pub valid_from: usize,
    /// The segments before `symbol`, in a model with segments.
    pub skipped: Option<SkippedSegments>,
}

/// Segments that a replay skips.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SkippedSegments {
    /// Their number.
    pub count: usize,
    /// The first symbol of the first segment that is not skipped.
    pub next_start: usize,
    /// The last symbol of that segment. From here on a segment vector is available to the post stack.
    pub next_end: usize,
}

impl ReplayStart {
    /// The position before which the text may be dropped. One of few, so that equal texts are cut alike.
    pub fn cut_position(self) -> usize {
        let stride = self.valid_from.saturating_sub(self.symbol).next_power_of_two().max(STRIDE);
        self.symbol / stride * stride
    }
}

// The minimum cost of a symbol, computed from the model's shape: bytes to read and multiplications to do. *Shared* bytes are
// read once for all rows of a step; *own* bytes and multiply-adds count once a row. Activations and single vectors are excluded.

/// Minimum cost of one symbol.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// Symbol and finish step: all layers at full resolution, before and after the segment step.
    pub symbol: StepCost,
    /// Segment step: all layers at segment resolution; zero in a model that never waits.
    pub segment: StepCost,
    /// The rest of a segment step in which chunks of deeper levels begin: all layers inside these; zero in a model with one level.
    pub deeper: StepCost,
    /// The logits after one symbol, where they are wanted.
    pub logits: StepCost,
}

/// Minimum cost of one kind of work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepCost {
    /// Bytes that all rows of a step share: weights as stored, and tables derived from weights.
    pub shared_bytes: usize,
    /// Bytes of one row: the keys and values that it attends to.
    pub own_bytes: usize,
    /// Multiply-adds of one row: matrix products and attention.
    pub multiply_adds: usize,
}

impl Cost {
    /// Returns the cost of a segment step in which chunks of the first `levels` levels begin.
    pub fn segment_step(&self, levels: usize) -> StepCost {
        let mut cost = StepCost::default();
        if levels > 0 {
            cost += self.segment;
        }
        if levels > 1 {
            cost += self.deeper;
        }
        cost
    }
}

impl AddAssign for StepCost {
    fn add_assign(&mut self, other: Self) {
        self.shared_bytes += other.shared_bytes;
        self.own_bytes += other.own_bytes;
        self.multiply_adds += other.multiply_adds;
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.symbol += other.symbol;
        self.segment += other.segment;
        self.deeper += other.deeper;
        self.logits += other.logits;
    }
}

// The encoder of an encoder-decoder model: tokens in, piece by piece; a document out, which never changes and from which rows
// begin. An `Encoding` runs *blocks*, each at most `DocumentLimits::block` vectors through one layer, so the cost of a call is
// bounded. How tokens were cut into pushes, or work into blocks, does not change a bit of a document.

/// Encodes documents for a model whose rows begin from them.
pub trait DocumentEncoder: Send + Sync {
    /// Limits of documents and rows, and defaults of requests.
    fn limits(&self) -> &DocumentLimits;

    /// Returns an empty encoding, which holds no pages yet. `hard` asks for hard top-k instead of soft, and fails if the model has
    /// no top-k pooling.
    fn open(&self, hard: bool) -> Result<Box<dyn Encoding>>;

    /// Maximum bytes of key-value memory that the encoding of `tokens` tokens can hold, its document included.
    fn bytes_for(&self, tokens: usize) -> usize;

    /// Multiply-adds of encoding `tokens` tokens to a document of `vectors` vectors: matrix products and attention.
    fn multiply_adds(&self, tokens: usize, vectors: usize) -> usize;

    /// Runs at most `blocks` blocks that are ready and returns how many ran: 0 if the encoding [waits](EncodingStage::Waiting)
    /// or is [done](EncodingStage::Done). Fails if the pool is exhausted; the encoding is then lost.
    fn advance(&self, encoding: &mut dyn Encoding, blocks: usize, scratch: &mut Scratch) -> Result<usize>;

    /// Returns an empty row of a document. Its first symbol is [`SpecialIds::start`]; the logits after symbol t predict symbol t
    /// + 1. The row refers to the document's pages in addition to its own.
    fn begin(&self, document: &Document) -> Result<Box<dyn State>>;

    /// Returns the weight that each vector of a document receives from cross-attention at [`SpecialIds::start`], summed over the
    /// heads of all layers. Fails as [`Model::symbol_step`] does.
    fn attention(&self, document: &Document, scratch: &mut Scratch) -> Result<Vec<f32>>;
}

/// Returns the share of the [attention](DocumentEncoder::attention) to a document that each of its tokens received, multiplied by their
/// number: 1 is the mean. A token whose vector was dropped has 0, and the tokens of a window share its weight.
pub fn token_attention(document: &Document, limits: &DocumentLimits, vectors: &[f32]) -> Vec<f32> {
    let tokens = document.tokens;
    let mut weights = vec![0.0; tokens];
    if let Some(choice) = document.choices.last() {
        for (kept, weight) in choice.kept.iter().zip(vectors) {
            if let Some(sum) = weights.get_mut(kept.token) {
                *sum += weight;
            }
        }
    } else {
        let read = if limits.padded { limits.tokens } else { tokens };
        let window = read.div_ceil(vectors.len().max(1)).max(1);
        for (token, sum) in weights.iter_mut().enumerate() {
            *sum = vectors.get(token / window).copied().unwrap_or_default() / window as f32;
        }
    }
    let mean = weights.iter().sum::<f32>() / tokens.max(1) as f32;
    if mean > 0.0 {
        weights.iter_mut().for_each(|weight| *weight /= mean);
    }
    weights
}

/// A document that is being encoded. Dropping it frees its pages.
pub trait Encoding: Any + Send {
    /// Takes the next tokens, the end mark after the last one included. Takes no pages and computes nothing. Fails if the total
    /// exceeds [`DocumentLimits::tokens`], for an unknown id, and after [`close`](Self::close).
    fn push(&mut self, tokens: &[u32]) -> Result<()>;

    /// Marks the document as complete. A second call has no effect. Fails with [`Error::BadOption`] if no token was pushed.
    fn close(&mut self) -> Result<()>;

    /// Number of tokens pushed.
    fn tokens(&self) -> usize;

    /// Its progress.
    fn progress(&self) -> EncodingProgress;

    /// Choices of the top-k poolings made until now, first pooling first. Moves to the document when that is done.
    fn choices(&self) -> &[PoolingChoice];

    /// The document, once the encoding is done.
    fn document(&self) -> Option<Arc<Document>>;

    /// Bytes of the pages that it holds, the document's pages included.
    fn bytes(&self) -> usize;
}

/// Progress of an encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodingProgress {
    /// The next stage.
    pub stage: EncodingStage,
    /// Blocks completed.
    pub blocks: usize,
    /// Total number of blocks, known once the document is complete.
    pub total: Option<usize>,
}

/// The next stage of an encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EncodingStage {
    /// The encoding needs more tokens, or to be closed.
    Waiting,
    /// A block of this layer of the encoder, counted from 0, can run.
    Layer(usize),
    /// A block of the decoder's keys and values can be computed from the encoder's output.
    Memory,
    /// The document is complete.
    Done,
}

/// A document as the decoder sees it. Its pages are freed when neither a reference nor a row refers to them.
pub struct Document {
    /// Number of tokens read.
    pub tokens: usize,
    /// Number of vectors that the decoder attends to.
    pub vectors: usize,
    /// Bytes of its pages: keys and values of all decoder layers.
    pub bytes: usize,
    /// Bytes of keys and values without pooling.
    pub unpooled_bytes: usize,
    /// Bytes of memory outside of its pages.
    pub own_bytes: usize,
    /// The choice of each top-k pooling, first pooling first.
    pub choices: Vec<PoolingChoice>,
    /// Time of each encoder layer, in order.
    pub timings: Vec<LayerTime>,
    /// Time of computing the decoder's keys and values, in nanoseconds.
    pub memory_ns: u64,
    /// What rows attend to, which only its model knows.
    pub memory: Box<dyn Any + Send + Sync>,
}

/// The vectors that a top-k pooling kept.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolingChoice {
    /// The encoder layer that it follows, or whose input a deletion gate reads; counted from 0.
    pub layer: usize,
    /// The kept vectors, in the order in which the next layer reads them.
    pub kept: Vec<KeptVector>,
}

/// One vector that a pooling kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeptVector {
    /// Token of the vector that won every mix. Padding if at least [`Document::tokens`].
    pub token: usize,
    /// Its score after the pooling, or the value of a deletion gate.
    pub score: f32,
}

/// Returns the share of a document's `tokens` that the last of its `choices` kept; 1 if no pooling reduced its `vectors`. `None` if
/// poolings reduced them without choosing.
pub fn kept_share(choices: &[PoolingChoice], vectors: usize, tokens: usize) -> Option<f64> {
    let Some(choice) = choices.last() else { return (vectors >= tokens).then_some(1.0) };
    let mut kept: Vec<usize> = choice.kept.iter().map(|kept| kept.token).filter(|&token| token < tokens).collect();
    kept.sort_unstable();
    kept.dedup();
    (tokens > 0).then(|| kept.len() as f64 / tokens as f64)
}

/// Time of one encoder layer, its pooling included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerTime {
    /// Number of input vectors, padding included.
    pub length: usize,
    /// Nanoseconds.
    pub ns: u64,
}

/// Limits of a model that encodes documents, and its defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct DocumentLimits {
    /// Maximum tokens of a document, the end mark included.
    pub tokens: usize,
    /// Maximum symbols that a row can be fed, [`SpecialIds::start`] included.
    pub targets: usize,
    /// True if every document is padded to [`tokens`](Self::tokens); all documents then have the same number of vectors.
    pub padded: bool,
    /// Maximum vectors of one block.
    pub block: usize,
    /// The poolings, in order.
    pub poolings: Vec<PoolingStep>,
    /// Ids of the special symbols.
    pub marks: SpecialIds,
    /// Defaults of requests.
    pub generation: GenerationDefaults,
}

impl DocumentLimits {
    /// Returns the tokenizer of a document that is sent as text; `field` names it in errors. The end mark counts as a token.
    pub fn tokenizer(&self, vocabulary: Arc<Vocabulary>, field: &'static str) -> StreamTokenizer {
        StreamTokenizer::new(vocabulary, field, self.tokens.saturating_sub(1)).with_prefix(&self.generation.prefix)
    }

    /// Encodes a document with its tokenizer; the end mark comes last. Returns the tokens, and whether the document is longer than the
    /// tokenizer's limit.
    pub fn encode(&self, mut tokenizer: StreamTokenizer, document: &str) -> Result<(Vec<TokenSpan>, LimitStatus)> {
        let mut tokens = Vec::new();
        tokenizer.push(document, &mut tokens)?;
        let status = tokenizer.finish(&mut tokens)?;
        if !tokenizer.is_ended(self.marks.end) {
            let end = tokenizer.bytes();
            tokens.push(TokenSpan { id: self.marks.end, start: end, end });
        }
        Ok((tokens, status))
    }
}

/// Returns true if a token covers text of its document. The tokens of a prefix cover none.
pub fn covers_text(tokens: &[TokenSpan]) -> bool {
    tokens.iter().any(|token| token.end > 0)
}

/// Returns the error of a document without a token that [covers text](covers_text): a prefix alone is not a document.
pub fn no_text(field: &'static str) -> Error {
    Error::bad_option(field, "none", "text of at least one token")
}

/// A pooling between two encoder layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolingStep {
    /// The encoder layer that it follows, or whose input a deletion gate reads; counted from 0.
    pub layer: usize,
    /// Vectors of the longest document before the pooling.
    pub from: usize,
    /// Vectors of the longest document after it.
    pub to: usize,
}

/// Ids of a model's special symbols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpecialIds {
    /// The first symbol that a row is fed.
    pub start: u32,
    /// Padding: never generated by fairseq's rules.
    pub pad: u32,
    /// Ends a document and a generated text.
    pub end: u32,
    /// Stands for text that the vocabulary lacks.
    pub unknown: u32,
}

/// Default options of a request; `generation` in `config.json`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct GenerationDefaults {
    /// Semantics of the search.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rules: SearchRules,
    /// Beam width: hypotheses followed in parallel.
    pub beam: usize,
    /// A hypothesis' log-probability is divided by its length (end mark included) to this power.
    pub length_penalty: f32,
    /// Minimum symbols before the end mark.
    pub min_tokens: usize,
    /// Maximum symbols: before the end mark by fairseq's rules, with it by transformers' rules.
    pub max_tokens: usize,
    /// No run of this many symbols is generated twice; 0 turns the rule off.
    #[serde(default)]
    pub no_repeat_ngram: usize,
    /// Rule by which a beam search stops, if it follows transformers.
    #[serde(default, skip_serializing_if = "is_default")]
    pub early_stopping: EarlyStopping,
    /// Penalty on symbols that the text has already, by the rules of transformers; 1 is none.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub repetition_penalty: f32,
    /// Text that precedes every document that is sent as text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prefix: String,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn one() -> f32 {
    1.0
}

fn is_one(value: &f32) -> bool {
    *value == 1.0
}

impl GenerationDefaults {
    /// Returns fairseq's defaults, for texts of at most `max_tokens` tokens.
    pub fn fairseq(max_tokens: usize) -> Self {
        Self {
            rules: SearchRules::Fairseq,
            beam: 5,
            length_penalty: 1.0,
            min_tokens: 1,
            max_tokens,
            no_repeat_ngram: 0,
            early_stopping: EarlyStopping::default(),
            repetition_penalty: 1.0,
            prefix: String::new(),
        }
    }

    /// Returns the defaults of transformers: greedy search of at most 20 tokens.
    pub fn transformers() -> Self {
        Self { rules: SearchRules::Transformers, beam: 1, min_tokens: 0, ..Self::fairseq(20) }
    }

    /// Returns the defaults with at most `max` tokens.
    #[must_use]
    pub fn within(self, max: usize) -> Self {
        Self { max_tokens: self.max_tokens.min(max), ..self }
    }
}

/// Downcasts an encoding to the concrete type of the model that created it. Fails if another model created it.
pub fn encoding_mut<E: Encoding>(encoding: &mut dyn Encoding) -> Result<&mut E> {
    (encoding as &mut dyn Any)
        .downcast_mut()
        .ok_or_else(|| Error::Internal("the encoding belongs to another model".into()))
}

/// The library whose search is followed: they differ in what may be generated and when the search ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SearchRules {
    /// fairseq's `SequenceGenerator`.
    #[default]
    Fairseq,
    /// `generate` of Hugging Face's transformers, version 5.
    Transformers,
}

named!(SearchRules { Fairseq: "fairseq", Transformers: "transformers" });

/// When a beam search by the rules of transformers stops, after `beam` hypotheses have finished.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "Value", into = "Value")]
pub enum EarlyStopping {
    /// Stops at once.
    True,
    /// Stops when no running path has a better score at its present length than the worst of them.
    #[default]
    False,
    /// Stops when no running path can reach a better score at any length up to the limit.
    Never,
}

named!(EarlyStopping { True: "true", False: "false", Never: "never" });

impl TryFrom<Value> for EarlyStopping {
    /// In serde's form, so that it is parsed like serde's own messages.
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|known| Value::from(*known) == value);
        let expected = "true, false or \"never\"";
        known.ok_or_else(|| format!("{}, expected {expected}", clip(&value.to_string(), QUOTED)))
    }
}

impl From<EarlyStopping> for Value {
    fn from(early_stopping: EarlyStopping) -> Self {
        match early_stopping {
            EarlyStopping::True => true.into(),
            EarlyStopping::False => false.into(),
            EarlyStopping::Never => early_stopping.name().into(),
        }
    }
}

/// Temperature of requests and checkpoints that state none, over gRPC, over HTTP and on the command line. OpenAI's default.
pub const DEFAULT_TEMPERATURE: f32 = 1.0;

/// Defaults of a request's sampling options. A checkpoint may state some of them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "an object")]
pub struct SamplingDefaults {
    /// Default of `temperature`.
    pub temperature: f32,
    /// Default of `top_k`.
    pub top_k: usize,
    /// Default of `top_p`.
    pub top_p: f32,
    /// Default of `min_p`.
    pub min_p: f32,
    /// Default of `repetition_penalty`.
    pub repetition_penalty: f32,
}

impl Default for SamplingDefaults {
    fn default() -> Self {
        Self { temperature: DEFAULT_TEMPERATURE, top_k: 0, top_p: 1.0, min_p: 0.0, repetition_penalty: 1.0 }
    }
}

impl SamplingDefaults {
    /// Checks the bounds of the options. The error names the key in `file`, which begins with `parent`.
    pub(crate) fn check(&self, file: &Path, parent: &str) -> Result<()> {
        let bounds = [
            ("temperature", self.temperature, 0.0, 100.0),
            ("top_p", self.top_p, 0.0, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("repetition_penalty", self.repetition_penalty, 0.01, 100.0),
        ];
        match bounds.into_iter().find(|(_, value, min, max)| !(min..=max).contains(&value)) {
            Some((key, value, min, max)) => {
                Err(Error::checkpoint(file, format!("{parent}{key}"), format!("{min} to {max}"), value.to_string()))
            }
            None => Ok(()),
        }
    }
}

/// Maximum threshold of entropies, in nats, that a request may set. No prediction of the symbols that models have is as uncertain.
pub const MAX_THRESHOLD: f32 = 100.0;

/// Rejects a boundary mode that the model lacks, and a threshold that it lacks or that is out of bounds.
pub fn check_mode(boundaries: &BoundaryOptions, card: &Card) -> Result<()> {
    if let Some(threshold) = boundaries.threshold {
        let bound = match card.boundary_threshold {
            None => format!("none: the boundaries of {} have no threshold that requests may set", card.name),
            Some(_) if (0.0..=MAX_THRESHOLD).contains(&threshold) => String::new(),
            Some(_) => format!("0 to {MAX_THRESHOLD}, in nats"),
        };
        if !bound.is_empty() {
            return Err(Error::bad_option("boundary_threshold", threshold.to_string(), bound));
        }
    }
    match boundaries.mode {
        Some(mode) if !card.boundary_modes.contains(&mode) => Err(unknown_mode(mode.name(), card)),
        _ => Ok(()),
    }
}

/// The error for a boundary mode that the model lacks.
pub fn unknown_mode(found: impl ToString, card: &Card) -> Error {
    let names: Vec<_> = card.boundary_modes.iter().map(|mode| mode.name()).collect();
    Error::BadOption { field: "boundary_mode", found: found.to_string(), bound: format!("one of {}", names.join(", ")) }
}

/// Limits of a summarization request's options, as reported to clients.
#[derive(Debug, Clone, Copy)]
pub struct SummaryLimits;

impl SummaryLimits {
    /// Maximum beam width.
    pub const BEAM: usize = 64;
    /// Maximum length of a run that is not repeated.
    pub const NGRAM: usize = 64;
    /// Maximum absolute value of the length penalty.
    pub const PENALTY: f32 = 10.0;
    /// Bounds of the repetition penalty.
    pub const REPETITION: RangeInclusive<f32> = 0.01..=100.0;
}

const COMPARED_SYMBOLS: usize = 64;

/// Consecutive symbols of a text: `head`, then `tail`. Either may be empty.
#[derive(Debug, Clone, Copy, Default)]
pub struct SymbolSlices<'a> {
    head: &'a [u32],
    tail: &'a [u32],
}

impl<'a, T: AsRef<[u32]> + ?Sized> From<&'a T> for SymbolSlices<'a> {
    fn from(symbols: &'a T) -> Self {
        Self::new(&[], symbols.as_ref())
    }
}

impl PartialEq for SymbolSlices<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl<T: AsRef<[u32]> + ?Sized> PartialEq<&T> for SymbolSlices<'_> {
    fn eq(&self, other: &&T) -> bool {
        let other = other.as_ref();
        self.len() == other.len() && self.common_len(other) == other.len()
    }
}

impl<'a> SymbolSlices<'a> {
    /// Joins two parts of a text.
    pub fn new(head: &'a [u32], tail: &'a [u32]) -> Self {
        Self { head, tail }
    }

    /// Number of symbols.
    pub fn len(self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// True if there are no symbols.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Returns the symbol at `index`.
    pub fn get(self, index: usize) -> Option<u32> {
        self.head.get(index).or_else(|| self.tail.get(index.checked_sub(self.head.len())?)).copied()
    }

    /// Returns the symbols of a range, if it lies within these.
    pub fn range(self, range: Range<usize>) -> Option<Self> {
        let len = range.end.checked_sub(range.start)?;
        (range.end <= self.len()).then(|| self.skip(range.start).take(len))
    }

    /// Returns the first `len` symbols; all if there are fewer.
    pub fn take(self, len: usize) -> Self {
        let head = len.min(self.head.len());
        let tail = (len - head).min(self.tail.len());
        Self { head: &self.head[..head], tail: &self.tail[..tail] }
    }

    /// Returns the symbols after the first `len`.
    pub fn skip(self, len: usize) -> Self {
        let head = len.min(self.head.len());
        let tail = (len - head).min(self.tail.len());
        Self { head: &self.head[head..], tail: &self.tail[tail..] }
    }

    /// Returns the symbols in order.
    pub fn iter(self) -> impl Iterator<Item = u32> + Clone + 'a {
        self.head.iter().chain(self.tail).copied()
    }

    /// Returns the two slices in order.
    pub fn slices(self) -> [&'a [u32]; 2] {
        [self.head, self.tail]
    }

    /// Copies the symbols.
    pub fn to_vec(self) -> Vec<u32> {
        self.slices().concat()
    }

    /// Returns the number of symbols with which both texts begin.
    pub fn common_len(self, other: &[u32]) -> usize {
        let common = common_len(self.head, other);
        if common < self.head.len() { common } else { common + common_len(self.tail, &other[common..]) }
    }

    /// Returns true if these symbols begin with the symbols of `other`.
    pub fn starts_with(self, other: &[u32]) -> bool {
        self.common_len(other) == other.len()
    }
}

/// Returns the number of symbols with which both texts begin.
fn common_len(a: &[u32], b: &[u32]) -> usize {
    let blocks = a.chunks_exact(COMPARED_SYMBOLS).zip(b.chunks_exact(COMPARED_SYMBOLS));
    let equal = COMPARED_SYMBOLS * blocks.take_while(|(a, b)| a == b).count();
    equal + a[equal..].iter().zip(&b[equal..]).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::MAX_SYMBOLS;

    #[test]
    fn levels_list_the_chunks_of_the_level_around_them() {
        let decision = |depth| SymbolBoundary { boundary: depth > 0, depth, ..SymbolBoundary::default() };
        let decisions: Vec<_> = [2, 0, 1, 2, 0, 0, 1].map(decision).into();
        let depths = decisions.iter().map(|decision: &SymbolBoundary| decision.depth);
        assert_eq!(levels(depths), [vec![1, 0, 1, 1, 0, 0, 1], vec![1, 0, 1, 0]]);
        assert!(levels([0, 0]).is_empty() && levels([]).is_empty());
        assert_eq!([decisions[0], decisions[1]].map(SymbolBoundary::closed_levels), [2, 0]);
        assert_eq!(SymbolBoundary { boundary: true, ..decision(0) }.closed_levels(), 1);
        let cuts = |decision: SymbolBoundary| (decision.begins_segment(), decision.ends_segment());
        assert_eq!(cuts(decision(1)), (true, false));
        assert_eq!(cuts(SymbolBoundary { boundary: true, ..decision(0) }), (false, true));
        assert_eq!(cuts(decision(0)), (false, false));
    }

    #[test]
    fn a_prefix_alone_is_not_a_document() {
        let token = |start, end| TokenSpan { id: 7, start, end };
        assert!(!covers_text(&[]) && !covers_text(&[token(0, 0), token(0, 0)]));
        assert!(covers_text(&[token(0, 0), token(0, 1)]));
        assert_eq!(no_text("--file").to_string(), "--file: expected text of at least one token, found none");
    }

    #[test]
    fn the_kept_share_counts_tokens_of_the_document_once() {
        let choice = |tokens: &[usize]| PoolingChoice {
            layer: 0,
            kept: tokens.iter().map(|&token| KeptVector { token, score: 0.5 }).collect(),
        };
        // padding is at 8 and after it
        let choices = [choice(&[0, 1, 2, 3]), choice(&[5, 0, 5, 9])];
        assert_eq!(kept_share(&choices, 4, 8), Some(0.25));
        assert_eq!(kept_share(&[], 8, 8), Some(1.0));
        assert_eq!(kept_share(&[], 16, 8), Some(1.0), "padded");
        assert_eq!(kept_share(&[], 4, 8), None, "a pooling by means");
    }

    #[test]
    fn cut_positions_are_few_and_never_after_the_first_symbol_fed() {
        let cut = |symbol, valid_from| ReplayStart { symbol, valid_from, skipped: None }.cut_position();
        assert_eq!([cut(1, 40), cut(1023, 1100), cut(1024, 1100), cut(5000, 5100)], [0, 0, 1024, 4096]);
        // two thousand symbols are needed: the next power of two is the stride
        assert_eq!([cut(3000, 5001), cut(4096, 6100), cut(9000, 11_500)], [2048, 4096, 8192]);
    }

    #[test]
    fn early_stopping_is_spelt_as_transformers_does() {
        for (value, json) in
            [(EarlyStopping::True, "true"), (EarlyStopping::False, "false"), (EarlyStopping::Never, "\"never\"")]
        {
            assert_eq!(serde_json::from_str::<EarlyStopping>(json).unwrap(), value);
            assert_eq!(serde_json::to_string(&value).unwrap(), json);
        }
    }

    /// Wherever the slices meet, they act as one.
    #[test]
    fn two_slices_are_one_text() {
        let text: Vec<u32> = (0..200).collect();
        for edge in [0, 1, 63, 64, 65, 100, 199, 200] {
            let slices = SymbolSlices::new(&text[..edge], &text[edge..]);
            assert_eq!((slices.len(), slices.is_empty(), slices.to_vec() == text), (200, false, true));
            assert!(slices == &text && slices == SymbolSlices::from(&text) && slices != &text[..199]);
            assert!((0..=200).all(|index| slices.get(index) == text.get(index).copied()));
            for (start, end) in [(0, 0), (0, 64), (40, 120), (64, 200), (199, 200), (200, 200), (120, 40), (190, 201)] {
                let range = slices.range(start..end).map(SymbolSlices::to_vec);
                assert_eq!(range.as_deref(), text.get(start..end), "{start}..{end} of {edge}");
            }
            assert_eq!((slices.take(120).to_vec(), slices.take(300).len()), (text[..120].to_vec(), 200));
            assert_eq!((slices.skip(120).to_vec(), slices.skip(300).len()), (text[120..].to_vec(), 0));
        }
    }

    #[test]
    fn texts_are_compared_to_their_first_difference() {
        let text: Vec<u32> = (0..300).collect();
        for end in [0, 1, 63, 64, 65, 128, 200, 300] {
            for difference in [0, 1, 63, 64, 65, 127, 128, 199, 299] {
                let mut other = text[..end].to_vec();
                other.iter_mut().skip(difference).take(1).for_each(|symbol| *symbol += 1);
                let expected = end.min(difference);
                assert_eq!((common_len(&text, &other), common_len(&other, &text)), (expected, expected));
                for edge in [0, 1, 64, 100, 300] {
                    let slices = SymbolSlices::new(&text[..edge], &text[edge..]);
                    assert_eq!((slices.common_len(&other), slices.starts_with(&other)), (expected, expected == end));
                }
            }
        }
    }

    #[test]
    fn items_encode_symbol_and_boundary() {
        for id in [0, 5, MAX_SYMBOLS as u32 + 4] {
            assert_eq!((symbol(id), ends_segment(id)), (id, None));
            for ends in [false, true] {
                let item = item(id, ends);
                assert_eq!((symbol(item), ends_segment(item)), (id, Some(ends)));
                assert!(item != END && item != BEGIN);
            }
        }
        assert_eq!((positions(&[END]), positions(&[BEGIN]), positions(&[3, 4])), (0, 0, 2));
    }
}
