//! Reads weights: the specified tensors, every element finite, hashed on the way. Other tensors are an error, except in folders of Hugging
//! Face. Tensors keep the number type of their file, so that a bf16 or int8 checkpoint does not take the memory of f32 while it is
//! loaded.

pub use crate::checkpoint::file_dtype::FileDtype;
pub(crate) use crate::checkpoint::file_dtype::check_range;
use crate::checkpoint::file_dtype::{MAX, check_finite};
use crate::checkpoint::files::{
    self, LFS_POINTER, UniqueMap, WEB_PAGE, ZEROS_AT_START, contents, is_inside, is_web_page, parent, placeholder,
};
use crate::checkpoint::row_table::{OpenTable, RowTable};
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::File,
    io::{ErrorKind, Read, Seek, SeekFrom},
    path::{Component, Path, PathBuf},
};
use weir_kernels::error::{Error, QUOTED, Result, clip, printable};

/// The treatment of tensors that a model does not use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnusedTensors {
    /// They are an error, except for constants. Used for weir's own format, and for projects that load weights strictly.
    Refused,
    /// They are left unread, as in transformers, and a warning names them.
    Ignored,
}

/// The matrix of logits in Hugging Face's layout. If it is tied, files have it, the embedding, or copies of both.
pub const HEAD: &str = "lm_head.weight";

/// The `expected` part of the error for a file that lacks it.
pub const EXPECTED_HEAD: &str = "a tensor, unless tie_word_embeddings is true";

/// A tensor that a checkpoint must hold.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorSpec {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The way in which `weir init` fills it.
    pub init: Init,
    /// True if its elements are trained, and so counted as parameters.
    pub trained: bool,
    /// Name of the tensor that it is tied to: files have one of them, or copies of both.
    pub tied_to: Option<&'static str>,
    /// True for a matrix that stays in its file, from which single rows are read: a [`RowTable`].
    pub stays_in_file: bool,
    /// True for a matrix that no file has as integers, which would move boundaries.
    pub stays_float: bool,
}

impl TensorSpec {
    /// Returns a trained tensor that `weir init` draws from a normal distribution.
    pub fn normal(name: impl Into<String>, shape: Vec<usize>, mean: f32, deviation: f32) -> Self {
        Self {
            name: name.into(),
            shape,
            init: Init::Normal(mean, deviation),
            trained: true,
            tied_to: None,
            stays_in_file: false,
            stays_float: false,
        }
    }

    /// Returns a tensor that `weir init` fills with zeros.
    pub fn zeros(name: impl Into<String>, shape: Vec<usize>) -> Self {
        Self::normal(name, shape, 0.0, 0.0)
    }

    /// Elements that memory holds: none of a tensor that stays in its file.
    pub fn loaded_numbers(&self) -> usize {
        if self.stays_in_file { 0 } else { self.numbers() }
    }

    /// Element count; `usize::MAX` if that overflows.
    pub fn numbers(&self) -> usize {
        self.shape.iter().fold(1, |product: usize, &dim| product.saturating_mul(dim))
    }
}

/// The way in which `weir init` fills a tensor.
#[derive(Debug, Clone, PartialEq)]
pub enum Init {
    /// Normally distributed, with this mean and standard deviation.
    Normal(f32, f32),
    /// These elements.
    Values(Vec<f32>),
    /// Normally distributed around 0 with this standard deviation, except for these columns of the matrix.
    Columns(f32, Vec<Column>),
}

/// A column of a matrix.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// Its index.
    pub index: usize,
    /// Its elements, one for each row.
    pub values: Vec<f32>,
}

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
    /// Little-endian elements of the tensor's type.
    Bytes(Vec<u8>),
    /// The integers of an I8 matrix, and a scale for each row.
    Scaled {
        bytes: Vec<u8>,
        scales: Vec<f32>,
    },
}

impl Tensor {
    /// Creates a tensor of the elements `numbers`, row-major.
    pub fn f32(shape: Vec<usize>, numbers: Vec<f32>) -> Self {
        Self { dtype: FileDtype::F32, shape, numbers: Numbers::F32(numbers) }
    }

    /// Returns a tensor of this type, for `count` elements that [`push`](Self::push) adds.
    pub(crate) fn with_capacity(dtype: FileDtype, shape: Vec<usize>, count: usize) -> Self {
        let numbers = match dtype {
            FileDtype::F32 | FileDtype::F64 => Numbers::F32(Vec::with_capacity(count)),
            FileDtype::F16 | FileDtype::Bf16 => Numbers::Bytes(Vec::with_capacity(dtype.bytes() * count)),
            FileDtype::I8 => Numbers::Scaled { bytes: Vec::with_capacity(count), scales: Vec::new() },
        };
        let dtype = if dtype == FileDtype::F64 { FileDtype::F32 } else { dtype };
        Self { dtype, shape, numbers }
    }

    /// Adds elements of the file, and the same elements in f32.
    pub(crate) fn push(&mut self, bytes: &[u8], widened: &[f32]) {
        match &mut self.numbers {
            Numbers::F32(numbers) => numbers.extend_from_slice(widened),
            Numbers::Bytes(stored) | Numbers::Scaled { bytes: stored, .. } => stored.extend_from_slice(bytes),
        }
    }

    /// Sets the scales of the rows of an I8 matrix, after all its elements were added. Without effect on other tensors.
    pub(crate) fn set_scales(&mut self, new: Vec<f32>) {
        if let Numbers::Scaled { scales, .. } = &mut self.numbers {
            *scales = new;
        }
    }

    /// Element type: the file's, or f32 for f64.
    pub fn dtype(&self) -> FileDtype {
        self.dtype
    }

    /// Element count.
    pub fn len(&self) -> usize {
        match &self.numbers {
            Numbers::F32(numbers) => numbers.len(),
            Numbers::Bytes(bytes) | Numbers::Scaled { bytes, .. } => bytes.len() / self.dtype.bytes(),
        }
    }

    /// Bytes of its elements in the file, the scales of an I8 matrix included.
    pub fn file_bytes(&self) -> usize {
        let scales = match &self.numbers {
            Numbers::Scaled { scales, .. } => size_of_val(scales.as_slice()),
            Numbers::F32(_) | Numbers::Bytes(_) => 0,
        };
        self.dtype.bytes() * self.len() + scales
    }

    /// True if it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns its elements in f32, row-major.
    pub fn numbers(&self) -> Cow<'_, [f32]> {
        match &self.numbers {
            Numbers::F32(numbers) => Cow::Borrowed(numbers),
            Numbers::Bytes(bytes) => Cow::Owned(widened(self.dtype, bytes)),
            Numbers::Scaled { bytes, scales } => Cow::Owned(widen(bytes, scales)),
        }
    }

    /// Returns true if the elements of both are equal, in the same order.
    pub fn has_numbers_of(&self, other: &Self) -> bool {
        match (&self.numbers, &other.numbers) {
            (Numbers::Bytes(own), Numbers::Bytes(others)) if self.dtype == other.dtype => own == others,
            (own @ Numbers::Scaled { .. }, others) if own == others => true,
            _ => self.numbers() == other.numbers(),
        }
    }

    /// Returns its elements in f32, row-major.
    pub fn into_numbers(self) -> Vec<f32> {
        match self.numbers {
            Numbers::F32(numbers) => numbers,
            Numbers::Bytes(bytes) => widened(self.dtype, &bytes),
            Numbers::Scaled { bytes, scales } => widen(&bytes, &scales),
        }
    }
}

fn widened(dtype: FileDtype, bytes: &[u8]) -> Vec<f32> {
    let mut numbers = Vec::with_capacity(bytes.len() / dtype.bytes());
    dtype.widen(bytes, &mut numbers);
    numbers
}

// The header of a safetensors file: eight bytes of header length, then a JSON object; the elements follow.

/// Name of the header entry that is not a tensor.
const METADATA: &str = "__metadata__";

/// Bytes of the field with the header's length.
pub(crate) const PREFIX: usize = 8;

/// A checked header: tensors in the order of their data, without gaps, up to the end of the file.
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
    /// Element type, as the header names it: also types that no model uses.
    dtype: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Bytes of its elements.
    bytes: u64,
    /// Name and type under which it is read; none for a tensor that the model does not use.
    read_as: Option<(String, FileDtype)>,
}

