//! Benchmark of prefill: a new sequence is fed the sample in chunks, with logits for the last symbol.

use crate::report::machine::{Machine, MeasuredModel};
use crate::report::sample::Sample;
use crate::report::{check_length, check_range, quantiles};
use serde::Serialize;
use std::time::Instant;
use weir_kernels::{Dtype, error::Result};
use weir_models::contract::{BoundaryOptions, Card, Model, Scratch, SequenceRow, SymbolBoundary, Want, advance};

/// Maximum timed runs.
pub const MAX_RUNS: usize = 10_000;

/// Parameters of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefillPlan {
    /// Symbols of the prompt.
    pub symbols: usize,
    /// Symbols per step.
    pub chunk: usize,
    /// Timed runs, after one untimed run.
    pub runs: usize,
}

impl PrefillPlan {
    /// Checks the plan against the limits of the model. The error names the command-line option and its limit.
    pub fn check(&self, card: &Card) -> Result<()> {
        let limit = card.max_symbols;
        check_length("--symbols", self.symbols, limit)?;
        check_range("--symbols", self.symbols, 1, limit)?;
        check_range("--chunk", self.chunk, 1, limit)
    }
}

/// Result of a prefill benchmark.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PrefillMeasurement {
    /// The model and the conditions of the measurement.
    #[serde(flatten)]
    pub measured: MeasuredModel,
    /// Symbols of the prompt.
    pub symbols: usize,
    /// Symbols per step.
    pub chunk: usize,
    /// Measured symbols per closed segment; `None` if no segment was closed.
    pub shortening_factor: Option<f64>,
    /// Symbols per second of the median run.
    pub symbols_per_second: f64,
    /// Median run.
    pub run_ns_p50: f64,
    /// 10th percentile of runs.
    pub run_ns_p10: f64,
    /// 90th percentile of runs.
    pub run_ns_p90: f64,
    /// Timed runs.
    pub runs: usize,
    /// GFLOP/s of the median run: two floating-point operations per multiply-add that the text needs.
    pub gflops: f64,
    /// Measured peak GFLOP/s of the machine in f32; `None` for int8, whose operations are not floating-point.
    pub peak_gflops: Option<f64>,
    /// Letters of the sample that are not in the vocabulary.
    pub foreign_letters: usize,
}

/// Measures a plan, and the machine's peak arithmetic. Fails if the plan exceeds a limit of the model, or a step fails.
pub fn measure(model: &dyn Model, plan: PrefillPlan, machine: &Machine) -> Result<PrefillMeasurement> {
    let card = model.card();
    plan.check(card)?;
    let sample = Sample::new(&card.vocabulary);
    let symbols = sample.window(Sample::start(0), plan.symbols);
    let mut scratch = model.scratch();
    let (marks, _) = run(model, &symbols, plan.chunk, &mut scratch)?;
    let times = (0..plan.runs).map(|_| Ok(run(model, &symbols, plan.chunk, &mut scratch)?.1));
    let times = quantiles(times.collect::<Result<_>>()?)?;
    let segments = marks.iter().filter(|mark| mark.boundary).count();
    Ok(PrefillMeasurement {
        measured: MeasuredModel::new(card, machine),
        symbols: plan.symbols,
        chunk: plan.chunk,
        shortening_factor: (segments > 0).then(|| plan.symbols as f64 / segments as f64),
        symbols_per_second: plan.symbols as f64 / times.median * 1e9,
        run_ns_p50: times.median,
        run_ns_p10: times.p10,
        run_ns_p90: times.p90,
        runs: plan.runs,
        gflops: 2.0 * multiply_adds(model, &marks) as f64 / times.median,
        peak_gflops: (!Dtype::parse(card.dtype).is_some_and(Dtype::is_integer))
            .then(|| 2.0 * machine.multiply_adds_per_second() / 1e9),
        foreign_letters: sample.foreign,
    })
}

/// Feeds a new sequence, `chunk` symbols per step. Returns its marks and the nanoseconds up to the logits after the last symbol.
fn run(model: &dyn Model, symbols: &[u32], chunk: usize, scratch: &mut Scratch) -> Result<(Vec<SymbolBoundary>, f64)> {
    let mut marks = Vec::with_capacity(symbols.len());
    let start = Instant::now();
    let mut row = SequenceRow::new(model.begin(BoundaryOptions::default())?);
    let chunks = symbols.len().div_ceil(chunk);
    for (index, symbols) in symbols.chunks(chunk).enumerate() {
        row.set(symbols, if index + 1 == chunks { Want::Last } else { Want::Nothing });
        advance(model, std::slice::from_mut(&mut row), &[0], scratch)?;
        marks.extend_from_slice(&row.decisions);
    }
    Ok((marks, start.elapsed().as_nanos() as f64))
}

/// Returns the multiply-adds that a text with these marks needs.
fn multiply_adds(model: &dyn Model, marks: &[SymbolBoundary]) -> usize {
    let mut sum = 0;
    let mut segments = 0;
    for (position, mark) in marks.iter().enumerate() {
        segments += usize::from(mark.boundary);
        let cost = model.cost(position + 1, segments);
        sum += cost.symbol.multiply_adds;
        sum += cost.segment_step(mark.closed_levels()).multiply_adds;
        if position + 1 == marks.len() {
            sum += cost.logits.multiply_adds;
        }
    }
    sum
}
