//! The prompt of a `Generate`, as text or as ids.

use crate::{
    decode::{contract::Card, options::check_length},
    error::{Error, Result},
    text::{TextCounter, text_chars},
};
use std::sync::Arc;

/// The symbols of a prompt, and the sizes that the response reports.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Prompt {
    pub(super) symbols: Vec<u32>,
    /// Unicode characters of its text.
    pub(super) text_chars: usize,
    /// Unicode characters of the text, as sent, that normalising replaced or dropped.
    pub(super) normalized_chars: usize,
}

impl Prompt {
    /// Encodes a text, or takes ids as they are. Fails if a request has both, and if one is too long or has an unknown symbol.
    pub(super) fn new(text: &str, ids: Vec<u32>, card: &Card) -> Result<Self> {
        let vocabulary = &card.vocabulary;
        if ids.is_empty() {
            let symbols = card.encode("prompt", text)?;
            return Ok(Self {
                text_chars: text_chars(text, &symbols, vocabulary),
                normalized_chars: vocabulary.normaliser().changed_chars(text),
                symbols,
            });
        }
        if !text.is_empty() {
            return Err(Error::Exclusive { first: "prompt", second: "prompt_ids" });
        }
        // The engine checks these too; here they bound the work of counting.
        check_length("prompt_ids", ids.len(), card)?;
        vocabulary.check_text("prompt_ids", &ids)?;
        let text_chars = TextCounter::chars_of(&ids, Arc::clone(vocabulary));
        Ok(Self { symbols: ids, text_chars, normalized_chars: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{TextNormaliser, Vocabulary};

    fn letters() -> Card {
        Card::for_tests(Vocabulary::from_symbols(&[" ", "a", "b", "c"], TextNormaliser::Text8).unwrap())
    }

    #[test]
    fn a_text_reports_what_normalising_changed() {
        let prompt = Prompt::new("A b,c", Vec::new(), &letters()).unwrap();
        assert_eq!(prompt, Prompt { symbols: vec![1, 0, 2, 0, 3], text_chars: 5, normalized_chars: 2 });
        assert_eq!(Prompt::new("a b", Vec::new(), &letters()).unwrap().normalized_chars, 0);
    }

    #[test]
    fn ids_are_taken_as_they_are() {
        let prompt = |ids: &[u32], text| Prompt::new(text, ids.to_vec(), &letters());
        let taken = prompt(&[3, 1, 0, 0], "").unwrap();
        assert_eq!(taken, Prompt { symbols: vec![3, 1, 0, 0], text_chars: 4, normalized_chars: 0 });
        assert!(matches!(prompt(&[1], "a"), Err(Error::Exclusive { .. })));
        assert!(matches!(
            prompt(&[1; 101], ""),
            Err(Error::TooLong { field: "prompt_ids", length: 101, limit: 100, .. })
        ));
        let message = prompt(&[1, 4], "").unwrap_err().to_string();
        assert!(message.ends_with(", found id 4 (the vocabulary has 4 symbols) at index 1"), "{message}");
    }
}
