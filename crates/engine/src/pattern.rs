//! A regular expression or a choice between texts as a lazy automaton over the bytes of a text.
//!
//! The expression must match the whole text. Characters that the vocabulary lacks are removed from it first, and what can no
//! longer match with them, so every state of the automaton that is not dead leads to a match.

use crate::clock::now;
use llguidance::toktrie::{ApproximateTokEnv, Recognizer, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use regex_automata::{
    Anchored, MatchKind,
    hybrid::{
        LazyStateID,
        dfa::{self, Cache, DFA},
    },
    nfa::thompson::{self, NFA, State, WhichCaptures},
    util::{primitives::StateID, start},
};
use regex_syntax::{
    ast::{Assertion, AssertionKind, Ast, RepetitionKind, RepetitionRange, Span, parse::ParserBuilder},
    hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Look, translate::Translator},
};
use std::{
    collections::{BTreeSet, HashSet},
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};
use weir_kernels::error::{Error, Result, quoted};
use weir_models::text::Vocabulary;

/// Maximum depth of groups in an expression.
const NESTING: u32 = 100;

/// Maximum bytes of an expression's compiled form.
pub(crate) const NFA_BYTES: usize = 2 << 20;

/// Maximum bytes of the automaton's states that a row keeps. States that are dropped are computed again.
pub(crate) const CACHE_BYTES: usize = 2 << 20;

/// Maximum states of an expression that can follow one byte, times the classes of bytes that it tells apart: to find what may follow
/// then takes up to 10 ms.
const MAX_BRANCHES: usize = 300_000;

/// Factor of the time that a constraint may take: unoptimised programs, whose tests run in parallel, get six times as long.
pub(crate) const SLOWDOWN: u64 = if cfg!(debug_assertions) { 6 } else { 1 };

/// Maximum time to find what may follow a text, and to find where every text is stuck.
pub(crate) const STEP_TIME: Duration = Duration::from_millis(200 * SLOWDOWN);

/// Maximum symbols of a vocabulary of which the allowed ones are found in microseconds.
const LARGE_VOCABULARY: usize = 1024;

/// Bytes that a walk tries before it looks at the clock.
const UNTIMED_BYTES: usize = 16;

/// Maximum states that are visited to find where a text is stuck.
const VISITED_STATES: usize = 4096;

/// Characters that an error names, at most.
pub(crate) const NAMED_CHARACTERS: usize = 8;

/// Maximum classes such as `\w` and `\p{L}` in a constraint's expressions. Each takes 13 kB while the constraint is compiled.
const MAX_CLASSES: usize = 2000;

pub(crate) fn check_classes(field: &'static str, length: usize) -> Result<()> {
    let unit = r"classes such as \w";
    match length > MAX_CLASSES {
        true => Err(Error::TooLong { field, length, limit: MAX_CLASSES, unit, why: None }),
        false => Ok(()),
    }
}

/// Counts classes such as `\w` in a text by their first two characters, without parsing the text.
pub(crate) fn count_classes(source: &str) -> usize {
    let is_class = |pair: &&[u8]| matches!(pair, [b'\\', class] if b"pPwWdDsS".contains(class));
    source.as_bytes().windows(2).filter(is_class).count()
}

/// The symbols of a vocabulary by their bytes. Has more ids than the vocabulary: one stands for the end of a text, and others for the
/// bytes that are no symbols, so that the set of symbols after a text also tells which bytes the vocabulary lacks there.
pub(crate) struct SymbolTrie {
    pub(crate) environment: TokEnv,
    /// The id that stands for the end of a text.
    end: usize,
    /// Symbols without text that a model may write between others.
    pub(crate) marks: Vec<u32>,
    /// Symbols that end a text.
    pub(crate) ends: Vec<u32>,
    /// The symbols with text, without those that end it.
    pub(crate) texts: SimpleVob,
    /// The characters that the vocabulary can write, if these are not all.
    pub(crate) alphabet: Option<ClassUnicode>,
    /// True if a text has one spelling.
    pub(crate) is_spelled_out: bool,
    /// True if a symbol is a byte.
    pub(crate) is_bytes: bool,
    /// True if a text's first space is dropped, because the pieces of words begin with one.
    pub(crate) drops_space: bool,
}

