//! A session runs one request from its first symbol to its last: it sets the row's feed and takes the results of each step.
//!
//! A session owns neither the row nor the model, so code that steps many sequences can keep their rows side by side.
//! [`Session::run`] (`run_alone`) shows the loop for one session alone: call [`feed`](Session::feed), run a step, call
//! [`absorb`](Session::absorb) and [`take_output`](Session::take_output), and repeat until the session is finished.
//!
//! A session can lose its row ([`rewind`](Session::rewind)) and continue with another one, from its first symbol or from a
//! cached state ([`start_at`](Session::start_at)). It then replays what it fed before; no symbol is emitted, sampled or
//! counted twice. If a model's state depends only on the last symbols that it was fed, a generating session drops the
//! symbols that no replay needs, and a replay starts after them ([`resume`](Session::resume)). The session's memory is then
//! bounded, however long the text becomes.

mod begin;
mod decoding;

use super::{
    codec::Coded,
    contract::{BoundaryOptions, Card, Exactness, SequenceRow, State},
    generation::Generator,
    next_symbol::{DistributionsSoFar, NextDistributions},
    options::{EmittedSymbol, FinishReason},
    prompt::{ChunkOutcome, Prompt},
    replay::ReplayStart,
    speculation::{Speculation, drafter::Drafter, ngrams::NgramTable},
    text_window::TextView,
    trace,
    usage::{LevelCounts, Usage},
};
use crate::error::{Error, Result};
use std::sync::Arc;

/// Number of symbols that must be added before a trim runs. Trimming fewer would cost more than it frees.
const MIN_HELD: usize = 1024;

/// One request from its first symbol to its last.
#[derive(Debug, Clone)]
pub struct Session {
    /// The prompt or the text to score, then the sampled symbols.
    prompt: Prompt,
    /// Samples the symbols that follow the prompt; `None` if the session scores a text.
    generation: Option<Generator>,
    boundaries: BoundaryOptions,
    speculation: Speculation,
    /// N-grams that drafts may come from.
    ngrams: Option<Arc<NgramTable>>,
    /// `None` until a symbol is sampled with speculation.
    drafter: Option<Drafter>,
    /// Symbols emitted and not yet taken.
    output: Vec<EmittedSymbol>,
    /// The coded block, once all of its symbols are coded.
    coded: Option<Coded>,
    /// The distributions after the text, if they are wanted.
    distributions: Option<DistributionsSoFar>,
    usage: Usage,
    /// Length of the row's state in the present sequence: the symbols that it was fed, or that a cached state or a replay start
    /// stands for. Less than [`seen`](Self::seen) during a replay.
    row_len: usize,
    /// The largest `row_len` so far: a row is fed the symbols before it for a second time.
    computed: usize,
    lost_row: bool,
    /// The position from which another row is fed, if that is not the beginning.
    replay_start: Option<ReplayStart>,
    /// Number of held symbols at which the next trim runs.
    trim_at: usize,
    vocabulary: usize,
    max_symbols: usize,
    /// True if the model's numbers depend on how symbols were split into steps, so a replay takes the same steps again.
    repeats_steps: bool,
}

/// What a session needs next, after a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionProgress {
    /// Symbols of the prompt, or symbols that an earlier row was fed, are still to be fed.
    Prefilling,
    /// A sampled symbol is to be fed.
    Decoding,
    /// The session needs no further feed.
    Finished(FinishReason),
}

impl Session {
    fn new(
        mut prompt: Prompt,
        generation: Option<Generator>,
        boundaries: BoundaryOptions,
        card: &Card,
        max_symbols: usize,
    ) -> Result<Self> {
        if let Some(logits) = &card.first_logits {
            prompt.begin(logits)?;
        }
        Ok(Self {
            prompt,
            generation,
            boundaries,
            speculation: Speculation::Off,
            ngrams: card.ngrams.clone(),
            drafter: None,
            output: Vec::new(),
            coded: None,
            distributions: None,
            usage: Usage::default(),
            row_len: 0,
            computed: 0,
            lost_row: false,
            replay_start: None,
            trim_at: MIN_HELD,
            vocabulary: card.vocabulary.len(),
            max_symbols,
            repeats_steps: card.exactness != Exactness::Bitwise,
        })
    }

    /// Boundary options of the present sequence, for [`Model::begin`](super::contract::Model::begin).
    pub fn boundaries(&self) -> &BoundaryOptions {
        &self.boundaries
    }

    /// Length of the prompt, or of the text to score.
    pub fn prompt_symbols(&self) -> usize {
        self.prompt.len
    }

