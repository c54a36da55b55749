//! Totals of a model's requests since the process began, as integers. The KServe statistics call reports them one by one; the
//! sums inside of histograms cannot be read back.

use crate::decode::usage::Timing;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CountAndTime {
    pub count: u64,
    /// Total time, in nanoseconds.
    pub ns: u64,
}

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
    pub steps: u64,
    /// End of the last request, in milliseconds since 1970.
    pub last: u64,
}

impl CountAndTime {
    fn add(&mut self, ns: u64) {
        self.count += 1;
        self.ns = self.ns.saturating_add(ns);
    }
}

impl RequestTotals {
    pub(super) fn add_finished(&mut self, success: bool, timing: &Timing) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        self.last = u64::try_from(now).unwrap_or(u64::MAX);
        if !success {
            return self.fail.add(timing.total_ns);
        }
        self.success.add(timing.total_ns);
        self.queue.add(timing.queue_ns);
        self.prefill.add(timing.prefill_ns);
        self.decode.add(timing.total_ns.saturating_sub(timing.queue_ns).saturating_sub(timing.prefill_ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_to_the_total() {
        let mut totals = RequestTotals::default();
        let timing = Timing { queue_ns: 2, prefill_ns: 3, total_ns: 10, ..Timing::default() };
        totals.add_finished(true, &timing);
        totals.add_finished(false, &timing);
        let RequestTotals { success, fail, queue, prefill, decode, last, .. } = totals;
        assert_eq!((success, fail), (CountAndTime { count: 1, ns: 10 }, CountAndTime { count: 1, ns: 10 }));
        assert_eq!(queue.ns + prefill.ns + decode.ns, success.ns);
        assert!(last > 0);
    }
}
