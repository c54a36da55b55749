//! Constraints on the form of a generated text: a regular expression, a choice, a JSON schema or a grammar.
//!
//! A [`ConstraintCompiler`] belongs to a model. It compiles a [`Constraint`] once, and a [`ConstraintMatcher`] follows one text: before
//! each draw it has the symbols that may follow, and after it takes the drawn one. A symbol may follow if its bytes lead to a state
//! from which a text of that form can be completed. So byte models write no invalid UTF-8.
//!
//! Regular expressions and choices are automata (`pattern.rs`); schemas and grammars are parsed by the crate llguidance, whose
//! parser recurses and looks at no clock: it is made on a thread with a large stack, and a watchdog cancels it when it is late.

use crate::{
    clock::{now, since},
    json_schema::{
        LIMITS, MAX_RULES, REASON_BYTES, check_intersection, check_schema, count_schema_classes, find_fault, prepare,
        too_many,
    },
    pattern::{
        self, Allowed, CACHE_BYTES, FORM_OF_A_TEXT, NAMED_CHARACTERS, NFA_BYTES, Pattern, PatternMatcher, SLOWDOWN,
        STEP_TIME, Stuck, SymbolTrie, check_classes, count_classes, impossible, too_slow,
    },
};
use llguidance::{
    CancellationHandle, Matcher, ParserFactory,
    api::{GrammarWithLexer, RegexExt, TopLevelGrammar},
    earley::{CGrammar, CSymIdx, SlicedBiasComputer, lexerspec::LexemeIdx},
    toktrie::{InferenceCapabilities, SimpleVob},
};
use lru::LruCache;
use regex_syntax::hir::Hir;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt, io,
    num::NonZeroUsize,
    sync::{
        Arc, Condvar, Mutex, OnceLock, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};
use weir_kernels::{
    error::{Error, Result, clip, quoted, split_place},
    sync::lock,
};
use weir_models::text::Vocabulary;

/// Maximum bytes of a constraint's text.
pub const MAX_SOURCE_BYTES: usize = 64 << 10;

/// Length that a terminal counts as that a grammar imports.
const IMPORTED_LENGTH: usize = 100;

/// Maximum texts of a choice.
pub const MAX_CHOICES: usize = 1024;

/// Maximum depth of brackets in a grammar, and maximum negations of one part.
const NESTING: usize = 100;

/// Bytes of the stack on which a parser is made: 256 kB for each rule. Pages that are not touched take no memory.
const PARSER_STACK: usize = 256 << 20;

/// Time in which a parser is made.
const COMPILE_TIME: Duration = Duration::from_secs(SLOWDOWN);

/// Maximum parsers that are made at a time for a tenant, and for a model, with those that nobody waits for any more.
const TENANT_COMPILING: usize = 4;
const MAX_COMPILING: usize = 16;

/// How long a constraint is refused at once after it took too long to compile.
const REFUSED_FOR: Duration = Duration::from_secs(60);

/// Time that one text's constraint may take at first, and for each of its symbols on average.
const FIRST_TIME: Duration = Duration::from_secs(SLOWDOWN);
const SYMBOL_TIME: Duration = Duration::from_millis(5 * SLOWDOWN);

/// Time of the model's thread that one text's constraint may take at first and at once, and for each of its symbols on average. What
/// takes longer is done by another thread while a step runs.
const STEP_SHARE: Duration = Duration::from_millis(5 * SLOWDOWN);
const SYMBOL_SHARE: Duration = Duration::from_micros(100 * SLOWDOWN);

/// Time after which no more forced symbols are sought after one sampled symbol.
pub(crate) const FORCED_TIME: Duration = Duration::from_millis(20);

/// Maximum constraints that a model keeps compiled. The least recently used one is dropped.
const COMPILED: NonZeroUsize = NonZeroUsize::MIN.saturating_add(63);

/// Symbols of a forced beginning that are checked when a grammar is compiled.
const CHECKED: usize = 256;

/// Bytes that count for a text with a parser: a parser of this crate does not tell its size.
const PARSER_BYTES: usize = 2 << 20;

/// Maximum bytes of a matcher.
pub const MAX_MATCHER_BYTES: usize = NFA_BYTES + CACHE_BYTES;

/// Bytes that count while a schema or grammar is compiled: the most that any took in trials at these limits.
const COMPILE_BYTES: usize = 24 << 20;

/// Bytes that a class's ranges take, in an expression and in its copy for a vocabulary.
const CLASS_BYTES: usize = 13_000;

/// Maximum bytes of a character.
const MAX_UTF8: usize = 4;

/// The form that a text must have.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Constraint {
    /// The whole text matches this regular expression, in the syntax of the crate regex.
    Regex(String),
    /// The text is one of these.
    Choice(Vec<String>),
    /// The text is JSON of this schema, without optional spaces.
    JsonSchema(String),
    /// The text is a JSON object.
    JsonObject,
    /// The text belongs to this grammar, in llguidance's variant of Lark.
    Grammar(String),
}

impl Constraint {
    /// The kinds of constraints by name.
    pub const KINDS: [&str; 5] = ["regex", "choice", "json_schema", "json_object", "grammar"];

    /// Returns the name of the kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Regex(_) => "regex",
            Self::Choice(_) => "choice",
            Self::JsonSchema(_) => "json_schema",
            Self::JsonObject => "json_object",
            Self::Grammar(_) => "grammar",
        }
    }

    /// Returns the field of a request that errors name.
    pub fn field(&self) -> &'static str {
        match self {
            Self::Regex(_) => "constraint.regex",
            Self::Choice(_) => "constraint.choice",
            Self::JsonSchema(_) => "constraint.json_schema",
            Self::JsonObject => "constraint.json_object",
            Self::Grammar(_) => "constraint.grammar",
        }
    }

    /// Returns the field of a summary's options that a field of a constraint is.
    pub fn option_field(field: &'static str) -> &'static str {
        match field {
            "constraint" => "options.constraint",
            "constraint.regex" => "options.constraint.regex",
            "constraint.choice" => "options.constraint.choice",
            "constraint.json_schema" => "options.constraint.json_schema",
            "constraint.json_object" => "options.constraint.json_object",
            "constraint.grammar" => "options.constraint.grammar",
            other => other,
        }
    }

    /// Returns true if a text that is complete ends, unless a request says otherwise: in a choice and in JSON.
    pub fn ends_when_complete(&self) -> bool {
        matches!(self, Self::Choice(_) | Self::JsonSchema(_) | Self::JsonObject)
    }

    /// Returns the bytes of its text.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Regex(source) | Self::JsonSchema(source) | Self::Grammar(source) => source.len(),
            Self::Choice(texts) => texts.iter().map(String::len).sum(),
            Self::JsonObject => 0,
        }
    }

    /// Returns the bytes that count for a tenant while the constraint is compiled.
    fn compile_bytes(&self) -> usize {
        match self {
            Self::Regex(source) => MAX_MATCHER_BYTES + count_classes(source) * CLASS_BYTES,
            Self::Choice(_) => MAX_MATCHER_BYTES,
            Self::JsonSchema(_) | Self::JsonObject | Self::Grammar(_) => COMPILE_BYTES,
        }
    }

    fn check(&self) -> Result<()> {
        let field = self.field();
        if let Self::Choice(texts) = self
            && !(1..=MAX_CHOICES).contains(&texts.len())
        {
            return Err(Error::bad_option(
                field,
                format!("{} texts", texts.len()),
                format!("1 to {MAX_CHOICES} texts"),
            ));
        }
        let length = self.bytes();
        if length > MAX_SOURCE_BYTES {
            return Err(Error::TooLong { field, length, limit: MAX_SOURCE_BYTES, unit: "bytes", why: None });
        }
        match self {
            Self::Regex(source) => check_classes(field, count_classes(source)),
            _ => Ok(()),
        }
    }
}

/// The texts of a choice, sorted, in symbols.
pub(crate) type ChoiceTexts = Arc<[Vec<u32>]>;

/// Constraints that another thread has, until it knows what may follow their texts. It may fail instead.
pub(crate) struct LentConstraints {
    pub(crate) receiver: mpsc::Receiver<Result<Vec<ConstraintMatcher>>>,
    /// True if a step has waited for them in vain.
    pub(crate) are_late: bool,
}

/// The symbols of a vocabulary, and what makes parsers for them.
struct Symbols {
    trie: SymbolTrie,
    factory: OnceLock<Option<ParserFactory>>,
    /// Started before the first parser.
    watchdog: OnceLock<Watchdog>,
    compiling: Compiling,
}

impl Symbols {
    fn factory(&self) -> Result<&ParserFactory> {
        let made = self.factory.get_or_init(|| self.make_factory()).as_ref();
        made.ok_or_else(|| Error::Internal("cannot prepare the vocabulary for grammars".into()))
    }

    fn make_factory(&self) -> Option<ParserFactory> {
        // few symbols need no shortcuts
        let slices = if self.trie.is_large() { SlicedBiasComputer::general_slices() } else { Vec::new() };
        let mut factory = ParserFactory::new(&self.trie.environment, InferenceCapabilities::default(), &slices).ok()?;
        factory.quiet();
        *factory.limits_mut() = LIMITS;
        Some(factory)
    }

    /// Lets a parser work, at most for `limit`. Then it is cancelled for good.
    fn limit_time<T>(&self, matcher: &mut Matcher, limit: Duration, work: impl FnOnce(&mut Matcher) -> T) -> T {
        let watched = self.watchdog.get().zip(matcher.cancellation_handle());
        let _watched = watched.map(|(watchdog, handle)| watchdog.watch(handle, now() + limit));
        work(matcher)
    }
}

/// The parsers that are made.
#[derive(Default)]
struct Compiling {
    /// The tenant of each.
    tenants: Mutex<Vec<String>>,
    ended: Condvar,
}

impl Compiling {
    /// Begins to make a parser for a tenant. Waits at most for [`COMPILE_TIME`] until one of its others, or of all, has ended.
    fn begin(&self, tenant: &str) -> Result<()> {
        let is_full = |tenants: &mut Vec<String>| {
            let own = tenants.iter().filter(|other| *other == tenant).count();
            own >= TENANT_COMPILING || tenants.len() >= MAX_COMPILING
        };
        let waited = self.ended.wait_timeout_while(lock(&self.tenants), COMPILE_TIME, is_full);
        let (mut tenants, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            let what = "grammars that are compiled";
            return Err(Error::TooMany { what, limit: TENANT_COMPILING, retry: COMPILE_TIME });
        }
        tenants.push(tenant.to_owned());
        Ok(())
    }
}

/// A parser that is made. It counts for its tenant until it is dropped.
struct Making {
    symbols: Arc<Symbols>,
    tenant: String,
}

impl Drop for Making {
    fn drop(&mut self) {
        let compiling = &self.symbols.compiling;
        let mut tenants = lock(&compiling.tenants);
        if let Some(at) = tenants.iter().position(|other| *other == self.tenant) {
            tenants.swap_remove(at);
        }
        compiling.ended.notify_all();
    }
}

/// A thread that cancels parsers which take too long.
struct Watchdog {
    parsers: Arc<WatchedParsers>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Default)]
struct WatchedParsers {
    list: Mutex<WatchList>,
    changed: Condvar,
}

#[derive(Default)]
struct WatchList {
    /// Working parsers by their deadlines.
    working: BTreeMap<(Instant, u64), CancellationHandle>,
    next: u64,
    /// The deadline at which the thread wakes up; `None` if it has none.
    wakes: Option<Instant>,
    is_closed: bool,
}

impl Watchdog {
    fn start() -> io::Result<Self> {
        let parsers = Arc::new(WatchedParsers::default());
        let watched = Arc::clone(&parsers);
        let thread = thread::Builder::new().name("weir-watchdog".into()).spawn(move || watched.run())?;
        Ok(Self { parsers, thread: Some(thread) })
    }

