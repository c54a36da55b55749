//! Where jobs are left for a model's worker: what its handles and the worker share, and by which rules jobs are taken.

use super::{
    cache,
    calibration::{Calibrated, Missing, timing},
    handle::{Arriving, Events, Job, Limits, Load, Phase, Source, Terms, Upload},
    heartbeat::Heartbeat,
    observer::Observer,
    outlet::Outlet,
    pace::Pace,
    scheduler::{Ask, PRIORITIES, Refused, Rules, Scheduler},
    shelf::{self, Kept, Shelf},
    signal::Signal,
    store::Store,
    summary::Summary,
    tally::{Counters, Tally},
    task::{Life, Task},
    upload::{self, Inbox},
    worker,
};
use crate::{
    decode::{
        contract::{Card, KvMemory, Model},
        document,
        session::Session,
        summary::Summarize,
    },
    error::{Error, Result, clip},
};
use std::{
    ops::ControlFlow,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use tokio::sync::watch;

/// Bytes of an unknown id that an error repeats.
const ID_BYTES: usize = 64;
/// What is told once a worker is broken.
const GONE: &str = "the model's worker has ended";
/// What is told of a deadline that will pass.
const IN_ADVANCE: &str = "in advance: at the measured rate there is no time for the first character";

/// What the handles of one worker share; the last one's end is the worker's.
pub(super) struct Shared {
    common: Arc<Common>,
    /// None once it is being joined.
    thread: Option<JoinHandle<()>>,
}

/// What the handles and the worker share.
pub(super) struct Common {
    pub(super) model: Arc<dyn Model>,
    pub(super) limits: Limits,
    pub(super) desk: Mutex<Desk>,
    pub(super) store: Store,
    pub(super) shelf: Shelf,
    pub(super) observer: Arc<dyn Observer>,
    pub(super) tally: Tally,
    pub(super) heartbeat: Heartbeat,
    /// What the model's steps take, once that was timed.
    pub(super) calibration: OnceLock<Calibrated>,
    pub(super) signal: Arc<Signal>,
    /// Whether the worker broke: for those who wait for it.
    broken: watch::Sender<bool>,
}

/// Where jobs are left and fetched.
pub(super) struct Desk {
    pub(super) scheduler: Scheduler<Task>,
    pub(super) pace: Pace,
    pub(super) phase: Phase,
}

/// The end of the thread, whatever brought it about.
pub(super) struct Farewell(Arc<Common>);

/// Starts the thread.
pub(super) fn start(model: Arc<dyn Model>, limits: Limits, observer: Arc<dyn Observer>) -> Result<Arc<Shared>> {
    let queue = (limits.queue, limits.queued_symbols);
    let rules = Rules::new(limits.rows, queue, model.memory().limit, limits.chunk);
    let pace = Pace::new(rules.rows, rules.chunk);
    let desk = Desk { scheduler: Scheduler::new(rules), pace, phase: Phase::Open };
    let name = format!("weir-{}", model.card().name);
    let common = Arc::new(Common {
        model,
        limits,
        desk: Mutex::new(desk),
        store: Store::new(limits.cache_bytes),
        shelf: Shelf::new(limits.document_bytes, limits.document_keep),
        observer,
        tally: Tally::default(),
        heartbeat: Heartbeat::new(),
        calibration: OnceLock::new(),
        signal: Arc::default(),
        broken: watch::Sender::new(false),
    });
    let theirs = Arc::clone(&common);
    let thread = thread::Builder::new().name(name).spawn(move || {
        let _farewell = Farewell(Arc::clone(&theirs));
        worker::run(theirs);
    });
    let thread = thread.map_err(|refusal| Error::Internal(format!("no thread for the worker: {refusal}")))?;
    Ok(Arc::new(Shared { common, thread: Some(thread) }))
}

impl Shared {
    pub(super) fn submit(&self, job: Job, terms: Terms) -> Result<Events> {
        let Common { model, limits, store, .. } = &*self.common;
        let arrived = admissible(&terms)?;
        let (session, fields) = match job {
            Job::Generate(request) => {
                writes_texts("Generate", &**model)?;
                (Session::generate(request, model.card())?, ["prompt", "stopping.max_chars"])
            }
            Job::Score(request) => {
                writes_texts("Score", &**model)?;
                let field = if request.windows.is_some() { "windows.length" } else { "text" };
                (Session::score(request, model.card())?, [field; 2])
            }
        };
        must_fit(&session, fields, &**model)?;
        let key = store.key(&terms.tenant, session.boundaries(), model.card());
        let known = store.known(key.as_ref(), &session);
        let (outlet, events) = Outlet::open(limits.events)?;
        let mut task = Task::new(Life::Text(session), outlet, arrived);
        task.key = key;
        self.take(task, known, terms).map(|()| events)
    }

    /// Times the model's steps, in the caller's thread.
    pub(super) fn calibrate(&self, budget: Duration, go_on: &mut dyn FnMut() -> ControlFlow<()>) -> Calibrated {
        let Common { model, limits, calibration, .. } = &*self.common;
        if let Some(known) = calibration.get() {
            return known.clone();
        }
        // a panic in a step is no reason not to serve
        let measured = catch_unwind(AssertUnwindSafe(|| timing::measure(&**model, limits.rows, budget, go_on)));
        let calibrated = match measured {
            Ok(Ok(Err(Missing::Stopped))) => return Err(Missing::Stopped),
            Ok(Ok(calibrated)) => calibrated.map(Arc::new),
            Ok(Err(error)) => {
                tracing::warn!(%error, "a step that was timed failed");
                Err(Missing::Failed)
            }
            Err(_) => {
                tracing::error!("a step that was timed panicked");
                Err(Missing::Failed)
            }
        };
        calibration.get_or_init(|| calibrated).clone()
    }

    pub(super) fn calibration(&self) -> Option<&Calibrated> {
        self.common.calibration.get()
    }

    pub(super) fn upload(&self) -> (Upload, Arriving) {
        upload::begin(&self.common.signal)
    }

    pub(super) fn summarize(&self, request: &Summarize, source: Source, terms: Terms) -> Result<Events> {
        let Common { model, limits, shelf, .. } = &*self.common;
        let arrived = admissible(&terms)?;
        let Some(reader) = model.document_encoder() else {
            let (model, found) = (model.card().name.clone(), model.card().shape.clone());
            return Err(Error::WrongKind { call: "Summarize", model, wanted: "reads documents", found });
        };
        let (card, read) = (model.card(), reader.limits());
        let mut plan = request.plan(card, read, limits.rows)?;
        if plan.hard == Some(true) {
            // whether it can
            reader.open_hard()?;
        }
        let document = match source {
            Source::Arriving(Arriving(inbox)) => (inbox, None),
            Source::Kept(id) => {
                let Some(Kept { ids, encoded, hard, .. }) = shelf.find(&terms.tenant, &id, arrived) else {
                    return Err(Error::UnknownDocument { id: clip(&id, ID_BYTES) });
                };
                if let Some(found) = plan.hard.replace(hard).filter(|found| *found != hard) {
                    let (found, bound) = (found.to_string(), format!("{hard}, as the document was read"));
                    return Err(Error::BadOption { field: "options.hard_topk", found, bound });
                }
                (Arc::new(Inbox::whole(ids.to_vec(), encoded.places.clone(), encoded.cut)), Some(id))
            }
        };
        let known = if document.1.is_some() { usize::MAX } else { 0 };
        let summary = Summary::new(document, plan, read, card);
        let (needed, limit) = (summary.bytes(&**model, reader, summary.symbols().0), model.memory().limit);
        if needed > limit {
            let alone = reader.bytes_for(summary.most_tokens()) > limit;
            let field = if alone { "chunk" } else { "options.beam_size" };
            return Err(Error::NeverFits { field, needed, limit });
        }
        let (outlet, events) = Outlet::open(limits.events)?;
        let task = Task::new(Life::Document(Box::new(summary)), outlet, arrived);
        self.take(task, known, terms).map(|()| events)
    }

    /// Leaves a job on the desk, of whose symbols so many are known.
    fn take(&self, mut task: Task, known: usize, Terms { deadline, tenant, priority }: Terms) -> Result<()> {
        (task.deadline, task.tenant) = (deadline, tenant);
        let ask = task.ask(&*self.common.model, known);
        self.common.desk().take(task, ask, priority)?;
        self.common.signal.raise();
        Ok(())
    }

    pub(super) fn reading(&self) -> Option<&document::DocumentLimits> {
        self.common.model.document_encoder().map(|reader| reader.limits())
    }

    pub(super) fn documents(&self) -> shelf::Usage {
        self.common.shelf.usage()
    }

    pub(super) fn card(&self) -> &Card {
        self.common.model.card()
    }

    pub(super) fn limits(&self) -> Limits {
        self.common.limits
    }

    pub(super) fn drain(&self) {
        self.common.desk().enter(Phase::Draining);
    }

    pub(super) fn phase(&self) -> Phase {
        self.common.desk().phase
    }

    pub(super) fn broken(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut broken = self.common.broken.subscribe();
        async move {
            if broken.wait_for(|broken| *broken).await.is_err() {
                // The engine is gone, and its worker ended as it should.
                std::future::pending().await
            }
        }
    }

    pub(super) fn load(&self) -> Load {
        let (queued, running) = self.common.desk().counts();
        let kept = self.common.store.spare() + self.common.shelf.spare();
        Load { queued, running, bytes: self.common.model.memory().in_use.saturating_sub(kept) }
    }

    pub(super) fn memory(&self) -> KvMemory {
        self.common.model.memory()
    }

    pub(super) fn counters(&self) -> Counters {
        let (waiting, running) = self.common.desk().counts();
        self.common.tally.read(running, waiting)
    }

    pub(super) fn cache(&self) -> cache::Usage {
        self.common.store.usage()
    }

    pub(super) fn busy(&self) -> Option<Duration> {
        self.common.heartbeat.busy(Instant::now())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.common.desk().enter(Phase::Closed);
        self.common.signal.raise();
        // A thread that waited for itself would wait for ever.
        let other = self.thread.take().filter(|thread| thread.thread().id() != thread::current().id());
        if let Some(thread) = other {
            // That it panicked was logged where it happened.
            let _ = thread.join();
        }
    }
}

impl Common {
    pub(super) fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Desk {
    /// Takes a job, or says why not.
    fn take(&mut self, task: Task, ask: Ask, priority: i32) -> Result<()> {
        let retry = self.pace.retry();
        match self.phase {
            Phase::Open => {}
            Phase::Draining | Phase::Closed => return Err(Error::Draining { retry }),
            Phase::Broken => return Err(Error::Internal(GONE.into())),
        }
        if let Some(deadline) = task.deadline {
            let least = self.pace.least(self.scheduler.work_before(&ask, priority));
            if least.is_some_and(|least| deadline.saturating_duration_since(task.watch.arrived()) < least) {
                return Err(Error::Deadline { stage: IN_ADVANCE });
            }
        }
        self.scheduler.submit(task, ask, priority).map_err(|refused| match refused {
            Refused::Full { what, limit } => Error::QueueFull { what, limit, retry },
            Refused::NeverFits => Error::Internal("a job that fits needs more than there is to begin".into()),
        })
    }

    /// Goes on to a later phase; never back.
    fn enter(&mut self, phase: Phase) {
        self.phase = self.phase.max(phase);
    }

    fn counts(&self) -> (usize, usize) {
        (self.scheduler.waiting(), self.scheduler.running())
    }
}

impl Drop for Farewell {
    fn drop(&mut self) {
        let Common { heartbeat, store, shelf, observer, broken: sign, .. } = &*self.0;
        heartbeat.rest();
        let broken = thread::panicking();
        let mut desk = self.0.desk();
        desk.enter(if broken { Phase::Broken } else { Phase::Closed });
        // The rows are dropped by now, and with them the jobs that had tickets to give back.
        let (left, retry): (Vec<_>, _) = (desk.scheduler.clear().collect(), desk.pace.retry());
        drop(desk);
        store.clear();
        shelf.clear();
        sign.send_replace(broken);
        for mut task in left {
            let error = if broken { Error::Internal(GONE.into()) } else { Error::Draining { retry } };
            task.verdict = Some(Err(error));
            task.end(Instant::now(), &**observer);
        }
    }
}

/// Whether a job may come under these terms; returns when it came.
fn admissible(terms: &Terms) -> Result<Instant> {
    let arrived = Instant::now();
    if !PRIORITIES.contains(&terms.priority) {
        let bound = format!("{} to {}", PRIORITIES.start(), PRIORITIES.end());
        return Err(Error::BadOption { field: "priority", found: terms.priority.to_string(), bound });
    }
    if terms.deadline.is_some_and(|deadline| deadline <= arrived) {
        return Err(Error::Deadline { stage: "before it was queued" });
    }
    Ok(arrived)
}

/// Refuses a text for a model whose texts begin from documents.
fn writes_texts(call: &'static str, model: &dyn Model) -> Result<()> {
    match model.document_encoder() {
        None => Ok(()),
        Some(_) => {
            let (model, found) = (model.card().name.clone(), format!("one that summarizes: {}", model.card().shape));
            Err(Error::WrongKind { call, model, wanted: "goes on from a prompt", found })
        }
    }
}

/// Refuses a job that could not run even alone.
fn must_fit(session: &Session, [given, asked]: [&'static str; 2], model: &dyn Model) -> Result<()> {
    let (needed, limit) = (model.bytes_for(session.max_symbols()), model.memory().limit);
    if needed <= limit {
        return Ok(());
    }
    let alone = model.bytes_for(session.prompt_symbols()) > limit;
    Err(Error::NeverFits { field: if alone { given } else { asked }, needed, limit })
}
