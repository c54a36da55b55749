//! What an engine has done since it began: counted by its worker, read by anybody.

use crate::decode::{contract::SequenceRow, trace};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// An engine's totals since it began, and what it does now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Jobs that hold a row, now.
    pub running: usize,
    /// Jobs that wait, now.
    pub waiting: usize,
    /// Times that a running job had to give up its row for others.
    pub preemptions: u64,
    /// Symbol steps.
    pub steps: u64,
    /// Rows that took part in them, added up.
    pub symbol_rows: u64,
    /// Segment steps.
    pub segment_steps: u64,
    /// Rows that took part in them, added up.
    pub segment_rows: u64,
    /// Runs of the middle layers, one a closed segment.
    pub middle_run: u64,
    /// Runs of the middle layers that pooling saved: symbols that were fed and ended no segment.
    pub middle_skipped: u64,
    /// Symbols of prompts and scored texts that were fed; those that were fed again after a preemption included.
    pub prefill_chars: u64,
    /// Symbols that were generated.
    pub generated_chars: u64,
}

/// The worker's side of [`Counters`]. It alone writes, so nothing has to be exact beyond each number.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) preemptions: Count,
    pub(super) steps: Count,
    pub(super) symbol_rows: Count,
    pub(super) segment_steps: Count,
    pub(super) segment_rows: Count,
    pub(super) middle_run: Count,
    pub(super) middle_skipped: Count,
    pub(super) prefill_chars: Count,
    pub(super) generated_chars: Count,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, more: usize) {
        self.0.fetch_add(more as u64, Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl Tally {
    /// A row is ready after it was fed. The feed is of given symbols, or of one sampled.
    /// Returns how often the middle layers ran for it, and how often pooling saved that.
    pub(super) fn took(&self, row: &SequenceRow, given: bool, pooled: bool) -> (usize, usize) {
        if given {
            self.prefill_chars.add(row.positions());
        } else {
            self.generated_chars.add(row.positions());
        }
        let closed = row.decisions.iter().filter(|mark| mark.boundary).count();
        let skipped = if pooled { skipped(row).saturating_sub(closed) } else { 0 };
        self.middle_run.add(closed);
        self.middle_skipped.add(skipped);
        (closed, skipped)
    }

    /// The totals, with what runs and waits now.
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

/// Symbols of which it is known by now whether the middle layers run for them: those fed. Where the model's mark ends segments
/// that is only known of a symbol when the next one, or the mark, is fed.
fn skipped(row: &SequenceRow) -> usize {
    match row.feed[..] {
        [item] if trace::ends_segment(item) == Some(false) => {
            let len = row.state.len();
            usize::from(row.state.boundary_before(len) + 1 < len)
        }
        _ => row.positions(),
    }
}
