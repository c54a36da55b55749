//! AVX2 with FMA: sixteen lanes are two vectors of eight.

use crate::isa::simd::{Simd, pack_bytes, pack_weights};
use std::arch::x86_64::*;

/// Proves that the processor supports AVX2 and FMA, and that the calling code is compiled for them.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// # Safety
    /// The caller is compiled with these features.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Self {
        Self(())
    }
}

/// Lanes of one of the two vectors.
const HALF: usize = 8;

// SAFETY of every block below: `self` proves the features, callers guarantee that pointers are valid for the given length,
// and loads and stores need no alignment.
#[allow(clippy::undocumented_unsafe_blocks, reason = "stated once, above")]
#[allow(clippy::multiple_unsafe_ops_per_block, reason = "each is one expression of one instruction set")]
impl Simd for Avx2 {
    type V = [__m256; 2];
    type I = [__m256i; 2];
    const OFFSET: i32 = 0;
    const ROWS: usize = 6;
    // intermediate results need registers too
    const BYTE_ROWS: usize = 4;
    const ACROSS: usize = 1;
    const CHAINS: usize = 6;

    #[inline(always)]
    fn madd1(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::V {
        [unsafe { _mm256_set1_ps(value) }; 2]
    }

    #[inline(always)]
    fn madd(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn load_at(self, from: *const f32) -> Self::V {
        unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.wrapping_add(HALF))] }
    }

    #[inline(always)]
    unsafe fn store_at(self, [low, high]: Self::V, to: *mut f32) {
        unsafe {
            _mm256_storeu_ps(to, low);
            _mm256_storeu_ps(to.wrapping_add(HALF), high);
        }
    }

    #[inline(always)]
    unsafe fn load_bf16_pairs(self, from: *const u16) -> Self::V {
        // a bf16 is the upper half of a float: even ones are shifted up, odd ones are masked
        unsafe {
            let pairs = _mm256_loadu_si256(from.cast());
            let odd = _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff_0000_u32.cast_signed()));
            [_mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs)), _mm256_castsi256_ps(odd)]
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> Self::V {
        unsafe { [eight_bf16(from), eight_bf16(from.wrapping_add(HALF))] }
    }

    #[inline(always)]
    fn splat_int(self, value: i32) -> Self::I {
        [unsafe { _mm256_set1_epi32(value) }; 2]
    }

    #[inline(always)]
    unsafe fn load_bytes(self, from: *const i8) -> Self::I {
        unsafe { [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.wrapping_add(4 * HALF).cast())] }
    }

    #[inline(always)]
    unsafe fn load_ints(self, from: *const i32) -> Self::I {
        unsafe { [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.wrapping_add(HALF).cast())] }
    }

    #[inline(always)]
    unsafe fn load_small_ints(self, from: *const i8) -> Self::I {
        unsafe {
            let bytes = _mm_loadu_si128(from.cast());
            [_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes))]
        }
    }

    #[inline(always)]
    unsafe fn store_ints(self, [low, high]: Self::I, to: *mut i32) {
        unsafe {
            _mm256_storeu_si256(to.cast(), low);
            _mm256_storeu_si256(to.wrapping_add(HALF).cast(), high);
        }
    }

    #[inline(always)]
    fn to_floats(self, [low, high]: Self::I) -> Self::V {
        unsafe { [_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)] }
    }

    #[inline(always)]
    fn add_product(self, a: Self::I, b: Self::I, c: Self::I) -> Self::I {
        unsafe {
            [
                _mm256_add_epi32(a[0], _mm256_mullo_epi32(b[0], c[0])),
                _mm256_add_epi32(a[1], _mm256_mullo_epi32(b[1], c[1])),
            ]
        }
    }

    #[inline(always)]
    fn offset(self, bytes: Self::I) -> Self::I {
        bytes
    }

    #[inline(always)]
    fn dot_bytes(self, a: Self::I, b: Self::I, sum: Self::I) -> Self::I {
        unsafe { [dot_half(a[0], b[0], sum[0]), dot_half(a[1], b[1], sum[1])] }
    }

    #[inline(always)]
    fn nibbles(self, bytes: Self::I) -> [Self::I; 2] {
        let mask = unsafe { _mm256_set1_epi8(15) };
        [
            bytes.map(|half| unsafe { _mm256_and_si256(half, mask) }),
            bytes.map(|half| unsafe { _mm256_and_si256(_mm256_srli_epi16::<4>(half), mask) }),
        ]
    }

    #[inline(always)]
    fn dot_nibbles(self, nibbles: &[Self::I; 8], cells: &[[i8; 4]; 8], sum: Self::I) -> Self::I {
        // sixteen products of at most 15 · 127 stay below 2^15, so the 16-bit sums never overflow
        let mut pairs = [unsafe { _mm256_setzero_si256() }; 2];
        for (nibbles, &cell) in nibbles.iter().zip(cells) {
            unsafe {
                let cell = _mm256_set1_epi32(pack_bytes(cell));
                pairs[0] = _mm256_add_epi16(pairs[0], _mm256_maddubs_epi16(nibbles[0], cell));
                pairs[1] = _mm256_add_epi16(pairs[1], _mm256_maddubs_epi16(nibbles[1], cell));
            }
        }
        unsafe {
            let one = _mm256_set1_epi16(1);
            [
                _mm256_add_epi32(sum[0], _mm256_madd_epi16(pairs[0], one)),
                _mm256_add_epi32(sum[1], _mm256_madd_epi16(pairs[1], one)),
            ]
        }
    }

    #[inline(always)]
    fn scale_nibbles(self, bytes: Self::I, flips: Self::I, factors: Self::I, offsets: Self::I) -> Self::I {
        // one 16-bit product holds two byte products; neither carries, since 15 · 15 fits a byte
        std::array::from_fn(|half| unsafe {
            let products = _mm256_mullo_epi16(_mm256_xor_si256(bytes[half], flips[half]), factors[half]);
            _mm256_sub_epi8(products, offsets[half])
        })
    }

    #[inline(always)]
    fn splat_weights(self, upper: [u8; 4], lower: [u8; 4]) -> [Self::I; 2] {
        pack_weights(upper, lower).map(|pair| self.splat_int(pair))
    }

    #[inline(always)]
    fn dot_weights(self, [even, odd]: [Self::I; 2], bytes: Self::I, [unused, sum]: [Self::I; 2]) -> [Self::I; 2] {
        // products of bytes would exceed the 16 bits of a pair's sum
        let sum = std::array::from_fn(|half| unsafe {
            let first = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(bytes[half]));
            let second = _mm256_srai_epi16::<8>(bytes[half]);
            let sum = _mm256_add_epi32(sum[half], _mm256_madd_epi16(first, even[half]));
            _mm256_add_epi32(sum, _mm256_madd_epi16(second, odd[half]))
        });
        [unused, sum]
    }

    #[inline(always)]
    fn prefetch_near(self, address: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        // into the second-level cache, which is large enough for the next panel
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) }
    }
}

/// Loads eight bf16 as floats.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn eight_bf16(from: *const u16) -> __m256 {
    // SAFETY: the caller guarantees that `from` points to eight bf16.
    let wide = _mm256_cvtepu16_epi32(unsafe { _mm_loadu_si128(from.cast()) });
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
}

/// One of the two vectors of [`dot_bytes`](Simd::dot_bytes).
#[inline]
#[target_feature(enable = "avx2,fma")]
fn dot_half(a: __m256i, b: __m256i, sum: __m256i) -> __m256i {
    // The instruction multiplies unsigned with signed bytes: |a| with b times the sign of a. The compiler computes |a| once
    // for several b. Two products of at most 127 · 127 stay below 2^15, so the sum of pairs never saturates.
    let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(a), _mm256_sign_epi8(b, a));
    _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
}
