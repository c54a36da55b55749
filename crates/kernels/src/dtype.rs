//! Storage types of numbers. Sums are always f32, or exact integers for int8 products.

use crate::isa::{Simd, from_bf16};
use crate::memory::Pod;

/// Gives the values of an enum names: their list, the name of each, and the value of a name.
#[macro_export]
macro_rules! named {
    ($type:ident { $($variant:ident: $name:literal),+ }) => {
        impl $type {
            /// All values.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// Returns its name in files, in the API, in reports and on the command line.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }

            /// Returns the value of that name.
            pub fn parse(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|value| value.name() == name)
            }
        }
    };
}

/// Storage type of weights. [`cache_dtype`](Self::cache_dtype) returns the type of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Dtype {
    /// 32-bit floats.
    #[default]
    F32,
    /// bfloat16, the upper half of a 32-bit float; arithmetic in f32.
    Bf16,
    /// 8-bit integers with one scale per output of a matrix and per row of activations.
    Int8,
    /// 4-bit integers with one multiplier per 32 inputs of an output and one scale per output. Activations are as for int8.
    Int4,
}

named!(Dtype { F32: "f32", Bf16: "bf16", Int8: "int8", Int4: "int4" });

impl Dtype {
    /// Returns all names, separated by commas.
    pub fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// Returns true if products are sums of integers, and rows of activations are quantized to int8.
    pub fn is_integer(self) -> bool {
        matches!(self, Self::Int8 | Self::Int4)
    }

    /// Returns the type of keys and values in a model whose weights have this type.
    pub fn cache_dtype(self) -> CacheDtype {
        match self {
            Self::F32 => CacheDtype::F32,
            Self::Bf16 => CacheDtype::Bf16,
            Self::Int8 | Self::Int4 => CacheDtype::Int8,
        }
    }
}

/// Storage type of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CacheDtype {
    /// 32-bit floats.
    F32,
    /// bfloat16; arithmetic in f32.
    Bf16,
    /// 8-bit integers with one scale per head of a key or value.
    Int8,
}

named!(CacheDtype { F32: "f32", Bf16: "bf16", Int8: "int8" });

impl CacheDtype {
    /// Returns the bytes of a number.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
            Self::Int8 => 1,
        }
    }
}

/// Rounds to the nearest bf16, ties to even. NaN stays NaN.
pub(crate) fn to_bf16(x: f32) -> u16 {
    half::bf16::from_f32(x).to_bits()
}

/// A float that is converted to f32 when it is loaded: f32 or bf16.
pub(crate) trait LoadAsF32: Pod {
    /// Loads sixteen consecutive floats.
    ///
    /// # Safety
    /// `from` points to sixteen floats.
    unsafe fn load<S: Simd>(simd: S, from: *const Self) -> S::V;
    /// Loads sixteen weights. In bf16 weight i is next to weight i + 8, so that a shift and a mask convert eight pairs.
    ///
    /// # Safety
    /// `from` points to sixteen floats.
    unsafe fn load_pairs<S: Simd>(simd: S, from: *const Self) -> S::V;
    fn to_f32(number: Self) -> f32;
}

impl LoadAsF32 for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const f32) -> S::V {
        // SAFETY: the caller guarantees the length.
        unsafe { simd.load_at(from) }
    }

    #[inline(always)]
    unsafe fn load_pairs<S: Simd>(simd: S, from: *const f32) -> S::V {
        // SAFETY: the caller guarantees the length.
        unsafe { simd.load_at(from) }
    }

    #[inline(always)]
    fn to_f32(number: f32) -> f32 {
        number
    }
}

impl LoadAsF32 for u16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const u16) -> S::V {
        // SAFETY: the caller guarantees the length.
        unsafe { simd.load_bf16(from) }
    }

    #[inline(always)]
    unsafe fn load_pairs<S: Simd>(simd: S, from: *const u16) -> S::V {
        // SAFETY: the caller guarantees the length.
        unsafe { simd.load_bf16_pairs(from) }
    }

    #[inline(always)]
    fn to_f32(number: u16) -> f32 {
        from_bf16(number)
    }
}

/// Largest quantized magnitude. The range is symmetric (no −128), so that sums of two products fit 16 bits.
pub(crate) const MAX_INT8: f32 = 127.0;

/// 1.5 · 2^23: adding it leaves the nearest integer in the low bits.
pub(crate) const ROUND: f32 = 12_582_912.0;

/// Quantizes `x`: rounds `x` / scale to the nearest integer, ties to even. `inverse` is 1 / scale, or 0.
#[inline(always)]
pub(crate) fn to_byte(x: f32, inverse: f32) -> i8 {
    let rounded = (x * inverse).clamp(-MAX_INT8, MAX_INT8) + ROUND;
    rounded.to_bits().wrapping_sub(ROUND.to_bits()) as i8
}

/// Returns 1 / scale, or 0 if that is not finite.
pub(crate) fn inverse_of(scale: f32) -> f32 {
    let inverse = 1.0 / scale;
    if inverse.is_finite() { inverse } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_rounds_to_the_nearest() {
        for x in [0.0, 1.0, -1.5, 3.3, 1e-30, -7.7e20] {
            let rounded = from_bf16(to_bf16(x));
            assert!((rounded - x).abs() <= x.abs() / 256.0, "{x} {rounded}");
        }
        assert!(from_bf16(to_bf16(f32::NAN)).is_nan());
    }

    #[test]
    fn quantization_errors_are_at_most_half_a_scale() {
        let numbers: Vec<f32> = (0..100).map(|i| (i as f32 * 1.7).sin() * 3.0).collect();
        let scale = 3.0 / MAX_INT8;
        for &x in &numbers {
            let byte = to_byte(x, inverse_of(scale));
            assert!((f32::from(byte) * scale - x).abs() <= scale * 0.5001);
        }
        assert_eq!((to_byte(0.0, inverse_of(0.0)), inverse_of(1e-45)), (0, 0.0));
    }
}
