//! Pool of fixed-size pages: reference-counted, copied on write, recycled, limited in total size.
//!
//! A fork clones references, and writing to a shared page first replaces it with a copy. Released pages are kept for reuse, so
//! that steady decoding allocates nothing. At the limit, which includes kept pages, the pool frees pages of other sizes, and
//! blocks without pages return to the system. Each size has one partly used block that the limit does not include, so the pool
//! keeps the 16 sizes that became idle last.

use crate::error::{Error, Result};
use crate::memory::{Arena, Region};
use crate::sync::atomic::AtomicUsize;
use crate::sync::atomic::Ordering::*;
use crate::sync::{Mutex, MutexGuard, PoisonError, Shared};
use std::sync::Arc;

/// Bytes that are mapped at a time for pages, at least.
const ARENA: usize = 4 << 20;

/// Minimum limit of a pool whose next blocks are prepared in advance.
const MIN_PREPARED: usize = 16 * ARENA;

/// Returns the bytes to map at a time for pages of `bytes` bytes: up to four times [`ARENA`], so that whole pages leave little memory
/// unused. A larger page has a block of its own.
fn block_bytes(bytes: usize) -> usize {
    let page = bytes.clamp(1, ARENA);
    // the shares of a block that are left over, in steps of a 32nd
    (ARENA..=4 * ARENA).step_by(ARENA / 2).min_by_key(|block| 32 * (block % page) / block).unwrap_or(ARENA)
}

/// Maximum idle sizes: more than a model's sequences share; a document may have sizes that no other needs.
const MAX_IDLE_SIZES: usize = 16;

/// Content of new pages if debug assertions are on. A float of these bytes is NaN, so tests fail if a sequence depends on a
/// position that it did not write.
const POISON: u8 = 0xff;

/// A pool of pages, which may have different sizes. The limit counts bytes.
pub struct PagePool {
    limit: usize,
    /// Bytes of pages in use.
    in_use: AtomicUsize,
    /// Sizes that have pages. Idle ones are in the order in which they became idle.
    sizes: Mutex<Vec<SizeClass>>,
}

struct SizeClass {
    bytes: usize,
    /// Number of pages, in use or free. At least one, so that a page in use finds its size when it is dropped.
    total: usize,
    /// Free pages, with capacity for all of them.
    free: Vec<Shared<Region>>,
    /// Memory of these pages. Sizes do not share memory blocks, so that a block can be freed with the pages of one size.
    arena: Arena,
}

impl SizeClass {
    /// Returns true if no page is in use.
    fn is_idle(&self) -> bool {
        self.free.len() == self.total
    }

    /// Adds a page, which is in use.
    fn map_page(&mut self) -> Result<Shared<Region>> {
        let region = self.arena.allocate(self.bytes)?;
        self.total += 1;
        self.free.reserve(self.total);
        Ok(Shared::new(region))
    }
}

/// A reference to a page. Clones share the page.
#[derive(Clone)]
pub struct Page {
    /// `None` only while the page is being dropped.
    region: Option<Shared<Region>>,
    pool: Arc<PagePool>,
}

