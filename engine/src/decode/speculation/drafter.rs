//! Drafts of one generation, and how often they were right.
//!
//! Each guess has a *kind*: how much of the text before it matched an earlier place, or how often the n-gram occurred. The drafter
//! guesses every symbol of the text, also those before which no draft was fed, and counts how often guesses of each kind are right.
//! So it can estimate a draft's chances without feeding one. It starts with the rates of the latest texts. Its memory is bounded.

use super::{
    DraftBudget, Speculation,
    guess_rates::{GuessKind, GuessRates},
    ngrams::{NgramTable, Successor},
    suffix_matcher::{Match, SuffixMatcher},
};
use crate::decode::text_window::TextView;
use std::sync::Arc;

/// Maximum symbols of a text that a drafter sees in one step: a long prompt must not delay the rows of others.
const SEEN_AT_ONCE: usize = 1024;
/// Weight of the latest guess about a generated symbol.
const GENERATED_WEIGHT: f64 = 1.0 / 16.0;
/// Weight of the latest guess about a symbol of the prompt, which need not be like the text after it.
const PROMPT_WEIGHT: f64 = 1.0 / 64.0;
/// Weight of the latest guess about a generated symbol in the rates that texts share.
const SHARED_WEIGHT: f64 = 1.0 / 32.0;

/// A guess of the next symbol.
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
    /// The guesses of the next symbol.
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
    /// Creates a drafter for a text of at most `max_symbols` symbols over `vocabulary` ones, of a model with these `ngrams`.
    /// `setting` permits drafts, and `rates` are those of the latest texts.
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

    /// Drafts at most `limit` symbols after `text`, which continues the one of the last call, as far as they fit into `budget`. Drafts
    /// none until it has seen all of a long text, a part at each call. Symbols seen until then count as the prompt. Guesses about
    /// later symbols are recorded in `shared`, too.
    pub fn draft(&mut self, text: TextView<'_>, limit: usize, budget: &mut DraftBudget, shared: &mut GuessRates) {
        if !self.see(text, shared) {
            return;
        }
        self.caught_up = true;
        let mut place = self.matcher.present();
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

    /// Adds at most [`SEEN_AT_ONCE`] symbols of the text since the last call, and updates the rates of the guesses about them. Returns
    /// true if these were all.
    fn see(&mut self, text: TextView<'_>, shared: &mut GuessRates) -> bool {
        self.draft.clear();
        let start = self.seen.max(text.dropped()).max(text.len().saturating_sub(self.matcher.window()));
        let symbols = text.after(start).unwrap_or_default();
        let symbols = symbols.take(SEEN_AT_ONCE);
        self.seen = start + symbols.len();
        for symbol in symbols.iter() {
            let Guesses { from_match, from_ngrams } = self.guesses;
            for Guess { symbol: guessed, kind } in from_match.into_iter().chain(from_ngrams) {
                let right = guessed == symbol;
                if self.caught_up {
                    self.rates.record(kind, right, GENERATED_WEIGHT);
                    shared.record(kind, right, SHARED_WEIGHT);
                } else {
                    self.rates.record(kind, right, PROMPT_WEIGHT);
                }
            }
            self.matcher.push(symbol);
            self.guesses = self.guess_after(self.matcher.present());
        }
        self.seen == text.len()
    }

    /// The guess that was right most often among those of its kind.
    fn best(&self, Guesses { from_match, from_ngrams }: Guesses) -> Option<Guess> {
        let rate = |guess: Guess| self.rates.of(guess.kind);
        match (from_match, from_ngrams) {
            (Some(first), Some(second)) => Some(if rate(second) > rate(first) { second } else { first }),
            (first, second) => first.or(second),
        }
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

#[cfg(test)]
mod tests {
    use super::{super::ngrams::NgramCounter, *};

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
        let calls = drafter.matcher.window() / SEEN_AT_ONCE;
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
}
