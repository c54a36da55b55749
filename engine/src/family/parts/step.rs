//! Code that the steps and states of several families share.

use crate::{
    decode::{
        contract::{BoundaryOptions, Card, Model, Scratch, SequenceRow, State, StepStatus, Want, advance},
        trace,
    },
    error::{Error, Result},
    nn::Position,
};
use std::sync::Arc;

/// Receives each intermediate vector of a stage, with its sequence and position. Set by golden tests, never by servers.
pub type Watcher<Stage> = Box<dyn FnMut(Stage, Position, &[f32]) + Send>;

/// Sends `numbers`, which holds one vector for each of `positions`, to the watcher if there is one.
pub fn watch<S: Copy>(watcher: &mut Option<Watcher<S>>, stage: S, positions: &[Position], numbers: &[f32]) {
    let Some(watcher) = watcher else { return };
    let width = numbers.len() / positions.len().max(1);
    for (position, vector) in positions.iter().zip(numbers.chunks_exact(width.max(1))) {
        watcher(stage, *position, vector);
    }
}

/// Returns a model's working memory behind the contract. Fails if another model created it.
pub fn work_mut<W: 'static>(scratch: &mut Scratch) -> Result<&mut W> {
    scratch.0.downcast_mut().ok_or_else(|| Error::Internal("another model's scratch".into()))
}

/// Checks that a row may be fed. Fails if the row or its state is not `ready`, the feed is empty, or the sequence exceeds the
/// model's limit.
pub fn check_feed(card: &Card, row: &SequenceRow, ready: bool) -> Result<()> {
    if row.status != StepStatus::Ready || !ready || row.feed.is_empty() {
        return Err(Error::Internal("a row was fed no symbols, or before it was ready".into()));
    }
    let length = row.state.len() + row.positions();
    let limit = card.max_symbols;
    if length > limit {
        let unit = if card.vocabulary.is_subword() { "tokens" } else { "characters" };
        return Err(Error::TooLong { field: "sequence", length, limit, unit, why: None });
    }
    Ok(())
}

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

/// Clones a list with at least `capacity`, so that the clone grows no sooner than a new list.
pub fn clone_with_capacity<T: Copy>(list: &[T], capacity: usize) -> Vec<T> {
    let mut clone = Vec::with_capacity(list.len().max(capacity));
    clone.extend_from_slice(list);
    clone
}

/// Checks that a state can be rolled back to `len` symbols. Fails if the row is not `ready`, `len` is beyond the end,
/// or keys that `len` symbols need were dropped.
pub fn check_rollback(state: &dyn State, ready: bool, len: usize) -> Result<()> {
    let earliest = state.earliest();
    let reason = match len {
        _ if !ready => "the row is not ready".to_owned(),
        _ if len > state.len() => format!("the sequence has {} symbols", state.len()),
        1.. if len < earliest => format!("its keys are dropped; 0 and lengths from {earliest} on are possible"),
        _ => return Ok(()),
    };
    Err(Error::Internal(format!("cannot roll back to {len} symbols: {reason}")))
}
