//! What a model's steps take on this machine, timed by themselves, and what follows for steps that did not happen: those of the
//! same model without pooling.
//!
//! [`timing`] makes the [`Table`]. A step's cost by the table is that of its positions, a piece-wise linear function of how many
//! there are, and of what they attend to, by the bytes of keys and values that the model says it reads. Weights of the full
//! resolution are slower to read after the middle layers have passed through the caches, so both cases are timed.
//!
//! What follows for a round as it ran is [`drift_correction`]'s: the table and what late rounds took beside it.
//!
//! No tensors, no clock: [`Table::reckon`] is a function of numbers.

pub mod drift_correction;
mod samples;
pub mod timing;

use crate::decode::cost::Cost;
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

/// What is known of a model's steps, or why nothing is.
pub type Calibrated = Result<Arc<Table>, Missing>;

/// Why there is no table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// The model does not pool, or reads documents.
    NothingToSkip,
    /// The model writes its segments' ends itself: one without them would be another model.
    NoTwin,
    /// No symbol that was tried ended a segment.
    NoBoundary,
    /// It was stopped.
    Stopped,
    /// There was no time for it.
    NoTime,
    /// There was no key-value memory for it.
    NoMemory,
    /// A step failed.
    Failed,
}

impl Missing {
    /// For people.
    pub fn why(self) -> &'static str {
        match self {
            Self::NothingToSkip => "the model does not pool text",
            Self::NoTwin => {
                "the model's segments are a part of what it writes: there is none without them to compare it with"
            }
            Self::NoBoundary => "no symbol that was tried ended a segment",
            Self::Stopped => "not calibrated yet: other requests have run ever since",
            Self::NoTime => "not calibrated: the time for it is 0",
            Self::Failed => "not calibrated: a step failed; the log tells why",
            Self::NoMemory => "not calibrated: there was no key-value memory for it",
        }
    }
}

/// The widest spread of a table that is trusted. On virtual processors of a shared machine with nothing else to do it was 0.17 of small
/// steps; where others take turns on the processors, half of the rounds take as long as the others' turns more.
const WIDE: f64 = 0.2;
/// The fewest samples of a step by which it is trusted.
const FEW: usize = 5;

/// One kind of step, as it was timed. Times are medians.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cell {
    /// Rows.
    pub rows: usize,
    /// Symbols that each was fed.
    pub symbols: usize,
    /// Symbols that each had before.
    pub context: usize,
    /// Segments that each had before.
    pub context_segments: usize,
    /// Segments that they closed together.
    pub closed: usize,
    /// How often it was timed.
    pub samples: usize,
    /// How far these times are apart: the interquartile range of whole rounds by their median.
    pub spread: f64,
    /// The symbol step, where a segment step follows.
    pub symbol: Duration,
    /// The segment step.
    pub middle: Duration,
    /// The finish step, after a segment step.
    pub finish: Duration,
    /// Symbol and finish step of a round without a segment step, if that was timed.
    pub plain: Option<(Duration, Duration)>,
}

/// What was timed of a model, in a form that can be asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// As it was timed.
    pub cells: Vec<Cell>,
    /// When.
    pub made: SystemTime,
    /// How long that took.
    pub took: Duration,
    /// Rounds of one symbol a row.
    steps: Curves,
    /// Rounds with a chunk.
    chunks: Curves,
    /// Bytes of keys and values by how many symbols there are, at full resolution.
    symbol_bytes: Line,
    /// The same of segments, in the middle layers.
    segment_bytes: Line,
}

/// What a round of rows did.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Round {
    /// Whether a row was fed several symbols.
    pub chunk: bool,
    /// Symbols fed.
    pub fed: usize,
    /// Symbols finished.
    pub finished: usize,
    /// Segments closed by its segment step.
    pub closed: usize,
    /// Rows that were not fed, as they waited for a segment step.
    pub waiting: usize,
    /// Symbols that rows had before, on average.
    pub context: f64,
    /// Segments that they had before, on average.
    pub segments: f64,
}

