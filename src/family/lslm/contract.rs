//! The latent segment model behind the contract: new sequences, memory and cost; the steps are `model`'s.

use super::{model::Lslm, state::LslmState, work::Work};
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

impl Model for Lslm {
    fn card(&self) -> &Card {
        &self.card
    }

    fn begin(&self, boundaries: BoundaryOptions) -> Result<Box<dyn State>> {
        check_mode(&boundaries, &self.card)?;
        let decoder = KvCache::new(self.decoder.layout, self.pages.clone());
        Ok(Box::new(LslmState::new(self.start.clone(), decoder)))
    }

    fn scratch(&self) -> Scratch {
        Scratch(Box::new(Work::new()))
    }

    fn symbol_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        self.feed_symbols(rows, which, Work::from_scratch(scratch)?)
    }

    fn segment_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        self.close_segments(rows, which, Work::from_scratch(scratch)?)
    }

    fn finish_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        self.finish(rows, which, Work::from_scratch(scratch)?)
    }

    fn bytes_for(&self, symbols: usize) -> usize {
        // every symbol may end a segment, or none
        let layouts = [&self.token.layout, &self.context.layout, &self.memory, &self.decoder.layout];
        layouts.into_iter().map(|layout| layout.bytes_for(symbols + 1)).sum()
    }

    fn growth(&self, state: &dyn State, more: usize) -> usize {
        // the step rejects another model's state
        let Ok(state) = state_ref::<LslmState>(state) else { return 0 };
        let segments = state.segment_ends.len() + more;
        state.token.growth(state.symbols.len() + more + 1)
            + state.context.growth(segments + 1)
            + state.memory.growth(segments + 1)
            + state.decoder_growth(state.open_len() + more + 1)
    }

    fn memory(&self) -> KvMemory {
        // admission counts on the complete limit, so the start symbol's pages are taken off it
        KvMemory { in_use: self.pages.in_use() - self.own_bytes, limit: self.pages.limit() - self.own_bytes }
    }

    fn cost(&self, symbols: usize, segments: usize) -> Cost {
        let mut cost = Cost::default();
        cost.symbol += cost::t5_stack(&self.token, symbols + 1, 0);
        for matrix in self.predictor.matrices() {
            cost.symbol += cost::linear(matrix);
        }
        let open = symbols.div_ceil(segments.max(1)) + 1;
        cost.symbol += cost::t5_stack(&self.decoder, open, segments + 1);
        cost.segment += cost::t5_stack(&self.context, segments + 1, 0);
        let memory = self.decoder.layers.iter().filter_map(|layer| layer.cross.as_ref()).map(|cross| &cross.memory);
        for matrix in self.projection.iter().chain(memory) {
            cost.segment += cost::linear(matrix);
        }
        cost.logits += cost::linear(&self.head);
        cost
    }
}