impl SymbolTrie {
    /// Creates the trie of a vocabulary; `end` is the mark that ends a text, if the vocabulary does not know it.
    pub(crate) fn new(vocabulary: &Vocabulary, end: Option<u32>) -> Self {
        let size = vocabulary.len() as u32;
        let mut words: Vec<Vec<u8>> = (0..size).map(|id| vocabulary.symbol_bytes(id).unwrap_or_default()).collect();
        let spaced = (0..size).find(|&id| matches!(words[id as usize][..], [b' ', _, ..]));
        // a text that continues another one keeps its first space
        let drops_space = end.is_some() && spaced.is_some_and(|id| !vocabulary.decode(&[id]).starts_with(' '));
        for (id, word) in (0..size).zip(&mut words) {
            // the byte piece of a space writes a space that decoding keeps, so it is not used
            if drops_space && word == b" " && vocabulary.decode(&[id]) == " " {
                word.clear();
            }
        }
        words.push(b"\xff<end>".to_vec());
        let bytes: HashSet<u8> = words.iter().filter(|word| word.len() == 1).flatten().copied().collect();
        words.extend((0..=255).filter(|byte| !bytes.contains(byte)).map(|byte| vec![byte]));
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, size), &words);
        let ends: Vec<u32> = (0..size).filter(|&id| vocabulary.ends_text(id) || Some(id) == end).collect();
        let mut texts = trie.alloc_token_set();
        let has_text = |id: &usize| !words[*id].is_empty() && !ends.contains(&(*id as u32));
        (0..size as usize).filter(has_text).for_each(|id| texts.set(id, true));
        let marks = vocabulary.specials().map(|specials| specials.segment_end).into_iter().collect();
        let byte_end = vocabulary.end_byte().and_then(char::from_u32);
        let alphabet = match vocabulary.characters() {
            Some(_) => {
                let texts = words.iter().take(size as usize).filter_map(|word| std::str::from_utf8(word).ok());
                Some(alphabet(texts.filter_map(|text| text.chars().next())))
            }
            // what tokens can write in several ways only, not one character after the other, counts as missing
            None if vocabulary.is_subword() && words.len() > size as usize + 1 => {
                let texts = words.iter().take(size as usize).filter_map(|word| std::str::from_utf8(word).ok());
                let single = |text: &str| text.chars().next().filter(|first| first.len_utf8() == text.len());
                Some(alphabet(texts.filter_map(single)))
            }
            None => byte_end.map(|end| {
                let mut all = alphabet(std::iter::once(end));
                all.negate();
                all
            }),
        };
        Self {
            environment: Arc::new(ApproximateTokEnv::new(trie)),
            end: size as usize,
            marks,
            ends,
            texts,
            alphabet,
            is_spelled_out: vocabulary.is_spelled_out(),
            is_bytes: vocabulary.is_bytes(),
            drops_space,
        }
    }

    fn trie(&self) -> &TokTrie {
        self.environment.tok_trie()
    }

    /// Returns the bytes of a symbol; none if it has no text.
    pub(crate) fn bytes(&self, symbol: u32) -> &[u8] {
        match (symbol as usize) < self.end() {
            true => self.trie().token(symbol),
            false => &[],
        }
    }

    /// Returns the symbols of a text, up to what the vocabulary cannot write; none if a text has several spellings.
    pub(crate) fn spell(&self, text: &[u8]) -> Vec<u32> {
        let mut symbols = Vec::new();
        let mut rest = text;
        while self.is_spelled_out
            && let Some((symbol, length)) = (1..=rest.len().min(4)).find_map(|length| {
                let symbol = self.trie().token_id(rest.get(..length)?)?;
                ((symbol as usize) < self.end()).then_some((symbol, length))
            })
        {
            symbols.push(symbol);
            rest = rest.get(length..).unwrap_or_default();
        }
        symbols
    }

    /// Returns the id of a byte.
    pub(crate) fn byte_id(&self, byte: u8) -> Option<u32> {
        self.trie().token_id(&[byte])
    }

    /// Returns an id for each byte.
    pub(crate) fn byte_ids(&self) -> impl Iterator<Item = u32> {
        (0..=u8::MAX).filter_map(|byte| self.byte_id(byte))
    }

    /// Splits a text into the longest symbols, up to what the vocabulary cannot write.
    pub(crate) fn split(&self, text: &[u8]) -> Vec<u32> {
        self.trie().greedy_tokenize(text)
    }

    /// Adds the symbols whose bytes the walk takes.
    pub(crate) fn collect(&self, walk: &mut impl Recognizer, symbols: &mut SimpleVob) {
        self.trie().add_bias(walk, symbols, &[]);
    }

    /// Adds the symbols whose bytes after a first space the walk takes, and the space.
    fn collect_after_space(&self, walk: &mut impl Recognizer, symbols: &mut SimpleVob) {
        self.trie().add_bias(walk, symbols, b" ");
    }

    /// Returns the number of characters that these symbols write.
    pub(crate) fn count_characters(&self, symbols: &[u32]) -> usize {
        let bytes: Vec<u8> = symbols.iter().flat_map(|symbol| self.bytes(*symbol)).copied().collect();
        let bytes = bytes.strip_prefix(b" ").filter(|_| self.drops_space).unwrap_or(&bytes);
        String::from_utf8_lossy(bytes).chars().count()
    }

    /// Returns the id that stands for the end of a text.
    pub(crate) fn end(&self) -> usize {
        self.end
    }

    /// Returns the bytes that the symbols and bytes of a set begin with, in order.
    pub(crate) fn first_bytes(&self, set: &SimpleVob) -> BTreeSet<u8> {
        let texts = set.iter().filter(|id| *id as usize != self.end);
        texts.filter_map(|id| self.trie().token(id).first().copied()).collect()
    }

    /// Returns true if finding the symbols that may follow a text takes longer than microseconds.
    pub(crate) fn is_large(&self) -> bool {
        self.end > LARGE_VOCABULARY
    }
}

