//! The running requests, their rows, and one step of them: documents are encoded, rows are fed as
//! [`crate::scheduler`] plans, and the outcome of each request whose rows are ready is taken and sent.
//!
//! Hot path: a step of texts logs nothing, and allocates only its events and the cache entries of complete prompts and of
//! requests that look ahead.

use crate::{
    api::{DocumentEvent, Event, Limits},
    beam::SearchStep,
    cache::{DocumentCache, SegmentCacheHandle},
    calibration::Calibrated,
    clock,
    constraint::{ConstraintCompiler, ConstraintMatcher, LentConstraints},
    document_request::DocumentRequest,
    observer::{EngineEvent, FedSymbols, Measurements, Observer},
    options::FinishReason,
    request::{Request, RequestKind},
    scheduler::{Feed, RowActivity, RowStatus, Rules, StepLimits},
    session::SessionProgress,
    speculation::{DraftBudget, GuessRates},
    state::{EngineState, Heartbeat, SharedState},
    step_times::EngineStep,
};
use std::{
    any::Any,
    collections::{BTreeMap, VecDeque},
    io,
    ops::Bound,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::AtomicBool,
        mpsc::{self, SyncSender},
    },
    task::Waker,
    thread,
    time::{Duration, Instant},
};
use tokio::sync::watch;
use weir_kernels::{
    error::{Error, Result},
    sync::lock,
};
use weir_models::contract::{self, DocumentEncoder, EncodingStage, Model, Scratch, SequenceRow, State, StepStatus};

/// What the handles and the worker of an engine share.
pub(crate) struct Inner {
    pub(crate) model: Arc<dyn Model>,
    pub(crate) limits: Limits,
    pub(crate) state: SharedState<Request>,
    pub(crate) segment_cache: SegmentCacheHandle,
    pub(crate) document_cache: DocumentCache,
    pub(crate) constraints: ConstraintCompiler,
    pub(crate) measurements: Arc<Measurements>,
    pub(crate) heartbeat: Heartbeat,
    /// Step times of the model: `None` until a measurement succeeds or fails.
    pub(crate) calibration: Mutex<Option<Calibrated>>,
    /// Held while the model's steps are timed, and by the worker while it runs: both would take the model's memory.
    pub(crate) running: Mutex<()>,
    /// Set when the worker breaks; watched by [`Handle::wait_until_broken`](super::Handle::wait_until_broken).
    pub(crate) broken: watch::Sender<bool>,
    /// Set before the worker breaks because the model's file changed.
    pub(crate) lost_file: AtomicBool,
}

impl Inner {
    pub(crate) fn new(model: Arc<dyn Model>, limits: Limits, observer: Arc<dyn Observer>) -> Self {
        let rules = Rules::new(limits.rows, limits.queue, limits.queued_symbols, model.memory().limit, limits.chunk);
        let measurements = Arc::new(Measurements::new(observer));
        let model_vocabulary = Arc::clone(&model.card().vocabulary);
        let end = model.document_encoder().map(|reader| reader.limits().marks.end);
        Self {
            model,
            limits,
            state: SharedState::new(rules),
            segment_cache: SegmentCacheHandle::new(limits.cache_bytes, Arc::clone(&measurements)),
            document_cache: DocumentCache::new(limits.document_bytes, limits.document_keep, Arc::clone(&measurements)),
            constraints: ConstraintCompiler::with_end(model_vocabulary, end),
            measurements,
            heartbeat: Heartbeat::new(),
            calibration: Mutex::default(),
            running: Mutex::default(),
            broken: watch::Sender::new(false),
            lost_file: AtomicBool::new(false),
        }
    }

    pub(crate) fn lock_state(&self) -> MutexGuard<'_, EngineState<Request>> {
        self.state.lock()
    }
}

/// The rows of a worker and the requests that own them.
pub(crate) struct Batch {
    inner: Arc<Inner>,
    row_table: RowTable,
    pub(crate) requests: Vec<Request>,
    scratch: Scratch,
    /// Status of each request when last refreshed.
    pub(crate) statuses: Vec<RowStatus>,
    /// Plan of the current step.
    pub(crate) feeds: Vec<Feed>,
    /// The feeds of `feeds` that run blocks of documents.
    encode_feeds: Vec<Feed>,
    /// Rows that the current symbol step feeds.
    fed: Vec<usize>,
    /// Rows that the current segment step takes.
    due: Vec<usize>,
    /// Rows that the current finish step takes.
    unfinished: Vec<usize>,
    /// True if tenants are ahead of others, whose rows then wait for no segment step.
    pub(crate) hurries: bool,
    /// Duration of the next step on a simulated clock.
    pub(crate) simulated_step: Option<Duration>,
    /// Measurement of the latest step, until the worker takes it.
    pub(crate) latest_step: Option<EngineStep>,
    /// True once a step failed because the model's file changed: every later step would fail as well.
    pub(crate) lost_file: bool,
    /// Requests that were in flight before the step: they wait for a segment step.
    waiting: Vec<usize>,
    /// Shared by all requests, until the worker restarts, so that a new one need not learn which guesses are wrong.
    guess_rates: GuessRates,
    /// Threads that find slow masks. They start with the first slow constraint.
    constraint_threads: ConstraintThreads,
}

