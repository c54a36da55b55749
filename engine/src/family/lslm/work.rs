//! Working memory of the steps, and access to the rows' states and caches.

use super::state::LslmState;
use crate::{
    decode::contract::{SequenceRow, state_mut, state_ref},
    error::Result,
    family::parts::step::{ChosenRows, Watcher, watch},
    kernels::{attention::PageLayout, pages::PagePool},
    nn::{Position, attention::layer::Caches, boundary::summed, kv_cache::KvCache, t5::T5Work},
};
use std::sync::Arc;

/// Names an intermediate result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LslmStage {
    /// The token encoder's output; position 0 is the start symbol, t + 1 symbol t.
    Token,
    /// The predictor's logit at the same position.
    Boundary,
    /// A segment's pooled vector; position m + 1 is segment m.
    Pooled,
    /// The context encoder's output at the same position.
    Context,
}

/// Symbols of a row that the token encoder reads in this step: from `start` to the last.
#[derive(Debug, Clone, Copy)]
pub(super) struct UnreadSymbols {
    pub(super) row: usize,
    pub(super) start: usize,
}

/// Consecutive positions of one segment in the decoder.
#[derive(Debug, Clone, Copy)]
pub(super) struct SegmentRun {
    /// The row, by its index in the step.
    pub(super) row: usize,
    /// Index in the wanted vectors of the row's first.
    pub(super) slot: usize,
    pub(super) segment: usize,
    /// First position.
    pub(super) start: usize,
    /// One past the last position.
    pub(super) end: usize,
    /// Index of the spare cache with its keys; `None` if the sequence has them.
    pub(super) spare: Option<usize>,
}

/// The decision on the symbol that ends a segment: `rows[row].decisions[decision]`.
#[derive(Debug, Clone, Copy)]
pub(super) struct EndDecision {
    pub(super) row: usize,
    pub(super) decision: usize,
}

/// The head's inputs.
#[derive(Default)]
pub(super) struct WantedVectors {
    /// Vectors whose logits are wanted, row after row: (wanted, E)
    pub(super) vectors: Vec<f32>,
    /// Each row's first index in `vectors`.
    pub(super) slots: Vec<usize>,
    /// Vectors that predict the ends of closed segments: (segments, E)
    pub(super) end_vectors: Vec<f32>,
    /// The decision that each of `end_vectors` belongs to.
    pub(super) end_decisions: Vec<EndDecision>,
    /// The next closed segment to decode: index among the step's rows, and segment, if not the row's first.
    pub(super) next_row: usize,
    pub(super) next_segment: Option<usize>,
}

/// Working memory of one thread.
#[derive(Default)]
pub struct Work {
    /// Receives the vectors of each stage.
    pub watcher: Option<Watcher<LslmStage>>,
    pub(super) stack: T5Work,
    pub(super) predictor: summed::SummedWork,
    /// Sequence and position of each vector in `x`.
    pub(super) positions: Vec<Position>,
    /// Last position of the memory that each vector of the decoder attends to.
    pub(super) memory_positions: Vec<Position>,
    /// The rows that the current step applies to.
    chosen: Vec<usize>,
    /// The vectors that flow through a stack: (positions, width)
    pub(super) x: Vec<f32>,
    /// The projection's input: (segments, D)
    pub(super) unprojected: Vec<f32>,
    /// The predictor's logit for each of `positions` that the token encoder has read.
    pub(super) boundary_logits: Vec<f32>,
    pub(super) unread: Vec<UnreadSymbols>,
    pub(super) runs: Vec<SegmentRun>,
    /// The decoder's caches of segments that are closed and scored in the same step.
    pub(super) spare_caches: Vec<KvCache>,
    /// Pages of the spare caches. They are limited by the runs of a pass, and not counted as key-value memory.
    spare_pages: Option<Arc<PagePool>>,
    pub(super) wanted: WantedVectors,
    /// (wanted, V)
    pub(super) logits: Vec<f32>,
}

impl Work {
    /// Provides at least `count` spare caches, all of them empty.
    pub(super) fn clear_spare_caches(&mut self, count: usize, layout: PageLayout) {
        let pages = self.spare_pages.get_or_insert_with(|| PagePool::new(usize::MAX));
        while self.spare_caches.len() < count {
            self.spare_caches.push(KvCache::new(layout, pages.clone()));
        }
        self.spare_caches.iter_mut().for_each(|cache| cache.truncate(0));
    }

    pub(super) fn show(&mut self, stage: LslmStage) {
        let numbers = if stage == LslmStage::Boundary { &self.boundary_logits } else { &self.x };
        watch(&mut self.watcher, stage, &self.positions, numbers);
    }
}

impl ChosenRows for Work {
    fn chosen(&mut self) -> &mut Vec<usize> {
        &mut self.chosen
    }
}

/// The caches of one encoder, in the states of a step's rows.
pub(super) struct EncoderCaches<'a, const STACK: usize>(pub(super) &'a mut [SequenceRow]);
pub(super) const TOKEN: usize = 0;
pub(super) const CONTEXT: usize = 1;

impl<const STACK: usize> Caches for EncoderCaches<'_, STACK> {
    fn cache(&self, sequence: usize) -> Result<&KvCache> {
        let state: &LslmState = state_ref(&*self.0[sequence].state)?;
        Ok(if STACK == TOKEN { &state.token } else { &state.context })
    }

    fn cache_mut(&mut self, sequence: usize) -> Result<&mut KvCache> {
        let state = state(self.0, sequence)?;
        Ok(if STACK == TOKEN { &mut state.token } else { &mut state.context })
    }
}

/// The state of row `index`.
pub(super) fn state(rows: &mut [SequenceRow], index: usize) -> Result<&mut LslmState> {
    state_mut(&mut *rows[index].state)
}
