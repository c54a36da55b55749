//! The error of a vocabulary or tokenizer that cannot be used.

use crate::error::Error;
use std::path::Path;

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
    pub(super) fn new(key: impl Into<String>, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self { key: key.into(), expected: expected.into(), found: found.into() }
    }

    /// Adds the path of the file, as an [`Error::Checkpoint`].
    pub fn in_file(self, file: &Path) -> Error {
        Error::checkpoint(file, self.key, self.expected, self.found)
    }
}
