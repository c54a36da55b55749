//! The text of a document while a client edits it.

use crate::options::bad;
use crate::text_window::{SharedPrefix, SharedSymbols};
use std::{ops::Range, sync::Arc};
use weir_kernels::error::{Error, Result};
use weir_models::{contract::Card, text::vocabulary::BYTES_PER_SYMBOL};

/// Path of the splices in their message.
const SPLICES: &str = "splice.splices";

/// Free bytes of a text that has grown.
const SPARE_BYTES: usize = 1024;

/// A replacement of a part of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Splice {
    /// Bytes of the text that are replaced.
    pub range: Range<usize>,
    /// The text that replaces them.
    pub text: String,
}

/// A text with the number of its revision. Clones share the text until one of them changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EditedText {
    text: Arc<String>,
    revision: u64,
    /// Maximum bytes.
    limit: usize,
}

impl EditedText {
    /// Creates the first revision. Fails with [`Error::TooLong`] if the text has more than `limit` bytes.
    pub fn new(text: String, revision: u64, limit: usize) -> Result<Self> {
        check_length("open.text", text.len(), limit)?;
        Ok(Self { text: Arc::new(text), revision, limit })
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Number of its revision.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Applies splices in their order, or fails as [`check`](Self::check) does and changes nothing. The time does not depend on
    /// the text before the splices, unless clones share the text or it must grow.
    pub fn apply(&mut self, revision: u64, splices: &[Splice]) -> Result<()> {
        let all_pieces = self.spliced(revision, splices)?;
        if self.is_shared() {
            self.text = Arc::new(all_pieces.concat());
            self.revision = revision;
            return Ok(());
        }
        let mut pieces = &all_pieces[..];
        let mut changed = 0..self.text.len();
        // the unchanged beginning and end, which are the same memory, stay in place
        if let Some((head, others)) = pieces.split_first().filter(|(head, _)| head.as_ptr() == self.text.as_ptr()) {
            changed.start = head.len();
            pieces = others;
        }
        if let Some((tail, others)) = pieces.split_last().filter(|(tail, _)| is_end(tail, &self.text[changed.start..]))
        {
            changed.end -= tail.len();
            pieces = others;
        }
        let replacement = pieces.concat();
        self.revision = revision;
        let text = Arc::make_mut(&mut self.text);
        let added = replacement.len().saturating_sub(changed.len());
        if text.capacity() - text.len() < added {
            text.reserve_exact(added.saturating_add(SPARE_BYTES));
        }
        text.replace_range(changed, &replacement);
        // leaves room below the bound, so that not every deletion moves the text
        if text.capacity() > text.len() + 2 * SPARE_BYTES {
            text.shrink_to(text.len() + SPARE_BYTES);
        }
        Ok(())
    }

    /// Checks whether splices may be applied: the revision is later, ranges lie within the text and cut no character, and the
    /// text does not become too long.
    pub fn check(&self, revision: u64, splices: &[Splice]) -> Result<()> {
        self.spliced(revision, splices).map(drop)
    }

    /// Returns the pieces of the text that splices leave.
    fn spliced<'a>(&'a self, revision: u64, splices: &'a [Splice]) -> Result<Vec<&'a str>> {
        if revision <= self.revision {
            return Err(bad("splice.revision", revision, format!("more than {}", self.revision)));
        }
        let mut pieces = Pieces { pieces: vec![&self.text[..]], len: self.text.len() };
        for (index, splice) in splices.iter().enumerate() {
            let in_item = |error| Error::InItem { list: SPLICES, index, error: Box::new(error) };
            pieces.apply(splice, self.limit).map_err(in_item)?;
        }
        Ok(pieces.pieces)
    }

    /// Returns the bytes that [`apply`](Self::apply) would copy or move, not counting the new texts.
    pub fn moved_bytes(&self, splices: &[Splice]) -> usize {
        let start = first_changed(splices).filter(|_| !self.is_shared());
        self.text.len() - start.unwrap_or(0).min(self.text.len())
    }

    fn is_shared(&self) -> bool {
        Arc::strong_count(&self.text) > 1
    }

    /// Fails if an offset lies beyond the end of the text or within a character.
    pub fn check_offset(&self, field: &'static str, offset: usize) -> Result<()> {
        check_offset(field, offset, self.text.len(), self.text.is_char_boundary(offset))
    }
}

/// Returns the first byte at which splices change a text; none if there are no splices.
pub fn first_changed(splices: &[Splice]) -> Option<usize> {
    // each leaves the text before its start as it was
    splices.iter().map(|splice| splice.range.start).min()
}

/// Returns true if `part` ends at the last byte of `text` in memory. Compares addresses, not contents.
fn is_end(part: &str, text: &str) -> bool {
    part.len() <= text.len() && std::ptr::eq(part.as_bytes().as_ptr_range().end, text.as_bytes().as_ptr_range().end)
}

/// A text that consists of parts of others.
struct Pieces<'a> {
    pieces: Vec<&'a str>,
    len: usize,
}

