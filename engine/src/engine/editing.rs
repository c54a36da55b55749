//! The session of one document that a client edits.
//!
//! A session holds the text; its completions and scores run as requests of the engine. Each begins from the segment cache, which
//! holds the state of the longest known prefix: after an edit, the text from the last segment before it is computed. Nothing is
//! computed until something asks for it, text after a cursor never is, and the memory of states is the cache's: what an idle
//! session has computed may be evicted, and is then computed again. A state from the cache equals that of a cold request bit for
//! bit, and so do all results.

mod memory;
mod pending;

pub use {memory::KEPT_DISTRIBUTION_BYTES, pending::PendingCompletion};

use super::{
    api::{Event, Events, Job, Terms},
    distribution_cache::{DistributionCache, SearchPlace},
    handle::{Handle, check_priority},
    session_symbols::{SessionSymbols, TakenSymbols},
};
use crate::{
    decode::{
        completion::{Completion, CompletionRules, CompletionSearch, NodeId},
        contract::BoundaryOptions,
        edited_text::{EditedText, Splice, first_changed},
        next_symbol::{Distribution, NextSymbol},
        options::{EmittedSymbol, Score, check_length},
        shared_prefix::SharedPrefix,
    },
    error::{Error, Result},
};
use std::{ops::Range, sync::Arc};

/// Distributions that a search computes at the same time, as rows of one batch, if the engine has no other requests.
const MAX_WIDTH: usize = 8;
/// Minimum distributions that a search computes at the same time, however many other requests the engine has.
const MIN_WIDTH: usize = 2;
/// Maximum uncached symbols at the end of a text that counts as cached. Each request of the search feeds them.
const MAX_FED_AGAIN: usize = 2;
/// Maximum bytes of a range that is scored.
pub const MAX_SCORED_BYTES: usize = 1 << 15;

/// A document that is edited. Clones share its cache of distributions, and its symbols while they have the same text.
#[derive(Clone)]
pub struct EditSession {
    engine: Handle,
    terms: Terms,
    text: EditedText,
    symbols: SessionSymbols,
    distributions: DistributionCache,
}

/// The completions of a text.
#[derive(Debug, Clone, PartialEq)]
pub struct Completions {
    /// The most probable ones, best first.
    pub items: Vec<Completion>,
    /// True if the search ended at its limit. The last items are then the most probable completions that it had reached, and others
    /// may be more probable.
    pub is_cut: bool,
    /// Symbols before the cursor that came from the segment cache.
    pub reused: usize,
    /// Symbols before the cursor that were computed.
    pub recomputed: usize,
    /// Distributions that were computed.
    pub distributions: usize,
    /// Distributions that earlier searches of the session had computed.
    pub reused_distributions: usize,
}

/// A search that is ready to run, on the text as it was when it was created.
pub struct CompletionTask {
    engine: Handle,
    terms: Terms,
    prefix: Arc<SharedPrefix>,
    search: CompletionSearch,
    distributions: DistributionCache,
    place: SearchPlace,
    /// The continuations of the last round that wait until the first distribution is computed.
    later: Vec<Waiting>,
    /// Symbols of the prefix that came from the segment cache, once a distribution was computed.
    reused: Option<usize>,
    computed_distributions: usize,
    reused_distributions: usize,
}

/// A continuation that waits for its distribution.
pub struct Waiting {
    node: NodeId,
    symbols: Vec<u32>,
    /// Its distribution, if that is known.
    known: Option<Arc<Distribution>>,
    /// The events of the request for its distribution otherwise.
    events: Option<Events>,
}

/// The scores of a range.
#[derive(Debug, Clone, PartialEq)]
pub struct Scores {
    /// The characters of the range.
    pub characters: Vec<EmittedSymbol>,
    /// Byte offsets in the text, one for each of `characters`: the start of the character that it comes from.
    pub start_bytes: Vec<usize>,
    /// Symbols that were computed: all up to the range's end.
    pub recomputed: usize,
}

