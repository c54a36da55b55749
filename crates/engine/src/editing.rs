//! The session of one document that a client edits. Its completions and scores run as requests of the engine, from the longest
//! prefix in the segment cache; what was evicted is computed again. Results equal a cold request's bit for bit.

use crate::{
    api::{Event, Events, Job, Terms},
    completion::{
        Completion, CompletionRules, CompletionSearch, Distribution, Expansions, NextDistributions, NextSymbol, NodeId,
    },
    constraint::{CompileMemory, Constraint, MAX_MATCHER_BYTES, without_limit},
    edited_text::{EditedText, EncodedText, Splice, first_changed, max_symbols},
    engine::{Handle, check_priority},
    observer::Counters,
    options::{EmittedSymbol, Score, check_length},
    text_window::{Digest, SharedPrefix, TextView},
};
use std::{
    collections::HashMap,
    ops::Range,
    sync::{Arc, Mutex},
};
use weir_kernels::{
    error::{Error, Result},
    sync::lock,
};
use weir_models::contract::{BoundaryOptions, Card, Exactness, SymbolSlices};

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
    /// True if the search ended at its limit: other completions may be more probable than the last items.
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
    /// Symbols up to the range's end that were computed.
    pub recomputed: usize,
}

/// A score that is ready to run, on the text as it was when it was created.
pub struct ScoreTask {
    events: Events,
    /// The first position that the engine returns.
    context: usize,
    /// Symbols of the range, which follow the others.
    range: Range<usize>,
    /// Bytes of the text from which they come.
    start_bytes: Vec<usize>,
}

/// Rejects a model that cannot read parts of a text of characters or bytes again and again.
pub(crate) fn check_rereads(engine: &Handle) -> Result<()> {
    let card = engine.card();
    let wrong = |wanted, found: String| Err(Error::wrong_kind("model", &card.name, wanted, found));
    if card.vocabulary.is_subword() || engine.document_limits().is_some() {
        return wrong("continues texts of characters or bytes", format!("a model of another kind: {}", card.shape));
    }
    if engine.limits().cache_bytes == 0 {
        return wrong("has a segment cache", "served without one (--cache-memory 0)".into());
    }
    Ok(())
}

impl EditSession {
    /// Opens a document of at most `limit` bytes. Fails for a model that reads tokens or summarizes, and without a segment
    /// cache.
    pub fn open(engine: Handle, terms: Terms, text: String, revision: u64, limit: usize) -> Result<Self> {
        check_priority(terms.priority)?;
        check_rereads(&engine)?;
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

    /// Queues the scores of the characters in a range of at most [`MAX_SCORED_BYTES`]. Encodes the text up to the range's end.
    /// Fails if its ends are no edges of characters or in the wrong order, and as [`Handle::submit`] does.
    pub fn score(&self, bytes: Range<usize>) -> Result<ScoreTask> {
        self.check_scored(&bytes)?;
        let start = self.encode("score.start_byte", bytes.start)?.len();
        let symbols = self.encode("score.end_byte", bytes.end)?;
        let range = start.min(symbols.len())..symbols.len();
        let read = self.text.text().get(..bytes.end).unwrap_or_default();
        let start_bytes = self.engine.card().vocabulary.start_bytes(read, range.start);
        // other models' numbers depend on how symbols are split into steps
        let is_exact = self.engine.card().exactness == Exactness::Bitwise;
        let context = if is_exact { range.start.saturating_sub(1) } else { 0 };
        let score = Score { symbols, context, logprobs: true, ..Score::default() };
        Ok(ScoreTask {
            events: self.engine.submit(Job::Score(score), self.terms.clone())?,
            context,
            range,
            start_bytes,
        })
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
        let mut position = self.context;
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
                Event::Finished { usage, .. } => {
                    let recomputed = self.range.end.saturating_sub(usage.cached_chars);
                    return Ok(Scores { characters: scored, start_bytes: self.start_bytes, recomputed });
                }
                Event::Started { .. } | Event::Next(_) | Event::Coding(_) | Event::Coded(_) | Event::Document(_) => {}
            }
        }
        Err(Error::Internal("the engine ended a score without its end".into()))
    }
}

// A running search for completions. A round requests the distributions of several continuations, as rows of one batch, each of
// which may look ahead. Extra distributions change no result: the search uses each only in its turn.