    /// Watches a parser until the returned value is dropped.
    fn watch(&self, handle: CancellationHandle, until: Instant) -> Watched<'_> {
        let mut list = lock(&self.parsers.list);
        let id = (until, list.next);
        list.next += 1;
        list.working.insert(id, handle);
        if list.wakes.is_none_or(|wakes| until < wakes) {
            list.wakes = Some(until);
            self.parsers.changed.notify_one();
        }
        Watched { parsers: &self.parsers, id }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        lock(&self.parsers.list).is_closed = true;
        self.parsers.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// A parser at work.
struct Watched<'a> {
    parsers: &'a WatchedParsers,
    id: (Instant, u64),
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        lock(&self.parsers.list).working.remove(&self.id);
    }
}

impl WatchedParsers {
    fn run(&self) {
        let mut list = lock(&self.list);
        while !list.is_closed {
            let time = now();
            while let Some(first) = list.working.first_entry().filter(|first| first.key().0 <= time) {
                first.remove().cancel();
            }
            list.wakes = list.working.first_key_value().map(|((until, _), _)| *until);
            // an idle thread looks again after an hour
            let wait = list.wakes.map_or(Duration::from_secs(3600), |until| until.saturating_duration_since(time));
            list = self.changed.wait_timeout(list, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Starts a thread that makes a parser. Its stack holds the recursion of the largest grammar. The receiver of the parser may be dropped
/// early: the thread counts for its tenant until it ends, and then drops the parser.
fn on_large_stack<T: Send + 'static>(
    symbols: &Arc<Symbols>,
    tenant: &str,
    work: impl FnOnce(&Symbols) -> Result<T> + Send + 'static,
) -> Result<mpsc::Receiver<Result<T>>> {
    symbols.factory()?;
    if symbols.watchdog.get().is_none() {
        // Of two that start one, the second drops its own.
        symbols.watchdog.set(Watchdog::start().map_err(no_thread)?).ok();
    }
    symbols.compiling.begin(tenant)?;
    let making = Making { symbols: Arc::clone(symbols), tenant: tenant.to_owned() };
    let (sender, receiver) = mpsc::sync_channel(1);
    let run = move || {
        sender.send(work(&making.symbols)).ok();
    };
    let thread = thread::Builder::new().name("weir-grammar".into()).stack_size(PARSER_STACK).spawn(run);
    thread.map_err(no_thread)?;
    Ok(receiver)
}

/// Returns the error of a constraint that takes too long to compile.
fn late(field: &'static str) -> Error {
    Error::bad_option(field, "a slower one", compile_bound())
}

fn compile_bound() -> String {
    format!("a form that is compiled in {} ms", COMPILE_TIME.as_millis())
}

/// Returns true if this is the error of [`late`], and not of a constraint that waited before it was found invalid.
fn is_late(error: &Error) -> bool {
    matches!(error, Error::BadOption { bound, .. } if *bound == compile_bound())
}

fn no_thread(source: io::Error) -> Error {
    Error::NoThread { work: "a grammar", source }
}

/// Compiles constraints for one model, and keeps them.
pub struct ConstraintCompiler {
    vocabulary: Arc<Vocabulary>,
    /// The mark that ends a text, if the vocabulary does not know it.
    end: Option<u32>,
    symbols: OnceLock<Arc<Symbols>>,
    compiled: Mutex<LruCache<Constraint, Arc<CompiledConstraint>>>,
    /// Constraints that took too long to compile, and when.
    late: Mutex<LruCache<Constraint, Instant>>,
}

impl ConstraintCompiler {
    /// Creates the compiler of a model with this vocabulary.
    pub fn new(vocabulary: Arc<Vocabulary>) -> Self {
        Self::with_end(vocabulary, None)
    }

    /// Does the same for a model that reads documents, and ends its texts with the mark `end`.
    pub fn with_end(vocabulary: Arc<Vocabulary>, end: Option<u32>) -> Self {
        let compiled = Mutex::new(LruCache::new(COMPILED));
        let late = Mutex::new(LruCache::new(COMPILED));
        Self { vocabulary, end, symbols: OnceLock::new(), compiled, late }
    }

    /// Returns the compiled constraint, from an earlier call if it is kept. Fails if it is invalid, too large, or one that no text of
    /// the vocabulary's symbols satisfies. The error names the field.
    pub fn compile(&self, constraint: &Constraint) -> Result<Arc<CompiledConstraint>> {
        self.compile_for("", constraint, without_limit)
    }

    /// Does the same for a tenant, who can have [`TENANT_COMPILING`] parsers made at a time. If the constraint is not kept, calls `reserve`
    /// with the bytes that compiling takes, and holds the result until that ends, even if it takes too long.
    pub(crate) fn compile_for(
        &self,
        tenant: &str,
        constraint: &Constraint,
        reserve: impl FnOnce(usize) -> Result<CompileMemory>,
    ) -> Result<Arc<CompiledConstraint>> {
        constraint.check()?;
        if let Some(known) = lock(&self.compiled).get(constraint) {
            return Ok(Arc::clone(known));
        }
        if self.vocabulary.is_subword() && self.vocabulary.tokenizer().is_none() {
            let found = "a model without the texts of its ids";
            return Err(Error::bad_option(constraint.field(), found, "a model that has a tokenizer"));
        }
        let new = || {
            let trie = SymbolTrie::new(&self.vocabulary, self.end);
            let compiling = Compiling::default();
            Arc::new(Symbols { trie, factory: OnceLock::new(), watchdog: OnceLock::new(), compiling })
        };
        let symbols = self.symbols.get_or_init(new);
        if lock(&self.late).get(constraint).is_some_and(|at| since(*at) < REFUSED_FOR) {
            return Err(late(constraint.field()));
        }
        let held = reserve(constraint.compile_bytes())?;
        let compiled = CompiledConstraint::new(constraint, &self.vocabulary, symbols, tenant, held);
        let compiled = compiled.inspect_err(|error| {
            if is_late(error) {
                lock(&self.late).put(constraint.clone(), now());
            }
        })?;
        let compiled = Arc::new(compiled);
        // finds what may follow an empty text
        compiled.matcher()?;
        lock(&self.compiled).put(constraint.clone(), Arc::clone(&compiled));
        Ok(compiled)
    }
}

/// Holds the memory that counts while a constraint is compiled.
pub type CompileMemory = Box<dyn Send>;

/// Reserves no memory: for callers whose memory has no limit.
pub fn without_limit(_: usize) -> Result<CompileMemory> {
    Ok(Box::new(()))
}

/// A constraint that is compiled for a vocabulary.
pub struct CompiledConstraint {
    field: &'static str,
    kind: &'static str,
    ends_when_complete: bool,
    rules: Rules,
    /// The texts of a choice; none of another constraint.
    texts: ChoiceTexts,
    /// Symbols of these texts, where a beginning that several share counts once.
    tried: usize,
    /// The symbols that may follow an empty text, once they are known.
    first: OnceLock<Allowed>,
    symbols: Arc<Symbols>,
    bytes: usize,
}

enum Rules {
    Pattern(Arc<Pattern>),
    /// The parser before the text. Each text has its own copy, so no text changes another's limits.
    Grammar(Mutex<Matcher>),
}

/// Equal if they are the same one.
impl PartialEq for CompiledConstraint {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl fmt::Debug for CompiledConstraint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("CompiledConstraint").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl CompiledConstraint {
    fn new(
        constraint: &Constraint,
        vocabulary: &Vocabulary,
        symbols: &Arc<Symbols>,
        tenant: &str,
        held: CompileMemory,
    ) -> Result<Self> {
        let field = constraint.field();
        let pattern = |hir: &Hir| Pattern::new(field, hir, &symbols.trie);
        let rules = match constraint {
            Constraint::Regex(source) => Rules::Pattern(Arc::new(pattern(&pattern::parse_regex(field, source)?)?)),
            Constraint::Choice(texts) => Rules::Pattern(Arc::new(pattern(&pattern::choice(texts))?)),
            Constraint::JsonSchema(_) | Constraint::JsonObject => {
                let source =
                    if let Constraint::JsonSchema(source) = constraint { source } else { r#"{"type": "object"}"# };
                let parsed = serde_json::from_str(source);
                let schema: Value = parsed
                    .map_err(|error| Error::bad_option(field, format!("invalid JSON: {error}"), "a JSON schema"))?;
                check_schema(field, &schema, "")?;
                Rules::grammar(field, json_grammar(field, schema.clone())?, Some(schema), symbols, tenant, held)?
            }
            Constraint::Grammar(source) => {
                Rules::grammar(field, TopLevelGrammar::from_lark(source.clone()), None, symbols, tenant, held)?
            }
        };
        let texts = match (constraint, &rules) {
            (Constraint::Choice(texts), Rules::Pattern(pattern)) => {
                spell_choice(texts, vocabulary, &symbols.trie, pattern)
            }
            _ => Arc::default(),
        };
        let all: usize = texts.iter().map(Vec::len).sum();
        let bytes = match &rules {
            Rules::Pattern(pattern) => pattern.bytes() + CACHE_BYTES + all * size_of::<u32>(),
            Rules::Grammar(_) => PARSER_BYTES,
        };
        Ok(Self {
            field,
            kind: constraint.kind(),
            ends_when_complete: constraint.ends_when_complete(),
            rules,
            tried: all - shared_lengths(&texts).iter().sum::<usize>(),
            texts,
            first: OnceLock::new(),
            symbols: Arc::clone(symbols),
            bytes,
        })
    }

    /// Returns the name of the constraint's kind.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Returns the field that errors name.
    pub(crate) fn field(&self) -> &'static str {
        self.field
    }

    /// Returns the maximum bytes that a text needs for it.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of symbols of texts that a choice tries, at most: a beginning that several texts share counts once.
    pub(crate) fn tried_symbols(&self) -> usize {
        if self.texts.len() > 1 { self.tried } else { 0 }
    }

    /// Returns true if a text that is complete ends, unless a request says otherwise.
    pub fn ends_when_complete(&self) -> bool {
        self.ends_when_complete
    }

    /// Returns the matcher of an empty text.
    pub fn matcher(self: &Arc<Self>) -> Result<ConstraintMatcher> {
        let mut matcher = ConstraintMatcher {
            compiled: Arc::clone(self),
            field: self.field,
            state: self.state(),
            allowed: Allowed::new(&self.symbols.trie),
            chosen: None,
            offered: None,
            is_behind: false,
            is_lost: false,
            lends: false,
            text: Vec::new(),
            followed: 0,
            spent: Duration::ZERO,
            on_step: Duration::ZERO,
        };
        match self.first.get() {
            Some(first) => matcher.allowed = first.clone(),
            None => {
                matcher.update()?;
                self.first.set(matcher.allowed.clone()).ok();
            }
        }
        Ok(matcher)
    }

    /// Returns the state of an empty text.
    fn state(&self) -> MatcherState {
        match &self.rules {
            Rules::Pattern(pattern) => {
                MatcherState::Pattern(PatternMatcher::new(Arc::clone(pattern), self.symbols.trie.drops_space))
            }
            Rules::Grammar(matcher) => MatcherState::Grammar(Box::new(lock(matcher).deep_clone())),
        }
    }
}

/// Returns the texts of a choice in symbols, sorted, without those that the automaton does not take because the vocabulary cannot write
/// them. A text of tokens is spelled as the tokenizer does it, unless that changes the text. None if a text has no spelling: the masks
/// alone then lead to it.
fn spell_choice(texts: &[String], vocabulary: &Vocabulary, trie: &SymbolTrie, pattern: &Arc<Pattern>) -> ChoiceTexts {
    let spell = |text: &String| {
        let is_text = |symbols: &Vec<u32>| {
            let bytes = symbols.iter().flat_map(|symbol| trie.bytes(*symbol)).copied();
            bytes.eq(text.bytes()) && symbols.iter().all(|symbol| trie.texts.get(*symbol as usize))
        };
        let own = vocabulary.encode_exactly("constraint.choice", text).ok().filter(is_text);
        own.or_else(|| Some(trie.split(text.as_bytes())).filter(is_text))
    };
    let mut matcher = PatternMatcher::new(Arc::clone(pattern), false);
    let possible = texts.iter().filter(|text| matcher.begins_with(text.as_bytes()));
    let mut spelled: Vec<Vec<u32>> = possible.map(spell).collect::<Option<_>>().unwrap_or_default();
    spelled.sort_unstable();
    spelled.dedup();
    spelled.into()
}

/// Returns for each of sorted texts the number of symbols with which it begins like the text before it.
pub(crate) fn shared_lengths(texts: &[Vec<u32>]) -> Vec<usize> {
    let shared = |pair: &[Vec<u32>]| pair[0].iter().zip(&pair[1]).take_while(|(own, next)| own == next).count();
    std::iter::once(0).chain(texts.windows(2).map(shared)).take(texts.len()).collect()
}

/// Escapes allowed in JSON. With `u`, a text could spell a named key so that the parser does not recognize it.
const ESCAPES: &str = "nrbtf\\\"";

/// Returns the grammar of a schema, in which a comma and a colon are followed by one space, and nothing else by any.
fn json_grammar(field: &'static str, mut schema: Value) -> Result<TopLevelGrammar> {
    if schema == Value::Bool(true) {
        schema = json!({});
    }
    let Some(keys) = schema.as_object_mut() else {
        return Err(Error::bad_option(field, quoted(&schema.to_string()), "an object or true"));
    };
    let style = json!({
        "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": ", "json_allowed_escapes": ESCAPES
    });
    set_style(field, keys, style)?;
    Ok(TopLevelGrammar::from_json_schema(schema))
}

/// Sets how the parser reads the texts of a schema, which no client may.
fn set_style(field: &'static str, keys: &mut serde_json::Map<String, Value>, style: Value) -> Result<()> {
    match keys.insert("x-guidance".into(), style) {
        Some(_) => Err(Error::bad_option(field, "x-guidance", "a schema without it")),
        None => Ok(()),
    }
}

/// Returns a grammar for a text whose first space is dropped.
fn after_space(grammar: &TopLevelGrammar) -> TopLevelGrammar {
    let mut grammars = vec![GrammarWithLexer::from_lark("start: \" \"? @form".into())];
    grammars.extend(grammar.grammars.iter().cloned());
    if let Some(form) = grammars.get_mut(1) {
        form.name = Some("form".into());
    }
    TopLevelGrammar { grammars, max_tokens: None }
}

/// A definition of a grammar: the parts that `&` joins in it. Brackets are left out, which makes the product of the parts no smaller.
struct Definition<'a> {
    name: &'a str,
    parts: Vec<JoinedPart<'a>>,
}

/// A part of a definition: the bytes in it, and the names of terminals.
#[derive(Default)]
struct JoinedPart<'a> {
    length: usize,
    names: Vec<&'a str>,
}

impl<'a> Definition<'a> {
    fn new(name: &'a str) -> Self {
        Self { name, parts: vec![JoinedPart::default()] }
    }

    /// Returns the product of the lengths of the parts, with the terminals `all` that they name.
    fn product(&self, all: &[Self], known: &mut HashMap<&'a str, usize>) -> usize {
        let mut product = 1_usize;
        for part in &self.parts {
            let lengths = part.names.iter().map(|name| terminal_length(name, all, known));
            product = product.saturating_mul(lengths.fold(part.length.max(1), usize::saturating_add));
        }
        product
    }
}

/// Returns the length of a terminal: the largest one, if grammars within the grammar define the name too. A terminal that names itself has
/// no bound.
fn terminal_length<'a>(name: &'a str, all: &[Definition<'a>], known: &mut HashMap<&'a str, usize>) -> usize {
    if let Some(length) = known.get(name) {
        return *length;
    }
    known.insert(name, usize::MAX);
    let definitions = all.iter().filter(|definition| definition.name == name);
    let length = definitions.map(|definition| definition.product(all, known)).max().unwrap_or(IMPORTED_LENGTH);
    known.insert(name, length);
    length
}

/// Returns the JSON value after `keyword` at the beginning of `rest`, the end of `source`, and the bytes of both.
fn json_after<T: DeserializeOwned>(
    field: &'static str,
    source: &str,
    rest: &str,
    keyword: &str,
) -> Result<Option<(T, usize)>> {
    let Some(text) = rest.strip_prefix(keyword) else { return Ok(None) };
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<T>();
    let Some(value) = values.next() else { return Ok(None) };
    let value = value.map_err(|error| {
        // what follows a line break is in column 1
        let line = line_of(source, text) + error.line() - 1 - usize::from(error.column() == 0);
        let message = error.to_string();
        let fault = if error.is_data() { "options" } else { "JSON" };
        let reason = format!("invalid {fault} after {keyword}: {}", split_place(&message).0);
        rejected(field, &reason, &format!(", in line {line}"))
    })?;
    Ok(Some((value, keyword.len() + values.byte_offset())))
}

/// Returns the line, from 1, on which `rest`, the end of `source`, begins.
fn line_of(source: &str, rest: &str) -> usize {
    1 + source.bytes().take(source.len() - rest.len()).filter(|byte| *byte == b'\n').count()
}

/// Attributes of rules of a grammar that are refused. The parser counts symbols for `max_tokens`, without the forced ones, so it would cut
/// characters, and a resumed text would end elsewhere. It fails on some texts of a `stop`, and ignores `temperature`.
const UNSUPPORTED_ATTRIBUTES: [&str; 3] = ["max_tokens", "stop", "temperature"];

/// Refuses an unsupported attribute of a rule: its name is the first `length` bytes of `rest`, the end of `source`.
fn check_attribute(field: &'static str, source: &str, rest: &str, length: usize) -> Result<()> {
    let (name, after) = rest.split_at(length);
    if !UNSUPPORTED_ATTRIBUTES.contains(&name) || !after.trim_start().starts_with('=') {
        return Ok(());
    }
    let found = format!("{name} in line {}", line_of(source, rest));
    let bound = format!("rules without the attributes {}", UNSUPPORTED_ATTRIBUTES.join(", "));
    Err(Error::bad_option(field, found, bound))
}

/// The schemas of a constraint as the client wrote them, each with its place.
type Schemas = Vec<(String, Value)>;

/// Checks the schema after `%json` at the beginning of `rest`, and adds it to `schemas`. Returns the bytes of both, and both with the schema
/// as [`prepare`] rewrites it.
fn prepare_json(
    field: &'static str,
    source: &str,
    rest: &str,
    schemas: &mut Schemas,
) -> Result<Option<(usize, String)>> {
    let Some((schema, bytes)) = json_after::<Value>(field, source, rest, "%json")? else { return Ok(None) };
    let place = format!(" of the schema in line {}", line_of(source, rest));
    check_schema(field, &schema, &place)?;
    let mut prepared = schema.clone();
    prepare(field, &mut prepared)?;
    if let Some(keys) = prepared.as_object_mut() {
        set_style(field, keys, json!({ "json_allowed_escapes": ESCAPES }))?;
    }
    schemas.push((place, schema));
    Ok(Some((bytes, format!("%json {prepared}"))))
}

/// Refuses a grammar that could exhaust the stack of its parser or take too much memory, or allow bytes that are no text. Splits it as its
/// lexer does: texts, regular expressions, comments and JSON hide what is in them. Follows references by recursion. Adds its schemas to
/// `schemas`, and returns the grammar with each as [`prepare`] rewrites it.
fn check_grammar(field: &'static str, source: &str, schemas: &mut Schemas) -> Result<String> {
    let mut complete = String::with_capacity(source.len());
    let mut depth = 0_usize;
    let mut negations = 0_usize;
    let mut classes = 0;
    let mut rules = 0;
    let mut definitions = Vec::new();
    let mut definition = Definition::new("");
    // the first name of a line, which a colon defines, and the names of the part before it
    let mut head = None;
    let mut named = 0;
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let mut length = first.len_utf8();
        let mut counted = length;
        let mut begun = None;
        let mut json = None;
        let run = |is_in: fn(char) -> bool| rest.find(|next| !is_in(next)).unwrap_or(rest.len());
        match first {
            '#' => length = run(|next| next != '\n'),
            '/' if rest.starts_with("//") => length = run(|next| next != '\n'),
            '"' | '/' => {
                length = quoted_length(rest);
                counted = length;
                classes += rest.get(..length).map_or(0, count_classes);
            }
            'a'..='z' => {
                length = run(|next| matches!(next, 'a'..='z' | '0'..='9' | '_' | '-'));
                head = head.or(rest.get(..length));
                check_attribute(field, source, rest, length)?;
            }
            'A'..='Z' | '_' => {
                length = run(|next| matches!(next, 'A'..='Z' | '0'..='9' | '_' | '-'));
                head = head.or(rest.get(..length));
                if let Some(part) = definition.parts.last_mut() {
                    part.names.extend(rest.get(..length));
                }
            }
            '\n' | '{' => {
                depth += usize::from(first == '{');
                head = None;
                named = definition.parts.last().map_or(0, |part| part.names.len());
            }
            '(' | '[' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            ':' if rest.starts_with("::") => length = 2,
            ':' => {
                rules += 1;
                definition.parts.last_mut().into_iter().for_each(|part| part.names.truncate(named));
                begun = Some(head.take().unwrap_or_default());
            }
            '~' => negations += 1,
            '&' => definition.parts.push(JoinedPart::default()),
            '<' => return Err(Error::bad_option(field, "a special token", "a grammar of Unicode text")),
            '%' => {
                if let Some((bytes, prepared)) = prepare_json(field, source, rest, schemas)? {
                    length = bytes;
                    json = Some(prepared);
                } else if let Some((_, bytes)) = json_after::<RegexExt>(field, source, rest, "%regex")? {
                    length = bytes;
                    counted = length;
                } else if let Some((options, bytes)) = json_after::<Value>(field, source, rest, "%llguidance")? {
                    let allows = options.get("allow_invalid_utf8");
                    if allows.is_some_and(|allows| *allows != Value::Bool(false)) {
                        return Err(Error::bad_option(field, "allow_invalid_utf8", "a grammar of Unicode text"));
                    }
                    length = bytes;
                } else if rest.starts_with("%ignore") || rest.starts_with("%import") {
                    begun = Some("");
                }
            }
            _ => {}
        }
        if let Some(name) = begun {
            definitions.push(std::mem::replace(&mut definition, Definition::new(name)));
        } else if let Some(part) = definition.parts.last_mut().filter(|_| !first.is_whitespace()) {
            part.length += counted;
        }
        if first != '~' && !first.is_whitespace() {
            negations = 0;
        }
        if depth > NESTING {
            return Err(Error::bad_option(field, "deeper ones", format!("brackets at most {NESTING} deep")));
        }
        if negations > NESTING {
            return Err(Error::bad_option(field, "more", format!("at most {NESTING} negations of one part")));
        }
        complete.push_str(json.as_deref().or_else(|| rest.get(..length)).unwrap_or(rest));
        rest = rest.get(length..).unwrap_or_default();
    }
    if rules > MAX_RULES {
        return Err(too_many(field, rules, "rules"));
    }
    check_classes(field, classes + schemas.iter().map(|(_, schema)| count_schema_classes(schema)).sum::<usize>())?;
    definitions.push(definition);
    let mut known = HashMap::new();
    let mut length = 0_usize;
    for joined in definitions.iter().filter(|definition| definition.parts.len() > 1) {
        length = length.saturating_add(joined.product(&definitions, &mut known));
    }
    check_intersection(field, length, "as the product of the lengths of parts that & joins").map(|()| complete)
}

/// Returns the length of the part at the beginning of `text` up to the next occurrence of its first character, which a backslash hides.
fn quoted_length(text: &str) -> usize {
    let mut is_escaped = false;
    let quote = text.chars().next();
    let end = text.char_indices().skip(1).find(|(_, character)| {
        let ends = !is_escaped && Some(*character) == quote;
        is_escaped = !is_escaped && *character == '\\';
        ends
    });
    end.map_or(text.len(), |(index, _)| index + 1)
}

impl Rules {
    /// Prepares a parser, and checks that the vocabulary can write the beginning of a text that is forced. `schema` is the client's, if
    /// the grammar is that of a schema: errors point into it.
    fn grammar(
        field: &'static str,
        grammar: TopLevelGrammar,
        schema: Option<Value>,
        symbols: &Arc<Symbols>,
        tenant: &str,
        held: CompileMemory,
    ) -> Result<Self> {
        let grammar = if symbols.trie.drops_space { after_space(&grammar) } else { grammar };
        let make = move |symbols: &Symbols| {
            let _held = held;
            ready_parser(field, grammar, schema.as_ref(), symbols)
        };
        let ready = on_large_stack(symbols, tenant, make)?;
        let ready = ready.recv_timeout(COMPILE_TIME).unwrap_or_else(|error| match error {
            RecvTimeoutError::Timeout => Err(late(field)),
            RecvTimeoutError::Disconnected => Err(Error::Internal("the parser of a grammar panicked".into())),
        });
        Ok(Self::Grammar(Mutex::new(ready?)))
    }
}

fn ready_parser(
    field: &'static str,
    mut grammar: TopLevelGrammar,
    schema: Option<&Value>,
    symbols: &Symbols,
) -> Result<Matcher> {
    let trie = &symbols.trie;
    let mut schemas: Schemas = schema.iter().map(|schema| (String::new(), (*schema).clone())).collect();
    let mut client = None;
    for part in &mut grammar.grammars {
        if let Some(source) = part.lark_grammar.take() {
            part.lark_grammar = Some(check_grammar(field, &source, &mut schemas)?);
            client = schema.is_none().then_some(source);
        }
        part.json_schema.as_mut().map_or(Ok(()), |schema| prepare(field, schema))?;
    }
    let began = now();
    let parser = symbols.factory()?.create_parser(grammar);
    let parser = parser.map_err(|error| {
        let fault = |(place, schema): &(String, Value)| {
            let (reason, pointer) = (since(began) < STEP_TIME).then(|| find_fault(schema))??;
            Some(rejected(field, &reason, &format!(", at {pointer}{place}")))
        };
        schemas.iter().find_map(fault).unwrap_or_else(|| {
            // places in the rewritten text are not those in the client's
            let own =
                client.filter(|_| !schemas.is_empty() && since(began) < STEP_TIME).map(TopLevelGrammar::from_lark);
            let own = own.and_then(|own| symbols.factory().ok()?.create_parser(own).err());
            rejected(field, &format!("{:#}", own.unwrap_or(error)), "")
        })
    })?;
    // a schema's texts are checked one by one when it is compiled
    if !has_text(parser.parser.grammar(), schema.is_none()) {
        return Err(Error::bad_option(field, "an empty language: no text can be completed", FORM_OF_A_TEXT));
    }
    let mut matcher = Matcher::new(Ok(parser)).into_cancellable();
    if let Some(reason) = matcher.get_error() {
        return Err(rejected(field, &reason, ""));
    }
    let ready = matcher.deep_clone();
    let mut allowed = Allowed::new(trie);
    let mut text = Vec::new();
    let began = now();
    for _ in 0..CHECKED {
        let computed = update(field, &mut matcher, symbols, &mut allowed, STEP_TIME);
        if matcher.is_cancelled() {
            return Err(too_slow(field));
        }
        if computed.is_err() && !is_stuck(ready.deep_clone(), &text, symbols, STEP_TIME) {
            computed?;
        }
        if allowed.with_text == 0 && !allowed.ends {
            let Some(characters) = next_characters(&mut matcher, symbols) else { return Err(too_slow(field)) };
            return Err(impossible(field, Stuck { position: trie.count_characters(&text), characters }));
        }
        let Some(only) = allowed.only().filter(|_| since(began) < FIRST_TIME) else { break };
        let taken = symbols.limit_time(&mut matcher, STEP_TIME, |matcher| matcher.consume_token(only));
        if matcher.is_cancelled() {
            return Err(too_slow(field));
        }
        taken.map_err(|error| rejected(field, &error.to_string(), ""))?;
        text.push(only);
    }
    Ok(ready)
}

/// Returns true if no byte may follow `text` and it may not end either. `matcher` has not read any of it yet. This asks the parser again,
/// because the error of a parser that is stuck states the reason only as text.
fn is_stuck(mut matcher: Matcher, text: &[u32], symbols: &Symbols, limit: Duration) -> bool {
    symbols.limit_time(&mut matcher, limit, |matcher| {
        text.iter().all(|symbol| matcher.consume_token(*symbol).is_ok())
            && matcher.is_accepting().is_ok_and(|accepts| !accepts)
            && symbols.trie.byte_ids().all(|id| matcher.validate_tokens(&[id]).is_ok_and(|count| count == 0))
    })
}

/// Returns characters that the parser allows next: one for each byte that may follow. Returns `None` if that takes too long.
fn next_characters(matcher: &mut Matcher, symbols: &Symbols) -> Option<Vec<char>> {
    let trie = &symbols.trie;
    let first_bytes = |matcher: &mut Matcher| {
        let mask = symbols.limit_time(matcher, STEP_TIME, Matcher::compute_mask);
        mask.map(|mask| trie.first_bytes(&mask)).unwrap_or_default()
    };
    let first = first_bytes(matcher);
    if matcher.is_cancelled() {
        return None;
    }
    let mut characters = Vec::new();
    for byte in first.into_iter().take(NAMED_CHARACTERS + 1) {
        let mut text = vec![byte];
        let mut after = matcher.deep_clone();
        while std::str::from_utf8(&text).is_err() && text.len() < MAX_UTF8 {
            let Some(symbol) = text.last().and_then(|last| trie.byte_id(*last)) else { break };
            // a parser that fails here has no next byte
            symbols.limit_time(&mut after, STEP_TIME, |after| after.consume_token(symbol)).ok();
            let Some(next) = first_bytes(&mut after).pop_first() else { break };
            text.push(next);
        }
        if after.is_cancelled() {
            return None;
        }
        characters.extend(std::str::from_utf8(&text).ok().and_then(|text| text.chars().next()));
    }
    Some(characters)
}

/// Returns true if the grammar has a text that ends: if its start leads to characters alone. If `checks_lexemes`, a terminal that matches
/// no text leads to no characters.
fn has_text(grammar: &CGrammar, checks_lexemes: bool) -> bool {
    let lexemes = grammar.lexer_spec();
    let mut lexer = checks_lexemes.then(|| lexemes.to_regex_vec(&mut LIMITS.clone()).ok()).flatten();
    let mut is_empty = |lexeme: LexemeIdx| {
        let mut only = lexemes.alloc_lexeme_set();
        only.add(lexeme);
        lexer.as_mut().is_some_and(|lexer| lexer.initial_state(&only).is_dead())
    };
    // in the order of discovery, so most symbols stand after those that lead to them
    let mut symbols = vec![grammar.start()];
    let mut found: HashSet<usize> = HashSet::from([grammar.start().as_index()]);
    let mut ends = HashSet::new();
    let mut at = 0;
    while let Some(&symbol) = symbols.get(at) {
        at += 1;
        let data = grammar.sym_data(symbol);
        let is_terminal = data.is_terminal && !data.lexeme.is_some_and(&mut is_empty);
        if is_terminal || data.is_nullable || !data.cond_nullable.is_empty() {
            ends.insert(symbol.as_index());
        }
        for rule in &data.rules {
            let parts = grammar.rule_rhs(*rule).0;
            symbols.extend(parts.iter().filter(|part| found.insert(part.as_index())));
        }
    }
    loop {
        let known = ends.len();
        for symbol in symbols.iter().rev() {
            let ends_with = |parts: &[CSymIdx]| parts.iter().all(|part| ends.contains(&part.as_index()));
            if grammar.sym_data(*symbol).rules.iter().any(|rule| ends_with(grammar.rule_rhs(*rule).0)) {
                ends.insert(symbol.as_index());
            }
        }
        if ends.len() == known {
            return ends.contains(&grammar.start().as_index());
        }
    }
}

/// Returns the reason in a parser's error without the parser's own marks. Says in other words that numbers overflow, which is a panic,
/// and that the lexer has too many states.
fn own_reason(reason: &str) -> String {
    let reason = reason.split("<backtrace>").next().unwrap_or_default().replace("<non-verbose/>", "");
    if reason.contains("with overflow") {
        return "numbers whose least common multiple is too large".to_owned();
    }
    if reason.starts_with("lexer error: too many states: ") {
        return format!("a text that takes its patterns and numbers through {} states", LIMITS.max_lexer_states);
    }
    clip(reason.trim(), REASON_BYTES)
}

fn rejected(field: &'static str, reason: &str, place: &str) -> Error {
    let reason = own_reason(reason);
    let bound = if field == "constraint.grammar" {
        "a grammar that the server supports"
    } else {
        "a schema that the server supports"
    };
    Error::bad_option(field, reason + place, bound)
}

/// Follows one text, and has the symbols that may follow it.
#[derive(Clone)]
pub struct ConstraintMatcher {
    compiled: Arc<CompiledConstraint>,
    /// The field that errors name.
    field: &'static str,
    state: MatcherState,
    allowed: Allowed,
    /// The index of the text that was drawn, of a choice. Only this text may follow.
    chosen: Option<usize>,
    /// The symbols that the choice allows, once a text was drawn.
    offered: Option<SimpleVob>,
    /// True if the symbols that may follow are not found yet.
    is_behind: bool,
    /// True if the state is of no use, because work on it was given up.
    is_lost: bool,
    /// True if another thread does what takes long.
    lends: bool,
    /// The symbols taken. The state has the first `followed` of them.
    text: Vec<u32>,
    followed: usize,
    /// The time that the text's constraint has taken, and the part of it on the model's thread.
    spent: Duration,
    on_step: Duration,
}

#[derive(Clone)]
enum MatcherState {
    Pattern(PatternMatcher),
    Grammar(Box<Matcher>),
}

impl MatcherState {
    /// Returns true if its work took too long: it can do no more.
    fn is_late(&self) -> bool {
        match self {
            Self::Pattern(matcher) => matcher.is_late(),
            Self::Grammar(matcher) => matcher.is_cancelled(),
        }
    }
}

impl fmt::Debug for ConstraintMatcher {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ConstraintMatcher").field("compiled", &self.compiled).finish_non_exhaustive()
    }
}

