//! Finds words of a text that are probably misspelt: a spelling one edit away is far more probable in their place.
//!
//! One pass over the text gives the log-probability of each symbol and of the most probable symbol in its place. If these
//! permit a spelling far more probable than the word, a search of ranked completions looks for one that the same character
//! follows. What comes after that character is not compared: on held-out text it changes nothing.

use crate::{
    api::{Event, Events, Job, Terms},
    completion::{Completion, CompletionSearch, is_word_character},
    editing::{CompletionTask, MAX_SCORED_BYTES, check_rereads},
    engine::{Handle, check_priority},
    extract::sentences,
    options::{EmittedSymbol, Score, check_length, within},
    spelling::{Alphabet, OneEdit, is_letter},
    text_window::{SharedPrefix, SharedSymbols},
};
use std::{
    collections::HashMap,
    ops::{Range, RangeInclusive},
    sync::Arc,
};
use weir_kernels::error::{Error, Result};
use weir_models::{
    contract::Card,
    usage::{Timing, Usage},
};

/// Maximum bytes of a text.
pub const MAX_TEXT_BYTES: usize = MAX_SCORED_BYTES;

/// Bytes that a byte of the text takes while it is checked, at most: its symbol and its score.
pub const BYTES_PER_BYTE: usize = 256;

/// Default of [`CheckRules::threshold`], chosen for the default model: see its card.
const DEFAULT_THRESHOLD: f64 = 11.5;

/// Bounds of [`CheckRules::threshold`].
pub const THRESHOLDS: RangeInclusive<f64> = 0.0..=1000.0;

const ALTERNATIVES: RangeInclusive<usize> = 1..=16;
const WORDS: RangeInclusive<usize> = 1..=1024;

/// Maximum searches for spellings in a text: one for each word that is compared, and a second one for most misspelt words.
const MAX_SEARCHES: usize = 1024;

/// Nats that a word needs in addition for each letter that it has less than [`LONG`]: many short words are one edit away from it. A
/// spelling with two of its letters swapped is rarely a word, and needs none.
const PER_MISSING_LETTER: f64 = 1.5;

const LONG: usize = 5;

/// Share of the threshold that a spelling needs if it leaves out one of two equal letters of the word, as "until" does for "untill": such
/// words are rarely right. On validation text this finds 15 more of 578 errors, at the cost of one false alarm.
const DOUBLED: f64 = 0.5;

/// Maximum letters of a word.
const MAX_LETTERS: usize = 40;

/// Nats that a word needs in addition if the text has it twice, and the other spelling no more often: names and terms return, typing
/// errors rarely do.
const REPEATED: f64 = 7.0;

/// Minimum ln p of another spelling of a word that begins with a capital within a sentence: the model knows neither an unusual name
/// nor what is one edit away from it. On validation text this keeps 99 % of the errors that are found.
const KNOWN: f64 = -12.5;

/// The rules of a check.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CheckRules {
    /// Minimum nats by which another spelling must be more probable than a word of five letters that the text has once.
    pub threshold: f64,
    /// Maximum spellings that are returned for a word.
    pub alternatives: usize,
    /// Maximum words that are returned.
    pub words: usize,
}

impl Default for CheckRules {
    fn default() -> Self {
        Self { threshold: DEFAULT_THRESHOLD, alternatives: 3, words: 256 }
    }
}

/// A word that is probably misspelt.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckedWord {
    /// Its place in the text.
    pub bytes: Range<usize>,
    /// ln p of the word and of the character after it, given the text before it.
    pub logprob: f64,
    /// Spellings, best first. At least one is more probable than the word by as much as the word needs.
    pub alternatives: Vec<Spelling>,
}

/// A spelling of a word.
#[derive(Debug, Clone, PartialEq)]
pub struct Spelling {
    /// The spelling.
    pub text: String,
    /// Its ln p in the word's place, also with the character after the word.
    pub logprob: f64,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq)]
pub struct Checked {
    /// The words, in the order of the text.
    pub words: Vec<CheckedWord>,
    /// True if the check ended at a limit before the end of the text.
    pub is_cut: bool,
    /// Number of words that were compared with other spellings.
    pub compared: usize,
    /// The symbols and segments of the text.
    pub usage: Usage,
    /// Durations of the pass over the text.
    pub timing: Timing,
}

/// A check that is ready to run.
pub struct CheckTask {
    engine: Handle,
    terms: Terms,
    rules: CheckRules,
    text: String,
    symbols: Arc<SharedSymbols>,
    words: Vec<Word>,
    /// Occurrences of each word in the text.
    counts: HashMap<String, usize>,
}

