//! The three steps of the contract. Hot path: buffers are kept in [`Work`]; no allocation once they have grown, no locks, no
//! logging.
//!
//! `feed_symbols`: embed → pre stack → boundaries → pool. `close_segments`, for rows that closed one: norm → middle stack.
//! `finish`, for all of them: upsample + residual → post stack → logits. A bulk forward pass is the three with a whole text in
//! a row's feed; a decode step is the same with one symbol.

use super::{model::Hourglass, state::HourglassState};
use crate::{
    decode::contract::{Scratch, SequenceRow, State, StepStatus, SymbolBoundary, Want, advance, state_mut, state_ref},
    error::{Error, Result},
    family::parts::step::{Stepping, hand_out, stepping},
    kernels::{distribution::entropy, linear::Epilogue},
    nn::{
        Position,
        attention::layer::{Caches, StackWork},
        boundary::{
            self,
            evidence::{BoundaryDecision, Evidence},
        },
        kv_cache::KvCache,
        pooling::{self, Pooling},
        sized,
    },
};
use std::ops::RangeInclusive;

/// An intermediate result, for whoever watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The pre stack's output at a symbol.
    PreOutput,
    /// A segment's pooled vector; the place's position is the segment's in the middle stack (the null group is 0).
    Pooled,
    /// The same, normed.
    PooledNormed,
    /// The middle stack's output for a segment.
    MiddleOutput,
    /// What the post stack takes at a symbol.
    PostInput,
    /// What it gives.
    PostOutput,
}

/// Is shown intermediate results, each with its place: (D).
pub type Watcher = Box<dyn FnMut(Stage, Position, &[f32]) + Send>;

/// Working memory of one thread.
#[derive(Default)]
pub struct Work {
    /// Watches intermediate results; golden tests do, servers do not.
    pub watcher: Option<Watcher>,
    pub(super) stack: StackWork,
    boundary: boundary::learned::LearnedWork,
    pub(super) places: Vec<Position>,
    symbols: Vec<u32>,
    noise: Vec<Option<f32>>,
    stream_positions: Vec<usize>,
    decisions: Vec<BoundaryDecision>,
    /// For each of the rows of a step how many of its symbols went through a stack.
    pub(super) fed: Vec<usize>,
    /// The rows among those asked for that this step is for.
    stepping: Vec<usize>,
    /// (rows, D)
    pub(super) x: Vec<f32>,
    /// (wanted, D)
    picked: Vec<f32>,
    /// (wanted, V)
    logits: Vec<f32>,
    companions: Vec<SequenceRow>,
    companion_rows: Vec<usize>,
    companion_scratch: Option<Scratch>,
}

impl Work {
    /// The hourglass's working memory behind the contract.
    ///
    /// # Errors
    /// [`Error::Internal`] if another model made it.
    pub fn of(scratch: &mut Scratch) -> Result<&mut Self> {
        scratch.0.downcast_mut().ok_or_else(|| Error::Internal("another model's scratch".into()))
    }

    pub(super) fn show(&mut self, stage: Stage) {
        let Some(watcher) = &mut self.watcher else { return };
        let width = self.x.len() / self.places.len().max(1);
        for (place, row) in self.places.iter().zip(self.x.chunks_exact(width.max(1))) {
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
pub(super) struct Of<'a, const STACK: usize>(pub(super) &'a mut [SequenceRow]);
const PRE: usize = 0;
pub(super) const MIDDLE: usize = 1;
pub(super) const POST: usize = 2;

impl<const STACK: usize> Caches for Of<'_, STACK> {
    fn cache(&self, sequence: usize) -> Result<&KvCache> {
        let state: &HourglassState = state_ref(&*self.0[sequence].state)?;
        Ok(match STACK {
            PRE => &state.pre,
            MIDDLE => &state.pooled()?.middle,
            _ => &state.pooled()?.post,
        })
    }

    fn cache_mut(&mut self, sequence: usize) -> Result<&mut KvCache> {
        let state: &mut HourglassState = state_mut(&mut *self.0[sequence].state)?;
        Ok(match STACK {
            PRE => &mut state.pre,
            MIDDLE => &mut state.pooled_mut()?.middle,
            _ => &mut state.pooled_mut()?.post,
        })
    }
}

pub(super) fn state(rows: &mut [SequenceRow], index: usize) -> Result<&mut HourglassState> {
    state_mut(&mut *rows[index].state)
}

impl Hourglass {
    /// The symbol step.
    pub(super) fn feed_symbols(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        if which.is_empty() {
            return Ok(());
        }
        for &index in which {
            self.check(&mut rows[index])?;
        }
        self.step_companions(rows, which, work)?;
        work.fed.clear();
        work.fed.resize(which.len(), 0);
        while work.fed.iter().zip(which).any(|(&fed, &index)| fed < rows[index].feed.len()) {
            self.feed_piece(rows, which, work)?;
        }
        for &index in which {
            let state = state(rows, index)?;
            rows[index].status = if state.waits() { StepStatus::Waiting } else { StepStatus::Unfinished };
        }
        Ok(())
    }

