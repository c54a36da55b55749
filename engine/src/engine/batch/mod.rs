//! The running requests, their rows, and one step of them.
//!
//! Hot path: a step of texts logs nothing, and allocates only its events and the cache entries of complete prompts and of requests
//! that look ahead.
//!
//! The [`scheduler`](super::scheduler) decides which rows a step feeds and which documents it encodes.
//! [`select_segment_rows`](Batch::select_segment_rows) decides which waiting rows its segment step takes, by the rule of
//! [`boundary_wait`]. A step encodes documents first.

mod drafts;
mod encode;
mod outcome;
mod rows;
mod unpooled_estimate;

use super::{
    clock,
    counters::Counters,
    recovery::{caught, drop_each, guarded},
    request::{Request, RequestKind},
    scheduler::{Feed, RowActivity, RowStatus},
    shared::Inner,
};
use crate::{
    decode::{
        boundary_wait,
        contract::{Scratch, SequenceRow, State, StepStatus},
        speculation::{guess_rates::GuessRates, step_times::StepTimes},
    },
    error::{Error, Result},
};
use rows::RowTable;
use std::{
    sync::Arc,
    task::Waker,
    time::{Duration, Instant},
};
use unpooled_estimate::UnpooledEstimate;

pub(super) struct Batch {
    inner: Arc<Inner>,
    row_table: RowTable,
    pub(super) requests: Vec<Request>,
    scratch: Scratch,
    /// Status of each request when last refreshed.
    pub(super) statuses: Vec<RowStatus>,
    /// Plan of the current step.
    pub(super) feeds: Vec<Feed>,
    /// The feeds of `feeds` that run blocks of documents.
    encode_feeds: Vec<Feed>,
    /// Rows that the current symbol step feeds.
    fed: Vec<usize>,
    /// Rows that the current segment step takes.
    due: Vec<usize>,
    /// Rows that the current finish step takes.
    unfinished: Vec<usize>,
    /// Measurement of the latest step, until the worker takes it.
    pub(super) latest_step: Option<LatestStep>,
    unpooled_estimate: UnpooledEstimate,
    /// Measured over all requests, until the worker restarts.
    step_times: StepTimes,
    /// Shared by all requests, until the worker restarts, so that a new one need not learn which guesses are wrong.
    guess_rates: GuessRates,
    /// Totals, without the current load. Published after each step.
    pub(super) counters: Counters,
}

pub(super) struct LatestStep {
    /// Symbols fed and encoded.
    pub(super) symbols: usize,
    /// Rows that were fed.
    pub(super) rows: usize,
    pub(super) took: Duration,
}

impl Batch {
    pub(super) fn new(inner: Arc<Inner>) -> Self {
        Self {
            scratch: inner.model.scratch(),
            inner,
            row_table: RowTable::default(),
            requests: Vec::new(),
            statuses: Vec::new(),
            feeds: Vec::new(),
            encode_feeds: Vec::new(),
            fed: Vec::new(),
            due: Vec::new(),
            unfinished: Vec::new(),
            latest_step: None,
            unpooled_estimate: UnpooledEstimate::default(),
            step_times: StepTimes::default(),
            guess_rates: GuessRates::default(),
            counters: Counters::default(),
        }
    }

    /// Adds a request with its first rows: from the longest cached prefix of its text, or from its cached document. Returns the
    /// request with its outcome if the model rejects it.
    pub(super) fn admit(&mut self, mut request: Request, now: Instant) -> Option<Request> {
        match guarded(|| self.begin(&mut request, now)) {
            Ok(states) => {
                if let Some(queued) = request.timer.admit(now) {
                    self.inner.observer.queued(queued);
                    request.event_sender.send_started(request.usage().cached_chars);
                }
                if let RequestKind::Document(summary) = &request.kind
                    && let Some(cached) = &summary.document
                {
                    request.event_sender.send_encoded(&cached.encoded);
                }
                let index = self.requests.len();
                self.requests.push(request);
                states.into_iter().for_each(|state| self.row_table.push(state, index, &mut self.requests));
                None
            }
            Err(error) => {
                request.outcome = Some(Err(error));
                Some(request)
            }
        }
    }

