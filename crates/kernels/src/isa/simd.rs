//! The vector operations that an instruction set provides to kernel bodies.

/// Arithmetic of one instruction set, over which kernel bodies are generic.
///
/// Loads and stores of slices check bounds. Pointer variants are for innermost loops, checked once outside.
pub(crate) trait Simd: Copy {
    /// Value that [`offset`](Self::offset) adds to each byte.
    const OFFSET: i32;
    /// Rows of a register tile of float products.
    const ROWS: usize;
    /// Rows of a register tile of int8 products.
    const BYTE_ROWS: usize;
    /// Groups of sixteen outputs in a register tile of several rows.
    const ACROSS: usize;
    /// Independent chains of multiply-adds that give the highest throughput.
    const CHAINS: usize;
    /// Sixteen floats.
    type V: Copy;
    /// Sixteen 32-bit integers, or 64 bytes.
    type I: Copy;
    /// Returns a · b + c of one number, fused if the instruction set supports it.
    fn madd1(a: f32, b: f32, c: f32) -> f32;
    /// Returns sixteen copies of `value`.
    fn splat(self, value: f32) -> Self::V;
    /// Loads the first sixteen floats.
    #[inline(always)]
    fn load(self, from: &[f32]) -> Self::V {
        let from = &from[..WIDTH];
        // SAFETY: `from` has sixteen floats.
        unsafe { self.load_at(from.as_ptr()) }
    }
    /// Stores to the first sixteen floats.
    #[inline(always)]
    fn store(self, value: Self::V, to: &mut [f32]) {
        let to = &mut to[..WIDTH];
        // SAFETY: `to` has sixteen floats.
        unsafe { self.store_at(value, to.as_mut_ptr()) }
    }
    /// Returns a · b + c, rounded like `madd1`.
    fn madd(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// Returns the larger one of a and b, or b if one of them is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// Loads sixteen floats.
    ///
    /// # Safety
    /// `from` points to sixteen floats.
    unsafe fn load_at(self, from: *const f32) -> Self::V;
    /// Stores sixteen floats.
    ///
    /// # Safety
    /// `to` points to sixteen floats.
    unsafe fn store_at(self, value: Self::V, to: *mut f32);
    /// Loads sixteen bf16 as floats: those at even indices, then those at odd indices.
    ///
    /// # Safety
    /// `from` points to sixteen bf16.
    unsafe fn load_bf16_pairs(self, from: *const u16) -> Self::V;
    /// Loads sixteen bf16 as floats.
    ///
    /// # Safety
    /// `from` points to sixteen bf16.
    unsafe fn load_bf16(self, from: *const u16) -> Self::V;
    /// Returns sixteen copies of an integer, or of four bytes.
    fn splat_int(self, value: i32) -> Self::I;
    /// Loads 64 bytes.
    ///
    /// # Safety
    /// `from` points to 64 bytes.
    unsafe fn load_bytes(self, from: *const i8) -> Self::I;
    /// Loads sixteen integers.
    ///
    /// # Safety
    /// `from` points to sixteen integers.
    unsafe fn load_ints(self, from: *const i32) -> Self::I;
    /// Loads sixteen bytes as integers.
    ///
    /// # Safety
    /// `from` points to sixteen bytes.
    unsafe fn load_small_ints(self, from: *const i8) -> Self::I;
    /// Stores sixteen integers.
    ///
    /// # Safety
    /// `to` points to sixteen integers.
    unsafe fn store_ints(self, value: Self::I, to: *mut i32);
    /// Returns the integers as floats, rounded to the nearest, ties to even.
    fn to_floats(self, ints: Self::I) -> Self::V;
    /// Returns a + b · c of integers, modulo 2^32.
    fn add_product(self, a: Self::I, b: Self::I, c: Self::I) -> Self::I;
    /// Adds [`OFFSET`](Self::OFFSET) to each byte, as `b` of [`dot_bytes`](Self::dot_bytes) requires, which may be unsigned.
    fn offset(self, bytes: Self::I) -> Self::I;
    /// Adds to each integer of `sum` the four products of the bytes of `a` and `b` in the same lane, modulo 2^32. `b` was passed
    /// through [`offset`](Self::offset). Bytes must not be −128.
    fn dot_bytes(self, a: Self::I, b: Self::I, sum: Self::I) -> Self::I;
    /// Returns the lower four bits of each byte, and the upper four bits.
    fn nibbles(self, bytes: Self::I) -> [Self::I; 2];
    /// Adds to each integer of `sum` 32 products: those of the four numbers from 0 to 15 in the same lane of each vector with the four
    /// bytes of the cell of the same index. Bytes must not be −128.
    fn dot_nibbles(self, nibbles: &[Self::I; 8], cells: &[[i8; 4]; 8], sum: Self::I) -> Self::I;
    /// Returns (byte ^ flip) · factor − offset, modulo 2^8, of the bytes in the same place of `bytes`, `flips` and `offsets`. Factors
    /// are 16-bit integers. Bytes and factors are from 0 to 15, and flips are 0 or 15.
    fn scale_nibbles(self, bytes: Self::I, flips: Self::I, factors: Self::I, offsets: Self::I) -> Self::I;
    /// Stores 64 bytes.
    ///
    /// # Safety
    /// `to` points to 64 bytes.
    #[inline(always)]
    unsafe fn store_bytes(self, value: Self::I, to: *mut i8) {
        // SAFETY: the caller guarantees the length; no alignment is needed.
        unsafe { self.store_ints(value, to.cast()) }
    }
    /// Returns the form in which [`dot_weights`](Self::dot_weights) takes four weights of 15 bits, from their upper and their lower
    /// bytes.
    fn splat_weights(self, upper: [u8; 4], lower: [u8; 4]) -> [Self::I; 2];
    /// Adds the products of four weights with the four bytes of each lane, modulo 2^32. The total is 256 times the first sum plus the
    /// second.
    fn dot_weights(self, weights: [Self::I; 2], bytes: Self::I, sums: [Self::I; 2]) -> [Self::I; 2];
    /// Prefetches a cache line into the nearest cache. Any address is allowed.
    fn prefetch_near(self, address: *const u8);
    /// Prefetches a cache line into the second-level cache. Any address is allowed.
    fn prefetch(self, address: *const u8);
}

/// Floats of a vector.
pub(crate) const WIDTH: usize = 16;

#[inline(always)]
pub(crate) fn pack_bytes([a, b, c, d]: [i8; 4]) -> i32 {
    i32::from_ne_bytes([a as u8, b as u8, c as u8, d as u8])
}

/// Returns four weights of 15 bits as two pairs of 16-bit integers, those at even and those at odd indices, from their upper and their
/// lower bytes.
#[inline(always)]
pub(crate) fn pack_weights(upper: [u8; 4], lower: [u8; 4]) -> [i32; 2] {
    const EVEN: u32 = 0x00ff_00ff;
    let [upper, lower] = [upper, lower].map(u32::from_le_bytes);
    let even = (upper & EVEN) << 8 | lower & EVEN;
    let odd = upper & !EVEN | lower >> 8 & EVEN;
    [even, odd].map(u32::cast_signed)
}

/// Converts a bf16 number.
#[inline(always)]
pub(crate) fn from_bf16(x: u16) -> f32 {
    f32::from_bits(u32::from(x) << 16)
}
