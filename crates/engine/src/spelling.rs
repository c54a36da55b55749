//! The spellings that are one edit away from a word: one letter is replaced, added, left out, or swapped with the next. The first
//! letter keeps its case, and no other letter is a capital.

use std::sync::Arc;
use weir_models::text::Vocabulary;

/// The letters of a vocabulary.
#[derive(Debug)]
pub(crate) struct Alphabet {
    /// (V): none for symbols that are no letter.
    letters: Vec<Option<Letter>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Letter {
    /// The letter without its case. A byte of a longer code point stands for itself.
    letter: char,
    is_capital: bool,
}

impl Alphabet {
    pub(crate) fn new(vocabulary: &Vocabulary) -> Arc<Self> {
        let letter = |symbol: u32| {
            if vocabulary.is_special(symbol) || vocabulary.ends_text(symbol) {
                return None;
            }
            match vocabulary.byte_of(symbol) {
                // in a plane without letters
                Some(byte) if !byte.is_ascii() => {
                    Some(Letter { letter: char::from_u32(0x10_0000 + u32::from(byte))?, is_capital: false })
                }
                _ => {
                    let letter = vocabulary.decode(&[symbol]).chars().next().filter(|letter| is_letter(*letter))?;
                    Some(Letter { letter: letter.to_lowercase().next()?, is_capital: letter.is_uppercase() })
                }
            }
        };
        Arc::new(Self { letters: (0_u32..).take(vocabulary.len()).map(letter).collect() })
    }

    fn letter(&self, symbol: u32) -> Option<Letter> {
        self.letters.get(symbol as usize).copied().flatten()
    }
}

/// Returns true for letters and apostrophes.
pub(crate) fn is_letter(character: char) -> bool {
    character.is_alphabetic() || matches!(character, '\'' | '’')
}

/// The spellings one edit away from a word.
#[derive(Debug, Clone)]
pub(crate) struct OneEdit {
    alphabet: Arc<Alphabet>,
    word: Vec<char>,
    is_capital: bool,
}

impl OneEdit {
    /// Returns the spellings around the word of these symbols; none if they are not all letters, or if one after the first is a
    /// capital.
    pub(crate) fn new(alphabet: &Arc<Alphabet>, symbols: &[u32]) -> Option<Self> {
        let mut word = Vec::with_capacity(symbols.len());
        let mut is_capital = false;
        for (at, symbol) in symbols.iter().enumerate() {
            let letter = alphabet.letter(*symbol).filter(|letter| at == 0 || !letter.is_capital)?;
            is_capital |= letter.is_capital;
            word.push(letter.letter);
        }
        Some(Self { alphabet: Arc::clone(alphabet), word, is_capital })
    }

    /// Maximum symbols of a spelling.
    pub(crate) fn longest(&self) -> usize {
        self.word.len() + 1
    }

    /// Returns true if a spelling may contain this symbol.
    pub(crate) fn has(&self, symbol: u32) -> bool {
        self.alphabet.letter(symbol).is_some()
    }

    pub(crate) fn begins(&self, symbols: &[u32]) -> bool {
        self.edited(symbols).is_some_and(|(own, at)| {
            let rest = |from: usize, of: usize| {
                let of = self.word.get(of..).unwrap_or_default();
                own.get(from..).is_none_or(|own| of.starts_with(own))
            };
            let is_swapped = || match own.get(at + 1) {
                None => self.word.get(at + 1) == Some(&own[at]) && at + 1 < self.word.len(),
                Some(_) => self.swaps(&own, at) && rest(at + 2, at + 2),
            };
            at == own.len() || rest(at + 1, at + 1) || rest(at + 1, at) || rest(at, at + 1) || is_swapped()
        })
    }

    /// Returns true if these symbols are a spelling.
    pub(crate) fn is(&self, symbols: &[u32]) -> bool {
        self.edited(symbols).is_some_and(|(own, at)| {
            let word = &*self.word;
            let rest = |from: usize, of: usize| own.get(from..).is_some_and(|own| word.get(of..) == Some(own));
            rest(at + 1, at + 1)
                || rest(at + 1, at)
                || rest(at, at + 1)
                || (self.swaps(&own, at) && rest(at + 2, at + 2))
        })
    }

    /// Returns true if two letters of the word are swapped at `at`.
    fn swaps(&self, own: &[char], at: usize) -> bool {
        matches!((own.get(at..at + 2), self.word.get(at..at + 2)), (Some([a, b]), Some([c, d])) if a == d && b == c)
    }

    /// Returns the letters of symbols, and the place of the first that differs from the word's; none if they have wrong capitals.
    fn edited(&self, symbols: &[u32]) -> Option<(Vec<char>, usize)> {
        let mut own = Vec::with_capacity(symbols.len());
        for (at, symbol) in symbols.iter().enumerate() {
            let letter = self.alphabet.letter(*symbol)?;
            if letter.is_capital != (at == 0 && self.is_capital) {
                return None;
            }
            own.push(letter.letter);
        }
        let at = own.iter().zip(&self.word).take_while(|(a, b)| a == b).count();
        Some((own, at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use weir_models::text::TextNormaliser;

    fn symbols(text: &str) -> Vec<u32> {
        text.bytes().map(u32::from).collect()
    }

    fn around(word: &str) -> Option<OneEdit> {
        OneEdit::new(&Alphabet::new(&Vocabulary::byte_level(TextNormaliser::None)), &symbols(word))
    }

    /// Returns all spellings one edit away from a word of these letters.
    fn naive(word: &str, letters: &str) -> BTreeSet<String> {
        let word: Vec<char> = word.chars().collect();
        let mut all = BTreeSet::new();
        for at in 0..=word.len() {
            let (before, after) = word.split_at(at);
            let mut add = |middle: &[char], rest: usize| {
                all.insert(before.iter().chain(middle).chain(&after[rest..]).collect::<String>());
            };
            for letter in letters.chars() {
                add(&[letter], 0);
                if !after.is_empty() {
                    add(&[letter], 1);
                }
            }
            match after {
                [] => {}
                [_] => add(&[], 1),
                [own, next, ..] => {
                    add(&[], 1);
                    add(&[*next, *own], 2);
                }
            }
        }
        all.remove(&word.iter().collect::<String>());
        all
    }

    proptest! {
        #[test]
        fn spellings_are_those_of_all_edits(word in "[ab]{1,5}", other in "[abc]{0,7}") {
            let spellings = naive(&word, "abc");
            let near = around(&word).unwrap();
            prop_assert_eq!(near.is(&symbols(&other)), spellings.contains(&other), "{} {}", word, other);
            // the word itself is the beginning of a longer spelling
            let begins = spellings.iter().any(|spelling| spelling.starts_with(&other));
            prop_assert_eq!(near.begins(&symbols(&other)), begins, "{} {}", word, other);
        }
    }

    #[test]
    fn the_first_letter_keeps_its_case() {
        let near = around("Abc").unwrap();
        for (spelling, expected) in
            [("Bac", true), ("bAc", false), ("Bc", true), ("bc", false), ("Ac", true), ("abc", false), ("AbC", false)]
        {
            assert_eq!(near.is(&symbols(spelling)), expected, "{spelling}");
        }
        assert!(around("NASA").is_none() && around("b2b").is_none() && around("it's").is_some());
        // é has two bytes
        assert!(around("et\u{e9}").unwrap().is(&symbols("t\u{e9}")));
    }
}
