//! Ranked completions: the most probable distinct continuations of a text up to the end of a word, a line, a segment, or a
//! number of characters, with exact probabilities. Pure: holds neither rows nor models.
//!
//! Best-first search. An open continuation's probability bounds all its extensions', so a complete one that is more
//! probable than every open one is the next result. The caller may compute the distributions of the next open continuations
//! ahead: they wait for their turn, so their number changes no result. Words and lines end before the character that ends them,
//! and their probability is the sum over all such characters.

use crate::{
    constraint::ConstraintMatcher,
    options::{check_length, within},
    spelling::OneEdit,
    text_window::ForkedText,
};
use std::{
    cmp::Ordering,
    collections::{BinaryHeap, HashMap, HashSet},
    ops::RangeInclusive,
    str::from_utf8,
    sync::Arc,
};
use weir_kernels::{
    distribution::LogSoftmax,
    error::{Error, Result},
};
use weir_models::{
    contract::{BoundaryOptions, Card, SymbolBoundary, check_mode},
    text::Vocabulary,
};

/// Maximum continuations that one search expands.
pub const MAX_EXPANSIONS: usize = 1024;

/// Nats by which a spelling is less probable than the best one, at most: the others are no alternatives to it.
const SPELLING_SPREAD: f64 = 5.0;

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
    /// Minimum ln p for computing a continuation ahead; negative infinity if there is room for more nodes.
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
    /// The only continuations; all if none.
    spellings: Option<OneEdit>,
    /// Follows a continuation, if it must have a form.
    constraint: Option<ConstraintMatcher>,
    /// Minimum ln p of a continuation.
    floor: f64,
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
        Ok(Self::with(rules, symbol_kinds(&card.vocabulary, rules.end), card))
    }

    /// Lets the search find texts of a form, by a matcher of an empty text. A text ends where it has the form, not by the rules.
    pub fn constrain(&mut self, matcher: ConstraintMatcher) {
        self.rules.end = CompletionEnd::Length;
        self.kinds = symbol_kinds(&self.vocabulary, CompletionEnd::Length);
        self.continues = self.kinds.iter().map(|kind| *kind == SymbolKind::Continues).collect();
        self.constraint = Some(matcher);
    }

    /// Returns the matcher of a continuation of these symbols, if it must have a form. Fails if nothing may follow it.
    fn form_after(&self, symbols: &[u32]) -> Result<Option<ConstraintMatcher>> {
        let Some(mut matcher) = self.constraint.clone() else { return Ok(None) };
        symbols.iter().try_for_each(|symbol| matcher.consume(*symbol))?;
        matcher.update()?;
        Ok(Some(matcher))
    }

    /// Creates a search for the spellings of a word with ln p of at least `floor`, before the symbol `end`, which is no letter.
    pub(crate) fn of_spellings(spellings: OneEdit, end: u32, count: usize, floor: f64, card: &Card) -> Self {
        let kind = |symbol| match symbol {
            symbol if symbol == end => SymbolKind::Ends,
            symbol if spellings.has(symbol) => SymbolKind::Continues,
            _ => SymbolKind::Excluded,
        };
        let kinds = (0_u32..).take(card.vocabulary.len()).map(kind).collect();
        let rules = CompletionRules { count, end: CompletionEnd::Word, max_chars: spellings.longest() + 1 };
        Self { spellings: Some(spellings), floor, ..Self::with(rules, kinds, card) }
    }

    fn with(rules: CompletionRules, kinds: Vec<SymbolKind>, card: &Card) -> Self {
        let root = Node { parent: None, symbol: 0, depth: 0, logprob: 0.0, boundary: false };
        let candidate = Candidate { logprob: 0.0, order: 0, node: 0, symbol: None, is_complete: false };
        Self {
            rules,
            vocabulary: Arc::clone(&card.vocabulary),
            continues: kinds.iter().map(|kind| *kind == SymbolKind::Continues).collect(),
            kinds,
            spellings: None,
            constraint: None,
            floor: f64::NEG_INFINITY,
            nodes: vec![root],
            queue: BinaryHeap::from([candidate]),
            waiting: HashMap::new(),
            found: Vec::new(),
            expansions: 0,
            pushed: 1,
        }
    }

    /// Returns at most `limit` open continuations without a distribution, until [`take`](Self::take) is called for each.
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
        // nothing is expanded after the last character, and the most probable one may not be in the spelling
        let max_symbols = if self.spellings.is_some() { 0 } else { max_symbols };
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
                if self.spellings.is_some() {
                    self.raise_floor(best.logprob - SPELLING_SPREAD);
                }
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
        let mut text = self.symbols(node);
        // a grammar whose symbols the vocabulary lacks has no continuation there
        let Ok(form) = self.form_after(&text) else { return Ok(()) };
        let may_end = form.as_ref().is_none_or(ConstraintMatcher::accepts);
        for (symbol, &logit) in (0_u32..).zip(logits) {
            let own = softmax.exact(logit);
            match self.kinds[symbol as usize] {
                SymbolKind::Excluded => {}
                SymbolKind::Ends => ends += own.exp(),
                // never generated
                SymbolKind::Continues if own == f64::NEG_INFINITY => {}
                SymbolKind::Continues if form.as_ref().is_some_and(|form| !form.symbols().get(symbol as usize)) => {
                    ends += own.exp();
                }
                SymbolKind::Continues => {
                    let is_complete = depth + 1 == self.rules.max_chars;
                    text.push(symbol);
                    let begins_spelling = self.spellings.as_ref().is_none_or(|spellings| spellings.begins(&text));
                    text.pop();
                    if begins_spelling && spelling.allows(self.vocabulary.byte_of(symbol), is_complete) {
                        let logprob = logprob + own;
                        self.push(Candidate { logprob, order: 0, node, symbol: Some(symbol), is_complete });
                    }
                }
            }
        }
        let is_spelling = self.spellings.as_ref().is_none_or(|spellings| spellings.is(&text));
        if depth > 0 && ends > 0.0 && may_end && is_whole && is_spelling {
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

    /// Returns true if the search ended at [`MAX_EXPANSIONS`] before it had found `count` completions.
    pub fn is_cut(&self) -> bool {
        self.found.len() < self.rules.count && !self.queue.is_empty()
    }

    /// Drops the continuations with ln p below a new floor.
    fn raise_floor(&mut self, floor: f64) {
        self.floor = self.floor.max(floor);
        let floor = self.floor;
        self.queue.retain(|candidate| candidate.logprob >= floor);
    }

    fn push(&mut self, candidate: Candidate) {
        if candidate.logprob < self.floor {
            return;
        }
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

const COUNTS: RangeInclusive<usize> = 1..=16;

/// Allowed lengths of a completion, in characters.
const LENGTHS: RangeInclusive<usize> = 1..=256;

/// The place where a completion ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompletionEnd {
    /// The end is before the first character that is not a letter, digit, apostrophe or underscore. In a model of bytes, every character
    /// outside ASCII counts as a letter.
    Word,
    /// The end is before the first line feed.
    Line,
    /// The end is after the character with which a segment ends.
    Segment,
    /// The end is after `max_chars` characters.
    Length,
}

/// The rules of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompletionRules {
    /// Number of completions.
    pub count: usize,
    /// The place where each ends.
    pub end: CompletionEnd,
    /// Maximum characters of each.
    pub max_chars: usize,
}