impl ConstraintMatcher {
    /// Lets errors name the fields of a summary's options.
    pub(crate) fn in_options(self) -> Self {
        Self { field: Constraint::option_field(self.field), ..self }
    }

    /// Gives up on the model's thread what takes longer than [`STEP_SHARE`], and leaves it to [`catch_up`](Self::catch_up) on another.
    pub(crate) fn lending(self) -> Self {
        Self { lends: true, on_step: Duration::ZERO, ..self }
    }

    /// Returns the texts of a choice of which one is to be drawn, because nothing was written yet.
    pub(crate) fn open_choice(&self) -> Option<ChoiceTexts> {
        let is_open = self.text.is_empty() && self.chosen.is_none() && self.compiled.texts.len() > 1;
        is_open.then(|| Arc::clone(&self.compiled.texts))
    }

    /// Returns the number of symbols of texts that are tried before one is drawn, at most.
    pub(crate) fn tried_symbols(&self) -> usize {
        self.compiled.tried_symbols()
    }

    /// Lets only the text of this index follow.
    pub(crate) fn choose(&mut self, index: usize) {
        self.chosen = Some(index);
        self.keep_chosen();
    }

    /// Returns the rest of the text that was drawn.
    fn chosen_rest(&self) -> Option<&[u32]> {
        self.compiled.texts.get(self.chosen?)?.get(self.text.len()..)
    }

