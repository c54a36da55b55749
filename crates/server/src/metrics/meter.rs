//! Observes one engine. Its series were looked up when its model was loaded, so updates allocate nothing.

use crate::metrics::{
    latency_windows::{LatencyPeriod, LatencySlice, LatencyWindows},
    series::{CODES, LevelFamilies, REASONS, Series},
};
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use weir_engine::{
    Counters, Handle,
    cache::{DocumentCacheUsage, SegmentCacheUsage},
    clock,
    observer::{EngineEvent, Observer},
    options::FinishReason,
};
use weir_kernels::error::Error;
use weir_models::usage::{Timing, Usage};

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Observes one engine and records its metrics.
pub struct Meter {
    model: String,
    pub(super) series: Arc<Series>,
    levels: LevelFamilies,
    /// False while the engine warms up.
    enabled: AtomicBool,
    /// The engine's counters at the last scrape.
    last: Mutex<EngineCounters>,
    latency: Mutex<LatencyWindows>,
}

/// Counters that an engine keeps itself.
#[derive(Debug, Clone, Copy, Default)]
struct EngineCounters {
    steps: Counters,
    cache: SegmentCacheUsage,
    documents: DocumentCacheUsage,
}

impl EngineCounters {
    fn read(engine: &Handle) -> Self {
        Self { steps: engine.counters(), cache: engine.segment_cache_usage(), documents: engine.document_cache_usage() }
    }
}

impl Meter {
    pub(super) fn new(model: &str, series: Arc<Series>, levels: LevelFamilies) -> Self {
        Self {
            model: model.to_owned(),
            series,
            levels,
            enabled: AtomicBool::new(false),
            last: Mutex::default(),
            latency: Mutex::new(LatencyWindows::new(clock::now())),
        }
    }

    /// Locks the latency data; `None` while the engine warms up.
    fn latency(&self) -> Option<MutexGuard<'_, LatencyWindows>> {
        self.enabled.load(Relaxed).then(|| lock(&self.latency))
    }

    /// Starts recording, after the engine's warm-up.
    pub fn begin(&self, engine: &Handle) {
        *lock(&self.last) = EngineCounters::read(engine);
        *lock(&self.latency) = LatencyWindows::new(clock::now());
        self.enabled.store(true, Relaxed);
    }

    /// Returns the data of a latency report, and the length of its period.
    pub fn report(&self, period: LatencyPeriod) -> (LatencySlice, Duration) {
        let (slices, length) = lock(&self.latency).slices(period, clock::now());
        (LatencySlice::sum(&slices), length)
    }

    /// Starts the period since the last reset.
    pub fn reset(&self) {
        lock(&self.latency).reset(clock::now());
    }

    /// Adds the increase of the engine's counters since the last scrape.
    pub fn catch_up(&self, engine: &Handle) {
        let mut last = lock(&self.last);
        let now = EngineCounters::read(engine);
        let series = &*self.series;
        let EngineCounters { steps, cache, documents } = now;
        let counters = [
            (&series.preemptions[0], steps.preemptions, last.steps.preemptions),
            (&series.restarts[0], steps.restarts, last.steps.restarts),
            (&series.prompt_chars[0], steps.prefill_chars, last.steps.prefill_chars),
            (&series.generated_chars[0], steps.generated_chars, last.steps.generated_chars),
            (&series.middle_run[0], steps.middle_run, last.steps.middle_run),
            (&series.middle_skipped[0], steps.middle_skipped, last.steps.middle_skipped),
            (&series.lookups[0], cache.hits, last.cache.hits),
            (&series.lookups[1], cache.misses, last.cache.misses),
            (&series.cache_queries[0], cache.lookup_symbols, last.cache.lookup_symbols),
            (&series.cache_hits[0], cache.hit_symbols, last.cache.hit_symbols),
            (&series.hit_bytes[0], cache.hit_bytes, last.cache.hit_bytes),
            (&series.evictions[0], cache.evictions, last.cache.evictions),
            (&series.document_lookups[0], documents.hits, last.documents.hits),
            (&series.document_lookups[1], documents.misses, last.documents.misses),
            (&series.document_evictions[0], documents.evictions, last.documents.evictions),
        ];
        for (series, now, last) in counters {
            series.inc_by(now.saturating_sub(last));
        }
        *last = now;
    }

    /// Counts an event of an editing session.
    pub(crate) fn edit(&self, event: EditEvent) {
        self.series.edits[event as usize].inc();
    }

    /// Counts a session whose document was opened.
    pub(crate) fn edit_session_opened(&self) {
        self.series.edit_sessions[0].inc();
    }

    /// Counts the end of such a session.
    pub(crate) fn edit_session_closed(&self) {
        self.series.edit_sessions[0].dec();
    }
}

