//! The engine as callers see it: submit a request, read its events, drop the receiver to cancel. A request that could not run within
//! the limits is refused here.

use crate::{
    api::{Events, Job, Limits, Load, Terms},
    batch::Inner,
    cache::{DocumentCacheUsage, SegmentCacheUsage},
    calibration::{self, Calibrated},
    clock,
    constraint::{CompileMemory, CompiledConstraint, Constraint},
    document_request::{self, DocumentRequest, DocumentSource, DocumentUpload, Inbox, IncomingDocument},
    observer::{Counters, EngineEvent, Observer},
    options::{Generate, within},
    request::{EventSender, Request, RequestKind, TextRequest},
    scheduler::tenants::{Demand, PRIORITIES},
    session::Session,
    state::Phase,
    summary::Summarize,
    text_window::TextView,
    worker::{self, WorkerTask},
};
use std::{
    ops::ControlFlow,
    sync::{Arc, atomic::Ordering::Relaxed},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use weir_kernels::{
    error::{Error, Result, clip},
    sync::lock,
};
use weir_models::contract::{self, BoundaryOptions, Card, KvMemory, Model};

/// Maximum bytes of an unknown document id that an error message repeats.
const MAX_ID_BYTES: usize = 64;

/// A running engine. Clones share it; dropping the last one stops the worker and joins its thread.
///
/// ```
/// # use weir_models::{checkpoint::CheckpointSource, load::{Settings, load_as}};
/// use std::time::{Duration, Instant};
/// use weir_engine::{
///     Event, Handle, Job, Limits,
///     options::{FinishReason, Generate},
/// };
///
/// # let source = CheckpointSource::default();
/// # let model = load_as(&source, &source.name(), &Settings::default())?;
/// let engine = Handle::start(model, Limits { rows: 2, ..Limits::default() })?;
/// let mut request = Generate::from_text("the river ", engine.card())?;
/// request.stopping.max_chars = 8;
/// let deadline = Instant::now() + Duration::from_secs(60);
/// let mut events = engine.submit(Job::Generate(request), Some(deadline))?;
/// let mut last = None;
/// // Asynchronous programs call `recv().await`.
/// while let Some(event) = events.blocking_recv() {
///     last = Some(event?);
/// }
/// let Some(Event::Finished { reason, usage, .. }) = last else { panic!("{last:?}") };
/// assert_eq!((reason, usage.generated_chars), (FinishReason::MaxChars, 8));
/// # Ok::<(), weir_kernels::error::Error>(())
/// ```
#[derive(Clone)]
pub struct Handle(Arc<WorkerThread>);

/// The worker thread. Dropping it closes the engine and joins the thread.
struct WorkerThread {
    inner: Arc<Inner>,
    /// `None` while it is being joined, and if the worker is a task.
    thread: Option<JoinHandle<()>>,
}

impl Handle {
    /// Starts a worker thread for `model`. Fails if the operating system refuses a thread.
    pub fn start(model: Arc<dyn Model>, limits: Limits) -> Result<Self> {
        Self::start_with(model, limits, Arc::new(()))
    }

    /// Starts a worker thread for `model` that reports to `observer`. Fails if the operating system refuses a thread.
    pub fn start_with(model: Arc<dyn Model>, limits: Limits, observer: Arc<dyn Observer>) -> Result<Self> {
        let inner = Arc::new(Inner::new(model, limits, observer));
        let worker_inner = Arc::clone(&inner);
        let builder = thread::Builder::new().name(format!("weir-{}", inner.model.card().name));
        let thread = builder.spawn(move || worker::run(worker_inner));
        let thread = thread.map_err(|source| Error::NoThread { work: "the model's worker", source })?;
        Ok(Self(Arc::new(WorkerThread { inner, thread: Some(thread) })))
    }

    /// Creates an engine whose worker is a task that reports to `observer`. Requests wait until the caller runs it.
    pub fn with_task(model: Arc<dyn Model>, limits: Limits, observer: Arc<dyn Observer>) -> (Self, WorkerTask) {
        let inner = Arc::new(Inner::new(model, limits, observer));
        let task = WorkerTask::new(Arc::clone(&inner));
        (Self(Arc::new(WorkerThread { inner, thread: None })), task)
    }

    /// Queues a validated request about a text. Fails as its `validate` does, and with `QueueFull`, `Draining`, `Deadline`,
    /// `NeverFits`, `TooMuchWork`, or `BadOption` for a priority out of range.
    pub fn submit(&self, job: Job, terms: impl Into<Terms>) -> Result<Events> {
        let mut events = self.submit_together(vec![job], &terms.into())?;
        events.pop().ok_or_else(|| Error::Internal("a request has no events".into()))
    }

    /// Queues requests that the worker sees together before its next step. If one fails, all are cancelled.
    pub(crate) fn submit_together(&self, jobs: Vec<Job>, terms: &Terms) -> Result<Vec<Events>> {
        let Inner { model, limits, segment_cache, .. } = self.inner();
        let mut requests = Vec::with_capacity(jobs.len());
        let mut all_events = Vec::with_capacity(jobs.len());
        for job in jobs {
            let arrived = check_terms(terms)?;
            let session = open_session(job, &**model, limits)?;
            let key = || segment_cache.key(&terms.tenant, session.boundaries(), model.card());
            let cache_key = if terms.use_once { None } else { key() };
            let cached = segment_cache.cached_len(cache_key.as_ref(), &session);
            let (event_sender, events) = EventSender::open(limits.events)?;
            let kind = RequestKind::Text(TextRequest { session, cache_key });
            let request = Request::new(kind, event_sender, arrived, terms);
            let demand = request.demand(&**model, cached);
            requests.push((request, demand));
            all_events.push(events);
        }
        self.enqueue_all(requests, terms).map(|()| all_events)
    }

    /// Compiles a constraint of a tenant for the model's vocabulary; a known one costs nothing. For another, calls `reserve` with the bytes
    /// that compiling takes, and holds the result until that ends. Fails as `reserve` and
    /// [`ConstraintCompiler::compile`](super::constraint::ConstraintCompiler::compile) do.
    pub fn compile(
        &self,
        tenant: &str,
        constraint: &Constraint,
        reserve: impl FnOnce(usize) -> Result<CompileMemory>,
    ) -> Result<Arc<CompiledConstraint>> {
        let began = clock::now();
        let compiled = self.inner().constraints.compile_for(tenant, constraint, reserve);
        let took = clock::since(began);
        let refused = compiled.is_err();
        self.inner().measurements.record(EngineEvent::Constrained { kind: constraint.kind(), took, refused });
        compiled
    }

    /// Opens an upload: the caller pushes a document's tokens into the first part, and submits the second.
    pub fn upload(&self) -> (DocumentUpload, IncomingDocument) {
        document_request::open(&self.inner().state.wake_signal)
    }

    /// Queues a request for a summary, whose document is encoded while it arrives. Fails for an unknown document id.
    pub fn summarize(&self, request: &Summarize, source: DocumentSource, terms: impl Into<Terms>) -> Result<Events> {
        let terms = terms.into();
        let Inner { model, limits, document_cache, .. } = self.inner();
        let arrived = check_terms(&terms)?;
        let card = model.card();
        let reader = model.document_encoder();
        let reader = reader.ok_or_else(|| Error::only_continues_text(&card.name, &card.shape))?;
        let mut plan = request.plan(card, reader.limits(), limits.rows)?;
        if plan.hard == Some(true) {
            // fails if the model cannot pool hard
            reader.open(true)?;
        }
        let (inbox, id) = match source {
            DocumentSource::Uploading(IncomingDocument(inbox)) => (inbox, None),
            DocumentSource::Cached(id) => {
                if plan.attention {
                    let bound = "none, because the attention to a cached document is unknown";
                    return Err(Error::bad_option("options.document_id", clip(&id, MAX_ID_BYTES), bound));
                }
                let Some(cached) = document_cache.find(&terms.tenant, &id, arrived) else {
                    return Err(Error::UnknownDocument { id: clip(&id, MAX_ID_BYTES) });
                };
                if let Some(found) = plan.hard.replace(cached.hard).filter(|found| *found != cached.hard) {
                    let bound = format!("{}, as the document was read", cached.hard);
                    return Err(Error::BadOption { field: "options.hard_topk", found: found.to_string(), bound });
                }
                let byte_ranges = cached.encoded.byte_ranges.clone();
                (Arc::new(Inbox::complete(cached.ids.to_vec(), byte_ranges, cached.encoded.cut)), Some(id))
            }
        };
        let cached = if id.is_some() { usize::MAX } else { 0 };
        let mut summary = DocumentRequest::new(inbox, id, plan, reader.limits(), card);
        if let Some(constraint) = &request.constraint {
            summary.search.constrain(&constraint.matcher()?.in_options());
        }
        let work = summary.max_work();
        if work > limits.request_work {
            let field = summary_field(summary.max_tokens() > limits.request_work);
            return Err(Error::TooMuchWork { field, work, limit: limits.request_work });
        }
        let needed = summary.max_bytes(&**model, reader);
        let memory = model.memory().limit;
        if needed > memory {
            let field = summary_field(reader.bytes_for(summary.max_tokens()) > memory);
            return Err(Error::NeverFits { field, needed, limit: memory });
        }
        let (event_sender, events) = EventSender::open(limits.events)?;
        let kind = RequestKind::Document(Box::new(summary));
        let request = Request::new(kind, event_sender, arrived, &terms);
        let demand = request.demand(&**model, cached);
        self.enqueue_all(vec![(request, demand)], &terms).map(|()| events)
    }

    /// Queues requests, and reports each one that is queued, even if a later one fails.
    fn enqueue_all(&self, requests: Vec<(Request, Demand)>, terms: &Terms) -> Result<()> {
        let inner = self.inner();
        let arrived = requests.first().map(|(request, _)| request.timer.arrived);
        let time_limit =
            terms.deadline.zip(arrived).map(|(deadline, arrived)| deadline.saturating_duration_since(arrived));
        let (count, result) = inner.state.enqueue_all(requests, terms.priority, terms.continues, time_limit);
        (0..count).for_each(|_| inner.measurements.record(EngineEvent::Accepted));
        result
    }

    /// Times the model's steps for about `budget` and stores the result, unless a result is known that is not
    /// [doubtful](super::calibration::TimingTable::doubt). Blocks the calling thread, and requests of this engine until it ends;
    /// `go_on` may stop it with `Break`. The caller makes sure that nothing else runs.
    pub fn calibrate(&self, budget: Duration, mut go_on: impl FnMut() -> ControlFlow<()>) -> Calibrated {
        let Inner { model, limits, calibration, running, .. } = self.inner();
        let _running = lock(running);
        calibration::measure_once(calibration, || calibration::measure(&**model, limits.rows, budget, &mut go_on))
    }

    /// Returns the calibration, or why it failed; `None` until it is decided.
    pub fn calibration(&self) -> Option<Calibrated> {
        lock(&self.inner().calibration).clone()
    }

    /// Returns the limits of documents, if the model reads documents.
    pub fn document_limits(&self) -> Option<&contract::DocumentLimits> {
        self.inner().model.document_encoder().map(|reader| reader.limits())
    }

    /// Returns the model's card.
    pub fn card(&self) -> &Card {
        self.inner().model.card()
    }

    /// Returns the engine's limits.
    pub fn limits(&self) -> Limits {
        self.inner().limits
    }

    /// Rejects new requests from now on. Queued and running requests go on.
    pub fn drain(&self) {
        self.inner().lock_state().advance_to(Phase::Draining);
    }

    /// Closes the engine: its worker finishes the step that it runs, ends all requests, and ends.
    pub fn close(&self) {
        self.inner().state.close();
    }

    /// Returns true if the worker thread has ended, or if the worker is a task.
    pub fn has_ended(&self) -> bool {
        self.0.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Returns the phase of the engine's life.
    pub fn phase(&self) -> Phase {
        self.inner().lock_state().phase
    }

    /// Returns true if the worker broke because the model's file changed: loading the model again repairs that, and the process
    /// is sound.
    pub fn has_lost_file(&self) -> bool {
        self.inner().lost_file.load(Relaxed)
    }

    /// Waits until the worker breaks; forever if it never does. The future holds no handle.
    pub fn wait_until_broken(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut broken = self.inner().broken.subscribe();
        async move {
            if broken.wait_for(|broken| *broken).await.is_err() {
                // the sender is dropped: the engine ended without breaking
                std::future::pending().await
            }
        }
    }

    /// Returns the number of queued and running requests and their memory.
    pub fn load(&self) -> Load {
        let Inner { model, segment_cache, document_cache, .. } = self.inner();
        let counters = self.counters();
        let cached = segment_cache.evictable_bytes() + document_cache.evictable_bytes();
        let bytes = model.memory().in_use.saturating_sub(cached);
        Load { queued: counters.waiting, running: counters.running, bytes }
    }

    /// Returns how many of a text's symbols the segment cache holds for a request with default options.
    pub(crate) fn cached_symbols(&self, text: TextView<'_>, terms: &Terms) -> usize {
        let Inner { model, segment_cache, .. } = self.inner();
        let key = segment_cache.key(&terms.tenant, &BoundaryOptions::default(), model.card());
        segment_cache.known(key.as_ref(), text)
    }

    /// Returns the model's key-value memory.
    pub fn memory(&self) -> KvMemory {
        self.inner().model.memory()
    }

    /// Returns the engine's totals since it started.
    pub fn counters(&self) -> Counters {
        let counters = self.inner().measurements.totals();
        let state = self.inner().lock_state();
        Counters { running: state.scheduler.running, waiting: state.scheduler.waiting(), ..counters }
    }

    /// Returns the contents of the segment cache.
    pub fn segment_cache_usage(&self) -> SegmentCacheUsage {
        self.inner().segment_cache.usage()
    }

    /// Returns how many blocks of `symbols` symbols the segment cache holds at least, if it has nothing else. 0 without a cache.
    pub fn cache_blocks(&self, symbols: usize) -> usize {
        let Inner { model, limits, .. } = self.inner();
        limits.cache_bytes.min(model.memory().limit) / self.cache_block_bytes(symbols)
    }

    /// Returns the bytes that a block of `symbols` symbols takes in the segment cache, at most.
    pub fn cache_block_bytes(&self, symbols: usize) -> usize {
        self.inner().model.bytes_for(symbols).max(1)
    }

    /// Returns the contents of the document cache.
    pub fn document_cache_usage(&self) -> DocumentCacheUsage {
        self.inner().document_cache.usage()
    }

    /// Returns how long the worker has been in its current round; `None` while it sleeps. A very long one means that it hangs.
    pub fn busy_for(&self) -> Option<Duration> {
        self.inner().heartbeat.busy_for(clock::now())
    }

    fn inner(&self) -> &Inner {
        &self.0.inner
    }
}

impl Drop for WorkerThread {
    fn drop(&mut self) {
        self.inner.state.close();
        // the worker itself may drop the last handle, and a thread that joins itself blocks forever
        let other = self.thread.take().filter(|thread| thread.thread().id() != thread::current().id());
        if let Some(thread) = other {
            // a panic was logged where it happened
            let _ = thread.join();
        }
    }
}

/// Returns the field that makes a summary too expensive: the document if it is too long by itself.
fn summary_field(document_alone: bool) -> &'static str {
    if document_alone { "chunk" } else { "options.beam_size" }
}

/// Rejects a priority out of range.
pub(crate) fn check_priority(priority: i32) -> Result<()> {
    within("priority", priority, PRIORITIES)
}

/// Rejects an expired deadline or a priority out of range. Returns the time of arrival.
fn check_terms(terms: &Terms) -> Result<Instant> {
    let arrived = clock::now();
    check_priority(terms.priority)?;
    if terms.deadline.is_some_and(|deadline| deadline <= arrived) {
        return Err(Error::Deadline { stage: "before it was queued" });
    }
    Ok(arrived)
}

/// The field that decides how much text a distribution follows.
const CURSOR: &str = "complete.cursor_byte";

/// Creates the session of a job. Fails if the job is invalid, if the model does not continue texts, and with `TooMuchWork` or
/// `NeverFits` if it could not run even alone.
fn open_session(job: Job, model: &dyn Model, limits: &Limits) -> Result<Session> {
    let card = model.card();
    // Two pairs of fields, for too much work and for too much memory: the first is to blame by itself, the second together with
    // the text.
    let (work_fields, memory_fields) = match &job {
        Job::Generate(Generate { constraint: Some(constraint), stopping, .. })
            if constraint.tried_symbols() > stopping.max_chars =>
        {
            (["prompt", "constraint.choice"], ["prompt", "constraint.choice"])
        }
        Job::Generate(_) => (["prompt", "stopping.max_chars"], ["prompt", "stopping.max_chars"]),
        Job::Score(request) if request.windows.is_some() => (["text", "windows.stride"], ["windows.length"; 2]),
        Job::Score(_) => (["text"; 2], ["text"; 2]),
        Job::Code(_) => (["block", "windows.stride"], ["windows.length"; 2]),
        Job::Next(_) => ([CURSOR; 2], [CURSOR; 2]),
    };
    check_takes_texts(model)?;
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

fn check_takes_texts(model: &dyn Model) -> Result<()> {
    match model.document_encoder() {
        None => Ok(()),
        Some(_) => {
            let card = model.card();
            Err(Error::only_summarizes(&card.name, "continues a prompt", &card.shape))
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
