//! The header of a safetensors file: eight bytes of header length, then a JSON object; the numbers follow.

use super::{
    json::{self, UniqueMap},
    placeholders::{LFS_POINTER, WEB_PAGE, ZEROS_AT_START, is_web_page},
};
use crate::error::{Error, Result};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{collections::BTreeMap, io::Read, path::Path};

/// Name of the header entry that is not a tensor.
const METADATA: &str = "__metadata__";
/// Bytes of the field with the header's length.
pub(super) const PREFIX: usize = 8;

/// A checked header: tensors in the order of their numbers, without gaps, up to the end of the file.
#[derive(Debug)]
pub struct Header {
    /// The tensors, in file order.
    pub tensors: Vec<TensorEntry>,
    /// The header's bytes, its length included: part of the file's hash.
    pub bytes: Vec<u8>,
}

/// One tensor in a file.
#[derive(Debug)]
pub struct TensorEntry {
    /// Its name.
    pub name: String,
    /// Type of its numbers.
    pub dtype: FileDtype,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Number of its numbers.
    pub numbers: usize,
}

/// Readable types of numbers; short ones are widened without loss. The numbers of an I8 matrix are integers, which its scales
/// multiply ([`Tensor`](super::Tensor) has both).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileDtype {
    /// 32-bit floats.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an f32.
    Bf16,
    /// Integers from −127 to 127. Only tensors of two axes have this type.
    I8,
    /// Integers from 0 to 255. Only tensors that the model does not use have this type, such as the masks of GPT-2.
    U8,
    /// 0 or 1 in a byte. Only tensors that the model does not use have this type.
    Bool,
}

/// The types of tensors that a model uses, for messages.
pub(super) const USED_DTYPES: &str = "dtype F32, F16, BF16 or I8";

