//! The signal that the worker sleeps on, and its heartbeat, by which a monitor sees that it hangs.

use super::clock;
use crate::sync::{
    Condvar, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};
use std::{
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    time::{Duration, Instant},
};

/// A flag that stays raised until the worker sees it, so that no wake-up is lost between a check and a sleep.
///
/// Raised by new requests, by uploads, by clients that made room in their channel, and at shutdown.
#[derive(Debug, Default)]
pub(super) struct WakeSignal {
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
    pub(super) fn raise(&self) {
        let mut flag = self.lock();
        flag.raised = true;
        let waiting = flag.waiting.take();
        drop(flag);
        self.changed.notify_one();
        if let Some(task) = waiting {
            task.wake();
        }
    }

    /// Sleeps until the flag is raised or `limit` has passed, and lowers the flag.
    pub(super) fn wait(&self, limit: Option<Duration>) {
        let limit = limit.unwrap_or(Duration::MAX);
        let woken = self.changed.wait_timeout_while(self.lock(), limit, |flag| !flag.raised);
        woken.unwrap_or_else(PoisonError::into_inner).0.raised = false;
    }

    /// Is ready when the flag is raised, and lowers it. One task at most may wait.
    pub(super) fn poll_wait(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut flag = self.lock();
        if std::mem::take(&mut flag.raised) {
            return Poll::Ready(());
        }
        flag.waiting = Some(cx.waker().clone());
        Poll::Pending
    }

    fn lock(&self) -> MutexGuard<'_, Flag> {
        self.flag.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for WakeSignal {
    fn wake(self: Arc<Self>) {
        self.raise();
    }
}

/// Start of the worker's current round of the loop. Written by the worker once a round, read by any thread.
#[derive(Debug)]
pub(super) struct Heartbeat {
    epoch: Instant,
    /// Nanoseconds from `epoch` to the start of the round, plus one; 0 while the worker sleeps.
    started: AtomicU64,
}

impl Heartbeat {
    pub(super) fn new() -> Self {
        Self { epoch: clock::now(), started: AtomicU64::new(0) }
    }

    pub(super) fn start_round(&self, now: Instant) {
        self.started.store(self.since_epoch(now).saturating_add(1), Relaxed);
    }

    /// Records that the worker sleeps, or has ended.
    pub(super) fn rest(&self) {
        self.started.store(0, Relaxed);
    }

    /// Returns how long the current round has lasted; `None` while the worker sleeps.
    pub(super) fn busy_for(&self, now: Instant) -> Option<Duration> {
        let started = self.started.load(Relaxed).checked_sub(1)?;
        Some(Duration::from_nanos(self.since_epoch(now).saturating_sub(started)))
    }

    fn since_epoch(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.epoch).as_nanos()).unwrap_or(u64::MAX)
    }
}
