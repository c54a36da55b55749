//! Bit-exact speculation: a generating session feeds symbols that it guesses together with the sampled one.
//!
//! A [draft](Drafter) continues the text as it went on after an earlier place (`SuffixMatcher`), or as texts usually go on
//! ([`NgramTable`]). One step computes the logits after each symbol; a drafted symbol is accepted while it equals the drawn one,
//! and the rest is rolled back. Numbers and draws do not depend on how symbols were split into steps, so the text is the same. A
//! draft ends at its first boundary ([`SequenceRow::cut`](weir_models::contract::SequenceRow::cut)), so the middle stack runs
//! for accepted symbols only.

use crate::text_window::TextView;
use std::array;
use std::fmt::{self, Display, Formatter};
use std::sync::Arc;
use weir_models::ngrams::{NgramTable, Successor};

/// Maximum symbols of a draft. Every state can be rolled back by as many.
pub const MAX_DRAFT: usize = 16;

/// A generation's setting for speculation. The text does not depend on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Speculation {
    /// Drafts are never fed.
    #[default]
    Off,
    /// Drafts are fed as far as they are expected to save time.
    Auto,
    /// Drafts of at most this many symbols are fed, whether or not they save time.
    UpTo(usize),
}

impl Speculation {
    /// The values that [`parse`](Self::parse) accepts.
    pub const EXPECTED: &str = "\"auto\", \"off\" or a whole number from 1 to 16";

    /// Returns the setting that `text` names: `auto`, `off` or the maximum length of a draft.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "off" => Some(Self::Off),
            "auto" => Some(Self::Auto),
            number => number.parse().ok().filter(|length| (1..=MAX_DRAFT).contains(length)).map(Self::UpTo),
        }
    }

    /// Maximum symbols of a draft.
    pub fn max_draft(self) -> usize {
        match self {
            Self::Off => 0,
            Self::Auto => MAX_DRAFT,
            Self::UpTo(length) => length.min(MAX_DRAFT),
        }
    }
}

impl Display for Speculation {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => formatter.write_str("off"),
            Self::Auto => formatter.write_str("auto"),
            Self::UpTo(length) => write!(formatter, "{length}"),
        }
    }
}

/// The room that a step has for drafted symbols, and the times that decide whether a draft pays. A drafted symbol raises the
/// yield per unit of time if its probability, divided by the time of a symbol, exceeds the yield so far.
#[derive(Debug, Clone, Copy)]
pub struct DraftBudget {
    /// Symbols that the step has room for.
    pub free: usize,
    /// The fixed time of a step, in multiples of a symbol's time.
    pub fixed: f64,
    /// Symbols that the step feeds.
    pub symbols: usize,
    /// Expected number of symbols that the step yields.
    pub expected: f64,
    /// True if the step also feeds prompts, which fill it.
    pub feeds_prompts: bool,
}

impl DraftBudget {
    /// Adds a drafted symbol, accepted with this probability, if that is permitted and there is room. Returns false otherwise.
    pub fn take(&mut self, setting: Speculation, probability: f64) -> bool {
        let pays = match setting {
            Speculation::Off => false,
            Speculation::Auto => {
                !self.feeds_prompts && probability * (self.fixed + self.symbols as f64) > self.expected
            }
            Speculation::UpTo(_) => true,
        };
        if !pays || self.free == 0 {
            return false;
        }
        self.free -= 1;
        self.symbols += 1;
        self.expected += probability;
        true
    }

    /// Takes back drafted symbols that are not fed.
    pub fn give_back(&mut self, count: usize) {
        self.free += count;
        self.symbols = self.symbols.saturating_sub(count);
    }

    /// Adds symbols that are accepted for certain, as many as there is room for. Returns their number.
    pub fn take_certain(&mut self, count: usize) -> usize {
        let count = count.min(self.free);
        self.free -= count;
        self.symbols += count;
        self.expected += count as f64;
        count
    }
}

// Drafts of one generation, and how often they were right. Each guess has a *kind*: the length of the match, or the n-gram's
// confidence. The drafter guesses every symbol of the text and counts which kinds are right, so it can estimate a draft's
// chances without feeding one.