/// The symbols that may follow a text.
#[derive(Debug, Clone)]
pub(crate) struct Allowed {
    /// Symbols with text, and if the text may end here those that end it.
    pub(crate) symbols: SimpleVob,
    /// Number of symbols with text.
    pub(crate) with_text: usize,
    /// True if the text may end here.
    pub(crate) ends: bool,
}

impl Allowed {
    pub(crate) fn new(trie: &SymbolTrie) -> Self {
        Self { symbols: trie.trie().alloc_token_set(), with_text: 0, ends: false }
    }

    /// Begins anew, without symbols.
    pub(crate) fn begin(&mut self, ends: bool) {
        self.symbols.set_all(false);
        self.with_text = 0;
        self.ends = ends;
    }

    /// Keeps the symbols that have text, and counts them.
    pub(crate) fn keep_texts(&mut self, trie: &SymbolTrie) {
        self.symbols.and(&trie.texts);
        self.with_text = self.symbols.as_slice().iter().map(|word| word.count_ones() as usize).sum();
    }

    /// Returns the only continuation, if there is exactly one.
    pub(crate) fn only(&self) -> Option<u32> {
        let only = self.with_text == 1 && !self.ends;
        only.then(|| self.symbols.first_bit_set()).flatten().and_then(|symbol| u32::try_from(symbol).ok())
    }
}

/// A compiled expression.
pub(crate) struct Pattern {
    /// The field that errors name.
    field: &'static str,
    dfa: DFA,
}

impl fmt::Debug for Pattern {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Pattern").field("bytes", &self.dfa.memory_usage()).finish()
    }
}

/// Parses a regular expression. Refuses assertions inside of the text. Errors state the position and the reason.
pub(crate) fn parse_regex(field: &'static str, source: &str) -> Result<Hir> {
    let place = |span: &Span| {
        let before = source.get(..span.start.offset).unwrap_or_default();
        format!("at character {}", before.chars().count())
    };
    let invalid = |reason: String, span: &Span| {
        Error::bad_option(field, format!("{reason}, {}", place(span)), "a regular expression")
    };
    let ast = ParserBuilder::new().nest_limit(NESTING).build().parse(source);
    let ast = ast.map_err(|error| invalid(error.kind().to_string(), error.span()))?;
    if let Some(Assertion { span, .. }) = inner_assertion(&ast, Edges { start: true, end: true }) {
        let written = source.get(span.start.offset..span.end.offset).unwrap_or_default();
        let found = format!("{written}, {}", place(span));
        return Err(Error::bad_option(
            field,
            found,
            "an expression without look-around (^ and $ may stand at the ends of the text)",
        ));
    }
    let hir = Translator::new().translate(source, &ast);
    hir.map_err(|error| invalid(error.kind().to_string(), error.span()))
}

