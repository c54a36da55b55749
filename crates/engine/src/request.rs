//! A request from its arrival to its end, while it waits and while it runs: its status, where its time goes, and the sending side of
//! its events.

use crate::api::{DocumentEvent, Event, Events, Limits, Terms};
use crate::cache::{Key, SegmentCacheHandle};
use crate::clock;
use crate::constraint::{ConstraintMatcher, LentConstraints};
use crate::document_request::DocumentRequest;
use crate::observer::{EngineEvent, Measurements};
use crate::options::{EmittedSymbol, FinishReason};
use crate::scheduler::tenants::{Beginning, Demand};
use crate::scheduler::{MEMORY_MARGIN, QueuedStatus, RowActivity, RowStatus, RunPermit, WorkDone};
use crate::session::Session;
use crate::summary::{EncodedDocument, PoolingUpdate};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::error::{SendError, TrySendError};
use tokio::sync::mpsc::{self, OwnedPermit, Sender};
use weir_kernels::error::{Error, Result};
use weir_models::contract::{Model, SequenceRow, State};
use weir_models::usage::{LevelCounts, Timing, UnpooledTiming, Usage};

/// How long a client may read nothing before its request can be preempted for a queued one.
const PREEMPTIBLE_AFTER: Duration = Duration::from_millis(100);

