//! Reads weights: exactly the specified tensors, every number finite, hashed on the way.

use super::{
    TensorSpec, card,
    header::{FileDtype, Header, TensorEntry, USED_DTYPES},
    int8::{check_range, check_scale_numbers, check_scales, scale_name},
    regular_file,
    shards::{Shard, files, same_names, shards},
    tensor::Tensor,
};
use crate::error::{Error, Result};
use sha2::{Digest, Sha256};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::File,
    io::{ErrorKind, Read, Seek},
    path::{Path, PathBuf},
};

/// Bytes read at a time. They, and the same numbers in f32, are the only memory in addition to the weights.
const CHUNK: usize = 1 << 20;
/// Header bytes allowed for metadata and padding, and for each tensor in addition to its name.
const HEADER_BYTES: u64 = 1 << 20;
const HEADER_BYTES_A_TENSOR: u64 = 512;
/// Most header bytes if the tensors are not known in advance.
const MAX_HEADER_BYTES: u64 = 16 << 20;

/// The tensors of a checkpoint, checked against their specifications.
#[derive(Debug, Default)]
pub struct Weights {
    tensors: HashMap<String, Tensor>,
}

impl Weights {
    /// Moves a tensor's numbers out, in f32 and row-major. Fails if the tensor was not read or was taken before.
    pub fn take(&mut self, name: &str) -> Result<Vec<f32>> {
        self.take_tensor(name).map(Tensor::into_numbers)
    }

    /// Moves a tensor out. Fails as [`take`](Self::take) does.
    pub fn take_tensor(&mut self, name: &str) -> Result<Tensor> {
        let missing = || Error::Internal(format!("tensor {name} was not read or was taken before"));
        self.tensors.remove(name).ok_or_else(missing)
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

/// Reads the weights of the checkpoint in `dir`. Also returns the SHA-256 of their concatenated files, in hexadecimal.
/// Fails with [`Error::Checkpoint`] unless the files hold exactly these tensors, and scales of those in int8, complete and
/// finite, and have the digest that the card states.
pub fn read_weights(dir: &Path, specs: &[TensorSpec]) -> Result<(Weights, String)> {
    read_weights_with_progress(dir, specs, &mut |_, _| {})
}

/// Reads weights as [`read_weights`] does, and reports bytes read and bytes to read to `progress`. Fails as
/// [`read_weights`] does.
pub fn read_weights_with_progress(
    dir: &Path,
    specs: &[TensorSpec],
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Weights, String)> {
    // All headers first: a checkpoint whose last shard is wrong allocates nothing large.
    let OpenShards { shards: opened, scales } = open_shards(dir, specs)?;
    let total = opened.iter().map(|shard| shard.size).sum();
    let mut reading = WeightsReader::new(total, scales, progress);
    for OpenShard { file, mut from, header, .. } in opened {
        reading.shard(&file, &mut from, header)?;
    }
    let (weights, sha256) = reading.finish()?;
    card::check_digest(card::read(dir)?, dir, &sha256)?;
    Ok((weights, sha256))
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
        card::check_digest(card::read(dir)?, dir, &sha256)?;
        Ok(sha256)
    }
}

/// Checks the headers of the weights in `dir`, but reads no numbers. Fails unless the files hold exactly these tensors.
pub fn check_headers(dir: &Path, specs: &[TensorSpec]) -> Result<()> {
    open_shards(dir, specs).map(|_| ())
}

/// A file of weights whose header was read.
struct OpenShard {
    file: PathBuf,
    from: File,
    size: u64,
    header: Header,
}

/// All files of the weights.
struct OpenShards {
    shards: Vec<OpenShard>,
    /// Names of the scales of int8 matrices.
    scales: BTreeSet<String>,
}

fn open_shards(dir: &Path, specs: &[TensorSpec]) -> Result<OpenShards> {
    let by_name = by_name(specs);
    let open = |shard: Shard| {
        let (mut from, size) = regular_file::open(&shard.file).map_err(Error::io(&shard.file))?;
        let header = header(&shard, &mut from, size, &by_name)?;
        Ok(OpenShard { file: shard.file, from, size, header })
    };
    let shards: Vec<OpenShard> = shards(dir, specs)?.into_iter().map(open).collect::<Result<_>>()?;
    let scales = check_scales(shards.iter().map(|shard| (&*shard.file, &shard.header)), &by_name)?;
    Ok(OpenShards { shards, scales })
}

/// Returns names and shapes of all tensors in `dir`, for sources that may hold different sets of tensors. Scales of int8 matrices
/// are left out. Fails if there are no weights, or a header or the index cannot be read.
pub fn shapes_in(dir: &Path) -> Result<BTreeMap<String, Vec<usize>>> {
    let mut shapes = BTreeMap::new();
    let mut scales = Vec::new();
    for file in files(dir)? {
        let (mut from, size) = regular_file::open(&file).map_err(Error::io(&file))?;
        let header = Header::read(&mut from, &file, size, MAX_HEADER_BYTES)?;
        let matrices = header.tensors.iter().filter(|entry| entry.dtype == FileDtype::I8);
        scales.extend(matrices.map(|entry| scale_name(&entry.name)));
        shapes.extend(header.tensors.into_iter().map(|entry| (entry.name, entry.shape)));
    }
    scales.iter().for_each(|name| drop(shapes.remove(name)));
    Ok(shapes)
}

/// Reads weights as [`read_weights`] does from the `size` bytes of one safetensors file; errors name `file`. Fails as
/// [`read_weights`] does.
pub fn read_from(mut from: impl Read, size: u64, file: &Path, specs: &[TensorSpec]) -> Result<(Weights, String)> {
    let shard = Shard::single(file.to_path_buf(), specs);
    let by_name = by_name(specs);
    let header = header(&shard, &mut from, size, &by_name)?;
    let scales = check_scales(std::iter::once((file, &header)), &by_name)?;
    let mut silent = |_, _| {};
    let mut reading = WeightsReader::new(size, scales, &mut silent);
    reading.shard(file, &mut from, header)?;
    reading.finish()
}

fn by_name(specs: &[TensorSpec]) -> HashMap<&str, &TensorSpec> {
    specs.iter().map(|spec| (spec.name.as_str(), spec)).collect()
}

/// Reads a shard's header. Checks that it lists the shard's tensors with their shapes, and that the tensors that the model uses have
/// a usable type.
fn header(shard: &Shard, from: &mut impl Read, size: u64, specs: &HashMap<&str, &TensorSpec>) -> Result<Header> {
    let names = shard.names.iter().chain(&shard.scales);
    let names: u64 = names.map(|name| name.len() as u64 + HEADER_BYTES_A_TENSOR).sum();
    let header = Header::read(from, &shard.file, size, HEADER_BYTES + names)?;
    let found = header.tensors.iter().map(|entry| &entry.name);
    same_names(&shard.file, &shard.names, found.filter(|name| !shard.scales.contains(*name)))?;
    for entry in &header.tensors {
        let Some(spec) = specs.get(entry.name.as_str()) else { continue };
        if spec.shape != entry.shape {
            let expected = format!("shape {:?}", spec.shape);
            return Err(Error::checkpoint(&shard.file, &*entry.name, expected, format!("shape {:?}", entry.shape)));
        }
        if !spec.is_unused() && matches!(entry.dtype, FileDtype::U8 | FileDtype::Bool) {
            let found = format!("dtype {:?}", entry.dtype.name());
            return Err(Error::checkpoint(&shard.file, &*entry.name, USED_DTYPES, found));
        }
    }
    Ok(header)
}

/// Weights that are being read.
struct WeightsReader<'a> {
    weights: Weights,
    /// Names of the scales of int8 matrices.
    scales: BTreeSet<String>,
    hash: Sha256,
    done: u64,
    total: u64,
    progress: &'a mut dyn FnMut(u64, u64),
}

