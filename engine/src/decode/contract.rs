//! The model trait: a model takes symbols, closes segments, and returns logits.
//!
//! The unit of work is a [`SequenceRow`]: one sequence, the symbols to feed next, and the results. There are three kinds of
//! work, each batched over rows:
//!
//! 1. A *symbol step* feeds each row one symbol (decode) or many (a prefill chunk) and decides where segments end. Rows that
//!    closed a segment are then [`Waiting`](StepStatus::Waiting), all others [`Unfinished`](StepStatus::Unfinished).
//! 2. A *segment step* runs the middle stack over the segments just closed. Its rows are then unfinished.
//! 3. A *finish step* computes the logits of unfinished rows, which are then [`Ready`](StepStatus::Ready).
//!
//! The caller chooses when waiting rows run ([`boundary_wait`](super::boundary_wait)). They finish together with rows that
//! did not wait, so a step reads each weight once. A family without segments never waits. Pooling is not otherwise visible.
//!
//! The results of a row are the same, bit for bit, whatever other rows are in its steps and however its symbols are split into
//! steps.

pub use super::{
    boundary::{BoundaryMode, BoundaryOptions, Noise, SymbolBoundary},
    state::{PageUse, Scratch, State, state_mut, state_ref},
};
use super::{
    cost::Cost, defaults::SamplingDefaults, document::DocumentEncoder, speculation::ngrams::NgramTable,
    symbol_slices::SymbolSlices, trace,
};
use crate::{
    error::{Error, Result},
    kernels::Isa,
    text::Vocabulary,
};
use std::{
    fmt::{self, Display, Formatter},
    sync::Arc,
};

/// A loaded model. Weights are shared and never change; everything that changes is an argument.
pub trait Model: Send + Sync {
    /// The model's properties, as clients see them.
    fn card(&self) -> &Card;

    /// Returns the state of an empty sequence. Fails with `BadOption` for a boundary mode that the model lacks, and with
    /// `WrongKind` if its rows begin from documents.
    fn begin(&self, boundaries: BoundaryOptions) -> Result<Box<dyn State>>;

    /// Returns working memory for one thread that runs steps.
    fn scratch(&self) -> Scratch;

    /// Feeds `rows[i].feed` for each `i` of `which`; these rows must be ready. Each is then waiting or unfinished and has
    /// its decisions. The caller leaves `feed` and `want` unchanged until the row is ready again. Fails with `OutOfPages` if
    /// the key-value pool is exhausted, and with `Internal` if a row is not ready, has an empty feed, or holds another
    /// model's state. The rows of a failed step are lost: drop them.
    fn symbol_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()>;

    /// Runs the middle stack for those rows of `which` that wait; they are then unfinished. Skips others. Fails as a symbol step
    /// does.
    fn segment_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()>;

