//! Measures how the time of a step depends on the number of its symbols.

use std::time::Duration;

/// Assumed fixed time of a step in symbols, before steps of different sizes were measured.
const ASSUMED_FIXED: f64 = 4.0;
const MAX_FIXED: f64 = 64.0;
/// Part of its weight that a measurement keeps with each later one.
const DECAY: f64 = 0.99;
/// Variance of the number of symbols that the assumption counts as.
const ASSUMED_VARIANCE: f64 = 0.02;
/// Steps that took this many times the mean, for as many symbols, are not measurements: something else ran.
const OUTLIER: f64 = 4.0;

/// The time of a step and how it grows with the step's symbols. Symbol steps and finish steps are measured separately, because a row
/// that waited at a boundary is finished in a later step than the one that fed it. Segment steps are not measured, because
/// drafts do not change their number.
#[derive(Debug, Default)]
pub struct StepTimes {
    symbol_steps: TimeFit,
    finish_steps: TimeFit,
}

impl StepTimes {
    /// Records the symbol step of an engine step that feeds no prompt, and the number of symbols that it fed.
    pub fn record_symbol_step(&mut self, symbols: usize, took: Duration) {
        self.symbol_steps.record(symbols, took);
    }

    /// Records a finish step and the number of symbols that it finished.
    pub fn record_finish_step(&mut self, symbols: usize, took: Duration) {
        self.finish_steps.record(symbols, took);
    }

    /// The fixed time of a step relative to the time of a symbol. While steps hardly differ in their symbols, it is close to
    /// `ASSUMED_FIXED`, so that drafts are tried again from time to time.
    pub fn fixed(&self) -> f64 {
        if self.symbol_steps.nanoseconds + self.finish_steps.nanoseconds <= 0.0 {
            return ASSUMED_FIXED;
        }
        let symbol = self.symbol_steps.fit();
        let finish = self.finish_steps.fit();
        let slope = symbol.slope + finish.slope;
        let fixed = symbol.fixed + finish.fixed;
        if slope <= 0.0 {
            return MAX_FIXED;
        }
        (fixed / slope).clamp(0.0, MAX_FIXED)
    }
}

/// Least squares over the latest measurements.
#[derive(Debug, Default)]
struct TimeFit {
    weight: f64,
    /// Means, and mean products.
    symbols: f64,
    nanoseconds: f64,
    square: f64,
    product: f64,
}

/// A line in nanoseconds: `fixed` + `slope` · symbols.
#[derive(Debug, Clone, Copy)]
struct Line {
    fixed: f64,
    slope: f64,
}

impl TimeFit {
    fn record(&mut self, symbols: usize, took: Duration) {
        if symbols == 0 {
            return;
        }
        let nanoseconds = took.as_nanos() as f64;
        let symbols = symbols as f64;
        let largest = OUTLIER * self.nanoseconds * (symbols / self.symbols).max(1.0);
        if self.weight > 1.0 && nanoseconds > largest {
            self.weight *= DECAY;
            return;
        }
        self.weight = self.weight * DECAY + 1.0;
        let share = 1.0 / self.weight;
        let blend = |mean: &mut f64, value: f64| *mean += (value - *mean) * share;
        blend(&mut self.symbols, symbols);
        blend(&mut self.nanoseconds, nanoseconds);
        blend(&mut self.square, symbols * symbols);
        blend(&mut self.product, symbols * nanoseconds);
    }

    /// Fits the line. `ASSUMED_FIXED` is a prior that counts as much as measurements whose symbols vary by `ASSUMED_VARIANCE`.
    fn fit(&self) -> Line {
        let variance = (self.square - self.symbols * self.symbols).max(0.0);
        let covariance = self.product - self.symbols * self.nanoseconds;
        let assumed = self.nanoseconds / (ASSUMED_FIXED + self.symbols);
        let slope = (covariance + ASSUMED_VARIANCE * assumed) / (variance + ASSUMED_VARIANCE);
        Line { fixed: self.nanoseconds - slope * self.symbols, slope }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(fixed: u64, steps: &[usize]) -> f64 {
        let mut times = StepTimes::default();
        for &symbols in steps {
            times.record_symbol_step(symbols, Duration::from_nanos(1000 * (fixed + symbols as u64)));
        }
        times.fixed()
    }

    #[test]
    fn the_fixed_time_is_found() {
        let steps: Vec<usize> = (0..400).map(|step| 1 + step % 5).collect();
        for fixed in [0, 1, 3, 10, 30] {
            let found = measured(fixed, &steps);
            assert!((found - fixed as f64).abs() < 0.3 + fixed as f64 * 0.1, "{fixed}: {found}");
        }
        assert_eq!(StepTimes::default().fixed(), ASSUMED_FIXED);
    }

    #[test]
    fn a_step_of_many_symbols_is_a_measurement() {
        let steps: Vec<usize> = (0..400).map(|step| if step % 8 == 7 { 17 } else { 1 }).collect();
        let found = measured(2, &steps);
        assert!((found - 2.0).abs() < 0.2, "{found}");
    }

    #[test]
    fn steps_of_one_size_lead_back_to_the_assumption() {
        let mut steps: Vec<usize> = (0..400).map(|step| 1 + step % 5).collect();
        steps.extend([1; 2000]);
        assert!((measured(0, &steps) - ASSUMED_FIXED).abs() < 0.1);
    }

    /// Two rows of which one waits in every other step: steps with fewer fed symbols finish more of them.
    #[test]
    fn rows_that_waited_do_not_hide_the_time_of_a_symbol() {
        let mut times = StepTimes::default();
        for step in 0..400 {
            let fed = 1 + step % 2;
            times.record_symbol_step(fed, Duration::from_micros(10 + 5 * fed as u64));
            let finished = 3 - fed;
            times.record_finish_step(finished, Duration::from_micros(5 + 5 * finished as u64));
        }
        let found = times.fixed();
        assert!((found - 1.5).abs() < 0.3, "{found}");
    }

    #[test]
    fn an_interruption_is_no_measurement() {
        let mut times = StepTimes::default();
        (0..100).for_each(|step| times.record_symbol_step(1 + step % 3, Duration::from_micros(10 + step as u64 % 3)));
        let before = times.fixed();
        times.record_symbol_step(5, Duration::from_secs(1));
        assert!((times.fixed() - before).abs() < 1e-6, "{before} {}", times.fixed());
    }
}
