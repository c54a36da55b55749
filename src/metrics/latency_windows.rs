//! The data of latency reports: times and counts of one engine, in slices of ten seconds.
//!
//! The latest slices are kept one by one. All slices are summed since the model was loaded and since the last reset. The
//! engine's thread records into the open slice, once a character. A reader copies the slices and sums them without the lock.

use hdrhistogram::Histogram;
use std::{
    collections::VecDeque,
    ops::AddAssign,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Length of a slice.
const SLICE_LENGTH: Duration = Duration::from_secs(10);
/// Number of closed slices kept: one minute.
const KEPT_SLICES: usize = 6;
/// Significant decimal digits of a histogram's values.
const DIGITS: u8 = 2;

/// A time with a histogram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LatencyKind {
    /// From arrival to the first character, or token.
    First,
    /// From a character that ends no segment to the next.
    PlainGap,
    /// From a character that ends a segment to the next.
    BoundaryGap,
    /// Duration of a segment.
    Segment,
    /// From arrival to admission.
    Queue,
    /// From admission to the first logits after the prompt.
    Prefill,
    /// From the first character, or token, to the last.
    Decode,
    /// Decode time per token of a summary.
    TokenDecode,
    /// From arrival to the end.
    Total,
    /// Upload of a document.
    Upload,
    /// Encoding of a document.
    Encode,
}

/// Number of kinds.
const KINDS: usize = LatencyKind::Encode as usize + 1;

macro_rules! report_counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a latency report.
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
    /// Requests that ended with an error.
    failed,
    /// Symbols of prompts.
    prompt_chars,
    /// Prompt symbols that came from the segment cache.
    cached_chars,
    /// Symbols generated.
    generated_chars,
    /// Prefill time, in nanoseconds.
    prefill_ns,
    /// Runs of the middle layers.
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
    /// Segment-cache misses.
    misses,
    /// Symbols looked up.
    looked_up,
    /// Symbols found.
    found,
    /// Bytes of the pages found.
    shared_bytes,
    /// Summaries of cached documents.
    cached_documents,
    /// Bytes that decoders attended to.
    memory_bytes,
    /// Bytes that decoders would attend to without pooling.
    unpooled_memory_bytes,
}

/// Input size and time of an encoder layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LayerTotals {
    /// Number of input vectors.
    pub vectors: u64,
    /// Time, in nanoseconds.
    pub took_ns: u64,
}

/// Times and counts of one period.
#[derive(Debug, Clone)]
pub struct LatencySlice {
    /// Counters.
    pub counts: ReportCounts,
    /// Encoder layers, in order.
    pub layers: Vec<LayerTotals>,
    /// Histograms by [`LatencyKind`]; none without values.
    times: [Option<Histogram<u64>>; KINDS],
}

impl Default for LatencySlice {
    fn default() -> Self {
        Self { counts: ReportCounts::default(), layers: Vec::new(), times: [const { None }; KINDS] }
    }
}

impl LatencySlice {
    /// Records a time.
    pub(super) fn record(&mut self, kind: LatencyKind, took: Duration) {
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let times = &mut self.times[kind as usize];
        if times.is_none() {
            // fails only for more digits than it supports
            *times = Histogram::new(DIGITS).ok();
        }
        if let Some(times) = times {
            // a growing histogram accepts every value
            let _ = times.record(nanoseconds.max(1));
        }
    }

    /// Adds the layers of a document.
    pub(super) fn add_layers(&mut self, layers: impl Iterator<Item = LayerTotals>) {
        for (index, layer) in layers.enumerate() {
            if self.layers.len() <= index {
                self.layers.push(LayerTotals::default());
            }
            self.layers[index].vectors = self.layers[index].vectors.saturating_add(layer.vectors);
            self.layers[index].took_ns = self.layers[index].took_ns.saturating_add(layer.took_ns);
        }
    }

    /// Returns the histogram of a time, in nanoseconds, if it has values.
    pub fn times(&self, kind: LatencyKind) -> Option<&Histogram<u64>> {
        self.times[kind as usize].as_ref()
    }

