//! The characters of a text from which its symbols come.

use super::Vocabulary;
use std::ops::ControlFlow;

impl Vocabulary {
    /// Returns the byte offset of the source character of each symbol of `text`, except the first `skipped` symbols. A start
    /// mark counts as the first symbol. Supports vocabularies of characters or bytes.
    pub fn start_bytes(&self, text: &str, skipped: usize) -> Vec<usize> {
        let mut starts = Vec::new();
        let mut edges = text.char_indices().map(|(start, _)| start).enumerate().peekable();
        let mut start = 0;
        let mut symbols = usize::from(self.marks.is_some());
        self.normaliser.for_each(text, |character, offset| {
            while let Some((_, edge)) = edges.next_if(|(place, _)| *place <= offset) {
                start = edge;
            }
            let count = if self.is_bytes() { character.len_utf8() } else { 1 };
            let kept = (symbols + count).saturating_sub(skipped.max(symbols));
            starts.extend(std::iter::repeat_n(start, kept));
            symbols += count;
            ControlFlow::Continue(())
        });
        starts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{TextMarks, TextNormaliser};
    use proptest::prelude::*;

    fn letters() -> Vocabulary {
        let symbols: Vec<String> = (' '..=' ').chain('a'..='z').map(String::from).collect();
        Vocabulary::from_symbols(&symbols, TextNormaliser::Text8).unwrap()
    }

    #[test]
    fn symbols_come_from_characters_of_the_text() {
        // ` one `: a digit becomes five characters, of which the first is dropped after a space
        assert_eq!(letters().start_bytes("É 1b", 0), [0, 2, 3, 3, 3, 3, 4]);
        assert_eq!(letters().start_bytes("a  b", 1), [1, 3]);
        let bytes = Vocabulary::byte_level(TextNormaliser::None);
        assert_eq!(bytes.start_bytes("aéb", 0), [0, 1, 1, 3]);
        assert_eq!(bytes.start_bytes("aéb", 2), [1, 3]);
        let marks = TextMarks { start: 254, end: 255 };
        let marked = Vocabulary::byte_level_with_marks(marks, TextNormaliser::None).unwrap();
        assert_eq!(marked.start_bytes("ab", 1), [0, 1]);
        assert_eq!(marked.start_bytes("", 1), [0; 0]);
    }

    proptest! {
        #[test]
        fn each_symbol_has_one(text in "[a-c 1é\u{301}A?½]{0,12}", skipped in 0_usize..20) {
            let vocabulary = letters();
            let symbols = vocabulary.encode("text", &text, 1000).unwrap().len();
            let starts = vocabulary.start_bytes(&text, 0);
            prop_assert_eq!(starts.len(), symbols);
            prop_assert!(starts.is_sorted() && starts.iter().all(|&start| text.is_char_boundary(start)));
            prop_assert_eq!(&vocabulary.start_bytes(&text, skipped)[..], &starts[skipped.min(symbols)..]);
        }
    }
}
