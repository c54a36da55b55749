//! The model behind the contract. All work happens in the finish step, because a model without segments never waits.
//!
//! Each row runs by itself: candle's products of several rows round differently from those of one row. A request's text therefore
//! does not depend on the other requests in the batch.

use super::{
    architecture::Network,
    layers::failed,
    memory::{BLOCK, Budget, Memory, MemoryShape},
    state::TokenState,
};
use crate::{
    decode::{
        contract::{
            BoundaryOptions, Card, KvMemory, Model, Scratch, SequenceRow, State, StepStatus, SymbolBoundary, state_mut,
            state_ref,
        },
        cost::{Cost, StepCost},
        options::check_mode,
    },
    error::Result,
    family::parts::check_feed,
};
use candle_core::{Device, Tensor};
use rayon::ThreadPool;
use std::sync::Arc;

/// A loaded Hugging Face model.
pub struct TokenModel {
    pub(super) card: Card,
    pub(super) network: Box<dyn Network>,
    pub(super) device: Device,
    /// Threads of candle's products on the CPU.
    pub(super) threads: ThreadPool,
    pub(super) shape: MemoryShape,
    pub(super) budget: Arc<Budget>,
    /// Cost of the weights of a token, without its memory.
    pub(super) weights: StepCost,
    pub(super) logits: StepCost,
    /// Multiply-adds per key, or of the recurrence.
    pub(super) memory_products: usize,
}

impl Model for TokenModel {
    fn card(&self) -> &Card {
        &self.card
    }

    fn begin(&self, boundaries: BoundaryOptions) -> Result<Box<dyn State>> {
        check_mode(&boundaries, &self.card)?;
        Ok(Box::new(TokenState::new(Memory::new(self.shape, self.budget.clone()))))
    }

    fn scratch(&self) -> Scratch {
        Scratch(Box::new(()))
    }

    fn symbol_step(&self, rows: &mut [SequenceRow], which: &[usize], _: &mut Scratch) -> Result<()> {
        for &index in which {
            let row = &mut rows[index];
            check_feed(&self.card, row, state_ref::<TokenState>(&*row.state)?.is_ready())?;
            self.card.vocabulary.check_ids("feed", &row.feed)?;
            let state: &mut TokenState = state_mut(&mut *row.state)?;
            state.history.extend_from_slice(&row.feed);
            state.flight = row.feed.len();
            let none = SymbolBoundary { boundary: false, depth: 0, probability: None, end_logprob: None };
            row.decisions.clear();
            row.decisions.resize(row.feed.len(), none);
            row.status = StepStatus::Unfinished;
        }
        Ok(())
    }

    fn segment_step(&self, _: &mut [SequenceRow], _: &[usize], _: &mut Scratch) -> Result<()> {
        Ok(())
    }

    fn finish_step(&self, rows: &mut [SequenceRow], which: &[usize], _: &mut Scratch) -> Result<()> {
        let unfinished = |rows: &[SequenceRow], index: usize| rows[index].status == StepStatus::Unfinished;
        self.threads.install(|| {
            for &index in which {
                if unfinished(rows, index) {
                    self.compute(&mut rows[index])?;
                }
            }
            Ok(())
        })
    }

    fn bytes_for(&self, symbols: usize) -> usize {
        self.shape.bytes_for(symbols)
    }

    fn growth(&self, state: &dyn State, more: usize) -> usize {
        // the step rejects another model's state
        state_ref::<TokenState>(state).map_or(0, |state| state.memory.growth(state.len() + more))
    }

    fn memory(&self) -> KvMemory {
        KvMemory { in_use: self.budget.in_use(), limit: self.budget.limit }
    }

    fn cost(&self, symbols: usize, _: usize) -> Cost {
        let products = match self.shape {
            MemoryShape::Keys { .. } => self.memory_products * symbols,
            MemoryShape::Recurrent { .. } => self.memory_products,
        };
        let memory = StepCost { shared_bytes: 0, own_bytes: self.shape.step_bytes(symbols), multiply_adds: products };
        let mut cost = Cost { symbol: self.weights, logits: self.logits, ..Cost::default() };
        cost.symbol += memory;
        cost
    }
}

impl TokenModel {
    /// Computes a row's tokens in flight, block by block, and its wanted logits. Without wanted logits, the tokens after the last
    /// whole block wait for later ones.
    fn compute(&self, row: &mut SequenceRow) -> Result<()> {
        let wanted = row.wanted();
        let state: &mut TokenState = state_mut(&mut *row.state)?;
        let total = state.len();
        let first_wanted = total - wanted;
        let target = if wanted == 0 { total / BLOCK * BLOCK } else { total };
        row.logits.clear();
        while state.memory.len() < target {
            let from = state.memory.len();
            let to = ((from / BLOCK + 1) * BLOCK).min(target);
            let tokens = Tensor::new(state.tokens(from, to), &self.device).map_err(failed)?;
            let wanted = to.saturating_sub(first_wanted.max(from));
            let computed = self.network.forward(&tokens, &state.memory, wanted).map_err(failed)?;
            if let Some(logits) = computed.logits {
                let logits = logits.flatten_all().and_then(|logits| logits.to_vec1::<f32>()).map_err(failed)?;
                row.logits.extend(logits); // (wanted, V)
            }
            state.memory.store(computed.layers, to - from)?;
            if state.blockwise == from && to - from == BLOCK {
                state.blockwise = to;
            }
        }
        state.land();
        row.status = StepStatus::Ready;
        Ok(())
    }
}