    fn add(&mut self, other: &Self) {
        self.counts += other.counts;
        self.add_layers(other.layers.iter().copied());
        for (own, other) in self.times.iter_mut().zip(&other.times) {
            match (own.as_mut(), other) {
                (_, None) => {}
                (None, Some(other)) => *own = Some(other.clone()),
                // never fails: all have the same digits and grow
                (Some(own), Some(other)) => drop(own.add(other)),
            }
        }
    }
}

/// The period of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LatencyPeriod {
    /// Since the model was loaded.
    SinceLoad,
    /// Since the last reset.
    SinceReset,
    /// The latest seven slices, including the open one.
    LastMinute,
}

/// The latency data of one engine, shared by the engine's thread and readers.
#[derive(Debug)]
pub(super) struct LatencyWindows(Mutex<Windows>);

#[derive(Debug)]
struct Windows {
    loaded: Instant,
    reset: Instant,
    /// Start of the open slice.
    opened: Instant,
    open: LatencySlice,
    /// Start and contents of each closed slice.
    closed: VecDeque<(Instant, Arc<LatencySlice>)>,
    since_load: LatencySlice,
    since_reset: LatencySlice,
}

impl LatencyWindows {
    /// Creates empty windows.
    pub(super) fn new(now: Instant) -> Self {
        Self(Mutex::new(Windows::new(now)))
    }

    /// Drops all data.
    pub(super) fn clear(&self, now: Instant) {
        *lock(&self.0) = Windows::new(now);
    }

    /// Updates the open slice. For updates that are as frequent as steps.
    pub(super) fn update(&self, update: impl FnOnce(&mut LatencySlice)) {
        update(&mut lock(&self.0).open);
    }

    /// Updates the open slice, after opening a new one if it is over.
    pub(super) fn update_at(&self, now: Instant, update: impl FnOnce(&mut LatencySlice)) {
        let mut windows = lock(&self.0);
        windows.rotate(now, false);
        update(&mut windows.open);
    }

    /// Starts the period since the last reset.
    pub(super) fn reset(&self, now: Instant) {
        let mut windows = lock(&self.0);
        windows.rotate(now, true);
        windows.reset = now;
        windows.since_reset = LatencySlice::default();
    }

    /// Returns the data of a period, and its length.
    pub(super) fn read(&self, period: LatencyPeriod, now: Instant) -> (LatencySlice, Duration) {
        let mut windows = lock(&self.0);
        windows.rotate(now, false);
        let open = windows.open.clone();
        let (sum, since, slices) = match period {
            LatencyPeriod::SinceLoad => (Some(windows.since_load.clone()), windows.loaded, Vec::new()),
            LatencyPeriod::SinceReset => (Some(windows.since_reset.clone()), windows.reset, Vec::new()),
            LatencyPeriod::LastMinute => {
                let first = windows.closed.front().map_or(windows.opened, |(began, _)| *began);
                // a minute without events counts, too
                let minute = now.checked_sub(SLICE_LENGTH * KEPT_SLICES as u32).unwrap_or(first);
                let since = first.min(minute).max(windows.loaded);
                (None, since, windows.closed.iter().map(|(_, slice)| Arc::clone(slice)).collect())
            }
        };
        drop(windows);
        let mut all = sum.unwrap_or_default();
        slices.iter().for_each(|slice| all.add(slice));
        all.add(&open);
        (all, now.saturating_duration_since(since))
    }
}

impl Windows {
    fn new(now: Instant) -> Self {
        Self {
            loaded: now,
            reset: now,
            opened: now,
            open: LatencySlice::default(),
            closed: VecDeque::with_capacity(KEPT_SLICES + 1),
            since_load: LatencySlice::default(),
            since_reset: LatencySlice::default(),
        }
    }

