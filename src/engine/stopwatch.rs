//! Where one job's time goes.

use crate::decode::usage::{Timing, UnpooledTiming};
use std::time::{Duration, Instant};

/// A new symbol of the answer.
#[derive(Debug, Clone, Copy)]
pub(super) enum News {
    /// The first, so long after the job came.
    First(Duration),
    /// Another, so long after the one before it.
    Further(Duration),
}

/// The instants of one job, and what its steps took.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stopwatch {
    arrived: Instant,
    /// When it got its first row.
    admitted: Option<Instant>,
    /// When the logits that follow the prompt were there.
    prefilled: Option<Instant>,
    /// When the answer's first and latest symbols were there.
    answered: Option<(Instant, Instant)>,
    /// Symbols of the answer at the last look.
    symbols: usize,
    steps: u64,
    wait_steps: u64,
    middle_steps: u64,
    middle: Duration,
    /// When the latest segment that the answer ended was followed by its next symbol.
    segment: Option<Instant>,
    /// What the steps would have taken more without pooling, in nanoseconds, up to the answer's first symbol and from there on;
    /// none if that is not known of all of them.
    more: Option<(i64, i64)>,
}

impl Stopwatch {
    pub(super) fn new(arrived: Instant) -> Self {
        let (admitted, prefilled, answered, middle) = (None, None, None, Duration::ZERO);
        let (steps, wait_steps, middle_steps) = (0, 0, 0);
        let (segment, more) = (None, Some((0, 0)));
        Self {
            arrived,
            admitted,
            prefilled,
            answered,
            symbols: 0,
            steps,
            wait_steps,
            middle_steps,
            middle,
            segment,
            more,
        }
    }

    /// The job got a row; tells how long it has waited, if it is the first.
    pub(super) fn begin(&mut self, now: Instant) -> Option<Duration> {
        let first = self.admitted.is_none();
        let admitted = *self.admitted.get_or_insert(now);
        first.then(|| admitted.saturating_duration_since(self.arrived))
    }

    /// When the job came.
    pub(super) fn arrived(&self) -> Instant {
        self.arrived
    }

    /// Whether the job ever had a row.
    pub(super) fn has_begun(&self) -> bool {
        self.admitted.is_some()
    }

    /// How long ago the job got its first row.
    pub(super) fn held(&self, now: Instant) -> Option<Duration> {
        self.admitted.map(|admitted| now.saturating_duration_since(admitted))
    }

    /// The job took part in a symbol step.
    pub(super) fn symbol_step(&mut self) {
        self.steps += 1;
    }

    /// Symbol steps ran while the job waited for a segment step.
    pub(super) fn waited(&mut self, steps: usize) {
        self.wait_steps += steps as u64;
    }

    /// The job took part in a segment step that took so long.
    pub(super) fn segment_step(&mut self, took: Duration) {
        self.middle_steps += 1;
        self.middle += took;
    }

    /// It is not known what a step that the job took part in would have taken without pooling.
    pub(super) fn cannot_estimate(&mut self) {
        self.more = None;
    }

    /// A step that the job took part in would have taken so many nanoseconds more without pooling.
    pub(super) fn estimate(&mut self, nanoseconds: i64) {
        if let Some((prefill, decode)) = &mut self.more {
            let part = if self.answered.is_none() { prefill } else { decode };
            *part = part.saturating_add(nanoseconds);
        }
    }

    /// The symbol that has just come is the first of a segment; tells how long the one before it lasted, if that had a first one.
    pub(super) fn segment(&mut self, now: Instant) -> Option<Duration> {
        self.segment.replace(now).map(|before| now.saturating_duration_since(before))
    }

    /// Looks at where the job stands after a step; tells if there is a symbol that was not there before.
    pub(super) fn look(&mut self, now: Instant, is_prefilling: bool, symbols: usize) -> Option<News> {
        if !is_prefilling {
            self.prefilled.get_or_insert(now);
        }
        if symbols <= self.symbols {
            return None;
        }
        self.symbols = symbols;
        let before = self.answered;
        self.answered = Some((before.map_or(now, |(first, _)| first), now));
        Some(match before {
            None => News::First(now.saturating_duration_since(self.arrived)),
            Some((_, latest)) => News::Further(now.saturating_duration_since(latest)),
        })
    }

    /// The whole, at the end.
    pub(super) fn timing(&self, now: Instant) -> Timing {
        let between = |from: Instant, to: Instant| nanoseconds(to.saturating_duration_since(from));
        let prefill_ns = self.admitted.map_or(0, |admitted| between(admitted, self.prefilled.unwrap_or(now)));
        let decode_ns = self.answered.map_or(0, |(first, latest)| between(first, latest));
        let plus = |nanoseconds: u64, more: i64| nanoseconds.saturating_add_signed(more);
        let more = self.more.filter(|_| self.steps > 0);
        Timing {
            queue_ns: between(self.arrived, self.admitted.unwrap_or(now)),
            prefill_ns,
            time_to_first_char_ns: self.answered.map_or(0, |(first, _)| between(self.arrived, first)),
            decode_ns,
            total_ns: between(self.arrived, now),
            steps: self.steps,
            wait_steps: self.wait_steps,
            middle_steps: self.middle_steps,
            middle_ns: nanoseconds(self.middle),
            unpooled: more.map(|(prefill, decode)| UnpooledTiming {
                prefill_ns: plus(prefill_ns, prefill),
                decode_ns: plus(decode_ns, decode),
            }),
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
