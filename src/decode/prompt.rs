//! Symbols that are given: a prompt, or a text to score. They are fed in chunks and, if asked for, told. Behind them stand
//! the symbols that were sampled since: together they are what the model has seen or is to see, in order; sampled ones with
//! their boundaries where those are not the predictor's to say ([`trace`]).
//!
//! What is fed to one sequence is a [`Span`]: the whole text, or in a windowed evaluation each window in turn. The first
//! symbols of a window are context that an earlier one has told of.
//!
//! What the logits after a chunk's last symbol say of the next chunk's first one is carried over, so logits are never held
//! beyond the chunk that made them.

use super::{
    contract::{SequenceRow, Want},
    evaluate::{ScoringWindow, window},
    options::{EmittedSymbol, Windows},
    sampling::logprobs::{LogprobOptions, SymbolLogprobs},
    text_window::{TextView, TextWindow},
    trace,
};
use crate::error::{Error, Result};
use std::ops::Range;

/// Symbols on their way into the model.
#[derive(Debug, Clone)]
pub(super) struct Prompt {
    /// The given symbols, then those sampled, as far back as they may be fed again.
    symbols: TextWindow,
    /// How many were given.
    given: usize,
    /// How many of the first need no boundary beside them: the predictor says the same.
    agreed: usize,
    /// The windows that they are fed in, and the number of the present one.
    windows: Option<(Windows, usize)>,
    /// What the present sequence is fed.
    span: Span,
    /// The next given symbol to feed.
    fed: usize,
    /// Given symbols of which nothing more is to come.
    settled: usize,
    tell: PromptOutput,
    /// What is told of the symbol after the last one that was. Nothing is known of the first.
    next: SymbolLogprobs,
}

/// A run of given symbols for one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    /// The first one fed.
    start: usize,
    /// The first one that is told, and predicts the next.
    tell_from: usize,
    /// One past the last one fed.
    end: usize,
}

/// What became of a chunk.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChunkOutcome {
    /// Segments that ended in it, but for context.
    pub(super) segments: usize,
    /// Whether the next chunk is for a sequence of its own.
    pub(super) ends_window: bool,
}

/// What is told of given symbols.
#[derive(Debug, Clone, Copy)]
pub(super) struct PromptOutput {
    /// Whether they are told at all.
    pub(super) symbols: bool,
    /// With which log-probabilities.
    pub(super) logprobs: LogprobOptions,
    /// With or without their marks.
    pub(super) marks: bool,
    /// Whether the logits after the last symbol are needed, because a generated one follows.
    pub(super) last_logits: bool,
}

impl Prompt {
    pub(super) fn new(symbols: Vec<u32>, windows: Option<Windows>, tell: PromptOutput) -> Self {
        let given = symbols.len();
        let span = Span { start: 0, tell_from: 0, end: given };
        let (windows, next) = (windows.map(|windows| (windows, 0)), SymbolLogprobs::default());
        let symbols = TextWindow::new(symbols);
        let mut known = Self { symbols, given, agreed: 0, windows, span, fed: 0, settled: 0, tell, next };
        // a single symbol has no windows, and is fed for its own sake
        known.span = known.window(0).unwrap_or(span);
        known
    }

    /// The span of that window.
    fn window(&self, index: usize) -> Option<Span> {
        let ScoringWindow { start, scored, end } = window(self.given, self.windows?.0, index)?;
        Some(Span { start, tell_from: scored - 1, end: end - 1 })
    }

    /// How many were given.
    pub(super) fn len(&self) -> usize {
        self.given
    }

    /// The most given symbols that one sequence is fed.
    pub(super) fn longest(&self) -> usize {
        self.windows.map_or(self.given, |(windows, _)| windows.length.min(self.given))
    }

