//! Piecewise linear curves through measured step times. Pure: functions of numbers.

use super::samples::StepTiming;
use std::time::Duration;

/// Bytes of keys and values that a position attends to.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct KeyValueBytes {
    /// At full resolution, by the number of symbols.
    pub(super) symbols: PiecewiseLinear,
    /// In the middle stack, by the number of segments.
    pub(super) segments: PiecewiseLinear,
}

/// The curves of the three parts of a step.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StepCurves {
    pub(super) symbol: PartCurve,
    pub(super) middle: PartCurve,
    pub(super) finish: PartCurve,
}

/// Nanoseconds of one part of a step.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PartCurve {
    /// Nanoseconds by positions, at the shortest context, with a segment step.
    cold: PiecewiseLinear,
    /// The same without a segment step.
    plain: PiecewiseLinear,
    /// Nanoseconds that a position takes for each byte that it attends to beyond `base_bytes`.
    per_byte: f64,
    /// Bytes that a position attends to at the shortest context.
    base_bytes: f64,
}

struct PartSample {
    positions: f64,
    /// Bytes that each position attends to.
    bytes: f64,
    /// Nanoseconds with a segment step.
    cold: f64,
    /// Nanoseconds without a segment step.
    plain: Option<f64>,
}

impl StepCurves {
    /// Creates the curves of `timings`. Curves of chunks start at `single`. `None` without timings.
    pub(super) fn new(timings: &[StepTiming], bytes: &KeyValueBytes, single: Option<&Self>) -> Option<Self> {
        let full = |took: &dyn Fn(&StepTiming) -> Duration, plain: &dyn Fn(&StepTiming) -> Option<Duration>| {
            let sample = |timing: &StepTiming| PartSample {
                positions: (timing.shape.rows * timing.shape.symbols) as f64,
                // on average, a position of a chunk attends to half of the chunk and to all symbols before it
                bytes: bytes.symbols.evaluate(timing.shape.context as f64 + timing.shape.symbols as f64 / 2.0),
                cold: nanoseconds(took(timing)),
                plain: plain(timing).map(nanoseconds),
            };
            timings.iter().map(sample).collect::<Vec<_>>()
        };
        let middle = |timing: &StepTiming| {
            let closed_per_row = timing.shape.closed as f64 / timing.shape.rows.max(1) as f64;
            PartSample {
                positions: timing.shape.closed as f64,
                bytes: bytes.segments.evaluate(timing.shape.context_segments as f64 + closed_per_row / 2.0),
                cold: nanoseconds(timing.middle),
                plain: None,
            }
        };
        let symbol = full(&|timing| timing.symbol, &|timing| timing.plain.map(|plain| plain.symbol));
        let finish = full(&|timing| timing.finish, &|timing| timing.plain.map(|plain| plain.finish));
        let middle: Vec<_> = timings.iter().map(middle).collect();
        Some(Self {
            symbol: PartCurve::new(&symbol, single.map(|single| &single.symbol))?,
            middle: PartCurve::new(&middle, single.map(|single| &single.middle))?,
            finish: PartCurve::new(&finish, single.map(|single| &single.finish))?,
        })
    }
}

impl PartCurve {
    fn new(samples: &[PartSample], single: Option<&Self>) -> Option<Self> {
        let base_bytes = samples.iter().map(|sample| sample.bytes).min_by(f64::total_cmp)?;
        // samples near the shortest context give the cost of positions, the others the cost of contexts
        let is_short = |sample: &&PartSample| sample.bytes <= base_bytes * 2.0;
        let per_byte = cost_per_byte(samples, is_short);
        let points = |took: &dyn Fn(&PartSample) -> Option<f64>| {
            let point = |sample: &PartSample| {
                let at_base = took(sample)? - sample.positions * per_byte * (sample.bytes - base_bytes);
                Some((sample.positions, at_base.max(0.0)))
            };
            samples.iter().filter(is_short).filter_map(point).collect::<Vec<_>>()
        };
        let mut cold = points(&|sample| Some(sample.cold));
        let mut plain = points(&|sample| sample.plain);
        if let Some(single) = single {
            cold.insert(0, (1.0, single.cold.evaluate(1.0)));
            plain.insert(0, (1.0, single.plain.evaluate(1.0)));
        }
        let cold = PiecewiseLinear::through(cold)?;
        // a step that was not measured without a segment step is taken to be as with one
        let measured = plain.len() > 1 || samples.len() == 1;
        let plain = if measured { PiecewiseLinear::through(plain) } else { None };
        Some(Self { plain: plain.unwrap_or_else(|| cold.clone()), cold, per_byte, base_bytes })
    }

    /// Returns the nanoseconds for `positions` positions that attend to `bytes` bytes each.
    pub(super) fn nanoseconds(&self, positions: usize, bytes: f64, cold: bool) -> f64 {
        if positions == 0 {
            return 0.0;
        }
        let positions = positions as f64;
        let curve = if cold { &self.cold } else { &self.plain };
        (curve.evaluate(positions) + positions * self.per_byte * (bytes - self.base_bytes)).max(0.0)
    }
}

/// Returns a position's nanoseconds per byte: the deepest context compared with a short one of about as many positions.
fn cost_per_byte(samples: &[PartSample], is_short: impl Fn(&&PartSample) -> bool) -> f64 {
    let deep = samples.iter().filter(|sample| !is_short(sample));
    let Some(deep) = deep.max_by(|a, b| a.bytes.total_cmp(&b.bytes)) else { return 0.0 };
    let distance = |sample: &PartSample| (sample.positions - deep.positions).abs();
    let short = samples.iter().filter(is_short).min_by(|a, b| distance(a).total_cmp(&distance(b)));
    let Some(short) = short else { return 0.0 };
    // scaled to the same number of positions
    let short_took = short.cold * deep.positions / short.positions.max(1.0);
    ((deep.cold - short_took) / deep.positions.max(1.0) / (deep.bytes - short.bytes)).max(0.0)
}

fn nanoseconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64
}

/// A function through points with rising `x`, linear between them. It is constant before the first and keeps the last slope.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PiecewiseLinear(pub(super) Vec<(f64, f64)>);

impl PiecewiseLinear {
    /// Creates the function through `points` with positive `x`, and the mean of those with equal `x`; `None` without points.
    pub(super) fn through(mut points: Vec<(f64, f64)>) -> Option<Self> {
        points.retain(|point| point.0 > 0.0);
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let groups = points.chunk_by(|a, b| a.0 == b.0);
        let mean = |group: &[(f64, f64)]| group.iter().map(|point| point.1).sum::<f64>() / group.len() as f64;
        let points: Vec<_> = groups.map(|group| (group[0].0, mean(group))).collect();
        (!points.is_empty()).then_some(Self(points))
    }

    pub(super) fn evaluate(&self, x: f64) -> f64 {
        let points = &self.0[..];
        let next = points.partition_point(|point| point.0 < x);
        match points {
            [] => 0.0,
            [only] => only.1 * (x / only.0).max(1.0),
            _ if next == 0 => points[0].1,
            _ => {
                let last = next.min(points.len() - 1);
                let (x0, y0) = points[last - 1];
                let (x1, y1) = points[last];
                y0 + (y1 - y0) * (x - x0) / (x1 - x0)
            }
        }
    }
}
