//! Numbers that were measured, in HDR histograms (three digits), and what is told of them.

use crate::error::{Error, Result};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Digits that are kept of every number.
const DIGITS: u8 = 3;
/// Bars of a drawn distribution, for each factor of ten.
const BARS: f64 = 24.0;

/// Whole numbers that were measured: nanoseconds, mostly.
#[derive(Debug, Clone)]
pub struct ValueHistogram(Histogram<u64>);

/// What is told of many numbers. A percentile is the least recorded number that at least this share of them do not exceed; it
/// is absent where fewer numbers were recorded than it takes to have one beyond it (p90: 10, p95: 20, p99: 100, p99.9: 1000).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Percentiles {
    /// How many.
    pub count: u64,
    /// The mean.
    pub mean: Option<f64>,
    /// The least.
    pub min: Option<f64>,
    /// The tenth percentile.
    pub p10: Option<f64>,
    /// The median.
    pub p50: Option<f64>,
    /// The ninetieth percentile.
    pub p90: Option<f64>,
    /// The 95th percentile.
    pub p95: Option<f64>,
    /// The 99th percentile.
    pub p99: Option<f64>,
    /// The 99.9th percentile.
    pub p999: Option<f64>,
    /// The greatest.
    pub max: Option<f64>,
}

/// A bar of a drawn distribution: numbers from `from` to `to`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistogramBar {
    /// The least number of the bar.
    pub from: f64,
    /// The number that the next bar begins with.
    pub to: f64,
    /// How many there are.
    pub count: u64,
}

impl ValueHistogram {
    /// None yet.
    ///
    /// # Errors
    /// No memory for them.
    pub fn new() -> Result<Self> {
        Histogram::new(DIGITS).map(Self).map_err(|error| Error::Internal(format!("a histogram: {error}")))
    }

    /// Takes a time.
    pub fn time(&mut self, span: Duration) {
        self.number(crate::units::ns(span));
    }

    /// Takes a number.
    pub fn number(&mut self, number: u64) {
        // it grows to hold any number, so there is none that it refuses
        if self.0.record(number).is_err() {
            self.0.saturating_record(number);
        }
    }

    /// Takes all of another's.
    ///
    /// # Errors
    /// Never: both keep what they need.
    pub fn add(&mut self, other: &Self) -> Result<()> {
        self.0.add(&other.0).map_err(|error| Error::Internal(format!("histograms: {error}")))
    }

    /// How many.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What is told of them, each multiplied by `scale`.
    pub fn spread(&self, scale: f64) -> Percentiles {
        let (numbers, count) = (&self.0, self.0.len());
        if count == 0 {
            return Percentiles::default();
        }
        // the middle of what three digits cannot tell apart
        let at = |share: f64, least: u64| {
            let number = numbers.median_equivalent(numbers.value_at_quantile(share)).min(numbers.max());
            (count >= least).then_some(number as f64 * scale)
        };
        Percentiles {
            count,
            mean: Some(numbers.mean() * scale),
            min: Some(numbers.min() as f64 * scale),
            p10: at(0.1, 10),
            p50: at(0.5, 1),
            p90: at(0.9, 10),
            p95: at(0.95, 20),
            p99: at(0.99, 100),
            p999: at(0.999, 1000),
            max: Some(numbers.max() as f64 * scale),
        }
    }

    /// Their distribution in bars of equal width on a logarithmic axis; numbers below 1 are in the first.
    pub fn bars(&self) -> Vec<HistogramBar> {
        let mut bars: Vec<HistogramBar> = Vec::new();
        for step in self.0.iter_recorded() {
            let place = ((step.value_iterated_to().max(1) as f64).log10() * BARS).floor();
            let (from, to) = (10f64.powf(place / BARS), 10f64.powf((place + 1.0) / BARS));
            match bars.last_mut().filter(|bar| bar.from == from) {
                Some(bar) => bar.count += step.count_at_value(),
                None => bars.push(HistogramBar { from, to, count: step.count_at_value() }),
            }
        }
        bars
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_numbers_within_three_digits() {
        let mut numbers = ValueHistogram::new().unwrap();
        (1..=10_000u64).for_each(|number| numbers.number(number * 1000));
        let spread = numbers.spread(1.0);
        let all =
            [(spread.p50, 5e6), (spread.p90, 9e6), (spread.p95, 9.5e6), (spread.p99, 9.9e6), (spread.p999, 9.99e6)];
        for (found, expected) in all {
            assert!((found.unwrap() / expected - 1.0).abs() < 1e-3, "{found:?} {expected}");
        }
        assert_eq!((spread.count, spread.min.unwrap().round()), (10_000, 1000.0));
        assert!((spread.mean.unwrap() / 5.0005e6 - 1.0).abs() < 1e-3);
        assert_eq!(numbers.bars().iter().map(|bar| bar.count).sum::<u64>(), 10_000);
        assert!(numbers.bars().windows(2).all(|pair| pair[0].to <= pair[1].from * 1.000001));
    }

    #[test]
    fn percentiles_that_few_numbers_do_not_have_are_not_told() {
        let mut numbers = ValueHistogram::new().unwrap();
        assert_eq!(numbers.spread(1.0), Percentiles::default());
        (0..99).for_each(|_| numbers.number(5));
        let spread = numbers.spread(2.0);
        assert_eq!((spread.p50, spread.p95, spread.p99, spread.p999), (Some(10.0), Some(10.0), None, None));
        numbers.number(5);
        assert!(numbers.spread(1.0).p99.is_some());
    }
}
