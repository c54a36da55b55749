//! Load of the tester itself, and whether it limited the measurement.
//!
//! The tester reads the processor time of its process and runs a lag probe: a thread that sends the current time to the runtime
//! every few milliseconds. The delay until the runtime receives a tick is the delay with which it sees any message, including the
//! time that other programs on the machine take from it. While the whole process is suspended the thread sends no ticks, so it
//! sends the missed ones afterwards with the times at which they were due: a suspension of one second is two hundred late ticks,
//! not one. If only the probe's own thread was suspended this overstates the lag, so that the tester is suspected once too often
//! rather than never.

use crate::error::{Error, Result};
use crate::stats::RequestFigures;
use crate::timer::{CounterDelta, TOGETHER};
use serde::{Deserialize, Serialize};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;
use tokio::{sync::mpsc, task::JoinHandle, time::Instant};
use weir_measure::format::time;
use weir_measure::histogram::{Percentiles, ValueHistogram};

const TICK: Duration = Duration::from_millis(5);
/// Ticks that may wait to be received: five minutes' worth.
const WAITING: usize = 1 << 16;
/// Share of its threads' time above which the tester counts as the limit.
const MAX_CPU_SHARE: f64 = 0.8;
/// Largest lag of the tester, as a share of the times that it measured.
const MAX_LAG_SHARE: f64 = 0.1;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TesterFigures {
    pub threads: usize,
    pub connections: usize,
    /// Processor time of the process in the measured window; absent if the system does not report it.
    pub cpu_ns: Option<u64>,
    pub cpu_share: Option<f64>,
    pub messages_per_second: f64,
    pub event_lag_ns: Percentiles,
    pub held: u64,
    pub limits: Vec<String>,
}

/// Running lag probe; it ends when dropped.
pub(crate) struct LagProbe {
    // dropping this ends the thread
    stop: Option<SyncSender<()>>,
    thread: Option<thread::JoinHandle<()>>,
    lags: JoinHandle<ValueHistogram>,
}

impl LagProbe {
    /// Starts the probe on this runtime. Fails if the thread cannot be started.
    pub(crate) fn start() -> Result<Self> {
        let (stop, stopped) = sync_channel::<()>(0);
        let (ticks, mut received) = mpsc::channel::<Instant>(WAITING);
        let run = move || {
            let mut last = Instant::now();
            let mut running = true;
            while running {
                running = stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout);
                running &= send_due_ticks(&ticks, &mut last, Instant::now());
            }
        };
        let thread = thread::Builder::new().name("lag-probe".into()).spawn(run);
        let failed = |error| Error::Internal(format!("cannot start the lag probe's thread: {error}"));
        let thread = thread.map_err(failed)?;
        let lags = tokio::spawn(async move {
            let mut lags = ValueHistogram::default();
            while let Some(tick) = received.recv().await {
                lags.record_time(tick.elapsed());
            }
            lags
        });
        Ok(Self { stop: Some(stop), thread: Some(thread), lags })
    }

    /// Stops a probe, if one runs, and returns the lags of its ticks. Fails if the probe's task panicked.
    pub(crate) async fn stop(probe: Option<Self>) -> Result<ValueHistogram> {
        let Some(mut probe) = probe else { return Ok(ValueHistogram::default()) };
        drop(probe.stop.take());
        (&mut probe.lags).await.map_err(|error| Error::Internal(format!("the lag probe's task: {error}")))
    }
}

/// Sends a tick for `now`, and before it those that were due since the last one. Ticks that find the channel full are sent by the
/// next call. Returns false if the receiver is gone.
fn send_due_ticks(ticks: &mpsc::Sender<Instant>, last: &mut Instant, now: Instant) -> bool {
    while *last < now {
        // a sleeping thread wakes a little late: that is not the tester's lag
        let next = if now - *last < 2 * TICK { now } else { *last + TICK };
        match ticks.try_send(next) {
            Ok(()) => *last = next,
            Err(mpsc::error::TrySendError::Full(_)) => return true,
            Err(mpsc::error::TrySendError::Closed(_)) => return false,
        }
    }
    true
}

