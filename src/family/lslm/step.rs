//! The symbol step and the segment step: the two encoders. Hot path: buffers are kept in [`Work`]; no allocation once they
//! have grown, no locks, no logging.
//!
//! `feed_symbols`: symbols into the sequence → token encoder → predictor → boundaries. Symbols that come with their boundaries
//! are not read yet: nothing needs their vectors before their segment ends. `close_segments`, for rows that closed one: token
//! encoder for what was not read → pool → context encoder → the decoder's keys of its outputs.

use super::{model::Lslm, state::LslmState, write::Line};
use crate::{
    decode::{
        contract::{Scratch, SequenceRow, StepStatus, SymbolBoundary, state_mut, state_ref},
        trace,
    },
    error::{Error, Result},
    family::parts::step::{Stepping, stepping},
    kernels::{attention::PageLayout, distribution::sigmoid, linear::Epilogue, pages::PagePool},
    nn::{Position, attention::layer::Caches, boundary::summed, kv_cache::KvCache, sized, t5::T5Work},
};
use std::sync::Arc;

/// An intermediate result, for whoever watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The token encoder's output; the place's position is 0 for the start's mark, t + 1 for symbol t.
    Token,
    /// The predictor's logit for the same.
    Boundary,
    /// A segment's pooled vector; the place's position is m + 1 for segment m.
    Pooled,
    /// The context encoder's output for it.
    Context,
}

/// Is shown intermediate results, each with its place.
pub type Watcher = Box<dyn FnMut(Stage, Position, &[f32]) + Send>;

/// Working memory of one thread.
pub struct Work {
    /// Watches intermediate results; golden tests do, servers do not.
    pub watcher: Option<Watcher>,
    pub(super) stack: T5Work,
    predictor: summed::SummedWork,
    pub(super) places: Vec<Position>,
    /// Up to where each row of the decoder sees its memory.
    pub(super) seen: Vec<Position>,
    /// The rows among those asked for that this step is for.
    stepping: Vec<usize>,
    /// (rows, width)
    pub(super) x: Vec<f32>,
    /// What is about to get another width.
    narrow: Vec<f32>,
    /// The predictor's logits, one for each of `places` where the token encoder has run.
    said: Vec<f32>,
    /// The rows that the token encoder has read symbols of, with the first one.
    reading: Vec<(usize, usize)>,
    /// Runs of positions for the decoder.
    pub(super) lines: Vec<Line>,
    /// The decoder's rows of segments that are closed in the same step as they are scored.
    pub(super) spare: Vec<KvCache>,
    spare_pages: Arc<PagePool>,
    /// Where each row's first wanted logits go.
    pub(super) slots: Vec<usize>,
    /// (wanted, D)
    pub(super) picked: Vec<f32>,
    /// Vectors that predict the ends of segments, (ends, D), and whose they are: row and mark.
    pub(super) at_ends: Vec<f32>,
    pub(super) ends: Vec<(usize, usize)>,
    /// (wanted, V)
    pub(super) logits: Vec<f32>,
}

impl Work {
    pub(super) fn new() -> Self {
        Self {
            watcher: None,
            stack: T5Work::default(),
            predictor: summed::SummedWork::default(),
            places: Vec::new(),
            seen: Vec::new(),
            stepping: Vec::new(),
            x: Vec::new(),
            narrow: Vec::new(),
            said: Vec::new(),
            reading: Vec::new(),
            lines: Vec::new(),
            spare: Vec::new(),
            // working memory, bounded by how many rows there are at a time: not counted as key-value memory
            spare_pages: PagePool::new(usize::MAX),
            slots: Vec::new(),
            picked: Vec::new(),
            at_ends: Vec::new(),
            ends: Vec::new(),
            logits: Vec::new(),
        }
    }

    /// The model's working memory behind the contract.
    ///
    /// # Errors
    /// [`Error::Internal`] if another model made it.
    pub fn of(scratch: &mut Scratch) -> Result<&mut Self> {
        scratch.0.downcast_mut().ok_or_else(|| Error::Internal("another model's scratch".into()))
    }

    /// Makes sure that there are so many empty rows of the decoder.
    pub(super) fn clear_spare(&mut self, count: usize, layout: PageLayout) {
        while self.spare.len() < count {
            self.spare.push(KvCache::new(layout, self.spare_pages.clone()));
        }
        self.spare.iter_mut().for_each(|cache| cache.truncate(0));
    }

    fn show(&mut self, stage: Stage) {
        let Some(watcher) = &mut self.watcher else { return };
        let numbers = if stage == Stage::Boundary { &self.said } else { &self.x };
        let width = numbers.len() / self.places.len().max(1);
        for (place, row) in self.places.iter().zip(numbers.chunks_exact(width.max(1))) {
            watcher(stage, *place, row);
        }
    }
}

impl Stepping for Work {
    fn chosen(&mut self) -> &mut Vec<usize> {
        &mut self.stepping
    }
}

/// The caches of one stack, found in the rows of a step.
struct Of<'a, const STACK: usize>(&'a mut [SequenceRow]);
const TOKEN: usize = 0;
const CONTEXT: usize = 1;

