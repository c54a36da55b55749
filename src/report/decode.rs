//! Benchmark of decoding: rows with a context are fed the sample symbol by symbol (teacher forcing).
//!
//! A round is a step of the engine: every ready row gets a symbol, rows that closed a segment wait for each other as
//! `is_due` decides, and the other rows are finished. Only the steps of the model are timed, with logits but without
//! sampling. The speed is computed from the sum of all rounds, because rounds that close a segment take longer than others.

use crate::report::machine::{LIMIT_TIME, Machine, MeasuredModel};
use crate::report::sample::Sample;
use crate::report::{check_length, quantiles, ratios};
use serde::Serialize;
use std::f64::consts::LN_2;
use std::mem;
use std::time::{Duration, Instant};
use weir_engine::score::run;
use weir_kernels::distribution::log_probability;
use weir_kernels::error::Result;
use weir_measure::stats::{Quantiles, quantile};
use weir_models::{
    contract::{
        self, BoundaryOptions, Card, Model, Scratch, SequenceRow, StepCost, StepStatus, Want, advance, check_mode,
    },
    usage::{LevelCounts, LevelUsage, by_level},
};

/// Maximum rows.
pub const MAX_BATCH: usize = 1024;

/// Maximum rounds of one run.
pub const MAX_STEPS: usize = 1 << 20;

/// Rounds before the timed ones.
const WARM_UP: usize = 32;

/// Symbols per step while the context is fed.
const CHUNK: usize = 512;

/// Parameters of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DecodePlan {
    /// Rows of a step.
    pub batch: usize,
    /// Symbols that each row holds before the first timed step.
    pub context: usize,
    /// Timed rounds. In each, every row that does not wait gets one symbol.
    pub steps: usize,
    /// Rounds that a row may wait for its segment step.
    pub boundary_wait: usize,
    /// Threshold of the entropies that end segments; the model's if none.
    pub threshold: Option<f32>,
}

impl DecodePlan {
    /// Checks the plan against the limits of the model. The error names the command-line option and its limit.
    pub fn check(&self, card: &Card) -> Result<()> {
        // at least one step has to fit after the context
        let boundaries = BoundaryOptions { threshold: self.threshold, ..BoundaryOptions::default() };
        let flag = |name| if name == "boundary_threshold" { "--boundary-threshold" } else { name };
        check_mode(&boundaries, card).map_err(|error| error.named(flag))?;
        check_length("--context", self.context, card.max_symbols.saturating_sub(1))?;
        check_length("--context and --steps together", self.context + self.steps, card.max_symbols)
    }
}

/// Rows with their context, for any number of timed runs.
pub struct DecodeBench<'a> {
    model: &'a dyn Model,
    sample: &'a Sample,
    plan: DecodePlan,
    rows: Vec<SequenceRow>,
    /// Indices of all rows.
    all: Vec<usize>,
    /// Indices of the rows that a round feeds.
    fed: Vec<usize>,
    scratch: Scratch,
}

impl<'a> DecodeBench<'a> {
    /// Feeds each row its context and runs the warm-up rounds. Fails if the plan exceeds the model's limits or a step fails.
    pub fn start(model: &'a dyn Model, sample: &'a Sample, plan: DecodePlan) -> Result<Self> {
        plan.check(model.card())?;
        let mut rows = Vec::with_capacity(plan.batch);
        let mut scratch = model.scratch();
        for index in 0..plan.batch {
            let start = Sample::start(index);
            let boundaries = BoundaryOptions { offset: start, threshold: plan.threshold, ..Default::default() };
            let mut row = SequenceRow::new(model.begin(boundaries)?);
            feed_context(model, &mut row, &sample.window(start, plan.context), &mut scratch)?;
            rows.push(row);
        }
        let all = (0..plan.batch).collect();
        let mut bench = Self { model, sample, plan, rows, all, fed: Vec::with_capacity(plan.batch), scratch };
        bench.rounds(WARM_UP.min(plan.steps))?;
        Ok(bench)
    }