pub(crate) enum RequestKind {
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
    /// Its constraints, while another thread finds what may follow their texts. Until then no outcome is taken.
    pub(crate) lent: Option<LentConstraints>,
    /// How long its client has read none of the buffered events; `None` if the client keeps up.
    unread_for: Option<Duration>,
    /// Symbols fed since the scheduler last counted them.
    pub(crate) fed: WorkDone,
    /// Symbols of the present step that are new work: its part of the step's time.
    pub(crate) step_symbols: usize,
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
            lent: None,
            unread_for: None,
            fed: WorkDone::default(),
            step_symbols: 0,
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
    pub(crate) fn poll_running(&mut self, now: Instant, limits: &Limits, waker: &Waker) {
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
    pub(crate) fn poll_queued(&mut self, now: Instant, limits: &Limits, waker: &Waker) -> QueuedStatus {
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

    fn end_reason(&self, now: Instant, limits: &Limits, stage: &'static str) -> Option<Error> {
        let Limits { stall, request_time, .. } = *limits;
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
        if self.runs_until(request_time).is_some_and(|end| end <= now) {
            return Some(Error::RanTooLong { limit: request_time });
        }
        self.unread_for.is_some_and(|unread_for| unread_for >= stall).then_some(Error::Stalled { limit: stall })
    }

    /// Returns when it must be polled again at the latest.
    pub(crate) fn next_poll(&self, now: Instant, limits: &Limits) -> Option<Instant> {
        let Limits { stall, request_time, .. } = *limits;
        let stalls_at = self.unread_for.and_then(|unread_for| now.checked_add(stall.saturating_sub(unread_for)));
        self.deadline.into_iter().chain(stalls_at).chain(self.runs_until(request_time)).min()
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
                // a fork has a last page of its own
                let forks = text.session.forks() * model.bytes_for(1);
                (state.bytes() + forks, model.growth(state, text.symbols_soon().saturating_sub(state.len())))
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
            RequestKind::Text(text) => text.session.is_prefilling() && !text.session.is_forced(),
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

    /// Takes its constraints, if it is not known what may follow some of their texts.
    pub(crate) fn lend_constraints(&mut self) -> Option<Vec<ConstraintMatcher>> {
        match &mut self.kind {
            RequestKind::Text(text) => text.session.lend_constraint().map(|constraint| vec![constraint]),
            RequestKind::Document(summary) => summary.search.lend_constraints(),
        }
    }

    /// Takes back constraints that were lent, once they are ready. Returns false if they are not; waits until `until` in the first step.
    /// Fails if one of them does.
    pub(crate) fn take_constraints_back(&mut self, until: Instant) -> Result<bool> {
        let Some(lent) = &mut self.lent else { return Ok(true) };
        let wait = if lent.are_late { Duration::ZERO } else { until.saturating_duration_since(clock::now()) };
        let constraints = match lent.receiver.recv_timeout(wait) {
            Err(RecvTimeoutError::Timeout) => {
                lent.are_late = true;
                return Ok(false);
            }
            Err(RecvTimeoutError::Disconnected) => Err(Error::Internal("a panic in a constraint".into())),
            Ok(found) => found,
        };
        self.lent = None;
        match &mut self.kind {
            RequestKind::Text(text) => text.session.return_constraint(constraints?.pop()),
            RequestKind::Document(summary) => summary.search.return_constraints(constraints?),
        }
        Ok(true)
    }

    /// Counts a feed whose outcome is about to be taken. `drafted` of its symbols count as symbols of a prompt.
    pub(crate) fn count_fed(&mut self, symbols: usize, drafted: usize) {
        let repeats_work = self.repeats_work();
        let prefilling = matches!(&self.kind, RequestKind::Text(text) if text.session.is_prefilling());
        let WorkDone { prompt, sampled, recomputed, .. } = &mut self.fed;
        let count = match (repeats_work, prefilling) {
            (true, _) => recomputed,
            (false, true) => prompt,
            (false, false) => sampled,
        };
        *count += symbols - drafted;
        self.fed.prompt += drafted;
    }

    /// Returns true if the next feed repeats work that the request lost to others.
    pub(crate) fn repeats_work(&self) -> bool {
        let repeats = match &self.kind {
            RequestKind::Text(text) => text.session.is_repeating(),
            RequestKind::Document(summary) => summary.refeeding,
        };
        repeats && !self.caused_preemption
    }

    /// Counts encoded blocks of `ran` symbols in total. `symbols` of them were read for the first time.
    pub(crate) fn count_encoded(&mut self, ran: usize, symbols: usize) {
        let repeated = match &mut self.kind {
            RequestKind::Document(summary) => summary.count_encoded(symbols),
            RequestKind::Text(_) => 0,
        };
        let recomputed = if self.caused_preemption { 0 } else { repeated };
        self.fed.recomputed += recomputed;
        self.fed.prompt += symbols - recomputed;
        self.step_symbols += if recomputed > 0 { 0 } else { ran };
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
        if let RequestKind::Text(text) = &mut self.kind
            && let Some(progress) = text.session.take_coding_progress()
        {
            self.event_sender.send_progress(Event::Coding(progress));
        }
        let output = match &mut self.kind {
            RequestKind::Text(text) if text.session.has_output() => text.session.take_output(),
            RequestKind::Document(summary) if !summary.output.is_empty() => std::mem::take(&mut summary.output),
            _ => return,
        };
        self.event_sender.send_characters(output);
    }

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

    /// Sends the outcome to the client and records it.
    pub(crate) fn end(mut self, now: Instant, measurements: &Measurements) {
        self.send_output();
        if let RequestKind::Text(text) = &mut self.kind {
            if let Some(coded) = text.session.take_coded() {
                self.event_sender.send_reserved(Event::Coded(coded));
            }
            if let (Some(Ok(_)), Some(distributions)) = (&self.outcome, text.session.take_distributions()) {
                self.event_sender.send_reserved(Event::Next(distributions));
            }
        }
        let usage = self.usage();
        let timing = self.timer.timing(now);
        let outcome = self.outcome.unwrap_or(Err(Error::Cancelled));
        tracing::debug!(?outcome, ?usage, ?timing, "request ended");
        measurements.record(EngineEvent::Finished { outcome: outcome.as_ref(), usage: &usage, timing: &timing });
        self.event_sender.send_outcome(outcome.map(|reason| match self.kind {
            RequestKind::Text(_) => Event::Finished { reason, usage, timing },
            RequestKind::Document(summary) => {
                let encoded = summary.encoded.clone();
                let cached = summary.was_cached;
                let summarized = summary.finish(reason, timing);
                if let Some(encoded) = encoded {
                    measurements.record(EngineEvent::Summarized { summary: &summarized, document: &encoded, cached });
                }
                Event::Document(DocumentEvent::Summarized(Box::new(summarized)))
            }
        }));
    }
}

/// Maximum remaining symbols of a search's request that is fed before prompts. A request with more is treated as a prompt.
const MAX_SEARCHED_SYMBOLS: usize = 16;

/// Maximum symbols of a forced text that a step feeds.
const FORCED_SYMBOLS: usize = 32;

pub(crate) struct TextRequest {
    pub(crate) session: Session,
    /// Key of its states in the segment cache; `None` if they are not cached.
    pub(crate) cache_key: Option<Key>,
}

impl TextRequest {
    /// Returns the state to start from: the longest cached prefix's, or a new one.
    pub(crate) fn begin(&mut self, model: &dyn Model, cache: &SegmentCacheHandle) -> Result<Box<dyn State>> {
        let session = &mut self.session;
        let Some(hit) = cache.find(self.cache_key.as_ref(), session) else {
            let mut state = model.begin(session.boundaries().clone())?;
            session.resume(&mut *state)?;
            return Ok(state);
        };
        session.start_at(hit.len, hit.state.level_segments())?;
        Ok(hit.state)
    }

    /// Returns the beginning of its text, which other requests may share.
    fn beginning(&self) -> Beginning {
        let text = self.session.text();
        match (&self.cache_key, text.after(0)) {
            (Some(key), Some(symbols)) => Beginning::new(key, symbols.iter()),
            _ => Beginning::default(),
        }
    }

    pub(crate) fn cache_state(&self, cache: &SegmentCacheHandle, state: &dyn State) {
        let state = self.session.settled_state().unwrap_or(state);
        cache.keep(self.cache_key.as_ref(), &self.session, state);
    }

    /// Caches the state of a request that looks ahead, for other continuations of its text.
    pub(crate) fn cache_open_state(&self, cache: &SegmentCacheHandle, state: &dyn State) {
        if self.cache_key.is_some() {
            cache.keep_open(self.cache_key.as_ref(), &self.session, state.fork());
        }
    }

    /// Caches the state of an ended request. The state after a text whose distribution was wanted also serves its continuations.
    pub(crate) fn cache_last_state(&self, cache: &SegmentCacheHandle, state: Box<dyn State>) {
        if self.session.wants_distribution() && state.len() == self.session.text_symbols() {
            cache.keep_open(self.cache_key.as_ref(), &self.session, state);
        } else {
            self.cache_state(cache, &*state);
        }
    }

    /// Returns the number of symbols for which its row needs memory soon.
    fn symbols_soon(&self) -> usize {
        let ahead = self.session.resumed_ahead().max(self.session.tried_symbols());
        let symbols = self.session.sequence_symbols().saturating_add(ahead);
        symbols.saturating_add(MEMORY_MARGIN).min(self.session.max_symbols())
    }

    /// Returns its row's next activity, if its client keeps up.
    fn activity(&self) -> RowActivity {
        if !self.session.is_prefilling() {
            return RowActivity::Decoding(1);
        }
        match self.session.remaining_symbols().max(1) {
            // part of the answer, so it waits for no prompt
            left if self.session.is_forced() => RowActivity::Forced(left.min(FORCED_SYMBOLS)),
            left @ ..=MAX_SEARCHED_SYMBOLS if self.session.wants_distribution() => RowActivity::Searching(left),
            left => RowActivity::Prefilling(left),
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct ResponseTimes {
    first: Instant,
    latest: Instant,
}

/// Additional nanoseconds that the steps would have taken without pooling.
#[derive(Debug, Clone, Copy, Default)]
struct UnpooledExtra {
    /// Nanoseconds up to the answer's first symbol.
    prefill_ns: i64,
    /// Nanoseconds from the first symbol on.
    decode_ns: i64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestTimer {
    pub(crate) arrived: Instant,
    /// Time at which it got its first row.
    admitted: Option<Instant>,
    /// Time at which the logits after the prompt were computed.
    prefilled: Option<Instant>,
    answer: Option<ResponseTimes>,
    /// Symbols of the answer when last recorded.
    symbols: usize,
    /// Symbol steps of the request.
    pub(crate) steps: u64,
    /// Symbol steps that ran while the request waited for its segment step.
    pub(crate) wait_steps: u64,
    middle_steps: u64,
    /// Segment steps that ran the layers inside a level, by level of chunking.
    level_steps: LevelCounts,
    /// Time in segment steps.
    pub(crate) middle: Duration,
    /// Time at which the latest segment of the answer got its first symbol.
    segment_started: Option<Instant>,
    /// `None` if a step without an estimate took part.
    unpooled_extra: Option<UnpooledExtra>,
}

impl RequestTimer {
    pub(crate) fn new(arrived: Instant) -> Self {
        Self {
            arrived,
            admitted: None,
            prefilled: None,
            answer: None,
            symbols: 0,
            steps: 0,
            wait_steps: 0,
            middle_steps: 0,
            level_steps: LevelCounts::default(),
            middle: Duration::ZERO,
            segment_started: None,
            unpooled_extra: Some(UnpooledExtra::default()),
        }
    }

    /// Records that the request got a row. Returns how long it was queued, if this is its first row.
    pub(crate) fn admit(&mut self, now: Instant) -> Option<Duration> {
        let first = self.admitted.is_none();
        let admitted = *self.admitted.get_or_insert(now);
        first.then(|| admitted.saturating_duration_since(self.arrived))
    }

    pub(crate) fn since_admission(&self, now: Instant) -> Option<Duration> {
        self.admitted.map(|admitted| now.saturating_duration_since(admitted))
    }

    /// Counts a segment step that ran the layers inside the first `levels` levels of chunking.
    pub(crate) fn count_segment_step(&mut self, levels: usize) {
        self.middle_steps += 1;
        self.level_steps.add(levels);
    }

    /// Records that a step of the request has no estimate of its time without pooling.
    pub(crate) fn cannot_estimate(&mut self) {
        self.unpooled_extra = None;
    }

    /// Adds the nanoseconds that a step of the request would have taken more without pooling.
    pub(crate) fn add_unpooled_extra(&mut self, nanoseconds: i64) {
        if let Some(extra) = &mut self.unpooled_extra {
            let phase = if self.answer.is_none() { &mut extra.prefill_ns } else { &mut extra.decode_ns };
            *phase = phase.saturating_add(nanoseconds);
        }
    }

    /// Records the request's progress after a step: its answer has `symbols` symbols. Passes the latencies of new ones to `record`.
    /// `boundary` is true if the latest symbol before them ended a segment.
    pub(crate) fn record_progress(
        &mut self,
        now: Instant,
        prefilling: bool,
        symbols: usize,
        boundary: bool,
        record: impl Fn(EngineEvent<'_>),
    ) {
        if !prefilling {
            self.prefilled.get_or_insert(now);
        }
        let new = symbols.saturating_sub(self.symbols);
        if new == 0 {
            return;
        }
        self.symbols = symbols;
        let Some(answer) = &mut self.answer else {
            self.answer = Some(ResponseTimes { first: now, latest: now });
            return record(EngineEvent::FirstChar(now.saturating_duration_since(self.arrived)));
        };
        let before = std::mem::replace(&mut answer.latest, now);
        record(EngineEvent::Gap { gap: now.saturating_duration_since(before), boundary });
        // accepted symbols come together
        (1..new).for_each(|_| record(EngineEvent::Gap { gap: Duration::ZERO, boundary: false }));
        if boundary && let Some(before) = self.segment_started.replace(now) {
            record(EngineEvent::Segment(now.saturating_duration_since(before)));
        }
    }

    /// Returns the durations of the request's phases, at its end.
    pub(crate) fn timing(&self, now: Instant) -> Timing {
        let between = |from: Instant, to: Instant| clock::nanoseconds(to.saturating_duration_since(from));
        let prefill_ns = self.admitted.map_or(0, |admitted| between(admitted, self.prefilled.unwrap_or(now)));
        let decode_ns = self.answer.map_or(0, |answer| between(answer.first, answer.latest));
        let extra = self.unpooled_extra.filter(|_| self.steps > 0);
        Timing {
            queue_ns: between(self.arrived, self.admitted.unwrap_or(now)),
            prefill_ns,
            time_to_first_char_ns: self.answer.map_or(0, |answer| between(self.arrived, answer.first)),
            decode_ns,
            total_ns: between(self.arrived, now),
            steps: self.steps,
            wait_steps: self.wait_steps,
            middle_steps: self.middle_steps,
            level_steps: self.level_steps,
            middle_ns: clock::nanoseconds(self.middle),
            unpooled: extra.map(|extra| UnpooledTiming {
                prefill_ns: prefill_ns.saturating_add_signed(extra.prefill_ns),
                decode_ns: decode_ns.saturating_add_signed(extra.decode_ns),
            }),
        }
    }
}

type EventResult = Result<Event>;

type PendingSlot = Pin<Box<dyn Future<Output = Result<OwnedPermit<EventResult>, SendError<()>>> + Send>>;

/// Slots reserved for the encoded document or coded block, the final characters and the outcome.
const RESERVED_SLOTS: usize = 3;

/// Maximum symbols of an event, in which each alternative of a symbol counts like one, so that a channel's memory is bounded.
const EVENT_SYMBOLS: usize = 4;

/// Maximum events of a channel: more than any client needs, and below tokio's own limit.
const MAX_EVENTS: usize = 1 << 24;

/// The sending side of a request's events: bounded, and it never blocks the worker. Characters without room wait here, and pause
/// their own row only. Three slots are reserved: for the document or coded block, the final characters, and the outcome.
pub(crate) struct EventSender {
    sender: Sender<EventResult>,
    /// Characters without room in the channel.
    held: VecDeque<EmittedSymbol>,
    /// Resolves to a slot for the held characters.
    pending_slot: Option<PendingSlot>,
    free_slots: usize,
    /// Since when the client has read nothing, according to `free_slots`.
    unread_since: Option<Instant>,
    /// Slots of the channel without the reserved ones.
    capacity: usize,
    /// `None` once it is used.
    encoded_slot: Option<OwnedPermit<EventResult>>,
    final_slot: Option<OwnedPermit<EventResult>>,
    outcome_slot: Option<OwnedPermit<EventResult>>,
}

impl EventSender {
    /// Opens a channel with room for `capacity` events. Fails with `Internal` if the new channel has no room.
    pub(crate) fn open(capacity: usize) -> Result<(Self, Events)> {
        let capacity = capacity.clamp(1, MAX_EVENTS);
        let (sender, events) = mpsc::channel(capacity + RESERVED_SLOTS);
        let reserve = || sender.clone().try_reserve_owned();
        let (Ok(encoded_slot), Ok(final_slot), Ok(outcome_slot)) = (reserve(), reserve(), reserve()) else {
            return Err(Error::Internal("a new event channel has no room".into()));
        };
        let event_sender = Self {
            sender,
            held: VecDeque::new(),
            pending_slot: None,
            free_slots: 0,
            unread_since: None,
            capacity,
            encoded_slot: Some(encoded_slot),
            final_slot: Some(final_slot),
            outcome_slot: Some(outcome_slot),
        };
        Ok((event_sender, events))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Sends `Started`. The first event always finds room.
    pub(crate) fn send_started(&self, cached_chars: usize) {
        // the worker notices a dropped receiver before the next step
        let _ = self.sender.try_send(Ok(Event::Started { cached_chars }));
    }

    /// Sends the progress of a document's encoding, or of a block's coding. Dropped if the channel is full.
    pub(crate) fn send_progress(&self, progress: Event) {
        let _ = self.sender.try_send(Ok(progress));
    }

    /// Sends the choices of poolings. Calls `collect` only if the channel has room.
    pub(crate) fn send_chosen(&self, collect: impl FnOnce() -> Option<PoolingUpdate>) {
        let Ok(slot) = self.sender.try_reserve() else { return };
        if let Some(chosen) = collect() {
            slot.send(Ok(Event::Document(DocumentEvent::Chosen(Box::new(chosen)))));
        }
    }

    /// Sends how a document was encoded; only the first call sends.
    pub(crate) fn send_encoded(&mut self, encoded: &Arc<EncodedDocument>) {
        self.send_reserved(Event::Document(DocumentEvent::Encoded(Arc::clone(encoded))));
    }

    /// Sends the event with its own slot: only the first call sends.
    fn send_reserved(&mut self, event: Event) {
        if let Some(slot) = self.encoded_slot.take() {
            slot.send(Ok(event));
        }
    }

    /// Sends characters in events of at most [`EVENT_SYMBOLS`], or holds them until the channel has room.
    pub(crate) fn send_characters(&mut self, characters: Vec<EmittedSymbol>) {
        if self.pending_slot.is_some() {
            self.held.extend(characters);
            return;
        }
        // The usual case, in which nothing is copied.
        if characters.len() <= event_symbols(characters.first())
            && let Ok(slot) = self.sender.try_reserve()
        {
            return slot.send(Ok(Event::Characters(characters)));
        }
        self.held.extend(characters);
        self.send_held();
    }

    /// Sends held characters while the channel has room.
    fn send_held(&mut self) {
        while !self.held.is_empty() {
            match self.sender.try_reserve() {
                Ok(slot) => slot.send(Ok(Event::Characters(next_characters(&mut self.held)))),
                Err(TrySendError::Full(())) => {
                    self.free_slots = 0;
                    self.unread_since = None;
                    self.pending_slot = Some(Box::pin(self.sender.clone().reserve_owned()));
                    return;
                }
                Err(TrySendError::Closed(())) => self.held.clear(),
            }
        }
    }

    /// Tries to send the held characters. Returns true if none are left; otherwise `waker` is woken once there is room.
    pub(crate) fn flush(&mut self, waker: &Waker) -> bool {
        while let Some(slot) = &mut self.pending_slot {
            match slot.as_mut().poll(&mut Context::from_waker(waker)) {
                Poll::Pending => return false,
                Poll::Ready(Ok(slot)) => {
                    slot.send(Ok(Event::Characters(next_characters(&mut self.held))));
                }
                Poll::Ready(Err(_)) => self.held.clear(),
            }
            self.pending_slot = None;
            self.unread_since = None;
            self.send_held();
        }
        true
    }

    /// Returns true if at least half of the slots are free: a client that was behind has caught up.
    pub(crate) fn has_caught_up(&self) -> bool {
        self.sender.capacity() >= self.capacity.div_ceil(2)
    }

    /// Returns how long the client has read nothing. Called only while there are events for it to read.
    pub(crate) fn unread_for(&mut self, now: Instant) -> Duration {
        let free = self.sender.capacity();
        if free > self.free_slots {
            self.unread_since = None;
        }
        self.free_slots = free;
        now.saturating_duration_since(*self.unread_since.get_or_insert(now))
    }

    pub(crate) fn send_outcome(&mut self, outcome: EventResult) {
        let held = std::mem::take(&mut self.held);
        if let Some(slot) = self.final_slot.take().filter(|_| !held.is_empty()) {
            slot.send(Ok(Event::Characters(held.into())));
        }
        if let Some(slot) = self.outcome_slot.take() {
            slot.send(outcome);
        }
    }
}

fn next_characters(held: &mut VecDeque<EmittedSymbol>) -> Vec<EmittedSymbol> {
    let count = event_symbols(held.front()).min(held.len());
    held.drain(..count).collect()
}

/// Returns the maximum number of symbols of an event that begins with `first`. All symbols of a request have as many alternatives.
fn event_symbols(first: Option<&EmittedSymbol>) -> usize {
    let alternatives = first.map_or(0, |symbol| symbol.top.len());
    (EVENT_SYMBOLS / (1 + alternatives)).max(1)
}

/// Every request is answered, even if a panic of the worker dropped it.
impl Drop for EventSender {
    fn drop(&mut self) {
        self.send_outcome(Err(Error::Internal("the worker lost the request in a panic".into())));
    }
}

#[cfg(test)]
mod event_sender_tests {
    use super::*;

    fn symbols(count: u32, alternatives: usize) -> Vec<EmittedSymbol> {
        let top = vec![(0, 0.0); alternatives];
        (0..count).map(|symbol| EmittedSymbol { top: top.clone(), ..EmittedSymbol::plain(symbol) }).collect()
    }

    fn received(events: &mut Events) -> Vec<usize> {
        let mut lengths = Vec::new();
        while let Ok(event) = events.try_recv() {
            let Ok(Event::Characters(characters)) = event else { continue };
            lengths.push(characters.len());
        }
        lengths
    }

    #[test]
    fn a_channel_holds_a_limited_number_of_symbols() {
        for (alternatives, in_event) in [(0, 4), (1, 2), (20, 1)] {
            let (mut sender, mut events) = EventSender::open(3).unwrap();
            sender.send_characters(symbols(15, alternatives));
            assert_eq!(received(&mut events), [in_event; 3]);
            let mut left = 15 - 3 * in_event;
            while !sender.flush(Waker::noop()) {
                let lengths = received(&mut events);
                assert!(lengths.len() <= 3 && lengths.iter().all(|length| *length <= in_event), "{lengths:?}");
                left -= lengths.iter().sum::<usize>();
            }
            assert_eq!(received(&mut events).iter().sum::<usize>(), left);
        }
    }
}