    fn begin(&self, request: &mut Request, now: Instant) -> Result<Vec<Box<dyn State>>> {
        let Inner { model, segment_cache, observer, .. } = &*self.inner;
        match &mut request.kind {
            RequestKind::Text(text) => Ok(vec![text.begin(&**model, segment_cache, &**observer)?]),
            RequestKind::Document(summary) => Self::begin_summary(&self.inner, summary, &request.tenant, now),
        }
    }

    /// Ends the requests whose client is gone or does not read, whose deadline has passed, or that ran too long.
    pub(super) fn poll_requests(&mut self, now: Instant, waker: &Waker) {
        let limits = self.inner.limits.time_limits();
        for request in &mut self.requests {
            if let Err(error) = guarded(|| {
                request.poll_running(now, limits, waker);
                Ok(())
            }) {
                request.outcome = Some(Err(error));
            }
        }
    }

    pub(super) fn fail_all(&mut self, error: impl Fn() -> Error) {
        self.requests.iter_mut().for_each(|request| request.outcome = Some(Err(error())));
    }

    /// Moves ended requests to `ended` and frees their rows. Caches the states of texts whose rows did not fail.
    pub(super) fn remove_ended(&mut self, ended: &mut Vec<Request>) {
        // from the last: the request that moves to a freed index was looked at already
        for index in (0..self.requests.len()).rev() {
            let Some(outcome) = &self.requests[index].outcome else { continue };
            let failed = matches!(outcome, Err(Error::Internal(_) | Error::OutOfPages { .. }));
            let finished = outcome.is_ok();
            let (request, mut rows) = self.row_table.remove_request(index, &mut self.requests);
            match &request.kind {
                RequestKind::Text(text) if finished => {
                    if let Some(row) = rows.pop() {
                        caught(|| text.cache_last_state(&self.inner.segment_cache, row.state));
                    }
                }
                RequestKind::Text(text) if !failed => {
                    if let Some(row) = rows.first() {
                        caught(|| text.cache_state(&self.inner.segment_cache, &*row.state));
                    }
                }
                _ => {}
            }
            drop_each(rows);
            ended.push(request);
        }
    }

    /// Drops all rows and returns the requests. The batch must not be used afterwards.
    pub(super) fn take_requests(&mut self) -> Vec<Request> {
        drop_each(std::mem::take(&mut self.row_table.rows));
        std::mem::take(&mut self.requests)
    }

    pub(super) fn remove(&mut self, index: usize) -> Option<(Request, Vec<SequenceRow>)> {
        (index < self.requests.len()).then(|| self.row_table.remove_request(index, &mut self.requests))
    }

    pub(super) fn refresh_statuses(&mut self) {
        self.statuses.clear();
        let model = &*self.inner.model;
        let rows = &self.row_table.rows;
        let now = clock::now();
        self.statuses.extend(self.requests.iter_mut().filter_map(|request| request.status(rows, model, now)));
    }

    /// Evicts cache entries until there is memory for the planned step. Returns false if there is not enough even then.
    pub(super) fn make_room(&self) -> bool {
        let Inner { model, segment_cache, document_cache, .. } = &*self.inner;
        // measured after each eviction: a row needs no copy of a page that it shared with an evicted entry
        let is_short = || {
            let in_flight = self.requests.iter().filter(|request| request.in_flight);
            let rows = in_flight.flat_map(|request| &request.row_indices);
            let pending: usize = rows.map(|&row| model.growth(&*self.row_table.rows[row].state, 0)).sum();
            let needed = pending + self.feeds.iter().map(|feed| self.growth(feed)).sum::<usize>();
            let memory = model.memory();
            needed > memory.limit.saturating_sub(memory.in_use)
        };
        while is_short() {
            if !segment_cache.evict() && !document_cache.evict() {
                return false;
            }
        }
        true
    }

