//! The course of time: counters that every request moves, looked at again and again.

use super::histogram::ValueHistogram;
use crate::{error::Result, units};
use serde::{Deserialize, Serialize};
use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::time::Instant;

/// The most samples of a course; with more, neighbours are put together.
const MOST_SAMPLES: usize = 240;

/// Counters from the start of the program on, warm-up included.
#[derive(Debug, Default)]
pub struct LiveCounters {
    /// Characters that came.
    pub characters: AtomicU64,
    /// Messages with characters.
    pub messages: AtomicU64,
    /// Requests that were to be sent.
    pub started: AtomicU64,
    /// Requests that ended well.
    pub finished: AtomicU64,
    /// Requests that ended otherwise.
    pub failed: AtomicU64,
    /// Requests that kept the objectives.
    pub good: AtomicU64,
    /// Requests that are measured and ended, however they did.
    pub measured: AtomicU64,
    /// Times to the first character of the requests that ended since it was last taken.
    pub first: Mutex<Option<ValueHistogram>>,
}

/// What the counters said at a moment.
#[derive(Debug, Clone, Copy)]
pub struct CounterSnapshot {
    at: Instant,
    counts: [u64; 7],
}

/// What happened within a span of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterDelta {
    /// The span.
    pub span: Duration,
    /// Characters, messages, requests started, ended well, ended otherwise, good ones, and measured ones that ended.
    pub counts: [u64; 7],
}

impl LiveCounters {
    /// Reads the counters.
    pub fn read(&self) -> CounterSnapshot {
        let Self { characters, messages, started, finished, failed, good, measured, .. } = self;
        let counts = [characters, messages, started, finished, failed, good, measured].map(|count| count.load(Relaxed));
        CounterSnapshot { at: Instant::now(), counts }
    }

    /// Notes the time to the first character of a request that ended.
    pub fn first(&self, span: Duration) {
        let mut first = self.first.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(numbers) = first.as_mut() {
            numbers.time(span);
        }
    }

    fn take_first(&self) -> Result<ValueHistogram> {
        let fresh = ValueHistogram::new()?;
        let mut first = self.first.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        first.replace(fresh).map_or_else(ValueHistogram::new, Ok)
    }
}

impl CounterSnapshot {
    /// What happened since an earlier one.
    pub fn since(&self, before: &Self) -> CounterDelta {
        let mut counts = self.counts;
        counts.iter_mut().zip(before.counts).for_each(|(now, then)| *now -= then);
        CounterDelta { span: self.at - before.at, counts }
    }

    /// Requests that have been started and have not ended.
    pub fn in_flight(&self) -> u64 {
        let [_, _, started, finished, failed, ..] = self.counts;
        started.saturating_sub(finished + failed)
    }

    /// When it was taken.
    pub fn at(&self) -> Instant {
        self.at
    }
}

/// A part of the course of a measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimelineSample {
    /// Its beginning, counted from the end of the warm-up.
    pub at_ns: u64,
    /// Its length.
    pub span_ns: u64,
    /// Requests that were to be sent in it.
    pub started: u64,
    /// Requests that ended well in it.
    pub finished: u64,
    /// Requests that ended otherwise in it.
    pub failed: u64,
    /// Characters that came in it.
    pub characters: u64,
    /// Messages that they came in.
    pub messages: u64,
    /// Requests in flight at its end.
    pub in_flight: u64,
    /// The median time to the first character of the requests that ended well in it.
    pub time_to_first_char_p50_ns: Option<f64>,
    /// Their longest.
    pub time_to_first_char_max_ns: Option<f64>,
}

/// A sample before it is told: when it began, what happened, requests in flight at its end, times to the first character.
type Taken = (Duration, CounterDelta, u64, ValueHistogram);

/// The samples of a measurement, of which there are never more than a few hundred.
#[derive(Debug)]
pub struct Timeline {
    begun: CounterSnapshot,
    latest: CounterSnapshot,
    samples: Vec<Taken>,
    /// Looks that one sample takes.
    looks: u32,
    since: u32,
}

impl Timeline {
    /// Begins now.
    ///
    /// # Errors
    /// No memory.
    pub fn begin(meter: &LiveCounters) -> Result<Self> {
        meter.take_first()?;
        let begun = meter.read();
        Ok(Self { begun, latest: begun, samples: Vec::new(), looks: 1, since: 0 })
    }

