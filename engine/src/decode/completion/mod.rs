//! Ranked completions: the most probable distinct continuations of a text up to the end of a word, a line, a segment, or a number
//! of characters, with exact probabilities.
//!
//! Best-first search. An open continuation's probability bounds those of all its extensions, so a complete continuation that is
//! more probable than every open one is the next result. The search expands the most probable open continuation: it needs the
//! distribution after it, which the caller computes. The caller may compute those of the next ones at the same time. They wait
//! until it is their turn, so their number changes no result, only the work.
//!
//! Words and lines end before the character that ends them, and their probability is the sum over all such characters. A
//! continuation that reaches `max_chars` is complete as it is. No continuation is empty, and each consists of whole code points.
//! Pure: holds neither rows nor models.
//!
//! The queue keeps only what the search can still reach: a candidate behind as many others as may still be expanded or found is
//! dropped. So the memory does not grow with the number of distributions.

mod rules;
mod spelling;
mod symbol_kinds;
#[cfg(test)]
mod tests;

pub use rules::{CompletionEnd, CompletionRules};
pub use symbol_kinds::is_word_character;

use super::{
    contract::Card,
    next_symbol::{Distribution, Lookahead},
    sampling::logprobs::LogSoftmax,
};
use crate::{
    error::{Error, Result},
    text::Vocabulary,
};
use spelling::Spelling;
use std::{
    cmp::Ordering,
    collections::{BinaryHeap, HashMap, HashSet},
    sync::Arc,
};
use symbol_kinds::{SymbolKind, symbol_kinds};

/// Maximum continuations that one search expands.
pub const MAX_EXPANSIONS: usize = 1024;
/// Maximum bytes of distributions that wait for their turn. Beyond it the search asks for one at a time.
const WAITING_BYTES: usize = 1 << 17;

/// A continuation of the text.
#[derive(Debug, Clone, PartialEq)]
pub struct Completion {
    /// Its symbols, at least one.
    pub symbols: Vec<u32>,
    /// ln p of the continuation, including that it ends where it does.
    pub logprob: f64,
    /// Indexes of the symbols with a boundary. The last symbol's boundary is unknown if the continuation was cut.
    pub boundaries: Vec<usize>,
}

/// Index of a continuation that was expanded or waits for its distribution.
pub type NodeId = usize;

/// Continuations that a search wants to expand next.
#[derive(Debug)]
pub struct Expansions {
    /// The most probable one first. Empty if the search is over.
    pub nodes: Vec<NodeId>,
    /// Minimum ln p for computing a continuation ahead: that of the last of `nodes`, or of the complete continuation that would end
    /// the search. Negative infinity if there is room for more nodes.
    pub floor: f64,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    parent: Option<NodeId>,
    symbol: u32,
    depth: usize,
    logprob: f64,
    /// True if the symbol has a boundary. Known once the node is expanded.
    boundary: bool,
}

/// A continuation in the queue.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    logprob: f64,
    /// Order of equals: the one that was found first.
    order: usize,
    node: NodeId,
    /// The symbol after the node; none for the node itself.
    symbol: Option<u32>,
    is_complete: bool,
}

/// The search for the completions of one text.
#[derive(Debug)]
pub struct CompletionSearch {
    rules: CompletionRules,
    vocabulary: Arc<Vocabulary>,
    kinds: Vec<SymbolKind>,
    /// (V): true for the symbols that can become part of a continuation.
    continues: Arc<[bool]>,
    nodes: Vec<Node>,
    queue: BinaryHeap<Candidate>,
    /// Distributions after open continuations whose turn has not come.
    waiting: HashMap<NodeId, Arc<Distribution>>,
    found: Vec<Completion>,
    expansions: usize,
    pushed: usize,
}

impl CompletionSearch {
    /// Creates a search whose first expansion is the text itself. Fails as [`CompletionRules::validate`] does.
    pub fn new(rules: CompletionRules, card: &Card) -> Result<Self> {
        rules.validate(card)?;
        let root = Node { parent: None, symbol: 0, depth: 0, logprob: 0.0, boundary: false };
        let candidate = Candidate { logprob: 0.0, order: 0, node: 0, symbol: None, is_complete: false };
        let kinds = symbol_kinds(&card.vocabulary, rules.end);
        Ok(Self {
            rules,
            vocabulary: Arc::clone(&card.vocabulary),
            continues: kinds.iter().map(|kind| *kind == SymbolKind::Continues).collect(),
            kinds,
            nodes: vec![root],
            queue: BinaryHeap::from([candidate]),
            waiting: HashMap::new(),
            found: Vec::new(),
            expansions: 0,
            pushed: 1,
        })
    }

