//! State shared by the handles and the worker of an engine: the model, the caches, and the scheduler behind a lock.

use super::{
    api::{Limits, Phase, Terms},
    cache::{DocumentCache, SegmentCacheHandle},
    calibration::Calibrated,
    counters::Counters,
    observer::Observer,
    request::Request,
    scheduler::{Demand, RateEstimator, Rejection, Rules, Scheduler},
    wake::{Heartbeat, WakeSignal},
};
use crate::{
    decode::contract::Model,
    error::{Error, Result},
};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::watch;

/// Message of the error that every request of a broken engine gets.
pub(super) const WORKER_ENDED: &str = "the model's worker has ended";
/// Message of the error that all requests get when the worker panics outside of the work for single requests.
pub(super) const WORKER_PANICKED: &str = "the model's worker panicked";
/// Stage of a deadline error for a request that is rejected because its deadline cannot be met.
const DEADLINE_TOO_CLOSE: &str = "in advance: at the measured rate there is no time for the first character";

pub(super) struct Inner {
    pub(super) model: Arc<dyn Model>,
    pub(super) limits: Limits,
    pub(super) state: Mutex<EngineState>,
    pub(super) segment_cache: SegmentCacheHandle,
    pub(super) document_cache: DocumentCache,
    pub(super) observer: Arc<dyn Observer>,
    pub(super) heartbeat: Heartbeat,
    /// Step times of the model, once they are measured.
    pub(super) calibration: OnceLock<Calibrated>,
    pub(super) wake_signal: Arc<WakeSignal>,
    /// Set when the worker breaks; watched by [`Handle::wait_until_broken`](super::Handle::wait_until_broken).
    pub(super) broken: watch::Sender<bool>,
}

/// Queue, measured rates, phase and totals. Locked for short moments only: never while a step runs.
pub(super) struct EngineState {
    pub(super) scheduler: Scheduler<Request>,
    rules: Rules,
    pub(super) rates: RateEstimator,
    pub(super) phase: Phase,
    /// The worker's totals after its latest step, without the current load.
    pub(super) counters: Counters,
}

impl Inner {
    pub(super) fn new(model: Arc<dyn Model>, limits: Limits, observer: Arc<dyn Observer>) -> Self {
        let rules = Rules::new(limits.rows, limits.queue, limits.queued_symbols, model.memory().limit, limits.chunk);
        let state = EngineState {
            scheduler: Scheduler::new(rules),
            rules,
            rates: RateEstimator::new(rules.rows, rules.chunk),
            phase: Phase::Open,
            counters: Counters::default(),
        };
        Self {
            model,
            limits,
            state: Mutex::new(state),
            segment_cache: SegmentCacheHandle::new(limits.cache_bytes),
            document_cache: DocumentCache::new(limits.document_bytes, limits.document_keep),
            observer,
            heartbeat: Heartbeat::new(),
            calibration: OnceLock::new(),
            wake_signal: Arc::default(),
            broken: watch::Sender::new(false),
        }
    }

    pub(super) fn lock_state(&self) -> MutexGuard<'_, EngineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EngineState {
    pub(super) fn enqueue(&mut self, request: Request, demand: Demand, terms: &Terms) -> Result<()> {
        let priority = terms.priority;
        let retry = self.rates.retry_after();
        match self.phase {
            Phase::Open => {}
            Phase::Draining if terms.continues => {}
            Phase::Draining | Phase::Closed => return Err(Error::Draining { retry }),
            Phase::Broken => return Err(Error::Internal(WORKER_ENDED.into())),
        }
        if let Some(deadline) = request.deadline {
            let min_duration = self.rates.min_duration(self.scheduler.work_before(&demand, priority));
            if min_duration.is_some_and(|min| deadline.saturating_duration_since(request.timer.arrived) < min) {
                return Err(Error::Deadline { stage: DEADLINE_TOO_CLOSE });
            }
        }
        self.scheduler.submit(request, demand, priority).map_err(|rejection| match rejection {
            Rejection::Full { what, limit } => Error::QueueFull { what, limit, retry },
            Rejection::NeverFits => Error::Internal("the request needs more memory than the model has".into()),
        })
    }

    /// Puts an empty scheduler in place of the present one, and returns that.
    pub(super) fn replace_scheduler(&mut self) -> Scheduler<Request> {
        std::mem::replace(&mut self.scheduler, Scheduler::new(self.rules))
    }

    /// Moves to a later phase; never back to an earlier one.
    pub(super) fn advance_to(&mut self, phase: Phase) {
        self.phase = self.phase.max(phase);
    }
}
