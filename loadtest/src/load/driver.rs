//! Open and closed loops: send requests on schedule and record all of them.

use super::{
    mix::{DrawnRequest, WorkloadMix},
    schedule::{RunLength, ScheduledCounts, ScheduledRequest},
    workload::{PreparedRequest, RequestTarget},
};
use crate::{
    client::connection::code_name,
    error::{Error, Result},
    measure::{
        counters::{CounterDelta, CounterSnapshot, LiveCounters},
        histogram::ValueHistogram,
        objective::Objectives,
        request_timer::ClientTimer,
        stats::{RequestOutcome, RequestStats, UNAVAILABLE},
        tester::{CpuClock, LagProbe},
        timeline::Timeline,
    },
};
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    sync::{Semaphore, mpsc::Receiver, watch},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout},
};

/// Interval at which the timeline samples the counters.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);

/// First pause of a closed loop's client before it sends to an unavailable server again; doubled each time …
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
/// … up to this.
const MAX_BACKOFF: Duration = Duration::from_secs(1);

const TIMED_OUT: &str = "DEADLINE_EXCEEDED";

/// Becomes true when the measurement is to end.
pub type StopSignal = watch::Receiver<bool>;

/// Requests of a load, and their target.
pub struct LoadSetup {
    /// Server and model.
    pub target: RequestTarget,
    /// Requests.
    pub mix: WorkloadMix,
    /// Objectives that a good request meets.
    pub objectives: Objectives,
}

/// How requests follow each other, for how long, and what is observed meanwhile.
pub struct LoadRun {
    /// Duration, and number of requests.
    pub length: RunLength,
    /// Time from which the length counts.
    pub begin: Instant,
    /// Source of the requests.
    pub source: RequestSource,
    /// Ends the run early.
    pub stop: StopSignal,
    /// True to measure how late this program sees events.
    pub probe_lag: bool,
}

/// Source of requests.
pub enum RequestSource {
    /// Closed loop: this many clients, each of which sends its next request when the last one has ended.
    Closed(usize),
    /// Open loop.
    Open {
        /// Scheduled requests, each delivered when it is due.
        requests: Receiver<ScheduledRequest>,
        /// Maximum requests in flight.
        max_in_flight: usize,
    },
}

/// Measurement of one load.
pub struct LoadResult {
    /// Statistics of each workload.
    pub stats: Vec<RequestStats>,
    /// Model that each workload's requests went to.
    pub models: Vec<String>,
    /// Changes of the counters within the measured window.
    pub window: CounterDelta,
    /// Processor time of this process within the window.
    pub cpu: Option<Duration>,
    /// Timeline until the last request had ended.
    pub timeline: Timeline,
    /// Lags of the probe; empty if it did not run.
    pub lags: ValueHistogram,
    /// Requests that waited for the limit on requests in flight.
    pub held: u64,
    /// True if the run was stopped early.
    pub interrupted: bool,
}

struct DriverState {
    job: Arc<LoadSetup>,
    counters: Arc<LiveCounters>,
    stats: Mutex<Vec<RequestStats>>,
    held: AtomicU64,
    stop: StopSignal,
}

/// Numbers of the next warm-up request and the next measured request of a closed loop.
type NextNumbers = Arc<Mutex<ScheduledCounts>>;

/// Counters and processor time at the start or end of the measured window.
struct WindowEnd {
    counters: CounterSnapshot,
    cpu: Option<Duration>,
}