    /// Takes the next symbol of the text. [`update`](Self::update) then finds what may follow. Fails if the symbol may not follow, and
    /// if that takes too long. In a slow constraint, `update` fails instead.
    pub fn consume(&mut self, symbol: u32) -> Result<()> {
        self.text.push(symbol);
        self.is_behind |= self.is_slow();
        if self.is_behind { Ok(()) } else { self.follow() }
    }

    /// Returns true if the constraint has taken its share of the time of the model's thread.
    fn is_slow(&self) -> bool {
        self.lends && self.on_step > STEP_SHARE + SYMBOL_SHARE * self.taken()
    }

    /// Returns the number of symbols taken.
    fn taken(&self) -> u32 {
        u32::try_from(self.text.len()).unwrap_or(u32::MAX)
    }

    /// Brings the state to the end of the text, unless that is given up.
    fn follow(&mut self) -> Result<()> {
        if std::mem::take(&mut self.is_lost) {
            self.state = self.compiled.state();
            self.followed = 0;
        }
        while let Some(&symbol) = self.text.get(self.followed) {
            let taken = self.work(|state, _, compiled, limit| match state {
                MatcherState::Pattern(matcher) => {
                    let bytes = compiled.symbols.trie.bytes(symbol);
                    let follows = !bytes.is_empty() && matcher.consume(bytes);
                    follows.then_some(()).ok_or_else(|| format!("id {symbol}, which may not follow"))
                }
                // the parser also fails if the symbol takes too much work
                MatcherState::Grammar(matcher) => compiled
                    .symbols
                    .limit_time(matcher, limit, |matcher| matcher.consume_token(symbol))
                    .map_err(|error| format!("id {symbol}: {}", own_reason(&error.to_string()))),
            })?;
            match taken {
                Some(Ok(())) => self.followed += 1,
                Some(Err(found)) => return Err(self.broken(found)),
                None => break,
            }
        }
        Ok(())
    }