/// The edges of the text that a part of an expression touches.
#[derive(Clone, Copy)]
struct Edges {
    start: bool,
    end: bool,
}

/// Returns the first assertion that is not about an edge of the text at which it stands.
fn inner_assertion(ast: &Ast, edges: Edges) -> Option<&Assertion> {
    match ast {
        Ast::Assertion(assertion) => {
            let holds = match assertion.kind {
                AssertionKind::StartLine | AssertionKind::StartText => edges.start,
                AssertionKind::EndLine | AssertionKind::EndText => edges.end,
                _ => false,
            };
            (!holds).then_some(&**assertion)
        }
        Ast::Repetition(repetition) => {
            let once = match &repetition.op.kind {
                RepetitionKind::ZeroOrOne => true,
                RepetitionKind::Range(RepetitionRange::Exactly(most) | RepetitionRange::Bounded(_, most)) => *most <= 1,
                _ => false,
            };
            inner_assertion(&repetition.ast, Edges { start: edges.start && once, end: edges.end && once })
        }
        Ast::Group(group) => inner_assertion(&group.ast, edges),
        Ast::Alternation(alternation) => alternation.asts.iter().find_map(|part| inner_assertion(part, edges)),
        Ast::Concat(concat) => {
            let parts = &concat.asts;
            let first = parts.iter().position(|part| !is_empty(part)).unwrap_or(parts.len());
            let last = parts.iter().rposition(|part| !is_empty(part)).unwrap_or(0);
            parts.iter().enumerate().find_map(|(index, part)| {
                inner_assertion(part, Edges { start: edges.start && index <= first, end: edges.end && index >= last })
            })
        }
        _ => None,
    }
}

/// Returns true if the part of an expression matches no text but the empty one.
fn is_empty(ast: &Ast) -> bool {
    match ast {
        Ast::Empty(_) | Ast::Flags(_) | Ast::Assertion(_) => true,
        Ast::Group(group) => is_empty(&group.ast),
        Ast::Repetition(repetition) => is_empty(&repetition.ast),
        Ast::Alternation(alternation) => alternation.asts.iter().all(is_empty),
        Ast::Concat(concat) => concat.asts.iter().all(is_empty),
        _ => false,
    }
}

/// Returns the expression of a choice between texts.
pub(crate) fn choice(texts: &[String]) -> Hir {
    Hir::alternation(texts.iter().map(|text| Hir::literal(text.as_bytes())).collect())
}

impl Pattern {
    /// Compiles an expression for texts of these symbols. Fails if no such text matches, or if the expression is too large.
    pub(crate) fn new(field: &'static str, hir: &Hir, trie: &SymbolTrie) -> Result<Self> {
        let whole = restrict(hir, None);
        if is_fail(&whole) {
            return Err(Error::bad_option(field, "one that no text matches", "an expression that some text matches"));
        }
        let Some(alphabet) = &trie.alphabet else { return Self::build(field, whole) };
        let possible = restrict(hir, Some(alphabet));
        if !is_fail(&possible) {
            return Self::build(field, possible);
        }
        let stuck = Self::build(field, whole)?.stuck(trie);
        Err(stuck.map_or_else(|| too_slow(field), |stuck| impossible(field, stuck)))
    }

