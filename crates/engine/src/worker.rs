//! The worker: one thread that owns a model's rows. A round ends requests that are over, admits queued ones, preempts rows if
//! memory is short, and runs one step of all rows. After a panic outside of the work for single requests, it ends all requests
//! and starts over; one that panics again and again is broken ([`RestartLimit`]), as is one whose model's file changed. A
//! simulation runs the same rounds as a task ([`WorkerTask`]).

use crate::{
    batch::{Batch, Inner, caught, drop_each},
    clock,
    observer::EngineEvent,
    request::{Request, RequestKind},
    scheduler::{PreemptionCause, RunPermit, StepLimits},
    state::Phase,
};
use std::{
    future::poll_fn,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::Waker,
    thread,
    time::{Duration, Instant},
};
use tokio::time::{sleep, timeout};
use weir_kernels::{error::Error, sync::lock};

/// Message of the error that all requests get when the worker panics outside of the work for single requests.
const WORKER_PANICKED: &str = "the model's worker panicked";

/// Longest sleep while a request waits: how soon the worker notices that its client is gone or reads again.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Maximum target duration of a step that feeds prompts while a search for completions runs: a search takes several steps.
const SEARCH_STEP: Duration = Duration::from_millis(5);

/// Maximum duration of a step's prompts while several tenants share the engine, in steps that decode one symbol: a request that
/// comes in the middle of a step waits for its end.
const SHARED_STEPS: u32 = 16;

/// Duration that the tenants which are ahead add to a step of another tenant, in steps that decode one symbol.
const AHEAD_STEPS: u32 = 3;

/// Sleep of a [`WorkerTask`] that has no limit.
const LONGEST_SLEEP: Duration = Duration::from_secs(1 << 30);

struct Worker {
    inner: Arc<Inner>,
    batch: Batch,
    /// Wakes the worker when a slow client has made room in its channel.
    waker: Waker,
    /// Requests that the scheduler has admitted and that have no row yet.
    admitted: Vec<(Request, RunPermit)>,
    /// Requests that have ended and whose outcome was not sent yet.
    ended: Vec<Request>,
    restarts: RestartLimit,
}

/// What a round of the worker's loop did.
enum Round {
    Stepped,
    /// No row could step. The worker sleeps, for at most the given time.
    Idle(Option<Duration>),
    Closed,
    /// The worker panicked too often, or the model's file changed.
    Broken,
}

/// Ends the queue when the worker ends, breaks or panics.
struct ExitGuard(Arc<Inner>);

pub(crate) fn run(inner: Arc<Inner>) {
    let _guard = ExitGuard(Arc::clone(&inner));
    let mut worker = Worker::new(inner);
    loop {
        match worker.round() {
            Round::Stepped => {}
            Round::Idle(limit) => worker.inner.state.wake_signal.wait(limit),
            Round::Closed => return worker.close(),
            Round::Broken => return,
        }
    }
}

/// The worker of an engine as a task instead of a thread: for simulations, in which one thread runs everything.
pub struct WorkerTask {
    worker: Worker,
    _guard: ExitGuard,
}

impl WorkerTask {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self { _guard: ExitGuard(Arc::clone(&inner)), worker: Worker::new(inner) }
    }

    /// Runs the worker until the engine is closed. After each step it sleeps for `step_time`, the step's duration on a simulated
    /// clock.
    pub async fn run(self, mut step_time: impl FnMut() -> Duration) {
        // the worker is dropped before the guard, as on a thread
        let Self { _guard, mut worker } = self;
        loop {
            let took = step_time();
            worker.batch.simulated_step = Some(took);
            match worker.round() {
                Round::Stepped => sleep(took).await,
                Round::Idle(limit) => {
                    let woken = poll_fn(|cx| worker.inner.state.wake_signal.poll_wait(cx));
                    // an error means that the limit has passed
                    let _ = timeout(limit.unwrap_or(LONGEST_SLEEP), woken).await;
                }
                Round::Closed => return worker.close(),
                Round::Broken => return,
            }
        }
    }
}

