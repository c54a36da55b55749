//! The effect of each symbol of a vocabulary on a continuation.

use super::rules::CompletionEnd;
use crate::text::Vocabulary;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SymbolKind {
    /// Becomes part of it.
    Continues,
    /// Ends it, and is not part of it.
    Ends,
    /// No text: it is never part of a continuation.
    Excluded,
}

/// Returns true for a character of a word: a letter, digit, apostrophe or underscore.
pub fn is_word_character(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '_' | '\'' | '’')
}

/// Returns the kind of each symbol, by id.
pub(super) fn symbol_kinds(vocabulary: &Vocabulary, end: CompletionEnd) -> Vec<SymbolKind> {
    let kind = |id: u32| {
        if vocabulary.ends_text(id) {
            return SymbolKind::Ends;
        }
        let text = vocabulary.decode(&[id]);
        let character = match vocabulary.byte_of(id) {
            // part of a longer code point
            Some(byte) if !byte.is_ascii() => 'a',
            _ => match text.chars().next() {
                Some(character) if !vocabulary.is_special(id) => character,
                _ => return SymbolKind::Excluded,
            },
        };
        let continues = match end {
            CompletionEnd::Word => is_word_character(character),
            CompletionEnd::Line => character != '\n',
            CompletionEnd::Segment | CompletionEnd::Length => true,
        };
        if continues { SymbolKind::Continues } else { SymbolKind::Ends }
    };
    (0_u32..).take(vocabulary.len()).map(kind).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{TextMarks, TextNormaliser};

    #[test]
    fn words_and_lines_end_before_their_symbols() {
        let letters = Vocabulary::from_symbols(&[" ", "a", "é", "'", "\n"], TextNormaliser::None).unwrap();
        use SymbolKind::{Continues, Ends, Excluded};
        assert_eq!(symbol_kinds(&letters, CompletionEnd::Word), [Ends, Continues, Continues, Continues, Ends]);
        let line = [Continues, Continues, Continues, Continues, Ends];
        assert_eq!(symbol_kinds(&letters, CompletionEnd::Line), line);
        assert_eq!(symbol_kinds(&letters, CompletionEnd::Length), [Continues; 5]);
        let marks = TextMarks { start: 254, end: 255 };
        let bytes = Vocabulary::byte_level_with_marks(marks, TextNormaliser::None).unwrap();
        let kinds = symbol_kinds(&bytes, CompletionEnd::Word);
        assert_eq!(
            [254, 255, 0xc3, b'a'.into(), b'.'.into()].map(|id: usize| kinds[id]),
            [Excluded, Ends, Continues, Continues, Ends]
        );
        let ended = Vocabulary::byte_level_with_end(3, TextNormaliser::None).unwrap();
        for end in [CompletionEnd::Line, CompletionEnd::Segment, CompletionEnd::Length] {
            let kinds = symbol_kinds(&ended, end);
            assert_eq!([2, 3, 4].map(|id: usize| kinds[id]), [Continues, Ends, Continues], "{end:?}");
        }
    }
}
