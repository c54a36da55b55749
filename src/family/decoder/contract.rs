//! The decoder behind the contract: new sequences, memory and cost; the steps are `model`'s.

use super::{model::Decoder, state::DecoderState, work::Work};
use crate::{
    decode::{
        contract::{BoundaryOptions, Card, KvMemory, Model, Scratch, SequenceRow, State, state_ref},
        cost::Cost,
        options::check_mode,
    },
    error::Result,
    family::cost,
    nn::kv_cache::KvCache,
};
use std::sync::Arc;

impl Decoder {
    /// Positions of a sequence of `symbols`.
    fn positions(&self, symbols: usize) -> usize {
        symbols + self.start.as_ref().map_or(0, |start| start.cache.len())
    }
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
        self.feed_symbols(rows, which, Work::from_scratch(scratch)?)
    }

    fn segment_step(&self, _: &mut [SequenceRow], _: &[usize], _: &mut Scratch) -> Result<()> {
        Ok(())
    }

    fn finish_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        self.finish(rows, which, Work::from_scratch(scratch)?)
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
