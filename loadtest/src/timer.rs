//! Timers of one request, when its characters came, and of one edited document, when each keystroke got its completions; and the
//! counters that every request updates.
//!
//! A gap is the time from one message with characters to the next. A *boundary* gap is one in which the server ran the middle
//! layers. Which gap that is depends on how the model ends segments, because the server reports boundaries one step late. If a
//! predictor ends segments, the last character is sent after the step that ran the middle layers, so the gap *before* it contains
//! them. If the model writes a mark, the character is sent when the mark is chosen and the middle layers run afterwards, so the
//! gap *after* it contains them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use weir_measure::stats::nearest_rank;
use weir_proto::v1::{SummaryTiming, SummaryUsage, Timing, Usage};

/// Maximum gaps, and segments, kept of one request: more than any request asks for.
const MAX_GAPS: usize = 1 << 20;
/// Messages that are read with less time between them came together: the times between them are times of the tester's own reading,
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

/// The usage and the times that the server reports at the end of a request.
#[derive(Debug, Clone)]
pub enum ServerReport {
    Text {
        timing: Timing,
        usage: Usage,
        /// Characters of the prompt that the server had cached.
        cached_chars: u64,
    },
    Summary {
        timing: SummaryTiming,
        usage: SummaryUsage,
        /// Time from sending until the client library had the whole document.
        upload: Duration,
    },
}

impl ServerReport {
    /// Returns the nanoseconds of encoding all layers and the decoder's keys and values, unless the document was cached.
    pub(crate) fn encode_ns(&self) -> Option<u64> {
        match self {
            Self::Summary { timing, usage, .. } if usage.cached_tokens == 0 => {
                Some(timing.layers.iter().map(|layer| layer.ns).sum::<u64>() + timing.memory_ns)
            }
            _ => None,
        }
    }

    /// Returns the mean nanoseconds of a summary's token after the first.
    pub(crate) fn token_ns(&self) -> Option<u64> {
        let Self::Summary { timing, usage, .. } = self else { return None };
        timing.decode_ns.checked_div(usage.summary_tokens.checked_sub(1)?)
    }

    /// Returns pairs of the seconds without pooling, as the server estimates them, and the measured ones: in total, to the first
    /// character, and after it.
    pub(crate) fn estimates(&self) -> Option<[(f64, f64); 3]> {
        let Self::Text { timing, .. } = self else { return None };
        let prefill = timing.unpooled_prefill_estimate_ns?;
        let decode = timing.unpooled_decode_estimate_ns?;
        let pairs = [
            (prefill.saturating_add(decode), timing.prefill_ns.saturating_add(timing.decode_ns)),
            (prefill, timing.prefill_ns),
            (decode, timing.decode_ns),
        ];
        let seconds = |ns| Duration::from_nanos(ns).as_secs_f64();
        Some(pairs.map(|(estimate, measured)| (seconds(estimate), seconds(measured))))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    pub span: Duration,
    /// True if the middle layers ran in it.
    pub boundary: bool,
}

/// Totals that the server reported for generated texts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TextTotals {
    pub prompt: u64,
    /// Prompt characters that the server had cached.
    pub cached: u64,
    pub generated: u64,
    /// Segments closed, prompts included.
    pub segments: u64,
}

impl TextTotals {
    pub(crate) fn add(&mut self, other: &Self) {
        self.prompt += other.prompt;
        self.cached += other.cached;
        self.generated += other.generated;
        self.segments += other.segments;
    }

