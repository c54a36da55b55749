//! Totals of an engine since it started: counted by its worker, read by any thread.

use crate::decode::{contract::SequenceRow, trace};

/// Totals of an engine since it started, and its current load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests that run now.
    pub running: usize,
    /// Requests that are queued now.
    pub waiting: usize,
    /// Preemptions of running requests.
    pub preemptions: u64,
    /// Times that the worker started over after a panic.
    pub restarts: u64,
    /// Symbol steps.
    pub steps: u64,
    /// Rows of all symbol steps.
    pub symbol_rows: u64,
    /// Segment steps.
    pub segment_steps: u64,
    /// Rows of all segment steps.
    pub segment_rows: u64,
    /// Runs of the middle stack, one per closed segment.
    pub middle_run: u64,
    /// Runs of the middle stack that pooling saved: symbols that were fed and ended no segment.
    pub middle_skipped: u64,
    /// Symbols of prompts and scored texts that were fed, with those fed again after a preemption.
    pub prefill_chars: u64,
    /// Symbols that were generated.
    pub generated_chars: u64,
    /// Drafted symbols that were fed.
    pub drafted_chars: u64,
    /// Drafted symbols that were accepted.
    pub accepted_chars: u64,
}

/// Runs of the middle stack for one feed.
pub(super) struct MiddleRuns {
    pub(super) run: usize,
    /// Runs that pooling saved.
    pub(super) skipped: usize,
}

impl Counters {
    /// Counts the feed of a row that is ready: prompt symbols if `prefilling`, otherwise a sampled one.
    pub(super) fn count_fed(&mut self, row: &SequenceRow, prefilling: bool, pooled: bool) -> MiddleRuns {
        let counter = if prefilling { &mut self.prefill_chars } else { &mut self.generated_chars };
        *counter += row.positions() as u64;
        let run = row.decisions.iter().filter(|mark| mark.boundary).count();
        let skipped = if pooled { decided_symbols(row).saturating_sub(run) } else { 0 };
        self.middle_run += run as u64;
        self.middle_skipped += skipped as u64;
        MiddleRuns { run, skipped }
    }
}

/// Returns the number of symbols for which this feed decides whether the middle stack runs: those fed. If the model's mark
/// ends segments, the decision for a symbol comes with the feed of the next symbol or of the mark.
fn decided_symbols(row: &SequenceRow) -> usize {
    match row.feed[..] {
        [item] if trace::ends_segment(item) == Some(false) => {
            let len = row.state.len();
            usize::from(row.state.boundary_before(len) + 1 < len)
        }
        _ => row.positions(),
    }
}