/// A word of the text.
#[derive(Debug, Clone, PartialEq)]
struct Word {
    bytes: Range<usize>,
    /// Its symbols; the symbol after them also belongs to the text.
    symbols: Range<usize>,
    /// Minimum ln p of another spelling.
    floor: f64,
}

impl CheckTask {
    /// Encodes a text. Fails if it is empty or has more than [`MAX_TEXT_BYTES`], if a rule is out of bounds, for a model that reads
    /// tokens or summarizes, and without a segment cache.
    pub fn new(engine: Handle, terms: Terms, text: &str, rules: CheckRules) -> Result<Self> {
        check_priority(terms.priority)?;
        within("threshold", rules.threshold, THRESHOLDS)?;
        within("alternatives", rules.alternatives, ALTERNATIVES)?;
        within("max_words", rules.words, WORDS)?;
        if text.len() > MAX_TEXT_BYTES {
            let limit = MAX_TEXT_BYTES;
            return Err(Error::TooLong { field: "text", length: text.len(), limit, unit: "bytes", why: None });
        }
        check_rereads(&engine)?;
        let card = engine.card();
        let mut symbols = card.encode("text", text)?;
        check_length("text", symbols.len(), card)?;
        let starts = card.vocabulary.start_bytes(text, 0);
        // marks of the model come before the text; without them, a line break lets it predict the first character
        let mut before = symbols.len().saturating_sub(starts.len());
        if card.first_logits.is_none() && before == 0 {
            symbols.splice(0..0, alone(card, "\n"));
            before = symbols.len() - starts.len();
        }
        if text.ends_with(is_word_character) {
            symbols.extend(alone(card, " "));
        }
        let words = words(text, &starts, before);
        let mut counts = HashMap::new();
        for word in &words {
            *counts.entry(text[word.bytes.clone()].to_owned()).or_default() += 1;
        }
        let symbols = Arc::new(SharedSymbols::new(symbols));
        Ok(Self { engine, terms, rules, text: text.to_owned(), symbols, words, counts })
    }

    /// Runs the check. Dropping the future cancels it within one step. Fails as [`Handle::submit`] and its requests do.
    pub async fn run(self) -> Result<Checked> {
        let score = Score { symbols: self.symbols.symbols().to_vec(), logprobs: true, top: 1, ..Score::default() };
        let (characters, usage, timing) = scores(self.engine.submit(Job::Score(score), self.terms.clone())?).await?;
        let mut checked = Checked { words: Vec::new(), is_cut: false, compared: 0, usage, timing };
        let alphabet = Alphabet::new(&self.engine.card().vocabulary);
        let mut searches = 0;
        for word in &self.words {
            let own = self.text.get(word.bytes.clone()).unwrap_or_default();
            let Some(logprob) = word.suspicious_logprob(&characters, self.rules.threshold) else { continue };
            let has_doubled = without_doubled(own).next().is_some();
            let search = |share: f64| {
                let floor = word.floor.max(logprob + self.rules.threshold * share);
                self.search(word, &alphabet, floor)
            };
            let Some(first) = search(if has_doubled { DOUBLED } else { 1.0 }) else { continue };
            if searches >= MAX_SEARCHES || checked.words.len() == self.rules.words {
                checked.is_cut = true;
                break;
            }
            checked.compared += 1;
            searches += 1;
            let is_enough = |other: &Spelling| {
                other.logprob >= logprob + needed_nats(own, &other.text, self.rules.threshold, &self.counts)
            };
            let mut alternatives = self.spellings(word, first).await?;
            if !alternatives.iter().any(is_enough) {
                continue;
            }
            // few words are misspelt: only these get a search for less probable spellings, unless the first one found them
            if !has_doubled && let Some(further) = search(DOUBLED) {
                searches += 1;
                let further = self.spellings(word, further).await?;
                // a search that ends at its limit of expansions may miss the one that is enough
                if further.iter().any(is_enough) {
                    alternatives = further;
                }
            }
            shorten(&mut alternatives, self.rules.alternatives, is_enough);
            checked.words.push(CheckedWord { bytes: word.bytes.clone(), logprob, alternatives });
        }
        Ok(checked)
    }

    /// Returns the search for spellings of a word with ln p of at least `floor`; none for a word that is not checked. It finds as many
    /// as a request may want, so that whether a word is misspelt does not depend on how many the request wants.
    fn search(&self, word: &Word, alphabet: &Arc<Alphabet>, floor: f64) -> Option<CompletionSearch> {
        let card = self.engine.card();
        let text = self.text.get(word.bytes.clone())?;
        let symbols = self.symbols.symbols().get(word.symbols.clone())?;
        let end = *self.symbols.symbols().get(word.symbols.end)?;
        let letters = text.chars().count();
        let spelled = card.vocabulary.decode(symbols);
        // a word that the normaliser rewrites has other letters
        let is_checked = (2..=MAX_LETTERS).contains(&letters)
            && text.chars().all(is_letter)
            && (spelled == text || spelled == text.to_lowercase());
        let spellings = OneEdit::new(alphabet, symbols).filter(|_| is_checked)?;
        Some(CompletionSearch::of_spellings(spellings, end, *ALTERNATIVES.end(), floor, card))
    }

