//! A decoder's weights and forward pass, in two of the contract's steps. Hot path: no allocation once the buffers in [`Work`]
//! have grown, no locks, no logging.

use super::{
    state::DecoderState,
    work::{RowCaches, Work, state},
};
use crate::{
    decode::{
        contract::{
            BoundaryOptions, Card, KvMemory, Model, Scratch, SequenceRow, State, StepStatus, SymbolBoundary, state_mut,
            state_ref,
        },
        cost::Cost,
        options::check_mode,
        trace,
    },
    error::{Error, Result},
    family::{
        cost,
        parts::step::{check_feed, deliver_logits, with_status, work_mut},
    },
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
    /// (V, D), multiplied by √D if the configuration has `scale_embedding`.
    pub embedding: Vec<f32>,
    /// The layers.
    pub stack: Stack,
    /// After the last layer, where layers do not end with a norm.
    pub norm: Option<LayerNorm>,
    /// (V, D)
    pub head: Linear,
    /// The state after the start symbol, computed once, in a model that has one.
    pub start: Option<StartState>,
    /// Memory of keys and values.
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

impl Model for Decoder {
    fn card(&self) -> &Card {
        &self.card
    }

    fn begin(&self, boundaries: BoundaryOptions) -> Result<Box<dyn State>> {
        check_mode(&boundaries, &self.card)?;
        let empty = || Arc::new(KvCache::new(self.stack.layout, self.pages.clone()));
        let start = self.start.as_ref().map_or_else(empty, |start| start.cache.clone());
        Ok(Box::new(DecoderState::new(start, self.stack.window, None)))
    }

    fn scratch(&self) -> Scratch {
        Scratch(Box::new(Work::default()))
    }

    fn symbol_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        self.feed_symbols(rows, which, work_mut(scratch)?)
    }

    fn segment_step(&self, _: &mut [SequenceRow], _: &[usize], _: &mut Scratch) -> Result<()> {
        Ok(())
    }

    fn finish_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        self.finish(rows, which, work_mut(scratch)?)
    }

    fn bytes_for(&self, symbols: usize) -> usize {
        self.stack.bytes_for(self.positions(symbols))
    }

    fn growth(&self, state: &dyn State, more: usize) -> usize {
        // the step rejects another model's state
        let state = state_ref::<DecoderState>(state);
        state.map_or(0, |state| self.stack.growth(&state.cache, state.cache.len() + more))
    }

    fn memory(&self) -> KvMemory {
        // admission counts on the complete limit, so the start symbol's pages are taken off it
        KvMemory { in_use: self.pages.in_use() - self.own_bytes, limit: self.pages.limit() - self.own_bytes }
    }

    fn cost(&self, symbols: usize, _: usize) -> Cost {
        let mut cost = Cost { symbol: cost::stack(&self.stack, self.positions(symbols)), ..Cost::default() };
        if let Some(norm) = &self.norm {
            cost.logits += cost::norm(norm);
        }
        cost.logits += cost::linear(&self.head);
        cost
    }
}

impl Decoder {
    /// Symbol step: embed → stack. Takes a chunk of each row's feed at a time, so that a windowed cache never holds
    /// more than a window and a chunk. Fails as [`Model::symbol_step`] does.
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
            row.decisions.resize(
                row.feed.len(),
                SymbolBoundary { boundary: false, depth: 0, probability: None, end_logprob: None },
            );
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

    /// Positions of a sequence of `symbols`.
    fn positions(&self, symbols: usize) -> usize {
        symbols + self.start.as_ref().map_or(0, |start| start.cache.len())
    }

    /// Checks a row's feed and clears the vectors of the last one.
    fn start_feed(&self, row: &mut SequenceRow) -> Result<()> {
        check_feed(&self.card, row, state_ref::<DecoderState>(&*row.state)?.is_ready())?;
        let wanted = row.wanted();
        let state: &mut DecoderState = state_mut(&mut *row.state)?;
        state.hidden.clear();
        match &self.start {
            _ if !trace::is_control(&row.feed) => self.card.vocabulary.check_ids("feed", &row.feed),
            Some(start) if row.feed[..] == [trace::BEGIN] && state.is_empty() => {
                state.hidden.extend_from_slice(if wanted > 0 { &start.hidden } else { &[] });
                Ok(())
            }
            _ => Err(Error::Internal("a row was fed a control item that the model lacks, or after a symbol".into())),
        }
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