    /// Returns at most `limit` open continuations without a distribution. Later calls return each of them again until
    /// [`take`](Self::take) is called for it.
    pub fn next_expansions(&mut self, limit: usize) -> Expansions {
        let mut expansions = Vec::new();
        if self.expansions == MAX_EXPANSIONS {
            return Expansions { nodes: expansions, floor: f64::INFINITY };
        }
        let waiting_bytes = self.waiting.len() * self.kinds.len() * size_of::<f32>();
        let limit = if waiting_bytes < WAITING_BYTES { limit } else { 1 };
        let mut seen = Vec::new();
        let mut complete = 0;
        // what lies behind enough complete continuations is no result
        while self.found.len() + complete < self.rules.count
            && expansions.len() < limit
            && let Some(best) = self.queue.pop()
        {
            if best.is_complete {
                complete += 1;
                seen.push(best);
                continue;
            }
            let node = self.node_of(best);
            if !self.waiting.contains_key(&node) {
                expansions.push(node);
            }
            seen.push(Candidate { node, symbol: None, ..best });
        }
        // the last one seen ends the round: it is the last complete one wanted, or it takes the last place
        let ends_round = self.found.len() + complete >= self.rules.count || expansions.len() == limit;
        let floor = seen.last().filter(|_| ends_round).map_or(f64::NEG_INFINITY, |last| last.logprob);
        self.queue.extend(seen);
        Expansions { nodes: expansions, floor }
    }

    /// Returns how far to look ahead after a continuation: by at most `max_symbols`, while ln p is at least `floor`.
    pub fn lookahead(&self, node: NodeId, max_symbols: usize, floor: f64) -> Lookahead {
        let Node { depth, logprob, .. } = self.nodes[node];
        // nothing is expanded after the last character
        let max_symbols = max_symbols.min(self.rules.max_chars.saturating_sub(depth + 1));
        let stops_at_boundary = self.rules.end == CompletionEnd::Segment;
        Lookahead { max_symbols, allowed: Arc::clone(&self.continues), min_logprob: floor - logprob, stops_at_boundary }
    }

    /// Maximum characters of a completion.
    pub fn max_chars(&self) -> usize {
        self.rules.max_chars
    }

    /// Returns the symbols of a continuation.
    pub fn symbols(&self, node: NodeId) -> Vec<u32> {
        let mut symbols: Vec<u32> = self.path(node).map(|node| node.symbol).collect();
        symbols.reverse();
        symbols
    }

    /// Returns a continuation's nodes without the root, the last one first.
    fn path(&self, node: NodeId) -> impl Iterator<Item = Node> {
        let parent = |node: &Node| node.parent.map(|parent| self.nodes[parent]);
        std::iter::successors(Some(self.nodes[node]), parent).filter(|node| node.parent.is_some())
    }

    fn node_of(&mut self, Candidate { node, symbol, logprob, .. }: Candidate) -> NodeId {
        let Some(symbol) = symbol else { return node };
        let depth = self.nodes[node].depth + 1;
        self.nodes.push(Node { parent: Some(node), symbol, depth, logprob, boundary: false });
        self.nodes.len() - 1
    }

    fn completion(&self, Candidate { node, symbol, logprob, .. }: Candidate) -> Completion {
        let mut symbols = self.symbols(node);
        symbols.extend(symbol);
        let ends = self.path(node).filter(|node| node.boundary);
        let mut boundaries: Vec<usize> = ends.map(|node| node.depth - 1).collect();
        boundaries.reverse();
        Completion { symbols, logprob, boundaries }
    }

    /// Takes the distribution after a continuation, and expands as many as it can. Fails if a length or logits are wrong.
    pub fn take(&mut self, node: NodeId, distribution: Arc<Distribution>) -> Result<()> {
        self.waiting.insert(node, distribution);
        while self.found.len() < self.rules.count
            && let Some(&best) = self.queue.peek()
        {
            if best.is_complete {
                self.queue.pop();
                let completion = self.completion(best);
                self.found.push(completion);
                continue;
            }
            if best.symbol.is_some() || self.expansions == MAX_EXPANSIONS {
                break;
            }
            let Some(distribution) = self.waiting.remove(&best.node) else { break };
            self.queue.pop();
            self.expansions += 1;
            self.expand(best.node, &distribution)?;
        }
        Ok(())
    }