    /// Returns the characters per closed segment, if one was closed.
    pub(crate) fn factor(&self) -> Option<f64> {
        (self.segments > 0).then(|| (self.prompt + self.generated) as f64 / self.segments as f64)
    }
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
    pub characters: u64,
    /// Characters of the first message and of the messages that came together with it.
    first_characters: u64,
    /// True once a message came apart from the one before.
    came_apart: bool,
    /// True once a message came apart from the one before, since the latest end of a segment.
    segment_came_apart: bool,
    /// Messages with characters.
    pub messages: u64,
    /// Gaps between these messages, at most `MAX_GAPS`.
    pub gaps: Vec<Gap>,
    /// Times from one end of a segment to the next. Those of messages that all came together are left out.
    pub segments: Vec<Duration>,
    pub server_report: Option<ServerReport>,
    /// Keystrokes of a document, if the request is a session that edited one.
    pub edits: Option<EditMeasurement>,
    /// Time from which keystrokes count, for a session that began before; `None` if all count.
    pub counts_from: Option<Instant>,
}

impl ClientTimer {
    /// Starts a timer for a request due at `intended`.
    pub fn new(counters: Arc<LiveCounters>, intended: Instant) -> Self {
        Self {
            counters,
            intended,
            sent: None,
            first: None,
            last: None,
            segment_end: None,
            next_is_boundary: false,
            characters: 0,
            first_characters: 0,
            came_apart: false,
            segment_came_apart: false,
            messages: 0,
            gaps: Vec::new(),
            segments: Vec::new(),
            server_report: None,
            edits: None,
            counts_from: None,
        }
    }

    pub fn mark_sent(&mut self) {
        self.sent = Some(Instant::now());
    }

    /// Records a message received now.
    pub fn record(&mut self, message: ReceivedMessage) {
        if message.characters == 0 {
            // bytes of a character whose text comes with the next message
            self.next_is_boundary |= message.predicted_ends + message.marked_ends > 0;
            return;
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
        self.count(message.characters);
    }

    /// Records completions received now, as one character without a gap before it.
    pub fn record_answer(&mut self) {
        self.first.get_or_insert_with(Instant::now);
        self.count(1);
    }

    /// Counts a message of `characters`.
    fn count(&mut self, characters: u64) {
        self.characters += characters;
        self.messages += 1;
        self.counters.update(|counts| {
            counts.characters += characters;
            counts.messages += 1;
        });
    }

    /// Returns the time from the intended start to the first characters.
    pub fn first(&self) -> Option<Duration> {
        self.first.map(|first| first - self.intended)
    }

    /// Returns the time from sending to the first characters.
    pub fn first_from_send(&self) -> Option<Duration> {
        Some(self.first? - self.sent?)
    }

    /// Returns the mean time of a character, except in the first message and in messages that came together with it. `None`
    /// if there are no others.
    pub fn per_char(&self) -> Option<Duration> {
        let after = u32::try_from(self.characters.checked_sub(self.first_characters)?).ok()?;
        (self.last? - self.first?).checked_div(after)
    }

    /// Returns the gap that a share of `share` of this request's gaps does not exceed.
    pub fn gap_percentile(&self, share: f64) -> Option<Duration> {
        nearest_rank(self.gaps.iter().map(|gap| gap.span), share)
    }
}

/// Counts since the start of the load, warm-up included; or their increments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoadCounters {
    pub characters: u64,
    /// Messages with characters.
    pub messages: u64,
    /// Requests that this program began to send.
    pub started: u64,
    /// Requests that succeeded.
    pub finished: u64,
    /// Requests that ended otherwise.
    pub failed: u64,
    /// Requests that met the objectives.
    pub good: u64,
    /// Measured requests that ended, with any outcome.
    pub measured: u64,
}

impl LoadCounters {
    pub fn in_flight(&self) -> u64 {
        self.started.saturating_sub(self.finished + self.failed)
    }
}

#[derive(Debug, Default)]
pub struct LiveCounters(Mutex<LoadCounters>);

#[derive(Debug, Clone, Copy)]
pub struct CounterSnapshot {
    time: Instant,
    pub counts: LoadCounters,
    /// Processor time of this process.
    cpu: Option<Duration>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CounterDelta {
    pub span: Duration,
    pub counts: LoadCounters,
    /// Processor time of this process; absent if the system does not report it.
    pub cpu: Option<Duration>,
}

/// Returns the processor time that this process used so far; `None` if the system does not report it.
#[cfg(unix)]
fn cpu_time() -> Option<Duration> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Some(Duration::new(u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?))
}

