//! The memory of a session and of its requests.

use super::{
    EditSession,
    completion_task::{AHEAD_BYTES, MAX_WIDTH},
};
use crate::decode::encoded_text::{EncodedText, max_symbols};
use std::ops::Range;

/// Bytes of distributions that a session of the server keeps for its next searches, at most.
pub const KEPT_DISTRIBUTION_BYTES: usize = 1 << 18;
/// Bytes that a symbol of the text takes while the text is encoded. A growing vector may reserve twice what it needs.
const ENCODED_SYMBOL: usize = 2 * size_of::<u32>();
/// Bytes that a scored character takes until its answer is sent.
const SCORED_CHARACTER: usize = 256;

impl EditSession {
    /// Sets the maximum bytes of distributions that the session and its clones keep for their next searches. A new session keeps
    /// none.
    pub fn keep_distributions(&self, bytes: usize) {
        self.distributions.set_limit(bytes);
    }

    /// Sets the maximum bytes of symbols of its text that the session keeps for its next searches. A new session keeps none, and
    /// encodes and digests the text for each search.
    pub fn keep_symbols(&self, bytes: usize) {
        self.symbols.set_limit(bytes);
    }

    /// Returns the bytes that the symbols of the first `bytes` bytes take at most, while the session keeps them for its searches.
    pub fn symbol_bytes(&self, bytes: usize) -> usize {
        EncodedText::bytes_for(bytes, self.engine.card())
    }

    /// Returns the bytes that the completions at byte `cursor` hold while they run: the text's symbols, the last ones in each row,
    /// and the distributions that were computed ahead.
    pub fn completion_bytes(&self, cursor: usize) -> usize {
        let row = EncodedText::copied_bytes(cursor, self.engine.card());
        self.symbol_bytes(cursor).saturating_add(MAX_WIDTH * row + AHEAD_BYTES)
    }

    /// Returns the bytes that the scores of a range hold while they run: the text's symbols, and the answer.
    pub fn score_bytes(&self, bytes: &Range<usize>) -> usize {
        let card = self.engine.card();
        let symbols = max_symbols(bytes.end, card).saturating_mul(ENCODED_SYMBOL);
        symbols.saturating_add(max_symbols(bytes.len(), card).saturating_mul(SCORED_CHARACTER))
    }
}