impl Batch {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
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
            hurries: false,
            simulated_step: None,
            latest_step: None,
            lost_file: false,
            waiting: Vec::new(),
            guess_rates: GuessRates::default(),
            constraint_threads: ConstraintThreads::default(),
        }
    }

    /// Adds a request with its first rows: from the longest cached prefix of its text, or from its cached document. Returns the
    /// request with its outcome if the model rejects it.
    pub(crate) fn admit(&mut self, mut request: Request, now: Instant) -> Option<Request> {
        match guarded(|| self.begin(&mut request, now)) {
            Ok(states) => {
                if let Some(queued) = request.timer.admit(now) {
                    self.inner.measurements.record(EngineEvent::Admitted(queued));
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
        let Inner { model, segment_cache, .. } = &*self.inner;
        match &mut request.kind {
            RequestKind::Text(text) => Ok(vec![text.begin(&**model, segment_cache)?]),
            RequestKind::Document(summary) => Self::begin_summary(&self.inner, summary, &request.tenant, now),
        }
    }

    /// Ends the requests whose client is gone or does not read, whose deadline has passed, or that ran too long.
    pub(crate) fn poll_requests(&mut self, now: Instant, waker: &Waker) {
        let limits = &self.inner.limits;
        for request in &mut self.requests {
            if let Err(error) = guarded(|| {
                request.poll_running(now, limits, waker);
                Ok(())
            }) {
                request.outcome = Some(Err(error));
            }
        }
    }

    pub(crate) fn fail_all(&mut self, error: impl Fn() -> Error) {
        self.requests.iter_mut().for_each(|request| request.outcome = Some(Err(error())));
    }

    /// Moves ended requests to `ended` and frees their rows. Caches the states of texts whose rows did not fail.
    pub(crate) fn remove_ended(&mut self, ended: &mut Vec<Request>) {
        // from the last: the request that moves to a freed index was looked at already
        for index in (0..self.requests.len()).rev() {
            let Some(outcome) = &self.requests[index].outcome else { continue };
            let failed =
                matches!(outcome, Err(Error::Internal(_) | Error::OutOfPages { .. } | Error::FileChanged { .. }));
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
    pub(crate) fn take_requests(&mut self) -> Vec<Request> {
        drop_each(std::mem::take(&mut self.row_table.rows));
        std::mem::take(&mut self.requests)
    }

    pub(crate) fn remove(&mut self, index: usize) -> Option<(Request, Vec<SequenceRow>)> {
        (index < self.requests.len()).then(|| self.row_table.remove_request(index, &mut self.requests))
    }

    pub(crate) fn refresh_statuses(&mut self) {
        self.statuses.clear();
        let model = &*self.inner.model;
        let rows = &self.row_table.rows;
        let now = clock::now();
        self.statuses.extend(self.requests.iter_mut().filter_map(|request| request.status(rows, model, now)));
    }

    /// Evicts cache entries until there is memory for the planned step. Returns false if there is not enough even then.
    pub(crate) fn make_room(&self) -> bool {
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
            let row = if summary.attention.is_some() { model.bytes_for(1) } else { 0 };
            return summary.growth(reader) + row;
        }
        let share = feed.symbols.div_ceil(request.row_indices.len().max(1));
        request.row_indices.iter().map(|&row| model.growth(&*self.row_table.rows[row].state, share)).sum()
    }

    /// Runs one step: feeds the rows as planned and continues those that were fed before. Returns true if anything ran.
    pub(crate) fn step(&mut self) -> bool {
        let began = clock::now();
        self.feed();
        let encoded = self.encode();
        let mut step = self.describe_step(encoded);
        let model_began = clock::now();
        self.symbol_step();
        step.symbol_took = clock::since(model_began);
        self.select_segment_rows();
        let ran = !(self.fed.is_empty() && self.due.is_empty() && self.encode_feeds.is_empty());
        step.closed = self.segment_step();
        let finish_step_began = clock::now();
        step.finished = self.finish_step();
        step.finish_took = clock::since(finish_step_began);
        step.only_decodes = self.only_decodes();
        self.estimate_unpooled(&step, clock::since(model_began), began);
        let absorbed = self.absorb();
        let took = self.simulated_step.unwrap_or_else(|| clock::since(began));
        self.count_step(EngineStep { took, ..step });
        // waiting rows are always due when no row is fed, so the worker never sleeps while rows wait
        ran || absorbed
    }

    /// Describes the step before its rows are fed.
    fn describe_step(&mut self, encoded: usize) -> EngineStep {
        let Self { requests, row_table, fed, waiting, .. } = self;
        for &row in fed.iter() {
            let request = &mut requests[row_table.owners[row]];
            request.step_symbols += if request.repeats_work() { 0 } else { row_table.rows[row].positions() };
        }
        waiting.clear();
        waiting
            .extend((0..requests.len()).filter(|&index| requests[index].in_flight && requests[index].lent.is_none()));
        let total =
            |count: fn(&SequenceRow) -> usize| fed.iter().map(|&row| count(&row_table.rows[row])).sum::<usize>();
        let mean = |sum: usize| sum as f64 / fed.len().max(1) as f64;
        EngineStep {
            rows: fed.len(),
            fed: total(SequenceRow::positions),
            encoded,
            waiting: waiting.len(),
            context: mean(total(|row| row.state.len())),
            segments: mean(total(|row| row.state.segments())),
            ..EngineStep::default()
        }
    }

    /// Charges requests the additional time that a step would have taken without pooling. Requests that waited are credited the
    /// duration of the step, which began at `began`, since without pooling they would not have waited.
    fn estimate_unpooled(&mut self, step: &EngineStep, model_took: Duration, began: Instant) {
        let Self { inner, requests, row_table, fed, waiting, .. } = self;
        let RowTable { rows, owners } = row_table;
        let Some(Ok(table)) = lock(&inner.calibration).clone() else {
            fed.iter().for_each(|&row| requests[owners[row]].timer.cannot_estimate());
            return;
        };
        // without drafts that were cut
        let symbols: usize = fed.iter().map(|&row| rows[row].positions()).sum();
        let step = EngineStep {
            chunk: fed.iter().any(|&row| rows[row].feed.len() > 1),
            fed: symbols,
            // the context of the symbol in the middle of a chunk
            context: step.context + symbols as f64 / fed.len().max(1) as f64 / 2.0,
            ..*step
        };
        let extra = inner.lock_state().step_times.unpooled_extra(&table, &step, model_took);
        for &row in fed.iter() {
            requests[owners[row]].timer.add_unpooled_extra(extra as i64);
        }
        let took = i64::try_from(clock::since(began).as_nanos()).unwrap_or(i64::MAX);
        for &index in waiting.iter() {
            requests[index].timer.add_unpooled_extra(-took);
        }
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

    /// Selects the rows of the segment step: all waiting rows together when [`contract::is_due`], otherwise none. They wait only
    /// for rows that the next step feeds, and not while a prompt's chunk is fed: its steps are long.
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
        let others = !chunks && !self.hurries && (self.fed.iter().any(continues) || unfed.any(continues));
        if !contract::is_due(self.due.iter().map(|&row| &rows[row]), others, self.inner.limits.boundary_wait) {
            self.due.clear();
        }
    }

    fn symbol_step(&mut self) {
        if self.fed.is_empty() {
            return;
        }
        contract::count_step(&mut self.row_table.rows);
        self.lend_constraints();
        let Self { inner, row_table, fed, scratch, .. } = self;
        let result = guarded(|| inner.model.symbol_step(&mut row_table.rows, fed, scratch));
        for &row in &self.fed {
            let request = &mut self.requests[self.row_table.owners[row]];
            // once for all rows of a request
            if !request.in_flight {
                request.in_flight = true;
                request.timer.steps += 1;
            }
        }
        match result {
            Ok(()) => {
                self.end_failed_rows();
                self.cut_drafts();
            }
            Err(error) => self.fail_rows(&error, self.fed.clone()),
        }
    }

    /// Lends the constraints of which it is not known what may follow to another thread. What it has not found after the step is waited
    /// for without the request.
    fn lend_constraints(&mut self) {
        for &row in &self.fed {
            let request = &mut self.requests[self.row_table.owners[row]];
            if request.lent.is_some() {
                continue;
            }
            let Some(constraints) = request.lend_constraints() else { continue };
            let waker = Waker::from(Arc::clone(&self.inner.state.wake_signal));
            request.lent = Some(self.constraint_threads.lend(&request.tenant, constraints, waker));
        }
    }

    /// Ends the requests of rows that failed alone in the symbol step.
    fn end_failed_rows(&mut self) {
        for &row in &self.fed {
            if let Some(error) = self.row_table.rows[row].failure.take() {
                tracing::error!(%error, "a row failed");
                self.requests[self.row_table.owners[row]].outcome = Some(Err(copy_error(&error)));
            }
        }
    }

    /// Runs the segment step. Returns the number of segments that it closes. Drops rows from `due` that need further steps: a segment
    /// that is too long for one step counts once.
    fn segment_step(&mut self) -> usize {
        if self.due.is_empty() {
            return 0;
        }
        let began = clock::now();
        let rows = &mut self.row_table.rows;
        let result = guarded(|| self.inner.model.segment_step(rows, &self.due, &mut self.scratch));
        let took = clock::since(began);
        if let Err(error) = result {
            self.fail_rows(&error, self.due.clone());
        }
        let mut closed = 0;
        for &row in &self.due {
            let SequenceRow { decisions, status, .. } = &self.row_table.rows[row];
            let timer = &mut self.requests[self.row_table.owners[row]].timer;
            timer.middle += took;
            if *status != StepStatus::Waiting {
                // symbols that a rollback kept, and that are fed again, have no decision
                let decided = decisions.iter().map(|mark| mark.closed_levels()).max();
                timer.count_segment_step(decided.unwrap_or_default().max(1));
                closed += decisions.iter().filter(|mark| mark.boundary).count().max(1);
            }
        }
        self.due.retain(|&row| self.row_table.rows[row].status != StepStatus::Waiting);
        closed
    }

    /// Runs the finish step. Returns the number of symbols that it finishes.
    fn finish_step(&mut self) -> usize {
        self.unfinished.clear();
        self.unfinished.extend(in_flight_rows(StepStatus::Unfinished, &self.requests, &self.row_table));
        if self.unfinished.is_empty() {
            return 0;
        }
        let finished = self.unfinished.iter().map(|&row| self.row_table.rows[row].positions().max(1)).sum();
        let rows = &mut self.row_table.rows;
        let result = guarded(|| self.inner.model.finish_step(rows, &self.unfinished, &mut self.scratch));
        if let Err(error) = result {
            self.fail_rows(&error, self.unfinished.clone());
        }
        finished
    }

    /// Ends the requests whose rows took part in a failed step, and replaces the scratch space, which may be inconsistent.
    fn fail_rows(&mut self, error: &Error, rows: Vec<usize>) {
        tracing::error!(rows = rows.len(), %error, "a step failed");
        self.lost_file |= matches!(error, Error::FileChanged { .. });
        for row in rows {
            self.requests[self.row_table.owners[row]].outcome = Some(Err(copy_error(error)));
        }
        self.scratch = self.inner.model.scratch();
    }
}

/// Returns the rows in flight that have `status`, except rows of requests that have ended.
fn in_flight_rows(status: StepStatus, requests: &[Request], table: &RowTable) -> impl Iterator<Item = usize> {
    let in_flight = |request: &Request| request.in_flight && request.outcome.is_none();
    (0..table.rows.len())
        .filter(move |&row| table.rows[row].status == status && in_flight(&requests[table.owners[row]]))
}

/// How long a step waits for the constraints of all its rows together.
const CONSTRAINT_WAIT: Duration = Duration::from_millis(2);

/// Maximum threads that find what may follow. Each works for another tenant.
const CONSTRAINT_THREADS: usize = 2;

/// Threads that find what may follow the texts of slow constraints, so that the model's thread need not. Tenants take turns.
#[derive(Default)]
struct ConstraintThreads {
    work: Arc<ConstraintWork>,
    threads: Vec<thread::JoinHandle<()>>,
}

#[derive(Default)]
struct ConstraintWork {
    list: Mutex<ConstraintList>,
    changed: Condvar,
}

#[derive(Default)]
struct ConstraintList {
    /// By tenant.
    waiting: BTreeMap<Arc<str>, VecDeque<LentWork>>,
    /// The tenant whose turn was last.
    latest: Arc<str>,
    /// The tenants for which threads work.
    served: Vec<Arc<str>>,
    is_closed: bool,
}

impl ConstraintList {
    /// Returns the next tenant that has work, and for which no thread works.
    fn next_tenant(&self) -> Option<&Arc<str>> {
        let later = self.waiting.range::<Arc<str>, _>((Bound::Excluded(&self.latest), Bound::Unbounded));
        later.chain(&self.waiting).map(|(tenant, _)| tenant).find(|tenant| !self.served.contains(tenant))
    }
}

/// Constraints of one request.
struct LentWork {
    constraints: Vec<ConstraintMatcher>,
    /// The number of `constraints`, from the first, whose allowed symbols have been found.
    found: usize,
    sender: SyncSender<Result<Vec<ConstraintMatcher>>>,
    waker: Waker,
}

impl ConstraintThreads {
    fn lend(&mut self, tenant: &Arc<str>, constraints: Vec<ConstraintMatcher>, waker: Waker) -> LentConstraints {
        let (sender, receiver) = mpsc::sync_channel(1);
        let mut work = LentWork { constraints, found: 0, sender, waker };
        match self.start() {
            Ok(()) => {
                lock(&self.work.list).waiting.entry(Arc::clone(tenant)).or_default().push_back(work);
                self.work.changed.notify_one();
            }
            Err(error) => {
                tracing::warn!(%error, "cannot start a thread for constraints");
                while let Some(rest) = work.run_next() {
                    work = rest;
                }
            }
        }
        LentConstraints { receiver, are_late: false }
    }

    fn start(&mut self) -> io::Result<()> {
        while self.threads.len() < CONSTRAINT_THREADS {
            let work = Arc::clone(&self.work);
            let run = move || while work.run_next() {};
            self.threads.push(thread::Builder::new().name("weir-masks".into()).spawn(run)?);
        }
        Ok(())
    }
}

impl Drop for ConstraintThreads {
    fn drop(&mut self) {
        lock(&self.work.list).is_closed = true;
        self.work.changed.notify_all();
        for thread in self.threads.drain(..) {
            // panics were caught
            let _ = thread.join();
        }
    }
}

impl ConstraintWork {
    /// Waits for work and finds the symbols that may follow one text. The text belongs to the tenant after the one whose turn was last.
    /// Returns false once no work will come.
    fn run_next(&self) -> bool {
        let idle = |list: &mut ConstraintList| list.next_tenant().is_none() && !list.is_closed;
        let mut list = self.changed.wait_while(lock(&self.list), idle).unwrap_or_else(PoisonError::into_inner);
        let next = list.next_tenant().filter(|_| !list.is_closed).map(Arc::clone);
        let Some(tenant) = next else { return false };
        let work = list.waiting.get_mut(&tenant).and_then(VecDeque::pop_front);
        if list.waiting.get(&tenant).is_some_and(VecDeque::is_empty) {
            list.waiting.remove(&tenant);
        }
        list.latest = Arc::clone(&tenant);
        list.served.push(Arc::clone(&tenant));
        drop(list);
        let rest = work.and_then(LentWork::run_next);
        let mut list = lock(&self.list);
        list.served.retain(|other| *other != tenant);
        if let Some(rest) = rest {
            list.waiting.entry(tenant).or_default().push_front(rest);
        }
        true
    }
}

impl LentWork {
    /// Finds the symbols that may follow the next text. Returns the work if more texts are left, else sends the result.
    fn run_next(mut self) -> Option<Self> {
        let Some(found) = caught(|| self.constraints.get_mut(self.found).map_or(Ok(()), ConstraintMatcher::catch_up))
        else {
            drop(self.sender);
            self.waker.wake();
            return None;
        };
        self.found += 1;
        if found.is_ok() && self.found < self.constraints.len() {
            return Some(self);
        }
        // the request may have ended
        let _ = self.sender.send(found.map(|()| self.constraints));
        self.waker.wake();
        None
    }
}

/// Copies a step's error for one of the requests that took part.
fn copy_error(error: &Error) -> Error {
    match error {
        &Error::OutOfPages { needed, limit } => Error::OutOfPages { needed, limit },
        Error::Internal(message) => Error::Internal(message.clone()),
        Error::FileChanged { file, tensor, found } => {
            Error::FileChanged { file: file.clone(), tensor: tensor.clone(), found: found.clone() }
        }
        other => Error::Internal(other.to_string()),
    }
}

/// The rows of a batch and their owners. Each request lists the indices of its rows in its own order.
#[derive(Default)]
struct RowTable {
    rows: Vec<SequenceRow>,
    /// Index of each row's request.
    owners: Vec<usize>,
}

impl RowTable {
    /// Adds a row to a request, after those that it has.
    fn push(&mut self, state: Box<dyn State>, request: usize, requests: &mut [Request]) {
        requests[request].row_indices.push(self.rows.len());
        self.rows.push(SequenceRow::new(state));
        self.owners.push(request);
    }

    /// Removes a row. The last row moves to its index.
    fn remove(&mut self, row: usize, requests: &mut [Request]) -> SequenceRow {
        let last = self.rows.len() - 1;
        requests[self.owners[row]].row_indices.retain(|&index| index != row);
        let moved = &mut requests[self.owners[last]].row_indices;
        moved.iter_mut().filter(|index| **index == last).for_each(|index| *index = row);
        self.owners.swap_remove(row);
        self.rows.swap_remove(row)
    }

    /// Replaces a request's rows by those at positions `order` of its list. Forks repeated rows, drops those left out.
    fn reorder(&mut self, request: usize, requests: &mut [Request], order: impl Iterator<Item = usize>) {
        let before = std::mem::take(&mut requests[request].row_indices);
        let mut used = vec![false; before.len()];
        for position in order {
            let Some(&row) = before.get(position) else { continue };
            if std::mem::replace(&mut used[position], true) {
                let state = self.rows[row].state.fork();
                self.push(state, request, requests);
            } else {
                requests[request].row_indices.push(row);
            }
        }
        let mut dropped: Vec<usize> =
            before.into_iter().zip(used).filter(|(_, used)| !used).map(|(row, _)| row).collect();
        // from the last: the row that moves to a freed index is then not one to be dropped
        dropped.sort_unstable();
        for row in dropped.into_iter().rev() {
            self.remove(row, requests);
        }
    }

    /// Removes a request with all its rows. The last request moves to its index.
    fn remove_request(&mut self, request: usize, requests: &mut Vec<Request>) -> (Request, Vec<SequenceRow>) {
        let mut rows = Vec::with_capacity(requests[request].row_indices.len());
        while let Some(&row) = requests[request].row_indices.last() {
            rows.push(self.remove(row, requests));
        }
        let removed = requests.swap_remove(request);
        if let Some(moved) = requests.get(request) {
            moved.row_indices.iter().for_each(|&row| self.owners[row] = request);
        }
        (removed, rows)
    }
}

impl Batch {
    /// Adds drafts to the planned feeds of rows that decode, as far as they pay and the step has room. `fixed` is the fixed time
    /// of a step in multiples of a symbol's time.
    pub(crate) fn plan_drafts(&mut self, limits: StepLimits, fixed: f64) {
        let Self { requests, statuses, feeds, inner, guess_rates, .. } = self;
        let decoding = |request: usize| match statuses.get(request).map(|status| status.activity) {
            Some(RowActivity::Decoding(rows)) => rows,
            _ => 0,
        };
        let symbols: usize = feeds.iter().map(|feed| feed.symbols).sum();
        let certain = |feed: &Feed| match statuses.get(feed.request).map(|status| status.activity) {
            Some(RowActivity::Forced(_)) => feed.symbols,
            _ => decoding(feed.request),
        };
        let rows: usize = feeds.iter().map(certain).sum();
        let searches = statuses.iter().any(|status| matches!(status.activity, RowActivity::Searching(_)));
        let limit = if searches { limits.searching.min(limits.decoding) } else { limits.decoding };
        let limit = if self.hurries { limit.min(limits.ahead) } else { limit };
        let mut budget = DraftBudget {
            free: inner.limits.chunk.min(limit).saturating_sub(symbols),
            fixed,
            symbols,
            expected: rows as f64,
            feeds_prompts: symbols > rows,
        };
        for feed in feeds.iter_mut().filter(|feed| decoding(feed.request) > 0) {
            if let Some(Request { kind: RequestKind::Text(text), outcome: None, .. }) = requests.get_mut(feed.request) {
                let session = &mut text.session;
                feed.symbols += guarded(|| Ok(session.draft(&mut budget, guess_rates))).unwrap_or_else(|_| {
                    session.drop_draft();
                    0
                });
            }
        }
    }

    pub(crate) fn drop_drafts(&mut self) -> bool {
        let mut dropped = false;
        for feed in &mut self.feeds {
            if let Some(Request { kind: RequestKind::Text(text), .. }) = self.requests.get_mut(feed.request)
                && text.session.has_draft()
            {
                text.session.drop_draft();
                feed.symbols = 1;
                dropped = true;
            }
        }
        dropped
    }

    /// Cuts each draft before its first boundary. Runs after the symbol step. A request whose draft cannot be cut fails alone.
    fn cut_drafts(&mut self) {
        for &index in &self.fed {
            let request = &mut self.requests[self.row_table.owners[index]];
            if request.outcome.is_none() && has_draft(request) {
                let row = &mut self.row_table.rows[index];
                if let Err(error) = guarded(|| row.cut_draft()) {
                    request.outcome = Some(Err(error));
                }
            }
        }
    }

    fn only_decodes(&self) -> bool {
        let row_decodes = |&row: &usize| !self.feeds_chunk(row);
        !self.fed.is_empty() && self.encode_feeds.is_empty() && self.fed.iter().all(row_decodes)
    }

    fn feeds_chunk(&self, row: usize) -> bool {
        self.row_table.rows[row].feed.len() > 1 && !has_draft(&self.requests[self.row_table.owners[row]])
    }
}

fn has_draft(request: &Request) -> bool {
    matches!(&request.kind, RequestKind::Text(text) if text.session.has_draft())
}

impl Batch {
    /// Returns the initial states of a summary's rows; none while its document is not encoded.
    fn begin_summary(
        inner: &Inner,
        summary: &mut DocumentRequest,
        tenant: &str,
        now: Instant,
    ) -> Result<Vec<Box<dyn State>>> {
        let reader = reader(&*inner.model)?;
        let cached = summary.id.as_deref().and_then(|id| inner.document_cache.get(tenant, id, now));
        summary.begin(reader, cached, now)?;
        let Some(cached) = &summary.document else { return Ok(Vec::new()) };
        (0..summary.search.rows()).map(|_| reader.begin(&cached.document)).collect()
    }

    /// Runs the blocks that the step plan contains. Returns the number of symbols that they count as.
    fn encode(&mut self) -> usize {
        let mut symbols = 0;
        for index in 0..self.encode_feeds.len() {
            let feed = self.encode_feeds[index];
            if self.requests[feed.request].outcome.is_some() {
                continue;
            }
            match guarded(|| self.encode_blocks(feed.request, feed.symbols)) {
                Ok(encoded) => symbols += encoded,
                Err(error) => {
                    tracing::error!(%error, "encoding a document failed");
                    self.requests[feed.request].outcome = Some(Err(copy_error(&error)));
                    self.scratch = self.inner.model.scratch();
                }
            }
        }
        symbols
    }

    /// Runs `blocks` blocks of one document, and starts its rows if it is complete. Returns their cost in symbols.
    fn encode_blocks(&mut self, index: usize, blocks: usize) -> Result<usize> {
        let inner = Arc::clone(&self.inner);
        let reader = reader(&*inner.model)?;
        let block_symbols = reader.limits().block.max(1);
        let request = &mut self.requests[index];
        let RequestKind::Document(summary) = &mut request.kind else { return Ok(0) };
        let mut ran = 0;
        let mut first_layer_symbols = 0;
        while ran < blocks {
            let Some(encoding) = summary.encoding.as_deref_mut() else { break };
            // the first layer reads each vector once; the number of layers after it depends on the model
            let first_layer = encoding.progress().stage == EncodingStage::Layer(0);
            let advanced = reader.advance(encoding, 1, &mut self.scratch)?;
            if advanced == 0 {
                break;
            }
            ran += advanced;
            first_layer_symbols += if first_layer { block_symbols } else { 0 };
        }
        let again = summary.encodes_again();
        if !again {
            if let Some(reading) = summary.reading() {
                request.event_sender.send_progress(Event::Document(DocumentEvent::Reading(reading)));
            }
            request.event_sender.send_chosen(|| summary.take_new_choices());
        }
        let now = clock::now();
        let tenant = &request.tenant;
        let encoded = summary.finish_encoding(now, |cached| inner.document_cache.insert(tenant, cached.clone(), now));
        if let (Some(attention), Some(cached)) = (&mut summary.attention, &summary.document) {
            let vectors = reader.attention(&cached.document, &mut self.scratch)?;
            *attention = contract::token_attention(&cached.document, reader.limits(), &vectors);
            request.outcome = Some(Ok(FinishReason::EndOfText));
        }
        let is_written = request.outcome.is_none();
        let document = summary.document.as_ref().filter(|_| is_written);
        let state = document.map(|cached| reader.begin(&cached.document)).transpose()?;
        let rows = summary.search.rows();
        request.count_encoded(ran * block_symbols, first_layer_symbols);
        if let Some(encoded) = encoded {
            if !again {
                let fed = FedSymbols { prompt: encoded.tokens, ..FedSymbols::default() };
                inner.measurements.record(EngineEvent::Fed(fed));
            }
            request.event_sender.send_encoded(&encoded);
        }
        if let Some(state) = state {
            // a request that was preempted with several rows resumes with as many
            for _ in 1..rows {
                self.row_table.push(state.fork(), index, &mut self.requests);
            }
            self.row_table.push(state, index, &mut self.requests);
        }
        Ok(ran * block_symbols)
    }

    /// Takes the outcome of a summary's rows, all of which are ready, and reorders them for the next step.
    fn absorb_summary(&mut self, index: usize) -> Result<()> {
        let request = &mut self.requests[index];
        let RequestKind::Document(summary) = &mut request.kind else { return Ok(()) };
        match summary.absorb(&self.row_table.rows, &request.row_indices)? {
            None => {}
            Some(SearchStep::Continue(moves)) => {
                self.row_table.reorder(index, &mut self.requests, moves.into_iter().map(|next| next.parent));
            }
            Some(SearchStep::Done) => request.outcome = Some(Ok(summary.reason())),
        }
        Ok(())
    }
}

fn reader(model: &dyn Model) -> Result<&dyn DocumentEncoder> {
    model
        .document_encoder()
        .ok_or_else(|| Error::Internal("a summary was queued for a model that reads no documents".into()))
}

impl Batch {
    /// Takes the outcome of every request whose rows are all ready. Returns true if there was any: a constraint may be there long after
    /// the row's step.
    fn absorb(&mut self) -> bool {
        let mut absorbed = false;
        let now = clock::now();
        let until = now + CONSTRAINT_WAIT;
        for index in 0..self.requests.len() {
            let request = &mut self.requests[index];
            let ready = |&row: &usize| self.row_table.rows[row].status == StepStatus::Ready;
            if !request.in_flight || request.outcome.is_some() || !request.row_indices.iter().all(ready) {
                continue;
            }
            let back = request.take_constraints_back(until);
            if matches!(back, Ok(false)) {
                continue;
            }
            absorbed = true;
            // the bookkeeping of one request ends no other
            if let Err(error) = back.and_then(|_| guarded(|| self.absorb_request(index, now))) {
                self.requests[index].outcome = Some(Err(error));
            }
        }
        absorbed
    }

    fn absorb_request(&mut self, index: usize, now: Instant) -> Result<()> {
        let request = &mut self.requests[index];
        let prefilling = request.is_prefilling(&self.row_table.rows);
        request.in_flight = false;
        let positions: usize = request.row_indices.iter().map(|&row| self.row_table.rows[row].positions()).sum();
        let drafted = if has_draft(request) { positions.saturating_sub(1) } else { 0 };
        request.count_fed(positions, drafted);
        let outcome = match &request.kind {
            RequestKind::Text(_) => self.absorb_text(index, prefilling),
            RequestKind::Document(_) => {
                let answered = request.answered();
                let outcome = self.absorb_summary(index);
                let generated = self.requests[index].answered() - answered;
                let fed = FedSymbols { generated, ..FedSymbols::default() };
                self.inner.measurements.record(EngineEvent::Fed(fed));
                outcome
            }
        };
        self.record_progress(index, now);
        self.requests[index].send_output();
        outcome
    }

    fn absorb_text(&mut self, index: usize, prefilling: bool) -> Result<()> {
        let Inner { model, segment_cache, measurements, .. } = &*self.inner;
        let request = &mut self.requests[index];
        let (RequestKind::Text(text), Some(&row)) = (&mut request.kind, request.row_indices.first()) else {
            return Ok(());
        };
        let row = &mut self.row_table.rows[row];
        request.timer.wait_steps += row.waited as u64;
        let before = text.session.usage();
        let progress = text.session.absorb(row);
        let after = text.session.usage();
        measurements.record(EngineEvent::Fed(FedSymbols {
            drafted: after.drafted_chars - before.drafted_chars,
            accepted: after.accepted_chars - before.accepted_chars,
            ..FedSymbols::of(row, prefilling, model.card().pooled)
        }));
        match progress? {
            SessionProgress::Finished(reason) => request.outcome = Some(Ok(reason)),
            SessionProgress::Prefilling if text.session.looks_ahead() => {
                text.cache_open_state(segment_cache, &*row.state)
            }
            // a complete prompt is cached at once: the next request may share it
            SessionProgress::Prefilling if prefilling && text.session.is_forced() => {
                text.cache_state(segment_cache, &*row.state)
            }
            SessionProgress::Prefilling => {}
            SessionProgress::Decoding if prefilling => text.cache_state(segment_cache, &*row.state),
            SessionProgress::Decoding => {}
        }
        Ok(())
    }

    /// Records when the request's symbols were ready.
    fn record_progress(&mut self, index: usize, now: Instant) {
        let measurements = &self.inner.measurements;
        let rows = &self.row_table.rows;
        let request = &mut self.requests[index];
        let prefilling = request.is_prefilling(rows);
        // only the sampled symbol may end a segment, not a drafted one after it
        let first_row = request.row_indices.first();
        let boundary = first_row.is_some_and(|&row| rows[row].decisions.iter().any(|mark| mark.boundary));
        let answered = request.answered();
        let is_generating = request.is_generating();
        request.timer.record_progress(now, prefilling, answered, boundary, |latency| {
            if is_generating {
                measurements.record(latency);
            }
        });
    }

    fn count_step(&mut self, step: EngineStep) {
        let EngineStep { fed, encoded, took, .. } = step;
        let nanoseconds = clock::nanoseconds(took);
        for request in &mut self.requests {
            let symbols = std::mem::take(&mut request.step_symbols) as u64;
            request.fed.time += nanoseconds.saturating_mul(symbols) / (fed + encoded).max(1) as u64;
        }
        if !(self.fed.is_empty() && encoded == 0) {
            self.latest_step = Some(step);
        }
        if !(self.fed.is_empty() && self.due.is_empty()) {
            let (rows, middle) = (self.fed.len(), self.due.len());
            self.inner.measurements.record(EngineEvent::Step { rows, fed, middle });
        }
    }
}

/// Runs `work` and turns a panic into an error, so that it ends the requests in `work` and nothing else.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    caught(work).unwrap_or_else(|| Err(Error::Internal("a panic in the worker".into())))
}

/// Runs `work` and logs a panic. Returns `None` after one.
pub(crate) fn caught<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).inspect_err(|panic| log(&**panic)).ok()
}

