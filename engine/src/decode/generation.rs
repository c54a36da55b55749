//! Sampled symbols: chosen, held back while they may belong to a stop string or wait for their boundary, emitted, and counted
//! until a rule ends the generation.
//!
//! Every sampled symbol is fed, including the last one, so its boundary and the sequence's final state are known. A stop
//! string, `max_chars` and the longest context take effect when a symbol is sampled, `max_segments` when it was fed. If
//! several take effect with one symbol, the order is: stop string, `max_segments` (the text is complete, not cut),
//! `max_chars`, longest context.
//!
//! A model may also choose [`ControlSymbols`]. The end-of-text mark is emitted as the last symbol, and neither fed nor
//! counted. The segment-end mark is not part of the text: it is not emitted, counted, or passed to penalty and stop strings.
//! Its draw is numbered like any other, and the symbol before it gets its boundary.

use super::{
    contract::{BoundaryMode, Card, SequenceRow, SymbolBoundary, Want},
    options::{Details, EmittedSymbol, FinishReason, Sampling, Stopping},
    resumed::ResumedSymbols,
    sampling::{
        logprobs::{LogprobOptions, SymbolLogprobs, log_probability},
        sampler::Sampler,
        stops::StopMatcher,
    },
    token_text::TokenText,
    trace,
};
use crate::{error::Result, text::SpecialSymbols};
use std::collections::VecDeque;

/// The sampled part of a sequence.
#[derive(Debug, Clone)]
pub(super) struct Generator {
    sampler: Sampler,
    stops: StopMatcher,
    limits: GenerationLimits,
    logprobs: LogprobOptions,
    /// True if symbols are emitted with their boundaries, hence one step later.
    with_boundaries: bool,
    include_stop: bool,
    /// Sampled symbols that are not yet emitted, oldest first.
    held: VecDeque<EmittedSymbol>,
    /// The text of the held symbols, in a model of tokens.
    token_text: Option<TokenText>,
    /// The symbol that was sampled and not yet fed.
    pub(super) latest: Option<u32>,
    /// True if `held` ends with `latest`. False if `latest` belongs to a stop string that is not emitted.
    latest_is_held: bool,
    /// Number of sampled symbols, and of resumed ones.
    pub(super) chars: usize,
    /// Why the generation ends once `latest` is fed.
    reason: Option<FinishReason>,
    control: Option<ControlSymbols>,
    /// The end-of-text marks, or the end byte, of a model without other marks.
    ends: Vec<u32>,
    /// True if the symbols of `ends` are never chosen.
    ignore_end: bool,
    /// The symbols that are taken before any is sampled.
    pub(super) resumed: ResumedSymbols,
}

/// Marks that a model may choose in addition to the symbols of a text, and their state.
#[derive(Debug, Clone, Copy)]
pub(super) struct ControlSymbols {
    specials: SpecialSymbols,
    /// True if the model's marks end segments; false if its predictor does.
    ends_segments: bool,
    ends_text: bool,
    chosen: usize,
    /// True if the last choice was a segment-end mark, which is to be fed next.
    is_ending: bool,
}

impl ControlSymbols {
    /// Returns the control symbols of a model with `specials` in boundary mode `mode`.
    pub(super) fn new(
        specials: Option<SpecialSymbols>,
        mode: Option<BoundaryMode>,
        stopping: &Stopping,
    ) -> Option<Self> {
        let ends_segments = mode == Some(BoundaryMode::Nxt);
        let ends_text = !stopping.ignore_end;
        specials.map(|specials| Self { specials, ends_segments, ends_text, chosen: 0, is_ending: false })
    }
}

#[derive(Debug, Clone, Copy)]
struct GenerationLimits {
    max_chars: usize,
    min_chars: usize,
    max_segments: Option<usize>,
    /// Maximum symbols of the sequence, prompt included.
    max_symbols: usize,
}

impl Generator {
    /// Creates the generation of a request to the model of `card`.
    pub(super) fn new(
        sampling: Sampling,
        stopping: Stopping,
        details: &Details,
        card: &Card,
        control: Option<ControlSymbols>,
    ) -> Self {
        let Stopping { max_chars, min_chars, max_segments, stop, include_stop, ignore_end } = stopping;
        Self {
            sampler: Sampler::new(sampling, card.vocabulary.len()),
            stops: StopMatcher::new(stop, min_chars),
            limits: GenerationLimits { max_chars, min_chars, max_segments, max_symbols: card.max_symbols },
            control,
            ends: card.vocabulary.end_marks().collect(),
            ignore_end,
            logprobs: LogprobOptions { logprobs: details.logprobs, top: details.top_logprobs },
            with_boundaries: details.boundaries,
            include_stop,
            held: VecDeque::new(),
            token_text: card.vocabulary.is_subword().then(|| TokenText::new(card.vocabulary.clone())),
            latest: None,
            latest_is_held: false,
            chars: 0,
            reason: None,
            resumed: ResumedSymbols::default(),
        }
    }

