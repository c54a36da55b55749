//! Calibration: measures how long a model's steps take on this machine, to estimate how long they would take without pooling.
//!
//! [`measure`] fills a [`TimingTable`]. All rows have the same prefix, at whose end a symbol was found that ends a segment. It
//! is fed to several rows at once, which are then rolled back, so each step is measured repeatedly at one position. Kinds of
//! steps are measured in turn: a slow phase then affects all, and estimates follow from their proportions. The caller makes sure
//! that nothing else runs; a busy machine gives a doubtful table, which a later measurement may replace.

use crate::clock;
pub use crate::step_times::{PlainTiming, StepShape, StepTiming, TimingTable};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use weir_kernels::error::{Error, Result};
use weir_kernels::sync::lock;
use weir_models::contract::{
    BoundaryMode, BoundaryOptions, Model, Scratch, SequenceRow, StepStatus, Want, advance, segment_steps,
};
use weir_models::usage::MAX_LEVELS;

/// Numbers of rows that are fed one symbol each.
const ROWS: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// The first of `ROWS` that are measured before chunks.
const FEW_ROWS: usize = 3;

/// Minimum symbols of the common prefix.
const MIN_PREFIX: usize = 16;

/// Symbols of a row for the step at a long context.
const LONG_CONTEXT: usize = 384;

const CHUNKS: [usize; 2] = [32, 128];

/// Positions at which the end of a segment is looked for.
const POSITIONS: usize = 64;

const SYMBOLS_TRIED: usize = 64;

/// Number of different symbols in the common prefix; which ones does not matter.
const PREFIX_SYMBOLS: usize = 4;

/// How often each step is measured, if there is time.
const PASSES: usize = 31;

/// The measured step times, or why there are none.
pub type Calibrated = Result<Arc<TimingTable>, NotCalibrated>;

/// Why a model has no table of step times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotCalibrated {
    /// The model does not pool, or reads documents.
    DoesNotPool,
    /// The model writes the ends of its segments itself: without them it would be another model.
    WritesBoundaries,
    /// No symbol that was tried ended a segment.
    NoBoundary,
    /// The caller stopped it.
    Stopped,
    /// Its time limit is zero.
    NoTime,
    /// There is not enough key-value memory.
    NoMemory,
    /// A step failed.
    Failed,
}

impl NotCalibrated {
    /// Returns the reason as a text for users.
    pub fn reason(self) -> &'static str {
        match self {
            Self::DoesNotPool => "the model does not pool text",
            Self::WritesBoundaries => {
                "the model writes its segment boundaries itself, so there is no model without them to compare with"
            }
            Self::NoBoundary => "not calibrated: no symbol that was tried ended a segment",
            Self::Stopped => "not calibrated yet: the server times the model's steps once no request runs",
            Self::NoTime => "not calibrated: its time limit is 0",
            Self::Failed => "not calibrated: a step failed; see the log",
            Self::NoMemory => "not calibrated: not enough key-value memory",
        }
    }
}

impl From<Error> for NotCalibrated {
    fn from(error: Error) -> Self {
        if matches!(error, Error::OutOfPages { .. }) {
            return Self::NoMemory;
        }
        tracing::warn!(%error, "a timed step failed");
        Self::Failed
    }
}

/// Measures with `measure` and stores the result in `latest`, unless that has a reliable table or a failure.
pub(crate) fn measure_once(
    latest: &Mutex<Option<Calibrated>>,
    measure: impl FnOnce() -> Result<TimingTable, NotCalibrated>,
) -> Calibrated {
    let known = lock(latest).clone();
    match &known {
        Some(Ok(table)) if table.doubt().is_some() => {}
        Some(decided) => return decided.clone(),
        None => {}
    }
    // a panic in a timed step must not keep the model from serving
    let calibrated = match catch_unwind(AssertUnwindSafe(measure)) {
        Ok(measured) => measured.map(Arc::new),
        Err(_) => {
            tracing::error!("a timed step panicked");
            Err(NotCalibrated::Failed)
        }
    };
    let decides = known.is_none() && !matches!(calibrated, Err(NotCalibrated::Stopped));
    if calibrated.is_ok() || decides {
        *lock(latest) = Some(calibrated.clone());
    }
    calibrated
}

/// Nanoseconds of the three parts of a step.
#[derive(Debug, Clone, Copy)]
struct StepSample {
    symbol: u64,
    middle: u64,
    finish: u64,
}

#[derive(Debug, Default)]
struct Samples {
    /// Steps with a segment step.
    closing: Vec<StepSample>,
    /// Steps without one.
    plain: Vec<StepSample>,
}

