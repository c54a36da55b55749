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
    pub fn allocate(self: &Arc<Self>, bytes: usize) -> Result<Page> {
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
        let region = free.arena.allocate(bytes)?;
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
            let mut copy = self.pool.allocate(self.bytes().len())?;
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
        let mut page = pool.allocate(128).unwrap();
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
        let page = pool.allocate(128).unwrap();
        assert!(matches!(pool.allocate(64), Err(Error::OutOfPages { needed: 192, limit: 128 })));
        assert!(matches!(page.clone().bytes_mut(), Err(Error::OutOfPages { .. })));
        drop(page);
        assert!(pool.allocate(128).is_ok());
    }

    #[test]
    fn threads_dropping_references_leave_nothing() {
        let pool = PagePool::new(1 << 20);
        for _ in 0..200 {
            let page = pool.allocate(64).unwrap();
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
        let (first, second) = (pool.allocate(640).unwrap(), pool.allocate(64).unwrap());
        let (at_first, at_second) = (start(&first), start(&second));
        drop((first, second));
        assert_eq!((start(&pool.allocate(64).unwrap()), start(&pool.allocate(640).unwrap())), (at_second, at_first));
    }

    /// Of pages of so many bytes: how many there are, and how many of them nobody holds.
    fn count(pool: &PagePool, bytes: usize) -> (usize, usize) {
        let sizes = pool.free();
        sizes.iter().find(|free| free.bytes == bytes).map_or((0, 0), |free| (free.made, free.pages.len()))
    }

    fn take(pool: &Arc<PagePool>, bytes: usize, count: usize) -> Vec<Page> {
        (0..count).map(|_| pool.allocate(bytes).unwrap()).collect()
    }

    #[test]
    fn at_the_limit_kept_pages_of_other_sizes_are_given_up_and_held_ones_stay() {
        let pool = PagePool::new(1024);
        drop(take(&pool, 128, 8));
        assert_eq!((count(&pool, 128), pool.in_use()), ((8, 8), 0));
        // eight kept pages are all that the limit allows: a page of another size needs their room
        let large = take(&pool, 512, 1);
        assert_eq!((count(&pool, 128), count(&pool, 512)), ((0, 0), (1, 0)));
        let mut held = take(&pool, 128, 4);
        held[0].bytes_mut().unwrap().fill(7);
        assert!(matches!(pool.allocate(1), Err(Error::OutOfPages { needed: 1025, limit: 1024 })));
        // again, while some of the smaller ones are held: those stay as they are, and only the kept ones go
        drop(large);
        drop(held.split_off(3));
        assert_eq!((count(&pool, 128), count(&pool, 512)), ((4, 1), (1, 1)));
        let _medium = take(&pool, 256, 2);
        assert_eq!((count(&pool, 128), count(&pool, 512), count(&pool, 256)), ((3, 0), (0, 0), (2, 0)));
        assert!(held[0].bytes().iter().all(|&byte| byte == 7));
        assert_eq!(pool.in_use(), 3 * 128 + 2 * 256);
    }

    #[test]
    fn below_the_limit_kept_pages_stay_for_the_next_of_their_size() {
        let pool = PagePool::new(1024);
        drop(take(&pool, 128, 4));
        let _other = take(&pool, 512, 1);
        assert_eq!((count(&pool, 128), count(&pool, 512)), ((4, 4), (1, 0)));
        let _again = take(&pool, 128, 3);
        assert_eq!(count(&pool, 128), (4, 1));
    }

    #[test]
    fn sizes_share_no_memory_that_could_be_given_back() {
        let pool = PagePool::new(1 << 30);
        // as far apart as pieces are aligned
        let piece = |page: &Page| page.bytes().as_ptr() as usize / (2 << 20);
        let mut pages = Vec::new();
        for _ in 0..20 {
            pages.extend([64, 1 << 20, 192].map(|bytes| pool.allocate(bytes).unwrap()));
        }
        let of = |bytes: usize| pages.iter().filter(move |page| page.bytes().len() == bytes).map(piece);
        for (one, other) in [(64, 192), (64, 1 << 20), (192, 1 << 20)] {
            assert!(of(one).all(|place| of(other).all(|elsewhere| elsewhere != place)), "{one} beside {other}");
        }
    }

    /// Whatever is taken and given back in whatever order: kept and held pages together stay within the limit.
    #[test]
    fn a_storm_of_sizes_stays_within_the_limit() {
        let (limit, sizes) = (64 << 10, [64, 640, 4096, 20_000]);
        let (pool, mut held, mut state) = (PagePool::new(limit), Vec::<Page>::new(), 7u64);
        let mut below = |most: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % most
        };
        let (mut refused, mut given_up) = (0, 0);
        for _ in 0..20_000 {
            let kept: usize = sizes.iter().map(|&bytes| count(&pool, bytes).1).sum();
            match below(5) {
                0 | 1 if !held.is_empty() => drop(held.swap_remove(below(held.len()))),
                2 if !held.is_empty() => held.push(held[below(held.len())].clone()),
                _ => match pool.allocate(sizes[below(sizes.len())]) {
                    Ok(page) => {
                        held.push(page);
                        let left: usize = sizes.iter().map(|&bytes| count(&pool, bytes).1).sum();
                        given_up += usize::from(left + 1 < kept);
                    }
                    Err(_) => refused += 1,
                },
            }
            let made: usize = sizes.iter().map(|&bytes| count(&pool, bytes).0 * bytes).sum();
            let kept: usize = sizes.iter().map(|&bytes| count(&pool, bytes).1 * bytes).sum();
            assert!(made <= limit && pool.in_use() == made - kept);
        }
        assert!(refused > 10 && given_up > 10, "{refused} refused, {given_up} times pages were given up");
        drop(held);
        assert_eq!(pool.in_use(), 0);
    }
}
