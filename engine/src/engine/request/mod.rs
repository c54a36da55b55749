//! A request from its arrival to its end, while it waits and while it runs.

pub(crate) mod event_sender;
pub(crate) mod summary;
pub(crate) mod text;
pub(crate) mod timing;
pub(crate) mod upload;

use super::{
    api::{DocumentEvent, Event, Terms, TimeLimits},
    observer::Observer,
    scheduler::{Beginning, Demand, FedSymbols, QueuedStatus, RowActivity, RowStatus, RunPermit},
};
use crate::{
    decode::{
        contract::{Model, SequenceRow},
        options::FinishReason,
        usage::Usage,
    },
    error::{Error, Result},
};
use event_sender::EventSender;
use std::{
    sync::Arc,
    task::Waker,
    time::{Duration, Instant},
};
use summary::DocumentRequest;
use text::TextRequest;
use timing::RequestTimer;

/// How long a client may read nothing before its request can be preempted for a queued one.
const PREEMPTIBLE_AFTER: Duration = Duration::from_millis(100);

pub(crate) enum RequestKind {
    /// A text, on one row.
    Text(TextRequest),
    /// A document, which is encoded first; then its texts are generated on one or several rows.
    Document(Box<DocumentRequest>),
}

pub(crate) struct Request {
    pub(crate) kind: RequestKind,
    /// Indices of its rows in the batch's row table, in its own order.
    pub(crate) row_indices: Vec<usize>,
    pub(crate) event_sender: EventSender,
    pub(crate) deadline: Option<Instant>,
    pub(crate) tenant: Arc<str>,
    pub(crate) timer: RequestTimer,
    /// The right to run, while it has it.
    pub(crate) permit: Option<RunPermit>,
    /// True if its rows were fed and their outcome is not taken yet.
    pub(crate) in_flight: bool,
    pub(crate) outcome: Option<Result<FinishReason>>,
    /// How long its client has read none of the buffered events; `None` if the client keeps up.
    unread_for: Option<Duration>,
    /// Symbols fed since the scheduler last counted them.
    pub(crate) fed: FedSymbols,
    /// True if it was last preempted because of its own client or upload. Symbols fed again then count as its work.
    caused_preemption: bool,
    /// True if it was preempted because its client or upload was behind, and still waits for it.
    pub(crate) waits_for_client: bool,
}

impl Request {
    pub(crate) fn new(kind: RequestKind, event_sender: EventSender, arrived: Instant, terms: &Terms) -> Self {
        Self {
            kind,
            row_indices: Vec::new(),
            event_sender,
            deadline: terms.deadline,
            tenant: Arc::clone(&terms.tenant),
            timer: RequestTimer::new(arrived),
            permit: None,
            in_flight: false,
            outcome: None,
            unread_for: None,
            fed: FedSymbols::default(),
            caused_preemption: false,
            waits_for_client: false,
        }
    }

    /// Returns its demand to start, or to resume, if a cache holds `cached` of its symbols.
    pub(crate) fn demand(&self, model: &dyn Model, cached: usize) -> Demand {
        let tenant = Arc::clone(&self.tenant);
        match &self.kind {
            RequestKind::Text(text) => {
                let symbols = text.session.text_symbols();
                let bytes = model.bytes_for(text.symbols_soon());
                let cached = cached.max(text.session.replay_position());
                let uncached = symbols.saturating_sub(cached);
                Demand { tenant, symbols, uncached, beginning: text.beginning(), bytes, rows: 1 }
            }
            RequestKind::Document(summary) => {
                let symbols = summary.max_tokens();
                let uncached = summary.inbox.tokens().saturating_sub(cached);
                let bytes = summary.bytes_soon(model);
                Demand { tenant, symbols, uncached, beginning: Beginning::default(), bytes, rows: summary.max_rows }
            }
        }
    }

    /// Polls a running request: takes new tokens, and ends it if client or upload failed or its deadline has passed.
    pub(crate) fn poll_running(&mut self, now: Instant, limits: TimeLimits, waker: &Waker) {
        self.unread_for = (!self.event_sender.flush(waker)).then(|| self.event_sender.unread_for(now));
        let pulled = match &mut self.kind {
            RequestKind::Document(summary) => summary.pull(now),
            RequestKind::Text(_) => Ok(()),
        };
        if let Some(error) = self.end_reason(now, limits, "while decoding").or(pulled.err()) {
            self.abandon(error);
        }
    }

