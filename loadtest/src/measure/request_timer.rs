//! Timer of one request: when its characters came.
//!
//! A gap is the time from one message with characters to the next. A *boundary* gap is one in which the server ran the middle
//! layers. Which gap that is depends on how the model ends segments, because the server reports boundaries one step late. If a
//! predictor ends segments, the last character is sent after the step that ran the middle layers, so the gap *before* it contains
//! them. If the model writes a mark, the character is sent when the mark is chosen and the middle layers run afterwards, so the
//! gap *after* it contains them.

use super::{
    counters::LiveCounters, keystrokes::EditMeasurement, shortening::TextTotals, summaries::SummaryMeasurement,
};
use std::{
    ops::ControlFlow,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tokio::time::Instant;

/// Maximum gaps, and segments, kept of one request: more than any request asks for.
const MAX_GAPS: usize = 1 << 20;
/// Messages that are read with less time between them came together: the times between them are those of the tester's own reading,
/// and speeds computed from them alone are not the server's.
pub(crate) const TOGETHER: Duration = Duration::from_micros(20);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReceivedMessage {
    pub characters: u64,
    /// Characters that end a segment according to the predictor.
    pub predicted_ends: u64,
    /// Characters that end a segment by the model's mark.
    pub marked_ends: u64,
}

/// Timing and usage that the server reports at the end of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ServerReport {
    /// From arrival to admission.
    pub queue: Duration,
    /// From admission to the first distribution.
    pub prefill: Duration,
    /// From arrival to the first character.
    pub first: Duration,
    /// From arrival to the end.
    pub total: Duration,
    /// Characters and segments of prompt and generated text.
    pub texts: TextTotals,
    /// Estimated times without pooling, next to the measured ones.
    pub unpooled: Option<UnpooledTimes>,
    pub summary: Option<SummaryMeasurement>,
}

/// Times of a request on its row, as the server reports them: measured, and estimated without pooling.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UnpooledTimes {
    pub prefill: Duration,
    pub prefill_estimate: Duration,
    /// Measured decode time, from the first character on.
    pub decode: Duration,
    pub decode_estimate: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    pub span: Duration,
    /// True if the middle layers ran in it.
    pub boundary: bool,
}

/// Timestamps of a request so far.
#[derive(Debug)]
pub struct ClientTimer {
    counters: Arc<LiveCounters>,
    pub intended: Instant,
    pub sent: Option<Instant>,
    first: Option<Instant>,
    last: Option<Instant>,
    /// Arrival of the latest message that ended a segment.
    segment_end: Option<Instant>,
    /// True if the next gap contains the middle layers.
    next_is_boundary: bool,
    /// Characters after which this client cancels the request, if it does.
    cancel_after: Option<u64>,
    pub characters: u64,
    /// Characters of the first message and of the messages that came together with it.
    first_characters: u64,
    /// True once a message came apart from the one before.
    came_apart: bool,
    /// True once a message came apart from the one before, since the latest end of a segment.
    segment_came_apart: bool,
    /// Messages with characters.
    pub messages: u64,
    /// Gaps between these messages, at most [`MAX_GAPS`].
    pub gaps: Vec<Gap>,
    /// Times from one end of a segment to the next. Those of messages that all came together are left out.
    pub segments: Vec<Duration>,
    pub server_report: Option<ServerReport>,
    /// Keystrokes of a document, if the request is a session that edited one.
    pub edits: Option<EditMeasurement>,
}

impl ClientTimer {
    /// Starts a timer for a request due at `intended` that this client cancels after `cancel_after` characters.
    pub fn new(counters: Arc<LiveCounters>, intended: Instant, cancel_after: Option<u64>) -> Self {
        Self {
            counters,
            intended,
            sent: None,
            first: None,
            last: None,
            segment_end: None,
            next_is_boundary: false,
            cancel_after,
            characters: 0,
            first_characters: 0,
            came_apart: false,
            segment_came_apart: false,
            messages: 0,
            gaps: Vec::new(),
            segments: Vec::new(),
            server_report: None,
            edits: None,
        }
    }

    pub fn mark_sent(&mut self) {
        self.sent = Some(Instant::now());
    }

