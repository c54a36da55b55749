//! Instruction sets of the kernels, detected at run time.
//!
//! A kernel body is written once, generic over [`Simd`], and compiled for each instruction set by [`multiversion`].

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;
mod simd;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod tiles;

#[cfg(target_arch = "x86_64")]
pub(crate) use crate::isa::avx2::Avx2;
pub(crate) use crate::isa::avx512::Avx512;
pub(crate) use crate::isa::portable::Portable;
pub(crate) use crate::isa::simd::{Simd, WIDTH, from_bf16, pack_bytes};
pub(crate) use crate::isa::tiles::{ActiveTiles, TILE_BYTES, TILE_ROWS, TileShape, Tiles};

/// An instruction set that the processor and the system support. Only [`Isa::detect`] and [`Isa::all`] create the wide ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(pub(crate) IsaKind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IsaKind {
    /// AVX-512, and AMX's tiles for int8 products of several rows.
    #[cfg(target_arch = "x86_64")]
    Amx(Tiles),
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
    /// Returns the widest instruction set that the processor and the system support.
    pub fn detect() -> Self {
        // the standard library caches the result
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            let vnni = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vnni");
            if !vnni {
                return Self(IsaKind::Avx2);
            }
            return Self(Tiles::detect().map_or(IsaKind::Avx512, IsaKind::Amx));
        }
        Self::portable()
    }

    /// Returns all instruction sets that the processor and the system support, the widest first. Integer results are equal on all
    /// of them, float results on all with fused multiply-adds.
    pub fn all() -> Vec<Self> {
        match Self::detect().0 {
            #[cfg(target_arch = "x86_64")]
            IsaKind::Amx(tiles) => {
                [IsaKind::Amx(tiles), IsaKind::Avx512, IsaKind::Avx2, IsaKind::Portable].map(Self).to_vec()
            }
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
            IsaKind::Amx(_) => "amx",
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx2 => "avx2",
            IsaKind::Portable => "portable",
        }
    }

    /// Returns roughly how long a product takes relative to AVX-512.
    pub(crate) fn relative_time(self) -> usize {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            IsaKind::Amx(_) | IsaKind::Avx512 => 1,
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx2 => 3,
            IsaKind::Portable => 16,
        }
    }

    /// Returns the proof that products may use tiles, if this instruction set has them.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn tiles(self) -> Option<Tiles> {
        if let IsaKind::Amx(tiles) = self.0 { Some(tiles) } else { None }
    }

    /// Returns true if a multiply-add rounds once. Instruction sets that agree in this compute the same bits on one machine.
    pub fn fuses(self) -> bool {
        self != Self::portable() || portable::FUSES
    }

    /// Returns the instruction set with this name, if the processor and the system support it.
    pub fn parse(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|isa| isa.name() == name)
    }
}

/// Compiles a body `fn body<S: Simd>(simd: S, …)` for each instruction set, and defines a function that selects by [`Isa`].
macro_rules! multiversion {
    ($(#[$doc:meta])* $vis:vis fn $name:ident $(<$kind:ident: $bound:path>)? ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:expr) => {
        $(#[$doc])*
        $vis fn $name $(<$kind: $bound>)? (isa: $crate::isa::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn wide $(<$kind: $bound>)? ($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: this function is compiled with the features.
                $body(unsafe { $crate::isa::Avx2::new() }, $($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
            fn widest $(<$kind: $bound>)? ($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: this function is compiled with the features.
                $body(unsafe { $crate::isa::Avx512::new() }, $($arg),*)
            }
            match isa.0 {
                // SAFETY: an `Isa` of these kinds only exists if the processor supports these features.
                #[cfg(target_arch = "x86_64")]
                $crate::isa::IsaKind::Amx(_) | $crate::isa::IsaKind::Avx512 => unsafe { widest $(::<$kind>)? ($($arg),*) },
                // SAFETY: an `Isa` of this kind only exists if the processor supports AVX2 and FMA.
                #[cfg(target_arch = "x86_64")]
                $crate::isa::IsaKind::Avx2 => unsafe { wide $(::<$kind>)? ($($arg),*) },
                $crate::isa::IsaKind::Portable => $body($crate::isa::Portable, $($arg),*),
            }
        }
    };
}

pub(crate) use multiversion;