/// Maximum requests of a search in one round, as rows of one batch, if the engine has no other requests.
const MAX_WIDTH: usize = 8;

/// Minimum of [`search_width`], however many other requests the engine has.
const MIN_WIDTH: usize = 2;

/// Maximum uncached symbols at the end of a text that counts as cached. Each request of the search feeds them.
const MAX_FED_AGAIN: usize = 2;

/// Maximum symbols by which a request looks ahead.
const MAX_AHEAD: usize = 4;

/// Maximum bytes of distributions that were computed ahead.
const AHEAD_BYTES: usize = 1 << 16;

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

/// A continuation with its distribution, and those after its greedy continuation.
pub struct Received {
    node: NodeId,
    symbols: Vec<u32>,
    next: NextDistributions,
    /// Symbols of the text that were cached.
    cached: usize,
}

/// Receives the distributions of requests. Fails as the first of them does.
pub async fn received(waiting: Vec<Waiting>) -> Result<Vec<Received>> {
    let mut all = Vec::with_capacity(waiting.len());
    for Waiting { node, symbols, events } in waiting {
        let (next, cached) = distributions(events).await?;
        all.push(Received { node, symbols, next, cached });
    }
    Ok(all)
}

impl EditSession {
    /// Prepares the completions at byte `cursor`. Fails if it is no edge of a character, a rule is out of bounds, or the text
    /// unreadable.
    pub fn complete(&self, cursor: usize, rules: CompletionRules) -> Result<CompletionTask> {
        self.clone().into_completion(cursor, rules).begin(without_limit)
    }
}

impl CompletionTask {
    /// Creates the task of a search after `prefix` in the text of `session`.
    fn new(session: EditSession, prefix: Arc<SharedPrefix>, search: CompletionSearch) -> Self {
        let EditSession { engine, terms, distributions, .. } = session;
        Self { place: distributions.begin(prefix.text()), distributions, ..Self::of(engine, terms, prefix, search) }
    }

    /// Creates the task of a search after `prefix`, outside a session.
    pub(crate) fn of(engine: Handle, terms: Terms, prefix: Arc<SharedPrefix>, search: CompletionSearch) -> Self {
        let distributions = DistributionCache::default();
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
            self.take(received(waiting).await?)?;
        }
    }

    /// Submits the requests for the next unknown distributions, all at once. The first after an uncached text runs alone.
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
            let Counters { running, waiting, .. } = self.engine.counters();
            let width = if self.search.expansions() == 0 { 1 } else { search_width(running + waiting) };
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

    /// Returns by how many symbols each request may look ahead: none if many distributions of earlier rounds are unused.
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

    /// Takes distributions, and keeps them for later searches. Takes long if the completions must have a form.
    pub fn take(&mut self, received: Vec<Received>) -> Result<()> {
        for Received { node, symbols, next, cached } in received {
            let NextDistributions { symbols: next, distributions } = next;
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

/// Returns how many requests a search sends in one round while the engine has `others` other requests. A wide search ends in
/// fewer rounds, but computes distributions that it does not need; next to other requests, each row makes their steps longer.
fn search_width(others: usize) -> usize {
    MAX_WIDTH.saturating_sub(others).max(MIN_WIDTH)
}

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
            Event::Characters(_) | Event::Coding(_) | Event::Coded(_) | Event::Document(_) => {}
        }
    }
    let lost = || Error::Internal("the engine ended a request without its distributions".into());
    Ok((found.ok_or_else(lost)?, cached))
}

/// Bytes of distributions that a session of the server keeps for its next searches, at most.
pub const KEPT_DISTRIBUTION_BYTES: usize = 1 << 18;

/// Bytes that a symbol of the text takes while the text is encoded. A growing vector may reserve twice what it needs.
const ENCODED_SYMBOL: usize = 2 * size_of::<u32>();

/// Bytes that a scored character takes until its answer is sent.
const SCORED_CHARACTER: usize = 256;

impl EditSession {
    /// Sets the maximum bytes of distributions that the session and its clones keep. A new session keeps none.
    pub fn keep_distributions(&self, bytes: usize) {
        self.distributions.set_limit(bytes);
    }