#[cfg(not(unix))]
fn cpu_time() -> Option<Duration> {
    None
}

impl LiveCounters {
    pub fn update(&self, change: impl FnOnce(&mut LoadCounters)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub fn read(&self) -> CounterSnapshot {
        let counts = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        CounterSnapshot { time: Instant::now(), counts, cpu: cpu_time() }
    }
}

impl CounterSnapshot {
    pub fn since(&self, before: &Self) -> CounterDelta {
        let counts = LoadCounters {
            characters: self.counts.characters - before.counts.characters,
            messages: self.counts.messages - before.counts.messages,
            started: self.counts.started - before.counts.started,
            finished: self.counts.finished - before.counts.finished,
            failed: self.counts.failed - before.counts.failed,
            good: self.counts.good - before.counts.good,
            measured: self.counts.measured - before.counts.measured,
        };
        let cpu = self.cpu.zip(before.cpu).map(|(now, before)| now.saturating_sub(before));
        CounterDelta { span: self.time - before.time, counts, cpu }
    }
}

/// Best completions that an editor shows as a list.
const SHOWN: usize = 3;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct EditMeasurement {
    /// Characters that were typed.
    pub keystrokes: u64,
    /// Keystrokes whose completions a later keystroke overtook.
    pub stale: u64,
    /// Keystrokes without a time: their completions failed, or a later keystroke overtook them and no later completions came.
    pub failed: u64,
    /// Keystrokes that the first completion would have saved.
    pub saved_by_first: u64,
    /// Keystrokes that the first three completions would have saved.
    pub saved_by_first_three: u64,
    /// Time from the planned time of a keystroke to the first completions of a text that contains it.
    pub latencies: Vec<Duration>,
    /// Time from the planned time of a keystroke to sending.
    pub send_lags: Vec<Duration>,
    /// Time from the request to the answer, as the server reports it.
    pub server: Vec<Duration>,
    /// Characters that were computed for an answer, as the server reports it.
    pub recomputed: Vec<u64>,
}

impl EditMeasurement {
    /// Adds the counts of `other`, without its lists.
    pub(crate) fn add(&mut self, other: &Self) {
        self.keystrokes += other.keystrokes;
        self.stale += other.stale;
        self.failed += other.failed;
        self.saved_by_first += other.saved_by_first;
        self.saved_by_first_three += other.saved_by_first_three;
    }

    /// Returns the latency at the quantile `share` of the keystrokes, by nearest rank.
    pub fn percentile(&self, share: f64) -> Option<Duration> {
        nearest_rank(self.latencies.iter().copied(), share)
    }
}

/// Answer to the request of a keystroke.
pub(crate) struct AnsweredKeystroke {
    /// Completions, best first.
    pub(crate) texts: Vec<String>,
    /// Characters that were computed, as the server reports them.
    pub(crate) recomputed: u64,
    /// Time from the request to the answer, as the server reports it.
    pub(crate) server: Duration,
}

/// Timer of a document whose characters are typed at planned times. Request n follows the n-th character.
pub(crate) struct KeystrokeTimer {
    /// Characters to type.
    text: Vec<char>,
    /// Planned time of each.
    planned: Vec<Instant>,
    /// Completions of the text before each character, if they came before that character was due.
    completions: Vec<Option<Vec<String>>>,
    /// Requests that were sent.
    sent: usize,
    /// The first request that counts.
    first_counted: usize,
    /// Requests that were sent and have no completions yet, in order.
    waiting: VecDeque<usize>,
    measurement: EditMeasurement,
}

impl KeystrokeTimer {
    /// Starts the timer of a text with the completions before its first character. Keystrokes that are due before `counts_from` do not
    /// count.
    pub(crate) fn new(text: &str, planned: Vec<Instant>, first: Vec<String>, counts_from: Option<Instant>) -> Self {
        let text: Vec<char> = text.chars().collect();
        let mut completions = vec![None; text.len()];
        if let Some(slot) = completions.first_mut() {
            *slot = Some(first);
        }
        let first_counted = 1 + counts_from.map_or(0, |from| planned.partition_point(|planned| *planned < from));
        Self {
            text,
            planned,
            completions,
            sent: 0,
            first_counted,
            waiting: VecDeque::new(),
            measurement: EditMeasurement::default(),
        }
    }

