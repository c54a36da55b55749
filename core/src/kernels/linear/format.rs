//! Storage formats of sixteen outputs of one step, and their arithmetic.

use crate::kernels::{
    LANES,
    dtype::LoadAsF32,
    isa::{Simd, pack_bytes},
};
use std::marker::PhantomData;

/// A storage format of weights on one instruction set.
pub(super) trait WeightFormat<S: Simd>: Copy {
    /// Input of a row for one step: one float, or four bytes.
    type Cell: Copy;
    /// Sixteen copies of a cell, the weights of sixteen outputs, or sixteen running sums.
    type Vector: Copy;
    /// A running sum in memory.
    type Slot: Copy + Default;
    /// Bytes of a group of sixteen outputs.
    const GROUP: usize;
    /// Rows of the largest register tile.
    const TILE: usize;
    /// Groups of a panel, whose steps have 128 bytes.
    const GROUPS: usize = 128 / Self::GROUP;

    /// Loads the weights of a group.
    ///
    /// # Safety
    /// `from` points to `GROUP` bytes.
    unsafe fn weights(simd: S, from: *const u8) -> Self::Vector;
    /// Returns sixteen copies of a cell.
    fn spread(simd: S, cell: Self::Cell) -> Self::Vector;
    /// Returns sixteen zeros.
    fn zero(simd: S) -> Self::Vector;
    /// Returns `sum` + x · weights.
    fn madd(simd: S, x: Self::Vector, weights: Self::Vector, sum: Self::Vector) -> Self::Vector;
    /// Loads sixteen sums.
    ///
    /// # Safety
    /// `from` points to sixteen slots.
    unsafe fn load(simd: S, from: *const Self::Slot) -> Self::Vector;
    /// Stores sixteen sums.
    ///
    /// # Safety
    /// `to` points to sixteen slots.
    unsafe fn store(simd: S, sum: Self::Vector, to: *mut Self::Slot);
    /// Converts sums to floats.
    fn floats(simd: S, sums: Self::Vector, int8: Option<Int8Outputs<'_>>) -> S::V;
}

/// Dequantization of a row's integer sums of sixteen outputs.
#[derive(Clone, Copy)]
pub(super) struct Int8Outputs<'a> {
    /// Value that was added to each byte of the row.
    pub(super) offset: i32,
    /// Scale of the row.
    pub(super) row_scale: f32,
    /// Scale of each output's weights.
    pub(super) scales: &'a [f32; LANES],
    /// Sum of each output's weights.
    pub(super) weight_sums: &'a [i32; LANES],
}

/// f32 or bf16 weights with f32 sums.
#[derive(Clone, Copy)]
pub(super) struct FloatWeights<W>(PhantomData<W>);

impl<S: Simd, W: LoadAsF32> WeightFormat<S> for FloatWeights<W> {
    type Cell = f32;
    type Vector = S::V;
    type Slot = f32;
    const GROUP: usize = LANES * size_of::<W>();
    const TILE: usize = S::ROWS;

    #[inline(always)]
    unsafe fn weights(simd: S, from: *const u8) -> S::V {
        // SAFETY: the caller guarantees the length.
        unsafe { W::load_pairs(simd, from.cast()) }
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
        // SAFETY: the caller guarantees the length.
        unsafe { simd.load_at(from) }
    }

    #[inline(always)]
    unsafe fn store(simd: S, sum: S::V, to: *mut f32) {
        // SAFETY: the caller guarantees the length.
        unsafe { simd.store_at(sum, to) }
    }

    #[inline(always)]
    fn floats(_: S, sums: S::V, _: Option<Int8Outputs<'_>>) -> S::V {
        sums
    }
}

/// int8 weights with exact 32-bit sums: four consecutive inputs of each output are multiplied with four bytes of a row.
#[derive(Clone, Copy)]
pub(super) struct Int8Weights;

impl<S: Simd> WeightFormat<S> for Int8Weights {
    type Cell = [i8; 4];
    type Vector = S::I;
    type Slot = i32;
    const GROUP: usize = 64;
    const TILE: usize = S::BYTE_ROWS;

    #[inline(always)]
    unsafe fn weights(simd: S, from: *const u8) -> S::I {
        // SAFETY: the caller guarantees the length.
        unsafe { simd.load_bytes(from.cast()) }
    }

    #[inline(always)]
    fn spread(simd: S, cell: [i8; 4]) -> S::I {
        simd.offset(simd.splat_int(pack_bytes(cell)))
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
        // SAFETY: the caller guarantees the length.
        unsafe { simd.load_ints(from) }
    }

    #[inline(always)]
    unsafe fn store(simd: S, sum: S::I, to: *mut i32) {
        // SAFETY: the caller guarantees the length.
        unsafe { simd.store_ints(sum, to) }
    }

    #[inline(always)]
    fn floats(simd: S, sums: S::I, int8: Option<Int8Outputs<'_>>) -> S::V {
        let Some(Int8Outputs { offset, row_scale, scales, weight_sums }) = int8 else { return simd.to_floats(sums) };
        // the offset was multiplied with every weight; both sums are modulo 2^32, but their difference fits
        // SAFETY: there are sixteen sums.
        let weight_sums = unsafe { simd.load_ints(weight_sums.as_ptr()) };
        let exact = if offset == 0 { sums } else { simd.subtract_product(sums, simd.splat_int(offset), weight_sums) };
        // not fused with what follows, so that every instruction set gives the same bits
        simd.mul(simd.to_floats(exact), simd.mul(simd.splat(row_scale), simd.load(scales)))
    }
}
