//! The decoder's steps: rows of symbols in, logits out.

use super::{model::T5, work::Work};
use crate::{
    decode::contract::{SequenceRow, StepStatus, SymbolBoundary, state_ref},
    error::{Error, Result},
    family::{
        decoder::{
            state::DecoderState,
            work::{RowCaches, state},
        },
        parts::step::{check_feed, deliver_logits, with_status},
    },
    kernels::linear::Epilogue,
    nn::{Position, attention::layer::Caches, kv_cache::KvCache, sized, t5::T5Memory},
};

/// Returns the document of a row.
fn memory_of<'b>(caches: &'b RowCaches<'_>, sequence: usize) -> Result<&'b KvCache> {
    let memory = caches.memory(sequence)?.filter(|memory| !memory.is_empty());
    memory.ok_or_else(|| Error::Internal(format!("sequence {sequence} of a decoder has no document")))
}

impl T5 {
    /// Symbol step: embed → self-attention → cross-attention to the document's vectors → feed-forward. Fails as
    /// [`Model::symbol_step`](crate::decode::contract::Model::symbol_step) does.
    pub(super) fn feed_symbols(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        let dim = self.head.inputs();
        work.positions.clear();
        work.memory.clear();
        work.x.clear();
        for &index in which {
            let row = &rows[index];
            check_feed(&self.card, row, state_ref::<DecoderState>(&*row.state)?.is_ready())?;
            self.card.vocabulary.check_ids("feed", &row.feed)?;
            let fed = row.feed.len();
            for &symbol in &row.feed {
                work.x.extend_from_slice(&self.embedding[symbol as usize * dim..][..dim]);
            }
            let last = memory_of(&RowCaches(rows), index)?.len() - 1;
            let state = state(rows, index)?;
            state.hidden.clear();
            state.cache.reserve(fed)?;
            let start = state.cache.len();
            work.positions.extend((start..start + fed).map(|position| Position { sequence: index, index: position }));
            work.memory.resize(work.positions.len(), Position { sequence: index, index: last });
        }
        let Work { x, positions, memory, decoder, .. } = work;
        let memory = T5Memory { positions: memory, cache: memory_of };
        self.decoder.forward(&self.compute, x, positions, &mut RowCaches(rows), Some(&memory), decoder)?; // (symbols, D)
        let mut rest = &x[..];
        for &index in which {
            let fed = rows[index].feed.len();
            let unwanted = fed - rows[index].wanted();
            let (own, others) = rest.split_at(fed * dim);
            let state = state(rows, index)?;
            state.hidden.extend_from_slice(&own[unwanted * dim..]);
            state.cache.advance(fed);
            rest = others;
            let row = &mut rows[index];
            row.decisions.clear();
            row.decisions
                .resize(fed, SymbolBoundary { boundary: false, probability: None, end_logprob: None, depth: 0 });
            row.status = StepStatus::Unfinished;
        }
        Ok(())
    }

    /// Finish step: the logits of the symbols whose logits are wanted. Fails as
    /// [`Model::finish_step`](crate::decode::contract::Model::finish_step) does.
    pub(super) fn finish(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        with_status(StepStatus::Unfinished, rows, which, work, |rows, unfinished, work| {
            work.wanted.clear();
            for &index in unfinished {
                work.wanted.append(&mut state(rows, index)?.hidden); // (wanted, D)
            }
            if self.head_scale != 1.0 {
                work.wanted.iter_mut().for_each(|x| *x *= self.head_scale);
            }
            let logits = sized(&mut work.logits, work.wanted.len() / self.head.inputs() * self.head.outputs());
            self.head.apply(&self.compute, &work.wanted, Epilogue::None, &mut work.decoder.quantized, logits); // (wanted, V)
            deliver_logits(rows, unfinished, logits, self.head.outputs())?;
            for &index in unfinished {
                let state = state(rows, index)?;
                state.finished = state.cache.len();
            }
            Ok(())
        })
    }
}
