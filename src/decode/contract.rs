//! What a model is to everyone else: symbols in, logits out, segments closed on the way.
//!
//! The unit of work is a [`Row`]: one sequence, the symbols to feed it next, and what came out. Work comes in three kinds,
//! each batched over rows. A *symbol step* feeds each row its symbols, one (decoding) or many (a prefill chunk), and decides
//! where segments end. Rows that closed one are then [`Waiting`](Status::Waiting) for a *segment step*, which runs the middle
//! stack over the segments just closed; all others are [`Unfinished`](Status::Unfinished), as are those that have had their
//! segment step. A *finish step* makes unfinished rows [`Ready`](Status::Ready), with logits. When waiting rows run is the
//! caller's choice ([`gather`](super::gather)); that rows finish together, whether they waited or not, is what lets a step
//! read each weight once. A family without segments never waits. Nothing else of pooling is visible outside the model.
//!
//! A row's numbers depend neither on the other rows of a step nor on how its symbols were cut into steps: bit for bit.

use super::{
    cost::Cost,
    document::Reader,
    origin::Origin,
    random::{Purpose, uniform},
    trace,
};
use crate::{
    error::{Error, Result},
    text::Vocabulary,
};
use std::{any::Any, sync::Arc};

/// A loaded model. Weights are shared and never change; everything that does is an argument.
pub trait Model: Send + Sync {
    /// What clients may know of it.
    fn card(&self) -> &Card;

    /// The state of a sequence that has seen nothing yet.
    ///
    /// # Errors
    /// [`Error::BadOption`] for a boundary mode that it does not have; [`Error::WrongKind`] if its rows begin from documents.
    fn begin(&self, boundaries: BoundaryOptions) -> Result<Box<dyn State>>;

    /// Working memory for one thread that runs steps.
    fn scratch(&self) -> Scratch;

    /// Feeds `rows[i].feed` for each `i` of `which`: rows that are ready. Each is then waiting or unfinished, and has its
    /// marks; its feed and its want stay as they are until it is ready again.
    ///
    /// # Errors
    /// [`Error::OutOfPages`] if the key-value pool is exhausted; [`Error::Internal`] if a row is not ready, has nothing to
    /// feed, or holds another model's state. The rows of a failed step are lost: drop them.
    fn symbol_step(&self, rows: &mut [Row], which: &[usize], scratch: &mut Scratch) -> Result<()>;

    /// Runs the middle stack for the waiting rows among `which`, after which they are unfinished. Others are left alone.
    ///
    /// # Errors
    /// As for [`symbol_step`](Self::symbol_step).
    fn segment_step(&self, rows: &mut [Row], which: &[usize], scratch: &mut Scratch) -> Result<()>;

    /// Finishes the unfinished rows among `which`, the wanted logits included, which are then ready. Others are left alone.
    ///
    /// # Errors
    /// As for [`symbol_step`](Self::symbol_step).
    fn finish_step(&self, rows: &mut [Row], which: &[usize], scratch: &mut Scratch) -> Result<()>;

    /// The most bytes of key-value memory that a sequence of `symbols` can hold.
    fn bytes_for(&self, symbols: usize) -> usize;

    /// The most bytes of key-value memory that feeding this state `more` symbols takes, all steps until it is ready included,
    /// and copies of pages that it shares with others. 0 symbols: what is still to be taken for those in flight.
    fn growth(&self, state: &dyn State, more: usize) -> usize;

    /// Bytes of key-value memory in use by all sequences, and the limit.
    fn memory(&self) -> Memory;

    /// What the work on the last of `symbols` symbols costs at least, in a sequence that has closed `segments` segments, the
    /// one that it may end included.
    fn cost(&self, symbols: usize, segments: usize) -> Cost;

    /// What it can do with documents, if it reads any. The rows of a model that does begin from documents only.
    fn reader(&self) -> Option<&dyn Reader> {
        None
    }
}

/// One sequence's state: what the model remembers of the symbols fed so far. Dropping it gives its pages back.
pub trait State: Any + Send + Sync {
    /// Symbols fed.
    fn len(&self) -> usize;

    /// Whether nothing was fed yet.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Segments closed.
    fn segments(&self) -> usize;

    /// A second sequence with the same past, ready to be fed. Pages are shared until one of the two writes. A row that is
    /// not ready is forked as it was before its feed: what is in flight belongs to one row only. If its windows have moved on
    /// too far meanwhile, a chunk of many symbols long, the fork has seen nothing.
    fn fork(&self) -> Box<dyn State>;

    /// Forgets all symbols from position `len` on.
    ///
    /// # Errors
    /// [`Error::Internal`] if `len` is beyond the end, or before [`earliest`](Self::earliest) and not 0, or the row is not ready.
    fn rollback(&mut self, len: usize) -> Result<()>;

    /// The shortest length, other than 0, that it can be rolled back to. A state whose windows move on forgets what they leave
    /// behind; others forget nothing.
    fn earliest(&self) -> usize {
        0
    }

