//! Times a model's steps for a [`Table`]: a few numbers of rows, a few lengths of chunks, two contexts.
//!
//! Every row is fed the same: a beginning that is found by trying symbols until one ends a segment. That symbol is then fed to
//! so many rows at once, which all wait; after their segment and finish step they are rolled back to where they were. So each
//! step is timed again and again at the same place, whatever it is in the model that decides where segments end.
//!
//! Kinds of steps are timed in turns, as what follows from the table are their proportions: a machine that is slow for a while
//! is so for all of them.
//!
//! It uses key-value memory like anybody else, and gives it back. What it measures is only worth something while nothing else
//! runs: the caller sees to that, and can stop it after any step.

use super::{
    Missing, Table,
    samples::{Place, Samples, Took},
};
use crate::{
    decode::contract::{BoundaryMode, BoundaryOptions, Model, Scratch, SequenceRow, StepStatus, Want},
    error::{Error, Result},
};
use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

/// Rows that are fed one symbol each.
const ROWS: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// Of these, so many are few.
const FEW: usize = 3;
/// Symbols that they have before that, at least.
const SHORT: usize = 16;
/// Symbols that a row has for the step at a long context.
const LONG: usize = 384;
/// Lengths of chunks.
const CHUNKS: [usize; 2] = [32, 128];
/// Positions at which an end of a segment is looked for.
const PLACES: usize = 64;
/// Symbols that are tried at each.
const TRIED: usize = 64;
/// How many different symbols rows begin with; which ones does not matter.
const BEGINNING: usize = 4;
/// How often each step is timed, if there is time.
const PASSES: usize = 31;

/// Where a row can be fed a symbol that ends a segment, or one that ends none.
#[derive(Debug, Clone, Copy)]
struct Poised {
    len: usize,
    symbol: u32,
}

struct Timer<'a> {
    model: &'a dyn Model,
    scratch: Scratch,
    /// What every row begins with.
    beginning: Vec<u32>,
    closer: Poised,
    opener: Option<Poised>,
    /// Those at the beginning, and their indices.
    rows: Vec<SequenceRow>,
    all: Vec<usize>,
    /// The one with a long text, once there is one.
    long: Vec<SequenceRow>,
}

/// Times the model for at most about so long; `go_on` is asked after each step, and stops it by `Break`. `most_rows` is what the
/// engine steps together at most.
///
/// # Errors
/// What the model's steps say; running out of memory for more rows is none.
pub fn measure(
    model: &dyn Model,
    most_rows: usize,
    budget: Duration,
    go_on: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<std::result::Result<Table, Missing>> {
    if budget.is_zero() {
        return Ok(Err(Missing::NoTime));
    }
    if !model.card().pooled || model.document_encoder().is_some() {
        return Ok(Err(Missing::NothingToSkip));
    }
    if model.card().boundary_modes.contains(&BoundaryMode::Nxt) {
        return Ok(Err(Missing::NoTwin));
    }
    let began = Instant::now();
    let mut timer = match Timer::find(model) {
        Ok(Some(timer)) => timer,
        Ok(None) => return Ok(Err(Missing::NoBoundary)),
        Err(Error::OutOfPages { .. }) => return Ok(Err(Missing::NoMemory)),
        Err(error) => return Err(error),
    };
    let mut kinds: Vec<(Kind, Option<Place>, Samples)> =
        timer.kinds(most_rows).into_iter().map(|kind| (kind, None, Samples::default())).collect();
    for pass in 0..PASSES {
        let mut index = 0;
        while let Some((kind, place, samples)) = kinds.get_mut(index) {
            // without a single one there would be no table
            if began.elapsed() > budget && pass + index > 0 {
                return Ok(table(model, kinds, began));
            }
            match timer.time(*kind, samples) {
                Ok(of) => *place = Some(of),
                // what there is no memory for is left out, and so is what needs more
                Err(Error::OutOfPages { .. }) if pass + index > 0 => {
                    let without = *kind;
                    kinds.retain(|(kind, ..)| !kind.needs(without));
                    continue;
                }
                Err(Error::OutOfPages { .. }) => return Ok(Err(Missing::NoMemory)),
                Err(error) => return Err(error),
            }
            if go_on().is_break() {
                return Ok(Err(Missing::Stopped));
            }
            index += 1;
        }
    }
    Ok(table(model, kinds, began))
}

fn table(
    model: &dyn Model,
    kinds: Vec<(Kind, Option<Place>, Samples)>,
    began: Instant,
) -> std::result::Result<Table, Missing> {
    let cells = kinds.into_iter().filter_map(|(_, place, samples)| place?.cell(samples)).collect();
    Table::new(cells, model.card().max_symbols, |symbols, segments| model.cost(symbols, segments), began.elapsed())
        .ok_or(Missing::NoBoundary)
}

/// A kind of step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// So many rows are fed a symbol each.
    Rows(usize),
    /// A row of so many symbols is fed so many.
    Chunk { context: usize, length: usize },
    /// The row of the last chunk is fed a symbol.
    Long,
}