impl Samples {
    fn push(&mut self, sample: StepSample, closing: bool) {
        let samples = if closing { &mut self.closing } else { &mut self.plain };
        samples.push(sample);
    }
}

/// Returns the medians of `samples` of steps of this shape; `None` if no step closed a segment.
fn timing(shape: StepShape, samples: &Samples) -> Option<StepTiming> {
    let Samples { closing, plain } = samples;
    let plain_symbol = median(plain, |sample| sample.symbol);
    let plain_finish = median(plain, |sample| sample.finish);
    Some(StepTiming {
        shape,
        samples: closing.len(),
        spread: spread(closing).max(spread(plain)),
        symbol: median(closing, |sample| sample.symbol)?,
        middle: median(closing, |sample| sample.middle)?,
        finish: median(closing, |sample| sample.finish)?,
        plain: plain_symbol.zip(plain_finish).map(|(symbol, finish)| PlainTiming { symbol, finish }),
    })
}

/// Returns the interquartile range of whole steps, divided by their median; 0 without samples.
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

/// A position and a symbol that ends a segment there, or one that does not.
#[derive(Debug, Clone, Copy)]
struct Probe {
    len: usize,
    symbol: u32,
}

struct Timer<'a> {
    model: &'a dyn Model,
    /// Called before each step; `Break` stops the measurement.
    go_on: &'a mut dyn FnMut() -> ControlFlow<()>,
    scratch: Scratch,
    prefix: Vec<u32>,
    /// A symbol that ends a segment.
    closing: Probe,
    /// A symbol that ends none.
    plain: Option<Probe>,
    rows: Vec<SequenceRow>,
    long: Vec<SequenceRow>,
}

struct Measurement {
    kind: StepKind,
    shape: Option<StepShape>,
    samples: Samples,
}

