//! The check that the bytes of a continuation are whole code points.

use crate::text::Vocabulary;
use std::str::from_utf8;

/// The bytes of a continuation; none if symbols are characters.
pub(super) struct Spelling(Vec<u8>);

impl Spelling {
    /// Spells the symbols of a continuation, which come last first.
    pub(super) fn new(vocabulary: &Vocabulary, reversed: impl Iterator<Item = u32>) -> Self {
        let mut bytes: Vec<u8> = reversed.map_while(|symbol| vocabulary.byte_of(symbol)).collect();
        bytes.reverse();
        // a code point has at most four bytes, and all before the last one are whole
        let last = bytes.iter().rposition(|byte| !(0x80..0xc0).contains(byte)).unwrap_or_default();
        Self(bytes.split_off(last))
    }

    /// True if the continuation ends with a whole code point.
    pub(super) fn is_whole(&self) -> bool {
        from_utf8(&self.0).is_ok()
    }

    /// True if a byte may follow: UTF-8 can go on after it, or ends with it if it `is_last`. Always true without a byte.
    pub(super) fn allows(&mut self, byte: Option<u8>, is_last: bool) -> bool {
        let Some(byte) = byte else { return true };
        self.0.push(byte);
        let allowed = from_utf8(&self.0).err().is_none_or(|error| error.error_len().is_none() && !is_last);
        self.0.pop();
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::TextNormaliser;

    #[test]
    fn continuations_are_whole_code_points() {
        let bytes = Vocabulary::byte_level(TextNormaliser::None);
        let reversed = |text: &[u8]| text.iter().rev().map(|&byte| u32::from(byte)).collect::<Vec<_>>();
        let mut whole = Spelling::new(&bytes, reversed("añ".as_bytes()).into_iter());
        assert!(whole.is_whole() && whole.allows(Some(b'x'), true) && whole.allows(Some(0xc3), false));
        assert!(
            !whole.allows(Some(0xc3), true) && !whole.allows(Some(0xa9), false) && !whole.allows(Some(0xff), false)
        );
        let mut open = Spelling::new(&bytes, reversed(&"añ€".as_bytes()[..5]).into_iter());
        assert!(!open.is_whole() && open.allows(Some(0xac), true) && !open.allows(Some(b'x'), false));
        assert!(open.allows(None, true) && Spelling::new(&bytes, std::iter::empty()).is_whole());
    }
}
