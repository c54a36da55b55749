//! Code that the states of several families share.

use crate::{
    decode::contract::State,
    error::{Error, Result},
};

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
