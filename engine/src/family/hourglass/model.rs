//! The weights and the forward pass, split into the contract's three steps. Hot path: no allocation once the buffers in [`Work`]
//! have grown, no locks, no logging.
//!
//! A bulk forward pass feeds each row a complete text, a decode step one symbol: both run these lines. The functions of `gather`
//! collect vectors of many rows into `work.x` and return false when no row has any left. A windowed stack takes a chunk of
//! each row at a time, so that its cache never holds more than a window and a chunk.

use super::{
    gather::{
        Embedding, count_post, decide_boundaries, embed, finish_rows, gather_segments, gather_symbols,
        gather_upsampled, gather_wanted, keep_last_closed, pool_closed, scatter_middle, scatter_post, set_fed_status,
    },
    ngrams::Ngrams,
    recent::RecentSymbols,
    segment_ends::SegmentEnds,
    state::{CompanionState, HourglassState, PooledState, SYMBOL_CAPACITY, state},
    work::{HourglassStage, MIDDLE, POST, PRE, StackCaches, Work},
};
use crate::{
    decode::{
        contract::{
            BoundaryMode, BoundaryOptions, Card, KvMemory, Model, Scratch, SequenceRow, State, StepStatus, state_ref,
        },
        cost::{Cost, StepCost},
        options::check_mode,
    },
    error::Result,
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
    nn::{attention::stack::Stack, boundary::Boundaries, kv_cache::KvCache, pooling::Pooling, sized},
};
use std::sync::Arc;

/// A loaded hourglass. D = width, V = vocabulary size.
pub struct Hourglass {
    pub(super) card: Card,
    pub(super) compute: Compute,
    /// (V, D)
    pub(super) embedding: Vec<f32>,
    /// Added to the embedding, if the checkpoint has them.
    pub(super) ngrams: Option<Ngrams>,
    pub(super) pre: Stack,
    pub(super) boundaries: Boundaries,
    /// The model whose entropies place boundaries, if the checkpoint has one.
    pub(super) companion: Option<Arc<dyn Model>>,
    /// `None` in a vanilla model.
    pub(super) pooled: Option<PooledWeights>,
    /// (V, D)
    pub(super) head: Linear,
    pub(super) pages: Arc<PagePool>,
    /// Bytes of pages that the model itself holds: the null group's.
    pub(super) own_bytes: usize,
}