    /// Does the same while it is queued.
    pub(crate) fn poll_queued(&mut self, now: Instant, limits: TimeLimits, waker: &Waker) -> QueuedStatus {
        // a request that was preempted for others waits neither for its client nor for the rest of its document
        let reads = self.event_sender.flush(waker) && self.event_sender.has_caught_up();
        let lacks_input = matches!(&self.kind, RequestKind::Document(summary) if !summary.has_its_input());
        self.waits_for_client &= !reads || lacks_input;
        self.unread_for = (self.waits_for_client && !reads).then(|| self.event_sender.unread_for(now));
        let stage = if self.timer.admitted.is_some() { "while decoding" } else { "in the queue" };
        match self.end_reason(now, limits, stage) {
            Some(error) => {
                self.abandon(error);
                QueuedStatus::Ended
            }
            None if self.waits_for_client => QueuedStatus::OnHold,
            None => QueuedStatus::Ready,
        }
    }

    fn end_reason(&self, now: Instant, limits: TimeLimits, stage: &'static str) -> Option<Error> {
        let TimeLimits { stall, run } = limits;
        if self.event_sender.is_closed() {
            return Some(Error::Cancelled);
        }
        if let RequestKind::Document(summary) = &self.kind
            && let Some(error) = summary.inbox.failure()
        {
            return Some(error);
        }
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            return Some(Error::Deadline { stage });
        }
        if self.runs_until(run).is_some_and(|end| end <= now) {
            return Some(Error::RanTooLong { limit: run });
        }
        self.unread_for.is_some_and(|unread_for| unread_for >= stall).then_some(Error::Stalled { limit: stall })
    }

    /// Returns when it must be polled again at the latest.
    pub(crate) fn next_poll(&self, now: Instant, limits: TimeLimits) -> Option<Instant> {
        let TimeLimits { stall, run } = limits;
        let stalls_at = self.unread_for.and_then(|unread_for| now.checked_add(stall.saturating_sub(unread_for)));
        self.deadline.into_iter().chain(stalls_at).chain(self.runs_until(run)).min()
    }

    /// Returns when it has run for `limit`, if it has run at all and the limit is not zero.
    fn runs_until(&self, limit: Duration) -> Option<Instant> {
        self.timer.admitted.filter(|_| !limit.is_zero())?.checked_add(limit)
    }

    /// Returns its status before a step; `None` if it has no permit to run.
    pub(crate) fn status(&mut self, rows: &[SequenceRow], model: &dyn Model, now: Instant) -> Option<RowStatus> {
        let fed = std::mem::take(&mut self.fed);
        let activity = self.activity(rows, now);
        let permit = self.permit.as_ref()?;
        let (held, soon) = match &self.kind {
            RequestKind::Text(text) => {
                let state = &*rows[*self.row_indices.first()?].state;
                (state.bytes(), model.growth(state, text.symbols_soon().saturating_sub(state.len())))
            }
            RequestKind::Document(summary) => {
                let rows_held: usize = self.row_indices.iter().map(|&row| rows[row].state.bytes()).sum();
                let held = summary.held() + rows_held;
                let needed = if model.document_encoder().is_some() { summary.bytes_soon(model) } else { 0 };
                (held, needed.saturating_sub(held))
            }
        };
        Some(RowStatus::new(permit, activity, held, soon, fed))
    }

    fn activity(&self, rows: &[SequenceRow], now: Instant) -> RowActivity {
        if self.in_flight {
            return RowActivity::Busy;
        }
        let paused = |since: Duration| RowActivity::Paused { preemptible: since >= PREEMPTIBLE_AFTER };
        match (&self.kind, self.unread_for) {
            (_, Some(unread_for)) => paused(unread_for),
            (RequestKind::Text(text), None) => text.activity(),
            (RequestKind::Document(summary), None) => match summary.wait {
                Some(wait) => RowActivity::Paused { preemptible: wait.is_long(now) },
                None => summary.activity(self.lens(rows), self.row_indices.len()),
            },
        }
    }

    /// Returns the number of symbols that each of its rows has been fed.
    fn lens(&self, rows: &[SequenceRow]) -> impl Iterator<Item = usize> {
        self.row_indices.iter().map(|&row| rows[row].state.len())
    }

    /// Returns true if its next feed is a chunk, or its document is not encoded yet.
    pub(crate) fn is_prefilling(&self, rows: &[SequenceRow]) -> bool {
        match &self.kind {
            RequestKind::Text(text) => text.session.is_prefilling(),
            RequestKind::Document(summary) => summary.is_prefilling(self.lens(rows)),
        }
    }

    /// Ends it with `error`; the client gets the characters that a stop string withheld.
    fn abandon(&mut self, error: Error) {
        if let RequestKind::Text(text) = &mut self.kind {
            text.session.flush();
        }
        self.outcome = Some(Err(error));
    }

    /// Counts a feed whose outcome is about to be taken. `drafted` of its symbols share the reading of the weights with a sampled
    /// one, as the symbols of a prompt do with each other.
    pub(crate) fn count_fed(&mut self, symbols: usize, drafted: usize) {
        let (prefilling, refeeding) = match &self.kind {
            RequestKind::Text(text) => {
                let prefilling = text.session.is_prefilling();
                (prefilling, prefilling && text.session.is_repeating())
            }
            RequestKind::Document(summary) => (false, summary.refeeding),
        };
        let FedSymbols { prompt, sampled, recomputed } = &mut self.fed;
        let count = match (refeeding && !self.caused_preemption, prefilling) {
            (true, _) => recomputed,
            (false, true) => prompt,
            (false, false) => sampled,
        };
        *count += symbols - drafted;
        self.fed.prompt += drafted;
    }

    pub(crate) fn count_encoded(&mut self, symbols: usize) {
        let repeated = match &mut self.kind {
            RequestKind::Document(summary) => summary.count_encoded(symbols),
            RequestKind::Text(_) => 0,
        };
        let recomputed = if self.caused_preemption { 0 } else { repeated };
        self.fed.recomputed += recomputed;
        self.fed.prompt += symbols - recomputed;
    }

    /// Prepares it to resume later on other rows: its rows are taken away.
    pub(crate) fn preempt(&mut self) {
        let idle = self.is_idle();
        match &mut self.kind {
            RequestKind::Text(text) => text.session.rewind(),
            RequestKind::Document(summary) => summary.rewind(),
        }
        self.in_flight = false;
        self.waits_for_client = self.unread_for.is_some() || idle;
        self.caused_preemption = self.waits_for_client;
    }

    pub(crate) fn send_output(&mut self) {
        let output = match &mut self.kind {
            RequestKind::Text(text) if text.session.has_output() => text.session.take_output(),
            RequestKind::Document(summary) if !summary.output.is_empty() => std::mem::take(&mut summary.output),
            _ => return,
        };
        self.event_sender.send_characters(output);
    }

    /// Returns the number of symbols of the answer.
    pub(crate) fn answered(&self) -> usize {
        match &self.kind {
            RequestKind::Text(text) => text.session.output_symbols(),
            RequestKind::Document(summary) => summary.search.tokens(),
        }
    }

    /// Returns true if it generates an answer, false if it scores a text.
    pub(crate) fn is_generating(&self) -> bool {
        match &self.kind {
            RequestKind::Text(text) => text.session.is_generating(),
            RequestKind::Document(_) => true,
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        match &self.kind {
            RequestKind::Text(text) => text.session.usage(),
            RequestKind::Document(summary) => summary.usage(),
        }
    }

    /// Returns true if it has nothing to do until more of its document arrives.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(&self.kind, RequestKind::Document(summary) if summary.wait.is_some())
    }

    /// Sends the outcome to the client and reports it to the observer.
    pub(crate) fn end(mut self, now: Instant, observer: &dyn Observer) {
        self.send_output();
        if let RequestKind::Text(text) = &mut self.kind {
            if let Some(coded) = text.session.take_coded() {
                self.event_sender.send_coded(coded);
            }
            if let (Some(Ok(_)), Some(distributions)) = (&self.outcome, text.session.take_distributions()) {
                self.event_sender.send_next(distributions);
            }
        }
        let usage = self.usage();
        let timing = self.timer.timing(now);
        let outcome = self.outcome.unwrap_or(Err(Error::Cancelled));
        tracing::debug!(?outcome, ?usage, ?timing, "request ended");
        observer.finished(outcome.as_ref(), &usage, &timing);
        self.event_sender.finish(outcome.map(|reason| match self.kind {
            RequestKind::Text(_) => Event::Finished { reason, usage, timing },
            RequestKind::Document(summary) => {
                let encoded = summary.encoded.clone();
                let cached = summary.was_cached;
                let summarized = summary.finish(reason, timing);
                if let Some(encoded) = encoded {
                    observer.summarized(&summarized, &encoded, cached);
                }
                Event::Document(DocumentEvent::Summarized(Box::new(summarized)))
            }
        }));
    }
}
