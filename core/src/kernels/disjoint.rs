//! A buffer that several threads write at disjoint ranges.

use std::marker::PhantomData;

/// A mutable slice that tasks of one [`ThreadPool::run`](super::ThreadPool::run) write to, each at its own range.
pub(super) struct DisjointSlice<'a, T = f32> {
    start: *mut T,
    len: usize,
    owner: PhantomData<&'a mut [T]>,
}

// SAFETY: the pointer comes from an exclusive borrow that `owner` keeps alive; the contract of `part` forbids overlap.
unsafe impl<T: Send> Sync for DisjointSlice<'_, T> {}

impl<'a, T> DisjointSlice<'a, T> {
    pub(super) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), owner: PhantomData }
    }

    /// Returns the elements `offset..offset + len` for writing.
    ///
    /// # Safety
    /// No two parts that are alive at the same time overlap.
    #[allow(clippy::mut_from_ref, reason = "the purpose of the type; its contract forbids overlap")]
    pub(super) unsafe fn part(&self, offset: usize, len: usize) -> &mut [T] {
        assert!(offset <= self.len && len <= self.len - offset, "part {offset}+{len} of {}", self.len);
        // SAFETY: in bounds, as just checked.
        let start = unsafe { self.start.add(offset) };
        // SAFETY: in bounds; exclusive, as the caller guarantees; the borrow of `owner` keeps the slice alive.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }
}
