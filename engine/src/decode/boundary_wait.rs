//! The policy for waiting rows: when they run their segment step. Engine and benchmark share it.
//!
//! A segment step reads the middle stack's weights once, for any number of rows. In a batch, some row closes a segment in
//! nearly every step. If waiting rows ran at once, those weights would be read nearly once a step, as if nothing were pooled.
//! Rows that wait a few symbol steps for others to close a segment share the reading. The cost is bounded: a character that
//! ends a segment comes at most `wait` symbol steps later. No number changes: see [`contract`](super::contract).

use super::contract::{SequenceRow, StepStatus};

/// Default number of symbol steps that a row may wait.
pub const BOUNDARY_WAIT: usize = 2;
/// Maximum number of symbol steps that a row may be set to wait.
pub const MAX_BOUNDARY_WAIT: usize = 64;

/// Returns true if the `waiting` rows run their segment step now, all together.
///
/// `others` is true if another row could be fed one symbol while they wait. It is false while prompts are fed, because that
/// takes long, and if a waiting row was fed a chunk of a prompt. A chunk's segments fill a step by themselves and must not delay
/// its prompt. The other rows join it: the weights are read anyway. A row waits for at most `wait` symbol steps.
///
/// The rows run if one has waited that long, or if there is no other row to wait for.
pub fn is_due<'a>(mut waiting: impl Iterator<Item = &'a SequenceRow>, others: bool, wait: usize) -> bool {
    waiting.any(|row| !others || row.waited >= wait)
}

/// Counts the symbol step that is about to run for each waiting row.
pub fn count_step(rows: &mut [SequenceRow]) {
    rows.iter_mut().filter(|row| row.status == StepStatus::Waiting).for_each(|row| row.waited += 1);
}
