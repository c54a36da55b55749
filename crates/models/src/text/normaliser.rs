//! Normalises prompts as the training text was normalised. Each character is rewritten independently of the others, so the work
//! is linear, and every character of the result has an offset in the input.

use serde::{Deserialize, Serialize};
use std::{borrow::Cow, ops::ControlFlow};
use unicode_normalization::char::{decompose_compatible, is_combining_mark};

/// Rewrites text so that it looks like the training text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TextNormaliser {
    /// Leaves the text as it is.
    None,
    /// Lower case, digits spelled out one by one, accents folded (NFKD), all else spaces, of which no two follow each other: 27
    /// symbols. Leading and trailing spaces stay.
    Text8,
}

const DIGITS: [&str; 10] = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];

weir_kernels::named!(TextNormaliser { None: "none", Text8: "text8" });

impl TextNormaliser {
    /// Returns the maximum characters that a text becomes for each of its bytes.
    pub fn max_chars_per_byte(self) -> usize {
        match self {
            Self::None => 1,
            // ` three ` for an ASCII digit
            Self::Text8 => 7,
        }
    }

    /// Returns true if several spaces in a row become one.
    pub(super) fn collapses(self) -> bool {
        self == Self::Text8
    }

    /// Returns the normalised text, without a copy if `text` is already normalised.
    pub fn apply(self, text: &str) -> Cow<'_, str> {
        if self == Self::None || is_text8(text) {
            return Cow::Borrowed(text);
        }
        let mut normal = String::with_capacity(text.len());
        self.for_each(text, |symbol, _| {
            normal.push(symbol);
            ControlFlow::Continue(())
        });
        Cow::Owned(normal)
    }

    /// Returns the number of characters of `text` that normalising replaces or drops.
    pub fn changed_chars(self, text: &str) -> usize {
        if self == Self::None || is_text8(text) {
            return 0;
        }
        let mut originals = text.chars().enumerate().peekable();
        let mut unchanged = 0;
        self.for_each(text, |symbol, offset| {
            while originals.next_if(|(place, _)| *place < offset).is_some() {}
            // A character that becomes itself becomes nothing else.
            unchanged += usize::from(originals.peek().is_some_and(|(_, original)| *original == symbol));
            ControlFlow::Continue(())
        });
        text.chars().count() - unchanged
    }

    /// Calls `emit` for each character of the normalised text and its character offset in `text`, until `Break`.
    pub(super) fn for_each(self, text: &str, emit: impl FnMut(char, usize) -> ControlFlow<()>) {
        self.for_each_after(None, text, emit);
    }

    /// Like `for_each`, for a `text` that follows one whose normalised form ends with `last`.
    pub(super) fn for_each_after(
        self,
        last: Option<char>,
        text: &str,
        mut emit: impl FnMut(char, usize) -> ControlFlow<()>,
    ) {
        let mut after_space = last == Some(' ');
        for (offset, character) in text.chars().enumerate() {
            let mut flow = ControlFlow::Continue(());
            // a decomposition cannot be interrupted; after `Break` its remaining parts are ignored
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

/// Rewrites one part of a decomposed character. Combining marks are dropped, because an accent must not split a word.
/// Their canonical order therefore does not matter, and no reordering buffer is needed.
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

fn is_text8(text: &str) -> bool {
    let mut before = b'a';
    text.bytes().all(|byte| {
        let fits = byte.is_ascii_lowercase() || (byte == b' ' && before != b' ');
        before = byte;
        fits
    })
}

// Code points of a text whose bytes are cut anywhere.

/// Moves complete code points from `pending` to `text`. With `replaces`, U+FFFD stands for invalid bytes.
pub(super) fn take_complete(pending: &mut Vec<u8>, text: &mut String, replaces: bool) {
    loop {
        let (valid, invalid) = match std::str::from_utf8(pending) {
            Ok(text) => (text, None),
            Err(error) => {
                let (before, _) = pending.split_at(error.valid_up_to());
                (std::str::from_utf8(before).unwrap_or_default(), error.error_len())
            }
        };
        let mut done = valid.len();
        text.push_str(valid);
        if let Some(bytes) = invalid {
            text.extend(replaces.then_some(char::REPLACEMENT_CHARACTER));
            done += bytes;
        }
        pending.drain(..done);
        if invalid.is_none() {
            return;
        }
    }
}

/// Removes an unfinished code point. With `replaces`, U+FFFD stands for it.
pub(super) fn replace_unfinished(pending: &mut Vec<u8>, text: &mut String, replaces: bool) {
    if !pending.is_empty() {
        pending.clear();
        text.extend(replaces.then_some(char::REPLACEMENT_CHARACTER));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Text, normalised text, and how many of the text's characters change.
    #[test]
    fn text8_by_example() {
        let cases = [
            ("", "", 0),
            ("the city ", "the city ", 0),
            ("The  City", "the city", 3),
            ("19", " one nine ", 2),
            ("in 19, or so", "in one nine or so", 4),
            ("a1b", "a one b", 1),
            ("café — Žižek", "cafe zizek", 5),
            ("  x\n\t y  ", " x y ", 5),
            ("ﬁn", "fin", 1),
            ("e\u{301}a", "ea", 1),
            ("½", " one two ", 1),
            ("日本", " ", 2),
            ("don't", "don t", 1),
        ];
        for (text, expected, changed) in cases {
            assert_eq!(TextNormaliser::Text8.apply(text), expected, "{text:?}");
            assert_eq!(TextNormaliser::Text8.changed_chars(text), changed, "{text:?}");
            assert_eq!(TextNormaliser::None.changed_chars(text), 0);
        }
    }

    #[test]
    fn normalised_text_is_not_copied() {
        assert!(matches!(TextNormaliser::Text8.apply(" the city "), Cow::Borrowed(_)));
        assert!(matches!(TextNormaliser::None.apply("Ünï 1"), Cow::Borrowed(_)));
    }

    #[test]
    fn no_character_expands_beyond_the_limit() {
        let longest = ('\0'..=char::MAX)
            .map(|character| {
                let mut count = 0;
                TextNormaliser::Text8.for_each(character.encode_utf8(&mut [0; 4]), |_, _| {
                    count += 1;
                    ControlFlow::Continue(())
                });
                assert!(count <= TextNormaliser::Text8.max_chars_per_byte() * character.len_utf8(), "{character:?}");
                (count, character)
            })
            .max();
        // ` one one zero `
        assert_eq!(longest, Some((14, '⅒')));
    }

    proptest! {
        #[test]
        fn text8_is_idempotent_and_its_offsets_never_decrease(text in "\\PC*") {
            let once = TextNormaliser::Text8.apply(&text).into_owned();
            prop_assert!(is_text8(&once));
            prop_assert_eq!(TextNormaliser::Text8.apply(&once), once.as_str());
            let mut offsets = Vec::new();
            TextNormaliser::Text8.for_each(&text, |_, offset| {
                offsets.push(offset);
                ControlFlow::Continue(())
            });
            prop_assert!(offsets.is_sorted() && offsets.last().is_none_or(|last| *last < text.chars().count()));
        }

        #[test]
        fn a_text_has_changed_characters_if_it_changes(text in "[a-c 1é\u{301}A?]{0,12}") {
            let changed = TextNormaliser::Text8.changed_chars(&text);
            prop_assert_eq!(changed > 0, TextNormaliser::Text8.apply(&text) != text.as_str());
            prop_assert!(changed <= text.chars().count());
        }
    }
}