/// Maximum symbols of a text that a drafter sees in one step: a long prompt must not delay the rows of others.
const SEEN_AT_ONCE: usize = 1024;

/// Weight of the latest guess about a generated symbol.
const GENERATED_WEIGHT: f64 = 1.0 / 16.0;

/// Weight of the latest guess about a symbol of the prompt, which need not be like the text after it.
const PROMPT_WEIGHT: f64 = 1.0 / 64.0;

/// Weight of the latest guess about a generated symbol in the rates that texts share.
const SHARED_WEIGHT: f64 = 1.0 / 32.0;

#[derive(Debug, Clone, Copy)]
struct Guess {
    symbol: u32,
    kind: GuessKind,
}

/// The guesses of one symbol.
#[derive(Debug, Clone, Copy, Default)]
struct Guesses {
    from_match: Option<Guess>,
    from_ngrams: Option<Guess>,
}

/// Drafts how one text continues.
#[derive(Debug, Clone)]
pub struct Drafter {
    setting: Speculation,
    matcher: SuffixMatcher,
    ngrams: Option<Arc<NgramTable>>,
    rates: GuessRates,
    guesses: Guesses,
    /// Length of the text that was seen.
    seen: usize,
    /// True if all of the text was seen once. What was seen before counts as the prompt.
    caught_up: bool,
    /// Marks, indexed by symbol, that are true if the symbol ended a segment when it was last fed.
    ends_segment: Vec<bool>,
    draft: Vec<u32>,
}

impl Drafter {
    /// Creates a drafter for a text of at most `max_symbols` symbols over `vocabulary` ones. `rates` are those of the latest
    /// texts.
    pub fn new(
        setting: Speculation,
        max_symbols: usize,
        vocabulary: usize,
        ngrams: Option<Arc<NgramTable>>,
        rates: GuessRates,
    ) -> Self {
        Self {
            setting,
            matcher: SuffixMatcher::new(max_symbols),
            ngrams,
            rates,
            guesses: Guesses::default(),
            seen: 0,
            caught_up: false,
            ends_segment: vec![false; vocabulary],
            draft: Vec::with_capacity(setting.max_draft()),
        }
    }

    /// Drafts at most `limit` symbols after `text`, which continues the last call's, as far as they fit into `budget`.
    /// None until it has seen all of a long text. Guesses are also recorded in `shared`.
    pub fn draft(&mut self, text: TextView<'_>, limit: usize, budget: &mut DraftBudget, shared: &mut GuessRates) {
        if !self.see(text, shared) {
            return;
        }
        self.caught_up = true;
        let mut place = self.matcher.present;
        let mut guesses = self.guesses;
        let mut probability = 1.0;
        while self.draft.len() < limit.min(self.setting.max_draft())
            && let Some(guess) = self.best(guesses)
        {
            probability *= self.rates.of(guess.kind);
            let closes = self.ends_segment.get(guess.symbol as usize).is_some_and(|ends| *ends);
            if closes || !budget.take(self.setting, probability) {
                break;
            }
            self.draft.push(guess.symbol);
            let is_followed = guesses.from_match.is_some_and(|from_match| from_match.symbol == guess.symbol);
            place = place.filter(|_| is_followed).map(Match::extended);
            guesses = self.guess_after(place);
        }
    }

    /// The latest draft.
    pub fn drafted(&self) -> &[u32] {
        &self.draft
    }

    /// Drops all but the first `len` symbols of the draft.
    pub fn truncate(&mut self, len: usize) {
        self.draft.truncate(len);
    }

    /// Drops the draft, after it was fed or because it is not fed.
    pub fn clear(&mut self) {
        self.draft.clear();
    }

    /// Records whether a symbol that was fed ended a segment.
    pub fn record_boundary(&mut self, symbol: u32, ends_segment: bool) {
        if let Some(ends) = self.ends_segment.get_mut(symbol as usize) {
            *ends = ends_segment;
        }
    }