impl Worker {
    fn new(inner: Arc<Inner>) -> Self {
        tracing::debug!("worker started");
        let waker = Waker::from(Arc::clone(&inner.state.wake_signal));
        Self {
            batch: Batch::new(Arc::clone(&inner)),
            inner,
            waker,
            admitted: Vec::new(),
            ended: Vec::new(),
            restarts: RestartLimit::default(),
        }
    }

    /// Runs a round, and starts over if it panicked, or if a caller panicked while it changed the scheduler's state.
    fn round(&mut self) -> Round {
        let now = clock::now();
        self.inner.heartbeat.start_round(now);
        if !self.inner.state.mutex.is_poisoned()
            && let Some(round) = caught(|| self.run_round(now))
        {
            return round;
        }
        self.restart(now);
        if self.inner.lock_state().phase == Phase::Broken { Round::Broken } else { Round::Stepped }
    }

    fn run_round(&mut self, now: Instant) -> Round {
        // a calibration stops after its present step once a request waits
        let inner = Arc::clone(&self.inner);
        let _running = lock(&inner.running);
        self.batch.poll_requests(now, &self.waker);
        self.end_requests(now);
        if !self.admit(now) {
            return Round::Closed;
        }
        self.plan_step();
        if self.batch.step() {
            if self.batch.lost_file {
                self.break_for_lost_file();
                return Round::Broken;
            }
            self.end_requests(clock::now());
            return Round::Stepped;
        }
        self.inner.heartbeat.rest();
        Round::Idle(self.sleep_limit(now))
    }

    /// Ends all requests and starts over after a panic. The engine is broken if this fails or happens too often.
    fn restart(&mut self, now: Instant) {
        let Inner { state, segment_cache, document_cache, measurements, .. } = &*self.inner;
        let mut requests = self.batch.take_requests();
        requests.extend(self.admitted.drain(..).map(|(request, _)| request));
        requests.append(&mut self.ended);
        state.mutex.clear_poison();
        let mut queue = self.inner.lock_state().replace_scheduler();
        requests.extend(queue.clear());
        caught(|| segment_cache.clear());
        caught(|| document_cache.clear());
        let batch = if self.restarts.allow(now) { caught(|| Batch::new(Arc::clone(&self.inner))) } else { None };
        let mut state = self.inner.lock_state();
        match batch {
            Some(batch) => {
                tracing::error!("the worker starts over with an empty queue and empty caches");
                self.batch = batch;
                measurements.record(EngineEvent::Restarted);
            }
            None => {
                tracing::error!("the worker cannot start over: the engine is broken");
                state.advance_to(Phase::Broken);
            }
        }
        drop(state);
        for mut request in requests {
            request.outcome.get_or_insert_with(|| Err(Error::Internal(WORKER_PANICKED.into())));
            caught(|| request.end(now, measurements));
        }
    }

    /// Breaks the worker, whose model can no longer read its file. Ends the requests; the queue ends with the worker.
    fn break_for_lost_file(&mut self) {
        tracing::error!("the model's file changed: the engine is broken until the model is loaded again");
        self.inner.lost_file.store(true, Relaxed);
        self.inner.lock_state().advance_to(Phase::Broken);
        for request in &mut self.batch.requests {
            request.outcome.get_or_insert(Err(Error::Broken));
        }
        self.end_requests(clock::now());
    }

    fn close(mut self) {
        let retry = self.inner.lock_state().step_times.retry_after();
        self.batch.fail_all(|| Error::Draining { retry });
        self.end_requests(clock::now());
        tracing::debug!("worker ended");
    }

    /// Admits queued requests, with preemption if necessary. Returns false if the worker is to end.
    fn admit(&mut self, now: Instant) -> bool {
        loop {
            if !self.admit_ready(now) {
                return false;
            }
            let victim = self.inner.lock_state().scheduler.preemption_victim(&self.batch.statuses);
            match victim {
                Some(index) => self.preempt(index, PreemptionCause::Queue),
                None => return true,
            }
        }
    }

