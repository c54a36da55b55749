//! Memory: an allocator of weights and caches, which splits large blocks that are aligned to huge pages (with small ones, a
//! decode step spends a third of its time on address translation); settings of process and allocator; peak rates.

use crate::{
    Isa, ThreadPool,
    error::{Error, Result},
    isa::{Simd, WIDTH, multiversion},
};
use memmap2::MmapMut;
use std::{
    fs,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

/// Size of a huge page on x86-64 and most other processors, to which blocks are aligned.
const HUGE: usize = 2 << 20;

/// Size of the smallest page of the system on most processors.
const SMALL: usize = 4 << 10;

/// Size of a cache line, to which regions are aligned.
const LINE: usize = 64;

/// A block of mapped memory, zeroed and aligned to a huge page. It is only accessed through its regions.
struct Block {
    /// Keeps the mapping alive.
    _map: MmapMut,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: `start` points into the mapping that the block owns; regions, which do not overlap, synchronize access.
unsafe impl Send for Block {}

// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    fn new(bytes: usize) -> Result<Self> {
        let padded = bytes.checked_add(HUGE).ok_or_else(|| out_of_memory(bytes, "the size overflows"))?;
        let mut map = MmapMut::map_anon(padded).map_err(|error| out_of_memory(bytes, error))?;
        let skip = map.as_ptr().align_offset(HUGE).min(HUGE);
        // a huge page at the end would reach beyond the block; failure is not an error: without huge pages everything works, but more
        // slowly; tests load hundreds of tiny models, most of whose loading time would go into clearing huge pages
        #[cfg(all(target_os = "linux", not(debug_assertions)))]
        let _ = map.advise_range(memmap2::Advice::HugePage, skip, bytes / HUGE * HUGE);
        let start = NonNull::from(&mut map[skip..]).cast();
        Ok(Self { _map: map, start, bytes })
    }

    /// Makes the system provide and clear the memory from offset `from` on. Otherwise it does that at the first use of each page,
    /// which takes milliseconds for a huge page of a virtual machine.
    ///
    /// # Safety
    /// No region has bytes from `from` on, and none gets them before the call ends.
    unsafe fn populate(&self, from: usize) {
        for offset in (from.next_multiple_of(SMALL)..self.bytes).step_by(SMALL) {
            // SAFETY: the block has `bytes` bytes.
            let first = unsafe { self.start.add(offset) };
            // SAFETY: the caller guarantees that nothing else refers to this byte.
            unsafe { first.write_volatile(0) };
        }
    }
}

fn out_of_memory(bytes: usize, reason: impl std::fmt::Display) -> Error {
    let limit = memory_limit().map_or_else(String::new, |MemoryLimit { command, bytes, used }| {
        format!("; {command} allows {bytes} bytes, of which {used} are in use")
    });
    Error::Internal(format!("cannot allocate {bytes} bytes of memory: {reason}{limit}"))
}

/// A limit on this process's memory.
#[derive(Debug, Clone, Copy)]
pub struct MemoryLimit {
    /// Shell command that sets the limit.
    pub command: &'static str,
    /// Maximum bytes.
    pub bytes: usize,
    /// Bytes in use that count towards the limit.
    pub used: usize,
}

/// Returns the limit that leaves the fewest bytes. Returns `None` if no limit is set, or if `/proc` does not report it.
pub fn memory_limit() -> Option<MemoryLimit> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let number = |text: &str, key: &str| -> Option<usize> {
        text.lines().find_map(|line| line.strip_prefix(key)?.split_whitespace().next()?.parse().ok())
    };
    let known = [("ulimit -v", "Max address space", "VmSize:"), ("ulimit -d", "Max data size", "VmData:")];
    let limit = |(command, limit, used)| {
        let used = number(&status, used)?.saturating_mul(1 << 10);
        Some(MemoryLimit { command, bytes: number(&limits, limit)?, used })
    };
    known.into_iter().filter_map(limit).min_by_key(|limit| limit.bytes.saturating_sub(limit.used))
}