    /// Forgets all symbols, those in flight too: the state is then as [`Model::begin`] gave it, but that the first symbol to
    /// come stands at `offset` in its stream.
    fn restart(&mut self, offset: usize);

    /// From where on its text must be fed to build it again; none if all of it must. For every length that it can be
    /// [rolled back to](Self::earliest) the same. A row that is not ready has none.
    fn origin(&self) -> Option<Origin> {
        None
    }

    /// Goes on from an [`origin`](Self::origin) of another state of the same model: counts the symbols before it as fed. Until
    /// it is as long as the origin says, its numbers are nothing to rely on, and it can only be rolled back to 0.
    ///
    /// # Errors
    /// [`Error::Internal`] if it has seen something, or never has such an origin.
    fn resume(&mut self, origin: Origin) -> Result<()> {
        Err(Error::Internal(format!("a state that needs its whole text was to go on from {origin:?}")))
    }

    /// How long the longest beginning is, of at most `len` symbols, that ends where a segment does and that it can be rolled back
    /// to; 0 if none. Where there are no segments every symbol is such an end.
    fn boundary_before(&self, len: usize) -> usize;

    /// Bytes of the pages that this state refers to, shared ones included.
    fn bytes(&self) -> usize;

    /// Shows each of these pages, once.
    fn pages(&self, each: &mut dyn FnMut(PageUse));

    /// Bytes that it occupies beside its pages.
    fn own_bytes(&self) -> usize;

    /// How many of the first symbols have the boundaries that the model's predictor gives them, in whole segments: for their
    /// state the plain symbols stand, whatever [`trace`] they were fed with. All, where nothing else ends segments.
    fn agreed(&self) -> usize {
        self.len()
    }
}

/// A page of key-value memory, for whoever counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageUse {
    /// No other page of any model has it while this one is held.
    pub id: usize,
    /// Its size.
    pub bytes: usize,
    /// How many references to it there are: at 1, dropping the state gives it back.
    pub references: usize,
}

/// Working memory of one thread that runs steps; made by the model, opaque to everyone else.
pub struct Scratch(pub Box<dyn Any + Send>);

/// One sequence in a step.
pub struct Row {
    /// The sequence.
    pub state: Box<dyn State>,
    /// The symbols to feed in the next symbol step, at least one; or items of a [`trace`], for a model that writes marks.
    pub feed: Vec<u32>,
    /// For which of the fed symbols logits are wanted.
    pub want: Want,
    /// Once ready: (wanted symbols, vocabulary), row-major; the logits after symbol t predict symbol t + 1.
    pub logits: Vec<f32>,
    /// After the symbol step: one mark for each fed symbol.
    pub marks: Vec<Mark>,
    /// Where the row stands.
    pub status: Status,
    /// Symbol steps that ran while this feed waited for its segment step; counted by whoever steps the rows.
    pub waited: usize,
}

impl Row {
    /// A row around a sequence.
    pub fn new(state: Box<dyn State>) -> Self {
        let (feed, logits, marks) = (Vec::new(), Vec::new(), Vec::new());
        Self { state, feed, want: Want::Last, logits, marks, status: Status::Ready, waited: 0 }
    }

    /// Sets what to feed next; the row must be ready.
    pub fn set(&mut self, symbols: &[u32], want: Want) {
        self.waited = 0;
        self.feed.clear();
        self.feed.extend_from_slice(symbols);
        self.want = want;
    }

    /// How many places of the sequence the feed takes.
    pub fn places(&self) -> usize {
        trace::places(&self.feed)
    }

    /// Of how many of the fed symbols logits are wanted: of the last ones.
    pub fn wanted(&self) -> usize {
        match self.want {
            Want::Nothing => 0,
            Want::Last => self.feed.len().min(1),
            Want::All => self.feed.len(),
        }
    }
}

/// Which logits a step computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// None: a prefill chunk that is not the prompt's last.
    Nothing,
    /// Those after the last symbol fed.
    Last,
    /// Those after each symbol fed.
    All,
}

/// Where a row stands between steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Its logits are there, and it may be fed.
    Ready,
    /// It closed a segment and needs a segment step.
    Waiting,
    /// It needs a finish step.
    Unfinished,
}

/// What the boundary source said of one symbol.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mark {
    /// Whether a segment ends with this symbol.
    pub boundary: bool,
    /// The predictor's output, if boundaries come from a learned predictor. Not calibrated (the official training applies
    /// the sigmoid twice).
    pub probability: Option<f32>,
    /// ln p of the mark that ends the segment with this symbol, where it does, in a model that writes such marks, if all
    /// logits were wanted.
    pub end_logprob: Option<f32>,
}

/// How a sequence's boundaries are decided, where the model leaves a choice.
#[derive(Debug, Clone, Default)]
pub struct BoundaryOptions {
    /// The mode; the model's default if none. One that the model does not have is an error.
    pub mode: Option<BoundaryMode>,
    /// Where sampled boundaries take their noise from.
    pub noise: Noise,
    /// Where in its stream the sequence's first symbol stands: fixed boundaries count from the stream's start, so a window
    /// cut out of a longer text keeps that text's phase.
    pub offset: usize,
}

