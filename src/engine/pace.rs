//! How fast jobs go by: the measured rate behind the advice when to try again.

use std::time::Duration;

/// The weight of the latest job in the running mean.
const LATEST: f64 = 0.2;
/// What is advised while nothing was measured.
const UNKNOWN: Duration = Duration::from_secs(1);
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(30);

/// An exponentially weighted mean of how long jobs hold a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    rows: usize,
    /// Seconds; none before the first job.
    mean: Option<f64>,
}

impl Pace {
    /// For so many jobs side by side.
    pub(super) fn new(rows: usize) -> Self {
        Self { rows, mean: None }
    }

    /// A job held its row for so long.
    pub(super) fn record(&mut self, held: Duration) {
        let held = held.as_secs_f64();
        self.mean = Some(self.mean.map_or(held, |mean| mean + LATEST * (held - mean)));
    }

    /// After what time, about, the next row comes free.
    pub(super) fn retry(&self) -> Duration {
        let Some(mean) = self.mean else { return UNKNOWN };
        let between = mean / self.rows.max(1) as f64;
        Duration::from_secs_f64(between.clamp(SHORTEST.as_secs_f64(), LONGEST.as_secs_f64()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_jobs_within_its_bounds() {
        let mut pace = Pace::new(4);
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
}
