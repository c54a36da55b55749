//! The state that the handles and the worker of an engine change behind a lock: queue, measured step times, phase; the signal
//! that wakes the worker, and its heartbeat. `tests/interleavings/` compiles this file with other locks, and with numbers in place of
//! requests.

use crate::clock;
use crate::scheduler::tenants::Demand;
use crate::scheduler::{Rejection, Rules, Scheduler};
use crate::step_times::StepTimes;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use weir_kernels::error::{Error, Result};
use weir_kernels::sync::atomic::AtomicU64;
use weir_kernels::sync::atomic::Ordering::Relaxed;
use weir_kernels::sync::{Condvar, Mutex, MutexGuard, PoisonError, lock};

/// Stage of a deadline error for a request that is rejected because its deadline cannot be met.
const DEADLINE_TOO_CLOSE: &str = "in advance: at the measured rate there is no time for the first character";

/// Phase of an engine's life. An engine moves to later phases only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Accepts requests.
    Open,
    /// Rejects new requests; queued and running ones go on.
    Draining,
    /// The worker is ending, or has ended.
    Closed,
    /// The worker panicked and could not start over, or the model's file changed; every request is rejected.
    Broken,
}

/// An engine's state behind its lock, with the signal that wakes its worker.
pub(crate) struct SharedState<R> {
    pub(crate) mutex: Mutex<EngineState<R>>,
    pub(crate) wake_signal: Arc<WakeSignal>,
}

/// Queue, measured step times and phase. Locked for short moments only: never while a step runs.
pub(crate) struct EngineState<R> {
    pub(crate) scheduler: Scheduler<R>,
    rules: Rules,
    pub(crate) step_times: StepTimes,
    pub(crate) phase: Phase,
}

impl<R> SharedState<R> {
    pub(crate) fn new(rules: Rules) -> Self {
        let state = EngineState {
            scheduler: Scheduler::new(rules),
            rules,
            step_times: StepTimes::new(rules.rows, rules.chunk),
            phase: Phase::Open,
        };
        Self { mutex: Mutex::new(state), wake_signal: Arc::default() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, EngineState<R>> {
        lock(&self.mutex)
    }

    /// Queues requests for the worker, which sees all of them at once, until one fails: with `QueueFull`, `Draining`, or
    /// `Deadline` if `time_limit` cannot be met. Returns how many are queued, and the error. `continues` is true if they
    /// continue a running call.
    pub(crate) fn enqueue_all(
        &self,
        requests: impl IntoIterator<Item = (R, Demand)>,
        priority: i32,
        continues: bool,
        time_limit: Option<Duration>,
    ) -> (usize, Result<()>) {
        let mut count = 0;
        let mut state = self.lock();
        let result = requests.into_iter().try_for_each(|(request, demand)| {
            state.enqueue(request, demand, priority, continues, time_limit).map(|()| count += 1)
        });
        drop(state);
        self.wake_signal.raise();
        (count, result)
    }

    /// Makes the worker end all requests and then stop.
    pub(crate) fn close(&self) {
        self.lock().advance_to(Phase::Closed);
        self.wake_signal.raise();
    }
}

impl<R> EngineState<R> {
    fn enqueue(
        &mut self,
        request: R,
        mut demand: Demand,
        priority: i32,
        continues: bool,
        time_limit: Option<Duration>,
    ) -> Result<()> {
        let retry = self.step_times.retry_after();
        match self.phase {
            Phase::Open => {}
            Phase::Draining if continues => {}
            Phase::Draining | Phase::Closed => return Err(Error::Draining { retry }),
            Phase::Broken => return Err(Error::Broken),
        }
        let rejected = |rejection| match rejection {
            Rejection::Full { what, limit } => Error::QueueFull { what, limit, retry },
            Rejection::NeverFits => Error::Internal("the request needs more memory than the model has".into()),
        };
        self.scheduler.check(&demand).map_err(rejected)?;
        self.scheduler.discount(&mut demand, priority);
        if let Some(limit) = time_limit {
            let min_duration = self.step_times.min_duration(self.scheduler.work_before(&demand, priority));
            if min_duration.is_some_and(|min| limit < min) {
                return Err(Error::Deadline { stage: DEADLINE_TOO_CLOSE });
            }
        }
        self.scheduler.submit(request, demand, priority).map_err(rejected)
    }

    /// Puts an empty scheduler in place of the present one, and returns that.
    pub(crate) fn replace_scheduler(&mut self) -> Scheduler<R> {
        std::mem::replace(&mut self.scheduler, Scheduler::new(self.rules))
    }

    /// Moves to a later phase; never back to an earlier one.
    pub(crate) fn advance_to(&mut self, phase: Phase) {
        self.phase = self.phase.max(phase);
    }
}

/// A flag that stays raised until the worker sees it, so that no wake-up is lost between a check and a sleep.
#[derive(Debug, Default)]
pub(crate) struct WakeSignal {
    flag: Mutex<Flag>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Flag {
    raised: bool,
    /// The task that waits, if the worker is a task.
    waiting: Option<Waker>,
}

impl WakeSignal {
    pub(crate) fn raise(&self) {
        let mut flag = lock(&self.flag);
        flag.raised = true;
        let waiting = flag.waiting.take();
        drop(flag);
        self.changed.notify_one();
        if let Some(task) = waiting {
            task.wake();
        }
    }

    /// Sleeps until the flag is raised or `limit` has passed, and lowers the flag.
    pub(crate) fn wait(&self, limit: Option<Duration>) {
        let limit = limit.unwrap_or(Duration::MAX);
        let woken = self.changed.wait_timeout_while(lock(&self.flag), limit, |flag| !flag.raised);
        woken.unwrap_or_else(PoisonError::into_inner).0.raised = false;
    }

    /// Is ready when the flag is raised, and lowers it. One task at most may wait.
    pub(crate) fn poll_wait(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut flag = lock(&self.flag);
        if std::mem::take(&mut flag.raised) {
            return Poll::Ready(());
        }
        flag.waiting = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Wake for WakeSignal {
    fn wake(self: Arc<Self>) {
        self.raise();
    }
}

/// Start of the worker's current round of the loop. Written by the worker once a round, read by any thread.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    epoch: Instant,
    /// Nanoseconds from `epoch` to the start of the round, plus one; 0 while the worker sleeps.
    started: AtomicU64,
}

impl Heartbeat {
    pub(crate) fn new() -> Self {
        Self { epoch: clock::now(), started: AtomicU64::new(0) }
    }

    pub(crate) fn start_round(&self, now: Instant) {
        let started = clock::nanoseconds(now.saturating_duration_since(self.epoch));
        self.started.store(started.saturating_add(1), Relaxed);
    }

    /// Records that the worker sleeps, or has ended.
    pub(crate) fn rest(&self) {
        self.started.store(0, Relaxed);
    }

    /// Returns how long the current round has lasted; `None` while the worker sleeps.
    pub(crate) fn busy_for(&self, now: Instant) -> Option<Duration> {
        let started = Duration::from_nanos(self.started.load(Relaxed).checked_sub(1)?);
        Some(now.saturating_duration_since(self.epoch).saturating_sub(started))
    }
}
