//! A running search for completions: requests the distributions that [`CompletionSearch`] needs.
//!
//! A round requests those of several continuations, as rows of one batch. Each request looks ahead while the result is likely to be
//! needed, so that a search takes fewer rounds. Extra distributions change no result: the search uses each only in its turn.

use super::{Completions, EditSession};
use crate::{
    decode::{
        completion::{CompletionRules, CompletionSearch, Expansions, NodeId},
        contract::BoundaryOptions,
        next_symbol::{Distribution, NextDistributions, NextSymbol},
        options::check_length,
        shared_prefix::SharedPrefix,
    },
    engine::{
        api::{Event, Events, Job, Terms},
        distribution_cache::{DistributionCache, SearchPlace},
        handle::Handle,
        session_symbols::TakenSymbols,
    },
    error::{Error, Result},
};
use std::{collections::HashMap, sync::Arc};

/// Maximum requests of a search in one round, as rows of one batch, if the engine has no other requests.
pub(super) const MAX_WIDTH: usize = 8;
/// Minimum of [`search_width`], however many other requests the engine has.
const MIN_WIDTH: usize = 2;
/// Maximum uncached symbols at the end of a text that counts as cached. Each request of the search feeds them.
const MAX_FED_AGAIN: usize = 2;
/// Maximum symbols by which a request looks ahead.
const MAX_AHEAD: usize = 4;
/// Maximum bytes of distributions that were computed ahead.
pub(super) const AHEAD_BYTES: usize = 1 << 16;
/// Estimated bytes of such a distribution without its symbols and logits.
const ENTRY_BYTES: usize = 128;

/// A search that is ready to run, on the text as it was when it was created.
pub struct CompletionTask {
    engine: Handle,
    terms: Terms,
    prefix: Arc<SharedPrefix>,
    search: CompletionSearch,
    distributions: DistributionCache,
    place: SearchPlace,
    /// The distributions that requests have computed ahead, by the continuation that they follow.
    ahead: HashMap<Vec<u32>, Arc<Distribution>>,
    ahead_bytes: usize,
    /// The requests of the last round that wait until the first distribution is computed.
    later: Vec<NextJob>,
    /// Symbols of the prefix that came from the segment cache, once a distribution was computed.
    reused: Option<usize>,
    computed_distributions: usize,
    reused_distributions: usize,
}

/// A request for the distribution after a continuation.
struct NextJob {
    node: NodeId,
    symbols: Vec<u32>,
    request: NextSymbol,
}

/// A continuation whose distribution was requested.
pub struct Waiting {
    node: NodeId,
    symbols: Vec<u32>,
    events: Events,
}

impl EditSession {
    /// Prepares the completions at byte `cursor`. Fails if the cursor is no edge of a character, if a rule is out of bounds, or if
    /// the model cannot read the text before the cursor.
    pub fn complete(&self, cursor: usize, rules: CompletionRules) -> Result<CompletionTask> {
        self.complete_with(self.symbols.take(), cursor, rules)
    }

    /// Like `complete`, with symbols that were taken for this revision of the text.
    pub(super) fn complete_with(
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
        Ok(CompletionTask::new(self, prefix, search))
    }
}

