//! Totals of a model's requests since the process began, as whole numbers. The KServe statistics call reports them one by one;
//! the sums inside of histograms cannot be read back.

use crate::decode::usage::Timing;
use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{SystemTime, UNIX_EPOCH},
};

/// A count and its total time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CountAndTime {
    /// The count.
    pub count: u64,
    /// Total time, in nanoseconds.
    pub ns: u64,
}

/// Totals of the requests to a model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestTotals {
    /// Completed requests, from arrival to end.
    pub success: CountAndTime,
    /// Failed requests, from arrival to end.
    pub fail: CountAndTime,
    /// Completed requests, from arrival to admission.
    pub queue: CountAndTime,
    /// Completed requests, from admission to the first logits after the prompt.
    pub prefill: CountAndTime,
    /// Completed requests, from these logits to the end.
    pub decode: CountAndTime,
    /// Steps of all requests together.
    pub steps: u64,
    /// End of the last request, in milliseconds since 1970.
    pub last: u64,
}

#[derive(Debug, Default)]
struct AtomicCountAndTime {
    count: AtomicU64,
    ns: AtomicU64,
}

impl AtomicCountAndTime {
    fn add(&self, ns: u64) {
        self.count.fetch_add(1, Relaxed);
        self.ns.fetch_add(ns, Relaxed);
    }

    fn get(&self) -> CountAndTime {
        CountAndTime { count: self.count.load(Relaxed), ns: self.ns.load(Relaxed) }
    }
}

/// Atomic counters behind [`RequestTotals`].
#[derive(Debug, Default)]
pub(super) struct Totals {
    success: AtomicCountAndTime,
    fail: AtomicCountAndTime,
    queue: AtomicCountAndTime,
    prefill: AtomicCountAndTime,
    decode: AtomicCountAndTime,
    steps: AtomicU64,
    last: AtomicU64,
}

impl Totals {
    /// Counts a step.
    pub(super) fn step(&self) {
        self.steps.fetch_add(1, Relaxed);
    }

    /// Counts a finished request.
    pub(super) fn finished(&self, success: bool, timing: &Timing) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        self.last.store(u64::try_from(now).unwrap_or(u64::MAX), Relaxed);
        if !success {
            return self.fail.add(timing.total_ns);
        }
        self.success.add(timing.total_ns);
        self.queue.add(timing.queue_ns);
        self.prefill.add(timing.prefill_ns);
        self.decode.add(timing.total_ns.saturating_sub(timing.queue_ns).saturating_sub(timing.prefill_ns));
    }

    /// Returns the present totals.
    pub(super) fn read(&self) -> RequestTotals {
        RequestTotals {
            success: self.success.get(),
            fail: self.fail.get(),
            queue: self.queue.get(),
            prefill: self.prefill.get(),
            decode: self.decode.get(),
            steps: self.steps.load(Relaxed),
            last: self.last.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_to_the_total() {
        let totals = Totals::default();
        let timing = Timing { queue_ns: 2, prefill_ns: 3, total_ns: 10, ..Timing::default() };
        totals.finished(true, &timing);
        totals.finished(false, &timing);
        totals.step();
        let RequestTotals { success, fail, queue, prefill, decode, steps, last } = totals.read();
        assert_eq!((success, fail), (CountAndTime { count: 1, ns: 10 }, CountAndTime { count: 1, ns: 10 }));
        assert_eq!(queue.ns + prefill.ns + decode.ns, success.ns);
        assert!(steps == 1 && last > 0);
    }
}