impl<'a> Pieces<'a> {
    /// Replaces a part of the text. Fails as [`EditedText::check`] does, and then changes nothing.
    fn apply(&mut self, Splice { range, text }: &'a Splice, limit: usize) -> Result<()> {
        self.check_offset("start_byte", range.start)?;
        self.check_offset("end_byte", range.end)?;
        if range.end < range.start {
            return Err(bad("end_byte", range.end, format!("at least start_byte, {}", range.start)));
        }
        check_length("text", self.len - range.len() + text.len(), limit)?;
        self.replace(range, text);
        Ok(())
    }

    /// Fails if an offset lies beyond the end of the text or within a character.
    fn check_offset(&self, field: &'static str, offset: usize) -> Result<()> {
        let (index, within) = self.find(offset);
        let is_edge = self.pieces.get(index).is_none_or(|piece| piece.is_char_boundary(within));
        check_offset(field, offset, self.len, is_edge)
    }

    /// Returns the index of the piece that holds the byte at `offset`, and the byte's offset in it.
    fn find(&self, offset: usize) -> (usize, usize) {
        let mut within = offset;
        for (index, piece) in self.pieces.iter().enumerate() {
            if within < piece.len() {
                return (index, within);
            }
            within -= piece.len();
        }
        (self.pieces.len(), within)
    }

    /// Returns the index of the piece that begins at `offset`, an edge of a character.
    fn split(&mut self, offset: usize) -> usize {
        let (index, within) = self.find(offset);
        let Some((head, tail)) = self.pieces.get(index).and_then(|piece| piece.split_at_checked(within)) else {
            return index;
        };
        if head.is_empty() {
            return index;
        }
        self.pieces.splice(index..=index, [head, tail]);
        index + 1
    }

    fn replace(&mut self, range: &Range<usize>, text: &'a str) {
        let start = self.split(range.start);
        let end = self.split(range.end);
        self.pieces.splice(start..end, (!text.is_empty()).then_some(text));
        self.len = self.len - range.len() + text.len();
    }
}

fn check_offset(field: &'static str, offset: usize, len: usize, is_edge: bool) -> Result<()> {
    if offset > len {
        return Err(bad(field, offset, format!("at most {len}, the bytes of the text")));
    }
    if !is_edge {
        return Err(bad(field, format!("{offset}, within a character"), "the edge of a character".into()));
    }
    Ok(())
}

fn check_length(field: &'static str, length: usize, limit: usize) -> Result<()> {
    if length <= limit {
        return Ok(());
    }
    Err(Error::TooLong { field, length, limit, unit: "bytes of text", why: None })
}

// The symbols of an edited text up to its last cursor, in blocks that outlive a search. After an edit, the next search encodes
// and digests only the text after the last block that the edit left as it was.

/// Bytes of a block. One that ends within a character is longer.
const BLOCK_BYTES: usize = 1024;

/// Minimum bytes after the last block that make another one. More than a block, so that edits at its edge do not add and drop
/// it.
const ADDED_BYTES: usize = 2 * BLOCK_BYTES;

