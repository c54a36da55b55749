//! Records the rounds of a decoding run: characters, the gaps between them, and the bytes read for them.
//!
//! While time is measured, values are only recorded into preallocated memory. Totals are computed afterwards.

use std::time::Duration;
use weir_models::{
    contract::{Model, SequenceRow, StepCost, StepStatus},
    usage::LevelCounts,
};

/// Results of one timed run of a plan.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DecodeRun {
    pub step_ns: Vec<f64>,
    pub middle_steps: usize,
    /// Nanoseconds of the segment steps together.
    pub middle_ns: f64,
    /// Symbols finished, summed over rows.
    pub symbols: usize,
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
    pub fn seconds(&self) -> f64 {
        self.step_ns.iter().sum::<f64>() / 1e9
    }

    /// Returns symbols per second, summed over rows.
    pub fn symbols_per_second(&self) -> f64 {
        self.symbols as f64 / self.seconds().max(1e-9)
    }

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

pub(super) struct RoundRecorder {
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
    pub(super) fn new(rounds: usize, rows: usize) -> Self {
        Self {
            run: DecodeRun { step_ns: Vec::with_capacity(rounds), ..DecodeRun::default() },
            finished: Vec::with_capacity(rounds * rows),
            elapsed_ns: 0.0,
            last_ns: vec![0.0; rows],
        }
    }

    /// Records the time of a round and of its segment step, if it had one. Rows that are ready now were finished in it.
    pub(super) fn record(&mut self, elapsed: Duration, middle: Option<Duration>, rows: &[SequenceRow]) {
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
                gap_ns: self.elapsed_ns - std::mem::replace(last_ns, self.elapsed_ns),
            });
        }
    }

    /// Computes the totals of the run; `rows` are in the state after its last round.
    pub(super) fn finish(self, model: &dyn Model, rows: &[SequenceRow]) -> DecodeRun {
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
