//! One job's life: what was asked for, where it stands, what it has to tell.
//!
//! A session decides what is fed and what is made of the answer; it owns neither the row nor the model, so that whoever
//! steps many sequences can keep their rows side by side. The life of one, stepped alone, is [`Session::run`]:
//! [`feed`](Session::feed), a step, [`absorb`](Session::absorb), [`take`](Session::take), until it is finished.
//!
//! A session can lose its row and go on with another one, from its first symbol ([`rewind`](Session::rewind)) or from a state
//! that has seen some of its symbols ([`start_at`](Session::start_at)). What it has fed before is then fed again in silence:
//! what came of it is known, and nothing is told, sampled or counted twice. Where a state depends on its last symbols only, a
//! session that generates keeps no more of its text than another row would have to be fed, and goes on from there
//! ([`resume`](Session::resume)): however long the text, it takes no more memory.

use super::{
    contract::{BoundaryOptions, Card, Model, SequenceRow, State, StepStatus, Want, advance},
    generation::{ControlSymbols, Generation},
    options::{EmittedSymbol, FinishReason, Generate, Score},
    prompt::{ChunkOutcome, Prompt, PromptOutput},
    replay::ReplayStart,
    sampling::logprobs::LogprobOptions,
    text_window::TextView,
    trace,
    usage::Usage,
};
use crate::error::{Error, Result};

/// Symbols that are always held: below that it is not worth a look.
const HELD: usize = 1024;

/// One job from its first symbol to its last.
#[derive(Debug, Clone)]
pub struct Session {
    /// The prompt, or the text to score.
    known: Prompt,
    /// What follows it; none for a scored text.
    generation: Option<Generation>,
    boundaries: BoundaryOptions,
    /// What was not taken yet.
    told: Vec<EmittedSymbol>,
    usage: Usage,
    /// Symbols that the row has seen in its present sequence; less than [`seen`](Self::seen) while they are fed again.
    at: usize,
    /// Whether it has lost a row.
    rewound: bool,
    /// From where on another row would be fed, if that is not the beginning.
    origin: Option<ReplayStart>,
    /// How many symbols are held when it is time to see whether some can be dropped.
    full: usize,
    /// Symbols of the vocabulary: logits of one position.
    vocabulary: usize,
    /// The most symbols that the sequence will have.
    most_symbols: usize,
}

/// Where a session stands after a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionProgress {
    /// Given symbols are still to be fed, or such as an earlier row has seen.
    Prefilling,
    /// A sampled symbol is to be fed.
    Decoding,
    /// Nothing is to be fed any more.
    Finished(FinishReason),
}

impl Session {
    /// A session that generates.
    ///
    /// # Errors
    /// As for [`Generate::validate`].
    pub fn generate(request: Generate, card: &Card) -> Result<Self> {
        request.validate(card)?;
        let Generate { prompt, sampling, stopping, details, boundaries } = request;
        let most_symbols = prompt.len().saturating_add(stopping.max_chars).min(card.max_symbols);
        let vocabulary = card.vocabulary.len();
        let mode = boundaries.mode.or(card.boundary_modes.first().copied());
        let marks = ControlSymbols::new(card.vocabulary.specials(), mode, &stopping);
        let mut generation = Generation::new((sampling, stopping, &details), (vocabulary, card.max_symbols), marks);
        generation.see(&prompt);
        let logprobs = LogprobOptions { logprobs: details.logprobs, top: details.top_logprobs };
        let tell = PromptOutput { symbols: details.echo, logprobs, marks: details.boundaries, last_logits: true };
        let known = begun(Prompt::new(prompt, None, tell), card)?;
        Ok(Self::new(known, Some(generation), boundaries, (vocabulary, most_symbols)))
    }

    /// A session that scores.
    ///
    /// # Errors
    /// As for [`Score::validate`].
    pub fn score(request: Score, card: &Card) -> Result<Self> {
        request.validate(card)?;
        let Score { symbols, logprobs, top, boundaries, windows } = request;
        let tell =
            PromptOutput { symbols: true, logprobs: LogprobOptions { logprobs, top }, marks: true, last_logits: false };
        let known = begun(Prompt::new(symbols, windows, tell), card)?;
        let sizes = (card.vocabulary.len(), known.longest());
        Ok(Self::new(known, None, boundaries, sizes))
    }

    fn new(
        known: Prompt,
        generation: Option<Generation>,
        boundaries: BoundaryOptions,
        (vocabulary, most_symbols): (usize, usize),
    ) -> Self {
        let (told, usage, at, rewound, origin, full) = (Vec::new(), Usage::default(), 0, false, None, HELD);
        Self { known, generation, boundaries, told, usage, at, rewound, origin, full, vocabulary, most_symbols }
    }

    /// How the present sequence's boundaries are decided: for [`Model::begin`].
    pub fn boundaries(&self) -> &BoundaryOptions {
        &self.boundaries
    }

    /// Symbols of the prompt, or of the text to score.
    pub fn prompt_symbols(&self) -> usize {
        self.known.len()
    }