impl CompletionRules {
    /// Checks the bounds of all fields. Fails with [`Error::BadOption`] or [`Error::WrongKind`], which name the field.
    pub fn validate(&self, card: &Card) -> Result<()> {
        within("complete.count", self.count, COUNTS)?;
        within("complete.max_chars", self.max_chars, LENGTHS)?;
        let wrong = |field, wanted| {
            Err(Error::wrong_kind(field, &card.name, wanted, format!("a model of another kind: {}", card.shape)))
        };
        if card.vocabulary.is_subword() {
            return wrong("model", "reads characters or bytes");
        }
        if self.end == CompletionEnd::Segment && !card.pooled {
            return wrong("complete.until", "pools its input");
        }
        if self.end == CompletionEnd::Segment && card.begins_chunks {
            return wrong("complete.until", "ends segments with a character");
        }
        Ok(())
    }
}

/// The bytes of a continuation; none if symbols are characters.
struct Spelling(Vec<u8>);

impl Spelling {
    /// Spells the symbols of a continuation, which come last first.
    fn new(vocabulary: &Vocabulary, reversed: impl Iterator<Item = u32>) -> Self {
        let mut bytes: Vec<u8> = reversed.map_while(|symbol| vocabulary.byte_of(symbol)).collect();
        bytes.reverse();
        // a code point has at most four bytes, and all before the last one are whole
        let last = bytes.iter().rposition(|byte| !(0x80..0xc0).contains(byte)).unwrap_or_default();
        Self(bytes.split_off(last))
    }

