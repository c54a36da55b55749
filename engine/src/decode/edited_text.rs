//! The text of a document while a client edits it.

use super::options::bad;
use crate::error::{Error, Result};
use std::{ops::Range, sync::Arc};

/// Path of the splices in their message.
const SPLICES: &str = "splice.splices";

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

    /// Returns an upper bound on the bytes that applying `splices` moves, including a copy of the text in case clones share
    /// it.
    pub fn moved_bytes(&self, splices: &[Splice]) -> usize {
        let mut length = self.text.len();
        let mut moved = length;
        for Splice { range, text } in splices {
            length = length.saturating_add(text.len());
            moved = moved.saturating_add(length.saturating_sub(range.start));
        }
        moved
    }

    /// Applies splices in their order. Fails and changes nothing if the revision is not later, if a range lies outside of the text
    /// as the splices before it left it or cuts a character, or if the text would become too long.
    pub fn apply(&mut self, revision: u64, splices: &[Splice]) -> Result<()> {
        if revision <= self.revision {
            return Err(bad("splice.revision", revision, format!("more than {}", self.revision)));
        }
        let mut undo = Vec::new();
        for (index, splice) in splices.iter().enumerate() {
            match self.splice(splice) {
                Ok(inverse) => undo.push(inverse),
                Err(error) => {
                    for Splice { range, text } in undo.into_iter().rev() {
                        Arc::make_mut(&mut self.text).replace_range(range, &text);
                    }
                    return Err(Error::InItem { list: SPLICES, index, error: Box::new(error) });
                }
            }
        }
        self.revision = revision;
        Ok(())
    }

    /// Replaces a part of the text. Returns the splice that takes it back.
    fn splice(&mut self, splice: &Splice) -> Result<Splice> {
        let Splice { range, text } = splice;
        self.check_offset("start_byte", range.start)?;
        self.check_offset("end_byte", range.end)?;
        if range.end < range.start {
            return Err(bad("end_byte", range.end, format!("at least start_byte, {}", range.start)));
        }
        check_length("text", self.text.len() - range.len() + text.len(), self.limit)?;
        let before = self.text[range.clone()].to_owned();
        Arc::make_mut(&mut self.text).replace_range(range.clone(), text);
        Ok(Splice { range: range.start..range.start + text.len(), text: before })
    }

    /// Fails if an offset lies beyond the end of the text or within a character.
    pub fn check_offset(&self, field: &'static str, offset: usize) -> Result<()> {
        if offset > self.text.len() {
            return Err(bad(field, offset, format!("at most {}, the bytes of the text", self.text.len())));
        }
        if !self.text.is_char_boundary(offset) {
            return Err(bad(field, format!("{offset}, within a character"), "the edge of a character".into()));
        }
        Ok(())
    }
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

    #[test]
    fn moved_bytes_grow_with_the_text_after_each_splice() {
        let text = EditedText::new("a".repeat(1000), 0, 9000).unwrap();
        assert_eq!(text.moved_bytes(&[]), 1000);
        assert_eq!(text.moved_bytes(&[splice(1000..1000, "b")]), 1001);
        assert_eq!(text.moved_bytes(&[splice(0..1, "bc"), splice(0..1, "")]), 1000 + 1002 + 1002);
        assert_eq!(text.moved_bytes(&[splice(usize::MAX..usize::MAX, "")]), 1000);
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
            let applied = edited.apply(1, &splices);
            prop_assert_eq!(applied.is_ok(), naive.is_some());
            prop_assert_eq!(edited.text(), naive.as_deref().unwrap_or("abécd"));
        }
    }
}