/// A score that is ready to run, on the text as it was when it was created.
pub struct ScoreTask {
    events: Events,
    /// Symbols of the range, which follow the others.
    range: Range<usize>,
    /// Bytes of the text from which they come.
    start_bytes: Vec<usize>,
}

impl EditSession {
    /// Opens a document of at most `limit` bytes. Fails if the text is longer or the priority out of range, for a model that reads
    /// tokens or summarizes, and for an engine without a segment cache.
    pub fn open(engine: Handle, terms: Terms, text: String, revision: u64, limit: usize) -> Result<Self> {
        check_priority(terms.priority)?;
        let card = engine.card();
        let wrong = |wanted, found| Err(Error::WrongKind { call: "Edit", model: card.name.clone(), wanted, found });
        if card.vocabulary.is_subword() || engine.document_limits().is_some() {
            return wrong("continues texts of characters or bytes", format!("a model of another kind: {}", card.shape));
        }
        if engine.limits().cache_bytes == 0 {
            return wrong("has a segment cache", "served without one (--cache-memory 0)".into());
        }
        let text = EditedText::new(text, revision, limit)?;
        let distributions = DistributionCache::default();
        Ok(Self { engine, terms, text, symbols: SessionSymbols::default(), distributions })
    }

    /// The text.
    pub fn text(&self) -> &EditedText {
        &self.text
    }

    /// Returns the number of characters of `text` that the model's normaliser replaces or drops.
    pub fn normalized_chars(&self, text: &str) -> usize {
        self.engine.card().vocabulary.normaliser().changed_chars(text)
    }

    /// Changes the text. Fails as [`EditedText::apply`] does.
    pub fn splice(&mut self, revision: u64, splices: &[Splice]) -> Result<()> {
        self.text.apply(revision, splices)?;
        if let Some(start) = first_changed(splices) {
            self.symbols.edit(start);
        }
        Ok(())
    }

    /// Checks whether splices may be applied. Fails as [`EditedText::check`] does.
    pub fn check_splices(&self, revision: u64, splices: &[Splice]) -> Result<()> {
        self.text.check(revision, splices)
    }

    /// Prepares the completions at byte `cursor`. Fails if the cursor is no edge of a character, if a rule is out of bounds, or if
    /// the model cannot read the text before the cursor.
    pub fn complete(&self, cursor: usize, rules: CompletionRules) -> Result<CompletionTask> {
        self.complete_with(self.symbols.take(), cursor, rules)
    }

    /// Like `complete`, with symbols that were taken for this revision of the text.
    fn complete_with(
        &self,
        mut symbols: TakenSymbols,
        cursor: usize,
        rules: CompletionRules,
    ) -> Result<CompletionTask> {
        let field = "complete.cursor_byte";
        let card = self.engine.card();
        let search = CompletionSearch::new(rules, card)?;
        let prefix = symbols.prefix(field, self.text_before(field, cursor)?, card)?;
        // gives the symbols back now, so that other searches can take them
        drop(symbols);
        if !(prefix.is_empty() && card.first_logits.is_some()) {
            check_length(field, prefix.len(), card)?;
        }
        if let Some(longest) = prefix.len().checked_add(rules.max_chars).filter(|longest| *longest > card.max_symbols) {
            let limit = card.max_symbols;
            let why = card.max_symbols_why;
            return Err(Error::TooLong { field, length: longest, limit, unit: "characters with max_chars", why });
        }
        Ok(CompletionTask {
            engine: self.engine.clone(),
            terms: self.terms.clone(),
            search,
            place: self.distributions.begin(prefix.text()),
            distributions: self.distributions.clone(),
            prefix,
            later: Vec::new(),
            reused: None,
            computed_distributions: 0,
            reused_distributions: 0,
        })
    }

