//! The bytes of a text to symbols and back, in bounded memory, with the checksum of the text.

use super::container::{Digest, End};
use crate::{
    error::{Error, Result},
    text::{StreamTokenizer, TextNormaliser, Vocabulary},
};
use sha2::{Digest as _, Sha256};
use std::sync::Arc;

/// Name of the text in errors.
const TEXT: &str = "text";
/// Longest encoding of a character in UTF-8.
const MAX_CHARACTER: usize = 4;

/// Encodes a text that arrives in pieces. A text that is not normalised comes back byte by byte.
pub struct TextReader {
    vocabulary: Arc<Vocabulary>,
    /// Normalises the text, if the caller asked for it.
    normaliser: Option<StreamTokenizer>,
    /// The beginning of a character whose end did not arrive yet.
    incomplete: Vec<u8>,
    /// Bytes of the text before `incomplete`.
    bytes: u64,
    /// Characters of the text before `incomplete`.
    characters: usize,
    /// Checksum of the bytes that must come back.
    sha256: Sha256,
}

impl TextReader {
    /// Creates the reader of a text. With `normalise`, the text is rewritten like the model's training text; the rewritten text is
    /// then the one that comes back.
    pub fn new(vocabulary: &Arc<Vocabulary>, normalise: bool) -> Self {
        let normalises = normalise && vocabulary.normaliser() != TextNormaliser::None;
        let normaliser = normalises.then(|| StreamTokenizer::new(Arc::clone(vocabulary), TEXT, usize::MAX));
        let vocabulary = Arc::clone(vocabulary);
        Self { vocabulary, normaliser, incomplete: Vec::new(), bytes: 0, characters: 0, sha256: Sha256::new() }
    }

    /// Returns true if the decoded text is the one that was read. Always true if the reader normalises.
    pub fn is_read(&self, text: &End) -> bool {
        self.normaliser.is_some() || text.sha256 == Digest::from(self.sha256.clone().finalize())
    }

    /// Encodes a piece and appends its symbols. A model of bytes takes any bytes. Fails with [`Error::Unreadable`] if the text must
    /// be UTF-8 and is not, and with [`Error::UnknownSymbol`] or [`Error::NeedsNormaliser`] at the first character that is not in
    /// the vocabulary.
    pub fn push(&mut self, mut piece: &[u8], symbols: &mut Vec<u32>) -> Result<()> {
        self.sha256.update(piece);
        if let (Some(zero), None) = (self.vocabulary.byte_zero(), &self.normaliser) {
            symbols.extend(piece.iter().map(|&byte| zero + u32::from(byte)));
            return Ok(());
        }
        // a character that was cut is completed byte by byte
        while !self.incomplete.is_empty() {
            let Some((&byte, rest)) = piece.split_first() else { return Ok(()) };
            piece = rest;
            self.incomplete.push(byte);
            let bytes = std::mem::take(&mut self.incomplete);
            self.push_utf8(&bytes, symbols)?;
        }
        self.push_utf8(piece, symbols)
    }

    /// Ends the text. Fails with [`Error::Unreadable`] if its last character is incomplete.
    pub fn finish(&self) -> Result<()> {
        if self.incomplete.is_empty() { Ok(()) } else { Err(self.not_utf8(0)) }
    }

    /// Encodes the complete characters of `bytes`, and keeps an incomplete one.
    fn push_utf8(&mut self, bytes: &[u8], symbols: &mut Vec<u32>) -> Result<()> {
        let (text, rest) = match std::str::from_utf8(bytes) {
            Ok(text) => (text, &[][..]),
            Err(error) => {
                let (valid, rest) = bytes.split_at(error.valid_up_to());
                if error.error_len().is_some() || rest.len() >= MAX_CHARACTER {
                    return Err(self.not_utf8(valid.len()));
                }
                // valid up to here
                (std::str::from_utf8(valid).unwrap_or_default(), rest)
            }
        };
        self.encode(text, symbols)?;
        self.bytes += text.len() as u64;
        self.characters += text.chars().count();
        self.incomplete = rest.to_vec();
        Ok(())
    }

    fn encode(&mut self, text: &str, symbols: &mut Vec<u32>) -> Result<()> {
        let Some(normaliser) = &mut self.normaliser else { return self.encode_exactly(text, symbols) };
        let mut tokens = Vec::new();
        normaliser.push(text, &mut tokens)?;
        // the `unknown` symbol would not come back as the character that it stands for
        if let Some(token) = tokens.iter().find(|token| self.vocabulary.is_special(token.id)) {
            let (before, from) = text.split_at(token.start.saturating_sub(self.bytes) as usize);
            let found = format!("{:?}", from.chars().next().unwrap_or_default());
            let offset = self.characters + before.chars().count();
            return Err(Error::UnknownSymbol { field: TEXT, found, offset, unit: "character" });
        }
        symbols.extend(tokens.iter().map(|token| token.id));
        Ok(())
    }

    fn encode_exactly(&self, text: &str, symbols: &mut Vec<u32>) -> Result<()> {
        for (index, character) in text.chars().enumerate() {
            let Some(id) = self.vocabulary.id_of(character) else {
                let found = format!("{character:?}");
                let offset = self.characters + index;
                return Err(match self.vocabulary.normaliser() {
                    TextNormaliser::None => Error::UnknownSymbol { field: TEXT, found, offset, unit: "character" },
                    normaliser => {
                        let normaliser = normaliser.name();
                        Error::NeedsNormaliser { found, offset, normaliser, option: "normalise" }
                    }
                });
            };
            symbols.push(id);
        }
        Ok(())
    }

