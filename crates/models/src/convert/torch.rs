//! Reads files of `torch.save`: zip archives of a pickle and of storages. torch never compresses, so compressed entries are
//! rejected: then no entry is larger than the archive. A tensor is checked against its storage before a number is read.

use crate::checkpoint::file_dtype::check_finite;
use crate::checkpoint::files::{self, contents};
use crate::checkpoint::weights::same_names;
use crate::checkpoint::{CONFIG_FILE, FileDtype, Weights, require};
use crate::convert::pickle::{self, Object, Pickle, PickleValue};
use crate::family::TensorSpec;
use serde_json::{Map, Value as Json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};
use weir_kernels::error::{Error, Result};
use zip::{CompressionMethod, ZipArchive, result::ZipError};

/// Maximum entries: far above a training checkpoint's three tensors (weight and two moments) for each parameter.
const MAX_ENTRIES: usize = 1 << 18;

const MAX_RANK: usize = 16;

pub(super) struct TorchFile {
    path: PathBuf,
    archive: ZipArchive<BufReader<File>>,
    /// The archive's only top-level folder.
    folder: String,
    /// The saved value; [`tensor`](Self::tensor) interprets its tensors.
    pub pickle: Pickle,
    /// Numbers that may still be read: tensors may share storages, but not read more than the file holds.
    allowance: u64,
}

/// A tensor in a [`TorchFile`], whose elements are read later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TorchTensor {
    pub shape: Vec<usize>,
    storage: String,
    /// Class of its storage, which may be one that no model computes with.
    class: String,
    storage_len: u64,
    offset: u64,
    stride: Vec<u64>,
}

fn storage_dtype(class: &str) -> Option<FileDtype> {
    match class {
        "DoubleStorage" => Some(FileDtype::F64),
        "FloatStorage" => Some(FileDtype::F32),
        "HalfStorage" => Some(FileDtype::F16),
        "BFloat16Storage" => Some(FileDtype::Bf16),
        _ => None,
    }
}

impl TorchFile {
    pub(super) fn into_file(self) -> File {
        self.archive.into_inner().into_inner()
    }