impl PagePool {
    /// Creates a pool of at most `limit` bytes.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, in_use: AtomicUsize::new(0), sizes: Mutex::new(Vec::new()) })
    }

    /// Returns the bytes of pages in use.
    pub fn in_use(&self) -> usize {
        self.in_use.load(Relaxed)
    }

    /// Returns the limit in bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Allocates a page of `bytes` unspecified bytes. Fails with [`Error::OutOfPages`] at the limit, and with
    /// [`Error::Internal`] if the system has no more memory.
    pub fn allocate(self: &Arc<Self>, bytes: usize) -> Result<Page> {
        let increased = |used: usize| used.checked_add(bytes).filter(|&sum| sum <= self.limit);
        if self.in_use.fetch_update(Relaxed, Relaxed, increased).is_err() {
            return Err(Error::OutOfPages { needed: self.in_use().saturating_add(bytes), limit: self.limit });
        }
        let mut region = self.reuse_or_map(bytes).inspect_err(|_| {
            self.in_use.fetch_sub(bytes, Relaxed);
        })?;
        if cfg!(debug_assertions)
            && let Some(region) = Shared::get_mut(&mut region)
        {
            region.bytes_mut().fill(POISON);
        }
        Ok(Page { region: Some(region), pool: self.clone() })
    }

    /// Allocates pages of `bytes` bytes until `pages` has `count` of them. On failure, `pages` is unchanged.
    pub fn grow(self: &Arc<Self>, pages: &mut Vec<Page>, count: usize, bytes: usize) -> Result<()> {
        let before = pages.len();
        while pages.len() < count {
            let page = self.allocate(bytes).inspect_err(|_| pages.truncate(before))?;
            pages.push(page);
        }
        Ok(())
    }

    /// Returns a free region of the size, or a new one.
    fn reuse_or_map(&self, bytes: usize) -> Result<Shared<Region>> {
        let mut sizes = self.sizes();
        if let Some(region) = sizes.iter_mut().find(|size| size.bytes == bytes).and_then(|size| size.free.pop()) {
            return Ok(region);
        }
        let total: usize = sizes.iter().map(|size| size.total.saturating_mul(size.bytes)).sum();
        if total.saturating_add(bytes) > self.limit {
            // free pages of other sizes use the remaining space
            sizes.retain_mut(|size| {
                size.total -= size.free.len();
                size.free.clear();
                size.total > 0
            });
        }
        if let Some(size) = sizes.iter_mut().find(|size| size.bytes == bytes) {
            return size.map_page();
        }
        let block = block_bytes(bytes);
        let arena = if self.limit < MIN_PREPARED { Arena::new(block) } else { Arena::with_next_block(block) };
        let mut size = SizeClass { bytes, total: 0, free: Vec::new(), arena };
        let region = size.map_page()?;
        sizes.push(size);
        Ok(region)
    }

    fn sizes(&self) -> MutexGuard<'_, Vec<SizeClass>> {
        self.sizes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Drops the sizes that were idle longest, with their memory, until [`MAX_IDLE_SIZES`] are idle.
fn drop_longest_idle(sizes: &mut Vec<SizeClass>) {
    let idle = sizes.iter().filter(|size| size.is_idle()).count();
    let excess = idle.saturating_sub(MAX_IDLE_SIZES);
    sizes.extract_if(.., |size| size.is_idle()).take(excess).for_each(drop);
}