    /// Gives rows to the queued requests that can run without preemption. Returns false if the worker is to end.
    fn admit_ready(&mut self, now: Instant) -> bool {
        let inner = Arc::clone(&self.inner);
        loop {
            self.batch.refresh_statuses();
            let mut state = inner.lock_state();
            if state.phase >= Phase::Closed {
                return false;
            }
            if let Some(step) = self.batch.latest_step.take() {
                state.step_times.record(&step);
            }
            let waker = &self.waker;
            let ended = &mut self.ended;
            let poll = |request: &mut Request| request.poll_queued(now, &inner.limits, waker);
            state.scheduler.poll_queue(poll, |request| ended.push(request));
            // cache entries are evicted for requests that wait for memory; counting their bytes takes a while
            let evictable = if state.scheduler.waits_for_memory() {
                self.inner.segment_cache.evictable_bytes() + self.inner.document_cache.evictable_bytes()
            } else {
                0
            };
            let held = self.inner.model.memory().in_use.saturating_sub(evictable);
            state.scheduler.update_rows(&self.batch.statuses, held);
            self.admitted.extend(state.scheduler.admitted.drain(..));
            drop(state);
            let done = self.admitted.is_empty();
            // later than `now`: a request may have arrived after it
            let admitted_at = clock::now();
            for (mut request, permit) in self.admitted.drain(..) {
                request.permit = Some(permit);
                self.ended.extend(self.batch.admit(request, admitted_at));
            }
            // a request that the model rejects makes room for the next one
            self.end_requests(admitted_at);
            if done {
                return true;
            }
        }
    }

    /// Plans a step that there is memory for: evicts cache entries first, then preempts requests.
    fn plan_step(&mut self) {
        loop {
            let mut state = self.inner.lock_state();
            let target = self.inner.limits.step;
            let within = |target: Duration| {
                if target.is_zero() { usize::MAX } else { state.step_times.symbols_within(target) }
            };
            let single = state.step_times.single_step();
            let single_steps = |count| within(single.map_or(target, |single| target.min(single * count)));
            let limits = StepLimits {
                decoding: within(target),
                searching: within(target.min(SEARCH_STEP)),
                shared: single_steps(SHARED_STEPS),
                ahead: single_steps(AHEAD_STEPS),
                decoded: state.step_times.decoded_cost(),
            };
            self.batch.hurries = state.scheduler.plan(&self.batch.statuses, limits, &mut self.batch.feeds);
            let fixed = state.step_times.fixed_symbols();
            drop(state);
            self.batch.plan_drafts(limits, fixed);
            // no request is preempted for a draft
            if self.batch.make_room() || (self.batch.drop_drafts() && self.batch.make_room()) {
                return;
            }
            let victim = self.inner.lock_state().scheduler.memory_victim(&self.batch.statuses);
            let Some(index) = victim else { return };
            self.preempt(index, PreemptionCause::Memory);
            self.batch.refresh_statuses();
        }
    }

    /// Takes the rows of the request at `index` away and queues it again.
    fn preempt(&mut self, index: usize, cause: PreemptionCause) {
        let Some((mut request, rows)) = self.batch.remove(index) else { return };
        let Inner { model, segment_cache, .. } = &*self.inner;
        tracing::debug!(rows = rows.len(), ?cause, "preempting a request");
        if let (RequestKind::Text(text), Some(row)) = (&request.kind, rows.first()) {
            caught(|| text.cache_state(segment_cache, &*row.state));
        }
        drop_each(rows);
        self.inner.measurements.record(EngineEvent::Preempted);
        request.preempt();
        let cached = match &request.kind {
            RequestKind::Text(text) => {
                caught(|| segment_cache.cached_len(text.cache_key.as_ref(), &text.session)).unwrap_or(0)
            }
            RequestKind::Document(_) => 0,
        };
        let demand = request.demand(&**model, cached);
        let on_hold = request.waits_for_client;
        if let Some(permit) = request.permit.take() {
            let queued = self.inner.lock_state().scheduler.preempt(permit, request, demand, on_hold, cause);
            if let Err(mut request) = queued {
                request.outcome = Some(Err(Error::Internal("a preempted request had no slot".into())));
                self.ended.push(request);
            }
            // a request that this lets in must be admitted before the worker sleeps
            self.inner.state.wake_signal.raise();
        }
    }

