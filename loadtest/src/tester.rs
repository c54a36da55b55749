//! Load of the tester itself, and whether it limited the measurement.
//!
//! The tester reads the processor time of its process and runs a lag probe: a thread that sends the current time to the runtime
//! every few milliseconds. The delay until the runtime receives a tick is the delay with which it sees any message, including the
//! time that other programs on the machine take from it. While the whole process is suspended the thread sends no ticks, so it
//! sends the missed ones afterwards with the times at which they were due: a suspension of one second is two hundred late ticks,
//! not one. If only the probe's own thread was suspended this overstates the lag, so that the tester is suspected once too often
//! rather than never.

use crate::client::TESTER_CODE;
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
pub(crate) const MAX_CPU_SHARE: f64 = 0.8;
/// Largest lag of the tester, as a share of the times that it measured.
pub(crate) const MAX_LAG_SHARE: f64 = 0.1;
/// Share of a core below which most processor time is not spent on messages, and does not show what a core could read.
pub(crate) const MIN_CPU_SHARE: f64 = 0.25;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TesterFigures {
    pub threads: usize,
    pub connections: usize,
    /// Processor time of the process in the measured window; absent if the system does not report it.
    pub cpu_ns: Option<u64>,
    pub cpu_share: Option<f64>,
    pub messages_per_second: f64,
    pub peak_messages_per_second: Option<f64>,
    /// Messages by seconds of processor time: what one core could read. Absent if less than `MIN_CPU_SHARE` of one was used.
    pub messages_per_cpu_second: Option<f64>,
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
        let messages = window.counts.messages as f64;
        let cpu_seconds = window.cpu.map(|cpu| cpu.as_secs_f64());
        Self {
            threads,
            connections,
            cpu_ns: window.cpu.map(weir_measure::format::ns),
            cpu_share: cpu_seconds.map(|cpu| cpu / seconds / threads.max(1) as f64),
            messages_per_second: messages / seconds,
            peak_messages_per_second: None,
            messages_per_cpu_second: cpu_seconds
                .filter(|cpu| *cpu >= MIN_CPU_SHARE * seconds)
                .map(|cpu| messages / cpu),
            event_lag_ns: lags.percentiles(1.0),
            held: 0,
            limits: Vec::new(),
        }
    }

    /// States the reasons why the tester may be the limit of a measurement. `requests` has the figures of each model.
    pub(crate) fn find_limits(&mut self, requests: &[&RequestFigures]) {
        let limits = LimitEvidence::of(requests).limits(self);
        self.limits = limits.into_iter().map(TesterLimit::fact).collect();
    }
}

/// Percentiles that are compared with the tester's lag, with their names.
const COMPARED: [(&str, PercentileOf); 3] =
    [("p50", |values| values.p50), ("p90", |values| values.p90), ("p99", |values| values.p99)];

type PercentileOf = fn(&Percentiles) -> Option<f64>;

/// Names of the figures that are compared: first the time to first character's, then the gaps'.
const FIGURES: [&str; 6] = [
    "p50 time to first character",
    "p90 time to first character",
    "p99 time to first character",
    "p50 gap",
    "p90 gap",
    "p99 gap",
];

/// Way in which the tester may have distorted a measurement, with the figure that shows it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TesterLimit {
    /// It used this share of the processor time of its threads.
    Busy(f64),
    /// This many requests waited for its limit on requests in flight.
    Held(u64),
    /// Its HTTP/2 library ended this many requests.
    EndedRequests(u64),
    /// It saw events late, compared with the times that it measured.
    Late(Lateness),
}

/// Lag of the tester that is large compared with a measured time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lateness {
    /// Percentile of the lag, in nanoseconds.
    lag: f64,
    /// The same percentile of the measured times, in nanoseconds.
    measured: f64,
    /// Index in [`FIGURES`].
    figure: usize,
    /// All figures that the lag distorts so.
    distorted: [bool; FIGURES.len()],
}

/// Figures of requests that show whether the tester was the limit.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LimitEvidence {
    /// Requests that the tester's own library ended.
    pub(crate) ended_by_tester: u64,
    /// The [`FIGURES`], in nanoseconds. Gaps of messages that came together are absent, because the server did not cause them.
    times: [Option<f64>; FIGURES.len()],
}

impl TesterLimit {
    /// Returns the limits that a report states for a measurement. `requests` has the figures of each model.
    pub fn of(tester: &TesterFigures, requests: &[&RequestFigures]) -> Vec<Self> {
        // a report states none if the server ended the measurement
        if tester.limits.is_empty() { Vec::new() } else { LimitEvidence::of(requests).limits(tester) }
    }