    /// Closes the open slice if it is over or `close` is set, and drops expired slices.
    fn rotate(&mut self, now: Instant, close: bool) {
        if close || now.saturating_duration_since(self.opened) >= SLICE_LENGTH {
            let slice = std::mem::take(&mut self.open);
            self.since_load.add(&slice);
            self.since_reset.add(&slice);
            match self.closed.back_mut() {
                // frequent resets must not add more slices than fit in the time
                Some((began, last)) if close && now.saturating_duration_since(*began) < SLICE_LENGTH => {
                    Arc::make_mut(last).add(&slice);
                }
                _ => self.closed.push_back((self.opened, Arc::new(slice))),
            }
            self.opened = now;
        }
        let oldest = SLICE_LENGTH * (KEPT_SLICES as u32 + 1);
        while self.closed.front().is_some_and(|(began, _)| now.saturating_duration_since(*began) > oldest) {
            self.closed.pop_front();
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(1000);

    /// Returns windows and the time of their creation.
    fn windows() -> (LatencyWindows, Instant) {
        let start = Instant::now() + START;
        (LatencyWindows::new(start), start)
    }

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    /// Returns the number of requests, the median gap in milliseconds, and the length in seconds. The median is rounded, because
    /// a histogram returns a bar's upper end.
    fn read(windows: &LatencyWindows, period: LatencyPeriod, now: Instant) -> (u64, u64, u64) {
        let (slice, length) = windows.read(period, now);
        let gaps = slice.times(LatencyKind::PlainGap);
        let median = gaps.map_or(0, |gaps| (gaps.value_at_quantile(0.5) + 500_000) / 1_000_000);
        (slice.counts.requests, median, length.as_secs())
    }

    fn record(windows: &LatencyWindows, now: Instant, milliseconds: u64) {
        windows.update_at(now, |slice| {
            slice.counts.requests += 1;
            slice.record(LatencyKind::PlainGap, Duration::from_millis(milliseconds));
        });
    }

    #[test]
    fn periods_contain_what_was_recorded_in_them() {
        let (windows, start) = windows();
        record(&windows, at(start, 1), 10);
        record(&windows, at(start, 15), 10);
        assert_eq!(read(&windows, LatencyPeriod::LastMinute, at(start, 20)), (2, 10, 20));
        record(&windows, at(start, 70), 40);
        // the first slice is more than a minute old
        assert_eq!(read(&windows, LatencyPeriod::LastMinute, at(start, 80)).0, 2);
        assert_eq!(read(&windows, LatencyPeriod::LastMinute, at(start, 150)).0, 0);
        assert_eq!(read(&windows, LatencyPeriod::SinceLoad, at(start, 150)), (3, 10, 150));
        assert_eq!(read(&windows, LatencyPeriod::SinceReset, at(start, 150)), (3, 10, 150));
        assert_eq!(read(&windows, LatencyPeriod::LastMinute, at(start, 500)), (0, 0, 60), "a minute without events");
    }

    #[test]
    fn a_reset_changes_one_period_only() {
        let (windows, start) = windows();
        record(&windows, at(start, 1), 10);
        windows.reset(at(start, 2));
        assert_eq!(read(&windows, LatencyPeriod::SinceReset, at(start, 3)), (0, 0, 1));
        record(&windows, at(start, 4), 30);
        assert_eq!(read(&windows, LatencyPeriod::SinceReset, at(start, 5)), (1, 30, 3));
        assert_eq!(read(&windows, LatencyPeriod::SinceLoad, at(start, 5)).0, 2);
        assert_eq!(read(&windows, LatencyPeriod::LastMinute, at(start, 5)).0, 2);
    }

    #[test]
    fn kept_slices_are_limited() {
        let (windows, start) = windows();
        for second in 0..10_000 {
            record(&windows, at(start, second), second % 700 + 1);
            if second % 3 == 0 {
                windows.reset(at(start, second));
            }
        }
        let kept = lock(&windows.0).closed.len();
        assert!(kept <= 2 * (KEPT_SLICES + 1), "{kept}");
        assert_eq!(read(&windows, LatencyPeriod::SinceLoad, at(start, 10_000)).0, 10_000);
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