/// Drops values one by one, so that a panic while one is dropped spares the others.
pub(crate) fn drop_each<T>(values: impl IntoIterator<Item = T>) {
    values.into_iter().for_each(|value| _ = caught(|| drop(value)));
}

fn log(panic: &(dyn Any + Send)) {
    let text = panic.downcast_ref::<&str>().copied();
    let message = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    tracing::error!(message, "caught a panic");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::constraint::Constraint;
    use weir_models::text::{TextNormaliser, Vocabulary};

    /// Returns the matcher of a text that begins with this byte. It has fallen behind, so that another thread must catch up.
    fn behind(symbol: u32) -> ConstraintMatcher {
        let vocabulary = Vocabulary::byte_level(TextNormaliser::None);
        let compiled = ConstraintCompiler::new(Arc::new(vocabulary)).compile(&Constraint::Regex("a+".into())).unwrap();
        let mut constraint = compiled.matcher().unwrap();
        constraint.fall_behind();
        constraint.consume(symbol).unwrap();
        constraint
    }

    #[test]
    fn tenants_take_turns_with_slow_constraints() {
        let work = ConstraintWork::default();
        let mut receivers = Vec::new();
        for (tenant, texts) in [("a", 2), ("a", 1), ("a", 1), ("b", 1), ("c", 1)] {
            let (sender, receiver) = mpsc::sync_channel(1);
            let constraints = (0..texts).map(|_| behind(97)).collect();
            let lent = LentWork { constraints, found: 0, sender, waker: Waker::noop().clone() };
            lock(&work.list).waiting.entry(tenant.into()).or_default().push_back(lent);
            receivers.push(receiver);
        }
        let turn = || {
            work.run_next();
            lock(&work.list).latest.to_string()
        };
        // a turn is one text, even if a request has several
        assert_eq!([turn(), turn()], ["a", "b"]);
        assert!(receivers[0].try_recv().is_err());
        // while a thread works for one of them, the other thread works for another one
        lock(&work.list).served.push("c".into());
        assert_eq!(turn(), "a");
        lock(&work.list).served.clear();
        assert_eq!([turn(), turn(), turn()], ["c", "a", "a"]);
        for receiver in receivers {
            assert!(receiver.recv().unwrap().unwrap().iter().all(|constraint| !constraint.is_behind()));
        }
        lock(&work.list).is_closed = true;
        assert!(!work.run_next());
    }

    #[test]
    fn a_slow_constraint_is_found_on_a_thread_of_its_own() {
        let mut threads = ConstraintThreads::default();
        let mut lend = |symbol: u32| {
            let lent = threads.lend(&"a".into(), vec![behind(97), behind(symbol)], Waker::noop().clone());
            lent.receiver.recv().unwrap()
        };
        assert!(lend(97).unwrap().iter().all(|constraint| !constraint.is_behind() && constraint.accepts()));
        assert!(lend(98).is_err());
    }

    #[test]
    fn a_panic_while_a_value_is_dropped_spares_the_others() {
        struct Counted<'a>(&'a std::cell::Cell<usize>);
        impl Drop for Counted<'_> {
            fn drop(&mut self) {
                self.0.set(self.0.get() + 1);
                assert!(self.0.get() != 2, "the second drop panics");
            }
        }
        let dropped = std::cell::Cell::new(0);
        drop_each((0..4).map(|_| Counted(&dropped)));
        assert_eq!(dropped.get(), 4);
    }
}
