//! Counts what editing sessions do.

use super::meter::Meter;

/// An event of an editing session, in the order of the label's values in `series`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum EditEvent {
    /// A change of the text was applied.
    Splice,
    /// Completions were found.
    Completion,
    /// A range was scored.
    Score,
    /// A change overtook a request.
    Stale,
}

impl Meter {
    /// Counts an event of an editing session.
    pub(crate) fn edit(&self, event: EditEvent) {
        self.series.edits[event as usize].inc();
    }

    /// Counts a session whose document was opened.
    pub(crate) fn edit_session_opened(&self) {
        self.series.edit_sessions[0].inc();
    }

    /// Counts the end of such a session.
    pub(crate) fn edit_session_closed(&self) {
        self.series.edit_sessions[0].dec();
    }
}
