//! Decoding, timed: rows that each hold a context are fed symbol by symbol, teacher-forced on the sample, in rounds as the
//! engine steps them: every ready row is fed, those that closed a segment wait for each other as [`gather`] says, and
//! whoever does not wait is finished.
//!
//! Only the model's steps are timed, logits included, sampling not. Rounds are timed one by one: one that closes a segment
//! is slower than its neighbours, so the median of them tells less than their sum, from which the speed comes.

use super::{
    bounded,
    head::Head,
    machine::Machine,
    quantiles::{Quantiles, quantile},
    rounds::{Notes, Run},
    sample::Sample,
};
use crate::{
    decode::{
        boundary_wait,
        contract::{BoundaryOptions, Card, Model, Scratch, SequenceRow, StepStatus, Want, advance},
    },
    error::{Error, Result},
};
use serde::Serialize;
use std::time::{Duration, Instant};

/// The most rows.
pub const MAX_BATCH: usize = 1024;
/// The most rounds of one run.
pub const MAX_STEPS: usize = 1 << 20;
/// Rounds before those that are timed.
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
    /// Timed rounds; in each, every row that does not wait gets one symbol.
    pub steps: usize,
    /// Rounds that a row may wait for its segment step.
    pub boundary_wait: usize,
}

impl Plan {
    /// Whether the model can do it.
    ///
    /// # Errors
    /// [`Error::BadOption`] or [`Error::TooLong`] with the command line's option and its bound.
    pub fn check(&self, card: &Card) -> Result<()> {
        bounded("--batch", self.batch, 1, MAX_BATCH)?;
        bounded("--steps", self.steps, 1, MAX_STEPS)?;
        bounded("--boundary-wait", self.boundary_wait, 0, boundary_wait::MAX_BOUNDARY_WAIT)?;
        let (limit, unit) = (card.max_symbols, "characters");
        if self.context >= limit {
            // at least one step has to fit behind it
            return Err(Error::TooLong { field: "--context", length: self.context, limit: limit - 1, unit, why: None });
        }
        let length = self.context + self.steps;
        if length > limit {
            return Err(Error::TooLong { field: "--context and --steps together", length, limit, unit, why: None });
        }
        Ok(())
    }
}

/// Rows with their context, ready to be timed again and again.
pub struct Decoding<'a> {
    model: &'a dyn Model,
    sample: &'a Sample,
    plan: Plan,
    rows: Vec<SequenceRow>,
    /// All of them.
    all: Vec<usize>,
    /// Those that a round feeds.
    fed: Vec<usize>,
    scratch: Scratch,
}

impl<'a> Decoding<'a> {
    /// Feeds each row its context, then runs rounds until everything is warm.
    ///
    /// # Errors
    /// A plan that the model cannot do, and what its steps say.
    pub fn begin(model: &'a dyn Model, sample: &'a Sample, plan: Plan) -> Result<Self> {
        plan.check(model.card())?;
        let (mut rows, mut scratch) = (Vec::with_capacity(plan.batch), model.scratch());
        for index in 0..plan.batch {
            let start = Sample::start(index);
            let mut row =
                SequenceRow::new(model.begin(BoundaryOptions { offset: start, ..BoundaryOptions::default() })?);
            fill(model, &mut row, &sample.window(start, plan.context), &mut scratch)?;
            rows.push(row);
        }
        let (all, fed) = ((0..plan.batch).collect(), Vec::with_capacity(plan.batch));
        let mut decoding = Self { model, sample, plan, rows, all, fed, scratch };
        decoding.rounds(WARM_UP.min(plan.steps))?;
        Ok(decoding)
    }

    /// Times the plan's rounds once; the rows are then back at their context.
    ///
    /// # Errors
    /// What the model's steps say.
    pub fn run(&mut self) -> Result<Run> {
        self.rounds(self.plan.steps)
    }

    /// Runs so many rounds. Symbols that are in flight after the last one are not counted, and the time that it takes to
    /// finish them is not either.
    fn rounds(&mut self, rounds: usize) -> Result<Run> {
        let mut notes = Notes::new(rounds, self.rows.len());
        for _ in 0..rounds {
            self.lay_out();
            let (took, middle) = self.round()?;
            notes.round(took, middle, &self.rows);
        }
        self.model.segment_step(&mut self.rows, &self.all, &mut self.scratch)?;
        self.model.finish_step(&mut self.rows, &self.all, &mut self.scratch)?;
        let run = notes.run(self.model, &self.rows);
        let context = self.plan.context;
        for (index, row) in self.rows.iter_mut().enumerate() {
            if context == 0 || context >= row.state.earliest() {
                row.state.rollback(context)?;
            } else {
                // its windows have moved on too far
                let start = Sample::start(index);
                row.state.restart(start);
                fill(self.model, row, &self.sample.window(start, context), &mut self.scratch)?;
            }
        }
        Ok(run)
    }

    /// Gives every ready row its next symbol.
    fn lay_out(&mut self) {
        self.fed.clear();
        for (index, row) in self.rows.iter_mut().enumerate().filter(|(_, row)| row.status == StepStatus::Ready) {
            row.set(&[self.sample.at(Sample::start(index) + row.state.len())], Want::Last);
            self.fed.push(index);
        }
    }

