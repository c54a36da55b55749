//! Measures how the cost of a step depends on the number of its symbols.

use std::time::Duration;

/// Assumed fixed cost of a step in symbols, before steps of different sizes were measured.
const ASSUMED_FIXED: f64 = 4.0;
const MAX_FIXED: f64 = 64.0;
/// Part of its weight that a measurement keeps with each later one.
const DECAY: f64 = 0.99;
/// Variance of the number of symbols that the assumption counts as.
const ASSUMED_VARIANCE: f64 = 0.02;
/// Steps that took this many times the mean are not measurements: something else ran.
const OUTLIER: f64 = 4.0;

/// The cost of a step as a line over the number of its symbols: least squares over the latest steps that only decode. Segment steps
/// are not part of it, because drafts do not change their number.
#[derive(Debug, Default)]
pub struct StepCost {
    weight: f64,
    /// Means, and mean products.
    symbols: f64,
    nanoseconds: f64,
    square: f64,
    product: f64,
}

impl StepCost {
    /// Records a step.
    pub fn record(&mut self, symbols: usize, took: Duration) {
        let nanoseconds = took.as_nanos() as f64;
        if self.weight > 1.0 && nanoseconds > OUTLIER * self.nanoseconds {
            self.weight *= DECAY;
            return;
        }
        let symbols = symbols as f64;
        self.weight = self.weight * DECAY + 1.0;
        let share = 1.0 / self.weight;
        let blend = |mean: &mut f64, value: f64| *mean += (value - *mean) * share;
        blend(&mut self.symbols, symbols);
        blend(&mut self.nanoseconds, nanoseconds);
        blend(&mut self.square, symbols * symbols);
        blend(&mut self.product, symbols * nanoseconds);
    }

    /// The fixed cost of a step relative to the cost of a symbol. While steps hardly differ in their symbols, it is close to
    /// `ASSUMED_FIXED`, so that drafts are tried again from time to time.
    pub fn fixed(&self) -> f64 {
        let variance = (self.square - self.symbols * self.symbols).max(0.0);
        let covariance = self.product - self.symbols * self.nanoseconds;
        let assumed = self.nanoseconds / (ASSUMED_FIXED + self.symbols);
        let slope = (covariance + ASSUMED_VARIANCE * assumed) / (variance + ASSUMED_VARIANCE);
        if self.nanoseconds <= 0.0 {
            return ASSUMED_FIXED;
        }
        if slope <= 0.0 {
            return MAX_FIXED;
        }
        ((self.nanoseconds - slope * self.symbols) / slope).clamp(0.0, MAX_FIXED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(fixed: u64, steps: &[usize]) -> f64 {
        let mut cost = StepCost::default();
        for &symbols in steps {
            cost.record(symbols, Duration::from_nanos(1000 * (fixed + symbols as u64)));
        }
        cost.fixed()
    }

    #[test]
    fn the_fixed_cost_is_found() {
        let steps: Vec<usize> = (0..400).map(|step| 1 + step % 5).collect();
        for fixed in [0, 1, 3, 10, 30] {
            let found = measured(fixed, &steps);
            assert!((found - fixed as f64).abs() < 0.3 + fixed as f64 * 0.1, "{fixed}: {found}");
        }
        assert_eq!(StepCost::default().fixed(), ASSUMED_FIXED);
    }

    #[test]
    fn steps_of_one_size_lead_back_to_the_assumption() {
        let mut steps: Vec<usize> = (0..400).map(|step| 1 + step % 5).collect();
        steps.extend([1; 2000]);
        assert!((measured(0, &steps) - ASSUMED_FIXED).abs() < 0.1);
    }

    #[test]
    fn an_interruption_is_no_measurement() {
        let mut cost = StepCost::default();
        (0..100).for_each(|step| cost.record(1 + step % 3, Duration::from_micros(10 + step as u64 % 3)));
        let before = cost.fixed();
        cost.record(5, Duration::from_secs(1));
        assert!((cost.fixed() - before).abs() < 1e-6, "{before} {}", cost.fixed());
    }
}