    /// Given symbols, and those sampled since.
    pub fn text_symbols(&self) -> usize {
        self.known.text().len()
    }

    /// Of these, those that no row will be fed again.
    pub fn replay_position(&self) -> usize {
        self.origin.map_or(0, |origin| origin.symbol)
    }

    /// Of these, those that it holds in memory.
    pub fn held_symbols(&self) -> usize {
        self.known.held()
    }

    /// The most symbols that a sequence of it will have.
    pub fn max_symbols(&self) -> usize {
        self.most_symbols
    }

    /// Symbols that the row will have seen when it has been fed all that is known: of the text, or of the present window.
    pub fn sequence_symbols(&self) -> usize {
        self.known.end() - self.known.start()
    }

    /// Of these, those still to be fed.
    pub fn remaining_symbols(&self) -> usize {
        self.sequence_symbols().saturating_sub(self.at)
    }

    /// The text as far as it is known and held: given symbols, then sampled ones. What the row has seen is its beginning. Of a
    /// text that is scored in windows, nothing: its row has mostly not seen its beginning.
    pub fn text(&self) -> TextView<'_> {
        if self.known.is_windowed() { TextView::from(&[]) } else { self.known.text() }
    }

    /// How many of the first symbols of [`text`](Self::text) need not be fed if there is a state that has seen them. Symbols that are
    /// told with what the model says of them must be fed, once; so must the last one before an answer.
    pub fn cacheable_prefix(&self) -> usize {
        if self.generation.is_some() && self.known.is_done() { self.seen() } else { self.known.skippable() }
    }

    /// Goes on with a row whose state has seen the first `len` symbols, at most
    /// [`cacheable_prefix`](Self::cacheable_prefix), and closed so many segments.
    ///
    /// # Errors
    /// [`Error::Internal`] if more symbols are to be passed over than may.
    pub fn start_at(&mut self, len: usize, segments: usize) -> Result<()> {
        let most = self.cacheable_prefix();
        if len > most {
            return Err(Error::Internal(format!("a session of which {most} symbols may be skipped was to skip {len}")));
        }
        if !self.known.is_done() && len > self.known.fed() {
            // not in windows, of which nothing may be skipped
            self.known.skip(len, &mut self.told);
            (self.usage.prompt_chars, self.usage.prompt_segments) = (len, segments);
        }
        if !self.rewound {
            self.usage.cached_chars = len;
        }
        self.at = len;
        Ok(())
    }

    /// Goes on with a fresh row: the one before it was lost, fed or not. What is told stays as it would have been.
    pub fn rewind(&mut self) {
        (self.at, self.rewound) = (self.replay_position(), true);
    }

    /// Makes a fresh row's state the one that it is to be fed to: it need not see the text from its beginning.
    ///
    /// # Errors
    /// [`Error::Internal`] if another model made it.
    pub fn resume(&self, state: &mut dyn State) -> Result<()> {
        self.origin.map_or(Ok(()), |origin| state.resume(origin))
    }

    /// Whether the next feed is a chunk: of given symbols, or of symbols that another row has seen.
    pub fn is_prefilling(&self) -> bool {
        !self.known.is_done() || self.is_replaying()
    }

    /// Symbols of the present sequence whose outcome was taken.
    fn seen(&self) -> usize {
        match &self.generation {
            Some(generation) if self.known.is_done() => {
                self.known.text().len() - usize::from(generation.latest().is_some())
            }
            _ => self.known.fed() - self.known.start(),
        }
    }

    /// Whether the next feed is of symbols that an earlier row had seen.
    pub fn is_replaying(&self) -> bool {
        self.at < self.seen()
    }

    /// Whether an answer is generated; if not, a text is scored.
    pub fn is_generating(&self) -> bool {
        self.generation.is_some()
    }

    /// Symbols of the answer so far: sampled ones, or scored ones.
    pub fn output_symbols(&self) -> usize {
        self.generation.as_ref().map_or(self.known.settled(), Generation::chars)
    }

    /// What was processed so far.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Lays into the row what it is to be fed next: at most `chunk` symbols of the prompt or of what an earlier row has
    /// seen, or one sampled symbol.
    pub fn feed(&self, row: &mut SequenceRow, chunk: usize) {
        if self.is_replaying() {
            let start = self.known.start();
            let end = self.seen().min(self.at + chunk.max(1));
            return row.set(self.known.get(start + self.at..start + end), Want::Nothing);
        }
        match &self.generation {
            Some(generation) if self.known.is_done() => generation.feed(row),
            _ => self.known.feed(row, chunk),
        }
    }

    /// Takes what a step made of the row's feed; the row must be ready. At a window's end its state starts afresh, for the
    /// next one.
    ///
    /// # Errors
    /// [`Error::Internal`] if the row is not as a step leaves it, or its logits are no distribution.
    pub fn absorb(&mut self, row: &mut SequenceRow) -> Result<SessionProgress> {
        self.check(row)?;
        let again = self.is_replaying();
        self.at += row.positions();
        if row.feed[..] == [trace::END] {
            self.known.end_segment();
        }
        if self.generation.as_ref().is_some_and(Generation::is_traced) {
            self.known.agree(row.state.agreed());
        }
        if again {
            return Ok(if self.is_prefilling() { SessionProgress::Prefilling } else { SessionProgress::Decoding });
        }
        if !self.known.is_done() {
            let start = self.known.start();
            let ChunkOutcome { segments, ends_window } = self.known.absorb(row, &mut self.told)?;
            self.usage.prompt_segments += segments;
            self.usage.prompt_chars = self.known.settled();
            if ends_window {
                self.boundaries.offset += self.known.start() - start;
                self.at = 0;
                row.state.restart(self.boundaries.offset);
            }
            if !self.known.is_done() {
                return Ok(SessionProgress::Prefilling);
            }
        } else if let Some(generation) = &mut self.generation {
            self.usage.generated_segments = row.state.segments().saturating_sub(self.usage.prompt_segments);
            let mark = row.decisions.last().copied().filter(|_| row.positions() > 0);
            if let Some(reason) = generation.absorb(mark, self.usage.generated_segments, &mut self.told) {
                return Ok(SessionProgress::Finished(reason));
            }
            self.shed(&*row.state);
        }
        self.sample(row)
    }

    /// Drops what no row will be fed again, now and then.
    fn shed(&mut self, state: &dyn State) {
        if self.known.held() < self.full {
            return;
        }
        if let Some(origin) = state.replay_start() {
            self.known.drop_before(origin.cut_position());
            self.origin = Some(origin);
        }
        self.full = HELD + self.known.held();
    }

    /// The symbols to tell since the last call, in order.
    pub fn take_output(&mut self) -> Vec<EmittedSymbol> {
        std::mem::take(&mut self.told)
    }

    /// Whether there is something to [`take`](Self::take_output).
    pub fn has_output(&self) -> bool {
        !self.told.is_empty()
    }

    /// Lets go of all that is held back, for an end that no rule brought about: a deadline. The latest symbol may then be
    /// told without its mark.
    pub fn flush(&mut self) {
        if let Some(generation) = &mut self.generation {
            generation.abandon(&mut self.told);
        }
    }

    /// Runs the whole session alone; `tell` gets the symbols as they come.
    ///
    /// # Errors
    /// Those of the model and of [`absorb`](Self::absorb), and what `tell` returns.
    pub fn run(
        mut self,
        model: &dyn Model,
        chunk: usize,
        tell: &mut dyn FnMut(Vec<EmittedSymbol>) -> Result<()>,
    ) -> Result<(FinishReason, Usage)> {
        let mut row = SequenceRow::new(model.begin(self.boundaries.clone())?);
        let mut scratch = model.scratch();
        loop {
            self.feed(&mut row, chunk);
            advance(model, std::slice::from_mut(&mut row), &[0], &mut scratch)?;
            let progress = self.absorb(&mut row)?;
            if self.has_output() {
                tell(self.take_output())?;
            }
            if let SessionProgress::Finished(reason) = progress {
                return Ok((reason, self.usage));
            }
        }
    }

    /// Chooses the next symbol, where one follows.
    fn sample(&mut self, row: &SequenceRow) -> Result<SessionProgress> {
        let Some(generation) = &mut self.generation else {
            return Ok(SessionProgress::Finished(FinishReason::End));
        };
        let last = row.logits.len().checked_sub(self.vocabulary).and_then(|start| row.logits.get(start..));
        let Some(logits) = last else {
            return Err(Error::Internal("a symbol is to be sampled, but no logits were asked for".into()));
        };
        let len = row.state.len();
        let opens = row.state.boundary_before(len) == len;
        let finished = generation.sample(logits, (len, opens), &mut self.told)?;
        if let Some(item) = generation.latest_item() {
            self.known.push(item);
        }
        (self.usage.generated_chars, self.usage.nxt_steps) = (generation.chars(), generation.nxt_steps());
        Ok(finished.map_or(SessionProgress::Decoding, SessionProgress::Finished))
    }

    /// Whether the step kept its side of the contract.
    fn check(&self, row: &SequenceRow) -> Result<()> {
        let kept = row.status == StepStatus::Ready
            && !row.feed.is_empty()
            && row.decisions.len() == row.feed.len()
            && row.logits.len() == row.wanted() * self.vocabulary
            && row.state.len() == self.at + row.positions();
        if kept {
            return Ok(());
        }
        let (status, marks, logits) = (row.status, row.decisions.len(), row.logits.len());
        let (fed, at, len) = (row.feed.len(), self.at, row.state.len());
        Err(Error::Internal(format!(
            "after a step of {fed} symbols from {at} to {len}: {status:?}, {marks} marks, {logits} logits"
        )))
    }
}

/// Given symbols with what the model says of the first one, where it knows how a text begins.
fn begun(mut known: Prompt, card: &Card) -> Result<Prompt> {
    if let Some(logits) = &card.first_logits {
        known.begin(logits)?;
    }
    Ok(known)
}
