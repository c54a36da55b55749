//! Observes one engine. Its series were looked up when its model was loaded, so updates allocate nothing.

use super::{
    latency_windows::{LatencyKind, LatencyPeriod, LatencySlice, LatencyWindows, LayerTotals},
    levels::LevelFamilies,
    series::{CODES, REASONS, Series},
};
use crate::{
    decode::{
        options::FinishReason,
        summary::{EncodedDocument, SummaryResult},
        usage::{Timing, Usage},
    },
    engine::{
        Counters, Handle,
        cache::{DocumentCacheUsage, SegmentCacheUsage},
        clock,
        observer::Observer,
    },
    error::Error,
};
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

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
}

impl Observer for Meter {
    fn step(&self, rows: usize, fed: usize, middle: usize) {
        let Some(mut latency) = self.latency() else { return };
        let counts = &mut latency.open_at(clock::now()).counts;
        counts.steps += u64::from(rows > 0);
        counts.rows += rows as u64;
        counts.middle_steps += u64::from(middle > 0);
        counts.middle_rows += middle as u64;
        drop(latency);
        lock(&self.series.totals).steps += 1;
        if rows > 0 {
            self.series.step_rows[0].observe(rows as f64);
            self.series.step_chars[0].observe(fed as f64);
        }
        if middle > 0 {
            self.series.middle_rows[0].observe(middle as f64);
        }
    }

    fn queued(&self, waited: Duration) {
        if let Some(mut latency) = self.latency() {
            latency.open.record(LatencyKind::Queue, waited);
            drop(latency);
            self.series.queue[0].observe(waited.as_secs_f64());
        }
    }

    fn first_char(&self, after: Duration) {
        if let Some(mut latency) = self.latency() {
            latency.open.record(LatencyKind::First, after);
            drop(latency);
            self.series.first_char[0].observe(after.as_secs_f64());
        }
    }

    fn gap(&self, gap: Duration, boundary: bool) {
        if let Some(mut latency) = self.latency() {
            latency.open.record(if boundary { LatencyKind::BoundaryGap } else { LatencyKind::PlainGap }, gap);
            drop(latency);
            self.series.gap[usize::from(boundary)].observe(gap.as_secs_f64());
        }
    }

    fn segment(&self, took: Duration) {
        if let Some(mut latency) = self.latency() {
            latency.open.record(LatencyKind::Segment, took);
        }
    }

    fn middle(&self, run: usize, skipped: usize) {
        if let Some(mut latency) = self.latency() {
            latency.open.counts.middle_run += run as u64;
            latency.open.counts.middle_skipped += skipped as u64;
        }
    }

    fn cache_lookup(&self, symbols: usize, found: usize, bytes: usize) {
        if let Some(mut latency) = self.latency() {
            let counts = &mut latency.open.counts;
            *(if found > 0 { &mut counts.hits } else { &mut counts.misses }) += 1;
            counts.looked_up += symbols as u64;
            counts.found += found as u64;
            counts.shared_bytes += bytes as u64;
        }
    }

    fn summarized(&self, summary: &SummaryResult, document: &EncodedDocument, again: bool) {
        if let Some(mut latency) = self.latency() {
            summarized(&mut latency.open, summary, document, again);
        }
    }

    fn finished(&self, outcome: Result<&FinishReason, &Error>, usage: &Usage, timing: &Timing) {
        let Some(mut latency) = self.latency() else { return };
        finished(latency.open_at(clock::now()), outcome, usage, timing);
        drop(latency);
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

/// Records a finished request for latency reports.
fn finished(slice: &mut LatencySlice, outcome: Result<&FinishReason, &Error>, usage: &Usage, timing: &Timing) {
    if outcome.is_err() {
        slice.counts.failed += 1;
        return;
    }
    let counts = &mut slice.counts;
    counts.requests += 1;
    counts.prompt_chars += usage.prompt_chars as u64;
    counts.cached_chars += usage.cached_chars as u64;
    counts.generated_chars += usage.sampled_chars() as u64;
    counts.prefill_ns += timing.prefill_ns;
    if !usage.levels.nested().is_empty() {
        counts.nested_chars += (usage.prompt_chars + usage.generated_chars) as u64;
        slice.chunks += usage.levels;
        slice.level_steps += timing.level_steps;
    }
    let counts = &mut slice.counts;
    if let Some(unpooled) = timing.unpooled {
        counts.estimated += 1;
        counts.measured_prefill_ns += timing.prefill_ns;
        counts.unpooled_prefill_ns += unpooled.prefill_ns;
        counts.measured_decode_ns += timing.decode_ns;
        counts.unpooled_decode_ns += unpooled.decode_ns;
    }
    slice.record(LatencyKind::Prefill, Duration::from_nanos(timing.prefill_ns));
    slice.record(LatencyKind::Total, Duration::from_nanos(timing.total_ns));
    if usage.generated_chars > 0 {
        slice.record(LatencyKind::Decode, Duration::from_nanos(timing.decode_ns));
    }
}

/// Records the additional data of a finished summary. `is_cached` is true if its document was cached.
fn summarized(slice: &mut LatencySlice, summary: &SummaryResult, document: &EncodedDocument, is_cached: bool) {
    let SummaryResult { usage, timing, waits, .. } = summary;
    if is_cached {
        slice.counts.cached_documents += 1;
    } else {
        slice.record(LatencyKind::Upload, Duration::from_nanos(waits.arrival_ns));
        slice.record(LatencyKind::Encode, Duration::from_nanos(document.encode_ns()));
        slice.add_layers(
            document.layers.iter().map(|layer| LayerTotals { vectors: layer.length as u64, took_ns: layer.ns }),
        );
    }
    if let Some(share) = document.kept_share() {
        slice.record_kept_share(share);
    }
    slice.counts.memory_bytes += document.bytes as u64;
    slice.counts.unpooled_memory_bytes += document.unpooled_bytes as u64;
    if let Some(each) = timing.decode_ns.checked_div((usage.generated_chars as u64).saturating_sub(1)) {
        slice.record(LatencyKind::TokenDecode, Duration::from_nanos(each));
    }
}

fn index(reason: &FinishReason) -> usize {
    REASONS.iter().position(|other| other.name() == reason.name()).unwrap_or_default()
}