impl<'a> WeightsReader<'a> {
    fn new(total: u64, scales: BTreeSet<String>, progress: &'a mut dyn FnMut(u64, u64)) -> Self {
        Self { weights: Weights::default(), scales, hash: Sha256::new(), done: 0, total, progress }
    }

    fn finish(mut self) -> Result<(Weights, String)> {
        self.weights.join_scales()?;
        Ok((self.weights, hexadecimal(&self.hash.finalize())))
    }

    fn shard(&mut self, file: &Path, from: &mut impl Read, header: Header) -> Result<()> {
        self.count(&header.bytes);
        let mut chunk = vec![0; CHUNK];
        for entry in header.tensors {
            let tensor = self.tensor(file, from, &entry, &mut chunk)?;
            if self.scales.contains(&entry.name) {
                check_scale_numbers(file, &entry.name, &tensor.numbers())?;
            }
            self.weights.insert(entry.name, tensor);
        }
        match from.read(&mut [0]).map_err(Error::io(file))? {
            0 => Ok(()),
            _ => Err(Error::checkpoint(file, "the file", "an end", "more bytes: it grew while it was read")),
        }
    }

    fn tensor(&mut self, file: &Path, from: &mut impl Read, entry: &TensorEntry, chunk: &mut [u8]) -> Result<Tensor> {
        let width = entry.dtype.bytes();
        let mut tensor = Tensor::with_capacity(entry.dtype, entry.shape.clone(), entry.numbers);
        let mut widened = Vec::with_capacity(entry.numbers.min(CHUNK / width));
        while tensor.len() < entry.numbers {
            let bytes = ((entry.numbers - tensor.len()).min(CHUNK / width)) * width;
            let bytes = chunk.get_mut(..bytes).unwrap_or_default();
            from.read_exact(bytes).map_err(|error| match error.kind() {
                ErrorKind::UnexpectedEof => {
                    let found = "the end of the file: it shrank while it was read";
                    Error::checkpoint(file, &*entry.name, "all its numbers", found)
                }
                _ => Error::io(file)(error),
            })?;
            self.count(bytes);
            widened.clear();
            entry.dtype.widen(bytes, &mut widened);
            match entry.dtype {
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

/// Checks that a tensor's numbers, of which the first has index `first`, are finite. The error names the first number
/// that is not finite.
pub fn check_finite(file: &Path, name: &str, first: usize, numbers: &[f32]) -> Result<()> {
    match numbers.iter().position(|number| !number.is_finite()) {
        None => Ok(()),
        Some(index) => {
            let found = format!("{} at index {}", numbers[index], first + index);
            Err(Error::checkpoint(file, name, "finite numbers", found))
        }
    }
}

/// Formats bytes with two hexadecimal digits each.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
