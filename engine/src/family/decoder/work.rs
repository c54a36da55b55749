//! Working memory of the steps, and access to the rows' states and caches.

use super::state::DecoderState;
use crate::{
    decode::contract::{SequenceRow, state_mut, state_ref},
    error::Result,
    family::parts::step::ChosenRows,
    nn::{
        Position,
        attention::layer::{Caches, Hook, StackWork},
        kv_cache::KvCache,
    },
};

/// Working memory of one thread.
#[derive(Default)]
pub struct Work {
    pub(super) stack: StackWork,
    /// Sequence and position of each vector in `x`.
    pub(super) positions: Vec<Position>,
    /// Symbols of each row's feed that the stack has processed.
    pub(super) processed: Vec<usize>,
    /// The rows that the current step applies to.
    chosen: Vec<usize>,
    /// The vectors that flow through the stack: (positions, D)
    pub(super) x: Vec<f32>,
    /// The head's input: (wanted, D)
    pub(super) wanted: Vec<f32>,
    /// (wanted, V)
    pub(super) logits: Vec<f32>,
}

impl Work {
    /// Sends every layer's intermediate results to `hook` from now on.
    pub fn watch(&mut self, hook: Hook) {
        self.stack.hook = Some(hook);
    }
}

impl ChosenRows for Work {
    fn chosen(&mut self) -> &mut Vec<usize> {
        &mut self.chosen
    }
}

/// The caches in the states of a step's rows.
pub(in crate::family) struct RowCaches<'a>(pub(in crate::family) &'a mut [SequenceRow]);

impl Caches for RowCaches<'_> {
    fn cache(&self, sequence: usize) -> Result<&KvCache> {
        Ok(&state_ref::<DecoderState>(&*self.0[sequence].state)?.cache)
    }

    fn cache_mut(&mut self, sequence: usize) -> Result<&mut KvCache> {
        Ok(&mut state(self.0, sequence)?.cache)
    }

    fn memory(&self, sequence: usize) -> Result<Option<&KvCache>> {
        Ok(state_ref::<DecoderState>(&*self.0[sequence].state)?.memory.as_ref())
    }
}

/// The state of row `index`.
pub(in crate::family) fn state(rows: &mut [SequenceRow], index: usize) -> Result<&mut DecoderState> {
    state_mut(&mut *rows[index].state)
}