    /// Sets the maximum bytes of symbols of its text that the session keeps for its next searches. A new session keeps none.
    pub fn keep_symbols(&self, bytes: usize) {
        self.symbols.set_limit(bytes);
    }

    /// Returns the bytes that the symbols of the first `bytes` bytes take at most, while the session keeps them for its searches.
    pub fn symbol_bytes(&self, bytes: usize) -> usize {
        EncodedText::bytes_for(bytes, self.engine.card())
    }

    /// Returns the bytes that the completions at byte `cursor` hold while they run.
    pub fn completion_bytes(&self, cursor: usize) -> usize {
        let row = EncodedText::copied_bytes(cursor, self.engine.card());
        self.symbol_bytes(cursor).saturating_add(MAX_WIDTH * row + AHEAD_BYTES)
    }

    /// Returns the bytes that a form of the completions holds in addition: the text's matcher, and the one of a continuation.
    pub fn constraint_bytes() -> usize {
        2 * MAX_MATCHER_BYTES
    }

    /// Returns the bytes that the scores of a range hold while they run: the text's symbols, and the answer.
    pub fn score_bytes(&self, bytes: &Range<usize>) -> usize {
        let card = self.engine.card();
        let symbols = max_symbols(bytes.end, card).saturating_mul(ENCODED_SYMBOL);
        symbols.saturating_add(max_symbols(bytes.len(), card).saturating_mul(SCORED_CHARACTER))
    }
}

/// A completion that holds the session's symbols before it begins, so that its cost is known.
pub struct PendingCompletion {
    session: EditSession,
    symbols: TakenSymbols,
    cursor: usize,
    rules: CompletionRules,
    constraint: Option<Constraint>,
}

impl EditSession {
    /// Takes the session's symbols for the completions at byte `cursor`. They are returned to its clones.
    pub fn into_completion(self, cursor: usize, rules: CompletionRules) -> PendingCompletion {
        PendingCompletion { symbols: self.symbols.take(), session: self, cursor, rules, constraint: None }
    }
}

impl PendingCompletion {
    /// Returns the bytes of text before the cursor that [`begin`](Self::begin) encodes.
    pub fn unencoded_bytes(&self) -> usize {
        self.symbols.unencoded(self.cursor)
    }

    /// Gives the completions a form, which [`begin`](Self::begin) compiles.
    pub fn constrained(self, constraint: Option<Constraint>) -> Self {
        Self { constraint, ..self }
    }

    /// Encodes the text and prepares the search. `reserve` reserves the bytes that compiling the constraint takes. Fails as
    /// [`EditSession::complete`] and `reserve` do, and for an invalid constraint.
    pub fn begin(self, reserve: impl FnOnce(usize) -> Result<CompileMemory>) -> Result<CompletionTask> {
        let Self { session, mut symbols, cursor, rules, constraint } = self;
        let field = "complete.cursor_byte";
        let card = session.engine.card();
        let mut search = CompletionSearch::new(rules, card)?;
        if let Some(constraint) = constraint {
            search.constrain(session.engine.compile(&session.terms.tenant, &constraint, reserve)?.matcher()?);
        }
        let prefix = symbols.prefix(field, session.text_before(field, cursor)?, card)?;
        // gives the symbols back now, so that other searches can take them
        drop(symbols);
        if !(prefix.is_empty() && card.first_logits.is_some()) {
            check_length(field, prefix.len(), card)?;
        }
        if let Some(longest) = prefix.len().checked_add(rules.max_chars).filter(|longest| *longest > card.max_symbols) {
            let limit = card.max_symbols;
            let why = card.max_symbols_why;
            return Err(Error::TooLong { field, length: longest, limit, unit: "symbols with max_chars", why });
        }
        Ok(CompletionTask::new(session, prefix, search))
    }
}

// The symbols of an editing session's text, kept between searches. A search takes them, so that it encodes without a lock, and
// returns them with what it encoded; an edit in the meantime makes the symbols after it stale. Clones share them until one is
// edited.

#[derive(Clone, Default)]
pub(crate) struct SessionSymbols {
    kept: Arc<Mutex<KeptSymbols>>,
    version: u64,
}

#[derive(Default)]
struct KeptSymbols {
    /// Version of the encoded text. Each edit increments it.
    version: u64,
    /// Maximum bytes.
    limit: usize,
    encoded: EncodedText,
    /// Searches that have taken the symbols of any version.
    searches: usize,
    /// The first byte that was edited while searches had taken symbols.
    edited: Option<usize>,
}

