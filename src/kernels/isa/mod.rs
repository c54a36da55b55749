//! Which instruction set a kernel runs on: found once, at run time.

/// A proof that the processor has an instruction set. Only [`Isa::detect`] and [`Isa::all`] make the wide ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// AVX-512: F, BW, VL and VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Whatever the build's baseline has.
    Portable,
}

impl Isa {
    /// The widest that this processor has.
    pub fn detect() -> Self {
        // the standard library remembers what it found
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            let [f, bw, vl] = [
                is_x86_feature_detected!("avx512f"),
                is_x86_feature_detected!("avx512bw"),
                is_x86_feature_detected!("avx512vl"),
            ];
            let vnni = f && bw && vl && is_x86_feature_detected!("avx512vnni");
            return Self(if vnni { Kind::Avx512 } else { Kind::Avx2 });
        }
        Self::portable()
    }

    /// All that this processor has, the widest first. Integers come out the same on each; floats the same on all that have
    /// fused multiply-adds.
    pub fn all() -> Vec<Self> {
        match Self::detect().0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => vec![Self(Kind::Avx512), Self(Kind::Avx2), Self::portable()],
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => vec![Self(Kind::Avx2), Self::portable()],
            Kind::Portable => vec![Self::portable()],
        }
    }

    /// The build's baseline.
    pub fn portable() -> Self {
        Self(Kind::Portable)
    }

    /// Its name, for people.
    pub fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            Kind::Portable => "portable",
        }
    }

    /// The one of this name, if this processor has it.
    pub fn parse(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|isa| isa.name() == name)
    }

    pub(super) fn kind(self) -> Kind {
        self.0
    }
}

/// What a kernel body is generic over: one instruction set's arithmetic. A body compiled for it holds no branches on it.
///
/// Loads and stores of slices check their bounds; those of pointers are for the innermost loops, whose bounds were checked
/// once outside.
pub(super) trait Simd: Copy {
    /// What [`offset`](Self::offset) adds to each byte.
    const OFFSET: i32;
    /// Rows of floats that a product takes side by side.
    const ROWS: usize;
    /// Rows of bytes that it does.
    const BYTE_ROWS: usize;
    /// Groups of sixteen outputs that a product of several rows takes side by side.
    const ACROSS: usize;
    /// Chains of multiply-adds, side by side, that go fastest in registers.
    const CHAINS: usize;
    /// Sixteen floats.
    type V: Copy;
    /// Sixteen 32-bit integers, or 64 bytes.
    type I: Copy;
    /// a · b + c, fused if the set has it, one number.
    fn madd1(a: f32, b: f32, c: f32) -> f32;
    /// Sixteen times the same.
    fn splat(self, value: f32) -> Self::V;
    /// The first sixteen.
    #[inline(always)]
    fn load(self, from: &[f32]) -> Self::V {
        let from = &from[..WIDTH];
        // SAFETY: sixteen floats are there.
        unsafe { self.load_at(from.as_ptr()) }
    }
    /// Into the first sixteen.
    #[inline(always)]
    fn store(self, value: Self::V, to: &mut [f32]) {
        let to = &mut to[..WIDTH];
        // SAFETY: there is room for sixteen floats.
        unsafe { self.store_at(value, to.as_mut_ptr()) }
    }
    /// a · b + c, rounded as `madd1` does.
    fn madd(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Sixteen floats.
    ///
    /// # Safety
    /// They are there.
    unsafe fn load_at(self, from: *const f32) -> Self::V;
    /// Sixteen floats.
    ///
    /// # Safety
    /// There is room for them.
    unsafe fn store_at(self, value: Self::V, to: *mut f32);
    /// Sixteen bf16 as floats: those at even places, then those at odd ones.
    ///
    /// # Safety
    /// They are there.
    unsafe fn load_bf16_pairs(self, from: *const u16) -> Self::V;
    /// Sixteen bf16 as floats.
    ///
    /// # Safety
    /// They are there.
    unsafe fn load_bf16(self, from: *const u16) -> Self::V;
    /// Sixteen times the same integer; of bytes: sixteen times the same four.
    fn splat_int(self, value: i32) -> Self::I;
    /// 64 bytes.
    ///
    /// # Safety
    /// They are there.
    unsafe fn load_bytes(self, from: *const i8) -> Self::I;
    /// Sixteen integers.
    ///
    /// # Safety
    /// They are there.
    unsafe fn load_ints(self, from: *const i32) -> Self::I;
    /// Sixteen integers.
    ///
    /// # Safety
    /// There is room for them.
    unsafe fn store_ints(self, value: Self::I, to: *mut i32);
    /// Bytes as [`dot_bytes`](Self::dot_bytes) takes them: the instruction may want them without signs.
    fn offset(self, bytes: Self::I) -> Self::I;
    /// Each integer of `sum` plus the sum of four products of the bytes in its place: of `a`'s with `b`'s plus
    /// [`OFFSET`](Self::OFFSET), modulo 2^32. For bytes other than −128.
    fn dot_bytes(self, a: Self::I, b: Self::I, sum: Self::I) -> Self::I;
    /// 32 bytes as 16-bit integers.
    ///
    /// # Safety
    /// They are there.
    unsafe fn load_words(self, from: *const i8) -> Self::I;
    /// Each integer of `sum` plus the sum of two products of the 16-bit integers in its place, modulo 2^32.
    fn dot_words(self, a: Self::I, b: Self::I, sum: Self::I) -> Self::I;
    /// Asks for a cache line that will be read soon; any address will do.
    fn prefetch(self, at: *const u8);
}

/// Floats of a vector.
pub(super) const WIDTH: usize = super::LANES;

/// The build's baseline.
#[derive(Clone, Copy)]
pub(super) struct Portable;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;
#[cfg(target_arch = "x86_64")]
pub(super) use {avx2::Avx2, avx512::Avx512};

#[cfg(test)]
mod tests;

/// Compiles a kernel body `fn body<S: Simd>(simd: S, …)` for each instruction set, behind a function that takes an [`Isa`].
macro_rules! multiversion {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:ident) => {
        $(#[$doc])*
        $vis fn $name(isa: $crate::kernels::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn wide($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: this function has the features.
                $body(unsafe { $crate::kernels::isa::Avx2::new() }, $($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
            fn widest($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: this function has the features.
                $body(unsafe { $crate::kernels::isa::Avx512::new() }, $($arg),*)
            }
            match isa.kind() {
                // SAFETY: an `Isa` of this kind is only made where the processor was found to have all of them.
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::isa::Kind::Avx512 => unsafe { widest($($arg),*) },
                // SAFETY: an `Isa` of this kind is only made where the processor was found to have AVX2 and FMA.
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::isa::Kind::Avx2 => unsafe { wide($($arg),*) },
                $crate::kernels::isa::Kind::Portable => $body($crate::kernels::isa::Portable, $($arg),*),
            }
        }
    };
}
pub(super) use multiversion;
