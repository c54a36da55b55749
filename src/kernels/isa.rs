//! Which instruction set a kernel runs on: found once, at run time.

/// A proof that the processor has an instruction set. Only [`Isa::detect`] makes the wide one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Whatever the build's baseline has.
    Portable,
}

impl Isa {
    /// The widest that this processor has.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return Self(Kind::Avx2);
        }
        Self::portable()
    }

    /// The build's baseline.
    pub fn portable() -> Self {
        Self(Kind::Portable)
    }

    /// Its name, for people.
    pub fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2+fma",
            Kind::Portable => "portable",
        }
    }

    pub(super) fn kind(self) -> Kind {
        self.0
    }
}

/// What a kernel body is generic over: one instruction set's arithmetic. A body compiled for it holds no branches on it.
pub(super) trait Simd: Copy {
    /// Eight floats.
    type V: Copy;
    /// a · b + c, fused if the set has it, one number.
    fn madd1(a: f32, b: f32, c: f32) -> f32;
    /// Eight times the same.
    fn splat(self, value: f32) -> Self::V;
    /// The first eight.
    fn load(self, from: &[f32]) -> Self::V;
    /// Into the first eight.
    fn store(self, value: Self::V, to: &mut [f32]);
    /// a · b + c, rounded as `madd1` does.
    fn madd(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
}

/// Floats of a vector.
pub(super) const WIDTH: usize = 8;

/// The build's baseline.
#[derive(Clone, Copy)]
pub(super) struct Portable;

impl Simd for Portable {
    type V = [f32; WIDTH];

    #[inline(always)]
    fn madd1(a: f32, b: f32, c: f32) -> f32 {
        // without the instruction, `mul_add` would be a slow library call
        if cfg!(any(target_arch = "aarch64", target_feature = "fma")) { a.mul_add(b, c) } else { a * b + c }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::V {
        [value; WIDTH]
    }

    #[inline(always)]
    fn load(self, from: &[f32]) -> Self::V {
        let mut value = [0.0; WIDTH];
        value.copy_from_slice(&from[..WIDTH]);
        value
    }

    #[inline(always)]
    fn store(self, value: Self::V, to: &mut [f32]) {
        to[..WIDTH].copy_from_slice(&value);
    }

    #[inline(always)]
    fn madd(self, a: Self::V, b: Self::V, mut c: Self::V) -> Self::V {
        for lane in 0..WIDTH {
            c[lane] = Self::madd1(a[lane], b[lane], c[lane]);
        }
        c
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use wide::Avx2;

#[cfg(target_arch = "x86_64")]
mod wide {
    use super::{Simd, WIDTH};
    use std::arch::x86_64::{__m256, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_set1_ps, _mm256_storeu_ps};

    /// A proof that the processor has AVX2 and FMA, and that the code around it is compiled for them.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx2(());

    impl Avx2 {
        /// # Safety
        /// Only inside a function with the features AVX2 and FMA.
        #[inline(always)]
        pub(in super::super) unsafe fn new() -> Self {
            Self(())
        }
    }

    impl Simd for Avx2 {
        type V = __m256;

        #[inline(always)]
        fn madd1(a: f32, b: f32, c: f32) -> f32 {
            a.mul_add(b, c)
        }

        #[inline(always)]
        fn splat(self, value: f32) -> __m256 {
            // SAFETY: `self` proves the features.
            unsafe { _mm256_set1_ps(value) }
        }

        #[inline(always)]
        fn load(self, from: &[f32]) -> __m256 {
            let from = &from[..WIDTH];
            // SAFETY: `self` proves the features; eight floats are there, and the load needs no alignment.
            unsafe { _mm256_loadu_ps(from.as_ptr()) }
        }

        #[inline(always)]
        fn store(self, value: __m256, to: &mut [f32]) {
            let to = &mut to[..WIDTH];
            // SAFETY: `self` proves the features; eight floats are there, and the store needs no alignment.
            unsafe { _mm256_storeu_ps(to.as_mut_ptr(), value) }
        }

        #[inline(always)]
        fn madd(self, a: __m256, b: __m256, c: __m256) -> __m256 {
            // SAFETY: `self` proves the features.
            unsafe { _mm256_fmadd_ps(a, b, c) }
        }
    }
}

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
            match isa.kind() {
                // SAFETY: an `Isa` of this kind is only made where the processor was found to have AVX2 and FMA.
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::isa::Kind::Avx2 => unsafe { wide($($arg),*) },
                $crate::kernels::isa::Kind::Portable => $body($crate::kernels::isa::Portable, $($arg),*),
            }
        }
    };
}
pub(super) use multiversion;