    /// Opens a file and reads its pickle. Fails for anything but an uncompressed archive with one readable pickle.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let (file, size) = files::open(path).map_err(Error::io(path))?;
        let mut archive = ZipArchive::new(BufReader::new(file)).map_err(|error| zip_error(path, "the file", error))?;
        let expected = format!("at most {MAX_ENTRIES} entries");
        require(archive.len() <= MAX_ENTRIES, path, "the archive", expected, archive.len())?;
        let names: Vec<_> =
            archive.file_names().collect::<Result<_, _>>().map_err(|error| zip_error(path, "the archive", error))?;
        let mut pickles = names.iter().filter_map(|name| name.strip_suffix("/data.pkl"));
        let folder = match (pickles.next(), pickles.next()) {
            (Some(folder), None) => folder.to_owned(),
            (first, _) => {
                let found = if first.is_some() { "several" } else { "none" };
                return Err(Error::checkpoint(path, "the archive", "one data.pkl, as torch.save writes it", found));
            }
        };
        drop(names);
        let order = format!("{folder}/byteorder");
        if archive.index_for_name(&order).is_some() {
            let order = read_small(&mut archive, path, &order, 16)?;
            require(order == b"little", path, "byteorder", "little", String::from_utf8_lossy(&order))?;
        }
        let program = read_small(&mut archive, path, &format!("{folder}/data.pkl"), pickle::MAX_BYTES as u64)?;
        let pickle = Pickle::read(&program).map_err(|error| {
            Error::checkpoint(path, format!("data.pkl byte {}", error.offset), error.expected, error.found)
        })?;
        Ok(Self { path: path.to_path_buf(), archive, folder, pickle, allowance: size })
    }

    /// Interprets a value as a tensor; errors name `key`. Fails unless its elements lie within its storage.
    pub(super) fn tensor(&self, key: &str, value: &PickleValue) -> Result<TorchTensor> {
        self.describe(value)
            .and_then(TorchTensor::checked)
            .map_err(|(expected, found)| Error::checkpoint(&self.path, key, expected, found))
    }

    fn describe(&self, value: &PickleValue) -> Result<TorchTensor, (String, String)> {
        let pickle = &self.pickle;
        let other = |expected: &str, value: &PickleValue| (expected.to_owned(), pickle.describe(value));
        let call = pickle.call(value).ok_or_else(|| other("a tensor", value))?;
        match (call.name, pickle.elements(&call.arguments).unwrap_or_default()) {
            // nn.Parameter(tensor, …): the tensor inside. A parameter cannot hold another parameter.
            ("_rebuild_parameter", [inner, ..]) => match pickle.call(inner) {
                Some(call) if call.name == "_rebuild_tensor_v2" => self.describe(inner),
                _ => Err(other("a tensor in a parameter", inner)),
            },
            ("_rebuild_tensor_v2", [storage, offset, size, stride, ..]) => {
                let (storage, class, storage_len) = self.storage(storage)?;
                let offset = natural(offset).ok_or_else(|| other("a storage offset", offset))?;
                let shape = self.naturals(size).ok_or_else(|| other("a size", size))?;
                let stride = self.naturals(stride).ok_or_else(|| other("strides", stride))?;
                let shape = shape.iter().map(|&dim| usize::try_from(dim)).collect::<Result<_, _>>();
                let shape = shape.map_err(|_| other("a size", size))?;
                Ok(TorchTensor { shape, storage, class, storage_len, offset, stride })
            }
            _ => Err(other("a tensor", value)),
        }
    }

    /// Returns key, class and length of a storage: `("storage", torch.FloatStorage, "0", "cpu", 32)`.
    fn storage(&self, value: &PickleValue) -> Result<(String, String, u64), (String, String)> {
        let pickle = &self.pickle;
        let wrong = |expected: &str, found: String| Err((expected.to_owned(), found));
        let Some(Object::Persistent(id)) = pickle.object(value) else {
            return wrong("a storage", pickle.describe(value));
        };
        match pickle.elements(id) {
            Some([PickleValue::Text(kind), class, PickleValue::Text(key), _, len]) if **kind == *"storage" => {
                let Some(Object::Global("torch", class)) = pickle.object(class) else {
                    return wrong("a storage class", pickle.describe(class));
                };
                match natural(len) {
                    Some(len) => Ok((key.to_string(), (*class).to_owned(), len)),
                    None => wrong("a storage's length", pickle.describe(len)),
                }
            }
            _ => wrong("a storage of five fields", pickle.describe(id)),
        }
    }

    fn naturals(&self, value: &PickleValue) -> Option<Vec<u64>> {
        // torch.Size((2, 3)) is a call around the tuple
        let value = match self.pickle.call(value) {
            Some(call) if call.name == "Size" => self.pickle.elements(&call.arguments)?.first()?,
            _ => value,
        };
        let elements = self.pickle.elements(value).filter(|elements| elements.len() <= MAX_RANK)?;
        elements.iter().map(natural).collect()
    }

    /// Reads a tensor's elements, row-major. Fails if its storage is missing, has another length or no floats, or if an element is not
    /// finite.
    pub(super) fn read(&mut self, key: &str, tensor: &TorchTensor) -> Result<Vec<f32>> {
        let name = format!("{}/data/{}", self.folder, tensor.storage);
        let wrong = |expected: String, found: String| Err(Error::checkpoint(&self.path, key, expected, found));
        let Some(dtype) = storage_dtype(&tensor.class) else {
            return wrong("floats of 16, 32 or 64 bits".into(), format!("torch.{}", tensor.class));
        };
        let Some(index) = self.archive.index_for_name(&name) else {
            return wrong(format!("its storage {name} in the archive"), "none".into());
        };
        let mut entry = self.archive.by_index(index).map_err(|error| zip_error(&self.path, &name, error))?;
        let stated = tensor.storage_len.checked_mul(dtype.bytes() as u64);
        if entry.compression() != CompressionMethod::Stored || Some(entry.size()) != stated {
            let expected = format!("{} numbers of {} bytes, not compressed", tensor.storage_len, dtype.bytes());
            return wrong(expected, format!("{} bytes, {:?}", entry.size(), entry.compression()));
        }
        let span = tensor.span();
        let Some(rest) = self.allowance.checked_sub(span.max(tensor.numbers() as u64)) else {
            return wrong("at most as many numbers as the file has bytes".into(), "more, shared many times".into());
        };
        self.allowance = rest;
        let skipped = tensor.offset * dtype.bytes() as u64;
        let io = |error: std::io::Error| match error.kind() {
            ErrorKind::UnexpectedEof => {
                Error::checkpoint(&self.path, key, format!("all of {name}"), "the end of the file")
            }
            _ => Error::checkpoint(&self.path, key, "an intact archive", error.to_string()),
        };
        std::io::copy(&mut entry.by_ref().take(skipped), &mut std::io::sink()).map_err(io)?;
        let mut numbers = Vec::new();
        let mut chunk = vec![0; (1 << 17) * dtype.bytes()];
        while (numbers.len() as u64) < span {
            let left = (span - numbers.len() as u64).min(1 << 17) as usize;
            let part = chunk.get_mut(..left * dtype.bytes()).unwrap_or_default();
            entry.read_exact(part).map_err(io)?;
            dtype.widen(part, &mut numbers);
        }
        let numbers = tensor.gather(numbers);
        check_finite(&self.path, key, 0, &numbers)?;
        Ok(numbers)
    }
}