    /// True if the continuation ends with a whole code point.
    fn is_whole(&self) -> bool {
        from_utf8(&self.0).is_ok()
    }

    /// True if a byte may follow: UTF-8 can go on after it, or ends with it if it `is_last`. Always true without a byte.
    fn allows(&mut self, byte: Option<u8>, is_last: bool) -> bool {
        let Some(byte) = byte else { return true };
        self.0.push(byte);
        let allowed = from_utf8(&self.0).err().is_none_or(|error| error.error_len().is_none() && !is_last);
        self.0.pop();
        allowed
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SymbolKind {
    /// Becomes part of it.
    Continues,
    /// Ends it, and is not part of it.
    Ends,
    /// No text: it is never part of a continuation.
    Excluded,
}

/// Returns true for a character of a word: a letter, digit, apostrophe or underscore.
pub fn is_word_character(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '_' | '\'' | '’')
}

/// Returns the kind of each symbol, by id.
fn symbol_kinds(vocabulary: &Vocabulary, end: CompletionEnd) -> Vec<SymbolKind> {
    let kind = |id: u32| {
        if vocabulary.ends_text(id) {
            return SymbolKind::Ends;
        }
        let text = vocabulary.decode(&[id]);
        let character = match vocabulary.byte_of(id) {
            // part of a longer code point
            Some(byte) if !byte.is_ascii() => 'a',
            _ => match text.chars().next() {
                Some(character) if !vocabulary.is_special(id) => character,
                _ => return SymbolKind::Excluded,
            },
        };
        let continues = match end {
            CompletionEnd::Word => is_word_character(character),
            CompletionEnd::Line => character != '\n',
            CompletionEnd::Segment | CompletionEnd::Length => true,
        };
        if continues { SymbolKind::Continues } else { SymbolKind::Ends }
    };
    (0_u32..).take(vocabulary.len()).map(kind).collect()
}

// A request for the distribution after a text, and after each symbol of its greedy continuation.

/// The field of a request that decides the text's end.
const FIELD: &str = "complete.cursor_byte";

/// A request for the distribution of the symbol after a text.
#[derive(Debug, Clone)]
pub struct NextSymbol {
    /// The text's symbols; at least one.
    pub symbols: ForkedText,
    /// How boundaries are decided.
    pub boundaries: BoundaryOptions,
    /// How far the request looks ahead.
    pub lookahead: Lookahead,
}

/// How far a request looks ahead: after its text, it appends the most probable symbol each time.
#[derive(Debug, Clone, Default)]
pub struct Lookahead {
    /// Maximum symbols that are appended; fewer if the model cannot hold as many.
    pub max_symbols: usize,
    /// (V): true for the symbols that may be appended. Empty allows none.
    pub allowed: Arc<[bool]>,
    /// Minimum ln p of the appended symbols together, given the text.
    pub min_logprob: f64,
    /// True if nothing is appended after a symbol with a boundary.
    pub stops_at_boundary: bool,
}

/// The distributions that a request has computed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NextDistributions {
    /// The symbols that it appended to the text.
    pub symbols: Vec<u32>,
    /// The distribution after the text, then the one after each of `symbols`.
    pub distributions: Vec<Distribution>,
}

