//! A session runs one request from its first symbol to its last: it sets the row's feed and takes the results of each step. It
//! owns neither row nor model; [`Session::run`] (`run_alone`) shows the loop for one session alone.
//!
//! A session can lose its row ([`rewind`](Session::rewind)) and continue with another one ([`start_at`](Session::start_at)): it
//! replays what it fed, and no symbol is emitted, sampled or counted twice. If a state depends only on its last symbols, a
//! generating session drops those that no replay needs ([`resume`](Session::resume)), so its memory is bounded.

use crate::{
    codec::{self, Code, Coded, CodingProgress, coder::BlockCoder},
    completion::{Distribution, DistributionsSoFar, Lookahead, NextDistributions, NextSymbol},
    constraint::{ChoiceTexts, CompiledConstraint, ConstraintMatcher, FORCED_TIME},
    options::{
        Details, EmittedSymbol, ExactLogprob, FinishReason, Generate, Sampling, Score, Stopping, WindowOptions, bad,
    },
    sampling::{ChoiceScores, LogprobOptions, Sampler, StopMatcher, SymbolLogprobs, TokenText},
    score::{ScoringWindow, max_fed_symbols, window},
    speculation::{DraftBudget, Drafter, GuessRates, MAX_DRAFT, Speculation},
    text_window::{ForkedText, TextView, TextWindow},
};
use std::{collections::VecDeque, ops::Range, sync::Arc, time::Duration};
use weir_kernels::{
    distribution::log_probability,
    error::{Error, Result},
};
use weir_models::{
    contract::{
        self, BoundaryMode, BoundaryOptions, Card, Exactness, Model, ReplayStart, SequenceRow, State, SymbolBoundary,
        SymbolSlices, Want, advance,
    },
    ngrams::NgramTable,
    text::SpecialSymbols,
    usage::{LevelCounts, Usage},
};

/// Number of symbols that must be added before a trim runs. Trimming fewer would cost more than it frees.
const MIN_HELD: usize = 1024;

/// Minimum symbols of a block between two reports of its progress. A step decompresses one symbol.
const REPORTED_SYMBOLS: usize = 64;

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
    /// The draft, if the constraint forces it.
    forced_draft: Vec<u32>,
    /// The way in which forced symbols are fed.
    forced_feed: ForcedFeed,
    /// The position of the first symbol of the latest forced text.
    forced_from: usize,
    /// The texts of which one is to be drawn, until all their probabilities are known.
    choice: Option<ChoiceScores>,
    /// Symbols emitted and not yet taken.
    output: Vec<EmittedSymbol>,
    /// The coded block, once all of its symbols are coded.
    coded: Option<Coded>,
    /// True to report the progress of the block.
    reports_progress: bool,
    /// Coded symbols of the block at the last report of its progress.
    reported: usize,
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

/// The way in which a generation feeds the symbols that its constraint forces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum ForcedFeed {
    /// They are fed one by one: logits depend on how symbols are split into steps, or a mark may follow each symbol.
    #[default]
    Single,
    /// They are fed as drafts, because each symbol's results are wanted.
    Drafts,
    /// They are emitted, then fed in chunks, as a prompt is.
    Chunks,
}