    /// Records a message received now. Breaks if this client cancels the request.
    pub fn record(&mut self, message: ReceivedMessage) -> ControlFlow<()> {
        if message.characters == 0 {
            // bytes of a character whose text comes with the next message
            self.next_is_boundary |= message.predicted_ends + message.marked_ends > 0;
            return ControlFlow::Continue(());
        }
        let now = Instant::now();
        if let Some(last) = self.last.filter(|_| self.gaps.len() < MAX_GAPS) {
            self.gaps.push(Gap { span: now - last, boundary: self.next_is_boundary || message.predicted_ends > 0 });
        }
        self.next_is_boundary = message.marked_ends > 0;
        let comes_apart = self.last.is_some_and(|last| now - last >= TOGETHER);
        self.came_apart |= comes_apart;
        self.segment_came_apart |= comes_apart;
        if message.predicted_ends + message.marked_ends > 0 {
            let before = self.segment_end.filter(|_| self.segment_came_apart);
            self.segments.extend(before.map(|before| now - before));
            self.segment_end = Some(now);
            self.segment_came_apart = false;
        }
        self.first.get_or_insert(now);
        if !self.came_apart {
            self.first_characters += message.characters;
        }
        self.last = Some(now);
        self.characters += message.characters;
        self.messages += 1;
        self.counters.totals.characters.fetch_add(message.characters, Relaxed);
        self.counters.totals.messages.fetch_add(1, Relaxed);
        if self.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Records completions received now, as one character without a gap before it. Breaks if this client cancels the session.
    pub fn record_answer(&mut self) -> ControlFlow<()> {
        self.first.get_or_insert_with(Instant::now);
        self.characters += 1;
        self.messages += 1;
        self.counters.totals.characters.fetch_add(1, Relaxed);
        self.counters.totals.messages.fetch_add(1, Relaxed);
        if self.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancel_after.is_some_and(|limit| self.characters >= limit)
    }

    /// Returns the time from the intended start to the first characters.
    pub fn first(&self) -> Option<Duration> {
        self.first.map(|first| first - self.intended)
    }

    /// Returns the time from sending to the first characters.
    pub fn first_from_send(&self) -> Option<Duration> {
        Some(self.first? - self.sent?)
    }

    /// Returns the time from the first characters to the last ones.
    fn stream(&self) -> Option<Duration> {
        Some(self.last? - self.first?)
    }

    /// Returns the mean time of a character, without those of the first message and of messages that came together with it. `None`
    /// if there are no others.
    pub fn per_char(&self) -> Option<Duration> {
        let after = u32::try_from(self.characters.checked_sub(self.first_characters)?).ok()?;
        self.stream()?.checked_div(after)
    }

    /// Returns the gap that a share of `share` of this request's gaps does not exceed.
    pub fn gap_percentile(&self, share: f64) -> Option<Duration> {
        let mut spans: Vec<_> = self.gaps.iter().map(|gap| gap.span).collect();
        spans.sort_unstable();
        let rank = (share * spans.len() as f64).ceil() as usize;
        spans.get(rank.saturating_sub(1)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::{advance, sleep};

    const ONE: ReceivedMessage = ReceivedMessage { characters: 1, predicted_ends: 0, marked_ends: 0 };

    fn ms(span: u64) -> Duration {
        Duration::from_millis(span)
    }

    #[tokio::test(start_paused = true)]
    async fn gaps_are_boundary_gaps_where_the_middle_layers_ran() {
        let mut timer = ClientTimer::new(Arc::default(), Instant::now(), None);
        sleep(ms(5)).await;
        timer.mark_sent();
        // first, plain, ended by the predictor, plain, ended by a mark, the gap after the mark, plain
        let predicted = ReceivedMessage { predicted_ends: 1, ..ONE };
        let marked = ReceivedMessage { marked_ends: 1, ..ONE };
        for (after, message) in [(20, ONE), (10, ONE), (30, predicted), (11, ONE), (12, marked), (40, ONE), (13, ONE)] {
            sleep(ms(after)).await;
            assert!(timer.record(message).is_continue());
        }
        let gaps: Vec<_> = timer.gaps.iter().map(|gap| (gap.span.as_millis(), gap.boundary)).collect();
        assert_eq!(gaps, [(10, false), (30, true), (11, false), (12, false), (40, true), (13, false)]);
        let times = (timer.first(), timer.first_from_send(), timer.stream());
        assert_eq!(times, (Some(ms(25)), Some(ms(20)), Some(ms(116))));
        assert_eq!(timer.segments, [ms(23)]);
        let percentiles = [0.5, 0.99, 0.0].map(|share| timer.gap_percentile(share));
        assert_eq!(percentiles, [Some(ms(12)), Some(ms(40)), Some(ms(10))]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_without_characters_is_ignored_and_several_characters_in_one_have_no_gap() {
        let mut timer = ClientTimer::new(Arc::default(), Instant::now(), Some(4));
        timer.mark_sent();
        assert!(timer.record(ReceivedMessage::default()).is_continue());
        assert_eq!((timer.first(), timer.messages), (None, 0));
        assert!(timer.record(ReceivedMessage { characters: 3, predicted_ends: 1, marked_ends: 0 }).is_continue());
        sleep(ms(7)).await;
        assert!(timer.record(ONE).is_break() && timer.is_cancelled());
        assert_eq!(timer.gaps, [Gap { span: ms(7), boundary: false }]);
        assert_eq!((timer.characters, timer.messages, timer.segments.len()), (4, 2, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn messages_that_came_together_give_no_speed() {
        let end = ReceivedMessage { predicted_ends: 1, ..ONE };
        let mut timer = ClientTimer::new(Arc::default(), Instant::now(), None);
        timer.mark_sent();
        let us = Duration::from_micros;
        // eight characters in 24 µs, with two ends of segments
        for message in [ONE, ONE, ONE, end, ONE, ONE, ONE, end] {
            advance(us(3)).await;
            assert!(timer.record(message).is_continue());
        }
        assert_eq!((timer.per_char(), timer.segments.len()), (None, 0));
        // another end 40 ms later, and two characters together with it, of which the second ends a segment
        for (after, message) in [(40_000, end), (3, ONE), (3, end)] {
            advance(us(after)).await;
            assert!(timer.record(message).is_continue());
        }
        assert_eq!(
            timer.per_char(),
            Some((us(40_006) + us(21)) / 3),
            "from the first message on, without the characters that came together with it"
        );
        assert_eq!(timer.segments, [us(40_000)]);
        assert_eq!(timer.gaps.len(), 10);
    }
}
