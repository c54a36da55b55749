//! The open documents. A document beyond a limit gets no completions; the others are not affected.

use crate::cli::lsp::protocol::{ContentChange, Position, TextRange};
use std::{collections::BTreeMap, ops::Range};

#[derive(Debug, Clone, Copy)]
pub(super) struct DocumentLimits {
    /// Maximum open documents.
    pub(super) documents: usize,
    pub(super) document_bytes: usize,
    /// Maximum bytes of all documents.
    pub(super) total_bytes: usize,
}

impl Default for DocumentLimits {
    fn default() -> Self {
        Self { documents: 256, document_bytes: 4 << 20, total_bytes: 64 << 20 }
    }
}

#[derive(Debug)]
pub(super) struct Documents {
    limits: DocumentLimits,
    /// The texts by their URIs; `None` for a document beyond a limit.
    texts: BTreeMap<String, Option<DocumentText>>,
    /// Bytes of all texts.
    bytes: usize,
}

impl Documents {
    pub(super) fn new(limits: DocumentLimits) -> Self {
        Self { limits, texts: BTreeMap::new(), bytes: 0 }
    }

    /// Returns the text of a document; `None` if it is not open or exceeds a limit.
    pub(super) fn text(&self, uri: &str) -> Option<&DocumentText> {
        self.texts.get(uri)?.as_ref()
    }

    /// Opens a document, in place of one with this URI. Fails if it is beyond a limit.
    pub(super) fn open(&mut self, uri: String, text: String) -> Result<(), String> {
        self.close(&uri);
        let limit = self.limits.documents;
        if self.texts.len() >= limit {
            return Err(format!("{uri}: expected at most {limit} open documents, found one more"));
        }
        let checked = self.check_bytes(&uri, text.len());
        let text = checked.is_ok().then(|| DocumentText::new(text));
        self.insert(uri, text);
        checked
    }

    /// Applies changes in their order. Does nothing for a document that is not open. Fails when the document first exceeds a
    /// limit, not at later changes.
    pub(super) fn change(
        &mut self,
        uri: &str,
        changes: Vec<ContentChange>,
        encoding: PositionEncoding,
    ) -> Result<(), String> {
        let Some(held) = self.texts.get_mut(uri) else { return Ok(()) };
        let mut text = held.take();
        let was_left_out = text.is_none();
        self.bytes -= text.as_ref().map_or(0, |text| text.text().len());
        let mut checked = Ok(());
        for ContentChange { range, text: with } in changes {
            let range = range.map(|range| (text.as_ref(), range));
            let replaced = match range {
                None => None,
                // The document was left out, so its text is unknown.
                Some((None, _)) => continue,
                Some((Some(text), range)) => Some(bytes(text, range, encoding)),
            };
            let kept = match (&text, &replaced) {
                (Some(text), Some(replaced)) => text.text().len() - replaced.len(),
                _ => 0,
            };
            checked = self.check_bytes(uri, kept + with.len());
            match (&mut text, replaced) {
                _ if checked.is_err() => text = None,
                (Some(text), Some(replaced)) => text.replace(replaced, &with),
                _ => text = Some(DocumentText::new(with)),
            }
        }
        self.insert(uri.to_owned(), text);
        if was_left_out { Ok(()) } else { checked }
    }

    /// Leaves out a document, or all without a URI: a change of it could not be read, so its text is unknown until it is opened again
    /// or sent whole. Returns the URIs of the documents whose text was known.
    pub(super) fn leave_out(&mut self, uri: Option<&str>) -> Vec<String> {
        let mut lost = Vec::new();
        for (own, text) in &mut self.texts {
            if uri.is_none_or(|uri| uri == own)
                && let Some(text) = text.take()
            {
                self.bytes -= text.text().len();
                lost.push(own.clone());
            }
        }
        lost
    }

    pub(super) fn close(&mut self, uri: &str) {
        if let Some(Some(text)) = self.texts.remove(uri) {
            self.bytes -= text.text().len();
        }
    }

    fn insert(&mut self, uri: String, text: Option<DocumentText>) {
        self.bytes += text.as_ref().map_or(0, |text| text.text().len());
        self.texts.insert(uri, text);
    }

    /// Checks a document's new length; the bytes of all documents exclude this one.
    fn check_bytes(&self, uri: &str, length: usize) -> Result<(), String> {
        let DocumentLimits { document_bytes, total_bytes, .. } = self.limits;
        let all = self.bytes + length;
        if length > document_bytes {
            return Err(format!(
                "{uri}: expected a document of at most {document_bytes} bytes, found {length}; it gets no completions"
            ));
        }
        if all > total_bytes {
            return Err(format!(
                "{uri}: expected at most {total_bytes} bytes in all open documents, found {all}; it gets no completions"
            ));
        }
        Ok(())
    }
}

