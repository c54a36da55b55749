//! Totals of an engine since it started: counted by its worker, read by any thread.

use crate::decode::{contract::SequenceRow, trace};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Totals of an engine since it started, and its current load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests that run now.
    pub running: usize,
    /// Requests that are queued now.
    pub waiting: usize,
    /// Preemptions of running requests.
    pub preemptions: u64,
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
}

/// The worker's side of [`Counters`]. Only the worker writes, and the counters need not be consistent with each other.
#[derive(Debug, Default)]
pub(super) struct AtomicCounters {
    pub(super) preemptions: Counter,
    pub(super) steps: Counter,
    pub(super) symbol_rows: Counter,
    pub(super) segment_steps: Counter,
    pub(super) segment_rows: Counter,
    pub(super) middle_run: Counter,
    pub(super) middle_skipped: Counter,
    pub(super) prefill_chars: Counter,
    pub(super) generated_chars: Counter,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, more: usize) {
        self.0.fetch_add(more as u64, Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Runs of the middle stack for one feed.
pub(super) struct MiddleRuns {
    pub(super) run: usize,
    /// Runs that pooling saved.
    pub(super) skipped: usize,
}

impl AtomicCounters {
    /// Counts the feed of a row that is ready: prompt symbols if `prefilling`, otherwise a sampled one.
    pub(super) fn count_fed(&self, row: &SequenceRow, prefilling: bool, pooled: bool) -> MiddleRuns {
        let counter = if prefilling { &self.prefill_chars } else { &self.generated_chars };
        counter.add(row.positions());
        let run = row.decisions.iter().filter(|mark| mark.boundary).count();
        let skipped = if pooled { decided_symbols(row).saturating_sub(run) } else { 0 };
        self.middle_run.add(run);
        self.middle_skipped.add(skipped);
        MiddleRuns { run, skipped }
    }

    /// Returns the totals with the current numbers of running and waiting requests.
    pub(super) fn read(&self, running: usize, waiting: usize) -> Counters {
        Counters {
            running,
            waiting,
            preemptions: self.preemptions.get(),
            steps: self.steps.get(),
            symbol_rows: self.symbol_rows.get(),
            segment_steps: self.segment_steps.get(),
            segment_rows: self.segment_rows.get(),
            middle_run: self.middle_run.get(),
            middle_skipped: self.middle_skipped.get(),
            prefill_chars: self.prefill_chars.get(),
            generated_chars: self.generated_chars.get(),
        }
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
