//! What came of the rounds of a run: characters, the gaps between them, and the bytes that had to be read for them.
//!
//! While time is measured it is only noted, into memory that was there before; it is reckoned up afterwards.

use crate::decode::{
    contract::{Model, SequenceRow, StepStatus},
    cost::StepCost,
};
use std::time::Duration;

/// What one timed run of a plan's rounds found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Run {
    /// Nanoseconds of each round.
    pub step_ns: Vec<f64>,
    /// Rounds with a segment step.
    pub middle_steps: usize,
    /// Nanoseconds of the segment steps together.
    pub middle_ns: f64,
    /// Symbols that were finished, of all rows together: each makes one character.
    pub symbols: usize,
    /// Segments that they closed.
    pub segments: usize,
    /// Bytes that had to be read.
    pub bytes: usize,
    /// Bytes that the rounds read in turn: all weights, and what all rows held of keys and values in the end.
    pub working_set_bytes: usize,
    /// Nanoseconds from one character of a row to its next, where the symbol fed between them closed no segment.
    pub plain_gap_ns: Vec<f64>,
    /// The same where it closed one.
    pub boundary_gap_ns: Vec<f64>,
}

impl Run {
    /// All its rounds together.
    pub fn seconds(&self) -> f64 {
        self.step_ns.iter().sum::<f64>() / 1e9
    }

    /// Characters a second, of all rows together.
    pub fn chars_per_second(&self) -> f64 {
        self.symbols as f64 / self.seconds().max(1e-9)
    }

    /// Takes in another run.
    pub fn extend(&mut self, other: Self) {
        self.step_ns.extend(other.step_ns);
        self.middle_steps += other.middle_steps;
        self.middle_ns += other.middle_ns;
        self.symbols += other.symbols;
        self.segments += other.segments;
        self.bytes += other.bytes;
        self.working_set_bytes = self.working_set_bytes.max(other.working_set_bytes);
        self.plain_gap_ns.extend(other.plain_gap_ns);
        self.boundary_gap_ns.extend(other.boundary_gap_ns);
    }
}

/// A symbol that was finished.
#[derive(Debug, Clone, Copy)]
struct Finished {
    /// In which round.
    round: usize,
    /// Symbols of its row by then.
    symbols: usize,
    /// Segments of its row by then.
    segments: usize,
    /// Whether it closed one.
    closes: bool,
    /// Nanoseconds since its row's symbol before.
    gap_ns: f64,
}

/// What is noted while time is measured.
pub(super) struct Notes {
    step_ns: Vec<f64>,
    middle_steps: usize,
    middle_ns: f64,
    finished: Vec<Finished>,
    /// Nanoseconds of all rounds so far.
    clock: f64,
    /// What the clock showed at each row's latest character. All rows start ready, at 0.
    latest: Vec<f64>,
}

impl Notes {
    /// With room for so many rounds of so many rows.
    pub(super) fn new(rounds: usize, rows: usize) -> Self {
        let (step_ns, finished) = (Vec::with_capacity(rounds), Vec::with_capacity(rounds * rows));
        Self { step_ns, middle_steps: 0, middle_ns: 0.0, finished, clock: 0.0, latest: vec![0.0; rows] }
    }

    /// Notes a round, how long it took, and how long its segment step took, if it had one. Rows that are ready now were
    /// finished in it.
    pub(super) fn round(&mut self, took: Duration, middle: Option<Duration>, rows: &[SequenceRow]) {
        let (round, took) = (self.step_ns.len(), took.as_nanos() as f64);
        self.step_ns.push(took);
        self.clock += took;
        if let Some(middle) = middle {
            self.middle_steps += 1;
            self.middle_ns += middle.as_nanos() as f64;
        }
        for (row, latest) in rows.iter().zip(&mut self.latest).filter(|(row, _)| row.status == StepStatus::Ready) {
            let gap_ns = self.clock - std::mem::replace(latest, self.clock);
            let closes = row.decisions.iter().any(|mark| mark.boundary);
            let (symbols, segments) = (row.state.len(), row.state.segments());
            self.finished.push(Finished { round, symbols, segments, closes, gap_ns });
        }
    }

    /// Reckons it up; `rows` as the rounds left them.
    pub(super) fn run(self, model: &dyn Model, rows: &[SequenceRow]) -> Run {
        let Self { step_ns, middle_steps, middle_ns, finished, .. } = self;
        let bytes = finished.chunk_by(|a, b| a.round == b.round).map(|round| round_bytes(model, round)).sum();
        let gaps = |closing: bool| {
            let gaps = finished.iter().filter(|symbol| symbol.closes == closing);
            gaps.map(|symbol| symbol.gap_ns).collect::<Vec<_>>()
        };
        let (plain_gap_ns, boundary_gap_ns) = (gaps(false), gaps(true));
        let (symbols, segments) = (finished.len(), boundary_gap_ns.len());
        let working_set_bytes = working_set_bytes(model, rows);
        Run {
            step_ns,
            middle_steps,
            middle_ns,
            symbols,
            segments,
            bytes,
            working_set_bytes,
            plain_gap_ns,
            boundary_gap_ns,
        }
    }
}

/// Bytes of a round in which every row closes a segment, which reads all there is.
fn working_set_bytes(model: &dyn Model, rows: &[SequenceRow]) -> usize {
    let (mut own, mut shared) = (0, 0);
    for row in rows {
        let cost = model.cost(row.state.len(), row.state.segments());
        let kinds = [cost.symbol, cost.segment, cost.logits];
        own += kinds.iter().map(|kind| kind.own_bytes).sum::<usize>();
        shared = kinds.iter().map(|kind| kind.shared_bytes).sum::<usize>().max(shared);
    }
    own + shared
}

/// Bytes that a round has to read that finishes these symbols. What rows share counts once, as much of it as the row that
/// needs most, and nothing counts for a segment step that no row needed.
fn round_bytes(model: &dyn Model, round: &[Finished]) -> usize {
    let (mut own, mut shared, mut segment_shared) = (0, 0, 0);
    for &Finished { symbols, segments, closes, .. } in round {
        let cost = model.cost(symbols, segments);
        let StepCost { shared_bytes, own_bytes, .. } = cost.symbol;
        own += own_bytes + cost.logits.own_bytes;
        shared = (shared_bytes + cost.logits.shared_bytes).max(shared);
        if closes {
            own += cost.segment.own_bytes;
            segment_shared = cost.segment.shared_bytes.max(segment_shared);
        }
    }
    own + shared + segment_shared
}
