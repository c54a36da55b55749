//! Writes a checkpoint: completely or not at all. Files get names that no reader looks for, and are then renamed. While one is
//! replaced, the folder has no `config.json`, but never one configuration with another's weights.

use crate::checkpoint::config::{CONFIG_FILE, Config};
use crate::checkpoint::files::{PartialFile, sync_folder, unwritable};
use crate::checkpoint::row_table::RowTable;
use crate::checkpoint::weights::{
    self, CARD_FILE, FileDtype, INDEX_FILE, TensorSpec, WEIGHTS_FILE, hexadecimal, scale_name,
};
use crate::ngrams::NgramTable;
use crate::text::subwords::TOKENIZER_FILE;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use weir_kernels::error::{Error, Result};

/// Elements start at a multiple of this, so that readers can map elements of four bytes.
const ALIGNMENT: usize = size_of::<f32>();

#[derive(Debug)]
pub(crate) struct TensorSize {
    pub(crate) name: String,
    /// Element count.
    pub(crate) numbers: usize,
    pub(crate) dtype: FileDtype,
    /// Its rows. Those of an I8 matrix have scales, which precede its numbers.
    pub(crate) rows: usize,
    /// See [`TensorSpec::stays_in_file`].
    pub(crate) stays_in_file: bool,
    /// True if its length in bytes is not a multiple of [`ALIGNMENT`]. Such tensors come last, so that all others stay aligned.
    pub(crate) is_last: bool,
}

/// Returns the header of a file with f32 vectors and matrices of type `matrices` (in I8 only matrices of two axes). The matrices in
/// `tables` keep their types.
pub(crate) fn layout(
    specs: &[TensorSpec],
    matrices: FileDtype,
    tables: &HashMap<&str, FileDtype>,
) -> Result<(Vec<u8>, Vec<TensorSize>)> {
    let size = |spec: &TensorSpec| size(spec, tables.get(&*spec.name).copied().unwrap_or(matrices));
    let sizes = specs.iter().map(size).collect::<Result<Vec<_>>>()?;
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
        2 if matrices == FileDtype::I8 && spec.stays_float => FileDtype::Bf16,
        2 => matrices,
        _ if matrices == FileDtype::I8 => FileDtype::F32,
        _ => matrices,
    };
    let rows = spec.shape.first().copied().unwrap_or(1);
    // Takes the remainder before multiplying, because the product could overflow.
    // A family lists such a matrix last.
    let is_last = !spec.stays_in_file && !(numbers % ALIGNMENT * dtype.bytes()).is_multiple_of(ALIGNMENT);
    let stays_in_file = spec.stays_in_file;
    Ok(TensorSize { name: spec.name.clone(), numbers, dtype, rows, stays_in_file, is_last })
}

fn too_large(name: &str, shape: &[usize]) -> Error {
    Error::Internal(format!("{name} is too large: {shape:?}"))
}

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

/// A checkpoint that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenCheckpoint {
    /// Human-readable summary of the architecture.
    pub shape: String,
    /// Number of trained parameters.
    pub parameters: usize,
    /// SHA-256 of the weights, in hexadecimal.
    pub sha256: String,
}

/// A checkpoint being written, tensor by tensor.
pub struct Writer {
    dest: PathBuf,
    /// The folders in which `dest` and missing folders above it were created.
    parents: Vec<PathBuf>,
    config: PartialFile,
    /// `tokenizer.json`, for a vocabulary of subword pieces.
    tokenizer: Option<PartialFile>,
    weights: PartialFile,
    out: BufWriter<File>,
    hash: Sha256,
    /// Tensors not yet written, last first.
    missing: Vec<TensorSize>,
    /// Numbers of tensors that follow all others in the file.
    last: Vec<u8>,
}

impl Writer {
    /// Starts a checkpoint in the new folder `dest`; the tensors follow in the order of `specs`. Matrices are rounded to
    /// `matrices`. Fails if the folder is not empty, unless it holds a checkpoint and `overwrite` is set.
    pub fn create(
        dest: &Path,
        config: &Config,
        specs: &[TensorSpec],
        matrices: FileDtype,
        overwrite: bool,
    ) -> Result<Self> {
        Self::create_with_tables(dest, config, specs, matrices, &HashMap::new(), overwrite)
    }

