//! Turns boundary decisions into segments with offsets.

use super::pieces::{ends_segment, is_cut};
use crate::{
    decode::{boundary::levels, options::EmittedSymbol},
    text::Vocabulary,
};
use weir_proto::v1;

/// Returns the segments of a text, in order. Together they cover all of it.
pub fn segments(characters: &[EmittedSymbol], vocabulary: &Vocabulary) -> Vec<v1::Segment> {
    let mut all = Vec::new();
    let mut byte = 0;
    let mut char = 0;
    let mut last_end = true;
    for run in characters.chunk_by(|before, after| !is_cut(before, after)) {
        let ids: Vec<_> = run.iter().map(|character| character.symbol).collect();
        let text = vocabulary.decode(&ids);
        let chars = vocabulary.count_without_marks(&ids);
        // Byte symbols count themselves: the text may contain replacement characters.
        let bytes = if vocabulary.is_bytes() { chars } else { text.len() };
        let begins = run.first().and_then(|first| first.decision).filter(|first| first.begins_segment());
        let decided = begins.or_else(|| run.last()?.decision);
        last_end = run.last().is_some_and(ends_segment);
        let segment = v1::Segment {
            text,
            byte_start: byte,
            byte_end: byte + bytes as u64,
            char_start: char,
            char_end: char + chars as u64,
            boundary_probability: decided.and_then(|decision| decision.probability),
            open: false,
            chunk_depth: begins.map_or(0, |first| first.depth.into()),
        };
        byte = segment.byte_end;
        char = segment.char_end;
        all.push(segment);
    }
    // only the last segment of a text may go on after it
    all.last_mut().into_iter().for_each(|last: &mut v1::Segment| last.open = !last_end);
    all
}

/// Returns the boundaries of each level, if there are several.
pub fn boundary_levels(characters: &[EmittedSymbol]) -> Vec<v1::BoundaryLevel> {
    let levels = levels(characters.iter().map(|character| character.decision.map_or(0, |decision| decision.depth)));
    let level = |level: Vec<u8>| v1::BoundaryLevel { boundaries: level.into_iter().map(u32::from).collect() };
    if levels.len() > 1 { levels.into_iter().map(level).collect() } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{decode::contract::SymbolBoundary, text::TextNormaliser};

    /// Returns the symbols, with a boundary after each index in `closing`.
    fn emitted(symbols: &[u32], closing: &[usize]) -> Vec<EmittedSymbol> {
        let decision = |index| {
            Some(SymbolBoundary {
                boundary: closing.contains(&index),
                depth: 0,
                probability: Some(index as f32 / 10.0),
                end_logprob: None,
            })
        };
        let character = |(index, &symbol)| EmittedSymbol {
            symbol,
            logprob: None,
            decision: decision(index),
            top: Vec::new(),
            cut: None,
        };
        symbols.iter().enumerate().map(character).collect()
    }

    #[test]
    fn offsets_are_in_bytes_and_characters() {
        let vocabulary = Vocabulary::from_symbols(&["a", "é"], TextNormaliser::None).unwrap();
        let segments = super::segments(&emitted(&[1, 0, 1, 1], &[1]), &vocabulary);
        let offsets = |s: &v1::Segment| (s.text.clone(), s.byte_start..s.byte_end, s.char_start..s.char_end, s.open);
        assert_eq!(offsets(&segments[0]), ("éa".into(), 0..3, 0..2, false));
        assert_eq!(offsets(&segments[1]), ("éé".into(), 3..7, 2..4, true));
        assert_eq!(segments[0].boundary_probability, Some(0.1));
    }

    #[test]
    fn a_text_that_ends_with_a_boundary_has_no_open_segment() {
        let vocabulary = Vocabulary::from_symbols(&["a"], TextNormaliser::None).unwrap();
        let segments = super::segments(&emitted(&[0, 0], &[0, 1]), &vocabulary);
        assert_eq!(segments.iter().map(|segment| segment.open).collect::<Vec<_>>(), [false, false]);
        assert!(super::segments(&[], &vocabulary).is_empty());
    }

    #[test]
    fn bytes_may_be_cut_within_a_code_point() {
        let vocabulary = Vocabulary::byte_level(TextNormaliser::None);
        let segments = super::segments(&emitted(&[0xc3, 0xa9, 0x61], &[0]), &vocabulary);
        assert_eq!((segments[0].text.as_str(), segments[0].byte_end), ("\u{fffd}", 1));
        assert_eq!((segments[1].byte_start, segments[1].byte_end), (1, 3));
    }
}
