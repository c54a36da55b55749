//! The text of an open document, and the positions in it.

use super::protocol::Position;
use std::ops::Range;

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
    /// Name in the protocol.
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
    use PositionEncoding::{Utf8, Utf16};
    use proptest::prelude::*;

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