    /// Adds what follows a continuation to the queue.
    fn expand(&mut self, node: NodeId, distribution: &Distribution) -> Result<()> {
        let Distribution { logits, boundary } = distribution;
        if logits.len() != self.kinds.len() {
            return Err(Error::Internal(format!("{} logits for {} symbols", logits.len(), self.kinds.len())));
        }
        let Node { depth, logprob, .. } = self.nodes[node];
        let mut spelling = Spelling::new(&self.vocabulary, self.path(node).map(|node| node.symbol));
        let is_whole = spelling.is_whole();
        if let Some(boundary) = boundary.filter(|_| depth > 0) {
            self.nodes[node].boundary = boundary.boundary;
            if self.rules.end == CompletionEnd::Segment && boundary.boundary {
                if is_whole {
                    self.push(Candidate { logprob, order: 0, node, symbol: None, is_complete: true });
                }
                return Ok(());
            }
        }
        let softmax = LogSoftmax::new(logits)?;
        let mut ends = 0.0;
        for (symbol, &logit) in (0_u32..).zip(logits) {
            let own = softmax.exact(logit);
            match self.kinds[symbol as usize] {
                SymbolKind::Excluded => {}
                SymbolKind::Ends => ends += own.exp(),
                // never generated
                SymbolKind::Continues if own == f64::NEG_INFINITY => {}
                SymbolKind::Continues => {
                    let is_complete = depth + 1 == self.rules.max_chars;
                    if spelling.allows(self.vocabulary.byte_of(symbol), is_complete) {
                        let logprob = logprob + own;
                        self.push(Candidate { logprob, order: 0, node, symbol: Some(symbol), is_complete });
                    }
                }
            }
        }
        if depth > 0 && ends > 0.0 && is_whole {
            let logprob = logprob + ends.ln();
            self.push(Candidate { logprob, order: 0, node, symbol: None, is_complete: true });
        }
        self.prune();
        Ok(())
    }

    /// Returns the completions, most probable first. If the search is cut, the last ones are the most probable of those that were
    /// complete when it ended.
    pub fn finish(mut self) -> Vec<Completion> {
        let mut found = std::mem::take(&mut self.found);
        while found.len() < self.rules.count
            && let Some(best) = self.queue.pop()
        {
            if best.is_complete {
                found.push(self.completion(best));
            }
        }
        found
    }

    /// Number of continuations that were expanded.
    pub fn expansions(&self) -> usize {
        self.expansions
    }

    /// Returns true if the search ended at [`MAX_EXPANSIONS`] before it had found `count` completions. Others may exist, and may be more
    /// probable than the last ones that [`finish`](Self::finish) returns.
    pub fn is_cut(&self) -> bool {
        self.found.len() < self.rules.count && !self.queue.is_empty()
    }

    /// Adds a candidate, and numbers it.
    fn push(&mut self, candidate: Candidate) {
        self.queue.push(Candidate { order: self.pushed, ..candidate });
        self.pushed += 1;
    }

    /// Drops the candidates that the search cannot reach, once they are many. Keeps the best complete ones for a search that is cut.
    fn prune(&mut self) {
        let expansions = MAX_EXPANSIONS.saturating_sub(self.expansions);
        // one more shows that others exist
        let reachable = expansions + self.rules.count - self.found.len() + 1;
        if self.queue.len() > 2 * reachable {
            let mut queue = std::mem::take(&mut self.queue).into_vec();
            queue.select_nth_unstable_by(reachable - 1, |a, b| b.cmp(a));
            let mut complete = queue.split_off(reachable);
            complete.retain(|candidate| candidate.is_complete);
            complete.sort_unstable_by(|a, b| b.cmp(a));
            complete.truncate(self.rules.count - self.found.len());
            queue.append(&mut complete);
            let open = queue.iter().filter(|candidate| candidate.symbol.is_none() && !candidate.is_complete);
            let open: HashSet<NodeId> = open.map(|candidate| candidate.node).collect();
            self.waiting.retain(|node, _| open.contains(node));
            self.queue = queue.into();
        }
    }
}

impl Ord for Candidate {
    /// The greatest is the most probable; of equals the one that was found first.
    fn cmp(&self, other: &Self) -> Ordering {
        self.logprob.total_cmp(&other.logprob).then(other.order.cmp(&self.order))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Candidate {}