/// How a learned predictor's output becomes a boundary. Other sources know one way only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BoundaryMode {
    /// The model has no choice to make: none, fixed, whitespace, entropy spikes.
    Given,
    /// Boundary if the predictor's output is above the threshold.
    Threshold,
    /// Boundary with the probability that the predictor gives (gumbel checkpoints' official behaviour).
    Sampled,
    /// Given text by the predictor; generated text where the model writes its mark.
    Nxt,
    /// Given and generated text by the predictor, in a model that writes marks: those are never chosen.
    Predictor,
}

impl BoundaryMode {
    /// The name on the wire and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Given => "given",
            Self::Threshold => "threshold",
            Self::Sampled => "sampled",
            Self::Nxt => "nxt",
            Self::Predictor => "predictor",
        }
    }

    /// All there are.
    pub const ALL: [Self; 5] = [Self::Given, Self::Threshold, Self::Sampled, Self::Nxt, Self::Predictor];

    /// The mode of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// Uniform noise in (0, 1), one number a position: a function of the position alone, so that a fork, a rollback or a second
/// run meets the same.
#[derive(Debug, Clone)]
pub enum Noise {
    /// Drawn from this seed.
    Seeded(u64),
    /// Given, for comparison with recorded runs; positions beyond its end are an error.
    Given(Arc<[f32]>),
}

impl Default for Noise {
    fn default() -> Self {
        Self::Seeded(0)
    }
}

impl Noise {
    /// The number at a position.
    ///
    /// # Errors
    /// [`Error::Internal`] beyond the end of given noise.
    pub fn at(&self, position: usize) -> Result<f32> {
        match self {
            Self::Seeded(seed) => Ok(uniform(*seed, Purpose::Boundary, position)),
            Self::Given(values) => values.get(position).copied().ok_or_else(|| {
                Error::Internal(format!(
                    "noise for {} positions was given, position {position} needs one",
                    values.len()
                ))
            }),
        }
    }
}

/// Key-value memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Bytes in pages that sequences hold.
    pub in_use: usize,
    /// Bytes there may be.
    pub limit: usize,
}

/// What clients may know of a model.
#[derive(Debug, Clone)]
pub struct Card {
    /// The name it is served under: its folder's.
    pub name: String,
    /// Its family: `hourglass` …
    pub family: &'static str,
    /// One line for people: layers, width, boundaries.
    pub shape: String,
    /// Trained numbers.
    pub parameters: usize,
    /// Its symbols and their normaliser.
    pub vocabulary: Arc<Vocabulary>,
    /// Symbols in one training window.
    pub training_length: usize,
    /// The most symbols one sequence may have.
    pub max_symbols: usize,
    /// Why the model itself can hold no more; none if that is a setting.
    pub max_symbols_why: Option<&'static str>,
    /// How boundaries can be decided; the first is the default.
    pub boundary_modes: Vec<BoundaryMode>,
    /// (V): the logits before the first symbol of a text, where the model has a mark for its start. An empty prompt can be
    /// continued then, and the first symbol of a text has a probability.
    pub first_logits: Option<Arc<[f32]>>,
    /// Whether it pools, i.e. ever closes a segment.
    pub pooled: bool,
    /// What its weights, keys and values are stored in: `f32`, `bf16` or `int8`.
    pub dtype: &'static str,
    /// Of `model.safetensors` (of the shards in order, if there are several), hexadecimal.
    pub sha256: String,
}

impl Card {
    /// The symbols of a text that is at most as long as a sequence; `field` is what it is called in messages.
    ///
    /// # Errors
    /// As for [`Vocabulary::encode`].
    pub fn encode(&self, field: &'static str, text: &str) -> Result<Vec<u32>> {
        let encoded = self.vocabulary.encode(field, text, self.max_symbols);
        encoded.map_err(|error| error.because(self.max_symbols_why))
    }
}

/// Feeds every row of `which` and makes it ready, nobody waiting for anybody: the simplest engine.
///
/// # Errors
/// As for [`Model::symbol_step`].
pub fn advance(model: &dyn Model, rows: &mut [Row], which: &[usize], scratch: &mut Scratch) -> Result<()> {
    model.symbol_step(rows, which, scratch)?;
    model.segment_step(rows, which, scratch)?;
    model.finish_step(rows, which, scratch)
}

/// The concrete state behind the contract, for the family that made it.
pub fn state_ref<S: State>(state: &dyn State) -> Result<&S> {
    let state: &dyn Any = state;
    state.downcast_ref().ok_or_else(|| Error::Internal("a row holds another model's state".into()))
}

/// The same, to change.
pub fn state_mut<S: State>(state: &mut dyn State) -> Result<&mut S> {
    let state: &mut dyn Any = state;
    state.downcast_mut().ok_or_else(|| Error::Internal("a row holds another model's state".into()))
}
