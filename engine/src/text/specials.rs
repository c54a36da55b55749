//! Special symbols: ids that a model uses between the characters of a text, such as the end of a text or of a segment.
//!
//! The checkpoint decides which ids they have. Only `unknown` may occur in a text: it replaces a character that the
//! vocabulary lacks. Text is never encoded as a special symbol, so a text that spells out `<eos>` stays text.

use super::VocabularyError;
use serde::{Deserialize, Serialize};

/// Ids of a model's special symbols.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SpecialSymbols {
    /// Precedes each text; the model inserts it.
    pub start: u32,
    /// Ends a text.
    pub end: u32,
    /// Precedes each segment if the model writes segments; the model inserts it.
    pub segment_start: u32,
    /// Ends each segment if the model writes segments.
    pub segment_end: u32,
    /// Replaces a character that is not in the vocabulary.
    pub unknown: u32,
}

/// Ids of byte values that no UTF-8 text contains, used as marks around a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TextMarks {
    /// Precedes each text; encoding a text inserts it.
    pub start: u32,
    /// Ends a text.
    pub end: u32,
}

/// Ids of a token vocabulary that are marks around a text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TokenMarks {
    /// Precede each text; encoding a text inserts them.
    pub start: Vec<u32>,
    /// End a text, each of them.
    pub ends: Vec<u32>,
}

/// Byte values that never occur in UTF-8.
const NEVER_IN_TEXT: [std::ops::RangeInclusive<u32>; 2] = [0xc0..=0xc1, 0xf5..=0xff];

impl TextMarks {
    /// Returns the name of `id` in messages and listings if it is a mark.
    pub fn display_name(self, id: u32) -> Option<&'static str> {
        match id {
            _ if id == self.start => Some("<BoS>"),
            _ if id == self.end => Some("<eos>"),
            _ => None,
        }
    }

    /// Checks that the marks are distinct byte values that occur in no text. The error names the first that is not.
    pub(super) fn check(self) -> Result<(), VocabularyError> {
        for (name, id) in [("start", self.start), ("end", self.end)] {
            if !NEVER_IN_TEXT.iter().any(|range| range.contains(&id)) {
                let expected = "a byte value that UTF-8 never has: 192, 193 or 245 to 255";
                return Err(VocabularyError::new(format!("vocabulary.{name}"), expected, id.to_string()));
            }
        }
        if self.start == self.end {
            let found = format!("{}, which is also start's", self.end);
            return Err(VocabularyError::new("vocabulary.end", "a distinct id", found));
        }
        Ok(())
    }
}

impl SpecialSymbols {
    /// Number of special symbols.
    pub const COUNT: usize = 5;

    /// Returns each special symbol's name in a checkpoint, with its id.
    pub fn named_ids(self) -> [(&'static str, u32); Self::COUNT] {
        [
            ("start", self.start),
            ("end", self.end),
            ("segment_start", self.segment_start),
            ("segment_end", self.segment_end),
            ("unknown", self.unknown),
        ]
    }

    /// Returns true if `id` is a special symbol.
    pub fn contains(self, id: u32) -> bool {
        self.named_ids().iter().any(|&(_, own)| own == id)
    }

    /// Returns the name of `id` in messages and listings if it is a special symbol.
    pub fn display_name(self, id: u32) -> Option<&'static str> {
        const NAMES: [&str; SpecialSymbols::COUNT] = ["<BoS>", "<eos>", "<bos>", "<nxt>", "<oov>"];
        self.named_ids().iter().zip(NAMES).find(|((_, own), _)| *own == id).map(|(_, name)| name)
    }

    /// Returns the ids that are never sampled: two that the model inserts itself, and `unknown`, which has no surface form.
    pub fn never_sampled(self) -> [u32; 3] {
        [self.start, self.segment_start, self.unknown]
    }

    /// Checks that all ids are below `len`, distinct, and not text symbols according to `is_text`. The error names the
    /// first special symbol that breaks a rule.
    pub(super) fn check(self, len: usize, is_text: impl Fn(u32) -> bool) -> Result<(), VocabularyError> {
        let named = self.named_ids();
        let error = |name, expected: String, found: String| {
            VocabularyError::new(format!("vocabulary.specials.{name}"), expected, found)
        };
        for (index, (name, id)) in named.into_iter().enumerate() {
            if id as usize >= len {
                return Err(error(name, format!("an id below {len}"), id.to_string()));
            }
            if let Some((other, _)) = named[..index].iter().find(|(_, own)| *own == id) {
                return Err(error(name, "a distinct id".into(), format!("{id}, which is also {other}'s")));
            }
            if is_text(id) {
                return Err(error(name, "an id that is not a text symbol".into(), id.to_string()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPECIALS: SpecialSymbols = SpecialSymbols { start: 0, end: 1, segment_start: 2, segment_end: 3, unknown: 9 };

    #[test]
    fn marks_are_distinct_and_in_no_text() {
        let wrong_key = |start, end| TextMarks { start, end }.check().map_err(|error| error.key);
        assert_eq!(wrong_key(254, 255), Ok(()));
        assert_eq!(wrong_key(65, 255), Err("vocabulary.start".into()));
        assert_eq!(wrong_key(254, 244), Err("vocabulary.end".into()));
        assert_eq!(wrong_key(254, 254), Err("vocabulary.end".into()));
        let names = [253, 254, 255].map(|id| TextMarks { start: 254, end: 255 }.display_name(id));
        assert_eq!(names, [None, Some("<BoS>"), Some("<eos>")]);
    }

    #[test]
    fn ids_are_distinct_and_in_bounds() {
        let wrong_key = |result: Result<(), VocabularyError>| result.unwrap_err().key;
        assert_eq!(SPECIALS.check(10, |_| false), Ok(()));
        assert_eq!(wrong_key(SPECIALS.check(9, |_| false)), "vocabulary.specials.unknown");
        let repeated = SpecialSymbols { end: 3, ..SPECIALS };
        assert_eq!(wrong_key(repeated.check(10, |_| false)), "vocabulary.specials.segment_end");
        assert_eq!(wrong_key(SPECIALS.check(10, |id| id == 2)), "vocabulary.specials.segment_start");
        assert!(SPECIALS.contains(9) && !SPECIALS.contains(4));
        assert_eq!([0, 2, 5].map(|id| SPECIALS.display_name(id)), [Some("<BoS>"), Some("<bos>"), None]);
    }
}
