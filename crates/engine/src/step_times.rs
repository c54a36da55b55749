//! How long steps take: one model of step time, which every step of an engine updates. The scheduler asks how many symbols fit a
//! target duration and when a row becomes free; speculation asks for a step's fixed time; the estimate of the time without
//! pooling takes the [`TimingTable`] of the [calibration](super::calibration) and corrects it by recent steps. Pure: durations
//! are arguments. `tests/interleavings/` also compiles this file.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Weight of the latest sample in a running mean.
const MEAN_WEIGHT: f64 = 0.2;

/// Retry advice before anything is measured.
const DEFAULT_RETRY: Duration = Duration::from_secs(1);

const MIN_RETRY: Duration = Duration::from_millis(100);
const MAX_RETRY: Duration = Duration::from_secs(30);

/// Large steps whose rates are kept.
const KEPT_RATES: usize = 32;

/// Large steps needed before a minimum duration is reported.
const MIN_LARGE_STEPS: usize = 8;

/// Minimum prompt symbols of a step, however long they take: with fewer, reading all weights would not pay.
const MIN_SYMBOLS: usize = 16;

/// The smallest step with a prompt has more than this: otherwise a slow step would limit all later ones for ever.
const MIN_EXTRA: usize = MIN_SYMBOLS / 4;

/// Assumed fixed time of a step in symbols, before steps of different sizes were measured.
const ASSUMED_FIXED: f64 = 4.0;

const MAX_FIXED: f64 = 64.0;

/// Maximum prompt symbols that a decoded symbol counts as, and their number before a measurement.
const MAX_DECODED_COST: usize = 4;

/// Part of its weight that a measurement keeps with each later one.
const DECAY: f64 = 0.99;

/// Variance of the number of symbols that the assumption counts as.
const ASSUMED_VARIANCE: f64 = 0.02;

/// Steps that took this many times the mean, for as many symbols, are not measurements: something else ran.
const OUTLIER: f64 = 4.0;

/// Ratios kept for each kind of step.
const KEPT_RATIOS: usize = 31;

/// Ratios needed for a median.
const MIN_RATIOS: usize = 5;

/// Maximum spread of a table that is trusted: shared machines without other load reach 0.17, busy ones far more.
const MAX_SPREAD: f64 = 0.2;

/// Minimum samples of a step that is trusted.
const MIN_SAMPLES: usize = 5;

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct EngineStep {
    /// Rows that were fed.
    pub rows: usize,
    /// Symbols fed.
    pub fed: usize,
    /// Symbols that the blocks of encoded documents count as.
    pub encoded: usize,
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
    /// True if a row was fed several symbols.
    pub chunk: bool,
    /// True if all rows that were fed decode, and no document was encoded.
    pub only_decodes: bool,
    /// Time of the symbol step.
    pub symbol_took: Duration,
    /// Time of the finish step.
    pub finish_took: Duration,
    /// Time of the whole step.
    pub took: Duration,
}

/// The measured times of an engine's steps and requests.
#[derive(Debug, Clone, Default)]
pub(crate) struct StepTimes {
    rows: usize,
    /// Mean seconds that a request holds its row; `None` before the first request.
    mean_held: Option<f64>,
    /// Symbols from which on a step is large. Smaller steps do not show how fast prompts can be fed.
    large: usize,
    /// Symbols per second of the latest large steps.
    rates: Recent<KEPT_RATES>,
    /// Mean seconds per symbol of steps with prompts or drafts; `None` before the first.
    symbol_cost: Option<f64>,
    /// Symbol steps of steps that only decode; without finish steps, which may belong to a row's earlier step, and without
    /// segment steps, whose number drafts do not change.
    symbol_steps: TimeFit,
    finish_steps: TimeFit,
    /// The table that `drift` corrects. A repeated calibration replaces it.
    table: Option<Arc<TimingTable>>,
    drift: DriftCorrection,
}

