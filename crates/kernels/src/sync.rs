//! Atomics, locks and threads of the standard library, for the code whose interleavings `tests/interleavings/` explores: that package
//! compiles the same source files with a module of its own in this place.

pub use std::sync::{Arc as Shared, Condvar, Mutex, MutexGuard, PoisonError, atomic};
pub use std::{hint, thread, thread_local};

/// Locks a mutex whose value is complete whenever a thread that holds it may panic.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns how often a thread polls before it sleeps or yields: `polls` times. An exploration polls less often.
pub(crate) const fn limit_polls(polls: usize) -> usize {
    polls
}