impl TorchTensor {
    /// Checks that the elements lie within the storage, and are not more than it has: a stride of 0 would repeat one.
    fn checked(self) -> Result<Self, (String, String)> {
        let numbers = self.shape.iter().try_fold(1_u64, |product, &dim| product.checked_mul(dim as u64));
        let last = self.shape.iter().zip(&self.stride).try_fold(self.offset, |offset, (&dim, stride)| {
            (dim as u64).saturating_sub(1).checked_mul(*stride).and_then(|step| offset.checked_add(step))
        });
        let fits = match (numbers, last) {
            (Some(0), Some(_)) => self.offset <= self.storage_len,
            (Some(numbers), Some(last)) => numbers <= self.storage_len && last < self.storage_len,
            _ => false,
        };
        if fits && self.shape.len() == self.stride.len() {
            return Ok(self);
        }
        let found = format!("size {:?}, strides {:?}, offset {}", self.shape, self.stride, self.offset);
        Err((format!("a view of a storage of {} numbers", self.storage_len), found))
    }

    fn numbers(&self) -> usize {
        self.shape.iter().product()
    }

    /// Numbers of the storage from the tensor's first to its last.
    fn span(&self) -> u64 {
        let steps = self.shape.iter().zip(&self.stride).map(|(&dim, stride)| (dim as u64).saturating_sub(1) * stride);
        if self.numbers() == 0 { 0 } else { steps.sum::<u64>() + 1 }
    }

    /// Gathers row-major elements from the tensor's span of the storage.
    fn gather(&self, span: Vec<f32>) -> Vec<f32> {
        let mut dense = 1;
        let contiguous = self.shape.iter().zip(&self.stride).rev().all(|(&dim, &stride)| {
            let follows = dim == 1 || stride == dense;
            dense *= dim as u64;
            follows
        });
        if contiguous || span.is_empty() {
            return span;
        }
        let mut gathered = Vec::with_capacity(self.numbers());
        let mut index = vec![0; self.shape.len()];
        for _ in 0..self.numbers() {
            let offset: u64 = index.iter().zip(&self.stride).map(|(&index, stride)| index as u64 * stride).sum();
            // within the span: its length was computed from the same strides
            gathered.push(span.get(offset as usize).copied().unwrap_or(f32::NAN));
            for (index, &dim) in index.iter_mut().zip(&self.shape).rev() {
                *index += 1;
                if *index < dim {
                    break;
                }
                *index = 0;
            }
        }
        gathered
    }
}