impl StepTimes {
    /// Creates the model of an engine with `rows` parallel requests and steps of at most `chunk` prompt symbols.
    pub(crate) fn new(rows: usize, chunk: usize) -> Self {
        Self { rows, large: chunk.div_ceil(2), ..Self::default() }
    }

    /// Records how long a request held its row.
    pub(crate) fn record_request(&mut self, held: Duration) {
        self.mean_held = Some(update_mean(self.mean_held, held.as_secs_f64()));
    }

    /// Records a step. Only symbols beyond one for each row show what a symbol of a prompt or a draft costs.
    pub(crate) fn record(&mut self, step: &EngineStep) {
        let symbols = step.fed + step.encoded;
        let seconds = step.took.as_secs_f64();
        if symbols >= self.large && seconds > 0.0 {
            self.rates.push(symbols as f64 / seconds);
        }
        if symbols >= MIN_SYMBOLS && symbols.saturating_sub(step.rows) >= MIN_EXTRA {
            self.symbol_cost = Some(update_mean(self.symbol_cost, seconds / symbols as f64));
        }
        if step.only_decodes {
            self.symbol_steps.record(step.fed, step.symbol_took);
            self.finish_steps.record(step.finished, step.finish_took);
        }
    }

    /// Returns the number of symbols for a step of about `target`, at least `MIN_SYMBOLS`; unlimited without a measurement.
    pub(crate) fn symbols_within(&self, target: Duration) -> usize {
        let symbols = self.symbol_cost.map_or(f64::INFINITY, |cost| target.as_secs_f64() / cost);
        // the conversion saturates
        (symbols as usize).max(MIN_SYMBOLS)
    }

    /// Returns the duration of a step that decodes one symbol; `None` without a measurement.
    pub(crate) fn single_step(&self) -> Option<Duration> {
        if let Some(Line { fixed, slope }) = self.decoding() {
            return Some(Duration::from_nanos((fixed + slope).max(0.0) as u64));
        }
        self.symbol_cost.map(|cost| Duration::from_secs_f64(cost * (1.0 + ASSUMED_FIXED)))
    }

    /// Returns the number of prompt symbols that take as long as a decoded symbol, without the fixed time of its step.
    pub(crate) fn decoded_cost(&self) -> usize {
        match (self.decoding(), self.symbol_cost) {
            (Some(line), Some(cost)) => ((line.slope / (cost * 1e9)).round() as usize).clamp(1, MAX_DECODED_COST),
            _ => MAX_DECODED_COST,
        }
    }

    /// Returns the nanoseconds of a step that decodes; `None` without a measurement.
    fn decoding(&self) -> Option<Line> {
        if self.symbol_steps.nanoseconds + self.finish_steps.nanoseconds <= 0.0 {
            return None;
        }
        let symbol = self.symbol_steps.fit();
        let finish = self.finish_steps.fit();
        Some(Line { fixed: symbol.fixed + finish.fixed, slope: symbol.slope + finish.slope })
    }

    /// Returns the estimated time until the next row becomes free.
    pub(crate) fn retry_after(&self) -> Duration {
        let Some(mean_held) = self.mean_held else { return DEFAULT_RETRY };
        let interval = mean_held / self.rows.max(1) as f64;
        Duration::from_secs_f64(interval.clamp(MIN_RETRY.as_secs_f64(), MAX_RETRY.as_secs_f64()))
    }

    /// Returns the minimum time to feed `symbols` symbols: at the best of the kept rates. `None` with too few steps.
    pub(crate) fn min_duration(&self, symbols: usize) -> Option<Duration> {
        let best = self.rates.values().iter().copied().fold(0.0, f64::max);
        let measured = self.rates.count >= MIN_LARGE_STEPS && best > 0.0;
        measured.then(|| Duration::try_from_secs_f64(symbols as f64 / best).unwrap_or(Duration::MAX))
    }