impl FileDtype {
    /// Bytes of one number.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::I8 | Self::U8 | Self::Bool => 1,
        }
    }

    /// The name in headers.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::I8 => "I8",
            Self::U8 => "U8",
            Self::Bool => "BOOL",
        }
    }

    fn parse(name: &str) -> Option<Self> {
        [Self::F32, Self::F16, Self::Bf16, Self::I8, Self::U8, Self::Bool]
            .into_iter()
            .find(|dtype| dtype.name() == name)
    }

    /// Appends numbers as little-endian bytes, each rounded to the nearest number of this type, ties to even.
    pub fn narrow(self, numbers: &[f32], bytes: &mut Vec<u8>) {
        match self {
            Self::F32 => bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes())),
            Self::F16 => bytes.extend(numbers.iter().flat_map(|&number| half::f16::from_f32(number).to_le_bytes())),
            Self::Bf16 => bytes.extend(numbers.iter().flat_map(|&number| half::bf16::from_f32(number).to_le_bytes())),
            Self::I8 => bytes.extend(numbers.iter().map(|&number| {
                let integer = number.round_ties_even().clamp(-127.0, 127.0) as i8;
                integer.cast_unsigned()
            })),
            Self::U8 | Self::Bool => {
                bytes.extend(numbers.iter().map(|number| number.round_ties_even().clamp(0.0, 255.0) as u8));
            }
        }
    }

    /// Appends little-endian numbers as f32; leftover bytes are ignored.
    pub fn widen(self, bytes: &[u8], numbers: &mut Vec<f32>) {
        match self {
            Self::F32 => numbers.extend(bytes.as_chunks().0.iter().map(|&four| f32::from_le_bytes(four))),
            Self::F16 => numbers.extend(bytes.as_chunks().0.iter().map(|&two| half::f16::from_le_bytes(two).to_f32())),
            Self::Bf16 => {
                numbers.extend(bytes.as_chunks().0.iter().map(|&two| half::bf16::from_le_bytes(two).to_f32()))
            }
            Self::I8 => numbers.extend(bytes.iter().map(|byte| f32::from(byte.cast_signed()))),
            Self::U8 | Self::Bool => numbers.extend(bytes.iter().map(|&byte| f32::from(byte))),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Info {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl Header {
    /// Reads the header, of at most `limit` bytes, of a file of `size` bytes. Fails if the header is malformed or too
    /// long, or if the tensors overlap, leave gaps or do not end with the file.
    pub fn read(from: &mut impl Read, file: &Path, size: u64, limit: u64) -> Result<Self> {
        let wrong = |key: &str, expected: String, found: String| Err(Error::checkpoint(file, key, expected, found));
        if size < PREFIX as u64 {
            let found = if size == 0 { "an empty file".into() } else { format!("{size} bytes") };
            return wrong("the file", format!("at least {PREFIX} bytes"), found);
        }
        let mut prefix = [0; PREFIX];
        from.read_exact(&mut prefix).map_err(Error::io(file))?;
        match &prefix {
            b"version " => return wrong("the file", "safetensors".into(), LFS_POINTER.into()),
            [0, 0, 0, 0, 0, 0, 0, 0] => return wrong("the file", "safetensors".into(), ZEROS_AT_START.into()),
            start if is_web_page(start) => return wrong("the file", "safetensors".into(), WEB_PAGE.into()),
            _ => {}
        }
        let length = u64::from_le_bytes(prefix);
        let room = size - PREFIX as u64;
        if length > room {
            let expected = format!("at most the {room} bytes that follow it");
            return wrong("header length", expected, format!("{length} bytes"));
        }
        if length > limit {
            let expected = format!("at most {limit} bytes for these tensors");
            return wrong("header length", expected, format!("{length} bytes"));
        }
        let mut bytes = prefix.to_vec();
        from.take(length).read_to_end(&mut bytes).map_err(Error::io(file))?;
        let text = bytes.get(PREFIX..).unwrap_or_default();
        if text.len() as u64 != length {
            return wrong("header", format!("{length} bytes"), format!("{} bytes", text.len()));
        }
        if text.first() != Some(&b'{') {
            let found = format!("{:?}", text.first().map(|&byte| char::from(byte)));
            return wrong("header", "a JSON object".into(), found);
        }
        let items: UniqueMap<Box<RawValue>> = json::parse(text, file, "")?;
        let tensors = entries(items.0, file, room - length)?;
        Ok(Self { tensors, bytes })
    }
}

/// Sorts the tensors by offset and checks that they fill the `data` bytes after the header.
fn entries(items: BTreeMap<String, Box<RawValue>>, file: &Path, data: u64) -> Result<Vec<TensorEntry>> {
    let mut placed = Vec::with_capacity(items.len());
    for (name, item) in items {
        if name != METADATA {
            let info: Info = json::parse(item.get().as_bytes(), file, &name)?;
            placed.push((info.data_offsets, entry(name, info, file)?));
        }
    }
    // an empty tensor starts where the next one starts: the end decides
    placed.sort_by_key(|(offsets, _)| *offsets);
    let mut end = 0;
    for ((from, to), entry) in &placed {
        if *from != end {
            let key = format!("{} data_offsets", entry.name);
            let found = format!("{from} ({})", if *from < end { "they overlap" } else { "there is a gap" });
            return Err(Error::checkpoint(file, key, format!("a start at {end}"), found));
        }
        end = *to;
    }
    if end != data {
        let found = format!("{data} bytes ({})", if data < end { "truncated" } else { "trailing bytes" });
        return Err(Error::checkpoint(file, "the file", format!("{end} bytes of numbers"), found));
    }
    Ok(placed.into_iter().map(|(_, entry)| entry).collect())
}

fn entry(name: String, info: Info, file: &Path) -> Result<TensorEntry> {
    let Some(dtype) = FileDtype::parse(&info.dtype) else {
        return Err(Error::checkpoint(file, name, USED_DTYPES, format!("dtype {:?}", info.dtype)));
    };
    if dtype == FileDtype::I8 && info.shape.len() != 2 {
        return Err(Error::checkpoint(file, name, "two axes for dtype I8", format!("shape {:?}", info.shape)));
    }
    let product = info.shape.iter().try_fold(1_u64, |product, &dim| product.checked_mul(dim));
    let bytes = product.and_then(|numbers| numbers.checked_mul(dtype.bytes() as u64));
    let (from, to) = info.data_offsets;
    let found = to.checked_sub(from);
    if bytes.is_none() || bytes != found {
        let expected = match bytes {
            Some(bytes) => format!("offsets {bytes} bytes apart for {} {:?}", dtype.name(), info.shape),
            None => "a shape whose size fits into 64 bits".into(),
        };
        return Err(Error::checkpoint(file, name, expected, format!("shape {:?}, offsets [{from}, {to}]", info.shape)));
    }
    let narrow =
        |wide: u64| usize::try_from(wide).map_err(|_| Error::checkpoint(file, &*name, "a size that fits", "more"));
    let shape = info.shape.iter().map(|&dim| narrow(dim)).collect::<Result<_>>()?;
    let numbers = narrow(product.unwrap_or_default())?;
    Ok(TensorEntry { shape, numbers, dtype, name })
}
