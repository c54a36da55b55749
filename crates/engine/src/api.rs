//! Value types that callers and the engine exchange: limits, requests, their terms, and the events that come back. Also turns a request
//! about a text into the session that runs it, and refuses what could not run within the engine's limits.

use crate::{
    codec::{Code, CodeInput, Coded, CodingProgress},
    completion::{NextDistributions, NextSymbol},
    options::{EmittedSymbol, FinishReason, Generate, Score},
    session::Session,
    speculation::Speculation,
    summary::{DocumentProgress, EncodedDocument, PoolingUpdate, SummaryResult},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::mpsc;
use weir_kernels::error::{Error, Result};
use weir_models::{
    contract::{BOUNDARY_WAIT, Model},
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

/// The field that decides how much text a distribution follows.
const CURSOR: &str = "complete.cursor_byte";

/// Creates the session of a job. Fails if the job is invalid, if the model does not continue texts, and with `TooMuchWork` or
/// `NeverFits` if it could not run even alone.
pub(crate) fn open_session(job: Job, model: &dyn Model, limits: &Limits) -> Result<Session> {
    let card = model.card();
    // The call that errors name, and two pairs of fields, for too much work and for too much memory: the first is to blame by
    // itself, the second together with the text.
    let (call, work_fields, memory_fields) = match &job {
        Job::Generate(_) => ("Generate", ["prompt", "stopping.max_chars"], ["prompt", "stopping.max_chars"]),
        Job::Score(request) if request.windows.is_some() => {
            ("Score", ["text", "windows.stride"], ["windows.length"; 2])
        }
        Job::Score(_) => ("Score", ["text"; 2], ["text"; 2]),
        Job::Code(_) => ("the codec", ["block", "windows.stride"], ["windows.length"; 2]),
        Job::Next(_) => ("Edit", [CURSOR; 2], [CURSOR; 2]),
    };
    check_takes_texts(call, model)?;
    let session = match job {
        Job::Generate(request) => {
            let speculation = request.speculation.or(Some(limits.speculation));
            Session::generate(Generate { speculation, ..request }, card)
        }
        Job::Score(request) => Session::score(request, card),
        Job::Code(request) => Session::code(request, card),
        Job::Next(request) => Session::next_symbol(request, card),
    }?;
    check_work(&session, work_fields, limits.request_work)?;
    check_fits(&session, memory_fields, model)?;
    Ok(session)
}

fn check_takes_texts(call: &'static str, model: &dyn Model) -> Result<()> {
    match model.document_encoder() {
        None => Ok(()),
        Some(_) => {
            let card = model.card();
            Err(Error::only_summarizes(call, &card.name, "continues a prompt", &card.shape))
        }
    }
}

/// Rejects a text that would feed more than `limit` symbols; the error names the first field if the text alone does.
fn check_work(session: &Session, [text_field, other_field]: [&'static str; 2], limit: usize) -> Result<()> {
    let work = session.max_work();
    if work <= limit {
        return Ok(());
    }
    let field = if session.prompt_symbols() > limit { text_field } else { other_field };
    Err(Error::TooMuchWork { field, work, limit })
}

/// Rejects a text that could not run even alone; the error names the first field if the prompt alone is too long.
fn check_fits(session: &Session, [prompt_field, length_field]: [&'static str; 2], model: &dyn Model) -> Result<()> {
    let needed = model.bytes_for(session.max_symbols());
    let limit = model.memory().limit;
    if needed <= limit {
        return Ok(());
    }
    let prompt_alone = model.bytes_for(session.prompt_symbols()) > limit;
    Err(Error::NeverFits { field: if prompt_alone { prompt_field } else { length_field }, needed, limit })
}
