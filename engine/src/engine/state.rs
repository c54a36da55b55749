//! The state that the handles and the worker of an engine change behind a lock: the queue, the measured rates and the phase. After a
//! change that the worker must see, the worker is woken.
//!
//! `interleavings/` compiles this file with other locks, and with numbers in place of requests.

use super::{
    scheduler::{Demand, RateEstimator, Rejection, Rules, Scheduler},
    wake::WakeSignal,
};
use crate::{
    error::{Error, Result},
    sync::{Mutex, MutexGuard, PoisonError},
};
use std::{sync::Arc, time::Duration};

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
    /// The worker panicked and could not start over; every request is rejected.
    Broken,
}

/// Terms of a request that decide whether it is queued, and where.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct QueueTerms {
    pub(super) priority: i32,
    /// True if the request continues a call that is already running.
    pub(super) continues: bool,
    /// Time from the request's arrival to its deadline.
    pub(super) time_limit: Option<Duration>,
}

/// A request for the queue.
pub(super) struct Queued<R> {
    pub(super) request: R,
    pub(super) demand: Demand,
    pub(super) terms: QueueTerms,
}

/// The outcome of queueing several requests.
pub(super) struct Enqueued {
    /// Number of requests that are queued. If there is an error, it is that of the next one.
    pub(super) count: usize,
    pub(super) result: Result<()>,
}

/// An engine's state behind its lock, with the signal that wakes its worker.
pub(super) struct SharedState<R> {
    pub(super) mutex: Mutex<EngineState<R>>,
    pub(super) wake_signal: Arc<WakeSignal>,
}

/// Queue, measured rates and phase. Locked for short moments only: never while a step runs.
pub(super) struct EngineState<R> {
    pub(super) scheduler: Scheduler<R>,
    rules: Rules,
    pub(super) rates: RateEstimator,
    pub(super) phase: Phase,
}

impl<R> SharedState<R> {
    /// Creates the state of an open engine.
    pub(super) fn new(rules: Rules) -> Self {
        let state = EngineState {
            scheduler: Scheduler::new(rules),
            rules,
            rates: RateEstimator::new(rules.rows, rules.chunk),
            phase: Phase::Open,
        };
        Self { mutex: Mutex::new(state), wake_signal: Arc::default() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, EngineState<R>> {
        self.mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues requests for the worker, which sees all of them at once. Stops at the first one that fails: with `QueueFull`,
    /// `Draining`, or `Deadline` if a deadline cannot be met.
    pub(super) fn enqueue_all(&self, requests: impl IntoIterator<Item = Queued<R>>) -> Enqueued {
        let mut count = 0;
        let mut state = self.lock();
        let result = requests.into_iter().try_for_each(|queued| state.enqueue(queued).map(|()| count += 1));
        drop(state);
        self.wake_signal.raise();
        Enqueued { count, result }
    }

    /// Makes the worker end all requests and then stop.
    pub(super) fn close(&self) {
        self.lock().advance_to(Phase::Closed);
        self.wake_signal.raise();
    }
}

impl<R> EngineState<R> {
    fn enqueue(&mut self, Queued { request, mut demand, terms }: Queued<R>) -> Result<()> {
        let QueueTerms { priority, continues, time_limit } = terms;
        let retry = self.rates.retry_after();
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
            let min_duration = self.rates.min_duration(self.scheduler.work_before(&demand, priority));
            if min_duration.is_some_and(|min| limit < min) {
                return Err(Error::Deadline { stage: DEADLINE_TOO_CLOSE });
            }
        }
        self.scheduler.submit(request, demand, priority).map_err(rejected)
    }

    /// Puts an empty scheduler in place of the present one, and returns that.
    pub(super) fn replace_scheduler(&mut self) -> Scheduler<R> {
        std::mem::replace(&mut self.scheduler, Scheduler::new(self.rules))
    }

    /// Moves to a later phase; never back to an earlier one.
    pub(super) fn advance_to(&mut self, phase: Phase) {
        self.phase = self.phase.max(phase);
    }
}
