//! A request's symbols: the prompt or the text to score, then the symbols sampled since. Prompt symbols are fed in chunks
//! and emitted if the request wants them. Sampled symbols have their boundaries if marks end segments ([`trace`]).
//!
//! Each sequence is fed a [`FeedRange`]: the whole text or, in a windowed evaluation, one window after another. The first
//! symbols of a window are context that an earlier window has emitted.
//!
//! A chunk's last logits give the next chunk's first log-probabilities, which are kept; logits never outlive their chunk.

use super::{
    codec::{Coded, coder::BlockCoder},
    contract::{SequenceRow, Want},
    evaluate::{ScoringWindow, max_fed_symbols, window},
    options::{EmittedSymbol, WindowOptions},
    sampling::logprobs::{LogprobOptions, SymbolLogprobs},
    shared_prefix::ForkedText,
    symbol_slices::SymbolSlices,
    text_window::TextWindow,
    trace,
    usage::LevelCounts,
};
use crate::error::{Error, Result};
use std::ops::Range;

/// Maximum symbols of an echoed prompt that need not be fed. The engine emits them all at once, each with space for details.
/// The limit on a request's waiting events does not cover them.
const MAX_ECHO_SKIPPED: usize = 1024;

/// The symbols of a request on their way into the model.
#[derive(Debug, Clone)]
pub(super) struct Prompt {
    /// The prompt, then the sampled symbols, as far back as they may be fed again.
    pub(super) symbols: TextWindow,
    /// Length of the prompt, with the symbols that were appended to it.
    pub(super) len: usize,
    /// Length of the prompt as it was given.
    pub(super) given: usize,
    /// Length of the prefix whose boundaries equal the predictor's, stored as plain symbols.
    agreed: usize,
    windows: Option<WindowOptions>,
    window_index: usize,
    /// The symbols fed to the present sequence.
    range: FeedRange,
    /// The next prompt symbol to feed. The present sequence was fed all symbols from `range.start` to here.
    pub(super) fed: usize,
    /// Number of prompt symbols that are done: fed, and emitted if wanted.
    pub(super) settled: usize,
    output: PromptOutput,
    /// Log-probabilities of the next symbol to emit; empty for the first symbol.
    next: SymbolLogprobs,
    /// Compresses or decompresses the text.
    coder: Option<BlockCoder>,
}

/// The prompt symbols fed to one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FeedRange {
    /// The first symbol fed.
    start: usize,
    /// The first symbol emitted; its logits predict the next one.
    emit_from: usize,
    /// One past the last symbol fed.
    end: usize,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct ChunkOutcome {
    /// Segments that ended in it by level of chunking, not counting context.
    pub(super) segments: LevelCounts,
    /// True if the next chunk starts a new sequence.
    pub(super) ends_window: bool,
}

/// A step of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReplayStep {
    /// One past the last symbol fed.
    pub(super) end: usize,
    pub(super) want: Want,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct PromptOutput {
    /// True if prompt symbols are emitted at all.
    pub(super) symbols: bool,
    pub(super) logprobs: LogprobOptions,
    pub(super) boundaries: bool,
    /// True if the logits after the last symbol are needed, because a generated symbol follows.
    pub(super) last_logits: bool,
}

impl Prompt {
    pub(super) fn new(text: impl Into<ForkedText>, windows: Option<WindowOptions>, output: PromptOutput) -> Self {
        let text = text.into();
        let len = text.len();
        Self::with_len(text, len, windows, output)
    }

    fn with_len(text: ForkedText, len: usize, windows: Option<WindowOptions>, output: PromptOutput) -> Self {
        let range = FeedRange { start: 0, emit_from: 0, end: len };
        let mut prompt = Self {
            symbols: TextWindow::new(text),
            len,
            given: len,
            agreed: 0,
            windows,
            window_index: 0,
            range,
            fed: 0,
            settled: 0,
            output,
            next: SymbolLogprobs::default(),
            coder: None,
        };
        // a single symbol has no windows; it is fed as one sequence
        prompt.range = prompt.window(0).unwrap_or(range);
        prompt
    }

    /// Creates the text of a block of `len` symbols. A coder that decompresses adds the symbols one by one. `logits` (V) predict the
    /// first symbol; without them all symbols are equally probable. Fails as [`BlockCoder::code`] does.
    pub(super) fn coded(
        len: usize,
        symbols: Vec<u32>,
        windows: WindowOptions,
        mut coder: BlockCoder,
        logits: Option<&[f32]>,
    ) -> Result<Self> {
        let first = coder.code(symbols.first().copied(), logits)?;
        let output = PromptOutput {
            symbols: false,
            logprobs: LogprobOptions { logprobs: false, top: 0 },
            boundaries: false,
            last_logits: false,
        };
        let known = if coder.is_decoder() { vec![first] } else { symbols };
        Ok(Self { coder: Some(coder), ..Self::with_len(known.into(), len, Some(windows), output) })
    }

