//! The clock of one request: when its characters came.
//!
//! A gap is the time from one message with characters to the next. It is a *boundary* gap if the server ran the middle layers
//! in it. Which gap that is depends on how the model ends segments, for boundaries are told a step late: a character that
//! is known to end its segment is told together with the step that ran the middle layers, so that the gap *before* it
//! has it; where the model writes a mark instead, the character is told when the mark is chosen and the middle layers run after
//! that, so that the gap *after* it has it.

use super::{counters::LiveCounters, summaries::SummaryMeasurement};
use std::{
    ops::ControlFlow,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tokio::time::Instant;

/// Gaps, and segments, of one request that are kept: more than any request asks for.
const MOST: usize = 1 << 20;

/// Characters that came in one message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReceivedMessage {
    /// How many.
    pub characters: u64,
    /// Those that end a segment, by the predictor's word.
    pub ends: u64,
    /// Those that end a segment, by the model's mark.
    pub marked: u64,
}

/// What the server tells of a request when it has ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServerReport {
    /// From arrival to admission.
    pub queue: Duration,
    /// From admission to the first distribution.
    pub prefill: Duration,
    /// From arrival to the first character.
    pub first: Duration,
    /// From arrival to the end.
    pub total: Duration,
    /// Characters of the prompt.
    pub prompt_chars: u64,
    /// Of these, characters that needed no computation.
    pub cached_chars: u64,
    /// Characters generated.
    pub generated_chars: u64,
    /// Segments closed, prompt included.
    pub segments: u64,
    /// What it took and, estimated, would have taken without pooling.
    pub unpooled: Option<UnpooledTimes>,
    /// Of a summary.
    pub summary: Option<SummaryMeasurement>,
}

/// A request's time on its row by the server's word: measured, and estimated without pooling.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UnpooledTimes {
    /// Of the prompt: what it took.
    pub prefill: Duration,
    /// And would have taken.
    pub prefill_estimate: Duration,
    /// Of the answer from its first character on: what it took.
    pub decode: Duration,
    /// And would have taken.
    pub decode_estimate: Duration,
}

/// A gap between two messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// How long it was.
    pub span: Duration,
    /// Whether the middle layers ran in it.
    pub boundary: bool,
}

/// What is known of a request so far.
#[derive(Debug)]
pub struct RequestTimer {
    meter: Arc<LiveCounters>,
    /// When it was to be sent.
    pub intended: Instant,
    /// When it was sent.
    pub sent: Option<Instant>,
    first: Option<Instant>,
    last: Option<Instant>,
    /// When the latest message with the end of a segment came.
    segment: Option<Instant>,
    /// The next gap has the middle layers in it.
    marked: bool,
    /// Characters after which the client goes away, if it is to.
    cancel_after: Option<u64>,
    /// Characters that came.
    pub characters: u64,
    /// Those of the first message.
    in_first: u64,
    /// Messages that they came in.
    pub messages: u64,
    /// The gaps between those.
    pub gaps: Vec<Gap>,
    /// From one end of a segment to the next that came in another message.
    pub segments: Vec<Duration>,
    /// What the server told in the end.
    pub told: Option<ServerReport>,
}

impl RequestTimer {
    /// Of a request that is to be sent at `intended`, and given up after `cancel_after` characters.
    pub fn new(meter: Arc<LiveCounters>, intended: Instant, cancel_after: Option<u64>) -> Self {
        Self {
            meter,
            intended,
            sent: None,
            first: None,
            last: None,
            segment: None,
            marked: false,
            cancel_after,
            characters: 0,
            in_first: 0,
            messages: 0,
            gaps: Vec::new(),
            segments: Vec::new(),
            told: None,
        }
    }

    /// The request is sent now.
    pub fn sends(&mut self) {
        self.sent = Some(Instant::now());
    }