/// The distribution after a text, and the boundary decision of its last symbol.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    /// (vocab): logits of the next symbol.
    pub logits: Vec<f32>,
    /// The boundary with the last symbol; none for an empty text.
    pub boundary: Option<SymbolBoundary>,
}

/// The distributions of a request that runs.
#[derive(Debug, Clone)]
pub(crate) struct DistributionsSoFar {
    lookahead: Lookahead,
    /// ln p of the appended symbols.
    logprob: f64,
    found: NextDistributions,
}

impl DistributionsSoFar {
    pub(crate) fn new(lookahead: Lookahead) -> Self {
        Self { lookahead, logprob: 0.0, found: NextDistributions::default() }
    }

    /// Takes the distribution after the latest symbol. Returns the symbol to append, or `None` if the request is done.
    pub(crate) fn push(&mut self, distribution: Distribution) -> Result<Option<u32>> {
        let next = self.next_symbol(&distribution)?;
        self.found.distributions.push(distribution);
        self.found.symbols.extend(next);
        Ok(next)
    }

    fn next_symbol(&mut self, Distribution { logits, boundary }: &Distribution) -> Result<Option<u32>> {
        let Lookahead { max_symbols, allowed, min_logprob, stops_at_boundary } = &self.lookahead;
        let stops = *stops_at_boundary && boundary.is_some_and(|decision| decision.boundary);
        if stops || self.found.symbols.len() >= *max_symbols {
            return Ok(None);
        }
        let softmax = LogSoftmax::new(logits)?;
        let best = (0_u32..).zip(logits).zip(&**allowed).max_by(|((_, a), _), ((_, b), _)| a.total_cmp(b));
        let Some(((symbol, &logit), true)) = best else { return Ok(None) };
        self.logprob += softmax.exact(logit);
        Ok((self.logprob >= *min_logprob).then_some(symbol))
    }

    pub(crate) fn has_any(&self) -> bool {
        !self.found.distributions.is_empty()
    }

    pub(crate) fn finish(self) -> NextDistributions {
        self.found
    }
}

impl NextSymbol {
    /// Checks the text and the boundary mode. Fails as [`Score::validate`](super::options::Score::validate) does.
    pub fn validate(&self, card: &Card) -> Result<()> {
        check_length(FIELD, self.symbols.len(), card)?;
        self.symbols.check(|symbols| card.vocabulary.check_text(FIELD, symbols))?;
        check_mode(&self.boundaries, card)
    }
}

#[cfg(test)]
mod tests {
    use super::{SymbolKind::*, *};
    use proptest::prelude::*;
    use weir_models::text::{TextMarks, TextNormaliser};

    #[test]
    fn continuations_are_whole_code_points() {
        let bytes = Vocabulary::byte_level(TextNormaliser::None);
        let reversed = |text: &[u8]| text.iter().rev().map(|&byte| u32::from(byte)).collect::<Vec<_>>();
        let mut whole = Spelling::new(&bytes, reversed("añ".as_bytes()).into_iter());
        assert!(whole.is_whole() && whole.allows(Some(b'x'), true) && whole.allows(Some(0xc3), false));
        assert!(
            !whole.allows(Some(0xc3), true) && !whole.allows(Some(0xa9), false) && !whole.allows(Some(0xff), false)
        );
        let mut open = Spelling::new(&bytes, reversed(&"añ€".as_bytes()[..5]).into_iter());
        assert!(!open.is_whole() && open.allows(Some(0xac), true) && !open.allows(Some(b'x'), false));
        assert!(open.allows(None, true) && Spelling::new(&bytes, std::iter::empty()).is_whole());
    }