    /// Records that the next character and its request were sent.
    pub(crate) fn sent(&mut self, now: Instant) {
        self.sent += 1;
        if let Some(planned) = self.counted(self.sent) {
            self.measurement.keystrokes += 1;
            self.measurement.send_lags.push(now.saturating_duration_since(planned));
        }
        self.waiting.push_back(self.sent);
    }

    /// Records completions of request `number`. They also end the wait of all earlier keystrokes.
    pub(crate) fn completed(&mut self, number: u64, answer: AnsweredKeystroke, now: Instant) {
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        while let Some(&sent) = self.waiting.front().filter(|sent| **sent <= number) {
            self.waiting.pop_front();
            if let Some(planned) = self.counted(sent) {
                self.measurement.latencies.push(now.saturating_duration_since(planned));
            }
        }
        if self.counted(number).is_some() {
            self.measurement.server.push(answer.server);
            self.measurement.recomputed.push(answer.recomputed);
        }
        let next = self.planned.get(number).copied();
        if let Some(slot) = self.completions.get_mut(number)
            && next.is_some_and(|next| now < next)
        {
            *slot = Some(answer.texts);
        }
    }

    /// Records that a later keystroke overtook request `number`.
    pub(crate) fn stale(&mut self, number: u64) {
        self.measurement.stale += self.count_of(number);
    }

    /// Records that request `number` failed.
    pub(crate) fn failed(&mut self, number: u64) {
        self.measurement.failed += self.count_of(number);
        self.waiting.retain(|sent| *sent as u64 != number);
    }

    /// True if the last request has no answer yet.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.back() == Some(&self.sent)
    }

    /// Returns the measurement, with the keystrokes that the completions would have saved. Those that still wait have failed.
    pub(crate) fn finish(mut self) -> EditMeasurement {
        self.measurement.failed += self.waiting.iter().filter(|sent| **sent >= self.first_counted).count() as u64;
        self.measurement.saved_by_first = self.saved_by(1);
        self.measurement.saved_by_first_three = self.saved_by(SHOWN);
        self.measurement
    }

    /// Returns the planned time of the character that request `number` follows, if it counts.
    fn counted(&self, number: usize) -> Option<Instant> {
        self.planned.get(number.checked_sub(1)?).copied().filter(|_| number >= self.first_counted)
    }

    /// Returns 1 if request `number` counts, else 0.
    fn count_of(&self, number: u64) -> u64 {
        usize::try_from(number).map_or(0, |number| self.counted(number).is_some().into())
    }