    /// True if the next feed is the symbol that was decompressed last.
    pub(super) fn is_decompressing(&self) -> bool {
        let decompresses = self.coder.as_ref().is_some_and(BlockCoder::is_decoder);
        decompresses && self.fed >= self.range.emit_from && self.fed + 1 == self.symbols.len()
    }

    /// Codes the symbols after those of a chunk, which begins at `start`; decompressed ones become part of the text.
    fn code(&mut self, start: usize, row: &SequenceRow) -> Result<()> {
        let Some(coder) = &mut self.coder else { return Ok(()) };
        let Some(vocabulary) = row.logits.len().checked_div(row.feed.len()).filter(|size| *size > 0) else {
            return Ok(());
        };
        for (next, logits) in (start + 1..self.len).zip(row.logits.chunks_exact(vocabulary)) {
            let known = self.symbols.get(next..next + 1).and_then(|next| next.get(0));
            let symbol = coder.code(known, Some(logits))?;
            if known.is_none() {
                self.symbols.extend([symbol]);
            }
        }
        Ok(())
    }

    /// Returns the coded block, once, when all symbols are coded. Fails as [`BlockCoder::finish`] does.
    pub(super) fn finish_code(&mut self) -> Result<Option<Coded>> {
        let symbols = self.symbols.held();
        self.coder.take().map(|coder| coder.finish(symbols)).transpose()
    }

    /// Appends a symbol to the prompt, which has no windows.
    pub(super) fn append(&mut self, symbol: u32) {
        self.symbols.extend([symbol]);
        self.len += 1;
        self.range.end = self.len;
    }

    fn window(&self, index: usize) -> Option<FeedRange> {
        let ScoringWindow { start, scored, end } = window(self.len, self.windows?, index)?;
        Some(FeedRange { start, emit_from: scored - 1, end: end - 1 })
    }

    /// Maximum prompt symbols fed to one sequence.
    pub(super) fn longest(&self) -> usize {
        self.windows.map_or(self.len, |windows| windows.length.min(self.len))
    }

    /// Maximum prompt symbols fed to all sequences together.
    pub(super) fn work(&self) -> usize {
        self.windows.map_or(self.len, |windows| max_fed_symbols(self.len, windows))
    }

