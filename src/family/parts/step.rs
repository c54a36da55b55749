//! Code that the steps of several families share.

use crate::{
    decode::{
        contract::{BoundaryOptions, Model, SequenceRow, StepStatus, Want, advance},
        trace,
    },
    error::{Error, Result},
};
use std::sync::Arc;

/// Working memory that keeps the list of rows that a step applies to.
pub trait ChosenRows {
    /// The buffer of row indices.
    fn chosen(&mut self) -> &mut Vec<usize>;
}

/// Runs `step` for the rows among `which` with that status, if there are any. Fails if `step` fails.
pub fn with_status<W: ChosenRows>(
    status: StepStatus,
    rows: &mut [SequenceRow],
    which: &[usize],
    work: &mut W,
    step: impl FnOnce(&mut [SequenceRow], &[usize], &mut W) -> Result<()>,
) -> Result<()> {
    let mut chosen = std::mem::take(work.chosen());
    chosen.clear();
    chosen.extend(which.iter().filter(|&&index| rows[index].status == status));
    let result = if chosen.is_empty() { Ok(()) } else { step(rows, &chosen, work) };
    *work.chosen() = chosen;
    result
}

/// Splits `logits` (wanted, V), row after row, among the rows `which`, which are then ready; V = `symbols`. Fails if
/// the rows want another number of logits.
pub fn deliver_logits(rows: &mut [SequenceRow], which: &[usize], logits: &[f32], symbols: usize) -> Result<()> {
    let wanted: usize = which.iter().map(|&index| rows[index].wanted()).sum();
    if wanted * symbols != logits.len() {
        return Err(Error::Internal("a row's feed or want was changed before the row was ready".into()));
    }
    let mut rest = logits;
    for &index in which {
        let row = &mut rows[index];
        let (own, others) = rest.split_at(row.wanted() * symbols);
        row.logits.clear();
        row.logits.extend_from_slice(own);
        rest = others;
        row.status = StepStatus::Ready;
    }
    Ok(())
}

/// Computes the logits before a text's first symbol, (V), of a model with a start symbol. Fails if a step of the model
/// fails.
pub fn first_logits(model: &dyn Model) -> Result<Arc<[f32]>> {
    let mut rows = [SequenceRow::new(model.begin(BoundaryOptions::default())?)];
    rows[0].set(&[trace::BEGIN], Want::Last);
    advance(model, &mut rows, &[0], &mut model.scratch())?;
    Ok(rows[0].logits.as_slice().into())
}