/// Bytes of an element of each type of safetensors whose elements take whole bytes.
fn stored_bytes(dtype: &str) -> Option<u64> {
    match dtype {
        "F64" | "I64" | "U64" | "C64" => Some(8),
        "F32" | "I32" | "U32" => Some(4),
        "F16" | "BF16" | "I16" | "U16" => Some(2),
        "I8" | "U8" | "BOOL" | "F8_E4M3" | "F8_E5M2" | "F8_E8M0" => Some(1),
        _ => None,
    }
}

/// Types that only constants have: weights are floats or, with scales, of type I8.
const CONSTANT_DTYPES: [&str; 8] = ["BOOL", "U8", "I16", "U16", "I32", "U32", "I64", "U64"];

/// Ends of the names of constants that some versions of transformers wrote.
const CONSTANTS: [&str; 9] = [
    "rotary_emb.inv_freq",
    "rotary_emb.original_inv_freq",
    "rotary_emb.cos_cached",
    "rotary_emb.sin_cached",
    ".attn.bias",
    ".attn.masked_bias",
    ".attention.bias",
    ".attention.masked_bias",
    "position_ids",
];

/// Maximum axes of a tensor.
const MAX_AXES: usize = 8;

/// The types of tensors that a model uses, for messages.
pub(crate) const USED_DTYPES: &str = "dtype F64, F32, F16, BF16 or I8";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Info {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl Header {
    /// Reads the header, of at most `limit` bytes, of a file of `size` bytes. Tensors must fill the file without gap or overlap.
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
            let found = text.first().map_or("nothing".into(), |&byte| format!("{:?}", char::from(byte)));
            return wrong("header", "a JSON object".into(), found);
        }
        let items: UniqueMap<Box<RawValue>> = files::parse(text, file, "")?;
        let tensors = entries(items.0, file, room - length)?;
        Ok(Self { tensors, bytes })
    }
}

