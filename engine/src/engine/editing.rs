//! The session of one document that a client edits.
//!
//! A session holds the text; its completions and scores run as requests of the engine. Each begins from the segment cache, which
//! holds the state of the longest known prefix: after an edit, the text from the last segment before it is computed. Nothing is
//! computed until something asks for it, text after a cursor never is, and the memory of states is the cache's: what an idle
//! session has computed may be evicted, and is then computed again. A state from the cache equals that of a cold request bit for
//! bit, and so do all results.

mod completion_task;
mod memory;
mod pending;

pub use {
    completion_task::{CompletionTask, Waiting},
    memory::KEPT_DISTRIBUTION_BYTES,
    pending::PendingCompletion,
};

use super::{
    api::{Event, Events, Job, Terms},
    distribution_cache::DistributionCache,
    handle::{Handle, check_priority},
    session_symbols::SessionSymbols,
};
use crate::{
    decode::{
        completion::Completion,
        contract::BoundaryOptions,
        edited_text::{EditedText, Splice, first_changed},
        options::{EmittedSymbol, Score},
    },
    error::{Error, Result},
};
use std::ops::Range;

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
    /// Continuations that the search expanded.
    pub expansions: usize,
    /// Distributions that were computed, including those that the search did not need in the end.
    pub distributions: usize,
    /// Distributions that earlier searches of the session had computed.
    pub reused_distributions: usize,
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
