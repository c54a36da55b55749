//! Ids of a vocabulary that are no text: the marks around a text, and special symbols.

use super::Vocabulary;
use crate::text::{SpecialSymbols, TextMarks, TextNormaliser, VocabularyError};

impl Vocabulary {
    /// Creates a vocabulary of the 256 byte values, two of which mark the start and the end of a text. Fails if a mark may
    /// occur in UTF-8 text, or both are the same.
    pub fn byte_level_with_marks(marks: TextMarks, normaliser: TextNormaliser) -> Result<Self, VocabularyError> {
        marks.check()?;
        Ok(Self { marks: Some(marks), ..Self::byte_level(normaliser) })
    }

    /// Returns the marks around a text, if the vocabulary has any.
    pub fn marks(&self) -> Option<TextMarks> {
        self.marks
    }

    /// Returns the ids that are no text, each with its name in a checkpoint.
    pub fn named_ids(&self) -> Vec<(&'static str, u32)> {
        let specials = self.specials.into_iter().flat_map(SpecialSymbols::named_ids);
        let marks = self.marks.into_iter().flat_map(|marks| [("start", marks.start), ("end", marks.end)]);
        specials.chain(marks).collect()
    }

    /// Returns the spelling of a special symbol or mark in messages and listings.
    pub fn display_name(&self, id: u32) -> Option<&'static str> {
        let special = self.specials.and_then(|specials| specials.display_name(id));
        special.or_else(|| self.marks.and_then(|marks| marks.display_name(id)))
    }

    /// Returns the number of symbols that are not marks. Marks are not part of the text that a client sends.
    pub fn count_without_marks(&self, ids: &[u32]) -> usize {
        ids.iter().filter(|&&id| !self.is_mark(id)).count()
    }

    pub(super) fn is_mark(&self, id: u32) -> bool {
        self.marks.is_some_and(|marks| id == marks.start || id == marks.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_a_start_mark_and_marks_have_no_text() {
        let marks = TextMarks { start: 254, end: 255 };
        let vocabulary = Vocabulary::byte_level_with_marks(marks, TextNormaliser::None).unwrap();
        let ids = vocabulary.encode("prompt", "aé", 4).unwrap();
        assert_eq!(ids, [254, 0x61, 0xc3, 0xa9]);
        assert_eq!(vocabulary.decode(&[254, 0x61, 0xc3, 255, 0xa9]), "a\u{fffd}\u{fffd}");
        assert_eq!(vocabulary.decode(&ids), "aé");
        assert_eq!((vocabulary.count_without_marks(&ids), vocabulary.count_without_marks(&[254, 255])), (3, 0));
        assert_eq!([0x61, 0xc3, 254].map(|id| vocabulary.raw_bytes(id)), [None, Some(vec![0xc3]), None]);
        assert_eq!(vocabulary.encode("prompt", "", 4).unwrap(), [254]);
        assert_eq!(vocabulary.encode_exactly("stop", "a").unwrap(), [0x61]);
        let message = vocabulary.encode("prompt", "abcd", 4).unwrap_err().to_string();
        assert!(message.contains('5') && message.contains('4'), "{message}");
        assert_eq!(vocabulary.named_ids(), [("start", 254), ("end", 255)]);
        assert_eq!([vocabulary.printable(254), vocabulary.printable(253)], ["<BoS>", "byte 0xfd"]);
        assert!(!vocabulary.same_symbols(&Vocabulary::byte_level(TextNormaliser::None)));
    }
}
