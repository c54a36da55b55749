//! The engine as others see it: submit a job, read its events, drop the receiver to cancel.

use super::{cache, calibration::Calibrated, observer::Observer, shelf, tally::Counters};
use crate::{
    decode::{
        boundary_wait::BOUNDARY_WAIT,
        contract::{Card, KvMemory, Model},
        document,
        options::{EmittedSymbol, FinishReason, Generate, Score},
        summary::{DocumentProgress, EncodedDocument, PoolingUpdate, Summarize, SummaryResult},
        usage::{Timing, Usage},
    },
    error::Result,
};
use std::{
    ops::ControlFlow,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::mpsc;

pub use super::{
    scheduler::PRIORITIES,
    upload::{Arriving, Upload},
};

/// Limits of one model's engine. All are told to clients.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Requests that may run at once: the rows of a step.
    pub rows: usize,
    /// Requests that may wait.
    pub queue: usize,
    /// Symbols of the prompts that wait, together.
    pub queued_symbols: usize,
    /// Symbols of a step: prompts are fed in chunks beside the rows that decode.
    pub chunk: usize,
    /// How long a step with prompts may last, about, while others generate: it feeds fewer of their symbols if `chunk` takes
    /// longer. Zero: as long as it takes.
    pub step: Duration,
    /// Events that wait for a reader before its row pauses.
    pub events: usize,
    /// Symbol steps that a row may wait for a segment step, so that rows share it. 0: none waits.
    pub boundary_wait: usize,
    /// How long a reader may take nothing of what is ready before its job ends.
    pub stall: Duration,
    /// Bytes of key-value memory in which states of texts are kept for later jobs; 0: none are.
    pub cache_bytes: usize,
    /// Bytes in which encoded documents are kept for later jobs; 0: none are.
    pub document_bytes: usize,
    /// How long a document is kept that no job asks for.
    pub document_keep: Duration,
    /// How long the model's steps may be timed when it is launched, so that the gain can be estimated; zero: they are not.
    pub calibration: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            rows: 32,
            queue: 256,
            queued_symbols: 1 << 22,
            chunk: 256,
            step: Duration::from_millis(50),
            events: 256,
            boundary_wait: BOUNDARY_WAIT,
            stall: Duration::from_secs(30),
            cache_bytes: 0,
            document_bytes: 0,
            document_keep: Duration::from_secs(600),
            calibration: Duration::from_secs(2),
        }
    }
}

/// What is to be done.
#[derive(Debug, Clone)]
pub enum Job {
    /// Generate text.
    Generate(Generate),
    /// Score a text, or find its segments.
    Score(Score),
}

/// On whose behalf a job runs, and under which conditions.
#[derive(Debug, Clone, Default)]
pub struct Terms {
    /// When its outcome is worth nothing any more.
    pub deadline: Option<Instant>,
    /// Who asks: jobs of one tenant share what one tenant may have. Empty: nobody in particular.
    pub tenant: Arc<str>,
    /// Higher goes first, among the jobs of its tenant: -8 to 7.
    pub priority: i32,
}

impl From<Option<Instant>> for Terms {
    fn from(deadline: Option<Instant>) -> Self {
        Self { deadline, ..Self::default() }
    }
}

/// A document to be summarised.
pub enum Source {
    /// One that is on its way: see [`Handle::upload`].
    Arriving(Arriving),
    /// One that was encoded for an earlier job of the same tenant: its id.
    Kept(String),
}

/// What happened to a job, in order: `Started`, any number of `Characters`, `Finished`; or an error at any place, last. A summary's
/// job tells `Started`, any number of `DocumentProgress` and `PoolingUpdate`, `EncodedDocument`, any number of `Characters`, `SummaryResult`.
#[derive(Debug, Clone)]
pub enum Event {
    /// The job got a row.
    Started {
        /// Symbols of the prompt, or of the document, that came from the cache.
        cached_chars: usize,
    },
    /// The next symbols: of the prompt if echoed or scored, then generated ones. Final: no stop string is told in part, and
    /// nothing of a summary that another hypothesis may still replace.
    Characters(Vec<EmittedSymbol>),
    /// What is told of a document and its summary.
    Document(DocumentEvent),
    /// The end.
    Finished {
        /// Why.
        reason: FinishReason,
        /// What was processed.
        usage: Usage,
        /// Where the time went.
        timing: Timing,
    },
}

/// What happens to a document.
#[derive(Debug, Clone)]
pub enum DocumentEvent {
    /// How far it is. Not told to those who read slowly.
    Reading(DocumentProgress),
    /// What the next poolings have chosen. Not told to those who read slowly: all choices come with `EncodedDocument` again.
    Chosen(Box<PoolingUpdate>),
    /// It is encoded.
    Encoded(Arc<EncodedDocument>),
    /// The end of its summary.
    Summarized(Box<SummaryResult>),
}

