//! Training checkpoints: the files of a source, a pickle's plain values as JSON, and a dict of tensors that is read like a
//! safetensors file.

use super::{
    pickle::{Pickle, PickleValue},
    torch::{TorchFile, TorchTensor},
};
use crate::{
    error::{Error, Result},
    family::{
        TensorSpec,
        checkpoint::{CONFIG_FILE, Weights, folder::contents, shards::same_names},
    },
};
use serde_json::{Map, Value as Json};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

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

/// The tensors of a training checkpoint, whose numbers are read later.
pub(super) struct TorchTensors {
    file: PathBuf,
    /// Tensors by name, without the prefix of parallel training.
    pub(super) all: BTreeMap<String, TorchTensor>,
}

impl TorchTensors {
    /// Finds the tensors of the dict under `key`; errors name `file`. Fails for anything but a dict of float tensors.
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
            if all.insert(name.clone(), tensor).is_some() {
                return Err(Error::checkpoint(file, name, "one tensor of this name", "two"));
            }
        }
        Ok(Self { file: file.to_path_buf(), all })
    }

    /// Reads exactly the tensors of `specs`, and reports bytes read and bytes to read to `progress`. Fails if tensors
    /// are missing, superfluous, of another shape, or incomplete.
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
            if tensor.shape != spec.shape {
                let expected = format!("shape {:?}", spec.shape);
                let found = format!("shape {:?}", tensor.shape);
                return Err(Error::checkpoint(&self.file, &*spec.name, expected, found));
            }
            let numbers = torch.read(&spec.name, tensor)?;
            done += 4 * numbers.len() as u64;
            progress(done, total as u64);
            Ok(numbers)
        })
    }
}