    /// One round: how long it took, and how long its segment step took, if it had one.
    fn round(&mut self) -> Result<(Duration, Option<Duration>)> {
        let Self { model, rows, all, fed, scratch, plan, .. } = self;
        let (begun, mut middle) = (Instant::now(), None);
        boundary_wait::count_step(rows);
        model.symbol_step(rows, fed, scratch)?;
        let waiting = || rows.iter().filter(|row| row.status == StepStatus::Waiting);
        if boundary_wait::is_due(waiting(), waiting().count() < rows.len(), plan.boundary_wait) {
            let begun = Instant::now();
            model.segment_step(rows, all, scratch)?;
            middle = Some(begun.elapsed());
        }
        model.finish_step(rows, all, scratch)?;
        Ok((begun.elapsed(), middle))
    }
}

/// Feeds a fresh row its context.
fn fill(model: &dyn Model, row: &mut SequenceRow, context: &[u32], scratch: &mut Scratch) -> Result<()> {
    for chunk in context.chunks(CHUNK) {
        row.set(chunk, Want::Nothing);
        advance(model, std::slice::from_mut(row), &[0], scratch)?;
    }
    Ok(())
}

/// A measurement of decoding, as it is told.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Entry {
    /// The model, and what it runs on.
    #[serde(flatten)]
    pub head: Head,
    /// Rows of a step.
    pub batch: usize,
    /// Symbols that each row held before the first round.
    pub context: usize,
    /// Symbols for each segment closed, as met; none if none was closed.
    pub shortening_factor: Option<f64>,
    /// Characters of all rows together, by the sum of all rounds.
    pub chars_per_second: f64,
    /// The median round.
    pub step_ns_p50: f64,
    /// Bytes that had to be read for each symbol.
    pub bytes_per_char: f64,
    /// Those, times the speed.
    pub achieved_bytes_per_second: f64,
    /// What this machine reads from a working set of that size, over and over.
    pub ceiling_bytes_per_second: f64,
    /// What the rounds read in turn: all weights, and all rows' keys and values. A round reads a part of it, but the next ones
    /// read the rest, so what a cache holds of it counts for both.
    pub working_set_bytes: usize,
    /// A fast round.
    pub step_ns_p10: f64,
    /// A slow round.
    pub step_ns_p90: f64,
    /// Rounds timed.
    pub steps: usize,
    /// Letters of the sample that the vocabulary does not have: where there are any, boundaries are not English.
    pub foreign_letters: usize,
    /// Rounds that a row was allowed to wait for its segment step.
    pub boundary_wait: usize,
    /// Rounds with a segment step.
    pub middle_steps: usize,
    /// The segment steps' share of the time.
    pub middle_share: f64,
    /// The median time from one character of a row to its next, where the symbol between them closed no segment; none if
    /// there was no such symbol.
    pub plain_gap_ns_p50: Option<f64>,
    /// A long one: 99 in a hundred are at most this.
    pub plain_gap_ns_p99: Option<f64>,
    /// The same two where the symbol closed a segment, the time that its row waited included.
    pub boundary_gap_ns_p50: Option<f64>,
    /// A long one.
    pub boundary_gap_ns_p99: Option<f64>,
}

impl Entry {
    /// What a run found, beside the machine's ceiling, which is measured now.
    ///
    /// # Errors
    /// [`Error::Internal`] if there was no step.
    pub fn new(decoding: &Decoding<'_>, run: Run, machine: &Machine) -> Result<Self> {
        let (card, plan) = (decoding.model.card(), decoding.plan);
        let (steps, seconds, chars_per_second) = (run.step_ns.len(), run.seconds().max(1e-9), run.chars_per_second());
        let empty = || Error::Internal("no step was timed".into());
        let step_ns = Quantiles::of(run.step_ns).ok_or_else(empty)?;
        let gaps = |mut ns: Vec<f64>| {
            ns.sort_by(f64::total_cmp);
            [0.5, 0.99].map(|share| quantile(&ns, share))
        };
        let (plain_gap_ns, boundary_gap_ns) = (gaps(run.plain_gap_ns), gaps(run.boundary_gap_ns));
        Ok(Self {
            head: Head::new(card, machine),
            batch: plan.batch,
            context: plan.context,
            shortening_factor: (run.segments > 0).then(|| run.symbols as f64 / run.segments as f64),
            chars_per_second,
            step_ns_p50: step_ns.p50,
            bytes_per_char: run.bytes as f64 / run.symbols as f64,
            achieved_bytes_per_second: run.bytes as f64 / seconds,
            ceiling_bytes_per_second: machine.read_bytes_per_second(run.working_set_bytes)?,
            working_set_bytes: run.working_set_bytes,
            step_ns_p10: step_ns.p10,
            step_ns_p90: step_ns.p90,
            steps,
            foreign_letters: decoding.sample.foreign(),
            boundary_wait: plan.boundary_wait,
            middle_steps: run.middle_steps,
            middle_share: run.middle_ns / 1e9 / seconds,
            plain_gap_ns_p50: plain_gap_ns[0],
            plain_gap_ns_p99: plain_gap_ns[1],
            boundary_gap_ns_p50: boundary_gap_ns[0],
            boundary_gap_ns_p99: boundary_gap_ns[1],
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