    /// Returns the bytes that a feed allocates.
    fn growth(&self, feed: &Feed) -> usize {
        let model = &*self.inner.model;
        let request = &self.requests[feed.request];
        if let (RequestKind::Document(summary), Some(reader)) = (&request.kind, model.document_encoder())
            && summary.encoding.is_some()
        {
            return summary.growth(reader);
        }
        let share = feed.symbols.div_ceil(request.row_indices.len().max(1));
        request.row_indices.iter().map(|&row| model.growth(&*self.row_table.rows[row].state, share)).sum()
    }

    /// Runs one step: feeds the rows as planned and continues those that were fed before. Returns true if anything ran.
    pub(super) fn step(&mut self) -> bool {
        let began = clock::now();
        self.feed();
        let fed: usize = self.fed.iter().map(|&row| self.row_table.rows[row].positions()).sum();
        let encoded = self.encode();
        self.unpooled_estimate.start_step(&self.requests, &self.row_table.rows, &self.fed);
        let symbol_step_began = clock::now();
        self.symbol_step();
        let symbol_step_took = clock::since(symbol_step_began);
        self.select_segment_rows();
        self.segment_step();
        let finish_step_began = clock::now();
        self.finish_step();
        let finish_step_took = clock::since(finish_step_began);
        if self.only_decodes() {
            let finished = self.unfinished.iter().map(|&row| self.row_table.rows[row].positions()).sum();
            self.step_times.record_symbol_step(fed, symbol_step_took);
            self.step_times.record_finish_step(finished, finish_step_took);
        }
        let calibration = self.inner.calibration.get();
        self.unpooled_estimate.charge(calibration.as_ref(), &mut self.requests, &self.row_table, &self.fed, began);
        self.absorb();
        self.count_step(began, fed, encoded);
        // waiting rows are always due when no row is fed, so the worker never sleeps while rows wait
        !(self.fed.is_empty() && self.due.is_empty() && self.encode_feeds.is_empty())
    }

    fn feed(&mut self) {
        self.fed.clear();
        self.encode_feeds.clear();
        for &feed in &self.feeds {
            let Request { kind, row_indices, .. } = &mut self.requests[feed.request];
            match kind {
                RequestKind::Text(text) => {
                    for &row in row_indices.iter() {
                        text.session.feed(&mut self.row_table.rows[row], feed.symbols);
                        self.fed.push(row);
                    }
                }
                RequestKind::Document(summary) if summary.encoding.is_some() => self.encode_feeds.push(feed),
                RequestKind::Document(summary) => {
                    summary.feed(&mut self.row_table.rows, row_indices, feed.symbols, &mut self.fed);
                }
            }
        }
    }

    /// Selects the rows of the segment step: all waiting rows together when [`boundary_wait::is_due`], otherwise none.
    ///
    /// Waiting rows wait only for rows that the next step will feed: rows that were fed now and do not wait, and prompts that
    /// had no room in this step. They do not wait for paused rows, nor while a prompt's chunk is fed: its steps are long.
    fn select_segment_rows(&mut self) {
        self.due.clear();
        self.due.extend(in_flight_rows(StepStatus::Waiting, &self.requests, &self.row_table));
        let has_chunks = self.fed.iter().chain(&self.due).any(|&row| self.feeds_chunk(row));
        let Self { requests, row_table, statuses, .. } = self;
        let rows = &row_table.rows;
        let continues =
            |&row: &usize| requests[row_table.owners[row]].outcome.is_none() && rows[row].status != StepStatus::Waiting;
        let chunks = has_chunks || !self.encode_feeds.is_empty();
        let prefilling =
            |&index: &usize| matches!(statuses[index].activity, RowActivity::Prefilling(_) | RowActivity::Searching(_));
        let unfed = (0..statuses.len()).filter(prefilling);
        let mut unfed = unfed.flat_map(|index| requests.get(index).map_or(&[][..], |request| &request.row_indices));
        let others = !chunks && (self.fed.iter().any(continues) || unfed.any(continues));
        if !boundary_wait::is_due(self.due.iter().map(|&row| &rows[row]), others, self.inner.limits.boundary_wait) {
            self.due.clear();
        }
    }

