//! The status of a running request, as the worker reports it to the scheduler before a step.
//!
//! A request about a text has one row. A summary has several, which the scheduler treats as one unit.

/// The right to run: a slot of the scheduler. It is given back by [`Scheduler::finish`](super::Scheduler::finish) or
/// [`Scheduler::preempt`](super::Scheduler::preempt).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RunPermit(pub(super) usize);

/// The next work of a running request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowActivity {
    /// Nothing: it was fed and its outcome is not ready.
    Busy,
    /// Nothing: its client or its upload is behind.
    Paused {
        /// True if it may be preempted when a queued request needs its slot: it has been behind for a while.
        preemptible: bool,
    },
    /// Feed one sampled symbol to each of this number of rows.
    Decoding(usize),
    /// Feed this number of known symbols.
    Prefilling(usize),
    /// Feed this number of known symbols, which is small. A search waits for the distribution after them.
    Searching(usize),
    /// Encode its document, in blocks that cannot be split.
    Encoding {
        /// Known blocks that can run.
        blocks: usize,
        /// Symbols that a block counts as.
        block_symbols: usize,
    },
}

/// Status of a running request before a step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowStatus {
    pub(super) slot: usize,
    pub(crate) activity: RowActivity,
    pub(super) held: usize,
    /// Additional bytes that it needs soon.
    pub(super) soon: usize,
    /// Symbols that it was fed since the last report.
    pub(super) fed: FedSymbols,
}

/// Symbols that a request was fed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FedSymbols {
    /// Symbols of prompts, scored texts, documents and drafts.
    pub(crate) prompt: usize,
    pub(crate) sampled: usize,
    /// Symbols of either kind that were fed again after a preemption.
    pub(crate) recomputed: usize,
}

impl RowStatus {
    pub(crate) fn new(permit: &RunPermit, activity: RowActivity, held: usize, soon: usize, fed: FedSymbols) -> Self {
        Self { slot: permit.0, activity, held, soon, fed }
    }
}
