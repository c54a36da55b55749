//! Symbols that are sampled: chosen, held back while they may belong to a stop string or wait for their mark, told, and
//! counted until a rule says stop.
//!
//! Every sampled symbol is fed, the last one too, so that its mark and the sequence's final state are known. The rules
//! take effect in the order of time: a stop string, `max_chars` and the longest context when a symbol is sampled,
//! `max_segments` when it was fed. Of those that take effect with the same symbol a stop string comes first, then
//! `max_segments` (the text is whole, not cut), then `max_chars`, then the longest context.

use super::{
    contract::{Mark, Row, Want},
    logprobs::{Telling, Told},
    options::{Character, Details, Reason, Sampling, Stopping},
    sampler::Sampler,
    stops::Stops,
};
use crate::error::Result;
use std::collections::VecDeque;

/// The sampled part of a sequence.
#[derive(Debug, Clone)]
pub(super) struct Generation {
    sampler: Sampler,
    stops: Stops,
    limits: Limits,
    telling: Telling,
    /// Whether symbols are told with their marks, hence one step later.
    marks: bool,
    include_stop: bool,
    /// Sampled and not yet told, oldest first.
    held: VecDeque<Character>,
    /// Sampled and not yet fed.
    latest: Option<u32>,
    /// Whether `held` ends with `latest`; not so if that belongs to a stop string that is not told.
    latest_is_held: bool,
    /// Symbols sampled.
    chars: usize,
    /// Why it ends once `latest` is fed.
    reason: Option<Reason>,
}

/// What bounds a generation.
#[derive(Debug, Clone, Copy)]
struct Limits {
    max_chars: usize,
    max_segments: Option<usize>,
    /// The most symbols of the sequence, prompt and all.
    max_symbols: usize,
}

impl Generation {
    /// For a sequence of at most `max_symbols` over `vocabulary`.
    pub(super) fn new(request: (Sampling, Stopping, &Details), vocabulary: usize, max_symbols: usize) -> Self {
        let (sampling, stopping, details) = request;
        let Stopping { max_chars, min_chars, max_segments, stop, include_stop } = stopping;
        Self {
            sampler: Sampler::new(sampling, vocabulary),
            stops: Stops::new(stop, min_chars),
            limits: Limits { max_chars, max_segments, max_symbols },
            telling: Telling { logprobs: details.logprobs, top: details.top_logprobs },
            marks: details.boundaries,
            include_stop,
            held: VecDeque::new(),
            latest: None,
            latest_is_held: false,
            chars: 0,
            reason: None,
        }
    }

    /// Notes the prompt, for the repetition penalty.
    pub(super) fn see(&mut self, prompt: &[u32]) {
        prompt.iter().for_each(|&symbol| self.sampler.see(symbol));
    }

    /// Symbols sampled.
    pub(super) fn chars(&self) -> usize {
        self.chars
    }

    /// The symbol that was sampled and not yet fed.
    pub(super) fn latest(&self) -> Option<u32> {
        self.latest
    }

    /// Lays the latest symbol into the row. No logits are wanted if it is the last.
    pub(super) fn feed(&self, row: &mut Row) {
        let want = if self.reason.is_some() { Want::Nothing } else { Want::Last };
        row.set(self.latest.as_slice(), want);
    }

    /// Takes the latest symbol's mark, and how many segments sampled symbols have closed by now; tells why the generation
    /// ends, if it does.
    pub(super) fn absorb(&mut self, mark: Option<Mark>, segments: usize, told: &mut Vec<Character>) -> Option<Reason> {
        self.latest = None;
        if let Some(character) = self.held.back_mut().filter(|_| self.marks && self.latest_is_held) {
            character.mark = mark;
        }
        let enough = self.limits.max_segments.is_some_and(|most| segments >= most);
        if enough && !matches!(self.reason, Some(Reason::Stop(_))) {
            self.reason = Some(Reason::MaxSegments);
        }
        if self.reason.is_some() {
            self.abandon(told);
        }
        self.reason.clone()
    }

    /// Samples the symbol at `position` from the logits (vocab) before it. Tells why the generation ends without another
    /// symbol, if it does.
    pub(super) fn sample(
        &mut self,
        logits: &[f32],
        position: usize,
        told: &mut Vec<Character>,
    ) -> Result<Option<Reason>> {
        if position >= self.limits.max_symbols {
            return Ok(Some(Reason::MaxContext));
        }
        let symbol = self.sampler.choose(logits, position)?;
        self.sampler.see(symbol);
        self.chars += 1;
        let Told { logprob, top } = self.telling.of(symbol, logits)?;
        self.held.push_back(Character { symbol, logprob, mark: None, top });
        (self.latest, self.latest_is_held) = (Some(symbol), true);
        let met = self.stops.push(symbol);
        self.reason = match met {
            Some(met) => Some(Reason::Stop(met.index)),
            None if self.chars == self.limits.max_chars => Some(Reason::MaxChars),
            None if position + 1 == self.limits.max_symbols => Some(Reason::MaxContext),
            None => None,
        };
        if let Some(met) = met.filter(|_| !self.include_stop) {
            self.held.truncate(self.held.len().saturating_sub(met.length));
            self.latest_is_held = false;
        }
        self.release(told);
        Ok(None)
    }

    /// Tells all that is held back.
    pub(super) fn abandon(&mut self, told: &mut Vec<Character>) {
        told.extend(self.held.drain(..));
    }

    /// Tells what is held back no longer.
    fn release(&mut self, told: &mut Vec<Character>) {
        let undecided = if self.reason.is_some() { 0 } else { self.stops.withheld() };
        let unmarked = usize::from(self.marks && self.latest_is_held);
        let free = self.held.len().saturating_sub(undecided.max(unmarked));
        told.extend(self.held.drain(..free));
    }
}
