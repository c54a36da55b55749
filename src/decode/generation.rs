//! Symbols that are sampled: chosen, held back while they may belong to a stop string or wait for their mark, told, and
//! counted until a rule says stop.
//!
//! Every sampled symbol is fed, the last one too, so that its mark and the sequence's final state are known. The rules
//! take effect in the order of time: a stop string, `max_chars` and the longest context when a symbol is sampled,
//! `max_segments` when it was fed. Of those that take effect with the same symbol a stop string comes first, then
//! `max_segments` (the text is whole, not cut), then `max_chars`, then the longest context.
//!
//! A model may write marks as well ([`ControlSymbols`]). One ends the text: it is told as the last symbol, and neither fed nor counted.
//! One ends a segment: it is no symbol of the text, so it is not told, nor counted, nor seen by penalty or stop strings; its draw
//! is a draw like any other, and the symbol before it gets its boundary.

use super::{
    contract::{BoundaryMode, SequenceRow, SymbolBoundary, Want},
    options::{Details, EmittedSymbol, FinishReason, Sampling, Stopping},
    sampling::{
        logprobs::{LogprobOptions, SymbolLogprobs, log_probability},
        sampler::Sampler,
        stops::StopMatcher,
    },
    trace,
};
use crate::{error::Result, text::SpecialSymbols};
use std::collections::VecDeque;

/// The sampled part of a sequence.
#[derive(Debug, Clone)]
pub(super) struct Generation {
    sampler: Sampler,
    stops: StopMatcher,
    limits: Limits,
    telling: LogprobOptions,
    /// Whether symbols are told with their marks, hence one step later.
    marks: bool,
    include_stop: bool,
    /// Sampled and not yet told, oldest first.
    held: VecDeque<EmittedSymbol>,
    /// Sampled and not yet fed.
    latest: Option<u32>,
    /// Whether `held` ends with `latest`; not so if that belongs to a stop string that is not told.
    latest_is_held: bool,
    /// Symbols sampled.
    chars: usize,
    /// Why it ends once `latest` is fed.
    reason: Option<FinishReason>,
    /// The model's own marks, if it writes any.
    mark_up: Option<ControlSymbols>,
}

/// What a model may choose beside the symbols of a text.
#[derive(Debug, Clone, Copy)]
pub(super) struct ControlSymbols {
    specials: SpecialSymbols,
    /// Whether its marks end segments; if not, its predictor does.
    ends_segments: bool,
    /// Whether it may end the text.
    ends_text: bool,
    /// Times that it has ended a segment.
    chosen: usize,
    /// Whether it has just done so and the mark is to be fed.
    is_ending: bool,
}

impl ControlSymbols {
    /// Those of a model with such symbols, if it has any, whose segments are ended in that way.
    pub(super) fn new(
        specials: Option<SpecialSymbols>,
        mode: Option<BoundaryMode>,
        stopping: &Stopping,
    ) -> Option<Self> {
        let (ends_segments, ends_text) = (mode == Some(BoundaryMode::Nxt), !stopping.ignore_end);
        specials.map(|specials| Self { specials, ends_segments, ends_text, chosen: 0, is_ending: false })
    }
}

/// What bounds a generation.
#[derive(Debug, Clone, Copy)]
struct Limits {
    max_chars: usize,
    min_chars: usize,
    max_segments: Option<usize>,
    /// The most symbols of the sequence, prompt and all.
    max_symbols: usize,
}

