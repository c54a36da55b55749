//! What one engine tells. Its series were looked up when its model was loaded: what is done here once a character or a step
//! allocates nothing.

use super::{CODES, REASONS, Series, lock};
use crate::{
    decode::options::{self, Reason, Timing},
    engine::{cache::Usage, handle::Handle, observer::Observer, shelf, tally::Counters},
    error::Error,
};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

/// What one engine tells, and what of its own count has been read.
pub struct Meter {
    series: Arc<Series>,
    /// Off while the engine warms up.
    counts: AtomicBool,
    read: Mutex<Counted>,
}

/// What an engine counts by itself.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    steps: Counters,
    cache: Usage,
    documents: shelf::Usage,
}

impl Counted {
    fn by(engine: &Handle) -> Self {
        Self { steps: engine.counters(), cache: engine.cache(), documents: engine.documents() }
    }
}

impl Meter {
    pub(super) fn new(series: Arc<Series>) -> Self {
        Self { series, counts: AtomicBool::new(false), read: Mutex::default() }
    }

    /// Whether it tells of that model.
    pub(super) fn is_of(&self, series: &Arc<Series>) -> bool {
        Arc::ptr_eq(&self.series, series)
    }

    /// From now on what the engine does counts.
    pub fn begin(&self, engine: &Handle) {
        *lock(&self.read) = Counted::by(engine);
        self.counts.store(true, Relaxed);
    }

    /// Adds what the engine has counted since it was last read.
    pub fn catch_up(&self, engine: &Handle) {
        let mut read = lock(&self.read);
        let (now, series) = (Counted::by(engine), &*self.series);
        let (Counted { steps, cache, documents }, then) = (now, *read);
        let counted = [
            (&series.preemptions[0], steps.preemptions, then.steps.preemptions),
            (&series.prompt_chars[0], steps.prefill_chars, then.steps.prefill_chars),
            (&series.generated_chars[0], steps.generated_chars, then.steps.generated_chars),
            (&series.middle_run[0], steps.middle_run, then.steps.middle_run),
            (&series.middle_skipped[0], steps.middle_skipped, then.steps.middle_skipped),
            (&series.lookups[0], cache.hits, then.cache.hits),
            (&series.lookups[1], cache.misses, then.cache.misses),
            (&series.cache_queries[0], cache.lookup_symbols, then.cache.lookup_symbols),
            (&series.cache_hits[0], cache.hit_symbols, then.cache.hit_symbols),
            (&series.hit_bytes[0], cache.hit_bytes, then.cache.hit_bytes),
            (&series.evictions[0], cache.evictions, then.cache.evictions),
            (&series.document_lookups[0], documents.hits, then.documents.hits),
            (&series.document_lookups[1], documents.misses, then.documents.misses),
            (&series.document_evictions[0], documents.evictions, then.documents.evictions),
        ];
        for (series, now, then) in counted {
            series.inc_by(now.saturating_sub(then));
        }
        *read = now;
    }
}

impl Observer for Meter {
    fn step(&self, rows: usize, fed: usize, middle: usize) {
        if !self.counts.load(Relaxed) {
            return;
        }
        self.series.totals.step();
        if rows > 0 {
            self.series.step_rows[0].observe(rows as f64);
            self.series.step_chars[0].observe(fed as f64);
        }
        if middle > 0 {
            self.series.middle_rows[0].observe(middle as f64);
        }
    }

    fn queued(&self, waited: Duration) {
        if self.counts.load(Relaxed) {
            self.series.queue[0].observe(waited.as_secs_f64());
        }
    }

    fn first_char(&self, after: Duration) {
        if self.counts.load(Relaxed) {
            self.series.first_char[0].observe(after.as_secs_f64());
        }
    }

    fn gap(&self, gap: Duration, boundary: bool) {
        if self.counts.load(Relaxed) {
            self.series.gap[usize::from(boundary)].observe(gap.as_secs_f64());
        }
    }

    fn finished(&self, outcome: Result<&Reason, &Error>, usage: &options::Usage, timing: &Timing) {
        if !self.counts.load(Relaxed) {
            return;
        }
        let series = &*self.series;
        series.totals.finished(outcome.is_ok(), timing);
        let seconds = |nanoseconds: u64| Duration::from_nanos(nanoseconds).as_secs_f64();
        series.total[0].observe(seconds(timing.total_ns));
        if timing.steps > 0 {
            series.inference[0].observe(seconds(timing.total_ns.saturating_sub(timing.queue_ns)));
        }
        match outcome {
            Err(error) => {
                series.failure[CODES.iter().position(|code| *code == error.code()).unwrap_or_default()].inc();
            }
            Ok(reason) => {
                series.success[index(reason)].inc();
                series.prefill[0].observe(seconds(timing.prefill_ns));
                series.prompt[0].observe(usage.prompt_chars as f64);
                if *reason != Reason::End {
                    series.decode[0].observe(seconds(timing.decode_ns));
                    series.generation[0].observe(usage.generated_chars as f64);
                }
                if let Some(factor) = usage.shortening_factor() {
                    series.request_shortening[0].observe(factor);
                }
            }
        }
    }
}

/// Where a reason stands in [`REASONS`].
fn index(reason: &Reason) -> usize {
    REASONS.iter().position(|other| other.name() == reason.name()).unwrap_or_default()
}