    /// Finds what may follow. Fails if nothing may, which only a grammar can lead to whose symbols the vocabulary lacks, and if that
    /// takes more work or time than permitted.
    pub fn update(&mut self) -> Result<()> {
        self.find_allowed()?;
        self.dead_end().map_or(Ok(()), Err)
    }

    /// Finds what may follow, which may be nothing, or leaves it to [`catch_up`](Self::catch_up) if it takes longer than microseconds.
    /// Returns true if it is done.
    pub(crate) fn find_if_quick(&mut self) -> Result<bool> {
        let trie = &self.compiled.symbols.trie;
        // a text with one spelling has forced symbols, which are wanted at once
        self.is_behind |= self.is_slow() || (trie.is_large() && !trie.is_spelled_out);
        if !self.is_behind {
            self.find_allowed()?;
        }
        Ok(!self.is_behind)
    }

    /// Finds what may follow, if that is not known yet, on another thread than the model's. Fails as
    /// [`find_allowed`](Self::find_allowed) does.
    pub(crate) fn catch_up(&mut self) -> Result<()> {
        if !self.is_behind {
            return Ok(());
        }
        let on_step = self.on_step;
        let lends = std::mem::take(&mut self.lends);
        let found = self.find_allowed();
        self.on_step = on_step;
        self.lends = lends;
        found
    }

    /// Leaves all that follows to another thread.
    pub(crate) fn fall_behind(&mut self) {
        self.is_lost = true;
        self.is_behind = true;
        self.on_step = Duration::MAX;
    }

    /// Returns true if it is not known what may follow.
    pub(crate) fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Returns true if it is known that nothing may follow the text.
    pub(crate) fn is_dead_end(&self) -> bool {
        self.allowed.with_text == 0 && !self.allowed.ends && !self.is_behind
    }

    /// Returns an error if it is known that nothing may follow the text. It names the position and what the form allows there, which
    /// takes a parser longer than [`is_dead_end`](Self::is_dead_end).
    pub(crate) fn dead_end(&self) -> Option<Error> {
        if !self.is_dead_end() {
            return None;
        }
        let symbols = &self.compiled.symbols;
        let characters = match &self.state {
            MatcherState::Pattern(matcher) => Some(matcher.clone().characters()),
            MatcherState::Grammar(matcher) => next_characters(&mut matcher.deep_clone(), symbols),
        };
        let Some(characters) = characters else { return Some(too_slow(self.field)) };
        Some(impossible(self.field, Stuck { position: symbols.trie.count_characters(&self.text), characters }))
    }

    /// Finds what may follow, which may be nothing, unless that is given up. Fails if it takes more work or time than permitted.
    fn find_allowed(&mut self) -> Result<()> {
        self.is_behind = false;
        self.follow()?;
        if self.is_behind {
            return Ok(());
        }
        let updated = self.work(|state, allowed, compiled, limit| match state {
            MatcherState::Pattern(matcher) => matcher.allowed(&compiled.symbols.trie, allowed, limit),
            MatcherState::Grammar(matcher) => update(compiled.field, matcher, &compiled.symbols, allowed, limit),
        });
        let Some(updated) = updated? else { return Ok(()) };
        if let Err(error) = updated {
            let limit = if self.lends { STEP_SHARE } else { STEP_TIME };
            let MatcherState::Grammar(unread) = self.compiled.state() else { return Err(error.named(|_| self.field)) };
            let is_stuck = is_stuck(*unread, &self.text, &self.compiled.symbols, limit);
            return if is_stuck { Ok(()) } else { Err(error.named(|_| self.field)) };
        }
        let trie = &self.compiled.symbols.trie;
        let Allowed { symbols, with_text, ends } = &mut self.allowed;
        if *with_text == 0 && !*ends {
            return Ok(());
        }
        trie.ends.iter().for_each(|&end| symbols.set(end as usize, *ends));
        trie.marks.iter().for_each(|&mark| symbols.set(mark as usize, true));
        self.keep_chosen();
        Ok(())
    }

    /// Works on the text's state, and counts the time. Returns `None` if the work was given up. Fails if it, or all work for the text
    /// together, took too much time.
    fn work<T>(
        &mut self,
        run: impl FnOnce(&mut MatcherState, &mut Allowed, &CompiledConstraint, Duration) -> T,
    ) -> Result<Option<T>> {
        let began = now();
        let limit = if self.lends { STEP_SHARE } else { STEP_TIME };
        let done = run(&mut self.state, &mut self.allowed, &self.compiled, limit);
        let took = since(began);
        self.spent += took;
        self.on_step = self.on_step.saturating_add(took);
        if self.state.is_late() {
            if !self.lends {
                return Err(too_slow(self.field));
            }
            self.fall_behind();
            return Ok(None);
        }
        if self.spent > FIRST_TIME + SYMBOL_TIME * self.taken() {
            let bound = format!(
                "a form that takes at most {} ms, and {} ms more for each symbol",
                FIRST_TIME.as_millis(),
                SYMBOL_TIME.as_millis()
            );
            return Err(Error::bad_option(self.field, "a slower one", bound));
        }
        Ok(Some(done))
    }

    /// Leaves only the next symbol of the text that was drawn, if one was, or the end.
    fn keep_chosen(&mut self) {
        let Some(next) = self.chosen_rest().map(|rest| rest.first().copied()) else { return };
        let trie = &self.compiled.symbols.trie;
        let offered = self.offered.insert(self.allowed.symbols.clone());
        self.allowed.begin(next.is_none());
        match next {
            Some(symbol) => self.allowed.symbols.set(symbol as usize, true),
            None => trie.ends.iter().for_each(|&end| self.allowed.symbols.set(end as usize, offered.get(end as usize))),
        }
        self.allowed.with_text = usize::from(next.is_some());
        trie.marks.iter().for_each(|&mark| self.allowed.symbols.set(mark as usize, true));
    }

    /// Returns the time that the text's constraint has taken.
    pub(crate) fn spent(&self) -> Duration {
        self.spent
    }

    fn broken(&self, found: String) -> Error {
        Error::bad_option(self.field, found, "a text of this form in the model's vocabulary")
    }

    /// Returns the symbols that may follow: those with text, marks between them, and the end if the text may end here.
    pub fn symbols(&self) -> &SimpleVob {
        &self.allowed.symbols
    }

    /// Forbids symbols that begin a character of more than `room` bytes, in a vocabulary of bytes, until the next symbol is taken.
    /// Returns false if no symbol with text is left.
    pub(crate) fn fit(&mut self, room: usize) -> bool {
        if self.compiled.symbols.trie.is_bytes && room < MAX_UTF8 {
            let long: Vec<u32> = self.allowed.symbols.iter().filter(|symbol| !self.fits(*symbol, room)).collect();
            long.iter().for_each(|symbol| self.allowed.symbols.set(*symbol as usize, false));
            self.allowed.with_text -= long.len().min(self.allowed.with_text);
        }
        self.allowed.with_text > 0
    }

    /// Returns false if the symbol is a byte that begins a character of more than `room` bytes.
    pub(crate) fn fits(&self, symbol: u32, room: usize) -> bool {
        let trie = &self.compiled.symbols.trie;
        let length = match trie.bytes(symbol).first().copied() {
            Some(0xf0..) => 4,
            Some(0xe0..) => 3,
            Some(0xc0..) => 2,
            _ => 1,
        };
        !trie.is_bytes || length <= room
    }

    /// Returns true if the text has the form and may end here.
    pub fn accepts(&self) -> bool {
        self.allowed.ends
    }

    /// Returns true if nothing but the end may follow.
    pub fn is_complete(&self) -> bool {
        self.allowed.ends && self.allowed.with_text == 0
    }

    /// Returns the symbol that must follow, if there is only one.
    pub fn only(&self) -> Option<u32> {
        if self.allowed.with_text != 1 || self.allowed.ends {
            return None;
        }
        // marks may also follow, and have no text
        self.allowed.symbols.iter().find(|symbol| !self.compiled.symbols.trie.bytes(*symbol).is_empty())
    }

    /// Returns true if the model, whose logits (vocab) these are, gives more probability to the symbols that may not follow than to
    /// those that may.
    pub fn would_leave(&self, logits: &[f32]) -> bool {
        self.mass(logits) < 0.5
    }

    /// Returns the probability that the model gives to the symbols that the form allows, from its logits (vocab): in a choice to the
    /// next symbols of all its texts.
    pub fn mass(&self, logits: &[f32]) -> f64 {
        let offered = self.offered.as_ref().unwrap_or(&self.allowed.symbols);
        let peak = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut total = 0.0;
        let mut kept = 0.0;
        for (symbol, &logit) in logits.iter().enumerate() {
            let weight = f64::from(logit - peak).exp();
            total += weight;
            if offered.get(symbol) {
                kept += weight;
            }
        }
        kept / total
    }