impl Kind {
    /// Whether it takes at least the memory of the other.
    fn needs(self, other: Self) -> bool {
        match (self, other) {
            (Self::Rows(rows), Self::Rows(others)) => rows >= others,
            (Self::Rows(_), _) | (_, Self::Rows(_)) => false,
            (_, Self::Long) | (Self::Long, _) => true,
            (Self::Chunk { context: a, length: b }, Self::Chunk { context: c, length: d }) => a + b >= c + d,
        }
    }
}

impl<'a> Timer<'a> {
    /// Looks for a place where a symbol ends a segment; none if there is none among those tried.
    fn find(model: &'a dyn Model) -> Result<Option<Self>> {
        let mut timer = Self {
            model,
            scratch: model.scratch(),
            beginning: Vec::new(),
            closer: Poised { len: 0, symbol: 0 },
            opener: None,
            rows: Vec::new(),
            all: Vec::new(),
            long: Vec::new(),
        };
        let letters: Vec<u32> = model.card().vocabulary.text_ids().take(TRIED.max(256)).collect();
        if letters.is_empty() {
            return Ok(None);
        }
        let places = PLACES.min(model.card().max_symbols.saturating_sub(SHORT + 1));
        let start = SHORT.min(model.card().max_symbols.saturating_sub(2) / 2);
        timer.grow(1)?;
        let mut closer = None;
        for place in 0..start + places {
            if place >= start {
                // every symbol of a small vocabulary; of a large one others at each place
                let start = place * TRIED % letters.len();
                let tried: Vec<u32> = letters.iter().copied().cycle().skip(start).take(TRIED).collect();
                for symbol in tried {
                    let poised = Poised { len: place, symbol };
                    let closes = timer.closes(poised)?;
                    if closes && closer.is_none() {
                        closer = Some(poised);
                    } else if !closes && timer.opener.is_none() {
                        timer.opener = Some(poised);
                    }
                    if closer.is_some() && timer.opener.is_some() {
                        break;
                    }
                }
            }
            if let (Some(closer), true) = (closer, timer.opener.is_some() || place + 1 == start + places) {
                timer.closer = closer;
                return Ok(Some(timer));
            }
            let next = letters[place % letters.len().min(BEGINNING)];
            timer.beginning.push(next);
            timer.feed(0, next)?;
        }
        Ok(None)
    }

    /// Whether that symbol would end a segment there, where the first row is.
    fn closes(&mut self, Poised { len, symbol }: Poised) -> Result<bool> {
        self.rows[0].set(&[symbol], Want::Last);
        let (_, closes) = self.round(Which::Short(1))?;
        self.rows[0].state.rollback(len)?;
        Ok(closes)
    }

    /// Feeds a row at the beginning.
    fn feed(&mut self, row: usize, symbol: u32) -> Result<()> {
        self.rows[row].set(&[symbol], Want::Nothing);
        let (model, rows) = (self.model, &mut self.rows);
        model.symbol_step(rows, &[row], &mut self.scratch)?;
        model.segment_step(rows, &[row], &mut self.scratch)?;
        model.finish_step(rows, &[row], &mut self.scratch)
    }

    /// Sees to it that there are so many rows, each with the beginning.
    fn grow(&mut self, rows: usize) -> Result<()> {
        while self.rows.len() < rows {
            self.all.push(self.rows.len());
            self.rows.push(SequenceRow::new(self.model.begin(BoundaryOptions::default())?));
            let beginning = self.beginning.clone();
            // one by one: so it was found, and windows roll back no further than a few symbols
            for symbol in &beginning {
                self.feed(self.rows.len() - 1, *symbol)?;
            }
        }
        Ok(())
    }

    /// What is timed, the most telling first: of few rows, at a long context, of many rows.
    fn kinds(&self, most_rows: usize) -> Vec<Kind> {
        let rows = |range: &[usize]| {
            let some = range.iter().filter(|&&rows| rows <= most_rows.max(1));
            some.map(|&rows| Kind::Rows(rows)).collect::<Vec<_>>()
        };
        let most = LONG.min(self.model.card().max_symbols.saturating_sub(1));
        let lengths = CHUNKS.into_iter().filter(|&length| length <= most);
        let chunks = lengths.clone().map(|length| Kind::Chunk { context: 0, length });
        let deepest = lengths.max().map(|length| Kind::Chunk { context: most - length, length });
        let long = chunks.chain(deepest.into_iter().flat_map(|chunk| [chunk, Kind::Long]));
        rows(&ROWS[..FEW]).into_iter().chain(long).chain(rows(&ROWS[FEW..])).collect()
    }

