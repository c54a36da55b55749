//! Callbacks of an engine to code that measures it. The engine's totals are in [`Counters`](super::Counters).
//!
//! The worker thread makes nearly all calls between steps, some once per character. An observer must not block and should not allocate.

use crate::{
    decode::{
        options::FinishReason,
        summary::{EncodedDocument, SummaryResult},
        usage::{Timing, Usage},
    },
    error::Error,
};
use std::time::Duration;

/// Receives an engine's events. The default methods ignore them.
#[expect(unused_variables, reason = "the default methods ignore their arguments")]
pub trait Observer: Send + Sync {
    /// A request was queued. The caller's thread makes this call, perhaps after those of the worker for the same request.
    fn accepted(&self) {}

    /// A step ran: it fed `fed` symbols to `rows` rows, and its segment step took `middle` rows.
    fn step(&self, rows: usize, fed: usize, middle: usize) {}

    /// A request got its first row, `waited` after its arrival.
    fn queued(&self, waited: Duration) {}

    /// A generation's first character was ready, `after` the request's arrival.
    fn first_char(&self, after: Duration) {}

    /// A later character of a generation was ready, `gap` after the one before it. `boundary` is true if that one ended a
    /// segment, so that this one waited for the middle stack.
    fn gap(&self, gap: Duration, boundary: bool) {}

    /// The first symbol of a generated segment was ready, `took` after the first symbol of the segment before it.
    fn segment(&self, took: Duration) {}

    /// A row's feed is complete: the middle stack ran `run` times for it and was skipped `skipped` times.
    fn middle(&self, run: usize, skipped: usize) {}

    /// A summary ended. `cached` is true if an earlier request had encoded its document.
    fn summarized(&self, summary: &SummaryResult, document: &EncodedDocument, cached: bool) {}

    /// The engine looked up `symbols` symbols in the segment cache. It found the first `cached`, in pages of `bytes` bytes.
    fn cache_lookup(&self, symbols: usize, cached: usize, bytes: usize) {}

    /// A request ended, whether it was queued or running.
    fn finished(&self, outcome: Result<&FinishReason, &Error>, usage: &Usage, timing: &Timing) {}
}

/// Ignores all events.
impl Observer for () {}
