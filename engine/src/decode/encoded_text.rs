//! The symbols of an edited text up to its last cursor, which outlive a search. After an edit, the next search encodes and digests
//! only the text after the last block that the edit left as it was.
//!
//! Whole blocks of the text are kept, in symbols that the requests of a search share. The text after the last block is short. Each
//! search encodes it again, and each request has its own copy.

use super::{
    contract::Card,
    shared_prefix::{SharedPrefix, SharedSymbols},
};
use crate::{error::Result, text::vocabulary::BYTES_PER_SYMBOL};
use std::sync::Arc;

/// Bytes of a block. One that ends within a character is longer.
const BLOCK_BYTES: usize = 1024;
/// Minimum bytes after the last block that make another one. More than a block, so that deleting and typing at the edge of a block
/// does not drop and add it each time.
const ADDED_BYTES: usize = 2 * BLOCK_BYTES;

/// The encoded beginning of a text.
#[derive(Debug, Default)]
pub struct EncodedText {
    /// The symbols of the blocks, and possibly stale symbols after them.
    symbols: Arc<SharedSymbols>,
    /// The end of each block, in order.
    ends: Vec<BlockEnd>,
}

/// The end of a block.
#[derive(Debug, Clone, Copy, Default)]
struct BlockEnd {
    /// Bytes of the text up to here.
    bytes: usize,
    /// Symbols of the text up to here.
    symbols: usize,
    /// The last character of the normalised text up to here.
    last: Option<char>,
}

impl EncodedText {
    /// Returns the bytes of the longest kept beginning of at most `bytes` bytes.
    pub fn kept_bytes(&self, bytes: usize) -> usize {
        self.end_before(bytes).bytes
    }

    /// Records that the text after the first `bytes` bytes has changed.
    pub fn truncate(&mut self, bytes: usize) {
        self.ends.truncate(self.blocks(bytes));
        if self.ends.is_empty() {
            self.symbols = Arc::default();
        }
    }

    /// Returns the bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.symbols.bytes() + self.ends.capacity() * size_of::<BlockEnd>()
    }

    /// Returns the bytes that the symbols of a text of `bytes` bytes take, at most.
    pub fn bytes_for(bytes: usize, card: &Card) -> usize {
        // the symbols, and for each block a digest and an end in vectors that may be half empty
        max_symbols(bytes, card).saturating_mul(size_of::<u32>() + 1).saturating_add(4 * BLOCK_BYTES)
    }

    /// Returns the bytes that a request copies of the symbols of a text of `bytes` bytes, at most.
    pub fn copied_bytes(bytes: usize, card: &Card) -> usize {
        max_symbols(bytes.min(ADDED_BYTES), card).saturating_mul(size_of::<u32>())
    }

    /// Encodes `text`, which begins as the kept text does, and keeps its blocks. Supports models of characters or bytes. Fails as
    /// [`Card::encode`] does.
    pub fn prefix(&mut self, field: &'static str, text: &str, card: &Card) -> Result<Arc<SharedPrefix>> {
        match self.encode(text, card) {
            Some(prefix) => Ok(prefix),
            // fails with the error for the whole text
            None => card.encode(field, text).map(SharedPrefix::new),
        }
    }

    /// Encodes `text`. Returns `None` if it is too long or has an unknown character.
    fn encode(&mut self, text: &str, card: &Card) -> Option<Arc<SharedPrefix>> {
        let vocabulary = &card.vocabulary;
        debug_assert!(!vocabulary.is_subword());
        if text.len() > card.max_symbols.saturating_mul(BYTES_PER_SYMBOL) {
            return None;
        }
        let BlockEnd { bytes, symbols, mut last } = self.end_before(text.len());
        let mut left = text.get(bytes..)?;
        let limit = card.max_symbols.checked_sub(symbols)?;
        let mut encoded = Vec::with_capacity(left.len().saturating_add(1).min(limit));
        if bytes == 0 {
            encoded.extend(vocabulary.marks().map(|marks| marks.start));
        }
        let mut ends = Vec::new();
        while left.len() >= ADDED_BYTES {
            let end = (BLOCK_BYTES..).find(|&end| left.is_char_boundary(end))?;
            let (block, rest) = left.split_at_checked(end)?;
            vocabulary.encode_piece(block, &mut last, limit, &mut encoded).ok()?;
            left = rest;
            ends.push(BlockEnd { bytes: text.len() - left.len(), symbols: symbols + encoded.len(), last });
        }
        let shared_len = ends.last().map_or(symbols, |end| end.symbols);
        vocabulary.encode_piece(left, &mut last, limit, &mut encoded).ok()?;
        if encoded.len() > limit {
            return None;
        }
        let rest = encoded.split_off(shared_len - symbols);
        if !ends.is_empty() {
            SharedSymbols::replace_after(&mut self.symbols, symbols, encoded);
            self.ends.extend(ends);
        }
        Some(SharedPrefix::of(Arc::clone(&self.symbols), shared_len, rest))
    }

    /// Returns the number of blocks that end within the first `bytes` bytes.
    fn blocks(&self, bytes: usize) -> usize {
        self.ends.partition_point(|end| end.bytes <= bytes)
    }

    /// Returns the end of the last of these blocks, or the start of the text.
    fn end_before(&self, bytes: usize) -> BlockEnd {
        self.blocks(bytes).checked_sub(1).and_then(|last| self.ends.get(last)).copied().unwrap_or_default()
    }
}

