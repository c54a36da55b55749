//! How fast jobs and symbols go by: the measured rates behind the advice when to try again, and behind the judgement that a
//! deadline cannot be met. Time comes as durations: there is no clock here.

use std::time::Duration;

/// The weight of the latest job in the running mean.
const LATEST: f64 = 0.2;
/// What is advised while nothing was measured.
const UNKNOWN: Duration = Duration::from_secs(1);
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(30);
/// Steps whose rates are remembered, and how many must be before anything is said.
const STEPS: usize = 32;
const FOUNDED: usize = 8;
/// Symbols that a step may have however long they take: fewer would read all weights for hardly anything. As many make a step
/// one that says what a symbol costs.
const LEAST: usize = 16;

/// An exponentially weighted mean of how long jobs hold a row, and the rates of the latest large steps.
#[derive(Debug, Clone)]
pub(super) struct Pace {
    rows: usize,
    /// Seconds; none before the first job.
    mean: Option<f64>,
    /// Symbols that make a step a large one: one of fewer says little of how fast prompts can go by.
    large: usize,
    /// Symbols a second, of the latest large steps.
    rates: [f64; STEPS],
    /// Large steps so far.
    steps: usize,
    /// Seconds a symbol, of the latest steps with prompts; none before the first.
    cost: Option<f64>,
}

impl Pace {
    /// For so many jobs side by side, whose steps feed so many symbols of prompts.
    pub(super) fn new(rows: usize, chunk: usize) -> Self {
        Self { rows, mean: None, large: chunk.div_ceil(2), rates: [0.0; STEPS], steps: 0, cost: None }
    }

    /// A job held its row for so long.
    pub(super) fn record(&mut self, held: Duration) {
        let held = held.as_secs_f64();
        self.mean = Some(self.mean.map_or(held, |mean| mean + LATEST * (held - mean)));
    }

    /// A step fed so many symbols and took so long.
    pub(super) fn step(&mut self, symbols: usize, took: Duration) {
        if symbols >= self.large && took > Duration::ZERO {
            self.rates[self.steps % STEPS] = symbols as f64 / took.as_secs_f64();
            self.steps += 1;
        }
        if symbols >= LEAST {
            let cost = took.as_secs_f64() / symbols as f64;
            self.cost = Some(self.cost.map_or(cost, |mean| mean + LATEST * (cost - mean)));
        }
    }

    /// How many symbols a step may have to last about so long; at least a few.
    pub(super) fn within(&self, limit: Duration) -> usize {
        let symbols = self.cost.map_or(f64::INFINITY, |cost| limit.as_secs_f64() / cost);
        // a number beyond all is the largest
        (symbols as usize).max(LEAST)
    }

    /// After what time, about, the next row comes free.
    pub(super) fn retry(&self) -> Duration {
        let Some(mean) = self.mean else { return UNKNOWN };
        let between = mean / self.rows.max(1) as f64;
        Duration::from_secs_f64(between.clamp(SHORTEST.as_secs_f64(), LONGEST.as_secs_f64()))
    }

    /// How long so many symbols take at least: at the best of the rates remembered. None before enough was measured.
    pub(super) fn least(&self, symbols: usize) -> Option<Duration> {
        let best = self.rates.iter().copied().fold(0.0, f64::max);
        let founded = self.steps >= FOUNDED && best > 0.0;
        founded.then(|| Duration::try_from_secs_f64(symbols as f64 / best).unwrap_or(Duration::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_jobs_within_its_bounds() {
        let mut pace = Pace::new(4, 256);
        assert_eq!(pace.retry(), UNKNOWN);
        pace.record(Duration::from_secs(8));
        assert_eq!(pace.retry(), Duration::from_secs(2));
        (0..100).for_each(|_| pace.record(Duration::from_secs(4)));
        assert!((pace.retry().as_secs_f64() - 1.0).abs() < 0.01);
        (0..100).for_each(|_| pace.record(Duration::from_millis(1)));
        assert_eq!(pace.retry(), SHORTEST);
        (0..100).for_each(|_| pace.record(Duration::from_secs(3600)));
        assert_eq!(pace.retry(), LONGEST);
    }

    #[test]
    fn says_how_long_symbols_take_at_least_once_that_is_founded() {
        let mut pace = Pace::new(4, 256);
        // steps of a few symbols say nothing of prompts, however slow or fast
        (0..100).for_each(|_| pace.step(32, Duration::from_secs(1)));
        assert_eq!(pace.least(1), None);
        (1..FOUNDED).for_each(|_| pace.step(200, Duration::from_secs(1)));
        assert_eq!(pace.least(1000), None);
        pace.step(250, Duration::from_millis(500));
        // the best of them
        assert_eq!(pace.least(1000), Some(Duration::from_secs(2)));
        // and only of the latest
        (0..STEPS).for_each(|_| pace.step(200, Duration::from_secs(2)));
        assert_eq!(pace.least(1000), Some(Duration::from_secs(10)));
        assert_eq!(pace.least(0), Some(Duration::ZERO));
    }

    #[test]
    fn says_what_a_step_may_have() {
        let mut pace = Pace::new(4, 256);
        let limit = Duration::from_millis(50);
        assert_eq!(pace.within(limit), usize::MAX, "nothing was measured");
        pace.step(15, Duration::from_secs(1));
        assert_eq!(pace.within(limit), usize::MAX, "a step of few symbols says nothing");
        (0..100).for_each(|_| pace.step(100, Duration::from_millis(100)));
        assert!((49..=51).contains(&pace.within(limit)), "{}", pace.within(limit));
        (0..100).for_each(|_| pace.step(100, Duration::from_secs(100)));
        assert_eq!(pace.within(limit), LEAST);
    }
}
