//! What load, and for how long.

use super::arrivals::{ArrivalProcess, ArrivalSchedule};
use crate::error::Result;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::time::Instant;

/// Numbers of requests of the warm-up begin here, so that what is measured asks for the same however many they were.
const WARM: u64 = 1 << 62;

/// How requests follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "loop", rename_all = "snake_case", deny_unknown_fields)]
pub enum LoadPattern {
    /// So many at a time, each followed by the next when it has ended.
    Closed {
        /// How many.
        concurrency: usize,
    },
    /// By a schedule that no answer changes.
    Open {
        /// How arrivals follow each other.
        arrivals: ArrivalProcess,
        /// Requests a second.
        rate: f64,
        /// Requests that come together, if they come in bursts.
        burst: u64,
    },
}

/// For how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunLength {
    /// Requests before this are made and not measured.
    pub warm_up: Duration,
    /// Requests are started for so long after the warm-up …
    pub duration: Option<Duration>,
    /// … until so many were; whichever comes first.
    pub requests: Option<u64>,
}

/// A request that is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScheduledRequest {
    /// Decides what is asked for.
    pub number: u64,
    /// When it is to be sent.
    pub intended: Instant,
    /// Whether it is measured.
    pub measured: bool,
}

impl RunLength {
    /// Whether so late a request, before which so many were measured, is still made.
    fn has(&self, at: Duration, measured: u64) -> bool {
        self.duration.is_none_or(|duration| at < self.warm_up + duration)
            && self.requests.is_none_or(|most| measured < most)
    }

    /// As long as it is until so many requests of a schedule have come in the window, if that is later than its end, unless their
    /// number was given: chance would start fewer than a rate promises. It then ends when the next one would come, so that
    /// their number by its length is neither above nor below the rate on average.
    pub fn holding(self, schedule: &ArrivalSchedule, least: u64) -> Self {
        let (None, Some(duration)) = (self.requests, self.duration) else { return self };
        let mut measured = schedule.clone().skip_while(|at| *at < self.warm_up);
        let next = usize::try_from(least).ok().and_then(|least| measured.nth(least));
        let until = next.map_or(duration, |at| at.saturating_sub(self.warm_up));
        Self { duration: Some(duration.max(until)), ..self }
    }

    /// The tickets of a schedule that begins at `begin`.
    pub fn tickets(self, schedule: ArrivalSchedule, begin: Instant) -> impl Iterator<Item = ScheduledRequest> + Send {
        let (mut warm, mut measured) = (0, 0);
        schedule.map_while(move |at| self.ticket(at, begin, (&mut warm, &mut measured)))
    }

    /// The next ticket of a closed loop, if there is one now; counts it.
    pub(super) fn now(&self, begin: Instant, (warm, measured): (&mut u64, &mut u64)) -> Option<ScheduledRequest> {
        self.ticket(begin.elapsed(), begin, (warm, measured))
    }

    fn ticket(&self, at: Duration, begin: Instant, (warm, measured): (&mut u64, &mut u64)) -> Option<ScheduledRequest> {
        if !self.has(at, *measured) {
            return None;
        }
        let is_measured = at >= self.warm_up;
        let (count, first) = if is_measured { (measured, 0) } else { (warm, WARM) };
        let number = first + *count;
        *count += 1;
        Some(ScheduledRequest { number, intended: begin + at, measured: is_measured })
    }
}

impl LoadPattern {
    /// The schedule, if it has one.
    ///
    /// # Errors
    /// A rate that is none.
    pub fn schedule(&self, seed: u64) -> Result<Option<ArrivalSchedule>> {
        match *self {
            Self::Closed { .. } => Ok(None),
            Self::Open { arrivals, rate, burst } => ArrivalSchedule::new(arrivals, rate, burst, seed).map(Some),
        }
    }

    /// In words.
    pub fn describe(&self) -> String {
        match self {
            Self::Closed { concurrency } => format!("closed loop, {concurrency} at a time"),
            Self::Open { arrivals, rate, burst } => {
                let how = match arrivals {
                    ArrivalProcess::Constant => "constant".to_owned(),
                    ArrivalProcess::Poisson => "Poisson".to_owned(),
                    ArrivalProcess::Bursty => format!("bursty ({burst} together)"),
                };
                format!("open loop, {how} arrivals, {} requests/s", crate::units::digits(*rate))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tickets_of_the_warm_up_have_numbers_of_their_own() {
        let extent =
            RunLength { warm_up: Duration::from_secs(1), duration: Some(Duration::from_secs(2)), requests: Some(15) };
        let begin = Instant::now();
        let tickets = |extent: RunLength| -> Vec<ScheduledRequest> {
            extent.tickets(ArrivalSchedule::new(ArrivalProcess::Constant, 10.0, 1, 0).unwrap(), begin).collect()
        };
        let all = tickets(extent);
        assert_eq!(
            all.iter().map(|ticket| ticket.measured).collect::<Vec<_>>(),
            [vec![false; 10], vec![true; 15]].concat()
        );
        assert_eq!((all[9].number, all[10].number, all[24].number), (WARM + 9, 0, 14));
        assert_eq!(all[10].intended - begin, Duration::from_secs(1));
        assert_eq!(tickets(RunLength { requests: None, ..extent }).len(), 30);
    }

    #[tokio::test(start_paused = true)]
    async fn a_window_holds_until_as_many_requests_as_promised_have_come() {
        let (warm_up, begin) = (Duration::from_secs(1), Instant::now());
        let extent = RunLength { warm_up, duration: Some(Duration::from_secs(10)), requests: None };
        let mut rates = 0.0;
        for seed in 0..200 {
            // twenty are expected in ten seconds
            let schedule = ArrivalSchedule::new(ArrivalProcess::Poisson, 2.0, 1, seed).unwrap();
            let held = extent.holding(&schedule, 20);
            let count = held.tickets(schedule, begin).filter(|ticket| ticket.measured).count();
            let seconds = held.duration.unwrap().as_secs_f64();
            assert!(count == 20 || count > 20 && seconds == 10.0, "{count} in {seconds} s");
            rates += count as f64 / seconds / 200.0;
        }
        assert!((rates / 2.0 - 1.0).abs() < 0.15, "{rates}");
        let counted = RunLength { requests: Some(5), ..extent };
        assert_eq!(counted.holding(&ArrivalSchedule::new(ArrivalProcess::Poisson, 2.0, 1, 0).unwrap(), 2000), counted);
    }
}