/// Exclusively owned bytes of a block, aligned to a cache line and initially zero.
pub struct Region {
    block: Arc<Block>,
    offset: usize,
    len: usize,
}

impl Region {
    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the region is within its block, initialised by the mapping, and overlaps no other region, so only
        // `bytes_mut`, which borrows exclusively, writes it.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }

    /// Returns the bytes for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; exclusive because the borrow of the region is.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len) }
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: the arena creates regions within their block.
        unsafe { self.block.start.as_ptr().add(self.offset) }
    }

    /// Returns a function that returns true while the region's block is mapped. It does not keep the block.
    #[cfg(test)]
    pub(crate) fn watch_block(&self) -> impl Fn() -> bool + use<> {
        let block = Arc::downgrade(&self.block);
        move || block.strong_count() > 0
    }
}

/// Numbers that begin at a cache line. Vectors and tiles are slow if they straddle two lines.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Aligned<T>(pub(crate) T);

impl<T> Deref for Aligned<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Aligned<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// Plain old data: types that the bytes of a region can be interpreted as.
///
/// # Safety
/// Every bit pattern is a value, the alignment is at most a cache line, and there is no padding.
pub unsafe trait Pod: Copy {}

// SAFETY: a primitive number.
unsafe impl Pod for f32 {}

// SAFETY: a primitive number.
unsafe impl Pod for u16 {}

// SAFETY: a primitive number.
unsafe impl Pod for i8 {}

/// Interprets bytes as values of another type. Ignores trailing bytes. Panics if the bytes are not aligned for the type.
pub fn cast<T: Pod>(bytes: &[u8]) -> &[T] {
    assert!(bytes.as_ptr().cast::<T>().is_aligned());
    // SAFETY: aligned as just checked; `Pod` guarantees that every bit pattern is a value.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>()) }
}

/// Interprets bytes for writing as values of another type. Panics if the bytes are not aligned for the type.
pub fn cast_mut<T: Pod>(bytes: &mut [u8]) -> &mut [T] {
    assert!(bytes.as_ptr().cast::<T>().is_aligned());
    // SAFETY: as above; exclusive because the borrow of `bytes` is.
    unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len() / size_of::<T>()) }
}

/// Allocates consecutive regions. Regions allocated in the order in which a step reads them form one stream of memory.
pub struct Arena {
    /// Bytes of a block.
    size: usize,
    open: Mutex<Option<OpenBlock>>,
    /// The block after it, if that is mapped in advance.
    next: Option<NextBlock>,
}

/// A block with free space.
struct OpenBlock {
    block: Arc<Block>,
    /// Offset of the free space.
    offset: usize,
    is_populated: bool,
}

/// A block that is mapped in advance, on a thread of its own.
#[derive(Clone, Default)]
struct NextBlock(Arc<Mutex<Preparation>>);

#[derive(Default)]
enum Preparation {
    #[default]
    NotBegun,
    Running,
    Failed,
    Done(Block),
}

impl NextBlock {
    /// Begins to map and populate a block of `bytes` bytes, unless that has begun or has failed since the last [`take`](Self::take).
    fn prepare(&self, bytes: usize) {
        let mut state = self.lock();
        if !matches!(*state, Preparation::NotBegun) {
            return;
        }
        let next = self.clone();
        let prepare = move || {
            let block = Block::new(bytes).inspect(|block| {
                // SAFETY: the block has no regions.
                unsafe { block.populate(0) };
            });
            *next.lock() = block.map_or(Preparation::Failed, Preparation::Done);
        };
        let spawned = thread::Builder::new().name("weir-memory".into()).spawn(prepare);
        *state = if spawned.is_ok() { Preparation::Running } else { Preparation::Failed };
    }