    /// Starts a checkpoint as [`create`](Self::create) does; the matrices in `tables`, by name, keep their types.
    pub fn create_with_tables(
        dest: &Path,
        config: &Config,
        specs: &[TensorSpec],
        matrices: FileDtype,
        tables: &HashMap<&str, FileDtype>,
        overwrite: bool,
    ) -> Result<Self> {
        check_vacant(dest, overwrite)?;
        let parents = missing_parents(dest)?;
        fs::create_dir_all(dest).map_err(unwritable(dest))?;
        let tokenizer =
            config.subwords().map(|subwords| PartialFile::write(dest, TOKENIZER_FILE, subwords.json().as_bytes()));
        let tokenizer = tokenizer.transpose()?;
        let config = PartialFile::write(dest, CONFIG_FILE, config.to_json()?.as_bytes())?;
        let weights = PartialFile::new(dest, WEIGHTS_FILE);
        let out = BufWriter::with_capacity(1 << 20, File::create(weights.path()).map_err(Error::io(weights.path()))?);
        let (header, mut missing) = layout(specs, matrices, tables)?;
        missing.reverse();
        let dest = dest.to_path_buf();
        let mut writer =
            Self { dest, parents, config, tokenizer, weights, out, hash: Sha256::new(), missing, last: Vec::new() };
        writer.put(&header)?;
        Ok(writer)
    }

    /// Writes the next tensor. Fails if another tensor or size is next, or the disk is full.
    pub fn tensor(&mut self, name: &str, numbers: &[f32]) -> Result<()> {
        let size = match self.missing.pop() {
            Some(next) if next.name == name && next.numbers == numbers.len() => next,
            next => {
                return Err(Error::Internal(format!("wrote {name} with {} numbers, expected {next:?}", numbers.len())));
            }
        };
        if size.dtype == FileDtype::I8 {
            let (scales, bytes) = weights::quantize(numbers, size.rows);
            self.put_numbers(FileDtype::F32, &scales)?;
            if !size.is_last {
                return self.put(&bytes);
            }
            self.last.extend(bytes);
            return Ok(());
        }
        if size.is_last {
            size.dtype.narrow(numbers, &mut self.last);
            return Ok(());
        }
        self.put_numbers(size.dtype, numbers)
    }

    /// Copies the next tensor, in its type, from the file of another checkpoint. Fails as [`tensor`](Self::tensor) does, and if the
    /// table cannot be read.
    pub fn table(&mut self, name: &str, table: &RowTable) -> Result<()> {
        match self.missing.pop() {
            Some(next)
                if next.name == name
                    && next.numbers == table.rows() * table.width()
                    && next.dtype == table.dtype()
                    && next.stays_in_file => {}
            next => return Err(Error::Internal(format!("wrote the table {name}, expected {next:?}"))),
        }
        if table.dtype() == FileDtype::I8 {
            self.put_numbers(FileDtype::F32, table.scales())?;
        }
        table.each_part(&mut |part| self.put(part))?;
        table.check()
    }

    /// Writes a card with the SHA-256 of the weights, renames the files, and returns the SHA-256. Fails if tensors are missing.
    pub fn finish(mut self) -> Result<String> {
        if let Some(next) = self.missing.last() {
            return Err(Error::Internal(format!("{} was not written", next.name)));
        }
        let last = std::mem::take(&mut self.last);
        self.put(&last)?;
        self.out.flush().and_then(|()| self.out.get_ref().sync_all()).map_err(Error::io(self.weights.path()))?;
        let sha256 = hexadecimal(&self.hash.finalize_reset());
        let card = format!("{}\n", serde_json::json!({ "sha256": sha256 }));
        let mut card = PartialFile::write(&self.dest, CARD_FILE, card.as_bytes())?;
        // Files of an old checkpoint would describe other weights. Its configuration goes first: without it the folder is no
        // checkpoint.
        let config = self.dest.join(CONFIG_FILE);
        let old = entries(&self.dest)?;
        remove(&config)?;
        sync_folder(&self.dest)?;
        for entry in old {
            let is_old = entry.kind == EntryKind::Part && entry.name != WEIGHTS_FILE;
            // A temporary file of a killed process.
            let is_left = entry.kind == EntryKind::Leftover && !PartialFile::is_own_name(&entry.name);
            if is_old || is_left {
                remove(&self.dest.join(entry.name))?;
            }
        }
        self.weights.rename(&self.dest.join(WEIGHTS_FILE))?;
        if let Some(tokenizer) = self.tokenizer.as_mut() {
            tokenizer.rename(&self.dest.join(TOKENIZER_FILE))?;
        }
        card.rename(&self.dest.join(CARD_FILE))?;
        // The configuration's name reaches the disk last: a power cut leaves a whole checkpoint or none.
        sync_folder(&self.dest)?;
        self.config.rename(&config)?;
        sync_folder(&self.dest)?;
        self.parents.iter().try_for_each(|parent| sync_folder(parent))?;
        Ok(sha256)
    }