/// Sorts the tensors by offset and checks that they fill the `data` bytes after the header.
fn entries(items: BTreeMap<String, Box<RawValue>>, file: &Path, data: u64) -> Result<Vec<TensorEntry>> {
    let mut placed = Vec::with_capacity(items.len());
    for (name, item) in items {
        if name != METADATA {
            let info: Info = files::parse(item.get().as_bytes(), file, &name)?;
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
    let wrong = |expected: String, found: String| Err(Error::checkpoint(file, &*name, expected, found));
    if info.shape.len() > MAX_AXES {
        return wrong(format!("at most {MAX_AXES} axes"), info.shape.len().to_string());
    }
    let (from, to) = info.data_offsets;
    let size = stored_bytes(&info.dtype);
    let product = info.shape.iter().try_fold(size.unwrap_or(1), |product, &dim| product.checked_mul(dim));
    let shape = info.shape.iter().map(|&dim| usize::try_from(dim).ok()).collect::<Option<Vec<_>>>();
    let (Some(bytes), Some(shape)) = (product, shape) else {
        return wrong("a shape whose size fits into 64 bits".into(), format!("shape {:?}", info.shape));
    };
    let found = to.checked_sub(from);
    if found.is_none() || (size.is_some() && found != Some(bytes)) {
        let expected = format!("offsets {bytes} bytes apart for {} {shape:?}", info.dtype);
        return wrong(expected, format!("shape {shape:?}, offsets [{from}, {to}]"));
    }
    let bytes = found.unwrap_or(bytes);
    Ok(TensorEntry { shape, bytes, dtype: info.dtype, read_as: None, name })
}

impl TensorEntry {
    /// Returns true for a tensor that no model computes with.
    fn is_constant(&self) -> bool {
        CONSTANT_DTYPES.contains(&&*self.dtype) || is_constant(&self.name)
    }

    /// Returns the type of a tensor of the model. Fails unless models compute with it.
    fn used_dtype(&self, file: &Path) -> Result<FileDtype> {
        let wrong = |expected: &str, found: String| Err(Error::checkpoint(file, &*self.name, expected, found));
        match FileDtype::parse(&self.dtype) {
            None => wrong(USED_DTYPES, format!("dtype {:?}", self.dtype)),
            Some(FileDtype::I8) if self.shape.len() != 2 => {
                wrong("two axes for dtype I8", format!("shape {:?}", self.shape))
            }
            Some(dtype) => Ok(dtype),
        }
    }

    fn is_int8(&self) -> bool {
        self.dtype == FileDtype::I8.name()
    }
}

fn is_constant(name: &str) -> bool {
    CONSTANTS.iter().any(|end| name.ends_with(end))
}

// Matrices in int8: `NAME` has type I8, and `NAME_scale` has an f32 scale for each of its rows. The names follow Hugging Face's
// compressed-tensors. The value of an element is its integer times the scale of its row, computed in f32.

/// Suffix of the name of a matrix's scales.
const SUFFIX: &str = "_scale";

/// The largest scale whose product with [`MAX`] is finite.
const MAX_SCALE: f32 = (f32::MAX / MAX).next_down();

pub(crate) fn scale_name(matrix: &str) -> String {
    format!("{matrix}{SUFFIX}")
}

/// Returns the names of the scales that files may hold in addition to the tensors of `specs`: one for each matrix.
pub(crate) fn possible_scales(specs: &[TensorSpec]) -> BTreeSet<String> {
    let matrices = specs.iter().filter(|spec| spec.shape.len() == 2);
    let mut scales: BTreeSet<String> = matrices.map(|spec| scale_name(&spec.name)).collect();
    // A tensor of the model is never a scale.
    for spec in specs {
        scales.remove(&spec.name);
    }
    scales
}

/// Returns the names of the scales among the tensors of a model, in `tensors` with their files. Fails unless each I8 matrix, and
/// nothing else, has F32 scales for its rows.
fn check_scales(
    tensors: &BTreeMap<&str, (&Path, &TensorEntry)>,
    specs: &HashMap<&str, &TensorSpec>,
) -> Result<BTreeSet<String>> {
    let mut scales = BTreeSet::new();
    for (file, matrix) in tensors.values().filter(|(_, entry)| entry.is_int8()) {
        let name = scale_name(&matrix.name);
        let found = tensors.get(name.as_str()).filter(|_| !specs.contains_key(name.as_str()));
        check_entry(file, matrix, &name, found)?;
        scales.insert(name);
    }
    match tensors.iter().find(|(name, _)| !specs.contains_key(*name) && !scales.contains(**name)) {
        Some((name, (file, _))) => {
            let expected = "no tensor of this name, because its matrix is not of type I8";
            Err(Error::checkpoint(*file, *name, expected, "one"))
        }
        None => Ok(scales),
    }
}

/// Checks type and shape of the scales `name` of a matrix in `file`.
fn check_entry(file: &Path, matrix: &TensorEntry, name: &str, found: Option<&(&Path, &TensorEntry)>) -> Result<()> {
    let shape = matrix.shape.get(..1).unwrap_or_default();
    let expected = format!("the scales of {}: dtype F32, shape {shape:?}", matrix.name);
    match found {
        None => Err(Error::checkpoint(file, name, expected, "none")),
        Some((file, scales)) if scales.dtype != FileDtype::F32.name() || scales.shape != shape => {
            let found = format!("dtype {}, shape {:?}", scales.dtype, scales.shape);
            Err(Error::checkpoint(*file, name, expected, found))
        }
        Some(_) => Ok(()),
    }
}

/// Checks the numbers of scales. The error names the first one that is not positive, or so large that a number would not be finite.
pub(crate) fn check_scale_numbers(file: &Path, name: &str, scales: &[f32]) -> Result<()> {
    match scales.iter().position(|scale| !(*scale > 0.0 && *scale <= MAX_SCALE)) {
        None => Ok(()),
        Some(index) => {
            let expected = format!("scales above 0 and at most {MAX_SCALE:e}");
            Err(Error::checkpoint(file, name, expected, format!("{:e} at index {index}", scales[index])))
        }
    }
}

/// Rounds a matrix, row-major, to int8 as the kernels do. Returns the scales of its `rows`, and its integers. The scale of a row
/// maps its largest magnitude to 127; a row whose magnitudes have no finite inverse becomes zeros with scale 1.
pub(crate) fn quantize(numbers: &[f32], rows: usize) -> (Vec<f32>, Vec<u8>) {
    let columns = (numbers.len() / rows.max(1)).max(1);
    let mut scales = Vec::with_capacity(rows);
    let mut bytes = Vec::with_capacity(numbers.len());
    for row in numbers.chunks_exact(columns) {
        let scale = (row.iter().fold(0.0_f32, |max, number| max.max(number.abs())) / MAX).min(MAX_SCALE);
        let inverse = 1.0 / scale;
        let (scale, inverse) = if inverse.is_finite() { (scale, inverse) } else { (1.0, 0.0) };
        let scaled: Vec<f32> = row.iter().map(|number| number * inverse).collect();
        FileDtype::I8.narrow(&scaled, &mut bytes);
        scales.push(scale);
    }
    // A matrix without columns has scales too.
    scales.resize(rows, 1.0);
    (scales, bytes)
}

/// Multiplies the integers of a matrix, row-major, with the scales of its rows.
pub(crate) fn widen(bytes: &[u8], scales: &[f32]) -> Vec<f32> {
    let columns = (bytes.len() / scales.len().max(1)).max(1);
    let mut numbers = Vec::with_capacity(bytes.len());
    for (row, scale) in bytes.chunks_exact(columns).zip(scales) {
        numbers.extend(row.iter().map(|byte| f32::from(byte.cast_signed()) * scale));
    }
    numbers
}

// The files of a checkpoint's weights: one, or several and an index (Hugging Face's convention).

/// The only file of weights, if there is no index.
pub const WEIGHTS_FILE: &str = "model.safetensors";

/// The index of several files.
pub const INDEX_FILE: &str = "model.safetensors.index.json";

/// Weights as PyTorch pickles them, which conversions and the family `t5` read.
pub const PICKLE_FILE: &str = "pytorch_model.bin";

/// The index of several pickles.
pub const PICKLE_INDEX_FILE: &str = "pytorch_model.bin.index.json";

const MAX_INDEX_BYTES: u64 = 16 << 20;

/// Bytes at the beginning of a file that show whether it is a placeholder.
const BEGINNING: u64 = 64;

/// A format of weights.
#[derive(Debug, Clone, Copy)]
pub struct FileKind {
    single: &'static str,
    index: &'static str,
    ending: &'static str,
    /// The expectation of a name in the index.
    plain: &'static str,
}

const SAFETENSORS: FileKind = FileKind {
    single: WEIGHTS_FILE,
    index: INDEX_FILE,
    ending: ".safetensors",
    plain: "the plain name of a .safetensors file in this folder",
};

/// Weights as PyTorch pickles them.
pub(crate) const PICKLES: FileKind = FileKind {
    single: PICKLE_FILE,
    index: PICKLE_INDEX_FILE,
    ending: ".bin",
    plain: "the plain name of a .bin file in this folder",
};

/// One file of weights.
#[derive(Debug)]
pub struct Shard {
    /// The file.
    pub file: PathBuf,
    /// Names of the tensors that an index lists for it; none without an index. Others in the file are ignored: shards of another
    /// model may be reused.
    pub names: Option<BTreeSet<String>>,
}

impl Shard {
    /// Returns true for a tensor of the checkpoint that is in this file.
    pub fn has(&self, name: &str) -> bool {
        self.names.as_ref().is_none_or(|names| names.contains(name))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Index {
    #[serde(rename = "metadata")]
    _metadata: Option<serde::de::IgnoredAny>,
    weight_map: UniqueMap<String>,
}

/// Returns the files of weights in a folder, in the order of their names. Fails if the index names no plain files, or if there are none.
pub fn shards(dir: &Path) -> Result<Vec<Shard>> {
    let shards = shards_of(dir, SAFETENSORS)?;
    if shards.is_empty() { Err(missing(dir, dir.join(WEIGHTS_FILE))) } else { Ok(shards) }
}

/// Returns the files of weights of a format: the single file if there is one, even next to an index, as in transformers; otherwise those of
/// the index, which must be plain files of the folder.
pub(crate) fn shards_of(dir: &Path, kind: FileKind) -> Result<Vec<Shard>> {
    if let Some(file) = files::present(dir, kind.single)? {
        return Ok(vec![Shard { file, names: None }]);
    }
    let Some(index_file) = files::present(dir, kind.index)? else { return Ok(Vec::new()) };
    let index = read_index(&index_file)?;
    if index.weight_map.0.is_empty() {
        return Err(Error::checkpoint(index_file, "weight_map", "names of tensors", "none"));
    }
    listed(dir, &index_file, index, kind)
}

/// The error for a folder without weights.
fn missing(dir: &Path, single: PathBuf) -> Error {
    let found = match [PICKLE_FILE, PICKLE_INDEX_FILE].iter().find(|name| dir.join(name).exists()) {
        Some(name) => match placeholder(&beginning(&dir.join(name))) {
            Some(instead) => format!("only {name}, which is {instead}"),
            None => format!("only {name} (transformers can save it as safetensors)"),
        },
        None => format!("neither; {}", contents(dir)),
    };
    Error::checkpoint(single, "the file", format!("{WEIGHTS_FILE} or {INDEX_FILE}"), found)
}

/// Returns the first bytes of a file, for a message. A file that cannot be read has other bytes than any placeholder.
fn beginning(file: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = files::open(file).and_then(|(opened, _)| opened.take(BEGINNING).read_to_end(&mut bytes));
    if read.is_ok() { bytes } else { vec![1] }
}

/// Returns the sorted names of the files that an index names, which need not exist, but must be plain files of its kind.
pub fn indexed_files(dir: &Path, index: &str) -> Result<Vec<String>> {
    let kind = if index == PICKLE_INDEX_FILE { PICKLES } else { SAFETENSORS };
    let index = dir.join(index);
    let checked = |(file, names): (String, BTreeSet<String>)| match is_plain(&file, kind) {
        true => Ok(file),
        false => Err(misnamed(&index, &file, &names, kind.plain)),
    };
    by_file(read_index(&index)?).into_iter().map(checked).collect()
}

fn read_index(file: &Path) -> Result<Index> {
    files::parse(&files::read_limited(file, MAX_INDEX_BYTES)?, file, "")
}

fn by_file(index: Index) -> BTreeMap<String, BTreeSet<String>> {
    let mut shards: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, file) in index.weight_map.0 {
        // transformers appends the name to that of the folder
        let plain = file.strip_prefix("./").filter(|plain| !plain.contains('/'));
        shards.entry(plain.map(str::to_owned).unwrap_or(file)).or_default().insert(name);
    }
    shards
}

/// Returns the files that an index names. Fails if one is not a plain file of the folder.
fn listed(dir: &Path, index: &Path, map: Index, kind: FileKind) -> Result<Vec<Shard>> {
    let shard = |(file, names): (String, BTreeSet<String>)| {
        let file = inside(dir, index, &file, &names, kind)?;
        Ok(Shard { file, names: Some(names) })
    };
    by_file(map).into_iter().map(shard).collect()
}

/// Checks that a file holds exactly the `expected` tensors and constants. The error names the first missing or superfluous one.
pub fn same_names<'a>(
    file: &Path,
    expected: &BTreeSet<String>,
    found: impl IntoIterator<Item = &'a String>,
) -> Result<()> {
    let found: BTreeSet<&String> = found.into_iter().collect();
    none_missing(file, expected.iter().filter(|name| !found.contains(name)))?;
    let superfluous = found.into_iter().filter(|name| !expected.contains(*name) && !is_constant(name));
    none_of(file, superfluous, "no tensor of this name", "one")
}

/// Fails for the first of the `missing` names.
pub(crate) fn none_missing(file: &Path, missing: impl IntoIterator<Item = impl AsRef<str>>) -> Result<()> {
    let mut missing = missing.into_iter().peekable();
    let is_head = missing.peek().is_some_and(|name| name.as_ref() == HEAD);
    none_of(file, missing, if is_head { EXPECTED_HEAD } else { "a tensor" }, "none")
}

/// Maximum names in a warning about ignored tensors.
const NAMED: usize = 3;

/// A table in files of T5 v1.0 that no model reads, and that needs no warning.
const STALE: &str = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight";

/// Warns of tensors at `place` that a model does not use, if there are any.
pub(crate) fn warn_of_unused<'a>(place: &Path, names: impl IntoIterator<Item = &'a str>) {
    let names: BTreeSet<&str> = names.into_iter().filter(|name| *name != STALE).collect();
    if names.is_empty() {
        return;
    }
    let first: Vec<_> = names.iter().take(NAMED).map(|name| printable(&clip(name, QUOTED))).collect();
    let more = if names.len() > NAMED { ", …" } else { "" };
    let first = first.join(", ");
    let count = names.len();
    tracing::warn!("{}: ignored tensors that the model does not use ({count}): {first}{more}", place.display());
}

/// Fails for the first of the `wrong` names.
fn none_of(file: &Path, wrong: impl IntoIterator<Item = impl AsRef<str>>, expected: &str, found: &str) -> Result<()> {
    let mut wrong = wrong.into_iter();
    let Some(first) = wrong.next() else { return Ok(()) };
    let found = match wrong.count() {
        0 => found.to_owned(),
        more => format!("{found} ({more} more of the kind)"),
    };
    Err(Error::checkpoint(file, first.as_ref(), expected, found))
}

/// Returns the path of a file that an index names. The index is data: it must not reach out of the folder, nor through links.
fn inside(dir: &Path, index: &Path, file: &str, names: &BTreeSet<String>, kind: FileKind) -> Result<PathBuf> {
    let wrong = |expected: &str| Err(misnamed(index, file, names, expected));
    if !is_plain(file, kind) {
        return wrong(kind.plain);
    }
    let path = dir.join(file);
    if !path.exists() {
        return wrong("a file that the folder has");
    }
    if is_inside(dir, &path)? { Ok(path) } else { wrong("a file in this folder, not a link out of it") }
}

fn is_plain(file: &str, kind: FileKind) -> bool {
    let mut components = Path::new(file).components();
    let plain = matches!((components.next(), components.next()), (Some(Component::Normal(only)), None) if only == file);
    plain && !file.contains(['/', '\\', '\0']) && file.ends_with(kind.ending)
}

/// The error for a file that an index must not name.
fn misnamed(index: &Path, file: &str, names: &BTreeSet<String>, expected: &str) -> Error {
    let key = names.first().map(|name| format!("weight_map.{name}")).unwrap_or_default();
    Error::checkpoint(index, key, expected, format!("{file:?}"))
}

// `card.json`: facts about a checkpoint. The writer states the digest of the weights; the loader also reads what the model is for.

/// The name of the file.
pub const CARD_FILE: &str = "card.json";

/// Maximum size of `card.json`.
const MAX_BYTES: u64 = 1 << 20;

/// The part of a card that the loader reads. Other keys are for people and for the training tools.
#[derive(Deserialize)]
pub(crate) struct Card {
    sha256: Option<String>,
    /// The model's purpose, in a few words.
    #[serde(default)]
    pub(crate) scope: String,
}

/// Maximum bytes of a card's scope.
pub(crate) const MAX_SCOPE: usize = 256;

/// Checks that the card of the checkpoint at `dir` states a digest, which [`check_digest`] then compares.
pub(crate) fn require_digest(card: Option<Card>, dir: &Path) -> Result<()> {
    let found = match card {
        Some(Card { sha256: Some(_), .. }) => return Ok(()),
        Some(Card { sha256: None, .. }) => "nothing",
        None => "no card",
    };
    Err(Error::checkpoint(
        dir.join(CARD_FILE),
        "sha256",
        "the digest of the weights, which --require-sha256 asks for",
        found,
    ))
}

/// Compares the SHA-256 of the weights of the checkpoint at `dir` with the one in its card, if it states one.
pub(crate) fn check_digest(card: Option<Card>, dir: &Path, sha256: &str) -> Result<()> {
    match card.and_then(|card| card.sha256) {
        Some(stated) if !stated.eq_ignore_ascii_case(sha256) => {
            let expected = format!("{}, as {CARD_FILE} states", clip(&stated, 64));
            Err(Error::checkpoint(dir, "sha256 of the weights", expected, sha256))
        }
        _ => Ok(()),
    }
}

/// Reads the card of the checkpoint in a folder, if it has one. Fails if it cannot be read.
pub(crate) fn read_card(dir: &Path) -> Result<Option<Card>> {
    let Some(file) = files::present(dir, CARD_FILE)? else { return Ok(None) };
    parse_card(&files::read_limited(&file, MAX_BYTES)?, &file).map(Some)
}

/// Parses a card; errors name `file`. Fails if a key has the wrong type.
pub(crate) fn parse_card(text: &[u8], file: &Path) -> Result<Card> {
    files::parse(text, file, "")
}

/// Rows of a table that stays in its file, evenly spaced, that the digest of a checkpoint without a card covers.
const SAMPLED_ROWS: usize = 4096;

/// Bytes read at a time. They, and the same numbers in f32, are the only memory in addition to the weights.
const CHUNK: usize = 1 << 20;

/// Header bytes allowed for metadata, padding and the tensors that a model does not use.
const HEADER_BYTES: u64 = 2 << 20;

/// Header bytes allowed for each tensor that a model uses, in addition to its name.
const HEADER_BYTES_A_TENSOR: u64 = 512;

/// Most header bytes if the tensors are not known in advance.
const MAX_HEADER_BYTES: u64 = 16 << 20;

/// The tensors of a checkpoint, checked against their specifications.
#[derive(Debug, Default)]
pub struct Weights {
    tensors: HashMap<String, Tensor>,
    /// The tables that stay in their file.
    tables: HashMap<String, RowTable>,
}

impl Weights {
    /// Moves a tensor's elements out, in f32 and row-major. Fails if the tensor was not read or was taken before.
    pub fn take(&mut self, name: &str) -> Result<Vec<f32>> {
        self.take_tensor(name).map(Tensor::into_numbers)
    }

    /// Moves a tensor out. Fails as [`take`](Self::take) does.
    pub fn take_tensor(&mut self, name: &str) -> Result<Tensor> {
        let missing = || Error::Internal(format!("tensor {name} was not read or was taken before"));
        self.tensors.remove(name).ok_or_else(missing)
    }

    /// Moves a table out that stays in its file, or that was read as a tensor. Fails if it is neither, or no matrix.
    pub fn take_table(&mut self, name: &str) -> Result<RowTable> {
        if let Some(table) = self.tables.remove(name) {
            return Ok(table);
        }
        let tensor = self.take_tensor(name)?;
        let not_a_matrix = |_| Error::Internal(format!("{name} is no matrix"));
        let shape = <[usize; 2]>::try_from(tensor.shape.clone()).map_err(not_a_matrix)?;
        Ok(RowTable::in_memory(name, shape, &tensor.numbers()))
    }

    /// Returns a table that stays in its file, unless it was taken.
    pub fn table(&self, name: &str) -> Option<&RowTable> {
        self.tables.get(name)
    }

    /// Adds a table that stays in its file.
    pub fn insert_table(&mut self, name: String, table: RowTable) {
        self.tables.insert(name, table);
    }

    /// Collects the tensors of `specs`, whose numbers `numbers` returns.
    pub fn collect(specs: Vec<TensorSpec>, mut numbers: impl FnMut(&TensorSpec) -> Result<Vec<f32>>) -> Result<Self> {
        let mut weights = Self::default();
        for spec in specs {
            let numbers = numbers(&spec)?;
            weights.insert(spec.name, Tensor::f32(spec.shape, numbers));
        }
        Ok(weights)
    }

    /// Returns a tensor, unless it was not read or was taken.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// Returns all tensors that were read and not taken, with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Tensor)> {
        self.tensors.iter()
    }

    /// Adds a tensor.
    pub fn insert(&mut self, name: String, tensor: Tensor) {
        self.tensors.insert(name, tensor);
    }

    /// Moves the scales of int8 matrices, which were read as tensors, into their matrices.
    fn join_scales(&mut self) -> Result<()> {
        let matrices = self.tensors.iter().filter(|(_, tensor)| tensor.dtype() == FileDtype::I8);
        let names: Vec<String> = matrices.map(|(name, _)| name.clone()).collect();
        for name in names {
            let scales = self.take(&scale_name(&name))?;
            if let Some(matrix) = self.tensors.get_mut(&name) {
                matrix.set_scales(scales);
            }
        }
        for (name, table) in self.tables.iter_mut().filter(|(_, table)| table.dtype() == FileDtype::I8) {
            let missing = || Error::Internal(format!("the scales of {name} were not read"));
            let scales = self.tensors.remove(&scale_name(name)).ok_or_else(missing)?;
            table.set_scales(scales.into_numbers());
        }
        Ok(())
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// True if there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }
}

/// Reads the weights of the checkpoint in `dir`, and the SHA-256 of their concatenated files. Fails unless the files hold
/// exactly these tensors, complete and finite, and have the digest that the card states. A table stays in its file: the digest is then
/// the card's, which only [`check_files`] compares, or covers 4,096 evenly spaced rows of the table if the card states none.
pub fn read_weights(dir: &Path, specs: &[TensorSpec]) -> Result<(Weights, String)> {
    read_weights_with_progress(dir, specs, &mut |_, _| {})
}

/// Reads weights as [`read_weights`] does, and reports bytes read and bytes to read to `progress`.
pub fn read_weights_with_progress(
    dir: &Path,
    specs: &[TensorSpec],
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Weights, String)> {
    read_weights_with(dir, specs, UnusedTensors::Refused, progress)
}

/// Reads weights as [`read_weights_with_progress`] does. `unused` tells whether the files may have other tensors.
pub fn read_weights_with(
    dir: &Path,
    specs: &[TensorSpec],
    unused: UnusedTensors,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Weights, String)> {
    // All headers first: a checkpoint whose last shard is wrong allocates nothing large.
    let (opened, scales) = open_shards(dir, specs, unused)?;
    let total = opened.iter().map(|shard| shard.size).sum();
    let mut reading = WeightsReader::new(total, scales, specs, progress);
    for OpenShard { shard, mut from, header, .. } in opened {
        reading.shard(&shard.file, &mut from, header)?;
    }
    let (weights, sha256) = reading.finish()?;
    let card = read_card(dir)?;
    if specs.iter().any(|spec| spec.stays_in_file) {
        return Ok((weights, card.and_then(|card| card.sha256).unwrap_or(sha256)));
    }
    check_digest(card, dir, &sha256)?;
    Ok((weights, sha256))
}

/// Reads the files of the weights in `dir` and compares their SHA-256 with the one that the card states, if it states one. Fails if they
/// differ.
pub fn check_files(dir: &Path) -> Result<()> {
    let mut digest = FilesDigest::default();
    for Shard { file, .. } in shards(dir)? {
        let (from, _) = files::open(&file).map_err(Error::io(&file))?;
        digest.add(from, &file)?;
    }
    digest.finish(dir).map(|_| ())
}

/// The SHA-256 of files, as if they were one file.
#[derive(Default)]
pub struct FilesDigest {
    hash: Sha256,
}

impl FilesDigest {
    /// Adds a whole open file, whose path errors name.
    pub fn add(&mut self, mut from: File, file: &Path) -> Result<()> {
        from.rewind().map_err(Error::io(file))?;
        let mut chunk = vec![0; CHUNK];
        loop {
            match from.read(&mut chunk).map_err(Error::io(file))? {
                0 => return Ok(()),
                read => self.hash.update(chunk.get(..read).unwrap_or_default()),
            }
        }
    }

    /// Returns the digest, in hexadecimal. Fails if the card of the checkpoint in `dir` states another.
    pub fn finish(self, dir: &Path) -> Result<String> {
        let sha256 = hexadecimal(&self.hash.finalize());
        check_digest(read_card(dir)?, dir, &sha256)?;
        Ok(sha256)
    }
}

/// Checks the headers of the weights in `dir`, but reads no elements. Fails unless the files hold these tensors. `unused` tells whether
/// they may have others.
pub fn check_headers(dir: &Path, specs: &[TensorSpec], unused: UnusedTensors) -> Result<()> {
    open_shards(dir, specs, unused).map(|_| ())
}

struct OpenShard<R> {
    shard: Shard,
    from: R,
    size: u64,
    header: Header,
}

impl<R: Read> OpenShard<R> {
    /// Reads the header of a file of `size` bytes, of at most `limit` bytes.
    fn read(shard: Shard, mut from: R, size: u64, limit: u64) -> Result<Self> {
        let header = Header::read(&mut from, &shard.file, size, limit)?;
        Ok(Self { shard, from, size, header })
    }
}

/// Opens the files of the weights in `dir` and selects the tensors of `specs`. Also returns the names of scales.
fn open_shards(
    dir: &Path,
    specs: &[TensorSpec],
    unused: UnusedTensors,
) -> Result<(Vec<OpenShard<File>>, BTreeSet<String>)> {
    let shards = shards(dir)?;
    let index = dir.join(INDEX_FILE);
    let listed: BTreeSet<String> = shards.iter().flat_map(|shard| shard.names.iter().flatten().cloned()).collect();
    let limit = header_limit(specs, &listed);
    if shards.iter().all(|shard| shard.names.is_some()) {
        check_present(&index, specs, |name| listed.contains(name))?;
    }
    let open = |shard: Shard| {
        let (from, size) = files::open(&shard.file).map_err(Error::io(&shard.file))?;
        OpenShard::read(shard, from, size, limit)
    };
    let mut shards: Vec<_> = shards.into_iter().map(open).collect::<Result<_>>()?;
    let scales = select(&mut shards, specs, unused)?;
    Ok((shards, scales))
}

/// Returns the maximum bytes of the header of a file with the tensors of `specs`, or with those that an index lists.
fn header_limit(specs: &[TensorSpec], listed: &BTreeSet<String>) -> u64 {
    let scales = possible_scales(specs);
    let names = specs.iter().map(|spec| &spec.name).chain(&scales).chain(listed);
    HEADER_BYTES + names.map(|name| name.len() as u64 + HEADER_BYTES_A_TENSOR).sum::<u64>()
}

/// Checks that each tensor of `specs` has one of its names.
fn check_present(file: &Path, specs: &[TensorSpec], is_present: impl Fn(&str) -> bool) -> Result<()> {
    let is_missing = |spec: &&TensorSpec| !is_present(&spec.name) && !spec.tied_to.is_some_and(&is_present);
    let missing: BTreeSet<&String> = specs.iter().filter(is_missing).map(|spec| &spec.name).collect();
    none_missing(file, missing)
}

/// Marks the tensors of `specs` in the headers. They may also have constants and copies of tied matrices, and any others if `unused`
/// tensors are ignored. Returns the names of scales.
fn select<R>(shards: &mut [OpenShard<R>], specs: &[TensorSpec], unused: UnusedTensors) -> Result<BTreeSet<String>> {
    let by_name: HashMap<&str, &TensorSpec> = specs.iter().map(|spec| (spec.name.as_str(), spec)).collect();
    let tied: HashMap<&str, &TensorSpec> = specs.iter().filter_map(|spec| Some((spec.tied_to?, spec))).collect();
    let mut scales = possible_scales(specs);
    if unused == UnusedTensors::Ignored {
        let entries = shards.iter().flat_map(|shard| &shard.header.tensors).filter(|entry| entry.is_int8());
        let int8: BTreeSet<String> = entries.map(|entry| scale_name(&entry.name)).collect();
        scales.retain(|name| int8.contains(name));
    }
    let is_known = |name: &str| by_name.contains_key(name) || tied.contains_key(name) || scales.contains(name);
    let mut tensors = BTreeMap::new();
    let mut ignored = BTreeSet::new();
    for OpenShard { shard, header, .. } in &*shards {
        let file = &*shard.file;
        let found: HashMap<&str, &TensorEntry> =
            header.tensors.iter().filter(|entry| shard.has(&entry.name)).map(|entry| (&*entry.name, entry)).collect();
        let lacks = |name: &&String| is_known(name) && !found.contains_key(name.as_str());
        none_missing(file, shard.names.iter().flatten().filter(lacks))?;
        if shard.names.is_none() {
            check_present(file, specs, |name| found.contains_key(name))?;
        }
        let listed: BTreeSet<&str> =
            found.keys().copied().chain(shard.names.iter().flatten().map(String::as_str)).collect();
        let is_ignored = |name: &str| found.get(name).map_or(is_constant(name), |entry| entry.is_constant());
        let superfluous = listed.iter().copied().filter(|name| !is_known(name) && !is_ignored(name));
        match unused {
            UnusedTensors::Refused => none_of(file, superfluous, "no tensor of this name", "one")?,
            UnusedTensors::Ignored => ignored.extend(superfluous),
        }
        for entry in header.tensors.iter().filter(|entry| shard.has(&entry.name)) {
            let name = entry.name.as_str();
            let spec = by_name.get(name).or_else(|| tied.get(name));
            if let Some(spec) = spec.filter(|spec| spec.shape != entry.shape) {
                let expected = format!("shape {:?}", spec.shape);
                return Err(Error::checkpoint(file, name, expected, format!("shape {:?}", entry.shape)));
            }
            if is_known(name) {
                tensors.insert(name, (file, entry));
            }
        }
    }
    if let [OpenShard { shard, .. }, ..] = &*shards {
        warn_of_unused(parent(&shard.file), ignored);
    }
    // A copy of a tensor that has its own name is not read.
    let copies = specs.iter().filter(|spec| tensors.contains_key(spec.name.as_str())).filter_map(|spec| spec.tied_to);
    let copies: BTreeSet<&str> = copies.filter(|name| !by_name.contains_key(name)).collect();
    tensors.retain(|name, _| !copies.contains(name));
    let mut names = HashMap::new();
    for (name, (file, entry)) in &tensors {
        let read =
            if by_name.contains_key(name) { *name } else { tied.get(name).map_or(*name, |spec| spec.name.as_str()) };
        names.insert((*name).to_owned(), (read.to_owned(), entry.used_dtype(file)?));
    }
    let used = tensors.iter().map(|(name, found)| (names.get(*name).map_or(*name, |(read, _)| read.as_str()), *found));
    let scales = check_scales(&used.collect(), &by_name)?;
    for OpenShard { shard, header, .. } in shards {
        for entry in header.tensors.iter_mut().filter(|entry| shard.has(&entry.name)) {
            entry.read_as = names.remove(&entry.name);
        }
    }
    Ok(scales)
}

/// Returns names and shapes of all tensors in `dir`, without scales of int8 matrices and without constants.
pub fn shapes_in(dir: &Path) -> Result<BTreeMap<String, Vec<usize>>> {
    let mut shapes = BTreeMap::new();
    let mut scales = Vec::new();
    for shard in shards(dir)? {
        let (from, size) = files::open(&shard.file).map_err(Error::io(&shard.file))?;
        let OpenShard { shard, header, .. } = OpenShard::read(shard, from, size, MAX_HEADER_BYTES)?;
        for entry in header.tensors.into_iter().filter(|entry| shard.has(&entry.name) && !entry.is_constant()) {
            if entry.is_int8() {
                scales.push(scale_name(&entry.name));
            }
            shapes.insert(entry.name, entry.shape);
        }
    }
    scales.iter().for_each(|name| drop(shapes.remove(name)));
    Ok(shapes)
}

/// Reads weights as [`read_weights`] does from the `size` bytes of one safetensors file; errors name `file`.
pub fn read_from(from: &[u8], size: u64, file: &Path, specs: &[TensorSpec]) -> Result<(Weights, String)> {
    let shard = Shard { file: file.to_path_buf(), names: None };
    let mut opened = [OpenShard::read(shard, from, size, header_limit(specs, &BTreeSet::new()))?];
    let scales = select(&mut opened, specs, UnusedTensors::Refused)?;
    let mut silent = |_, _| {};
    let mut reading = WeightsReader::new(size, scales, specs, &mut silent);
    let [OpenShard { mut from, header, .. }] = opened;
    reading.shard(file, &mut from, header)?;
    reading.finish()
}

trait WeightsFile: Read {
    /// Passes over bytes. Returns the file and their position in it; none, without passing them, if there is no file.
    fn pass(&mut self, bytes: u64) -> std::io::Result<Option<(File, u64)>>;
}

impl WeightsFile for File {
    fn pass(&mut self, bytes: u64) -> std::io::Result<Option<(File, u64)>> {
        let offset = self.stream_position()?;
        self.seek(SeekFrom::Start(offset + bytes))?;
        Ok(Some((self.try_clone()?, offset)))
    }
}

impl WeightsFile for &[u8] {
    fn pass(&mut self, _: u64) -> std::io::Result<Option<(File, u64)>> {
        Ok(None)
    }
}

struct WeightsReader<'a> {
    weights: Weights,
    scales: BTreeSet<String>,
    /// Names of the tensors that stay in their file.
    tables: BTreeSet<String>,
    hash: Sha256,
    done: u64,
    total: u64,
    progress: &'a mut dyn FnMut(u64, u64),
}

