//! Completions before their text is encoded.

use super::{CompletionTask, EditSession};
use crate::{decode::completion::CompletionRules, engine::session_symbols::TakenSymbols, error::Result};

/// A completion that holds the session's symbols, so that its cost is known before it begins. Until it begins or is dropped, other
/// completions of the session encode the text themselves.
pub struct PendingCompletion {
    session: EditSession,
    symbols: TakenSymbols,
    cursor: usize,
    rules: CompletionRules,
}

impl EditSession {
    /// Takes the session's symbols for the completions at byte `cursor`. They are returned to its clones.
    pub fn into_completion(self, cursor: usize, rules: CompletionRules) -> PendingCompletion {
        PendingCompletion { symbols: self.symbols.take(), session: self, cursor, rules }
    }
}

impl PendingCompletion {
    /// Returns the bytes of text before the cursor that [`begin`](Self::begin) encodes.
    pub fn unencoded_bytes(&self) -> usize {
        self.symbols.unencoded(self.cursor)
    }

    /// Encodes the text and prepares the search. Fails as [`EditSession::complete`] does.
    pub fn begin(self) -> Result<CompletionTask> {
        self.session.complete_with(self.symbols, self.cursor, self.rules)
    }
}
