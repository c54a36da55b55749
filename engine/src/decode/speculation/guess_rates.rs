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

/// The share of right guesses of each kind. Later guesses weigh more.
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

    /// Records whether a guess was right. It weighs `weight`, and all earlier ones the rest of 1.
    pub(super) fn record(&mut self, GuessKind(kind): GuessKind, right: bool, weight: f64) {
        self.0[kind] += (f64::from(u8::from(right)) - self.0[kind]) * weight;
    }
}
