//! What the tester itself took, and whether it was the limit.
//!
//! It reads the processor time of its process, and it has a pulse: a thread that leaves the time for it every few
//! milliseconds. How much later the tester takes it is how much later it sees any message; that includes what other programs on
//! the machine take from it. While the whole process stands still no beat is left: those that were due are left afterwards, with the
//! time at which they should have been, so that a second's standstill is two hundred late beats and not one. (Where only the pulse's
//! own thread was kept from running that says too much: the tester is suspected once too often rather than not at all.)

use super::{
    counters::CounterDelta,
    histogram::{Percentiles, ValueHistogram},
};
use crate::{
    client::connection::OWN,
    error::{Error, Result},
};
use serde::{Deserialize, Serialize};
use std::{
    sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel},
    thread,
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

/// How often the pulse beats.
const BEAT: Duration = Duration::from_millis(5);
/// Beats that may wait: those of five minutes.
const WAITING: usize = 1 << 16;
/// A share of its threads' time from which on the tester is said to be the limit.
pub const BUSY: f64 = 0.8;
/// A share of the median time to the first character, or gap, that the tester's own lateness may be.
pub const LATE: f64 = 0.1;

/// The share of a core from which on its messages by its processor time tell what a core could take: below it most of that time is
/// not spent on messages.
pub const TELLING: f64 = 0.25;

/// What the tester took.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TesterFigures {
    /// Threads that it may compute on.
    pub threads: usize,
    /// Connections that it held.
    pub connections: usize,
    /// Processor time of its process in the measured window; absent where the system does not tell.
    pub cpu_ns: Option<u64>,
    /// That, as a share of the window times its threads.
    pub cpu_share: Option<f64>,
    /// Messages a second, over the window.
    pub messages_per_second: f64,
    /// The most in any sample of the course of at least a fifth of a second.
    pub peak_messages_per_second: Option<f64>,
    /// Messages a second that one core would do at this cost: messages by seconds of processor time. Absent where it used so little of
    /// a core that most of that was not for messages.
    pub messages_per_cpu_second: Option<f64>,
    /// How late it took the beats of its pulse.
    pub event_lag_ns: Percentiles,
    /// Requests that waited for the limit on requests in flight.
    pub held: u64,
    /// Why its figures may be its own rather than the server's. Empty if nothing speaks for that.
    pub limits: Vec<String>,
}

impl TesterFigures {
    /// Whether it may have kept requests from being answered in time, of which `own` were ended by its library, and whose median time to
    /// the first character is `first`. That it sees single gaps late is no such reason.
    pub fn holds_up(&self, own: u64, first: Option<f64>) -> bool {
        let busy = self.cpu_share.is_some_and(|share| share > BUSY);
        let late = self.event_lag_ns.p99.zip(first).is_some_and(|(lag, first)| lag > LATE * first);
        busy || late || self.held > 0 || own > 0
    }
}

/// Processor time of this process; none where the system does not tell.
pub fn cpu() -> Option<Duration> {
    clock(true)
}

/// Processor time of this thread; none where the system does not tell.
pub fn thread_cpu() -> Option<Duration> {
    clock(false)
}

#[cfg(unix)]
fn clock(process: bool) -> Option<Duration> {
    use rustix::time::{ClockId, clock_gettime};
    let told = clock_gettime(if process { ClockId::ProcessCPUTime } else { ClockId::ThreadCPUTime });
    Some(Duration::new(u64::try_from(told.tv_sec).ok()?, u32::try_from(told.tv_nsec).ok()?))
}

#[cfg(not(unix))]
fn clock(_: bool) -> Option<Duration> {
    None
}

/// A pulse, until it is dropped or asked.
pub struct LagProbe {
    // dropped first, which ends the thread
    stop: Option<SyncSender<()>>,
    thread: Option<thread::JoinHandle<()>>,
    taken: oneshot::Receiver<Result<ValueHistogram>>,
}

