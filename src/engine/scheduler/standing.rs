//! What the scheduler is told of a running row.

use super::{Doing, Ticket};

/// How a running row stands before a step.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct Standing {
    /// The number of its ticket.
    pub(super) slot: usize,
    pub(in crate::engine) doing: Doing,
    /// Bytes that it holds.
    pub(super) held: usize,
    /// Bytes that it will need soon.
    pub(super) soon: usize,
    /// What it has done since the last time.
    pub(super) work: Work,
}

/// Symbols that were fed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::engine) struct Work {
    /// Given ones.
    pub(in crate::engine) given: usize,
    /// Sampled ones.
    pub(in crate::engine) sampled: usize,
    /// Any, that had been fed before the job had to make way.
    pub(in crate::engine) again: usize,
}

impl Standing {
    pub(in crate::engine) fn new(ticket: &Ticket, doing: Doing, (held, soon): (usize, usize), work: Work) -> Self {
        Self { slot: ticket.0, doing, held, soon, work }
    }
}