    /// Characters came now. Breaks if this client is to go away.
    pub fn arrived(&mut self, arrived: ReceivedMessage) -> ControlFlow<()> {
        if arrived.characters == 0 {
            return ControlFlow::Continue(());
        }
        let now = Instant::now();
        if let Some(last) = self.last.filter(|_| self.gaps.len() < MOST) {
            self.gaps.push(Gap { span: now - last, boundary: self.marked || arrived.ends > 0 });
        }
        self.marked = arrived.marked > 0;
        if arrived.ends + arrived.marked > 0 {
            self.segments.extend(self.segment.map(|before| now - before));
            self.segment = Some(now);
        }
        if self.first.is_none() {
            (self.first, self.in_first) = (Some(now), arrived.characters);
        }
        self.last = Some(now);
        self.characters += arrived.characters;
        self.messages += 1;
        self.meter.characters.fetch_add(arrived.characters, Relaxed);
        self.meter.messages.fetch_add(1, Relaxed);
        match self.cancel_after {
            Some(most) if self.characters >= most => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }

    /// Whether the client went away as it was to.
    pub fn is_cancelled(&self) -> bool {
        self.cancel_after.is_some_and(|most| self.characters >= most)
    }

    /// From the intended start to the first characters.
    pub fn first(&self) -> Option<Duration> {
        self.first.map(|first| first - self.intended)
    }

    /// From sending to the first characters.
    pub fn first_sent(&self) -> Option<Duration> {
        Some(self.first? - self.sent?)
    }

    /// From the first characters to the last ones.
    pub fn stream(&self) -> Option<Duration> {
        Some(self.last? - self.first?)
    }

    /// The mean time of a character after the first message's.
    pub fn per_char(&self) -> Option<Duration> {
        let after = u32::try_from(self.characters.checked_sub(self.in_first)?).ok()?;
        self.stream()?.checked_div(after)
    }

    /// The gap that so large a share of this request's gaps do not exceed.
    pub fn gap(&self, share: f64) -> Option<Duration> {
        let mut spans: Vec<_> = self.gaps.iter().map(|gap| gap.span).collect();
        spans.sort_unstable();
        let rank = (share * spans.len() as f64).ceil() as usize;
        spans.get(rank.saturating_sub(1)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::sleep;

    const ONE: ReceivedMessage = ReceivedMessage { characters: 1, ends: 0, marked: 0 };

    fn ms(span: u64) -> Duration {
        Duration::from_millis(span)
    }

    #[tokio::test(start_paused = true)]
    async fn gaps_are_boundary_gaps_where_the_middle_layers_ran() {
        let mut watch = RequestTimer::new(Arc::default(), Instant::now(), None);
        sleep(ms(5)).await;
        watch.sends();
        // first, plain, ended by the predictor, plain, ended by a mark, the gap of the mark, plain
        let ends = ReceivedMessage { ends: 1, ..ONE };
        let marked = ReceivedMessage { marked: 1, ..ONE };
        for (after, what) in [(20, ONE), (10, ONE), (30, ends), (11, ONE), (12, marked), (40, ONE), (13, ONE)] {
            sleep(ms(after)).await;
            assert!(watch.arrived(what).is_continue());
        }
        let gaps: Vec<_> = watch.gaps.iter().map(|gap| (gap.span.as_millis(), gap.boundary)).collect();
        assert_eq!(gaps, [(10, false), (30, true), (11, false), (12, false), (40, true), (13, false)]);
        assert_eq!((watch.first(), watch.first_sent(), watch.stream()), (Some(ms(25)), Some(ms(20)), Some(ms(116))));
        assert_eq!(watch.segments, [ms(23)]);
        assert_eq!((watch.gap(0.5), watch.gap(0.99), watch.gap(0.0)), (Some(ms(12)), Some(ms(40)), Some(ms(10))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_without_characters_is_no_arrival_and_several_in_one_have_no_gap_between_them() {
        let mut watch = RequestTimer::new(Arc::default(), Instant::now(), Some(4));
        watch.sends();
        assert!(watch.arrived(ReceivedMessage::default()).is_continue());
        assert_eq!((watch.first(), watch.messages), (None, 0));
        assert!(watch.arrived(ReceivedMessage { characters: 3, ends: 1, marked: 0 }).is_continue());
        sleep(ms(7)).await;
        assert!(watch.arrived(ONE).is_break() && watch.is_cancelled());
        assert_eq!(watch.gaps, [Gap { span: ms(7), boundary: false }]);
        assert_eq!((watch.characters, watch.messages, watch.segments.len()), (4, 2, 0));
    }
}
