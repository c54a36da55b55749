//! What latency reports are made of: times and counts of one engine, in slices of ten seconds, of which the latest are kept one by
//! one and all are added up since the model was loaded, and since somebody reset that.
//!
//! The engine's thread notes into the open slice, once a character; who reads takes copies, and adds them up by itself.

use hdrhistogram::Histogram;
use std::{
    collections::VecDeque,
    ops::AddAssign,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// How long a slice is.
const SLICE: Duration = Duration::from_secs(10);
/// How many closed ones are kept: a minute of them.
const KEPT: usize = 6;
/// Digits of a time that are kept.
const DIGITS: u8 = 2;

/// A time of which there is a distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Time {
    /// From arrival to the first character, or token.
    First,
    /// From a character that ends no segment to the next.
    PlainGap,
    /// From a character that ends a segment to the next.
    BoundaryGap,
    /// Of a segment.
    Segment,
    /// From arrival to admission.
    Queue,
    /// From admission to the first logits after the prompt.
    Prefill,
    /// From the first character, or token, to the last.
    Decode,
    /// The same by token, of summaries.
    TokenDecode,
    /// From arrival to the end.
    Total,
    /// Of a document's arrival.
    Upload,
    /// Of a document's encoding.
    Encode,
}

/// How many there are.
const TIMES: usize = Time::Encode as usize + 1;

macro_rules! sums {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What is counted.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Sums { $($(#[$doc])* pub $name: u64,)* }

        impl AddAssign for Sums {
            fn add_assign(&mut self, other: Self) {
                $(self.$name = self.$name.saturating_add(other.$name);)*
            }
        }
    };
}

sums! {
    /// Requests that came to their end.
    requests,
    /// Requests that ended with an error.
    failed,
    /// Symbols of their prompts.
    prompt_chars,
    /// Of these, those that came from the cache.
    cached_chars,
    /// Symbols that they generated.
    generated_chars,
    /// Nanoseconds of their prompts.
    prefill_ns,
    /// Runs of the middle layers.
    middle_run,
    /// Runs of the middle layers that were skipped.
    middle_skipped,
    /// Steps with symbols.
    steps,
    /// Rows of these.
    rows,
    /// Segment steps.
    middle_steps,
    /// Rows of these.
    middle_rows,
    /// Requests of which the time without pooling is estimated.
    estimated,
    /// Nanoseconds of their prompts.
    measured_prefill_ns,
    /// The same without pooling.
    unpooled_prefill_ns,
    /// Nanoseconds of their answers.
    measured_decode_ns,
    /// The same without pooling.
    unpooled_decode_ns,
    /// Lookups in the segment cache that found something.
    hits,
    /// Lookups that did not.
    misses,
    /// Symbols that were looked up.
    looked_up,
    /// Of these, symbols that were found.
    found,
    /// Bytes of their pages.
    shared_bytes,
    /// Summaries of documents that had been encoded before.
    cached_documents,
    /// Bytes that decoders attended to.
    memory_bytes,
    /// The same, had nothing been pooled.
    unpooled_memory_bytes,
}

/// What a layer of an encoder was given, and what that took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Layer {
    /// Vectors.
    pub vectors: u64,
    /// Nanoseconds.
    pub took_ns: u64,
}

/// Times and counts of some time.
#[derive(Debug, Clone)]
pub struct Slice {
    /// What was counted.
    pub sums: Sums,
    /// An encoder's layers, in order.
    pub layers: Vec<Layer>,
    /// By [`Time`]; none for those of which there was none.
    times: [Option<Histogram<u64>>; TIMES],
}

impl Default for Slice {
    fn default() -> Self {
        Self { sums: Sums::default(), layers: Vec::new(), times: [const { None }; TIMES] }
    }
}

impl Slice {
    /// Notes a time.
    pub(super) fn note(&mut self, time: Time, took: Duration) {
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let times = &mut self.times[time as usize];
        if times.is_none() {
            // what it refuses are digits that it does not have
            *times = Histogram::new(DIGITS).ok();
        }
        if let Some(times) = times {
            // it grows as it must
            let _ = times.record(nanoseconds.max(1));
        }
    }

    /// Adds a document's layers.
    pub(super) fn encoded(&mut self, layers: impl Iterator<Item = Layer>) {
        for (index, layer) in layers.enumerate() {
            if self.layers.len() <= index {
                self.layers.push(Layer::default());
            }
            self.layers[index].vectors = self.layers[index].vectors.saturating_add(layer.vectors);
            self.layers[index].took_ns = self.layers[index].took_ns.saturating_add(layer.took_ns);
        }
    }

    /// The distribution of a time, in nanoseconds, if there is any.
    pub fn times(&self, time: Time) -> Option<&Histogram<u64>> {
        self.times[time as usize].as_ref()
    }

    fn add(&mut self, other: &Self) {
        self.sums += other.sums;
        self.encoded(other.layers.iter().copied());
        for (own, other) in self.times.iter_mut().zip(&other.times) {
            match (own.as_mut(), other) {
                (_, None) => {}
                (None, Some(other)) => *own = Some(other.clone()),
                // all have the same digits, and grow
                (Some(own), Some(other)) => drop(own.add(other)),
            }
        }
    }
}

/// Of which time a report is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// All there was.
    SinceLoad,
    /// All since the last reset.
    SinceReset,
    /// The latest seven slices, of which the last is open.
    LastMinute,
}

