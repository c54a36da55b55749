//! When requests of an open loop are to be sent: known before the first answer, whatever the answers do.

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
    /// Independently of each other: exponential intervals.
    Poisson,
    /// In bursts of `--burst` at the same moment; bursts come as `poisson`, as seldom as the rate asks for.
    Bursty,
}

/// Moments, counted from the beginning, without end.
#[derive(Debug, Clone)]
pub struct ArrivalSchedule {
    rng: ChaCha8Rng,
    shape: ArrivalProcess,
    /// Bursts a second.
    rate: f64,
    gaps: Exp<f64>,
    burst: u64,
    /// How many came at `at` so far.
    within: u64,
    count: u64,
    at: f64,
}

impl ArrivalSchedule {
    /// Of `rate` requests a second, `burst` of which come together if they come in bursts.
    ///
    /// # Errors
    /// A rate that is none.
    pub fn new(shape: ArrivalProcess, rate: f64, burst: u64, seed: u64) -> Result<Self> {
        let burst = if shape == ArrivalProcess::Bursty { burst.max(1) } else { 1 };
        let rate = rate / burst as f64;
        let gaps = Exp::new(rate).ok().filter(|_| rate.is_finite() && rate > 0.0);
        let gaps = gaps.ok_or_else(|| Error::option("--rate", rate, "above 0"))?;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        // contents of requests are drawn from other streams
        rng.set_stream(u64::MAX);
        let mut schedule = Self { rng, shape, rate, gaps, burst, within: 0, count: 0, at: 0.0 };
        if shape != ArrivalProcess::Constant {
            schedule.at = schedule.gaps.sample(&mut schedule.rng);
        }
        Ok(schedule)
    }
}

impl Iterator for ArrivalSchedule {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        if self.within == self.burst {
            self.within = 0;
            self.count += 1;
            self.at = match self.shape {
                // no sum of rounded intervals
                ArrivalProcess::Constant => self.count as f64 / self.rate,
                ArrivalProcess::Poisson | ArrivalProcess::Bursty => self.at + self.gaps.sample(&mut self.rng),
            };
        }
        self.within += 1;
        Duration::try_from_secs_f64(self.at).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(shape: ArrivalProcess, rate: f64, burst: u64, seed: u64, count: usize) -> Vec<f64> {
        ArrivalSchedule::new(shape, rate, burst, seed).unwrap().take(count).map(|at| at.as_secs_f64()).collect()
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
        // the deviation of an exponential distribution is its mean
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.05);
        assert_eq!(at, seconds(ArrivalProcess::Poisson, 50.0, 1, 7, 20_001));
        assert_ne!(at, seconds(ArrivalProcess::Poisson, 50.0, 1, 8, 20_001));
    }

    #[test]
    fn bursts_come_together_at_the_rate_asked_for() {
        let at = seconds(ArrivalProcess::Bursty, 100.0, 8, 3, 80_000);
        assert!(at.chunks(8).all(|burst| burst.iter().all(|moment| *moment == burst[0])));
        assert!((80_000.0 / at[79_999] / 100.0 - 1.0).abs() < 0.05);
    }

    #[test]
    fn what_is_no_rate_is_refused() {
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(ArrivalSchedule::new(ArrivalProcess::Poisson, rate, 1, 1).is_err());
        }
    }
}