/// The encoded beginning of a text.
#[derive(Debug, Default)]
pub struct EncodedText {
    /// The symbols of the blocks, and possibly stale symbols after them.
    symbols: Arc<SharedSymbols>,
    ends: Vec<BlockEnd>,
}

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

    /// Encodes `text`, which begins as the kept text does, and keeps its blocks. Fails as [`Card::encode`] does.
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
    use proptest::prelude::*;
    use weir_kernels::error::floor_boundary;
    use weir_models::random::{Purpose, uniform};
    use weir_models::text::{TextMarks, TextNormaliser, Vocabulary};

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
                let below = |draw, sides: usize| {
                    (uniform(number as u64, Purpose::Sampling, 10 * round + draw) * sides as f32) as usize
                };
                let edge = |draw, near_end: bool| {
                    let back = below(draw, if near_end { 30 } else { text.len() + 1 });
                    floor_boundary(&text, text.len().saturating_sub(back))
                };
                let count = if below(1, 10) == 0 { 3000 } else { below(2, 4) };
                let start = edge(3, below(4, 6) > 0);
                let end = if below(5, 3) == 0 { floor_boundary(&text, start + below(6, 20)).max(start) } else { start };
                let part = PARTS[below(7, PARTS.len())].repeat(count);
                text.replace_range(start..end, &part);
                text.truncate(floor_boundary(&text, 12_000));
                encoded.truncate(start);
                let cursor =
                    floor_boundary(&text, text.len() - if below(8, 3) == 0 { below(9, text.len() + 1) } else { 0 });
                let read = &text[..cursor];
                let expected = card.encode("text", read).unwrap();
                let prefix = encoded.prefix("text", read, &card).unwrap();
                assert!(prefix.symbols() == &expected, "card {number}, round {round}");
                let whole = crate::text_window::TextView::from(&expected).digests().digest_before(expected.len());
                assert_eq!(prefix.text().digests().digest_before(expected.len()), whole);
                assert!(prefix.len() - prefix.shared_symbols().len() <= ADDED_BYTES * 7);
                kept += usize::from(encoded.kept_bytes(cursor) > 0);
                earlier.push((prefix, expected));
                if below(0, 3) > 0 {
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

    fn splice(range: Range<usize>, text: &str) -> Splice {
        Splice { range, text: text.into() }
    }

    #[test]
    fn a_wrong_splice_changes_nothing() {
        let mut text = EditedText::new("né".into(), 5, 9).unwrap();
        let before = text.clone();
        for (revision, splices, expected) in [
            (5, vec![], "splice.revision: expected more than 5, found 5"),
            (
                6,
                vec![splice(0..1, "ab"), splice(0..5, "")],
                "splice.splices[1].end_byte: expected at most 4, the bytes of the text, found 5",
            ),
            (
                6,
                vec![splice(2..3, "")],
                "splice.splices[0].start_byte: expected the edge of a character, found 2, within a character",
            ),
            (
                6,
                vec![splice(Range { start: 1, end: 0 }, "")],
                "splice.splices[0].end_byte: expected at least start_byte, 1, found 0",
            ),
            (
                6,
                vec![splice(3..3, "abcd"), splice(0..0, "abc")],
                "splice.splices[1].text: expected at most 9 bytes of text, found 10",
            ),
        ] {
            assert_eq!(text.apply(revision, &splices).unwrap_err().to_string(), expected);
            assert_eq!(text, before);
        }
        text.apply(9, &[splice(0..1, ""), splice(2..2, "a")]).unwrap();
        assert_eq!((text.text(), text.revision()), ("éa", 9));
        assert!(EditedText::new("1234567890".into(), 0, 9).is_err());
    }

    /// Deletions move a text only once for each KiB that they free.
    #[test]
    fn a_text_has_few_free_bytes() {
        let mut text = EditedText::new("a".repeat(10_000), 0, 1 << 20).unwrap();
        let mut moves = 0;
        for revision in 1..=9_000 {
            let before = text.text.capacity();
            let end = text.text().len();
            text.apply(revision, &[splice(end - 1..end, "")]).unwrap();
            moves += usize::from(text.text.capacity() != before);
            assert!(text.text.capacity() <= text.text().len() + 2 * SPARE_BYTES);
        }
        assert!(moves <= 9, "{moves}");
        let shared = text.clone();
        text.apply(9_001, &[splice(500..501, "b")]).unwrap();
        assert_eq!(text.text.capacity(), text.text().len(), "a copy has no free bytes");
        assert_eq!((shared.text().len(), shared.text().contains('b')), (1_000, false));
    }

    proptest! {
        #[test]
        fn splices_apply_in_order_or_not_at_all(
            splices in prop::collection::vec((0_usize..12, 0_usize..12, "[a-cé]{0,3}"), 0..6),
        ) {
            let mut edited = EditedText::new("abécd".into(), 0, 14).unwrap();
            let mut naive = Some("abécd".to_owned());
            let splices: Vec<_> = splices.into_iter().map(|(start, end, text)| splice(start..end, &text)).collect();
            for Splice { range, text } in &splices {
                naive = naive.and_then(|before| {
                    let (head, tail) = (before.get(..range.start)?, before.get(range.end..)?);
                    (range.start <= range.end).then(|| [head, text, tail].concat()).filter(|after| after.len() <= 14)
                });
            }
            prop_assert_eq!(edited.check(1, &splices).is_ok(), naive.is_some());
            let applied = edited.apply(1, &splices);
            prop_assert_eq!(applied.is_ok(), naive.is_some());
            prop_assert_eq!(edited.text(), naive.as_deref().unwrap_or("abécd"));
        }
    }
}