impl Observer for Meter {
    fn record(&self, event: EngineEvent<'_>) {
        let Some(mut latency) = self.latency() else { return };
        latency.record(&event);
        drop(latency);
        let series = &*self.series;
        match event {
            EngineEvent::Step { rows, fed, middle } => {
                lock(&series.totals).steps += 1;
                if rows > 0 {
                    series.step_rows[0].observe(rows as f64);
                    series.step_chars[0].observe(fed as f64);
                }
                if middle > 0 {
                    series.middle_rows[0].observe(middle as f64);
                }
            }
            EngineEvent::Admitted(waited) => series.queue[0].observe(waited.as_secs_f64()),
            EngineEvent::FirstChar(after) => series.first_char[0].observe(after.as_secs_f64()),
            EngineEvent::Gap { gap, boundary } => series.gap[usize::from(boundary)].observe(gap.as_secs_f64()),
            EngineEvent::Finished { outcome, usage, timing } => self.finished(outcome, usage, timing),
            // The engine's totals, and those of its caches, are read on each scrape. Summaries are in reports only.
            _ => {}
        }
    }
}

impl Meter {
    fn finished(&self, outcome: Result<&FinishReason, &Error>, usage: &Usage, timing: &Timing) {
        let series = &*self.series;
        lock(&series.totals).add_finished(outcome.is_ok(), timing);
        let seconds = |nanoseconds: u64| Duration::from_nanos(nanoseconds).as_secs_f64();
        series.total[0].observe(seconds(timing.total_ns));
        if usage.resumed_chars > 0 {
            series.resumed[0].inc();
            series.resumed_chars[0].inc_by(usage.resumed_chars as u64);
        }
        series.drafted[0].inc_by(usage.drafted_chars as u64);
        series.accepted[0].inc_by(usage.accepted_chars as u64);
        if timing.steps > 0 {
            series.inference[0].observe(seconds(timing.total_ns.saturating_sub(timing.queue_ns)));
        }
        match outcome {
            Err(error) => {
                series.failure[CODES.iter().position(|code| *code == error.code()).unwrap_or_default()].inc();
            }
            Ok(reason) => {
                series.success[index(reason)].inc();
                self.levels.count(&self.model, usage, timing);
                series.prefill[0].observe(seconds(timing.prefill_ns));
                series.prompt[0].observe(usage.prompt_chars as f64);
                if *reason != FinishReason::End {
                    series.decode[0].observe(seconds(timing.decode_ns));
                    series.generation[0].observe(usage.sampled_chars() as f64);
                }
                if let Some(factor) = usage.shortening_factor() {
                    series.request_shortening[0].observe(factor);
                }
            }
        }
    }
}

fn index(reason: &FinishReason) -> usize {
    REASONS.iter().position(|other| other.name() == reason.name()).unwrap_or_default()
}

/// An event of an editing session, in the order of the label's values in `series`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum EditEvent {
    /// A change of the text was applied.
    Splice,
    /// Completions were found.
    Completion,
    /// A range was scored.
    Score,
    /// A change overtook a request.
    Stale,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::series::{CountAndTime, RequestTotals};

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
