//! The files of a checkpoint's weights: one, or several and an index (Hugging Face's convention).

use super::{
    TensorSpec,
    json::{self, UniqueMap},
    links::{check_inside, is_inside},
};
use crate::error::{Error, Result};
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path, PathBuf},
};

/// The only file of weights, if there is no index.
pub const WEIGHTS_FILE: &str = "model.safetensors";
/// The index of several files.
pub const INDEX_FILE: &str = "model.safetensors.index.json";
/// The expectation of a name in an index.
const PLAIN: &str = "the plain name of a .safetensors file in this folder";
/// Weights as PyTorch pickles them, which only conversions read.
pub const PICKLE_FILE: &str = "pytorch_model.bin";
const MAX_INDEX_BYTES: u64 = 16 << 20;

/// One file of weights.
#[derive(Debug)]
pub struct Shard {
    /// The file.
    pub file: PathBuf,
    /// Names of the tensors that it must hold, no more and no fewer.
    pub names: BTreeSet<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Index {
    #[serde(rename = "metadata")]
    _metadata: Option<serde::de::IgnoredAny>,
    weight_map: UniqueMap<String>,
}

/// Returns the files of weights in a folder, in the order of their names, for a model with these tensors. Fails if
/// there are no weights, or both one file and an index. Fails if the only file is a link out of the folder. Fails if the
/// index does not name exactly these tensors, or names anything but plain files of the folder.
pub fn shards(dir: &Path, specs: &[TensorSpec]) -> Result<Vec<Shard>> {
    let single = dir.join(WEIGHTS_FILE);
    let index = dir.join(INDEX_FILE);
    match (single.exists(), index.exists()) {
        (true, false) => {
            check_inside(dir, &single)?;
            Ok(vec![Shard { file: single, names: names(specs) }])
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
    let found = match dir.join(PICKLE_FILE).exists() {
        true => format!("only {PICKLE_FILE} (only `weir convert` reads it; transformers can save safetensors)"),
        false => "neither".into(),
    };
    Error::checkpoint(single, "the file", format!("{WEIGHTS_FILE} or {INDEX_FILE}"), found)
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
            let shards = by_file(json::parse::<Index>(&json::read_limited(&index, MAX_INDEX_BYTES)?, &index, "")?);
            shards.into_iter().map(|(file, names)| inside(dir, &index, &file, &names)).collect()
        }
        (false, false) => Err(missing(dir, single)),
    }
}

/// Returns the names of the files that the index of a folder names, sorted. The files need not exist. Fails if the index cannot be
/// read, or names anything but plain files.
pub fn indexed_files(dir: &Path) -> Result<Vec<String>> {
    let index = dir.join(INDEX_FILE);
    let shards = by_file(json::parse::<Index>(&json::read_limited(&index, MAX_INDEX_BYTES)?, &index, "")?);
    let checked = |(file, names): (String, BTreeSet<String>)| match is_plain(&file) {
        true => Ok(file),
        false => Err(misnamed(&index, &file, &names, PLAIN)),
    };
    shards.into_iter().map(checked).collect()
}

fn by_file(index: Index) -> BTreeMap<String, BTreeSet<String>> {
    let mut shards: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, file) in index.weight_map.0 {
        shards.entry(file).or_default().insert(name);
    }
    shards
}

/// The names of the tensors.
pub(super) fn names(specs: &[TensorSpec]) -> BTreeSet<String> {
    specs.iter().map(|spec| spec.name.clone()).collect()
}

fn indexed(dir: &Path, index: &Path, specs: &[TensorSpec]) -> Result<Vec<Shard>> {
    let map = json::parse::<Index>(&json::read_limited(index, MAX_INDEX_BYTES)?, index, "")?;
    same_names(index, &names(specs), map.weight_map.0.keys())?;
    by_file(map)
        .into_iter()
        .map(|(file, names)| Ok(Shard { file: inside(dir, index, &file, &names)?, names }))
        .collect()
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
fn inside(dir: &Path, index: &Path, file: &str, names: &BTreeSet<String>) -> Result<PathBuf> {
    let wrong = |expected: &str| Err(misnamed(index, file, names, expected));
    if !is_plain(file) {
        return wrong(PLAIN);
    }
    let path = dir.join(file);
    if !path.exists() {
        return wrong("a file that the folder has");
    }
    if is_inside(dir, &path)? { Ok(path) } else { wrong("a file in this folder, not a link out of it") }
}

fn is_plain(file: &str) -> bool {
    let mut components = Path::new(file).components();
    let plain = matches!((components.next(), components.next()), (Some(Component::Normal(only)), None) if only == file);
    plain && !file.contains(['/', '\\', '\0']) && file.ends_with(".safetensors")
}

/// The error for a file that an index must not name.
fn misnamed(index: &Path, file: &str, names: &BTreeSet<String>, expected: &str) -> Error {
    let key = names.first().map(|name| format!("weight_map.{name}")).unwrap_or_default();
    Error::checkpoint(index, key, expected, format!("{file:?}"))
}