fn natural(value: &PickleValue) -> Option<u64> {
    if let PickleValue::Int(number) = value { u64::try_from(*number).ok() } else { None }
}

fn read_small(archive: &mut ZipArchive<BufReader<File>>, path: &Path, name: &str, limit: u64) -> Result<Vec<u8>> {
    let wrong = |expected: String, found: String| Err(Error::checkpoint(path, name, expected, found));
    let entry = archive.by_name(name).map_err(|error| zip_error(path, name, error))?;
    if entry.compression() != CompressionMethod::Stored {
        return wrong("an entry that is not compressed".into(), format!("{:?}", entry.compression()));
    }
    let size = entry.size();
    if size > limit {
        return wrong(format!("at most {limit} bytes"), format!("{size} bytes"));
    }
    let mut bytes = Vec::new();
    let read = entry.take(limit + 1).read_to_end(&mut bytes);
    read.map_err(|error| Error::checkpoint(path, name, "an intact archive", error.to_string()))?;
    if bytes.len() as u64 != size {
        return wrong(format!("{size} bytes"), format!("{} bytes", bytes.len()));
    }
    Ok(bytes)
}

fn zip_error(path: &Path, key: &str, error: ZipError) -> Error {
    match error {
        ZipError::Io(error) if error.kind() != ErrorKind::UnexpectedEof => Error::io(path)(error),
        ZipError::UnsupportedArchive(found) => Error::checkpoint(path, key, "an entry that is not compressed", found),
        error => Error::checkpoint(path, key, "a zip archive, as torch.save writes it since 1.6", error.to_string()),
    }
}

/// The checkpoint that training writes into its working folder.
const TRAINING_FILE: &str = "checkpoint_last.pt";

/// Prefix of every key of the weights after training on several devices.
const PARALLEL_PREFIX: &str = "module.";

pub(super) enum SourceForm {
    /// Arguments in `config.json`, tensors in safetensors.
    Folder(PathBuf),
    /// Everything in one file of `torch.save`.
    Training(PathBuf),
}

impl SourceForm {
    /// Detects the form of the source at `from`. Fails for a folder with both forms or neither.
    pub(super) fn detect(from: &Path) -> Result<Self> {
        if !from.is_dir() {
            return Ok(Self::Training(from.to_path_buf()));
        }
        let training = from.join(TRAINING_FILE);
        match (from.join(CONFIG_FILE).exists(), training.exists()) {
            (true, false) => Ok(Self::Folder(from.to_path_buf())),
            (false, true) => Ok(Self::Training(training)),
            (both, _) => {
                let found = if both { "both".to_owned() } else { format!("neither; {}", contents(from)) };
                Err(Error::checkpoint(from, "the folder", format!("either {CONFIG_FILE} or {TRAINING_FILE}"), found))
            }
        }
    }
}

/// Returns the items of a dict or of a Namespace.
pub(super) fn items<'a>(pickle: &'a Pickle, value: &PickleValue) -> Option<&'a [(PickleValue, PickleValue)]> {
    let state = pickle.call(value).and_then(|call| call.state.as_ref());
    state.and_then(|state| pickle.items(state)).or_else(|| pickle.items(value))
}

/// Returns as JSON the items whose values are plain, or lists of plain values; no other item is a needed argument.
pub(super) fn plain(pickle: &Pickle, items: &[(PickleValue, PickleValue)]) -> Map<String, Json> {
    let list =
        |value: &PickleValue| pickle.elements(value)?.iter().map(scalar).collect::<Option<Vec<_>>>().map(Json::from);
    items.iter().filter_map(|(key, value)| Some((text(key)?, scalar(value).or_else(|| list(value))?))).collect()
}