    #[test]
    fn words_and_lines_end_before_their_symbols() {
        let letters = Vocabulary::from_symbols(&[" ", "a", "é", "'", "\n"], TextNormaliser::None).unwrap();
        assert_eq!(symbol_kinds(&letters, CompletionEnd::Word), [Ends, Continues, Continues, Continues, Ends]);
        let line = [Continues, Continues, Continues, Continues, Ends];
        assert_eq!(symbol_kinds(&letters, CompletionEnd::Line), line);
        assert_eq!(symbol_kinds(&letters, CompletionEnd::Length), [Continues; 5]);
        let marks = TextMarks { start: 254, end: 255 };
        let bytes = Vocabulary::byte_level_with_marks(marks, TextNormaliser::None).unwrap();
        let kinds = symbol_kinds(&bytes, CompletionEnd::Word);
        assert_eq!(
            [254, 255, 0xc3, b'a'.into(), b'.'.into()].map(|id: usize| kinds[id]),
            [Excluded, Ends, Continues, Continues, Ends]
        );
        let ended = Vocabulary::byte_level_with_end(3, TextNormaliser::None).unwrap();
        for end in [CompletionEnd::Line, CompletionEnd::Segment, CompletionEnd::Length] {
            let kinds = symbol_kinds(&ended, end);
            assert_eq!([2, 3, 4].map(|id: usize| kinds[id]), [Continues, Ends, Continues], "{end:?}");
        }
    }

    /// The search adds the exponentials of a distribution in f32.
    const TOLERANCE: f64 = 1e-6;

    const SYMBOLS: [&str; 4] = ["a", "b", " ", "\n"];

