//! Open and closed loops: draw requests from a mix of workloads, send them on schedule, and record all of them.

use crate::client::code_name;
use crate::edit::EditCall;
use crate::error::{Error, Result};
use crate::generate::{GenerateCall, SummarizeCall};
use crate::schedule::{RunLength, ScheduledCounts, ScheduledRequest};
use crate::stats::{RequestOutcome, RequestStats, UNAVAILABLE};
use crate::tester::LagProbe;
use crate::timer::{ClientTimer, CounterDelta, CounterSnapshot, LiveCounters};
use crate::workload::{PromptText, RequestTarget, WorkloadInfo, WorkloadKind, WorkloadSpec};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, weighted::WeightedIndex};
use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc::Receiver;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, sleep_until, timeout};
use tonic::Status;
use weir_client::quoted;
use weir_measure::{format, histogram::ValueHistogram};

/// Interval at which progress is shown.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

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
    pub source: RequestSource,
    /// Ends the run early.
    pub stop: StopSignal,
    /// True to measure how late this program sees events.
    pub probe_lag: bool,
}

pub enum RequestSource {
    /// Closed loop: this many clients, each of which sends its next request when the last one has ended.
    Closed(usize),
    Open {
        /// Scheduled requests, each delivered when it is due.
        requests: Receiver<ScheduledRequest>,
        /// Maximum requests in flight.
        max_in_flight: usize,
    },
}

pub struct LoadResult {
    /// Statistics of each workload.
    pub stats: Vec<RequestStats>,
    /// Changes of the counters within the measured window.
    pub window: CounterDelta,
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
    /// The end of the warm-up.
    open: Instant,
    stop: StopSignal,
}

/// Numbers of the next warm-up request and the next measured request of a closed loop.
type NextNumbers = Arc<Mutex<ScheduledCounts>>;

/// Runs a load. The window opens after the warm-up and closes after the duration, or with the last request if only their number is
/// given. Calls `on_progress` four times per second. Fails only if an invariant is broken; failed requests are not errors.
pub async fn run_load(
    job: Arc<LoadSetup>,
    run: LoadRun,
    on_progress: &mut (dyn FnMut(&LiveCounters) + Send),
) -> Result<LoadResult> {
    let LoadRun { length, begin, source, stop, probe_lag } = run;
    let counters = Arc::new(LiveCounters::default());
    let stats = Mutex::new(job.mix.workloads.iter().map(|_| RequestStats::new(job.target.boundaries)).collect());
    let open = begin + length.warm_up;
    let shared = Arc::new(DriverState { job, counters: counters.clone(), stats, held: AtomicU64::new(0), open, stop });
    let requests = send_all(shared.clone(), length, begin, source);
    tokio::pin!(requests);
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
    let probe = if probe_lag { Some(LagProbe::start()?) } else { None };
    let opened = counters.read();
    let close = length.duration.map(|duration| open + duration);
    let closed = if is_done { None } else { observe(&counters, close, requests, on_progress).await? };
    let closed = closed.unwrap_or_else(|| counters.read());
    let lags = LagProbe::stop(probe).await?;
    let mut stats = shared.stats.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(LoadResult {
        stats: std::mem::take(&mut *stats),
        window: closed.since(&opened),
        lags,
        held: shared.held.load(Relaxed),
        interrupted: *shared.stop.borrow(),
    })
}

