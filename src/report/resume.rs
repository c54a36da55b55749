//! What the segment cache spares a client: the time to the first character of a prompt whose beginning is cached, beside that
//! of a prompt of which nothing is. Who serves, who calls and how the clock is read is the command's business; here is what is
//! asked for, and what is told of the times.

use super::{compare::Ratio, head::Head, prefill::MAX_RUNS, quantiles::Quantiles, sample::Sample};
use crate::{
    decode::contract::Card,
    error::{Error, Result},
};
use serde::Serialize;

/// What is to be timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Symbols that the prompts of a pair begin with, alike.
    pub context: usize,
    /// Symbols of each prompt behind them, its own.
    pub more: usize,
    /// Timed pairs of a cold and a resumed prompt, after one that is not timed.
    pub runs: usize,
}

/// Symbols at the start of a pair's prompts that tell the pair's number: no other pair's begin so. A cold prompt has at most
/// these in common with what came before.
const NUMBER: usize = 16;

impl Plan {
    /// Whether the model can do it.
    ///
    /// # Errors
    /// [`Error::BadOption`] or [`Error::TooLong`] with the command line's option and its bound.
    pub fn check(&self, card: &Card) -> Result<()> {
        // the character that is generated needs a place, too
        let limit = card.max_symbols.saturating_sub(1);
        super::bounded("--more", self.more, 1, limit)?;
        super::bounded("--runs", self.runs, 1, MAX_RUNS)?;
        if self.context < 2 * NUMBER {
            let bound = format!("{} or more, of which {NUMBER} tell the pairs apart", 2 * NUMBER);
            return Err(Error::BadOption { field: "--context", found: self.context.to_string(), bound });
        }
        if card.vocabulary.len() < 2 {
            return Err(Error::Setting("resume: a vocabulary of one symbol has no prompts that differ".into()));
        }
        let length = self.context + self.more;
        if length > limit {
            return Err(Error::TooLong {
                field: "--context and --more together",
                length,
                limit,
                unit: "characters",
                why: None,
            });
        }
        Ok(())
    }

    /// The two prompts of a pair: what the first begins with, the second does too, and no other pair's does.
    pub fn prompts(&self, card: &Card, pair: usize) -> [String; 2] {
        let sample = Sample::new(&card.vocabulary);
        // the pair's number, in digits of the two first letters of the sample that differ
        let first = sample.at(0);
        let other = (1..sample.len()).map(|place| sample.at(place)).find(|&symbol| symbol != first).unwrap_or(first);
        let mut prefix: Vec<u32> =
            (0..NUMBER).map(|digit| if pair >> digit & 1 == 1 { other } else { first }).collect();
        prefix.extend(sample.window(Sample::start(pair), self.context - NUMBER));
        [1, 2].map(|which| {
            let more = sample.window(Sample::start(pair + which) + self.context, self.more);
            card.vocabulary.decode(&[prefix.as_slice(), &more].concat())
        })
    }
}

/// What a prompt's answer told.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Answered {
    /// From the request to the end of an answer of one character.
    pub ns: f64,
    /// Characters of the prompt that the server had cached.
    pub cached_chars: u64,
}

/// A measurement of resuming, as it is told.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Entry {
    /// The model, and what it runs on.
    #[serde(flatten)]
    pub head: Head,
    /// Symbols that the prompts of a pair begin with, alike.
    pub context: usize,
    /// Symbols of each prompt behind them.
    pub more: usize,
    /// Symbols a step while a prompt is fed.
    pub chunk: usize,
    /// A prompt of which nothing is cached: the time to its first character, of the median run.
    pub cold_ns_p50: f64,
    /// A fast run.
    pub cold_ns_p10: f64,
    /// A slow run.
    pub cold_ns_p90: f64,
    /// A prompt whose beginning is cached: the median run.
    pub resumed_ns_p50: f64,
    /// A fast run.
    pub resumed_ns_p10: f64,
    /// A slow run.
    pub resumed_ns_p90: f64,
    /// Cold ÷ resumed, over the pairs.
    pub ratio: Ratio,
    /// Characters that the cache spared a resumed prompt, on the mean: the shared ones, but for the segment that was open.
    pub cached_chars: f64,
    /// Pairs timed.
    pub runs: usize,
    /// Letters of the sample that the vocabulary does not have.
    pub foreign_letters: usize,
}

impl Entry {
    /// Of pairs of answers, the cold one first.
    ///
    /// # Errors
    /// [`Error::Internal`] if there is none, or if a cold prompt was cached.
    pub fn new(head: Head, card: &Card, plan: Plan, chunk: usize, pairs: &[[Answered; 2]]) -> Result<Self> {
        if pairs.iter().any(|[cold, _]| cold.cached_chars > NUMBER as u64) {
            return Err(Error::Internal("a prompt that nobody had sent was cached".into()));
        }
        let empty = || Error::Internal("no run was timed".into());
        let cold = Quantiles::of(pairs.iter().map(|[cold, _]| cold.ns).collect()).ok_or_else(empty)?;
        let resumed = Quantiles::of(pairs.iter().map(|[_, resumed]| resumed.ns).collect()).ok_or_else(empty)?;
        let times: Vec<_> = pairs.iter().map(|[cold, resumed]| (cold.ns, resumed.ns)).collect();
        let cached: u64 = pairs.iter().map(|[_, resumed]| resumed.cached_chars).sum();
        Ok(Self {
            head,
            context: plan.context,
            more: plan.more,
            chunk,
            cold_ns_p50: cold.p50,
            cold_ns_p10: cold.p10,
            cold_ns_p90: cold.p90,
            resumed_ns_p50: resumed.p50,
            resumed_ns_p10: resumed.p10,
            resumed_ns_p90: resumed.p90,
            ratio: Ratio::of(&times).ok_or_else(empty)?,
            cached_chars: cached as f64 / pairs.len() as f64,
            runs: pairs.len(),
            foreign_letters: Sample::new(&card.vocabulary).foreign(),
        })
    }
}
