//! Converts between text and symbols. This module does not depend on any model.
//!
//! [`Vocabulary`] maps text to symbol ids and back, after its [`TextNormaliser`] has made the text look like the training
//! text. [`SubwordTokenizer`] is the tokenizer of a vocabulary whose symbols are longer than a character.
//! [`StreamTokenizer`] encodes a text that arrives in chunks. [`StreamDetokenizer`] decodes one symbol at a time and never
//! splits a code point.
//!
//! ```
//! use weir_models::text::{TextNormaliser, Vocabulary};
//!
//! let letters: Vec<String> = ('a'..='z').chain([' ']).map(String::from).collect();
//! let vocabulary = Vocabulary::from_symbols(&letters, TextNormaliser::Text8)?;
//! assert_eq!(vocabulary.normalise("Café 7!"), "cafe seven ");
//! let ids = vocabulary.encode("prompt", "Café", 100)?;
//! assert_eq!(vocabulary.decode(&ids), "cafe");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod added_tokens;
pub mod detokenizer;
pub mod normaliser;
pub(crate) mod pieces;
mod sentencepiece;
pub mod stream_tokenizer;
pub mod subwords;
mod tokenizer_limits;
pub mod vocabulary;

pub use crate::text::{
    added_tokens::AddedToken,
    detokenizer::StreamDetokenizer,
    normaliser::TextNormaliser,
    stream_tokenizer::{LimitStatus, StreamTokenizer, TextCounter, TokenSpan},
    subwords::{BLANK, Subword, SubwordTokenizer},
    vocabulary::{PlacedText, SpecialSymbols, TextMarks, TokenMarks, Vocabulary},
};
use std::path::Path;
use weir_kernels::error::Error;

/// Maximum symbols of a vocabulary: the number of Unicode code points.
pub const MAX_SYMBOLS: usize = 1_114_112;

/// A list of symbols that cannot be a vocabulary, or a file that is not a usable tokenizer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: expected {expected}, found {found}")]
pub struct VocabularyError {
    /// Key in `config.json` or in the tokenizer's file, such as `vocabulary.symbols[3]`.
    pub key: String,
    /// Condition that the value must meet.
    pub expected: String,
    /// Value that was found.
    pub found: String,
}

impl VocabularyError {
    pub(crate) fn new(key: impl Into<String>, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self { key: key.into(), expected: expected.into(), found: found.into() }
    }

    /// Adds the path of the file, as an [`Error::Checkpoint`].
    pub fn in_file(self, file: &Path) -> Error {
        Error::checkpoint(file, self.key, self.expected, self.found)
    }
}