    /// Queues the scores of the characters in a range of at most [`MAX_SCORED_BYTES`]. Fails if its ends are no edges of characters
    /// or in the wrong order, if it is longer, and as [`Handle::submit`] does. Encodes the text up to the range's end: the model
    /// computes all of it, too.
    pub fn score(&self, bytes: Range<usize>) -> Result<ScoreTask> {
        self.check_scored(&bytes)?;
        let start = self.encode("score.start_byte", bytes.start)?.len();
        let symbols = self.encode("score.end_byte", bytes.end)?;
        let range = start.min(symbols.len())..symbols.len();
        let read = self.text.text().get(..bytes.end).unwrap_or_default();
        let start_bytes = self.engine.card().vocabulary.start_bytes(read, range.start);
        let score = Score { symbols, logprobs: true, top: 0, boundaries: BoundaryOptions::default(), windows: None };
        Ok(ScoreTask { events: self.engine.submit(Job::Score(score), self.terms.clone())?, range, start_bytes })
    }

    /// Checks a range of bytes to score. Fails as [`score`](Self::score) does for it.
    pub fn check_scored(&self, bytes: &Range<usize>) -> Result<()> {
        let field = "score.end_byte";
        self.text.check_offset("score.start_byte", bytes.start)?;
        self.text.check_offset(field, bytes.end)?;
        if bytes.end <= bytes.start {
            let bound = format!("more than start_byte, {}", bytes.start);
            return Err(Error::bad_option(field, bytes.end.to_string(), bound));
        }
        if bytes.len() > MAX_SCORED_BYTES {
            let limit = MAX_SCORED_BYTES;
            return Err(Error::TooLong { field, length: bytes.len(), limit, unit: "bytes in a range", why: None });
        }
        Ok(())
    }

    /// Encodes the text up to byte `end`.
    fn encode(&self, field: &'static str, end: usize) -> Result<Vec<u32>> {
        self.engine.card().encode(field, self.text_before(field, end)?)
    }

    /// Returns the text up to byte `end`. Fails if that is no edge of a character.
    fn text_before(&self, field: &'static str, end: usize) -> Result<&str> {
        self.text.check_offset(field, end)?;
        Ok(self.text.text().get(..end).unwrap_or_default())
    }
}

impl CompletionTask {
    /// Runs the search. Dropping the future cancels it within one step. Fails as [`Handle::submit`] and its requests do.
    pub async fn run(mut self) -> Result<Completions> {
        loop {
            let waiting = self.submit_next()?;
            if waiting.is_empty() {
                return Ok(self.finish());
            }
            self.take(waiting).await?;
        }
    }

    /// Submits the requests for the next distributions that are not known, all at once; none if the search is over. The first
    /// request after a text that is not cached runs alone. Fails as [`Handle::submit`] does.
    pub fn submit_next(&mut self) -> Result<Vec<Waiting>> {
        loop {
            let mut waiting = std::mem::take(&mut self.later);
            if waiting.is_empty() {
                let width = if self.search.expansions() == 0 { 1 } else { search_width(self.engine.requests()) };
                let nodes = self.search.next_expansions(width);
                waiting = nodes.into_iter().map(|node| self.look_up(node)).collect();
            }
            // the first distribution after a text that is not cached is computed alone: its state is cached for all others
            if self.reused.is_none()
                && let Some(first) = waiting.iter().position(|waiting| waiting.known.is_none())
                && first + 1 < waiting.len()
                && !self.is_cached()
            {
                self.later = waiting.split_off(first + 1);
            }
            let jobs: Vec<Job> =
                waiting.iter().filter(|waiting| waiting.known.is_none()).map(|waiting| self.job(waiting)).collect();
            if jobs.is_empty() && !waiting.is_empty() {
                for Waiting { node, known, .. } in waiting {
                    self.take_one(node, known)?;
                }
                continue;
            }
            let submitted = self.engine.submit_together(jobs, &self.terms)?;
            let unknown = waiting.iter_mut().filter(|waiting| waiting.known.is_none());
            unknown.zip(submitted).for_each(|(waiting, events)| waiting.events = Some(events));
            return Ok(waiting);
        }
    }

    /// Returns true if the engine's cache holds all of the text but a few symbols.
    fn is_cached(&self) -> bool {
        self.engine.cached_symbols(self.prefix.text(), &self.terms) + MAX_FED_AGAIN >= self.prefix.len()
    }