    /// Records the prompt for the repetition penalty.
    pub(super) fn see(&mut self, prompt: &[u32]) {
        prompt.iter().for_each(|&symbol| self.sampler.see(symbol));
    }

    /// The latest symbol as it is fed: with an explicit open boundary if only marks end segments.
    pub(super) fn latest_item(&self) -> Option<u32> {
        let traced = self.is_traced();
        self.latest.map(|symbol| if traced { trace::item(symbol, false) } else { symbol })
    }

    /// Number of symbols that this run sampled.
    pub(super) fn sampled(&self) -> usize {
        self.chars - self.resumed.taken()
    }

    /// True if the rest of a resumed text is taken at once: its boundaries depend on the text alone.
    pub(super) fn resumes_at_once(&self) -> bool {
        self.resumed.remaining() > 0 && !self.is_traced()
    }

    /// Takes the rest of the resumed text, from `position` on, up to the symbol with which the generation ends. Returns its symbols.
    pub(super) fn take_resumed(&mut self, position: usize) -> Vec<u32> {
        let mut symbols = Vec::with_capacity(self.resumed.remaining());
        while self.reason.is_none()
            && let Some(symbol) = self.resumed.take()
        {
            self.take(symbol, position + symbols.len());
            symbols.push(symbol);
        }
        self.resumed.clear();
        symbols
    }

    /// Takes a symbol of the resumed text as sampled at `position`, and as emitted.
    fn take(&mut self, symbol: u32, position: usize) {
        self.count(symbol, position);
        self.latest_is_held = false;
        if let Some(text) = &mut self.token_text {
            text.release(1);
        }
    }

    /// Counts a symbol that now stands at `position`, and sets the reason if the generation ends with it.
    fn count(&mut self, symbol: u32, position: usize) {
        self.sampler.see(symbol);
        self.chars += 1;
        self.latest = Some(symbol);
        self.latest_is_held = true;
        let stop = self.match_stop(symbol);
        self.reason = match stop {
            Some(index) => Some(FinishReason::Stop(index)),
            None if self.chars == self.limits.max_chars => Some(FinishReason::MaxChars),
            None if position + 1 == self.limits.max_symbols => Some(FinishReason::MaxContext),
            None => None,
        };
    }

    /// Number of segments that the model ended with its mark.
    pub(super) fn nxt_steps(&self) -> usize {
        self.control.map_or(0, |control| control.chosen)
    }

    /// True if only the model's mark ends segments.
    pub(super) fn is_traced(&self) -> bool {
        self.control.is_some_and(|control| control.ends_segments)
    }

    /// Maximum symbols that a draft after the latest symbol may have: as many as may still be sampled. None are drafted in a model
    /// whose marks end segments, because these are not part of a text.
    pub(super) fn draft_limit(&self) -> usize {
        let may_draft = self.latest.is_some() && self.reason.is_none() && !self.is_traced();
        if may_draft { self.limits.max_chars.saturating_sub(self.chars) } else { 0 }
    }

    /// Sets the row's feed to the latest symbol or to the mark after it; before the first symbol of an empty prompt, to the
    /// control item that requests its logits. Wants no logits if the symbol is the last.
    pub(super) fn feed(&self, row: &mut SequenceRow) {
        let want = if self.reason.is_some() { Want::Nothing } else { Want::Last };
        let control = if self.control.is_some_and(|control| control.is_ending) { trace::END } else { trace::BEGIN };
        row.set(&[self.latest_item().unwrap_or(control)], want);
    }

    /// Records that the latest symbol was fed: its boundary `decision` (none for a control item), and the number of segments
    /// that sampled symbols have closed. Returns why the generation ends, if it does.
    pub(super) fn absorb(
        &mut self,
        decision: Option<SymbolBoundary>,
        segments: usize,
        output: &mut Vec<EmittedSymbol>,
    ) -> Option<FinishReason> {
        self.latest = None;
        if let Some(control) = &mut self.control {
            control.is_ending = false;
        }
        let latest = self.held.back_mut().filter(|_| self.with_boundaries && self.latest_is_held);
        if let Some((symbol, decision)) = latest.zip(decision) {
            symbol.decision = Some(decision);
        }
        let enough = self.limits.max_segments.is_some_and(|max| segments >= max);
        if enough && !matches!(self.reason, Some(FinishReason::Stop(_))) {
            self.reason = Some(FinishReason::MaxSegments);
        }
        if self.reason.is_some() {
            self.flush(output);
        }
        self.reason.clone()
    }