/// An engine's book.
#[derive(Debug)]
pub(super) struct Ledger(Mutex<Book>);

#[derive(Debug)]
struct Book {
    loaded: Instant,
    reset: Instant,
    /// When the open slice began.
    opened: Instant,
    open: Slice,
    /// When each began, and what was in it.
    closed: VecDeque<(Instant, Arc<Slice>)>,
    since_load: Slice,
    since_reset: Slice,
}

impl Ledger {
    /// An empty one.
    pub(super) fn new(now: Instant) -> Self {
        Self(Mutex::new(Book::new(now)))
    }

    /// Forgets everything.
    pub(super) fn begin(&self, now: Instant) {
        *super::lock(&self.0) = Book::new(now);
    }

    /// Notes what is noted once a step or more often.
    pub(super) fn note(&self, note: impl FnOnce(&mut Slice)) {
        note(&mut super::lock(&self.0).open);
    }

    /// The same, and looks whether another slice is to be opened.
    pub(super) fn note_at(&self, now: Instant, note: impl FnOnce(&mut Slice)) {
        let mut book = super::lock(&self.0);
        book.turn(now, false);
        note(&mut book.open);
    }

    /// From now on counts what is counted since the last reset.
    pub(super) fn reset(&self, now: Instant) {
        let mut book = super::lock(&self.0);
        book.turn(now, true);
        (book.reset, book.since_reset) = (now, Slice::default());
    }

    /// What was noted in a window, and how long that was.
    pub(super) fn read(&self, window: Window, now: Instant) -> (Slice, Duration) {
        let mut book = super::lock(&self.0);
        book.turn(now, false);
        let open = book.open.clone();
        let (before, since, slices) = match window {
            Window::SinceLoad => (Some(book.since_load.clone()), book.loaded, Vec::new()),
            Window::SinceReset => (Some(book.since_reset.clone()), book.reset, Vec::new()),
            Window::LastMinute => {
                let first = book.closed.front().map_or(book.opened, |(began, _)| *began);
                // a minute in which nothing happened is one, too
                let minute = now.checked_sub(SLICE * KEPT as u32).unwrap_or(first);
                let since = first.min(minute).max(book.loaded);
                (None, since, book.closed.iter().map(|(_, slice)| Arc::clone(slice)).collect())
            }
        };
        drop(book);
        let mut all = before.unwrap_or_default();
        slices.iter().for_each(|slice| all.add(slice));
        all.add(&open);
        (all, now.saturating_duration_since(since))
    }
}

impl Book {
    fn new(now: Instant) -> Self {
        Self {
            loaded: now,
            reset: now,
            opened: now,
            open: Slice::default(),
            closed: VecDeque::with_capacity(KEPT + 1),
            since_load: Slice::default(),
            since_reset: Slice::default(),
        }
    }

