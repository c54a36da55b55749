//! What the steps of several families have in common.

use crate::{
    decode::contract::{SequenceRow, StepStatus},
    error::{Error, Result},
};

/// Working memory of a step, as far as choosing its rows goes.
pub trait Stepping {
    /// The rows among those asked for that the step is for.
    fn chosen(&mut self) -> &mut Vec<usize>;
}

/// Runs a step for the rows among `which` that have that status, if there are any.
///
/// # Errors
/// What the step says.
pub fn stepping<W: Stepping>(
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

/// Gives the rows `which` the logits that they want, of `symbols` numbers each, one row's behind the other's; they are then
/// ready.
///
/// # Errors
/// [`Error::Internal`] if there are not as many as they want.
pub fn hand_out(rows: &mut [SequenceRow], which: &[usize], logits: &[f32], symbols: usize) -> Result<()> {
    let wanted: usize = which.iter().map(|&index| rows[index].wanted()).sum();
    if wanted * symbols != logits.len() {
        return Err(Error::Internal("a row's feed or want was changed before it was ready".into()));
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