    /// Frees the slots of ended requests before it sends their outcomes, so that their clients find the slots free.
    fn end_requests(&mut self, now: Instant) {
        self.batch.remove_ended(&mut self.ended);
        if self.ended.is_empty() {
            return;
        }
        let mut state = self.inner.lock_state();
        for request in &mut self.ended {
            if let Some(held) = request.timer.since_admission(now) {
                state.step_times.record_request(held);
            }
            if let Some(permit) = request.permit.take() {
                state.scheduler.finish(permit, std::mem::take(&mut request.fed));
            }
        }
        drop(state);
        for request in self.ended.drain(..) {
            caught(|| request.end(now, &self.inner.measurements));
        }
    }

    /// Returns how long to sleep at most: until the next deadline or expiry, and `POLL_INTERVAL` while a request waits.
    fn sleep_limit(&self, now: Instant) -> Option<Duration> {
        let limits = &self.inner.limits;
        let state = self.inner.lock_state();
        let requests = self.batch.requests.iter().chain(state.scheduler.queued());
        let next_poll = requests.filter_map(|request| request.next_poll(now, limits)).min();
        let expiry = self.inner.model.document_encoder().and_then(|_| self.inner.document_cache.expire(now));
        let next = next_poll.into_iter().chain(expiry).min().map(|next| next.saturating_duration_since(now));
        // no signal reports that the client of an unfinished upload is gone
        let idle = self.batch.requests.iter().any(Request::is_idle);
        let poll = (idle || state.scheduler.waiting() > 0).then_some(POLL_INTERVAL);
        next.into_iter().chain(poll).min()
    }
}

impl Drop for ExitGuard {
    fn drop(&mut self) {
        let Inner { heartbeat, segment_cache, document_cache, measurements, broken, .. } = &*self.0;
        heartbeat.rest();
        let mut state = self.0.lock_state();
        state.advance_to(if thread::panicking() { Phase::Broken } else { Phase::Closed });
        let is_broken = state.phase == Phase::Broken;
        // the worker is dropped by now, and with it the rows and the requests that held permits
        let queued: Vec<_> = state.scheduler.clear().collect();
        let retry = state.step_times.retry_after();
        drop(state);
        caught(|| segment_cache.clear());
        caught(|| document_cache.clear());
        broken.send_replace(is_broken);
        for mut request in queued {
            let error = if is_broken { Error::Broken } else { Error::Draining { retry } };
            request.outcome = Some(Err(error));
            request.end(clock::now(), measurements);
        }
    }
}

/// Restarts of a worker within [`RESTART_PERIOD`] after which a further panic breaks it.
const MAX_RESTARTS: usize = 3;

const RESTART_PERIOD: Duration = Duration::from_secs(60);

/// Counts a worker's latest restarts.
#[derive(Debug, Default)]
pub(crate) struct RestartLimit {
    /// Times of the restarts within the last period.
    recent: Vec<Instant>,
}

impl RestartLimit {
    /// Counts a restart at `now`. Returns false, without counting it, if there were too many within the last period.
    pub(crate) fn allow(&mut self, now: Instant) -> bool {
        self.recent.retain(|&restart| now.saturating_duration_since(restart) < RESTART_PERIOD);
        let allowed = self.recent.len() < MAX_RESTARTS;
        if allowed {
            self.recent.push(now);
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarts_have_a_limit_within_a_period() {
        let mut limit = RestartLimit::default();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(
            [0, 10, 50, 59, 60, 61, 70].map(|at| limit.allow(after(at))),
            [true, true, true, false, true, false, true]
        );
    }
}
