//! Prefill, timed: a fresh sequence is fed the sample in chunks, with the logits after the last symbol.

use super::{bounded, head::Head, machine::Machine, quantiles::Quantiles, sample::Sample};
use crate::{
    decode::contract::{BoundaryOptions, Card, Model, Scratch, SequenceRow, SymbolBoundary, Want, advance},
    error::{Error, Result},
    kernels::Dtype,
};
use serde::Serialize;
use std::time::Instant;

/// The most timed runs.
pub const MAX_RUNS: usize = 10_000;

/// What is to be timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Symbols of the prompt.
    pub symbols: usize,
    /// Symbols a step.
    pub chunk: usize,
    /// Timed runs, after one that is not timed.
    pub runs: usize,
}

impl Plan {
    /// Whether the model can do it.
    ///
    /// # Errors
    /// [`Error::BadOption`] or [`Error::TooLong`] with the command line's option and its bound.
    pub fn check(&self, card: &Card) -> Result<()> {
        let (length, limit) = (self.symbols, card.max_symbols);
        if length > limit {
            return Err(Error::TooLong { field: "--symbols", length, limit, unit: "characters", why: None });
        }
        bounded("--symbols", length, 1, limit)?;
        bounded("--chunk", self.chunk, 1, limit)?;
        bounded("--runs", self.runs, 1, MAX_RUNS)
    }
}

/// A measurement of prefill, as it is told.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Entry {
    /// The model, and what it runs on.
    #[serde(flatten)]
    pub head: Head,
    /// Symbols of the prompt.
    pub symbols: usize,
    /// Symbols a step.
    pub chunk: usize,
    /// Symbols for each segment closed, as met; none if none was closed.
    pub shortening_factor: Option<f64>,
    /// By the median run.
    pub symbols_per_second: f64,
    /// The median run.
    pub run_ns_p50: f64,
    /// A fast run.
    pub run_ns_p10: f64,
    /// A slow run.
    pub run_ns_p90: f64,
    /// Runs timed.
    pub runs: usize,
    /// Two for each multiply-add that the text needs, by the median run; 10⁹ a second.
    pub gflops: f64,
    /// What this machine's registers do at most, in f32; none where bytes are multiplied, which is other work.
    pub peak_gflops: Option<f64>,
    /// Letters of the sample that the vocabulary does not have.
    pub foreign_letters: usize,
}

/// Times a plan, beside the machine's ceiling.
///
/// # Errors
/// A plan that the model cannot do, and what its steps say.
pub fn measure(model: &dyn Model, plan: Plan, machine: &Machine) -> Result<Entry> {
    let card = model.card();
    plan.check(card)?;
    let sample = Sample::new(&card.vocabulary);
    let symbols = sample.window(Sample::start(0), plan.symbols);
    let mut scratch = model.scratch();
    let marks = run(model, &symbols, plan.chunk, &mut scratch)?.marks;
    let times = (0..plan.runs).map(|_| Ok(run(model, &symbols, plan.chunk, &mut scratch)?.ns));
    let times = Quantiles::of(times.collect::<Result<_>>()?);
    let times = times.ok_or_else(|| Error::Internal("no run was timed".into()))?;
    let segments = marks.iter().filter(|mark| mark.boundary).count();
    Ok(Entry {
        head: Head::new(card, machine),
        symbols: plan.symbols,
        chunk: plan.chunk,
        shortening_factor: (segments > 0).then(|| plan.symbols as f64 / segments as f64),
        symbols_per_second: plan.symbols as f64 / times.p50 * 1e9,
        run_ns_p50: times.p50,
        run_ns_p10: times.p10,
        run_ns_p90: times.p90,
        runs: plan.runs,
        gflops: 2.0 * multiply_adds(model, &marks) as f64 / times.p50,
        peak_gflops: (card.dtype != Dtype::Int8.name()).then(|| 2.0 * machine.multiply_adds_per_second() / 1e9),
        foreign_letters: sample.foreign(),
    })
}

/// One run.
struct Run {
    /// Of all symbols.
    marks: Vec<SymbolBoundary>,
    /// From the empty sequence to the logits after the last symbol.
    ns: f64,
}

/// Feeds a fresh sequence, `chunk` symbols a step.
fn run(model: &dyn Model, symbols: &[u32], chunk: usize, scratch: &mut Scratch) -> Result<Run> {
    let mut marks = Vec::with_capacity(symbols.len());
    let begun = Instant::now();
    let mut row = SequenceRow::new(model.begin(BoundaryOptions::default())?);
    let chunks = symbols.len().div_ceil(chunk);
    for (index, symbols) in symbols.chunks(chunk).enumerate() {
        row.set(symbols, if index + 1 == chunks { Want::Last } else { Want::Nothing });
        advance(model, std::slice::from_mut(&mut row), &[0], scratch)?;
        marks.extend_from_slice(&row.decisions);
    }
    Ok(Run { marks, ns: begun.elapsed().as_nanos() as f64 })
}

/// Multiply-adds that a text needs whose symbols have these marks.
fn multiply_adds(model: &dyn Model, marks: &[SymbolBoundary]) -> usize {
    let (mut sum, mut segments) = (0, 0);
    for (position, mark) in marks.iter().enumerate() {
        segments += usize::from(mark.boundary);
        let cost = model.cost(position + 1, segments);
        sum += cost.symbol.multiply_adds;
        if mark.boundary {
            sum += cost.segment.multiply_adds;
        }
        if position + 1 == marks.len() {
            sum += cost.logits.multiply_adds;
        }
    }
    sum
}