    fn put_numbers(&mut self, dtype: FileDtype, numbers: &[f32]) -> Result<()> {
        let mut bytes = Vec::with_capacity(1 << 16);
        for part in numbers.chunks(1 << 14) {
            bytes.clear();
            dtype.narrow(part, &mut bytes);
            self.put(&bytes)?;
        }
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.hash.update(bytes);
        self.out.write_all(bytes).map_err(Error::io(self.weights.path()))
    }
}

/// Checks, before long work, that a checkpoint may be written to `dest`. With `overwrite` an old checkpoint may be replaced, but
/// never a folder with other files.
pub fn check_vacant(dest: &Path, overwrite: bool) -> Result<()> {
    let held = match fs::metadata(dest) {
        Ok(metadata) if metadata.is_dir() => entries(dest)?,
        Ok(_) => {
            return Err(Error::Setting(format!("{}: expected a folder to write to, found a file", dest.display())));
        }
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(unwritable(dest)(error)),
    };
    if let Some(entry) = held.iter().find(|entry| entry.kind == EntryKind::Foreign) {
        let remedy = if overwrite { ", which is not part of a checkpoint; move it away" } else { "" };
        let message = format!("{}: the folder is not empty: it holds {:?}{remedy}", dest.display(), entry.name);
        return Err(Error::Setting(message));
    }
    if held.iter().any(|entry| entry.kind != EntryKind::Leftover) && !overwrite {
        return Err(Error::Setting(format!("{}: the folder is not empty; --force overwrites", dest.display())));
    }
    let probe = PartialFile::new(dest, "probe");
    File::create(probe.path()).map(drop).map_err(unwritable(dest))
}

struct FolderEntry {
    name: String,
    kind: EntryKind,
}

/// Role of a folder entry in a checkpoint that the folder may hold already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EntryKind {
    /// A file that docs/checkpoints.md names.
    Part,
    /// A folder with a checkpoint of its own: an entropy model.
    EntropyModel,
    /// A partial file of a writer that did not finish.
    Leftover,
    Foreign,
}

fn entries(dest: &Path) -> Result<Vec<FolderEntry>> {
    // cards and n-grams belong to a checkpoint next to a configuration; alone they are foreign files
    let cards: &[&str] = if dest.join(CONFIG_FILE).is_file() { &["README.md", CARD_FILE, NGRAMS_FILE] } else { &[] };
    let entry = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry.map_err(Error::io(dest))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = entry.path();
        let shard = name.starts_with("model-") && name.contains("-of-") && name.ends_with(".safetensors");
        let parts = [CONFIG_FILE, WEIGHTS_FILE, INDEX_FILE, TOKENIZER_FILE];
        let part = shard || parts.iter().chain(cards).any(|part| *part == name);
        let kind = match path.is_dir() {
            true if path.join(CONFIG_FILE).is_file() => EntryKind::EntropyModel,
            false if part => EntryKind::Part,
            false if PartialFile::is_name(&name) => EntryKind::Leftover,
            _ => EntryKind::Foreign,
        };
        Ok(FolderEntry { name, kind })
    };
    fs::read_dir(dest).map_err(Error::io(dest))?.map(entry).collect()
}

/// Returns the parents of a folder that does not exist, and of the missing folders above it.
fn missing_parents(folder: &Path) -> Result<Vec<PathBuf>> {
    let folder = std::path::absolute(folder).map_err(Error::io(folder))?;
    let missing = folder.ancestors().take_while(|folder| !folder.exists());
    Ok(missing.filter_map(Path::parent).map(Path::to_path_buf).collect())
}

/// Removes a file if it exists.
fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io(path)(error)),
        _ => Ok(()),
    }
}

/// The name of the file of the table from which speculation guesses.
pub const NGRAMS_FILE: &str = "ngrams.bin";

