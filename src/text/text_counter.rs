//! Counts the characters and bytes of the text of symbols.

use super::{StreamDetokenizer, Vocabulary};
use std::sync::Arc;

/// Size of the text of counted symbols.
#[derive(Debug, Clone)]
pub struct TextCounter {
    stream: StreamDetokenizer,
    /// Unicode characters.
    pub chars: usize,
    /// Bytes in UTF-8.
    pub bytes: usize,
}

impl TextCounter {
    /// Creates the counter of an empty text.
    pub fn new(vocabulary: Arc<Vocabulary>) -> Self {
        Self { stream: StreamDetokenizer::new(vocabulary), chars: 0, bytes: 0 }
    }

    /// Takes the next symbol of the text, and counts the text that it completes if `is_counted`.
    pub fn push(&mut self, symbol: u32, is_counted: bool) {
        let text = self.stream.push(symbol);
        if is_counted {
            self.chars += text.chars().count();
            self.bytes += text.len();
        }
    }

    /// Counts an unfinished code point at the end of the text.
    pub fn finish(&mut self) {
        let text = self.stream.finish();
        self.chars += text.chars().count();
        self.bytes += text.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::TextNormaliser;

    #[test]
    fn bytes_of_a_character_count_once() {
        let mut counter = TextCounter::new(Arc::new(Vocabulary::byte_level(TextNormaliser::None)));
        for (index, byte) in "aé€".bytes().enumerate() {
            counter.push(byte.into(), index > 0);
        }
        counter.push(0xe2, true);
        counter.finish();
        assert_eq!((counter.chars, counter.bytes), (3, 2 + 3 + 3));
    }
}