    /// Times one kind of step once; tells its place in the table.
    fn time(&mut self, kind: Kind, samples: &mut Samples) -> Result<Place> {
        match kind {
            Kind::Rows(rows) => {
                self.grow(rows)?;
                for closing in [true, false] {
                    self.pass(rows, closing, samples)?;
                }
                let context = (self.closer.len, self.rows[0].state.segments());
                Ok(Place { size: (rows, 1), context, closed: rows })
            }
            Kind::Chunk { context, length } => {
                if self.long.is_empty() {
                    self.long.push(SequenceRow::new(self.model.begin(BoundaryOptions::default())?));
                }
                self.long[0].state.restart(0);
                self.fill(context)?;
                let before = self.long[0].state.segments();
                self.long[0].set(&vec![self.closer.symbol; length], Want::Last);
                let (took, _) = self.round(Which::Long)?;
                samples.push(took, true);
                let closed = self.long[0].decisions.iter().filter(|mark| mark.boundary).count();
                Ok(Place { size: (1, length), context: (context, before), closed })
            }
            Kind::Long => self.single(samples),
        }
    }

    /// Times one round of rows that all end a segment, or that all end none: the second of two, so that caches are as in a row of such
    /// rounds.
    fn pass(&mut self, rows: usize, closing: bool, samples: &mut Samples) -> Result<()> {
        let poised = if closing { Some(self.closer) } else { self.opener };
        let Some(poised) = poised else { return Ok(()) };
        for timed in [false, true] {
            for row in &mut self.rows[..rows] {
                row.state.rollback(poised.len)?;
                row.set(&[poised.symbol], Want::Last);
            }
            let (took, _) = self.round(Which::Short(rows))?;
            if timed {
                samples.push(took, closing);
            }
            let beginning = self.beginning.get(poised.len..).unwrap_or_default().to_vec();
            for row in 0..rows {
                self.rows[row].state.rollback(poised.len)?;
                for symbol in &beginning {
                    self.feed(row, *symbol)?;
                }
            }
        }
        Ok(())
    }

    /// Feeds the long row so many symbols that end segments, wherever the model lets them.
    fn fill(&mut self, symbols: usize) -> Result<()> {
        let most = CHUNKS[1];
        let mut left = symbols;
        while left > 0 {
            let now = left.min(most);
            self.long[0].set(&vec![self.closer.symbol; now], Want::Nothing);
            self.round(Which::Long)?;
            left -= now;
        }
        Ok(())
    }

    /// Times a single symbol where the long row is, if it ends a segment there, a few times, after one that finds the caches as the
    /// chunk left them.
    fn single(&mut self, samples: &mut Samples) -> Result<Place> {
        let len = self.long[0].state.len().saturating_sub(1);
        let mut context = (len, 0);
        for timed in [false, true, true, true] {
            // back by one, so that there is room for it in any case
            self.long[0].state.rollback(len)?;
            context.1 = self.long[0].state.segments();
            self.long[0].set(&[self.closer.symbol], Want::Last);
            let (took, closes) = self.round(Which::Long)?;
            if timed && closes {
                samples.push(took, true);
            }
        }
        Ok(Place { size: (1, 1), context, closed: 1 })
    }

    /// Runs a round of rows that were given their symbols; tells what it took, and whether the first row waited for its segment step.
    fn round(&mut self, which: Which) -> Result<(Took, bool)> {
        let (rows, all) = match which {
            Which::Short(count) => (&mut self.rows, &self.all[..count]),
            Which::Long => (&mut self.long, &self.all[..1]),
        };
        let (model, scratch) = (self.model, &mut self.scratch);
        let began = Instant::now();
        model.symbol_step(rows, all, scratch)?;
        let fed = Instant::now();
        let closes = rows[0].status == StepStatus::Waiting;
        model.segment_step(rows, all, scratch)?;
        let closed = Instant::now();
        model.finish_step(rows, all, scratch)?;
        let nanos = |from: Instant, to: Instant| u64::try_from((to - from).as_nanos()).unwrap_or(u64::MAX);
        Ok(([nanos(began, fed), nanos(fed, closed), nanos(closed, Instant::now())], closes))
    }
}

/// Rows of a round.
#[derive(Debug, Clone, Copy)]
enum Which {
    /// So many of those at the beginning.
    Short(usize),
    /// The one with a long text.
    Long,
}