/// Returns the maximum symbols of a text of `bytes` bytes, if the model can read it.
pub(crate) fn max_symbols(bytes: usize, card: &Card) -> usize {
    bytes.saturating_mul(card.vocabulary.normaliser().max_chars_per_byte()).min(card.max_symbols)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        decode::random::{Purpose, uniform},
        text::{TextMarks, TextNormaliser, Vocabulary},
    };

    fn card(vocabulary: Vocabulary) -> Card {
        Card { max_symbols: 40_000, ..Card::for_tests(vocabulary) }
    }

    fn cards() -> Vec<Card> {
        let letters: Vec<String> = (' '..=' ').chain('a'..='z').map(String::from).collect();
        let marks = TextMarks { start: 254, end: 255 };
        vec![
            card(Vocabulary::byte_level(TextNormaliser::None)),
            card(Vocabulary::byte_level(TextNormaliser::Text8)),
            card(Vocabulary::byte_level_with_marks(marks, TextNormaliser::None).unwrap()),
            card(Vocabulary::from_symbols(&letters, TextNormaliser::Text8).unwrap()),
        ]
    }

    /// Returns the last edge of a character within the first `bytes` bytes.
    fn edge_before(text: &str, bytes: usize) -> usize {
        (0..=bytes.min(text.len())).rev().find(|&edge| text.is_char_boundary(edge)).unwrap_or(0)
    }

    /// Texts are edited at random, and prefixes of all revisions keep their symbols and digests.
    #[test]
    fn prefixes_are_those_of_whole_texts() {
        const PARTS: [&str; 8] = ["a", "the ", "  ", "É", "1", "e\u{301}", "日本", "\n"];
        for (number, card) in cards().into_iter().enumerate() {
            let mut encoded = EncodedText::default();
            let mut text = String::new();
            let mut earlier: Vec<(Arc<SharedPrefix>, Vec<u32>)> = Vec::new();
            let mut kept = 0;
            for round in 0..400_usize {
                let dice = |draw, sides: usize| {
                    (uniform(number as u64, Purpose::Sampling, 10 * round + draw) * sides as f32) as usize
                };
                let edge = |draw, near_end: bool| {
                    let back = dice(draw, if near_end { 30 } else { text.len() + 1 });
                    edge_before(&text, text.len().saturating_sub(back))
                };
                let count = if dice(1, 10) == 0 { 3000 } else { dice(2, 4) };
                let start = edge(3, dice(4, 6) > 0);
                let end = if dice(5, 3) == 0 { edge_before(&text, start + dice(6, 20)).max(start) } else { start };
                let part = PARTS[dice(7, PARTS.len())].repeat(count);
                text.replace_range(start..end, &part);
                text.truncate(edge_before(&text, 12_000));
                encoded.truncate(start);
                let cursor = edge_before(&text, text.len() - if dice(8, 3) == 0 { dice(9, text.len() + 1) } else { 0 });
                let read = &text[..cursor];
                let expected = card.encode("text", read).unwrap();
                let prefix = encoded.prefix("text", read, &card).unwrap();
                assert!(prefix.symbols() == &expected, "card {number}, round {round}");
                let whole =
                    crate::decode::text_window::TextView::from(&expected).digests().digest_before(expected.len());
                assert_eq!(prefix.text().digests().digest_before(expected.len()), whole);
                assert!(prefix.len() - prefix.shared_symbols().len() <= ADDED_BYTES * 7);
                kept += usize::from(encoded.kept_bytes(cursor) > 0);
                earlier.push((prefix, expected));
                if dice(0, 3) > 0 {
                    earlier.clear();
                }
                assert!(earlier.iter().all(|(prefix, expected)| prefix.symbols() == expected));
            }
            assert!(kept > 200, "{kept}");
        }
    }

    #[test]
    fn typing_at_the_end_encodes_only_the_last_blocks() {
        let card = card(Vocabulary::byte_level(TextNormaliser::None));
        let mut text = "a".repeat(20_000);
        let mut encoded = EncodedText::default();
        encoded.prefix("text", &text, &card).unwrap();
        let symbols = Arc::as_ptr(&encoded.symbols);
        for _ in 0..5_000 {
            text.push('b');
            encoded.truncate(text.len() - 1);
            assert!(text.len() - encoded.kept_bytes(text.len()) < ADDED_BYTES + 1);
            let prefix = encoded.prefix("text", &text, &card).unwrap();
            assert_eq!(prefix.len(), text.len());
        }
        assert_eq!(Arc::as_ptr(&encoded.symbols), symbols, "the symbols were copied");
        assert!(encoded.bytes() <= EncodedText::bytes_for(text.len(), &card), "{}", encoded.bytes());
        encoded.truncate(5_000);
        assert_eq!((encoded.kept_bytes(usize::MAX), encoded.kept_bytes(1_500)), (4 * BLOCK_BYTES, BLOCK_BYTES));
    }

    #[test]
    fn spelled_out_digits_fit_the_bytes_of_a_text() {
        for card in cards() {
            for part in ["3", "3a", "a", "É"] {
                let text = part.repeat(6_000 / part.len());
                let mut encoded = EncodedText::default();
                if encoded.prefix("text", &text, &card).is_ok() {
                    let limit = EncodedText::bytes_for(text.len(), &card);
                    assert!((1..=limit).contains(&encoded.bytes()), "{part}: {} of {limit}", encoded.bytes());
                }
            }
        }
    }

    /// A search in progress keeps its symbols, and the next one copies none that an edit made stale.
    #[test]
    fn stale_symbols_are_not_copied() {
        let card = card(Vocabulary::byte_level(TextNormaliser::None));
        let mut encoded = EncodedText::default();
        let text = "a".repeat(30_000);
        let earlier = encoded.prefix("text", &text, &card).unwrap();
        let edited = [&text[..3_000], "b", &text[..3_000]].concat();
        encoded.truncate(3_000);
        let next = encoded.prefix("text", &edited, &card).unwrap();
        assert!(encoded.symbols.bytes() < 5 * edited.len(), "{}", encoded.symbols.bytes());
        assert!(earlier.symbols() == &card.encode("text", &text).unwrap());
        assert!(next.symbols() == &card.encode("text", &edited).unwrap());
        encoded.truncate(0);
        assert_eq!(encoded.symbols.bytes(), 0);
    }

    #[test]
    fn errors_are_those_of_the_whole_text() {
        let letters: Vec<String> = ('a'..='z').map(String::from).collect();
        let card =
            Card { max_symbols: 6_000, ..card(Vocabulary::from_symbols(&letters, TextNormaliser::None).unwrap()) };
        let mut encoded = EncodedText::default();
        encoded.prefix("text", &"a".repeat(6_000), &card).unwrap();
        for text in ["a".repeat(6_001), "a".repeat(5_000) + "É", "aÉ".repeat(4_000), "a".repeat(300_000)] {
            let start = text.find('É').unwrap_or(text.len()).min(6_000);
            encoded.truncate(start);
            let expected = card.encode("text", &text).unwrap_err().to_string();
            assert_eq!(encoded.prefix("text", &text, &card).unwrap_err().to_string(), expected);
        }
    }
}