    /// Returns the fixed time of a step that decodes, in symbols; close to `ASSUMED_FIXED` while steps hardly differ.
    pub(crate) fn fixed_symbols(&self) -> f64 {
        let Some(Line { fixed, slope }) = self.decoding() else { return ASSUMED_FIXED };
        if slope <= 0.0 {
            return MAX_FIXED;
        }
        (fixed / slope).clamp(0.0, MAX_FIXED)
    }

    /// Returns how many nanoseconds more a step whose model took `took` would have taken without pooling, by `table`.
    pub(crate) fn unpooled_extra(&mut self, table: &Arc<TimingTable>, step: &EngineStep, took: Duration) -> f64 {
        if self.table.as_ref().is_none_or(|known| !Arc::ptr_eq(known, table)) {
            self.drift = DriftCorrection::default();
            self.table = Some(Arc::clone(table));
        }
        self.drift.extra_nanoseconds(table, step, nanoseconds(took))
    }
}

fn update_mean(mean: Option<f64>, sample: f64) -> f64 {
    mean.map_or(sample, |mean| mean + MEAN_WEIGHT * (sample - mean))
}

/// The latest values of a kind, in a ring buffer.
#[derive(Debug, Clone)]
struct Recent<const KEPT: usize> {
    ring: [f64; KEPT],
    /// Number of values that were pushed.
    count: usize,
}

impl<const KEPT: usize> Default for Recent<KEPT> {
    fn default() -> Self {
        Self { ring: [0.0; KEPT], count: 0 }
    }
}

impl<const KEPT: usize> Recent<KEPT> {
    fn push(&mut self, value: f64) {
        self.ring[self.count % KEPT] = value;
        self.count += 1;
    }

    fn values(&self) -> &[f64] {
        &self.ring[..self.count.min(KEPT)]
    }

    /// Returns the median of at least [`MIN_RATIOS`] values.
    fn median(&self) -> Option<f64> {
        let count = self.values().len();
        if count < MIN_RATIOS {
            return None;
        }
        let mut sorted = self.ring;
        let (_, median, _) = sorted[..count].select_nth_unstable_by(count / 2, f64::total_cmp);
        Some(*median)
    }
}

/// Least squares over the latest measurements.
#[derive(Debug, Clone, Default)]
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
        let nanoseconds = nanoseconds(took);
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

/// Recent ratios of actual to estimated time, by kind of step. Their median corrects the table.
#[derive(Debug, Clone, Default)]
struct DriftCorrection {
    /// Steps without a segment step.
    plain: Recent<KEPT_RATIOS>,
    /// Steps with a segment step.
    closing: Recent<KEPT_RATIOS>,
    /// Steps with a chunk.
    chunk: Recent<KEPT_RATIOS>,
}

impl DriftCorrection {
    /// Returns how many nanoseconds more a step that took `took` nanoseconds would have taken without pooling.
    fn extra_nanoseconds(&mut self, table: &TimingTable, step: &EngineStep, took: f64) -> f64 {
        let estimate = table.estimate(step);
        let window = if step.chunk {
            &mut self.chunk
        } else if step.closed > 0 {
            &mut self.closing
        } else {
            &mut self.plain
        };
        if estimate.pooled > 0.0 {
            window.push(took / estimate.pooled);
        }
        if step.chunk {
            let drift = self.chunk.median().unwrap_or_else(|| self.closing_drift());
            drift * (estimate.unpooled - estimate.pooled)
        } else if step.closed > 0 {
            self.closing_drift() * (estimate.unpooled - estimate.pooled)
        } else {
            let plain = self.plain.median();
            // without pooling it would have had a segment step
            let closing = self.closing.median().or(plain).unwrap_or(1.0);
            closing * estimate.unpooled - plain.unwrap_or(closing) * estimate.pooled
        }
    }

    /// Returns the drift of steps with a segment step, or of other steps while too few are known.
    fn closing_drift(&self) -> f64 {
        self.closing.median().or_else(|| self.plain.median()).unwrap_or(1.0)
    }
}

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

