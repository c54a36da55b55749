//! Timer of one edited document: when each keystroke got its completions, and which keystrokes they save.

use std::{collections::VecDeque, time::Duration};
use tokio::time::Instant;

/// Best completions that an editor shows as a list.
const SHOWN: usize = 3;

/// Measurement of a document.
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
    /// Returns the latency at the quantile `share` of the keystrokes, by nearest rank.
    pub fn percentile(&self, share: f64) -> Option<Duration> {
        let mut latencies = self.latencies.clone();
        latencies.sort_unstable();
        let rank = (share * latencies.len() as f64).ceil() as usize;
        latencies.get(rank.saturating_sub(1)).copied()
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
    /// Requests that were sent and have no completions yet, in order.
    waiting: VecDeque<usize>,
    measurement: EditMeasurement,
}

impl KeystrokeTimer {
    /// Starts the timer of a text with the completions before its first character.
    pub(crate) fn new(text: &str, planned: Vec<Instant>, first: Vec<String>) -> Self {
        let text: Vec<char> = text.chars().collect();
        let mut completions = vec![None; text.len()];
        if let Some(slot) = completions.first_mut() {
            *slot = Some(first);
        }
        Self { text, planned, completions, waiting: VecDeque::new(), measurement: EditMeasurement::default() }
    }

    /// Records that the next character and its request were sent.
    pub(crate) fn sent(&mut self, now: Instant) {
        self.measurement.keystrokes += 1;
        let number = usize::try_from(self.measurement.keystrokes).unwrap_or(usize::MAX);
        if let Some(planned) = self.planned_for(number) {
            self.measurement.send_lags.push(now.saturating_duration_since(planned));
        }
        self.waiting.push_back(number);
    }

    /// Records completions of request `number`. They also end the wait of all earlier keystrokes.
    pub(crate) fn completed(&mut self, number: u64, answer: AnsweredKeystroke, now: Instant) {
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        while let Some(&sent) = self.waiting.front().filter(|sent| **sent <= number) {
            self.waiting.pop_front();
            if let Some(planned) = self.planned_for(sent) {
                self.measurement.latencies.push(now.saturating_duration_since(planned));
            }
        }
        self.measurement.server.push(answer.server);
        self.measurement.recomputed.push(answer.recomputed);
        let next = self.planned.get(number).copied();
        if let Some(slot) = self.completions.get_mut(number)
            && next.is_some_and(|next| now < next)
        {
            *slot = Some(answer.texts);
        }
    }

    /// Records that a later keystroke overtook a request.
    pub(crate) fn stale(&mut self) {
        self.measurement.stale += 1;
    }

    /// Records that request `number` failed.
    pub(crate) fn failed(&mut self, number: u64) {
        self.measurement.failed += 1;
        self.waiting.retain(|sent| *sent as u64 != number);
    }

    /// True if the last request has no answer yet.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.back().is_some_and(|sent| *sent as u64 == self.measurement.keystrokes)
    }

    /// Returns the measurement, with the keystrokes that the completions would have saved. Those that still wait have failed.
    pub(crate) fn finish(mut self) -> EditMeasurement {
        self.measurement.failed += self.waiting.len() as u64;
        self.measurement.saved_by_first = self.saved_by(1);
        self.measurement.saved_by_first_three = self.saved_by(SHOWN);
        self.measurement
    }

    /// Returns the planned time of the character that request `number` follows.
    fn planned_for(&self, number: usize) -> Option<Instant> {
        self.planned.get(number.checked_sub(1)?).copied()
    }

    /// Returns how many keystrokes the first `shown` completions save. A completion is right if the text goes on with it. The
    /// typist accepts the longest right one of at least two characters as soon as it is shown, with one keystroke.
    fn saved_by(&self, shown: usize) -> u64 {
        let mut saved = 0;
        let mut typed = 0;
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

    fn ms(span: u64) -> Duration {
        Duration::from_millis(span)
    }

    fn answer(texts: &[&str]) -> AnsweredKeystroke {
        let texts = texts.iter().map(|text| (*text).to_owned()).collect();
        AnsweredKeystroke { texts, recomputed: 3, server: ms(2) }
    }

    /// Types a text, one character each 100 ms, with completions that come 10 ms after each.
    fn typed(text: &str, completions: &[&[&str]]) -> EditMeasurement {
        let begin = Instant::now();
        let planned: Vec<_> = (1..=text.chars().count() as u32).map(|number| begin + ms(100) * number).collect();
        let mut timer = KeystrokeTimer::new(text, planned.clone(), answer(completions[0]).texts);
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
        let mut timer = KeystrokeTimer::new("abcd", planned, vec![]);
        timer.sent(begin + ms(11));
        timer.sent(begin + ms(20));
        timer.stale();
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
        let mut timer = KeystrokeTimer::new("abc", vec![begin, begin + ms(10), begin + ms(20)], vec![]);
        timer.sent(begin);
        timer.completed(1, answer(&[]), begin + ms(5));
        timer.sent(begin + ms(10));
        timer.sent(begin + ms(20));
        timer.stale();
        timer.failed(3);
        let measured = timer.finish();
        assert_eq!((measured.keystrokes, measured.stale, measured.failed), (3, 1, 2));
        assert_eq!(measured.latencies, [ms(5)]);
    }
}
