//! What a training text went through before the model saw it, done to prompts alike.
//!
//! Every character is rewritten by itself, so that the work is linear and the offset of a character in the text as given is
//! known for whatever comes of it.

use serde::{Deserialize, Serialize};
use std::{borrow::Cow, ops::ControlFlow};
use unicode_normalization::char::{decompose_compatible, is_combining_mark};

/// How text is made to look like the training text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Normaliser {
    /// Not at all.
    None,
    /// Lower case, digits spelt out one by one, accents folded (NFKD), every other character a space, runs of spaces
    /// collapsed: 27 symbols. A space at either end stays, and a digit brings its spaces along.
    Text8,
}

/// The most characters that one character becomes: `⅒` is ` one one zero `. The digit of a plain text becomes at most 7.
pub const MAX_EXPANSION: usize = 14;

const DIGITS: [&str; 10] = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];

impl Normaliser {
    /// The name in `config.json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Text8 => "text8",
        }
    }

    /// Whether of several spaces in a row one is left.
    pub(super) fn collapses(self) -> bool {
        self == Self::Text8
    }

    /// The text as the model would have met it in training. Costs nothing where it is so already.
    pub fn apply(self, text: &str) -> Cow<'_, str> {
        if self == Self::None || is_text8(text) {
            return Cow::Borrowed(text);
        }
        let mut normal = String::with_capacity(text.len());
        self.each(text, |symbol, _| {
            normal.push(symbol);
            ControlFlow::Continue(())
        });
        Cow::Owned(normal)
    }

    /// Calls `emit` with each character of the normalised text and the offset, in characters, of the one in `text` that it
    /// comes from, until it breaks off.
    pub(super) fn each(self, text: &str, mut emit: impl FnMut(char, usize) -> ControlFlow<()>) {
        let mut after_space = false;
        for (offset, character) in text.chars().enumerate() {
            let mut flow = ControlFlow::Continue(());
            // What is left of one character once the caller has enough is not worth a way out of its decomposition.
            let mut collapsed = |symbol: char| {
                if flow.is_continue() && (symbol != ' ' || !after_space) {
                    flow = emit(symbol, offset);
                }
                after_space = symbol == ' ';
            };
            match (self, character) {
                (Self::None, _) => flow = emit(character, offset),
                (Self::Text8, 'a'..='z') => collapsed(character),
                (Self::Text8, _) => decompose_compatible(character, |part| text8_part(part, &mut collapsed)),
            }
            if flow.is_break() {
                return;
            }
        }
    }
}

/// What becomes of one part of a decomposed character. Marks vanish: an accent must not cut a word in two. Their canonical
/// order is of no interest, so that no reordering buffer is needed.
fn text8_part(part: char, emit: &mut impl FnMut(char)) {
    match part {
        'a'..='z' => emit(part),
        'A'..='Z' => emit(part.to_ascii_lowercase()),
        '0'..='9' => {
            emit(' ');
            DIGITS[usize::from(part as u8 - b'0')].chars().for_each(&mut *emit);
            emit(' ');
        }
        mark if is_combining_mark(mark) => {}
        _ => emit(' '),
    }
}

/// Whether a text is in text8's form.
fn is_text8(text: &str) -> bool {
    let mut before = b'a';
    text.bytes().all(|byte| {
        let fits = byte.is_ascii_lowercase() || (byte == b' ' && before != b' ');
        before = byte;
        fits
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text8_by_example() {
        let cases = [
            ("", ""),
            ("the city ", "the city "),
            ("The  City", "the city"),
            ("19", " one nine "),
            ("in 19, or so", "in one nine or so"),
            ("a1b", "a one b"),
            ("café — Žižek", "cafe zizek"),
            ("  x\n\t y  ", " x y "),
            ("ﬁn", "fin"),
            ("e\u{301}a", "ea"),
            ("½", " one two "),
            ("日本", " "),
            ("don't", "don t"),
        ];
        for (text, expected) in cases {
            assert_eq!(Normaliser::Text8.apply(text), expected, "{text:?}");
        }
    }

    #[test]
    fn what_is_normal_already_is_not_copied() {
        assert!(matches!(Normaliser::Text8.apply(" the city "), Cow::Borrowed(_)));
        assert!(matches!(Normaliser::None.apply("Ünï 1"), Cow::Borrowed(_)));
    }

    #[test]
    fn no_character_becomes_more_than_the_bound() {
        let longest = ('\0'..=char::MAX)
            .map(|character| {
                let mut count = 0;
                Normaliser::Text8.each(character.encode_utf8(&mut [0; 4]), |_, _| {
                    count += 1;
                    ControlFlow::Continue(())
                });
                (count, character)
            })
            .max();
        assert_eq!(longest.map(|(count, _)| count), Some(MAX_EXPANSION), "{longest:?}");
    }

    proptest! {
        #[test]
        fn text8_is_closed_and_settled(text in "\\PC*") {
            let once = Normaliser::Text8.apply(&text).into_owned();
            prop_assert!(is_text8(&once));
            prop_assert_eq!(Normaliser::Text8.apply(&once), once.as_str());
        }

        #[test]
        fn offsets_name_characters_in_order(text in "\\PC*") {
            let count = text.chars().count();
            let mut last = 0;
            let mut fine = true;
            Normaliser::Text8.each(&text, |_, offset| {
                fine &= last <= offset && offset < count;
                last = offset;
                ControlFlow::Continue(())
            });
            prop_assert!(fine);
        }
    }
}