pub(super) fn text(value: &PickleValue) -> Option<String> {
    if let PickleValue::Text(text) = value { Some(text.to_string()) } else { None }
}

fn scalar(value: &PickleValue) -> Option<Json> {
    match value {
        PickleValue::None => Some(Json::Null),
        PickleValue::Bool(value) => Some((*value).into()),
        PickleValue::Int(value) => Some((*value).into()),
        PickleValue::Float(value) => Some((*value).into()),
        PickleValue::Text(value) => Some((**value).into()),
        PickleValue::LongInt | PickleValue::Bytes | PickleValue::Object(_) => None,
    }
}

pub(super) struct TorchTensors {
    file: PathBuf,
    /// Tensors by name, without the prefix of parallel training.
    pub(super) all: BTreeMap<String, TorchTensor>,
}

impl TorchTensors {
    /// Finds the tensors of the dict under `key`; errors name `file`. Fails for anything but a dict of tensors.
    pub(super) fn find(torch: &TorchFile, key: &str, file: &Path) -> Result<Self> {
        let state = torch.pickle.item(&torch.pickle.root, key);
        Self::in_dict(torch, state, key, file)
    }

    /// Finds the tensors of a file whose root is the dict of tensors. Fails as [`find`](Self::find) does.
    pub(super) fn at_root(torch: &TorchFile, file: &Path) -> Result<Self> {
        Self::in_dict(torch, Some(&torch.pickle.root), "the file", file)
    }

    fn in_dict(torch: &TorchFile, state: Option<&PickleValue>, key: &str, file: &Path) -> Result<Self> {
        let pickle = &torch.pickle;
        let Some(items) = state.and_then(|state| pickle.items(state)) else {
            let found = state.map_or("nothing".into(), |state| pickle.describe(state));
            return Err(Error::checkpoint(file, key, "a dict of tensors", found));
        };
        let parallel = items.iter().all(|(name, _)| text(name).is_some_and(|name| name.starts_with(PARALLEL_PREFIX)));
        let mut all = BTreeMap::new();
        for (name, value) in items {
            let Some(name) = text(name) else {
                return Err(Error::checkpoint(file, key, "names of tensors", pickle.describe(name)));
            };
            let name = name.strip_prefix(PARALLEL_PREFIX).filter(|_| parallel).map(str::to_owned).unwrap_or(name);
            let tensor = torch.tensor(&name, value)?;
            let is_new = all.insert(name.clone(), tensor).is_none();
            require(is_new, file, name, "one tensor of this name", "two")?;
        }
        Ok(Self { file: file.to_path_buf(), all })
    }

    /// Reads exactly the tensors of `specs`, and reports bytes read and bytes to read to `progress`.
    pub(super) fn read(
        &self,
        torch: &mut TorchFile,
        specs: Vec<TensorSpec>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Weights> {
        let expected: BTreeSet<String> = specs.iter().map(|spec| spec.name.clone()).collect();
        same_names(&self.file, &expected, self.all.keys())?;
        let total: usize = specs.iter().map(|spec| 4 * spec.numbers()).sum();
        let mut done = 0;
        Weights::collect(specs, |spec| {
            let Some(tensor) = self.all.get(&spec.name) else {
                return Err(Error::Internal(format!("tensor {} was listed but not found", spec.name)));
            };
            let expected = format!("shape {:?}", spec.shape);
            let found = format!("shape {:?}", tensor.shape);
            require(tensor.shape == spec.shape, &self.file, &*spec.name, expected, found)?;
            let numbers = torch.read(&spec.name, tensor)?;
            done += 4 * numbers.len() as u64;
            progress(done, total as u64);
            Ok(numbers)
        })
    }
}
