//! Measures where a request's time goes.

use crate::decode::usage::{LevelCounts, Timing, UnpooledTiming};
use std::time::{Duration, Instant};

/// Latency of a new symbol of the answer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SymbolLatency {
    /// The first symbol: time since the request arrived.
    First(Duration),
    /// Later symbols that were ready together.
    Next {
        /// Time since the symbol before them.
        gap: Duration,
        /// Their number.
        symbols: usize,
    },
}

#[derive(Debug, Clone, Copy)]
struct ResponseTimes {
    first: Instant,
    latest: Instant,
}

/// Additional nanoseconds that the steps would have taken without pooling.
#[derive(Debug, Clone, Copy, Default)]
struct UnpooledExtra {
    /// Up to the answer's first symbol.
    prefill_ns: i64,
    /// From the first symbol on.
    decode_ns: i64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestTimer {
    pub(crate) arrived: Instant,
    /// When it got its first row.
    pub(super) admitted: Option<Instant>,
    /// When the logits after the prompt were computed.
    prefilled: Option<Instant>,
    answer: Option<ResponseTimes>,
    /// Symbols of the answer when last recorded.
    symbols: usize,
    /// Symbol steps of the request.
    pub(crate) steps: u64,
    /// Symbol steps that ran while the request waited for its segment step.
    pub(crate) wait_steps: u64,
    middle_steps: u64,
    /// Segment steps that ran the layers inside a level, by level of chunking.
    level_steps: LevelCounts,
    middle: Duration,
    /// When the latest segment of the answer got its first symbol.
    segment_started: Option<Instant>,
    /// `None` if a step without an estimate took part.
    unpooled_extra: Option<UnpooledExtra>,
}

impl RequestTimer {
    pub(crate) fn new(arrived: Instant) -> Self {
        Self {
            arrived,
            admitted: None,
            prefilled: None,
            answer: None,
            symbols: 0,
            steps: 0,
            wait_steps: 0,
            middle_steps: 0,
            level_steps: LevelCounts::default(),
            middle: Duration::ZERO,
            segment_started: None,
            unpooled_extra: Some(UnpooledExtra::default()),
        }
    }

    /// Records that the request got a row. Returns how long it was queued, if this is its first row.
    pub(crate) fn admit(&mut self, now: Instant) -> Option<Duration> {
        let first = self.admitted.is_none();
        let admitted = *self.admitted.get_or_insert(now);
        first.then(|| admitted.saturating_duration_since(self.arrived))
    }

    /// Returns the time since the request got its first row.
    pub(crate) fn since_admission(&self, now: Instant) -> Option<Duration> {
        self.admitted.map(|admitted| now.saturating_duration_since(admitted))
    }

    /// Counts a segment step that ran the layers inside the first `levels` levels of chunking.
    pub(crate) fn count_segment_step(&mut self, duration: Duration, levels: usize) {
        self.middle_steps += 1;
        self.level_steps.add(levels);
        self.middle += duration;
    }

    /// Records that a step of the request has no estimate of its time without pooling.
    pub(crate) fn cannot_estimate(&mut self) {
        self.unpooled_extra = None;
    }

    /// Adds the nanoseconds that a step of the request would have taken more without pooling.
    pub(crate) fn add_unpooled_extra(&mut self, nanoseconds: i64) {
        if let Some(extra) = &mut self.unpooled_extra {
            let phase = if self.answer.is_none() { &mut extra.prefill_ns } else { &mut extra.decode_ns };
            *phase = phase.saturating_add(nanoseconds);
        }
    }

    /// Records the first symbol of a segment. Returns the time since the first symbol of the segment before it.
    pub(crate) fn start_segment(&mut self, now: Instant) -> Option<Duration> {
        self.segment_started.replace(now).map(|before| now.saturating_duration_since(before))
    }

    /// Records the request's progress after a step. Returns the latency of a new symbol, if there is one.
    pub(crate) fn record_progress(&mut self, now: Instant, prefilling: bool, symbols: usize) -> Option<SymbolLatency> {
        if !prefilling {
            self.prefilled.get_or_insert(now);
        }
        if symbols <= self.symbols {
            return None;
        }
        let new = symbols - self.symbols;
        self.symbols = symbols;
        let before = self.answer;
        self.answer = Some(ResponseTimes { first: before.map_or(now, |answer| answer.first), latest: now });
        Some(match before {
            None => SymbolLatency::First(now.saturating_duration_since(self.arrived)),
            Some(answer) => SymbolLatency::Next { gap: now.saturating_duration_since(answer.latest), symbols: new },
        })
    }

    /// Returns the durations of the request's phases, at its end.
    pub(crate) fn timing(&self, now: Instant) -> Timing {
        let between = |from: Instant, to: Instant| nanoseconds(to.saturating_duration_since(from));
        let prefill_ns = self.admitted.map_or(0, |admitted| between(admitted, self.prefilled.unwrap_or(now)));
        let decode_ns = self.answer.map_or(0, |answer| between(answer.first, answer.latest));
        let extra = self.unpooled_extra.filter(|_| self.steps > 0);
        Timing {
            queue_ns: between(self.arrived, self.admitted.unwrap_or(now)),
            prefill_ns,
            time_to_first_char_ns: self.answer.map_or(0, |answer| between(self.arrived, answer.first)),
            decode_ns,
            total_ns: between(self.arrived, now),
            steps: self.steps,
            wait_steps: self.wait_steps,
            middle_steps: self.middle_steps,
            level_steps: self.level_steps,
            middle_ns: nanoseconds(self.middle),
            unpooled: extra.map(|extra| UnpooledTiming {
                prefill_ns: prefill_ns.saturating_add_signed(extra.prefill_ns),
                decode_ns: decode_ns.saturating_add_signed(extra.decode_ns),
            }),
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
