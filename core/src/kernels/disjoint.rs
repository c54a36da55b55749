//! A buffer that several threads write at disjoint ranges.

use std::marker::PhantomData;

/// A mutable slice that tasks of one [`ThreadPool::run`](super::ThreadPool::run) write to, each at its own range.
pub(super) struct DisjointSlice<'a> {
    start: *mut f32,
    len: usize,
    owner: PhantomData<&'a mut [f32]>,
}

// SAFETY: the pointer comes from an exclusive borrow that `owner` keeps alive; the contract of `part` forbids overlap.
unsafe impl Sync for DisjointSlice<'_> {}

impl<'a> DisjointSlice<'a> {
    pub(super) fn new(slice: &'a mut [f32]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), owner: PhantomData }
    }

    /// Returns the floats `offset..offset + len` for writing.
    ///
    /// # Safety
    /// No two parts that are alive at the same time overlap.
    #[allow(clippy::mut_from_ref, reason = "the purpose of the type; its contract forbids overlap")]
    pub(super) unsafe fn part(&self, offset: usize, len: usize) -> &mut [f32] {
        assert!(offset <= self.len && len <= self.len - offset, "part {offset}+{len} of {}", self.len);
        // SAFETY: in bounds, as just checked.
        let start = unsafe { self.start.add(offset) };
        // SAFETY: in bounds; exclusive, as the caller guarantees; the borrow of `owner` keeps the slice alive.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }
}