impl Drop for LagProbe {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // the thread ends within a tick; a panic in it was reported by its own hook
            let _ = thread.join();
        }
    }
}

impl TesterFigures {
    /// Computes the figures of a window.
    pub(crate) fn new(threads: usize, connections: usize, window: CounterDelta, lags: &ValueHistogram) -> Self {
        let seconds = window.span.as_secs_f64().max(1e-9);
        Self {
            threads,
            connections,
            cpu_ns: window.cpu.map(weir_measure::format::ns),
            cpu_share: window.cpu.map(|cpu| cpu.as_secs_f64() / seconds / threads.max(1) as f64),
            messages_per_second: window.counts.messages as f64 / seconds,
            event_lag_ns: lags.percentiles(1.0),
            held: 0,
            limits: Vec::new(),
        }
    }

    /// States the reasons why the tester may be the limit of a measurement, and what to do. `requests` has the figures of each model.
    pub(crate) fn find_limits(&mut self, requests: &[&RequestFigures]) {
        let gaps: Vec<_> = requests.iter().map(|figures| &figures.gap_ns).collect();
        self.limits = self.delays(requests);
        self.limits.extend(self.lateness("gap", &gaps));
    }

    /// Returns the reasons why the tester may have delayed requests.
    fn delays(&self, requests: &[&RequestFigures]) -> Vec<String> {
        let busy = self.cpu_share.filter(|share| *share > MAX_CPU_SHARE).map(|share| {
            let percent = share * 100.0;
            format!("it used {percent:.0} % of the processor time of its threads; give it more (--threads)")
        });
        let held = (self.held > 0).then(|| {
            let count = self.held;
            format!("{count} requests waited for its limit on requests in flight; raise --max-in-flight")
        });
        let first: Vec<_> = requests.iter().map(|figures| &figures.time_to_first_char_ns).collect();
        [busy, held, self.lateness("time to first character", &first)].into_iter().flatten().collect()
    }

    /// Returns true if the tester may have delayed requests with these figures.
    pub(crate) fn may_delay(&self, requests: &RequestFigures) -> bool {
        !self.delays(&[requests]).is_empty()
    }

    /// Describes the lag if it is over a tenth of the measured `times`. A lag is added to a time, so a percentile of the lag is
    /// compared with the same percentile of the times: the fastest model's, which the tester distorts most. Times between messages
    /// that came together do not count, because the server did not cause them.
    fn lateness(&self, name: &str, times: &[&Percentiles]) -> Option<String> {
        let shortest = TOGETHER.as_nanos() as f64;
        let distorted = COMPARED.iter().filter_map(|(percentile, of)| {
            let times = times.iter().filter_map(|times| of(times)).filter(|time| *time >= shortest);
            let measured = times.min_by(f64::total_cmp)?;
            let lag = of(&self.event_lag_ns)?;
            (lag > MAX_LAG_SHARE * measured).then_some((percentile, lag, measured))
        });
        let (percentile, lag, measured) = distorted.max_by(|a, b| (a.1 / a.2).total_cmp(&(b.1 / b.2)))?;
        Some(format!(
            "it saw events {} late at the {percentile}, over a tenth of the {percentile} {name} ({}); run it on another machine, or leave \
             it a core of the server's (weir serve --threads)",
            time(lag),
            time(measured)
        ))
    }
}

/// Percentiles that are compared with the tester's lag, with their names.
const COMPARED: [(&str, PercentileOf); 3] =
    [("p50", |values| values.p50), ("p90", |values| values.p90), ("p99", |values| values.p99)];