/// Symbols that a search has taken, which no other search can use until they are dropped.
pub(crate) struct TakenSymbols {
    encoded: EncodedText,
    /// Where the symbols are returned; `None` if they do not belong to the kept text.
    owner: Option<Arc<Mutex<KeptSymbols>>>,
}

impl SessionSymbols {
    /// Sets the maximum number of bytes. The default, 0, keeps none.
    pub(crate) fn set_limit(&self, bytes: usize) {
        let mut kept = lock(&self.kept);
        kept.limit = bytes;
        if kept.encoded.bytes() > bytes {
            kept.encoded = EncodedText::default();
        }
    }

    /// Records an edit of the session's text after the first `start` bytes.
    pub(crate) fn edit(&mut self, start: usize) {
        let mut kept = lock(&self.kept);
        let limit = kept.limit;
        if kept.version == self.version {
            kept.encoded.truncate(start);
            if kept.searches > 0 {
                kept.edited = Some(kept.edited.map_or(start, |edited| edited.min(start)));
            }
            kept.version += 1;
            let version = kept.version;
            drop(kept);
            self.version = version;
        } else {
            drop(kept);
            *self = Self::default();
            self.set_limit(limit);
        }
    }

    /// Takes the symbols, if they belong to the session's text and no other search has them.
    pub(crate) fn take(&self) -> TakenSymbols {
        let mut kept = lock(&self.kept);
        if kept.version != self.version {
            return TakenSymbols { encoded: EncodedText::default(), owner: None };
        }
        kept.searches += 1;
        TakenSymbols { encoded: std::mem::take(&mut kept.encoded), owner: Some(Arc::clone(&self.kept)) }
    }
}

impl TakenSymbols {
    /// Returns how many of the first `bytes` bytes of the text must be encoded.
    pub(crate) fn unencoded(&self, bytes: usize) -> usize {
        bytes - self.encoded.kept_bytes(bytes)
    }

    /// Encodes `text`, the beginning of the session's text. Fails as [`Card::encode`] does.
    pub(crate) fn prefix(&mut self, field: &'static str, text: &str, card: &Card) -> Result<Arc<SharedPrefix>> {
        self.encoded.prefix(field, text, card)
    }
}

impl Drop for TakenSymbols {
    fn drop(&mut self) {
        let Some(owner) = self.owner.take() else { return };
        let mut kept = lock(&owner);
        if let Some(start) = kept.edited {
            self.encoded.truncate(start);
        }
        kept.searches -= 1;
        if kept.searches == 0 {
            kept.edited = None;
        }
        let is_longer = self.encoded.kept_bytes(usize::MAX) >= kept.encoded.kept_bytes(usize::MAX);
        if is_longer && self.encoded.bytes() <= kept.limit {
            std::mem::swap(&mut kept.encoded, &mut self.encoded);
        }
    }
}

// The distribution cache of an editing session. The next keystroke extends the text or takes its last character away, so the
// next search asks for many of the same distributions. All texts begin with the same symbols, of which a digest is held; a
// search of another beginning empties the cache. The distributions of the oldest search are dropped first.

/// Symbols before the cursor that are compared one by one: as many can be taken away without emptying the cache.
const NEAR_SYMBOLS: usize = 64;

/// Estimated bytes of an entry without its symbols and logits.
const DISTRIBUTION_BYTES: usize = 160;

/// The distribution cache of a session. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct DistributionCache(Arc<Mutex<Distributions>>);

pub(crate) struct SearchPlace {
    /// The beginning that the cache's texts had when the search began.
    beginning: u64,
    search: u64,
    /// Symbols of the searched text after that beginning.
    text: Vec<u32>,
}

#[derive(Default)]
struct Distributions {
    /// Maximum bytes.
    limit: usize,
    bytes: usize,
    /// Number of symbols with which all texts begin.
    start: usize,
    /// Digest of these symbols; none before the first search.
    before: Option<Digest>,
    /// Number of the current beginning. A [`SearchPlace`] of an earlier one is void.
    beginning: u64,
    /// Number of the last search.
    search: u64,
    /// Distributions by the rest of the text that they follow.
    entries: HashMap<Box<[u32]>, Entry>,
}