    /// Returns symbols that must follow, at most `limit`: none only if several may. More may be forced after them.
    pub fn forced(&mut self, limit: usize) -> Vec<u32> {
        if let Some(rest) = self.chosen_rest() {
            return rest.iter().copied().take(limit).collect();
        }
        if self.is_behind {
            return Vec::new();
        }
        let forced = self.work(|state, _, compiled, time| match state {
            MatcherState::Pattern(matcher) => matcher.forced(&compiled.symbols.trie, limit, time),
            // without a set of symbols for each of them
            MatcherState::Grammar(matcher) => {
                compiled.symbols.trie.spell(&compiled.symbols.limit_time(matcher, time, Matcher::compute_ff_bytes))
            }
        });
        let Ok(Some(mut forced)) = forced else { return Vec::new() };
        if forced.is_empty() {
            forced.extend(self.only());
        }
        forced.truncate(limit);
        forced
    }

    /// Returns how many of these symbols may follow, one after the other. A parser that is late says none, and fails afterwards.
    pub fn agrees(&mut self, symbols: &[u32]) -> usize {
        if let Some(rest) = self.chosen_rest() {
            return symbols.iter().zip(rest).take_while(|(own, next)| own == next).count();
        }
        if self.is_behind {
            return 0;
        }
        let agreed = self.work(|state, _, compiled, limit| match state {
            MatcherState::Pattern(matcher) => matcher.agrees(&compiled.symbols.trie, symbols, limit),
            MatcherState::Grammar(matcher) => compiled
                .symbols
                .limit_time(matcher, limit, |matcher| matcher.validate_tokens(symbols))
                .unwrap_or_default(),
        });
        agreed.ok().flatten().unwrap_or_default()
    }
}

