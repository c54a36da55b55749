//! Which waiting rows run their segment step now. Engine and benchmark share this policy.
//!
//! A segment step reads the middle stack's weights once, for however many rows. In a batch some row closes a segment in
//! nearly every step, so a batch that runs its waiting rows at once reads those weights nearly once a step, as if nothing
//! were pooled. Rows that wait a few symbol steps for the next ones to close a segment share the reading. What that costs is
//! bounded: a character that ends a segment comes at most `wait` symbol steps later than it would at once. No number
//! changes: see [`contract`](super::contract).

use super::contract::{SequenceRow, StepStatus};

/// Symbol steps that a row may wait, if nothing else is asked for.
pub const BOUNDARY_WAIT: usize = 2;
/// The most that can be asked for.
pub const MAX_BOUNDARY_WAIT: usize = 64;

/// Whether rows that wait for a segment step run it now: all together, or none. `waiting` are these rows; `others` tells
/// whether some other row could be fed while they wait on, one symbol each: nobody is to wait while prompts are fed, which
/// takes long; `wait` is the most symbol steps that a row may wait.
///
/// They run if one of them has waited that long, or if there is nobody to wait for: a row alone never waits. They also run
/// if one of them was fed a chunk. Its segments fill a step by themselves, and its prompt is not to be held up; whoever
/// waits beside it comes along, since the weights are read anyway.
pub fn is_due<'a>(mut waiting: impl Iterator<Item = &'a SequenceRow>, others: bool, wait: usize) -> bool {
    waiting.any(|row| !others || row.waited >= wait || row.feed.len() > 1)
}

/// Counts the symbol step that is about to run for each row that waits while it does.
pub fn count_step(rows: &mut [SequenceRow]) {
    rows.iter_mut().filter(|row| row.status == StepStatus::Waiting).for_each(|row| row.waited += 1);
}