impl Generation {
    /// For a sequence of at most `max_symbols` over `vocabulary`, by a model that may write these marks.
    pub(super) fn new(
        request: (Sampling, Stopping, &Details),
        (vocabulary, max_symbols): (usize, usize),
        mark_up: Option<ControlSymbols>,
    ) -> Self {
        let (sampling, stopping, details) = request;
        let Stopping { max_chars, min_chars, max_segments, stop, include_stop, ignore_end: _ } = stopping;
        Self {
            sampler: Sampler::new(sampling, vocabulary),
            stops: StopMatcher::new(stop, min_chars),
            limits: Limits { max_chars, min_chars, max_segments, max_symbols },
            mark_up,
            telling: LogprobOptions { logprobs: details.logprobs, top: details.top_logprobs },
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

    /// The same as it is fed: with its boundary, where that is not the predictor's to say. A segment ends when the mark comes.
    pub(super) fn latest_item(&self) -> Option<u32> {
        let marked = self.mark_up.is_some_and(|marks| marks.ends_segments);
        self.latest.map(|symbol| if marked { trace::item(symbol, false) } else { symbol })
    }

    /// Times that the model has ended a segment by its mark.
    pub(super) fn nxt_steps(&self) -> usize {
        self.mark_up.map_or(0, |marks| marks.chosen)
    }

    /// Whether only its mark ends segments.
    pub(super) fn is_traced(&self) -> bool {
        self.mark_up.is_some_and(|marks| marks.ends_segments)
    }

    /// Lays the latest symbol, or the mark behind it, into the row; before the first symbol of a text without a beginning, what
    /// asks for its logits. No logits are wanted if it is the last.
    pub(super) fn feed(&self, row: &mut SequenceRow) {
        let want = if self.reason.is_some() { Want::Nothing } else { Want::Last };
        let control = if self.mark_up.is_some_and(|marks| marks.is_ending) { trace::END } else { trace::BEGIN };
        row.set(&[self.latest_item().unwrap_or(control)], want);
    }

    /// Takes the latest symbol's mark, if it was a symbol, and how many segments sampled symbols have closed by now; tells why
    /// the generation ends, if it does.
    pub(super) fn absorb(
        &mut self,
        mark: Option<SymbolBoundary>,
        segments: usize,
        told: &mut Vec<EmittedSymbol>,
    ) -> Option<FinishReason> {
        self.latest = None;
        if let Some(marks) = &mut self.mark_up {
            marks.is_ending = false;
        }
        let latest = self.held.back_mut().filter(|_| self.marks && self.latest_is_held);
        if let Some((character, mark)) = latest.zip(mark) {
            character.decision = Some(mark);
        }
        let enough = self.limits.max_segments.is_some_and(|most| segments >= most);
        if enough && !matches!(self.reason, Some(FinishReason::Stop(_))) {
            self.reason = Some(FinishReason::MaxSegments);
        }
        if self.reason.is_some() {
            self.abandon(told);
        }
        self.reason.clone()
    }

    /// Samples the symbol at `position` from the logits (vocab) before it; `opens` if no symbol of its segment was fed. Tells why
    /// the generation ends without another symbol, if it does.
    pub(super) fn sample(
        &mut self,
        logits: &[f32],
        (position, opens): (usize, bool),
        told: &mut Vec<EmittedSymbol>,
    ) -> Result<Option<FinishReason>> {
        if self.limits.max_chars == 0 {
            return Ok(Some(FinishReason::MaxChars));
        }
        if position >= self.limits.max_symbols {
            return Ok(Some(FinishReason::MaxContext));
        }
        let symbol = self.choose(logits, position, opens)?;
        if let Some(ControlSymbols { specials, .. }) = self.mark_up {
            if symbol == specials.segment_end {
                return self.end_segment(symbol, logits, told).map(|()| None);
            }
            if symbol == specials.end {
                self.abandon(told);
                let SymbolLogprobs { logprob, top } = self.telling.of(symbol, logits)?;
                told.push(EmittedSymbol { symbol, logprob, decision: None, top });
                return Ok(Some(FinishReason::EndOfText));
            }
        }
        self.sampler.see(symbol);
        self.chars += 1;
        let SymbolLogprobs { logprob, top } = self.telling.of(symbol, logits)?;
        self.held.push_back(EmittedSymbol { symbol, logprob, decision: None, top });
        (self.latest, self.latest_is_held) = (Some(symbol), true);
        let met = self.stops.push(symbol);
        self.reason = match met {
            Some(met) => Some(FinishReason::Stop(met.index)),
            None if self.chars == self.limits.max_chars => Some(FinishReason::MaxChars),
            None if position + 1 == self.limits.max_symbols => Some(FinishReason::MaxContext),
            None => None,
        };
        if let Some(met) = met.filter(|_| !self.include_stop) {
            self.held.truncate(self.held.len().saturating_sub(met.length));
            self.latest_is_held = false;
        }
        self.release(told);
        Ok(None)
    }

    /// Draws a symbol or a mark. Every draw has a number of its own.
    fn choose(&mut self, logits: &[f32], position: usize, opens: bool) -> Result<u32> {
        let Some(ControlSymbols { specials, ends_segments, ends_text, chosen, .. }) = self.mark_up else {
            return self.sampler.choose(logits, position);
        };
        // no segment is without a symbol
        let nxt = (opens || !ends_segments).then_some(specials.segment_end);
        let end = (!ends_text || self.chars < self.limits.min_chars).then_some(specials.end);
        self.sampler.ban(specials.never_sampled().into_iter().chain(nxt).chain(end));
        self.sampler.choose(logits, position + chosen)
    }

    /// The segment ends with the latest symbol, which is known now to be its last.
    fn end_segment(&mut self, mark: u32, logits: &[f32], told: &mut Vec<EmittedSymbol>) -> Result<()> {
        if let Some(marks) = &mut self.mark_up {
            (marks.chosen, marks.is_ending) = (marks.chosen + 1, true);
        }
        let latest = self.held.back_mut().filter(|_| self.marks && self.latest_is_held);
        if let Some(boundary) = latest.and_then(|character| character.decision.as_mut()) {
            boundary.boundary = true;
            boundary.end_logprob = Some(log_probability(logits, mark)? as f32);
        }
        self.latest_is_held = false;
        self.release(told);
        Ok(())
    }

    /// Tells all that is held back.
    pub(super) fn abandon(&mut self, told: &mut Vec<EmittedSymbol>) {
        told.extend(self.held.drain(..));
    }

    /// Tells what is held back no longer.
    fn release(&mut self, told: &mut Vec<EmittedSymbol>) {
        let undecided = if self.reason.is_some() { 0 } else { self.stops.withheld() };
        let unmarked = usize::from(self.marks && self.latest_is_held);
        let free = self.held.len().saturating_sub(undecided.max(unmarked));
        told.extend(self.held.drain(..free));
    }
}