    /// Returns the characters per second of a run, summed over rows.
    pub fn chars_per_second(&self, run: &DecodeRun) -> f64 {
        run.symbols_per_second() * self.sample.chars_per_symbol
    }

    /// Times the rounds of the plan once, then returns the rows to their context. Fails if a step of the model fails.
    pub fn run(&mut self) -> Result<DecodeRun> {
        self.rounds(self.plan.steps)
    }

    /// Runs `rounds` rounds. Symbols in flight after the last round, and the time to finish them, do not count.
    fn rounds(&mut self, rounds: usize) -> Result<DecodeRun> {
        let mut recorder = RoundRecorder::new(rounds, self.rows.len());
        for _ in 0..rounds {
            self.fed.clear();
            for (index, row) in self.rows.iter_mut().enumerate().filter(|(_, row)| row.status == StepStatus::Ready) {
                row.set(&[self.sample.symbol(Sample::start(index) + row.state.len())], Want::Last);
                self.fed.push(index);
            }
            let (elapsed, middle) = self.round()?;
            recorder.record(elapsed, middle, &self.rows);
        }
        contract::segment_steps(self.model, &mut self.rows, &self.all, &mut self.scratch)?;
        self.model.finish_step(&mut self.rows, &self.all, &mut self.scratch)?;
        let run = recorder.finish(self.model, &self.rows);
        let context = self.plan.context;
        for (index, row) in self.rows.iter_mut().enumerate() {
            let start = Sample::start(index);
            // the last symbol is fed anew: after a rollback, a model that cannot rewind its states feeds symbols again
            let rewound = context.saturating_sub(1);
            if rewound == 0 || rewound >= row.state.earliest() {
                row.state.rollback(rewound)?;
                let last = self.sample.window(start + rewound, context - rewound);
                feed_context(self.model, row, &last, &mut self.scratch)?;
            } else {
                // the row's windows have moved beyond its context
                row.state.restart(start);
                feed_context(self.model, row, &self.sample.window(start, context), &mut self.scratch)?;
            }
        }
        Ok(run)
    }

    /// Runs one round. Returns its time, and the time of its segment step if it had one.
    fn round(&mut self) -> Result<(Duration, Option<Duration>)> {
        let Self { model, rows, all, fed, scratch, plan, .. } = self;
        let start = Instant::now();
        let mut middle = None;
        contract::count_step(rows);
        model.symbol_step(rows, fed, scratch)?;
        let waiting = || rows.iter().filter(|row| row.status == StepStatus::Waiting);
        if contract::is_due(waiting(), waiting().count() < rows.len(), plan.boundary_wait) {
            let segment_start = Instant::now();
            model.segment_step(rows, all, scratch)?;
            middle = Some(segment_start.elapsed());
        }
        model.finish_step(rows, all, scratch)?;
        Ok((start.elapsed(), middle))
    }
}

/// Feeds a row its context, without logits.
fn feed_context(model: &dyn Model, row: &mut SequenceRow, context: &[u32], scratch: &mut Scratch) -> Result<()> {
    for chunk in context.chunks(CHUNK) {
        row.set(chunk, Want::Nothing);
        advance(model, std::slice::from_mut(row), &[0], scratch)?;
    }
    Ok(())
}

/// One level of a model with several levels of chunking.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MeasuredLevel {
    /// Symbols per chunk in the outermost level; chunks of the level around it per chunk in the others.
    pub shortening_factor: f64,
    /// Rounds in which the layers inside this level ran.
    pub middle_steps: usize,
}

impl From<LevelUsage> for MeasuredLevel {
    fn from(usage: LevelUsage) -> Self {
        let LevelUsage { shortening_factor, middle_steps, .. } = usage;
        Self { shortening_factor, middle_steps }
    }
}