impl<'a> WeightsReader<'a> {
    fn new(total: u64, scales: BTreeSet<String>, specs: &[TensorSpec], progress: &'a mut dyn FnMut(u64, u64)) -> Self {
        let tables = specs.iter().filter(|spec| spec.stays_in_file).map(|spec| spec.name.clone()).collect();
        let hash = Sha256::new();
        Self { weights: Weights::default(), scales, tables, hash, done: 0, total, progress }
    }

    fn finish(mut self) -> Result<(Weights, String)> {
        self.weights.join_scales()?;
        Ok((self.weights, hexadecimal(&self.hash.finalize())))
    }

    fn shard(&mut self, file: &Path, from: &mut impl WeightsFile, header: Header) -> Result<()> {
        self.count(&header.bytes);
        let mut chunk = vec![0; CHUNK];
        for entry in header.tensors {
            let Some((name, dtype)) = entry.read_as.clone() else {
                self.skip(file, from, &entry, &mut chunk)?;
                continue;
            };
            if self.tables.contains(&name) {
                self.table(file, from, &entry, name, dtype, &mut chunk)?;
                continue;
            }
            let tensor = self.tensor(file, from, &entry, dtype, &mut chunk)?;
            if self.scales.contains(&name) {
                check_scale_numbers(file, &name, &tensor.numbers())?;
            }
            self.weights.insert(name, tensor);
        }
        match from.read(&mut [0]).map_err(Error::io(file))? {
            0 => Ok(()),
            _ => Err(Error::checkpoint(file, "the file", "an end", "more bytes: it grew while it was read")),
        }
    }