impl CompletionTask {
    /// Creates the task of a search after `prefix` in the text of `session`.
    pub(super) fn new(session: &EditSession, prefix: Arc<SharedPrefix>, search: CompletionSearch) -> Self {
        let EditSession { engine, terms, distributions, .. } = session.clone();
        Self {
            engine,
            terms,
            search,
            place: distributions.begin(prefix.text()),
            distributions,
            prefix,
            ahead: HashMap::new(),
            ahead_bytes: 0,
            later: Vec::new(),
            reused: None,
            computed_distributions: 0,
            reused_distributions: 0,
        }
    }

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
        let mut jobs = std::mem::take(&mut self.later);
        if jobs.is_empty() {
            jobs = self.next_jobs()?;
        }
        // the first distribution after a text that is not cached is computed alone: its state is cached for all others
        if self.reused.is_none() && jobs.len() > 1 && !self.is_cached() {
            self.later = jobs.split_off(1);
        }
        let mut waiting = Vec::with_capacity(jobs.len());
        let mut requests = Vec::with_capacity(jobs.len());
        for NextJob { node, symbols, request } in jobs {
            waiting.push((node, symbols));
            requests.push(Job::Next(request));
        }
        let submitted = self.engine.submit_together(requests, &self.terms)?;
        let waiting = waiting.into_iter().zip(submitted);
        Ok(waiting.map(|((node, symbols), events)| Waiting { node, symbols, events }).collect())
    }

    /// Returns the requests for the next distributions, after the search has taken those that are known.
    fn next_jobs(&mut self) -> Result<Vec<NextJob>> {
        loop {
            // alone in its round, the first request does not look ahead
            let width = if self.search.expansions() == 0 { 1 } else { search_width(self.engine.requests()) };
            let Expansions { nodes, floor } = self.search.next_expansions(width);
            let mut unknown = Vec::with_capacity(nodes.len());
            let mut any_known = false;
            for node in nodes {
                let symbols = self.search.symbols(node);
                match self.look_up(&symbols) {
                    None => unknown.push((node, symbols)),
                    Some(known) => {
                        any_known = true;
                        self.search.take(node, known)?;
                    }
                }
            }
            // the known distributions may change which ones the search needs next
            if !any_known {
                return Ok(unknown.into_iter().map(|(node, symbols)| self.job(node, symbols, floor)).collect());
            }
        }
    }

    /// Returns true if the engine's cache holds all of the text but a few symbols.
    fn is_cached(&self) -> bool {
        self.engine.cached_symbols(self.prefix.text(), &self.terms) + MAX_FED_AGAIN >= self.prefix.len()
    }

    /// Returns a continuation's distribution if it is known.
    fn look_up(&mut self, symbols: &[u32]) -> Option<Arc<Distribution>> {
        if let Some(ahead) = self.ahead.remove(symbols) {
            self.ahead_bytes -= distribution_bytes(symbols, &ahead);
            return Some(ahead);
        }
        if self.prefix.is_empty() && symbols.is_empty() {
            let first = self.engine.card().first_logits.as_ref()?;
            return Some(Arc::new(Distribution { logits: first.to_vec(), boundary: None }));
        }
        let known = self.distributions.get(&self.place, symbols)?;
        self.reused_distributions += 1;
        Some(known)
    }

    /// Returns the request for the distribution after a continuation. It looks ahead while ln p of the result is at least `floor`.
    fn job(&self, node: NodeId, symbols: Vec<u32>, floor: f64) -> NextJob {
        let lookahead = self.search.lookahead(node, self.max_ahead(), floor);
        let boundaries = BoundaryOptions::default();
        NextJob { request: NextSymbol { symbols: self.prefix.fork(&symbols), boundaries, lookahead }, node, symbols }
    }

    /// Returns by how many symbols each request of a round may look ahead. If many distributions that were computed ahead are unused,
    /// the search is one in which looking ahead does not pay.
    fn max_ahead(&self) -> usize {
        if self.ahead_bytes > AHEAD_BYTES / 2 {
            return 0;
        }
        MAX_AHEAD.min(AHEAD_BYTES / (MAX_WIDTH * self.max_entry_bytes()))
    }

    /// Returns the maximum bytes of a distribution with the continuation that it follows.
    fn max_entry_bytes(&self) -> usize {
        ENTRY_BYTES
            + size_of::<u32>() * self.search.max_chars()
            + size_of::<f32>() * self.engine.card().vocabulary.len()
    }

    /// Takes the distributions of requests, and keeps them for later searches. Fails as the first of them does.
    pub async fn take(&mut self, waiting: Vec<Waiting>) -> Result<()> {
        for Waiting { node, symbols, events } in waiting {
            let (NextDistributions { symbols: next, distributions }, cached) = distributions(events).await?;
            self.computed_distributions += distributions.len();
            self.reused.get_or_insert(cached.min(self.prefix.len()));
            let mut symbols = symbols;
            let mut own = Some(node);
            let mut next = next.into_iter();
            for distribution in distributions {
                let distribution = Arc::new(distribution);
                self.distributions.keep(&self.place, &symbols, &distribution);
                match own.take() {
                    Some(node) => self.search.take(node, distribution)?,
                    None => self.keep_ahead(&symbols, distribution),
                }
                symbols.extend(next.next());
            }
        }
        Ok(())
    }

    /// Keeps a distribution until its turn comes, if there is room.
    fn keep_ahead(&mut self, symbols: &[u32], distribution: Arc<Distribution>) {
        let bytes = distribution_bytes(symbols, &distribution);
        if self.ahead_bytes + bytes <= AHEAD_BYTES && self.ahead.insert(symbols.to_vec(), distribution).is_none() {
            self.ahead_bytes += bytes;
        }
    }

    /// Returns what the search has found.
    pub fn finish(self) -> Completions {
        // nothing before the cursor was read again if all distributions were known
        let reused = self.reused.unwrap_or(self.prefix.len());
        Completions {
            is_cut: self.search.is_cut(),
            expansions: self.search.expansions(),
            items: self.search.finish(),
            reused,
            recomputed: self.prefix.len().saturating_sub(reused),
            distributions: self.computed_distributions,
            reused_distributions: self.reused_distributions,
        }
    }
}

/// Returns how many requests a search sends in one round while the engine has `others` other requests.
///
/// A wide search ends in fewer rounds, but computes distributions that it does not need in the end. A narrow one computes few of
/// those, but needs more rounds. A search that runs alone is therefore wide. Next to other requests it is narrower, because each row
/// makes their steps longer.
fn search_width(others: usize) -> usize {
    MAX_WIDTH.saturating_sub(others).max(MIN_WIDTH)
}

/// Returns the bytes that a distribution takes with the continuation that it follows.
fn distribution_bytes(symbols: &[u32], distribution: &Distribution) -> usize {
    ENTRY_BYTES + size_of_val(symbols) + size_of_val(&distribution.logits[..])
}

/// Reads the events of a request for distributions. Returns them with the number of symbols that were cached.
async fn distributions(mut events: Events) -> Result<(NextDistributions, usize)> {
    let mut found = None;
    let mut cached = 0;
    while let Some(event) = events.recv().await {
        match event? {
            Event::Started { cached_chars } => cached = cached_chars,
            Event::Next(distributions) => found = Some(distributions),
            Event::Finished { .. } => break,
            Event::Characters(_) | Event::Coded(_) | Event::Document(_) => {}
        }
    }
    let lost = || Error::Internal("the engine ended a request without its distributions".into());
    Ok((found.ok_or_else(lost)?, cached))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_is_narrower_next_to_other_requests() {
        assert_eq!([0, 1, 5, 6, 100].map(search_width), [MAX_WIDTH, MAX_WIDTH - 1, 3, MIN_WIDTH, MIN_WIDTH]);
    }
}