/// Finds the symbols that may follow a parser's text. Fails if that takes more work than permitted.
fn update(
    field: &'static str,
    matcher: &mut Matcher,
    symbols: &Symbols,
    allowed: &mut Allowed,
    limit: Duration,
) -> Result<()> {
    let trie = &symbols.trie;
    allowed.begin(false);
    match symbols.limit_time(matcher, limit, Matcher::compute_mask_or_eos) {
        Ok(mask) => {
            allowed.ends = mask.is_allowed(trie.end() as u32);
            allowed.symbols.set_from(&mask);
            allowed.keep_texts(trie);
            Ok(())
        }
        Err(error) => Err(rejected(field, &error.to_string(), "")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regex_automata::{
        Anchored, MatchKind,
        dfa::{Automaton, StartKind, dense},
        util::start,
    };
    use weir_models::{
        random::{Purpose, uniform},
        text::TextNormaliser,
    };

    /// Random numbers that a seed determines.
    struct Dice(u64, usize);

    impl Dice {
        fn below(&mut self, limit: usize) -> usize {
            self.1 += 1;
            (uniform(self.0, Purpose::Sampling, self.1) * limit as f32) as usize % limit
        }

        fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
            all[self.below(all.len())]
        }
    }

    fn bytes() -> ConstraintCompiler {
        ConstraintCompiler::new(Arc::new(Vocabulary::byte_level_with_end(3, TextNormaliser::None).unwrap()))
    }

    fn letters(symbols: &str) -> ConstraintCompiler {
        let symbols: Vec<String> = symbols.chars().map(String::from).collect();
        ConstraintCompiler::new(Arc::new(Vocabulary::from_symbols(&symbols, TextNormaliser::None).unwrap()))
    }

    /// Returns a random text of the form, and whether it is complete. It ends where it may with a chance of one in `ends`. After `limit`
    /// symbols, an expression's text stops; another one goes on and ends as soon as it may.
    fn walk(compiled: &Arc<CompiledConstraint>, dice: &mut Dice, ends: usize, limit: usize) -> (Vec<u8>, bool) {
        let mut matcher = compiled.matcher().unwrap();
        let mut text = Vec::new();
        for length in 0..100_000 {
            if matcher.is_complete() || (matcher.accepts() && (length >= limit || dice.below(ends) == 0)) {
                return (text, true);
            }
            if length == limit && matches!(matcher.state, MatcherState::Pattern(_)) {
                return (text, false);
            }
            let trie = &compiled.symbols.trie;
            let all: Vec<u32> = matcher.symbols().iter().filter(|symbol| !trie.bytes(*symbol).is_empty()).collect();
            // bytes of longer characters are many
            let short: Vec<u32> = all.iter().copied().filter(|symbol| trie.bytes(*symbol)[0] < 128).collect();
            let any = short.is_empty() || dice.below(8) == 0;
            let symbol = dice.one_of(if any { &all } else { &short });
            let forced = matcher.forced(20);
            assert_eq!(forced.first().copied(), matcher.only());
            assert!(forced.is_empty() || forced[0] == symbol);
            assert_eq!(matcher.agrees(&[symbol]), 1);
            matcher.consume(symbol).unwrap();
            matcher.update().unwrap();
            text.extend_from_slice(trie.bytes(symbol));
        }
        panic!("a text that cannot be completed: {}", String::from_utf8_lossy(&text));
    }

    /// Returns true if `text` has the form.
    fn accepts(compiled: &Arc<CompiledConstraint>, text: &[u8]) -> bool {
        let mut matcher = compiled.matcher().unwrap();
        let symbols: Vec<u32> = text.iter().copied().map(u32::from).collect();
        matcher.agrees(&symbols) == symbols.len()
            && symbols.iter().all(|symbol| matcher.consume(*symbol).is_ok())
            && matcher.update().is_ok()
            && matcher.accepts()
    }

    fn random_regex(dice: &mut Dice, depth: usize) -> String {
        let atoms = ["a", "b", "c", "é", "[ab]", "[^a]", ".", r"\d", r"\w", "[a-c]{2}", r"\p{Greek}", "xyz"];
        if depth == 0 || dice.below(4) == 0 {
            return dice.one_of(&atoms).to_owned();
        }
        let left = random_regex(dice, depth - 1);
        let right = random_regex(dice, depth - 1);
        match dice.below(7) {
            0 => format!("(?:{left}|{right})"),
            1 => format!("(?:{left})*{right}"),
            2 => format!("(?:{left})?{right}"),
            3 => format!("({left}){{1,3}}{right}"),
            4 => format!("(?:{left})+?{right}"),
            _ => format!("{left}{right}"),
        }
    }

    /// Returns the automaton of all states of an expression, unless it is too large.
    fn dense_automaton(source: &str) -> Option<dense::DFA<Vec<u32>>> {
        let config = dense::Config::new().match_kind(MatchKind::All).start_kind(StartKind::Anchored);
        let config = config.dfa_size_limit(Some(8 << 20)).determinize_size_limit(Some(8 << 20));
        dense::Builder::new().configure(config).build(&format!("(?:{source})$")).ok()
    }

    /// Returns true if a text that begins with `text` matches.
    fn can_be_completed(automaton: &dense::DFA<Vec<u32>>, text: &[u8]) -> bool {
        let start = automaton.start_state(&start::Config::new().anchored(Anchored::Yes)).unwrap();
        let mut states = vec![text.iter().fold(start, |state, byte| automaton.next_state(state, *byte))];
        let mut seen = HashSet::new();
        while let Some(state) = states.pop() {
            if automaton.is_match_state(automaton.next_eoi_state(state)) {
                return true;
            }
            if !automaton.is_dead_state(state) && seen.insert(state) {
                states.extend((0..=u8::MAX).map(|byte| automaton.next_state(state, byte)));
            }
        }
        false
    }

    /// Long runs check for all unfinished texts that they can be completed, short ones for those of one expression in eight.
    #[test]
    fn texts_match_random_regexes() {
        let compiler = bytes();
        let checks_all = std::env::var_os("WEIR_LONG_RUNS").is_some_and(|value| value == "1");
        let mut finished = 0;
        let mut checked = 0;
        let mut too_large = 0;
        for seed in 0..1000 {
            let dice = &mut Dice(seed, 0);
            let source = random_regex(dice, 4);
            let anchors = dice.below(4) == 0;
            let written = if anchors { format!("^{source}$") } else { source.clone() };
            let compiled = compiler.compile(&Constraint::Regex(written)).unwrap();
            let expected = regex::bytes::Regex::new(&format!("^(?:{source})$")).unwrap();
            let mut unfinished = Vec::new();
            for _ in 0..4 {
                let (text, is_complete) = walk(&compiled, dice, 3, 9);
                if is_complete {
                    assert!(std::str::from_utf8(&text).is_ok(), "{source}: {text:?}");
                    assert!(expected.is_match(&text), "{source}: {text:?}");
                    finished += 1;
                } else {
                    unfinished.push(text);
                }
            }
            if !unfinished.is_empty() && (checks_all || seed % 8 == 0) {
                let automaton = dense_automaton(&source);
                too_large += usize::from(automaton.is_none());
                for text in automaton.iter().flat_map(|_| &unfinished) {
                    assert!(can_be_completed(automaton.as_ref().unwrap(), text), "{source}: {text:?}");
                    checked += 1;
                }
            }
            for _ in 0..20 {
                let text: Vec<u8> = (0..dice.below(6)).map(|_| dice.one_of(b"abcxyz1 ")).collect();
                assert_eq!(accepts(&compiled, &text), expected.is_match(&text), "{source}: {text:?}");
            }
        }
        assert!((1000..3800).contains(&finished), "{finished}");
        assert!(checked > 50 && too_large * 10 < checked, "{checked}, {too_large}");
    }

    fn random_schema(dice: &mut Dice, depth: usize) -> Value {
        let kinds = if depth == 0 { 7 } else { 10 };
        match dice.below(kinds) {
            0 => json!({ "type": "integer", "minimum": -5, "maximum": 120 }),
            1 => json!({ "type": "string", "maxLength": 5 }),
            2 => json!({ "type": "boolean" }),
            3 => json!({ "enum": ["red", "green", 3, null] }),
            4 => json!({ "const": { "k": [1, 2] } }),
            5 => json!({ "type": "string", "pattern": "^[a-c]{2,3}$" }),
            6 => json!({ "type": "null" }),
            7 => json!({ "type": "array", "items": random_schema(dice, depth - 1), "minItems": 1, "maxItems": 3 }),
            8 => json!({ "anyOf": [random_schema(dice, depth - 1), random_schema(dice, depth - 1)] }),
            _ => {
                let names = ["name", "age", "a b"];
                let properties = names.map(|name| (name.to_owned(), random_schema(dice, depth - 1)));
                let required: Vec<_> = names.into_iter().filter(|_| dice.below(2) == 0).collect();
                let properties: serde_json::Map<_, _> = properties.into_iter().collect();
                json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
            }
        }
    }

    /// Checks a value by the keywords of [`random_schema`], independently of the parser. The crate jsonschema takes over a
    /// minute to build; `docs/tests/test_constraints.py` checks with Python's package of that name.
    fn satisfies(schema: &Value, value: &Value) -> bool {
        let number = |key: &str| schema.get(key).and_then(Value::as_i64);
        let kind = match schema.get("type").and_then(Value::as_str) {
            Some("integer") => value.as_f64().is_some_and(|number| number.fract() == 0.0),
            Some("string") => value.is_string(),
            Some("boolean") => value.is_boolean(),
            Some("null") => value.is_null(),
            Some("array") => value.is_array(),
            Some("object") => value.is_object(),
            _ => true,
        };
        let bounds = value.as_f64().is_none_or(|found| {
            number("minimum").is_none_or(|least| found >= least as f64)
                && number("maximum").is_none_or(|most| found <= most as f64)
        });
        let text = value.as_str().is_none_or(|text| {
            let is_short = number("maxLength").is_none_or(|most| text.chars().count() as i64 <= most);
            let pattern = schema.get("pattern").and_then(Value::as_str);
            is_short && pattern.is_none_or(|pattern| regex::Regex::new(pattern).unwrap().is_match(text))
        });
        let elements = value.as_array().is_none_or(|elements| {
            let count = elements.len() as i64;
            let items = schema.get("items");
            number("minItems").is_none_or(|least| count >= least)
                && number("maxItems").is_none_or(|most| count <= most)
                && items.is_none_or(|items| elements.iter().all(|element| satisfies(items, element)))
        });
        let members = value.as_object().is_none_or(|members| {
            let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return true };
            let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            members.iter().all(|(name, member)| properties.get(name).is_some_and(|own| satisfies(own, member)))
                && required.into_iter().all(|name| members.contains_key(name))
        });
        let listed = schema.get("enum").and_then(Value::as_array).is_none_or(|all| all.contains(value));
        let constant = schema.get("const").is_none_or(|only| only == value);
        let any =
            schema.get("anyOf").and_then(Value::as_array).is_none_or(|all| all.iter().any(|own| satisfies(own, value)));
        kind && bounds && text && elements && members && listed && constant && any
    }

    #[test]
    fn texts_satisfy_random_schemas() {
        let compiler = bytes();
        for seed in 0..300 {
            let dice = &mut Dice(seed, 0);
            let schema = random_schema(dice, 3);
            let compiled = compiler.compile(&Constraint::JsonSchema(schema.to_string())).unwrap();
            // each beginning that a limit could cut is completed
            let (text, _) = walk(&compiled, dice, 1, usize::MAX);
            let value: Value = serde_json::from_slice(&text).unwrap();
            assert!(satisfies(&schema, &value), "{schema}: {value}");
        }
    }

    #[test]
    fn grammars_count_the_parts_that_and_joins() {
        let long = |letter: char, count: usize| format!("/{}/", letter.to_string().repeat(count));
        let (a, b) = (long('a', 2998), long('b', 2998));
        for (terminals, is_refused) in [
            (format!("T: {a} & {b}"), false),
            (format!("T: {a} & {b}\nS: {a} & {b}"), true),
            (format!("T: {a} & {b} & /aaa/"), true),
            (format!("T: A & B & /aaa/\nt[suffix=A]: \"x\"\nA: {a}\nB: {b}"), true),
            (format!("T: A & B & /aaa/\nA: {a}\nB: {b}"), true),
            (format!("T: ({a} & B) B\nB: C C\nC: {b}"), true),
            (format!("T: {a} {b}\nS: T T"), false),
            ("T: T & /a/".into(), true),
            (format!("t: ~({a} & ({b} & /aaa/))"), true),
            (format!("t: %lark {{\nstart: T\nT: {a} & X\nX: {b} & /aaa/\n}}"), true),
            (format!("T: {a} & %regex {{\"substring_chars\": \"{}\"}}", "b".repeat(9000)), true),
        ] {
            let checked = check_grammar("constraint.grammar", &format!("start: \"a\"\n{terminals}"), &mut Vec::new());
            assert_eq!(checked.is_err(), is_refused, "{terminals:.80}");
        }
    }

    #[test]
    fn errors_of_a_grammar_state_places_in_the_clients_text() {
        for (source, expected) in [
            ("start: x\nx: %json {\n  \"type\": \"null\",\n  \"items: {}\n}", "parsing a string, in line 4"),
            ("start: x\nx: %json { \"type\": nul }", "invalid JSON after %json: expected ident, in line 2"),
            ("start: X\n# x\nX: %regex {\"substring\": \"a\"}", "`substring_chars`, in line 3"),
            (
                "start: x\n\nx: \"a\" %json {\n\"anyOf\": [{}, {\"if\": {}}] }",
                "[\"if\"], at #/anyOf/1/if of the schema in line 3",
            ),
            (
                "start: x\nx: %json {\"$ref\": \"#/$defs/a\", \"$defs\": {\"a\": {\"minProperties\": 3}}}",
                "at #/$defs/a/minProperties of the schema in line 2",
            ),
            ("start: a \"!\"\na[max_tokens=3]: /x+/", "found max_tokens in line 2"),
            ("start: a \"!\"\na[lazy, stop = /x/]: /.+/", "found stop in line 2"),
            ("start[temperature=0.0]: /x+/", "found temperature in line 1"),
            (
                "start: x zz\nx: %json { \"type\":\n\"null\" }",
                "at 1(8): unknown name: \"zz\"\n   1 | start: x zz\n              ^\n   2 | x: %json { \"type\":",
            ),
            (
                "start: x\nx: (%json {\n  \"type\": \"null\"\n} \"a\") ) \"b\"",
                "4(8): expecting rule, token or statement (at \")\" (')'))\n",
            ),
        ] {
            let error = bytes().compile(&Constraint::Grammar(source.into())).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("x-guidance"), "{error}");
        }
        let lines = Constraint::Grammar("start: \"a\" (%json {\n\"type\":\n\"null\"\n}) \"b\"".into());
        assert!(accepts(&bytes().compile(&lines).unwrap(), b"anullb"));
    }

    #[test]
    fn all_parts_that_a_schema_may_have_may_be_optional() {
        let mut names =
            (2..MAX_RULES).map(|id| (format!("p{id}"), json!({ "type": "null" }))).collect::<serde_json::Map<_, _>>();
        let schema = |names: &serde_json::Map<_, _>| {
            let schema = json!({ "type": "object", "properties": names });
            bytes().compile(&Constraint::JsonSchema(schema.to_string()))
        };
        let compiled = schema(&names).unwrap();
        for (text, expected) in [
            (r#"{"p2": null, "p500": null, "p999": null, "other": 1}"#, true),
            (r#"{"p999": null}"#, true),
            (r#"{"p999": 1}"#, false),
        ] {
            assert_eq!(accepts(&compiled, text.as_bytes()), expected, "{text}");
        }
        names.insert("more".into(), json!({}));
        let error = schema(&names).unwrap_err().to_string();
        assert_eq!(error, "constraint.json_schema: expected at most 1000 objects and booleans, found 1001");
    }

    /// Returns JSON in the server's format: one space after each comma and colon outside strings, and no other.
    fn spelled(value: &Value) -> String {
        match value {
            Value::Array(elements) => format!("[{}]", elements.iter().map(spelled).collect::<Vec<_>>().join(", ")),
            Value::Object(members) => {
                let member =
                    |(name, value): (&String, _)| format!("{}: {}", Value::from(name.as_str()), spelled(value));
                format!("{{{}}}", members.iter().map(member).collect::<Vec<_>>().join(", "))
            }
            scalar => scalar.to_string(),
        }
    }

    /// A group of cases in the form of the public JSON Schema test suite.
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct SchemaCases {
        description: String,
        schema: Value,
        /// A part of the error of a schema that the server refuses.
        refused: Option<String>,
        tests: Vec<SchemaCase>,
    }

    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct SchemaCase {
        description: String,
        data: Value,
        valid: bool,
        /// Why the server never writes this valid text.
        narrower: Option<String>,
    }

    #[test]
    fn schemas_allow_only_valid_texts() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/json-schema");
        let mut checked = 0;
        let mut wrong = Vec::new();
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            let groups: Vec<SchemaCases> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            for SchemaCases { description, schema, refused, tests } in groups {
                let place = format!("{}: {description}", path.file_name().unwrap().display());
                let constraint = Constraint::JsonSchema(schema.to_string());
                let grammar = Constraint::Grammar(format!("start: %json {schema}"));
                for compiled in [constraint, grammar].map(|constraint| bytes().compile(&constraint)) {
                    match (compiled, &refused) {
                        (Ok(compiled), None) => {
                            for SchemaCase { description, data, valid, narrower } in &tests {
                                let expected = *valid && narrower.is_none();
                                if accepts(&compiled, spelled(data).as_bytes()) != expected {
                                    wrong.push(format!("{place}: {description}"));
                                }
                                checked += 1;
                            }
                        }
                        (Err(error), Some(refused)) if error.to_string().contains(refused) => checked += 1,
                        (compiled, _) => wrong.push(format!("{place}: {:?}", compiled.err())),
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(checked > 1000, "{checked}");
    }

    #[test]
    fn a_dead_end_states_the_position_and_what_the_form_allows_there() {
        let compiler = letters("abé ");
        for (source, text, expected) in [
            ("start: /[ab]/ \"é\" /[{}]/", "aé", "one that allows only \"{\", \"}\" at position 2 of the text"),
            ("start: \"a\" | \"b\" x\nx: x \"a\"", "b", "one that allows nothing at position 1 of the text"),
        ] {
            let compiled = compiler.compile(&Constraint::Grammar(source.into())).unwrap();
            let mut matcher = compiled.matcher().unwrap();
            let symbols = compiler.vocabulary.encode("text", text, 9).unwrap();
            let (last, before) = symbols.split_last().unwrap();
            for symbol in before {
                matcher.consume(*symbol).and_then(|()| matcher.update()).unwrap();
            }
            matcher.consume(*last).unwrap();
            let error = matcher.update().unwrap_err().to_string();
            assert!(
                error.starts_with("constraint.grammar: expected a form that ") && error.ends_with(expected),
                "{error}"
            );
        }
    }

    /// Returns a grammar whose rules or tokens each refer to the next one.
    fn chain(rules: usize, name: &str) -> String {
        let links: Vec<String> = (0..rules).map(|rule| format!("{name}{rule}: {name}{}", rule + 1)).collect();
        format!("start: {name}0\n{}\n{name}{rules}: \"b\"", links.join("\n"))
    }

    /// These chains exhaust the stack of a thread of 2 MiB.
    #[test]
    fn long_chains_of_references_end_no_process() {
        let compiler = bytes();
        let schema = |count: usize, link: &dyn Fn(usize) -> Value| {
            let last = (format!("d{count}"), json!({ "type": "null" }));
            let definitions = (0..count).map(|id| (format!("d{id}"), link(id + 1))).chain([last]);
            let definitions: serde_json::Map<_, _> = definitions.collect();
            Constraint::JsonSchema(json!({ "$ref": "#/$defs/d0", "$defs": definitions }).to_string())
        };
        let reference = |id: usize| json!({ "$ref": format!("#/$defs/d{id}") });
        for (constraint, text) in [
            (Constraint::Grammar(chain(990, "a")), "b"),
            (Constraint::Grammar(chain(990, "A")), "b"),
            (schema(800, &reference), "null"),
            (schema(490, &|id| json!({ "allOf": [reference(id)] })), "null"),
        ] {
            // refused or compiled
            if let Ok(compiled) = compiler.compile(&constraint) {
                assert!(accepts(&compiled, text.as_bytes()), "{constraint:?}");
            }
        }
    }

    #[test]
    fn regexes_of_too_many_states_are_refused() {
        let characters: String =
            ('!'..='~').filter(char::is_ascii_alphanumeric).map(|letter| format!("{letter}?")).collect();
        for source in [format!("(?:{characters}){{250}}"), format!("(?:{characters}){{130}}")] {
            let error = bytes().compile(&Constraint::Regex(source)).unwrap_err().to_string();
            assert!(error.contains(" states after one symbol, found one of more"), "{error}");
        }
        let choice: Vec<String> = (0..MAX_CHOICES).map(|id| format!("{id} é")).collect();
        for constraint in [
            Constraint::Choice(choice),
            Constraint::Regex(r"\w{1,20}".into()),
            Constraint::Regex(format!("(?:{characters}){{10}}")),
            Constraint::Regex("[a-z]{1,2000}".into()),
        ] {
            bytes().compile(&constraint).unwrap();
        }
    }

    #[test]
    fn a_grammar_whose_texts_take_too_long_fails_alone() {
        let letters: Vec<String> = ('a'..='z').map(|letter| format!("\"{letter}\"")).collect();
        let source = format!("start: a\na: a a | {}", letters.join(" | "));
        let compiled = bytes().compile(&Constraint::Grammar(source)).unwrap();
        let mut matcher = compiled.matcher().unwrap();
        let began = Instant::now();
        let mut take = || matcher.consume(u32::from(b'a')).and_then(|()| matcher.update());
        let error = (0..5000).find_map(|_| take().err()).unwrap();
        assert!(error.to_string().starts_with("constraint.grammar: expected a form "), "{error}");
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        assert!(take().is_err());
        let fresh = compiled.matcher().unwrap();
        assert!(!fresh.is_complete() && fresh.symbols().get(usize::from(b'z')));
    }

    #[test]
    fn a_text_that_takes_the_lexer_through_too_many_states_is_refused() {
        let compiled = bytes().compile(&Constraint::JsonSchema(r#"{"type": "integer", "multipleOf": 30000}"#.into()));
        let mut matcher = compiled.unwrap().matcher().unwrap();
        let mut take = |digit: u8| matcher.consume(u32::from(digit)).and_then(|()| matcher.update());
        let error =
            (1..5000).flat_map(|n: u32| n.to_string().into_bytes()).find_map(|digit| take(digit).err()).unwrap();
        let found = "found a text that takes its patterns and numbers through 10000 states";
        assert_eq!(
            error.to_string(),
            format!("constraint.json_schema: expected a schema that the server supports, {found}")
        );
    }

    #[test]
    fn a_slow_constraint_leaves_its_work_to_another_thread() {
        let compiled = bytes().compile(&Constraint::Regex("(ab+|cd)*e".into())).unwrap();
        let mut quick = compiled.matcher().unwrap();
        let mut slow = quick.clone().lending();
        slow.fall_behind();
        for symbol in b"abbcdab".map(u32::from) {
            quick.consume(symbol).unwrap();
            slow.consume(symbol).unwrap();
            assert!(quick.find_if_quick().unwrap() && !slow.find_if_quick().unwrap());
            assert!(slow.is_behind() && slow.forced(9).is_empty());
            slow.catch_up().unwrap();
            assert!(!slow.is_behind() && slow.is_slow());
            assert!(slow.symbols().iter().eq(quick.symbols().iter()) && slow.accepts() == quick.accepts());
        }
        for symbol in b"ex".map(u32::from) {
            slow.consume(symbol).unwrap();
        }
        assert!(slow.catch_up().is_err());
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "waits until a deadline")]
    fn what_takes_long_is_given_up_on_the_models_thread_and_done_on_another() {
        for (constraint, begin) in [
            (Constraint::JsonSchema(r#"{"enum": ["red", "blue", "green"]}"#.into()), "\"r"),
            (Constraint::Regex("(red|blue|green)+".into()), "redb"),
        ] {
            let compiled = bytes().compile(&constraint).unwrap();
            let mut expected = compiled.matcher().unwrap();
            let mut late = expected.clone().lending();
            for symbol in begin.bytes().map(u32::from) {
                expected.consume(symbol).and_then(|()| expected.update()).unwrap();
                late.consume(symbol).unwrap();
                late.find_if_quick().unwrap();
                late.catch_up().unwrap();
            }
            let began = Instant::now();
            let found = late.work(|state, allowed, compiled, limit| match state {
                MatcherState::Pattern(matcher) => {
                    assert_eq!(limit, STEP_SHARE);
                    matcher.allowed(&compiled.symbols.trie, allowed, Duration::ZERO).ok();
                }
                MatcherState::Grammar(matcher) => compiled.symbols.limit_time(matcher, limit, |matcher| {
                    while !matcher.is_cancelled() {
                        thread::sleep(Duration::from_millis(1));
                    }
                    assert!(began.elapsed() >= limit && limit == STEP_SHARE);
                }),
            });
            assert_eq!(found.unwrap(), None);
            assert!(late.is_behind() && late.forced(9).is_empty() && late.agrees(&[u32::from(b'e')]) == 0);
            assert!(late.dead_end().is_none());
            late.catch_up().unwrap();
            assert!(late.symbols().iter().eq(expected.symbols().iter()));
            // the model's thread does no more of it
            late.consume(u32::from(begin.as_bytes()[1])).unwrap();
            assert!(!late.find_if_quick().unwrap());
        }
    }

    #[test]
    fn memory_is_reserved_once_and_as_long_as_a_parser_is_made() {
        let compiler = bytes();
        let full = |_: usize| -> Result<CompileMemory> { Err(Error::Internal("full".into())) };
        for constraint in [Constraint::JsonObject, Constraint::Regex("a+".into())] {
            compiler.compile_for("a", &constraint, full).unwrap_err();
            let held = Arc::new(());
            let hold = |bytes: usize| -> Result<CompileMemory> {
                assert_eq!(bytes, constraint.compile_bytes());
                Ok(Box::new(Arc::clone(&held)))
            };
            compiler.compile_for("a", &constraint, hold).unwrap();
            assert_eq!(Arc::strong_count(&held), 1);
            compiler.compile_for("a", &constraint, full).unwrap();
        }
    }

    /// Parsers that nobody waits for any more still occupy their tenant's places, so a tenant never has more of them.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "shows that a thread waits")]
    fn late_parsers_do_not_accumulate() {
        let compiler = bytes();
        compiler.compile(&Constraint::JsonObject).unwrap();
        let symbols = compiler.symbols.get().unwrap();
        let running = || lock(&symbols.compiling.tenants).len();
        let eventually = |count: usize| {
            let began = Instant::now();
            while running() != count && began.elapsed() < COMPILE_TIME {
                thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(running(), count);
        };
        eventually(0);
        let (end, ended) = mpsc::channel();
        let ended = Arc::new(Mutex::new(ended));
        let begin = |tenant: &str| {
            let ended = Arc::clone(&ended);
            drop(on_large_stack(symbols, tenant, move |_| Ok(lock(&ended).recv().is_ok())).unwrap());
        };
        (0..TENANT_COMPILING).for_each(|_| begin("a"));
        let began = Instant::now();
        begin("b");
        assert!(began.elapsed() < COMPILE_TIME);
        assert_eq!(running(), TENANT_COMPILING + 1);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| begin("a"));
            thread::sleep(Duration::from_millis(20));
            assert!(!waiting.is_finished() && running() == TENANT_COMPILING + 1);
            // one of the two may end the other tenant's thread
            (0..2).for_each(|_| end.send(()).unwrap());
            waiting.join().unwrap();
        });
        eventually(TENANT_COMPILING);
        drop(end);
        eventually(0);
        assert!(is_late(&late("a")) && !is_late(&Error::bad_option("a", "b", "c")));
        // what was late is refused at once
        let schema = Constraint::JsonSchema(r#"{"type": "null"}"#.into());
        lock(&compiler.late).put(schema.clone(), now());
        let error = compiler.compile(&schema).unwrap_err().to_string();
        assert!(error.starts_with("constraint.json_schema: expected a form that is compiled in "), "{error}");
        lock(&compiler.late).put(schema.clone(), now().checked_sub(REFUSED_FOR).unwrap());
        compiler.compile(&schema).unwrap();
    }

    #[test]
    fn a_grammar_allows_only_text() {
        for (source, text) in [
            ("start: \"\\u0003\" | \"a\"", Some("a")),
            ("start: \"allow_invalid_utf8\"", Some("allow_invalid_utf8")),
            ("# <[200]> {{{\nstart: /<[a-z]>/ // )", Some("<a>")),
            ("start: \"\\u0003\"", None),
        ] {
            let compiled = bytes().compile(&Constraint::Grammar(source.into()));
            assert_eq!(compiled.is_ok(), text.is_some(), "{source}");
            if let Ok(compiled) = compiled {
                let matcher = compiled.matcher().unwrap();
                assert!(!matcher.symbols().get(3), "{source}");
                assert!(accepts(&compiled, text.unwrap().as_bytes()), "{source}");
            }
        }
    }

    #[test]
    fn what_the_vocabulary_lacks_is_never_begun() {
        let compiler = letters("abc ");
        let compiled = compiler.compile(&Constraint::Choice(vec!["abd".into(), "acb".into(), "acba".into()])).unwrap();
        let mut matcher = compiled.matcher().unwrap();
        assert_eq!(matcher.forced(9), [0, 2, 1]);
        for symbol in [0, 2, 1] {
            assert!(!matcher.accepts());
            matcher.consume(symbol).unwrap();
            matcher.update().unwrap();
        }
        assert_eq!((matcher.accepts(), matcher.is_complete(), matcher.only()), (true, false, None));
        assert!(matcher.would_leave(&[0.0, 1.0, 1.0, 1.0]) && !matcher.would_leave(&[9.0, 0.0, 0.0, 0.0]));
        matcher.consume(0).unwrap();
        matcher.update().unwrap();
        assert!(matcher.is_complete() && matcher.agrees(&[0]) == 0 && matcher.consume(0).is_err());
    }

    #[test]
    fn a_character_of_more_bytes_than_may_follow_is_not_begun() {
        let compiled = bytes().compile(&Constraint::Regex("(a|é|€|😀)+".into())).unwrap();
        for (room, expected) in [(1, "a"), (2, "aé"), (3, "aé€"), (4, "aé€😀"), (9, "aé€😀")] {
            let mut matcher = compiled.matcher().unwrap();
            assert!(matcher.fit(room));
            let first = |character: char| u32::from(character.encode_utf8(&mut [0; 4]).as_bytes()[0]);
            let allowed: Vec<u32> = matcher.symbols().iter().collect();
            assert_eq!(allowed, expected.chars().map(first).collect::<Vec<_>>(), "{room}");
        }
        let long = bytes().compile(&Constraint::Regex("€".into())).unwrap();
        assert!(!long.matcher().unwrap().fit(2));
    }

    #[test]
    fn a_full_cache_of_states_changes_nothing() {
        let source = "(?:[ab]{0,40}a[ab]{12}|[ab]{0,40}b[ab]{15}c?)+";
        let compiled = bytes().compile(&Constraint::Regex(source.into())).unwrap();
        let expected = regex::Regex::new(&format!("^(?:{source})$")).unwrap();
        let mut matcher = compiled.matcher().unwrap();
        let mut text = String::new();
        let dice = &mut Dice(1, 0);
        for _ in 0..3000 {
            let symbol = u32::from(dice.one_of(b"ab"));
            assert_eq!(matcher.symbols().get(symbol as usize), matcher.agrees(&[symbol]) == 1);
            matcher.consume(symbol).unwrap();
            matcher.update().unwrap();
            text.push(char::from(symbol as u8));
            if text.len().is_multiple_of(100) {
                assert_eq!(matcher.accepts(), expected.is_match(&text), "{}", text.len());
            }
        }
    }

    #[test]
    fn constraints_are_compiled_once_and_quickly() {
        let properties: Vec<String> =
            (0..120).map(|id| format!(r#""field_{id}": {{"type": "string", "maxLength": 20}}"#)).collect();
        let schema = format!(
            r#"{{"type": "object", "properties": {{{}}}, "additionalProperties": false}}"#,
            properties.join(", ")
        );
        let compiler = bytes();
        compiler.compile(&Constraint::JsonObject).unwrap();
        let constraint = Constraint::JsonSchema(schema);
        let began = Instant::now();
        let first = compiler.compile(&constraint).unwrap();
        // unoptimised, next to other tests; optimised it takes milliseconds
        assert!(began.elapsed().as_secs() < 5);
        assert!(Arc::ptr_eq(&first, &compiler.compile(&constraint).unwrap()));
        for id in 0..COMPILED.get() {
            compiler.compile(&Constraint::Regex(format!("a{{{id}}}"))).unwrap();
        }
        assert!(!Arc::ptr_eq(&first, &compiler.compile(&constraint).unwrap()));
    }
}
