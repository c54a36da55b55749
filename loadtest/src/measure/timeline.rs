//! Timeline of a load: the counters, sampled at regular intervals.

use super::{
    counters::{CounterDelta, CounterSnapshot, LiveCounters},
    histogram::ValueHistogram,
};
use crate::units;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Maximum samples of a timeline; beyond this, neighbours are merged.
const MAX_SAMPLES: usize = 240;

/// One interval of a timeline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimelineSample {
    /// Start of the interval, counted from the end of the warm-up.
    pub at_ns: u64,
    pub span_ns: u64,
    /// Requests that this program began to send in the interval.
    pub started: u64,
    /// Requests that succeeded in the interval.
    pub finished: u64,
    /// Requests that ended otherwise in the interval.
    pub failed: u64,
    pub characters: u64,
    /// Messages with these characters.
    pub messages: u64,
    pub in_flight: u64,
    /// Median time to first character of the requests that succeeded in the interval.
    pub time_to_first_char_p50_ns: Option<f64>,
    /// Maximum time to first character of these requests.
    pub time_to_first_char_max_ns: Option<f64>,
}

#[derive(Debug)]
struct Bucket {
    start: Duration,
    delta: CounterDelta,
    in_flight: u64,
    first_times: ValueHistogram,
}

#[derive(Debug)]
pub struct Timeline {
    begun: CounterSnapshot,
    latest: CounterSnapshot,
    buckets: Vec<Bucket>,
    ticks_per_bucket: u32,
    /// Ticks since the last bucket.
    ticks: u32,
}

impl Timeline {
    pub fn begin(counters: &LiveCounters) -> Self {
        counters.take_first_times();
        let begun = counters.read();
        Self { begun, latest: begun, buckets: Vec::new(), ticks_per_bucket: 1, ticks: 0 }
    }

    /// Samples the counters if a bucket is full. Must be called at regular intervals.
    pub fn tick(&mut self, counters: &LiveCounters) {
        self.ticks += 1;
        if self.ticks >= self.ticks_per_bucket {
            self.flush(counters);
        }
    }

    /// Samples the counters: adds a bucket with everything since the last one.
    pub fn flush(&mut self, counters: &LiveCounters) {
        let now = counters.read();
        let bucket = Bucket {
            start: self.latest.time - self.begun.time,
            delta: now.since(&self.latest),
            in_flight: now.in_flight(),
            first_times: counters.take_first_times(),
        };
        match self.buckets.last_mut().filter(|_| bucket.delta.span.is_zero()) {
            // a bucket without duration belongs to the one before
            Some(before) => before.merge(&bucket),
            None => self.buckets.push(bucket),
        }
        self.latest = now;
        self.ticks = 0;
        if self.buckets.len() >= MAX_SAMPLES {
            self.merge_neighbours();
        }
    }

    fn merge_neighbours(&mut self) {
        let mut merged: Vec<Bucket> = Vec::with_capacity(MAX_SAMPLES / 2 + 1);
        for (index, bucket) in self.buckets.drain(..).enumerate() {
            match merged.last_mut().filter(|_| index % 2 == 1) {
                Some(before) => before.merge(&bucket),
                None => merged.push(bucket),
            }
        }
        self.buckets = merged;
        self.ticks_per_bucket *= 2;
    }

    /// Returns the highest rate, in messages per second, of all buckets that last at least a fifth of a second.
    pub fn peak_messages(&self) -> Option<f64> {
        let long =
            self.buckets.iter().map(|bucket| bucket.delta).filter(|delta| delta.span >= Duration::from_millis(200));
        long.map(|delta| delta.counts.messages as f64 / delta.span.as_secs_f64()).max_by(f64::total_cmp)
    }

    pub fn samples(&self) -> Vec<TimelineSample> {
        self.buckets.iter().map(Bucket::sample).collect()
    }
}

impl Bucket {
    fn merge(&mut self, next: &Self) {
        self.delta.span += next.delta.span;
        self.delta.counts.add(next.delta.counts);
        self.in_flight = next.in_flight;
        self.first_times.merge(&next.first_times);
    }

    fn sample(&self) -> TimelineSample {
        let first_times = self.first_times.percentiles(1.0);
        let counts = self.delta.counts;
        TimelineSample {
            at_ns: units::ns(self.start),
            span_ns: units::ns(self.delta.span),
            started: counts.started,
            finished: counts.finished,
            failed: counts.failed,
            characters: counts.characters,
            messages: counts.messages,
            in_flight: self.in_flight,
            time_to_first_char_p50_ns: first_times.p50,
            time_to_first_char_max_ns: first_times.max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;
    use tokio::time::sleep;

    #[tokio::test(start_paused = true)]
    async fn a_long_timeline_keeps_its_sums_in_few_samples() {
        let counters = LiveCounters::default();
        counters.totals.characters.fetch_add(5, Relaxed);
        let mut timeline = Timeline::begin(&counters);
        for _ in 0..1000 {
            sleep(Duration::from_millis(250)).await;
            counters.totals.characters.fetch_add(3, Relaxed);
            counters.totals.started.fetch_add(1, Relaxed);
            counters.totals.finished.fetch_add(1, Relaxed);
            counters.record_first(Duration::from_millis(7));
            timeline.tick(&counters);
        }
        timeline.flush(&counters);
        let samples = timeline.samples();
        assert!(samples.len() <= MAX_SAMPLES, "{}", samples.len());
        assert_eq!(samples.iter().map(|sample| sample.characters).sum::<u64>(), 3000);
        assert_eq!(samples.iter().map(|sample| sample.span_ns).sum::<u64>(), 250_000_000_000);
        let adjacent = samples.windows(2).all(|pair| pair[0].at_ns + pair[0].span_ns == pair[1].at_ns);
        assert!(adjacent && samples[3].time_to_first_char_p50_ns.is_some_and(|ns| (ns / 7e6 - 1.0).abs() < 1e-3));
    }
}