/// Returns the bytes of a range. Its ends may come in either order.
fn bytes(text: &DocumentText, range: TextRange, encoding: PositionEncoding) -> Range<usize> {
    let one = text.offset(range.start, encoding);
    let other = text.offset(range.end, encoding);
    one.min(other)..one.max(other)
}

/// The unit of [`Position::character`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PositionEncoding {
    Utf8,
    /// The default of the protocol.
    Utf16,
}

/// A text with the offsets of its lines. A line ends with `\n`, `\r\n` or `\r`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DocumentText {
    text: String,
    /// The first byte of each line, ascending.
    lines: Vec<usize>,
}

impl PositionEncoding {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Utf8 => "utf-8",
            Self::Utf16 => "utf-16",
        }
    }

    fn width(self, character: char) -> usize {
        match self {
            Self::Utf8 => character.len_utf8(),
            Self::Utf16 => character.len_utf16(),
        }
    }
}

impl DocumentText {
    pub(super) fn new(text: String) -> Self {
        let lines = (0..=text.len()).filter(|&offset| begins_line(&text, offset)).collect();
        Self { text, lines }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the byte offset of a position. A position after the end of its line is the line's end. One after the last line is
    /// the end of the text, and one within a character is the character's beginning.
    pub(super) fn offset(&self, position: Position, encoding: PositionEncoding) -> usize {
        let line = position.line as usize;
        let Some(&start) = self.lines.get(line) else { return self.text.len() };
        let end = self.lines.get(line + 1).copied().unwrap_or(self.text.len());
        let content = self.text.get(start..end).unwrap_or_default().trim_end_matches(['\r', '\n']);
        let mut units = 0;
        for (offset, character) in content.char_indices() {
            units += encoding.width(character);
            if units > position.character as usize {
                return start + offset;
            }
        }
        start + content.len()
    }

    /// Returns the position of a byte offset on the edge of a character.
    pub(super) fn position(&self, offset: usize, encoding: PositionEncoding) -> Position {
        let line = self.lines.partition_point(|&start| start <= offset).saturating_sub(1);
        let start = self.lines.get(line).copied().unwrap_or_default();
        let before = self.text.get(start..offset).unwrap_or_default();
        let units: usize = before.chars().map(|character| encoding.width(character)).sum();
        let narrow = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Position { line: narrow(line), character: narrow(units) }
    }

    /// Replaces bytes between edges of characters. Reads no more than the lines from the replaced ones on.
    pub(super) fn replace(&mut self, range: Range<usize>, with: &str) {
        let Range { start, end } = range;
        self.text.replace_range(start..end, with);
        // Whether a line begins at an offset depends on the bytes before and after it.
        let kept = self.lines.partition_point(|&line| line < start);
        let moved = self.lines.partition_point(|&line| line <= end);
        for line in &mut self.lines[moved..] {
            *line = *line - end + start + with.len();
        }
        let text = &self.text;
        let changed = (start..=start + with.len()).filter(|&offset| begins_line(text, offset));
        self.lines.splice(kept..moved, changed);
    }
}

/// Returns true if a line begins at a byte.
fn begins_line(text: &str, offset: usize) -> bool {
    let bytes = text.as_bytes();
    match offset.checked_sub(1).map(|before| bytes[before]) {
        None | Some(b'\n') => true,
        Some(b'\r') => bytes.get(offset) != Some(&b'\n'),
        Some(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::lsp::documents::tests::PositionEncoding::{Utf8, Utf16};
    use crate::cli::lsp::protocol::Position;
    use proptest::prelude::*;

    fn limits() -> DocumentLimits {
        DocumentLimits { documents: 2, document_bytes: 8, total_bytes: 12 }
    }

    fn change(range: Option<[u32; 2]>, text: &str) -> ContentChange {
        let position = |character| Position { line: 0, character };
        let range = range.map(|[start, end]| TextRange { start: position(start), end: position(end) });
        ContentChange { range, text: text.into() }
    }

    fn text<'a>(documents: &'a Documents, uri: &str) -> Option<&'a str> {
        documents.text(uri).map(DocumentText::text)
    }

    #[test]
    fn changes_apply_in_their_order() {
        let mut documents = Documents::new(limits());
        documents.open("a".into(), "😀bc".into()).unwrap();
        // after the surrogate pair; then from the end to the beginning
        documents.change("a", vec![change(Some([2, 3]), "é"), change(Some([4, 3]), "")], Utf16).unwrap();
        assert_eq!(text(&documents, "a"), Some("😀é"));
        documents.change("a", vec![change(None, "new"), change(Some([3, 9]), "!")], Utf16).unwrap();
        assert_eq!(text(&documents, "a"), Some("new!"));
        documents.change("unknown", vec![change(None, "new")], Utf16).unwrap();
        assert_eq!((text(&documents, "unknown"), documents.bytes), (None, 4));
    }

    #[test]
    fn a_document_beyond_a_limit_is_left_out() {
        let mut documents = Documents::new(limits());
        let refused = documents.open("a".into(), "123456789".into()).unwrap_err();
        assert_eq!(refused, "a: expected a document of at most 8 bytes, found 9; it gets no completions");
        documents.change("a", vec![change(Some([0, 0]), "1")], Utf16).unwrap();
        assert_eq!(text(&documents, "a"), None);
        documents.change("a", vec![change(None, "0123456789")], Utf16).unwrap();
        // a whole text takes it in again
        documents.change("a", vec![change(None, "12345678")], Utf16).unwrap();
        assert_eq!(text(&documents, "a"), Some("12345678"));
        let refused = documents.change("a", vec![change(Some([0, 0]), "0")], Utf16).unwrap_err();
        assert!(refused.contains("at most 8 bytes, found 9"), "{}", refused);
        assert_eq!((text(&documents, "a"), documents.bytes), (None, 0));
        documents.open("b".into(), "12345678".into()).unwrap();
        let refused = documents.open("a".into(), "12345".into()).unwrap_err();
        assert!(refused.contains("at most 12 bytes in all open documents, found 13"), "{}", refused);
        let refused = documents.open("c".into(), String::new()).unwrap_err();
        assert_eq!(refused, "c: expected at most 2 open documents, found one more");
        documents.close("b");
        documents.open("a".into(), "1".into()).unwrap();
        assert_eq!((text(&documents, "a"), documents.bytes, documents.texts.len()), (Some("1"), 1, 1));
    }

    #[test]
    fn a_document_is_left_out_until_its_text_is_known() {
        let mut documents = Documents::new(limits());
        documents.open("a".into(), "1".into()).unwrap();
        documents.open("b".into(), "2".into()).unwrap();
        assert_eq!(documents.leave_out(Some("a")), ["a"]);
        assert_eq!((text(&documents, "a"), text(&documents, "b"), documents.bytes), (None, Some("2"), 1));
        assert_eq!((documents.leave_out(None), documents.bytes), (vec!["b".to_owned()], 0));
        documents.change("a", vec![change(Some([0, 1]), "3")], Utf16).unwrap();
        assert_eq!(text(&documents, "a"), None);
        documents.change("a", vec![change(None, "3")], Utf16).unwrap();
        documents.open("b".into(), "4".into()).unwrap();
        assert_eq!((text(&documents, "a"), text(&documents, "b"), documents.bytes), (Some("3"), Some("4"), 2));
    }

    fn position(line: u32, character: u32) -> Position {
        Position { line, character }
    }

    #[test]
    fn positions_count_units_of_their_encoding() {
        let text = DocumentText::new("aé😀b\r\n😀\rc\n".into());
        assert_eq!(text.lines, [0, 10, 15, 17]);
        for (line, character, utf16, utf8) in [
            (0, 0, 0, 0),
            (0, 2, 3, 1),
            // within the surrogate pair, within é
            (0, 3, 3, 3),
            (0, 4, 7, 3),
            (0, 5, 8, 3),
            (0, 7, 8, 7),
            (0, 99, 8, 8),
            (1, 1, 10, 10),
            (1, 2, 14, 10),
            (1, 4, 14, 14),
            (2, 1, 16, 16),
            (2, 2, 16, 16),
            (3, 0, 17, 17),
            (3, 9, 17, 17),
            (4, 0, 17, 17),
            (u32::MAX, u32::MAX, 17, 17),
        ] {
            let at = position(line, character);
            assert_eq!((text.offset(at, Utf16), text.offset(at, Utf8)), (utf16, utf8), "{at:?}");
        }
        assert_eq!(text.position(7, Utf16), position(0, 4));
        assert_eq!(text.position(7, Utf8), position(0, 7));
        assert_eq!(text.position(14, Utf16), position(1, 2));
        assert_eq!(text.position(17, Utf16), position(3, 0));
    }

    proptest! {
        #[test]
        fn lines_after_an_edit_are_those_of_the_text(
            text in "[a\r\né😀]{0,12}",
            edits in prop::collection::vec((0_usize..14, 0_usize..14, "[b\r\né]{0,4}"), 1..6),
        ) {
            let mut edited = DocumentText::new(text);
            for (one, other, with) in edits {
                let edge = |count: usize| {
                    edited.text().char_indices().map(|(offset, _)| offset).nth(count).unwrap_or(edited.text().len())
                };
                let range = edge(one.min(other))..edge(one.max(other));
                let mut naive = edited.text().to_owned();
                naive.replace_range(range.clone(), &with);
                edited.replace(range, &with);
                prop_assert_eq!(&edited, &DocumentText::new(naive));
            }
            for encoding in [Utf8, Utf16] {
                for (offset, _) in edited.text().char_indices() {
                    // an offset between \r and \n belongs to the end of its line
                    if !edited.text()[..offset].ends_with('\r') || edited.lines.contains(&offset) {
                        prop_assert_eq!(edited.offset(edited.position(offset, encoding), encoding), offset);
                    }
                }
            }
        }
    }
}
