//! Samples of one kind of step, and their medians.

use std::time::Duration;

/// Shape of a kind of step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepShape {
    /// Rows of the step.
    pub rows: usize,
    /// Symbols fed to each row.
    pub symbols: usize,
    /// Symbols that each row had before.
    pub context: usize,
    /// Segments that each row had before.
    pub context_segments: usize,
    /// Segments that all rows closed together.
    pub closed: usize,
}

/// Measured times of one kind of step. Times are medians.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepTiming {
    /// The kind of step.
    pub shape: StepShape,
    /// Number of measurements.
    pub samples: usize,
    /// Interquartile range of the whole step, divided by its median.
    pub spread: f64,
    /// Time of the symbol step, if a segment step follows.
    pub symbol: Duration,
    /// Time of the segment step.
    pub middle: Duration,
    /// Time of the finish step, after a segment step.
    pub finish: Duration,
    /// Times without a segment step, if they were measured.
    pub plain: Option<PlainTiming>,
}

/// Measured times of a step without a segment step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlainTiming {
    /// Time of the symbol step.
    pub symbol: Duration,
    /// Time of the finish step.
    pub finish: Duration,
}

/// Nanoseconds of the three parts of a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepSample {
    pub(super) symbol: u64,
    pub(super) middle: u64,
    pub(super) finish: u64,
}

#[derive(Debug, Default)]
pub(super) struct Samples {
    /// Steps with a segment step.
    closing: Vec<StepSample>,
    /// Steps without one.
    plain: Vec<StepSample>,
}

impl Samples {
    pub(super) fn push(&mut self, sample: StepSample, closing: bool) {
        let samples = if closing { &mut self.closing } else { &mut self.plain };
        samples.push(sample);
    }
}

impl StepShape {
    /// Returns the medians of `samples`; `None` if no step closed a segment.
    pub(super) fn timing(self, samples: &Samples) -> Option<StepTiming> {
        let Samples { closing, plain } = samples;
        let plain_symbol = median(plain, |sample| sample.symbol);
        let plain_finish = median(plain, |sample| sample.finish);
        Some(StepTiming {
            shape: self,
            samples: closing.len(),
            spread: spread(closing).max(spread(plain)),
            symbol: median(closing, |sample| sample.symbol)?,
            middle: median(closing, |sample| sample.middle)?,
            finish: median(closing, |sample| sample.finish)?,
            plain: plain_symbol.zip(plain_finish).map(|(symbol, finish)| PlainTiming { symbol, finish }),
        })
    }
}

/// Returns the interquartile range of whole steps, divided by their median; 0 without samples. Steps without a segment step
/// have no middle part.
fn spread(samples: &[StepSample]) -> f64 {
    if samples.is_empty() {
        return 0.0;
    }
    let mut totals: Vec<u64> = samples.iter().map(|sample| sample.symbol + sample.middle + sample.finish).collect();
    totals.sort_unstable();
    let quartile = |quarter: usize| totals[(totals.len() * quarter / 4).min(totals.len() - 1)];
    (quartile(3) - quartile(1)) as f64 / quartile(2).max(1) as f64
}

fn median(samples: &[StepSample], part: impl Fn(&StepSample) -> u64) -> Option<Duration> {
    let mut nanoseconds: Vec<u64> = samples.iter().map(part).collect();
    nanoseconds.sort_unstable();
    nanoseconds.get(nanoseconds.len() / 2).map(|&nanoseconds| Duration::from_nanos(nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the timing of steps with these total times, with and without a segment step.
    fn timing(closing: &[u64], plain: &[u64]) -> StepTiming {
        let mut samples = Samples::default();
        for &total in closing {
            let middle = total / 2;
            samples.push(StepSample { symbol: total / 4, middle, finish: total - total / 4 - middle }, true);
        }
        for &total in plain {
            samples.push(StepSample { symbol: total / 2, middle: 0, finish: total - total / 2 }, false);
        }
        let shape = StepShape { rows: 1, symbols: 1, context: 16, context_segments: 4, closed: 1 };
        shape.timing(&samples).unwrap()
    }

    #[test]
    fn a_spread_is_the_interquartile_range_of_whole_steps() {
        let even: Vec<u64> = (0..8).map(|step| 1000 + step * 10).collect();
        // from the first value of the second quarter to that of the last quarter
        assert_eq!(timing(&even, &[]).spread, 40.0 / 1040.0);
        // the wider of both kinds, in any order
        assert_eq!(timing(&even, &[300, 100, 400, 200]).spread, 200.0 / 300.0);
        // one interrupted step in ten has no effect
        let interrupted: Vec<u64> = (0..30).map(|step| if step % 10 == 0 { 9000 } else { 1000 }).collect();
        assert_eq!(timing(&interrupted, &[]).spread, 0.0);
        let half: Vec<u64> = (0..30).map(|step| if step % 2 == 0 { 3000 } else { 1000 }).collect();
        assert!(timing(&half, &[]).spread > 0.6);
        assert_eq!(timing(&[7], &[]).spread, 0.0);
    }
}
