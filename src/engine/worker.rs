//! The worker: one thread that owns a model's rows, and the desk where others leave their jobs.
//!
//! A round of the loop ends what is to be ended, takes in what can run, and steps all rows together once. Without a row to
//! step it sleeps until it is called, or until a deadline.

use super::{
    batch::{Batch, Running},
    handle::{Events, Job, Limits, Load, Phase, Terms},
    heartbeat::Heartbeat,
    observer::Observer,
    outlet::Outlet,
    pace::Pace,
    queue::{Capacity, Grant, Queue, Refused},
    signal::Signal,
    stopwatch::Stopwatch,
    tally::{Counters, Tally},
};
use crate::{
    decode::{
        contract::{Card, Memory, Model},
        options::Timing,
        session::Session,
    },
    error::{Error, Result},
};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Waker,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use tokio::sync::watch;

/// How soon a waiting job whose reader went is noticed while no row can step.
const PATROL: Duration = Duration::from_millis(100);
/// What is told once a worker is broken.
const GONE: &str = "the model's worker has ended";

/// What the handles of one worker share; the last one's end is the worker's.
pub(super) struct Shared {
    common: Arc<Common>,
    /// None once it is being joined.
    thread: Option<JoinHandle<()>>,
}

/// What the handles and the worker share.
struct Common {
    model: Arc<dyn Model>,
    limits: Limits,
    desk: Mutex<Desk>,
    observer: Arc<dyn Observer>,
    tally: Arc<Tally>,
    heartbeat: Heartbeat,
    signal: Arc<Signal>,
    /// Whether the worker broke: for those who wait for it.
    broken: watch::Sender<bool>,
}

/// Where jobs are left and fetched.
struct Desk {
    queue: Queue<Waiting>,
    pace: Pace,
    phase: Phase,
}

/// A job that has no row yet.
struct Waiting {
    session: Session,
    outlet: Outlet,
    deadline: Option<Instant>,
    arrived: Instant,
}

/// The thread's own part.
struct Worker {
    common: Arc<Common>,
    batch: Batch,
    /// Jobs fetched from the desk, on their way to a row.
    arrivals: Vec<(Waiting, Grant)>,
    /// Jobs whose deadline passed, or whose reader went, while they waited.
    refused: Vec<Waiting>,
    /// Jobs that have ended, on their way out.
    ended: Vec<Running>,
}

/// The end of the thread, whatever brought it about.
struct Farewell(Arc<Common>);

/// Starts the thread.
pub(super) fn start(model: Arc<dyn Model>, limits: Limits, observer: Arc<dyn Observer>) -> Result<Arc<Shared>> {
    let capacity = Capacity { waiting: limits.queue, rows: limits.rows.max(1), bytes: model.memory().limit };
    let desk = Desk { queue: Queue::new(capacity), pace: Pace::new(capacity.rows), phase: Phase::Open };
    let name = format!("weir-{}", model.card().name);
    let common = Arc::new(Common {
        model,
        limits,
        desk: Mutex::new(desk),
        observer,
        tally: Arc::default(),
        heartbeat: Heartbeat::new(),
        signal: Arc::default(),
        broken: watch::Sender::new(false),
    });
    let theirs = Arc::clone(&common);
    let thread = thread::Builder::new().name(name).spawn(move || {
        let _farewell = Farewell(Arc::clone(&theirs));
        Worker::new(theirs).run();
    });
    let thread = thread.map_err(|refusal| Error::Internal(format!("no thread for the worker: {refusal}")))?;
    Ok(Arc::new(Shared { common, thread: Some(thread) }))
}

impl Shared {
    pub(super) fn submit(&self, job: Job, terms: Terms) -> Result<Events> {
        let Terms { deadline, .. } = terms;
        let Common { model, limits, .. } = &*self.common;
        let arrived = Instant::now();
        let (session, fields) = match job {
            Job::Generate(request) => (Session::generate(request, model.card())?, ["prompt", "stopping.max_chars"]),
            Job::Score(request) => (Session::score(request, model.card())?, ["text", "text"]),
        };
        if deadline.is_some_and(|deadline| deadline <= arrived) {
            return Err(Error::Deadline { stage: "before it was queued" });
        }
        let needed = model.bytes_for(session.most_symbols());
        let limit = model.memory().limit;
        if needed > limit {
            let alone = model.bytes_for(session.given_symbols()) > limit;
            let [given, asked] = fields;
            return Err(Error::NeverFits { field: if alone { given } else { asked }, needed, limit });
        }
        let (outlet, events) = Outlet::open(limits.events)?;
        let mut desk = self.common.desk();
        let retry = desk.pace.retry();
        match desk.phase {
            Phase::Open => {}
            Phase::Draining | Phase::Closed => return Err(Error::Draining { retry }),
            Phase::Broken => return Err(Error::Internal(GONE.into())),
        }
        let taken = desk.queue.push(Waiting { session, outlet, deadline, arrived }, needed);
        drop(desk);
        match taken {
            Ok(()) => {
                self.common.signal.raise();
                Ok(events)
            }
            Err(Refused::Full) => Err(Error::QueueFull { what: "requests", limit: limits.queue, retry }),
            Err(Refused::NeverFits) => Err(Error::Internal("the queue has less memory than the model".into())),
        }
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
        let desk = self.common.desk();
        let (queued, running) = (desk.queue.queued(), desk.queue.running());
        drop(desk);
        Load { queued, running, bytes: self.common.model.memory().in_use }
    }