struct Entry {
    distribution: Arc<Distribution>,
    /// The last search that asked for it.
    search: u64,
}

/// Returns the digests of the symbols before two positions; `None` where the text is shorter.
fn digests_before(text: TextView<'_>, positions: [usize; 2]) -> [Option<Digest>; 2] {
    // the digests are read in rising order
    let mut digests = text.digests();
    let [a, b] = positions;
    let first = digests.digest_before(a.min(b));
    let second = digests.digest_before(a.max(b));
    if a <= b { [first, second] } else { [second, first] }
}

impl DistributionCache {
    pub(crate) fn set_limit(&self, bytes: usize) {
        let mut distributions = lock(&self.0);
        if distributions.limit == 0 {
            // the places of searches without a cache have no text
            distributions.beginning += 1;
        }
        distributions.limit = bytes;
        while distributions.bytes > bytes && distributions.drop_oldest() {}
    }

    pub(crate) fn begin<'a>(&self, text: impl Into<TextView<'a>>) -> SearchPlace {
        let text = text.into();
        let near = text.len().saturating_sub(NEAR_SYMBOLS);
        let mut distributions = lock(&self.0);
        distributions.search += 1;
        let search = distributions.search;
        while distributions.limit > 0 {
            let start = distributions.start;
            drop(distributions);
            // a long text is digested while the cache is not locked
            let [before_start, before_near] = digests_before(text, [start, near]);
            distributions = lock(&self.0);
            // unless another search has moved the start
            if distributions.start == start {
                let is_same = before_start.is_some() && before_start == distributions.before;
                distributions.move_start(text, is_same, near, before_near);
                let text = text.after(distributions.start).unwrap_or_default().to_vec();
                return SearchPlace { beginning: distributions.beginning, search, text };
            }
        }
        SearchPlace { beginning: distributions.beginning, search, text: Vec::new() }
    }

    pub(crate) fn get(&self, place: &SearchPlace, continuation: &[u32]) -> Option<Arc<Distribution>> {
        let mut distributions = lock(&self.0);
        if place.beginning != distributions.beginning || distributions.entries.is_empty() {
            return None;
        }
        let entry = distributions.entries.get_mut(&*[&place.text, continuation].concat())?;
        entry.search = entry.search.max(place.search);
        Some(Arc::clone(&entry.distribution))
    }

    /// Keeps the distribution after a continuation, unless one of the same search or a later one would be dropped for it.
    pub(crate) fn keep(&self, place: &SearchPlace, continuation: &[u32], distribution: &Arc<Distribution>) {
        lock(&self.0).keep(place, continuation, distribution);
    }
}

impl Distributions {
    /// Moves the start of the cached texts to `near`, close to the end of `text`, with the digest of the symbols before it. Drops the
    /// texts that do not continue there: all, unless `text` begins with the `same` symbols as they do.
    fn move_start(&mut self, text: TextView<'_>, same: bool, near: usize, before: Option<Digest>) {
        if same && text.len() - self.start <= 2 * NEAR_SYMBOLS {
            return;
        }
        let typed = if same { text.prefix(near).after(self.start).map(SymbolSlices::to_vec) } else { None };
        let entries = std::mem::take(&mut self.entries);
        self.bytes = 0;
        for (rest, entry) in entries {
            let Some(rest) = typed.as_ref().and_then(|typed| rest.strip_prefix(&typed[..])) else { continue };
            self.bytes += entry_bytes(rest, &entry.distribution);
            self.entries.insert(rest.into(), entry);
        }
        self.before = before;
        self.start = near;
        self.beginning += 1;
    }

    fn keep(&mut self, place: &SearchPlace, continuation: &[u32], distribution: &Arc<Distribution>) {
        if place.beginning != self.beginning {
            return;
        }
        let text = [&place.text, continuation].concat();
        let needed = entry_bytes(&text, distribution);
        if self.limit < needed || self.entries.contains_key(&*text) {
            return;
        }
        while self.bytes > self.limit - needed {
            let oldest = self.entries.values().map(|entry| entry.search).min();
            if oldest.is_none_or(|oldest| oldest >= place.search) || !self.drop_oldest() {
                return;
            }
        }
        self.bytes += needed;
        let entry = Entry { distribution: Arc::clone(distribution), search: place.search };
        self.entries.insert(text.into(), entry);
    }