/// Maximum symbols that one sampled symbol forces. The rest follows the next one.
const MAX_FORCED: usize = 256;

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
            forced_draft: Vec::new(),
            forced_feed: ForcedFeed::Single,
            forced_from: usize::MAX,
            choice: None,
            output: Vec::new(),
            coded: None,
            reports_progress: false,
            reported: 0,
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

    /// Boundary options of the present sequence, for [`Model::begin`].
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
        self.generation.as_ref().map_or(0, |generation| generation.resumed.len())
    }

    /// The position from which another row is fed; no row is fed the symbols before it.
    pub fn replay_position(&self) -> usize {
        self.replay_start.map_or(0, |start| start.symbol)
    }

    /// Maximum symbols of one of its sequences.
    pub fn max_symbols(&self) -> usize {
        self.max_symbols
    }

    /// Maximum symbols that its rows are fed in total if none is lost: the prompt or all windows, and the symbols that are added.
    pub fn max_work(&self) -> usize {
        let appends = self.generation.is_some() || self.distributions.is_some();
        let constraint = self.generation.as_ref().and_then(|generation| generation.constraint.as_ref());
        let tried = constraint.map_or(0, |constraint| constraint.tried_symbols());
        if appends { self.max_symbols.saturating_add(tried) } else { self.prompt.work() }
    }

    /// Number of known symbols of the present sequence: of the text, or of the present window.
    pub fn sequence_symbols(&self) -> usize {
        self.prompt.end() - self.prompt.start()
    }

    /// Number of [`sequence_symbols`](Self::sequence_symbols) that the row was not yet fed, or of the text of a choice that is tried.
    pub fn remaining_symbols(&self) -> usize {
        match self.tried() {
            Some(choice) => choice.left(),
            None => self.sequence_symbols().saturating_sub(self.row_len),
        }
    }

    /// The choice of which the row is fed a text.
    fn tried(&self) -> Option<&ChoiceScores> {
        self.choice.as_ref().filter(|choice| choice.forks() > 0)
    }

    /// Symbols that follow the text of [`sequence_symbols`](Self::sequence_symbols) while texts of a choice are tried, at most.
    pub fn tried_symbols(&self) -> usize {
        self.choice.as_ref().map_or(0, ChoiceScores::longest)
    }

    /// The state after the session's text, if the row is fed a text that is only tried.
    pub fn settled_state(&self) -> Option<&dyn State> {
        self.choice.as_ref()?.settled_state()
    }

    /// Number of states to which the row may go back while texts of a choice are tried.
    pub fn forks(&self) -> usize {
        self.choice.as_ref().map_or(0, ChoiceScores::forks)
    }

    /// The part of the text that is held in memory: the prompt, then the sampled symbols. Empty for a text scored in windows.
    pub fn text(&self) -> TextView<'_> {
        if self.prompt.is_windowed() { TextView::from(&[]) } else { self.prompt.symbols.text() }
    }

    /// Leading symbols of [`text`](Self::text) that need not be fed if a cached state covers them: not those emitted with
    /// results, nor the last one before sampling.
    pub fn cacheable_prefix(&self) -> usize {
        match self.generation.is_some() && self.prompt.is_done() {
            // a step must give the row a state from which texts are tried
            true => self.seen().saturating_sub(usize::from(self.choice.is_some())),
            false => self.prompt.skippable(),
        }
    }

    /// Continues with a row whose state covers the first `len` symbols, at most [`cacheable_prefix`](Self::cacheable_prefix).
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
        if let Some((choice, generation)) = self.choice.as_mut().zip(self.generation.as_ref()) {
            choice.rewind(&generation.sampler);
        }
        self.row_len = self.replay_position();
        self.lost_row = true;
    }

    /// Prepares a fresh row's state for the replay. Fails with [`Error::Internal`] for another model's state.
    pub fn resume(&self, state: &mut dyn State) -> Result<()> {
        self.replay_start.map_or(Ok(()), |start| state.resume(start))
    }

    /// True if the next feed is a chunk of the prompt or of a replay.
    pub fn is_prefilling(&self) -> bool {
        self.is_replaying() || self.choice.is_some() || !(self.prompt.is_done() || self.prompt.is_decompressing())
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
        match self.tried() {
            Some(choice) => choice.is_repeating(),
            None => self.is_replaying() && self.row_len < self.computed,
        }
    }

    /// True if the next feed has symbols that the constraint forced, and that no row was fed before.
    pub fn is_forced(&self) -> bool {
        self.is_replaying() && self.row_len >= self.forced_from && !self.is_repeating()
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

    /// Takes its constraint if the symbols that may follow are to be found while the model computes.
    pub(crate) fn lend_constraint(&mut self) -> Option<ConstraintMatcher> {
        let constraint = &mut self.generation.as_mut()?.constraint;
        constraint.take_if(|constraint| constraint.is_behind()).map(|constraint| *constraint)
    }

    /// Gives the constraint back. Its [`absorb`](Self::absorb) needs it.
    pub(crate) fn return_constraint(&mut self, constraint: Option<ConstraintMatcher>) {
        if let Some(generation) = &mut self.generation {
            generation.constraint = constraint.map(Box::new);
        }
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
            let (mut end, mut want) = self.prompt.replay_step(self.row_len, end, self.repeats_steps);
            if self.is_forced()
                && end == self.seen()
                && end < self.row_len + chunk
                && let Some(generation) = &self.generation
            {
                // the last forced symbol is not seen before its logits are taken
                end += 1;
                want = generation.want();
            }
            return row.set(self.prompt.get(start + self.row_len..start + end), want);
        }
        if let Some(choice) = self.tried() {
            return choice.feed(row, if self.repeats_steps { 1 } else { chunk });
        }
        match &self.generation {
            Some(generation) if self.prompt.is_done() => {
                generation.feed(row);
                self.feed_draft(row);
            }
            _ => self.prompt.feed(row, chunk),
        }
    }

    /// Takes the results of the row's feed. Fails with [`Error::Internal`] if the row breaks the contract of a step.
    pub fn absorb(&mut self, row: &mut SequenceRow) -> Result<SessionProgress> {
        row.check_step(self.row_len, self.vocabulary)?;
        if self.tried().is_some() {
            return self.absorb_tried(row);
        }
        let is_replaying = self.is_replaying();
        self.row_len += row.positions();
        if self.row_len >= self.seen()
            && let Some(choice) = &mut self.choice
        {
            choice.settle(row.state.fork());
        }
        self.computed = self.computed.max(self.row_len);
        if row.feed[..] == [contract::END] {
            self.prompt.end_segment();
        }
        if self.generation.as_ref().is_some_and(Generator::is_traced) {
            self.prompt.agree(row.state.agreed());
        }
        if is_replaying && self.row_len > self.seen() {
            self.usage.levels = row.state.level_segments();
            return self.absorb_symbol(row, 0);
        }
        if is_replaying || self.choice.is_some() {
            return Ok(if self.is_prefilling() { SessionProgress::Prefilling } else { SessionProgress::Decoding });
        }
        if !self.prompt.is_done() {
            let start = self.prompt.start();
            if self.prompt.is_context(row.feed.len()) {
                self.usage.context_chars += row.feed.len();
                self.usage.context_segments += row.decisions.iter().filter(|decision| decision.boundary).count();
            }
            let (segments, ends_window) = self.prompt.absorb(row, &mut self.output)?;
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

    /// Returns the progress of a [`Code`] request's block, if the request wants it and it is at least `REPORTED_SYMBOLS` symbols beyond
    /// the last report.
    pub fn take_coding_progress(&mut self) -> Option<CodingProgress> {
        let progress = self.prompt.coder.as_ref().filter(|_| self.reports_progress)?.progress();
        if progress.symbols < self.reported + REPORTED_SYMBOLS {
            return None;
        }
        self.reported = progress.symbols;
        Some(progress)
    }

    /// Returns the block of a [`Code`] request, once it is finished.
    pub fn take_coded(&mut self) -> Option<Coded> {
        self.coded.take()
    }

    /// Returns the distributions of a [`NextSymbol`] request, once it is finished.
    pub fn take_distributions(&mut self) -> Option<NextDistributions> {
        self.distributions.take().map(DistributionsSoFar::finish)
    }

    /// True if [`take_output`](Self::take_output) would return symbols.
    pub fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// Emits the symbols that the generator withholds, when the session ends by another cause, such as a deadline.
    pub fn flush(&mut self) {
        if let Some(generation) = &mut self.generation {
            generation.flush(&mut self.output);
        }
    }
}

impl Session {
    /// Creates a session that generates. Fails as [`Generate::validate`] does.
    pub fn generate(request: Generate, card: &Card) -> Result<Self> {
        request.validate(card)?;
        let (resumed, ends_text) = request.resumed_text(card);
        let resumed: VecDeque<u32> = resumed.iter().copied().collect();
        // an earlier run has emitted the prompt before the resumed text
        let echo = request.details.echo && request.resumed.is_empty();
        let constraint = request.constraint.as_ref().map(CompiledConstraint::matcher).transpose()?;
        let constraint = constraint.map(|matcher| check_resumed_form(matcher, &resumed, ends_text)).transpose()?;
        let Generate { prompt, sampling, mut stopping, details, boundaries, speculation, .. } = request;
        let by_kind = || request.constraint.as_ref().map(|constraint| constraint.ends_when_complete());
        stopping.end_when_complete = stopping.end_when_complete.or_else(by_kind);
        let texts = constraint.as_ref().and_then(ConstraintMatcher::open_choice);
        let tried = texts.and_then(|texts| texts.iter().map(Vec::len).max()).unwrap_or_default();
        let max_symbols = prompt.len().saturating_add(stopping.max_chars.max(tried)).min(card.max_symbols);
        let mode = boundaries.mode.or(card.boundary_modes.first().copied());
        let mut generation = Generator::new(sampling, stopping, &details, card, mode == Some(BoundaryMode::Nxt));
        generation.resumed = resumed;
        generation.ends_resumed = ends_text;
        generation.constraint = constraint.map(|matcher| Box::new(matcher.lending()));
        prompt.iter().for_each(|&symbol| generation.sampler.see_prompt(symbol));
        let output = PromptOutput {
            symbols: echo,
            logprobs: LogprobOptions { logprobs: details.logprobs, top: details.top_logprobs },
            boundaries: details.boundaries,
            last_logits: true,
            ..PromptOutput::default()
        };
        // other models' numbers depend on how symbols are split into steps
        let can_speculate = card.speculates && card.exactness == Exactness::Bitwise;
        let speculation = speculation.filter(|_| can_speculate).unwrap_or_default();
        let has_results = details.logprobs || details.top_logprobs > 0 || details.boundaries;
        let forced_feed = match card.exactness {
            _ if generation.constraint.is_none() || generation.is_traced() => ForcedFeed::Single,
            Exactness::Bitwise if !has_results && generation.stopping.max_segments.is_none() => ForcedFeed::Chunks,
            _ if can_speculate => ForcedFeed::Drafts,
            _ => ForcedFeed::Single,
        };
        let session = Self::new(Prompt::new(prompt, None, output), Some(generation), boundaries, card, max_symbols)?;
        Ok(Self { speculation, forced_feed, ..session })
    }

    /// Creates a session that scores a text. Fails as [`Score::validate`] does.
    pub fn score(request: Score, card: &Card) -> Result<Self> {
        request.validate(card)?;
        let Score { symbols, context, logprobs, top, boundaries, windows, exact, ends_text } = request;
        let specials = card.vocabulary.specials();
        let output = PromptOutput {
            symbols: true,
            logprobs: LogprobOptions { logprobs, top },
            boundaries: true,
            last_logits: false,
            exact: exact && logprobs,
            specials,
            end: specials.map(|specials| specials.end).filter(|_| ends_text),
        };
        let mut prompt = Prompt::new(symbols, windows, output);
        prompt.range.emit_from = prompt.range.emit_from.max(context);
        let max_symbols = prompt.longest();
        Self::new(prompt, None, boundaries, card, max_symbols)
    }

    /// Creates a session that computes the distributions after a text. Fails as [`NextSymbol::validate`] does.
    pub fn next_symbol(request: NextSymbol, card: &Card) -> Result<Self> {
        request.validate(card)?;
        let output = PromptOutput { last_logits: true, ..PromptOutput::default() };
        let prompt = Prompt::new(request.symbols, None, output);
        let room = card.max_symbols.saturating_sub(prompt.longest());
        let ahead = request.lookahead.max_symbols.min(room);
        let lookahead = Lookahead { max_symbols: ahead, ..request.lookahead };
        let max_symbols = prompt.longest() + ahead;
        let session = Self::new(prompt, None, request.boundaries, card, max_symbols)?;
        Ok(Self { distributions: Some(DistributionsSoFar::new(lookahead)), ..session })
    }

    /// Creates a session that compresses or decompresses a block. Fails as [`Code::validate`] does, and for damaged data.
    pub fn code(request: Code, card: &Card) -> Result<Self> {
        request.validate(card)?;
        let windows = request.windows;
        let progress = request.progress;
        let (len, symbols, coder) = request.begin(card)?;
        let prompt = Prompt::coded(len, symbols, windows, coder, card.first_logits.as_deref())?;
        let max_symbols = prompt.longest();
        let session = Self::new(prompt, None, codec::coder::boundaries(), card, max_symbols)?;
        Ok(Self { reports_progress: progress, ..session })
    }
}

impl Session {
    /// Drafts symbols after the sampled one, as far as they fit into `budget`, for the next feed. Returns their number. `rates`
    /// are those that the model's texts share.
    pub fn draft(&mut self, budget: &mut DraftBudget, rates: &mut GuessRates) -> usize {
        self.drop_draft();
        let limit = self.generation.as_ref().map_or(0, Generator::draft_limit);
        // the model reads the position after the last drafted symbol when that one is accepted
        let room = self.max_symbols.saturating_sub(self.row_len + 1);
        let is_behind = self.generation.as_ref().is_some_and(Generator::is_behind);
        if limit.min(room) == 0 || self.is_prefilling() || is_behind {
            return 0;
        }
        let mut constraint = self.generation.as_mut().and_then(|generation| generation.constraint.as_mut());
        if self.forced_feed == ForcedFeed::Drafts
            && let Some(constraint) = &mut constraint
        {
            self.forced_draft = constraint.forced(limit.min(room).min(MAX_DRAFT));
            self.forced_draft.truncate(budget.take_certain(self.forced_draft.len()));
        }
        if self.speculation == Speculation::Off || !self.forced_draft.is_empty() {
            return self.forced_draft.len();
        }
        let drafter = self.drafter.get_or_insert_with(|| {
            Drafter::new(self.speculation, self.max_symbols, self.vocabulary, self.ngrams.clone(), rates.clone())
        });
        drafter.draft(self.prompt.symbols.text(), limit.min(room), budget, rates);
        if let Some(constraint) = constraint {
            let drafted = drafter.drafted().len();
            drafter.truncate(constraint.agrees(drafter.drafted()));
            budget.give_back(drafted - drafter.drafted().len());
        }
        drafter.drafted().len()
    }

    /// Drops the draft: the next feed has the sampled symbol alone.
    pub fn drop_draft(&mut self) {
        self.forced_draft.clear();
        if let Some(drafter) = &mut self.drafter {
            drafter.clear();
        }
    }

    /// Returns true if the row's next or present feed has a draft.
    pub fn has_draft(&self) -> bool {
        !self.draft_symbols().is_empty()
    }

    fn draft_symbols(&self) -> &[u32] {
        match self.forced_draft.is_empty() {
            true => self.drafter.as_ref().map_or(&[], Drafter::drafted),
            false => &self.forced_draft,
        }
    }

    fn feed_draft(&self, row: &mut SequenceRow) {
        let draft = self.draft_symbols();
        if !draft.is_empty() {
            row.feed.extend_from_slice(draft);
            row.want = Want::All;
        }
    }

    /// Takes the results of the sampled symbol that was fed, then of the drafted ones that equal what is sampled there.
    fn absorb_generated(&mut self, row: &mut SequenceRow) -> Result<SessionProgress> {
        let fed = row.feed.len();
        let mut taken = 0;
        let progress = loop {
            let later = fed - taken - 1;
            taken += 1;
            let progress = self.absorb_symbol(row, later)?;
            // what follows a guess must be known before the symbol after it is drawn
            let generation = self.generation.as_ref().filter(|generation| !generation.is_behind());
            let latest = generation.and_then(Generator::latest_item);
            let is_accepted = progress == SessionProgress::Decoding
                && latest.is_some_and(|latest| row.feed.get(taken) == Some(&latest));
            if !is_accepted {
                break progress;
            }
        };
        row.take_back(taken)?;
        self.row_len -= fed - taken;
        self.computed = self.row_len;
        self.usage.levels = row.state.level_segments();
        if self.forced_draft.is_empty() {
            self.usage.drafted_chars += self.draft_symbols().len();
            self.usage.accepted_chars += taken - 1;
        } else {
            self.usage.forced_chars += taken - 1;
        }
        self.drop_draft();
        Ok(progress)
    }

    /// Takes the results of the fed symbol that `later` others follow, and samples the symbol after it.
    fn absorb_symbol(&mut self, row: &SequenceRow, later: usize) -> Result<SessionProgress> {
        let Some(generation) = &mut self.generation else { return self.sample(row, later) };
        let (symbols, rest) = row.decisions.split_at(row.decisions.len().saturating_sub(later));
        let closed_later = rest.iter().filter(|decision| decision.boundary).count();
        let segments = row.state.segments().saturating_sub(closed_later);
        self.usage.generated_segments = segments.saturating_sub(self.usage.prompt_segments);
        let decision = symbols.last().copied().filter(|_| row.positions() > 0);
        if let Some((drafter, decision)) = self.drafter.as_mut().zip(decision)
            && let Some(&symbol) = row.feed.get(symbols.len() - 1)
        {
            drafter.record_boundary(symbol, decision.boundary);
        }
        if let Some(reason) = generation.absorb(decision, self.usage.generated_segments, &mut self.output) {
            return Ok(SessionProgress::Finished(reason));
        }
        self.trim(&*row.state);
        self.sample(row, later)
    }

    /// Samples the symbol after the fed one that `later` others follow. Or keeps the distribution there, or finishes a scored text.
    fn sample(&mut self, row: &SequenceRow, later: usize) -> Result<SessionProgress> {
        if self.generation.is_none() && self.distributions.is_none() {
            return Ok(SessionProgress::Finished(FinishReason::End));
        }
        let end = row.logits.len().checked_sub(later * self.vocabulary);
        let bounds = end.and_then(|end| Some(end.checked_sub(self.vocabulary)?..end));
        let Some(logits) = bounds.and_then(|bounds| row.logits.get(bounds)) else {
            return Err(Error::Internal("cannot sample a symbol: the step computed no logits".into()));
        };
        if let Some(distributions) = &mut self.distributions {
            let boundary = row.decisions.last().copied();
            let Some(next) = distributions.push(Distribution { logits: logits.to_vec(), boundary })? else {
                return Ok(SessionProgress::Finished(FinishReason::End));
            };
            self.prompt.append(next);
            return Ok(SessionProgress::Prefilling);
        }
        let Some(generation) = &mut self.generation else { return Ok(SessionProgress::Finished(FinishReason::End)) };
        let position = row.state.len() - later;
        if let Some(texts) = generation.open_choice(position) {
            let room = generation.max_symbols.saturating_sub(position);
            let ends = generation.choice_ends();
            let mut choice = ChoiceScores::new(&texts, room, ends, logits, &generation.sampler);
            if !choice.is_done() {
                choice.settle(row.state.fork());
                self.choice = Some(choice);
                return Ok(SessionProgress::Prefilling);
            }
            generation.draw_text(&choice, position)?;
        }
        self.sample_next(row, later, logits)
    }

    /// Takes the results of symbols of a choice that are tried. Draws a text, and samples its first symbol, once all probabilities are
    /// known: the row is back at the state before the texts then.
    fn absorb_tried(&mut self, row: &mut SequenceRow) -> Result<SessionProgress> {
        let Some(generation) = &mut self.generation else { return Ok(SessionProgress::Finished(FinishReason::End)) };
        let Some(mut choice) = self.choice.take() else { return Ok(SessionProgress::Decoding) };
        choice.absorb(row, &generation.sampler);
        self.row_len = row.state.len();
        if !choice.is_done() {
            self.choice = Some(choice);
            return Ok(SessionProgress::Prefilling);
        }
        generation.draw_text(&choice, row.state.len())?;
        self.sample_next(row, 0, &choice.logits)
    }

    /// Takes the resumed text, or samples the symbol that these logits (vocab) predict, after the fed one that `later` others follow.
    fn sample_next(&mut self, row: &SequenceRow, later: usize, logits: &[f32]) -> Result<SessionProgress> {
        let Some(generation) = &mut self.generation else { return Ok(SessionProgress::Finished(FinishReason::End)) };
        let position = row.state.len() - later;
        if generation.resumes_at_once() {
            self.prompt.symbols.extend(generation.take_resumed(position)?);
            self.count_generated();
            return Ok(if self.is_prefilling() { SessionProgress::Prefilling } else { SessionProgress::Decoding });
        }
        let opens_segment = row.state.boundary_before(position) == position;
        let finished = generation.sample(logits, position, opens_segment, &mut self.output)?;
        if let Some(item) = generation.latest_item() {
            self.prompt.symbols.extend([item]);
        }
        if self.forced_feed == ForcedFeed::Chunks && finished.is_none() {
            let forced = generation.take_forced(position + 1, &mut self.output)?;
            if !forced.is_empty() {
                self.forced_from = position;
                self.usage.forced_chars += forced.len();
                self.prompt.symbols.extend(forced);
                self.count_generated();
                return Ok(SessionProgress::Prefilling);
            }
        }
        self.count_generated();
        Ok(finished.map_or(SessionProgress::Decoding, SessionProgress::Finished))
    }

    fn count_generated(&mut self) {
        if let Some(generation) = &self.generation {
            self.usage.generated_chars = generation.chars;
            self.usage.resumed_chars = generation.resumed_taken;
            self.usage.nxt_steps = generation.control.map_or(0, |control| control.chosen);
        }
    }
}

// Sampled symbols: chosen, held back while they may belong to a stop string or wait for their boundary, emitted, and counted
// until a rule ends the generation. If several rules take effect with one symbol, the order is: stop string, `max_segments`,
// `max_chars`, longest context.
//
// Every sampled symbol is fed, including the last one, so its boundary and the final state are known. The end-of-text mark is
// emitted last, and neither fed nor counted. The segment-end mark is no symbol of the text, but its draw is numbered like any
// other.

#[derive(Debug, Clone)]
struct Generator {
    sampler: Sampler,
    stops: StopMatcher,
    /// The rules without the stop strings, which `stops` has.
    stopping: Stopping,
    /// Maximum symbols of the sequence, prompt included.
    max_symbols: usize,
    logprobs: LogprobOptions,
    /// True if symbols are emitted with their boundaries, hence one step later.
    with_boundaries: bool,
    /// Sampled symbols that are not yet emitted, oldest first.
    held: VecDeque<EmittedSymbol>,
    /// The text of the held symbols, in a model of tokens.
    token_text: Option<TokenText>,
    /// The symbol that was sampled and not yet fed.
    latest: Option<u32>,
    /// True if `held` ends with `latest`. False if `latest` belongs to a stop string that is not emitted.
    latest_is_held: bool,
    /// Number of sampled symbols, and of resumed ones.
    chars: usize,
    /// Why the generation ends once `latest` is fed.
    reason: Option<FinishReason>,
    control: Option<ControlSymbols>,
    /// Follows the generated text, if it must have a form.
    constraint: Option<Box<ConstraintMatcher>>,
    /// The end-of-text marks, or the end byte, of a model without other marks.
    ends: Vec<u32>,
    /// Symbols that an earlier run of the same request has emitted, and that are not taken yet. They count for limits, penalty and
    /// stop strings, and are neither drawn nor emitted. They are fed in chunks, or one by one if the model ends segments with marks,
    /// which are drawn again. A draw's number depends on its position only, so the text continues as it did.
    resumed: VecDeque<u32>,
    /// True if the model's end mark or end byte follows the resumed symbols.
    ends_resumed: bool,
    /// Number of resumed symbols that were taken.
    resumed_taken: usize,
}

/// Marks that a model may choose in addition to the symbols of a text, and their state.
#[derive(Debug, Clone, Copy)]
struct ControlSymbols {
    specials: SpecialSymbols,
    /// True if the model's marks end segments; false if its predictor does.
    ends_segments: bool,
    /// Number of segments that the model ended with its mark.
    chosen: usize,
    /// True if the last choice was a segment-end mark, which is to be fed next.
    is_ending: bool,
}

impl Generator {
    /// Creates a generator. `ends_segments` is true if the model's marks end segments.
    fn new(sampling: Sampling, mut stopping: Stopping, details: &Details, card: &Card, ends_segments: bool) -> Self {
        let control = |specials| ControlSymbols { specials, ends_segments, chosen: 0, is_ending: false };
        Self {
            sampler: Sampler::new(sampling, card.vocabulary.len()),
            stops: StopMatcher::new(std::mem::take(&mut stopping.stop), stopping.min_chars),
            stopping,
            max_symbols: card.max_symbols,
            control: card.vocabulary.specials().map(control),
            constraint: None,
            ends: card.vocabulary.end_marks().collect(),
            logprobs: LogprobOptions { logprobs: details.logprobs, top: details.top_logprobs },
            with_boundaries: details.boundaries,
            held: VecDeque::new(),
            token_text: card.vocabulary.is_subword().then(|| TokenText::new(card.vocabulary.clone())),
            latest: None,
            latest_is_held: false,
            chars: 0,
            reason: None,
            resumed: VecDeque::new(),
            ends_resumed: false,
            resumed_taken: 0,
        }
    }

    /// The latest symbol as it is fed: with an explicit open boundary if only marks end segments.
    fn latest_item(&self) -> Option<u32> {
        let traced = self.is_traced();
        self.latest.map(|symbol| if traced { contract::item(symbol, false) } else { symbol })
    }

    /// Number of symbols that this run sampled.
    fn sampled(&self) -> usize {
        self.chars - self.resumed_taken
    }

    /// True if the rest of a resumed text is taken at once: its boundaries depend on the text alone.
    fn resumes_at_once(&self) -> bool {
        !self.resumed.is_empty() && !self.is_traced()
    }

    /// Returns the texts of which one is to be drawn before the symbol at `position`.
    fn open_choice(&self, position: usize) -> Option<ChoiceTexts> {
        let may_write = self.stopping.max_chars > 0 && position < self.max_symbols;
        self.constraint.as_ref().filter(|_| may_write)?.open_choice()
    }

    /// Returns the marks whose probability after each text of a choice counts.
    fn choice_ends(&self) -> Vec<u32> {
        match self.control {
            _ if self.stopping.ignore_end => Vec::new(),
            Some(control) => vec![control.specials.end],
            None => self.ends.clone(),
        }
    }

    /// Draws a text of a choice. If another one was resumed, draws among those that begin as the resumed text does.
    fn draw_text(&mut self, choice: &ChoiceScores, position: usize) -> Result<()> {
        let index = choice.draw(&self.sampler, &self.resumed, position)?;
        if let (Some(constraint), Some(index)) = (&mut self.constraint, index) {
            constraint.choose(index);
        }
        Ok(())
    }

    /// Returns true if it is not known what may follow the text.
    fn is_behind(&self) -> bool {
        self.constraint.as_ref().is_some_and(|constraint| constraint.is_behind())
    }

    /// Takes the rest of the resumed text, from `position` on, up to the symbol with which the generation ends. Returns its symbols.
    fn take_resumed(&mut self, position: usize) -> Result<Vec<u32>> {
        let mut symbols = Vec::with_capacity(self.resumed.len());
        while self.reason.is_none()
            && let Some(symbol) = self.take(position + symbols.len())?
        {
            symbols.push(symbol);
        }
        self.resumed.clear();
        self.find_allowed()?;
        Ok(symbols)
    }

    /// Takes the symbols that the constraint forces from `position` on, as if they were sampled. Returns them.
    fn take_forced(&mut self, position: usize, output: &mut Vec<EmittedSymbol>) -> Result<Vec<u32>> {
        let mut symbols = Vec::new();
        let until = self.constraint_time() + FORCED_TIME;
        while self.resumed.is_empty() && symbols.len() < MAX_FORCED && self.constraint_time() < until {
            let constraint = self.constraint.as_mut().filter(|_| self.reason.is_none());
            let forced = constraint.map(|constraint| constraint.forced(MAX_FORCED)).unwrap_or_default();
            if forced.is_empty() {
                break;
            }
            for symbol in forced {
                let room = self.stopping.max_chars.saturating_sub(self.chars);
                let room = room.min(self.max_symbols.saturating_sub(position + symbols.len()));
                if self.constraint.as_ref().is_some_and(|constraint| !constraint.fits(symbol, room)) {
                    // the next sample ends the text
                    self.find_allowed()?;
                    self.release(output);
                    return Ok(symbols);
                }
                if self.reason.is_none() {
                    self.held.push_back(EmittedSymbol::plain(symbol));
                    self.count(symbol, position + symbols.len())?;
                    symbols.push(symbol);
                }
            }
            self.find_allowed()?;
        }
        self.release(output);
        Ok(symbols)
    }

    /// Returns the time that the constraint has taken.
    fn constraint_time(&self) -> Duration {
        self.constraint.as_ref().map_or(Duration::ZERO, |constraint| constraint.spent())
    }

    /// Takes the next symbol of the resumed text, if there is one, as sampled at `position`, and as emitted.
    fn take(&mut self, position: usize) -> Result<Option<u32>> {
        let Some(symbol) = self.resumed.pop_front() else { return Ok(None) };
        self.resumed_taken += 1;
        self.count(symbol, position)?;
        self.latest_is_held = false;
        if let Some(text) = &mut self.token_text {
            text.release(1);
        }
        Ok(Some(symbol))
    }

    /// Counts a symbol that now stands at `position`, and sets the reason if the generation ends with it. Fails if the constraint
    /// does not allow it.
    fn count(&mut self, symbol: u32, position: usize) -> Result<()> {
        self.sampler.see(symbol);
        self.chars += 1;
        self.latest = Some(symbol);
        self.latest_is_held = true;
        let stop = self.match_stop(symbol);
        self.reason = match stop {
            Some(index) => Some(FinishReason::Stop(index)),
            None if self.chars == self.stopping.max_chars => Some(FinishReason::MaxChars),
            None if position + 1 == self.max_symbols => Some(FinishReason::MaxContext),
            None => None,
        };
        self.constraint.as_mut().map_or(Ok(()), |constraint| constraint.consume(symbol))
    }

    /// Finds the symbols that the constraint allows next, and ends the generation if there are none. If that takes long, they are found
    /// while the next step runs, and the generation ends after it.
    fn find_allowed(&mut self) -> Result<()> {
        if let Some(constraint) = self.constraint.as_mut().filter(|_| self.reason.is_none())
            && constraint.find_if_quick()?
        {
            self.reason = constraint.is_complete().then_some(FinishReason::Constraint);
        }
        Ok(())
    }

    /// True if the text has its form, and the model would leave it with the next symbol, whose logits (vocab) these are. Never if the
    /// model can end the text itself.
    fn is_left(&self, logits: &[f32]) -> bool {
        let Some(constraint) = self.constraint.as_ref().filter(|constraint| constraint.accepts()) else { return false };
        let has_end = !self.stopping.ignore_end && (self.control.is_some() || !self.ends.is_empty());
        let may_end = self.stopping.end_when_complete == Some(true) && self.chars >= self.stopping.min_chars;
        constraint.is_complete() || (may_end && !has_end && self.resumed.is_empty() && constraint.would_leave(logits))
    }

    /// Forbids characters of more bytes than may be written from `position` on, if the text must have a form. Returns false if no
    /// character fits.
    fn has_room(&mut self, position: usize) -> bool {
        let room = self.stopping.max_chars.saturating_sub(self.chars).min(self.max_symbols.saturating_sub(position));
        self.constraint.as_mut().is_none_or(|constraint| constraint.fit(room))
    }

    /// True if only the model's mark ends segments.
    fn is_traced(&self) -> bool {
        self.control.is_some_and(|control| control.ends_segments)
    }

    /// Maximum symbols of a draft after the latest symbol. None in a model whose marks end segments.
    fn draft_limit(&self) -> usize {
        let may_draft = self.latest.is_some() && self.reason.is_none() && !self.is_traced();
        if may_draft { self.stopping.max_chars.saturating_sub(self.chars) } else { 0 }
    }

    /// The logits that are wanted after the latest symbol: none if it is the last.
    fn want(&self) -> Want {
        if self.reason.is_some() { Want::Nothing } else { Want::Last }
    }

    /// Sets the row's feed to the latest symbol or the mark after it. Wants no logits if the symbol is the last.
    fn feed(&self, row: &mut SequenceRow) {
        let want = self.want();
        let control =
            if self.control.is_some_and(|control| control.is_ending) { contract::END } else { contract::BEGIN };
        row.set(&[self.latest_item().unwrap_or(control)], want);
    }

    /// Records the boundary `decision` of the latest symbol. Returns why the generation ends, if it does.
    fn absorb(
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
        let enough = self.stopping.max_segments.is_some_and(|max| segments >= max);
        if enough && !matches!(self.reason, Some(FinishReason::Stop(_))) {
            self.reason = Some(FinishReason::MaxSegments);
        }
        if self.reason.is_some() {
            self.flush(output);
        }
        self.reason.clone()
    }

    /// Samples the symbol at `position` from the logits (vocab) before it. Returns why the generation ends without one, if it
    /// does.
    fn sample(
        &mut self,
        logits: &[f32],
        position: usize,
        opens_segment: bool,
        output: &mut Vec<EmittedSymbol>,
    ) -> Result<Option<FinishReason>> {
        if self.stopping.max_chars == 0 {
            return Ok(Some(FinishReason::MaxChars));
        }
        if position >= self.max_symbols {
            return Ok(Some(FinishReason::MaxContext));
        }
        if let Some(constraint) = &mut self.constraint {
            constraint.catch_up()?;
            constraint.dead_end().map_or(Ok(()), Err)?;
        }
        if self.is_left(logits) {
            self.flush(output);
            return Ok(Some(FinishReason::Constraint));
        }
        if !self.has_room(position) {
            self.flush(output);
            let is_form = self.constraint.as_ref().is_some_and(|constraint| constraint.accepts());
            return Ok(Some(if is_form { FinishReason::Constraint } else { FinishReason::MaxChars }));
        }
        let symbol = self.choose(logits, position, opens_segment)?;
        if self.control.is_some_and(|control| symbol == control.specials.segment_end) {
            return self.end_segment(symbol, logits, output).map(|()| None);
        }
        if self.take(position)?.is_some() {
            self.find_allowed()?;
            return Ok(None);
        }
        if self.ends_resumed {
            return Ok(Some(FinishReason::EndOfText));
        }
        let is_end = self.control.map_or_else(|| self.ends.contains(&symbol), |control| control.specials.end == symbol);
        if is_end {
            self.flush(output);
            let emitted = self.emit(symbol, logits)?;
            // an end byte and some tokens have a text, which is not part of the answer
            output.push(EmittedSymbol { cut: Some(0), ..emitted });
            return Ok(Some(FinishReason::EndOfText));
        }
        self.held.push_back(self.emit(symbol, logits)?);
        self.count(symbol, position)?;
        self.find_allowed()?;
        self.release(output);
        Ok(None)
    }

    /// Returns a sampled symbol with its log-probabilities, from the logits (vocab) before it.
    fn emit(&self, symbol: u32, logits: &[f32]) -> Result<EmittedSymbol> {
        let constraint = self.constraint.as_ref().filter(|_| self.logprobs.any());
        let constraint_mass = constraint.map(|constraint| constraint.mass(logits) as f32);
        Ok(EmittedSymbol { constraint_mass, ..self.logprobs.compute(symbol, logits)?.emit(symbol, None) })
    }

    /// Removes a completed stop string from the held symbols, as far as it is not part of the answer. Returns its index.
    fn match_stop(&mut self, symbol: u32) -> Option<usize> {
        let Some(text) = &mut self.token_text else {
            let stop = self.stops.push(symbol)?;
            if !self.stopping.include_stop {
                self.held.truncate(self.held.len().saturating_sub(stop.length));
                self.latest_is_held = false;
            }
            return Some(stop.index);
        };
        let (stop, end) = self.stops.push_text(text.push(symbol))?;
        let end = text.before_latest() + end;
        let kept = if self.stopping.include_stop { end } else { end.saturating_sub(stop.length) };
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
        let cannot_end = self.stopping.ignore_end || self.chars < self.stopping.min_chars;
        if let Some(constraint) = &self.constraint {
            self.sampler.allow(constraint.symbols());
        }
        let Some(ControlSymbols { specials, ends_segments, chosen, .. }) = self.control else {
            self.sampler.ban(self.ends.iter().copied().filter(|_| cannot_end));
            return self.sampler.choose(logits, position);
        };
        // a segment has at least one symbol
        let nxt = (opens_segment || !ends_segments).then_some(specials.segment_end);
        let end = cannot_end.then_some(specials.end);
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

    fn flush(&mut self, output: &mut Vec<EmittedSymbol>) {
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

// A request's symbols: the prompt or the text to score, then the symbols sampled since. Each sequence is fed a `FeedRange`: the
// whole text or one window after another, whose first symbols are context that an earlier window has emitted. A chunk's last
// logits give the next chunk's first log-probabilities; logits never outlive their chunk.

/// Maximum symbols of an echoed prompt that need not be fed, because the engine emits them all at once.
const MAX_ECHO_SKIPPED: usize = 1024;

#[derive(Debug, Clone)]
struct Prompt {
    /// The prompt, then the sampled symbols, as far back as they may be fed again.
    symbols: TextWindow,
    /// Length of the prompt, with the symbols that were appended to it.
    len: usize,
    /// Length of the prompt as it was given.
    given: usize,
    /// Length of the prefix whose boundaries equal the predictor's, stored as plain symbols.
    agreed: usize,
    windows: Option<WindowOptions>,
    window_index: usize,
    /// The symbols fed to the present sequence.
    range: FeedRange,
    /// The next prompt symbol to feed. The present sequence was fed all symbols from `range.start` to here.
    fed: usize,
    /// Number of prompt symbols that are done: fed, and emitted if wanted.
    settled: usize,
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

#[derive(Debug, Clone, Copy, Default)]
struct PromptOutput {
    /// True if prompt symbols are emitted at all.
    symbols: bool,
    logprobs: LogprobOptions,
    boundaries: bool,
    /// True if the logits after the last symbol are needed, because a generated symbol follows.
    last_logits: bool,
    /// True if log-probabilities are also computed in double precision.
    exact: bool,
    specials: Option<SpecialSymbols>,
    /// The end-of-text symbol, if it is scored after the text.
    end: Option<u32>,
}

impl PromptOutput {
    /// Computes the log-probabilities of a symbol from the logits (vocab) before it. Fails if they are not valid.
    fn logprobs_of(&self, symbol: u32, logits: &[f32]) -> Result<SymbolLogprobs> {
        let exact = self.exact.then(|| ExactLogprob::new(symbol, logits, self.specials)).transpose()?;
        Ok(SymbolLogprobs { exact: exact.map(Box::new), ..self.logprobs.compute(symbol, logits)? })
    }
}

impl Prompt {
    fn new(text: impl Into<ForkedText>, windows: Option<WindowOptions>, output: PromptOutput) -> Self {
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

    /// Creates the text of a block of `len` symbols, the first predicted by `logits` (V). Fails as [`BlockCoder::code`] does.
    fn coded(
        len: usize,
        symbols: Vec<u32>,
        windows: WindowOptions,
        mut coder: BlockCoder,
        logits: Option<&[f32]>,
    ) -> Result<Self> {
        let first = coder.code(symbols.first().copied(), logits)?;
        let known = if coder.is_decoder() { vec![first] } else { symbols };
        let prompt = Self::with_len(known.into(), len, Some(windows), PromptOutput::default());
        Ok(Self { coder: Some(coder), ..prompt })
    }

    /// True if the next feed is the symbol that was decompressed last.
    fn is_decompressing(&self) -> bool {
        let decompresses = self.coder.as_ref().is_some_and(BlockCoder::is_decoder);
        decompresses && self.fed >= self.range.emit_from && self.fed + 1 == self.symbols.len()
    }

    /// Codes the symbols after a chunk, which begins at `start`; decompressed ones become part of the text.
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
    fn finish_code(&mut self) -> Result<Option<Coded>> {
        let symbols = self.symbols.held();
        self.coder.take().map(|coder| coder.finish(symbols)).transpose()
    }

    fn append(&mut self, symbol: u32) {
        self.symbols.extend([symbol]);
        self.len += 1;
        self.range.end = self.len;
    }

    fn window(&self, index: usize) -> Option<FeedRange> {
        let ScoringWindow { start, scored, end } = window(self.len, self.windows?, index)?;
        Some(FeedRange { start, emit_from: scored - 1, end: end - 1 })
    }

    /// Maximum prompt symbols fed to one sequence.
    fn longest(&self) -> usize {
        self.windows.map_or(self.len, |windows| windows.length.min(self.len))
    }

    /// Maximum prompt symbols fed to all sequences together.
    fn work(&self) -> usize {
        self.windows.map_or(self.len, |windows| max_fed_symbols(self.len, windows))
    }

    /// The symbols at `positions`; empty if some of them were dropped, which the model then rejects as an empty feed.
    fn get(&self, positions: Range<usize>) -> SymbolSlices<'_> {
        self.symbols.get(positions).unwrap_or_default()
    }

    fn is_windowed(&self) -> bool {
        self.windows.is_some()
    }

    /// The first symbol of the present sequence.
    fn start(&self) -> usize {
        self.range.start
    }

    /// One past the last known symbol of the present sequence.
    fn end(&self) -> usize {
        if self.is_windowed() { self.range.end.min(self.symbols.len()) } else { self.symbols.len() }
    }

    fn is_done(&self) -> bool {
        self.settled >= self.len
    }

    /// Records that a mark ended a segment with the last symbol.
    fn end_segment(&mut self) {
        let len = self.symbols.len();
        if let Some([last]) = self.symbols.get_mut(len.saturating_sub(1)..len) {
            *last = contract::item(contract::symbol(*last), true);
        }
    }

    /// Records that the first `agreed` symbols have the predictor's boundaries: they become plain symbols, as in a prompt.
    fn agree(&mut self, agreed: usize) {
        let more = self.agreed..agreed.min(self.symbols.len()).max(self.agreed);
        if let Some(items) = self.symbols.get_mut(more.clone()) {
            items.iter_mut().for_each(|item| *item = contract::symbol(*item));
            self.agreed = more.end;
        }
    }

    /// Computes the first symbol's log-probabilities from the logits before it, if it is emitted and begins a sequence.
    fn begin(&mut self, logits: &[f32]) -> Result<()> {
        let is_emitted = self.output.symbols && !self.is_windowed() && self.range.emit_from == 0;
        if let Some(first) = self.symbol_at(0).filter(|_| is_emitted) {
            self.next = self.output.logprobs_of(first, logits)?;
        }
        Ok(())
    }

    fn symbol_at(&self, position: usize) -> Option<u32> {
        self.get(position..position + 1).get(0)
    }

    /// Number of symbols that need not be fed if their state is cached. If results of a step are emitted: the context, and symbols that
    /// were fed once. Otherwise: all but the last, whose logits are needed. With echo, at most [`MAX_ECHO_SKIPPED`] of these.
    fn skippable(&self) -> usize {
        let all_but_last = self.len.saturating_sub(1);
        match self.windows {
            None if !self.output.symbols => self.fed.max(all_but_last),
            None if self.output.boundaries || self.output.logprobs.any() => self.fed.max(self.range.emit_from),
            None => self.fed.max(all_but_last.min(MAX_ECHO_SKIPPED)),
            // only the first sequence begins as the text does
            Some(_) => 0,
        }
    }

    /// Returns the end of the next step of a replay of `fed..end`, and its wanted logits. If `repeats`, it is a step that the first
    /// row took: up to the end of the given prompt, and then one symbol at a time.
    fn replay_step(&self, fed: usize, end: usize, repeats: bool) -> (usize, Want) {
        match self.given.checked_sub(fed) {
            _ if !repeats => (end, Want::Nothing),
            Some(1..) if end < self.given => (end, Want::Nothing),
            Some(1..) => (self.given, Want::Last),
            _ => (fed + 1, Want::Last),
        }
    }

    /// Counts the first `len` symbols, at most [`skippable`](Self::skippable), as fed, and emits them if wanted.
    fn skip(&mut self, len: usize, output: &mut Vec<EmittedSymbol>) {
        let skipped = self.fed..len.max(self.fed);
        self.fed = skipped.end;
        self.settled = skipped.end;
        if self.output.symbols && skipped.end > self.range.emit_from {
            output.extend(self.get(skipped).iter().map(EmittedSymbol::plain));
        }
    }

    /// Sets the row's feed to the next chunk. Context and emitted symbols are never in one chunk.
    fn feed(&self, row: &mut SequenceRow, chunk: usize) {
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

    /// Returns true if the next `len` symbols are context that an earlier window has emitted.
    fn is_context(&self, len: usize) -> bool {
        self.fed + len <= self.range.emit_from
    }

    /// Takes the results of the chunk that was fed to `row`, whose shapes were checked, and emits its symbols. Returns the segments
    /// that ended in it by level of chunking, not counting context, and true if the next chunk starts a new sequence.
    fn absorb(&mut self, row: &SequenceRow, output: &mut Vec<EmittedSymbol>) -> Result<(LevelCounts, bool)> {
        let chunk = self.fed..self.fed + row.feed.len();
        let Some(symbols) = self.symbols.get(chunk.clone()).filter(|symbols| *symbols == &row.feed) else {
            return Err(Error::Internal(format!("the row was fed other symbols than the text has at {chunk:?}")));
        };
        let context = self.is_context(chunk.len());
        self.fed = chunk.end;
        self.settled = self.settled.max(self.fed);
        let mut segments = LevelCounts::default();
        if !context {
            row.decisions.iter().for_each(|decision| segments.add(decision.closed_levels()));
        }
        if self.output.symbols && !context {
            let vocabulary = row.logits.len().checked_div(symbols.len()).filter(|_| row.want == Want::All);
            for (index, (symbol, &decision)) in symbols.iter().zip(&row.decisions).enumerate() {
                let decision = self.output.boundaries.then_some(decision);
                output.push(std::mem::take(&mut self.next).emit(symbol, decision));
                let next = chunk.start + index + 1;
                let following = self.symbol_at(next).or(self.output.end.filter(|_| next == self.len));
                if let (Some(vocabulary), Some(following)) = (vocabulary, following) {
                    let logits = &row.logits[index * vocabulary..(index + 1) * vocabulary];
                    self.next = self.output.logprobs_of(following, logits)?;
                }
            }
            if let Some(end) = self.output.end.filter(|_| self.fed == self.len) {
                output.push(std::mem::take(&mut self.next).emit(end, None));
            }
        }
        if !context {
            self.code(chunk.start, row)?;
        }
        let ends_window = self.fed == self.range.end && self.end_window(output);
        Ok((segments, ends_window))
    }

    /// Moves to the next window and returns true, if there is one. The symbol after the last window has no boundary.
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
            output.push(std::mem::take(&mut self.next).emit(symbol, None));
        }
        self.settled = self.len;
        false
    }
}

impl Generate {
    /// Returns the resumed text, and true if the model's end mark or end byte follows it.
    pub(crate) fn resumed_text(&self, card: &Card) -> (&[u32], bool) {
        match self.resumed.split_last() {
            Some((last, text)) if card.vocabulary.ends_text(*last) => (text, true),
            _ => (&self.resumed, false),
        }
    }

    /// Checks that the resumed text, which `field` gives, fits the limits. Fails with [`Error::BadOption`], which names the field.
    pub fn check_resumed_length(&self, field: &'static str, card: &Card) -> Result<()> {
        let (text, _) = self.resumed_text(card);
        let limit = self.stopping.max_chars.min(card.max_symbols.saturating_sub(self.prompt.len()));
        if text.len() <= limit {
            return Ok(());
        }
        let bound = format!("at most {limit} symbols (max_chars, and the room after the prompt)");
        Err(bad(field, format!("{} symbols", text.len()), bound))
    }

    /// Checks the resumed text against the limits, the vocabulary and where a text may end. The error names the field.
    pub(crate) fn validate_resumed(&self, card: &Card) -> Result<()> {
        self.check_resumed_length("resume_text", card)?;
        let (text, ends_text) = self.resumed_text(card);
        self.check_resumed_end(text.len(), ends_text)?;
        card.vocabulary.check_text("resume_text", text)
    }

    /// Checks that a resumed text does not end where no stream of these options ends. Only ids can contain the end.
    fn check_resumed_end(&self, length: usize, ends_text: bool) -> Result<()> {
        if !ends_text {
            return Ok(());
        }
        let field = "resume_ids";
        if self.stopping.ignore_end {
            return Err(bad(field, "one at the end", "no id that ends the text (ignore_eos)".into()));
        }
        let min = self.stopping.min_chars;
        if length < min {
            return Err(bad(field, length, format!("at least {min} ids before the end of the text (min_chars)")));
        }
        Ok(())
    }
}

/// Checks that a resumed text has the form of its constraint so far, and all of it if it `ends` there. Returns the matcher unchanged.
fn check_resumed_form(matcher: ConstraintMatcher, resumed: &VecDeque<u32>, ends: bool) -> Result<ConstraintMatcher> {
    let mut replay = matcher.clone();
    let wrong = |at: usize, bound| Err(bad("resume_text", format!("another one at symbol {at}"), bound));
    for (at, &symbol) in resumed.iter().enumerate() {
        if replay.agrees(&[symbol]) == 0 || replay.consume(symbol).is_err() {
            return wrong(at, "a text of the form of the constraint".to_owned());
        }
    }
    if ends && (replay.update().is_err() || !replay.accepts()) {
        return wrong(resumed.len(), "the end only where the constraint allows it".to_owned());
    }
    Ok(matcher)
}

impl Session {
    /// Runs the session alone and passes symbols to `emit` as they come. Returns the first error of a step or of `emit`.
    pub fn run(
        mut self,
        model: &dyn Model,
        chunk: usize,
        emit: &mut dyn FnMut(Vec<EmittedSymbol>) -> Result<()>,
    ) -> Result<(FinishReason, Usage)> {
        let mut row = SequenceRow::new(model.begin(self.boundaries().clone())?);
        let mut scratch = model.scratch();
        loop {
            self.feed(&mut row, chunk);
            advance(model, std::slice::from_mut(&mut row), &[0], &mut scratch)?;
            let progress = self.absorb(&mut row)?;
            if self.has_output() {
                emit(self.take_output())?;
            }
            if let SessionProgress::Finished(reason) = progress {
                return Ok((reason, self.usage()));
            }
        }
    }
}
