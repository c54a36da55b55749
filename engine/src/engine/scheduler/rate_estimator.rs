//! Measured rates of requests and symbols: for the retry advice of errors, for step sizes, and to reject requests whose
//! deadline cannot be met. Pure: durations are arguments, there is no clock here.

use std::time::Duration;

/// Weight of the latest sample in a running mean.
const MEAN_WEIGHT: f64 = 0.2;
/// Retry advice before anything is measured.
const DEFAULT_RETRY: Duration = Duration::from_secs(1);
const MIN_RETRY: Duration = Duration::from_millis(100);
const MAX_RETRY: Duration = Duration::from_secs(30);
/// Large steps whose rates are kept.
const KEPT_RATES: usize = 32;
/// Large steps needed before a minimum duration is reported.
const MIN_SAMPLES: usize = 8;
/// Minimum prompt symbols of a step, however long they take: with fewer, reading all weights would not pay. A step of this
/// many symbols counts for the cost of a symbol, if [`MIN_EXTRA`] of them are beyond one for each row.
const MIN_SYMBOLS: usize = 16;
/// The smallest step with a prompt has more than this: otherwise a slow step would limit all later ones for ever.
const MIN_EXTRA: usize = MIN_SYMBOLS / 4;

/// Running mean of how long requests hold a row, the rates of the latest large steps, and the cost of a prompt symbol.
#[derive(Debug, Clone)]
pub(crate) struct RateEstimator {
    rows: usize,
    /// Mean seconds that a request holds its row; `None` before the first request.
    mean_held: Option<f64>,
    /// Symbols from which on a step is large. Smaller steps do not show how fast prompts can be fed.
    large: usize,
    /// Symbols per second of the latest large steps.
    rates: [f64; KEPT_RATES],
    large_steps: usize,
    /// Mean seconds per symbol of steps with prompts or drafts; `None` before the first.
    symbol_cost: Option<f64>,
}

impl RateEstimator {
    /// Creates an estimator for `rows` parallel requests and steps of at most `chunk` prompt symbols.
    pub(crate) fn new(rows: usize, chunk: usize) -> Self {
        Self {
            rows,
            mean_held: None,
            large: chunk.div_ceil(2),
            rates: [0.0; KEPT_RATES],
            large_steps: 0,
            symbol_cost: None,
        }
    }

    pub(crate) fn record_request(&mut self, held: Duration) {
        self.mean_held = Some(update_mean(self.mean_held, held.as_secs_f64()));
    }

    /// Records a step that fed `symbols` symbols to `rows` rows, encoded ones included. Only symbols beyond one for each row show what
    /// a symbol of a prompt or a draft costs: a step that only decodes reads all weights for a few symbols.
    pub(crate) fn record_step(&mut self, symbols: usize, rows: usize, took: Duration) {
        if symbols >= self.large && took > Duration::ZERO {
            self.rates[self.large_steps % KEPT_RATES] = symbols as f64 / took.as_secs_f64();
            self.large_steps += 1;
        }
        if symbols >= MIN_SYMBOLS && symbols.saturating_sub(rows) >= MIN_EXTRA {
            self.symbol_cost = Some(update_mean(self.symbol_cost, took.as_secs_f64() / symbols as f64));
        }
    }

    /// Returns the number of symbols for a step of about `target`, at least `MIN_SYMBOLS`; unlimited without a measurement.
    pub(crate) fn symbols_within(&self, target: Duration) -> usize {
        let symbols = self.symbol_cost.map_or(f64::INFINITY, |cost| target.as_secs_f64() / cost);
        // the conversion saturates
        (symbols as usize).max(MIN_SYMBOLS)
    }

    /// Returns the estimated time until the next row becomes free.
    pub(crate) fn retry_after(&self) -> Duration {
        let Some(mean_held) = self.mean_held else { return DEFAULT_RETRY };
        let interval = mean_held / self.rows.max(1) as f64;
        Duration::from_secs_f64(interval.clamp(MIN_RETRY.as_secs_f64(), MAX_RETRY.as_secs_f64()))
    }

