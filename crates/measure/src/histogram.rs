//! HDR histograms of measured values (three significant digits), and their percentiles.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Significant digits of recorded values.
const DIGITS: u8 = 3;
/// Unit in which speeds are recorded, because histograms hold integers: thousandths.
pub const MILLI: f64 = 1e-3;
/// Bars of a drawn distribution per factor of ten.
const BARS_PER_DECADE: f64 = 24.0;

/// Histogram of measured integers, mostly nanoseconds; `None` without values.
#[derive(Debug, Clone, Default)]
pub struct ValueHistogram(Option<Histogram<u64>>);

/// Summary of a distribution. A percentile is the smallest recorded value that at least this share of the values does not exceed.
/// It is absent if too few values were recorded for one to lie beyond it (p90: 10, p95: 20, p99: 100, p99.9: 1000).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are what their names say")]
pub struct Percentiles {
    pub count: u64,
    pub mean: Option<f64>,
    pub min: Option<f64>,
    pub p10: Option<f64>,
    pub p50: Option<f64>,
    pub p90: Option<f64>,
    pub p95: Option<f64>,
    pub p99: Option<f64>,
    pub p999: Option<f64>,
    pub max: Option<f64>,
}

/// Bar of a drawn distribution.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HistogramBar {
    /// Lower bound.
    pub from: f64,
    /// Upper bound, at which the next bar begins.
    pub to: f64,
    /// Values between the bounds.
    pub count: u64,
}

impl ValueHistogram {
    /// Records a time in nanoseconds.
    pub fn record_time(&mut self, time: Duration) {
        self.record(crate::format::ns(time));
    }

    /// Records the speed, in thousandths per second, of events that are `each` apart.
    pub fn record_speed(&mut self, each: Duration) {
        self.record((1.0 / each.as_secs_f64().max(1e-9) / MILLI) as u64);
    }

    /// Records a value.
    pub fn record(&mut self, value: u64) {
        if self.0.is_none() {
            // fails only for more digits than the library supports
            self.0 = Histogram::new(DIGITS).ok();
        }
        if let Some(histogram) = &mut self.0 {
            // a growing histogram accepts every value
            let _ = histogram.record(value);
        }
    }

    /// Adds the values of `other`.
    pub fn merge(&mut self, other: &Self) {
        match (&mut self.0, &other.0) {
            (_, None) => {}
            (None, Some(other)) => self.0 = Some(other.clone()),
            // never fails: both have the same digits and grow
            (Some(own), Some(other)) => drop(own.add(other)),
        }
    }

    /// Summarizes the values, each multiplied by `scale`.
    pub fn percentiles(&self, scale: f64) -> Percentiles {
        let Some(histogram) = &self.0 else { return Percentiles::default() };
        let count = histogram.len();
        // the middle of the values that three digits cannot distinguish
        let percentile = |share: f64, min_count: u64| {
            let value = histogram.median_equivalent(histogram.value_at_quantile(share)).min(histogram.max());
            (count >= min_count).then_some(value as f64 * scale)
        };
        Percentiles {
            count,
            mean: Some(histogram.mean() * scale),
            min: Some(histogram.min() as f64 * scale),
            p10: percentile(0.1, 10),
            p50: percentile(0.5, 1),
            p90: percentile(0.9, 10),
            p95: percentile(0.95, 20),
            p99: percentile(0.99, 100),
            p999: percentile(0.999, 1000),
            max: Some(histogram.max() as f64 * scale),
        }
    }

    /// Returns the distribution as bars of equal width on a logarithmic axis; values below 1 are in the first bar.
    pub fn bars(&self) -> Vec<HistogramBar> {
        let mut bars: Vec<HistogramBar> = Vec::new();
        for step in self.0.iter().flat_map(Histogram::iter_recorded) {
            let index = ((step.value_iterated_to().max(1) as f64).log10() * BARS_PER_DECADE).floor();
            let from = 10f64.powf(index / BARS_PER_DECADE);
            let count = step.count_at_value();
            match bars.last_mut().filter(|bar| bar.from == from) {
                Some(bar) => bar.count += count,
                None => bars.push(HistogramBar { from, to: 10f64.powf((index + 1.0) / BARS_PER_DECADE), count }),
            }
        }
        bars
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_exact_to_three_digits() {
        let mut histogram = ValueHistogram::default();
        (1..=10_000u64).for_each(|value| histogram.record(value * 1000));
        let spread = histogram.percentiles(1.0);
        let all =
            [(spread.p50, 5e6), (spread.p90, 9e6), (spread.p95, 9.5e6), (spread.p99, 9.9e6), (spread.p999, 9.99e6)];
        for (actual, expected) in all {
            assert!((actual.unwrap() / expected - 1.0).abs() < 1e-3, "{actual:?} {expected}");
        }
        assert_eq!((spread.count, spread.min.unwrap().round()), (10_000, 1000.0));
        assert!((spread.mean.unwrap() / 5.0005e6 - 1.0).abs() < 1e-3);
        assert_eq!(histogram.bars().iter().map(|bar| bar.count).sum::<u64>(), 10_000);
        assert!(histogram.bars().windows(2).all(|pair| pair[0].to <= pair[1].from * 1.000001));
    }

    #[test]
    fn percentiles_of_too_few_values_are_absent() {
        let mut histogram = ValueHistogram::default();
        assert_eq!(histogram.percentiles(1.0), Percentiles::default());
        (0..99).for_each(|_| histogram.record(5));
        let spread = histogram.percentiles(2.0);
        assert_eq!((spread.p50, spread.p95, spread.p99, spread.p999), (Some(10.0), Some(10.0), None, None));
        histogram.record(5);
        assert!(histogram.percentiles(1.0).p99.is_some());
    }
}
