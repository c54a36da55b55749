//! Decoding, timed: rows that each hold a context are fed one symbol a step, teacher-forced on the sample.
//!
//! Only the steps themselves are timed, logits included, sampling not. They are timed one by one: a step that closes a segment
//! is slower than its neighbours, so the median of the steps tells less than their sum, from which the speed comes.

use super::{bounded, machine::Machine, quantiles::Quantiles, sample::Sample};
use crate::{
    decode::{
        contract::{BoundaryOptions, Card, Model, Row, Scratch, Want, advance},
        cost::StepCost,
    },
    error::{Error, Result},
};
use serde::Serialize;
use std::time::Instant;

/// The most rows.
pub const MAX_BATCH: usize = 1024;
/// The most steps of one run.
pub const MAX_STEPS: usize = 1 << 20;
/// Steps before those that are timed.
const WARM_UP: usize = 32;
/// Symbols a step while the context is fed.
const CHUNK: usize = 512;

/// What is to be timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Rows of a step.
    pub batch: usize,
    /// Symbols that each row holds before the first timed step.
    pub context: usize,
    /// Timed steps, one symbol a row each.
    pub steps: usize,
}

impl Plan {
    /// Whether the model can do it.
    ///
    /// # Errors
    /// [`Error::BadOption`] or [`Error::TooLong`] with the command line's option and its bound.
    pub fn check(&self, card: &Card) -> Result<()> {
        bounded("--batch", self.batch, 1, MAX_BATCH)?;
        bounded("--steps", self.steps, 1, MAX_STEPS)?;
        let (limit, unit) = (card.max_symbols, "characters");
        if self.context >= limit {
            // at least one step has to fit behind it
            return Err(Error::TooLong { field: "--context", length: self.context, limit: limit - 1, unit });
        }
        let length = self.context + self.steps;
        if length > limit {
            return Err(Error::TooLong { field: "--context and --steps together", length, limit, unit });
        }
        Ok(())
    }
}

/// What one timed run of a plan's steps found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Run {
    /// Nanoseconds of each step.
    pub step_ns: Vec<f64>,
    /// Symbols fed, of all rows together.
    pub symbols: usize,
    /// Segments that they closed.
    pub segments: usize,
    /// Bytes that had to be read.
    pub bytes: usize,
}

impl Run {
    /// All its steps together.
    pub fn seconds(&self) -> f64 {
        self.step_ns.iter().sum::<f64>() / 1e9
    }

    /// Takes in another run.
    pub fn extend(&mut self, other: Self) {
        self.step_ns.extend(other.step_ns);
        self.symbols += other.symbols;
        self.segments += other.segments;
        self.bytes += other.bytes;
    }
}

/// Rows with their context, ready to be timed again and again.
pub struct Decoding<'a> {
    model: &'a dyn Model,
    sample: &'a Sample,
    plan: Plan,
    rows: Vec<Row>,
    which: Vec<usize>,
    scratch: Scratch,
}

/// What a row's step closed: noted while time is measured, reckoned up afterwards.
#[derive(Clone, Copy)]
struct Met {
    closes: bool,
    segments: usize,
}

impl Met {
    fn of(row: &Row) -> Self {
        Self { closes: row.marks.iter().any(|mark| mark.boundary), segments: row.state.segments() }
    }
}

impl<'a> Decoding<'a> {
    /// Feeds each row its context, then runs steps until everything is warm.
    ///
    /// # Errors
    /// A plan that the model cannot do, and what its steps say.
    pub fn begin(model: &'a dyn Model, sample: &'a Sample, plan: Plan) -> Result<Self> {
        plan.check(model.card())?;
        let (mut rows, mut scratch) = (Vec::with_capacity(plan.batch), model.scratch());
        for index in 0..plan.batch {
            let start = Sample::start(index);
            let mut row = Row::new(model.begin(BoundaryOptions { offset: start, ..BoundaryOptions::default() })?);
            for chunk in sample.window(start, plan.context).chunks(CHUNK) {
                row.set(chunk, Want::Nothing);
                advance(model, std::slice::from_mut(&mut row), &[0], &mut scratch)?;
            }
            rows.push(row);
        }
        let which = (0..plan.batch).collect();
        let mut decoding = Self { model, sample, plan, rows, which, scratch };
        decoding.steps(WARM_UP.min(plan.steps))?;
        Ok(decoding)
    }

    /// Times the plan's steps once; the rows are then back at their context.
    ///
    /// # Errors
    /// What the model's steps say.
    pub fn run(&mut self) -> Result<Run> {
        self.steps(self.plan.steps)
    }