/// Result of a decoding benchmark.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DecodeMeasurement {
    /// The model and the conditions of the measurement.
    #[serde(flatten)]
    pub measured: MeasuredModel,
    /// Rows of a step.
    pub batch: usize,
    /// Symbols that each row holds before the first round.
    pub context: usize,
    /// Measured symbols per closed segment; `None` if no segment was closed.
    pub shortening_factor: Option<f64>,
    /// Characters per second, summed over rows, from the sum of all rounds.
    pub chars_per_second: f64,
    /// Median round.
    pub step_ns_p50: f64,
    /// Bytes that had to be read per symbol.
    pub bytes_per_char: f64,
    /// `bytes_per_char` times `chars_per_second`.
    pub achieved_bytes_per_second: f64,
    /// Measured read bandwidth of the machine for a working set of `working_set_bytes`.
    pub ceiling_bytes_per_second: f64,
    /// Bytes that successive rounds cycle through: all weights, and all rows' keys and values. One round reads only a part
    /// of them, but the following rounds read the rest, so the bandwidth is measured for all of them.
    pub working_set_bytes: usize,
    /// 10th percentile of rounds.
    pub step_ns_p10: f64,
    /// 90th percentile of rounds.
    pub step_ns_p90: f64,
    /// Timed rounds.
    pub steps: usize,
    /// Letters of the sample that are not in the vocabulary. If there are any, boundaries are not as in English.
    pub foreign_letters: usize,
    /// Mean characters of a symbol: 1, unless symbols are tokens.
    pub chars_per_symbol: f64,
    /// Rounds that a row may wait for its segment step.
    pub boundary_wait: usize,
    /// Threshold of the entropies that end segments, if one was given. Left out otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boundary_threshold: Option<f32>,
    /// Bits per character of the sample's beginning with this threshold, if [`score_thresholds`] added them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bits_per_char: Option<f64>,
    /// Rounds with a segment step.
    pub middle_steps: usize,
    /// Each level of a model with several levels of chunking, outermost first. Left out for other models.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub levels: Vec<MeasuredLevel>,
    /// Share of the time spent in segment steps.
    pub middle_share: f64,
    /// Median time between two characters of a row if the symbol fed between them closed no segment; `None` if there was
    /// no such symbol.
    pub plain_gap_ns_p50: Option<f64>,
    /// 99th percentile of the same time.
    pub plain_gap_ns_p99: Option<f64>,
    /// Median time between two characters of a row if the symbol closed a segment, including the time its row waited.
    pub boundary_gap_ns_p50: Option<f64>,
    /// 99th percentile of the same time.
    pub boundary_gap_ns_p99: Option<f64>,
}

impl DecodeMeasurement {
    /// Summarizes a run and measures the bandwidth of the machine. Fails if the run has no steps.
    pub fn new(bench: &DecodeBench<'_>, run: DecodeRun, machine: &Machine) -> Result<Self> {
        let plan = bench.plan;
        let steps = run.step_ns.len();
        let seconds = run.seconds().max(1e-9);
        let chars_per_second = bench.chars_per_second(&run);
        let step_ns = quantiles(run.step_ns)?;
        let gaps = |mut ns: Vec<f64>| {
            ns.sort_by(f64::total_cmp);
            [0.5, 0.99].map(|share| quantile(&ns, share))
        };
        let plain_gap_ns = gaps(run.plain_gap_ns);
        let boundary_gap_ns = gaps(run.boundary_gap_ns);
        Ok(Self {
            measured: MeasuredModel::new(bench.model.card(), machine),
            batch: plan.batch,
            context: plan.context,
            shortening_factor: (run.segments > 0).then(|| run.symbols as f64 / run.segments as f64),
            chars_per_second,
            step_ns_p50: step_ns.median,
            bytes_per_char: run.bytes as f64 / (run.symbols as f64 * bench.sample.chars_per_symbol),
            achieved_bytes_per_second: run.bytes as f64 / seconds,
            ceiling_bytes_per_second: machine.read_bytes_per_second(run.working_set_bytes, LIMIT_TIME)?,
            working_set_bytes: run.working_set_bytes,
            step_ns_p10: step_ns.p10,
            step_ns_p90: step_ns.p90,
            steps,
            foreign_letters: bench.sample.foreign,
            chars_per_symbol: bench.sample.chars_per_symbol,
            boundary_wait: plan.boundary_wait,
            boundary_threshold: plan.threshold,
            bits_per_char: None,
            middle_steps: run.middle_steps,
            levels: by_level(run.symbols, &run.levels, &run.level_steps).into_iter().map(MeasuredLevel::from).collect(),
            middle_share: run.middle_ns / 1e9 / seconds,
            plain_gap_ns_p50: plain_gap_ns[0],
            plain_gap_ns_p99: plain_gap_ns[1],
            boundary_gap_ns_p50: boundary_gap_ns[0],
            boundary_gap_ns_p99: boundary_gap_ns[1],
        })
    }
}