    /// Samples the symbol at `position` from the logits (vocab) before it. `opens_segment` is true if no symbol of its segment
    /// was fed. Returns why the generation ends without another symbol, if it does.
    pub(super) fn sample(
        &mut self,
        logits: &[f32],
        position: usize,
        opens_segment: bool,
        output: &mut Vec<EmittedSymbol>,
    ) -> Result<Option<FinishReason>> {
        if self.limits.max_chars == 0 {
            return Ok(Some(FinishReason::MaxChars));
        }
        if position >= self.limits.max_symbols {
            return Ok(Some(FinishReason::MaxContext));
        }
        let symbol = self.choose(logits, position, opens_segment)?;
        if self.control.is_some_and(|control| symbol == control.specials.segment_end) {
            return self.end_segment(symbol, logits, output).map(|()| None);
        }
        if let Some(resumed) = self.resumed.take() {
            self.take(resumed, position);
            return Ok(None);
        }
        if self.resumed.has_ended() {
            return Ok(Some(FinishReason::EndOfText));
        }
        let is_end = self.control.map_or_else(|| self.ends.contains(&symbol), |control| control.specials.end == symbol);
        if is_end {
            self.flush(output);
            let SymbolLogprobs { logprob, top } = self.logprobs.compute(symbol, logits)?;
            // an end byte and some tokens have a text, which is not part of the answer
            output.push(EmittedSymbol { symbol, logprob, decision: None, top, cut: Some(0) });
            return Ok(Some(FinishReason::EndOfText));
        }
        let SymbolLogprobs { logprob, top } = self.logprobs.compute(symbol, logits)?;
        self.held.push_back(EmittedSymbol { symbol, logprob, decision: None, top, cut: None });
        self.count(symbol, position);
        self.release(output);
        Ok(None)
    }

    /// Searches the stop strings for one that the latest symbol completes, and removes from the held symbols what does not belong
    /// to the answer. Returns the index of the stop string.
    fn match_stop(&mut self, symbol: u32) -> Option<usize> {
        let Some(text) = &mut self.token_text else {
            let stop = self.stops.push(symbol)?;
            if !self.include_stop {
                self.held.truncate(self.held.len().saturating_sub(stop.length));
                self.latest_is_held = false;
            }
            return Some(stop.index);
        };
        let (stop, end) = self.stops.push_text(text.push(symbol))?;
        let end = text.before_latest() + end;
        let kept = if self.include_stop { end } else { end.saturating_sub(stop.length) };
        let (symbols, cut) = text.position(kept);
        self.latest_is_held = symbols == self.held.len();
        self.held.truncate(symbols);
        if let (Some(last), Some(cut)) = (self.held.back_mut(), cut) {
            last.cut = Some(cut);
        }
        Some(stop.index)
    }

    /// Number of last held symbols that may belong to a stop string.
    fn withheld(&self) -> usize {
        let units = self.stops.withheld();
        self.token_text.as_ref().map_or(units, |text| text.symbols_of_last(units))
    }

    /// Draws a symbol or a mark. Every draw has a number of its own: the position plus the marks chosen so far.
    fn choose(&mut self, logits: &[f32], position: usize, opens_segment: bool) -> Result<u32> {
        let Some(ControlSymbols { specials, ends_segments, ends_text, chosen, .. }) = self.control else {
            let banned = self.ignore_end || self.chars < self.limits.min_chars;
            self.sampler.ban(self.ends.iter().copied().filter(|_| banned));
            return self.sampler.choose(logits, position);
        };
        // a segment has at least one symbol
        let nxt = (opens_segment || !ends_segments).then_some(specials.segment_end);
        let end = (!ends_text || self.chars < self.limits.min_chars).then_some(specials.end);
        self.sampler.ban(specials.never_sampled().into_iter().chain(nxt).chain(end));
        self.sampler.choose(logits, position + chosen)
    }

    /// Ends the segment with the latest symbol, because the model chose the segment-end `mark`.
    fn end_segment(&mut self, mark: u32, logits: &[f32], output: &mut Vec<EmittedSymbol>) -> Result<()> {
        if let Some(control) = &mut self.control {
            control.chosen += 1;
            control.is_ending = true;
        }
        let latest = self.held.back_mut().filter(|_| self.with_boundaries && self.latest_is_held);
        if let Some(decision) = latest.and_then(|symbol| symbol.decision.as_mut()) {
            decision.boundary = true;
            decision.end_logprob = Some(log_probability(logits, mark)? as f32);
        }
        self.latest_is_held = false;
        self.release(output);
        Ok(())
    }

    pub(super) fn flush(&mut self, output: &mut Vec<EmittedSymbol>) {
        output.extend(self.held.drain(..));
    }

    /// Emits the held symbols that can no longer belong to a stop string and do not wait for a boundary.
    fn release(&mut self, output: &mut Vec<EmittedSymbol>) {
        let withheld = if self.reason.is_some() { 0 } else { self.withheld() };
        let undecided = usize::from(self.with_boundaries && self.latest_is_held);
        let free = self.held.len().saturating_sub(withheld.max(undecided));
        output.extend(self.held.drain(..free));
        if let Some(text) = &mut self.token_text {
            text.release(free);
        }
    }
}