type PercentileOf = fn(&Percentiles) -> Option<f64>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timer::LoadCounters;

    /// Figures of ten seconds with 50 messages, every one of which was seen `lag` late.
    fn tester(threads: usize, cpu: u64, lag: Duration) -> TesterFigures {
        let counts = LoadCounters { messages: 50, ..LoadCounters::default() };
        let window = CounterDelta { span: Duration::from_secs(10), counts, cpu: Some(Duration::from_secs(cpu)) };
        let mut lags = ValueHistogram::default();
        (0..1000).for_each(|_| lags.record_time(lag));
        TesterFigures::new(threads, 1, window, &lags)
    }

    #[test]
    fn each_way_of_being_the_limit_is_reported() {
        let short = Duration::from_micros(900);
        let idle = tester(1, 1, short);
        assert_eq!((idle.cpu_share, idle.messages_per_second), (Some(0.1), 5.0));
        let same = |ns| Percentiles { p50: Some(ns), p90: Some(ns), p99: Some(ns), ..Percentiles::default() };
        let requests =
            RequestFigures { time_to_first_char_ns: same(100e6), gap_ns: same(10e6), ..RequestFigures::default() };
        for (mut tester, delays, expected) in [
            (idle.clone(), false, None),
            (tester(1, 9, short), true, Some("90 % of the processor time")),
            (tester(2, 9, short), false, None),
            (TesterFigures { held: 3, ..idle.clone() }, true, Some("3 requests waited")),
            (tester(1, 1, Duration::from_millis(2)), false, Some("gap (10.0 ms)")),
        ] {
            tester.find_limits(&[&requests]);
            assert_eq!(tester.limits.len(), usize::from(expected.is_some()));
            assert!(tester.limits.iter().all(|limit| limit.contains(expected.unwrap())), "{:?}", tester.limits);
            assert_eq!(tester.may_delay(&requests), delays);
        }
    }

    #[tokio::test]
    async fn the_probe_measures_how_long_the_runtime_was_blocked() {
        // on a busy machine the probe may start only after this thread has stopped blocking
        for _ in 0..5 {
            let probe = LagProbe::start().unwrap();
            // blocks this thread
            let begun = std::time::Instant::now();
            while begun.elapsed() < Duration::from_millis(120) {
                std::hint::spin_loop();
            }
            // the first tick came 5 ms after the start
            if LagProbe::stop(Some(probe)).await.unwrap().percentiles(1.0).max.is_some_and(|lag| lag > 20e6) {
                return;
            }
        }
        panic!("no lag was measured");
    }

    #[test]
    fn ticks_missed_during_a_suspension_are_sent_afterwards() {
        let (ticks, mut received) = mpsc::channel(WAITING);
        let begun = Instant::now();
        let mut last = begun;
        let mut ages = |after: u64| {
            let now = begun + Duration::from_micros(after);
            assert!(send_due_ticks(&ticks, &mut last, now));
            std::iter::from_fn(|| received.try_recv().ok()).map(|tick| (now - tick).as_micros()).collect::<Vec<_>>()
        };
        assert_eq!(ages(5_100), [0], "a thread that wakes a little late sends one tick");
        assert_eq!(ages(9_900), [0]);
        assert_eq!(ages(30_000), [15_100, 10_100, 5_100, 0], "ticks at 14.9, 19.9 and 24.9 ms were due");
        let late = ages(1_030_000);
        assert_eq!((late.len(), late[0]), (200, 995_000), "a second");
        drop(received);
        assert!(!send_due_ticks(&ticks, &mut last, begun + Duration::from_secs(9)));
    }

    #[test]
    fn a_lag_is_compared_with_the_same_percentile_of_the_times() {
        let late = |lag: [f64; 2], gap: [f64; 2]| {
            let both = |[p50, p99]: [f64; 2]| Percentiles { p50: Some(p50), p99: Some(p99), ..Percentiles::default() };
            let tester = TesterFigures { event_lag_ns: both(lag), ..TesterFigures::default() };
            tester.lateness("gap", &[&both(gap), &both([1e12, 1e12])])
        };
        // A hundredth of the events was late: that says nothing about medians.
        assert_eq!(late([5e4, 2e6], [1e6, 30e6]), None);
        let p99 = "it saw events 2.00 ms late at the p99, over a tenth of the p99 gap (15.0 ms); ";
        assert!(late([5e4, 2e6], [1e6, 15e6]).unwrap().starts_with(p99));
        let worst = "it saw events 300 µs late at the p50, over a tenth of the p50 gap (1.00 ms); ";
        assert!(late([3e5, 4e6], [1e6, 15e6]).unwrap().starts_with(worst));
        // Messages that came together have gaps that any lag exceeds.
        assert_eq!(late([2e6, 2e6], [3e3, 3e3]), None);
    }
}
