//! The table of measured step times, and the estimate of a step's time from it.

use super::{
    curves::{KeyValueBytes, PartCurve, PiecewiseLinear, StepCurves},
    samples::StepTiming,
};
use crate::decode::cost::Cost;
use std::time::{Duration, SystemTime};

/// Maximum spread of a table that is trusted. On virtual processors of a shared machine without other load, small steps had a
/// spread of 0.17. Where other processes take turns on the processors, half of the steps take longer by the others' turns.
pub(super) const MAX_SPREAD: f64 = 0.2;
/// Minimum samples of a step that is trusted.
pub(super) const MIN_SAMPLES: usize = 5;

/// Measured step times of a model, in a form that can be evaluated.
#[derive(Debug, Clone, PartialEq)]
pub struct TimingTable {
    /// The measurements.
    pub timings: Vec<StepTiming>,
    /// When it was measured.
    pub created_at: SystemTime,
    /// How long the measurement took.
    pub took: Duration,
    /// Steps of one symbol per row.
    single: StepCurves,
    /// Steps with a chunk.
    chunks: StepCurves,
    bytes: KeyValueBytes,
}

/// Contents of an engine step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct EngineStep {
    /// True if a row was fed several symbols.
    pub chunk: bool,
    /// Symbols fed.
    pub fed: usize,
    /// Symbols finished.
    pub finished: usize,
    /// Segments that its segment step closed.
    pub closed: usize,
    /// Rows that were not fed because they waited for a segment step.
    pub waiting: usize,
    /// Mean symbols that the rows had before.
    pub context: f64,
    /// Mean segments that the rows had before.
    pub segments: f64,
}

/// Estimated nanoseconds of a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepEstimate {
    /// Without pooling: the middle stack runs for each symbol and attends to all symbols, and no row waits at a boundary.
    pub(super) unpooled: f64,
    /// Estimate with pooling, as the step ran.
    pub(super) pooled: f64,
}

impl TimingTable {
    /// Creates a table; `None` if `timings` contains no step of single symbols. Sequences have at most `max_symbols` symbols;
    /// `cost` returns the cost of the last of this number of symbols and segments, see
    /// [`Model::cost`](crate::decode::contract::Model::cost).
    pub fn new(
        timings: Vec<StepTiming>,
        max_symbols: usize,
        cost: impl Fn(usize, usize) -> Cost,
        took: Duration,
    ) -> Option<Self> {
        let lens: Vec<usize> =
            std::iter::successors(Some(1), |len| Some(len * 2)).take_while(|&len| len <= max_symbols).collect();
        let line = |bytes: &dyn Fn(usize) -> usize| {
            PiecewiseLinear(lens.iter().map(|&len| (len as f64, bytes(len) as f64)).collect())
        };
        let bytes = KeyValueBytes {
            symbols: line(&|symbols| cost(symbols, 0).symbol.own_bytes),
            segments: line(&|segments| cost(max_symbols, segments).segment.own_bytes),
        };
        let (single_timings, chunk_timings): (Vec<_>, Vec<_>) =
            timings.iter().copied().partition(|timing| timing.shape.symbols == 1);
        let single = StepCurves::new(&single_timings, &bytes, None)?;
        let chunks = StepCurves::new(&chunk_timings, &bytes, Some(&single)).unwrap_or_else(|| single.clone());
        Some(Self { timings, created_at: SystemTime::now(), took, single, chunks, bytes })
    }

    /// Returns the number of samples of the step that was measured least often.
    pub fn fewest_samples(&self) -> usize {
        self.timings.iter().map(|timing| timing.samples).min().unwrap_or(0)
    }

    /// Returns the median spread of all steps.
    pub fn spread(&self) -> f64 {
        let mut spreads: Vec<f64> = self.timings.iter().map(|timing| timing.spread).collect();
        spreads.sort_unstable_by(f64::total_cmp);
        spreads.get(spreads.len() / 2).copied().unwrap_or(0.0)
    }

    /// Returns why estimates from this table are not to be trusted, as a text for users; `None` if they are.
    pub fn doubt(&self) -> Option<String> {
        let spread = self.spread() * 100.0;
        let samples = self.fewest_samples();
        if self.spread() > MAX_SPREAD {
            let limit = MAX_SPREAD * 100.0;
            return Some(format!(
                "times of the same step differ by {spread:.0} % of their median (interquartile range), more than {limit:.0} %: \
                 other processes used the machine during the calibration, which the server repeats a few times when it is idle"
            ));
        }
        (samples < MIN_SAMPLES).then(|| {
            format!(
                "a step was timed {samples} times, fewer than {MIN_SAMPLES}: raise --calibration-milliseconds, or calibrate on an \
                 idle machine"
            )
        })
    }

    pub(super) fn estimate(&self, step: &EngineStep) -> StepEstimate {
        let curves = if step.chunk { &self.chunks } else { &self.single };
        let symbol_bytes = self.bytes.symbols.evaluate(step.context);
        let full = |part: &PartCurve, positions: usize, cold: bool| part.nanoseconds(positions, symbol_bytes, cold);
        let middle = |positions: usize, keys: f64| {
            curves.middle.nanoseconds(positions, self.bytes.segments.evaluate(keys), true)
        };
        let cold = step.closed > 0;
        let pooled = full(&curves.symbol, step.fed, cold)
            + full(&curves.finish, step.finished, cold)
            + middle(step.closed, step.segments);
        let positions = step.fed + step.waiting;
        let unpooled = full(&curves.symbol, positions, true)
            + full(&curves.finish, positions, true)
            + middle(positions, step.context);
        StepEstimate { unpooled, pooled }
    }
}