/// Measured step times of a model: a piecewise linear function of positions, plus a cost for the bytes of keys and values
/// attended to. Weights are slower to read after the middle stack has passed through the CPU caches, so there are two curves.
#[derive(Debug, Clone, PartialEq)]
pub struct TimingTable {
    /// The measurements.
    pub timings: Vec<StepTiming>,
    /// Time of the measurement.
    pub created_at: SystemTime,
    /// How long the measurement took.
    pub took: Duration,
    single: StepCurves,
    chunks: StepCurves,
    bytes: KeyValueBytes,
}

#[derive(Debug, Clone, Copy)]
struct StepEstimate {
    /// Estimate without pooling: the middle stack runs for each symbol and attends to all symbols, and no row waits at a boundary.
    unpooled: f64,
    /// Estimate with pooling, as the step ran.
    pooled: f64,
}

impl TimingTable {
    /// Creates a table; `None` if `timings` contains no step of single symbols. `symbol_bytes` and `segment_bytes` return the
    /// bytes of keys and values that the last of this number of symbols or segments attends to.
    pub fn new(
        timings: Vec<StepTiming>,
        max_symbols: usize,
        symbol_bytes: impl Fn(usize) -> usize,
        segment_bytes: impl Fn(usize) -> usize,
        took: Duration,
    ) -> Option<Self> {
        let lens: Vec<usize> =
            std::iter::successors(Some(1), |len| Some(len * 2)).take_while(|&len| len <= max_symbols).collect();
        let line = |bytes: &dyn Fn(usize) -> usize| {
            PiecewiseLinear(lens.iter().map(|&len| (len as f64, bytes(len) as f64)).collect())
        };
        let bytes = KeyValueBytes { symbols: line(&symbol_bytes), segments: line(&segment_bytes) };
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

    fn estimate(&self, step: &EngineStep) -> StepEstimate {
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

/// Bytes of keys and values that a position attends to.
#[derive(Debug, Clone, PartialEq)]
struct KeyValueBytes {
    /// Bytes at full resolution, by the number of symbols.
    symbols: PiecewiseLinear,
    /// Bytes in the middle stack, by the number of segments.
    segments: PiecewiseLinear,
}

#[derive(Debug, Clone, PartialEq)]
struct StepCurves {
    symbol: PartCurve,
    middle: PartCurve,
    finish: PartCurve,
}

/// Nanoseconds of one part of a step.
#[derive(Debug, Clone, PartialEq)]
struct PartCurve {
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
    fn new(timings: &[StepTiming], bytes: &KeyValueBytes, single: Option<&Self>) -> Option<Self> {
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
    fn nanoseconds(&self, positions: usize, bytes: f64, cold: bool) -> f64 {
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
struct PiecewiseLinear(Vec<(f64, f64)>);

impl PiecewiseLinear {
    /// Creates the function through `points` with positive `x`, and the mean of those with equal `x`; `None` without points.
    fn through(mut points: Vec<(f64, f64)>) -> Option<Self> {
        points.retain(|point| point.0 > 0.0);
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let groups = points.chunk_by(|a, b| a.0 == b.0);
        let mean = |group: &[(f64, f64)]| group.iter().map(|point| point.1).sum::<f64>() / group.len() as f64;
        let points: Vec<_> = groups.map(|group| (group[0].0, mean(group))).collect();
        (!points.is_empty()).then_some(Self(points))
    }

    fn evaluate(&self, x: f64) -> f64 {
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn step_of(symbols: usize, rows: usize, took: Duration) -> EngineStep {
        EngineStep { fed: symbols, rows, took, ..EngineStep::default() }
    }

    /// A step that only decodes, of whose parts the symbol step took time.
    fn decoding(symbols: usize, symbol_took: Duration) -> EngineStep {
        EngineStep { fed: symbols, rows: symbols, only_decodes: true, symbol_took, ..EngineStep::default() }
    }

    #[test]
    fn retry_advice_follows_the_mean_within_its_limits() {
        let mut times = StepTimes::new(4, 256);
        assert_eq!(times.retry_after(), DEFAULT_RETRY);
        times.record_request(Duration::from_secs(8));
        assert_eq!(times.retry_after(), Duration::from_secs(2));
        (0..100).for_each(|_| times.record_request(Duration::from_secs(4)));
        assert!((times.retry_after().as_secs_f64() - 1.0).abs() < 0.01);
        (0..100).for_each(|_| times.record_request(Duration::from_millis(1)));
        assert_eq!(times.retry_after(), MIN_RETRY);
        (0..100).for_each(|_| times.record_request(Duration::from_secs(3600)));
        assert_eq!(times.retry_after(), MAX_RETRY);
    }

    #[test]
    fn minimum_duration_is_reported_once_enough_steps_are_measured() {
        let mut times = StepTimes::new(4, 256);
        // small steps do not count, however slow or fast
        (0..100).for_each(|_| times.record(&step_of(32, 0, Duration::from_secs(1))));
        assert_eq!(times.min_duration(1), None);
        (1..MIN_LARGE_STEPS).for_each(|_| times.record(&step_of(200, 0, Duration::from_secs(1))));
        assert_eq!(times.min_duration(1000), None);
        times.record(&step_of(250, 0, Duration::from_millis(500)));
        // the best rate counts
        assert_eq!(times.min_duration(1000), Some(Duration::from_secs(2)));
        // and only of the latest steps
        (0..KEPT_RATES).for_each(|_| times.record(&step_of(200, 0, Duration::from_secs(2))));
        assert_eq!(times.min_duration(1000), Some(Duration::from_secs(10)));
        assert_eq!(times.min_duration(0), Some(Duration::ZERO));
    }

    #[test]
    fn step_sizes_follow_the_cost_of_a_symbol() {
        let mut times = StepTimes::new(4, 256);
        let target = Duration::from_millis(50);
        assert_eq!(times.symbols_within(target), usize::MAX, "nothing was measured");
        times.record(&step_of(15, 0, Duration::from_secs(1)));
        assert_eq!(times.symbols_within(target), usize::MAX, "a small step does not count");
        // A step that only decodes does not count, however many rows it has.
        times.record(&step_of(64, 64, Duration::from_secs(1)));
        (0..100).for_each(|_| times.record(&step_of(100, 0, Duration::from_millis(100))));
        assert!((49..=51).contains(&times.symbols_within(target)), "{}", times.symbols_within(target));
        (0..100).for_each(|_| times.record(&step_of(100, 0, Duration::from_secs(100))));
        assert_eq!(times.symbols_within(target), MIN_SYMBOLS);
    }

    /// After one slow step, the smallest steps next to any number of rows that decode show that prompts are fast again.
    #[test]
    fn a_slow_step_is_forgotten() {
        for decoding in [0, 1, 8, 32] {
            let mut times = StepTimes::new(4, 256);
            times.record(&step_of(256, 1, Duration::from_secs(60)));
            let target = Duration::from_millis(50);
            assert_eq!(times.symbols_within(target), MIN_SYMBOLS);
            for _ in 0..100 {
                // the budget of `share_prompts`
                let chunk = times.symbols_within(target).min(256);
                let prompts = chunk.saturating_sub(decoding).max(chunk.div_ceil(2));
                times.record(&step_of(prompts + decoding, 1 + decoding, Duration::from_millis(1)));
            }
            assert!(times.symbols_within(target) > 256, "{decoding}: {}", times.symbols_within(target));
        }
    }

    fn measured(fixed: u64, steps: &[usize]) -> f64 {
        let mut times = StepTimes::new(4, 256);
        for &symbols in steps {
            times.record(&decoding(symbols, Duration::from_nanos(1000 * (fixed + symbols as u64))));
        }
        times.fixed_symbols()
    }

    #[test]
    fn the_fixed_time_is_found() {
        let steps: Vec<usize> = (0..400).map(|step| 1 + step % 5).collect();
        for fixed in [0, 1, 3, 10, 30] {
            let found = measured(fixed, &steps);
            assert!((found - fixed as f64).abs() < 0.3 + fixed as f64 * 0.1, "{fixed}: {found}");
        }
        assert_eq!(StepTimes::new(4, 256).fixed_symbols(), ASSUMED_FIXED);
    }

    #[test]
    fn a_step_of_many_symbols_is_a_measurement_and_steps_of_one_size_lead_back_to_the_assumption() {
        let steps: Vec<usize> = (0..400).map(|step| if step % 8 == 7 { 17 } else { 1 }).collect();
        let found = measured(2, &steps);
        assert!((found - 2.0).abs() < 0.2, "{found}");
        let equal = [steps, vec![1; 2000]].concat();
        assert!((measured(0, &equal) - ASSUMED_FIXED).abs() < 0.1);
    }

    /// Two rows of which one waits in every other step: steps with fewer fed symbols finish more of them.
    #[test]
    fn rows_that_waited_do_not_hide_the_time_of_a_symbol() {
        let mut times = StepTimes::new(4, 256);
        for step in 0..400 {
            let fed = 1 + step % 2;
            let finished = 3 - fed;
            times.record(&EngineStep {
                finished,
                finish_took: Duration::from_micros(5 + 5 * finished as u64),
                ..decoding(fed, Duration::from_micros(10 + 5 * fed as u64))
            });
        }
        let found = times.fixed_symbols();
        assert!((found - 1.5).abs() < 0.3, "{found}");
    }

    #[test]
    fn an_interruption_is_no_measurement() {
        let mut times = StepTimes::new(4, 256);
        (0..100).for_each(|step| times.record(&decoding(1 + step % 3, Duration::from_micros(10 + step as u64 % 3))));
        let before = times.fixed_symbols();
        times.record(&decoding(5, Duration::from_secs(1)));
        assert!((times.fixed_symbols() - before).abs() < 1e-6, "{before} {}", times.fixed_symbols());
    }

    /// Time of a part on the artificial machine, in nanoseconds: for its weights, for each position, for each key of a position.
    fn part(weights: f64, position: f64, key: f64, positions: usize, keys: f64) -> Duration {
        let positions = positions as f64;
        Duration::from_nanos((weights + positions * (position + key * keys)) as u64)
    }

    /// Full resolution: the weights take 40 µs after the middle stack and 30 µs otherwise.
    fn full(weights: f64, positions: usize, keys: f64) -> Duration {
        part(weights, 2_000.0, 10.0, positions, keys)
    }

    /// The weights of the middle stack take 160 µs.
    fn middle(positions: usize, keys: f64) -> Duration {
        part(160_000.0, 8_000.0, 20.0, positions, keys)
    }

    fn timing(rows: usize, symbols: usize, context: usize, segments: usize, closed: usize) -> StepTiming {
        let positions = rows * symbols;
        let keys = context as f64 + symbols as f64 / 2.0;
        let plain = full(30_000.0, positions, keys);
        StepTiming {
            shape: StepShape { rows, symbols, context, context_segments: segments, closed },
            samples: 5,
            spread: 0.1,
            symbol: full(40_000.0, positions, keys),
            middle: middle(closed, segments as f64 + closed as f64 / rows as f64 / 2.0),
            finish: full(40_000.0, positions, keys),
            plain: Some(PlainTiming { symbol: plain, finish: plain }),
        }
    }

    fn new_table(timings: Vec<StepTiming>) -> Option<TimingTable> {
        // a symbol or segment attends to eight bytes for each one before it
        TimingTable::new(timings, 4096, |symbols| symbols * 8, |segments| segments * 8, Duration::ZERO)
    }

    pub(crate) fn table() -> TimingTable {
        let mut timings: Vec<StepTiming> = [1, 2, 4, 8].map(|rows| timing(rows, 1, 16, 16, rows)).into();
        timings.extend([timing(1, 128, 0, 0, 128), timing(1, 128, 256, 256, 128), timing(1, 1, 384, 384, 1)]);
        new_table(timings).unwrap()
    }

    impl TimingTable {
        /// Estimated nanoseconds that a step would take more without pooling.
        fn extra(&self, step: &EngineStep) -> f64 {
            let estimate = self.estimate(step);
            estimate.unpooled - estimate.pooled
        }
    }

    /// Compares the estimate with the times of the artificial machine.
    #[track_caller]
    fn check(step: EngineStep) {
        let nanoseconds = |took: Duration| took.as_nanos() as f64;
        let middle = |positions, keys| if positions == 0 { 0.0 } else { nanoseconds(middle(positions, keys)) };
        let weights = if step.closed > 0 { 40_000.0 } else { 30_000.0 };
        let finish = if step.finished > 0 { full(weights, step.finished, step.context) } else { Duration::ZERO };
        let pooled = nanoseconds(full(weights, step.fed, step.context) + finish) + middle(step.closed, step.segments);
        let positions = step.fed + step.waiting;
        let unpooled = 2.0 * nanoseconds(full(40_000.0, positions, step.context)) + middle(positions, step.context);
        let actual = table().extra(&step);
        let expected = unpooled - pooled;
        assert!((actual - expected).abs() < 0.02 * unpooled, "{step:?}: {actual}, not {expected}");
    }

    fn step(fed: usize) -> EngineStep {
        EngineStep { fed, finished: fed, context: 100.0, segments: 20.0, ..EngineStep::default() }
    }

    #[test]
    fn estimates_equal_the_times_of_the_artificial_machine() {
        // without pooling, every step runs the middle stack
        [1, 2, 3, 6, 8].map(step).into_iter().for_each(check);
        // and its segment step takes every row, which attends to every symbol
        check(EngineStep { closed: 1, ..step(1) });
        check(EngineStep { closed: 2, ..step(5) });
        check(EngineStep { closed: 3, context: 384.0, segments: 70.0, ..step(8) });
        // waiting rows would be fed
        let waits = EngineStep { waiting: 2, finished: 3, ..step(3) };
        check(waits);
        assert!(table().extra(&waits) > table().extra(&EngineStep { waiting: 0, ..waits }));
        // contexts and chunks beyond the measured ones are extrapolated
        check(EngineStep { context: 2000.0, segments: 350.0, closed: 1, ..step(1) });
        check(EngineStep { context: 1000.0, segments: 150.0, closed: 4, ..step(24) });
        check(EngineStep { chunk: true, closed: 40, context: 128.0, segments: 20.0, ..step(256) });
        check(EngineStep { chunk: true, closed: 100, context: 900.0, segments: 150.0, ..step(100) });
    }

    #[test]
    fn pooling_saves_nothing_if_every_symbol_closes_a_segment() {
        let all = EngineStep { closed: 4, segments: 100.0, ..step(4) };
        assert!(table().extra(&all).abs() < 1e-6);
        assert!(table().extra(&EngineStep::default()).abs() < 1e-6, "an empty step");
    }

    #[test]
    fn a_table_needs_single_symbols() {
        assert!(new_table(Vec::new()).is_none());
        assert!(new_table(vec![timing(1, 128, 0, 0, 128)]).is_none());
        let single = new_table(vec![timing(1, 1, 16, 16, 1)]).unwrap();
        assert!(single.extra(&step(1)) > 160_000.0);
    }

    #[test]
    fn a_line_goes_through_its_points() {
        let line = PiecewiseLinear::through(vec![(8.0, 30.0), (2.0, 10.0), (8.0, 50.0), (0.0, 99.0)]).unwrap();
        assert_eq!([1.0, 2.0, 5.0, 8.0, 11.0].map(|x| line.evaluate(x)), [10.0, 10.0, 25.0, 40.0, 55.0]);
        let single = PiecewiseLinear::through(vec![(4.0, 20.0)]).unwrap();
        assert_eq!([1.0, 4.0, 8.0].map(|x| single.evaluate(x)), [20.0, 20.0, 40.0]);
    }

    #[test]
    fn a_table_of_a_busy_machine_is_doubted() {
        let doubt = |change: &dyn Fn(usize, &mut StepTiming)| {
            let mut timings = table().timings;
            timings.iter_mut().enumerate().for_each(|(index, timing)| change(index, timing));
            new_table(timings).unwrap().doubt()
        };
        assert_eq!(doubt(&|_, _| {}), None);
        // at the limits
        let at_limits = |_: usize, timing: &mut StepTiming| {
            timing.samples = MIN_SAMPLES;
            timing.spread = MAX_SPREAD;
        };
        assert_eq!(doubt(&at_limits), None);
        // three of seven steps are a minority
        assert_eq!(doubt(&|index, timing| timing.spread = if index < 3 { 0.9 } else { 0.05 }), None);
        let wide = doubt(&|index, timing| timing.spread = if index < 4 { 0.35 } else { 0.05 }).unwrap();
        assert!(wide.contains(" 35 % of their median") && wide.contains("more than 20 %"), "{wide}");
        let few = doubt(&|index, timing| timing.samples = if index == 6 { 4 } else { 31 }).unwrap();
        assert!(few.contains("timed 4 times, fewer than 5"), "{few}");
    }

    /// Extra nanoseconds of a step of each kind.
    #[derive(Debug, PartialEq)]
    struct Extra {
        plain: f64,
        closing: f64,
    }

    impl Extra {
        fn is_near(&self, other: &Self, factor: f64) -> bool {
            let near = |a: f64, b: f64| (a / b - factor).abs() < 1e-3;
            near(self.plain, other.plain) && near(self.closing, other.closing)
        }
    }

    fn closing() -> EngineStep {
        EngineStep { closed: 1, ..step(2) }
    }

    /// Runs both kinds of steps in turn, each `slowdown` times slower than the table; returns the last result.
    fn after(steps: usize, slowdown: f64, interruption: impl Fn(usize) -> f64) -> Extra {
        let table = table();
        let mut drift = DriftCorrection::default();
        let mut last = Extra { plain: 0.0, closing: 0.0 };
        for index in 0..steps {
            let mut extra = |step: EngineStep| {
                let took = table.estimate(&step).pooled * slowdown + interruption(index);
                drift.extra_nanoseconds(&table, &step, took)
            };
            last = Extra { plain: extra(step(2)), closing: extra(closing()) };
        }
        last
    }

    fn by_the_table() -> Extra {
        Extra { plain: table().extra(&step(2)), closing: table().extra(&closing()) }
    }

    #[test]
    fn recent_steps_correct_the_table() {
        assert_eq!(after(MIN_RATIOS - 1, 3.0, |_| 0.0), by_the_table(), "too few steps");
        let slow = after(40, 1.5, |_| 0.0);
        assert!(slow.is_near(&by_the_table(), 1.5), "a slower machine would be slower without pooling too: {slow:?}");
        let interrupted = after(40, 1.1, |index| if index % 3 == 0 { 5e6 } else { 0.0 });
        assert!(interrupted.is_near(&after(40, 1.1, |_| 0.0), 1.0), "interrupted steps do not count");
    }

    #[test]
    fn old_steps_are_forgotten() {
        let table = table();
        let mut drift = DriftCorrection::default();
        let took = table.estimate(&closing()).pooled;
        for slowdown in [9.0; KEPT_RATIOS].into_iter().chain([1.0; KEPT_RATIOS]) {
            drift.extra_nanoseconds(&table, &closing(), took * slowdown);
        }
        let last = drift.extra_nanoseconds(&table, &closing(), took);
        assert!((last / table.extra(&closing()) - 1.0).abs() < 1e-3);
    }
}
