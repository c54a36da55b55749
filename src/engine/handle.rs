//! The engine as others see it: submit a job, read its events, drop the receiver to cancel.

use super::{cache, observer::Observer, tally::Counters};
use crate::{
    decode::{
        contract::{Card, Memory, Model},
        gather::BOUNDARY_WAIT,
        options::{Character, Generate, Reason, Score, Timing, Usage},
    },
    error::Result,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::mpsc;

pub use super::scheduler::PRIORITIES;

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

/// What happened to a job, in order: `Started`, any number of `Characters`, `Finished`; or an error at any place, last.
#[derive(Debug, Clone)]
pub enum Event {
    /// The job got a row.
    Started {
        /// Symbols of the prompt that came from the cache.
        cached_chars: usize,
    },
    /// The next symbols: of the prompt if echoed or scored, then generated ones. Final: no stop string is told in part.
    Characters(Vec<Character>),
    /// The end.
    Finished {
        /// Why.
        reason: Reason,
        /// What was processed.
        usage: Usage,
        /// Where the time went.
        timing: Timing,
    },
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
    pub fn memory(&self) -> Memory {
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