    /// Adds at most [`SEEN_AT_ONCE`] new symbols, and updates the rates. Returns true if these were all.
    fn see(&mut self, text: TextView<'_>, shared: &mut GuessRates) -> bool {
        self.draft.clear();
        let start = self.seen.max(text.dropped()).max(text.len().saturating_sub(self.matcher.ring.len()));
        let symbols = text.after(start).unwrap_or_default();
        let symbols = symbols.take(SEEN_AT_ONCE);
        self.seen = start + symbols.len();
        for symbol in symbols.iter() {
            let Guesses { from_match, from_ngrams } = self.guesses;
            for Guess { symbol: guessed, kind } in [from_match, from_ngrams].into_iter().flatten() {
                let right = guessed == symbol;
                if self.caught_up {
                    self.rates.record(kind, right, GENERATED_WEIGHT);
                    shared.record(kind, right, SHARED_WEIGHT);
                } else {
                    self.rates.record(kind, right, PROMPT_WEIGHT);
                }
            }
            self.matcher.push(symbol);
            self.guesses = self.guess_after(self.matcher.present);
        }
        self.seen == text.len()
    }

    /// The guess of its kind that was right most often.
    fn best(&self, Guesses { from_match, from_ngrams }: Guesses) -> Option<Guess> {
        let rate = |guess: Option<Guess>| guess.map(|guess| self.rates.of(guess.kind));
        if rate(from_ngrams) > rate(from_match) { from_ngrams } else { from_match }
    }

    /// The guesses of the symbol after the text and the draft, whose end matches what is before `place`.
    fn guess_after(&self, place: Option<Match>) -> Guesses {
        let from_match = place.and_then(|place| {
            let symbol = self.matcher.symbol(place.next, &self.draft)?;
            let kind = GuessKind::of_match(place.length)?;
            Some(Guess { symbol, kind })
        });
        let latest_first = self.draft.iter().rev().copied().chain(self.matcher.latest_first());
        let successor = self.ngrams.as_ref().and_then(|ngrams| ngrams.successor(latest_first));
        let from_ngrams =
            successor.map(|Successor { symbol, confidence }| Guess { symbol, kind: GuessKind::of_ngram(confidence) });
        Guesses { from_match, from_ngrams }
    }
}

/// Kinds of guesses from matches, and the assumed rates of right guesses before any was seen.
const MATCH_KINDS: [MatchKind; 7] = [
    MatchKind { shortest: 4, assumed: 0.35 },
    MatchKind { shortest: 5, assumed: 0.45 },
    MatchKind { shortest: 6, assumed: 0.5 },
    MatchKind { shortest: 8, assumed: 0.6 },
    MatchKind { shortest: 12, assumed: 0.7 },
    MatchKind { shortest: 16, assumed: 0.8 },
    MatchKind { shortest: 32, assumed: 0.9 },
];

/// Kinds of guesses from n-grams, by equal ranges of their confidence.
const NGRAM_KINDS: usize = 8;

const KINDS: usize = MATCH_KINDS.len() + NGRAM_KINDS;

struct MatchKind {
    shortest: usize,
    assumed: f64,
}

/// The kind of a guess: the length of the match that it comes from, or the confidence of the n-gram.
#[derive(Debug, Clone, Copy)]
struct GuessKind(usize);

impl GuessKind {
    /// The kind of a guess from a match of this length, or `None` if that is too short.
    fn of_match(length: usize) -> Option<Self> {
        MATCH_KINDS.iter().rposition(|kind| kind.shortest <= length).map(Self)
    }

    fn of_ngram(confidence: u8) -> Self {
        Self(MATCH_KINDS.len() + usize::from(confidence) * NGRAM_KINDS / 256)
    }
}

/// The share of right guesses of each kind. Rates decide which symbols are fed as guesses, and never the text.
#[derive(Debug, Clone, PartialEq)]
pub struct GuessRates([f64; KINDS]);

impl Default for GuessRates {
    fn default() -> Self {
        Self(array::from_fn(|kind| match MATCH_KINDS.get(kind) {
            Some(kind) => kind.assumed,
            None => (kind - MATCH_KINDS.len()) as f64 / NGRAM_KINDS as f64,
        }))
    }
}