impl<const STACK: usize> Caches for Of<'_, STACK> {
    fn cache(&self, sequence: usize) -> Result<&KvCache> {
        let state: &LslmState = state_ref(&*self.0[sequence].state)?;
        Ok(if STACK == TOKEN { &state.token } else { &state.context })
    }

    fn cache_mut(&mut self, sequence: usize) -> Result<&mut KvCache> {
        let state: &mut LslmState = state_mut(&mut *self.0[sequence].state)?;
        Ok(if STACK == TOKEN { &mut state.token } else { &mut state.context })
    }
}

pub(super) fn state(rows: &mut [SequenceRow], index: usize) -> Result<&mut LslmState> {
    state_mut(&mut *rows[index].state)
}

impl Lslm {
    /// The symbol step.
    pub(super) fn feed_symbols(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        work.reading.clear();
        for &index in which {
            self.take(&mut rows[index])?;
            let SequenceRow { feed, state, .. } = &rows[index];
            let state: &LslmState = state_ref(&**state)?;
            // a boundary that is asked of the predictor
            if !trace::is_control(feed) && feed.iter().any(|&item| trace::ends_segment(item).is_none()) {
                work.reading.push((index, state.read()));
            }
        }
        work.places.clear();
        for at in 0..work.reading.len() {
            let (index, from) = work.reading[at];
            let to = state(rows, index)?.symbols.len();
            work.places.extend((from..to).map(|t| Position { sequence: index, index: t + 1 }));
        }
        self.read(rows, work)?;
        self.keep(rows, which, work)
    }

    /// Checks a row and takes the symbols of its feed into the sequence; boundaries come later.
    fn take(&self, row: &mut SequenceRow) -> Result<()> {
        let more = row.positions();
        let SequenceRow { state, feed, status, .. } = row;
        let state: &mut LslmState = state_mut(&mut **state)?;
        if *status != StepStatus::Ready || state.in_flight || feed.is_empty() {
            return Err(Error::Internal("a row was fed nothing, or before it was ready".into()));
        }
        if state.symbols.len() + more > self.card.max_symbols {
            let (length, limit) = (state.symbols.len() + more, self.card.max_symbols);
            return Err(Error::TooLong { field: "sequence", length, limit, unit: "characters", why: None });
        }
        match feed[..] {
            [trace::END] if state.open_len() == 0 => {
                return Err(Error::Internal("a segment was to end that has no symbol".into()));
            }
            [trace::BEGIN] if !state.symbols.is_empty() => {
                return Err(Error::Internal("a sequence was to begin that has begun".into()));
            }
            [trace::END | trace::BEGIN] => {}
            _ => {
                let before = state.symbols.len();
                state.symbols.extend(feed.iter().map(|&item| trace::symbol(item)));
                let checked = self.card.vocabulary.check_ids("feed", &state.symbols[before..]);
                if checked.is_err() {
                    state.symbols.truncate(before);
                }
                checked?;
            }
        }
        state.in_flight = true;
        Ok(())
    }

    /// Runs token encoder and predictor for the symbols of `work.places`; what the predictor says is in `work.said`.
    fn read(&self, rows: &mut [SequenceRow], work: &mut Work) -> Result<()> {
        if work.places.is_empty() {
            return Ok(());
        }
        let dim = self.token.norm.weight.len();
        let x = sized(&mut work.x, work.places.len() * dim); // (symbols, D)
        let mut at = 0;
        while let Some(&Position { sequence, index: position }) = work.places.get(at) {
            let run = work.places[at..].iter().take_while(|place| place.sequence == sequence).count();
            let state = state(rows, sequence)?;
            state.token.reserve(run)?;
            for (x, &symbol) in x[at * dim..].chunks_exact_mut(dim).zip(&state.symbols[position - 1..][..run]) {
                x.copy_from_slice(&self.token_embedding[symbol as usize * dim..][..dim]);
            }
            at += run;
        }
        let caches = &mut Of::<TOKEN>(rows);
        self.token.forward(&self.compute, &mut work.x, &work.places, (caches, None), &mut work.stack)?;
        work.show(Stage::Token);
        self.predictor.logits(&self.compute, &work.x, &mut work.predictor, &mut work.said);
        work.show(Stage::Boundary);
        for ((place, x), &logit) in work.places.iter().zip(work.x.chunks_exact(dim)).zip(&work.said) {
            let state = state(rows, place.sequence)?;
            state.token.write_output(place.index, x)?;
            state.token.advance(1);
            state.said.push(self.predictor.closes(logit));
        }
        Ok(())
    }

