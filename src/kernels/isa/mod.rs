//! Instruction sets of the kernels, detected at run time.
//!
//! A kernel body is written once, generic over [`Simd`], and compiled for each instruction set by [`multiversion`].

/// An instruction set that the processor supports. Only [`Isa::detect`] and [`Isa::all`] create the wide ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(pub(super) IsaKind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IsaKind {
    /// AVX-512: F, BW, VL and VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Baseline of the build.
    Portable,
}

impl Isa {
    /// Returns the widest instruction set that the processor supports.
    pub fn detect() -> Self {
        // the standard library caches the result
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            let vnni = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vnni");
            return Self(if vnni { IsaKind::Avx512 } else { IsaKind::Avx2 });
        }
        Self::portable()
    }

    /// Returns all instruction sets that the processor supports, the widest first. Integer results are equal on all of
    /// them, float results on all with fused multiply-adds.
    pub fn all() -> Vec<Self> {
        match Self::detect().0 {
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx512 => vec![Self(IsaKind::Avx512), Self(IsaKind::Avx2), Self::portable()],
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx2 => vec![Self(IsaKind::Avx2), Self::portable()],
            IsaKind::Portable => vec![Self::portable()],
        }
    }

    /// Returns the baseline of the build.
    pub fn portable() -> Self {
        Self(IsaKind::Portable)
    }

    /// Returns the name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx2 => "avx2",
            IsaKind::Portable => "portable",
        }
    }

    /// Returns the instruction set with this name, if the processor supports it.
    pub fn parse(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|isa| isa.name() == name)
    }
}

/// Arithmetic of one instruction set, over which kernel bodies are generic.
///
/// Loads and stores of slices check bounds. Pointer variants are for innermost loops, checked once outside.
pub(super) trait Simd: Copy {
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
    /// Stores sixteen integers.
    ///
    /// # Safety
    /// `to` points to sixteen integers.
    unsafe fn store_ints(self, value: Self::I, to: *mut i32);
    /// Adds [`OFFSET`](Self::OFFSET) to each byte, as `b` of [`dot_bytes`](Self::dot_bytes) requires, which may be unsigned.
    fn offset(self, bytes: Self::I) -> Self::I;
    /// Adds to each integer of `sum` the four products of the bytes of `a` and `b` in the same lane, modulo 2^32. `b` was
    /// passed through [`offset`](Self::offset). Bytes must not be −128.
    fn dot_bytes(self, a: Self::I, b: Self::I, sum: Self::I) -> Self::I;
    /// Loads 32 bytes as 16-bit integers.
    ///
    /// # Safety
    /// `from` points to 32 bytes.
    unsafe fn load_words(self, from: *const i8) -> Self::I;
    /// Adds to each integer of `sum` the two products of the 16-bit integers in the same lane, modulo 2^32.
    fn dot_words(self, a: Self::I, b: Self::I, sum: Self::I) -> Self::I;
    /// Prefetches a cache line. Any address is allowed.
    fn prefetch(self, address: *const u8);
}

/// Floats of a vector.
pub(super) const WIDTH: usize = super::LANES;

/// Arithmetic of the baseline of the build.
#[derive(Clone, Copy)]
pub(super) struct Portable;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;
#[cfg(target_arch = "x86_64")]
pub(super) use {avx2::Avx2, avx512::Avx512};

#[inline(always)]
pub(super) fn pack_bytes([a, b, c, d]: [i8; 4]) -> i32 {
    i32::from_ne_bytes([a as u8, b as u8, c as u8, d as u8])
}

#[inline(always)]
pub(super) fn pack_words(low: i16, high: i16) -> i32 {
    i32::from(high) << 16 | i32::from(low.cast_unsigned())
}

/// Converts a bf16 number.
#[inline(always)]
pub(in crate::kernels) fn from_bf16(x: u16) -> f32 {
    f32::from_bits(u32::from(x) << 16)
}

#[cfg(test)]
mod tests;

/// Compiles a body `fn body<S: Simd>(simd: S, …)` for each instruction set, and defines a function that selects by [`Isa`].
macro_rules! multiversion {
    ($(#[$doc:meta])* $vis:vis fn $name:ident $(<$kind:ident: $bound:path>)? ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:expr) => {
        $(#[$doc])*
        $vis fn $name $(<$kind: $bound>)? (isa: $crate::kernels::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn wide $(<$kind: $bound>)? ($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: this function is compiled with the features.
                $body(unsafe { $crate::kernels::isa::Avx2::new() }, $($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
            fn widest $(<$kind: $bound>)? ($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: this function is compiled with the features.
                $body(unsafe { $crate::kernels::isa::Avx512::new() }, $($arg),*)
            }
            match isa.0 {
                // SAFETY: an `Isa` of this kind only exists if the processor supports all of them.
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::isa::IsaKind::Avx512 => unsafe { widest $(::<$kind>)? ($($arg),*) },
                // SAFETY: an `Isa` of this kind only exists if the processor supports AVX2 and FMA.
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::isa::IsaKind::Avx2 => unsafe { wide $(::<$kind>)? ($($arg),*) },
                $crate::kernels::isa::IsaKind::Portable => $body($crate::kernels::isa::Portable, $($arg),*),
            }
        }
    };
}
pub(super) use multiversion;
