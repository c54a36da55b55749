//! Vocabularies whose symbols are a tokenizer's pieces.

use super::{MAX_SYMBOLS, Symbols, Vocabulary, VocabularyError};
use crate::{
    error::{Error, Result},
    text::{Normaliser, Subword, Subwords},
};
use std::sync::Arc;

impl Vocabulary {
    /// Ids below `count`, most of which are pieces of a tokenizer, if there is one.
    ///
    /// # Errors
    /// No ids, too many, or fewer than the tokenizer has.
    pub fn of_pieces(
        count: usize,
        subwords: Option<Arc<Subwords>>,
        normaliser: Normaliser,
    ) -> Result<Self, VocabularyError> {
        let least = subwords.as_ref().map_or(0, |subwords| subwords.len()).max(1);
        if !(least..=MAX_SYMBOLS).contains(&count) {
            let expected = format!("{least} to {MAX_SYMBOLS}: as many as the tokenizer has pieces, or more");
            return Err(VocabularyError::new("vocabulary.size", expected, count.to_string()));
        }
        Ok(Self { symbols: Symbols::Pieces { count, subwords }, specials: None, normaliser })
    }

    /// The tokenizer, where symbols are its pieces.
    pub fn subwords(&self) -> Option<&Arc<Subwords>> {
        match &self.symbols {
            Symbols::Pieces { subwords, .. } => subwords.as_ref(),
            _ => None,
        }
    }

    /// Whether symbols are a tokenizer's pieces rather than characters or bytes.
    pub fn is_pieces(&self) -> bool {
        matches!(self.symbols, Symbols::Pieces { .. })
    }

    /// The subwords of a text, where symbols are a tokenizer's pieces.
    ///
    /// # Errors
    /// [`Error::BadOption`] if there is no tokenizer, or it cannot cut the text.
    pub fn pieces(&self, field: &'static str, text: &str) -> Result<Vec<Subword>> {
        let refused = |found: &str, bound: String| Err(Error::BadOption { field, found: found.into(), bound });
        match self.subwords() {
            None => refused("a text", "ids: the checkpoint has no tokenizer".into()),
            Some(subwords) => match subwords.encode(&self.normalise(text)) {
                Ok(pieces) => Ok(pieces),
                Err(error) => refused("a text", format!("one that the tokenizer can cut: {error}")),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::subwords::SMALL;

    #[test]
    fn pieces_are_text_with_a_tokenizer_and_ids_without() {
        let subwords = Arc::new(Subwords::parse(SMALL.as_bytes()).unwrap());
        let vocabulary = Vocabulary::of_pieces(20, Some(subwords.clone()), Normaliser::None).unwrap();
        assert_eq!(vocabulary.encode("document", "ab ab", 2).unwrap(), [7, 7]);
        let message = vocabulary.encode("document", "ab ab", 1).unwrap_err().to_string();
        assert_eq!(message, "document: 2 tokens is more than the limit of 1");
        assert_eq!((vocabulary.decode(&[7, 8, 2, 19]), vocabulary.len()), ("abba".into(), 20));
        assert_eq!((vocabulary.printable(7), vocabulary.printable(19)), ("\u{2581}ab".into(), "id 19".into()));
        assert!(vocabulary.check_ids("document", &[19]).is_ok() && vocabulary.check_ids("document", &[20]).is_err());
        let ids = Vocabulary::of_pieces(20, None, Normaliser::None).unwrap();
        let message = ids.encode("document", "ab", 9).unwrap_err().to_string();
        assert_eq!(message, "document: a text is out of bounds: ids: the checkpoint has no tokenizer");
        assert_eq!(ids.decode(&[7]), "");
        assert!(!ids.same_symbols(&vocabulary) && ids.same_symbols(&ids.clone()));
        for count in [0, 12, MAX_SYMBOLS + 1] {
            let error = Vocabulary::of_pieces(count, Some(subwords.clone()), Normaliser::None).unwrap_err();
            assert_eq!(error.key, "vocabulary.size", "{error}");
        }
    }
}
