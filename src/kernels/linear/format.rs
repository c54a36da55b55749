//! How sixteen outputs of one step over the inputs are stored, and multiplied.

use crate::kernels::isa::Simd;
use std::marker::PhantomData;

/// A storage format on one instruction set.
pub(super) trait Format<S: Simd>: Copy {
    /// What a step takes from a row: one input, or four bytes.
    type Cell: Copy;
    /// A cell beside itself sixteen times, or sixteen outputs' weights.
    type Vector: Copy;
    /// Sixteen running sums.
    type Sum: Copy;
    /// A running sum in memory.
    type Slot: Copy + Default;
    /// Bytes of a group of sixteen outputs.
    const GROUP: usize;
    /// Rows of the largest register tile, and groups that it takes side by side: as many as registers hold beside what a step
    /// needs.
    const TILE: usize;
    /// See [`TILE`](Self::TILE).
    const ACROSS: usize;
    /// Groups of a panel: such that a step of it is 128 bytes.
    const GROUPS: usize;

    /// The weights of a group.
    ///
    /// # Safety
    /// `GROUP` bytes are there.
    unsafe fn weights(simd: S, at: *const u8) -> Self::Vector;
    /// A cell, sixteen times.
    fn spread(simd: S, cell: Self::Cell) -> Self::Vector;
    /// Sixteen zeros.
    fn zero(simd: S) -> Self::Sum;
    /// `sum` + x · weights.
    fn madd(simd: S, x: Self::Vector, weights: Self::Vector, sum: Self::Sum) -> Self::Sum;
    /// Sums kept in memory.
    ///
    /// # Safety
    /// Sixteen slots are there.
    unsafe fn load(simd: S, from: *const Self::Slot) -> Self::Sum;
    /// Keeps sums in memory.
    ///
    /// # Safety
    /// There is room for sixteen slots.
    unsafe fn store(simd: S, sum: Self::Sum, to: *mut Self::Slot);
    /// A sum as a number: what its output adds up to and what its bytes were divided by, where there are bytes.
    fn value(slot: Self::Slot, bytes: Option<(i32, f32)>) -> f32;
}

/// How sixteen weights become floats.
pub(super) trait Weight: Copy {
    /// Bytes of sixteen.
    const BYTES: usize;

    /// Sixteen.
    ///
    /// # Safety
    /// They are there.
    unsafe fn sixteen<S: Simd>(simd: S, at: *const u8) -> S::V;
}

/// 32-bit floats: sixteen in a row.
impl Weight for f32 {
    const BYTES: usize = 64;

    #[inline(always)]
    unsafe fn sixteen<S: Simd>(simd: S, at: *const u8) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { simd.load_at(at.cast()) }
    }
}

/// bf16: output i beside output i + 8, so that eight pairs become both halves with a shift and a mask.
impl Weight for u16 {
    const BYTES: usize = 32;

    #[inline(always)]
    unsafe fn sixteen<S: Simd>(simd: S, at: *const u8) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { simd.load_bf16_pairs(at.cast()) }
    }
}

/// Weights that become floats, and sums that are.
#[derive(Clone, Copy)]
pub(super) struct Floats<W>(PhantomData<W>);

impl<S: Simd, W: Weight> Format<S> for Floats<W> {
    type Cell = f32;
    type Vector = S::V;
    type Sum = S::V;
    type Slot = f32;
    const GROUP: usize = W::BYTES;
    const TILE: usize = S::ROWS;
    const ACROSS: usize = S::ACROSS;
    const GROUPS: usize = 128 / W::BYTES;

    #[inline(always)]
    unsafe fn weights(simd: S, at: *const u8) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { W::sixteen(simd, at) }
    }

    #[inline(always)]
    fn spread(simd: S, cell: f32) -> S::V {
        simd.splat(cell)
    }

    #[inline(always)]
    fn zero(simd: S) -> S::V {
        simd.splat(0.0)
    }

    #[inline(always)]
    fn madd(simd: S, x: S::V, weights: S::V, sum: S::V) -> S::V {
        simd.madd(x, weights, sum)
    }

    #[inline(always)]
    unsafe fn load(simd: S, from: *const f32) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { simd.load_at(from) }
    }

    #[inline(always)]
    unsafe fn store(simd: S, sum: S::V, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { simd.store_at(sum, to) }
    }

    #[inline(always)]
    fn value(slot: f32, _: Option<(i32, f32)>) -> f32 {
        slot
    }
}

/// Bytes: of each output four neighbouring inputs, whose four products with a row's four bytes are summed exactly.
#[derive(Clone, Copy)]
pub(super) struct Bytes;

impl<S: Simd> Format<S> for Bytes {
    type Cell = [i8; 4];
    type Vector = S::I;
    type Sum = S::I;
    type Slot = i32;
    const GROUP: usize = 64;
    const TILE: usize = S::BYTE_ROWS;
    const ACROSS: usize = S::ACROSS;
    const GROUPS: usize = 2;

    #[inline(always)]
    unsafe fn weights(simd: S, at: *const u8) -> S::I {
        // SAFETY: 64 bytes are there.
        unsafe { simd.load_bytes(at.cast()) }
    }

    #[inline(always)]
    fn spread(simd: S, [a, b, c, d]: [i8; 4]) -> S::I {
        simd.offset(simd.splat_int(i32::from_ne_bytes([a as u8, b as u8, c as u8, d as u8])))
    }

    #[inline(always)]
    fn zero(simd: S) -> S::I {
        simd.splat_int(0)
    }

    #[inline(always)]
    fn madd(simd: S, x: S::I, weights: S::I, sum: S::I) -> S::I {
        simd.dot_bytes(weights, x, sum)
    }

    #[inline(always)]
    unsafe fn load(simd: S, from: *const i32) -> S::I {
        // SAFETY: the caller's promise.
        unsafe { simd.load_ints(from) }
    }

    #[inline(always)]
    unsafe fn store(simd: S, sum: S::I, to: *mut i32) {
        // SAFETY: the caller's promise.
        unsafe { simd.store_ints(sum, to) }
    }

    #[inline(always)]
    fn value(slot: i32, bytes: Option<(i32, f32)>) -> f32 {
        let (weights, scale) = bytes.unwrap_or((0, 1.0));
        // the offset met every weight; both sums are taken modulo 2^32, their difference has room
        slot.wrapping_sub(S::OFFSET.wrapping_mul(weights)) as f32 * scale
    }
}
