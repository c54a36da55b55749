//! Working memory of the steps, and access to the rows' states and caches.

use super::{
    companion::CompanionWork,
    state::{HourglassState, state},
};
use crate::{
    decode::contract::{Scratch, SequenceRow, state_ref},
    error::{Error, Result},
    family::parts::step::ChosenRows,
    nn::{
        Position,
        attention::layer::{Caches, StackWork},
        boundary::{self, evidence::BoundaryDecision},
        kv_cache::KvCache,
    },
};

/// Names an intermediate result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
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

/// Receives each intermediate vector, (D), with its sequence and position.
pub type Watcher = Box<dyn FnMut(Stage, Position, &[f32]) + Send>;

/// Working memory of one thread.
#[derive(Default)]
pub struct Work {
    /// Receives intermediate results; set by golden tests, never by servers.
    pub watcher: Option<Watcher>,
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
    /// Returns the hourglass's working memory behind the contract. Fails if another model created it.
    pub fn from_scratch(scratch: &mut Scratch) -> Result<&mut Self> {
        scratch.0.downcast_mut().ok_or_else(|| Error::Internal("another model's scratch".into()))
    }

    pub(super) fn show(&mut self, stage: Stage) {
        let Some(watcher) = &mut self.watcher else { return };
        let dim = self.x.len() / self.positions.len().max(1);
        for (position, x) in self.positions.iter().zip(self.x.chunks_exact(dim.max(1))) {
            watcher(stage, *position, x);
        }
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