/// Runs a load. The window opens after the warm-up and closes after the duration, or with the last request if only their number is
/// given. Calls `on_progress` four times per second. Fails only if an invariant is broken; failed requests are not errors.
pub async fn run_load(
    job: Arc<LoadSetup>,
    run: LoadRun,
    on_progress: &mut (dyn FnMut(&LiveCounters) + Send),
) -> Result<LoadResult> {
    let LoadRun { length, begin, source, stop, probe_lag } = run;
    let counters = Arc::new(LiveCounters::default());
    let models = job.mix.models(&job.target.model);
    let stats = Mutex::new(models.iter().map(|_| RequestStats::new(job.target.boundaries)).collect());
    let shared = Arc::new(DriverState { job, counters: counters.clone(), stats, held: AtomicU64::new(0), stop });
    let requests = send_all(shared.clone(), length, begin, source);
    tokio::pin!(requests);
    let open = begin + length.warm_up;
    let mut is_done = false;
    // without a warm-up the window opens before the first request
    if !length.warm_up.is_zero() {
        tokio::select! {
            done = &mut requests => {
                done?;
                is_done = true;
            }
            () = sleep_until(open) => {}
        }
    }
    let mut timeline = Timeline::begin(&counters);
    let probe = if probe_lag { Some(LagProbe::start()?) } else { None };
    let opened = WindowEnd::now(&counters);
    let close = length.duration.map(|duration| open + duration);
    let closed = if is_done { None } else { observe(&counters, &mut timeline, close, requests, on_progress).await? };
    let closed = closed.unwrap_or_else(|| WindowEnd::now(&counters));
    timeline.flush(&counters);
    let lags = LagProbe::stop(probe).await?;
    let mut stats = shared.stats.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(LoadResult {
        stats: std::mem::take(&mut *stats),
        models,
        window: closed.counters.since(&opened.counters),
        cpu: closed.cpu.zip(opened.cpu).map(|(end, start)| end.saturating_sub(start)),
        timeline,
        lags,
        held: shared.held.load(Relaxed),
        interrupted: *shared.stop.borrow(),
    })
}

impl WindowEnd {
    fn now(counters: &LiveCounters) -> Self {
        Self { counters: counters.read(), cpu: CpuClock::Process.read() }
    }
}

/// Samples the counters until all requests have ended. Returns their values when the window closed, if it closed before that.
async fn observe(
    counters: &LiveCounters,
    timeline: &mut Timeline,
    close: Option<Instant>,
    mut requests: std::pin::Pin<&mut impl Future<Output = Result<()>>>,
    on_progress: &mut (dyn FnMut(&LiveCounters) + Send),
) -> Result<Option<WindowEnd>> {
    let mut ticks = interval(SAMPLE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    let mut closed = None;
    let never = Instant::now() + Duration::from_secs(1 << 20);
    loop {
        tokio::select! {
            done = &mut requests => return done.map(|()| closed),
            () = sleep_until(close.unwrap_or(never)), if close.is_some() && closed.is_none() => {
                closed = Some(WindowEnd::now(counters));
            }
            _ = ticks.tick() => {
                timeline.tick(counters);
                on_progress(counters);
            }
        }
    }
}

async fn send_all(shared: Arc<DriverState>, length: RunLength, begin: Instant, source: RequestSource) -> Result<()> {
    let mut running = JoinSet::new();
    match source {
        RequestSource::Closed(concurrency) => {
            let numbers = NextNumbers::default();
            for _ in 0..concurrency {
                running.spawn(closed_loop(shared.clone(), length, begin, numbers.clone()));
            }
        }
        RequestSource::Open { requests, max_in_flight: limit } => {
            open_loop(&shared, requests, limit, &mut running).await?
        }
    }
    while let Some(ended) = running.join_next().await {
        joined(ended)?;
    }
    // the window lasts its full duration even if the last arrivals come before its end
    if let (Some(duration), None) = (length.duration, length.requests) {
        let mut stop = shared.stop.clone();
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => {}
            () = sleep_until(begin + length.warm_up + duration) => {}
        }
    }
    Ok(())
}

fn joined(ended: std::result::Result<Result<()>, tokio::task::JoinError>) -> Result<()> {
    ended.unwrap_or_else(|error| Err(Error::Internal(format!("a request's task: {error}"))))
}

