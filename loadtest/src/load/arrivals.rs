//! Send times of an open loop. They are fixed before the first answer and do not depend on answers.

use crate::error::{Error, Result};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How arrivals follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum ArrivalProcess {
    /// At even intervals.
    Constant,
    /// Independently of each other, at exponential intervals.
    Poisson,
    /// In bursts of `--burst` at the same moment; bursts follow each other as in `poisson`, at the rate divided by the burst size.
    Bursty,
}

/// Endless iterator over arrival times, counted from the start.
#[derive(Debug, Clone)]
pub struct ArrivalSchedule {
    rng: ChaCha8Rng,
    process: ArrivalProcess,
    /// Bursts per second.
    rate: f64,
    intervals: Exp<f64>,
    burst: u64,
    /// Arrivals of the current burst that were returned.
    in_burst: u64,
    bursts: u64,
    /// Time of the current burst, in seconds.
    burst_at: f64,
}

impl ArrivalSchedule {
    /// Builds a schedule of `rate` requests per second, bursty ones `burst` at a time. Fails unless the rate is finite and above 0.
    pub fn new(process: ArrivalProcess, rate: f64, burst: u64, seed: u64) -> Result<Self> {
        let burst = if process == ArrivalProcess::Bursty { burst.max(1) } else { 1 };
        let rate = rate / burst as f64;
        let intervals = Exp::new(rate).ok().filter(|_| rate.is_finite() && rate > 0.0);
        let intervals = intervals.ok_or_else(|| Error::option("--rate", rate, "a number above 0"))?;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        // the contents of requests are drawn from other streams
        rng.set_stream(u64::MAX);
        let mut schedule = Self { rng, process, rate, intervals, burst, in_burst: 0, bursts: 0, burst_at: 0.0 };
        if process != ArrivalProcess::Constant {
            schedule.burst_at = schedule.intervals.sample(&mut schedule.rng);
        }
        Ok(schedule)
    }
}

impl Iterator for ArrivalSchedule {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        if self.in_burst == self.burst {
            self.in_burst = 0;
            self.bursts += 1;
            self.burst_at = match self.process {
                // a product, because a sum of intervals would add up rounding errors
                ArrivalProcess::Constant => self.bursts as f64 / self.rate,
                ArrivalProcess::Poisson | ArrivalProcess::Bursty => {
                    self.burst_at + self.intervals.sample(&mut self.rng)
                }
            };
        }
        self.in_burst += 1;
        Duration::try_from_secs_f64(self.burst_at).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(process: ArrivalProcess, rate: f64, burst: u64, seed: u64, count: usize) -> Vec<f64> {
        ArrivalSchedule::new(process, rate, burst, seed).unwrap().take(count).map(|at| at.as_secs_f64()).collect()
    }

    #[test]
    fn constant_arrivals_are_even() {
        let at = seconds(ArrivalProcess::Constant, 40.0, 9, 1, 1001);
        assert_eq!((at[0], at[1], at[1000]), (0.0, 0.025, 25.0));
    }

    #[test]
    fn poisson_arrivals_have_the_rate_and_its_spread_and_follow_the_seed() {
        let at = seconds(ArrivalProcess::Poisson, 50.0, 1, 7, 20_001);
        let gaps: Vec<_> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean * 50.0 - 1.0).abs() < 0.03, "{mean}");
        // the standard deviation of an exponential distribution equals its mean
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.05);
        assert_eq!(at, seconds(ArrivalProcess::Poisson, 50.0, 1, 7, 20_001));
        assert_ne!(at, seconds(ArrivalProcess::Poisson, 50.0, 1, 8, 20_001));
    }

    #[test]
    fn bursts_come_together_at_the_given_rate() {
        let at = seconds(ArrivalProcess::Bursty, 100.0, 8, 3, 80_000);
        assert!(at.chunks(8).all(|burst| burst.iter().all(|moment| *moment == burst[0])));
        assert!((80_000.0 / at[79_999] / 100.0 - 1.0).abs() < 0.05);
    }

    #[test]
    fn invalid_rates_are_rejected() {
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(ArrivalSchedule::new(ArrivalProcess::Poisson, rate, 1, 1).is_err());
        }
    }
}