    fn not_utf8(&self, offset: usize) -> Error {
        let at = self.bytes + offset as u64;
        let why = format!("the text is not valid UTF-8 at byte {at}, and the model's symbols are not bytes");
        Error::Unreadable { field: Some(TEXT.into()), why }
    }
}

/// Decodes the symbols of a text in order, and computes the text's length and checksum.
pub struct TextWriter {
    vocabulary: Arc<Vocabulary>,
    sha256: Sha256,
    bytes: u64,
}

impl TextWriter {
    /// Creates the writer of a text.
    pub fn new(vocabulary: &Arc<Vocabulary>) -> Self {
        Self { vocabulary: Arc::clone(vocabulary), sha256: Sha256::new(), bytes: 0 }
    }

    /// Returns the bytes of the next symbols.
    pub fn push(&mut self, symbols: &[u32]) -> Vec<u8> {
        let bytes: Vec<u8> = match self.vocabulary.byte_zero() {
            // a mark of the model is a byte like all others here: files have bytes that texts never have
            Some(zero) => symbols.iter().map(|&symbol| symbol.wrapping_sub(zero) as u8).collect(),
            None => self.vocabulary.decode(symbols).into_bytes(),
        };
        self.sha256.update(&bytes);
        self.bytes += bytes.len() as u64;
        bytes
    }

    /// Returns the length of the text so far, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the length and the checksum of the text so far.
    pub fn end(&self) -> End {
        let sha256: Digest = self.sha256.clone().finalize().into();
        End { text_bytes: self.bytes, sha256 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::TextMarks;
    use proptest::prelude::*;

    fn letters() -> Arc<Vocabulary> {
        Arc::new(Vocabulary::from_symbols(&[" ", "a", "b", "é", "日"], TextNormaliser::None).unwrap())
    }

    fn english() -> Arc<Vocabulary> {
        let symbols: Vec<String> = std::iter::once(' ').chain('a'..='z').map(String::from).collect();
        Arc::new(Vocabulary::from_symbols(&symbols, TextNormaliser::Text8).unwrap())
    }

    fn read(vocabulary: &Arc<Vocabulary>, normalise: bool, text: &[u8], piece: usize) -> Result<Vec<u32>> {
        let mut reader = TextReader::new(vocabulary, normalise);
        let mut symbols = Vec::new();
        text.chunks(piece).try_for_each(|piece| reader.push(piece, &mut symbols))?;
        reader.finish().map(|()| symbols)
    }

    fn refusal(vocabulary: &Arc<Vocabulary>, text: &[u8]) -> String {
        read(vocabulary, false, text, 2).unwrap_err().to_string()
    }

    #[test]
    fn the_first_offender_is_named() {
        let letters = letters();
        let found = refusal(&letters, "aéé日x".as_bytes());
        assert_eq!(found, "text: expected symbols of the model's vocabulary, found 'x' at character 4");
        let normalisable = refusal(&english(), b"the end.");
        assert!(normalisable.contains(", found '.' at character 7; with "), "{normalisable}");
        assert!(normalisable.contains("text8") && normalisable.contains("normalise"), "{normalisable}");
        assert!(refusal(&letters, b"ab\xffa").contains("at byte 2"));
        assert!(refusal(&letters, "a日".as_bytes().split_last().unwrap().1).contains("at byte 1"));
        assert!(refusal(&letters, b"a\xc3a").contains("at byte 1"));
    }

    #[test]
    fn a_normalised_text_is_the_one_that_comes_back() {
        for piece in 1..9 {
            let symbols = read(&english(), true, "Café,  No. 7!".as_bytes(), piece).unwrap();
            assert_eq!(TextWriter::new(&english()).push(&symbols), b"cafe no seven ");
            // without a normaliser nothing is rewritten
            assert!(read(&letters(), true, b"A", piece).is_err());
        }
    }

    proptest! {
        #[test]
        fn texts_come_back_however_they_are_split(text in "[ abé日]{0,40}", piece in 1usize..9) {
            let symbols = read(&letters(), false, text.as_bytes(), piece).unwrap();
            prop_assert_eq!(symbols.len(), text.chars().count());
            prop_assert_eq!(TextWriter::new(&letters()).push(&symbols), text.as_bytes());
        }

        #[test]
        fn byte_models_take_any_bytes(
            bytes in proptest::collection::vec(any::<u8>(), 0..80), piece in 1usize..9, has_marks: bool,
        ) {
            let marks = TextMarks { start: 254, end: 255 };
            let marked = Vocabulary::byte_level_with_marks(marks, TextNormaliser::None).unwrap();
            let vocabulary = Arc::new(if has_marks { marked } else { Vocabulary::byte_level(TextNormaliser::None) });
            let symbols = read(&vocabulary, false, &bytes, piece).unwrap();
            let mut writer = TextWriter::new(&vocabulary);
            let (first, second) = symbols.split_at(symbols.len() / 2);
            prop_assert_eq!([writer.push(first), writer.push(second)].concat(), bytes.clone());
            prop_assert_eq!(writer.end(), End { text_bytes: bytes.len() as u64, sha256: Sha256::digest(&bytes).into() });
        }
    }
}