    /// Feeds each row as many of its symbols as the pre stack takes at a time.
    fn feed_piece(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        self.place_symbols(rows, which, work)?;
        let dim = self.pre.layers[0].qkv.inputs();
        let x = sized(&mut work.x, work.symbols.len() * dim);
        for (x, &symbol) in x.chunks_exact_mut(dim).zip(&work.symbols) {
            x.copy_from_slice(&self.embedding[symbol as usize * dim..][..dim]); // (rows, D)
        }
        self.pre.forward(&self.compute, &mut work.x, &work.places, &mut Of::<PRE>(rows), &mut work.stack)?;
        work.show(Stage::PreOutput);
        self.decide(rows, work)?;
        self.keep(rows, which, work)
    }

    /// The segment step.
    pub(super) fn close_segments(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        let Some(pooled) = &self.pooled else { return Ok(()) };
        stepping(StepStatus::Waiting, rows, which, work, |rows, waiting, work| self.middle(pooled, rows, waiting, work))
    }

    /// The finish step.
    pub(super) fn finish(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        stepping(StepStatus::Unfinished, rows, which, work, |rows, unfinished, work| {
            match &self.pooled {
                Some(pooled) => self.upper(pooled, rows, unfinished, work)?,
                None => pick_up(rows, unfinished, work)?,
            }
            self.logits(rows, unfinished, work)
        })
    }

    fn check(&self, row: &mut SequenceRow) -> Result<()> {
        let state: &mut HourglassState = state_mut(&mut *row.state)?;
        let (len, more, sound) = (state.pre.len(), row.feed.len(), state.earliest());
        if row.status != StepStatus::Ready || !state.is_ready() || more == 0 {
            return Err(Error::Internal("a row was fed nothing, or before it was ready".into()));
        }
        if len + more > self.card.max_symbols {
            let (length, limit) = (len + more, self.card.max_symbols);
            return Err(Error::TooLong { field: "sequence", length, limit, unit: "characters", why: None });
        }
        self.card.vocabulary.check_ids("feed", &row.feed)?;
        state.hidden.clear();
        row.decisions.clear();
        if let Some(pooled) = &mut state.pooled {
            pooled.above.clear();
            pooled.closed.clear();
            pooled.forget_ends(state.window, sound);
        }
        Ok(())
    }

    /// Lists the symbols and places of a piece of each row, and makes room for them.
    fn place_symbols(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        work.places.clear();
        work.symbols.clear();
        work.noise.clear();
        work.stream_positions.clear();
        for (&index, &fed) in which.iter().zip(&work.fed) {
            let SequenceRow { state, feed, .. } = &mut rows[index];
            let state: &mut HourglassState = state_mut(&mut **state)?;
            let (len, more) = (state.pre.len(), (feed.len() - fed).min(self.pre.window.chunk()));
            self.pre.reserve(&mut state.pre, more)?;
            for position in len..len + more {
                work.places.push(Position { sequence: index, index: position });
                work.stream_positions.push(state.offset + position);
                work.noise.push(state.noise.as_ref().map(|noise| noise.at(position)).transpose()?);
            }
            work.symbols.extend_from_slice(&feed[fed..fed + more]);
        }
        Ok(())
    }

    /// Feeds the same symbols to the companions, in one batch, and notes the entropies of what they predict.
    fn step_companions(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        let Some(model) = &self.companion else { return Ok(()) };
        work.companions.clear();
        for &index in which {
            let SequenceRow { state, feed, .. } = &mut rows[index];
            let state: &mut HourglassState = state_mut(&mut **state)?;
            let row = state.companion.as_mut().and_then(|companion| companion.row.take());
            let mut row = row.ok_or_else(|| Error::Internal("a sequence lost its companion".into()))?;
            row.set(feed, Want::All);
            work.companions.push(row);
        }
        work.companion_rows.clear();
        work.companion_rows.extend(0..which.len());
        let scratch = work.companion_scratch.get_or_insert_with(|| model.scratch());
        advance(&**model, &mut work.companions, &work.companion_rows, scratch)?;
        let symbols = self.card.vocabulary.len();
        for (&index, row) in which.iter().zip(work.companions.drain(..)) {
            if let Some(companion) = &mut state(rows, index)?.companion {
                companion.entropies.extend(row.logits.chunks_exact(symbols).map(entropy));
                companion.row = Some(row);
            }
        }
        Ok(())
    }

