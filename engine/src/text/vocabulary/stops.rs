//! Stop strings: texts that end a generation when the model generates them.

use super::Vocabulary;

impl Vocabulary {
    /// Normalises a stop string and encodes it: to symbols, or to bytes if symbols are tokens.
    ///
    /// Returns `None` for a string that can never match: one with a character outside the vocabulary or with the end byte. Also
    /// returns `None` for other characters that normalising turns into spaces only, such as line breaks. They would match the first
    /// space of a text.
    pub fn encode_stop(&self, text: &str) -> Option<Vec<u32>> {
        let normal = self.normalise(text);
        if is_blank(&normal) && !is_blank(text) {
            return None;
        }
        match self.byte_zero() {
            Some(zero) => {
                let ids = normal.bytes().map(|byte| zero + u32::from(byte));
                ids.map(|id| (self.end_byte != Some(id)).then_some(id)).collect()
            }
            None if self.is_subword() => Some(normal.bytes().map(u32::from).collect()),
            None => normal.chars().map(|character| self.id_of(character)).collect(),
        }
    }

    /// Returns the length of a stop string as sent, in the units of [`encode_stop`](Self::encode_stop).
    pub fn stop_length(&self, text: &str) -> usize {
        if self.is_bytes() || self.is_subword() { text.len() } else { text.chars().count() }
    }
}

/// Returns true for a text without any character but spaces.
fn is_blank(text: &str) -> bool {
    text.bytes().all(|byte| byte == b' ')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{SubwordTokenizer, TextNormaliser, subwords::SMALL};
    use std::sync::Arc;

    #[test]
    fn stop_strings_are_normalised() {
        let text8 = Vocabulary::from_symbols(&[" ", "a", "b", "c"], TextNormaliser::Text8).unwrap();
        assert_eq!(text8.encode_stop("A  b"), Some(vec![1, 0, 2]));
        assert_eq!(text8.encode_stop("\nB:"), Some(vec![0, 2, 0]));
        assert_eq!(text8.encode_stop("  "), Some(vec![0]));
        assert_eq!(text8.encode_stop(""), Some(vec![]));
    }

    #[test]
    fn a_string_that_cannot_be_generated_never_matches() {
        let text8 = Vocabulary::from_symbols(&[" ", "a", "b", "c"], TextNormaliser::Text8).unwrap();
        for text in ["\n\n", ". ", "\u{301}", "ax", "1"] {
            assert_eq!(text8.encode_stop(text), None, "{text:?}");
        }
        let plain = Vocabulary::from_symbols(&[" ", "a"], TextNormaliser::None).unwrap();
        assert_eq!(
            (plain.encode_stop("A"), plain.encode_stop("\n"), plain.encode_stop("a ")),
            (None, None, Some(vec![1, 0]))
        );
    }

    #[test]
    fn bytes_and_tokens_match_by_bytes() {
        let bytes = Vocabulary::byte_level(TextNormaliser::None);
        assert_eq!((bytes.encode_stop("é\n"), bytes.stop_length("é\n")), (Some(vec![0xc3, 0xa9, 10]), 3));
        let ended = Vocabulary::byte_level_with_end(3, TextNormaliser::None).unwrap();
        assert_eq!((ended.encode_stop(".\u{3}"), ended.encode_stop(".")), (None, Some(vec![46])));
        let subwords = Arc::new(SubwordTokenizer::parse(SMALL.as_bytes()).unwrap());
        let tokens = Vocabulary::from_tokenizer(20, Some(subwords), TextNormaliser::None).unwrap();
        assert_eq!((tokens.encode_stop("é"), tokens.stop_length("é")), (Some(vec![0xc3, 0xa9]), 2));
    }
}