    /// Number of prompt symbols and symbols sampled since, and of the symbols of a resumed text.
    pub fn text_symbols(&self) -> usize {
        // a block that is decompressed holds the symbols that are known
        self.prompt.symbols.text().len().max(self.prompt.len) + self.resumed_ahead()
    }

    /// Number of symbols of the resumed text that are not yet part of the present sequence.
    pub fn resumed_ahead(&self) -> usize {
        self.generation.as_ref().map_or(0, |generation| generation.resumed.remaining())
    }

    /// The position from which another row is fed; no row is fed the symbols before it.
    pub fn replay_position(&self) -> usize {
        self.replay_start.map_or(0, |start| start.symbol)
    }

    /// Number of symbols of the text held in memory.
    pub fn held_symbols(&self) -> usize {
        self.prompt.symbols.held().len()
    }

    /// Maximum symbols of one of its sequences.
    pub fn max_symbols(&self) -> usize {
        self.max_symbols
    }

    /// Maximum symbols that its rows are fed in total if none is lost: the prompt or all windows, and the symbols that are added.
    pub fn max_work(&self) -> usize {
        let appends = self.generation.is_some() || self.distributions.is_some();
        if appends { self.max_symbols } else { self.prompt.work() }
    }

    /// Number of known symbols of the present sequence: of the text, or of the present window.
    pub fn sequence_symbols(&self) -> usize {
        self.prompt.end() - self.prompt.start()
    }

    /// Number of [`sequence_symbols`](Self::sequence_symbols) that the row was not yet fed.
    pub fn remaining_symbols(&self) -> usize {
        self.sequence_symbols().saturating_sub(self.row_len)
    }