    fn steps(&mut self, steps: usize) -> Result<Run> {
        let (mut step_ns, mut met) = (Vec::with_capacity(steps), Vec::with_capacity(steps * self.rows.len()));
        for step in 0..steps {
            for (index, row) in self.rows.iter_mut().enumerate() {
                let symbol = self.sample.at(Sample::start(index) + self.plan.context + step);
                row.set(&[symbol], Want::Last);
            }
            let begun = Instant::now();
            advance(self.model, &mut self.rows, &self.which, &mut self.scratch)?;
            step_ns.push(begun.elapsed().as_nanos() as f64);
            met.extend(self.rows.iter().map(Met::of));
        }
        for row in &mut self.rows {
            row.state.rollback(self.plan.context)?;
        }
        let bytes = met
            .chunks_exact(self.rows.len())
            .enumerate()
            .map(|(step, met)| step_bytes(self.model, self.plan.context + step + 1, met))
            .sum();
        let segments = met.iter().filter(|met| met.closes).count();
        Ok(Run { step_ns, symbols: met.len(), segments, bytes })
    }
}

/// Bytes that a step has to read whose rows have come to `symbols` symbols. What rows share counts once, and nothing counts
/// for a segment step that no row needed.
fn step_bytes(model: &dyn Model, symbols: usize, met: &[Met]) -> usize {
    let (mut own, mut shared, mut segment_shared) = (0, 0, 0);
    for &Met { closes, segments } in met {
        let cost = model.cost(symbols, segments);
        let StepCost { shared_bytes, own_bytes, .. } = cost.symbol;
        own += own_bytes + cost.logits.own_bytes;
        shared = shared_bytes + cost.logits.shared_bytes;
        if closes {
            own += cost.segment.own_bytes;
            segment_shared = cost.segment.shared_bytes.max(segment_shared);
        }
    }
    own + shared + segment_shared
}

/// A measurement of decoding, as it is told.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Entry {
    /// The model's name.
    pub model: String,
    /// Its family.
    pub family: &'static str,
    /// What it computes in.
    pub dtype: &'static str,
    /// Threads that shared each step.
    pub threads: usize,
    /// Rows of a step.
    pub batch: usize,
    /// Symbols that each row held before the first step.
    pub context: usize,
    /// Symbols fed for each segment closed, as met; none if none was closed.
    pub shortening_factor: Option<f64>,
    /// Symbols of all rows together, by the sum of all steps.
    pub chars_per_second: f64,
    /// The median step.
    pub step_ns_p50: f64,
    /// Bytes that had to be read for each symbol.
    pub bytes_per_char: f64,
    /// Those, times the speed.
    pub achieved_bytes_per_second: f64,
    /// What this machine reads from a working set as large as what a step reads on the average.
    pub ceiling_bytes_per_second: f64,
    /// A fast step.
    pub step_ns_p10: f64,
    /// A slow step.
    pub step_ns_p90: f64,
    /// Steps timed.
    pub steps: usize,
    /// Letters of the sample that the vocabulary does not have: where there are any, boundaries are not English.
    pub foreign_letters: usize,
}

impl Entry {
    /// What a run found, beside the machine's ceiling, which is measured now.
    ///
    /// # Errors
    /// [`Error::Internal`] if there was no step.
    pub fn new(decoding: &Decoding<'_>, run: Run, machine: &Machine) -> Result<Self> {
        let (card, plan) = (decoding.model.card(), decoding.plan);
        let (steps, seconds) = (run.step_ns.len(), run.seconds().max(1e-9));
        let bytes_per_step = run.bytes / steps.max(1);
        let empty = || Error::Internal("no step was timed".into());
        let step_ns = Quantiles::of(run.step_ns).ok_or_else(empty)?;
        Ok(Self {
            model: card.name.clone(),
            family: card.family,
            dtype: card.dtype,
            threads: machine.pool.threads(),
            batch: plan.batch,
            context: plan.context,
            shortening_factor: (run.segments > 0).then(|| run.symbols as f64 / run.segments as f64),
            chars_per_second: run.symbols as f64 / seconds,
            step_ns_p50: step_ns.p50,
            bytes_per_char: run.bytes as f64 / run.symbols as f64,
            achieved_bytes_per_second: run.bytes as f64 / seconds,
            ceiling_bytes_per_second: machine.read_bytes_per_second(bytes_per_step)?,
            step_ns_p10: step_ns.p10,
            step_ns_p90: step_ns.p90,
            steps,
            foreign_letters: decoding.sample.foreign(),
        })
    }
}

/// Times a plan once.
///
/// # Errors
/// A plan that the model cannot do, and what its steps say.
pub fn measure(model: &dyn Model, plan: Plan, machine: &Machine) -> Result<Entry> {
    let sample = Sample::new(&model.card().vocabulary);
    let mut decoding = Decoding::begin(model, &sample, plan)?;
    let run = decoding.run()?;
    Entry::new(&decoding, run, machine)
}
