//! The names of weir's `crates/kernels/src/sync.rs`: from `shuttle`, or from the standard library if Miri runs the tests.

#[cfg(not(miri))]
pub use shuttle::{
    hint,
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread, thread_local,
};
pub use std::sync::PoisonError;
#[cfg(miri)]
pub use std::{
    hint,
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread, thread_local,
};
use std::{ops::Deref, sync::Arc};

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns how often a thread polls before it sleeps or yields. Few polls suffice to meet every state.
pub(crate) const fn limit_polls(_: usize) -> usize {
    2
}

/// `Arc`, whose operations other threads may precede. shuttle's own is the standard library's.
pub struct Shared<T>(Arc<Counted<T>>);

struct Counted<T> {
    value: T,
    /// An access to this lets other threads run.
    switch: atomic::AtomicUsize,
}

impl<T> Shared<T> {
    pub fn new(value: T) -> Self {
        Self(Arc::new(Counted { value, switch: atomic::AtomicUsize::new(0) }))
    }

    pub fn strong_count(this: &Self) -> usize {
        this.switch();
        Arc::strong_count(&this.0)
    }

    pub fn as_ptr(this: &Self) -> *const T {
        &raw const this.0.value
    }

    pub fn get_mut(this: &mut Self) -> Option<&mut T> {
        this.switch();
        Arc::get_mut(&mut this.0).map(|counted| &mut counted.value)
    }

    fn switch(&self) {
        self.0.switch.load(atomic::Ordering::SeqCst);
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        self.switch();
        Self(Arc::clone(&self.0))
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.switch();
        }
    }
}