    /// Returns how many keystrokes the first `shown` completions save. A completion is right if the text goes on with it. The
    /// typist accepts the longest right one of at least two characters as soon as it is shown, with one keystroke.
    fn saved_by(&self, shown: usize) -> u64 {
        let mut saved = 0;
        let mut typed = self.first_counted - 1;
        while let Some(completions) = self.completions.get(typed) {
            let rest = self.text.get(typed..).unwrap_or_default();
            let right = |text: &String| {
                let length = text.chars().count();
                text.chars().eq(rest.iter().copied().take(length)).then_some(length)
            };
            let longest = completions.iter().flatten().take(shown).filter_map(right).max().unwrap_or(0);
            if longest > 1 {
                saved += longest as u64 - 1;
                typed += longest;
            } else {
                typed += 1;
            }
        }
        saved
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
        let mut timer = ClientTimer::new(Arc::default(), Instant::now());
        sleep(ms(5)).await;
        timer.mark_sent();
        // first, plain, ended by the predictor, plain, ended by a mark, the gap after the mark, plain
        let predicted = ReceivedMessage { predicted_ends: 1, ..ONE };
        let marked = ReceivedMessage { marked_ends: 1, ..ONE };
        for (after, message) in [(20, ONE), (10, ONE), (30, predicted), (11, ONE), (12, marked), (40, ONE), (13, ONE)] {
            sleep(ms(after)).await;
            timer.record(message);
        }
        let gaps: Vec<_> = timer.gaps.iter().map(|gap| (gap.span.as_millis(), gap.boundary)).collect();
        assert_eq!(gaps, [(10, false), (30, true), (11, false), (12, false), (40, true), (13, false)]);
        assert_eq!((timer.first(), timer.first_from_send()), (Some(ms(25)), Some(ms(20))));
        assert_eq!(timer.per_char(), Some(ms(116) / 6));
        assert_eq!(timer.segments, [ms(23)]);
        let percentiles = [0.5, 0.99, 0.0].map(|share| timer.gap_percentile(share));
        assert_eq!(percentiles, [Some(ms(12)), Some(ms(40)), Some(ms(10))]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_without_characters_is_ignored_and_several_characters_in_one_have_no_gap() {
        let mut timer = ClientTimer::new(Arc::default(), Instant::now());
        timer.mark_sent();
        timer.record(ReceivedMessage::default());
        assert_eq!((timer.first(), timer.messages), (None, 0));
        timer.record(ReceivedMessage { characters: 3, predicted_ends: 1, marked_ends: 0 });
        sleep(ms(7)).await;
        timer.record(ONE);
        assert_eq!(timer.gaps, [Gap { span: ms(7), boundary: false }]);
        assert_eq!((timer.characters, timer.messages, timer.segments.len()), (4, 2, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn messages_that_came_together_give_no_speed() {
        let end = ReceivedMessage { predicted_ends: 1, ..ONE };
        let mut timer = ClientTimer::new(Arc::default(), Instant::now());
        timer.mark_sent();
        let us = Duration::from_micros;
        // eight characters in 24 µs, with two ends of segments
        for message in [ONE, ONE, ONE, end, ONE, ONE, ONE, end] {
            advance(us(3)).await;
            timer.record(message);
        }
        assert_eq!((timer.per_char(), timer.segments.len()), (None, 0));
        // another end 40 ms later, and two characters together with it, of which the second ends a segment
        for (after, message) in [(40_000, end), (3, ONE), (3, end)] {
            advance(us(after)).await;
            timer.record(message);
        }
        assert_eq!(
            timer.per_char(),
            Some((us(40_006) + us(21)) / 3),
            "from the first message on, without the characters that came together with it"
        );
        assert_eq!(timer.segments, [us(40_000)]);
        assert_eq!(timer.gaps.len(), 10);
    }

    fn answer(texts: &[&str]) -> AnsweredKeystroke {
        let texts = texts.iter().map(|text| (*text).to_owned()).collect();
        AnsweredKeystroke { texts, recomputed: 3, server: ms(2) }
    }

    /// Types a text, one character each 100 ms, with completions that come 10 ms after each.
    fn typed(text: &str, completions: &[&[&str]]) -> EditMeasurement {
        let begin = Instant::now();
        let planned: Vec<_> = (1..=text.chars().count() as u32).map(|number| begin + ms(100) * number).collect();
        let mut timer = KeystrokeTimer::new(text, planned.clone(), answer(completions[0]).texts, None);
        for (number, (planned, texts)) in (1..).zip(planned.iter().zip(&completions[1..])) {
            timer.sent(*planned);
            timer.completed(number, answer(texts), *planned + ms(10));
            assert!(!timer.is_waiting());
        }
        timer.finish()
    }

    #[test]
    fn a_completion_saves_its_characters_but_one() {
        // nothing is right before the first character, then `he` and, as the third one, `here`
        let completions: [&[&str]; 7] =
            [&["xy"], &["he", "hx", "here"], &["ere"], &["re"], &["e"], &["i", "is"], &["s"]];
        let measured = typed("there i", &completions);
        // `he` after `t`, then `re` after `the`
        assert_eq!((measured.saved_by_first, measured.saved_by_first_three), (2, 3));
        assert_eq!((measured.keystrokes, measured.stale, measured.failed), (6, 0, 0));
        assert_eq!((measured.percentile(0.5), measured.recomputed.len()), (Some(ms(10)), 6));
        // a completion of one character saves nothing, and one that ends beyond the text is not right
        assert_eq!(typed("ab", &[&["a"], &["bc", "b"], &[]]).saved_by_first_three, 0);
        assert_eq!(typed("ab", &[&["ab"], &["b"], &[]]).saved_by_first, 1);
    }

    #[test]
    fn a_keystroke_that_was_overtaken_waits_for_the_next_completions() {
        let begin = Instant::now();
        let planned = vec![begin + ms(10), begin + ms(20), begin + ms(30), begin + ms(40)];
        let mut timer = KeystrokeTimer::new("abcd", planned, vec![], None);
        timer.sent(begin + ms(11));
        timer.sent(begin + ms(20));
        timer.stale(1);
        timer.completed(2, answer(&["cd"]), begin + ms(35));
        timer.sent(begin + ms(36));
        timer.failed(3);
        timer.sent(begin + ms(40));
        assert!(timer.is_waiting());
        timer.completed(4, answer(&[]), begin + ms(45));
        let measured = timer.finish();
        assert_eq!(measured.latencies, [ms(25), ms(15), ms(5)]);
        assert_eq!(measured.send_lags, [ms(1), ms(0), ms(6), ms(0)]);
        assert_eq!((measured.keystrokes, measured.stale, measured.failed), (4, 1, 1));
        // `cd` was right, but the next character was due before
        assert_eq!(measured.saved_by_first, 0);
    }

    #[test]
    fn keystrokes_without_later_completions_have_failed() {
        let begin = Instant::now();
        let mut timer = KeystrokeTimer::new("abc", vec![begin, begin + ms(10), begin + ms(20)], vec![], None);
        timer.sent(begin);
        timer.completed(1, answer(&[]), begin + ms(5));
        timer.sent(begin + ms(10));
        timer.sent(begin + ms(20));
        timer.stale(2);
        timer.failed(3);
        let measured = timer.finish();
        assert_eq!((measured.keystrokes, measured.stale, measured.failed), (3, 1, 2));
        assert_eq!(measured.latencies, [ms(5)]);
    }

    /// A session that began in the warm-up: its first two keystrokes do not count.
    #[test]
    fn keystrokes_before_the_window_do_not_count() {
        let begin = Instant::now();
        let planned: Vec<_> = (1..=4).map(|number| begin + ms(10) * number).collect();
        let mut timer = KeystrokeTimer::new("abcd", planned.clone(), answer(&["abcd"]).texts, Some(begin + ms(25)));
        for (number, planned) in (1..).zip(planned) {
            timer.sent(planned);
            match number {
                1 | 3 => timer.stale(number),
                _ => timer.completed(number, answer(&["cd"]), planned + ms(5)),
            }
        }
        let measured = timer.finish();
        assert_eq!((measured.keystrokes, measured.stale, measured.failed), (2, 1, 0));
        assert_eq!(measured.latencies, [ms(15), ms(5)]);
        assert_eq!((measured.send_lags.len(), measured.server.len(), measured.saved_by_first), (2, 1, 1));
    }
}
