//! Fixed-size pages of floats: reference-counted, copied on write, recycled, bounded.
//!
//! A page is what sequences share: a fork clones the references, and whoever writes to a shared page first gets a copy of
//! its own. The pool counts every page from creation to destruction and keeps a few free ones, so that a steady decode
//! allocates nothing.

use super::{LANES, Lane};
use crate::error::{Error, Result};
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering::*},
};

/// Where pages come from and go back to. Pages of one pool may differ in size; the limit counts bytes.
pub struct PagePool {
    limit: usize,
    /// Bytes in pages that somebody holds.
    in_use: AtomicUsize,
    /// Memory of pages that nobody holds, to be used again. Bounded by [`KEPT`].
    free: Mutex<Vec<Box<[Lane]>>>,
}

/// Free pages kept for use again.
const KEPT: usize = 256;

struct Buffer {
    lanes: Box<[Lane]>,
    pool: Arc<PagePool>,
}

/// A reference to a page. Clones share it.
pub struct Page(Option<Arc<Buffer>>);

impl PagePool {
    /// A pool that gives out at most `limit` bytes at a time.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, in_use: AtomicUsize::new(0), free: Mutex::new(Vec::new()) })
    }

    /// Bytes in pages that somebody holds.
    pub fn in_use(&self) -> usize {
        self.in_use.load(Relaxed)
    }

    /// The most bytes it gives out.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// A page of `floats` (a multiple of 16), with unspecified numbers in it.
    ///
    /// # Errors
    /// [`Error::OutOfPages`] if the limit is reached.
    pub fn take(self: &Arc<Self>, floats: usize) -> Result<Page> {
        debug_assert!(floats.is_multiple_of(LANES));
        let bytes = floats * size_of::<f32>();
        let room = |used: usize| used.checked_add(bytes).filter(|&sum| sum <= self.limit);
        if self.in_use.fetch_update(Relaxed, Relaxed, room).is_err() {
            return Err(Error::OutOfPages { needed: self.in_use() + bytes, limit: self.limit });
        }
        let lanes = floats / LANES;
        let lanes = self.recycled(lanes).unwrap_or_else(|| vec![Lane::default(); lanes].into());
        Ok(Page(Some(Arc::new(Buffer { lanes, pool: self.clone() }))))
    }

    fn recycled(&self, lanes: usize) -> Option<Box<[Lane]>> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let at = free.iter().rposition(|memory| memory.len() == lanes)?;
        Some(free.swap_remove(at))
    }
}

impl Page {
    /// Its numbers.
    pub fn floats(&self) -> &[f32] {
        self.0.as_ref().map_or(&[], |buffer| flat(&buffer.lanes))
    }

    /// Bytes it takes.
    pub fn bytes(&self) -> usize {
        size_of_val(self.floats())
    }

    /// Whether another reference to it exists.
    pub fn is_shared(&self) -> bool {
        self.0.as_ref().is_some_and(|buffer| Arc::strong_count(buffer) > 1)
    }

    /// Its numbers, to write. A shared page is first replaced by a copy.
    ///
    /// # Errors
    /// [`Error::OutOfPages`] if a copy is needed and the limit is reached.
    pub fn floats_mut(&mut self) -> Result<&mut [f32]> {
        let missing = || Error::Internal("a page without a buffer".into());
        let buffer = self.0.as_mut().ok_or_else(missing)?;
        if Arc::get_mut(buffer).is_none() {
            let mut copy = buffer.pool.take(buffer.lanes.len() * LANES)?;
            copy.floats_mut()?.copy_from_slice(flat(&buffer.lanes));
            *self = copy;
        }
        let unique = self.0.as_mut().and_then(Arc::get_mut).ok_or_else(missing)?;
        Ok(flat_mut(&mut unique.lanes))
    }
}

impl Clone for Page {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // of references dropped at the same time, exactly one gets the inner value
        let Some(Buffer { lanes, pool }) = self.0.take().and_then(Arc::into_inner) else { return };
        pool.in_use.fetch_sub(size_of_val(&*lanes), Relaxed);
        let mut free = pool.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < KEPT {
            free.push(lanes);
        }
    }
}

/// The lanes' floats as one slice.
fn flat(lanes: &[Lane]) -> &[f32] {
    // SAFETY: `Lane` is `repr(C)`, sixteen floats without padding (64 bytes, aligned to 64).
    unsafe { std::slice::from_raw_parts(lanes.as_ptr().cast(), lanes.len() * LANES) }
}

fn flat_mut(lanes: &mut [Lane]) -> &mut [f32] {
    // SAFETY: as above; exclusive because the borrow of `lanes` is.
    unsafe { std::slice::from_raw_parts_mut(lanes.as_mut_ptr().cast(), lanes.len() * LANES) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_page_is_copied_by_the_writer_alone() {
        let pool = PagePool::new(1 << 20);
        let mut page = pool.take(32).unwrap();
        page.floats_mut().unwrap().fill(1.0);
        let mut other = page.clone();
        assert!(page.is_shared());
        assert_eq!(pool.in_use(), 128);
        other.floats_mut().unwrap()[3] = 2.0;
        assert_eq!((page.floats()[3], other.floats()[3], other.floats()[4]), (1.0, 2.0, 1.0));
        assert!(!page.is_shared());
        assert_eq!(pool.in_use(), 256);
        drop((page, other));
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn the_limit_holds_and_is_given_back() {
        let pool = PagePool::new(128);
        let page = pool.take(32).unwrap();
        assert!(matches!(pool.take(16), Err(Error::OutOfPages { needed: 192, limit: 128 })));
        assert!(matches!(page.clone().floats_mut(), Err(Error::OutOfPages { .. })));
        drop(page);
        assert!(pool.take(32).is_ok());
    }

    #[test]
    fn threads_dropping_references_leave_nothing() {
        let pool = PagePool::new(1 << 20);
        for _ in 0..200 {
            let page = pool.take(16).unwrap();
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    let page = page.clone();
                    scope.spawn(move || drop(page));
                }
            });
        }
        assert_eq!(pool.in_use(), 0);
    }
}
