//! Settings of the system's allocator, for a server whose requests differ in size by a factor of a million.

/// Lets glibc give the memory of large requests back when they end.
///
/// By default glibc keeps freed blocks of up to 32 MiB once such a block was freed, and has eight heaps for each core, which all keep
/// some. A few requests of 4 MiB then leave hundreds of MiB with a process that uses none of it. Afterwards, blocks of 256 KiB and
/// more are mapped one by one, and all threads share two heaps. Does nothing with other C libraries.
///
/// The weights, and the keys and values, do not come from this allocator: see [`memory`](super::memory).
pub fn return_large_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (option, value) in [(libc::M_MMAP_THRESHOLD, 256 << 10), (libc::M_ARENA_MAX, 2)] {
        // A refusal is no error: the process then keeps more memory.
        // SAFETY: `mallopt` only sets a parameter of the allocator, under the allocator's lock.
        let _accepted = unsafe { libc::mallopt(option, value) };
    }
}
