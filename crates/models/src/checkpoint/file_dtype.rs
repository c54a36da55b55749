//! Number types of a file's tensors, and the conversion between them and f32.

use std::path::Path;
use weir_kernels::error::{Error, Result};

/// Readable element types; short ones are widened without loss. The elements of an I8 matrix are integers, which its scales
/// multiply (`Tensor` has both).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileDtype {
    /// 64-bit floats, which are rounded to f32 when they are read, as transformers does.
    F64,
    /// 32-bit floats.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an f32.
    Bf16,
    /// Integers from −127 to 127. Only tensors of two axes have this type.
    I8,
}

weir_kernels::named!(FileDtype { F64: "F64", F32: "F32", F16: "F16", Bf16: "BF16", I8: "I8" });

impl FileDtype {
    /// Bytes of one number.
    pub fn bytes(self) -> usize {
        match self {
            Self::F64 => 8,
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::I8 => 1,
        }
    }

    /// Appends numbers as little-endian bytes, each rounded to the nearest number of this type, ties to even.
    pub fn narrow(self, numbers: &[f32], bytes: &mut Vec<u8>) {
        match self {
            Self::F64 => bytes.extend(numbers.iter().flat_map(|&number| f64::from(number).to_le_bytes())),
            Self::F32 => bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes())),
            Self::F16 => bytes.extend(numbers.iter().flat_map(|&number| half::f16::from_f32(number).to_le_bytes())),
            Self::Bf16 => bytes.extend(numbers.iter().flat_map(|&number| half::bf16::from_f32(number).to_le_bytes())),
            Self::I8 => bytes.extend(numbers.iter().map(|&number| {
                let integer = number.round_ties_even().clamp(-127.0, 127.0) as i8;
                integer.cast_unsigned()
            })),
        }
    }

    /// Appends little-endian numbers as f32; leftover bytes are ignored.
    pub fn widen(self, bytes: &[u8], numbers: &mut Vec<f32>) {
        match self {
            Self::F64 => numbers.extend(bytes.as_chunks().0.iter().map(|&eight| f64::from_le_bytes(eight) as f32)),
            Self::F32 => numbers.extend(bytes.as_chunks().0.iter().map(|&four| f32::from_le_bytes(four))),
            Self::F16 => numbers.extend(bytes.as_chunks().0.iter().map(|&two| half::f16::from_le_bytes(two).to_f32())),
            Self::Bf16 => {
                numbers.extend(bytes.as_chunks().0.iter().map(|&two| half::bf16::from_le_bytes(two).to_f32()))
            }
            Self::I8 => numbers.extend(bytes.iter().map(|byte| f32::from(byte.cast_signed()))),
        }
    }
}

/// Checks that a tensor's elements, from index `first` on, are finite. The error names the first that is not.
pub fn check_finite(file: &Path, name: &str, first: usize, numbers: &[f32]) -> Result<()> {
    match numbers.iter().position(|number| !number.is_finite()) {
        None => Ok(()),
        Some(index) => {
            let found = format!("{} at index {}", numbers[index], first + index);
            Err(Error::checkpoint(file, name, "finite numbers", found))
        }
    }
}

/// The largest integer of an I8 tensor. The range is symmetric, as in the kernels, so −128 is refused.
pub(super) const MAX: f32 = 127.0;

/// Checks that the integers of an I8 matrix are in the symmetric range. The error names the first −128.
pub(crate) fn check_range(file: &Path, name: &str, first: usize, integers: &[f32]) -> Result<()> {
    match integers.iter().position(|integer| *integer < -MAX) {
        None => Ok(()),
        Some(index) => {
            let found = format!("{} at index {}", integers[index], first + index);
            Err(Error::checkpoint(file, name, "integers from -127 to 127", found))
        }
    }
}
