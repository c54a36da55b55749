//! When the worker began its present round: for those who watch whether it still goes on.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// Written by the worker once a round, read by anybody.
#[derive(Debug)]
pub(super) struct Heartbeat {
    epoch: Instant,
    /// Nanoseconds from the epoch to the round's beginning, plus one; 0 while the worker sleeps.
    began: AtomicU64,
}

impl Heartbeat {
    pub(super) fn new() -> Self {
        Self { epoch: Instant::now(), began: AtomicU64::new(0) }
    }

    /// A round begins.
    pub(super) fn beat(&self, now: Instant) {
        self.began.store(self.since_epoch(now).saturating_add(1), Relaxed);
    }

    /// The worker goes to sleep, or is gone.
    pub(super) fn rest(&self) {
        self.began.store(0, Relaxed);
    }

    /// How long the present round has lasted.
    pub(super) fn busy(&self, now: Instant) -> Option<Duration> {
        let began = self.began.load(Relaxed).checked_sub(1)?;
        Some(Duration::from_nanos(self.since_epoch(now).saturating_sub(began)))
    }

    fn since_epoch(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.epoch).as_nanos()).unwrap_or(u64::MAX)
    }
}
