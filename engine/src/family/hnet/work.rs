//! Working memory of the steps, and access to the rows' caches.

use super::state::{HnetState, state};
use crate::{
    decode::contract::{SequenceRow, state_ref},
    error::Result,
    family::parts::step::ChosenRows,
    kernels::{linear::QuantizedRows, pages::Page},
    nn::{Position, attention::layer::Caches, hybrid::HybridWork, kv_cache::KvCache, router::RouterWork},
};

/// Working memory of one thread.
#[derive(Default)]
pub(super) struct Work {
    pub(super) stages: Vec<StageWork>,
    pub(super) pass: PassWork,
    /// The rows that the current step applies to.
    pub(super) chosen: Vec<usize>,
    /// The head's input: (wanted, D)
    pub(super) wanted: Vec<f32>,
    /// (wanted, V)
    pub(super) logits: Vec<f32>,
}

/// Vectors of one stage in a step. D = width.
#[derive(Default)]
pub(super) struct StageWork {
    /// Sequence and position of each vector in `x`.
    pub(super) positions: Vec<Position>,
    /// Index among its row's fed symbols of the symbol with which each position begins; `None` for a symbol fed again. Not set in
    /// the outermost stage.
    pub(super) symbols: Vec<Option<usize>>,
    /// (positions, D)
    pub(super) x: Vec<f32>,
    /// (positions, D)
    pub(super) residual: Vec<f32>,
    /// Boundary probability of each position.
    pub(super) probabilities: Vec<f32>,
}

/// Buffers that all stages share.
#[derive(Default)]
pub(super) struct PassWork {
    pub(super) hybrid: HybridWork,
    pub(super) router: RouterWork,
    pub(super) quantized: QuantizedRows,
    /// Taken pages of recurrent memories, one for each sequence of a pass.
    pub(super) pages: Vec<Option<Page>>,
}

impl ChosenRows for Work {
    fn chosen(&mut self) -> &mut Vec<usize> {
        &mut self.chosen
    }
}

/// The caches of one stack, in the states of a step's rows.
pub(super) struct StackCaches<'a> {
    pub(super) rows: &'a mut [SequenceRow],
    pub(super) stack: usize,
}

impl Caches for StackCaches<'_> {
    fn cache(&self, sequence: usize) -> Result<&KvCache> {
        Ok(&state_ref::<HnetState>(&*self.rows[sequence].state)?.stacks[self.stack].cache)
    }

    fn cache_mut(&mut self, sequence: usize) -> Result<&mut KvCache> {
        Ok(&mut state(self.rows, sequence)?.stacks[self.stack].cache)
    }
}
