//! Live counters that every request updates.

use super::histogram::ValueHistogram;
use crate::error::Result;
use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::time::Instant;

/// Counters since the start of the load, warm-up included.
#[derive(Debug, Default)]
pub struct LiveCounters {
    /// Characters received.
    pub characters: AtomicU64,
    /// Messages with characters.
    pub messages: AtomicU64,
    /// Requests due to be sent.
    pub started: AtomicU64,
    /// Requests that succeeded.
    pub finished: AtomicU64,
    /// Requests that ended otherwise.
    pub failed: AtomicU64,
    /// Requests that met the objectives.
    pub good: AtomicU64,
    /// Measured requests that ended, with any outcome.
    pub measured: AtomicU64,
    /// Times to first character of the requests that ended since these were last taken.
    first_times: Mutex<Option<ValueHistogram>>,
}

/// Values of [`LiveCounters`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CounterValues {
    /// Characters received.
    pub characters: u64,
    /// Messages with characters.
    pub messages: u64,
    /// Requests due to be sent.
    pub started: u64,
    /// Requests that succeeded.
    pub finished: u64,
    /// Requests that ended otherwise.
    pub failed: u64,
    /// Requests that met the objectives.
    pub good: u64,
    /// Measured requests that ended, with any outcome.
    pub measured: u64,
}

/// Values of the counters at a moment.
#[derive(Debug, Clone, Copy)]
pub struct CounterSnapshot {
    at: Instant,
    counts: CounterValues,
}

/// Changes of the counters within a time span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterDelta {
    /// Time span.
    pub span: Duration,
    /// Increments of the counters.
    pub counts: CounterValues,
}

impl LiveCounters {
    /// Reads the counters.
    pub fn read(&self) -> CounterSnapshot {
        let counts = CounterValues {
            characters: self.characters.load(Relaxed),
            messages: self.messages.load(Relaxed),
            started: self.started.load(Relaxed),
            finished: self.finished.load(Relaxed),
            failed: self.failed.load(Relaxed),
            good: self.good.load(Relaxed),
            measured: self.measured.load(Relaxed),
        };
        CounterSnapshot { at: Instant::now(), counts }
    }

    /// Records the time to first character of a request that succeeded.
    pub fn record_first(&self, time: Duration) {
        let mut times = self.first_times.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(times) = times.as_mut() {
            times.record_time(time);
        }
    }

    /// Returns the times to first character recorded since the last call, and starts anew.
    pub(super) fn take_first_times(&self) -> Result<ValueHistogram> {
        let empty = ValueHistogram::new()?;
        let mut times = self.first_times.lock().unwrap_or_else(PoisonError::into_inner);
        times.replace(empty).map_or_else(ValueHistogram::new, Ok)
    }
}

impl CounterValues {
    fn fields_mut(&mut self) -> [&mut u64; 7] {
        let Self { characters, messages, started, finished, failed, good, measured } = self;
        [characters, messages, started, finished, failed, good, measured]
    }

    /// Adds `other` to each counter.
    pub(super) fn add(&mut self, mut other: Self) {
        self.fields_mut().into_iter().zip(other.fields_mut()).for_each(|(sum, value)| *sum += *value);
    }

    fn subtract(&mut self, mut other: Self) {
        self.fields_mut().into_iter().zip(other.fields_mut()).for_each(|(sum, value)| *sum -= *value);
    }
}

impl CounterSnapshot {
    /// Returns the changes since an earlier snapshot.
    pub fn since(&self, before: &Self) -> CounterDelta {
        let mut counts = self.counts;
        counts.subtract(before.counts);
        CounterDelta { span: self.at - before.at, counts }
    }

    /// Returns the number of requests that have started and have not ended.
    pub fn in_flight(&self) -> u64 {
        self.counts.started.saturating_sub(self.counts.finished + self.counts.failed)
    }

    /// Returns when the snapshot was taken.
    pub fn at(&self) -> Instant {
        self.at
    }
}
