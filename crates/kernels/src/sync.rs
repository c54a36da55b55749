//! Atomics, locks and threads of the code whose interleavings `interleavings/` explores. They are those of the standard library;
//! that crate includes the same source files with a module of its own in this place.

pub use std::{
    hint,
    sync::{Arc as Shared, Condvar, Mutex, MutexGuard, PoisonError, atomic},
    thread, thread_local,
};

/// Returns how often a thread polls before it sleeps or yields: `polls` times. An exploration polls less often.
pub(crate) const fn limit_polls(polls: usize) -> usize {
    polls
}