/// Measures a plan once. Fails if the plan exceeds a limit of the model, or if a step fails.
pub fn measure(model: &dyn Model, plan: DecodePlan, machine: &Machine) -> Result<DecodeMeasurement> {
    let sample = Sample::new(&model.card().vocabulary);
    let mut bench = DecodeBench::start(model, &sample, plan)?;
    let run = bench.run()?;
    DecodeMeasurement::new(&bench, run, machine)
}

/// Symbols of the sample that are scored with each threshold.
const SCORED: usize = 2048;

/// Adds the bits per character of the same 2,048 symbols to the measurements of a model that have a threshold. Scores them once
/// for each threshold. Fails if a step of the model fails.
pub fn score_thresholds(model: &dyn Model, entries: &mut [DecodeMeasurement]) -> Result<()> {
    let sample = Sample::new(&model.card().vocabulary);
    let mut scored: Vec<(f32, f64)> = Vec::new();
    for entry in entries {
        let Some(threshold) = entry.boundary_threshold else { continue };
        let bits = match scored.iter().find(|(known, _)| *known == threshold) {
            Some((_, bits)) => *bits,
            None => bits_per_char(model, &sample, threshold)?,
        };
        scored.push((threshold, bits));
        entry.bits_per_char = Some(bits);
    }
    Ok(())
}

fn bits_per_char(model: &dyn Model, sample: &Sample, threshold: f32) -> Result<f64> {
    let Card { vocabulary, max_symbols, .. } = model.card();
    let start = vocabulary.marks().map(|marks| marks.start);
    let count = SCORED.min(max_symbols.saturating_sub(1));
    let symbols: Vec<u32> = start.into_iter().chain(sample.window(0, count)).collect();
    let boundaries = BoundaryOptions { threshold: Some(threshold), ..BoundaryOptions::default() };
    let mut bits = 0.0;
    run(model, &symbols, CHUNK, boundaries, Want::All, &mut |position, logits, _| {
        if let Some(&next) = symbols.get(position + 1) {
            bits -= log_probability(logits, next)? / LN_2;
        }
        Ok(())
    })?;
    Ok(bits / (symbols.len().saturating_sub(1).max(1) as f64 * sample.chars_per_symbol))
}

/// Results of one timed run of a plan.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DecodeRun {
    /// Nanoseconds of each round.
    pub step_ns: Vec<f64>,
    /// Rounds with a segment step.
    pub middle_steps: usize,
    /// Nanoseconds of the segment steps together.
    pub middle_ns: f64,
    /// Symbols finished, summed over rows.
    pub symbols: usize,
    /// Symbols that closed a segment.
    pub segments: usize,
    /// Segments by level of chunking.
    pub levels: LevelCounts,
    /// Rounds with a segment step that ran the layers inside a level, by level of chunking.
    pub level_steps: LevelCounts,
    /// Bytes that the rounds had to read.
    pub bytes: usize,
    /// Bytes that successive rounds cycle through: all weights, and all rows' keys and values at the end of the run.
    pub working_set_bytes: usize,
    /// Nanoseconds between two characters of a row if the symbol fed between them closed no segment.
    pub plain_gap_ns: Vec<f64>,
    /// Nanoseconds between two characters of a row if the symbol fed between them closed a segment.
    pub boundary_gap_ns: Vec<f64>,
}

impl DecodeRun {
    /// Returns the time of all rounds.
    pub fn seconds(&self) -> f64 {
        self.step_ns.iter().sum::<f64>() / 1e9
    }