    fn build(field: &'static str, hir: Hir) -> Result<Self> {
        let too_large = |what: String| {
            let bound = format!("an expression of at most {NFA_BYTES} bytes when it is compiled");
            Error::bad_option(field, what, bound)
        };
        let whole = Hir::concat(vec![hir, Hir::look(Look::End)]);
        let config = thompson::Config::new().nfa_size_limit(Some(NFA_BYTES)).which_captures(WhichCaptures::None);
        let nfa = thompson::Compiler::new().configure(config).build_from_hir(&whole);
        let nfa = nfa.map_err(|_| too_large("a larger one".into()))?;
        check_branches(field, &nfa)?;
        // All: no alternative hides another one
        let config = dfa::Config::new().match_kind(MatchKind::All).cache_capacity(CACHE_BYTES);
        let dfa = dfa::Builder::new().configure(config.skip_cache_capacity_check(false)).build_from_nfa(nfa);
        let dfa = dfa.map_err(|_| too_large("one whose states take more than the memory of a row".into()))?;
        Ok(Self { field, dfa })
    }

    /// Returns the bytes of the compiled form.
    pub(crate) fn bytes(&self) -> usize {
        self.dfa.memory_usage()
    }

    /// Finds the last position at which a text of the vocabulary's symbols reaches a state that no shorter one reaches, and the
    /// characters that the expression allows there. Returns `None` if that takes too long.
    fn stuck(self, trie: &SymbolTrie) -> Option<Stuck> {
        let mut matcher = PatternMatcher::new(Arc::new(self), false);
        let mut front: Vec<Vec<u8>> = vec![Vec::new()];
        let mut seen = HashSet::new();
        let until = now() + STEP_TIME;
        let mut position = 0;
        // the texts of that length that led to new states
        let mut farthest: Vec<Vec<u8>> = Vec::new();
        while !front.is_empty() {
            let mut next = Vec::new();
            for text in front {
                matcher.restart(&text, until);
                if matcher.is_late() {
                    return None;
                }
                if seen.len() >= VISITED_STATES || !seen.insert(matcher.state) {
                    continue;
                }
                let mut allowed = Allowed::new(trie);
                let found = matcher.allowed(trie, &mut allowed, STEP_TIME);
                if matcher.is_late() {
                    return None;
                }
                if found.is_ok() {
                    next.extend(allowed.symbols.iter().map(|symbol| [&text, trie.bytes(symbol)].concat()));
                }
                // a text of bytes may end within a character
                let Ok(length) = std::str::from_utf8(&text).map(|text| text.chars().count()) else { continue };
                if length > position {
                    position = length;
                    farthest.clear();
                }
                if length == position {
                    farthest.push(text);
                }
            }
            front = next;
        }
        let mut characters = BTreeSet::new();
        for text in farthest {
            matcher.restart(&text, until);
            if matcher.is_late() {
                return None;
            }
            characters.extend(matcher.characters());
            if characters.len() > NAMED_CHARACTERS {
                break;
            }
        }
        Some(Stuck { position, characters: characters.into_iter().collect() })
    }
}

/// Refuses an expression of which too many states can follow one byte.
fn check_branches(field: &'static str, nfa: &NFA) -> Result<()> {
    let limit = MAX_BRANCHES / nfa.byte_classes().alphabet_len().max(1);
    // for each state the latest one from which it was reached
    let mut marks = vec![None; nfa.states().len()];
    let mut reached = Vec::new();
    let targets = nfa.states().iter().filter_map(|state| match state {
        State::ByteRange { trans } => Some(trans.next),
        State::Sparse(sparse) => sparse.transitions.first().map(|transition| transition.next),
        _ => None,
    });
    for from in [nfa.start_anchored()].into_iter().chain(targets) {
        // no more states can be reached from a state than from one that reaches it
        if marks.get(from.as_usize()).is_some_and(Option::is_some) {
            continue;
        }
        reached.clear();
        reached.push(from);
        let mut at = 0;
        while let Some(&state) = reached.get(at) {
            at += 1;
            let mut reach = |next: StateID| {
                if let Some(mark) = marks.get_mut(next.as_usize()).filter(|mark| **mark != Some(from)) {
                    *mark = Some(from);
                    reached.push(next);
                }
            };
            match nfa.state(state) {
                State::Union { alternates } => alternates.iter().for_each(|next| reach(*next)),
                State::BinaryUnion { alt1, alt2 } => [*alt1, *alt2].into_iter().for_each(reach),
                State::Capture { next, .. } | State::Look { next, .. } => reach(*next),
                _ => {}
            }
            if reached.len() > limit {
                let bound = format!("an expression of at most {limit} states after one symbol");
                return Err(Error::bad_option(field, "one of more", bound));
            }
        }
    }
    Ok(())
}