    /// Returns the block if it is ready.
    fn take(&self) -> Option<Block> {
        let mut state = self.lock();
        match std::mem::take(&mut *state) {
            Preparation::Done(block) => Some(block),
            Preparation::NotBegun | Preparation::Failed => None,
            Preparation::Running => {
                *state = Preparation::Running;
                None
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Preparation> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Arena {
    /// Creates an arena that maps blocks of `size` bytes, or larger ones for larger regions.
    pub fn new(size: usize) -> Self {
        Self { size: size.max(1).next_multiple_of(HUGE), open: Mutex::new(None), next: None }
    }

    /// Creates an arena like [`new`](Self::new) that has its next block prepared on another thread once a quarter of the first
    /// is used, so that callers seldom wait for the system.
    pub fn with_next_block(size: usize) -> Self {
        Self { next: Some(NextBlock::default()), ..Self::new(size) }
    }

    /// Allocates a region of `bytes` bytes. Fails with [`Error::Internal`] if the system cannot map more memory.
    pub fn allocate(&self, bytes: usize) -> Result<Region> {
        let padded = bytes.checked_next_multiple_of(LINE).ok_or_else(|| out_of_memory(bytes, "the size overflows"))?;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(OpenBlock { block, offset, is_populated }) =
            open.as_mut().filter(|open| self.size - open.offset >= padded)
        {
            let region = Region { block: block.clone(), offset: *offset, len: bytes };
            *offset += padded;
            if let Some(next) = self.next.as_ref().filter(|_| *is_populated || *offset > self.size / 4) {
                if !std::mem::replace(is_populated, true) {
                    // SAFETY: all regions of the block are before the offset, and the lock is held.
                    unsafe { block.populate(*offset) };
                }
                next.prepare(self.size);
            }
            return Ok(region);
        }
        // a region that fills its block does not replace the open one
        if padded >= self.size {
            return Ok(Region { block: Arc::new(Block::new(padded)?), offset: 0, len: bytes });
        }
        let next = self.next.as_ref().and_then(NextBlock::take);
        let is_populated = next.is_some();
        let block = Arc::new(next.map_or_else(|| Block::new(self.size), Ok)?);
        *open = Some(OpenBlock { block: block.clone(), offset: padded, is_populated });
        Ok(Region { block, offset: 0, len: bytes })
    }
}

// The environment of the process, for libraries that have no other setting.

/// Sets a variable, unless it is set to a text that is not empty. Does nothing if other threads run, because they could read the
/// environment at the same time, and on systems that do not list threads.
///
/// # Panics
///
/// Panics if `name` is empty or has `=`, or if one of the texts has a zero byte.
#[expect(clippy::disallowed_methods, reason = "a library reads its only setting from the environment")]
pub fn set_default(name: &str, value: &str) {
    let is_single = std::fs::read_dir("/proc/self/task")
        .is_ok_and(|mut threads| matches!((threads.next(), threads.next()), (Some(Ok(_)), None)));
    if is_single && std::env::var_os(name).is_none_or(|value| value.is_empty()) {
        // SAFETY: `/proc` lists this thread only, and no other can start before the call returns.
        unsafe { std::env::set_var(name, value) };
    }
}

/// Lets glibc give the memory of large requests back when they end: blocks of 256 KiB and more are mapped one by one, and all
/// threads share two heaps. By default a few requests of 4 MiB leave hundreds of MiB with the process. A heap keeps 4 MiB
/// instead of 128 KiB at its end for the next requests, because the system would otherwise clear that memory for each of them.
pub fn return_large_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (option, value) in
        [(libc::M_MMAP_THRESHOLD, 256 << 10), (libc::M_ARENA_MAX, 2), (libc::M_TRIM_THRESHOLD, 4 << 20)]
    {
        // A refusal is no error: the process then keeps more memory.
        // SAFETY: `mallopt` only sets a parameter of the allocator, under the allocator's lock.
        let _accepted = unsafe { libc::mallopt(option, value) };
    }
}

/// Gives the free memory of small blocks back to the system, which glibc keeps otherwise. Takes some milliseconds.
pub fn return_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `malloc_trim` takes the allocator's locks and moves no block that is in use.
    let _returned = unsafe { libc::malloc_trim(0) };
}

// Peak rates of the machine, with which reports compare: bytes read and multiply-adds per second, at the kernels' vector width.

/// Independent sums of vectors: enough for memory, not arithmetic latency, to be the bottleneck.
const GROUP: usize = 4;

/// Parts per thread, so that a thread whose core is busy delays the others by at most one part.
const PARTS: usize = 4;

/// A buffer to read sequentially, in the same kind of memory as weights and pages.
pub struct MemoryStream {
    region: Region,
}

impl MemoryStream {
    /// Allocates at least `bytes` bytes and writes them: unwritten memory is one page of zeros. Fails if memory runs out.
    pub fn new(bytes: usize) -> Result<Self> {
        let mut region = Arena::new(1).allocate(bytes.max(1).next_multiple_of(GROUP * WIDTH * size_of::<f32>()))?;
        cast_mut(region.bytes_mut()).fill(1f32);
        Ok(Self { region })
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.region.bytes().len()
    }

    /// Reads the buffer `times` times on all threads and returns the sum, so that the compiler cannot omit reads.
    pub fn read(&self, isa: Isa, pool: &ThreadPool, times: usize) -> f32 {
        // if read several times, each thread reads the same part each time, like weights
        let parts = if times > 1 { pool.threads() } else { pool.threads() * PARTS };
        let numbers = cast::<f32>(self.region.bytes());
        let part = numbers.len().div_ceil(parts).next_multiple_of(GROUP * WIDTH);
        let mut sums = vec![0.0; numbers.len().div_ceil(part)];
        pool.for_chunks(&mut sums, 1, true, &|index, sum| {
            let numbers = &numbers[index * part..];
            sum[0] = sum_repeatedly(isa, &numbers[..part.min(numbers.len())], times);
        });
        sums.iter().sum()
    }
}

multiversion! {
    fn sum_repeatedly(numbers: &[f32], times: usize) -> f32 = sum_repeatedly_body
}

#[inline(always)]
fn sum_repeatedly_body<S: Simd>(simd: S, numbers: &[f32], times: usize) -> f32 {
    let one = simd.splat(1.0);
    let mut sums = [simd.splat(0.0); GROUP];
    for _ in 0..times {
        for group in numbers.chunks_exact(GROUP * WIDTH) {
            for (numbers, sum) in group.chunks_exact(WIDTH).zip(&mut sums) {
                *sum = simd.madd(one, simd.load(numbers), *sum);
            }
        }
    }
    sum_of_lanes(simd, &sums)
}

/// Independent chains of multiply-adds, of sixteen lanes each: enough to hide their latency.
const CHAINS: usize = 12;

/// Multiply-adds of one turn: one per lane of each chain.
const TURN: usize = CHAINS * WIDTH;

/// Runs at least `count` multiply-adds on all threads without accessing memory. Returns their number and a result of all.
pub fn multiply_adds(isa: Isa, pool: &ThreadPool, count: usize) -> (usize, f32) {
    let parts = pool.threads() * PARTS;
    let turns = count.div_ceil(parts * TURN);
    let mut results = vec![0.0; parts];
    // the compiler must not know the factor, or it could compute the result
    let factor = std::hint::black_box(0.5);
    pool.for_chunks(&mut results, 1, true, &|_, result| result[0] = run_chains(isa, factor, turns));
    (parts * turns * TURN, results.iter().sum())
}

multiversion! {
    fn run_chains(factor: f32, turns: usize) -> f32 = run_chains_body
}

#[inline(always)]
fn run_chains_body<S: Simd>(simd: S, factor: f32, turns: usize) -> f32 {
    match S::CHAINS {
        6 => chains_of::<S, 6>(simd, factor, turns),
        _ => chains_of::<S, CHAINS>(simd, factor, turns),
    }
}

#[inline(always)]
fn chains_of<S: Simd, const C: usize>(simd: S, factor: f32, turns: usize) -> f32 {
    let factor = simd.splat(factor);
    let addend = simd.splat(1.0);
    // different initial values, so that the compiler cannot merge chains
    let mut chains: [S::V; C] = std::array::from_fn(|index| simd.splat(index as f32));
    for _ in 0..turns * (CHAINS / C) {
        for chain in &mut chains {
            *chain = simd.madd(*chain, factor, addend);
        }
    }
    sum_of_lanes(simd, &chains) * (CHAINS / C) as f32
}

/// Returns the sum of all lanes.
#[inline(always)]
fn sum_of_lanes<S: Simd>(simd: S, vectors: &[S::V]) -> f32 {
    let mut sum = 0.0;
    for &vector in vectors {
        let mut numbers = [0.0; WIDTH];
        simd.store(vector, &mut numbers);
        sum += numbers.iter().sum::<f32>();
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn nothing_changes_while_other_threads_run() {
        let (sender, receiver) = mpsc::sync_channel::<()>(1);
        let other = std::thread::spawn(move || receiver.recv());
        set_default("WEIR_TEST_OF_THE_ENVIRONMENT", "a");
        assert_eq!(std::env::var_os("WEIR_TEST_OF_THE_ENVIRONMENT"), None);
        drop(sender);
        assert!(other.join().unwrap().is_err());
    }

    #[test]
    fn regions_are_aligned_zeroed_and_disjoint() {
        let arena = Arena::new(1 << 20);
        let mut regions: Vec<Region> =
            [1, 63, 64, 65, 1 << 20, 5 << 20, 7].iter().map(|&bytes| arena.allocate(bytes).unwrap()).collect();
        for (index, region) in regions.iter_mut().enumerate() {
            assert_eq!(region.bytes().as_ptr().align_offset(LINE), 0);
            assert!(region.bytes().iter().all(|&byte| byte == 0));
            region.bytes_mut().fill(index as u8 + 1);
        }
        for (index, region) in regions.iter().enumerate() {
            assert!(region.bytes().iter().all(|&byte| byte == index as u8 + 1));
        }
        let lengths: Vec<_> = regions.iter().map(|region| region.bytes().len()).collect();
        assert_eq!(lengths, [1, 63, 64, 65, 1 << 20, 5 << 20, 7]);
    }

    #[test]
    fn excessive_sizes_are_errors() {
        for bytes in [usize::MAX / 2, usize::MAX - 63, usize::MAX] {
            assert!(Arena::new(1).allocate(bytes).is_err());
        }
    }

    fn start(region: &Region) -> usize {
        region.bytes().as_ptr() as usize
    }

    #[test]
    fn regions_are_consecutive_and_large_ones_get_their_own_block() {
        let arena = Arena::new(1);
        let first = arena.allocate(65).unwrap();
        assert!(start(&first).is_multiple_of(HUGE));
        let large = arena.allocate(HUGE).unwrap();
        assert!(start(&large).is_multiple_of(HUGE));
        let [second, empty, third] = [1, 0, 64].map(|bytes| arena.allocate(bytes).unwrap());
        assert_eq!([start(&second), start(&third)], [2, 3].map(|lines| start(&first) + lines * LINE));
        assert!(empty.bytes().is_empty() && Arc::ptr_eq(&first.block, &third.block));
    }

    #[test]
    fn a_new_block_is_mapped_when_one_is_full() {
        let arena = Arena::new(1);
        let rest = HUGE - LINE;
        let [first, second] = [LINE, rest].map(|bytes| arena.allocate(bytes).unwrap());
        assert!(Arc::ptr_eq(&first.block, &second.block) && start(&second) + rest == start(&first) + HUGE);
        let third = arena.allocate(1).unwrap();
        assert!(!Arc::ptr_eq(&first.block, &third.block) && start(&third).is_multiple_of(HUGE));
    }

    #[test]
    fn the_next_block_is_prepared_after_a_quarter_is_allocated() {
        let arena = Arena::with_next_block(1);
        let next = arena.next.clone().unwrap();
        let [mut used, _quarter] = [LINE, HUGE / 4 - LINE].map(|bytes| arena.allocate(bytes).unwrap());
        used.bytes_mut().fill(7);
        assert!(matches!(*next.lock(), Preparation::NotBegun));
        let _more = arena.allocate(LINE).unwrap();
        while matches!(*next.lock(), Preparation::Running) {
            thread::yield_now();
        }
        assert!(used.bytes().iter().all(|byte| *byte == 7));
        // a large region needs a block of its own
        let _large = arena.allocate(2 * HUGE).unwrap();
        let prepared = match &*next.lock() {
            Preparation::Done(block) => block.start.addr().get(),
            _ => panic!("there is no next block"),
        };
        let mut first = arena.allocate(HUGE / 4 * 3).unwrap();
        assert_eq!(start(&first), prepared);
        assert!(first.bytes().iter().all(|byte| *byte == 0) && matches!(*next.lock(), Preparation::NotBegun));
        first.bytes_mut().fill(1);
    }

    #[test]
    fn a_block_is_unmapped_with_its_last_region() {
        let arena = Arena::new(1);
        let [first, second] = [HUGE / 2; 2].map(|bytes| arena.allocate(bytes).unwrap());
        let block = Arc::downgrade(&first.block);
        let _next = arena.allocate(LINE).unwrap();
        drop(first);
        assert!(block.upgrade().is_some(), "one region is alive");
        drop(second);
        assert!(block.upgrade().is_none(), "no region is alive");
        // a dropped arena keeps no block
        let region = arena.allocate(LINE).unwrap();
        let block = Arc::downgrade(&region.block);
        drop((arena, region, _next));
        assert!(block.upgrade().is_none());
    }

    /// The region outlives its arena.
    #[test]
    fn casts_require_alignment_and_ignore_trailing_bytes() {
        let mut region = Arena::new(1).allocate(11).unwrap();
        cast_mut::<u16>(region.bytes_mut()).copy_from_slice(&[1, 2, 3, 4, 5]);
        assert_eq!(cast::<u16>(region.bytes()), [1, 2, 3, 4, 5]);
        assert_eq!(cast::<f32>(region.bytes()).len(), 2);
        assert!(std::panic::catch_unwind(|| cast::<f32>(&region.bytes()[1..]).len()).is_err());
    }

    #[test]
    fn every_number_is_read_the_requested_number_of_times() {
        for threads in [1, 3] {
            let pool = ThreadPool::new(threads);
            for (bytes, times) in [(0, 1), (1, 2), (4096, 1), (4100, 3), (100_000, 1), (100_000, 5)] {
                let stream = MemoryStream::new(bytes).unwrap();
                assert!(stream.bytes() >= bytes && stream.bytes() < bytes + 2 * GROUP * WIDTH * size_of::<f32>());
                for isa in Isa::all() {
                    let numbers = (stream.bytes() / size_of::<f32>() * times) as f32;
                    assert_eq!(stream.read(isa, &pool, times), numbers, "{bytes} bytes, {times} times");
                }
            }
        }
    }

    #[test]
    fn chains_converge_to_the_fixed_point() {
        let pool = ThreadPool::new(2);
        for isa in Isa::all() {
            let (count, sum) = multiply_adds(isa, &pool, 1_000_000);
            assert!((1_000_000..1_000_000 + 8 * TURN).contains(&count));
            // x = x/2 + 1 has one fixed point, 2
            assert_eq!(sum, (2 * TURN * pool.threads() * PARTS) as f32);
        }
    }
}