    /// Returns symbols per second, summed over rows.
    pub fn symbols_per_second(&self) -> f64 {
        self.symbols as f64 / self.seconds().max(1e-9)
    }

    /// Adds the rounds of another run.
    pub fn extend(&mut self, other: Self) {
        self.step_ns.extend(other.step_ns);
        self.middle_steps += other.middle_steps;
        self.middle_ns += other.middle_ns;
        self.symbols += other.symbols;
        self.segments += other.segments;
        self.levels += other.levels;
        self.level_steps += other.level_steps;
        self.bytes += other.bytes;
        self.working_set_bytes = self.working_set_bytes.max(other.working_set_bytes);
        self.plain_gap_ns.extend(other.plain_gap_ns);
        self.boundary_gap_ns.extend(other.boundary_gap_ns);
    }
}

/// A symbol whose step was finished.
#[derive(Debug, Clone, Copy)]
struct FinishedSymbol {
    /// Index of the round that finished it.
    round: usize,
    /// Symbols of its row at that time.
    symbols: usize,
    /// Segments of its row at that time.
    segments: usize,
    /// Levels at which it closed a segment.
    closed_levels: usize,
    /// Nanoseconds since the previous symbol of its row.
    gap_ns: f64,
}

/// Records the rounds of a run. While time is measured, values are only recorded into preallocated memory; totals are computed afterwards.
struct RoundRecorder {
    /// Times of the rounds; the totals are computed at the end.
    run: DecodeRun,
    finished: Vec<FinishedSymbol>,
    /// Nanoseconds of all rounds so far.
    elapsed_ns: f64,
    /// `elapsed_ns` at the last character of each row; 0 at the start.
    last_ns: Vec<f64>,
}

impl RoundRecorder {
    /// Preallocates memory for `rounds` rounds of `rows` rows.
    fn new(rounds: usize, rows: usize) -> Self {
        Self {
            run: DecodeRun { step_ns: Vec::with_capacity(rounds), ..DecodeRun::default() },
            finished: Vec::with_capacity(rounds * rows),
            elapsed_ns: 0.0,
            last_ns: vec![0.0; rows],
        }
    }

    /// Records the time of a round and of its segment step, if it had one. Rows that are ready now were finished in it.
    fn record(&mut self, elapsed: Duration, middle: Option<Duration>, rows: &[SequenceRow]) {
        let round = self.run.step_ns.len();
        let step_ns = elapsed.as_nanos() as f64;
        self.run.step_ns.push(step_ns);
        self.elapsed_ns += step_ns;
        if let Some(middle) = middle {
            self.run.middle_steps += 1;
            self.run.middle_ns += middle.as_nanos() as f64;
        }
        for (row, last_ns) in rows.iter().zip(&mut self.last_ns).filter(|(row, _)| row.status == StepStatus::Ready) {
            self.finished.push(FinishedSymbol {
                round,
                symbols: row.state.len(),
                segments: row.state.segments(),
                closed_levels: row.decisions.iter().map(|mark| mark.closed_levels()).max().unwrap_or_default(),
                gap_ns: self.elapsed_ns - mem::replace(last_ns, self.elapsed_ns),
            });
        }
    }

    /// Computes the totals of the run; `rows` are in the state after its last round.
    fn finish(self, model: &dyn Model, rows: &[SequenceRow]) -> DecodeRun {
        let Self { run, finished, .. } = self;
        let mut bytes = 0;
        let mut levels = LevelCounts::default();
        let mut level_steps = LevelCounts::default();
        for round in finished.chunk_by(|a, b| a.round == b.round) {
            bytes += round_bytes(model, round);
            round.iter().for_each(|symbol| levels.add(symbol.closed_levels));
            level_steps.add(round.iter().map(|symbol| symbol.closed_levels).max().unwrap_or_default());
        }
        let gaps = |closes: bool| {
            let gaps = finished.iter().filter(|symbol| (symbol.closed_levels > 0) == closes);
            gaps.map(|symbol| symbol.gap_ns).collect::<Vec<_>>()
        };
        let boundary_gap_ns = gaps(true);
        DecodeRun {
            symbols: finished.len(),
            segments: boundary_gap_ns.len(),
            levels,
            level_steps,
            bytes,
            working_set_bytes: working_set_bytes(model, rows),
            plain_gap_ns: gaps(false),
            boundary_gap_ns,
            ..run
        }
    }
}