    /// Closes the open slice if it is over, or is to be, and drops those that are older than is kept.
    fn turn(&mut self, now: Instant, at_once: bool) {
        if at_once || now.saturating_duration_since(self.opened) >= SLICE {
            let slice = std::mem::take(&mut self.open);
            self.since_load.add(&slice);
            self.since_reset.add(&slice);
            match self.closed.back_mut() {
                // however often it is reset, slices are no more than there is time
                Some((began, last)) if at_once && now.saturating_duration_since(*began) < SLICE => {
                    Arc::make_mut(last).add(&slice);
                }
                _ => self.closed.push_back((self.opened, Arc::new(slice))),
            }
            self.opened = now;
        }
        let oldest = SLICE * (KEPT as u32 + 1);
        while self.closed.front().is_some_and(|(began, _)| now.saturating_duration_since(*began) > oldest) {
            self.closed.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(1000);

    /// A ledger and the time on its clock.
    fn ledger() -> (Ledger, Instant) {
        let start = Instant::now() + START;
        (Ledger::new(start), start)
    }

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    /// Requests, the median of their gaps in milliseconds, to the nearest (a bar tells its upper end), and seconds.
    fn told(ledger: &Ledger, window: Window, now: Instant) -> (u64, u64, u64) {
        let (slice, length) = ledger.read(window, now);
        let gaps = slice.times(Time::PlainGap);
        let median = gaps.map_or(0, |gaps| (gaps.value_at_quantile(0.5) + 500_000) / 1_000_000);
        (slice.sums.requests, median, length.as_secs())
    }

    fn note(ledger: &Ledger, now: Instant, milliseconds: u64) {
        ledger.note_at(now, |slice| {
            slice.sums.requests += 1;
            slice.note(Time::PlainGap, Duration::from_millis(milliseconds));
        });
    }

    #[test]
    fn windows_have_what_was_noted_in_them() {
        let (ledger, start) = ledger();
        note(&ledger, at(start, 1), 10);
        note(&ledger, at(start, 15), 10);
        assert_eq!(told(&ledger, Window::LastMinute, at(start, 20)), (2, 10, 20));
        note(&ledger, at(start, 70), 40);
        // the first slice is more than a minute old
        assert_eq!(told(&ledger, Window::LastMinute, at(start, 80)).0, 2);
        assert_eq!(told(&ledger, Window::LastMinute, at(start, 150)).0, 0);
        assert_eq!(told(&ledger, Window::SinceLoad, at(start, 150)), (3, 10, 150));
        assert_eq!(told(&ledger, Window::SinceReset, at(start, 150)), (3, 10, 150));
        assert_eq!(told(&ledger, Window::LastMinute, at(start, 500)), (0, 0, 60), "nothing, for a minute");
    }

    #[test]
    fn a_reset_changes_one_window_only() {
        let (ledger, start) = ledger();
        note(&ledger, at(start, 1), 10);
        ledger.reset(at(start, 2));
        assert_eq!(told(&ledger, Window::SinceReset, at(start, 3)), (0, 0, 1));
        note(&ledger, at(start, 4), 30);
        assert_eq!(told(&ledger, Window::SinceReset, at(start, 5)), (1, 30, 3));
        assert_eq!(told(&ledger, Window::SinceLoad, at(start, 5)).0, 2);
        assert_eq!(told(&ledger, Window::LastMinute, at(start, 5)).0, 2);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let (ledger, start) = ledger();
        for second in 0..10_000 {
            note(&ledger, at(start, second), second % 700 + 1);
            if second % 3 == 0 {
                ledger.reset(at(start, second));
            }
        }
        let book = super::super::lock(&ledger.0);
        assert!(book.closed.len() <= 2 * (KEPT + 1), "{}", book.closed.len());
        drop(book);
        assert_eq!(told(&ledger, Window::SinceLoad, at(start, 10_000)).0, 10_000);
    }

    #[test]
    fn layers_add_up() {
        let mut slice = Slice::default();
        let layer = |vectors| Layer { vectors, took_ns: vectors * 10 };
        slice.encoded([layer(8), layer(4)].into_iter());
        slice.encoded([layer(8), layer(4), layer(2)].into_iter());
        assert_eq!(slice.layers, [layer(16), layer(8), layer(2)]);
    }
}
