//! Reads weights: exactly the tensors asked for, every number finite, hashed on the way.

use super::{
    header::{Dtype, Entry, Header},
    json,
    shards::{Shard, files, same_names, shards},
    spec::TensorSpec,
};
use crate::error::{Error, Result};
use sha2::{Digest, Sha256};
use std::{
    collections::{BTreeMap, HashMap},
    io::{ErrorKind, Read},
    path::Path,
};

/// Bytes read at a time: what is held beside the weights themselves.
const CHUNK: usize = 1 << 20;
/// Header bytes allowed whatever the tensors (metadata, padding), and for each tensor beside its name.
const HEADER_BYTES: u64 = 1 << 20;
const HEADER_BYTES_A_TENSOR: u64 = 512;
/// The most where it is not known which tensors there are.
const MOST_HEADER_BYTES: u64 = 16 << 20;

/// The tensors of a checkpoint, checked against their specifications.
#[derive(Debug, Default)]
pub struct Weights {
    tensors: HashMap<String, Tensor>,
}

/// One tensor, widened to f32.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// The type of its numbers in the file.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its numbers, row-major.
    pub numbers: Vec<f32>,
}

impl Weights {
    /// Moves a tensor's numbers out, row-major.
    ///
    /// # Errors
    /// [`Error::Internal`] if it was not asked for when reading, or was taken before.
    pub fn take(&mut self, name: &str) -> Result<Vec<f32>> {
        let tensor = self.tensors.remove(name);
        tensor
            .map(|tensor| tensor.numbers)
            .ok_or_else(|| Error::Internal(format!("tensor {name} is not there (any more)")))
    }

    /// A tensor, if it is there.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// Adds a tensor.
    pub fn insert(&mut self, name: String, tensor: Tensor) {
        self.tensors.insert(name, tensor);
    }

    /// How many tensors there are.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }
}

/// Reads the weights of the checkpoint in `dir`; also the SHA-256 of their files, one after the other, in hexadecimal.
///
/// # Errors
/// [`Error::Checkpoint`] with file, key, expected and found, if the files hold anything but these tensors, whole and
/// finite.
pub fn read_weights(dir: &Path, specs: &[TensorSpec]) -> Result<(Weights, String)> {
    read_weights_telling(dir, specs, &mut |_, _| {})
}

/// As [`read_weights`]; `progress` is told bytes read and bytes to read.
///
/// # Errors
/// As for [`read_weights`].
pub fn read_weights_telling(
    dir: &Path,
    specs: &[TensorSpec],
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Weights, String)> {
    read_shards(&shards(dir, specs)?, specs, progress)
}

/// The names and shapes of the tensors in `dir`, whatever they are: for sources that may hold more than one set.
///
/// # Errors
/// No weights, or an unreadable header or index.
pub fn shapes_in(dir: &Path) -> Result<BTreeMap<String, Vec<usize>>> {
    let mut shapes = BTreeMap::new();
    for file in files(dir)? {
        let (mut from, size) = json::open(&file)?;
        let header = Header::read(&mut from, &file, size, MOST_HEADER_BYTES)?;
        shapes.extend(header.tensors.into_iter().map(|entry| (entry.name, entry.shape)));
    }
    Ok(shapes)
}

/// As [`read_weights`], of one file's `size` bytes from anywhere; `file` is the one to name.
///
/// # Errors
/// As for [`read_weights`].
pub fn read_from(mut from: impl Read, size: u64, file: &Path, specs: &[TensorSpec]) -> Result<(Weights, String)> {
    let names = specs.iter().map(|spec| spec.name.clone()).collect();
    let shard = Shard { file: file.to_path_buf(), names };
    let header = header(&shard, &mut from, size, &by_name(specs))?;
    let mut silent = |_, _| {};
    let mut reading = Reading::new(size, &mut silent);
    reading.shard(file, &mut from, header)?;
    Ok(reading.finish())
}

fn by_name(specs: &[TensorSpec]) -> HashMap<&str, &TensorSpec> {
    specs.iter().map(|spec| (spec.name.as_str(), spec)).collect()
}