/// Writes the n-grams of the checkpoint in a folder, in place of earlier ones. Returns the file. Fails if it cannot be written.
pub fn write_ngrams(dir: &Path, table: &NgramTable) -> Result<PathBuf> {
    let file = dir.join(NGRAMS_FILE);
    let mut partial = PartialFile::write(dir, NGRAMS_FILE, &table.to_bytes())?;
    partial.rename(&file)?;
    sync_folder(dir)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    const CONFIG: &[u8] = br#"{"format": "weir/1", "family": "x", "vocabulary": {"bytes": true}, "normaliser": "none",
        "training_length": 8, "architecture": {"a": {"b": 1e-5}}}"#;

    fn writer(dir: &Path, overwrite: bool) -> Result<Writer> {
        let config = Config::parse(CONFIG, dir).unwrap();
        let specs = [TensorSpec::zeros("a", vec![2]), TensorSpec::zeros("b", vec![1, 1])];
        Writer::create(dir, &config, &specs, FileDtype::F32, overwrite)
    }

    fn files(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_checkpoint_appears_when_it_is_complete() {
        let dir = TempDir::new().unwrap();
        let mut writer = writer(dir.path(), false).unwrap();
        writer.tensor("a", &[1.0, 2.0]).unwrap();
        assert!(files(dir.path()).iter().all(|name| name.ends_with(".partial")));
        writer.tensor("b", &[3.0]).unwrap();
        let sha256 = writer.finish().unwrap();
        assert_eq!(files(dir.path()), [CARD_FILE, CONFIG_FILE, WEIGHTS_FILE]);
        weights::require_digest(weights::read_card(dir.path()).unwrap(), dir.path()).unwrap();
        weights::check_digest(weights::read_card(dir.path()).unwrap(), dir.path(), &sha256).unwrap();
        let bytes = fs::read(dir.path().join(WEIGHTS_FILE)).unwrap();
        assert_eq!(hexadecimal(&Sha256::digest(bytes)), sha256);
    }

    #[test]
    fn an_unfinished_checkpoint_leaves_no_files() {
        let dir = TempDir::new().unwrap();
        let mut first = writer(dir.path(), false).unwrap();
        first.tensor("a", &[1.0, 2.0]).unwrap();
        assert!(first.finish().unwrap_err().to_string().contains("b was not written"));
        assert!(writer(dir.path(), false).unwrap().tensor("b", &[1.0]).is_err());
        assert!(writer(dir.path(), false).unwrap().tensor("a", &[1.0]).is_err());
        assert_eq!(files(dir.path()), [""; 0]);
    }

    #[test]
    fn an_old_checkpoint_and_partial_files_are_removed() {
        let dir = TempDir::new().unwrap();
        for old in
            ["model.safetensors.index.json", "model-00001-of-00002.safetensors", "README.md", CARD_FILE, CONFIG_FILE]
        {
            fs::write(dir.path().join(old), "{}").unwrap();
        }
        fs::write(dir.path().join(".model.safetensors.0.partial"), "").unwrap();
        fs::create_dir(dir.path().join("companion")).unwrap();
        fs::write(dir.path().join("companion").join(CONFIG_FILE), "{}").unwrap();
        assert!(writer(dir.path(), false).is_err());
        let mut writer = writer(dir.path(), true).unwrap();
        writer.tensor("a", &[1.0, 2.0]).unwrap();
        writer.tensor("b", &[3.0]).unwrap();
        writer.finish().unwrap();
        assert_eq!(files(dir.path()), [CARD_FILE, "companion", CONFIG_FILE, WEIGHTS_FILE]);
    }

    #[test]
    fn foreign_files_are_not_overwritten() {
        let dir = TempDir::new().unwrap();
        let message = |dest: &Path, force| check_vacant(dest, force).unwrap_err().to_string();
        fs::write(dir.path().join("thesis.tex"), "x").unwrap();
        for force in [false, true] {
            let message = message(dir.path(), force);
            assert!(message.contains("not empty: it holds \"thesis.tex\""), "{message}");
        }
        let file = dir.path().join("thesis.tex");
        assert!(message(&file, true).ends_with("expected a folder to write to, found a file"));
        let within = message(&file.join("model"), true);
        assert!(within.contains("cannot write a checkpoint there"), "{within}");
        check_vacant(&dir.path().join("new"), false).unwrap();
        assert_eq!(files(dir.path()), ["thesis.tex"]);
    }
}