    /// Looks for a continuation's distribution in the session's cache.
    fn look_up(&mut self, node: NodeId) -> Waiting {
        let symbols = self.search.symbols(node);
        let mut known = self.distributions.get(&self.place, &symbols);
        self.reused_distributions += usize::from(known.is_some());
        if self.prefix.is_empty() && symbols.is_empty() {
            let first = self.engine.card().first_logits.as_ref();
            let first = first.map(|logits| Distribution { logits: logits.to_vec(), boundary: None });
            known = known.or(first.map(Arc::new));
        }
        Waiting { node, symbols, known, events: None }
    }

    /// Returns the request for the distribution after a continuation.
    fn job(&self, waiting: &Waiting) -> Job {
        let symbols = self.prefix.fork(&waiting.symbols);
        Job::Next(NextSymbol { symbols, boundaries: BoundaryOptions::default() })
    }

    /// Takes the distributions of requests, and keeps them for later searches. Fails as the first of them does.
    pub async fn take(&mut self, waiting: Vec<Waiting>) -> Result<()> {
        for Waiting { node, symbols, mut known, events } in waiting {
            if let Some(events) = events {
                let (distribution, cached) = distribution(events).await?;
                self.computed_distributions += 1;
                self.reused.get_or_insert(cached.min(self.prefix.len()));
                let distribution = Arc::new(distribution);
                self.distributions.keep(&self.place, &symbols, &distribution);
                known = Some(distribution);
            }
            self.take_one(node, known)?;
        }
        Ok(())
    }

    fn take_one(&mut self, node: NodeId, distribution: Option<Arc<Distribution>>) -> Result<()> {
        let lost = || Error::Internal("a distribution was not requested".into());
        let distribution = distribution.ok_or_else(lost)?;
        self.search.take(node, distribution)
    }

    /// Returns what the search has found.
    pub fn finish(self) -> Completions {
        // nothing before the cursor was read again if all distributions were known
        let reused = self.reused.unwrap_or(self.prefix.len());
        Completions {
            is_cut: self.search.is_cut(),
            items: self.search.finish(),
            reused,
            recomputed: self.prefix.len().saturating_sub(reused),
            distributions: self.computed_distributions,
            reused_distributions: self.reused_distributions,
        }
    }
}

/// Returns how many distributions a search computes at the same time while the engine has `others` other requests.
///
/// A wide search ends in fewer steps, but computes distributions that it does not need in the end. A narrow one computes few of
/// those, but needs more steps. A search that runs alone is therefore wide. Next to other requests it is narrower, because each row
/// makes their steps longer.
fn search_width(others: usize) -> usize {
    MAX_WIDTH.saturating_sub(others).max(MIN_WIDTH)
}

/// Reads the events of a request for a distribution. Returns it with the number of symbols that were cached.
async fn distribution(mut events: Events) -> Result<(Distribution, usize)> {
    let mut found = None;
    let mut cached = 0;
    while let Some(event) = events.recv().await {
        match event? {
            Event::Started { cached_chars } => cached = cached_chars,
            Event::Next(distribution) => found = Some(distribution),
            Event::Finished { .. } => break,
            Event::Characters(_) | Event::Coded(_) | Event::Document(_) => {}
        }
    }
    let lost = || Error::Internal("the engine ended a request without its distribution".into());
    Ok((found.ok_or_else(lost)?, cached))
}

impl ScoreTask {
    /// Waits for the scores of the range. Dropping the future cancels the request within one step.
    pub async fn run(mut self) -> Result<Scores> {
        let mut scored = Vec::with_capacity(self.range.len());
        let mut position = 0;
        while let Some(event) = self.events.recv().await {
            match event? {
                Event::Characters(characters) => {
                    for character in characters {
                        if self.range.contains(&position) {
                            scored.push(character);
                        }
                        position += 1;
                    }
                }
                Event::Finished { .. } => {
                    let Self { range, start_bytes, .. } = self;
                    return Ok(Scores { characters: scored, start_bytes, recomputed: range.end });
                }
                Event::Started { .. } | Event::Next(_) | Event::Coded(_) | Event::Document(_) => {}
            }
        }
        Err(Error::Internal("the engine ended a score without its end".into()))
    }
}
