//! What one engine tells. Its series were looked up when its model was loaded: what is done here once a character or a step
//! allocates nothing.

use super::{
    CODES, REASONS, Series,
    ledger::{Layer, Ledger, Slice, Time, Window},
    lock,
};
use crate::{
    decode::{
        options::FinishReason,
        summary::{EncodedDocument, SummaryResult},
        usage::{self, Timing},
    },
    engine::{
        Counters, Handle,
        cache::{DocumentCacheUsage, SegmentCacheUsage},
        observer::Observer,
    },
    error::Error,
};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// What one engine tells, and what of its own count has been read.
pub struct Meter {
    series: Arc<Series>,
    /// Off while the engine warms up.
    counts: AtomicBool,
    read: Mutex<Counted>,
    /// What latency reports are made of.
    ledger: Ledger,
}

/// What an engine counts by itself.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    steps: Counters,
    cache: SegmentCacheUsage,
    documents: DocumentCacheUsage,
}

impl Counted {
    fn by(engine: &Handle) -> Self {
        Self { steps: engine.counters(), cache: engine.segment_cache_usage(), documents: engine.document_cache_usage() }
    }
}

impl Meter {
    pub(super) fn new(series: Arc<Series>) -> Self {
        Self { series, counts: AtomicBool::new(false), read: Mutex::default(), ledger: Ledger::new(Instant::now()) }
    }

    /// Whether it tells of that model.
    pub(super) fn is_of(&self, series: &Arc<Series>) -> bool {
        Arc::ptr_eq(&self.series, series)
    }

    /// From now on what the engine does counts.
    pub fn begin(&self, engine: &Handle) {
        *lock(&self.read) = Counted::by(engine);
        self.ledger.begin(Instant::now());
        self.counts.store(true, Relaxed);
    }

    /// What a latency report of this engine is made of, and how long its window was.
    pub fn report(&self, window: Window) -> (Slice, Duration) {
        self.ledger.read(window, Instant::now())
    }

    /// From now on counts what reports tell since the last reset.
    pub fn reset(&self) {
        self.ledger.reset(Instant::now());
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
        self.ledger.note_at(Instant::now(), |slice| {
            slice.sums.steps += u64::from(rows > 0);
            slice.sums.rows += rows as u64;
            slice.sums.middle_steps += u64::from(middle > 0);
            slice.sums.middle_rows += middle as u64;
        });
    }

    fn queued(&self, waited: Duration) {
        if self.counts.load(Relaxed) {
            self.series.queue[0].observe(waited.as_secs_f64());
            self.ledger.note(|slice| slice.note(Time::Queue, waited));
        }
    }

    fn first_char(&self, after: Duration) {
        if self.counts.load(Relaxed) {
            self.series.first_char[0].observe(after.as_secs_f64());
            self.ledger.note(|slice| slice.note(Time::First, after));
        }
    }

    fn gap(&self, gap: Duration, boundary: bool) {
        if self.counts.load(Relaxed) {
            self.series.gap[usize::from(boundary)].observe(gap.as_secs_f64());
            let time = if boundary { Time::BoundaryGap } else { Time::PlainGap };
            self.ledger.note(|slice| slice.note(time, gap));
        }
    }

    fn segment(&self, took: Duration) {
        if self.counts.load(Relaxed) {
            self.ledger.note(|slice| slice.note(Time::Segment, took));
        }
    }

    fn middle(&self, run: usize, skipped: usize) {
        if self.counts.load(Relaxed) {
            self.ledger.note(|slice| {
                slice.sums.middle_run += run as u64;
                slice.sums.middle_skipped += skipped as u64;
            });
        }
    }

    fn cache_lookup(&self, symbols: usize, found: usize, bytes: usize) {
        if self.counts.load(Relaxed) {
            self.ledger.note(|slice| {
                let sums = &mut slice.sums;
                *(if found > 0 { &mut sums.hits } else { &mut sums.misses }) += 1;
                sums.looked_up += symbols as u64;
                sums.found += found as u64;
                sums.shared_bytes += bytes as u64;
            });
        }
    }

    fn summarized(&self, summary: &SummaryResult, document: &EncodedDocument, again: bool) {
        if self.counts.load(Relaxed) {
            self.ledger.note(|slice| summarized(slice, summary, document, again));
        }
    }

    fn finished(&self, outcome: Result<&FinishReason, &Error>, usage: &usage::Usage, timing: &Timing) {
        if !self.counts.load(Relaxed) {
            return;
        }
        let series = &*self.series;
        series.totals.finished(outcome.is_ok(), timing);
        let seconds = |nanoseconds: u64| Duration::from_nanos(nanoseconds).as_secs_f64();
        self.ledger.note_at(Instant::now(), |slice| finished(slice, outcome, usage, timing));
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
                if *reason != FinishReason::End {
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

/// Notes a request's end for latency reports.
fn finished(slice: &mut Slice, outcome: Result<&FinishReason, &Error>, usage: &usage::Usage, timing: &Timing) {
    if outcome.is_err() {
        slice.sums.failed += 1;
        return;
    }
    let sums = &mut slice.sums;
    sums.requests += 1;
    sums.prompt_chars += usage.prompt_chars as u64;
    sums.cached_chars += usage.cached_chars as u64;
    sums.generated_chars += usage.generated_chars as u64;
    sums.prefill_ns += timing.prefill_ns;
    if let Some(unpooled) = timing.unpooled {
        sums.estimated += 1;
        sums.measured_prefill_ns += timing.prefill_ns;
        sums.unpooled_prefill_ns += unpooled.prefill_ns;
        sums.measured_decode_ns += timing.decode_ns;
        sums.unpooled_decode_ns += unpooled.decode_ns;
    }
    slice.note(Time::Prefill, Duration::from_nanos(timing.prefill_ns));
    slice.note(Time::Total, Duration::from_nanos(timing.total_ns));
    if usage.generated_chars > 0 {
        slice.note(Time::Decode, Duration::from_nanos(timing.decode_ns));
    }
}

/// Notes what a summary has beside that.
fn summarized(slice: &mut Slice, summary: &SummaryResult, document: &EncodedDocument, again: bool) {
    let SummaryResult { usage, timing, waits, .. } = summary;
    if again {
        slice.sums.cached_documents += 1;
    } else {
        slice.note(Time::Upload, Duration::from_nanos(waits.arrival_ns));
        let layers = document.layers.iter().map(|layer| Layer { vectors: layer.length as u64, took_ns: layer.ns });
        let encode: u64 = layers.clone().map(|layer| layer.took_ns).sum();
        slice.note(Time::Encode, Duration::from_nanos(encode.saturating_add(document.memory_ns)));
        slice.encoded(layers);
    }
    slice.sums.memory_bytes += document.bytes as u64;
    slice.sums.unpooled_memory_bytes += document.unpooled_bytes as u64;
    if let Some(each) = timing.decode_ns.checked_div((usage.generated_chars as u64).saturating_sub(1)) {
        slice.note(Time::TokenDecode, Duration::from_nanos(each));
    }
}

/// Where a reason stands in [`REASONS`].
fn index(reason: &FinishReason) -> usize {
    REASONS.iter().position(|other| other.name() == reason.name()).unwrap_or_default()
}