    /// Fills `work.decisions` for the symbols just fed.
    fn decide(&self, rows: &[SequenceRow], work: &mut Work) -> Result<()> {
        work.decisions.clear();
        let entropies = |sequence: usize| -> Result<&[f64]> {
            let state: &HourglassState = state_ref(&*rows[sequence].state)?;
            Ok(state.companion.as_ref().map_or(&[], |companion| &companion.entropies))
        };
        let evidence = Evidence {
            positions: &work.places,
            symbols: &work.symbols,
            stream_positions: &work.stream_positions,
            hidden: &work.x,
            noise: &work.noise,
            entropies: &entropies,
        };
        self.boundaries.decide(&self.compute, &evidence, &mut work.boundary, &mut work.decisions)
    }

    /// Keeps what the pre stack gave: what pooling and residual will read, marks, segment ends.
    fn keep(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        let dim = work.x.len() / work.places.len();
        for ((place, decision), x) in work.places.iter().zip(&work.decisions).zip(work.x.chunks_exact(dim)) {
            let row = &mut rows[place.sequence];
            let (boundary, probability) = (decision.closes, decision.probability);
            row.decisions.push(SymbolBoundary { boundary, probability, end_logprob: None });
            // wanted logits are those of the last symbols
            let wanted = row.decisions.len() + row.wanted() > row.feed.len();
            let state: &mut HourglassState = state_mut(&mut *row.state)?;
            state.pre.advance(1);
            if wanted || state.pooled.is_some() {
                state.hidden.extend_from_slice(x);
            }
            if let (Some(pooled), Some(model)) = (&mut state.pooled, &self.pooled) {
                let start = pooled.ends.open();
                if place.index < start {
                    // of a segment that was passed over, in a sequence taken up in its middle: nothing ends there
                    row.decisions.iter_mut().next_back().into_iter().for_each(|mark| mark.boundary = false);
                    continue;
                }
                if model.pooling.sums() {
                    state.pre.add_output(place.index, x, place.index > start)?;
                } else {
                    state.pre.write_output(place.index, x)?;
                }
                if decision.closes {
                    // while all that it needs is held
                    let at = pooled.closed.len();
                    pooled.closed.resize(at + dim, 0.0);
                    pool(model.pooling, &state.pre, start..=place.index, &mut pooled.closed[at..]);
                    pooled.ends.push(place.index);
                }
            }
        }
        for (&index, fed) in which.iter().zip(&mut work.fed) {
            *fed = rows[index].decisions.len();
        }
        Ok(())
    }

    /// The wanted logits of the rows `which`, for which `work.picked` holds hidden vectors, (wanted, D), row after row; the
    /// rows are then ready.
    fn logits(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        let vectors = work.picked.len() / self.head.inputs();
        let logits = sized(&mut work.logits, vectors * self.head.outputs());
        self.head.apply(&self.compute, &work.picked, Epilogue::None, &mut work.stack.quantized, logits); // (wanted, V)
        hand_out(rows, which, logits, self.head.outputs())?;
        for &index in which {
            let state = state(rows, index)?;
            state.finished = state.pre.len();
        }
        Ok(())
    }
}

/// `out` (D) = the vector of a segment that consists of these symbols, from what the pre stack's cache keeps of them.
fn pool(pooling: Pooling, pre: &KvCache, symbols: RangeInclusive<usize>, out: &mut [f32]) {
    if pooling.sums() {
        return pooling::mean_of_sum(pre.output(*symbols.end()), symbols.count(), out);
    }
    let from = (symbols.end() + 1).saturating_sub(pooling.looks_back()).max(*symbols.start());
    pooling.pool((from..=*symbols.end()).map(|t| pre.output(t)), out);
}

/// Puts what the head is to take into `work.picked`, row after row: of what is in flight the last, wanted ones.
pub(super) fn pick_up(rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
    work.picked.clear();
    for &index in which {
        let (fed, wanted) = (rows[index].decisions.len(), rows[index].wanted());
        let state = state(rows, index)?;
        // in a vanilla model they are all that was put by
        let there = if state.pooled.is_some() { fed } else { wanted };
        let unwanted = state.hidden.len() / there.max(1) * there.saturating_sub(wanted);
        work.picked.extend_from_slice(state.hidden.get(unwanted..).unwrap_or_default());
        state.hidden.clear();
    }
    Ok(())
}
