//! The baseline of the build: loops over sixteen lanes, which the compiler vectorizes.

use crate::isa::simd::{Simd, WIDTH, from_bf16, pack_bytes, pack_weights};

/// True if a multiply-add rounds once. Without the instruction, `mul_add` would be a slow library call.
pub(super) const FUSES: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

#[derive(Clone, Copy)]
pub(crate) struct Portable;

const HALF: usize = WIDTH / 2;

impl Simd for Portable {
    type V = [f32; WIDTH];
    type I = [i32; WIDTH];
    const OFFSET: i32 = 0;
    const ROWS: usize = 6;
    const BYTE_ROWS: usize = 4;
    const ACROSS: usize = 1;
    // measured: three chains, which sixteen registers of four lanes hold, have a third of the throughput of six
    const CHAINS: usize = 6;

    #[inline(always)]
    fn madd1(a: f32, b: f32, c: f32) -> f32 {
        if FUSES { a.mul_add(b, c) } else { a * b + c }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::V {
        [value; WIDTH]
    }

    #[inline(always)]
    fn madd(self, a: Self::V, b: Self::V, mut c: Self::V) -> Self::V {
        for lane in 0..WIDTH {
            c[lane] = Self::madd1(a[lane], b[lane], c[lane]);
        }
        c
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|lane| a[lane] + b[lane])
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|lane| a[lane] * b[lane])
    }

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|lane| if a[lane] > b[lane] { a[lane] } else { b[lane] })
    }

    #[inline(always)]
    unsafe fn load_at(self, from: *const f32) -> Self::V {
        // SAFETY: the caller guarantees the length; no alignment is needed.
        unsafe { from.cast::<Self::V>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store_at(self, value: Self::V, to: *mut f32) {
        // SAFETY: the caller guarantees the length; no alignment is needed.
        unsafe { to.cast::<Self::V>().write_unaligned(value) }
    }

    #[inline(always)]
    unsafe fn load_bf16_pairs(self, from: *const u16) -> Self::V {
        // SAFETY: the caller guarantees the length; no alignment is needed.
        let all = unsafe { from.cast::<[u16; WIDTH]>().read_unaligned() };
        std::array::from_fn(|lane| from_bf16(all[2 * (lane % HALF) + lane / HALF]))
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> Self::V {
        // SAFETY: the caller guarantees the length; no alignment is needed.
        unsafe { from.cast::<[u16; WIDTH]>().read_unaligned() }.map(from_bf16)
    }

    #[inline(always)]
    fn splat_int(self, value: i32) -> Self::I {
        [value; WIDTH]
    }

    #[inline(always)]
    unsafe fn load_bytes(self, from: *const i8) -> Self::I {
        // SAFETY: the caller guarantees the length; no alignment is needed.
        unsafe { from.cast::<Self::I>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_ints(self, from: *const i32) -> Self::I {
        // SAFETY: the caller guarantees the length; no alignment is needed.
        unsafe { from.cast::<Self::I>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_small_ints(self, from: *const i8) -> Self::I {
        // SAFETY: the caller guarantees the length.
        unsafe { from.cast::<[i8; WIDTH]>().read() }.map(i32::from)
    }

    #[inline(always)]
    unsafe fn store_ints(self, value: Self::I, to: *mut i32) {
        // SAFETY: the caller guarantees the length; no alignment is needed.
        unsafe { to.cast::<Self::I>().write_unaligned(value) }
    }

    #[inline(always)]
    fn to_floats(self, ints: Self::I) -> Self::V {
        ints.map(|int| int as f32)
    }

    #[inline(always)]
    fn add_product(self, a: Self::I, b: Self::I, c: Self::I) -> Self::I {
        std::array::from_fn(|lane| a[lane].wrapping_add(b[lane].wrapping_mul(c[lane])))
    }

    #[inline(always)]
    fn offset(self, bytes: Self::I) -> Self::I {
        bytes
    }

    #[inline(always)]
    fn dot_bytes(self, a: Self::I, b: Self::I, mut sum: Self::I) -> Self::I {
        for lane in 0..WIDTH {
            let a = a[lane].to_ne_bytes();
            let b = b[lane].to_ne_bytes();
            for byte in 0..4 {
                sum[lane] = sum[lane].wrapping_add(i32::from(a[byte] as i8) * i32::from(b[byte] as i8));
            }
        }
        sum
    }

    #[inline(always)]
    fn nibbles(self, bytes: Self::I) -> [Self::I; 2] {
        [bytes.map(|four| four & 0x0f0f_0f0f), bytes.map(|four| four >> 4 & 0x0f0f_0f0f)]
    }

    #[inline(always)]
    fn dot_nibbles(self, nibbles: &[Self::I; 8], cells: &[[i8; 4]; 8], sum: Self::I) -> Self::I {
        nibbles
            .iter()
            .zip(cells)
            .fold(sum, |sum, (&nibbles, &cell)| self.dot_bytes(nibbles, [pack_bytes(cell); WIDTH], sum))
    }

    #[inline(always)]
    fn scale_nibbles(self, bytes: Self::I, flips: Self::I, factors: Self::I, offsets: Self::I) -> Self::I {
        std::array::from_fn(|lane| {
            let [bytes, flips, factors, offsets] =
                [bytes, flips, factors, offsets].map(|vector| vector[lane].to_ne_bytes());
            let product = |byte: usize| (bytes[byte] ^ flips[byte]).wrapping_mul(factors[byte / 2 * 2]);
            i32::from_ne_bytes(std::array::from_fn(|byte| product(byte).wrapping_sub(offsets[byte])))
        })
    }

    #[inline(always)]
    fn splat_weights(self, upper: [u8; 4], lower: [u8; 4]) -> [Self::I; 2] {
        pack_weights(upper, lower).map(|pair| [pair; WIDTH])
    }

    #[inline(always)]
    fn dot_weights(self, [even, odd]: [Self::I; 2], bytes: Self::I, [unused, mut sum]: [Self::I; 2]) -> [Self::I; 2] {
        for lane in 0..WIDTH {
            let weights = [even[lane], odd[lane], even[lane] >> 16, odd[lane] >> 16];
            for (weight, byte) in weights.into_iter().zip(bytes[lane].to_ne_bytes()) {
                sum[lane] = sum[lane].wrapping_add(i32::from(weight as i16) * i32::from(byte as i8));
            }
        }
        [unused, sum]
    }

    #[inline(always)]
    fn prefetch_near(self, _: *const u8) {}

    #[inline(always)]
    fn prefetch(self, _: *const u8) {}
}
