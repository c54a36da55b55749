//! What an engine measures. Each event is recorded once, in `Measurements`: it adds the event to the totals and passes it to
//! the observer, which must not block: the worker thread records between steps, some events once per character.

use crate::options::FinishReason;
use crate::summary::{EncodedDocument, SummaryResult};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weir_kernels::{error::Error, sync::lock};
use weir_models::contract::{self, SequenceRow};
use weir_models::usage::{Timing, Usage};

/// An event that an engine measures.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "each event shows what its fields are")]
pub enum EngineEvent<'a> {
    /// A request was queued. The caller's thread records it, perhaps after the worker's events of the same request.
    Accepted,
    /// A request got its first row, this long after its arrival.
    Admitted(Duration),
    /// A step ran: it fed `fed` symbols to `rows` rows, and its segment step took `middle` rows.
    Step { rows: usize, fed: usize, middle: usize },
    /// A request's part of a step is complete.
    Fed(FedSymbols),
    /// A generation's first character was ready, this long after the request's arrival.
    FirstChar(Duration),
    /// A later character was ready, `gap` after the one before it. `boundary` is true if that one ended a segment.
    Gap { gap: Duration, boundary: bool },
    /// The first symbol of a generated segment was ready, this long after the first symbol of the segment before it.
    Segment(Duration),
    /// `symbols` symbols were looked up in the segment cache. It had the first `found`, in pages of `bytes` bytes.
    CacheLookup { symbols: usize, found: usize, bytes: usize },
    /// This many entries were evicted from the segment cache, for other entries or for requests.
    CacheEvicted(u64),
    /// A new request asked for a cached document. The caller's thread records it.
    DocumentLookup { found: bool },
    /// A document was evicted from the document cache, for another one or for requests.
    DocumentEvicted,
    /// A request's constraint of this kind was compiled or found in this time, or refused. The caller's thread records it.
    Constrained { kind: &'static str, took: Duration, refused: bool },
    /// A running request was preempted.
    Preempted,
    /// The worker started over after a panic.
    Restarted,
    /// A summary ended. `cached` is true if an earlier request had encoded its document.
    Summarized { summary: &'a SummaryResult, document: &'a EncodedDocument, cached: bool },
    /// A request ended, whether it was queued or running.
    Finished { outcome: Result<&'a FinishReason, &'a Error>, usage: &'a Usage, timing: &'a Timing },
}

/// Symbols of one request in one step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FedSymbols {
    /// Symbols of prompts and scored texts that were fed.
    pub prompt: usize,
    /// Symbols that were generated.
    pub generated: usize,
    /// Drafted symbols that were fed.
    pub drafted: usize,
    /// Drafted symbols that were accepted.
    pub accepted: usize,
    /// Runs of the middle stack.
    pub middle_run: usize,
    /// Runs that pooling saved.
    pub middle_skipped: usize,
}

/// Receives an engine's events.
pub trait Observer: Send + Sync {
    /// Takes an event.
    fn record(&self, event: EngineEvent<'_>);
}

impl Observer for () {
    fn record(&self, _: EngineEvent<'_>) {}
}

pub(crate) struct Measurements {
    /// Totals without the current load.
    totals: Mutex<Counters>,
    observer: Arc<dyn Observer>,
}

impl Measurements {
    pub(crate) fn new(observer: Arc<dyn Observer>) -> Self {
        Self { totals: Mutex::default(), observer }
    }

    pub(crate) fn record(&self, event: EngineEvent<'_>) {
        lock(&self.totals).record(&event);
        self.observer.record(event);
    }

    pub(crate) fn totals(&self) -> Counters {
        *lock(&self.totals)
    }
}

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

impl Counters {
    fn record(&mut self, event: &EngineEvent<'_>) {
        match *event {
            EngineEvent::Step { rows, middle, .. } => {
                self.steps += u64::from(rows > 0);
                self.symbol_rows += rows as u64;
                self.segment_steps += u64::from(middle > 0);
                self.segment_rows += middle as u64;
            }
            EngineEvent::Fed(fed) => {
                self.prefill_chars += fed.prompt as u64;
                self.generated_chars += fed.generated as u64;
                self.drafted_chars += fed.drafted as u64;
                self.accepted_chars += fed.accepted as u64;
                self.middle_run += fed.middle_run as u64;
                self.middle_skipped += fed.middle_skipped as u64;
            }
            EngineEvent::Preempted => self.preemptions += 1,
            EngineEvent::Restarted => self.restarts += 1,
            _ => {}
        }
    }
}

impl FedSymbols {
    /// Counts the feed of a row that is ready: prompt symbols if `prefilling`, otherwise sampled ones.
    pub(crate) fn of(row: &SequenceRow, prefilling: bool, pooled: bool) -> Self {
        let symbols = row.positions();
        let (prompt, generated) = if prefilling { (symbols, 0) } else { (0, symbols) };
        let middle_run = row.decisions.iter().filter(|mark| mark.boundary).count();
        let middle_skipped = if pooled { decided_symbols(row).saturating_sub(middle_run) } else { 0 };
        Self { prompt, generated, middle_run, middle_skipped, ..Self::default() }
    }
}

/// Returns the symbols for which this feed decides whether the middle stack runs: those fed, except that the decision for a
/// symbol comes with the next feed if the model's mark ends segments.
fn decided_symbols(row: &SequenceRow) -> usize {
    match row.feed[..] {
        [item] if contract::ends_segment(item) == Some(false) => {
            let len = row.state.len();
            usize::from(row.state.boundary_before(len) + 1 < len)
        }
        _ => row.positions(),
    }
}
