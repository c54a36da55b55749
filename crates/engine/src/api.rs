//! Value types that callers and the engine exchange: limits, requests, their terms, and the events that come back.

use crate::{
    codec::{Code, CodeInput, Coded, CodingProgress},
    completion::{NextDistributions, NextSymbol},
    options::{EmittedSymbol, FinishReason, Generate, Score},
    speculation::Speculation,
    summary::{DocumentProgress, EncodedDocument, PoolingUpdate, SummaryResult},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::mpsc;
use weir_kernels::error::Result;
use weir_models::{
    contract::BOUNDARY_WAIT,
    usage::{Timing, Usage},
};

/// Default of [`Limits::request_work`]: a text of 4 MiB in windows that overlap sixteenfold.
const REQUEST_WORK: usize = 1 << 26;

/// Limits of one model's engine. The server reports most of them to clients.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum rows of a step, and so of requests that run at once.
    pub rows: usize,
    /// Maximum queued requests.
    pub queue: usize,
    /// Maximum prompt symbols of all queued requests together.
    pub queued_symbols: usize,
    /// Maximum symbols that one request may feed to the model in total: its text with repeated context, and what it generates.
    pub request_work: usize,
    /// How long a request may run, from its first row to its end. Zero: no limit.
    pub request_time: Duration,
    /// Maximum symbols of a step. Prompts are fed in chunks next to the rows that decode.
    pub chunk: usize,
    /// Target duration of a step that feeds prompts while other rows decode. The step feeds fewer prompt symbols than
    /// `chunk` if those take longer. Zero: no target.
    pub step: Duration,
    /// Maximum events buffered for a client before its row pauses.
    pub events: usize,
    /// Maximum symbol steps that a row waits for its segment step, so that rows share it. 0: no row waits.
    pub boundary_wait: usize,
    /// Speculation of generations whose request does not set it.
    pub speculation: Speculation,
    /// How long a client may read none of its buffered events before its request ends.
    pub stall: Duration,
    /// Maximum bytes of key-value memory that the segment cache holds. 0: no cache.
    pub cache_bytes: usize,
    /// Maximum bytes of encoded documents that the document cache holds. 0: no cache.
    pub document_bytes: usize,
    /// How long the document cache keeps a document that no request uses.
    pub document_keep: Duration,
    /// Maximum parts of a document that is longer than the model reads, in each round.
    pub document_parts: usize,
    /// Time limit of the calibration at load, which times the model's steps. Zero: no calibration.
    pub calibration: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            rows: 32,
            queue: 256,
            queued_symbols: 1 << 23,
            request_work: REQUEST_WORK,
            request_time: Duration::from_secs(3600),
            chunk: 256,
            step: Duration::from_millis(50),
            events: 256,
            boundary_wait: BOUNDARY_WAIT,
            speculation: Speculation::Off,
            stall: Duration::from_secs(30),
            cache_bytes: 0,
            document_bytes: 0,
            document_keep: Duration::from_secs(600),
            document_parts: 64,
            calibration: Duration::from_secs(2),
        }
    }
}

/// A request about a text. For documents see [`Handle::summarize`](super::Handle::summarize).
#[derive(Debug, Clone)]
pub enum Job {
    /// Generates text.
    Generate(Generate),
    /// Scores a text, or finds its segments.
    Score(Score),
    /// Compresses or decompresses a block.
    Code(Code),
    /// Computes the distribution after a text, and after each symbol of its greedy continuation.
    Next(NextSymbol),
}

impl Job {
    /// Number of symbols that come with the request: of its prompt and the text that it resumes, its text, or its block.
    pub fn symbols(&self) -> usize {
        match self {
            Self::Generate(request) => request.prompt.len().saturating_add(request.resumed.len()),
            Self::Score(request) => request.symbols.len(),
            Self::Code(Code { input: CodeInput::Compress(symbols), .. }) => symbols.len(),
            Self::Code(_) => 0,
            Self::Next(request) => request.symbols.len(),
        }
    }

    /// Bytes that the request holds until it ends: its symbols, and the matcher of its constraint.
    pub fn bytes(&self) -> usize {
        let constraint = match self {
            Self::Generate(request) => request.constraint.as_ref().map_or(0, |constraint| constraint.bytes()),
            _ => 0,
        };
        self.symbols().saturating_mul(size_of::<u32>()).saturating_add(constraint)
    }
}

/// Conditions under which a request runs. A deadline, or `None`, becomes terms without anything else.
#[derive(Debug, Clone, Default)]
pub struct Terms {
    /// Time at which the client stops waiting for the outcome.
    pub deadline: Option<Instant>,
    /// Tenant that the request belongs to: tenants get equal shares of the engine. Empty: the anonymous tenant.
    pub tenant: Arc<str>,
    /// Priority among the requests of its tenant, -8 to 7. Higher goes first.
    pub priority: i32,
    /// True if the request continues a call that is already running. The engine also accepts it while it drains.
    pub continues: bool,
    /// True if no later request about the same text comes: the segment cache does not keep it.
    pub use_once: bool,
}

impl From<Option<Instant>> for Terms {
    fn from(deadline: Option<Instant>) -> Self {
        Self { deadline, ..Self::default() }
    }
}

/// An event of a request. In order: `Started`; then for a text any number of `Characters`, for a block `Coding` and `Coded`,
/// for a distribution `Next`, each followed by `Finished`; for a summary `Reading` and `Chosen`, `Encoded`, `Characters`,
/// `Summarized`. An error may come at any point and is the last event.
#[derive(Debug, Clone)]
pub enum Event {
    /// The request got its first row.
    Started {
        /// Symbols of the prompt, or of the document, that came from a cache.
        cached_chars: usize,
    },
    /// The next symbols: first the prompt's if it is echoed or scored, then generated ones. They are final: the engine
    /// withholds a partial stop string, and symbols of a summary that another hypothesis may still replace.
    Characters(Vec<EmittedSymbol>),
    /// Progress of the block of a `Code` request. Dropped if the client reads too slowly.
    Coding(CodingProgress),
    /// The block of a `Code` request.
    Coded(Coded),
    /// The distributions of a `Next` request.
    Next(NextDistributions),
    /// An event of a document or its summary.
    Document(DocumentEvent),
    /// The request ended.
    Finished {
        /// Why it ended.
        reason: FinishReason,
        /// Symbols and segments that were processed.
        usage: Usage,
        /// Durations of the request's phases.
        timing: Timing,
    },
}

/// An event of a document or its summary.
#[derive(Debug, Clone)]
pub enum DocumentEvent {
    /// Progress of the encoding. Dropped if the client reads too slowly.
    Reading(DocumentProgress),
    /// Choices of the next poolings. Dropped if the client reads too slowly: `Encoded` repeats all choices.
    Chosen(Box<PoolingUpdate>),
    /// The document is encoded.
    Encoded(Arc<EncodedDocument>),
    /// The summary ended.
    Summarized(Box<SummaryResult>),
}

/// Receiver of a request's events. Dropping it cancels the request within one step. It closes without `Finished`, `Summarized`
/// or an error only if the worker broke.
pub type Events = mpsc::Receiver<Result<Event>>;

/// Load of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Queued requests.
    pub queued: usize,
    /// Running requests.
    pub running: usize,
    /// Bytes of key-value memory that running rows hold, without pages that only the caches hold.
    pub bytes: usize,
}
