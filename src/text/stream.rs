//! Symbols to text while they are being generated.
//!
//! The pieces of a stream, put together, are [`Vocabulary::decode`] of all symbols; no piece splits a code point.

use super::{Vocabulary, subwords::Spelling};
use std::sync::Arc;

/// Turns one symbol at a time into text.
#[derive(Debug, Clone)]
pub struct TextStream {
    vocabulary: Arc<Vocabulary>,
    /// Bytes that may yet become a code point: at most three between calls.
    pending: Vec<u8>,
    /// Of subwords: what was told and what is held back, an unfinished code point or a piece whose text the next one decides.
    spelling: Spelling,
    /// What the last call made complete; kept so that a call allocates nothing.
    piece: String,
}

impl TextStream {
    /// A stream that has seen nothing yet.
    pub fn new(vocabulary: Arc<Vocabulary>) -> Self {
        let (pending, piece) = (Vec::with_capacity(4), String::with_capacity(16));
        Self { vocabulary, pending, spelling: Spelling::default(), piece }
    }

    /// Takes the next symbol; returns the text that it completes, often one character, nothing within a code point of
    /// several bytes. An invalid byte becomes U+FFFD as soon as it is known to be one.
    pub fn push(&mut self, id: u32) -> &str {
        self.piece.clear();
        if self.vocabulary.is_pieces() {
            // without a tokenizer nothing has a text
            let subwords = self.vocabulary.subwords();
            self.piece = subwords.map(|subwords| subwords.spell(&mut self.spelling, id)).unwrap_or_default();
            return &self.piece;
        }
        match self.vocabulary.byte_of(id) {
            Some(byte) => {
                self.pending.push(byte);
                self.drain();
            }
            None => {
                self.give_up();
                self.piece.extend(self.vocabulary.surface(id));
            }
        }
        &self.piece
    }

    /// Ends the stream; returns what was held back: U+FFFD if a code point was left unfinished.
    pub fn finish(&mut self) -> &str {
        self.piece.clear();
        if let Some(subwords) = self.vocabulary.subwords() {
            self.piece = subwords.rest(&mut self.spelling);
            return &self.piece;
        }
        self.give_up();
        &self.piece
    }

    /// Moves what is complete from `pending` to `piece`.
    fn drain(&mut self) {
        loop {
            let (valid, invalid) = match std::str::from_utf8(&self.pending) {
                Ok(text) => (text, None),
                Err(error) => {
                    let (before, _) = self.pending.split_at(error.valid_up_to());
                    (std::str::from_utf8(before).unwrap_or_default(), error.error_len())
                }
            };
            let mut done = valid.len();
            self.piece.push_str(valid);
            if let Some(bytes) = invalid {
                self.piece.push(char::REPLACEMENT_CHARACTER);
                done += bytes;
            }
            self.pending.drain(..done);
            if invalid.is_none() {
                return;
            }
        }
    }

    fn give_up(&mut self) {
        if !self.pending.is_empty() {
            self.pending.clear();
            self.piece.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Normaliser;
    use proptest::prelude::*;

    fn bytes() -> TextStream {
        TextStream::new(Arc::new(Vocabulary::of_bytes(Normaliser::None)))
    }

    fn whole(mut stream: TextStream, ids: &[u32]) -> String {
        let mut text: String = ids.iter().map(|&id| stream.push(id).to_owned()).collect();
        text.push_str(stream.finish());
        assert_eq!(stream.finish(), "");
        text
    }

    #[test]
    fn a_code_point_comes_whole() {
        let mut stream = bytes();
        let pieces: Vec<_> = "a€b".bytes().map(|byte| stream.push(byte.into()).to_owned()).collect();
        assert_eq!(pieces, ["a", "", "", "€", "b"]);
        assert_eq!(stream.push(0xe2), "");
        assert_eq!(stream.push(0x28), "\u{fffd}(");
        assert_eq!(stream.push(0xff), "\u{fffd}");
        assert_eq!(stream.push(0xf0), "");
        assert_eq!(stream.finish(), "\u{fffd}");
    }

    #[test]
    fn characters_come_at_once() {
        let vocabulary = Vocabulary::of_symbols(&["é", " "], Normaliser::None).unwrap();
        let mut stream = TextStream::new(Arc::new(vocabulary));
        assert_eq!((stream.push(0).to_owned(), stream.push(1).to_owned()), ("é".into(), " ".into()));
        assert_eq!(stream.push(2), "\u{fffd}");
    }

    proptest! {
        #[test]
        fn pieces_add_up_to_the_lossy_whole(text in prop::collection::vec(any::<u8>(), 0..64)) {
            let ids: Vec<u32> = text.iter().map(|&byte| byte.into()).collect();
            prop_assert_eq!(whole(bytes(), &ids), String::from_utf8_lossy(&text));
        }

        #[test]
        fn cut_code_points_too(text in any::<String>(), start in 0_usize..4, end in 0_usize..4) {
            let bytes_of = text.as_bytes();
            let cut = bytes_of.get(start..bytes_of.len().saturating_sub(end)).unwrap_or_default();
            let ids: Vec<u32> = cut.iter().map(|&byte| byte.into()).collect();
            prop_assert_eq!(whole(bytes(), &ids), String::from_utf8_lossy(cut));
        }

        #[test]
        fn the_same_as_decoding(ids in prop::collection::vec(prop_oneof![0..256_u32, 0..300_u32], 0..64)) {
            prop_assert_eq!(whole(bytes(), &ids), Vocabulary::of_bytes(Normaliser::None).decode(&ids));
        }
    }
}