    /// Describes what the tester did, with the number that shows it.
    pub fn fact(self) -> String {
        let requests = |count| format!("{count} {}", if count == 1 { "request" } else { "requests" });
        match self {
            Self::Busy(share) => format!("it used {:.0} % of the processor time of its threads", share * 100.0),
            Self::Held(count) => {
                format!("{} waited for its limit on requests in flight (--max-in-flight)", requests(count))
            }
            Self::EndedRequests(count) => format!(
                "its HTTP/2 library ended {} with code {TESTER_CODE}, because too many messages waited to be read",
                requests(count)
            ),
            Self::Late(late) => late.fact(),
        }
    }

    /// Returns what the user can do. `shares_machine` is true if tester and server share a machine.
    pub fn advice(self, shares_machine: bool) -> &'static str {
        match self {
            Self::Busy(_) => "give it more threads (--threads)",
            Self::Held(_) => "raise --max-in-flight, because the measured times include the wait",
            Self::EndedRequests(_) => "raise --connections and --threads",
            Self::Late(_) if shares_machine => {
                "run it on another machine, or leave it a core of this one (weir serve --threads)"
            }
            Self::Late(_) => "stop other programs on its machine, or run it on another one",
        }
    }

    /// Combines limits of one kind in two measurements: the worse number, or the sum of counted requests. Returns `None` if they are
    /// of different kinds.
    pub(crate) fn combine(self, other: Self) -> Option<Self> {
        match (self, other) {
            (Self::Busy(share), Self::Busy(more)) => Some(Self::Busy(share.max(more))),
            (Self::Held(count), Self::Held(more)) => Some(Self::Held(count + more)),
            (Self::EndedRequests(count), Self::EndedRequests(more)) => Some(Self::EndedRequests(count + more)),
            (Self::Late(late), Self::Late(later)) => Some(Self::Late(late.combine(later))),
            _ => None,
        }
    }
}

impl Lateness {
    /// Describes the lag with the time that it distorts most, and names the others that it distorts.
    fn fact(self) -> String {
        let Self { lag, measured, figure, distorted } = self;
        let others = FIGURES.iter().enumerate().filter(|(index, _)| distorted[*index] && *index != figure);
        let others: Vec<_> = others.map(|(_, name)| *name).collect();
        let others = match others.is_empty() {
            true => String::new(),
            false => format!("; {} may be wrong as well", others.join(", ")),
        };
        format!(
            "it saw events {} late at the {}, over a tenth of the {} ({}){others}",
            time(lag),
            COMPARED[figure % COMPARED.len()].0,
            FIGURES[figure],
            time(measured)
        )
    }

    /// Returns the larger lag, with the figures that either distorts.
    fn combine(self, other: Self) -> Self {
        let larger = if other.lag > self.lag { other } else { self };
        let distorted = std::array::from_fn(|figure| self.distorted[figure] || other.distorted[figure]);
        Self { distorted, ..larger }
    }
}

impl LimitEvidence {
    /// Collects the evidence from the figures of each model. Times are the fastest model's, which the tester distorts most.
    pub(crate) fn of(requests: &[&RequestFigures]) -> Self {
        let times = std::array::from_fn(|index| {
            let (_, percentile) = COMPARED[index % COMPARED.len()];
            let is_gap = index >= COMPARED.len();
            let shortest = if is_gap { TOGETHER.as_nanos() as f64 } else { 0.0 };
            let values = requests.iter().map(|all| if is_gap { &all.gap_ns } else { &all.time_to_first_char_ns });
            values.filter_map(percentile).filter(|value| *value >= shortest).min_by(f64::total_cmp)
        });
        Self { ended_by_tester: requests.iter().map(|figures| figures.requests.ended_by_tester()).sum(), times }
    }

    /// Returns the evidence except about gaps, which do not delay requests.
    pub(crate) fn without_gaps(mut self) -> Self {
        self.times[COMPARED.len()..].fill(None);
        self
    }

    pub(crate) fn limits(&self, tester: &TesterFigures) -> Vec<TesterLimit> {
        let busy = tester.cpu_share.filter(|share| *share > MAX_CPU_SHARE).map(TesterLimit::Busy);
        let held = (tester.held > 0).then_some(TesterLimit::Held(tester.held));
        let ended = (self.ended_by_tester > 0).then_some(TesterLimit::EndedRequests(self.ended_by_tester));
        let late = self.lateness(&tester.event_lag_ns).map(TesterLimit::Late);
        [busy, held, ended, late].into_iter().flatten().collect()
    }

