//! AMX: permission to use tiles, and their shapes.
//!
//! Eight tiles of 16 rows × 64 bytes live next to the vector registers. Linux gives a process their use on request. The standard
//! library has neither the detection nor the instructions yet, so both are assembly.

use std::arch::asm;
use std::arch::x86_64::{__cpuid_count, _xgetbv, CpuidResult};
use std::marker::PhantomData;
use std::sync::OnceLock;

pub(crate) const TILE_ROWS: usize = 16;

pub(crate) const TILE_BYTES: usize = 64;

/// Proves that the processor multiplies tiles of bytes, and that the system lets this process use them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tiles(());

impl Tiles {
    /// Returns the proof. Asks the system the first time, which may refuse.
    pub(crate) fn detect() -> Option<Self> {
        static PERMITTED: OnceLock<bool> = OnceLock::new();
        PERMITTED.get_or_init(|| supported() && permitted()).then_some(Self(()))
    }
}

/// Returns true if the processor and the system support tiles of 16 rows × 64 bytes, eight of them, and products of bytes.
fn supported() -> bool {
    const OSXSAVE: u32 = 1 << 27;
    const AMX_TILE_AND_INT8: u32 = 1 << 24 | 1 << 25;
    const TILE_LEAF: u32 = 0x1d;
    const TILE_STATE: u64 = 1 << 17 | 1 << 18;
    if cpuid(0, 0).eax < TILE_LEAF || cpuid(1, 0).ecx & OSXSAVE == 0 {
        return false;
    }
    // SAFETY: the processor has XSAVE, as just checked.
    let enabled = unsafe { _xgetbv(0) };
    let palette = cpuid(TILE_LEAF, 1);
    cpuid(7, 0).edx & AMX_TILE_AND_INT8 == AMX_TILE_AND_INT8
        && enabled & TILE_STATE == TILE_STATE
        && palette.ebx == 8 << 16 | TILE_BYTES as u32
        && palette.ecx & 0xffff == TILE_ROWS as u32
}

/// Asks the processor for a part of its description.
#[allow(unused_unsafe, reason = "the function is safe in later versions of Rust")]
fn cpuid(leaf: u32, part: u32) -> CpuidResult {
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { __cpuid_count(leaf, part) }
}

/// Asks the system for the use of tiles, for all threads of the process.
fn permitted() -> bool {
    // numbers of Linux's arch_prctl(2)
    #[cfg(target_os = "linux")]
    {
        const REQUEST_PERMISSION: libc::c_long = 0x1023;
        const TILE_DATA: libc::c_long = 18;
        // SAFETY: the call takes numbers only, and adds a permission. If it fails, nothing changes.
        unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0 }
    }
    #[cfg(not(target_os = "linux"))]
    false
}

/// The shapes of the eight tiles, as the processor loads them.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// Bytes of a row of each tile, of which the processor has eight.
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct TileShape {
    /// Rows, at most [`TILE_ROWS`].
    pub(crate) rows: u8,
    /// Bytes of a row, a multiple of four, at most [`TILE_BYTES`].
    pub(crate) bytes: u16,
}

impl TileShape {
    /// Returns rows of [`TILE_BYTES`] bytes.
    pub(crate) const fn full(rows: u8) -> Self {
        Self { rows, bytes: TILE_BYTES as u16 }
    }
}

/// Tiles in use by this thread, which has at most one such value at a time. Dropping it releases the tiles, so that the system no
/// longer saves them when it switches threads.
pub(crate) struct ActiveTiles(PhantomData<*const ()>);

impl ActiveTiles {
    /// Gives the tiles their shapes. A tile without rows is not used.
    pub(crate) fn new(_: Tiles, shapes: [TileShape; 8]) -> Self {
        assert!(
            shapes.iter().all(|shape| usize::from(shape.rows) <= TILE_ROWS && usize::from(shape.bytes) <= TILE_BYTES)
        );
        let mut config = TileConfig { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for ((row_bytes, rows), shape) in config.row_bytes.iter_mut().zip(&mut config.rows).zip(shapes) {
            // the processor refuses rows without bytes, and the reverse
            if shape.rows > 0 && shape.bytes > 0 {
                *row_bytes = shape.bytes;
                *rows = shape.rows;
            }
        }
        // SAFETY: `Tiles` proves the instruction. `config` has 64 bytes, and shapes that the processor has. Compiled code never
        // uses tiles.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, readonly)) };
        Self(PhantomData)
    }
}

impl Drop for ActiveTiles {
    fn drop(&mut self) {
        // SAFETY: an `ActiveTiles` exists only if the processor has the instruction.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

#[cfg(test)]
mod tests {
    #[cfg(target_os = "linux")]
    use super::*;

    /// A filter of system calls, for this thread alone, under which the system refuses arch_prctl.
    #[cfg(target_os = "linux")]
    fn refuse_arch_prctl() {
        // loads the number of the call, and returns "error EPERM" for arch_prctl and "allow" for every other
        const LOAD_NUMBER: u16 = 0x20;
        const RETURN: u16 = 0x06;
        const JUMP_IF_EQUAL: u16 = 0x15;
        let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
        let mut steps = [
            step(LOAD_NUMBER, 0, 0, 0),
            step(JUMP_IF_EQUAL, 0, 1, libc::SYS_arch_prctl as u32),
            step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
            step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
        // SAFETY: the call takes numbers only.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
        // SAFETY: the system copies the program, which is alive.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) }, 0);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_sandbox_that_refuses_tiles_is_not_an_error() {
        let refused = std::thread::spawn(|| {
            refuse_arch_prctl();
            let permitted = permitted();
            (permitted, std::io::Error::last_os_error().raw_os_error())
        });
        assert_eq!(refused.join().unwrap(), (false, Some(libc::EPERM)));
    }
}
