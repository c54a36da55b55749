//! One buffer, written by several threads at places that never overlap.

use std::marker::PhantomData;

/// A mutable slice that tasks of one [`ThreadPool::run`](super::ThreadPool::run) write to, each its own part.
pub(super) struct DisjointSlice<'a> {
    start: *mut f32,
    len: usize,
    owner: PhantomData<&'a mut [f32]>,
}

// SAFETY: the pointer comes from an exclusive borrow that `owner` keeps alive; `part`'s contract forbids overlap.
unsafe impl Sync for DisjointSlice<'_> {}

impl<'a> DisjointSlice<'a> {
    pub(super) fn new(slice: &'a mut [f32]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), owner: PhantomData }
    }

    /// The floats `at..at + len`.
    ///
    /// # Safety
    /// No two parts that live at the same time overlap.
    #[allow(clippy::mut_from_ref, reason = "what the type is for; its contract forbids overlap")]
    pub(super) unsafe fn part(&self, at: usize, len: usize) -> &mut [f32] {
        assert!(at <= self.len && len <= self.len - at, "part {at}+{len} of {}", self.len);
        // SAFETY: in bounds as just checked, so the offset stays within the borrowed slice.
        let start = unsafe { self.start.add(at) };
        // SAFETY: in bounds; exclusive by the caller's promise; alive as long as `owner`'s borrow.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }
}