    /// Logits that are a hash of the text; `sharpness` makes few texts probable.
    fn logits(seed: u64, text: &[u32], sharpness: u64) -> Vec<f32> {
        let mix = |value: u64| (value ^ (value >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(31);
        let hash = text.iter().fold(mix(seed | 1), |hash, &symbol| mix(hash ^ u64::from(symbol + 1)));
        (0..SYMBOLS.len() as u64).map(|id| (mix(hash ^ (id + 7)) % (1 + 40 * sharpness)) as f32 / 20.0).collect()
    }

    /// A segment ends with a space.
    fn distribution(seed: u64, text: &[u32], sharpness: u64) -> Distribution {
        let decision = |&symbol| SymbolBoundary { boundary: symbol == 2, ..SymbolBoundary::default() };
        Distribution { logits: logits(seed, text, sharpness), boundary: text.last().map(decision) }
    }

    fn card() -> Card {
        Card::for_tests(Vocabulary::from_symbols(&SYMBOLS, TextNormaliser::None).unwrap())
    }

    /// Returns all continuations with their probabilities, most probable first.
    fn all(seed: u64, sharpness: u64, rules: CompletionRules) -> Vec<Completion> {
        let mut complete = Vec::new();
        let mut open = vec![Completion { symbols: Vec::new(), logprob: 0.0, boundaries: Vec::new() }];
        while let Some(Completion { symbols, logprob, .. }) = open.pop() {
            let logits = logits(seed, &symbols, sharpness);
            let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
            let probability = |id: usize| f64::from(logits[id]).exp() / sum;
            let ends: &[usize] = match rules.end {
                CompletionEnd::Word => &[2, 3],
                CompletionEnd::Line => &[3],
                CompletionEnd::Segment | CompletionEnd::Length => &[],
            };
            if !symbols.is_empty() && !ends.is_empty() {
                let end: f64 = ends.iter().map(|&id| probability(id)).sum();
                complete.push(Completion {
                    symbols: symbols.clone(),
                    logprob: logprob + end.ln(),
                    boundaries: Vec::new(),
                });
            }
            for id in (0..SYMBOLS.len()).filter(|id| !ends.contains(id)) {
                let symbols = [&symbols[..], &[id as u32]].concat();
                let next = Completion { logprob: logprob + probability(id).ln(), symbols, boundaries: Vec::new() };
                let ends_segment = rules.end == CompletionEnd::Segment && id == 2;
                let is_complete = next.symbols.len() == rules.max_chars || ends_segment;
                if is_complete { &mut complete } else { &mut open }.push(next);
            }
        }
        complete.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
        complete
    }

    /// Runs a search to its end, with the `distribution` after each continuation. Returns how many were computed.
    fn drive(
        search: &mut CompletionSearch,
        width: usize,
        mut distribution: impl FnMut(&CompletionSearch, NodeId) -> Distribution,
    ) -> usize {
        let mut computed = 0;
        loop {
            let nodes = search.next_expansions(width).nodes;
            if nodes.is_empty() {
                return computed;
            }
            computed += nodes.len();
            for node in nodes {
                let found = distribution(search, node);
                search.take(node, Arc::new(found)).unwrap();
            }
        }
    }

    fn search(seed: u64, sharpness: u64, rules: CompletionRules, width: usize) -> CompletionSearch {
        let mut search = CompletionSearch::new(rules, &card()).unwrap();
        drive(&mut search, width, |search, node| distribution(seed, &search.symbols(node), sharpness));
        search
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn the_most_probable_of_all_are_found(
            seed: u64, sharpness in 0_u64..4, count in 1_usize..9, max_chars in 1_usize..5, width in 1_usize..9, kind in 0_usize..4,
        ) {
            let ends = [CompletionEnd::Word, CompletionEnd::Line, CompletionEnd::Segment, CompletionEnd::Length];
            let rules = CompletionRules { count, end: ends[kind], max_chars };
            let all = all(seed, sharpness, rules);
            let search = search(seed, sharpness, rules, width);
            prop_assert!(!search.is_cut());
            let completions = search.finish();
            prop_assert_eq!(completions.len(), count.min(all.len()));
            for (index, (found, expected)) in completions.iter().zip(&all).enumerate() {
                prop_assert!((found.logprob - expected.logprob).abs() < TOLERANCE, "{index}: {found:?} {expected:?}");
                let named = all.iter().find(|other| other.symbols == found.symbols).unwrap();
                prop_assert!((found.logprob - named.logprob).abs() < TOLERANCE, "equal texts have equal probabilities");
                prop_assert!(completions[..index].iter().all(|other| other.symbols != found.symbols), "distinct");
                // a segment ends with a space; the last character of a cut completion is not decided
                let spaces = found.symbols.iter().take(max_chars - 1).enumerate().filter(|(_, symbol)| **symbol == 2);
                prop_assert_eq!(&found.boundaries, &spaces.map(|(index, _)| index).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn requests_look_ahead_while_the_result_would_have_a_place_in_the_round() {
        let rules = CompletionRules { count: 2, end: CompletionEnd::Segment, max_chars: 4 };
        let mut search = CompletionSearch::new(rules, &card()).unwrap();
        let take = |search: &mut CompletionSearch, node, probabilities: [f32; 4]| {
            let logits = probabilities.iter().map(|probability| probability.ln()).collect();
            search.take(node, Arc::new(Distribution { logits, boundary: None })).unwrap();
        };
        let Expansions { nodes, floor } = search.next_expansions(3);
        assert_eq!((nodes.len(), floor), (1, f64::NEG_INFINITY), "nothing else is open");
        let ahead = search.lookahead(nodes[0], 9, floor);
        assert_eq!((ahead.max_symbols, ahead.stops_at_boundary), (3, true), "the last character is not expanded");
        take(&mut search, nodes[0], [0.5, 0.3, 0.15, 0.05]);
        let Expansions { nodes, floor } = search.next_expansions(2);
        assert!(nodes.len() == 2 && (floor - 0.3_f64.ln()).abs() < TOLERANCE, "as probable as the last one: {floor}");
        let ahead = search.lookahead(nodes[0], 1, floor);
        assert!((ahead.min_logprob - 0.6_f64.ln()).abs() < TOLERANCE && ahead.max_symbols == 1, "{ahead:?}");
        for node in nodes {
            take(&mut search, node, [0.9, 0.1, 0.0, 0.0]);
        }
        // the second one waits for its turn; there is room for all others
        let Expansions { nodes, floor } = search.next_expansions(8);
        assert!(nodes.len() == 4 && floor == f64::NEG_INFINITY, "{} {floor}", nodes.len());
        // two complete ones end the search
        let rules = CompletionRules { max_chars: 1, ..rules };
        let mut search = CompletionSearch::new(rules, &card()).unwrap();
        let root = search.next_expansions(1).nodes[0];
        assert_eq!(search.lookahead(root, 9, f64::NEG_INFINITY).max_symbols, 0);
        take(&mut search, root, [0.5, 0.3, 0.15, 0.05]);
        assert!(search.next_expansions(1).nodes.is_empty());
    }

    #[test]
    fn a_search_has_a_limit() {
        // all texts are equally probable
        let rules = CompletionRules { count: 2, end: CompletionEnd::Length, max_chars: 9 };
        let search = search(1, 0, rules, 5);
        assert!(search.is_cut());
        assert_eq!(search.expansions(), MAX_EXPANSIONS);
        // what the search cannot reach is dropped
        assert!(search.queue.len() <= 2 * (rules.count + 1) + SYMBOLS.len(), "{}", search.queue.len());
        assert!(search.finish().is_empty(), "none was complete");
    }

    /// Each symbol is nearly certain, so a search that goes deep finds some completions and is cut before it has all of them.
    #[test]
    fn a_search_that_is_cut_returns_the_same_for_every_width() {
        let rules = CompletionRules { count: 16, end: CompletionEnd::Length, max_chars: 200 };
        let results = [1, 2, 3, 8].map(|width| {
            let mut search = CompletionSearch::new(rules, &card()).unwrap();
            let computed = drive(&mut search, width, |search, node| {
                let mut logits = logits(5, &search.symbols(node), 1);
                logits[0] += 9.0;
                Distribution { logits, boundary: None }
            });
            assert!(search.is_cut() && !search.found.is_empty(), "{}", search.found.len());
            assert_eq!(search.expansions(), MAX_EXPANSIONS);
            let most_waiting = WAITING_BYTES / (SYMBOLS.len() * size_of::<f32>());
            assert!(computed <= MAX_EXPANSIONS + most_waiting + width, "{computed}");
            search.finish()
        });
        assert!(results.iter().all(|result| *result == results[0]));
    }

    /// The limit is reached while every open continuation is more probable than the complete ones.
    #[test]
    fn a_search_that_is_cut_returns_the_best_that_it_completed() {
        let card = Card::for_tests(Vocabulary::byte_level(TextNormaliser::None));
        for width in [1, 8] {
            let rules = CompletionRules { count: 5, end: CompletionEnd::Length, max_chars: 3 };
            let mut search = CompletionSearch::new(rules, &card).unwrap();
            // every pushed completion, without pruning
            let mut complete: Vec<f64> = Vec::new();
            drive(&mut search, width, |search, node| {
                let text = search.symbols(node);
                let own = text.iter().fold(7, |sum: u32, symbol| sum.wrapping_mul(31).wrapping_add(*symbol));
                let logits: Vec<f32> =
                    (0..256).map(|id: u32| (own.wrapping_mul(id + 1) % 97) as f32 / 1000.0).collect();
                let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
                let before = search.nodes[node].logprob;
                // only ASCII ones are compared
                if text.len() == 2 && text.iter().all(|&byte| byte < 128) {
                    complete.extend(logits[..128].iter().map(|&logit| before + f64::from(logit) - sum.ln()));
                }
                Distribution { logits, boundary: None }
            });
            assert!(search.is_cut() && search.found.is_empty() && complete.len() > 1000);
            complete.sort_by(|a, b| b.total_cmp(a));
            let found = search.finish();
            let is_ascii = |found: &&Completion| found.symbols.iter().all(|&byte| byte < 128);
            let ascii: Vec<_> = found.iter().filter(is_ascii).collect();
            assert!(!ascii.is_empty());
            for (found, expected) in ascii.into_iter().zip(&complete) {
                assert!((found.logprob - expected).abs() < 1e-4, "{found:?}, {expected}");
            }
            assert!(found.len() == 5 && found.is_sorted_by(|a, b| a.logprob >= b.logprob), "{found:?}");
        }
    }

    #[test]
    fn completions_of_bytes_are_whole_characters() {
        let card = Card::for_tests(Vocabulary::byte_level(TextNormaliser::None));
        let rules = CompletionRules { count: 3, end: CompletionEnd::Length, max_chars: 2 };
        let mut search = CompletionSearch::new(rules, &card).unwrap();
        // the lead byte of \u{e9} is likely, and then its second byte, a letter and another lead byte
        let likely = |bytes: &[u8]| (0..256).map(|id| if bytes.contains(&(id as u8)) { 9.0 } else { 0.0 }).collect();
        drive(&mut search, 1, |search, node| {
            let likely =
                likely(if search.symbols(node).is_empty() { &[0xc3, 0xff, b'a'] } else { &[0xa9, b'b', 0xc3] });
            Distribution { logits: likely, boundary: None }
        });
        let found: Vec<String> =
            search.finish().iter().map(|completion| card.vocabulary.decode(&completion.symbols)).collect();
        assert_eq!(found[..2], ["ab", "é"].map(String::from));
        assert!(found.len() == 3 && !found[2].contains('\u{fffd}'), "{found:?}");
    }

    #[test]
    fn rules_are_checked() {
        let rules = |count, max_chars| CompletionRules { count, end: CompletionEnd::Word, max_chars };
        let message = |rules: CompletionRules| CompletionSearch::new(rules, &card()).unwrap_err().to_string();
        assert_eq!(message(rules(17, 4)), "complete.count: expected 1 to 16, found 17");
        assert_eq!(message(rules(1, 257)), "complete.max_chars: expected 1 to 256, found 257");
        let unpooled = Card { pooled: false, ..card() };
        let segment = CompletionRules { end: CompletionEnd::Segment, ..rules(1, 4) };
        assert!(matches!(segment.validate(&unpooled), Err(Error::WrongKind { field: "complete.until", .. })));
    }

    /// Returns the symbols that a request appends if the next symbol always has probability 0.8. Symbol 2 has a boundary.
    fn symbols(lookahead: Lookahead, next: &[usize]) -> Vec<u32> {
        let mut all = DistributionsSoFar::new(lookahead);
        let mut boundary = None;
        for &next in next {
            let mut logits = vec![0.0; 3];
            logits[next] = 8_f32.ln();
            if all.push(Distribution { logits, boundary }).unwrap().is_none() {
                break;
            }
            boundary = Some(SymbolBoundary { boundary: next == 2, ..SymbolBoundary::default() });
        }
        let NextDistributions { symbols, distributions } = all.finish();
        assert_eq!(distributions.len(), symbols.len() + 1);
        symbols
    }

    #[test]
    fn a_request_appends_the_most_probable_symbols() {
        let allowed: Arc<[bool]> = Arc::new([true, false, true]);
        let ahead = |max_symbols, min: f64| Lookahead {
            max_symbols,
            allowed: allowed.clone(),
            min_logprob: min.ln(),
            stops_at_boundary: false,
        };
        let until_boundary = Lookahead { stops_at_boundary: true, ..ahead(3, 0.0) };
        assert_eq!(symbols(until_boundary, &[0, 2, 2, 0]), [0, 2]);
        assert_eq!(symbols(ahead(3, 0.0), &[0, 2, 2, 0]), [0, 2, 2]);
        assert_eq!(symbols(ahead(3, 0.5), &[0, 2, 2, 0]), [0, 2, 2]);
        assert_eq!(symbols(ahead(3, 0.6), &[0, 2, 2, 0]), [0, 2], "0.8 to the third is less");
        assert_eq!(symbols(ahead(3, 0.0), &[0, 1, 2]), [0], "a symbol that is not allowed");
        assert_eq!((symbols(ahead(0, 0.0), &[0]), symbols(Lookahead::default(), &[0])), (vec![], vec![]));
    }
}
