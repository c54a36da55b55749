//! Storage formats of sixteen outputs of one step, and their arithmetic.

use crate::kernels::{
    LANES,
    dtype::LoadAsF32,
    isa::{Simd, pack_bytes},
};
use std::marker::PhantomData;

/// A storage format of weights on one instruction set.
pub(super) trait WeightFormat<S: Simd>: Copy {
    /// Input of a row for one step: one float, four bytes, or a block of bytes.
    type Cell: Copy;
    /// The weights of sixteen outputs for one step.
    type Weights: Copy;
    /// A running sum in memory.
    type Slot: SumSlot<S>;
    /// Bytes of a group of sixteen outputs.
    const GROUP: usize;
    /// Rows of the largest register tile.
    const TILE: usize;
    /// Groups of a panel. Except for int4, a step of it has 128 bytes.
    const GROUPS: usize = 128 / Self::GROUP;
    /// Value that is added to each byte of an int8 row.
    const OFFSET: i32 = 0;

    /// Loads the weights of a group.
    ///
    /// # Safety
    /// `from` points to `GROUP` bytes.
    unsafe fn weights(simd: S, from: *const u8) -> Self::Weights;
    /// Returns `sums` + x · weights.
    fn madd(simd: S, x: &Self::Cell, weights: Self::Weights, sums: Sums<S, Self>) -> Sums<S, Self>;
    /// Returns a + b, or `None` if the format never splits its sums. A product of few rows sums even and odd steps separately,
    /// which requires exact sums.
    #[inline(always)]
    fn merge(_: S, _: Sums<S, Self>, _: Sums<S, Self>) -> Option<Sums<S, Self>> {
        None
    }
    /// Converts sums to floats.
    fn floats(simd: S, sums: Sums<S, Self>, outputs: Option<IntegerOutputs<'_>>) -> S::V;
}

/// Sixteen running sums of a format.
pub(super) type Sums<S, F> = <<F as WeightFormat<S>>::Slot as SumSlot<S>>::Sums;

/// A running sum in memory: a float or an integer.
pub(super) trait SumSlot<S: Simd>: Copy + Default {
    /// Sixteen running sums.
    type Sums: Copy;

    /// Returns sixteen zeros.
    fn zero(simd: S) -> Self::Sums;
    /// Loads sixteen sums.
    ///
    /// # Safety
    /// `from` points to sixteen slots.
    unsafe fn load(simd: S, from: *const Self) -> Self::Sums;
    /// Stores sixteen sums.
    ///
    /// # Safety
    /// `to` points to sixteen slots.
    unsafe fn store(simd: S, sums: Self::Sums, to: *mut Self);
}

impl<S: Simd> SumSlot<S> for f32 {
    type Sums = S::V;

    #[inline(always)]
    fn zero(simd: S) -> S::V {
        simd.splat(0.0)
    }

    #[inline(always)]
    unsafe fn load(simd: S, from: *const f32) -> S::V {
        // SAFETY: the caller guarantees the length.
        unsafe { simd.load_at(from) }
    }

    #[inline(always)]
    unsafe fn store(simd: S, sums: S::V, to: *mut f32) {
        // SAFETY: the caller guarantees the length.
        unsafe { simd.store_at(sums, to) }
    }
}

impl<S: Simd> SumSlot<S> for i32 {
    type Sums = S::I;

    #[inline(always)]
    fn zero(simd: S) -> S::I {
        simd.splat_int(0)
    }

    #[inline(always)]
    unsafe fn load(simd: S, from: *const i32) -> S::I {
        // SAFETY: the caller guarantees the length.
        unsafe { simd.load_ints(from) }
    }

    #[inline(always)]
    unsafe fn store(simd: S, sums: S::I, to: *mut i32) {
        // SAFETY: the caller guarantees the length.
        unsafe { simd.store_ints(sums, to) }
    }
}

/// Dequantization of a row's integer sums of sixteen outputs.
#[derive(Clone, Copy)]
pub(super) struct IntegerOutputs<'a> {
    /// Value that was added to each byte of the row.
    pub(super) offset: i32,
    /// Scale of the row.
    pub(super) row_scale: f32,
    /// Scale of each output's weights.
    pub(super) scales: &'a [f32; LANES],
    /// Sum of each output's weights, if the offset needs it.
    pub(super) weight_sums: Option<&'a [i32; LANES]>,
}

/// f32 or bf16 weights with f32 sums.
#[derive(Clone, Copy)]
pub(super) struct FloatWeights<W>(PhantomData<W>);

impl<S: Simd, W: LoadAsF32> WeightFormat<S> for FloatWeights<W> {
    type Cell = f32;
    type Weights = S::V;
    type Slot = f32;
    const GROUP: usize = LANES * size_of::<W>();
    const TILE: usize = S::ROWS;

    #[inline(always)]
    unsafe fn weights(simd: S, from: *const u8) -> S::V {
        // SAFETY: the caller guarantees the length.
        unsafe { W::load_pairs(simd, from.cast()) }
    }

    #[inline(always)]
    fn madd(simd: S, x: &f32, weights: S::V, sums: S::V) -> S::V {
        simd.madd(simd.splat(*x), weights, sums)
    }

    #[inline(always)]
    fn floats(_: S, sums: S::V, _: Option<IntegerOutputs<'_>>) -> S::V {
        sums
    }
}

/// int8 weights with exact 32-bit sums: four consecutive inputs of each output are multiplied with four bytes of a row.
#[derive(Clone, Copy)]
pub(super) struct Int8Weights;

impl<S: Simd> WeightFormat<S> for Int8Weights {
    type Cell = [i8; 4];
    type Weights = S::I;
    type Slot = i32;
    const GROUP: usize = 64;
    const TILE: usize = S::BYTE_ROWS;
    const OFFSET: i32 = S::OFFSET;

    #[inline(always)]
    unsafe fn weights(simd: S, from: *const u8) -> S::I {
        // SAFETY: the caller guarantees the length.
        unsafe { simd.load_bytes(from.cast()) }
    }

    #[inline(always)]
    fn madd(simd: S, x: &[i8; 4], weights: S::I, sums: S::I) -> S::I {
        simd.dot_bytes(weights, simd.offset(simd.splat_int(pack_bytes(*x))), sums)
    }

    #[inline(always)]
    fn merge(simd: S, a: S::I, b: S::I) -> Option<S::I> {
        Some(simd.add_product(a, b, simd.splat_int(1)))
    }

    #[inline(always)]
    fn floats(simd: S, sums: S::I, outputs: Option<IntegerOutputs<'_>>) -> S::V {
        let Some(IntegerOutputs { offset, row_scale, scales, weight_sums }) = outputs else {
            return simd.to_floats(sums);
        };
        // the offset was multiplied with every weight; both sums are modulo 2^32, but their difference fits
        let exact = match weight_sums {
            Some(weight_sums) if offset != 0 => {
                // SAFETY: there are sixteen sums.
                let weight_sums = unsafe { simd.load_ints(weight_sums.as_ptr()) };
                simd.add_product(sums, simd.splat_int(-offset), weight_sums)
            }
            _ => sums,
        };
        // not fused with what follows, so that every instruction set gives the same bits
        simd.mul(simd.to_floats(exact), simd.mul(simd.splat(row_scale), simd.load(scales)))
    }
}
