//! Live counters that every request updates.

use super::histogram::ValueHistogram;
use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::time::Instant;

/// Counters since the start of the load, warm-up included; or increments of these counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoadCounters<T> {
    pub characters: T,
    /// Messages with characters.
    pub messages: T,
    /// Requests that this program began to send.
    pub started: T,
    /// Requests that succeeded.
    pub finished: T,
    /// Requests that ended otherwise.
    pub failed: T,
    /// Requests that met the objectives.
    pub good: T,
    /// Measured requests that ended, with any outcome.
    pub measured: T,
}

#[derive(Debug, Default)]
pub struct LiveCounters {
    pub totals: LoadCounters<AtomicU64>,
    /// Times to first character of the requests that succeeded since the times were last taken.
    first_times: Mutex<ValueHistogram>,
}

#[derive(Debug, Clone, Copy)]
pub struct CounterSnapshot {
    pub(super) time: Instant,
    counts: LoadCounters<u64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CounterDelta {
    pub span: Duration,
    pub counts: LoadCounters<u64>,
}

impl LiveCounters {
    pub fn read(&self) -> CounterSnapshot {
        let counts = LoadCounters {
            characters: self.totals.characters.load(Relaxed),
            messages: self.totals.messages.load(Relaxed),
            started: self.totals.started.load(Relaxed),
            finished: self.totals.finished.load(Relaxed),
            failed: self.totals.failed.load(Relaxed),
            good: self.totals.good.load(Relaxed),
            measured: self.totals.measured.load(Relaxed),
        };
        CounterSnapshot { time: Instant::now(), counts }
    }

    fn first_times(&self) -> MutexGuard<'_, ValueHistogram> {
        self.first_times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the time to first character of a request that succeeded.
    pub fn record_first(&self, time: Duration) {
        self.first_times().record_time(time);
    }

    /// Returns the times to first character recorded since the last call, and clears them.
    pub(super) fn take_first_times(&self) -> ValueHistogram {
        std::mem::take(&mut self.first_times())
    }
}

impl LoadCounters<u64> {
    fn fields_mut(&mut self) -> [&mut u64; 7] {
        let Self { characters, messages, started, finished, failed, good, measured } = self;
        [characters, messages, started, finished, failed, good, measured]
    }

    pub(super) fn add(&mut self, mut other: Self) {
        self.fields_mut().into_iter().zip(other.fields_mut()).for_each(|(sum, value)| *sum += *value);
    }
}

impl CounterSnapshot {
    pub fn since(&self, before: &Self) -> CounterDelta {
        let mut counts = self.counts;
        let mut earlier = before.counts;
        counts.fields_mut().into_iter().zip(earlier.fields_mut()).for_each(|(count, earlier)| *count -= *earlier);
        CounterDelta { span: self.time - before.time, counts }
    }

    pub fn in_flight(&self) -> u64 {
        self.counts.started.saturating_sub(self.counts.finished + self.counts.failed)
    }
}