impl Table {
    /// Of these cells; none if there is no round of single symbols among them. `most` symbols are in a sequence at most, the last
    /// of which costs what `cost` tells of so many symbols and segments: see [`Model::cost`](crate::decode::contract::Model::cost).
    pub fn new(cells: Vec<Cell>, most: usize, cost: impl Fn(usize, usize) -> Cost, took: Duration) -> Option<Self> {
        let places = || std::iter::successors(Some(1), |place| Some(place * 2)).take_while(|&place| place <= most);
        let symbol_bytes = |symbols: usize| cost(symbols, 0).symbol.own_bytes as f64;
        let segment_bytes = |segments: usize| cost(most, segments).segment.own_bytes as f64;
        let symbol_bytes = Line(places().map(|place| (place as f64, symbol_bytes(place))).collect());
        let segment_bytes = Line(places().map(|place| (place as f64, segment_bytes(place))).collect());
        let bytes = (&symbol_bytes, &segment_bytes);
        let steps = Curves::of(&cells, bytes, None, |cell| cell.symbols == 1)?;
        let chunks = Curves::of(&cells, bytes, Some(&steps), |cell| cell.symbols > 1).unwrap_or_else(|| steps.clone());
        Some(Self { cells, made: SystemTime::now(), took, steps, chunks, symbol_bytes, segment_bytes })
    }

    /// How often the step was timed that was timed least.
    pub fn fewest_samples(&self) -> usize {
        self.cells.iter().map(|cell| cell.samples).min().unwrap_or(0)
    }

    /// How far the times of one and the same step are apart, of the one in the middle of all.
    pub fn spread(&self) -> f64 {
        let mut spreads: Vec<f64> = self.cells.iter().map(|cell| cell.spread).collect();
        spreads.sort_unstable_by(f64::total_cmp);
        spreads.get(spreads.len() / 2).copied().unwrap_or(0.0)
    }

    /// Why what follows from it is not to be trusted, if it is not; for people.
    pub fn doubt(&self) -> Option<String> {
        let (spread, samples) = (self.spread() * 100.0, self.fewest_samples());
        if self.spread() > WIDE {
            let bound = WIDE * 100.0;
            return Some(format!(
                "the times of one and the same step are {spread:.0} % of their median apart (interquartile range), more than {bound:.0} %: \
                 others used the machine while it was calibrated; load the model again when it is quiet"
            ));
        }
        (samples < FEW).then(|| {
            format!(
                "a step was timed {samples} times, fewer than {FEW}: --calibration-milliseconds gives it more time, and so does a \
                 machine that does nothing else"
            )
        })
    }

    /// Nanoseconds of the round without pooling, the middle layers run for each symbol, over as many positions as there are symbols,
    /// and nobody waiting at a boundary; and as it was.
    pub fn reckon(&self, round: &Round) -> (f64, f64) {
        let curves = if round.chunk { &self.chunks } else { &self.steps };
        let bytes = self.symbol_bytes.at(round.context);
        let full = |part: &Part, positions: usize, cold: bool| part.at(positions, bytes, cold);
        let cold = round.closed > 0;
        let pooled = full(&curves.symbol, round.fed, cold)
            + full(&curves.finish, round.finished, cold)
            + curves.middle.at(round.closed, self.segment_bytes.at(round.segments), true);
        let positions = round.fed + round.waiting;
        let unpooled = full(&curves.symbol, positions, true)
            + full(&curves.finish, positions, true)
            + curves.middle.at(positions, self.segment_bytes.at(round.context), true);
        (unpooled, pooled)
    }
}

/// The three parts of a round.
#[derive(Debug, Clone, PartialEq)]
struct Curves {
    symbol: Part,
    middle: Part,
    finish: Part,
}

/// Nanoseconds of one part.
#[derive(Debug, Clone, PartialEq)]
struct Part {
    /// By positions, beside a segment step, at the shortest context that was timed.
    cold: Line,
    /// The same in a round without one.
    plain: Line,
    /// What each position takes more for each byte that it attends to beyond those at that context.
    per_byte: f64,
    /// The bytes there.
    bytes: f64,
}

impl Part {
    fn at(&self, positions: usize, bytes: f64, cold: bool) -> f64 {
        if positions == 0 {
            return 0.0;
        }
        let positions = positions as f64;
        let line = if cold { &self.cold } else { &self.plain };
        (line.at(positions) + positions * self.per_byte * (bytes - self.bytes)).max(0.0)
    }
}

/// One number of a cell: positions, bytes that each attends to, nanoseconds, and nanoseconds without a segment step.
type Point = (f64, f64, f64, Option<f64>);