impl LagProbe {
    /// Begins, on this runtime.
    ///
    /// # Errors
    /// No thread for it.
    pub fn start() -> Result<Self> {
        let (stop, stopped) = sync_channel::<()>(0);
        let (beats, mut taking) = mpsc::channel::<Instant>(WAITING);
        let beat = move || {
            let (mut last, mut goes_on) = (Instant::now(), true);
            while goes_on {
                goes_on = stopped.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout);
                goes_on &= leave(&beats, &mut last, Instant::now());
            }
        };
        let thread = thread::Builder::new().name("pulse".into()).spawn(beat);
        let thread = thread.map_err(|error| Error::Internal(format!("no thread for the pulse: {error}")))?;
        let (tell, taken) = oneshot::channel();
        tokio::spawn(async move {
            let mut lags = ValueHistogram::new();
            while let Some(beat) = taking.recv().await {
                if let Ok(lags) = &mut lags {
                    lags.time(beat.elapsed());
                }
            }
            // who dropped the pulse does not want to know
            let _ = tell.send(lags);
        });
        Ok(Self { stop: Some(stop), thread: Some(thread), taken })
    }

    /// How late its beats were taken.
    ///
    /// # Errors
    /// No memory.
    pub async fn stop(mut self) -> Result<ValueHistogram> {
        drop(self.stop.take());
        let taken = (&mut self.taken).await;
        taken.unwrap_or_else(|_| Err(Error::Internal("the pulse was lost".into())))
    }
}

/// Leaves the beat of now, and before it those that were due since the last one and were not left; what finds no room, the next
/// time. Whether somebody takes them.
fn leave(beats: &mpsc::Sender<Instant>, last: &mut Instant, now: Instant) -> bool {
    while *last < now {
        // a thread that sleeps wakes a little late: that is not the tester's lateness
        let next = if now - *last < 2 * BEAT { now } else { *last + BEAT };
        match beats.try_send(next) {
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
            // it ends within a beat, and a panic in it has been told by its own thread
            let _ = thread.join();
        }
    }
}

/// What there is to judge the tester by.
#[derive(Debug)]
pub struct TesterMeasurement {
    /// Its threads and connections.
    pub threads: usize,
    /// See [`TesterFigures::connections`].
    pub connections: usize,
    /// What happened in the window.
    pub window: CounterDelta,
    /// Processor time in it.
    pub cpu: Option<Duration>,
    /// Of the course.
    pub peak: Option<f64>,
    /// How late beats were taken, if there was a pulse.
    pub lags: Option<ValueHistogram>,
    /// Requests that waited for room.
    pub held: u64,
    /// Requests that its own HTTP/2 library ended.
    pub own: u64,
    /// The median time to the first character, and gap, in nanoseconds.
    pub medians: [Option<f64>; 2],
}

