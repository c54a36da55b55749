//! The steps of the contract. Hot path: buffers are kept in [`Work`]; no allocation once they have grown, no locks, no logging.
//!
//! `feed_symbols`: embed → stack, a piece of each row's symbols at a time, so that no more keys are held than a window and a
//! piece need. `finish`: norm → logits, of the symbols whose logits are wanted.

use super::{model::Decoder, state::DecoderState};
use crate::{
    decode::{
        contract::{Scratch, SequenceRow, State, StepStatus, SymbolBoundary, state_mut, state_ref},
        trace,
    },
    error::{Error, Result},
    family::parts::step::{Stepping, hand_out, stepping},
    kernels::{linear::Epilogue, rowwise::layer_norm},
    nn::{
        Position,
        attention::layer::{Caches, Hook, StackWork},
        kv_cache::KvCache,
        sized,
    },
};

/// Working memory of one thread.
#[derive(Default)]
pub struct Work {
    pub(super) stack: StackWork,
    places: Vec<Position>,
    /// For each of `which` how many of its symbols were fed.
    fed: Vec<usize>,
    /// The rows among those asked for that this step is for.
    stepping: Vec<usize>,
    /// (rows, D)
    x: Vec<f32>,
    /// (wanted, D)
    picked: Vec<f32>,
    /// (wanted, V)
    logits: Vec<f32>,
}

impl Work {
    /// The decoder's working memory behind the contract.
    ///
    /// # Errors
    /// [`Error::Internal`] if another model made it.
    pub fn of(scratch: &mut Scratch) -> Result<&mut Self> {
        scratch.0.downcast_mut().ok_or_else(|| Error::Internal("another model's scratch".into()))
    }

    /// Has every layer's intermediate results shown from now on.
    pub fn watch(&mut self, hook: Hook) {
        self.stack.hook = Some(hook);
    }
}

impl Stepping for Work {
    fn chosen(&mut self) -> &mut Vec<usize> {
        &mut self.stepping
    }
}

/// The caches of a step's rows.
struct Of<'a>(&'a mut [SequenceRow]);

impl Caches for Of<'_> {
    fn cache(&self, sequence: usize) -> Result<&KvCache> {
        Ok(&state_ref::<DecoderState>(&*self.0[sequence].state)?.cache)
    }

    fn cache_mut(&mut self, sequence: usize) -> Result<&mut KvCache> {
        Ok(&mut state(self.0, sequence)?.cache)
    }

    fn memory(&self, sequence: usize) -> Result<Option<&KvCache>> {
        Ok(state_ref::<DecoderState>(&*self.0[sequence].state)?.memory.as_ref())
    }
}

fn state(rows: &mut [SequenceRow], index: usize) -> Result<&mut DecoderState> {
    state_mut(&mut *rows[index].state)
}

impl Decoder {
    /// The symbol step.
    ///
    /// # Errors
    /// As for [`Model::symbol_step`](crate::decode::contract::Model::symbol_step).
    pub fn feed_symbols(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        for &index in which {
            self.check(&mut rows[index])?;
        }
        work.fed.clear();
        work.fed.resize(which.len(), 0);
        while work.fed.iter().zip(which).any(|(&fed, &index)| fed < rows[index].positions()) {
            self.feed_piece(rows, which, work)?;
        }
        for &index in which {
            let row = &mut rows[index];
            row.decisions.clear();
            row.decisions
                .resize(row.feed.len(), SymbolBoundary { boundary: false, probability: None, end_logprob: None });
            row.status = StepStatus::Unfinished;
        }
        Ok(())
    }

    fn check(&self, row: &mut SequenceRow) -> Result<()> {
        let (more, wanted) = (row.positions(), row.wanted());
        let state: &mut DecoderState = state_mut(&mut *row.state)?;
        let len = state.len();
        if row.status != StepStatus::Ready || !state.is_ready() || row.feed.is_empty() {
            return Err(Error::Internal("a row was fed nothing, or before it was ready".into()));
        }
        if trace::is_control(&row.feed) {
            return match &self.start {
                Some(start) if row.feed[..] == [trace::BEGIN] && len == 0 => {
                    state.hidden.clear();
                    state.hidden.extend_from_slice(if wanted > 0 { &start.hidden } else { &[] });
                    Ok(())
                }
                _ => Err(Error::Internal("a row was fed a mark that it does not know, or in its middle".into())),
            };
        }
        if len + more > self.card.max_symbols {
            let (length, limit) = (len + more, self.card.max_symbols);
            let unit = if self.card.vocabulary.is_subword() { "tokens" } else { "characters" };
            return Err(Error::TooLong { field: "sequence", length, limit, unit, why: None });
        }
        state.hidden.clear();
        self.card.vocabulary.check_ids("feed", &row.feed)
    }

    /// Feeds each row as many of its symbols as its stack takes at a time.
    fn feed_piece(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        let (dim, piece) = (self.head.inputs(), self.stack.window.chunk());
        work.places.clear();
        work.x.clear();
        for (&index, &fed) in which.iter().zip(&work.fed) {
            let more = (rows[index].positions() - fed).min(piece);
            let state = state(rows, index)?;
            self.stack.reserve(&mut state.cache, more)?;
            let len = state.cache.len();
            work.places.extend((len..len + more).map(|position| Position { sequence: index, index: position }));
            for &symbol in &rows[index].feed[fed..fed + more] {
                work.x.extend_from_slice(&self.embedding[symbol as usize * dim..][..dim]); // (rows, D)
            }
        }
        self.stack.forward(&self.compute, &mut work.x, &work.places, &mut Of(rows), &mut work.stack)?;
        let mut x = &work.x[..];
        for (&index, fed) in which.iter().zip(&mut work.fed) {
            let (places, wanted) = (rows[index].positions(), rows[index].wanted());
            let more = (places - *fed).min(piece);
            let (own, others) = x.split_at(more * dim);
            // wanted logits are those of the last symbols
            let unwanted = places.saturating_sub(wanted + *fed).min(more);
            let state = state(rows, index)?;
            state.hidden.extend_from_slice(&own[unwanted * dim..]);
            state.cache.advance(more);
            (x, *fed) = (others, *fed + more);
        }
        Ok(())
    }

    /// The finish step.
    ///
    /// # Errors
    /// As for [`Model::symbol_step`](crate::decode::contract::Model::symbol_step).
    pub fn finish(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        stepping(StepStatus::Unfinished, rows, which, work, |rows, unfinished, work| {
            self.logits(rows, unfinished, work)
        })
    }

    /// The wanted logits of the rows `which`, which are then ready.
    fn logits(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        work.picked.clear();
        for &index in which {
            work.picked.append(&mut state(rows, index)?.hidden);
        }
        if let Some(parameters) = &self.norm {
            layer_norm(&self.compute, &mut work.picked, parameters); // (wanted, D)
        }
        let vectors = work.picked.len() / self.head.inputs();
        let logits = sized(&mut work.logits, vectors * self.head.outputs());
        self.head.apply(&self.compute, &work.picked, Epilogue::None, &mut work.stack.quantized, logits); // (wanted, V)
        hand_out(rows, which, logits, self.head.outputs())?;
        for &index in which {
            let state = state(rows, index)?;
            state.finished = state.len();
        }
        Ok(())
    }
}
