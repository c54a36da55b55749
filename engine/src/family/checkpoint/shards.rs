//! The files of a checkpoint's weights: one, or several and an index (Hugging Face's convention).

use super::{
    TensorSpec,
    folder::contents,
    int8::possible_scales,
    json::{self, UniqueMap},
    links::{check_inside, is_inside},
    placeholders::placeholder,
    regular_file,
};
use crate::error::{Error, Result};
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read,
    path::{Component, Path, PathBuf},
};

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

/// The files that an index names.
#[derive(Debug, Clone, Copy)]
struct FileKind {
    /// The ending of their names.
    ending: &'static str,
    /// The expectation of a name.
    plain: &'static str,
}

const SAFETENSORS: FileKind =
    FileKind { ending: ".safetensors", plain: "the plain name of a .safetensors file in this folder" };
const PICKLES: FileKind = FileKind { ending: ".bin", plain: "the plain name of a .bin file in this folder" };

/// One file of weights.
#[derive(Debug)]
pub struct Shard {
    /// The file.
    pub file: PathBuf,
    /// Names of the tensors that it must hold.
    pub names: BTreeSet<String>,
    /// Names of the other tensors that it may hold: scales of int8 matrices, if there is no index to list them.
    pub scales: BTreeSet<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Index {
    #[serde(rename = "metadata")]
    _metadata: Option<serde::de::IgnoredAny>,
    weight_map: UniqueMap<String>,
}

impl Shard {
    /// Returns the only file of a model with these tensors.
    pub(super) fn single(file: PathBuf, specs: &[TensorSpec]) -> Self {
        Self { file, names: names(specs), scales: possible_scales(specs) }
    }
}

/// Returns the files of weights in a folder, in the order of their names, for a model with these tensors. Fails if
/// there are no weights, or both one file and an index. Fails if the only file is a link out of the folder. Fails if the
/// index does not name exactly these tensors and scales of int8 matrices, or names anything but plain files of the folder.
pub fn shards(dir: &Path, specs: &[TensorSpec]) -> Result<Vec<Shard>> {
    let single = dir.join(WEIGHTS_FILE);
    let index = dir.join(INDEX_FILE);
    match (single.exists(), index.exists()) {
        (true, false) => {
            check_inside(dir, &single)?;
            Ok(vec![Shard::single(single, specs)])
        }
        (false, true) => indexed(dir, &index, specs),
        (true, true) => {
            Err(Error::checkpoint(single, "the file", format!("only one of {WEIGHTS_FILE} and {INDEX_FILE}"), "both"))
        }
        (false, false) => Err(missing(dir, single)),
    }
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
    let read = regular_file::open(file).and_then(|(opened, _)| opened.take(BEGINNING).read_to_end(&mut bytes));
    if read.is_ok() { bytes } else { vec![1] }
}

/// Returns the files of weights in a folder, with any tensors. Fails if there are no weights, or if the only file is a link
/// out of the folder. Fails if the index cannot be read or names anything but plain files of the folder.
pub fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let single = dir.join(WEIGHTS_FILE);
    let index = dir.join(INDEX_FILE);
    match (single.exists(), index.exists()) {
        (true, _) => {
            check_inside(dir, &single)?;
            Ok(vec![single])
        }
        (false, true) => {
            Ok(listed(dir, &index, read_index(&index)?, SAFETENSORS)?.into_iter().map(|shard| shard.file).collect())
        }
        (false, false) => Err(missing(dir, single)),
    }
}

/// Returns the names of the files that an index, [`INDEX_FILE`] or [`PICKLE_INDEX_FILE`], names, sorted. The files need not exist.
/// Fails if the index cannot be read, or names anything but plain files of its kind.
pub fn indexed_files(dir: &Path, index: &str) -> Result<Vec<String>> {
    let kind = if index == PICKLE_INDEX_FILE { PICKLES } else { SAFETENSORS };
    let index = dir.join(index);
    let checked = |(file, names): (String, BTreeSet<String>)| match is_plain(&file, kind) {
        true => Ok(file),
        false => Err(misnamed(&index, &file, &names, kind.plain)),
    };
    by_file(read_index(&index)?).into_iter().map(checked).collect()
}

/// Returns the pickles that the index of a folder names, in the order of their names, with the tensors that each must hold. Fails if
/// the index cannot be read or names no tensor, or names anything but plain files of the folder.
pub fn indexed_pickles(dir: &Path) -> Result<Vec<Shard>> {
    let file = dir.join(PICKLE_INDEX_FILE);
    let index = read_index(&file)?;
    if index.weight_map.0.is_empty() {
        return Err(Error::checkpoint(file, "weight_map", "names of tensors", "none"));
    }
    listed(dir, &file, index, PICKLES)
}

fn read_index(file: &Path) -> Result<Index> {
    json::parse(&json::read_limited(file, MAX_INDEX_BYTES)?, file, "")
}

fn by_file(index: Index) -> BTreeMap<String, BTreeSet<String>> {
    let mut shards: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, file) in index.weight_map.0 {
        shards.entry(file).or_default().insert(name);
    }
    shards
}

/// The names of the tensors.
fn names(specs: &[TensorSpec]) -> BTreeSet<String> {
    specs.iter().map(|spec| spec.name.clone()).collect()
}

fn indexed(dir: &Path, index: &Path, specs: &[TensorSpec]) -> Result<Vec<Shard>> {
    let map = read_index(index)?;
    let scales = possible_scales(specs);
    same_names(index, &names(specs), map.weight_map.0.keys().filter(|name| !scales.contains(*name)))?;
    listed(dir, index, map, SAFETENSORS)
}

/// Returns the files that an index names. Fails if one is not a plain file of the folder.
fn listed(dir: &Path, index: &Path, map: Index, kind: FileKind) -> Result<Vec<Shard>> {
    let shard = |(file, names): (String, BTreeSet<String>)| {
        let file = inside(dir, index, &file, &names, kind)?;
        Ok(Shard { file, names, scales: BTreeSet::new() })
    };
    by_file(map).into_iter().map(shard).collect()
}

/// Checks that a file holds exactly the `expected` tensors. The error names the first missing tensor, or else the first
/// superfluous one.
pub fn same_names<'a>(
    file: &Path,
    expected: &BTreeSet<String>,
    found: impl IntoIterator<Item = &'a String>,
) -> Result<()> {
    let found: BTreeSet<&String> = found.into_iter().collect();
    let more = |count: usize| if count > 1 { format!(" ({} more of the kind)", count - 1) } else { String::new() };
    let missing: Vec<_> = expected.iter().filter(|name| !found.contains(name)).collect();
    if let Some(name) = missing.first() {
        return Err(Error::checkpoint(file, name.as_str(), "a tensor", format!("none{}", more(missing.len()))));
    }
    let superfluous: Vec<_> = found.into_iter().filter(|name| !expected.contains(*name)).collect();
    match superfluous.first() {
        Some(name) => {
            let found = format!("one{}", more(superfluous.len()));
            Err(Error::checkpoint(file, name.as_str(), "no tensor of this name", found))
        }
        None => Ok(()),
    }
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