    /// Returns the spellings that a search finds in a word's place.
    async fn spellings(&self, word: &Word, search: CompletionSearch) -> Result<Vec<Spelling>> {
        let before = SharedPrefix::of(Arc::clone(&self.symbols), word.symbols.start, Vec::new());
        // the server may begin to drain meanwhile
        let terms = Terms { continues: true, ..self.terms.clone() };
        let found = CompletionTask::of(self.engine.clone(), terms, before, search).run().await?;
        let vocabulary = &self.engine.card().vocabulary;
        let spelling = |Completion { symbols, logprob, .. }| Spelling { text: vocabulary.decode(&symbols), logprob };
        Ok(found.items.into_iter().map(spelling).collect())
    }
}

/// Keeps the first `count` spellings; `count` is at least 1. If none of these is enough, the best spelling that is enough replaces the
/// last of them.
fn shorten(spellings: &mut Vec<Spelling>, count: usize, is_enough: impl Fn(&Spelling) -> bool) {
    if let Some(enough) = spellings.iter().position(is_enough)
        && enough >= count
    {
        spellings.swap(count - 1, enough);
    }
    spellings.truncate(count);
}

/// Returns the symbol of one character without marks; none if the vocabulary lacks it.
fn alone(card: &Card, character: &str) -> Option<u32> {
    card.vocabulary.encode_exactly("text", character).ok()?.first().copied()
}

async fn scores(mut events: Events) -> Result<(Vec<EmittedSymbol>, Usage, Timing)> {
    let mut scored = Vec::new();
    while let Some(event) = events.recv().await {
        match event? {
            Event::Characters(characters) => scored.extend(characters),
            Event::Finished { usage, timing, .. } => return Ok((scored, usage, timing)),
            Event::Started { .. } | Event::Next(_) | Event::Coding(_) | Event::Coded(_) | Event::Document(_) => {}
        }
    }
    Err(Error::Internal("the engine ended a score without its end".into()))
}

/// Returns the nats by which another spelling of a word must be more probable.
fn needed_nats(word: &str, spelling: &str, threshold: f64, counts: &HashMap<String, usize>) -> f64 {
    let letters = |text: &str| {
        let mut letters: Vec<_> = text.to_lowercase().chars().collect();
        letters.sort_unstable();
        letters
    };
    let is_swapped = letters(word) == letters(spelling);
    let missing = if is_swapped { 0 } else { LONG.saturating_sub(word.chars().count()) };
    let count = |text: &str| counts.get(text).copied().unwrap_or(0);
    let is_repeated = count(word) > 1 && count(spelling) <= count(word);
    let share = if without_doubled(word).any(|other| other == spelling) { DOUBLED } else { 1.0 };
    threshold * share + missing as f64 * PER_MISSING_LETTER + if is_repeated { REPEATED } else { 0.0 }
}

/// Returns the spellings that leave out one of two equal letters of a word.
fn without_doubled(word: &str) -> impl Iterator<Item = String> {
    let second = word.char_indices().zip(word.chars().skip(1));
    second.filter(|((_, letter), next)| letter == next).map(move |((at, letter), _)| {
        let (before, after) = word.split_at(at);
        [before, &after[letter.len_utf8()..]].concat()
    })
}

/// Finds the words of a text. `starts` has the byte of each symbol, and `before` is the number of symbols before them.
fn words(text: &str, starts: &[usize], before: usize) -> Vec<Word> {
    let mut all: Vec<Range<usize>> = Vec::new();
    let mut begun = None;
    for (at, character) in text.char_indices().chain([(text.len(), ' ')]) {
        match (is_word_character(character), begun) {
            (true, None) => begun = Some(at),
            (false, Some(start)) => {
                all.push(without_quotes(text, start..at));
                begun = None;
            }
            _ => {}
        }
    }
    let symbol = |byte| before + starts.partition_point(|start| *start < byte);
    let sentences = sentences(text);
    let mut sentence_before = 0;
    let word = |bytes: &Range<usize>| {
        let own = &text[bytes.clone()];
        let sentence = sentences.partition_point(|sentence| sentence.start <= bytes.start);
        let is_name = sentence == sentence_before && own.starts_with(char::is_uppercase);
        sentence_before = sentence;
        let floor = if is_name { KNOWN } else { f64::NEG_INFINITY };
        Word { symbols: symbol(bytes.start)..symbol(bytes.end), bytes: bytes.clone(), floor }
    };
    all.iter().map(word).collect()
}

