//! Times a model's steps for a [`Table`]: a few numbers of rows, a few lengths of chunks, two contexts.
//!
//! Every row is fed the same: a beginning that is found by trying symbols until one ends a segment. That symbol is then fed to
//! so many rows at once, which all wait; after their segment and finish step they are rolled back to where they were. So each
//! step is timed again and again at the same place, whatever it is in the model that decides where segments end.
//!
//! It uses key-value memory like anybody else, and gives it back. What it measures is only worth something while nothing else
//! runs: the caller sees to that, and can stop it after any step.

use super::{
    Cell, Missing, Table,
    samples::{Samples, cell, timed_step},
};
use crate::{
    decode::contract::{BoundaryMode, BoundaryOptions, Model, Row, Scratch, Status, Want},
    error::{Error, Result},
};
use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

/// Rows that are fed one symbol each.
const ROWS: [usize; 6] = [1, 2, 4, 8, 16, 32];
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
const PASSES: usize = 15;

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
    rows: Vec<Row>,
    all: Vec<usize>,
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
    if !model.card().pooled || model.reader().is_some() {
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
    let mut cells = Vec::new();
    // first what costs least and tells most: the last parts are left out when there is no time for them
    let left = |began: Instant| budget.saturating_sub(began.elapsed());
    for rows in ROWS.into_iter().filter(|&rows| rows <= most_rows.max(1)) {
        // a quarter is for chunks and the long context
        let enough = left(began) > budget / 4;
        if !(enough || cells.is_empty()) {
            break;
        }
        let share = left(began).mul_f64(0.3);
        match timer.rows(rows, share, go_on) {
            Ok(ControlFlow::Continue(cell)) => cells.push(cell),
            Ok(ControlFlow::Break(())) => return Ok(Err(Missing::Stopped)),
            Err(Error::OutOfPages { .. }) if !cells.is_empty() => break,
            Err(error) => return Err(error),
        }
    }
    match timer.long(left(began), go_on) {
        Ok(ControlFlow::Continue(more)) => cells.extend(more),
        Ok(ControlFlow::Break(())) => return Ok(Err(Missing::Stopped)),
        Err(Error::OutOfPages { .. }) => {}
        Err(error) => return Err(error),
    }
    Ok(Table::new(cells, model.card().max_symbols, |symbols, segments| model.cost(symbols, segments), began.elapsed())
        .ok_or(Missing::NoBoundary))
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
            timer.feed(0, &[next])?;
        }
        Ok(None)
    }

    /// Whether that symbol would end a segment there, where the first row is.
    fn closes(&mut self, Poised { len, symbol }: Poised) -> Result<bool> {
        self.rows[0].set(&[symbol], Want::Last);
        self.model.symbol_step(&mut self.rows, &self.all[..1], &mut self.scratch)?;
        let closes = self.rows[0].status == Status::Waiting;
        self.settle(1)?;
        self.rows[0].state.rollback(len)?;
        Ok(closes)
    }

    /// Brings rows that were fed to where they are ready.
    fn settle(&mut self, rows: usize) -> Result<()> {
        self.model.segment_step(&mut self.rows, &self.all[..rows], &mut self.scratch)?;
        self.model.finish_step(&mut self.rows, &self.all[..rows], &mut self.scratch)
    }

    /// Feeds a row, untimed.
    fn feed(&mut self, row: usize, symbols: &[u32]) -> Result<()> {
        if symbols.is_empty() {
            return Ok(());
        }
        self.rows[row].set(symbols, Want::Nothing);
        self.model.symbol_step(&mut self.rows, &[row], &mut self.scratch)?;
        self.model.segment_step(&mut self.rows, &[row], &mut self.scratch)?;
        self.model.finish_step(&mut self.rows, &[row], &mut self.scratch)
    }

    /// Sees to it that there are so many rows, each with the beginning.
    fn grow(&mut self, rows: usize) -> Result<()> {
        while self.rows.len() < rows {
            self.all.push(self.rows.len());
            self.rows.push(Row::new(self.model.begin(BoundaryOptions::default())?));
            let beginning = self.beginning.clone();
            // one by one: so it was found, and windows roll back no further than a few symbols
            for symbol in &beginning {
                self.feed(self.rows.len() - 1, std::slice::from_ref(symbol))?;
            }
        }
        Ok(())
    }

    /// Times so many rows that are fed one symbol each.
    fn rows(
        &mut self,
        rows: usize,
        budget: Duration,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<ControlFlow<(), Cell>> {
        self.grow(rows)?;
        let began = Instant::now();
        let mut samples = Samples::default();
        for pass in 0..PASSES {
            if pass > 0 && began.elapsed() > budget {
                break;
            }
            for closing in [true, false] {
                self.pass(rows, closing, &mut samples)?;
                if go_on().is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
        let segments = self.rows[0].state.segments();
        let size = (rows, 1);
        Ok(ControlFlow::Continue(cell(size, (self.closer.len, segments), rows, &mut samples)))
    }

    /// Times one round of rows that all end a segment, or that all end none: then the second of two, so that nothing of the middle
    /// layers is in between.
    fn pass(&mut self, rows: usize, closing: bool, samples: &mut Samples) -> Result<()> {
        let poised = if closing { Some(self.closer) } else { self.opener };
        let Some(poised) = poised else { return Ok(()) };
        for timed in [false, true].into_iter().skip(usize::from(closing)) {
            for row in &mut self.rows[..rows] {
                row.state.rollback(poised.len)?;
                row.set(&[poised.symbol], Want::Last);
            }
            let all = &self.all[..rows];
            let symbol = timed_step(|| self.model.symbol_step(&mut self.rows, all, &mut self.scratch))?;
            if closing {
                samples[1].push(timed_step(|| self.model.segment_step(&mut self.rows, all, &mut self.scratch))?);
            }
            let finish = timed_step(|| self.model.finish_step(&mut self.rows, all, &mut self.scratch))?;
            if timed {
                samples[if closing { 0 } else { 3 }].push(symbol);
                samples[if closing { 2 } else { 4 }].push(finish);
            }
            let beginning = self.beginning.get(poised.len..).unwrap_or_default().to_vec();
            for row in 0..rows {
                self.rows[row].state.rollback(poised.len)?;
                for symbol in &beginning {
                    self.feed(row, std::slice::from_ref(symbol))?;
                }
            }
        }
        Ok(())
    }

    /// Times chunks from the start of a text, and at a long context, and there single symbols, too: on one row.
    fn long(
        &mut self,
        budget: Duration,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<ControlFlow<(), Vec<Cell>>> {
        self.rows.truncate(1);
        self.all.truncate(1);
        let most = LONG.min(self.model.card().max_symbols.saturating_sub(1));
        let lengths = CHUNKS.into_iter().filter(|&length| length <= most);
        let places: Vec<(usize, usize)> = lengths
            .clone()
            .map(|length| (0, length))
            .chain(lengths.max().map(|length| (most - length, length)))
            .collect();
        let mut cells: Vec<(Cell, Samples)> = Vec::new();
        let mut deep = Samples::default();
        let mut at = (0, 0);
        let began = Instant::now();
        'passes: for pass in 0..PASSES {
            for (index, &(context, length)) in places.iter().enumerate() {
                if pass + index > 0 && began.elapsed() > budget {
                    break 'passes;
                }
                self.rows[0].state.restart(0);
                self.fill(context)?;
                let before = self.rows[0].state.segments();
                let mut samples = Samples::default();
                let closed = self.chunk(length, &mut samples)?;
                if pass == 0 {
                    cells
                        .push((cell((1, length), (context, before), closed, &mut samples.clone()), Samples::default()));
                }
                for (all, one) in cells[index].1.iter_mut().zip(&samples) {
                    all.extend(one);
                }
                if go_on().is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            // what the last chunk left is a long context, if it ends where the closer ends a segment again
            at = (self.rows[0].state.len(), self.rows[0].state.segments());
            self.single(&mut deep)?;
        }
        let mut cells: Vec<Cell> = cells
            .into_iter()
            .map(|(of, mut samples)| cell((1, of.symbols), (of.context, of.context_segments), of.closed, &mut samples))
            .collect();
        if !deep[1].is_empty() {
            cells.push(cell((1, 1), at, 1, &mut deep));
        }
        Ok(ControlFlow::Continue(cells))
    }

    /// Feeds the row so many symbols that end segments, wherever the model lets them.
    fn fill(&mut self, symbols: usize) -> Result<()> {
        let most = CHUNKS[1];
        let mut left = symbols;
        while left > 0 {
            let now = left.min(most);
            self.feed(0, &vec![self.closer.symbol; now])?;
            left -= now;
        }
        Ok(())
    }

    /// Times one chunk; returns how many segments it closed.
    fn chunk(&mut self, length: usize, samples: &mut Samples) -> Result<usize> {
        self.rows[0].set(&vec![self.closer.symbol; length], Want::Last);
        samples[0].push(timed_step(|| self.model.symbol_step(&mut self.rows, &[0], &mut self.scratch))?);
        let closed = self.rows[0].marks.iter().filter(|mark| mark.boundary).count();
        samples[1].push(timed_step(|| self.model.segment_step(&mut self.rows, &[0], &mut self.scratch))?);
        samples[2].push(timed_step(|| self.model.finish_step(&mut self.rows, &[0], &mut self.scratch))?);
        Ok(closed)
    }

    /// Times a single symbol where the row is, if it ends a segment there, a few times.
    fn single(&mut self, samples: &mut Samples) -> Result<()> {
        let len = self.rows[0].state.len().saturating_sub(1);
        for _ in 0..3 {
            // back by one, so that there is room for it in any case
            self.rows[0].state.rollback(len)?;
            self.rows[0].set(&[self.closer.symbol], Want::Last);
            let symbol = timed_step(|| self.model.symbol_step(&mut self.rows, &[0], &mut self.scratch))?;
            let closes = self.rows[0].status == Status::Waiting;
            let middle = timed_step(|| self.model.segment_step(&mut self.rows, &[0], &mut self.scratch))?;
            let finish = timed_step(|| self.model.finish_step(&mut self.rows, &[0], &mut self.scratch))?;
            if closes {
                samples[0].push(symbol);
                samples[1].push(middle);
                samples[2].push(finish);
            }
        }
        Ok(())
    }
}