    /// Cuts segments and writes the marks. Rows that closed a segment wait from here.
    fn keep(&self, rows: &mut [SequenceRow], which: &[usize], work: &Work) -> Result<()> {
        let (mut reading, mut logits) = (work.reading.iter().peekable(), &work.said[..work.places.len()]);
        for &index in which {
            let SequenceRow { state, feed, decisions, status, .. } = &mut rows[index];
            let state: &mut LslmState = state_mut(&mut **state)?;
            decisions.clear();
            if trace::is_control(feed) {
                let boundary = feed[..] == [trace::END];
                decisions.push(SymbolBoundary { boundary, probability: None, end_logprob: None });
                if boundary {
                    state.ends.push(state.symbols.len() - 1);
                }
            } else {
                // the logits of this row's last symbols, if it was read
                let own = match reading.next_if(|(reading, _)| *reading == index) {
                    Some(&(_, from)) => logits.split_at(state.symbols.len() - from),
                    None => (&logits[..0], logits),
                };
                logits = own.1;
                let first = state.symbols.len() - feed.len();
                let read_from = state.symbols.len() - own.0.len();
                for (t, &item) in (first..).zip(feed.iter()) {
                    let logit = t.checked_sub(read_from).and_then(|at| own.0.get(at)).copied();
                    let said = logit.is_some_and(|logit| self.predictor.closes(logit));
                    let boundary = trace::ends_segment(item).unwrap_or(said);
                    decisions.push(SymbolBoundary { boundary, probability: logit.map(sigmoid), end_logprob: None });
                    if boundary {
                        state.ends.push(t);
                    }
                }
            }
            *status = if state.waits() { StepStatus::Waiting } else { StepStatus::Unfinished };
        }
        Ok(())
    }

    /// Reads the start's mark into the one row's sequence, which has seen nothing at all: it is a segment by itself, and its own
    /// summary.
    pub(super) fn read_start(&self, rows: &mut [SequenceRow], work: &mut Work) -> Result<()> {
        let dim = self.token.norm.weight.len();
        let at = self.specials.start as usize * dim;
        work.places.clear();
        work.places.push(Position { sequence: 0, index: 0 });
        work.x.clear();
        work.x.extend_from_slice(&self.token_embedding[at..at + dim]); // (1, D)
        let LslmState { token, context, memory, .. } = state(rows, 0)?;
        [token, context, memory].into_iter().try_for_each(|cache| cache.reserve(1))?;
        let caches = &mut Of::<TOKEN>(rows);
        self.token.forward(&self.compute, &mut work.x, &work.places, (caches, None), &mut work.stack)?;
        let state = state(rows, 0)?;
        state.token.write_output(0, &work.x)?;
        state.token.advance(1);
        self.encode_segments(rows, work)
    }

    /// The segment step.
    pub(super) fn close_segments(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        stepping(StepStatus::Waiting, rows, which, work, |rows, waiting, work| {
            work.places.clear();
            for &index in waiting {
                let state = state(rows, index)?;
                let closed = state.start_of(state.ends.len());
                work.places.extend((state.read()..closed).map(|t| Position { sequence: index, index: t + 1 }));
            }
            self.read(rows, work)?;
            self.summarise(rows, waiting, work)
        })
    }

    /// Pools the segments just closed, runs the context encoder over them, and keeps what the decoder will see of them.
    fn summarise(&self, rows: &mut [SequenceRow], waiting: &[usize], work: &mut Work) -> Result<()> {
        work.places.clear();
        let dim = self.token.norm.weight.len();
        for &index in waiting {
            let state = state(rows, index)?;
            let (done, closed) = (state.context.len(), state.ends.len() + 1);
            state.context.reserve(closed - done)?;
            state.memory.reserve(closed - done)?;
            work.places.extend((done..closed).map(|position| Position { sequence: index, index: position }));
        }
        let x = sized(&mut work.x, work.places.len() * dim); // (segments, D)
        for (place, x) in work.places.iter().zip(x.chunks_exact_mut(dim)) {
            let state = state(rows, place.sequence)?;
            let symbols = state.segment(place.index - 1);
            self.pooling.pool(symbols.map(|t| state.token.output(t + 1)), x);
        }
        work.show(Stage::Pooled);
        self.encode_segments(rows, work)?;
        for &index in waiting {
            state(rows, index)?.count_agreed();
            rows[index].status = StepStatus::Unfinished;
        }
        Ok(())
    }

    /// The context encoder over the pooled vectors `work.x` at `work.places`, and the decoder's keys of what comes out.
    fn encode_segments(&self, rows: &mut [SequenceRow], work: &mut Work) -> Result<()> {
        if let Some(projection) = &self.projection {
            std::mem::swap(&mut work.x, &mut work.narrow);
            let x = sized(&mut work.x, work.places.len() * projection.outputs());
            projection.apply(&self.compute, &work.narrow, Epilogue::None, &mut work.stack.quantized, x); // (segments, C)
        }
        let caches = &mut Of::<CONTEXT>(rows);
        self.context.forward(&self.compute, &mut work.x, &work.places, (caches, None), &mut work.stack)?;
        work.show(Stage::Context);
        let places = &work.places;
        self.decoder.project_memory(&self.compute, &work.x, &mut work.stack, |(layer, row), keys, values| {
            let Position { sequence, index: position } = places[row];
            state(rows, sequence)?.memory.write(layer, position, keys, values)
        })?;
        for place in places {
            let state = state(rows, place.sequence)?;
            state.context.advance(1);
            state.memory.advance(1);
        }
        Ok(())
    }
}