    /// Returns the measured times that the lag distorts by more than a tenth. A lag is added to a time, so a percentile of the lag is
    /// compared with the same percentile of the times.
    fn lateness(&self, lags: &Percentiles) -> Option<Lateness> {
        let mut distorted = [false; FIGURES.len()];
        let mut worst: Option<Lateness> = None;
        for (figure, measured) in self.times.into_iter().enumerate() {
            let (_, percentile) = COMPARED[figure % COMPARED.len()];
            let Some((lag, measured)) = percentile(lags).zip(measured) else { continue };
            if lag <= MAX_LAG_SHARE * measured {
                continue;
            }
            distorted[figure] = true;
            if worst.is_none_or(|worst| lag / measured > worst.lag / worst.measured) {
                worst = Some(Lateness { lag, measured, figure, distorted });
            }
        }
        worst.map(|worst| Lateness { distorted, ..worst })
    }
}

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
        assert_eq!((idle.cpu_share, idle.messages_per_second, idle.messages_per_cpu_second), (Some(0.1), 5.0, None));
        assert_eq!(tester(1, 4, short).messages_per_cpu_second, Some(12.5), "above the smallest share");
        let same = |ns| Percentiles { p50: Some(ns), p90: Some(ns), p99: Some(ns), ..Percentiles::default() };
        let requests =
            RequestFigures { time_to_first_char_ns: same(100e6), gap_ns: same(10e6), ..RequestFigures::default() };
        let mut ended = requests.clone();
        ended.requests.errors.insert(TESTER_CODE.into(), 2);
        for (mut tester, requests, expected) in [
            (idle.clone(), &requests, None),
            (tester(1, 9, short), &requests, Some("90 % of the processor time")),
            (tester(2, 9, short), &requests, None),
            (TesterFigures { held: 3, ..idle.clone() }, &requests, Some("3 requests waited")),
            (idle, &ended, Some("ended 2 requests with code TESTER")),
            (tester(1, 1, Duration::from_millis(2)), &requests, Some("gap (10.0 ms)")),
        ] {
            tester.find_limits(&[requests]);
            assert_eq!(tester.limits.len(), usize::from(expected.is_some()));
            assert!(tester.limits.iter().all(|limit| limit.contains(expected.unwrap())), "{:?}", tester.limits);
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

    fn lags(p50: f64, p99: f64) -> TesterFigures {
        let event_lag_ns = Percentiles { p50: Some(p50), p99: Some(p99), ..Percentiles::default() };
        TesterFigures { event_lag_ns, ..TesterFigures::default() }
    }

    fn evidence(first: f64, gap: f64, gap_p99: f64) -> LimitEvidence {
        let times = |p50, p99| Percentiles { p50: Some(p50), p99, ..Percentiles::default() };
        let figures = RequestFigures {
            time_to_first_char_ns: times(first, None),
            gap_ns: times(gap, Some(gap_p99)),
            ..RequestFigures::default()
        };
        LimitEvidence::of(&[&figures])
    }

    #[test]
    fn a_lag_is_compared_with_the_same_percentile_of_the_times() {
        // A hundredth of the events was late: that says nothing about medians.
        assert_eq!(evidence(15e6, 1e6, 30e6).limits(&lags(5e4, 2e6)), []);
        let [late] = evidence(15e6, 1e6, 15e6).limits(&lags(5e4, 2e6))[..] else { panic!() };
        assert_eq!(late.fact(), "it saw events 2.00 ms late at the p99, over a tenth of the p99 gap (15.0 ms)");
        let [late] = evidence(2e6, 5e6, 50e6).limits(&lags(3e5, 4e5))[..] else { panic!() };
        assert!(late.fact().ends_with("over a tenth of the p50 time to first character (2.00 ms)"), "{}", late.fact());
        // The worst figure does not hide the others.
        let [late] = evidence(2e6, 1e6, 15e6).limits(&lags(3e5, 4e6))[..] else { panic!() };
        let worst = "it saw events 300 µs late at the p50, over a tenth of the p50 gap (1.00 ms)";
        assert_eq!(late.fact(), format!("{worst}; p50 time to first character, p99 gap may be wrong as well"));
        let [other] = evidence(15e6, 15e6, 30e6).limits(&lags(5e4, 5e6))[..] else { panic!() };
        assert!(
            other
                .combine(late)
                .unwrap()
                .fact()
                .ends_with("; p50 time to first character, p50 gap may be wrong as well")
        );
        // Messages that came together have gaps that any lag exceeds.
        assert_eq!(evidence(100e6, 3e3, 3e3).limits(&lags(2e6, 2e6)), []);
    }

    #[test]
    fn limits_of_one_kind_are_combined() {
        let late = |lag| {
            let distorted = std::array::from_fn(|figure| figure == 5);
            TesterLimit::Late(Lateness { lag, measured: 5e6, figure: 5, distorted })
        };
        assert_eq!(late(1e6).combine(late(3e6)), Some(late(3e6)));
        assert_eq!(late(3e6).combine(late(1e6)), Some(late(3e6)));
        assert_eq!(TesterLimit::Busy(0.9).combine(TesterLimit::Busy(0.85)), Some(TesterLimit::Busy(0.9)));
        assert_eq!(TesterLimit::Held(2).combine(TesterLimit::Held(3)), Some(TesterLimit::Held(5)));
        assert_eq!(late(1e6).combine(TesterLimit::Held(1)), None);
        assert!(TesterLimit::Held(1).fact().starts_with("1 request waited"));
    }
}