    fn symbol_step(&mut self) {
        if self.fed.is_empty() {
            return;
        }
        boundary_wait::count_step(&mut self.row_table.rows);
        let rows = &mut self.row_table.rows;
        let result = guarded(|| self.inner.model.symbol_step(rows, &self.fed, &mut self.scratch));
        for &row in &self.fed {
            let request = &mut self.requests[self.row_table.owners[row]];
            // once for all rows of a request
            if !request.in_flight {
                request.in_flight = true;
                request.timer.steps += 1;
            }
        }
        match result {
            Ok(()) => self.cut_drafts(),
            Err(error) => self.fail_rows(&error, self.fed.clone()),
        }
    }

    fn segment_step(&mut self) {
        if self.due.is_empty() {
            return;
        }
        self.unpooled_estimate.record_segment_step(&self.row_table.rows, &self.due);
        let began = clock::now();
        let rows = &mut self.row_table.rows;
        let result = guarded(|| self.inner.model.segment_step(rows, &self.due, &mut self.scratch));
        let took = clock::since(began);
        for &row in &self.due {
            // symbols that a rollback kept, and that are fed again, have no decision
            let decided = self.row_table.rows[row].decisions.iter().map(|mark| mark.closed_levels()).max();
            let timer = &mut self.requests[self.row_table.owners[row]].timer;
            timer.count_segment_step(took, decided.unwrap_or_default().max(1));
        }
        if let Err(error) = result {
            self.fail_rows(&error, self.due.clone());
        }
    }

    fn finish_step(&mut self) {
        self.unfinished.clear();
        self.unfinished.extend(in_flight_rows(StepStatus::Unfinished, &self.requests, &self.row_table));
        if self.unfinished.is_empty() {
            return;
        }
        self.unpooled_estimate.record_finish_step(&self.row_table.rows, &self.unfinished);
        let rows = &mut self.row_table.rows;
        let result = guarded(|| self.inner.model.finish_step(rows, &self.unfinished, &mut self.scratch));
        if let Err(error) = result {
            self.fail_rows(&error, self.unfinished.clone());
        }
    }

    /// Ends the requests whose rows took part in a failed step: the state of these rows is lost. Replaces the scratch space,
    /// which the step may have left inconsistent.
    fn fail_rows(&mut self, error: &Error, rows: Vec<usize>) {
        tracing::error!(rows = rows.len(), %error, "a step failed");
        for row in rows {
            self.requests[self.row_table.owners[row]].outcome = Some(Err(copy_error(error)));
        }
        self.scratch = self.inner.model.scratch();
    }
}

/// Returns the rows in flight that have `status`, without those of requests that have ended.
fn in_flight_rows(status: StepStatus, requests: &[Request], table: &RowTable) -> impl Iterator<Item = usize> {
    let in_flight = |request: &Request| request.in_flight && request.outcome.is_none();
    (0..table.rows.len())
        .filter(move |&row| table.rows[row].status == status && in_flight(&requests[table.owners[row]]))
}

/// Copies a step's error for one of the requests that took part.
fn copy_error(error: &Error) -> Error {
    match error {
        &Error::OutOfPages { needed, limit } => Error::OutOfPages { needed, limit },
        Error::Internal(message) => Error::Internal(message.clone()),
        other => Error::Internal(other.to_string()),
    }
}
