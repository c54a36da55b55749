//! Benchmark of speculation: rows with a context are fed a known text, in turns symbol by symbol and with drafts.
//!
//! The text stands in for what a sampler would draw: a drafted symbol is accepted if the text has it. Everything else is as in
//! the engine: what is drafted, the feeds, the cut at a boundary, the rule by which waiting rows run, and the rollback. A run's
//! time includes the drafting and the model's steps, not sampling.

use crate::report::{
    check_length, check_range,
    decode::feed_context,
    machine::{Machine, MeasuredModel},
    quantiles, ratios,
    sample::Sample,
};
use serde::Serialize;
use std::time::{Duration, Instant};
use weir_engine::{
    speculation::{DraftBudget, Drafter, GuessRates, Speculation},
    step_times::{EngineStep, StepTimes},
    text_window::TextView,
};
use weir_kernels::error::{Error, Result};
use weir_measure::stats::Quantiles;
use weir_models::contract::{self, BoundaryOptions, Card, Model, Scratch, SequenceRow, State, StepStatus, Want};

/// Symbols that a step has room for: the engine's default.
const CHUNK: usize = 256;

/// The text that follows the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TextKind {
    /// The sample goes on.
    Prose,
    /// The context is repeated again and again.
    Repeating,
}

/// The plan of the benchmark: the flags of `weir bench speculate` describe the fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SpeculatePlan {
    pub text: TextKind,
    pub batch: usize,
    pub context: usize,
    pub chars: usize,
    pub pairs: usize,
    pub speculation: Speculation,
}

impl SpeculatePlan {
    /// Checks the plan against the limits of the model. The error names the command-line option and its limit. Fails if the model
    /// does not speculate.
    pub(crate) fn check(&self, card: &Card) -> Result<()> {
        if !card.speculates {
            let found = format!("family {}", card.family);
            return Err(Error::wrong_kind("bench speculate", &card.name, "speculates", found));
        }
        check_range("--context", self.context, 1, card.max_symbols)?;
        check_range("--chars", self.chars, 1, card.max_symbols)?;
        check_length("--context and --chars together", self.context + self.chars, card.max_symbols)
    }