    /// Looks at the counters: to be called at even intervals.
    ///
    /// # Errors
    /// No memory.
    pub fn look(&mut self, meter: &LiveCounters) -> Result<()> {
        self.since += 1;
        if self.since >= self.looks { self.close(meter) } else { Ok(()) }
    }

    /// Makes a sample of what happened since the last one.
    ///
    /// # Errors
    /// No memory.
    pub fn close(&mut self, meter: &LiveCounters) -> Result<()> {
        let (now, first) = (meter.read(), meter.take_first()?);
        let change = now.since(&self.latest);
        match self.samples.last_mut().filter(|_| change.span.is_zero()) {
            // what came in no time belongs to the time before
            Some(before) => add(before, (change, now.in_flight(), &first))?,
            None => self.samples.push((self.latest.at - self.begun.at, change, now.in_flight(), first)),
        }
        (self.latest, self.since) = (now, 0);
        if self.samples.len() >= MOST_SAMPLES {
            self.halve()?;
        }
        Ok(())
    }

    fn halve(&mut self) -> Result<()> {
        let mut halved: Vec<Taken> = Vec::with_capacity(MOST_SAMPLES / 2 + 1);
        for (index, (at, change, in_flight, first)) in self.samples.drain(..).enumerate() {
            match halved.last_mut().filter(|_| index % 2 == 1) {
                Some(before) => add(before, (change, in_flight, &first))?,
                None => halved.push((at, change, in_flight, first)),
            }
        }
        (self.samples, self.looks) = (halved, self.looks * 2);
        Ok(())
    }

    /// The most messages a second of any sample that is not too short to tell.
    pub fn peak_messages(&self) -> Option<f64> {
        let long = self.samples.iter().filter(|sample| sample.1.span >= Duration::from_millis(200));
        long.map(|sample| sample.1.counts[1] as f64 / sample.1.span.as_secs_f64()).max_by(f64::total_cmp)
    }

    /// What is told.
    pub fn told(&self) -> Vec<TimelineSample> {
        let one = |(at, change, in_flight, first): &Taken| {
            let [characters, messages, started, finished, failed, ..] = change.counts;
            let spread = first.spread(1.0);
            TimelineSample {
                at_ns: units::ns(*at),
                span_ns: units::ns(change.span),
                started,
                finished,
                failed,
                characters,
                messages,
                in_flight: *in_flight,
                time_to_first_char_p50_ns: spread.p50,
                time_to_first_char_max_ns: spread.max,
            }
        };
        self.samples.iter().map(one).collect()
    }
}

/// Puts what followed it to a sample.
fn add(before: &mut Taken, (change, in_flight, first): (CounterDelta, u64, &ValueHistogram)) -> Result<()> {
    before.1.span += change.span;
    before.1.counts.iter_mut().zip(change.counts).for_each(|(sum, count)| *sum += count);
    before.2 = in_flight;
    before.3.add(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::sleep;

    #[tokio::test(start_paused = true)]
    async fn a_long_course_keeps_its_sums_in_few_samples() {
        let meter = LiveCounters::default();
        meter.characters.fetch_add(5, Relaxed);
        let mut course = Timeline::begin(&meter).unwrap();
        for _ in 0..1000 {
            sleep(Duration::from_millis(250)).await;
            meter.characters.fetch_add(3, Relaxed);
            meter.started.fetch_add(1, Relaxed);
            meter.finished.fetch_add(1, Relaxed);
            meter.first(Duration::from_millis(7));
            course.look(&meter).unwrap();
        }
        course.close(&meter).unwrap();
        let samples = course.told();
        assert!(samples.len() <= MOST_SAMPLES, "{}", samples.len());
        assert_eq!(samples.iter().map(|sample| sample.characters).sum::<u64>(), 3000);
        assert_eq!(samples.iter().map(|sample| sample.span_ns).sum::<u64>(), 250_000_000_000);
        let ends = samples.windows(2).all(|pair| pair[0].at_ns + pair[0].span_ns == pair[1].at_ns);
        assert!(ends && samples[3].time_to_first_char_p50_ns.is_some_and(|ns| (ns / 7e6 - 1.0).abs() < 1e-3));
    }
}