    /// Drops the distributions that only the oldest search asked for. Returns false if the cache is empty.
    fn drop_oldest(&mut self) -> bool {
        let Some(oldest) = self.entries.values().map(|entry| entry.search).min() else { return false };
        let mut freed = 0;
        self.entries.retain(|text, entry| {
            let stays = entry.search > oldest;
            freed += if stays { 0 } else { entry_bytes(text, &entry.distribution) };
            stays
        });
        self.bytes -= freed;
        true
    }
}

fn entry_bytes(text: &[u32], distribution: &Distribution) -> usize {
    DISTRIBUTION_BYTES + size_of_val(text) + size_of_val(&distribution.logits[..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_models::text::{TextNormaliser, Vocabulary};

    #[test]
    fn a_search_is_narrower_next_to_other_requests() {
        assert_eq!([0, 1, 5, 6, 100].map(search_width), [MAX_WIDTH, MAX_WIDTH - 1, 3, MIN_WIDTH, MIN_WIDTH]);
    }

    fn distribution(number: usize) -> Arc<Distribution> {
        Arc::new(Distribution { logits: vec![number as f32; 10], boundary: None })
    }

    fn cache(limit: usize) -> DistributionCache {
        let cache = DistributionCache::default();
        cache.set_limit(limit);
        cache
    }

    fn bytes(cache: &DistributionCache) -> usize {
        let distributions = lock(&cache.0);
        let entries = distributions.entries.iter();
        let sum: usize = entries.map(|(text, entry)| entry_bytes(text, &entry.distribution)).sum();
        assert_eq!(sum, distributions.bytes);
        sum
    }

    #[test]
    fn equal_texts_are_found_wherever_the_cursor_was() {
        let cache = cache(1 << 16);
        let text: Vec<u32> = (0..500).collect();
        let known = |len: usize, continuation: &[u32]| {
            let place = cache.begin(&text[..len]);
            cache.get(&place, continuation).map(|distribution| distribution.logits[0])
        };
        let place = cache.begin(&text[..200]);
        cache.keep(&place, &[200, 201], &distribution(1));
        cache.keep(&place, &[9], &distribution(2));
        assert_eq!(cache.get(&place, &[200, 201]).map(|found| found.logits[0]), Some(1.0));
        assert_eq!(
            (known(201, &[201]), known(202, &[]), known(203, &[]), known(202, &[9])),
            (Some(1.0), Some(1.0), None, None)
        );
        // the start moves on, and the text after it is still found
        assert_eq!((known(199, &[199, 200, 201]), known(200, &[9])), (Some(1.0), Some(2.0)));
        assert_eq!((known(260, &[]), known(202, &[])), (None, Some(1.0)));
        assert_eq!(known(270, &[]), None);
        assert_eq!(lock(&cache.0).start, 206);
        assert!(lock(&cache.0).entries.is_empty() && bytes(&cache) == 0, "texts that end before the start");
    }

    #[test]
    fn another_beginning_empties_the_cache() {
        let cache = cache(1 << 16);
        let mut text: Vec<u32> = (0..200).collect();
        let place = cache.begin(&text);
        cache.keep(&place, &[1], &distribution(1));
        text[3] = 9;
        let other = cache.begin(&text);
        assert!(cache.get(&other, &[1]).is_none() && bytes(&cache) == 0);
        // a search that began before that cannot store what it computes
        cache.keep(&place, &[1], &distribution(1));
        assert!(cache.get(&other, &[1]).is_none() && cache.get(&place, &[1]).is_none());
        // an edit near the cursor leaves the texts that it does not touch
        cache.keep(&other, &[1], &distribution(1));
        text[190] = 7;
        assert!(cache.get(&cache.begin(&text), &[1]).is_none());
        text[190] = 190;
        assert!(cache.get(&cache.begin(&text), &[1]).is_some());
    }

    #[test]
    fn memory_has_a_limit() {
        let entry = DISTRIBUTION_BYTES + 4 * (5 + 1 + 10);
        let cache = cache(3 * entry);
        let old = cache.begin(&[1, 2, 3, 4, 5]);
        (0..4).for_each(|number| cache.keep(&old, &[number], &distribution(number as usize)));
        assert_eq!((bytes(&cache), cache.get(&old, &[3]).is_none()), (3 * entry, true));
        let new = cache.begin(&[1, 2, 3, 4, 5]);
        assert!(cache.get(&new, &[1]).is_some());
        // what the new search asked for stays
        cache.keep(&new, &[7], &distribution(7));
        assert_eq!([0, 1, 2, 7].map(|number| cache.get(&new, &[number]).is_some()), [false, true, false, true]);
        cache.keep(&old, &[0], &distribution(0));
        cache.keep(&old, &[2], &distribution(2));
        assert_eq!((bytes(&cache), cache.get(&new, &[2]).is_none()), (3 * entry, true));
        cache.set_limit(0);
        cache.keep(&new, &[1], &distribution(1));
        assert_eq!(bytes(&cache), 0);
    }

    fn card() -> Card {
        Card { max_symbols: 1 << 20, ..Card::for_tests(Vocabulary::byte_level(TextNormaliser::None)) }
    }

    fn read(symbols: &SessionSymbols, text: &str) -> usize {
        let mut taken = symbols.take();
        let left = taken.unencoded(text.len());
        let prefix = taken.prefix("text", text, &card()).unwrap();
        assert!(prefix.symbols() == &card().encode("text", text).unwrap());
        left
    }

    /// The first clone that is edited keeps the symbols.
    #[test]
    fn clones_with_the_same_text_share_their_symbols() {
        let mut first = SessionSymbols::default();
        let text = "a".repeat(10_000);
        assert_eq!((read(&first, &text), read(&first, &text)), (10_000, 10_000), "no memory for symbols");
        first.set_limit(1 << 16);
        let mut second = first.clone();
        assert_eq!(read(&first, &text), 10_000);
        assert!(read(&second, &text) < 2_048 && read(&second, &text[..7_000]) < 2_048);
        second.edit(9_999);
        let edited = [&text[..9_999], "bc"].concat();
        assert!(read(&second, &edited) < 2_048);
        assert_eq!((read(&first, &text), read(&first, &text)), (10_000, 10_000), "another text is encoded");
        first.edit(5_000);
        let other = [&text[..5_000], &"d".repeat(9_000)].concat();
        assert_eq!(read(&first, &other), 14_000);
        assert!(read(&first, &other) < 2_048 && read(&second, &edited) < 2_048);
        second.set_limit(30_000);
        assert_eq!(
            (read(&second, &edited), read(&second, &edited)),
            (10_001, 10_001),
            "the symbols are above the limit"
        );
    }

    /// A search returns what it encoded before the first edit, and nothing that the edits made stale.
    #[test]
    fn an_edit_keeps_the_symbols_before_it_of_a_search_in_progress() {
        let mut session = SessionSymbols::default();
        session.set_limit(1 << 16);
        let text = "a".repeat(10_000);
        let search = session.clone();
        let mut taken = search.take();
        taken.prefix("text", &text, &card()).unwrap();
        session.edit(5_000);
        session.edit(8_000);
        drop(taken);
        assert_eq!(read(&search, &text), 10_000, "another text is encoded");
        let edited = [&text[..5_000], &"b".repeat(4_000)].concat();
        assert!((4_000..6_100).contains(&read(&session, &edited)));
        assert!(read(&session, &edited) < 2_048);
        // earlier edits do not affect the next search
        let taken = session.take();
        session.edit(8_900);
        drop(taken);
        assert!(read(&session, &edited[..8_900]) < 2_048);
    }

    /// The search that takes no symbols finds that the whole text is not encoded.
    #[test]
    fn one_of_two_searches_takes_the_symbols() {
        let mut session = SessionSymbols::default();
        session.set_limit(1 << 16);
        let text = "a".repeat(10_000);
        read(&session, &text);
        let mut first = session.take();
        let mut second = session.take();
        assert!(first.unencoded(10_000) < 2_048 && second.unencoded(10_000) == 10_000);
        for taken in [&mut first, &mut second] {
            assert!(taken.prefix("text", &text, &card()).unwrap().symbols() == &card().encode("text", &text).unwrap());
        }
        drop(first);
        session.edit(4_000);
        drop(second);
        let edited = [&text[..4_000], "b"].concat();
        assert!(read(&session, &edited) < 2_048);
    }
}
