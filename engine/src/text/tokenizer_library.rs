//! Calls of the tokenizers library, which panics on some files and texts.

use super::VocabularyError;
use crate::error::quoted;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tokenizers::Tokenizer;

/// Limit on the ids of a tokenizer's pieces. Tables have one entry for each id below the largest, also for ids without a piece.
pub(super) const MAX_IDS: usize = 1 << 22;

/// Runs the library. It panics on some files and texts, which is an error here.
pub(super) fn library<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("a panic of the tokenizers library; its message is in the log".into()),
    }
}

/// Returns the number of ids: one more than the largest.
pub(super) fn count_ids(tokenizer: &Tokenizer) -> usize {
    tokenizer.get_vocab(true).into_values().max().map_or(0, |largest| largest as usize + 1)
}

/// Checks that no id is so large that tables of all ids would take much memory.
pub(super) fn check_ids(tokenizer: &Tokenizer) -> Result<(), VocabularyError> {
    match count_ids(tokenizer) {
        count if count > MAX_IDS => {
            Err(VocabularyError::new("model.vocab", format!("ids below {MAX_IDS}"), (count - 1).to_string()))
        }
        _ => Ok(()),
    }
}

/// Checks that the library can decode each piece: some decoders panic on pieces that they do not expect.
pub(super) fn check_pieces(tokenizer: &Tokenizer) -> Result<(), VocabularyError> {
    let mut pieces: Vec<_> = tokenizer.get_vocab(true).into_iter().collect();
    pieces.sort_unstable_by_key(|(_, id)| *id);
    pieces.into_iter().try_for_each(|(piece, id)| {
        let decoded = library(|| tokenizer.decode(&[id], true));
        let found = |error| format!("{error}, at {}", quoted(&piece));
        decoded
            .map_err(|error| VocabularyError::new("decoder", "one that accepts every piece", found(error)))
            .map(|_| ())
    })
}
