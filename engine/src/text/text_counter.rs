//! Counts the characters and bytes of the text of symbols.

use super::{StreamDetokenizer, TextNormaliser, Vocabulary};
use std::sync::Arc;

/// Size of the text of counted symbols.
#[derive(Debug, Clone)]
pub struct TextCounter {
    stream: StreamDetokenizer,
    vocabulary: Arc<Vocabulary>,
    /// Unicode characters.
    pub chars: usize,
    /// Bytes in UTF-8.
    pub bytes: usize,
}

impl TextCounter {
    /// Creates the counter of an empty text.
    pub fn new(vocabulary: Arc<Vocabulary>) -> Self {
        Self { stream: StreamDetokenizer::new(Arc::clone(&vocabulary)), vocabulary, chars: 0, bytes: 0 }
    }

    /// Returns the number of Unicode characters of the text of `symbols`.
    pub fn chars_of(symbols: &[u32], vocabulary: Arc<Vocabulary>) -> usize {
        let mut counter = Self::new(vocabulary);
        symbols.iter().for_each(|&symbol| counter.push(symbol, true));
        counter.finish();
        counter.chars
    }

    /// Takes the next symbol of the text, and counts the text that it completes if `is_counted`.
    pub fn push(&mut self, symbol: u32, is_counted: bool) {
        let is_byte = self.vocabulary.byte_of(symbol).is_some();
        let text = self.stream.push(symbol);
        if is_counted {
            self.chars += text.chars().count();
            // A character's last byte completes it, but each byte counts with its own symbol.
            self.bytes += if is_byte { 1 } else { text.len() };
        }
    }

    /// Counts the character that stands for an unfinished code point at the end of the text.
    pub fn finish(&mut self) {
        let text = self.stream.finish();
        self.chars += text.chars().count();
        if self.vocabulary.is_subword() {
            self.bytes += text.len();
        }
    }
}

/// Returns the number of Unicode characters of a text that was encoded to `symbols`, after normalisation.
pub fn text_chars(text: &str, symbols: &[u32], vocabulary: &Vocabulary) -> usize {
    // normalised characters are symbols
    if vocabulary.normaliser() == TextNormaliser::None { text.chars().count() } else { symbols.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_character_count_once() {
        let mut counter = TextCounter::new(Arc::new(Vocabulary::byte_level(TextNormaliser::None)));
        for (index, byte) in "aé€".bytes().enumerate() {
            counter.push(byte.into(), index > 0);
        }
        counter.push(0xe2, true);
        counter.finish();
        assert_eq!((counter.chars, counter.bytes), (3, 2 + 3 + 1));
    }

    /// The first symbol of a text may have no score.
    #[test]
    fn bytes_count_with_their_own_symbols() {
        let mut counter = TextCounter::new(Arc::new(Vocabulary::byte_level(TextNormaliser::None)));
        for (index, byte) in "é".bytes().enumerate() {
            counter.push(byte.into(), index > 0);
        }
        counter.finish();
        assert_eq!((counter.chars, counter.bytes), (1, 1));
    }
}