    /// Reads the elements of a tensor that the model does not use: the digest covers them.
    fn skip(&mut self, file: &Path, from: &mut impl Read, entry: &TensorEntry, chunk: &mut [u8]) -> Result<()> {
        let mut left = entry.bytes;
        while left > 0 {
            let bytes = chunk.get_mut(..left.min(CHUNK as u64) as usize).unwrap_or_default();
            read_numbers(file, from, entry, bytes)?;
            self.count(bytes);
            left -= bytes.len() as u64;
        }
        Ok(())
    }

    /// Leaves a table in its file; one that has no file is read.
    fn table(
        &mut self,
        file: &Path,
        from: &mut impl WeightsFile,
        entry: &TensorEntry,
        name: String,
        dtype: FileDtype,
        chunk: &mut [u8],
    ) -> Result<()> {
        let not_a_matrix = |_| Error::Internal(format!("{name} is no matrix"));
        let shape = <[usize; 2]>::try_from(entry.shape.clone()).map_err(not_a_matrix)?;
        let Some((opened, offset)) = from.pass(entry.bytes).map_err(Error::io(file))? else {
            let tensor = self.tensor(file, from, entry, dtype, chunk)?;
            self.weights.insert(name, tensor);
            return Ok(());
        };
        let table = RowTable::in_file(&entry.name, shape, dtype, OpenTable::new(opened, file, offset)?);
        table.sample(SAMPLED_ROWS, &mut |row| self.hash.update(row))?;
        self.weights.insert_table(name, table);
        self.done += entry.bytes;
        (self.progress)(self.done, self.total);
        Ok(())
    }

