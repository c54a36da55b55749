//! What an engine tells whoever measures it, as it happens. The engine's totals are in [`Counters`](super::tally::Counters).
//!
//! All is called by the worker's thread between steps, some of it once a character: an observer must not block, and should
//! not allocate.

use crate::{
    decode::{
        options::FinishReason,
        summary::{EncodedDocument, SummaryResult},
        usage::{Timing, Usage},
    },
    error::Error,
};
use std::time::Duration;

/// Is told what happens in an engine. All of it may be ignored.
pub trait Observer: Send + Sync {
    /// A step has run: `rows` rows were fed `fed` symbols together, and `middle` rows had their segment step.
    fn step(&self, rows: usize, fed: usize, middle: usize) {
        let _ = (rows, fed, middle);
    }

    /// A job got its first row so long after it had come.
    fn queued(&self, waited: Duration) {
        let _ = waited;
    }

    /// A generation's first character was there so long after the job had come.
    fn first_char(&self, after: Duration) {
        let _ = after;
    }

    /// A further character of a generation was there so long after the one before it; `boundary` tells whether that one had
    /// ended a segment, so that this one had to wait for the middle layers.
    fn gap(&self, gap: Duration, boundary: bool) {
        let _ = (gap, boundary);
    }

    /// The first symbol of a segment that is generated was there so long after the first one of the segment before it.
    fn segment(&self, took: Duration) {
        let _ = took;
    }

    /// A row's symbols are through: the middle layers ran so often for them, and were skipped so often.
    fn middle(&self, run: usize, skipped: usize) {
        let _ = (run, skipped);
    }

    /// A summary came to its end; of a document that was encoded now, unless `again` tells that it had been before.
    fn summarized(&self, summary: &SummaryResult, document: &EncodedDocument, again: bool) {
        let _ = (summary, document, again);
    }

    /// Of a job's text so many symbols were looked up in the segment cache, and so many found, whose pages have so many bytes.
    fn looked_up(&self, symbols: usize, found: usize, bytes: usize) {
        let _ = (symbols, found, bytes);
    }

    /// A job is over, wherever it was: in the queue, or running.
    fn finished(&self, outcome: Result<&FinishReason, &Error>, usage: &Usage, timing: &Timing) {
        let _ = (outcome, usage, timing);
    }
}

/// Nobody measures.
impl Observer for () {}
