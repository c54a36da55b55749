//! From the engine to the wire: boundaries become segments with offsets.

use crate::{decode::options::EmittedSymbol, text::Vocabulary};
use weir_proto::v1;

/// The segments of a text, in order; together they are all of it.
pub(in crate::serve) fn segments(characters: &[EmittedSymbol], vocabulary: &Vocabulary) -> Vec<v1::Segment> {
    let mut all = Vec::new();
    let (mut byte, mut char) = (0, 0);
    let closes = |character: &EmittedSymbol| character.decision.is_some_and(|mark| mark.boundary);
    for run in characters.split_inclusive(closes) {
        let ids: Vec<_> = run.iter().map(|character| character.symbol).collect();
        let text = vocabulary.decode(&ids);
        // Where symbols are bytes they count, and not what stands for part of a code point.
        let bytes = if vocabulary.is_bytes() { ids.len() } else { text.len() };
        let last = run.last();
        let segment = v1::Segment {
            text,
            byte_start: byte,
            byte_end: byte + bytes as u64,
            char_start: char,
            char_end: char + ids.len() as u64,
            boundary_probability: last.and_then(|last| last.decision?.probability),
            open: !last.is_some_and(closes),
        };
        (byte, char) = (segment.byte_end, segment.char_end);
        all.push(segment);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{decode::contract::SymbolBoundary, text::TextNormaliser};

    /// The characters of a text, with a boundary after each symbol that `closing` says.
    fn marked(symbols: &[u32], closing: &[usize]) -> Vec<EmittedSymbol> {
        let mark = |at| {
            Some(SymbolBoundary {
                boundary: closing.contains(&at),
                probability: Some(at as f32 / 10.0),
                end_logprob: None,
            })
        };
        let character = |(at, &symbol)| EmittedSymbol { symbol, logprob: None, decision: mark(at), top: Vec::new() };
        symbols.iter().enumerate().map(character).collect()
    }

    #[test]
    fn offsets_are_in_bytes_and_characters() {
        let vocabulary = Vocabulary::from_symbols(&["a", "é"], TextNormaliser::None).unwrap();
        let found = segments(&marked(&[1, 0, 1, 1], &[1]), &vocabulary);
        let offsets = |s: &v1::Segment| (s.text.clone(), s.byte_start..s.byte_end, s.char_start..s.char_end, s.open);
        assert_eq!(offsets(&found[0]), ("éa".into(), 0..3, 0..2, false));
        assert_eq!(offsets(&found[1]), ("éé".into(), 3..7, 2..4, true));
        assert_eq!(found[0].boundary_probability, Some(0.1));
    }

    #[test]
    fn a_text_that_ends_with_a_boundary_has_no_open_segment() {
        let vocabulary = Vocabulary::from_symbols(&["a"], TextNormaliser::None).unwrap();
        let found = segments(&marked(&[0, 0], &[0, 1]), &vocabulary);
        assert_eq!(found.iter().map(|segment| segment.open).collect::<Vec<_>>(), [false, false]);
        assert!(segments(&[], &vocabulary).is_empty());
    }

    #[test]
    fn bytes_may_be_cut_within_a_code_point() {
        let vocabulary = Vocabulary::byte_level(TextNormaliser::None);
        let found = segments(&marked(&[0xc3, 0xa9, 0x61], &[0]), &vocabulary);
        assert_eq!((found[0].text.as_str(), found[0].byte_end), ("\u{fffd}", 1));
        assert_eq!((found[1].byte_start, found[1].byte_end), (1, 3));
    }
}