    /// The part of the text that is held in memory: the prompt, then the sampled symbols. The row was fed a prefix of the text.
    /// Empty for a text that is scored in windows, because the row of a window is not fed the text before it.
    pub fn text(&self) -> TextView<'_> {
        if self.prompt.is_windowed() { TextView::from(&[]) } else { self.prompt.symbols.text() }
    }

    /// Number of leading symbols of [`text`](Self::text) that need not be fed if a cached state covers them. Symbols emitted with
    /// log-probabilities or boundaries must be fed once, and so must the last symbol of the prompt or of the text to score.
    pub fn cacheable_prefix(&self) -> usize {
        if self.generation.is_some() && self.prompt.is_done() { self.seen() } else { self.prompt.skippable() }
    }

    /// Continues with a row whose state covers the first `len` symbols and has closed `segments` segments of each level. Fails if
    /// `len` exceeds [`cacheable_prefix`](Self::cacheable_prefix).
    pub fn start_at(&mut self, len: usize, segments: LevelCounts) -> Result<()> {
        let limit = self.cacheable_prefix();
        if len > limit {
            return Err(Error::Internal(format!("a session cannot skip {len} symbols, the limit is {limit}")));
        }
        // never true in a windowed evaluation, whose limit is 0
        if !self.prompt.is_done() && len > self.prompt.fed {
            self.prompt.skip(len, &mut self.output);
            self.usage.prompt_chars = len;
            self.usage.prompt_segments = segments.level(0);
            self.usage.levels = segments;
        }
        if !self.lost_row {
            self.usage.cached_chars = len;
        }
        self.row_len = len;
        Ok(())
    }

    /// Continues with a fresh row because the previous one was lost. The output stays the same.
    pub fn rewind(&mut self) {
        self.drop_draft();
        self.row_len = self.replay_position();
        self.lost_row = true;
    }

    /// Prepares a fresh row's state for the replay, which need not start at the beginning of the text. Fails with
    /// [`Error::Internal`] if another model created the state.
    pub fn resume(&self, state: &mut dyn State) -> Result<()> {
        self.replay_start.map_or(Ok(()), |start| state.resume(start))
    }

    /// True if the next feed is a chunk of the prompt or of a replay.
    pub fn is_prefilling(&self) -> bool {
        self.is_replaying() || !(self.prompt.is_done() || self.prompt.is_decompressing())
    }

    /// Number of symbols of the present sequence whose results were taken.
    fn seen(&self) -> usize {
        match &self.generation {
            Some(generation) if self.prompt.is_done() => {
                self.prompt.symbols.text().len() - usize::from(generation.latest.is_some())
            }
            _ => self.prompt.fed - self.prompt.start(),
        }
    }

    /// True if the next feed repeats symbols that an earlier row was fed.
    pub fn is_replaying(&self) -> bool {
        self.row_len < self.seen()
    }

    /// True if the next feed repeats work. A resumed text is replayed, but fed for the first time.
    pub fn is_repeating(&self) -> bool {
        self.is_replaying() && self.row_len < self.computed
    }

    /// True if the session generates; false if it scores a text.
    pub fn is_generating(&self) -> bool {
        self.generation.is_some()
    }

    /// True if the session computes the distribution after a text.
    pub fn wants_distribution(&self) -> bool {
        self.distributions.is_some()
    }

    /// True if the session knows the distribution after its text, and has appended the next symbol, which is not fed yet.
    pub fn looks_ahead(&self) -> bool {
        self.remaining_symbols() == 1 && self.distributions.as_ref().is_some_and(DistributionsSoFar::has_any)
    }

    /// Number of sampled symbols, or of scored ones.
    pub fn output_symbols(&self) -> usize {
        self.generation.as_ref().map_or(self.prompt.settled, Generator::sampled)
    }

    /// The symbols and segments processed until now.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Sets the row's feed: at most `chunk` symbols of the prompt or of a replay, or one sampled symbol with the draft after it.
    pub fn feed(&self, row: &mut SequenceRow, chunk: usize) {
        if self.is_replaying() {
            let start = self.prompt.start();
            let end = self.seen().min(self.row_len + chunk.max(1));
            let step = self.prompt.replay_step(self.row_len, end, self.repeats_steps);
            return row.set(self.prompt.get(start + self.row_len..start + step.end), step.want);
        }
        match &self.generation {
            Some(generation) if self.prompt.is_done() => {
                generation.feed(row);
                self.feed_draft(row);
            }
            _ => self.prompt.feed(row, chunk),
        }
    }

    /// Takes the results of the row's feed; the row must be ready. At the end of a window, restarts the row's state for the next.
    /// Fails with [`Error::Internal`] if the row breaks the contract of a step, or its logits contain NaN or infinity.
    pub fn absorb(&mut self, row: &mut SequenceRow) -> Result<SessionProgress> {
        row.check_step(self.row_len, self.vocabulary)?;
        let is_replaying = self.is_replaying();
        self.row_len += row.positions();
        self.computed = self.computed.max(self.row_len);
        if row.feed[..] == [trace::END] {
            self.prompt.end_segment();
        }
        if self.generation.as_ref().is_some_and(Generator::is_traced) {
            self.prompt.agree(row.state.agreed());
        }
        if is_replaying {
            return Ok(if self.is_prefilling() { SessionProgress::Prefilling } else { SessionProgress::Decoding });
        }
        if !self.prompt.is_done() {
            let start = self.prompt.start();
            let ChunkOutcome { segments, ends_window } = self.prompt.absorb(row, &mut self.output)?;
            self.usage.prompt_segments += segments.level(0);
            self.usage.levels += segments;
            self.usage.prompt_chars = self.prompt.settled.min(self.prompt.given);
            if ends_window {
                self.boundaries.offset += self.prompt.start() - start;
                self.row_len = 0;
                row.state.restart(self.boundaries.offset);
            }
            if !self.prompt.is_done() {
                let decodes = self.prompt.is_decompressing();
                return Ok(if decodes { SessionProgress::Decoding } else { SessionProgress::Prefilling });
            }
            self.coded = self.prompt.finish_code()?;
        } else if self.generation.is_some() {
            return self.absorb_generated(row);
        }
        self.sample(row, 0)
    }

    /// Drops the symbols that no row will be fed again. Does nothing until [`MIN_HELD`] symbols were added since the last trim.
    fn trim(&mut self, state: &dyn State) {
        if self.prompt.symbols.held().len() < self.trim_at {
            return;
        }
        if let Some(start) = state.replay_start() {
            self.prompt.symbols.drop_before(start.cut_position());
            self.replay_start = Some(start);
        }
        self.trim_at = MIN_HELD + self.prompt.symbols.held().len();
    }

    /// Returns the symbols emitted since the last call, in order.
    pub fn take_output(&mut self) -> Vec<EmittedSymbol> {
        std::mem::take(&mut self.output)
    }

    /// Returns the block of a [`Code`](super::codec::Code) request, once it is finished.
    pub fn take_coded(&mut self) -> Option<Coded> {
        self.coded.take()
    }

    /// Returns the distributions of a [`NextSymbol`](super::next_symbol::NextSymbol) request, once it is finished.
    pub fn take_distributions(&mut self) -> Option<NextDistributions> {
        self.distributions.take().map(DistributionsSoFar::finish)
    }

    /// True if [`take_output`](Self::take_output) would return symbols.
    pub fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// Emits the symbols that the generator withholds, because they may belong to a stop string or wait for their boundary. Meant
    /// for a session that ends by another cause, such as a deadline. The last symbol may lack its boundary.
    pub fn flush(&mut self) {
        if let Some(generation) = &mut self.generation {
            generation.flush(&mut self.output);
        }
    }
}