/// Waits until all requests have ended. Returns the counters' values when the window closed, if it closed before that.
async fn observe(
    counters: &LiveCounters,
    close: Option<Instant>,
    mut requests: std::pin::Pin<&mut impl Future<Output = Result<()>>>,
    on_progress: &mut (dyn FnMut(&LiveCounters) + Send),
) -> Result<Option<CounterSnapshot>> {
    let mut ticks = interval(PROGRESS_INTERVAL);
    let mut closed = None;
    let never = Instant::now() + Duration::from_secs(1 << 20);
    loop {
        tokio::select! {
            done = &mut requests => return done.map(|()| closed),
            () = sleep_until(close.unwrap_or(never)), if close.is_some() && closed.is_none() => {
                closed = Some(counters.read());
            }
            _ = ticks.tick() => on_progress(counters),
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

async fn send(shared: &DriverState, scheduled: ScheduledRequest) -> Result<RequestOutcome> {
    let DriverState { job, counters, .. } = shared;
    let (workload, request) = job.mix.draw(scheduled.number)?;
    let mut timer = ClientTimer::new(counters.clone(), scheduled.intended);
    timer.counts_from = (!scheduled.measured).then_some(shared.open);
    counters.update(|counts| counts.started += 1);
    let mut stop = shared.stop.clone();
    let outcome = execute(&request, &job.target, &mut timer, &mut stop).await;
    let total = scheduled.intended.elapsed();
    let good = outcome == RequestOutcome::Completed && job.objectives.are_met(&timer, total);
    // A session that edits a document lasts longer than most warm-ups: its keystrokes in the window count.
    let typed = outcome == RequestOutcome::Completed && timer.edits.as_ref().is_some_and(|edits| edits.keystrokes > 0);
    let counts_here = scheduled.measured || typed;
    counters.update(|counts| {
        match outcome {
            RequestOutcome::Completed => counts.finished += 1,
            _ => counts.failed += 1,
        }
        counts.good += u64::from(good);
        counts.measured += u64::from(counts_here);
    });
    if counts_here {
        let mut stats = shared.stats.lock().unwrap_or_else(PoisonError::into_inner);
        let stats = stats.get_mut(workload).ok_or_else(|| Error::Internal(format!("no workload {workload}")))?;
        match scheduled.measured {
            true => stats.record(&timer, &outcome, total, good),
            false => stats.record_rest(&timer, good),
        }
    }
    Ok(outcome)
}

/// Sends a request and returns its outcome. The time limit is enforced by this client's clock, whatever the server does.
pub async fn execute(
    request: &PreparedRequest,
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
        // a busy machine reads an answer late: one read after the limit counts as late
        Ok(Ok(())) if took <= target.timeout => RequestOutcome::Completed,
        // tonic has a timer of its own for the same limit, with a code of its own
        Ok(Err(status)) if took < target.timeout => RequestOutcome::Failed(code_name(&status)),
        Ok(_) | Err(_) => RequestOutcome::Failed(TIMED_OUT),
    }
}

/// Maximum workloads of a mix.
pub const MAX_WORKLOADS: usize = 16;

/// Request ready to be sent, to several models if need be, each time with the same content.
pub enum PreparedRequest {
    Generate(GenerateCall),
    Summarize(SummarizeCall),
    Edit(EditCall),
}

impl PreparedRequest {
    async fn send(&self, target: &RequestTarget, timer: &mut ClientTimer) -> std::result::Result<(), Status> {
        match self {
            Self::Generate(call) => call.send(target, timer).await,
            Self::Summarize(call) => call.send(target, timer).await,
            Self::Edit(call) => call.send(target, timer).await,
        }
    }
}

/// Workloads with their weights.
pub struct WorkloadMix {
    workloads: Vec<(WorkloadSpec, PromptText)>,
    weights: WeightedIndex<f64>,
    seed: u64,
}

impl WorkloadMix {
    /// Builds a mix. Fails if the list is empty or too long, two workloads share a name, or one is invalid.
    pub fn new(specs: Vec<WorkloadSpec>, seed: u64) -> Result<Self> {
        if !(1..=MAX_WORKLOADS).contains(&specs.len()) {
            return Err(Error::option("--workload", specs.len(), format!("1 to {MAX_WORKLOADS} workloads")));
        }
        let mut names = HashSet::new();
        if let Some(repeated) = specs.iter().find(|spec| !names.insert(&spec.name)) {
            let expected = "a name of its own (the report could not distinguish two workloads of one name)";
            return Err(Error::option("--workload name", quoted(&repeated.name), expected));
        }
        let weights = WeightedIndex::new(specs.iter().map(|spec| spec.weight));
        let read = |spec: WorkloadSpec| {
            spec.check()?;
            let text = PromptText::read(&spec.files)?;
            Ok((spec, text))
        };
        let workloads = specs.into_iter().map(read).collect::<Result<_>>()?;
        let weights = weights.map_err(|error| Error::option("--workload weight", error, "numbers above 0"))?;
        Ok(Self { workloads, weights, seed })
    }

    /// Describes the workloads for the report.
    pub fn infos(&self) -> Vec<WorkloadInfo> {
        self.workloads.iter().map(|(spec, text)| spec.info(&text.name)).collect()
    }

    /// Returns the request with this number, which is always the same, and the index of its workload. Fails only if an invariant
    /// is broken.
    pub fn draw(&self, number: u64) -> Result<(usize, PreparedRequest)> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(number);
        let index = self.weights.sample(&mut rng);
        let workload = self.workloads.get(index);
        let (spec, text) = workload.ok_or_else(|| Error::Internal(format!("no workload {index}")))?;
        let request = match spec.kind {
            WorkloadKind::Generate => PreparedRequest::Generate(GenerateCall::draw(spec, text, &mut rng)?),
            WorkloadKind::Summarize => PreparedRequest::Summarize(SummarizeCall::draw(spec, text, &mut rng)?),
            WorkloadKind::Edit => PreparedRequest::Edit(EditCall::draw(spec, text, &mut rng)?),
        };
        Ok((index, request))
    }
}

/// Kinds of objectives: their names, and the figure of a request that each limits. `ttfc` and `total` count from the intended send
/// time of the request, `char` is the mean time per character after those that came first, together, and gaps are the times between
/// its messages. `key` is the time from a keystroke to its completions. An objective whose figure a request does not have is met: a
/// request with a single message, for example, has no gaps.
const OBJECTIVES: [(&str, ObjectiveFigure); 9] = [
    ("ttfc", |timer, _| timer.first()),
    ("total", |_, total| Some(total)),
    ("char", |timer, _| timer.per_char()),
    ("gap_p50", |timer, _| timer.gap_percentile(0.5)),
    ("gap_p95", |timer, _| timer.gap_percentile(0.95)),
    ("gap_p99", |timer, _| timer.gap_percentile(0.99)),
    ("gap_max", |timer, _| timer.gap_percentile(1.0)),
    ("key_p50", |timer, _| timer.edits.as_ref()?.percentile(0.5)),
    ("key_p99", |timer, _| timer.edits.as_ref()?.percentile(0.99)),
];

/// Figure of a request that ended the given time after its intended start.
type ObjectiveFigure = fn(&ClientTimer, Duration) -> Option<Duration>;

/// Objectives, all of which a good request meets: indices in `OBJECTIVES`, with the upper limits of the figures.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Objectives(Vec<(usize, Duration)>);

impl Objectives {
    /// True if a request that succeeded after `total` meets all objectives.
    pub fn are_met(&self, timer: &ClientTimer, total: Duration) -> bool {
        let is_met =
            |&(kind, limit): &(usize, Duration)| OBJECTIVES[kind].1(timer, total).is_none_or(|actual| actual <= limit);
        self.0.iter().all(is_met)
    }

    /// True if there are no objectives.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromStr for Objectives {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let objective = |part: &str| {
            let (name, limit) = part.split_once('=').ok_or_else(|| format!("expected NAME=TIME, found {part:?}"))?;
            let kind = OBJECTIVES.iter().position(|(known, _)| *known == name.trim());
            let kind = kind.ok_or_else(|| {
                format!("expected one of {}, found {:?}", OBJECTIVES.map(|(name, _)| name).join(", "), name.trim())
            })?;
            let limit = format::duration(limit.trim())
                .map_err(|why| format!("{}: {why}, found {:?}", name.trim(), limit.trim()))?;
            Ok::<_, String>((kind, limit))
        };
        text.split(',').map(objective).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for Objectives {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let describe = |&(kind, limit): &(usize, Duration)| {
            format!("{} ≤ {}", OBJECTIVES[kind].0, format::time(limit.as_nanos() as f64))
        };
        out.write_str(&self.0.iter().map(describe).collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timer::ReceivedMessage;

    #[tokio::test(start_paused = true)]
    async fn a_request_is_good_if_it_meets_every_objective() {
        let mut timer = ClientTimer::new(Arc::default(), Instant::now());
        timer.mark_sent();
        for after in [100, 10, 10, 40] {
            sleep(Duration::from_millis(after)).await;
            timer.record(ReceivedMessage { characters: 1, ..ReceivedMessage::default() });
        }
        let total = Duration::from_millis(160);
        let met = |text: &str| Objectives::from_str(text).unwrap().are_met(&timer, total);
        assert!(met("ttfc=100ms,gap_p99=40ms, total=160ms,char=20ms"));
        assert!(met("gap_p50=10ms"));
        for missed in ["ttfc=99ms", "gap_p99=39ms", "gap_max=39ms", "total=159ms", "char=19ms", "gap_p50=9ms,ttfc=1s"] {
            assert!(!met(missed), "{missed}");
        }
    }
}