/// One client of a closed loop. It backs off while the server is unavailable; otherwise it would send thousands of requests a
/// second.
async fn closed_loop(shared: Arc<DriverState>, length: RunLength, begin: Instant, numbers: NextNumbers) -> Result<()> {
    let mut backoff = FIRST_BACKOFF;
    while !*shared.stop.borrow() {
        let next = {
            let mut numbers = numbers.lock().unwrap_or_else(PoisonError::into_inner);
            length.schedule(begin.elapsed(), begin, &mut numbers)
        };
        let Some(scheduled) = next else { break };
        if send(&shared, scheduled).await? != RequestOutcome::Failed(UNAVAILABLE) {
            backoff = FIRST_BACKOFF;
            continue;
        }
        let mut stop = shared.stop.clone();
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => {}
            () = sleep(backoff) => {}
        }
        backoff = MAX_BACKOFF.min(backoff * 2);
    }
    Ok(())
}

async fn open_loop(
    shared: &Arc<DriverState>,
    mut requests: Receiver<ScheduledRequest>,
    max_in_flight: usize,
    running: &mut JoinSet<Result<()>>,
) -> Result<()> {
    let permits = Arc::new(Semaphore::new(max_in_flight));
    let mut stop = shared.stop.clone();
    loop {
        let next = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => break,
            next = requests.recv() => next,
        };
        let Some(scheduled) = next else { break };
        if permits.available_permits() == 0 && scheduled.measured {
            shared.held.fetch_add(1, Relaxed);
        }
        let permit = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => break,
            permit = permits.clone().acquire_owned() => permit,
        };
        let permit = permit.map_err(|_| Error::Internal("the limit on requests in flight is gone".into()))?;
        let shared = shared.clone();
        running.spawn(async move {
            let _permit = permit;
            send(&shared, scheduled).await.map(|_| ())
        });
        while let Some(ended) = running.try_join_next() {
            joined(ended)?;
        }
    }
    Ok(())
}

/// Sends one request, records it, and returns its outcome.
async fn send(shared: &DriverState, scheduled: ScheduledRequest) -> Result<RequestOutcome> {
    let DriverState { job, counters, .. } = shared;
    let DrawnRequest { workload, request, cancel_after } = job.mix.draw(scheduled.number)?;
    let mut timer = ClientTimer::new(counters.clone(), scheduled.intended, cancel_after);
    counters.totals.started.fetch_add(1, Relaxed);
    let mut stop = shared.stop.clone();
    let outcome = execute(&*request, &job.target, &mut timer, &mut stop).await;
    let total = scheduled.intended.elapsed();
    let good = outcome == RequestOutcome::Completed && job.objectives.are_met(&timer, total);
    if outcome == RequestOutcome::Completed {
        counters.totals.finished.fetch_add(1, Relaxed);
        counters.totals.good.fetch_add(u64::from(good), Relaxed);
        timer.first().into_iter().for_each(|time| counters.record_first(time));
    } else {
        counters.totals.failed.fetch_add(1, Relaxed);
    }
    if scheduled.measured {
        counters.totals.measured.fetch_add(1, Relaxed);
        let mut stats = shared.stats.lock().unwrap_or_else(PoisonError::into_inner);
        let stats = stats.get_mut(workload).ok_or_else(|| Error::Internal(format!("no workload {workload}")))?;
        stats.record(&timer, &outcome, total, good);
    }
    Ok(outcome)
}

/// Sends a request and returns its outcome. The time limit is enforced by this client's clock, whatever the server does.
pub async fn execute(
    request: &dyn PreparedRequest,
    target: &RequestTarget,
    timer: &mut ClientTimer,
    stop: &mut StopSignal,
) -> RequestOutcome {
    let begun = Instant::now();
    let result = tokio::select! {
        _ = stop.wait_for(|stop| *stop) => return RequestOutcome::Unfinished,
        result = timeout(target.timeout, request.send(target, timer)) => result,
    };
    let took = begun.elapsed();
    match result {
        _ if timer.is_cancelled() => RequestOutcome::Cancelled,
        // a busy machine reads an answer late: one read after the limit counts as late
        Ok(Ok(())) if took <= target.timeout => RequestOutcome::Completed,
        // tonic has a timer of its own for the same limit, with a code of its own
        Ok(Err(status)) if took < target.timeout => RequestOutcome::Failed(code_name(&status)),
        Ok(_) | Err(_) => RequestOutcome::Failed(TIMED_OUT),
    }
}