    /// Finishes the unfinished rows of `which`, wanted logits included; they are then ready. Skips others. Fails as a symbol
    /// step does.
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
    /// Symbols of the next symbol step, at least one; items of a [`trace`] for a model that writes marks.
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
        }
    }

    /// Sets the next feed; the row must be ready.
    pub fn set<'a>(&mut self, symbols: impl Into<SymbolSlices<'a>>, want: Want) {
        self.waited = 0;
        self.feed.clear();
        symbols.into().slices().into_iter().for_each(|slice| self.feed.extend_from_slice(slice));
        self.want = want;
    }

    /// Drops all but the first `len` symbols of the feed, at least one, after its symbol step and before any other. The row then is
    /// as if it had been fed these alone. Fails as [`State::cut`] does.
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

    /// Cuts the feed, a sampled symbol and the draft after it, before the first drafted symbol that ends a segment. So the middle
    /// stack runs for accepted symbols only. Fails as [`State::cut`] does.
    pub fn cut_draft(&mut self) -> Result<()> {
        let first_boundary = self.decisions.iter().skip(1).position(|decision| decision.boundary);
        first_boundary.map_or(Ok(()), |drafted| self.cut(1 + drafted))
    }

    /// Drops all but the first `len` symbols of the feed, at least one, from the row, which is ready: its state is rolled back.
    /// Fails as [`State::rollback`] does.
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
        trace::positions(&self.feed)
    }

    /// Number of fed symbols for which logits are wanted; these are the last ones.
    pub fn wanted(&self) -> usize {
        match self.want {
            Want::Nothing => 0,
            Want::Last => self.feed.len().min(1),
            Want::All => self.feed.len(),
        }
    }

    /// Checks the results of a step that began at position `start`: logits (wanted symbols, `vocabulary`), decisions, and the state's
    /// length. Fails with [`Error::Internal`] if the row is not as a step must leave it.
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
/// use weir_engine::family::{checkpoint::CheckpointSource, load::{Settings, load_as}};
///
/// let source = CheckpointSource::default();
/// let model = load_as(&source, &source.name(), &Settings::default())?;
/// let card = model.card();
/// assert_eq!((card.name.as_str(), card.family), ("hourglass-english", "hourglass"));
/// assert!(card.pooled && card.vocabulary.len() == 256);
/// let symbols = card.encode("prompt", "The River")?;
/// assert_eq!(card.vocabulary.decode(&symbols), "The River");
/// # Ok::<(), weir_engine::error::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Card {
    /// The name under which it is served: its folder's name, unless it was loaded under another one.
    pub name: String,
    /// Its family, such as `hourglass`.
    pub family: &'static str,
    /// One line for people: layers, width, boundaries.
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
    /// (V): the logits before the first symbol of a text, if the model has a start mark. An empty prompt can then be continued,
    /// and the first symbol of a text has a probability.
    pub first_logits: Option<Arc<[f32]>>,
    /// True if it pools, that is, if it can close segments.
    pub pooled: bool,
    /// True if a boundary is the first symbol of a segment, as in dynamic chunking. Otherwise it is the last one.
    pub begins_chunks: bool,
    /// True if generations may feed drafts: a rollback of some symbols feeds none again, and a feed can be [cut](SequenceRow::cut).
    pub speculates: bool,
    /// N-grams that drafts may come from, if the checkpoint has them.
    pub ngrams: Option<Arc<NgramTable>>,
    /// True if its pooling was turned off when it was loaded: it is the unpooled twin of the model with the same weights.
    pub unpooled_twin: bool,
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

/// How exactly a model's results repeat when the same symbols are computed in another way: in other steps, in another batch,
/// or on another number of threads.
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

/// Returns the name of the unpooled twin of the model `name`.
pub fn unpooled_name(name: &str) -> String {
    format!("{name}-unpooled")
}

impl Card {
    /// Encodes a text of at most `max_symbols` symbols; `field` names it in errors. Fails as [`Vocabulary::encode`] does.
    pub fn encode(&self, field: &'static str, text: &str) -> Result<Vec<u32>> {
        let encoded = self.vocabulary.encode(field, text, self.max_symbols);
        encoded.map_err(|error| error.because(self.max_symbols_why))
    }
}

impl Card {
    /// Returns the card of a small pooling model without boundary modes, for the tests of this and other packages.
    #[doc(hidden)]
    pub fn for_tests(vocabulary: Vocabulary) -> Self {
        Self {
            name: "m".into(),
            family: "fake",
            shape: "none".into(),
            parameters: 0,
            vocabulary: Arc::new(vocabulary),
            training_length: 8,
            max_symbols: 100,
            max_symbols_why: None,
            boundary_modes: Vec::new(),
            first_logits: None,
            pooled: true,
            begins_chunks: false,
            speculates: false,
            ngrams: None,
            unpooled_twin: false,
            dtype: "f32",
            isa: Isa::detect(),
            sha256: String::new(),
            exactness: Exactness::Bitwise,
            sampling: SamplingDefaults::default(),
        }
    }
}

/// Feeds every row of `which` and makes it ready; no row waits. Fails as [`Model::symbol_step`] does.
pub fn advance(model: &dyn Model, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
    model.symbol_step(rows, which, scratch)?;
    model.segment_step(rows, which, scratch)?;
    model.finish_step(rows, which, scratch)
}