/// Leaves out the apostrophes around a word.
fn without_quotes(text: &str, bytes: Range<usize>) -> Range<usize> {
    let is_quote = |character| matches!(character, '\'' | '’');
    let word = &text[bytes.clone()];
    let start = bytes.start + word.len() - word.trim_start_matches(is_quote).len();
    start..start + word.trim_matches(is_quote).len()
}

impl Word {
    /// Returns ln p of the word and of the symbol after it; `None` if no other spelling can be probable enough to replace the word.
    fn suspicious_logprob(&self, characters: &[EmittedSymbol], threshold: f64) -> Option<f64> {
        let mut own = 0.0;
        let mut bound = f64::NEG_INFINITY;
        let mut previous = None;
        for EmittedSymbol { symbol, logprob, top, .. } in characters.get(self.symbols.start..=self.symbols.end)? {
            let logprob = f64::from((*logprob)?);
            let most = f64::from(top.first()?.1);
            // another spelling agrees with the word up to some place, and has another symbol there
            let other = own + if most > logprob { most } else { (-logprob.exp_m1()).ln() };
            // one without a doubled letter differs at the second of the two
            let needed = if previous == Some(*symbol) { threshold * DOUBLED } else { threshold };
            if other >= self.floor {
                bound = bound.max(other - needed);
            }
            own += logprob;
            previous = Some(*symbol);
        }
        (bound >= own).then_some(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_symbols() {
        let found = |text: &str, before: usize| {
            let starts: Vec<usize> = (0..text.len()).collect();
            let words = words(text, &starts, before).into_iter();
            words.map(|word| (text[word.bytes].to_owned(), word.symbols)).collect::<Vec<_>>()
        };
        let words = found("Teh 'cat' didn't: \u{e9}t", 1);
        let expected = [("Teh", 1..4), ("cat", 6..9), ("didn't", 11..17), ("\u{e9}t", 19..22)];
        assert_eq!(words, expected.map(|(word, symbols)| (word.to_owned(), symbols)));
        assert_eq!(found("'' a", 0), [(String::new(), 2..2), ("a".to_owned(), 3..4)]);
    }

    #[test]
    fn words_need_more_if_they_are_short_or_repeated_and_less_if_a_letter_is_doubled() {
        let counts =
            [("people", 2), ("peple", 2), ("teh", 2), ("the", 3)].map(|(word, count)| (word.to_owned(), count));
        let counts = HashMap::from(counts);
        for (word, spelling, expected) in [
            ("cat", "car", 13.0),
            ("Teh", "The", 10.0),
            ("\u{e9}t", "\u{e9}a", 14.5),
            ("didn't", "did't", 10.0),
            ("people", "purple", 17.0),
            // the other spelling is repeated as well, and more often
            ("peple", "people", 17.0),
            ("teh", "the", 10.0),
            ("teh", "ten", 20.0),
            ("Untill", "Until", 5.0),
            ("untill", "unfill", 10.0),
            ("offf", "off", 6.5),
            ("\u{e9}\u{e9}", "\u{e9}", 9.5),
        ] {
            assert_eq!(needed_nats(word, spelling, 10.0, &counts), expected, "{word} {spelling}");
        }
    }

    #[test]
    fn a_spelling_that_is_enough_stays() {
        let spelling = |(text, logprob): (&str, f64)| Spelling { text: text.to_owned(), logprob };
        let all = [("unfit", -1.0), ("until", -2.0), ("untie", -3.0)].map(spelling);
        for (count, enough, expected) in [
            (1, "until", vec!["until"]),
            (2, "until", vec!["unfit", "until"]),
            (2, "untie", vec!["unfit", "untie"]),
            (1, "unfit", vec!["unfit"]),
            (16, "untie", vec!["unfit", "until", "untie"]),
        ] {
            let mut spellings = all.to_vec();
            shorten(&mut spellings, count, |spelling| spelling.text == enough);
            let texts: Vec<&str> = spellings.iter().map(|spelling| spelling.text.as_str()).collect();
            assert_eq!(texts, expected, "{count} {enough}");
        }
    }

    #[test]
    fn names_within_sentences_need_a_known_spelling() {
        let text = "Paris stands. \"Where lives Smith?\" Dr. Brown\n\nLondon";
        let starts: Vec<usize> = (0..text.len()).collect();
        let names = words(text, &starts, 0).into_iter().filter(|word| word.floor == KNOWN);
        assert_eq!(names.map(|word| &text[word.bytes]).collect::<Vec<_>>(), ["Smith", "Brown"]);
    }
}
