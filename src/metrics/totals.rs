//! What became of a model's requests since the process began, in whole numbers, for those who ask for them one by one: what
//! histograms tell in sums cannot be read back.

use crate::decode::usage::Timing;
use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{SystemTime, UNIX_EPOCH},
};

/// How often, and for how long in all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// How often.
    pub count: u64,
    /// Nanoseconds.
    pub ns: u64,
}

/// What became of the requests to a model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Requests {
    /// Those that came to their end, from arrival on.
    pub success: Times,
    /// The others.
    pub fail: Times,
    /// Of those that came to their end: until they were admitted.
    pub queue: Times,
    /// From there to the first distribution after the prompt.
    pub prefill: Times,
    /// From there to the end.
    pub decode: Times,
    /// Steps of all requests together.
    pub steps: u64,
    /// When the last one ended, in milliseconds since 1970.
    pub last: u64,
}

#[derive(Debug, Default)]
struct Sum {
    count: AtomicU64,
    ns: AtomicU64,
}

impl Sum {
    fn add(&self, ns: u64) {
        self.count.fetch_add(1, Relaxed);
        self.ns.fetch_add(ns, Relaxed);
    }

    fn get(&self) -> Times {
        Times { count: self.count.load(Relaxed), ns: self.ns.load(Relaxed) }
    }
}

/// [`Requests`] while they are counted.
#[derive(Debug, Default)]
pub(super) struct Totals {
    success: Sum,
    fail: Sum,
    queue: Sum,
    prefill: Sum,
    decode: Sum,
    steps: AtomicU64,
    last: AtomicU64,
}

impl Totals {
    /// A step was taken.
    pub(super) fn step(&self) {
        self.steps.fetch_add(1, Relaxed);
    }

    /// A request is over.
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

    /// As they stand.
    pub(super) fn read(&self) -> Requests {
        Requests {
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
    fn parts_add_up_to_the_whole() {
        let totals = Totals::default();
        let timing = Timing { queue_ns: 2, prefill_ns: 3, total_ns: 10, ..Timing::default() };
        totals.finished(true, &timing);
        totals.finished(false, &timing);
        totals.step();
        let Requests { success, fail, queue, prefill, decode, steps, last } = totals.read();
        assert_eq!((success, fail), (Times { count: 1, ns: 10 }, Times { count: 1, ns: 10 }));
        assert_eq!(queue.ns + prefill.ns + decode.ns, success.ns);
        assert!(steps == 1 && last > 0);
    }
}