    pub(super) fn memory(&self) -> Memory {
        self.common.model.memory()
    }

    pub(super) fn counters(&self) -> Counters {
        let desk = self.common.desk();
        let (running, waiting) = (desk.queue.running(), desk.queue.queued());
        drop(desk);
        self.common.tally.read(running, waiting)
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
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Desk {
    /// Goes on to a later phase; never back.
    fn enter(&mut self, phase: Phase) {
        self.phase = self.phase.max(phase);
    }
}

impl Waiting {
    fn is_wanted(&self, now: Instant) -> bool {
        !self.outlet.is_closed() && self.deadline.is_none_or(|deadline| now < deadline)
    }

    /// Ends a job that never ran.
    fn refuse(self, error: Error, now: Instant, observer: &dyn Observer) {
        let waited = u64::try_from(now.saturating_duration_since(self.arrived).as_nanos()).unwrap_or(u64::MAX);
        let timing = Timing { queue_ns: waited, total_ns: waited, ..Timing::default() };
        observer.finished(Err(&error), &self.session.usage(), &timing);
        self.outlet.finish(Err(error));
    }
}

impl Drop for Farewell {
    fn drop(&mut self) {
        self.0.heartbeat.rest();
        let broken = thread::panicking();
        let mut desk = self.0.desk();
        desk.enter(if broken { Phase::Broken } else { Phase::Closed });
        // The rows are dropped by now, and with them the jobs that had grants to give back.
        let (left, retry): (Vec<_>, _) = (desk.queue.end().collect(), desk.pace.retry());
        drop(desk);
        self.0.broken.send_replace(broken);
        for job in left {
            let error = if broken { Error::Internal(GONE.into()) } else { Error::Draining { retry } };
            job.refuse(error, Instant::now(), &*self.0.observer);
        }
    }
}

impl Worker {
    fn new(common: Arc<Common>) -> Self {
        let waker = Waker::from(Arc::clone(&common.signal));
        let measured = (Arc::clone(&common.observer), Arc::clone(&common.tally));
        let batch = Batch::new(Arc::clone(&common.model), common.limits, waker, measured);
        Self { common, batch, arrivals: Vec::new(), refused: Vec::new(), ended: Vec::new() }
    }

    fn run(mut self) {
        tracing::debug!("worker started");
        loop {
            let now = Instant::now();
            self.common.heartbeat.beat(now);
            self.batch.settle(now);
            self.end_jobs(now);
            if !self.take_in(now) {
                break;
            }
            if self.batch.step() {
                self.end_jobs(Instant::now());
            } else {
                self.common.heartbeat.rest();
                self.common.signal.wait(self.patience(now));
            }
        }
        let retry = self.common.desk().pace.retry();
        self.batch.end_all(|| Error::Draining { retry });
        self.end_jobs(Instant::now());
        tracing::debug!("worker ended");
    }

    /// Gives rows to the jobs that can run. Tells whether the worker is to go on.
    fn take_in(&mut self, now: Instant) -> bool {
        loop {
            let mut desk = self.common.desk();
            if desk.phase >= Phase::Closed {
                return false;
            }
            desk.queue.sweep(|job| job.is_wanted(now), |job| self.refused.push(job));
            while let Some(arrival) = desk.queue.fetch() {
                self.arrivals.push(arrival);
            }
            drop(desk);
            for job in self.refused.drain(..) {
                job.refuse(Error::Deadline { stage: "in the queue" }, now, &*self.common.observer);
            }
            if self.arrivals.is_empty() {
                return true;
            }
            // Some came after `now`.
            let admitted = Instant::now();
            for (job, grant) in self.arrivals.drain(..) {
                self.common.observer.queued(admitted.saturating_duration_since(job.arrived));
                let watch = Stopwatch::new(job.arrived, admitted);
                let mut running = Running::new(job.session, job.outlet, watch, grant);
                running.deadline = job.deadline;
                self.ended.extend(self.batch.admit(running));
            }
            // Whom the model refuses makes room for the next.
            self.end_jobs(admitted);
        }
    }

    /// Gives back what ended jobs held, then tells their readers: who hears that a job is over finds its place free.
    fn end_jobs(&mut self, now: Instant) {
        self.batch.collect(&mut self.ended);
        if self.ended.is_empty() {
            return;
        }
        let mut desk = self.common.desk();
        for job in &mut self.ended {
            desk.pace.record(job.watch.held(now));
            if let Some(grant) = job.grant.take() {
                desk.queue.give_back(grant);
            }
        }
        drop(desk);
        for job in self.ended.drain(..) {
            job.end(now, &*self.common.observer);
        }
    }

    /// How long to sleep: until somebody's deadline, and not long while somebody waits.
    fn patience(&self, now: Instant) -> Option<Duration> {
        let desk = self.common.desk();
        let running = self.batch.jobs().iter().filter_map(|job| job.deadline);
        let soonest = desk.queue.waiting().filter_map(|job| job.deadline).chain(running).min();
        let patrol = (desk.queue.queued() > 0).then_some(PATROL);
        let left = soonest.map(|deadline| deadline.saturating_duration_since(now));
        left.into_iter().chain(patrol).min()
    }
}