/// Returns the error of a constraint that takes too long.
pub(crate) fn too_slow(field: &'static str) -> Error {
    let bound = format!("a form whose next symbols are found in {} ms", STEP_TIME.as_millis());
    Error::bad_option(field, "a slower one", bound)
}

/// The place where a text cannot go on.
#[derive(Debug)]
pub(crate) struct Stuck {
    /// The position in the text, in characters.
    pub(crate) position: usize,
    /// The characters that the constraint allows there.
    pub(crate) characters: Vec<char>,
}

/// The expectation in the error about a form that no text has.
pub(crate) const FORM_OF_A_TEXT: &str = "a form that some text has";

/// Returns the error of a constraint that the vocabulary cannot satisfy.
pub(crate) fn impossible(field: &'static str, Stuck { position, mut characters }: Stuck) -> Error {
    if characters.is_empty() {
        return Error::bad_option(
            field,
            format!("one that allows nothing at position {position} of the text"),
            FORM_OF_A_TEXT,
        );
    }
    characters.sort_unstable();
    characters.dedup();
    let listed = characters.iter().take(NAMED_CHARACTERS).map(|character| quoted(&character.to_string()));
    let mut listed = listed.collect::<Vec<_>>().join(", ");
    if characters.len() > NAMED_CHARACTERS {
        listed += " and others";
    }
    let found = format!("one that allows only {listed} at position {position} of the text");
    Error::bad_option(field, found, "a form that the symbols of the model's vocabulary can write")
}

fn is_fail(hir: &Hir) -> bool {
    matches!(hir.kind(), HirKind::Class(class) if class.is_empty())
}

/// Removes characters outside of `alphabet`, what cannot match without them, groups, and assertions. [`parse_regex`] permits assertions
/// only at the edges of the text, where they hold. An expression that matches nothing becomes [`Hir::fail`].
fn restrict(hir: &Hir, alphabet: Option<&ClassUnicode>) -> Hir {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => Hir::empty(),
        HirKind::Literal(literal) => {
            let text = String::from_utf8_lossy(&literal.0);
            match alphabet.is_none_or(|alphabet| text.chars().all(|character| has(alphabet, character))) {
                true => hir.clone(),
                false => Hir::fail(),
            }
        }
        HirKind::Class(class) => {
            let mut class = match class {
                Class::Unicode(class) => class.clone(),
                Class::Bytes(class) => class.to_unicode_class().unwrap_or_else(ClassUnicode::empty),
            };
            alphabet.into_iter().for_each(|alphabet| class.intersect(alphabet));
            Hir::class(Class::Unicode(class))
        }
        HirKind::Repetition(repetition) => {
            let sub = restrict(&repetition.sub, alphabet);
            match is_fail(&sub) {
                true if repetition.min == 0 => Hir::empty(),
                true => Hir::fail(),
                false => Hir::repetition(repetition.with(sub)),
            }
        }
        HirKind::Capture(capture) => restrict(&capture.sub, alphabet),
        HirKind::Concat(parts) => {
            let kept: Vec<Hir> = parts.iter().map(|part| restrict(part, alphabet)).collect();
            if kept.iter().any(is_fail) { Hir::fail() } else { Hir::concat(kept) }
        }
        HirKind::Alternation(parts) => {
            let parts = parts.iter().map(|part| restrict(part, alphabet));
            Hir::alternation(parts.filter(|part| !is_fail(part)).collect())
        }
    }
}

fn has(alphabet: &ClassUnicode, character: char) -> bool {
    let ranges = alphabet.ranges();
    let at = ranges.partition_point(|range| range.end() < character);
    ranges.get(at).is_some_and(|range| range.start() <= character)
}

/// Returns the class of these characters.
fn alphabet(characters: impl Iterator<Item = char>) -> ClassUnicode {
    ClassUnicode::new(characters.map(|character| ClassUnicodeRange::new(character, character)))
}