    fn tensor(
        &mut self,
        file: &Path,
        from: &mut impl Read,
        entry: &TensorEntry,
        dtype: FileDtype,
        chunk: &mut [u8],
    ) -> Result<Tensor> {
        let width = dtype.bytes();
        let numbers = entry.shape.iter().product();
        let mut tensor = Tensor::with_capacity(dtype, entry.shape.clone(), numbers);
        let mut widened = Vec::with_capacity(numbers.min(CHUNK / width));
        while tensor.len() < numbers {
            let bytes = ((numbers - tensor.len()).min(CHUNK / width)) * width;
            let bytes = chunk.get_mut(..bytes).unwrap_or_default();
            read_numbers(file, from, entry, bytes)?;
            self.count(bytes);
            widened.clear();
            dtype.widen(bytes, &mut widened);
            match dtype {
                FileDtype::I8 => check_range(file, &entry.name, tensor.len(), &widened)?,
                _ => check_finite(file, &entry.name, tensor.len(), &widened)?,
            }
            tensor.push(bytes, &widened);
        }
        Ok(tensor)
    }

    fn count(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.done += bytes.len() as u64;
        (self.progress)(self.done, self.total);
    }
}

fn read_numbers(file: &Path, from: &mut impl Read, entry: &TensorEntry, bytes: &mut [u8]) -> Result<()> {
    from.read_exact(bytes).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => {
            let found = "the end of the file: it shrank while it was read";
            Error::checkpoint(file, &*entry.name, "all its numbers", found)
        }
        _ => Error::io(file)(error),
    })
}

