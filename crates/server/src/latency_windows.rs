//! The data of latency reports: times and counts of one engine, in slices of ten seconds.
//!
//! The latest slices are kept one by one. All slices are summed since the model was loaded and since the last reset. The
//! engine's thread records into the open slice, once a character.

use hdrhistogram::Histogram;
use std::collections::VecDeque;
use std::ops::AddAssign;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_engine::clock;
use weir_engine::observer::EngineEvent;
use weir_engine::options::FinishReason;
use weir_engine::summary::{EncodedDocument, SummaryResult};
use weir_kernels::error::Error;
use weir_models::usage::{LevelCounts, Timing, Usage};

const SLICE_LENGTH: Duration = Duration::from_secs(10);

/// Number of closed slices kept: one minute.
const KEPT_SLICES: usize = 6;

/// Significant decimal digits of a histogram's values.
const DIGITS: u8 = 2;

/// Units of a kept share of 1.
pub(crate) const SHARE_UNITS: f64 = 1e6;

/// A time with a histogram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LatencyKind {
    /// Time from arrival to the first character, or token.
    First,
    /// Time from a character that ends no segment to the next.
    PlainGap,
    /// Time from a character that ends a segment to the next.
    BoundaryGap,
    Segment,
    /// Time from arrival to admission.
    Queue,
    /// Time from admission to the first logits after the prompt.
    Prefill,
    /// Time from the first character, or token, to the last.
    Decode,
    TokenDecode,
    /// Time from arrival to the end.
    Total,
    Upload,
    Encode,
}

const KINDS: usize = LatencyKind::Encode as usize + 1;

macro_rules! report_counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct ReportCounts { $($(#[$doc])* pub $name: u64,)* }

        impl AddAssign for ReportCounts {
            fn add_assign(&mut self, other: Self) {
                $(self.$name = self.$name.saturating_add(other.$name);)*
            }
        }
    };
}

report_counts! {
    /// Completed requests.
    requests,
    failed,
    prompt_chars,
    /// Prompt symbols that came from the segment cache.
    cached_chars,
    generated_chars,
    prefill_ns,
    /// Symbols of requests with several levels of chunking.
    nested_chars,
    middle_run,
    /// Runs of the middle layers that pooling saved.
    middle_skipped,
    /// Symbol steps.
    steps,
    /// Rows of symbol steps.
    rows,
    /// Segment steps.
    middle_steps,
    /// Rows of segment steps.
    middle_rows,
    /// Requests with an estimated time without pooling.
    estimated,
    /// Prefill time of these, in nanoseconds.
    measured_prefill_ns,
    /// Their estimated prefill time without pooling.
    unpooled_prefill_ns,
    /// Decode time of these, in nanoseconds.
    measured_decode_ns,
    /// Their estimated decode time without pooling.
    unpooled_decode_ns,
    /// Segment-cache hits.
    hits,
    misses,
    looked_up,
    found,
    /// Bytes of the pages found.
    shared_bytes,
    cached_documents,
    /// Bytes that decoders attended to.
    memory_bytes,
    /// Bytes that decoders would attend to without pooling.
    unpooled_memory_bytes,
}

/// Input size and time of an encoder layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LayerTotals {
    pub vectors: u64,
    pub took_ns: u64,
}

#[derive(Debug, Clone, Default)]
pub struct LatencySlice {
    pub counts: ReportCounts,
    /// Chunks of requests with several levels of chunking, by level.
    pub chunks: LevelCounts,
    /// Segment steps of these, by level.
    pub level_steps: LevelCounts,
    /// Encoder layers, in order.
    pub layers: Vec<LayerTotals>,
    /// Histograms by [`LatencyKind`]; none without values.
    times: [Option<Histogram<u64>>; KINDS],
    /// Kept shares of documents, in units of 1 / [`SHARE_UNITS`]; none without documents.
    kept_shares: Option<Histogram<u64>>,
}

impl LatencySlice {
    fn record(&mut self, kind: LatencyKind, took: Duration) {
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        record_value(&mut self.times[kind as usize], nanoseconds);
    }

