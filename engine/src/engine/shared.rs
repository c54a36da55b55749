//! What the handles and the worker of an engine share: the model, the caches, the totals, and the locked state.

use super::{
    api::Limits,
    cache::{DocumentCache, SegmentCacheHandle},
    calibration::LatestCalibration,
    counters::Counters,
    observer::Observer,
    request::Request,
    scheduler::Rules,
    state::{EngineState, SharedState},
    wake::Heartbeat,
};
use crate::decode::contract::Model;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

pub(super) struct Inner {
    pub(super) model: Arc<dyn Model>,
    pub(super) limits: Limits,
    pub(super) state: SharedState<Request>,
    /// The worker's totals after its latest step, without the current load.
    counters: Mutex<Counters>,
    pub(super) segment_cache: SegmentCacheHandle,
    pub(super) document_cache: DocumentCache,
    pub(super) observer: Arc<dyn Observer>,
    pub(super) heartbeat: Heartbeat,
    /// Step times of the model, once they are measured.
    pub(super) calibration: LatestCalibration,
    /// Set when the worker breaks; watched by [`Handle::wait_until_broken`](super::Handle::wait_until_broken).
    pub(super) broken: watch::Sender<bool>,
}

impl Inner {
    pub(super) fn new(model: Arc<dyn Model>, limits: Limits, observer: Arc<dyn Observer>) -> Self {
        let rules = Rules::new(limits.rows, limits.queue, limits.queued_symbols, model.memory().limit, limits.chunk);
        Self {
            model,
            limits,
            state: SharedState::new(rules),
            counters: Mutex::default(),
            segment_cache: SegmentCacheHandle::new(limits.cache_bytes),
            document_cache: DocumentCache::new(limits.document_bytes, limits.document_keep),
            observer,
            heartbeat: Heartbeat::new(),
            calibration: LatestCalibration::default(),
            broken: watch::Sender::new(false),
        }
    }

    pub(super) fn lock_state(&self) -> MutexGuard<'_, EngineState<Request>> {
        self.state.lock()
    }

    pub(super) fn lock_counters(&self) -> MutexGuard<'_, Counters> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
