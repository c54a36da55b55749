//! The loops: requests made as a plan says, all of them recorded.

use super::{
    execute::execute,
    schedule::{RunLength, ScheduledRequest},
    workload::{DrawnRequest, RequestTarget, WorkloadMix},
};
use crate::{
    error::{Error, Result},
    measure::{
        counters::{CounterDelta, CounterSnapshot, LiveCounters, Timeline},
        histogram::ValueHistogram,
        objective::Objectives,
        request_timer::RequestTimer,
        stats::{GONE, RequestOutcome, RequestStats},
        tester::{self, LagProbe},
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
    time::{Instant, MissedTickBehavior, interval, sleep, sleep_until},
};

/// How often the counters are looked at.
const LOOK: Duration = Duration::from_millis(250);

/// How long a closed loop waits before it asks again a server that is not there, at first; twice as long each time …
const AGAIN: Duration = Duration::from_millis(100);
/// … and at most.
const LATEST: Duration = Duration::from_secs(1);

/// Turns true when everything is to end.
pub type StopSignal = watch::Receiver<bool>;

/// What is measured.
pub struct LoadSetup {
    /// Whom requests go to.
    pub target: RequestTarget,
    /// What they ask for.
    pub mix: WorkloadMix,
    /// What a good one keeps.
    pub objectives: Objectives,
}

/// Where requests come from.
pub enum RequestSource {
    /// So many at a time, each followed by the next.
    Closed(usize),
    /// A schedule, and how many may be in flight.
    Open(Receiver<ScheduledRequest>, usize),
}

/// What was measured.
pub struct LoadResult {
    /// Of each workload.
    pub tallies: Vec<RequestStats>,
    /// The model that each asked.
    pub models: Vec<String>,
    /// What happened in the window.
    pub window: CounterDelta,
    /// Processor time of this process in it.
    pub cpu: Option<Duration>,
    /// The course, until the last request had ended.
    pub course: Timeline,
    /// How late the pulse was taken, if there was one.
    pub lags: Option<ValueHistogram>,
    /// Requests that waited for the limit on requests in flight.
    pub held: u64,
    /// Whether it was told to end before its time.
    pub interrupted: bool,
}

struct DriverState {
    job: Arc<LoadSetup>,
    meter: Arc<LiveCounters>,
    tallies: Mutex<Vec<RequestStats>>,
    held: AtomicU64,
    stop: StopSignal,
}

/// Drives a job. The window opens after the warm-up and closes after the duration, or with the last request if only their number
/// is given. `look` is called four times a second.
///
/// # Errors
/// A broken invariant; what requests are answered is no error.
pub async fn run_load(
    job: Arc<LoadSetup>,
    (extent, begin): (RunLength, Instant),
    source: RequestSource,
    (stop, pulse): (StopSignal, bool),
    look: &mut (dyn FnMut(&LiveCounters) + Send),
) -> Result<LoadResult> {
    let meter = Arc::new(LiveCounters::default());
    let tallies = (0..job.mix.size()).map(|_| RequestStats::new(job.target.boundaries)).collect::<Result<Vec<_>>>()?;
    let shared = Arc::new(DriverState {
        job,
        meter: meter.clone(),
        tallies: Mutex::new(tallies),
        held: AtomicU64::new(0),
        stop,
    });
    let models = shared.job.mix.models(&shared.job.target.model);
    let requests = make(shared.clone(), extent, begin, source);
    tokio::pin!(requests);
    let open = begin + extent.warm_up;
    let mut is_done = false;
    // without a warm-up the window opens before the first request
    if !extent.warm_up.is_zero() {
        tokio::select! {
            done = &mut requests => {
                done?;
                is_done = true;
            }
            () = sleep_until(open) => {}
        }
    }
    let (mut course, pulse) = (Timeline::begin(&meter)?, if pulse { Some(LagProbe::start()?) } else { None });
    let (opened, cpu) = (meter.read(), tester::cpu());
    let close = extent.duration.map(|duration| open + duration);
    let closed = if is_done { None } else { observe((&meter, &mut course), close, requests, look).await? };
    let (closed, spent) = closed.unwrap_or_else(|| (meter.read(), tester::cpu()));
    course.close(&meter)?;
    let lags = match pulse {
        Some(pulse) => Some(pulse.stop().await?),
        None => None,
    };
    let mut tallies = shared.tallies.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(LoadResult {
        tallies: std::mem::take(&mut *tallies),
        models,
        window: closed.since(&opened),
        cpu: spent.zip(cpu).map(|(now, then)| now.saturating_sub(then)),
        course,
        lags,
        held: shared.held.load(Relaxed),
        interrupted: *shared.stop.borrow(),
    })
}

/// Looks on until all requests have ended; what there was when the window closed, if it closed before that.
async fn observe(
    (meter, course): (&LiveCounters, &mut Timeline),
    close: Option<Instant>,
    mut requests: std::pin::Pin<&mut impl Future<Output = Result<()>>>,
    look: &mut (dyn FnMut(&LiveCounters) + Send),
) -> Result<Option<(CounterSnapshot, Option<Duration>)>> {
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    looks.tick().await;
    let mut closed = None;
    let far = Instant::now() + Duration::from_secs(1 << 20);
    loop {
        tokio::select! {
            done = &mut requests => return done.map(|()| closed),
            () = sleep_until(close.unwrap_or(far)), if close.is_some() && closed.is_none() => {
                closed = Some((meter.read(), tester::cpu()));
            }
            _ = looks.tick() => {
                course.look(meter)?;
                look(meter);
            }
        }
    }
}

async fn make(shared: Arc<DriverState>, extent: RunLength, begin: Instant, source: RequestSource) -> Result<()> {
    let mut running = JoinSet::new();
    match source {
        RequestSource::Closed(concurrency) => {
            let counts = Arc::new(Mutex::new((0, 0)));
            for _ in 0..concurrency {
                running.spawn(repeat(shared.clone(), extent, begin, counts.clone()));
            }
        }
        RequestSource::Open(tickets, most) => dispatch(&shared, tickets, most, &mut running).await?,
    }
    while let Some(ended) = running.join_next().await {
        joined(ended)?;
    }
    // a schedule may have no request for the end of the window, which is as long nevertheless
    if let (Some(duration), None) = (extent.duration, extent.requests) {
        let mut stop = shared.stop.clone();
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => {}
            () = sleep_until(begin + extent.warm_up + duration) => {}
        }
    }
    Ok(())
}

