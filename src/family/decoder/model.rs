//! A decoder's weights and forward pass, in two of the contract's steps. Hot path: no allocation once the buffers in [`Work`]
//! have grown, no locks, no logging.

use super::{
    state::DecoderState,
    work::{RowCaches, Work, state},
};
use crate::{
    decode::{
        contract::{Card, SequenceRow, State, StepStatus, SymbolBoundary, state_mut},
        trace,
    },
    error::{Error, Result},
    family::parts::step::{deliver_logits, with_status},
    kernels::{
        Compute,
        linear::{Epilogue, Linear},
        pages::PagePool,
        rowwise::{LayerNorm, layer_norm},
    },
    nn::{Position, attention::stack::Stack, kv_cache::KvCache, sized},
};
use std::sync::Arc;

/// A loaded decoder. D = width, V = vocabulary size.
pub struct Decoder {
    /// The model's description for clients.
    pub card: Card,
    /// Threads and instruction set.
    pub compute: Compute,
    /// (V, D), multiplied by √D where the configuration says so.
    pub embedding: Vec<f32>,
    /// The layers.
    pub stack: Stack,
    /// After the last layer, where layers do not end with a norm.
    pub norm: Option<LayerNorm>,
    /// (V, D)
    pub head: Linear,
    /// The state after the start symbol, computed once, in a model that has one.
    pub start: Option<StartState>,
    /// KvMemory of keys and values.
    pub pages: Arc<PagePool>,
    /// Bytes of pages that the model itself holds: the start symbol's.
    pub own_bytes: usize,
}

/// The state after the start symbol.
pub struct StartState {
    /// Its keys and values.
    pub(super) cache: Arc<KvCache>,
    /// The head's input before a text's first symbol: (D)
    pub hidden: Vec<f32>,
}

impl Decoder {
    /// Symbol step: embed → stack. Takes a chunk of each row's feed at a time, so that a windowed cache never holds
    /// more than a window and a chunk. Fails as [`Model::symbol_step`](crate::decode::contract::Model::symbol_step) does.
    pub fn feed_symbols(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        for &index in which {
            self.start_feed(&mut rows[index])?;
        }
        work.processed.clear();
        work.processed.resize(which.len(), 0);
        while self.gather_symbols(rows, which, work)? {
            let caches = &mut RowCaches(rows);
            self.stack.forward(&self.compute, &mut work.x, &work.positions, caches, &mut work.stack)?; // (symbols, D)
            self.scatter(rows, which, work)?;
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

    /// Finish step: norm → logits, of the symbols whose logits are wanted. Fails as [`feed_symbols`](Self::feed_symbols) does.
    pub fn finish(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        with_status(StepStatus::Unfinished, rows, which, work, |rows, unfinished, work| {
            work.wanted.clear();
            for &index in unfinished {
                work.wanted.append(&mut state(rows, index)?.hidden); // (wanted, D)
            }
            if let Some(parameters) = &self.norm {
                layer_norm(&self.compute, &mut work.wanted, parameters);
            }
            let logits = sized(&mut work.logits, work.wanted.len() / self.head.inputs() * self.head.outputs());
            self.head.apply(&self.compute, &work.wanted, Epilogue::None, &mut work.stack.quantized, logits); // (wanted, V)
            deliver_logits(rows, unfinished, logits, self.head.outputs())?;
            for &index in unfinished {
                let state = state(rows, index)?;
                state.finished = state.len();
            }
            Ok(())
        })
    }

    /// Checks a row's feed and clears the vectors of the last one.
    fn start_feed(&self, row: &mut SequenceRow) -> Result<()> {
        let more = row.positions();
        let wanted = row.wanted();
        let state: &mut DecoderState = state_mut(&mut *row.state)?;
        if row.status != StepStatus::Ready || !state.is_ready() || row.feed.is_empty() {
            return Err(Error::Internal("a row was fed no symbols, or before it was ready".into()));
        }
        if trace::is_control(&row.feed) {
            return match &self.start {
                Some(start) if row.feed[..] == [trace::BEGIN] && state.is_empty() => {
                    state.hidden.clear();
                    state.hidden.extend_from_slice(if wanted > 0 { &start.hidden } else { &[] });
                    Ok(())
                }
                _ => {
                    Err(Error::Internal("a row was fed a control item that the model lacks, or after a symbol".into()))
                }
            };
        }
        let length = state.len() + more;
        let limit = self.card.max_symbols;
        if length > limit {
            let unit = if self.card.vocabulary.is_subword() { "tokens" } else { "characters" };
            return Err(Error::TooLong { field: "sequence", length, limit, unit, why: None });
        }
        state.hidden.clear();
        self.card.vocabulary.check_ids("feed", &row.feed)
    }

    /// `work.x` (symbols, D) = the embeddings of the next chunk of each row's feed; false if no row has any left.
    fn gather_symbols(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<bool> {
        if work.processed.iter().zip(which).all(|(&processed, &index)| processed == rows[index].positions()) {
            return Ok(false);
        }
        let dim = self.head.inputs();
        work.positions.clear();
        work.x.clear();
        for (&index, &processed) in which.iter().zip(&work.processed) {
            let chunk = (rows[index].positions() - processed).min(self.stack.window.chunk());
            let cache = &mut state(rows, index)?.cache;
            self.stack.reserve(cache, chunk)?;
            let start = cache.len();
            work.positions.extend((start..start + chunk).map(|position| Position { sequence: index, index: position }));
            for &symbol in &rows[index].feed[processed..processed + chunk] {
                work.x.extend_from_slice(&self.embedding[symbol as usize * dim..][..dim]);
            }
        }
        Ok(true)
    }

    /// Stores the vectors whose logits are wanted, those of the last symbols, in the rows.
    fn scatter(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        let dim = self.head.inputs();
        let mut rest = &work.x[..];
        for (&index, processed) in which.iter().zip(&mut work.processed) {
            let fed = rows[index].positions();
            let wanted = rows[index].wanted();
            let chunk = (fed - *processed).min(self.stack.window.chunk());
            let (own, others) = rest.split_at(chunk * dim);
            let unwanted = fed.saturating_sub(wanted + *processed).min(chunk);
            let state = state(rows, index)?;
            state.hidden.extend_from_slice(&own[unwanted * dim..]);
            state.cache.advance(chunk);
            rest = others;
            *processed += chunk;
        }
        Ok(())
    }
}