fn read_shards(
    shards: &[Shard],
    specs: &[TensorSpec],
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Weights, String)> {
    let specs = by_name(specs);
    let mut opened = Vec::with_capacity(shards.len());
    let mut total = 0;
    // All headers first: nothing large is set aside for a checkpoint that is wrong in its last shard.
    for shard in shards {
        let (mut from, size) = json::open(&shard.file)?;
        let header = header(shard, &mut from, size, &specs)?;
        total += size;
        opened.push((shard, from, header));
    }
    let mut reading = Reading::new(total, progress);
    for (shard, mut from, header) in opened {
        reading.shard(&shard.file, &mut from, header)?;
    }
    Ok(reading.finish())
}

/// Reads a shard's header and checks that it lists what it must.
fn header(shard: &Shard, from: &mut impl Read, size: u64, specs: &HashMap<&str, &TensorSpec>) -> Result<Header> {
    let names: u64 = shard.names.iter().map(|name| name.len() as u64 + HEADER_BYTES_A_TENSOR).sum();
    let header = Header::read(from, &shard.file, size, HEADER_BYTES + names)?;
    check(shard, &header.tensors, specs)?;
    Ok(header)
}

/// Whether a shard's header lists what it must.
fn check(shard: &Shard, found: &[Entry], specs: &HashMap<&str, &TensorSpec>) -> Result<()> {
    same_names(&shard.file, &shard.names, found.iter().map(|entry| &entry.name))?;
    for entry in found {
        match specs.get(entry.name.as_str()) {
            Some(spec) if spec.shape != entry.shape => {
                let (expected, found) = (format!("shape {:?}", spec.shape), format!("shape {:?}", entry.shape));
                return Err(Error::checkpoint(&shard.file, &*entry.name, expected, found));
            }
            _ => {}
        }
    }
    Ok(())
}

struct Reading<'a> {
    weights: Weights,
    hash: Sha256,
    done: u64,
    total: u64,
    progress: &'a mut dyn FnMut(u64, u64),
}

impl<'a> Reading<'a> {
    fn new(total: u64, progress: &'a mut dyn FnMut(u64, u64)) -> Self {
        Self { weights: Weights::default(), hash: Sha256::new(), done: 0, total, progress }
    }

    fn finish(self) -> (Weights, String) {
        (self.weights, hexadecimal(&self.hash.finalize()))
    }

    fn shard(&mut self, file: &Path, from: &mut impl Read, header: Header) -> Result<()> {
        self.passed(&header.bytes);
        let mut chunk = vec![0; CHUNK];
        for entry in header.tensors {
            let numbers = self.tensor(file, from, &entry, &mut chunk)?;
            self.weights.insert(entry.name, Tensor { dtype: entry.dtype, shape: entry.shape, numbers });
        }
        match from.read(&mut [0]).map_err(Error::io(file))? {
            0 => Ok(()),
            _ => Err(Error::checkpoint(file, "the file", "an end", "more bytes: it grew while it was read")),
        }
    }

    fn tensor(&mut self, file: &Path, from: &mut impl Read, entry: &Entry, chunk: &mut [u8]) -> Result<Vec<f32>> {
        let width = entry.dtype.bytes();
        let mut numbers = Vec::with_capacity(entry.numbers);
        while numbers.len() < entry.numbers {
            let bytes = ((entry.numbers - numbers.len()).min(CHUNK / width)) * width;
            let bytes = chunk.get_mut(..bytes).unwrap_or_default();
            from.read_exact(bytes).map_err(|error| match error.kind() {
                ErrorKind::UnexpectedEof => Error::checkpoint(
                    file,
                    &*entry.name,
                    "all its numbers",
                    "the end of the file: it shrank while it was read",
                ),
                _ => Error::io(file)(error),
            })?;
            self.passed(bytes);
            let first = numbers.len();
            entry.dtype.widen(bytes, &mut numbers);
            check_finite(file, &entry.name, first, numbers.get(first..).unwrap_or_default())?;
        }
        Ok(numbers)
    }

    fn passed(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.done += bytes.len() as u64;
        (self.progress)(self.done, self.total);
    }
}

/// Whether all numbers of a part of a tensor, from index `first` on, are finite.
///
/// # Errors
/// The tensor and the index of the first number that is not.
pub fn check_finite(file: &Path, name: &str, first: usize, numbers: &[f32]) -> Result<()> {
    match numbers.iter().position(|number| !number.is_finite()) {
        None => Ok(()),
        Some(at) => {
            let found = format!("{} at index {}", numbers[at], first + at);
            Err(Error::checkpoint(file, name, "finite numbers", found))
        }
    }
}

/// Two digits a byte.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