fn joined(ended: std::result::Result<Result<()>, tokio::task::JoinError>) -> Result<()> {
    ended.unwrap_or_else(|error| Err(Error::Internal(format!("a request's task: {error}"))))
}

/// One of the clients of a closed loop. It would ask a server that is not there thousands of times a second.
async fn repeat(
    shared: Arc<DriverState>,
    extent: RunLength,
    begin: Instant,
    counts: Arc<Mutex<(u64, u64)>>,
) -> Result<()> {
    let mut wait = AGAIN;
    while !*shared.stop.borrow() {
        let ticket = {
            let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
            let (warm, measured) = &mut *counts;
            extent.now(begin, (warm, measured))
        };
        let Some(ticket) = ticket else { break };
        if one(&shared, ticket).await? != RequestOutcome::Failed(GONE) {
            wait = AGAIN;
            continue;
        }
        let mut stop = shared.stop.clone();
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => {}
            () = sleep(wait) => {}
        }
        wait = LATEST.min(wait * 2);
    }
    Ok(())
}

/// Starts a request for each ticket when it comes.
async fn dispatch(
    shared: &Arc<DriverState>,
    mut tickets: Receiver<ScheduledRequest>,
    most: usize,
    running: &mut JoinSet<Result<()>>,
) -> Result<()> {
    let room = Arc::new(Semaphore::new(most));
    let mut stop = shared.stop.clone();
    loop {
        let ticket = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => break,
            ticket = tickets.recv() => ticket,
        };
        let Some(ticket) = ticket else { break };
        if room.available_permits() == 0 && ticket.measured {
            shared.held.fetch_add(1, Relaxed);
        }
        let place = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => break,
            place = room.clone().acquire_owned() => place,
        };
        let place = place.map_err(|_| Error::Internal("the limit on requests in flight is gone".into()))?;
        let shared = shared.clone();
        running.spawn(async move {
            let _place = place;
            one(&shared, ticket).await.map(|_| ())
        });
        while let Some(ended) = running.try_join_next() {
            joined(ended)?;
        }
    }
    Ok(())
}

/// Makes one request and records it; how it ended.
async fn one(shared: &DriverState, ticket: ScheduledRequest) -> Result<RequestOutcome> {
    let DriverState { job, meter, .. } = shared;
    let DrawnRequest { which, exchange, cancel_after } = job.mix.draw(ticket.number)?;
    let mut watch = RequestTimer::new(meter.clone(), ticket.intended, cancel_after);
    meter.started.fetch_add(1, Relaxed);
    let mut stop = shared.stop.clone();
    let end = execute(&*exchange, &job.target, &mut watch, &mut stop).await;
    let total = ticket.intended.elapsed();
    let good = end == RequestOutcome::Completed && job.objectives.kept(&watch, total);
    let (count, kept) =
        if end == RequestOutcome::Completed { (&meter.finished, u64::from(good)) } else { (&meter.failed, 0) };
    count.fetch_add(1, Relaxed);
    meter.good.fetch_add(kept, Relaxed);
    if end == RequestOutcome::Completed {
        watch.first().into_iter().for_each(|span| meter.first(span));
    }
    if ticket.measured {
        meter.measured.fetch_add(1, Relaxed);
        let mut tallies = shared.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        let tally = tallies.get_mut(which).ok_or_else(|| Error::Internal("a workload that is not there".into()))?;
        tally.take(&watch, &end, total, good);
    }
    Ok(end)
}
