//! Marks around a text, special symbols, and the end byte.

use super::Vocabulary;
use crate::text::{SpecialSymbols, TextMarks, TextNormaliser, VocabularyError};

impl Vocabulary {
    /// Creates a vocabulary of the 256 byte values, two of which mark the start and the end of a text. Fails if a mark may
    /// occur in UTF-8 text, or both are the same.
    pub fn byte_level_with_marks(marks: TextMarks, normaliser: TextNormaliser) -> Result<Self, VocabularyError> {
        marks.check()?;
        Ok(Self { marks: Some(marks), ..Self::byte_level(normaliser) })
    }

    /// Creates a vocabulary of the 256 byte values with an end byte: a text ends when the model generates it. A text that is
    /// encoded may contain the byte, for example between documents. Fails unless the byte is an ASCII control character other than
    /// whitespace.
    pub fn byte_level_with_end(end: u32, normaliser: TextNormaliser) -> Result<Self, VocabularyError> {
        if !matches!(end, 0..=8 | 14..=31 | 127) {
            let expected = "0 to 8, 14 to 31, or 127: a control character other than whitespace";
            return Err(VocabularyError::new("vocabulary.end", expected, end.to_string()));
        }
        Ok(Self { end_byte: Some(end), ..Self::byte_level(normaliser) })
    }

    /// Returns the byte that ends a text when the model generates it, if the vocabulary has one.
    pub fn end_byte(&self) -> Option<u32> {
        self.end_byte
    }

    /// Returns the marks around a text, if the vocabulary has any.
    pub fn marks(&self) -> Option<TextMarks> {
        self.marks
    }

    /// Returns the special symbols, the marks and the end byte, each with its name in a checkpoint.
    pub fn named_ids(&self) -> Vec<(&'static str, u32)> {
        let specials = self.specials.into_iter().flat_map(SpecialSymbols::named_ids);
        let marks = self.marks.into_iter().flat_map(|marks| [("start", marks.start), ("end", marks.end)]);
        specials.chain(marks).chain(self.end_byte.map(|end| ("end", end))).collect()
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

    #[test]
    fn an_end_byte_is_a_character_of_a_text() {
        let vocabulary = Vocabulary::byte_level_with_end(3, TextNormaliser::None).unwrap();
        let ids = vocabulary.encode("prompt", "a\u{3}b", 3).unwrap();
        assert_eq!((&ids[..], vocabulary.decode(&ids)), (&[97, 3, 98][..], "a\u{3}b".into()));
        assert_eq!((vocabulary.count_without_marks(&ids), vocabulary.text_ids().count()), (3, 256));
        assert_eq!([3, 97].map(|id| vocabulary.ends_text(id)), [true, false]);
        assert_eq!((vocabulary.end_marks().next(), vocabulary.named_ids()), (Some(3), vec![("end", 3)]));
        assert!(vocabulary.same_symbols(&Vocabulary::byte_level(TextNormaliser::None)) && vocabulary.is_spelled_out());
        for end in [0, 8, 14, 31, 127] {
            assert!(Vocabulary::byte_level_with_end(end, TextNormaliser::None).is_ok(), "{end}");
        }
        for end in [9, 11, 13, 32, 97, 128, 259] {
            let error = Vocabulary::byte_level_with_end(end, TextNormaliser::None).unwrap_err();
            assert_eq!((error.key, error.found), ("vocabulary.end".to_owned(), end.to_string()));
        }
    }
}