    /// All symbols, sampled ones included, as far as they are held.
    pub(super) fn text(&self) -> TextView<'_> {
        self.symbols.text()
    }

    /// Of these, those at some positions.
    pub(super) fn get(&self, positions: Range<usize>) -> &[u32] {
        // a feed that lacks them is refused
        self.symbols.get(positions).unwrap_or_default()
    }

    /// How many are held.
    pub(super) fn held(&self) -> usize {
        self.symbols.held()
    }

    /// Drops those before a position: none of them will be fed again.
    pub(super) fn drop_before(&mut self, position: usize) {
        self.symbols.drop_before(position);
    }

    /// Whether they are fed in windows.
    pub(super) fn is_windowed(&self) -> bool {
        self.windows.is_some()
    }

    /// The first symbol of the present sequence.
    pub(super) fn start(&self) -> usize {
        self.span.start
    }

    /// One past the last symbol of it that is known.
    pub(super) fn end(&self) -> usize {
        if self.is_windowed() { self.span.end } else { self.symbols.len() }
    }

    /// The next given symbol to feed: those before it, from [`start`](Self::start) on, the present sequence has seen.
    pub(super) fn fed(&self) -> usize {
        self.fed
    }

    /// Given symbols of which nothing more is to come.
    pub(super) fn settled(&self) -> usize {
        self.settled
    }

    pub(super) fn is_done(&self) -> bool {
        self.settled >= self.given
    }

    /// Notes a sampled symbol, or an item of a trace.
    pub(super) fn push(&mut self, item: u32) {
        self.symbols.push(item);
    }

    /// Notes that a mark ended a segment with the last symbol.
    pub(super) fn end_segment(&mut self) {
        if let Some(last) = self.symbols.last_mut() {
            *last = trace::item(trace::symbol(*last), true);
        }
    }

    /// Notes that the first `agreed` have the boundaries that the predictor gives them: they are then plain symbols, as they
    /// would be in a text that is given.
    pub(super) fn agree(&mut self, agreed: usize) {
        let more = self.agreed..agreed.min(self.symbols.len()).max(self.agreed);
        if let Some(items) = self.symbols.get_mut(more.clone()) {
            items.iter_mut().for_each(|item| *item = trace::symbol(*item));
            self.agreed = more.end;
        }
    }

    /// Says what the logits before the first symbol say of it, if a sequence begins with it.
    ///
    /// # Errors
    /// Logits that are no distribution.
    pub(super) fn begin(&mut self, logits: &[f32]) -> Result<()> {
        if let Some(first) = self.at(0).filter(|_| self.tell.symbols && !self.is_windowed()) {
            self.next = self.tell.logprobs.of(first, logits)?;
        }
        Ok(())
    }

    fn at(&self, position: usize) -> Option<u32> {
        self.get(position..position + 1).first().copied()
    }

    /// How many symbols may pass unfed, their state being known from elsewhere: all but the last if nothing that a step
    /// makes of them is told, for after the last there are logits to look at; otherwise those that were fed once.
    pub(super) fn skippable(&self) -> usize {
        let untold = !self.tell.symbols || !(self.tell.marks || self.tell.logprobs.any());
        match self.windows {
            None if untold => self.fed.max(self.given.saturating_sub(1)),
            None => self.fed,
            // no sequence begins as the text does but the first
            Some(_) => 0,
        }
    }

    /// Counts the first `len` symbols as fed, which are skippable, and tells those that are told.
    pub(super) fn skip(&mut self, len: usize, told: &mut Vec<EmittedSymbol>) {
        let skipped = self.fed..len.max(self.fed);
        (self.fed, self.settled) = (skipped.end, skipped.end);
        if self.tell.symbols {
            let character = |&symbol| EmittedSymbol { symbol, logprob: None, decision: None, top: Vec::new() };
            told.extend(self.get(skipped).iter().map(character));
        }
    }

    /// Lays the next chunk into the row; context and what is told of are never in one.
    pub(super) fn feed(&self, row: &mut SequenceRow, chunk: usize) {
        let Span { tell_from, end, .. } = self.span;
        let context = self.fed < tell_from;
        let end = if context { tell_from } else { end }.min(self.fed + chunk.max(1));
        let want = if context {
            Want::Nothing
        } else if self.tell.symbols && self.tell.logprobs.any() {
            Want::All
        } else if self.tell.last_logits && end == self.given {
            Want::Last
        } else {
            Want::Nothing
        };
        row.set(self.get(self.fed..end), want);
    }

    /// Takes what the step made of the chunk; adds to `told` what is told of it. The row's shapes were checked.
    pub(super) fn absorb(&mut self, row: &SequenceRow, told: &mut Vec<EmittedSymbol>) -> Result<ChunkOutcome> {
        let chunk = self.fed..self.fed + row.feed.len();
        let Some(symbols) = self.symbols.get(chunk.clone()).filter(|symbols| *symbols == row.feed) else {
            return Err(Error::Internal(format!("symbols {chunk:?} were to be fed, others were")));
        };
        let context = chunk.end <= self.span.tell_from;
        self.fed = chunk.end;
        self.settled = self.settled.max(self.fed);
        let mut segments = 0;
        if !context {
            segments = row.decisions.iter().filter(|mark| mark.boundary).count();
        }
        if self.tell.symbols && !context {
            let vocabulary = row.logits.len().checked_div(symbols.len()).filter(|_| row.want == Want::All);
            for (index, (&symbol, &mark)) in symbols.iter().zip(&row.decisions).enumerate() {
                let SymbolLogprobs { logprob, top } = std::mem::take(&mut self.next);
                told.push(EmittedSymbol { symbol, logprob, decision: self.tell.marks.then_some(mark), top });
                let following = self.at(chunk.start + index + 1);
                if let (Some(vocabulary), Some(following)) = (vocabulary, following) {
                    let logits = &row.logits[index * vocabulary..(index + 1) * vocabulary];
                    self.next = self.tell.logprobs.of(following, logits)?;
                }
            }
        }
        let ends_window = self.fed == self.span.end && self.end_span(told);
        Ok(ChunkOutcome { segments, ends_window })
    }

    /// Goes on to the next window, if there is one. After the last one there is a symbol that none feeds: its mark is not
    /// known.
    fn end_span(&mut self, told: &mut Vec<EmittedSymbol>) -> bool {
        let Some((windows, index)) = self.windows else { return false };
        if let Some(span) = self.window(index + 1) {
            (self.windows, self.span, self.fed) = (Some((windows, index + 1)), span, span.start);
            return true;
        }
        if let Some(symbol) = self.at(self.span.end) {
            let SymbolLogprobs { logprob, top } = std::mem::take(&mut self.next);
            told.push(EmittedSymbol { symbol, logprob, decision: None, top });
        }
        self.settled = self.given;
        false
    }
}
