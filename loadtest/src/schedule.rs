//! How requests follow each other, for how long, and a thread that delivers them when they are due.

use crate::error::{Error, Result};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp};
use serde::{Deserialize, Serialize};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;
use tokio::sync::mpsc::{self, Receiver};
use tokio::time::Instant;

/// First number of warm-up requests. It is fixed so that measured requests do not depend on the length of the warm-up.
const WARM_UP_NUMBERS: u64 = 1 << 62;
/// Requests that may wait to be received. Each carries its intended send time, so that its wait is counted.
const WAITING: usize = 1024;

/// How requests follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "loop", rename_all = "snake_case")]
pub enum LoadPattern {
    /// Closed loop: each client sends its next request when the last one has ended.
    Closed { concurrency: usize },
    /// Open loop: requests arrive at `rate` per second, on a schedule that answers do not change.
    Open { rate: f64 },
}

/// How long a load runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunLength {
    /// Requests before this are sent but not measured.
    pub warm_up: Duration,
    /// Requests are started for this long after the warm-up …
    pub duration: Option<Duration>,
    /// … or until this many were started, whichever comes first.
    pub requests: Option<u64>,
}

/// Request with its number and send time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScheduledRequest {
    /// Determines the content of the request.
    pub number: u64,
    /// Intended send time.
    pub intended: Instant,
    /// True if the request is measured.
    pub measured: bool,
}

#[derive(Debug, Default)]
pub(crate) struct ScheduledCounts {
    warm_up: u64,
    measured: u64,
}

impl RunLength {
    /// Extends the duration until at least `least` requests of a schedule arrive in the window, unless the number of requests is
    /// given: random arrivals may be fewer than the rate implies. The window then ends when the next request would arrive, so that
    /// requests divided by duration equals the rate on average.
    pub fn extended(self, schedule: &ArrivalSchedule, least: usize) -> Self {
        let (None, Some(duration)) = (self.requests, self.duration) else { return self };
        let mut measured = schedule.clone().skip_while(|offset| *offset < self.warm_up);
        let next = if least == 0 { None } else { measured.nth(least) };
        let until = next.map_or(duration, |offset| offset.saturating_sub(self.warm_up));
        Self { duration: Some(duration.max(until)), ..self }
    }

    /// Returns the requests of a schedule that begins at `begin`.
    pub fn requests_of(
        self,
        schedule: impl Iterator<Item = Duration> + Send,
        begin: Instant,
    ) -> impl Iterator<Item = ScheduledRequest> + Send {
        let mut counts = ScheduledCounts::default();
        schedule.map_while(move |offset| self.schedule(offset, begin, &mut counts))
    }

    /// Returns the request due `offset` after `begin`, and counts it; `None` once the run is over.
    pub(crate) fn schedule(
        &self,
        offset: Duration,
        begin: Instant,
        counts: &mut ScheduledCounts,
    ) -> Option<ScheduledRequest> {
        let is_over = self.duration.is_some_and(|duration| offset >= self.warm_up + duration);
        if is_over || self.requests.is_some_and(|limit| counts.measured >= limit) {
            return None;
        }
        let measured = offset >= self.warm_up;
        let (count, first) = if measured { (&mut counts.measured, 0) } else { (&mut counts.warm_up, WARM_UP_NUMBERS) };
        let number = first + *count;
        *count += 1;
        Some(ScheduledRequest { number, intended: begin + offset, measured })
    }
}

impl LoadPattern {
    /// Returns the rate of an open loop, in requests per second.
    pub fn rate(&self) -> Option<f64> {
        if let Self::Open { rate } = *self { Some(rate) } else { None }
    }

    /// Returns the number of clients of a closed loop.
    pub fn concurrency(&self) -> Option<usize> {
        if let Self::Closed { concurrency } = *self { Some(concurrency) } else { None }
    }

    /// Returns a human-readable summary of the load.
    pub fn describe(&self) -> String {
        match self {
            Self::Closed { concurrency } => format!("closed loop, {concurrency} at a time"),
            Self::Open { rate } => {
                format!("open loop, Poisson arrivals, {} requests/s", weir_measure::format::digits(*rate))
            }
        }
    }
}

/// Delivers requests from a thread, because the runtime's timers have millisecond resolution and are late under load. The thread
/// ends when this handle or the receiver is dropped.
pub struct Pacer {
    stop: Option<SyncSender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Pacer {
    /// Starts a thread that delivers every request at its intended send time. Fails if the thread cannot be started.
    pub fn start(
        requests: impl Iterator<Item = ScheduledRequest> + Send + 'static,
    ) -> Result<(Self, Receiver<ScheduledRequest>)> {
        let (stop, stopped) = sync_channel::<()>(0);
        let (sender, receiver) = mpsc::channel(WAITING);
        let run = move || {
            for scheduled in requests {
                let left = scheduled.intended.saturating_duration_since(Instant::now());
                let ended = left > Duration::ZERO && stopped.recv_timeout(left) != Err(RecvTimeoutError::Timeout);
                if ended || sender.blocking_send(scheduled).is_err() {
                    break;
                }
            }
        };
        let thread = thread::Builder::new().name("pacer".into()).spawn(run);
        let thread = thread.map_err(|error| Error::Internal(format!("cannot start the pacer thread: {error}")))?;
        Ok((Self { stop: Some(stop), thread: Some(thread) }, receiver))
    }
}

impl Drop for Pacer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // the receiver is dropped by now, so the thread ends at once; a panic was reported by its own hook
            let _ = thread.join();
        }
    }
}