impl Curves {
    /// Of the cells that `of` takes. Chunks begin where single symbols do.
    fn of(
        cells: &[Cell],
        (symbol, segment): (&Line, &Line),
        single: Option<&Self>,
        of: impl Fn(&Cell) -> bool,
    ) -> Option<Self> {
        let cells: Vec<&Cell> = cells.iter().filter(|cell| of(cell)).collect();
        let nanos = |took: Duration| took.as_nanos() as f64;
        // a chunk's position attends to half of the chunk beside what was there before
        let context = |cell: &Cell| symbol.at(cell.context as f64 + cell.symbols as f64 / 2.0);
        let inner = |cell: &Cell| {
            let own = cell.closed as f64 / cell.rows.max(1) as f64;
            segment.at(cell.context_segments as f64 + own / 2.0)
        };
        let positions = |cell: &Cell| (cell.rows * cell.symbols) as f64;
        let part = |point: &dyn Fn(&Cell) -> Point, single: Option<&Part>| {
            Part::of(&cells.iter().map(|cell| point(cell)).collect::<Vec<_>>(), single)
        };
        let plain = |cell: &Cell| cell.plain.map(|(symbol, finish)| (nanos(symbol), nanos(finish)));
        Some(Self {
            symbol: part(
                &|cell| (positions(cell), context(cell), nanos(cell.symbol), plain(cell).map(|plain| plain.0)),
                single.map(|single| &single.symbol),
            )?,
            middle: part(
                &|cell| (cell.closed as f64, inner(cell), nanos(cell.middle), None),
                single.map(|single| &single.middle),
            )?,
            finish: part(
                &|cell| (positions(cell), context(cell), nanos(cell.finish), plain(cell).map(|plain| plain.1)),
                single.map(|single| &single.finish),
            )?,
        })
    }
}

impl Part {
    fn of(points: &[Point], single: Option<&Self>) -> Option<Self> {
        let least = points.iter().map(|point| point.1).min_by(f64::total_cmp)?;
        // those at about the shortest context tell of positions, the others of contexts
        let short = |point: &&Point| point.1 <= least * 2.0;
        let per_byte = slope(points, short);
        let line = |of: &dyn Fn(&Point) -> Option<f64>| {
            let near = points.iter().filter(short);
            let at_least = |point: &Point, took: f64| (took - point.0 * per_byte * (point.1 - least)).max(0.0);
            let own = near.filter_map(|point| Some((point.0, at_least(point, of(point)?))));
            own.collect::<Vec<_>>()
        };
        let (mut cold, mut plain) = (line(&|point| Some(point.2)), line(&|point| point.3));
        if let Some(single) = single {
            cold.insert(0, (1.0, single.cold.at(1.0)));
            plain.insert(0, (1.0, single.plain.at(1.0)));
        }
        let cold = Line::through(cold)?;
        // what was not timed without a segment step is as with one
        let plain = if plain.len() > 1 || points.len() == 1 { Line::through(plain) } else { None };
        Some(Self { plain: plain.unwrap_or_else(|| cold.clone()), cold, per_byte, bytes: least })
    }
}

/// What a position takes more for a byte more: the deepest context beside a short one of as many positions.
fn slope(points: &[Point], short: impl Fn(&&Point) -> bool) -> f64 {
    let Some(deep) = points.iter().filter(|point| !short(point)).max_by(|a, b| a.1.total_cmp(&b.1)) else {
        return 0.0;
    };
    let alike = |point: &&Point| (point.0 - deep.0).abs();
    let Some(near) = points.iter().filter(short).min_by(|a, b| alike(a).total_cmp(&alike(b))) else { return 0.0 };
    // of somewhat fewer positions, it would have taken so much for as many
    let near_took = near.2 * deep.0 / near.0.max(1.0);
    ((deep.2 - near_took) / deep.0.max(1.0) / (deep.1 - near.1)).max(0.0)
}

/// A function through points, linear between them. Beyond the last it goes on as before it; before the first it is level.
#[derive(Debug, Clone, PartialEq)]
struct Line(Vec<(f64, f64)>);

impl Line {
    /// Through these, of those at one place their mean; none if there is none.
    fn through(mut points: Vec<(f64, f64)>) -> Option<Self> {
        points.retain(|point| point.0 > 0.0);
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let same = points.chunk_by(|a, b| a.0 == b.0);
        let mean = |same: &[(f64, f64)]| same.iter().map(|point| point.1).sum::<f64>() / same.len() as f64;
        let points: Vec<_> = same.map(|same| (same[0].0, mean(same))).collect();
        (!points.is_empty()).then_some(Self(points))
    }

    fn at(&self, place: f64) -> f64 {
        let points = &self.0[..];
        let next = points.partition_point(|point| point.0 < place);
        match points {
            [] => 0.0,
            [only] => only.1 * (place / only.0).max(1.0),
            _ if next == 0 => points[0].1,
            _ => {
                let last = next.min(points.len() - 1);
                let ((x0, y0), (x1, y1)) = (points[last - 1], points[last]);
                y0 + (y1 - y0) * (place - x0) / (x1 - x0)
            }
        }
    }
}

#[cfg(test)]
mod tests;
