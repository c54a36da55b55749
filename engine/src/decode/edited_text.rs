//! The text of a document while a client edits it.

use super::options::bad;
use crate::error::{Error, Result};
use std::{ops::Range, sync::Arc};

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

    /// Applies splices in their order. Copies the text if clones share it. Otherwise the time does not depend on the length of the
    /// text before the splices, except when the text must grow. Fails and changes nothing as [`check`](Self::check) does.
    pub fn apply(&mut self, revision: u64, splices: &[Splice]) -> Result<()> {
        let all_pieces = self.spliced(revision, splices)?;
        if self.is_shared() {
            self.text = Arc::new(all_pieces.concat());
            self.revision = revision;
            return Ok(());
        }
        let mut pieces = &all_pieces[..];
        let mut changed = 0..self.text.len();
        // the unchanged beginning and end stay in place
        if let Some((head, others)) = pieces.split_first().filter(|(head, _)| is_beginning(head, &self.text)) {
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

    /// Checks whether splices may be applied. Takes no longer for a long text. Fails if the revision is not later, if a range lies
    /// outside of the text as the splices before it left it or cuts a character, or if the text would become too long.
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

    /// Returns the bytes that [`apply`](Self::apply) would copy or move, without those of the new texts.
    pub fn moved_bytes(&self, splices: &[Splice]) -> usize {
        let start = first_changed(splices).filter(|_| !self.is_shared());
        self.text.len() - start.unwrap_or(0).min(self.text.len())
    }

    /// Returns true if clones share the text.
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

/// Returns true if `part` starts at the first byte of `text` in memory. Compares addresses, not contents.
fn is_beginning(part: &str, text: &str) -> bool {
    std::ptr::eq(part.as_ptr(), text.as_ptr())
}

/// Returns true if `part` ends at the last byte of `text` in memory. Compares addresses, not contents.
fn is_end(part: &str, text: &str) -> bool {
    part.len() <= text.len() && std::ptr::eq(part.as_bytes().as_ptr_range().end, text.as_bytes().as_ptr_range().end)
}

/// A text that consists of parts of others.
struct Pieces<'a> {
    pieces: Vec<&'a str>,
    /// Bytes of all of them.
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

    /// Replaces a range between edges of characters.
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
