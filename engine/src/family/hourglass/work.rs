//! Working memory of the steps, and access to the rows' states and caches.

use super::state::{HourglassState, state};
use crate::{
    decode::contract::{Model, Scratch, SequenceRow, Want, advance, state_ref},
    error::{Error, Result},
    family::parts::step::{ChosenRows, Watcher, watch},
    kernels::distribution::entropy,
    nn::{
        Position,
        attention::layer::{Caches, StackWork},
        boundary::{self, evidence::BoundaryDecision},
        kv_cache::KvCache,
    },
};

/// Names an intermediate result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HourglassStage {
    /// The pre stack's output at a symbol.
    PreOutput,
    /// A segment's pooled vector; its position is the segment's in the middle stack, where the null group is 0.
    Pooled,
    /// The same, normed.
    PooledNormed,
    /// The middle stack's output for a segment.
    MiddleOutput,
    /// The post stack's input at a symbol.
    PostInput,
    /// The post stack's output at a symbol.
    PostOutput,
}

/// Working memory of one thread.
#[derive(Default)]
pub struct Work {
    /// Receives vectors of (D).
    pub watcher: Option<Watcher<HourglassStage>>,
    pub(super) stack: StackWork,
    pub(super) boundary: boundary::learned::LearnedWork,
    pub(super) companion: CompanionWork,
    /// Sequence and position of each vector in `x`.
    pub(super) positions: Vec<Position>,
    /// The fed symbol at each position.
    pub(super) symbols: Vec<u32>,
    /// The boundary noise at each position.
    pub(super) noise: Vec<Option<f32>>,
    /// Each position, counted from the start of its stream.
    pub(super) stream_positions: Vec<usize>,
    /// The boundary decision at each position.
    pub(super) decisions: Vec<BoundaryDecision>,
    /// Symbols of each row's feed that the current stack has processed.
    pub(super) processed: Vec<usize>,
    /// The rows that the current step applies to.
    chosen: Vec<usize>,
    /// The vectors that flow through a stack: (positions, D)
    pub(super) x: Vec<f32>,
    /// The head's input: (wanted, D)
    pub(super) wanted: Vec<f32>,
    /// (wanted, V)
    pub(super) logits: Vec<f32>,
}

impl Work {
    pub(super) fn show(&mut self, stage: HourglassStage) {
        watch(&mut self.watcher, stage, &self.positions, &self.x);
    }
}

impl ChosenRows for Work {
    fn chosen(&mut self) -> &mut Vec<usize> {
        &mut self.chosen
    }
}

/// The caches of one stack, in the states of a step's rows.
pub(super) struct StackCaches<'a, const STACK: usize>(pub(super) &'a mut [SequenceRow]);
pub(super) const PRE: usize = 0;
pub(super) const MIDDLE: usize = 1;
pub(super) const POST: usize = 2;

impl<const STACK: usize> Caches for StackCaches<'_, STACK> {
    fn cache(&self, sequence: usize) -> Result<&KvCache> {
        let state: &HourglassState = state_ref(&*self.0[sequence].state)?;
        Ok(match STACK {
            PRE => &state.pre,
            MIDDLE => &state.pooled()?.middle,
            _ => &state.pooled()?.post,
        })
    }

    fn cache_mut(&mut self, sequence: usize) -> Result<&mut KvCache> {
        let state = state(self.0, sequence)?;
        Ok(match STACK {
            PRE => &mut state.pre,
            MIDDLE => &mut state.pooled_mut()?.middle,
            _ => &mut state.pooled_mut()?.post,
        })
    }
}

/// Buffers of the steps of the companion model, whose entropies place boundaries.
#[derive(Default)]
pub(super) struct CompanionWork {
    rows: Vec<SequenceRow>,
    which: Vec<usize>,
    scratch: Option<Scratch>,
}

impl CompanionWork {
    /// Feeds the symbols of rows `which` to their companion sequences, in one batch, and appends the entropy of each prediction.
    pub(super) fn step(&mut self, model: &dyn Model, rows: &mut [SequenceRow], which: &[usize]) -> Result<()> {
        self.rows.clear();
        for &index in which {
            let companion = state(rows, index)?.companion.as_mut();
            let row = companion.and_then(|companion| companion.row.take());
            let mut row = row.ok_or_else(|| Error::Internal("a sequence has no companion sequence".into()))?;
            row.set(&rows[index].feed, Want::All);
            self.rows.push(row);
        }
        self.which.clear();
        self.which.extend(0..which.len());
        let scratch = self.scratch.get_or_insert_with(|| model.scratch());
        advance(model, &mut self.rows, &self.which, scratch)?;
        let symbols = model.card().vocabulary.len();
        for (&index, row) in which.iter().zip(self.rows.drain(..)) {
            if let Some(companion) = &mut state(rows, index)?.companion {
                companion.entropies.extend(row.logits.chunks_exact(symbols).map(entropy)); // (symbols)
                companion.row = Some(row);
            }
        }
        Ok(())
    }
}