/// Follows one text.
#[derive(Debug, Clone)]
pub(crate) struct PatternMatcher {
    pattern: Arc<Pattern>,
    cache: Cache,
    state: LazyStateID,
    /// The text so far: when the cache has dropped its states, the present one is computed again.
    text: Vec<u8>,
    /// True if the next symbol is the first one, and loses a space at its beginning.
    drops_space: bool,
    /// True if it was too slow to follow its text again.
    is_late: bool,
}

impl PatternMatcher {
    pub(crate) fn new(pattern: Arc<Pattern>, drops_space: bool) -> Self {
        let cache = pattern.dfa.create_cache();
        let mut matcher =
            Self { pattern, cache, state: LazyStateID::default(), text: Vec::new(), drops_space, is_late: false };
        matcher.restart(&[], now());
        matcher
    }

    /// Returns true if its work took too long: it can do no more.
    pub(crate) fn is_late(&self) -> bool {
        self.is_late
    }

    /// Follows another text from its beginning, at most until then. The matcher is late for good after that.
    fn restart(&mut self, text: &[u8], until: Instant) {
        let config = start::Config::new().anchored(Anchored::Yes);
        if let Ok(state) = self.pattern.dfa.start_state(&mut self.cache, &config) {
            self.state = state;
        }
        self.text.clear();
        for part in text.chunks(UNTIMED_BYTES) {
            self.is_late |= now() >= until;
            if self.is_late || !self.follow(part) {
                break;
            }
        }
    }

    /// Follows another text. Returns true if a text that begins so matches.
    pub(crate) fn begins_with(&mut self, text: &[u8]) -> bool {
        self.restart(text, now() + STEP_TIME);
        self.text.len() == text.len()
    }

    /// Takes the bytes of the next symbol. Returns false if no text that begins so matches.
    pub(crate) fn consume(&mut self, bytes: &[u8]) -> bool {
        let drops_space = std::mem::take(&mut self.drops_space);
        self.follow(bytes.strip_prefix(b" ").filter(|_| drops_space).unwrap_or(bytes))
    }

    fn follow(&mut self, bytes: &[u8]) -> bool {
        for &byte in bytes {
            match self.pattern.dfa.next_state(&mut self.cache, self.state, byte) {
                Ok(state) if !state.is_dead() => self.state = state,
                _ => return false,
            }
            self.text.push(byte);
        }
        true
    }

    /// Sets the symbols that may follow, and whether the text may end here. The matcher is late for good after `limit`.
    pub(crate) fn allowed(&mut self, trie: &SymbolTrie, allowed: &mut Allowed, limit: Duration) -> Result<()> {
        let until = now() + limit;
        // a full cache is emptied while the symbols are tried, and then has room for them
        for _ in 0..2 {
            if !self.is_late && self.try_allowed(self.state, trie, allowed, until) {
                return Ok(());
            }
            self.follow_again(until);
            if self.is_late {
                return Err(too_slow(self.pattern.field));
            }
        }
        let bound = format!("an expression whose states after a text take at most {CACHE_BYTES} bytes");
        Err(Error::bad_option(self.pattern.field, "one of more", bound))
    }

    /// Does the same for a state. Returns false if the cache was emptied meanwhile, or the time is over.
    fn try_allowed(&mut self, state: LazyStateID, trie: &SymbolTrie, allowed: &mut Allowed, until: Instant) -> bool {
        let clears = self.cache.clear_count();
        let Ok(end) = self.pattern.dfa.next_eoi_state(&mut self.cache, state) else { return false };
        allowed.begin(end.is_match());
        let mut walk = Walk {
            dfa: &self.pattern.dfa,
            cache: &mut self.cache,
            states: vec![state],
            clears,
            until,
            tried: 0,
            is_late: false,
        };
        trie.collect(&mut walk, &mut allowed.symbols);
        if self.drops_space {
            let spaced: Vec<u32> =
                allowed.symbols.iter().filter(|symbol| trie.bytes(*symbol).starts_with(b" ")).collect();
            spaced.into_iter().for_each(|symbol| allowed.symbols.set(symbol as usize, false));
            trie.collect_after_space(&mut walk, &mut allowed.symbols);
        }
        self.is_late |= walk.is_late;
        allowed.keep_texts(trie);
        self.cache.clear_count() == clears && !self.is_late
    }