/// Measures the model's steps for about `budget`. Calls `go_on` before each step; `Break` stops the measurement.
pub fn measure(
    model: &dyn Model,
    max_rows: usize,
    budget: Duration,
    go_on: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<TimingTable, NotCalibrated> {
    if budget.is_zero() {
        return Err(NotCalibrated::NoTime);
    }
    if !model.card().pooled || model.document_encoder().is_some() {
        return Err(NotCalibrated::DoesNotPool);
    }
    if model.card().boundary_modes.contains(&BoundaryMode::Nxt) {
        return Err(NotCalibrated::WritesBoundaries);
    }
    let began = Instant::now();
    let mut timer = Timer::find_boundary(model, go_on)?;
    let measurement = |kind| Measurement { kind, shape: None, samples: Samples::default() };
    let mut measurements: Vec<Measurement> = timer.kinds(max_rows).into_iter().map(measurement).collect();
    for pass in 0..PASSES {
        let mut index = 0;
        while let Some(Measurement { kind, shape, samples }) = measurements.get_mut(index) {
            // a table needs at least one step
            if began.elapsed() > budget && pass + index > 0 {
                return table(model, &measurements, began);
            }
            match timer.measure(*kind, samples) {
                Ok(measured) => *shape = Some(measured),
                // leave out the steps that lack memory, and those that need more
                Err(NotCalibrated::NoMemory) if pass + index > 0 => {
                    let failed = *kind;
                    measurements.retain(|measurement| !measurement.kind.needs_memory_of(failed));
                    continue;
                }
                Err(why) => return Err(why),
            }
            index += 1;
        }
    }
    table(model, &measurements, began)
}

fn table(model: &dyn Model, measurements: &[Measurement], began: Instant) -> Result<TimingTable, NotCalibrated> {
    let timings = measurements.iter().filter_map(|measurement| timing(measurement.shape?, &measurement.samples));
    let max_symbols = model.card().max_symbols;
    let symbol_bytes = |symbols| model.cost(symbols, 0).symbol.own_bytes;
    // without pooling, the layers of every level run at each symbol
    let segment_bytes = |segments| model.cost(max_symbols, segments).segment_step(MAX_LEVELS).own_bytes;
    TimingTable::new(timings.collect(), max_symbols, symbol_bytes, segment_bytes, began.elapsed())
        .ok_or(NotCalibrated::NoBoundary)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepKind {
    /// This number of rows is fed a symbol each.
    Rows(usize),
    /// A row of `context` symbols is fed `length` symbols.
    Chunk { context: usize, length: usize },
    /// The row of the last chunk is fed a symbol.
    Long,
}

impl StepKind {
    fn needs_memory_of(self, other: Self) -> bool {
        match (self, other) {
            (Self::Rows(rows), Self::Rows(others)) => rows >= others,
            (Self::Rows(_), _) | (_, Self::Rows(_)) => false,
            (_, Self::Long) | (Self::Long, _) => true,
            (Self::Chunk { context: a, length: b }, Self::Chunk { context: c, length: d }) => a + b >= c + d,
        }
    }
}

impl<'a> Timer<'a> {
    /// Looks for a position and a symbol that ends a segment there. Fails if there is none, a step fails, or the caller stops it.
    fn find_boundary(
        model: &'a dyn Model,
        go_on: &'a mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Self, NotCalibrated> {
        let mut timer = Self {
            model,
            go_on,
            scratch: model.scratch(),
            prefix: Vec::new(),
            closing: Probe { len: 0, symbol: 0 },
            plain: None,
            rows: Vec::new(),
            long: Vec::new(),
        };
        let symbols: Vec<u32> = model.card().vocabulary.text_ids().take(SYMBOLS_TRIED.max(256)).collect();
        if symbols.is_empty() {
            return Err(NotCalibrated::NoBoundary);
        }
        let max_symbols = model.card().max_symbols;
        let start = MIN_PREFIX.min(max_symbols.saturating_sub(2) / 2);
        let end = start + POSITIONS.min(max_symbols.saturating_sub(MIN_PREFIX + 1));
        timer.grow(1)?;
        let mut closing = None;
        for len in 0..end {
            if len >= start {
                // every symbol of a small vocabulary; other ones of a large vocabulary at each position
                let first = len * SYMBOLS_TRIED % symbols.len();
                for symbol in symbols.iter().copied().cycle().skip(first).take(SYMBOLS_TRIED) {
                    let probe = Probe { len, symbol };
                    let closes = timer.closes(probe)?;
                    if closes && closing.is_none() {
                        closing = Some(probe);
                    } else if !closes && timer.plain.is_none() {
                        timer.plain = Some(probe);
                    }
                    if closing.is_some() && timer.plain.is_some() {
                        break;
                    }
                }
            }
            if let (Some(closing), true) = (closing, timer.plain.is_some() || len + 1 == end) {
                timer.closing = closing;
                return Ok(timer);
            }
            let next = symbols[len % symbols.len().min(PREFIX_SYMBOLS)];
            timer.prefix.push(next);
            timer.feed(0, next)?;
        }
        Err(NotCalibrated::NoBoundary)
    }

    /// Returns true if the probe ends a segment of the first row, which is at its position.
    fn closes(&mut self, Probe { len, symbol }: Probe) -> Result<bool, NotCalibrated> {
        // not from an earlier probe's rollback: the boundaries of symbols that are fed again would count
        self.rewind(0, len)?;
        self.rows[0].set(&[symbol], Want::Last);
        self.proceed()?;
        let (_, closes) = timed_step(self.model, &mut self.rows[..1], &mut self.scratch)?;
        self.rows[0].state.rollback(len)?;
        Ok(closes)
    }

    /// Fails once the caller stops the measurement.
    fn proceed(&mut self) -> Result<(), NotCalibrated> {
        match (self.go_on)() {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(NotCalibrated::Stopped),
        }
    }

    fn feed(&mut self, row: usize, symbol: u32) -> Result<(), NotCalibrated> {
        self.proceed()?;
        self.rows[row].set(&[symbol], Want::Nothing);
        Ok(advance(self.model, &mut self.rows, &[row], &mut self.scratch)?)
    }

    /// Returns a row to the first `len` symbols and feeds the last one anew: a model that cannot rewind feeds symbols again
    /// after a rollback, which must not be measured.
    fn rewind(&mut self, row: usize, len: usize) -> Result<(), NotCalibrated> {
        let Some(last) = len.checked_sub(1) else { return Ok(self.rows[row].state.rollback(0)?) };
        self.rows[row].state.rollback(last)?;
        self.feed(row, self.prefix[last])
    }

    fn grow(&mut self, rows: usize) -> Result<(), NotCalibrated> {
        while self.rows.len() < rows {
            let row = self.rows.len();
            self.rows.push(SequenceRow::new(self.model.begin(BoundaryOptions::default())?));
            // symbol by symbol, as in the search: windows roll back only a few symbols
            for index in 0..self.prefix.len() {
                self.feed(row, self.prefix[index])?;
            }
        }
        Ok(())
    }

    /// Returns the kinds of steps to measure, the most important first: few rows, long contexts, many rows.
    fn kinds(&self, max_rows: usize) -> Vec<StepKind> {
        let rows = |range: &[usize]| {
            let allowed = range.iter().filter(|&&rows| rows <= max_rows.max(1));
            allowed.map(|&rows| StepKind::Rows(rows)).collect::<Vec<_>>()
        };
        let max_context = LONG_CONTEXT.min(self.model.card().max_symbols.saturating_sub(1));
        let lengths = CHUNKS.into_iter().filter(|&length| length <= max_context);
        let chunks = lengths.clone().map(|length| StepKind::Chunk { context: 0, length });
        let deepest = lengths.max().map(|length| StepKind::Chunk { context: max_context - length, length });
        let long = chunks.chain(deepest.into_iter().flat_map(|chunk| [chunk, StepKind::Long]));
        rows(&ROWS[..FEW_ROWS]).into_iter().chain(long).chain(rows(&ROWS[FEW_ROWS..])).collect()
    }

    /// Measures one kind of step once. Returns its shape.
    fn measure(&mut self, kind: StepKind, samples: &mut Samples) -> Result<StepShape, NotCalibrated> {
        match kind {
            StepKind::Rows(rows) => {
                self.grow(rows)?;
                for closing in [true, false] {
                    self.measure_rows(rows, closing, samples)?;
                }
                let context_segments = self.rows[0].state.segments();
                Ok(StepShape { rows, symbols: 1, context: self.closing.len, context_segments, closed: rows })
            }
            StepKind::Chunk { context, length } => {
                if self.long.is_empty() {
                    self.long.push(SequenceRow::new(self.model.begin(BoundaryOptions::default())?));
                }
                self.long[0].state.restart(0);
                self.fill(context)?;
                let context_segments = self.long[0].state.segments();
                self.long[0].set(&vec![self.closing.symbol; length], Want::Last);
                self.proceed()?;
                let (sample, _) = timed_step(self.model, &mut self.long, &mut self.scratch)?;
                samples.push(sample, true);
                let closed = self.long[0].decisions.iter().filter(|decision| decision.boundary).count();
                Ok(StepShape { rows: 1, symbols: length, context, context_segments, closed })
            }
            StepKind::Long => self.measure_long(samples),
        }
    }

    /// Measures the second of two steps of rows that all end a segment, or all end none: its caches are warm.
    fn measure_rows(&mut self, rows: usize, closing: bool, samples: &mut Samples) -> Result<(), NotCalibrated> {
        let probe = if closing { Some(self.closing) } else { self.plain };
        let Some(probe) = probe else { return Ok(()) };
        for timed in [false, true] {
            for row in 0..rows {
                self.rewind(row, probe.len)?;
                self.rows[row].set(&[probe.symbol], Want::Last);
            }
            self.proceed()?;
            let (sample, closes) = timed_step(self.model, &mut self.rows[..rows], &mut self.scratch)?;
            if timed && closes == closing {
                samples.push(sample, closing);
            }
            for row in 0..rows {
                self.rows[row].state.rollback(probe.len)?;
                for index in probe.len..self.prefix.len() {
                    self.feed(row, self.prefix[index])?;
                }
            }
        }
        Ok(())
    }

    /// Feeds the long row `symbols` symbols that end segments wherever the model allows it.
    fn fill(&mut self, symbols: usize) -> Result<(), NotCalibrated> {
        for start in (0..symbols).step_by(CHUNKS[1]) {
            let count = CHUNKS[1].min(symbols - start);
            self.long[0].set(&vec![self.closing.symbol; count], Want::Nothing);
            self.proceed()?;
            timed_step(self.model, &mut self.long, &mut self.scratch)?;
        }
        Ok(())
    }

    /// Measures a symbol of the long row a few times, if it ends a segment. Skips the first, after which caches are warm.
    fn measure_long(&mut self, samples: &mut Samples) -> Result<StepShape, NotCalibrated> {
        // back by one, so that there is room for a symbol in any case
        let context = self.long[0].state.len().saturating_sub(1);
        let mut context_segments = 0;
        for timed in [false, true, true, true] {
            // the last symbol is fed anew, as in `rewind`
            self.long[0].state.rollback(context.saturating_sub(1))?;
            if context > 0 {
                self.fill(1)?;
            }
            context_segments = self.long[0].state.segments();
            self.long[0].set(&[self.closing.symbol], Want::Last);
            self.proceed()?;
            let (sample, closes) = timed_step(self.model, &mut self.long, &mut self.scratch)?;
            if timed && closes {
                samples.push(sample, true);
            }
        }
        Ok(StepShape { rows: 1, symbols: 1, context, context_segments, closed: 1 })
    }
}

/// Runs a step of `rows`, whose feeds are set. Returns its times, and true if the first row waited for its segment step.
fn timed_step(model: &dyn Model, rows: &mut [SequenceRow], scratch: &mut Scratch) -> Result<(StepSample, bool)> {
    let which: Vec<usize> = (0..rows.len()).collect();
    let began = Instant::now();
    model.symbol_step(rows, &which, scratch)?;
    let fed = Instant::now();
    let closes = rows[0].status == StepStatus::Waiting;
    segment_steps(model, rows, &which, scratch)?;
    let closed = Instant::now();
    model.finish_step(rows, &which, scratch)?;
    let sample = StepSample {
        symbol: clock::nanoseconds(fed - began),
        middle: clock::nanoseconds(closed - fed),
        finish: clock::nanoseconds(closed.elapsed()),
    };
    Ok((sample, closes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step_times::tests::table;

    /// Returns the timing of steps with these total times, with and without a segment step.
    fn timing_of(closing: &[u64], plain: &[u64]) -> StepTiming {
        let mut samples = Samples::default();
        for &total in closing {
            let middle = total / 2;
            samples.push(StepSample { symbol: total / 4, middle, finish: total - total / 4 - middle }, true);
        }
        for &total in plain {
            samples.push(StepSample { symbol: total / 2, middle: 0, finish: total - total / 2 }, false);
        }
        let shape = StepShape { rows: 1, symbols: 1, context: 16, context_segments: 4, closed: 1 };
        timing(shape, &samples).unwrap()
    }

    #[test]
    fn a_spread_is_the_interquartile_range_of_whole_steps() {
        let even: Vec<u64> = (0..8).map(|step| 1000 + step * 10).collect();
        // from the first value of the second quarter to the first value of the last
        assert_eq!(timing_of(&even, &[]).spread, 40.0 / 1040.0);
        // the wider of both kinds, in any order
        assert_eq!(timing_of(&even, &[300, 100, 400, 200]).spread, 200.0 / 300.0);
        // one interrupted step in ten has no effect
        let interrupted: Vec<u64> = (0..30).map(|step| if step % 10 == 0 { 9000 } else { 1000 }).collect();
        assert_eq!(timing_of(&interrupted, &[]).spread, 0.0);
        let half: Vec<u64> = (0..30).map(|step| if step % 2 == 0 { 3000 } else { 1000 }).collect();
        assert!(timing_of(&half, &[]).spread > 0.6);
        assert_eq!(timing_of(&[7], &[]).spread, 0.0);
    }

    /// Returns a table of a busy machine.
    fn doubtful_table() -> TimingTable {
        let mut table = table();
        table.timings.iter_mut().for_each(|timing| timing.spread = 0.9);
        table
    }

    #[test]
    fn a_doubtful_calibration_is_replaced_and_a_reliable_one_is_final() {
        let latest: Mutex<Option<Calibrated>> = Mutex::default();
        let known = || lock(&latest).clone().and_then(Result::ok).map(|table| table.doubt().is_some());
        assert_eq!(measure_once(&latest, || Err(NotCalibrated::Stopped)), Err(NotCalibrated::Stopped));
        assert!(lock(&latest).is_none(), "it may be tried again");
        assert!(measure_once(&latest, || Ok(doubtful_table())).unwrap().doubt().is_some());
        assert_eq!(known(), Some(true));
        // A repetition that fails reports it, and keeps the doubtful table.
        for failure in [NotCalibrated::Stopped, NotCalibrated::NoMemory] {
            assert_eq!(measure_once(&latest, || Err(failure)), Err(failure));
        }
        assert_eq!(measure_once(&latest, || Err(Error::Internal("x".into()).into())), Err(NotCalibrated::Failed));
        assert_eq!(measure_once(&latest, || panic!("x")), Err(NotCalibrated::Failed));
        assert_eq!(known(), Some(true));
        assert!(measure_once(&latest, || Ok(table())).unwrap().doubt().is_none());
        assert_eq!(known(), Some(false));
        // A reliable table and a failure at first are final: nothing is measured.
        measure_once(&latest, || unreachable!()).unwrap();
        let failed = Mutex::default();
        assert_eq!(measure_once(&failed, || Err(NotCalibrated::NoBoundary)), Err(NotCalibrated::NoBoundary));
        assert_eq!(measure_once(&failed, || Ok(table())), Err(NotCalibrated::NoBoundary));
    }
}
