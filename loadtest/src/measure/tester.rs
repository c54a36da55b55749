//! Load of the tester itself, and whether it limited the measurement.
//!
//! The tester reads the processor time of its process and runs a lag probe: a thread that sends the current time to the runtime
//! every few milliseconds. The delay until the runtime receives a tick is the delay with which it sees any message, including the
//! time that other programs on the machine take from it. While the whole process is suspended the thread sends no ticks, so it
//! sends the missed ones afterwards with the times at which they were due: a suspension of one second is two hundred late ticks,
//! not one. If only the probe's own thread was suspended this overstates the lag, so that the tester is suspected once too often
//! rather than never.

use super::{
    counters::CounterDelta,
    histogram::{Percentiles, ValueHistogram},
    limits::{LimitEvidence, TesterLimit},
};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::{
    sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel},
    thread,
    time::Duration,
};
use tokio::{sync::mpsc, task::JoinHandle, time::Instant};

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
    /// Processor time as a share of the window times the threads.
    pub cpu_share: Option<f64>,
    /// Messages per second over the window.
    pub messages_per_second: f64,
    /// Highest messages per second of any timeline sample of at least a fifth of a second.
    pub peak_messages_per_second: Option<f64>,
    /// Messages by seconds of processor time: what one core could read. Absent if less than `MIN_CPU_SHARE` of one was used.
    pub messages_per_cpu_second: Option<f64>,
    /// Lags of the probe's ticks.
    pub event_lag_ns: Percentiles,
    /// Requests that waited for the limit on requests in flight.
    pub held: u64,
    /// Reasons why the figures may reflect the tester rather than the server; empty if there are none.
    pub limits: Vec<String>,
}

/// Owner of processor time.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CpuClock {
    Process,
    /// The calling thread.
    Thread,
}

impl CpuClock {
    /// Returns the processor time used so far; `None` if the system does not report it.
    #[cfg(unix)]
    pub(crate) fn read(self) -> Option<Duration> {
        use rustix::time::{ClockId, clock_gettime};
        let time = clock_gettime(match self {
            Self::Process => ClockId::ProcessCPUTime,
            Self::Thread => ClockId::ThreadCPUTime,
        });
        Some(Duration::new(u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?))
    }

    #[cfg(not(unix))]
    pub fn read(self) -> Option<Duration> {
        None
    }

    /// Returns the processor time used since `start`, an earlier reading.
    pub(crate) fn since(self, start: Option<Duration>) -> Option<Duration> {
        Some(self.read()?.saturating_sub(start?))
    }
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

/// Measurements from which the tester's load is assessed.
#[derive(Debug, Default)]
pub(crate) struct TesterMeasurement {
    pub threads: usize,
    pub connections: usize,
    pub window: CounterDelta,
    pub cpu: Option<Duration>,
    pub peak: Option<f64>,
    /// Lags of the probe; empty if it did not run.
    pub lags: ValueHistogram,
    pub held: u64,
    pub evidence: LimitEvidence,
}

impl TesterMeasurement {
    /// Computes the tester's figures and the reasons why it may be the limit.
    pub(crate) fn assess(self) -> TesterFigures {
        let Self { threads, connections, window, cpu, peak, lags, held, evidence } = self;
        let seconds = window.span.as_secs_f64().max(1e-9);
        let messages = window.counts.messages as f64;
        let mut figures = TesterFigures {
            threads,
            connections,
            cpu_ns: cpu.map(crate::units::ns),
            cpu_share: cpu.map(|cpu| cpu.as_secs_f64() / seconds / threads.max(1) as f64),
            messages_per_second: messages / seconds,
            peak_messages_per_second: peak,
            messages_per_cpu_second: cpu
                .map(|cpu| cpu.as_secs_f64())
                .filter(|&cpu| cpu >= MIN_CPU_SHARE * seconds)
                .map(|cpu| messages / cpu),
            event_lag_ns: lags.percentiles(1.0),
            held,
            limits: Vec::new(),
        };
        let limits = evidence.limits(&figures);
        figures.limits = limits.into_iter().map(TesterLimit::fact).collect();
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::{super::counters::LoadCounters, *};

    const EVIDENCE: LimitEvidence = LimitEvidence { ended_by_tester: 0, first: [Some(100e6); 3], gap: [Some(10e6); 3] };

    fn measurement() -> TesterMeasurement {
        let counts = LoadCounters { messages: 50, started: 10, finished: 10, ..LoadCounters::default() };
        TesterMeasurement {
            threads: 1,
            connections: 1,
            window: CounterDelta { span: Duration::from_secs(10), counts },
            cpu: Some(Duration::from_secs(1)),
            evidence: EVIDENCE,
            ..TesterMeasurement::default()
        }
    }

    #[test]
    fn an_idle_tester_is_not_the_limit() {
        let mut lags = ValueHistogram::default();
        (0..1000).for_each(|_| lags.record_time(Duration::from_micros(900)));
        let idle = TesterMeasurement { lags, ..measurement() }.assess();
        assert_eq!(idle.limits, Vec::<String>::new());
        assert_eq!((idle.cpu_share, idle.messages_per_second, idle.messages_per_cpu_second), (Some(0.1), 5.0, None));
        let busy = TesterMeasurement { cpu: Some(Duration::from_secs(4)), ..measurement() }.assess();
        assert_eq!(busy.messages_per_cpu_second, Some(12.5), "above the smallest share");
    }

    #[test]
    fn each_way_of_being_the_limit_is_reported() {
        let busy = TesterMeasurement { cpu: Some(Duration::from_secs(9)), ..measurement() }.assess();
        assert!(busy.limits.len() == 1 && busy.limits[0].contains("90 %"), "{:?}", busy.limits);
        let shared = TesterMeasurement { threads: 2, cpu: Some(Duration::from_secs(9)), ..measurement() }.assess();
        assert!(shared.limits.is_empty());
        assert!(TesterMeasurement { held: 3, ..measurement() }.assess().limits[0].starts_with("3 requests waited"));
        let own =
            TesterMeasurement { evidence: LimitEvidence { ended_by_tester: 2, ..EVIDENCE }, ..measurement() }.assess();
        assert!(own.limits[0].contains("ended 2 requests with code TESTER"));
        let mut lags = ValueHistogram::default();
        (0..1000).for_each(|_| lags.record_time(Duration::from_millis(2)));
        let late = TesterMeasurement { lags, ..measurement() }.assess();
        assert!(late.limits.len() == 1 && late.limits[0].contains("gap (10.0 ms)"), "{:?}", late.limits);
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
    #[cfg(unix)]
    fn processor_time_passes() {
        let process = CpuClock::Process.read();
        let thread = CpuClock::Thread.read();
        while CpuClock::Thread.since(thread).unwrap() < Duration::from_millis(5) {
            std::hint::spin_loop();
        }
        assert!(CpuClock::Process.since(process).unwrap() >= Duration::from_millis(5));
    }
}