    /// Returns the symbols, at most `count`, of which each is the only continuation. The matcher is late for good after `limit`.
    pub(crate) fn forced(&mut self, trie: &SymbolTrie, count: usize, limit: Duration) -> Vec<u32> {
        let mut forced = Vec::new();
        let mut allowed = Allowed::new(trie);
        let mut state = self.state;
        let clears = self.cache.clear_count();
        let until = now() + limit;
        while forced.len() < count
            && self.try_allowed(state, trie, &mut allowed, until)
            && let Some(symbol) = allowed.only()
        {
            for &byte in trie.bytes(symbol) {
                match self.pattern.dfa.next_state(&mut self.cache, state, byte) {
                    Ok(next) => state = next,
                    Err(_) => return forced,
                }
            }
            forced.push(symbol);
        }
        self.recover(clears, until);
        forced
    }

    /// Returns how many of these symbols may follow, one after the other. The matcher is late for good after `limit`.
    pub(crate) fn agrees(&mut self, trie: &SymbolTrie, symbols: &[u32], limit: Duration) -> usize {
        let until = now() + limit;
        let clears = self.cache.clear_count();
        let mut state = self.state;
        let mut drops_space = self.drops_space;
        let follows = |symbol: &&u32| {
            let bytes = trie.bytes(**symbol);
            let has_text = !bytes.is_empty();
            let bytes = bytes.strip_prefix(b" ").filter(|_| std::mem::take(&mut drops_space)).unwrap_or(bytes);
            drops_space = false;
            has_text
                && bytes.iter().all(|&byte| {
                    let next = self.pattern.dfa.next_state(&mut self.cache, state, byte);
                    next.is_ok_and(|next| {
                        state = next;
                        !next.is_dead()
                    })
                })
        };
        let count = symbols.iter().take_while(follows).count();
        self.recover(clears, until);
        count
    }

    /// Computes the present state again if the cache was emptied since it was emptied `clears` times.
    fn recover(&mut self, clears: usize, until: Instant) {
        if self.cache.clear_count() != clears {
            self.follow_again(until);
        }
    }

    fn follow_again(&mut self, until: Instant) {
        let text = std::mem::take(&mut self.text);
        self.restart(&text, until);
    }

    /// Returns the first characters that may follow.
    pub(crate) fn characters(&mut self) -> Vec<char> {
        let all = ('\0'..=char::MAX).filter(|character| {
            let mut states = self.state;
            character.encode_utf8(&mut [0; 4]).bytes().all(|byte| {
                let next = self.pattern.dfa.next_state(&mut self.cache, states, byte);
                next.is_ok_and(|next| {
                    states = next;
                    !next.is_dead()
                })
            })
        });
        all.take(NAMED_CHARACTERS + 1).collect()
    }
}

/// A walk through the symbols that may follow a state.
struct Walk<'a> {
    dfa: &'a DFA,
    cache: &'a mut Cache,
    states: Vec<LazyStateID>,
    /// The number of times that the cache had been emptied at the start. Emptying it invalidates earlier states.
    clears: usize,
    /// The time at which it takes no more bytes.
    until: Instant,
    /// The number of bytes tried.
    tried: usize,
    is_late: bool,
}

impl Recognizer for Walk<'_> {
    fn pop_bytes(&mut self, count: usize) {
        self.states.truncate(self.states.len().saturating_sub(count).max(1));
    }

    fn collapse(&mut self) {
        if let Some(last) = self.states.pop() {
            self.states.clear();
            self.states.push(last);
        }
    }

    fn trie_finished(&mut self) {
        self.states.truncate(1);
    }

    fn try_push_byte(&mut self, byte: u8) -> bool {
        self.tried += 1;
        self.is_late |= self.tried.is_multiple_of(UNTIMED_BYTES) && now() >= self.until;
        if self.is_late || self.cache.clear_count() != self.clears {
            return false;
        }
        let Some(&state) = self.states.last() else { return false };
        match self.dfa.next_state(self.cache, state, byte) {
            Ok(next) if !next.is_dead() => {
                self.states.push(next);
                true
            }
            _ => false,
        }
    }
}
