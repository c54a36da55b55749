//! Steps the companion model whose entropies place boundaries. Hot path, as `model` is.

use super::state::state;
use crate::{
    decode::contract::{Model, Scratch, SequenceRow, Want, advance},
    error::{Error, Result},
    kernels::distribution::entropy,
};

/// Buffers of the companion's steps.
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