    /// The text of row `index`, context included.
    fn text(&self, sample: &Sample, index: usize) -> Vec<u32> {
        let start = Sample::start(index);
        let len = self.context + self.chars;
        match self.text {
            TextKind::Prose => sample.window(start, len),
            TextKind::Repeating => {
                let context = sample.window(start, self.context);
                context.iter().copied().cycle().take(len).collect()
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct SpeculateMeasurement {
    #[serde(flatten)]
    pub measured: MeasuredModel,
    pub text: TextKind,
    pub batch: usize,
    /// `auto`, or the maximum length of a draft.
    pub speculate: String,
    /// Speed with drafts divided by the speed without, over pairs of consecutive runs.
    pub ratio: Quantiles,
    /// Characters per second without drafts, summed over rows: the median run.
    pub chars_per_second_off: f64,
    pub chars_per_second_on: f64,
    pub context: usize,
    pub chars: usize,
    pub pairs: usize,
    /// Drafted symbols of the last run, summed over rows.
    pub drafted: usize,
    /// Those of them that the text had.
    pub accepted: usize,
    /// Steps of the last run without drafts.
    pub steps_off: usize,
    pub steps_on: usize,
    /// Letters of the sample that are not in the vocabulary. If there are any, the text is not English.
    pub foreign_letters: usize,
}

/// One run of all rows through their texts.
#[derive(Debug, Clone, Copy, Default)]
struct SpeculateRun {
    took: Duration,
    steps: usize,
    drafted: usize,
    accepted: usize,
}

struct DraftingRow<'a> {
    text: &'a [u32],
    /// `None` in a run without drafts.
    drafter: Option<Drafter>,
}

struct SpeculateBench<'a> {
    model: &'a dyn Model,
    plan: SpeculatePlan,
    texts: Vec<Vec<u32>>,
    /// The rows' states after their context.
    contexts: Vec<Box<dyn State>>,
    scratch: Scratch,
    step_times: StepTimes,
}

/// Runs the plan in turns without drafts and with them. Fails if the plan exceeds a limit of the model, or if a step fails.
pub(crate) fn measure(model: &dyn Model, plan: SpeculatePlan, machine: &Machine) -> Result<SpeculateMeasurement> {
    let card = model.card();
    plan.check(card)?;
    let sample = Sample::new(&card.vocabulary);
    let mut bench = SpeculateBench::start(model, &sample, plan)?;
    let mut pair = || Ok((bench.run(Speculation::Off)?, bench.run(plan.speculation)?));
    pair()?;
    let runs = (0..plan.pairs).map(|_| pair()).collect::<Result<Vec<_>>>()?;
    let Some(&(off, on)) = runs.last() else { return Err(Error::Internal("nothing was timed".into())) };
    let chars = (plan.batch * plan.chars) as f64 * sample.chars_per_symbol;
    let speed = |run: &SpeculateRun| chars / run.took.as_secs_f64().max(1e-9);
    Ok(SpeculateMeasurement {
        measured: MeasuredModel::new(card, machine),
        text: plan.text,
        batch: plan.batch,
        speculate: plan.speculation.to_string(),
        ratio: ratios(runs.iter().map(|(off, on)| (speed(on), speed(off))))?,
        chars_per_second_off: quantiles(runs.iter().map(|(off, _)| speed(off)).collect())?.median,
        chars_per_second_on: quantiles(runs.iter().map(|(_, on)| speed(on)).collect())?.median,
        context: plan.context,
        chars: plan.chars,
        pairs: plan.pairs,
        drafted: on.drafted,
        accepted: on.accepted,
        steps_off: off.steps,
        steps_on: on.steps,
        foreign_letters: sample.foreign,
    })
}

impl<'a> SpeculateBench<'a> {
    fn start(model: &'a dyn Model, sample: &Sample, plan: SpeculatePlan) -> Result<Self> {
        let mut scratch = model.scratch();
        let mut contexts = Vec::with_capacity(plan.batch);
        let texts: Vec<Vec<u32>> = (0..plan.batch).map(|index| plan.text(sample, index)).collect();
        for (index, text) in texts.iter().enumerate() {
            let boundaries = BoundaryOptions { offset: Sample::start(index), ..BoundaryOptions::default() };
            let mut row = SequenceRow::new(model.begin(boundaries)?);
            feed_context(model, &mut row, &text[..plan.context], &mut scratch)?;
            contexts.push(row.state);
        }
        let step_times = StepTimes::new(plan.batch, 0);
        Ok(Self { model, plan, texts, contexts, scratch, step_times })
    }

    /// Feeds all rows their texts.
    fn run(&mut self, speculation: Speculation) -> Result<SpeculateRun> {
        let Self { model, plan, texts, contexts, scratch, step_times } = self;
        let mut rows: Vec<SequenceRow> = contexts.iter().map(|state| SequenceRow::new(state.fork())).collect();
        let all: Vec<usize> = (0..rows.len()).collect();
        let card = model.card();
        let vocabulary = card.vocabulary.len();
        let max_symbols = plan.context + plan.chars;
        // not those of earlier runs, which fed the same texts
        let mut guess_rates = GuessRates::default();
        let drafter = || {
            (speculation != Speculation::Off)
                .then(|| Drafter::new(speculation, max_symbols, vocabulary, card.ngrams.clone(), guess_rates.clone()))
        };
        let mut run = SpeculateRun::default();
        let mut fed = Vec::with_capacity(rows.len());
        let begun = Instant::now();
        let mut drafting: Vec<_> = texts.iter().map(|text| DraftingRow { text, drafter: drafter() }).collect();
        loop {
            fed.clear();
            let is_fed =
                |&index: &usize| rows[index].status == StepStatus::Ready && rows[index].state.len() < max_symbols;
            fed.extend(all.iter().copied().filter(is_fed));
            if fed.is_empty() && rows.iter().all(|row| row.status == StepStatus::Ready) {
                break;
            }
            run.drafted += feed(&mut rows, &mut drafting, &fed, step_times.fixed_symbols(), &mut guess_rates);
            let symbols = fed.iter().map(|&index| rows[index].feed.len()).sum();
            let began = Instant::now();
            contract::count_step(&mut rows);
            model.symbol_step(&mut rows, &fed, scratch)?;
            for &index in &fed {
                rows[index].cut_draft()?;
            }
            let symbol_took = began.elapsed();
            let waiting = || rows.iter().filter(|row| row.status == StepStatus::Waiting);
            let others = fed.iter().any(|&index| rows[index].status != StepStatus::Waiting);
            if contract::is_due(waiting(), others, contract::BOUNDARY_WAIT) {
                model.segment_step(&mut rows, &all, scratch)?;
            }
            let unfinished = rows.iter().filter(|row| row.status == StepStatus::Unfinished);
            let finished = unfinished.map(|row| row.positions()).sum();
            let began = Instant::now();
            model.finish_step(&mut rows, &all, scratch)?;
            if !fed.is_empty() {
                step_times.record(&EngineStep {
                    fed: symbols,
                    finished,
                    only_decodes: true,
                    symbol_took,
                    finish_took: began.elapsed(),
                    ..EngineStep::default()
                });
                run.steps += 1;
            }
            for (row, drafting) in rows.iter_mut().zip(&mut drafting) {
                run.accepted += accept(row, drafting)?;
            }
        }
        run.took = begun.elapsed();
        Ok(run)
    }
}

/// Sets the feeds of the rows `fed`: the next symbol of each row's text, and a draft after it. Returns the number of drafted
/// symbols.
fn feed(
    rows: &mut [SequenceRow],
    drafting: &mut [DraftingRow<'_>],
    fed: &[usize],
    fixed: f64,
    rates: &mut GuessRates,
) -> usize {
    let symbols = fed.len();
    let mut budget = DraftBudget {
        free: CHUNK.saturating_sub(symbols),
        fixed,
        symbols,
        expected: symbols as f64,
        feeds_prompts: false,
    };
    let mut drafted = 0;
    for &index in fed {
        let position = rows[index].state.len();
        let DraftingRow { text, drafter } = &mut drafting[index];
        let known = &text[..position + 1];
        rows[index].set(&known[position..], Want::Last);
        let Some(drafter) = drafter else { continue };
        drafter.draft(TextView::from(known), text.len() - known.len(), &mut budget, rates);
        if !drafter.drafted().is_empty() {
            rows[index].feed.extend_from_slice(drafter.drafted());
            rows[index].want = Want::All;
            drafted += drafter.drafted().len();
        }
    }
    drafted
}

/// Takes back the drafted symbols of a ready row that its text does not have. Returns the number of the others.
fn accept(row: &mut SequenceRow, drafting: &mut DraftingRow<'_>) -> Result<usize> {
    let Some(drafter) = drafting.drafter.as_mut().filter(|_| row.status == StepStatus::Ready) else { return Ok(0) };
    let start = row.state.len() - row.feed.len();
    let taken = row.feed.iter().zip(&drafting.text[start..]).take_while(|(fed, known)| fed == known).count();
    row.take_back(taken)?;
    for (&symbol, decision) in row.feed.iter().zip(&row.decisions) {
        drafter.record_boundary(symbol, decision.boundary);
    }
    // a row that is not fed again is looked at again
    row.feed.clear();
    Ok(taken.saturating_sub(1))
}