/// Returns the bytes that a round reads if every row closes a segment.
fn working_set_bytes(model: &dyn Model, rows: &[SequenceRow]) -> usize {
    let mut own = 0;
    let mut shared = 0;
    for row in rows {
        let cost = model.cost(row.state.len(), row.state.segments());
        let kinds = [cost.symbol, cost.segment, cost.deeper, cost.logits];
        own += kinds.iter().map(|kind| kind.own_bytes).sum::<usize>();
        shared = kinds.iter().map(|kind| kind.shared_bytes).sum::<usize>().max(shared);
    }
    own + shared
}

/// Returns the bytes that a round reads to finish these symbols. Shared bytes count once, with the largest amount that any
/// row needs. A segment step, and its layers inside deeper levels, count only if a row needed them.
fn round_bytes(model: &dyn Model, round: &[FinishedSymbol]) -> usize {
    let mut own = 0;
    let mut shared = 0;
    let mut segment_shared = 0;
    for &FinishedSymbol { symbols, segments, closed_levels, .. } in round {
        let cost = model.cost(symbols, segments);
        let StepCost { shared_bytes, own_bytes, .. } = cost.symbol;
        own += own_bytes + cost.logits.own_bytes;
        shared = (shared_bytes + cost.logits.shared_bytes).max(shared);
        let segment = cost.segment_step(closed_levels);
        own += segment.own_bytes;
        segment_shared = segment.shared_bytes.max(segment_shared);
    }
    own + shared + segment_shared
}

// Two models in turns on one machine, so that other load on the machine affects both.

/// Maximum pairs of runs.
pub const MAX_PAIRS: usize = 10_000;

/// Result of comparing two models.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DecodeComparison {
    /// Rows of a step.
    pub batch: usize,
    /// Symbols that each row holds before the first round of a run.
    pub context: usize,
    /// Rounds that a row may wait for its segment step.
    pub boundary_wait: usize,
    /// Runs of each model.
    pub pairs: usize,
    /// All runs of the first model.
    pub a: DecodeMeasurement,
    /// All runs of the second model.
    pub b: DecodeMeasurement,
    /// Speed of the first model in characters of text, divided by the speed of the second, over pairs of consecutive runs.
    pub ratio: Quantiles,
}

/// Runs the plan with both models in turns (A B A B …), each time on the same text from the same context. How far a row
/// advances in a run depends on how often it waits. `progress` receives the number of finished pairs.
/// Fails if the plan exceeds a limit of a model, or if a step fails.
pub fn compare(
    [a, b]: [&dyn Model; 2],
    plan: DecodePlan,
    pairs: usize,
    machine: &Machine,
    progress: &mut dyn FnMut(usize),
) -> Result<DecodeComparison> {
    let [text_a, text_b] = [a, b].map(|model| Sample::new(&model.card().vocabulary));
    let mut a = DecodeBench::start(a, &text_a, plan)?;
    let mut b = DecodeBench::start(b, &text_b, plan)?;
    let mut runs_a = DecodeRun::default();
    let mut runs_b = DecodeRun::default();
    let mut speeds = Vec::with_capacity(pairs);
    for pair in 0..pairs {
        let run_a = a.run()?;
        let run_b = b.run()?;
        speeds.push((a.chars_per_second(&run_a), b.chars_per_second(&run_b)));
        runs_a.extend(run_a);
        runs_b.extend(run_b);
        progress(pair + 1);
    }
    let ratio = ratios(speeds.into_iter())?;
    let a = DecodeMeasurement::new(&a, runs_a, machine)?;
    let b = DecodeMeasurement::new(&b, runs_b, machine)?;
    let DecodePlan { batch, context, boundary_wait, .. } = plan;
    Ok(DecodeComparison { batch, context, boundary_wait, pairs, a, b, ratio })
}
