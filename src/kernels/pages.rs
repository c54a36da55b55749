//! Fixed-size pages of bytes: reference-counted, copied on write, recycled, bounded.
//!
//! A page is what sequences share: a fork clones the references, and whoever writes to a shared page first gets a copy of
//! its own. The pool counts every page that somebody holds; what nobody holds any more is kept for the next one who asks,
//! so that a steady decode allocates nothing. Pages kept and held stay within the limit together: at the limit, those kept of
//! other sizes are given up, and memory of which no part is held goes back to the system.

use super::memory::{Arena, Region};
use crate::error::{Error, Result};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicUsize, Ordering::*},
};

/// Memory that is mapped at a time for pages.
const ARENA: usize = 4 << 20;

/// Where pages come from and go back to. Pages of one pool may differ in size; the limit counts bytes.
pub struct PagePool {
    limit: usize,
    /// Bytes in pages that somebody holds.
    in_use: AtomicUsize,
    free: Mutex<Vec<Free>>,
}

/// Pages of one size that nobody holds.
struct Free {
    bytes: usize,
    /// Pages of this size that there are, held ones included.
    made: usize,
    /// Has room for all of them.
    pages: Vec<Arc<Region>>,
    /// Where they are cut from: what is given back to the system are whole pieces, so sizes do not share any.
    arena: Arena,
}

/// A reference to a page. Clones share it.
pub struct Page {
    /// None only while it is being dropped.
    region: Option<Arc<Region>>,
    pool: Arc<PagePool>,
}

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

    /// A page of `bytes`, with unspecified ones in it.
    ///
    /// # Errors
    /// [`Error::OutOfPages`] if the limit is reached; [`Error::Internal`] if the system has no more memory.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Result<Page> {
        let room = |used: usize| used.checked_add(bytes).filter(|&sum| sum <= self.limit);
        if self.in_use.fetch_update(Relaxed, Relaxed, room).is_err() {
            return Err(Error::OutOfPages { needed: self.in_use().saturating_add(bytes), limit: self.limit });
        }
        let region = self.recycled(bytes).inspect_err(|_| {
            self.in_use.fetch_sub(bytes, Relaxed);
        })?;
        Ok(Page { region: Some(region), pool: self.clone() })
    }

    fn recycled(&self, bytes: usize) -> Result<Arc<Region>> {
        let mut sizes = self.free();
        let at = sizes.iter().position(|free| free.bytes == bytes).unwrap_or_else(|| {
            sizes.push(Free { bytes, made: 0, pages: Vec::new(), arena: Arena::new(ARENA) });
            sizes.len() - 1
        });
        if let Some(region) = sizes[at].pages.pop() {
            return Ok(region);
        }
        let made: usize = sizes.iter().map(|free| free.made.saturating_mul(free.bytes)).sum();
        if made.saturating_add(bytes) > self.limit {
            // what is kept of other sizes is what stands in the way
            for free in sizes.iter_mut() {
                free.made -= free.pages.len();
                free.pages.clear();
            }
        }
        let free = &mut sizes[at];
        let region = free.arena.cut(bytes)?;
        free.made += 1;
        free.pages.reserve(free.made);
        Ok(Arc::new(region))
    }

    fn free(&self) -> MutexGuard<'_, Vec<Free>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Page {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.region.as_ref().map_or(&[], |region| region.bytes())
    }

    /// Whether another reference to it exists.
    pub fn is_shared(&self) -> bool {
        self.references() > 1
    }

    /// How many references to it exist, this one included.
    pub fn references(&self) -> usize {
        self.region.as_ref().map_or(0, Arc::strong_count)
    }

    /// A number that no other page has while this one is held.
    pub fn id(&self) -> usize {
        self.region.as_ref().map_or(0, |region| Arc::as_ptr(region).addr())
    }

    /// Its bytes, to write. A shared page is first replaced by a copy.
    ///
    /// # Errors
    /// [`Error::OutOfPages`] if a copy is needed and the limit is reached.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        let missing = || Error::Internal("a page without memory".into());
        if self.is_shared() {
            let mut copy = self.pool.take(self.bytes().len())?;
            let region = copy.region.as_mut().and_then(Arc::get_mut).ok_or_else(missing)?;
            region.bytes_mut().copy_from_slice(self.bytes());
            *self = copy;
        }
        let region = self.region.as_mut().and_then(Arc::get_mut).ok_or_else(missing)?;
        Ok(region.bytes_mut())
    }
}

impl Clone for Page {
    fn clone(&self) -> Self {
        Self { region: self.region.clone(), pool: self.pool.clone() }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let Some(mut region) = self.region.take() else { return };
        // References are dropped under the lock, so of several at the same time exactly one finds that it is the last.
        let mut sizes = self.pool.free();
        if Arc::get_mut(&mut region).is_some() {
            let bytes = region.bytes().len();
            self.pool.in_use.fetch_sub(bytes, Relaxed);
            if let Some(free) = sizes.iter_mut().find(|free| free.bytes == bytes) {
                free.pages.push(region);
            }
        } else {
            drop(region);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_page_is_copied_by_the_writer_alone() {
        let pool = PagePool::new(1 << 20);
        let mut page = pool.take(128).unwrap();
        page.bytes_mut().unwrap().fill(1);
        let mut other = page.clone();
        assert!(page.is_shared());
        assert_eq!(pool.in_use(), 128);
        other.bytes_mut().unwrap()[3] = 2;
        assert_eq!((page.bytes()[3], other.bytes()[3], other.bytes()[4]), (1, 2, 1));
        assert!(!page.is_shared());
        assert_eq!(pool.in_use(), 256);
        drop((page, other));
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn the_limit_holds_and_is_given_back() {
        let pool = PagePool::new(128);
        let page = pool.take(128).unwrap();
        assert!(matches!(pool.take(64), Err(Error::OutOfPages { needed: 192, limit: 128 })));
        assert!(matches!(page.clone().bytes_mut(), Err(Error::OutOfPages { .. })));
        drop(page);
        assert!(pool.take(128).is_ok());
    }

    #[test]
    fn threads_dropping_references_leave_nothing() {
        let pool = PagePool::new(1 << 20);
        for _ in 0..200 {
            let page = pool.take(64).unwrap();
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    let page = page.clone();
                    scope.spawn(move || drop(page));
                }
            });
        }
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn what_was_given_back_is_given_out_again() {
        let pool = PagePool::new(1 << 20);
        let start = |page: &Page| page.bytes().as_ptr();
        let (first, second) = (pool.take(640).unwrap(), pool.take(64).unwrap());
        let (at_first, at_second) = (start(&first), start(&second));
        drop((first, second));
        assert_eq!((start(&pool.take(64).unwrap()), start(&pool.take(640).unwrap())), (at_second, at_first));
    }
}
