//! Observes one engine. Its series were looked up when its model was loaded, so updates allocate nothing.

use crate::metrics::{
    latency_windows::{LatencyPeriod, LatencySlice, LatencyWindows},
    series::{CODES, LevelFamilies, REASONS, Series},
};
use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use weir_engine::{
    clock,
    observer::{EngineEvent, Observer},
    options::FinishReason,
};
use weir_kernels::{error::Error, sync::lock};
use weir_models::usage::{Timing, Usage};

/// Observes one engine and records its metrics.
pub struct Meter {
    model: String,
    pub(super) series: Arc<Series>,
    levels: LevelFamilies,
    /// False while the engine warms up.
    enabled: AtomicBool,
    latency: Mutex<LatencyWindows>,
}

impl Meter {
    pub(super) fn new(model: &str, series: Arc<Series>, levels: LevelFamilies) -> Self {
        Self {
            model: model.to_owned(),
            series,
            levels,
            enabled: AtomicBool::new(false),
            latency: Mutex::new(LatencyWindows::new(clock::now())),
        }
    }

    /// Locks the latency data; `None` while the engine warms up.
    fn latency(&self) -> Option<MutexGuard<'_, LatencyWindows>> {
        self.enabled.load(Relaxed).then(|| lock(&self.latency))
    }

    /// Starts recording, after the engine's warm-up.
    pub fn begin(&self) {
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
            EngineEvent::Fed(fed) => {
                series.prompt_chars[0].inc_by(fed.prompt as u64);
                series.generated_chars[0].inc_by(fed.generated as u64);
                series.middle_run[0].inc_by(fed.middle_run as u64);
                series.middle_skipped[0].inc_by(fed.middle_skipped as u64);
            }
            EngineEvent::CacheLookup { symbols, found, bytes } => {
                if symbols > 0 {
                    series.lookups[usize::from(found == 0)].inc();
                }
                series.cache_queries[0].inc_by(symbols as u64);
                series.cache_hits[0].inc_by(found as u64);
                series.hit_bytes[0].inc_by(bytes as u64);
            }
            EngineEvent::CacheEvicted(entries) => _ = series.evictions[0].inc_by(entries),
            EngineEvent::DocumentLookup { found } => _ = series.document_lookups[usize::from(!found)].inc(),
            EngineEvent::DocumentEvicted => _ = series.document_evictions[0].inc(),
            EngineEvent::Preempted => _ = series.preemptions[0].inc(),
            EngineEvent::Restarted => _ = series.restarts[0].inc(),
            // these are in reports only
            EngineEvent::Accepted | EngineEvent::Segment(_) | EngineEvent::Summarized { .. } => {}
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