impl GuessRates {
    fn of(&self, GuessKind(kind): GuessKind) -> f64 {
        self.0[kind]
    }

    /// Records whether a guess was right, with weight `weight`. The rate so far keeps 1 − `weight`.
    fn record(&mut self, GuessKind(kind): GuessKind, right: bool, weight: f64) {
        self.0[kind] += (f64::from(u8::from(right)) - self.0[kind]) * weight;
    }
}

// Finds where the end of a text occurred before. Keeps the last symbols in a ring, and for each hash of `MIN_MATCH` symbols the
// place after their latest occurrence, so a symbol costs a constant time.

/// Minimum symbols that must match.
const MIN_MATCH: usize = 4;

/// Longer matches count as this long.
const MAX_MATCH: usize = 32;

/// Maximum symbols that the matcher remembers.
const MAX_WINDOW: usize = 1 << 14;

const MIN_WINDOW: usize = 1 << 6;

/// A place in the text whose last symbols equal the last symbols of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Match {
    /// Position of the symbol after the place.
    next: usize,
    /// Number of equal symbols: exact below [`MAX_MATCH`], which stands for all larger numbers.
    length: usize,
}

impl Match {
    /// Returns the match after the symbol at [`next`](Self::next) was repeated.
    fn extended(self) -> Self {
        Self { next: self.next + 1, length: (self.length + 1).min(MAX_MATCH) }
    }
}

/// The last symbols of a text, and where their end occurred before.
#[derive(Debug, Clone)]
struct SuffixMatcher {
    /// The symbol at position p, for the last positions, at p modulo the length of the ring: a power of two.
    ring: Vec<u32>,
    /// Number of symbols added.
    len: usize,
    /// Low bits of the position after the latest occurrence, indexed by hash.
    table: Vec<u32>,
    /// The latest match, if the text's end occurred before.
    present: Option<Match>,
}

impl SuffixMatcher {
    /// Creates a matcher for a text of at most `max_symbols` symbols. Longer texts are allowed if that is at least `MAX_WINDOW`.
    fn new(max_symbols: usize) -> Self {
        let window = max_symbols.clamp(MIN_WINDOW, MAX_WINDOW).next_power_of_two();
        Self { ring: vec![0; window], len: 0, table: vec![0; window], present: None }
    }

    fn push(&mut self, symbol: u32) {
        let continued = self.present.filter(|present| self.at(present.next) == Some(symbol)).map(Match::extended);
        let slot = self.len & (self.ring.len() - 1);
        self.ring[slot] = symbol;
        self.len += 1;
        let Some(hash) = self.hash() else { return };
        let before = std::mem::replace(&mut self.table[hash], self.len as u32);
        self.present = continued.or_else(|| self.verified(before));
    }

    /// The symbol at `position`, which may lie beyond the end: the `draft` follows the text.
    fn symbol(&self, position: usize, draft: &[u32]) -> Option<u32> {
        match position.checked_sub(self.len) {
            Some(beyond) => draft.get(beyond).copied(),
            None => self.at(position),
        }
    }

    /// The symbol at `position`, if it is still remembered.
    fn at(&self, position: usize) -> Option<u32> {
        let age = self.len.checked_sub(position)?;
        (1..=self.ring.len()).contains(&age).then(|| self.ring[position & (self.ring.len() - 1)])
    }

    /// The symbols of the text, the latest first, as far back as they are remembered.
    fn latest_first(&self) -> impl Iterator<Item = u32> {
        self.backwards_from(self.len)
    }

    fn backwards_from(&self, end: usize) -> impl Iterator<Item = u32> {
        (0..end).rev().map_while(|position| self.at(position))
    }

