//! AVX2 with FMA; with AVX-512's products of integers, where the processor has them.

use super::Simd;
use std::arch::x86_64::*;

/// A proof that the processor has AVX2 and FMA, and that the code around it is compiled for them; with `VNNI`, for AVX-512's
/// F, BW, VL and VNNI too.
#[derive(Clone, Copy)]
pub(in super::super) struct Avx2<const VNNI: bool>(());

impl<const VNNI: bool> Avx2<VNNI> {
    /// # Safety
    /// Only inside a function with these features.
    #[inline(always)]
    pub(in super::super) unsafe fn new() -> Self {
        Self(())
    }
}

// Every block below: `self` proves the features; what pointers promise is the caller's; loads and stores need no alignment.
#[allow(clippy::undocumented_unsafe_blocks, reason = "said once, above")]
#[allow(clippy::multiple_unsafe_ops_per_block, reason = "each is one expression of one instruction set")]
impl<const VNNI: bool> Simd for Avx2<VNNI> {
    type V = __m256;
    type I = __m256i;
    const OFFSET: i32 = if VNNI { 128 } else { 0 };
    // without the instruction, intermediate results need registers too
    const BYTE_ROWS: usize = if VNNI { 6 } else { 4 };
    // AVX-512VL has 32 registers
    const ACROSS: usize = if VNNI { 2 } else { 1 };

    #[inline(always)]
    fn madd1(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }

    #[inline(always)]
    fn splat(self, value: f32) -> __m256 {
        unsafe { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    fn madd(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn load_at(self, from: *const f32) -> __m256 {
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store_at(self, value: __m256, to: *mut f32) {
        unsafe { _mm256_storeu_ps(to, value) }
    }

    #[inline(always)]
    unsafe fn load_bf16_pairs(self, from: *const u16) -> [__m256; 2] {
        // a bf16 is the upper half of a float: the even ones are shifted there, the odd ones are there already
        unsafe {
            let pairs = _mm256_loadu_si256(from.cast());
            let odd = _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff_0000_u32.cast_signed()));
            [_mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs)), _mm256_castsi256_ps(odd)]
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> __m256 {
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    fn splat_int(self, value: i32) -> __m256i {
        unsafe { _mm256_set1_epi32(value) }
    }

    #[inline(always)]
    unsafe fn load_bytes(self, from: *const i8) -> __m256i {
        unsafe { _mm256_loadu_si256(from.cast()) }
    }

    #[inline(always)]
    unsafe fn load_ints(self, from: *const i32) -> __m256i {
        unsafe { _mm256_loadu_si256(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store_ints(self, value: __m256i, to: *mut i32) {
        unsafe { _mm256_storeu_si256(to.cast(), value) }
    }

    #[inline(always)]
    fn offset(self, bytes: __m256i) -> __m256i {
        // a flipped sign bit is 128 more, without sign
        if VNNI { unsafe { _mm256_xor_si256(bytes, _mm256_set1_epi8(-128)) } } else { bytes }
    }

    #[inline(always)]
    fn dot_bytes(self, a: __m256i, b: __m256i, sum: __m256i) -> __m256i {
        if VNNI {
            return unsafe { _mm256_dpbusd_epi32(sum, b, a) };
        }
        // The instructions take unsigned by signed bytes: |a| by b with a's sign; where several b meet an a, |a| is had once.
        // Two products of at most 127 · 127 each stay below 2^15, so the saturating sum of pairs never saturates.
        unsafe {
            let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(a), _mm256_sign_epi8(b, a));
            _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }

    #[inline(always)]
    unsafe fn load_words(self, from: *const i8) -> __m256i {
        unsafe { _mm256_cvtepi8_epi16(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    fn dot_words(self, a: __m256i, b: __m256i, sum: __m256i) -> __m256i {
        if VNNI {
            return unsafe { _mm256_dpwssd_epi32(sum, a, b) };
        }
        unsafe { _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)) }
    }

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // the second level is near enough, and large enough for what comes after the current panel
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }
}
