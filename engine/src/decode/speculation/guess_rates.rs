//! How often guesses of each kind were right.

use std::array;

/// Kinds of guesses from matches, and the assumed rates of right guesses before any was seen.
const MATCH_KINDS: [MatchKind; 7] = [
    MatchKind { shortest: 4, assumed: 0.35 },
    MatchKind { shortest: 5, assumed: 0.45 },
    MatchKind { shortest: 6, assumed: 0.5 },
    MatchKind { shortest: 8, assumed: 0.6 },
    MatchKind { shortest: 12, assumed: 0.7 },
    MatchKind { shortest: 16, assumed: 0.8 },
    MatchKind { shortest: 32, assumed: 0.9 },
];
/// Kinds of guesses from n-grams, by equal ranges of their confidence.
const NGRAM_KINDS: usize = 8;
const KINDS: usize = MATCH_KINDS.len() + NGRAM_KINDS;

struct MatchKind {
    shortest: usize,
    assumed: f64,
}

/// The kind of a guess: the length of the match that it comes from, or the confidence of the n-gram.
#[derive(Debug, Clone, Copy)]
pub(super) struct GuessKind(usize);

impl GuessKind {
    /// The kind of a guess from a match of this length, or `None` if that is too short.
    pub(super) fn of_match(length: usize) -> Option<Self> {
        MATCH_KINDS.iter().rposition(|kind| kind.shortest <= length).map(Self)
    }

    pub(super) fn of_ngram(confidence: u8) -> Self {
        Self(MATCH_KINDS.len() + usize::from(confidence) * NGRAM_KINDS / 256)
    }
}

/// The share of right guesses of each kind. Later guesses weigh more. Rates decide which symbols are fed as guesses, and never the
/// text.
#[derive(Debug, Clone, PartialEq)]
pub struct GuessRates([f64; KINDS]);

impl Default for GuessRates {
    /// The assumed rates.
    fn default() -> Self {
        Self(array::from_fn(|kind| match MATCH_KINDS.get(kind) {
            Some(kind) => kind.assumed,
            None => (kind - MATCH_KINDS.len()) as f64 / NGRAM_KINDS as f64,
        }))
    }
}

impl GuessRates {
    pub(super) fn of(&self, GuessKind(kind): GuessKind) -> f64 {
        self.0[kind]
    }

    /// Records whether a guess was right, with weight `weight`. The rate so far keeps 1 − `weight`.
    pub(super) fn record(&mut self, GuessKind(kind): GuessKind, right: bool, weight: f64) {
        self.0[kind] += (f64::from(u8::from(right)) - self.0[kind]) * weight;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_length_and_confidence_has_a_kind() {
        assert!(GuessKind::of_match(3).is_none());
        let kinds = [4, 5, 7, 8, 31, 32, 1000].map(|length| GuessKind::of_match(length).unwrap().0);
        assert_eq!(kinds, [0, 1, 2, 3, 5, 6, 6]);
        let kinds = [0, 31, 32, 255].map(|confidence| GuessKind::of_ngram(confidence).0);
        assert_eq!(kinds, [7, 7, 8, KINDS - 1]);
    }

    #[test]
    fn rates_move_towards_what_was_recorded() {
        let mut rates = GuessRates::default();
        let kind = GuessKind::of_ngram(255);
        let before = rates.of(kind);
        rates.record(kind, false, 0.25);
        assert_eq!(rates.of(kind), 0.75 * before);
        (0..100).for_each(|_| rates.record(kind, true, 0.25));
        assert!((rates.of(kind) - 1.0).abs() < 1e-6);
    }
}
