//! The hourglass behind the contract: new sequences, memory and cost; the steps are `model`'s.

use super::{
    model::Hourglass,
    segment_ends::SegmentEnds,
    state::{CompanionState, HourglassState, PooledState, SYMBOL_CAPACITY},
    work::Work,
};
use crate::{
    decode::{
        contract::{BoundaryMode, BoundaryOptions, Card, KvMemory, Model, Scratch, SequenceRow, State, state_ref},
        cost::{Cost, StepCost},
        options::check_mode,
    },
    error::Result,
    family::cost,
    nn::kv_cache::KvCache,
};

impl Model for Hourglass {
    fn card(&self) -> &Card {
        &self.card
    }

    fn begin(&self, boundaries: BoundaryOptions) -> Result<Box<dyn State>> {
        check_mode(&boundaries, &self.card)?;
        let mode = boundaries.mode.unwrap_or(self.card.boundary_modes[0]);
        let pooled = self.pooled.as_ref().map(|pooled| PooledState {
            null_group: pooled.null_group.clone(),
            middle: pooled.null_group.clone(),
            middle_window: pooled.middle.window,
            post: KvCache::new(pooled.post.layout, self.pages.clone()),
            segment_ends: SegmentEnds::new(),
            // enough for a decode step, which then never reallocates
            closed_vectors: Vec::with_capacity(self.head.inputs()),
            middle_outputs: Vec::with_capacity(2 * self.head.inputs()),
            middle_outputs_start: 0,
        });
        let companion = match &self.companion {
            Some(model) => {
                let row =
                    SequenceRow::new(model.begin(BoundaryOptions { offset: boundaries.offset, ..Default::default() })?);
                Some(CompanionState { row: Some(row), entropies: Vec::with_capacity(SYMBOL_CAPACITY) })
            }
            None => None,
        };
        Ok(Box::new(HourglassState {
            pre: KvCache::new(self.pre.layout, self.pages.clone()),
            window: self.pre.window,
            pooled,
            finished: 0,
            hidden: Vec::new(),
            noise: (mode == BoundaryMode::Sampled).then_some(boundaries.noise),
            offset: boundaries.offset,
            companion,
            resumed: None,
        }))
    }

    fn scratch(&self) -> Scratch {
        Scratch(Box::new(Work::default()))
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
        let pooled = self.pooled.as_ref().map_or(0, |pooled| {
            let segments = self.boundaries.max_segments(symbols);
            pooled.post.bytes_for(symbols) + pooled.middle.bytes_for(segments + 1)
        });
        let companion = self.companion.as_ref().map_or(0, |model| model.bytes_for(symbols));
        self.pre.bytes_for(symbols) + pooled + companion
    }

    fn growth(&self, state: &dyn State, more: usize) -> usize {
        // the step rejects another model's state
        let Ok(state) = state_ref::<HourglassState>(state) else { return 0 };
        let len = state.len() + more;
        let pooled = self.pooled.as_ref().zip(state.pooled.as_ref()).map_or(0, |(model, pooled)| {
            let segments = self.boundaries.max_segments(len).min(pooled.segment_ends.len() + more);
            model.post.growth(&pooled.post, len) + model.middle.growth(&pooled.middle, segments + 1)
        });
        let companion = self.companion.as_ref().zip(state.companion_state());
        self.pre.growth(&state.pre, len) + pooled + companion.map_or(0, |(model, state)| model.growth(state, more))
    }

    fn memory(&self) -> KvMemory {
        let companion = self.companion.as_ref().map_or(0, |model| model.memory().in_use);
        // admission counts on the complete limit, so the null group's pages are taken off it
        let limit = self.pages.limit() - self.own_bytes;
        KvMemory { in_use: self.pages.in_use() - self.own_bytes + companion, limit }
    }

    fn cost(&self, symbols: usize, segments: usize) -> Cost {
        let mut cost = Cost::default();
        if let Some(companion) = &self.companion {
            // boundaries need the companion's logits after every symbol
            let Cost { symbol, segment, logits } = companion.cost(symbols, segments);
            cost = Cost { symbol, segment, logits: StepCost::default() };
            cost.symbol += logits;
        }
        cost.symbol += cost::stack(&self.pre, symbols);
        for matrix in self.boundaries.matrices() {
            cost.symbol += cost::linear(matrix);
        }
        if let Some(pooled) = &self.pooled {
            cost.symbol += cost::stack(&pooled.post, symbols);
            cost.segment += cost::norm(&pooled.norm);
            // segments attend to the null group too
            cost.segment += cost::stack(&pooled.middle, segments + 1);
        }
        cost.logits += cost::linear(&self.head);
        cost
    }
}