impl Page {
    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        self.region.as_ref().map_or(&[], |region| region.bytes())
    }

    /// Returns true if another reference to the page exists.
    pub fn is_shared(&self) -> bool {
        self.references() > 1
    }

    /// Returns the number of references to the page, including this one.
    pub fn references(&self) -> usize {
        self.region.as_ref().map_or(0, Shared::strong_count)
    }

    /// Returns a number that is unique among the pages in use.
    pub fn id(&self) -> usize {
        self.region.as_ref().map_or(0, |region| Shared::as_ptr(region).addr())
    }

    /// Returns the bytes for writing. Copies a shared page first, which fails with [`Error::OutOfPages`] at the limit.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        let missing = || Error::Internal("a page without memory".into());
        if self.is_shared() {
            let mut copy = self.pool.allocate(self.bytes().len())?;
            let region = copy.region.as_mut().and_then(Shared::get_mut).ok_or_else(missing)?;
            region.bytes_mut().copy_from_slice(self.bytes());
            *self = copy;
        }
        Ok(self.region.as_mut().and_then(Shared::get_mut).ok_or_else(missing)?.bytes_mut())
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let Some(mut region) = self.region.take() else { return };
        // references are dropped under the lock, so that exactly one of several threads finds the last one
        let mut sizes = self.pool.sizes();
        if Shared::get_mut(&mut region).is_some() {
            let bytes = region.bytes().len();
            self.pool.in_use.fetch_sub(bytes, Relaxed);
            if let Some(index) = sizes.iter().position(|size| size.bytes == bytes) {
                sizes[index].free.push(region);
                if sizes[index].is_idle() {
                    sizes[index..].rotate_left(1);
                    drop_longest_idle(&mut sizes);
                }
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
    fn writing_to_a_shared_page_copies_it() {
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

    /// What pages leave over takes memory that no limit counts.
    #[test]
    fn blocks_fit_whole_pages() {
        for page in (64..=ARENA).step_by(64) {
            let block = block_bytes(page);
            assert!(block >= page && block % page <= block / 8, "{page} in {block}");
        }
        assert_eq!([64 << 10, ARENA, ARENA + 64].map(block_bytes), [ARENA; 3]);
    }

    #[test]
    fn the_limit_applies_to_pages_in_use() {
        let pool = PagePool::new(128);
        let page = pool.allocate(128).unwrap();
        assert!(matches!(pool.allocate(64), Err(Error::OutOfPages { needed: 192, limit: 128 })));
        assert!(matches!(page.clone().bytes_mut(), Err(Error::OutOfPages { .. })));
        drop(page);
        assert!(pool.allocate(128).is_ok());
    }

    #[cfg(debug_assertions)]
    #[test]
    fn new_pages_do_not_hold_what_earlier_ones_left() {
        let pool = PagePool::new(1 << 20);
        let mut page = pool.allocate(128).unwrap();
        assert!(page.bytes().iter().all(|&byte| byte == POISON));
        page.bytes_mut().unwrap().fill(7);
        let start = page.bytes().as_ptr();
        drop(page);
        let page = pool.allocate(128).unwrap();
        assert!(page.bytes().as_ptr() == start && page.bytes().iter().all(|&byte| byte == POISON));
        let floats: &[f32] = crate::memory::cast(page.bytes());
        assert!(floats.iter().all(|number| number.is_nan()));
    }

    /// Returns the number of pages of a size, and how many of them are free.
    fn count(pool: &PagePool, bytes: usize) -> (usize, usize) {
        let sizes = pool.sizes();
        sizes.iter().find(|size| size.bytes == bytes).map_or((0, 0), |size| (size.total, size.free.len()))
    }

    fn take(pool: &Arc<PagePool>, bytes: usize, count: usize) -> Vec<Page> {
        (0..count).map(|_| pool.allocate(bytes).unwrap()).collect()
    }

    #[test]
    fn at_the_limit_free_pages_of_other_sizes_are_unmapped_and_pages_in_use_stay() {
        let pool = PagePool::new(1024);
        drop(take(&pool, 128, 8));
        assert_eq!((count(&pool, 128), pool.in_use()), ((8, 8), 0));
        // eight free pages use the complete limit: a page of another size needs their space
        let large = take(&pool, 512, 1);
        assert_eq!((count(&pool, 128), count(&pool, 512)), ((0, 0), (1, 0)));
        let mut held = take(&pool, 128, 4);
        held[0].bytes_mut().unwrap().fill(7);
        assert!(matches!(pool.allocate(1), Err(Error::OutOfPages { needed: 1025, limit: 1024 })));
        // again, while some of the smaller pages are in use: only free ones are unmapped
        drop(large);
        drop(held.split_off(3));
        assert_eq!((count(&pool, 128), count(&pool, 512)), ((4, 1), (1, 1)));
        let _medium = take(&pool, 256, 2);
        assert_eq!((count(&pool, 128), count(&pool, 512), count(&pool, 256)), ((3, 0), (0, 0), (2, 0)));
        assert!(held[0].bytes().iter().all(|&byte| byte == 7));
        assert_eq!(pool.in_use(), 3 * 128 + 2 * 256);
    }

    #[test]
    fn below_the_limit_free_pages_stay() {
        let pool = PagePool::new(1024);
        drop(take(&pool, 128, 4));
        let _other = take(&pool, 512, 1);
        assert_eq!((count(&pool, 128), count(&pool, 512)), ((4, 4), (1, 0)));
        let _again = take(&pool, 128, 3);
        assert_eq!(count(&pool, 128), (4, 1));
    }

    #[test]
    fn few_sizes_without_pages_in_use_are_kept() {
        // only the first pool reaches its limit
        for limit in [32 << 10, 1 << 30] {
            let pool = PagePool::new(limit);
            let mut held: Vec<(u8, Page)> = Vec::new();
            let mut blocks = Vec::new();
            for index in 0..200u8 {
                let mut page = pool.allocate(64 * (usize::from(index) + 1)).unwrap();
                page.bytes_mut().unwrap().fill(index);
                blocks.push(page.region.as_ref().unwrap().watch_block());
                held.extend((index % 50 == 0).then_some((index, page)));
                drop(take(&pool, 100, 1));
                assert_eq!(count(&pool, 100), (1, 1), "the size that was used last");
                let sizes = pool.sizes();
                let idle = sizes.iter().filter(|size| size.is_idle()).count();
                assert!(idle <= MAX_IDLE_SIZES && sizes.len() == idle + held.len());
                assert!(blocks.iter().filter(|is_mapped| is_mapped()).count() < sizes.len());
            }
            assert_eq!(count(&pool, 128), (0, 0));
            assert!(held.iter().all(|(value, page)| page.bytes().iter().all(|byte| byte == value)));
            drop(held);
            assert_eq!((pool.in_use(), count(&pool, 64)), (0, (1, 1)));
            drop(pool);
            assert!(blocks.iter().all(|is_mapped| !is_mapped()));
        }
    }

    #[test]
    fn sizes_do_not_share_memory_blocks() {
        let pool = PagePool::new(1 << 30);
        // blocks are aligned to this size
        let block = |page: &Page| page.bytes().as_ptr() as usize / (2 << 20);
        let mut pages = Vec::new();
        for _ in 0..20 {
            pages.extend([64, 1 << 20, 192].map(|bytes| pool.allocate(bytes).unwrap()));
        }
        let blocks = |bytes: usize| pages.iter().filter(move |page| page.bytes().len() == bytes).map(block);
        for (first, second) in [(64, 192), (64, 1 << 20), (192, 1 << 20)] {
            assert!(blocks(first).all(|block| blocks(second).all(|other| other != block)), "{first} and {second}");
        }
    }

    #[test]
    fn random_operations_stay_within_the_limit() {
        let limit = 64 << 10;
        let sizes = [64, 640, 4096, 20_000];
        let pool = PagePool::new(limit);
        let mut held = Vec::<Page>::new();
        let mut state = 7u64;
        let mut below = |end: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % end
        };
        let mut refused = 0;
        let mut unmapped = 0;
        for _ in 0..20_000 {
            let free: usize = sizes.iter().map(|&bytes| count(&pool, bytes).1).sum();
            match below(5) {
                0 | 1 if !held.is_empty() => drop(held.swap_remove(below(held.len()))),
                2 if !held.is_empty() => held.push(held[below(held.len())].clone()),
                _ => match pool.allocate(sizes[below(sizes.len())]) {
                    Ok(page) => {
                        held.push(page);
                        let left: usize = sizes.iter().map(|&bytes| count(&pool, bytes).1).sum();
                        unmapped += usize::from(left + 1 < free);
                    }
                    Err(_) => refused += 1,
                },
            }
            let total: usize = sizes.iter().map(|&bytes| count(&pool, bytes).0 * bytes).sum();
            let free: usize = sizes.iter().map(|&bytes| count(&pool, bytes).1 * bytes).sum();
            assert!(total <= limit && pool.in_use() == total - free);
        }
        assert!(refused > 10 && unmapped > 10, "{refused} refused, {unmapped} unmapped");
        drop(held);
        assert_eq!(pool.in_use(), 0);
    }
}