    /// Records a finished request for latency reports.
    fn finished(&mut self, outcome: Result<&FinishReason, &Error>, usage: &Usage, timing: &Timing) {
        if outcome.is_err() {
            self.counts.failed += 1;
            return;
        }
        let counts = &mut self.counts;
        counts.requests += 1;
        counts.prompt_chars += usage.prompt_chars as u64;
        counts.cached_chars += usage.cached_chars as u64;
        counts.generated_chars += usage.sampled_chars() as u64;
        counts.prefill_ns += timing.prefill_ns;
        if !usage.levels.nested().is_empty() {
            counts.nested_chars += (usage.prompt_chars + usage.generated_chars) as u64;
            self.chunks += usage.levels;
            self.level_steps += timing.level_steps;
        }
        let counts = &mut self.counts;
        if let Some(unpooled) = timing.unpooled {
            counts.estimated += 1;
            counts.measured_prefill_ns += timing.prefill_ns;
            counts.unpooled_prefill_ns += unpooled.prefill_ns;
            counts.measured_decode_ns += timing.decode_ns;
            counts.unpooled_decode_ns += unpooled.decode_ns;
        }
        self.record(LatencyKind::Prefill, Duration::from_nanos(timing.prefill_ns));
        self.record(LatencyKind::Total, Duration::from_nanos(timing.total_ns));
        if usage.generated_chars > 0 {
            self.record(LatencyKind::Decode, Duration::from_nanos(timing.decode_ns));
        }
    }

    /// Records the additional data of a finished summary. `is_cached` is true if its document was cached.
    fn summarized(&mut self, summary: &SummaryResult, document: &EncodedDocument, is_cached: bool) {
        let SummaryResult { usage, timing, waits, .. } = summary;
        if is_cached {
            self.counts.cached_documents += 1;
        } else {
            self.record(LatencyKind::Upload, Duration::from_nanos(waits.arrival_ns));
            self.record(LatencyKind::Encode, Duration::from_nanos(document.encode_ns()));
            self.add_layers(
                document.layers.iter().map(|layer| LayerTotals { vectors: layer.length as u64, took_ns: layer.ns }),
            );
        }
        if let Some(share) = document.kept_share() {
            self.record_kept_share(share);
        }
        self.counts.memory_bytes += document.bytes as u64;
        self.counts.unpooled_memory_bytes += document.unpooled_bytes as u64;
        if let Some(each) = timing.decode_ns.checked_div((usage.generated_chars as u64).saturating_sub(1)) {
            self.record(LatencyKind::TokenDecode, Duration::from_nanos(each));
        }
    }

    /// Records the share of a document's tokens that its poolings kept, 0 to 1.
    fn record_kept_share(&mut self, share: f64) {
        record_value(&mut self.kept_shares, (share * SHARE_UNITS) as u64);
    }

    /// Returns the histogram of kept shares, in units of 1 / [`SHARE_UNITS`], if it has values.
    pub fn kept_shares(&self) -> Option<&Histogram<u64>> {
        self.kept_shares.as_ref()
    }

    fn add_layers(&mut self, layers: impl Iterator<Item = LayerTotals>) {
        for (index, layer) in layers.enumerate() {
            if self.layers.len() <= index {
                self.layers.push(LayerTotals::default());
            }
            let sum = &mut self.layers[index];
            sum.vectors = sum.vectors.saturating_add(layer.vectors);
            sum.took_ns = sum.took_ns.saturating_add(layer.took_ns);
        }
    }

    /// Returns the histogram of a time, in nanoseconds, if it has values.
    pub fn times(&self, kind: LatencyKind) -> Option<&Histogram<u64>> {
        self.times[kind as usize].as_ref()
    }

    pub(super) fn sum(slices: &[Arc<Self>]) -> Self {
        let mut sum = Self::default();
        slices.iter().for_each(|slice| sum.add(slice));
        sum
    }

    fn add(&mut self, other: &Self) {
        self.counts += other.counts;
        self.chunks += other.chunks;
        self.level_steps += other.level_steps;
        self.add_layers(other.layers.iter().copied());
        self.times.iter_mut().zip(&other.times).for_each(|(own, other)| add_values(own, other));
        add_values(&mut self.kept_shares, &other.kept_shares);
    }
}

fn record_value(histogram: &mut Option<Histogram<u64>>, value: u64) {
    if histogram.is_none() {
        // fails only for more digits than it supports
        *histogram = Histogram::new(DIGITS).ok();
    }
    if let Some(histogram) = histogram {
        // a growing histogram accepts every value
        let _ = histogram.record(value.max(1));
    }
}