    /// Returns the minimum time to feed `symbols` symbols: at the best of the kept rates. `None` with too few steps.
    pub(crate) fn min_duration(&self, symbols: usize) -> Option<Duration> {
        let best = self.rates.iter().copied().fold(0.0, f64::max);
        let measured = self.large_steps >= MIN_SAMPLES && best > 0.0;
        measured.then(|| Duration::try_from_secs_f64(symbols as f64 / best).unwrap_or(Duration::MAX))
    }
}

fn update_mean(mean: Option<f64>, sample: f64) -> f64 {
    mean.map_or(sample, |mean| mean + MEAN_WEIGHT * (sample - mean))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_advice_follows_the_mean_within_its_limits() {
        let mut rates = RateEstimator::new(4, 256);
        assert_eq!(rates.retry_after(), DEFAULT_RETRY);
        rates.record_request(Duration::from_secs(8));
        assert_eq!(rates.retry_after(), Duration::from_secs(2));
        (0..100).for_each(|_| rates.record_request(Duration::from_secs(4)));
        assert!((rates.retry_after().as_secs_f64() - 1.0).abs() < 0.01);
        (0..100).for_each(|_| rates.record_request(Duration::from_millis(1)));
        assert_eq!(rates.retry_after(), MIN_RETRY);
        (0..100).for_each(|_| rates.record_request(Duration::from_secs(3600)));
        assert_eq!(rates.retry_after(), MAX_RETRY);
    }

    #[test]
    fn minimum_duration_is_reported_once_enough_steps_are_measured() {
        let mut rates = RateEstimator::new(4, 256);
        // small steps do not count, however slow or fast
        (0..100).for_each(|_| rates.record_step(32, 0, Duration::from_secs(1)));
        assert_eq!(rates.min_duration(1), None);
        (1..MIN_SAMPLES).for_each(|_| rates.record_step(200, 0, Duration::from_secs(1)));
        assert_eq!(rates.min_duration(1000), None);
        rates.record_step(250, 0, Duration::from_millis(500));
        // the best rate counts
        assert_eq!(rates.min_duration(1000), Some(Duration::from_secs(2)));
        // and only of the latest steps
        (0..KEPT_RATES).for_each(|_| rates.record_step(200, 0, Duration::from_secs(2)));
        assert_eq!(rates.min_duration(1000), Some(Duration::from_secs(10)));
        assert_eq!(rates.min_duration(0), Some(Duration::ZERO));
    }

    #[test]
    fn step_sizes_follow_the_cost_of_a_symbol() {
        let mut rates = RateEstimator::new(4, 256);
        let target = Duration::from_millis(50);
        assert_eq!(rates.symbols_within(target), usize::MAX, "nothing was measured");
        rates.record_step(15, 0, Duration::from_secs(1));
        assert_eq!(rates.symbols_within(target), usize::MAX, "a small step does not count");
        // A step that only decodes does not count, however many rows it has.
        rates.record_step(64, 64, Duration::from_secs(1));
        (0..100).for_each(|_| rates.record_step(100, 0, Duration::from_millis(100)));
        assert!((49..=51).contains(&rates.symbols_within(target)), "{}", rates.symbols_within(target));
        (0..100).for_each(|_| rates.record_step(100, 0, Duration::from_secs(100)));
        assert_eq!(rates.symbols_within(target), MIN_SYMBOLS);
    }

    /// After one slow step, the smallest steps next to any number of rows that decode show that prompts are fast again.
    #[test]
    fn a_slow_step_is_forgotten() {
        for decoding in [0, 1, 8, 32] {
            let mut rates = RateEstimator::new(4, 256);
            rates.record_step(256, 1, Duration::from_secs(60));
            let target = Duration::from_millis(50);
            assert_eq!(rates.symbols_within(target), MIN_SYMBOLS);
            for _ in 0..100 {
                // the budget of `share_prompts`
                let chunk = rates.symbols_within(target).min(256);
                let prompts = chunk.saturating_sub(decoding).max(chunk.div_ceil(2));
                rates.record_step(prompts + decoding, 1 + decoding, Duration::from_millis(1));
            }
            assert!(rates.symbols_within(target) > 256, "{decoding}: {}", rates.symbols_within(target));
        }
    }
}
