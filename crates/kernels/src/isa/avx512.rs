//! AVX-512: sixteen lanes are one of 32 vectors, and int8 dot products are one instruction.

use crate::isa::simd::{Simd, pack_bytes};
use std::arch::x86_64::*;

/// Proves that the processor supports AVX-512's F, BW, VL and VNNI, and that the calling code is compiled for them.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// # Safety
    /// The caller is compiled with these features.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Self {
        Self(())
    }
}

// SAFETY of every block below: `self` proves the features, callers guarantee that pointers are valid for the given length,
// and loads and stores need no alignment.
#[allow(clippy::undocumented_unsafe_blocks, reason = "stated once, above")]
#[allow(clippy::multiple_unsafe_ops_per_block, reason = "each is one expression of one instruction set")]
impl Simd for Avx512 {
    type V = __m512;
    type I = __m512i;
    const OFFSET: i32 = 128;
    // general registers hold the addresses of eight rows, but not of twelve
    const ROWS: usize = 8;
    const BYTE_ROWS: usize = 8;
    const ACROSS: usize = 2;
    const CHAINS: usize = 12;

    #[inline(always)]
    fn madd1(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    fn madd(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn load_at(self, from: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store_at(self, value: __m512, to: *mut f32) {
        unsafe { _mm512_storeu_ps(to, value) }
    }

    #[inline(always)]
    unsafe fn load_bf16_pairs(self, from: *const u16) -> __m512 {
        // a bf16 is the upper half of a float: lower lanes shift the even ones up, upper lanes mask the odd ones
        unsafe {
            let pairs = _mm512_broadcast_i64x4(_mm256_loadu_si256(from.cast()));
            let even = _mm512_set_epi64(0, 0, 0, 0, SIXTEEN, SIXTEEN, SIXTEEN, SIXTEEN);
            let shifted = _mm512_sllv_epi32(pairs, even);
            _mm512_castsi512_ps(_mm512_and_si512(shifted, _mm512_set1_epi32(0xffff_0000_u32.cast_signed())))
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> __m512 {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    fn splat_int(self, value: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(value) }
    }

    #[inline(always)]
    unsafe fn load_bytes(self, from: *const i8) -> __m512i {
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn load_ints(self, from: *const i32) -> __m512i {
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn load_small_ints(self, from: *const i8) -> __m512i {
        unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store_ints(self, value: __m512i, to: *mut i32) {
        unsafe { _mm512_storeu_si512(to.cast(), value) }
    }

    #[inline(always)]
    fn to_floats(self, ints: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(ints) }
    }

    #[inline(always)]
    fn add_product(self, a: __m512i, b: __m512i, c: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, _mm512_mullo_epi32(b, c)) }
    }

    #[inline(always)]
    fn offset(self, bytes: __m512i) -> __m512i {
        // flipping the sign bit adds 128, as an unsigned byte
        unsafe { _mm512_xor_si512(bytes, _mm512_set1_epi8(-128)) }
    }

    #[inline(always)]
    fn dot_bytes(self, a: __m512i, b: __m512i, sum: __m512i) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(sum, b, a) }
    }

    #[inline(always)]
    fn nibbles(self, bytes: __m512i) -> [__m512i; 2] {
        unsafe {
            let mask = _mm512_set1_epi8(15);
            [_mm512_and_si512(bytes, mask), _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), mask)]
        }
    }

    #[inline(always)]
    fn dot_nibbles(self, nibbles: &[__m512i; 8], cells: &[[i8; 4]; 8], sum: __m512i) -> __m512i {
        // indices, because with iterators and overflow checks the compiler does not unroll the loop, and keeps the sum in memory
        let mut sum = sum;
        for cell in 0..nibbles.len() {
            sum = unsafe { _mm512_dpbusd_epi32(sum, nibbles[cell], _mm512_set1_epi32(pack_bytes(cells[cell]))) };
        }
        sum
    }

    #[inline(always)]
    fn scale_nibbles(self, bytes: Self::I, flips: Self::I, factors: Self::I, offsets: Self::I) -> Self::I {
        // one 16-bit product holds two byte products; neither carries, since 15 · 15 fits a byte
        unsafe { _mm512_sub_epi8(_mm512_mullo_epi16(_mm512_xor_si512(bytes, flips), factors), offsets) }
    }

    #[inline(always)]
    fn splat_weights(self, upper: [u8; 4], lower: [u8; 4]) -> [__m512i; 2] {
        [upper, lower].map(|bytes| unsafe { _mm512_set1_epi32(i32::from_ne_bytes(bytes)) })
    }

    #[inline(always)]
    fn dot_weights(self, [upper, lower]: [__m512i; 2], bytes: __m512i, sums: [__m512i; 2]) -> [__m512i; 2] {
        unsafe { [_mm512_dpbusd_epi32(sums[0], upper, bytes), _mm512_dpbusd_epi32(sums[1], lower, bytes)] }
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

/// Shift by sixteen bits in two lanes.
const SIXTEEN: i64 = 16 << 32 | 16;
