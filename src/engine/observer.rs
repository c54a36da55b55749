//! What an engine tells whoever measures it, as it happens. The engine's totals are in [`Counters`](super::tally::Counters).
//!
//! All is called by the worker's thread between steps, some of it once a character: an observer must not block, and should
//! not allocate.

use crate::{
    decode::options::{Reason, Timing, Usage},
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

    /// A job is over, wherever it was: in the queue, or running.
    fn finished(&self, outcome: Result<&Reason, &Error>, usage: &Usage, timing: &Timing) {
        let _ = (outcome, usage, timing);
    }
}

/// Nobody measures.
impl Observer for () {}