impl TesterMeasurement {
    /// Judges.
    pub fn judge(self) -> TesterFigures {
        let Self { threads, connections, window, cpu, peak, lags, held, own, medians } = self;
        let seconds = window.span.as_secs_f64().max(1e-9);
        let messages = window.counts[1] as f64;
        let cpu_share = cpu.map(|cpu| cpu.as_secs_f64() / seconds / threads.max(1) as f64);
        let event_lag_ns = lags.map(|lags| lags.spread(1.0)).unwrap_or_default();
        let mut limits = Vec::new();
        if let Some(share) = cpu_share.filter(|&share| share > BUSY) {
            let told = share * 100.0;
            limits.push(format!("it used {told:.0} % of the processor time of its threads: give it more (--threads)"));
        }
        if held > 0 {
            limits.push(format!(
                "{held} requests waited for its limit on requests in flight (--max-in-flight); their wait is counted"
            ));
        }
        if own > 0 {
            limits.push(format!(
                "its own HTTP/2 library gave up connections on which too many messages waited to be read, and with them {own} \
                 requests, told as {OWN} (--connections, --threads)"
            ));
        }
        for (median, name) in medians.into_iter().zip(["time to the first character", "gap"]) {
            let late = event_lag_ns.p99.zip(median).filter(|(lag, median)| *lag > LATE * median);
            if let Some((lag, median)) = late {
                let [lag, median] = [lag, median].map(crate::units::time);
                limits.push(format!(
                    "it saw one event in a hundred more than {lag} late, which is over a tenth of the median {name} ({median}): \
                     too little processor time was left for it on this machine"
                ));
            }
        }
        TesterFigures {
            threads,
            connections,
            cpu_ns: cpu.map(crate::units::ns),
            cpu_share,
            messages_per_second: messages / seconds,
            peak_messages_per_second: peak,
            messages_per_cpu_second: cpu
                .map(|cpu| cpu.as_secs_f64())
                .filter(|&cpu| cpu >= TELLING * seconds)
                .map(|cpu| messages / cpu),
            event_lag_ns,
            held,
            limits,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence() -> TesterMeasurement {
        let window = CounterDelta { span: Duration::from_secs(10), counts: [100, 50, 10, 10, 0, 10, 10] };
        let (cpu, medians) = (Some(Duration::from_secs(1)), [Some(100e6), Some(10e6)]);
        TesterMeasurement { threads: 1, connections: 1, window, cpu, peak: None, lags: None, held: 0, own: 0, medians }
    }

    #[test]
    fn a_tester_at_ease_is_no_limit() {
        let mut lags = ValueHistogram::new().unwrap();
        (0..1000).for_each(|_| lags.time(Duration::from_micros(900)));
        let told = TesterMeasurement { lags: Some(lags), ..evidence() }.judge();
        assert_eq!(told.limits, Vec::<String>::new());
        assert_eq!((told.cpu_share, told.messages_per_second, told.messages_per_cpu_second), (Some(0.1), 5.0, None));
        let busy = TesterMeasurement { cpu: Some(Duration::from_secs(4)), ..evidence() }.judge();
        assert_eq!(busy.messages_per_cpu_second, Some(12.5), "at a load that tells");
    }

    #[test]
    fn each_way_of_being_the_limit_is_told() {
        let told = TesterMeasurement { cpu: Some(Duration::from_secs(9)), ..evidence() }.judge();
        assert!(told.limits.len() == 1 && told.limits[0].contains("90 %"), "{:?}", told.limits);
        assert!(
            TesterMeasurement { threads: 2, cpu: Some(Duration::from_secs(9)), ..evidence() }.judge().limits.is_empty()
        );
        assert!(TesterMeasurement { held: 3, ..evidence() }.judge().limits[0].starts_with("3 requests waited"));
        assert!(
            TesterMeasurement { own: 2, ..evidence() }.judge().limits[0]
                .contains("with them 2 requests, told as TESTER")
        );
        let mut lags = ValueHistogram::new().unwrap();
        (0..1000).for_each(|_| lags.time(Duration::from_millis(2)));
        let told = TesterMeasurement { lags: Some(lags), ..evidence() }.judge();
        assert!(told.limits.len() == 1 && told.limits[0].contains("median gap"), "{:?}", told.limits);
    }

    #[tokio::test]
    async fn the_pulse_tells_how_long_the_runtime_did_not_look() {
        let pulse = LagProbe::start().unwrap();
        // nothing else runs on this thread meanwhile
        let begun = std::time::Instant::now();
        while begun.elapsed() < Duration::from_millis(120) {
            std::hint::spin_loop();
        }
        let lags = pulse.stop().await.unwrap().spread(1.0);
        // of the first beat, which came 5 ms after the start and more if the machine is busy, but hardly 100 ms
        assert!(lags.max.unwrap() > 20e6, "{lags:?}");
    }

    #[test]
    fn while_all_stood_still_beats_were_due() {
        let (beats, mut taken) = mpsc::channel(WAITING);
        let begun = Instant::now();
        let mut last = begun;
        let mut left = |after: u64| {
            let now = begun + Duration::from_micros(after);
            assert!(leave(&beats, &mut last, now));
            std::iter::from_fn(|| taken.try_recv().ok()).map(|beat| (now - beat).as_micros()).collect::<Vec<_>>()
        };
        assert_eq!(left(5_100), [0], "a little late is one beat, of now");
        assert_eq!(left(9_900), [0]);
        assert_eq!(left(30_000), [15_100, 10_100, 5_100, 0], "those at 14.9, 19.9, 24.9 ms were due");
        let late = left(1_030_000);
        assert_eq!((late.len(), late[0]), (200, 995_000), "a second");
        drop(taken);
        assert!(!leave(&beats, &mut last, begun + Duration::from_secs(9)));
    }

    #[test]
    #[cfg(unix)]
    fn processor_time_passes() {
        let (process, thread) = (cpu().unwrap(), thread_cpu().unwrap());
        let begun = thread;
        while thread_cpu().unwrap() - begun < Duration::from_millis(5) {
            std::hint::spin_loop();
        }
        assert!(cpu().unwrap() - process >= Duration::from_millis(5));
    }
}
