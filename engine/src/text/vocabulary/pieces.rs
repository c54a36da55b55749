//! Vocabularies whose symbols are the pieces of a subword tokenizer.

use super::{MAX_SYMBOLS, Symbols, Vocabulary, VocabularyError};
use crate::{
    error::{Error, Result},
    text::{Subword, SubwordTokenizer, TextNormaliser, TokenMarks},
};
use std::sync::Arc;

impl Vocabulary {
    /// Creates a vocabulary of `count` ids. Without a tokenizer, ids have no text. Fails if `count` is 0, above
    /// [`MAX_SYMBOLS`], or below the number of ids of the tokenizer.
    pub fn from_tokenizer(
        count: usize,
        tokenizer: Option<Arc<SubwordTokenizer>>,
        normaliser: TextNormaliser,
    ) -> Result<Self, VocabularyError> {
        let min = tokenizer.as_ref().map_or(0, |tokenizer| tokenizer.len()).max(1);
        if !(min..=MAX_SYMBOLS).contains(&count) {
            let expected = format!("{min} to {MAX_SYMBOLS}, at least the number of the tokenizer's pieces");
            return Err(VocabularyError::new("vocabulary.size", expected, count.to_string()));
        }
        Ok(Self::of_symbols(Symbols::Subwords { count, tokenizer, marks: None }, None, normaliser))
    }

    /// Creates the vocabulary of a model with `count` ids that continues prompts: tokens, and the marks around a text. Fails as
    /// [`from_tokenizer`](Self::from_tokenizer) does, and if a mark is not below `count`.
    pub fn from_tokens(
        count: usize,
        tokenizer: Option<Arc<SubwordTokenizer>>,
        marks: TokenMarks,
    ) -> Result<Self, VocabularyError> {
        let named =
            marks.start.iter().map(|id| ("bos_token_id", id)).chain(marks.ends.iter().map(|id| ("eos_token_id", id)));
        for (key, &id) in named {
            if id as usize >= count {
                return Err(VocabularyError::new(key, format!("an id below vocab_size, {count}"), id.to_string()));
            }
        }
        let mut vocabulary = Self::from_tokenizer(count, tokenizer, TextNormaliser::None)
            .map_err(|error| VocabularyError { key: "vocab_size".into(), ..error })?;
        if let Symbols::Subwords { marks: own, .. } = &mut vocabulary.symbols {
            *own = Some(marks);
        }
        Ok(vocabulary)
    }

    /// Returns the marks of a model that continues prompts of tokens.
    pub fn token_marks(&self) -> Option<&TokenMarks> {
        match &self.symbols {
            Symbols::Subwords { marks, .. } => marks.as_ref(),
            _ => None,
        }
    }

    /// Returns the bytes of a symbol that is no text on its own: a byte of a longer character, or a piece with a part of one.
    pub fn raw_bytes(&self, id: u32) -> Option<Vec<u8>> {
        if let Some(byte) = self.byte_of(id) {
            return (!byte.is_ascii()).then(|| vec![byte]);
        }
        let bytes = self.tokenizer()?.byte_pieces()?.get(id);
        std::str::from_utf8(bytes).is_err().then(|| bytes.to_vec())
    }

    /// Returns the ids that end a text, in a vocabulary without special symbols.
    pub fn end_marks(&self) -> impl Iterator<Item = u32> {
        let byte = self.marks.map(|marks| marks.end).or(self.end_byte);
        let tokens = self.token_marks().into_iter().flat_map(|marks| marks.ends.iter().copied());
        byte.into_iter().chain(tokens)
    }

    /// Returns true if a text ends when the model generates `id`: a mark, the end byte, or the special symbol for the end.
    pub fn ends_text(&self, id: u32) -> bool {
        self.specials().map_or_else(|| self.end_marks().any(|end| end == id), |specials| specials.end == id)
    }

    /// Returns true if equal texts have equal symbols: each symbol has a text of its own, except bytes that are not UTF-8.
    pub fn is_spelled_out(&self) -> bool {
        !(self.is_subword() || self.is_sparse() || self.marks.is_some())
    }

    /// Returns the subword tokenizer, if symbols are its pieces.
    pub fn tokenizer(&self) -> Option<&Arc<SubwordTokenizer>> {
        match &self.symbols {
            Symbols::Subwords { tokenizer, .. } => tokenizer.as_ref(),
            _ => None,
        }
    }

    /// Returns true if symbols are subwords rather than characters or bytes.
    pub fn is_subword(&self) -> bool {
        matches!(self.symbols, Symbols::Subwords { .. })
    }

    /// Encodes a text to at most `limit` tokens, start marks included. Fails as [`encode`](Self::encode) does.
    pub(super) fn encode_tokens(&self, field: &'static str, text: &str, limit: usize) -> Result<Vec<u32>> {
        let pieces = self.encode_subwords(field, text)?.into_iter().map(|piece| piece.id);
        let start = self.token_marks().into_iter().flat_map(|marks| &marks.start);
        let encoded: Vec<u32> = start.copied().chain(pieces).collect();
        match encoded.len() <= limit {
            true => Ok(encoded),
            false => Err(Error::TooLong { field, length: encoded.len(), limit, unit: "tokens", why: None }),
        }
    }

    /// Normalises and encodes a text with the subword tokenizer. `field` names the text in messages. Fails with
    /// [`Error::BadOption`] if there is no tokenizer or it cannot encode the text.
    pub fn encode_subwords(&self, field: &'static str, text: &str) -> Result<Vec<Subword>> {
        let without = || Error::bad_option(field, "a text", "ids (the checkpoint has no tokenizer)");
        let tokenizer = self.tokenizer().ok_or_else(without)?;
        let encoded = tokenizer.encode(&self.normalise(text));
        encoded.map_err(|error| Error::bad_option(field, error.to_string(), "a text that the tokenizer can encode"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::subwords::SMALL;

    #[test]
    fn ids_have_text_only_with_a_tokenizer() {
        let subwords = Arc::new(SubwordTokenizer::parse(SMALL.as_bytes()).unwrap());
        let vocabulary = Vocabulary::from_tokenizer(20, Some(subwords.clone()), TextNormaliser::None).unwrap();
        assert_eq!(vocabulary.encode("document", "ab ab", 2).unwrap(), [7, 7]);
        let message = vocabulary.encode("document", "ab ab", 1).unwrap_err().to_string();
        assert_eq!(message, "document: expected at most 1 tokens, found 2");
        assert_eq!((vocabulary.decode(&[7, 8, 2, 19]), vocabulary.len()), ("abba".into(), 20));
        assert_eq!((vocabulary.printable(7), vocabulary.printable(19)), ("\u{2581}ab".into(), "id 19".into()));
        assert_eq!(vocabulary.raw_bytes(7), None);
        assert!(vocabulary.check_ids("document", &[19]).is_ok() && vocabulary.check_ids("document", &[20]).is_err());
        let ids = Vocabulary::from_tokenizer(20, None, TextNormaliser::None).unwrap();
        let message = ids.encode("document", "ab", 9).unwrap_err().to_string();
        assert_eq!(message, "document: expected ids (the checkpoint has no tokenizer), found a text");
        assert_eq!(ids.decode(&[7]), "");
        assert!(!ids.same_symbols(&vocabulary) && ids.same_symbols(&ids.clone()));
        for count in [0, 12, MAX_SYMBOLS + 1] {
            let error = Vocabulary::from_tokenizer(count, Some(subwords.clone()), TextNormaliser::None).unwrap_err();
            assert_eq!(error.key, "vocabulary.size", "{error}");
        }
    }
}