/// Endless iterator over the times of arrivals, counted from the start: independent of each other, at exponential intervals.
#[derive(Debug, Clone)]
pub struct ArrivalSchedule {
    rng: ChaCha8Rng,
    intervals: Exp<f64>,
    /// Time of the last arrival, in seconds.
    last: f64,
}

impl ArrivalSchedule {
    /// Builds a schedule of `rate` requests per second. Fails unless the rate is finite and above 0.
    pub fn new(rate: f64, seed: u64) -> Result<Self> {
        let intervals = Exp::new(rate).ok().filter(|_| rate.is_finite() && rate > 0.0);
        let intervals = intervals.ok_or_else(|| Error::option("--rate", rate, "a number above 0"))?;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        // the contents of requests are drawn from other streams
        rng.set_stream(u64::MAX);
        Ok(Self { rng, intervals, last: 0.0 })
    }
}

impl Iterator for ArrivalSchedule {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.last += self.intervals.sample(&mut self.rng);
        Duration::try_from_secs_f64(self.last).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn warm_up_requests_have_numbers_of_their_own() {
        let extent = RunLength { warm_up: SECOND, duration: Some(2 * SECOND), requests: Some(15) };
        let begin = Instant::now();
        let requests = |length: RunLength| -> Vec<ScheduledRequest> {
            length.requests_of((0..).map(|count| count * SECOND / 10), begin).collect()
        };
        let all = requests(extent);
        assert_eq!(
            all.iter().map(|scheduled| scheduled.measured).collect::<Vec<_>>(),
            [vec![false; 10], vec![true; 15]].concat()
        );
        assert_eq!((all[9].number, all[10].number, all[24].number), (WARM_UP_NUMBERS + 9, 0, 14));
        assert_eq!(all[10].intended - begin, SECOND);
        assert_eq!(requests(RunLength { requests: None, ..extent }).len(), 30);
    }

    #[tokio::test(start_paused = true)]
    async fn a_window_is_extended_until_enough_requests_arrive() {
        let begin = Instant::now();
        let extent = RunLength { warm_up: SECOND, duration: Some(10 * SECOND), requests: None };
        let mut rates = 0.0;
        for seed in 0..200 {
            // twenty are expected in ten seconds
            let schedule = ArrivalSchedule::new(2.0, seed).unwrap();
            let held = extent.extended(&schedule, 20);
            let count = held.requests_of(schedule, begin).filter(|scheduled| scheduled.measured).count();
            let seconds = held.duration.unwrap().as_secs_f64();
            assert!(count == 20 || count > 20 && seconds == 10.0, "{count} in {seconds} s");
            rates += count as f64 / seconds / 200.0;
        }
        assert!((rates / 2.0 - 1.0).abs() < 0.15, "{rates}");
        let counted = RunLength { requests: Some(5), ..extent };
        assert_eq!(counted.extended(&ArrivalSchedule::new(2.0, 0).unwrap(), 2000), counted);
    }

    #[tokio::test]
    async fn requests_come_when_due_and_never_before() {
        let begin = Instant::now();
        let due = move |number| begin + Duration::from_millis(number * 3);
        let requests = (0..20).map(move |number| ScheduledRequest { number, intended: due(number), measured: true });
        let (pacer, mut receiver) = Pacer::start(requests).unwrap();
        let mut count = 0;
        while let Some(scheduled) = receiver.recv().await {
            assert!(Instant::now() >= scheduled.intended);
            assert_eq!(scheduled.number, count);
            count += 1;
        }
        assert_eq!(count, 20);
        drop(pacer);
    }

    #[tokio::test]
    async fn the_thread_ends_when_its_handle_is_dropped() {
        let far = Instant::now() + Duration::from_secs(3600);
        let requests = (0..).map(move |number| ScheduledRequest { number, intended: far, measured: true });
        let (pacer, receiver) = Pacer::start(requests).unwrap();
        drop(receiver);
        drop(pacer);
    }

    #[test]
    fn poisson_arrivals_have_the_rate_and_its_spread_and_follow_the_seed() {
        let seconds = |seed| -> Vec<f64> {
            ArrivalSchedule::new(50.0, seed).unwrap().take(20_001).map(|at| at.as_secs_f64()).collect()
        };
        let at = seconds(7);
        let gaps: Vec<_> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean * 50.0 - 1.0).abs() < 0.03, "{mean}");
        // the standard deviation of an exponential distribution equals its mean
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.05);
        assert_eq!(at, seconds(7));
        assert_ne!(at, seconds(8));
    }
}