    /// The table's index for the last [`MIN_MATCH`] symbols.
    fn hash(&self) -> Option<usize> {
        let mut hash: u64 = 0;
        let mut count = 0;
        for symbol in self.latest_first().take(MIN_MATCH) {
            hash = (hash ^ u64::from(symbol)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
            count += 1;
        }
        // a power of two below 2³²
        (count == MIN_MATCH).then(|| (hash >> 32) as usize & (self.table.len() - 1))
    }

    /// Returns the match at a place that the table has, unless it was overwritten or only the hashes are equal.
    fn verified(&self, place: u32) -> Option<Match> {
        let age = (self.len as u32).wrapping_sub(place) as usize;
        let next = self.len.checked_sub(age).filter(|next| age > 0 && *next >= MIN_MATCH)?;
        let pairs = self.backwards_from(next).zip(self.latest_first());
        let length = pairs.take(MAX_MATCH).take_while(|(earlier, latest)| earlier == latest).count();
        (length >= MIN_MATCH).then_some(Match { next, length })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};
    use weir_models::ngrams::NgramCounter;

    fn budget() -> DraftBudget {
        DraftBudget { free: 100, fixed: 6.0, symbols: 1, expected: 1.0, feeds_prompts: false }
    }

    fn fresh(setting: Speculation, max_symbols: usize, vocabulary: usize, ngrams: Option<Arc<NgramTable>>) -> Drafter {
        Drafter::new(setting, max_symbols, vocabulary, ngrams, GuessRates::default())
    }

    fn drafted(drafter: &mut Drafter, text: &[u32], limit: usize) -> Vec<u32> {
        drafter.draft(TextView::from(text), limit, &mut budget(), &mut GuessRates::default());
        drafter.drafted().to_vec()
    }

    #[test]
    fn a_draft_continues_the_earlier_place_within_its_limits() {
        let text: Vec<u32> = (0..40).chain(10..16).collect();
        let mut drafter = fresh(Speculation::UpTo(5), 1000, 64, None);
        assert_eq!(drafted(&mut drafter, &text, 100), [16, 17, 18, 19, 20]);
        assert_eq!(drafted(&mut drafter, &text, 3), [16, 17, 18]);
        drafter.record_boundary(18, true);
        assert_eq!(drafted(&mut drafter, &text, 100), [16, 17]);
        drafter.record_boundary(18, false);
        let mut full = DraftBudget { free: 1, ..budget() };
        drafter.draft(TextView::from(&text), 9, &mut full, &mut GuessRates::default());
        assert_eq!((drafter.drafted(), full.free, full.symbols), (&[16][..], 0, 2));
        drafter.clear();
        assert!(drafter.drafted().is_empty());
        // no such place
        let other: Vec<u32> = text.iter().copied().chain([63]).collect();
        assert!(drafted(&mut drafter, &other, 9).is_empty());
    }

    #[test]
    fn auto_drafts_what_proved_right_and_not_what_proved_wrong() {
        let period: Vec<u32> = (0..20).collect();
        let right: Vec<u32> = period.repeat(20);
        let mut drafter = fresh(Speculation::Auto, 1000, 64, None);
        assert!(drafted(&mut drafter, &right, 16).len() >= 12);
        // four symbols repeat, and another one follows each time
        let wrong: Vec<u32> = (4..200).flat_map(|other| [0, 1, 2, 3, other]).collect();
        let mut drafter = fresh(Speculation::Auto, 1000, 256, None);
        assert!(drafted(&mut drafter, &wrong[..wrong.len() - 1], 16).is_empty());
        let mut always = fresh(Speculation::UpTo(2), 1000, 256, None);
        assert_eq!(drafted(&mut always, &wrong[..wrong.len() - 1], 16).len(), 2);
    }

    #[test]
    fn a_text_starts_with_the_rates_of_those_before_it() {
        // the same four symbols repeat, each time followed by a different one
        let text: Vec<u32> = (4..200).flat_map(|other| [0, 1, 2, 3, other]).collect();
        let text = &text[..text.len() - 1];
        let prompt = &text[..9];
        let mut shared = GuessRates::default();
        let draft = |drafter: &mut Drafter, text: &[u32], shared: &mut GuessRates| {
            drafter.draft(TextView::from(text), 16, &mut budget(), shared);
            drafter.drafted().len()
        };
        let new = |shared: &GuessRates| Drafter::new(Speculation::Auto, 1000, 256, None, shared.clone());
        let mut first = new(&shared);
        assert!(draft(&mut first, prompt, &mut shared) > 0);
        assert_eq!(shared, GuessRates::default(), "guesses about a prompt must not change the shared rates");
        for end in 10..=text.len() {
            draft(&mut first, &text[..end], &mut shared);
        }
        let mut second = new(&shared);
        assert_eq!(draft(&mut second, prompt, &mut shared), 0);
    }

    #[test]
    fn a_long_text_is_read_from_its_end() {
        let text: Vec<u32> = (0..100_000u32).map(|position| position % 50).collect();
        let mut drafter = fresh(Speculation::UpTo(4), 100_000, 64, None);
        let calls = drafter.matcher.ring.len() / SEEN_AT_ONCE;
        for _ in 1..calls {
            assert!(drafted(&mut drafter, &text, 9).is_empty(), "it has not seen all of the text");
        }
        assert_eq!(drafted(&mut drafter, &text, 9), [0, 1, 2, 3]);
    }

    #[test]
    fn ngrams_guess_where_the_text_is_new() {
        let usual: Vec<u32> = (0..10).cycle().take(500).collect();
        let mut counter = NgramCounter::new(1 << 10, 64);
        usual.iter().for_each(|&symbol| counter.push(symbol));
        let ngrams = Some(Arc::new(counter.finish()));
        let mut drafter = fresh(Speculation::UpTo(6), 1000, 64, ngrams.clone());
        assert_eq!(drafted(&mut drafter, &[40, 41, 3, 4, 5], 9), [6, 7, 8, 9, 0, 1]);
        // what the text repeats proves right more often
        let own: Vec<u32> = [3, 4, 5, 20, 21, 22].repeat(30);
        let mut drafter = fresh(Speculation::UpTo(3), 1000, 64, ngrams);
        assert_eq!(drafted(&mut drafter, &own[..own.len() - 3], 9), [20, 21, 22]);
    }

    #[test]
    fn each_length_and_confidence_has_a_kind() {
        assert!(GuessKind::of_match(3).is_none());
        let kinds = [4, 5, 7, 8, 31, 32, 1000].map(|length| GuessKind::of_match(length).unwrap().0);
        assert_eq!(kinds, [0, 1, 2, 3, 5, 6, 6]);
        let kinds = [0, 31, 32, 255].map(|confidence| GuessKind::of_ngram(confidence).0);
        assert_eq!(kinds, [7, 7, 8, KINDS - 1]);
    }

    #[test]
    fn rates_move_towards_what_was_recorded() {
        let mut rates = GuessRates::default();
        let kind = GuessKind::of_ngram(255);
        let before = rates.of(kind);
        rates.record(kind, false, 0.25);
        assert_eq!(rates.of(kind), 0.75 * before);
        (0..100).for_each(|_| rates.record(kind, true, 0.25));
        assert!((rates.of(kind) - 1.0).abs() < 1e-6);
    }

    /// Naive implementation: the present match goes on if it can; otherwise the latest place with [`MIN_MATCH`] equal symbols.
    fn naive(text: &[u32], window: usize, before: Option<Match>) -> Option<Match> {
        let len = text.len();
        let remembered = |position: usize, len: usize| position + window >= len;
        let going_on = before.filter(|before| remembered(before.next, len - 1) && text[before.next] == text[len - 1]);
        if let Some(before) = going_on {
            return (len >= MIN_MATCH).then_some(before.extended());
        }
        let equal = |next: usize| {
            (0..next.min(MAX_MATCH))
                .take_while(|back| remembered(next - 1 - back, len) && text[next - 1 - back] == text[len - 1 - back])
                .count()
        };
        let next = (MIN_MATCH..len).rev().find(|&next| text[next - MIN_MATCH..next] == text[len - MIN_MATCH..])?;
        let length = equal(next);
        (length >= MIN_MATCH).then_some(Match { next, length })
    }

    proptest! {
        #[test]
        fn matches_equal_the_naive_ones(text in vec(0u32..3, 0..400), max_symbols in 0usize..200) {
            let mut matcher = SuffixMatcher::new(max_symbols);
            let window = matcher.ring.len();
            let mut before = None;
            for end in 1..=text.len() {
                matcher.push(text[end - 1]);
                let expected = naive(&text[..end], window, before);
                // another text may have taken the entry of the table
                prop_assert!(matcher.present == expected || matcher.present.is_none(), "at {}", end);
                before = matcher.present;
                if let Some(found) = before {
                    prop_assert!(found.next < end);
                    let next = matcher.symbol(found.next, &[]);
                    prop_assert_eq!(next, (found.next + window >= end).then(|| text[found.next]));
                }
            }
        }
    }

    #[test]
    fn a_repeated_text_is_found_and_followed() {
        let text: Vec<u32> = (0..500).collect();
        let mut matcher = SuffixMatcher::new(2000);
        for &symbol in text.iter().chain(&text[100..104]) {
            matcher.push(symbol);
        }
        assert_eq!(matcher.present, Some(Match { next: 104, length: 4 }));
        text[104..200].iter().for_each(|&symbol| matcher.push(symbol));
        assert_eq!(matcher.present, Some(Match { next: 200, length: MAX_MATCH }));
        matcher.push(7);
        assert_eq!(matcher.present, None);
    }

    #[test]
    fn a_period_continues_beyond_the_end() {
        let mut matcher = SuffixMatcher::new(100);
        [1, 2, 1, 2, 1, 2].into_iter().for_each(|symbol| matcher.push(symbol));
        let next = matcher.present.unwrap().next;
        let mut draft = Vec::new();
        for position in next..next + 6 {
            draft.push(matcher.symbol(position, &draft).unwrap());
        }
        assert_eq!(draft, [1, 2, 1, 2, 1, 2]);
    }

    #[test]
    fn memory_is_bounded() {
        assert_eq!(
            (SuffixMatcher::new(1).ring.len(), SuffixMatcher::new(usize::MAX).ring.len()),
            (MIN_WINDOW, MAX_WINDOW)
        );
        let mut matcher = SuffixMatcher::new(1);
        (0..10_000u32).for_each(|symbol| matcher.push(symbol % 1000));
        assert_eq!((matcher.ring.len(), matcher.present), (MIN_WINDOW, None));
    }

    #[test]
    fn settings_have_names() {
        for setting in [Speculation::Off, Speculation::Auto, Speculation::UpTo(1), Speculation::UpTo(16)] {
            assert_eq!(Speculation::parse(&setting.to_string()), Some(setting));
        }
        for text in ["", "0", "17", "-1", "on", "Auto", "4.0"] {
            assert_eq!(Speculation::parse(text), None, "{text}");
        }
        assert!(Speculation::EXPECTED.contains(&MAX_DRAFT.to_string()));
    }

    #[test]
    fn a_symbol_pays_if_it_raises_the_yield_per_unit_of_time() {
        for fixed in [0.0, 0.5, 4.0, 20.0] {
            for rows in 1..20 {
                for tenth in 0..=10 {
                    let probability = f64::from(tenth) / 10.0;
                    let new =
                        || DraftBudget { free: 1, fixed, symbols: rows, expected: rows as f64, feeds_prompts: false };
                    let mut budget = new();
                    let before = rows as f64 / (fixed + rows as f64);
                    let after = (rows as f64 + probability) / (fixed + rows as f64 + 1.0);
                    // a tie may go either way
                    if (after - before).abs() > 1e-9 {
                        assert_eq!(budget.take(Speculation::Auto, probability), after > before);
                    }
                    let mut full = DraftBudget { free: 0, ..new() };
                    assert!(!full.take(Speculation::UpTo(4), 1.0) && !new().take(Speculation::Off, 1.0));
                    let mut mixed = DraftBudget { feeds_prompts: true, ..new() };
                    assert!(!mixed.take(Speculation::Auto, 1.0) && mixed.take(Speculation::UpTo(4), 0.1));
                }
            }
        }
    }
}
