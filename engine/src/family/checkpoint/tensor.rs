//! A tensor of a checkpoint, in the number type of its file: a bf16 or int8 checkpoint does not take the memory of f32 while it is
//! loaded.

use super::{header::FileDtype, int8};
use std::borrow::Cow;

/// One tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    dtype: FileDtype,
    /// Its shape.
    pub shape: Vec<usize>,
    numbers: Numbers,
}

/// Numbers, row-major.
#[derive(Debug, Clone, PartialEq)]
enum Numbers {
    F32(Vec<f32>),
    /// Little-endian numbers of the tensor's type.
    Bytes(Vec<u8>),
    /// The integers of an I8 matrix, and a scale for each row.
    Scaled {
        bytes: Vec<u8>,
        scales: Vec<f32>,
    },
}

impl Tensor {
    /// Creates a tensor of `numbers`, row-major.
    pub fn f32(shape: Vec<usize>, numbers: Vec<f32>) -> Self {
        Self { dtype: FileDtype::F32, shape, numbers: Numbers::F32(numbers) }
    }

    /// Returns a tensor of this type, for `count` numbers that [`push`](Self::push) adds.
    pub(super) fn with_capacity(dtype: FileDtype, shape: Vec<usize>, count: usize) -> Self {
        let numbers = match dtype {
            FileDtype::F32 => Numbers::F32(Vec::with_capacity(count)),
            FileDtype::F16 | FileDtype::Bf16 | FileDtype::U8 | FileDtype::Bool => {
                Numbers::Bytes(Vec::with_capacity(dtype.bytes() * count))
            }
            FileDtype::I8 => Numbers::Scaled { bytes: Vec::with_capacity(count), scales: Vec::new() },
        };
        Self { dtype, shape, numbers }
    }

    /// Adds numbers of the file, and the same numbers in f32.
    pub(super) fn push(&mut self, bytes: &[u8], widened: &[f32]) {
        match &mut self.numbers {
            Numbers::F32(numbers) => numbers.extend_from_slice(widened),
            Numbers::Bytes(stored) | Numbers::Scaled { bytes: stored, .. } => stored.extend_from_slice(bytes),
        }
    }

    /// Sets the scales of the rows of an I8 matrix, after all its numbers were added. Without effect on other tensors.
    pub(super) fn set_scales(&mut self, new: Vec<f32>) {
        if let Numbers::Scaled { scales, .. } = &mut self.numbers {
            *scales = new;
        }
    }

    /// The type of its numbers in the file.
    pub fn dtype(&self) -> FileDtype {
        self.dtype
    }

    /// Number of its numbers.
    pub fn len(&self) -> usize {
        match &self.numbers {
            Numbers::F32(numbers) => numbers.len(),
            Numbers::Bytes(bytes) | Numbers::Scaled { bytes, .. } => bytes.len() / self.dtype.bytes(),
        }
    }

    /// Bytes of its numbers in the file, the scales of an I8 matrix included.
    pub fn file_bytes(&self) -> usize {
        let scales = match &self.numbers {
            Numbers::Scaled { scales, .. } => size_of_val(scales.as_slice()),
            Numbers::F32(_) | Numbers::Bytes(_) => 0,
        };
        self.dtype.bytes() * self.len() + scales
    }

    /// True if it has no numbers.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns its numbers in f32, row-major.
    pub fn numbers(&self) -> Cow<'_, [f32]> {
        match &self.numbers {
            Numbers::F32(numbers) => Cow::Borrowed(numbers),
            Numbers::Bytes(bytes) => Cow::Owned(widened(self.dtype, bytes)),
            Numbers::Scaled { bytes, scales } => Cow::Owned(int8::widen(bytes, scales)),
        }
    }

    /// Returns true if the numbers of both are equal, in the same order. Allocates nothing if both have the same type (for I8: if
    /// their integers and scales are equal too).
    pub fn has_numbers_of(&self, other: &Self) -> bool {
        match (&self.numbers, &other.numbers) {
            (Numbers::Bytes(own), Numbers::Bytes(others)) if self.dtype == other.dtype => own == others,
            (own @ Numbers::Scaled { .. }, others) if own == others => true,
            _ => self.numbers() == other.numbers(),
        }
    }

    /// Returns its numbers in f32, row-major.
    pub fn into_numbers(self) -> Vec<f32> {
        match self.numbers {
            Numbers::F32(numbers) => numbers,
            Numbers::Bytes(bytes) => widened(self.dtype, &bytes),
            Numbers::Scaled { bytes, scales } => int8::widen(&bytes, &scales),
        }
    }
}

fn widened(dtype: FileDtype, bytes: &[u8]) -> Vec<f32> {
    let mut numbers = Vec::with_capacity(bytes.len() / dtype.bytes());
    dtype.widen(bytes, &mut numbers);
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_stored_as_in_the_file_and_read_as_f32() {
        for dtype in [FileDtype::F32, FileDtype::F16, FileDtype::Bf16] {
            let numbers = [1.0, -2.5, 0.0, 96.0];
            let mut bytes = Vec::new();
            dtype.narrow(&numbers, &mut bytes);
            let mut tensor = Tensor::with_capacity(dtype, vec![2, 2], numbers.len());
            tensor.push(&bytes[..dtype.bytes()], &numbers[..1]);
            tensor.push(&bytes[dtype.bytes()..], &numbers[1..]);
            assert_eq!((tensor.len(), &*tensor.numbers()), (4, &numbers[..]));
            let stored = match &tensor.numbers {
                Numbers::F32(numbers) => 4 * numbers.capacity(),
                Numbers::Bytes(bytes) | Numbers::Scaled { bytes, .. } => bytes.capacity(),
            };
            assert_eq!(stored, 4 * dtype.bytes());
            assert!(tensor.has_numbers_of(&tensor) && tensor.has_numbers_of(&Tensor::f32(vec![4], numbers.into())));
            assert!(!tensor.has_numbers_of(&Tensor::f32(vec![4], vec![1.0, -2.5, 0.0, 97.0])));
            assert_eq!(tensor.into_numbers(), numbers);
        }
    }

    #[test]
    fn an_int8_matrix_takes_a_byte_for_each_number() {
        let mut tensor = Tensor::with_capacity(FileDtype::I8, vec![2, 2], 4);
        tensor.push(&[1, 255, 127, 0], &[1.0, -1.0, 127.0, 0.0]);
        tensor.set_scales(vec![0.5, 2.0]);
        assert!(matches!(&tensor.numbers, Numbers::Scaled { bytes, .. } if bytes.capacity() == 4));
        assert_eq!((tensor.len(), tensor.file_bytes(), &*tensor.numbers()), (4, 12, &[0.5, -0.5, 254.0, 0.0][..]));
        assert_eq!(tensor.into_numbers(), [0.5, -0.5, 254.0, 0.0]);
    }
}
