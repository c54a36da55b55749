//! The layout of a written file: the order of its tensors, and its header.

use super::{TensorSpec, header::FileDtype, int8::scale_name};
use crate::error::{Error, Result};
use serde_json::{Map, Value, json};

/// Numbers start at a multiple of this, so that readers can map those of four bytes.
const ALIGNMENT: usize = size_of::<f32>();

/// A tensor to write.
#[derive(Debug)]
pub(super) struct TensorSize {
    pub(super) name: String,
    /// Number of elements.
    pub(super) numbers: usize,
    pub(super) dtype: FileDtype,
    /// Its rows. Those of an I8 matrix have scales, which precede its numbers.
    pub(super) rows: usize,
    /// True if its length in bytes is not a multiple of [`ALIGNMENT`]. Such tensors come last, so that all others stay aligned.
    pub(super) is_last: bool,
}

/// Returns the header of a file with matrices of type `matrices` and f32 vectors, and the tensors in the order of `specs`. I8 is
/// for tensors of two axes; those of more axes are f32 then.
pub(super) fn layout(specs: &[TensorSpec], matrices: FileDtype) -> Result<(Vec<u8>, Vec<TensorSize>)> {
    let sizes = specs.iter().map(|spec| size(spec, matrices)).collect::<Result<Vec<_>>>()?;
    let mut entries = Entries::default();
    for (spec, size) in specs.iter().zip(&sizes) {
        if size.dtype == FileDtype::I8 {
            entries.add(&scale_name(&spec.name), FileDtype::F32, &[size.rows], size.rows)?;
        }
        if !size.is_last {
            entries.add(&spec.name, size.dtype, &spec.shape, size.numbers)?;
        }
    }
    for (spec, size) in specs.iter().zip(&sizes).filter(|(_, size)| size.is_last) {
        entries.add(&spec.name, size.dtype, &spec.shape, size.numbers)?;
    }
    Ok((entries.header(), sizes))
}

fn size(spec: &TensorSpec, matrices: FileDtype) -> Result<TensorSize> {
    let numbers = spec.shape.iter().try_fold(1_usize, |product, &dim| product.checked_mul(dim));
    let numbers = numbers.ok_or_else(|| too_large(&spec.name, &spec.shape))?;
    let dtype = match spec.shape.len() {
        0 | 1 => FileDtype::F32,
        2 => matrices,
        _ if matrices == FileDtype::I8 => FileDtype::F32,
        _ => matrices,
    };
    let rows = spec.shape.first().copied().unwrap_or(1);
    // Takes the remainder before multiplying, because the product could overflow.
    let is_last = !(numbers % ALIGNMENT * dtype.bytes()).is_multiple_of(ALIGNMENT);
    Ok(TensorSize { name: spec.name.clone(), numbers, dtype, rows, is_last })
}

fn too_large(name: &str, shape: &[usize]) -> Error {
    Error::Internal(format!("{name} is too large: {shape:?}"))
}

/// The entries of a header.
#[derive(Default)]
struct Entries {
    entries: Map<String, Value>,
    /// End of the last tensor.
    end: usize,
}

impl Entries {
    /// Appends a tensor. Fails if there is one of this name, or the file would be too large.
    fn add(&mut self, name: &str, dtype: FileDtype, shape: &[usize], numbers: usize) -> Result<()> {
        let start = self.end;
        let end = numbers.checked_mul(dtype.bytes()).and_then(|bytes| bytes.checked_add(start));
        self.end = end.ok_or_else(|| too_large(name, shape))?;
        let entry = json!({ "dtype": dtype.name(), "shape": shape, "data_offsets": [start, self.end] });
        match self.entries.insert(name.to_owned(), entry) {
            Some(_) => Err(Error::Internal(format!("two tensors are called {name}"))),
            None => Ok(()),
        }
    }

    /// Returns the header, its length included.
    fn header(self) -> Vec<u8> {
        let mut text = Value::Object(self.entries).to_string();
        // Numbers start at a multiple of eight, as the format asks.
        text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));
        let mut header = (text.len() as u64).to_le_bytes().to_vec();
        header.extend_from_slice(text.as_bytes());
        header
    }
}