/// A running engine. Clones share it; dropping the last one stops the worker and joins it.
#[derive(Clone)]
pub struct Handle(Arc<super::desk::Shared>);

/// What a job's submitter holds; dropping it cancels the job within one step. It ends with `Finished` or an error; if it
/// closes without either, the worker itself broke.
pub type Events = mpsc::Receiver<Result<Event>>;

impl Handle {
    /// Starts a worker thread for `model`.
    ///
    /// # Errors
    /// The operating system refuses a thread.
    pub fn start(model: Arc<dyn Model>, limits: Limits) -> Result<Self> {
        Self::start_with(model, limits, Arc::new(()))
    }

    /// The same; `observer` is told what happens.
    ///
    /// # Errors
    /// The operating system refuses a thread.
    pub fn start_with(model: Arc<dyn Model>, limits: Limits, observer: Arc<dyn Observer>) -> Result<Self> {
        super::desk::start(model, limits, observer).map(Self)
    }

    /// Takes a validated job into the queue.
    ///
    /// # Errors
    /// `QueueFull`, `Draining`, `Deadline` if it has passed already or cannot be met, `NeverFits` if the job could not run
    /// even alone, `BadOption` for a priority outside its bounds;
    /// validation errors of [`Generate::validate`] and [`Score::validate`].
    pub fn submit(&self, job: Job, terms: impl Into<Terms>) -> Result<Events> {
        self.0.submit(job, terms.into())
    }

    /// The two ends of a document that is about to come: where its tokens are left, and what a job is made of.
    pub fn upload(&self) -> (Upload, Arriving) {
        self.0.upload()
    }

    /// Takes a summary's job into the queue. Its document is encoded while it arrives.
    ///
    /// # Errors
    /// As for [`submit`](Self::submit); [`Error::UnknownDocument`](crate::error::Error::UnknownDocument);
    /// [`Error::WrongKind`](crate::error::Error::WrongKind) if the model reads no documents; those of [`Summarize::plan`].
    pub fn summarize(&self, request: &Summarize, source: Source, terms: impl Into<Terms>) -> Result<Events> {
        self.0.summarize(request, source, terms.into())
    }

    /// What there may be of a document, if the model reads any.
    pub fn reading(&self) -> Option<&document::DocumentLimits> {
        self.0.reading()
    }

    /// What the encoded documents that are kept occupy, and what became of them.
    pub fn documents(&self) -> shelf::Usage {
        self.0.documents()
    }

    /// What clients may know of the model.
    pub fn card(&self) -> &Card {
        self.0.card()
    }

    /// The engine's limits.
    pub fn limits(&self) -> Limits {
        self.0.limits()
    }

    /// Takes no more jobs; those in the queue and running go on.
    pub fn drain(&self) {
        self.0.drain();
    }

    /// How far the engine's life has come.
    pub fn phase(&self) -> Phase {
        self.0.phase()
    }

    /// Waits until the worker has broken: until then for ever. Holds no handle while it waits.
    pub fn broken(&self) -> impl Future<Output = ()> + Send + 'static {
        self.0.broken()
    }

    /// Jobs in the queue and running.
    pub fn load(&self) -> Load {
        self.0.load()
    }

    /// Key-value memory of the model.
    pub fn memory(&self) -> KvMemory {
        self.0.memory()
    }

    /// What the engine has done so far.
    pub fn counters(&self) -> Counters {
        self.0.counters()
    }

    /// What the segment cache holds and what became of it.
    pub fn cache(&self) -> cache::Usage {
        self.0.cache()
    }

    /// Times the model's steps for at most about so long, unless they are known already, so that the gain can be estimated of the
    /// jobs that begin from then on. Blocks; `go_on` is asked after each step, and stops it by `Break`: it may be tried again
    /// then. What is timed while anything else runs is worth nothing: the caller sees to that.
    pub fn calibrate(&self, budget: Duration, mut go_on: impl FnMut() -> ControlFlow<()>) -> Calibrated {
        self.0.calibrate(budget, &mut go_on)
    }

    /// What the model's steps take, or why that is not known; none while it is not decided.
    pub fn calibration(&self) -> Option<&Calibrated> {
        self.0.calibration()
    }

    /// How long the worker has been at its present round; none while it sleeps. A round is a step at most: one that takes
    /// very long means that the worker hangs.
    pub fn busy(&self) -> Option<Duration> {
        self.0.busy()
    }
}

/// How far an engine's life has come. It goes on to later ones only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Jobs are taken.
    Open,
    /// No new jobs are taken; those there go on.
    Draining,
    /// The worker is to end, or has.
    Closed,
    /// The worker has come to an end that nobody asked for; every job is refused.
    Broken,
}

/// How busy an engine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Jobs that wait.
    pub queued: usize,
    /// Jobs that run.
    pub running: usize,
    /// Bytes of key-value memory in use by sequences, beside what the cache keeps.
    pub bytes: usize,
}