/// The weights above the pre stack.
pub(super) struct PooledWeights {
    pub(super) pooling: Pooling,
    /// Between pooling and middle stack; applied to the null group too.
    pub(super) norm: LayerNorm,
    pub(super) middle: Stack,
    pub(super) post: Stack,
    /// The null group's keys, values and output, computed once: the start of every sequence's middle cache.
    pub(super) null_group: KvCache,
}

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
            segment_ends: SegmentEnds::default(),
            // enough for a decode step, which then never reallocates
            closed_vectors: Vec::with_capacity(self.head.inputs()),
            middle_outputs: Vec::with_capacity(2 * self.head.inputs()),
            middle_outputs_start: 0,
        });
        let companion = self.companion.as_ref().map(|model| -> Result<_> {
            let state = model.begin(BoundaryOptions { offset: boundaries.offset, ..Default::default() })?;
            let entropies = Vec::with_capacity(SYMBOL_CAPACITY);
            Ok(CompanionState { row: Some(SequenceRow::new(state)), entropies })
        });
        Ok(Box::new(HourglassState {
            recent: self.ngrams.as_ref().map(|ngrams| RecentSymbols::new(ngrams.largest())),
            pre: KvCache::new(self.pre.layout, self.pages.clone()),
            window: self.pre.window,
            pooled,
            finished: 0,
            hidden: Vec::new(),
            noise: (mode == BoundaryMode::Sampled).then_some(boundaries.noise),
            offset: boundaries.offset,
            companion: companion.transpose()?,
            resumed: None,
        }))
    }

    fn scratch(&self) -> Scratch {
        Scratch(Box::new(Work::default()))
    }

    /// Symbol step: embed → pre stack → boundaries → pool.
    fn symbol_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        let work: &mut Work = work_mut(scratch)?;
        self.start_feed(rows, which, work)?;
        let embedding = Embedding { weight: &self.embedding, dim: self.head.inputs(), ngrams: self.ngrams.as_ref() };
        while gather_symbols(&self.pre, rows, which, work)? {
            embed(&embedding, rows, work)?; // (symbols, D)
            let caches = &mut StackCaches::<PRE>(rows);
            self.pre.forward(&self.compute, &mut work.x, &work.positions, caches, &mut work.stack)?; // (symbols, D)
            work.show(HourglassStage::PreOutput);
            decide_boundaries(&self.boundaries, &self.compute, rows, work)?; // (symbols)
            pool_closed(self.pooled.as_ref().map(|pooled| pooled.pooling), rows, which, work)?; // (closed segments, D)
        }
        set_fed_status(rows, which)
    }

    /// Segment step, for rows that closed a segment: pooled vectors → norm → middle stack.
    fn segment_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        let work: &mut Work = work_mut(scratch)?;
        let Some(PooledWeights { norm: pool_norm, middle, .. }) = &self.pooled else { return Ok(()) };
        with_status(StepStatus::Waiting, rows, which, work, |rows, waiting, work| {
            keep_last_closed(rows, waiting)?;
            while gather_segments(middle, rows, waiting, work)? {
                layer_norm(&self.compute, &mut work.x, pool_norm); // (segments, D)
                work.show(HourglassStage::PooledNormed);
                let caches = &mut StackCaches::<MIDDLE>(rows);
                middle.forward(&self.compute, &mut work.x, &work.positions, caches, &mut work.stack)?; // (segments, D)
                scatter_middle(rows, work)?;
            }
            waiting.iter().for_each(|&index| rows[index].status = StepStatus::Unfinished);
            Ok(())
        })
    }

    /// Finish step: upsample + residual → post stack → logits.
    fn finish_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        let work: &mut Work = work_mut(scratch)?;
        with_status(StepStatus::Unfinished, rows, which, work, |rows, unfinished, work| {
            if let Some(PooledWeights { post, .. }) = &self.pooled {
                count_post(rows, unfinished, work)?;
                while gather_upsampled(post, rows, unfinished, work)? {
                    let caches = &mut StackCaches::<POST>(rows);
                    post.forward(&self.compute, &mut work.x, &work.positions, caches, &mut work.stack)?; // (symbols, D)
                    scatter_post(rows, unfinished, work)?;
                }
            }
            gather_wanted(rows, unfinished, work)?; // (wanted, D)
            let logits = sized(&mut work.logits, work.wanted.len() / self.head.inputs() * self.head.outputs());
            self.head.apply(&self.compute, &work.wanted, Epilogue::None, &mut work.stack.quantized, logits); // (wanted, V)
            deliver_logits(rows, unfinished, logits, self.head.outputs())?;
            finish_rows(rows, unfinished)
        })
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
            let own = companion.cost(symbols, segments);
            cost = Cost { logits: StepCost::default(), ..own };
            cost.symbol += own.logits;
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

impl Hourglass {
    /// Checks the feeds, clears what earlier steps left in the rows, and steps the companions.
    fn start_feed(&self, rows: &mut [SequenceRow], which: &[usize], work: &mut Work) -> Result<()> {
        for &index in which {
            let row = &mut rows[index];
            check_feed(&self.card, row, state_ref::<HourglassState>(&*row.state)?.is_ready())?;
            self.card.vocabulary.check_ids("feed", &row.feed)?;
            row.decisions.clear();
            state(rows, index)?.start_feed();
        }
        if let Some(companion) = self.companion.as_deref().filter(|_| !which.is_empty()) {
            work.companion.step(companion, rows, which)?;
        }
        work.processed.clear();
        work.processed.resize(which.len(), 0);
        Ok(())
    }
}