/// Formats bytes with two hexadecimal digits each.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{
        Config, Tensor, Weights, Writer, read_from, read_weights,
        weights::{check_headers, shapes_in},
    };
    use serde_json::{Value, json};
    use std::{fs, sync::Arc};
    use tempfile::TempDir;
    use weir_kernels::{
        Compute, Dtype, Isa, ThreadPool,
        linear::{Epilogue, Linear, QuantizedRows, WeightArena},
    };

    const CONFIG: &[u8] = br#"{"format": "weir/1", "family": "x", "vocabulary": {"bytes": true}, "normaliser": "none",
        "training_length": 8, "architecture": {}}"#;

    const ROWS: usize = 5;

    const COLUMNS: usize = 7;

    /// A vector, a matrix whose numbers end unaligned, a tensor of three axes, and another matrix.
    fn specs() -> Vec<TensorSpec> {
        let shapes = [("b", vec![3]), ("odd.weight", vec![ROWS, COLUMNS]), ("taps", vec![2, 1, 2]), ("e", vec![2, 4])];
        shapes.map(|(name, shape)| TensorSpec::zeros(name, shape)).into()
    }

    /// Numbers of very different magnitudes in each row of seven. The second row is zeros.
    fn numbers(count: usize) -> Vec<f32> {
        let number = |index: usize| match index / COLUMNS {
            1 => 0.0,
            row => ((index * 37 + 11) % 101) as f32 / 50.5 * 10_f32.powi(row as i32 * 9 - 18) - 0.3,
        };
        (0..count).map(number).collect()
    }

    /// Writes a checkpoint in int8.
    fn written() -> TempDir {
        let dir = TempDir::new().unwrap();
        let config = Config::parse(CONFIG, dir.path()).unwrap();
        let mut writer = Writer::create(dir.path(), &config, &specs(), FileDtype::I8, false).unwrap();
        for spec in specs() {
            writer.tensor(&spec.name, &numbers(spec.numbers())).unwrap();
        }
        writer.finish().unwrap();
        dir
    }

    fn header_of(file: &[u8]) -> Value {
        let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        serde_json::from_slice(&file[8..8 + length]).unwrap()
    }

    #[test]
    fn written_matrices_are_read_with_their_scales() {
        let dir = written();
        let (mut weights, _) = read_weights(dir.path(), &specs()).unwrap();
        assert_eq!(weights.len(), specs().len());
        for spec in specs() {
            let exact = numbers(spec.numbers());
            let tensor = weights.take_tensor(&spec.name).unwrap();
            if spec.shape.len() != 2 {
                assert_eq!((tensor.dtype(), tensor.into_numbers()), (FileDtype::F32, exact));
                continue;
            }
            assert_eq!((tensor.dtype(), &tensor.shape), (FileDtype::I8, &spec.shape));
            assert_eq!(tensor.file_bytes(), spec.numbers() + 4 * spec.shape[0]);
            let read = tensor.numbers();
            for (row, exact) in read.chunks(spec.shape[1]).zip(exact.chunks(spec.shape[1])) {
                let step = exact.iter().fold(0.0_f32, |max, number| max.max(number.abs())) / MAX;
                let near = |(read, exact): (&f32, &f32)| (read - exact).abs() <= 0.5001 * step;
                assert!(row.iter().zip(exact).all(near), "{row:?} {exact:?}");
            }
        }
    }

    #[test]
    fn written_numbers_of_four_bytes_are_aligned() {
        let dir = written();
        let header = header_of(&fs::read(dir.path().join("model.safetensors")).unwrap());
        for (name, entry) in header.as_object().unwrap() {
            let start = entry["data_offsets"][0].as_u64().unwrap();
            assert!(entry["dtype"] == "I8" || start.is_multiple_of(4), "{name}: {entry}");
        }
        assert_eq!(header["odd.weight_scale"]["shape"], json!([ROWS]));
    }

    #[test]
    fn the_kernels_round_a_loaded_matrix_to_the_stored_integers() {
        let exact = numbers(ROWS * COLUMNS);
        let (scales, bytes) = quantize(&exact, ROWS);
        let widened = widen(&bytes, &scales);
        // The kernels' integers, as products with the rows of an identity matrix.
        let identity: Vec<f32> = (0..COLUMNS * COLUMNS).map(|cell| f32::from(cell % (COLUMNS + 1) == 0)).collect();
        let compute = Compute { isa: Isa::detect(), pool: Arc::new(ThreadPool::new(1)) };
        let served = |matrix: &[f32]| {
            let linear = Linear::pack(&WeightArena::new(Dtype::Int8), matrix, &[], ROWS, COLUMNS).unwrap();
            let mut columns = vec![0.0; COLUMNS * ROWS];
            linear.apply(&compute, &identity, Epilogue::None, &mut QuantizedRows::default(), &mut columns);
            let integer = |row: usize, column: usize| (columns[column * ROWS + row] / scales[row]).round() as i8;
            (0..ROWS * COLUMNS).map(|cell| integer(cell / COLUMNS, cell % COLUMNS)).collect::<Vec<_>>()
        };
        let stored: Vec<i8> = bytes.iter().map(|byte| byte.cast_signed()).collect();
        assert!(stored.chunks(COLUMNS).enumerate().all(|(row, all)| row == 1 || all.iter().any(|x| x.abs() == 127)));
        assert_eq!(served(&exact), stored);
        assert_eq!(served(&widened), stored);
        assert_eq!(quantize(&widened, ROWS).1, bytes);
    }

    #[test]
    fn rows_at_the_ends_of_the_range_are_finite() {
        let tiny = f32::from_bits(1);
        let (scales, bytes) = quantize(&[f32::MAX, -f32::MAX, tiny, 0.0], 2);
        assert_eq!((bytes.as_slice(), scales[1]), (&[127, 129, 0, 0][..], 1.0));
        check_scale_numbers(Path::new("x"), "x", &scales).unwrap();
        assert!(widen(&bytes, &scales).iter().all(|number| number.is_finite()));
        assert!((MAX_SCALE.next_up() * MAX).is_infinite());
        assert_eq!(quantize(&[], 2), (vec![1.0; 2], vec![]));
        assert_eq!(widen(&[], &[1.0; 2]), [0.0; 0]);
    }

    /// A tensor of a file: name, type, shape and numbers.
    type Entry<'a> = (&'a str, &'a str, &'a [usize], &'a [u8]);

    fn file(entries: &[Entry]) -> Vec<u8> {
        let mut header = serde_json::Map::new();
        let mut numbers = Vec::new();
        for (name, dtype, shape, bytes) in entries {
            let start = numbers.len();
            numbers.extend_from_slice(bytes);
            let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, numbers.len()]});
            header.insert((*name).to_owned(), entry);
        }
        let header = Value::Object(header).to_string();
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &numbers].concat()
    }

    fn read(entries: &[Entry]) -> Result<Weights> {
        let specs = [TensorSpec::zeros("m", vec![2, 3]), TensorSpec::zeros("v", vec![2])];
        let bytes = file(entries);
        read_from(&bytes, bytes.len() as u64, Path::new("f"), &specs).map(|(weights, _)| weights)
    }

    const INTEGERS: &[u8] = &[1, 255, 127, 129, 0, 2];

    const V: Entry = ("v", "F32", &[2], &[0; 8]);

    const M: Entry = ("m", "I8", &[2, 3], INTEGERS);

    fn f32s(numbers: &[f32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    #[test]
    fn each_row_has_its_scale() {
        let scales = f32s(&[0.5, 0.1]);
        let expected = Tensor::f32(vec![2, 3], vec![0.5, -0.5, 63.5, -127.0 * 0.1, 0.0, 2.0 * 0.1]);
        for entries in [[("m_scale", "F32", &[2][..], &scales[..]), V, M], [M, V, ("m_scale", "F32", &[2], &scales)]] {
            let weights = read(&entries).unwrap();
            let tensor = weights.get("m").unwrap();
            assert!(
                tensor.has_numbers_of(&expected) && expected.has_numbers_of(tensor) && tensor.has_numbers_of(tensor)
            );
            assert!(weights.get("m_scale").is_none());
        }
        let mut other = read(&[V, M, ("m_scale", "F32", &[2], &f32s(&[0.5, 0.2]))]).unwrap();
        assert!(!other.take_tensor("m").unwrap().has_numbers_of(&expected));
    }

    #[test]
    fn errors_name_the_tensor() {
        let good = f32s(&[0.5, 0.1]);
        let scale = |numbers: [f32; 2]| read(&[V, M, ("m_scale", "F32", &[2], &f32s(&numbers))]);
        let narrow: Entry = ("m_scale", "BF16", &[2], &[0; 4]);
        let range = "m_scale: expected scales above 0 and at most 2.6793884e36, found";
        let cases = [
            (read(&[V, M]), "m_scale: expected the scales of m: dtype F32, shape [2], found none"),
            (read(&[V, M, narrow]), "shape [2], found dtype BF16, shape [2]"),
            (read(&[V, M, ("m_scale", "F32", &[2, 1], &good)]), "shape [2], found dtype F32, shape [2, 1]"),
            (read(&[V, M, ("m_scale", "F32", &[1], &good[..4])]), "shape [2], found dtype F32, shape [1]"),
            (scale([0.5, 0.0]), &format!("{range} 0e0 at index 1")),
            (scale([-1.0, 1.0]), &format!("{range} -1e0 at index 0")),
            (scale([1.0, 3e36]), &format!("{range} 3e36 at index 1")),
            (scale([f32::NAN, 1.0]), "m_scale: expected finite numbers, found NaN at index 0"),
            (
                read(&[V, ("m", "I8", &[2, 3], &[0, 0, 0, 0, 128, 0]), ("m_scale", "F32", &[2], &good)]),
                "m: expected integers from -127 to 127, found -128 at index 4",
            ),
            (
                read(&[V, ("m", "F32", &[2, 3], &[0; 24]), ("m_scale", "F32", &[2], &good)]),
                "m_scale: expected no tensor of this name, because its matrix is not of type I8, found one",
            ),
            (read(&[M, ("v", "I8", &[2], &[0; 2])]), "v: expected two axes for dtype I8, found shape [2]"),
            (read(&[V, M, ("v_scale", "F32", &[2], &good)]), "v_scale: expected no tensor of this name, found one"),
            (read(&[V, ("m_scale", "F32", &[2], &good)]), "m: expected a tensor, found none"),
        ];
        for (read, expected) in cases {
            let message = read.unwrap_err().to_string();
            assert!(message.starts_with("f: ") && message.contains(expected), "{message}\nshould contain: {expected}");
        }
    }

    #[test]
    fn a_tensor_of_the_model_is_not_a_scale() {
        let specs = [TensorSpec::zeros("m", vec![1, 1]), TensorSpec::zeros("m_scale", vec![1])];
        assert!(possible_scales(&specs).is_empty());
        let bytes = file(&[("m", "I8", &[1, 1], &[1]), ("m_scale", "F32", &[1], &f32s(&[1.0]))]);
        let error = read_from(&bytes, bytes.len() as u64, Path::new("f"), &specs).unwrap_err().to_string();
        assert!(error.contains("m_scale: expected the scales of m"), "{error}");
    }

    #[test]
    fn scales_may_be_in_another_shard() {
        let specs = [TensorSpec::zeros("m", vec![2, 3]), TensorSpec::zeros("v", vec![2])];
        let dir = TempDir::new().unwrap();
        let scales = f32s(&[0.5, 0.1]);
        let write = |name: &str, bytes: Vec<u8>| fs::write(dir.path().join(name), bytes).unwrap();
        let index = |map: Value| write("model.safetensors.index.json", json!({ "weight_map": map }).to_string().into());
        let names = json!({"m": "1.safetensors", "v": "2.safetensors", "m_scale": "2.safetensors"});
        write("1.safetensors", file(&[M]));
        write("2.safetensors", file(&[V, ("m_scale", "F32", &[2], &scales)]));
        index(names.clone());
        let (mut weights, _) = read_weights(dir.path(), &specs).unwrap();
        assert_eq!(weights.take("m").unwrap()[..3], [0.5, -0.5, 63.5]);
        check_headers(dir.path(), &specs, UnusedTensors::Refused).unwrap();
        assert_eq!(shapes_in(dir.path()).unwrap().into_keys().collect::<Vec<_>>(), ["m", "v"]);

        let refuses = |expected: &str| {
            let error = read_weights(dir.path(), &specs).unwrap_err().to_string();
            let headers = check_headers(dir.path(), &specs, UnusedTensors::Refused);
            assert_eq!(headers.unwrap_err().to_string(), error);
            assert!(error.contains(expected), "{error}");
        };
        index(json!({"m": "1.safetensors", "v": "2.safetensors"}));
        write("2.safetensors", file(&[V]));
        refuses("1.safetensors: m_scale: expected the scales of m");
        index(names);
        refuses("2.safetensors: m_scale: expected a tensor, found none");
        write("1.safetensors", file(&[("m", "F32", &[2, 3], &[0; 24])]));
        write("2.safetensors", file(&[V, ("m_scale", "F32", &[2], &scales)]));
        refuses("2.safetensors: m_scale: expected no tensor of this name, because");
    }

    #[test]
    fn unused_tensors_are_refused_or_ignored() {
        let specs = [TensorSpec::zeros("m", vec![2, 3]), TensorSpec::zeros("v", vec![2])];
        let dir = TempDir::new().unwrap();
        let read = |unused| read_weights_with(dir.path(), &specs, unused, &mut |_, _| {}).map(|(weights, _)| weights);
        for (name, dtype, shape, bytes) in [
            ("extra.weight", "F32", &[2][..], 8),
            ("m_scale", "F32", &[2], 8),
            ("packed", "I8", &[2, 3], 6),
            ("a", "F8_E4M3", &[3], 3),
            ("z", "C64", &[1, 2], 16),
            ("half_bytes", "F4", &[3, 2], 3),
            ("of_tomorrow", "NEW", &[], 5),
        ] {
            let unused: Entry = (name, dtype, shape, &[1; 16][..bytes]);
            let bytes = file(&[("m", "F32", &[2, 3], &[0; 24]), unused, V]);
            fs::write(dir.path().join(WEIGHTS_FILE), bytes).unwrap();
            assert_eq!(read(UnusedTensors::Ignored).unwrap().len(), 2, "{name}");
            check_headers(dir.path(), &specs, UnusedTensors::Ignored).unwrap();
            let error = read(UnusedTensors::Refused).unwrap_err().to_string();
            assert!(error.contains(&format!("{name}: expected no tensor of this name")), "{error}");
        }
        let missing = [TensorSpec::zeros("other", vec![2])];
        let read = read_weights_with(dir.path(), &missing, UnusedTensors::Ignored, &mut |_, _| {});
        assert!(read.unwrap_err().to_string().contains("other: expected a tensor, found none"));
    }

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