fn add_values(own: &mut Option<Histogram<u64>>, other: &Option<Histogram<u64>>) {
    match (own.as_mut(), other) {
        (_, None) => {}
        (None, Some(other)) => *own = Some(other.clone()),
        // never fails: all have the same digits and grow
        (Some(own), Some(other)) => drop(own.add(other)),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LatencyPeriod {
    SinceLoad,
    SinceReset,
    /// The latest seven slices, including the open one.
    LastMinute,
}

#[derive(Debug)]
struct ClosedSlice {
    start: Instant,
    data: Arc<LatencySlice>,
}

#[derive(Debug)]
pub(super) struct LatencyWindows {
    loaded: Instant,
    reset: Instant,
    /// Start of the open slice.
    opened: Instant,
    open: LatencySlice,
    closed: VecDeque<ClosedSlice>,
    since_load: Arc<LatencySlice>,
    since_reset: Arc<LatencySlice>,
}

impl LatencyWindows {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            loaded: now,
            reset: now,
            opened: now,
            open: LatencySlice::default(),
            closed: VecDeque::with_capacity(KEPT_SLICES + 1),
            since_load: Arc::default(),
            since_reset: Arc::default(),
        }
    }

    pub(super) fn record(&mut self, event: &EngineEvent<'_>) {
        match *event {
            EngineEvent::Step { rows, middle, .. } => {
                let counts = &mut self.open_at(clock::now()).counts;
                counts.steps += u64::from(rows > 0);
                counts.rows += rows as u64;
                counts.middle_steps += u64::from(middle > 0);
                counts.middle_rows += middle as u64;
            }
            EngineEvent::Admitted(waited) => self.open.record(LatencyKind::Queue, waited),
            EngineEvent::FirstChar(after) => self.open.record(LatencyKind::First, after),
            EngineEvent::Gap { gap, boundary: true } => self.open.record(LatencyKind::BoundaryGap, gap),
            EngineEvent::Gap { gap, boundary: false } => self.open.record(LatencyKind::PlainGap, gap),
            EngineEvent::Segment(took) => self.open.record(LatencyKind::Segment, took),
            EngineEvent::Fed(fed) => {
                self.open.counts.middle_run += fed.middle_run as u64;
                self.open.counts.middle_skipped += fed.middle_skipped as u64;
            }
            EngineEvent::CacheLookup { symbols, found, bytes } => {
                let counts = &mut self.open.counts;
                *(if found > 0 { &mut counts.hits } else { &mut counts.misses }) += 1;
                counts.looked_up += symbols as u64;
                counts.found += found as u64;
                counts.shared_bytes += bytes as u64;
            }
            EngineEvent::Summarized { summary, document, cached } => {
                self.open.summarized(summary, document, cached);
            }
            EngineEvent::Finished { outcome, usage, timing } => {
                self.open_at(clock::now()).finished(outcome, usage, timing);
            }
            EngineEvent::Accepted
            | EngineEvent::CacheEvicted(_)
            | EngineEvent::DocumentLookup { .. }
            | EngineEvent::DocumentEvicted
            | EngineEvent::Constrained { .. }
            | EngineEvent::Preempted
            | EngineEvent::Restarted => {}
        }
    }

    /// Returns the open slice, after opening a new one if it is over.
    fn open_at(&mut self, now: Instant) -> &mut LatencySlice {
        self.rotate(now, false);
        &mut self.open
    }

    pub(super) fn reset(&mut self, now: Instant) {
        self.rotate(now, true);
        self.reset = now;
        self.since_reset = Arc::default();
    }

    /// Copies the slices of a period, and returns its length. [`LatencySlice::sum`] adds them up without the lock.
    pub(super) fn slices(&mut self, period: LatencyPeriod, now: Instant) -> (Vec<Arc<LatencySlice>>, Duration) {
        self.rotate(now, false);
        let mut slices = vec![Arc::new(self.open.clone())];
        let since = match period {
            LatencyPeriod::SinceLoad => {
                slices.push(Arc::clone(&self.since_load));
                self.loaded
            }
            LatencyPeriod::SinceReset => {
                slices.push(Arc::clone(&self.since_reset));
                self.reset
            }
            LatencyPeriod::LastMinute => {
                slices.extend(self.closed.iter().map(|slice| Arc::clone(&slice.data)));
                let first = self.closed.front().map_or(self.opened, |slice| slice.start);
                // a minute without events also counts
                let minute = now.checked_sub(SLICE_LENGTH * KEPT_SLICES as u32).unwrap_or(first);
                first.min(minute).max(self.loaded)
            }
        };
        (slices, now.saturating_duration_since(since))
    }

    /// Closes the open slice if it is over or `close` is set, and drops expired slices.
    fn rotate(&mut self, now: Instant, close: bool) {
        if close || now.saturating_duration_since(self.opened) >= SLICE_LENGTH {
            let data = std::mem::take(&mut self.open);
            Arc::make_mut(&mut self.since_load).add(&data);
            Arc::make_mut(&mut self.since_reset).add(&data);
            match self.closed.back_mut() {
                // frequent resets must not add more slices than fit in the time
                Some(last) if close && now.saturating_duration_since(last.start) < SLICE_LENGTH => {
                    Arc::make_mut(&mut last.data).add(&data);
                }
                _ => self.closed.push_back(ClosedSlice { start: self.opened, data: Arc::new(data) }),
            }
            self.opened = now;
        }
        let oldest = SLICE_LENGTH * (KEPT_SLICES as u32 + 1);
        while self.closed.front().is_some_and(|slice| now.saturating_duration_since(slice.start) > oldest) {
            self.closed.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(1000);

    fn windows() -> (LatencyWindows, Instant) {
        let start = Instant::now() + START;
        (LatencyWindows::new(start), start)
    }

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    /// Returns requests, median gap in ms (rounded, because a histogram returns a bar's upper end), and length in seconds.
    fn read(windows: &mut LatencyWindows, period: LatencyPeriod, now: Instant) -> (u64, u64, u64) {
        let (slices, length) = windows.slices(period, now);
        let slice = LatencySlice::sum(&slices);
        let gaps = slice.times(LatencyKind::PlainGap);
        let median = gaps.map_or(0, |gaps| (gaps.value_at_quantile(0.5) + 500_000) / 1_000_000);
        (slice.counts.requests, median, length.as_secs())
    }

    fn record(windows: &mut LatencyWindows, now: Instant, milliseconds: u64) {
        let slice = windows.open_at(now);
        slice.counts.requests += 1;
        slice.record(LatencyKind::PlainGap, Duration::from_millis(milliseconds));
    }

    #[test]
    fn periods_contain_what_was_recorded_in_them() {
        let (mut windows, start) = windows();
        record(&mut windows, after(start, 1), 10);
        record(&mut windows, after(start, 15), 10);
        assert_eq!(read(&mut windows, LatencyPeriod::LastMinute, after(start, 20)), (2, 10, 20));
        record(&mut windows, after(start, 70), 40);
        // the first slice is more than a minute old
        assert_eq!(read(&mut windows, LatencyPeriod::LastMinute, after(start, 80)).0, 2);
        assert_eq!(read(&mut windows, LatencyPeriod::LastMinute, after(start, 150)).0, 0);
        assert_eq!(read(&mut windows, LatencyPeriod::SinceLoad, after(start, 150)), (3, 10, 150));
        assert_eq!(read(&mut windows, LatencyPeriod::SinceReset, after(start, 150)), (3, 10, 150));
        let quiet = read(&mut windows, LatencyPeriod::LastMinute, after(start, 500));
        assert_eq!(quiet, (0, 0, 60), "a minute without events");
    }

    #[test]
    fn a_reset_changes_one_period_only() {
        let (mut windows, start) = windows();
        record(&mut windows, after(start, 1), 10);
        windows.reset(after(start, 2));
        assert_eq!(read(&mut windows, LatencyPeriod::SinceReset, after(start, 3)), (0, 0, 1));
        record(&mut windows, after(start, 4), 30);
        assert_eq!(read(&mut windows, LatencyPeriod::SinceReset, after(start, 5)), (1, 30, 3));
        assert_eq!(read(&mut windows, LatencyPeriod::SinceLoad, after(start, 5)).0, 2);
        assert_eq!(read(&mut windows, LatencyPeriod::LastMinute, after(start, 5)).0, 2);
    }

    #[test]
    fn kept_slices_are_limited() {
        let (mut windows, start) = windows();
        for second in 0..10_000 {
            record(&mut windows, after(start, second), second % 700 + 1);
            if second % 3 == 0 {
                windows.reset(after(start, second));
            }
        }
        let kept = windows.closed.len();
        assert!(kept <= 2 * (KEPT_SLICES + 1), "{kept}");
        assert_eq!(read(&mut windows, LatencyPeriod::SinceLoad, after(start, 10_000)).0, 10_000);
    }

    #[test]
    fn layers_are_summed() {
        let mut slice = LatencySlice::default();
        let layer = |vectors| LayerTotals { vectors, took_ns: vectors * 10 };
        slice.add_layers([layer(8), layer(4)].into_iter());
        slice.add_layers([layer(8), layer(4), layer(2)].into_iter());
        assert_eq!(slice.layers, [layer(16), layer(8), layer(2)]);
    }
}