    /// The symbols at `positions`; empty if some of them were dropped, which the model then rejects as an empty feed.
    pub(super) fn get(&self, positions: Range<usize>) -> SymbolSlices<'_> {
        self.symbols.get(positions).unwrap_or_default()
    }

    pub(super) fn is_windowed(&self) -> bool {
        self.windows.is_some()
    }

    /// The first symbol of the present sequence.
    pub(super) fn start(&self) -> usize {
        self.range.start
    }

    /// One past the last known symbol of the present sequence.
    pub(super) fn end(&self) -> usize {
        if self.is_windowed() { self.range.end.min(self.symbols.len()) } else { self.symbols.len() }
    }

    pub(super) fn is_done(&self) -> bool {
        self.settled >= self.len
    }

    /// Records that a mark ended a segment with the last symbol.
    pub(super) fn end_segment(&mut self) {
        let len = self.symbols.len();
        if let Some([last]) = self.symbols.get_mut(len.saturating_sub(1)..len) {
            *last = trace::item(trace::symbol(*last), true);
        }
    }

    /// Records that the first `agreed` symbols have the predictor's boundaries: they become plain symbols, as in a prompt.
    pub(super) fn agree(&mut self, agreed: usize) {
        let more = self.agreed..agreed.min(self.symbols.len()).max(self.agreed);
        if let Some(items) = self.symbols.get_mut(more.clone()) {
            items.iter_mut().for_each(|item| *item = trace::symbol(*item));
            self.agreed = more.end;
        }
    }

    /// Computes the first symbol's log-probabilities from the logits before it, if it is emitted and begins a sequence.
    /// Fails as [`LogprobOptions::compute`] does.
    pub(super) fn begin(&mut self, logits: &[f32]) -> Result<()> {
        if let Some(first) = self.symbol_at(0).filter(|_| self.output.symbols && !self.is_windowed()) {
            self.next = self.output.logprobs.compute(first, logits)?;
        }
        Ok(())
    }

    fn symbol_at(&self, position: usize) -> Option<u32> {
        self.get(position..position + 1).get(0)
    }

    /// Number of symbols that need not be fed if their state is cached. If results of a step are emitted: those that were fed once.
    /// Otherwise: all but the last, whose logits are needed. With echo, at most [`MAX_ECHO_SKIPPED`] of these.
    pub(super) fn skippable(&self) -> usize {
        let all_but_last = self.len.saturating_sub(1);
        match self.windows {
            None if !self.output.symbols => self.fed.max(all_but_last),
            None if self.output.boundaries || self.output.logprobs.any() => self.fed,
            None => self.fed.max(all_but_last.min(MAX_ECHO_SKIPPED)),
            // only the first sequence begins as the text does
            Some(_) => 0,
        }
    }

    /// Returns the next step of a replay, which may feed the symbols `fed..end`. If `repeats`, it is a step that the first row took:
    /// that one stopped at the end of the given prompt, and then took the sampled or appended symbols one by one.
    pub(super) fn replay_step(&self, fed: usize, end: usize, repeats: bool) -> ReplayStep {
        match self.given.checked_sub(fed) {
            _ if !repeats => ReplayStep { end, want: Want::Nothing },
            Some(1..) if end < self.given => ReplayStep { end, want: Want::Nothing },
            Some(1..) => ReplayStep { end: self.given, want: Want::Last },
            _ => ReplayStep { end: fed + 1, want: Want::Last },
        }
    }

    /// Counts the first `len` symbols, at most [`skippable`](Self::skippable), as fed, and emits them if wanted.
    pub(super) fn skip(&mut self, len: usize, output: &mut Vec<EmittedSymbol>) {
        let skipped = self.fed..len.max(self.fed);
        self.fed = skipped.end;
        self.settled = skipped.end;
        if self.output.symbols {
            output.extend(self.get(skipped).iter().map(EmittedSymbol::plain));
        }
    }

    /// Sets the row's feed to the next chunk. Context and emitted symbols are never in one chunk.
    pub(super) fn feed(&self, row: &mut SequenceRow, chunk: usize) {
        let FeedRange { emit_from, end, .. } = self.range;
        let context = self.fed < emit_from;
        let end = if context { emit_from } else { end }.min(self.fed + chunk.max(1)).min(self.symbols.len());
        let want = if context {
            Want::Nothing
        } else if self.coder.is_some() || (self.output.symbols && self.output.logprobs.any()) {
            Want::All
        } else if self.output.last_logits && end == self.len {
            Want::Last
        } else {
            Want::Nothing
        };
        row.set(self.get(self.fed..end), want);
    }

    /// Takes the results of the chunk that was fed to `row`, whose shapes were checked, and emits its symbols.
    pub(super) fn absorb(&mut self, row: &SequenceRow, output: &mut Vec<EmittedSymbol>) -> Result<ChunkOutcome> {
        let chunk = self.fed..self.fed + row.feed.len();
        let Some(symbols) = self.symbols.get(chunk.clone()).filter(|symbols| *symbols == &row.feed) else {
            return Err(Error::Internal(format!("the row was fed other symbols than the text has at {chunk:?}")));
        };
        let context = chunk.end <= self.range.emit_from;
        self.fed = chunk.end;
        self.settled = self.settled.max(self.fed);
        let mut segments = LevelCounts::default();
        if !context {
            row.decisions.iter().for_each(|decision| segments.add(decision.closed_levels()));
        }
        if self.output.symbols && !context {
            let vocabulary = row.logits.len().checked_div(symbols.len()).filter(|_| row.want == Want::All);
            for (index, (symbol, &decision)) in symbols.iter().zip(&row.decisions).enumerate() {
                let SymbolLogprobs { logprob, top } = std::mem::take(&mut self.next);
                let decision = self.output.boundaries.then_some(decision);
                output.push(EmittedSymbol { symbol, logprob, decision, top, cut: None });
                let following = self.symbol_at(chunk.start + index + 1);
                if let (Some(vocabulary), Some(following)) = (vocabulary, following) {
                    let logits = &row.logits[index * vocabulary..(index + 1) * vocabulary];
                    self.next = self.output.logprobs.compute(following, logits)?;
                }
            }
        }
        if !context {
            self.code(chunk.start, row)?;
        }
        let ends_window = self.fed == self.range.end && self.end_window(output);
        Ok(ChunkOutcome { segments, ends_window })
    }

    /// Moves to the next window and returns true, if there is one. The symbol after the last window is never fed, so it is
    /// emitted without a boundary.
    fn end_window(&mut self, output: &mut Vec<EmittedSymbol>) -> bool {
        if self.windows.is_none() {
            return false;
        }
        if let Some(range) = self.window(self.window_index + 1) {
            self.window_index += 1;
            self.range = range;
            self.fed = range.start;
            return true;
        }
        if let Some(symbol) = self.symbol_at(self.range.end).filter(|_| self.output.symbols) {
            let SymbolLogprobs { logprob, top } = std::mem::take(&mut self.next);
            output.push(EmittedSymbol { symbol, logprob, decision: None, top, cut: None });
        }
        self.settled = self.len;
        false
    }
}
