//! Checkpoints of the official Dynamic Token Pooling code (github.com/PiotrNawrot/dynamic-pooling, commit 1e6f360).
//!
//! A source is the `.pt` that its training writes (`checkpoint_last.pt`, or a folder that holds it), or a folder with the
//! official arguments in `config.json`, the vocabulary among them, and the official tensors in `model.safetensors`.

mod arguments;
mod names;

use super::{
    Converted,
    pickle::{Pickle, Value},
    torch::{TorchFile, TorchTensor},
};
use crate::{
    error::{Error, Result},
    family::{
        TensorSpec,
        checkpoint::{
            CONFIG_FILE, Dtype, Tensor, Weights,
            json::{parse, read_limited},
            read_weights_telling,
            shards::same_names,
        },
        load::blueprint,
    },
};
use arguments::Arguments;
use serde_json::{Map, Value as Json};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// What training writes into its working folder.
const TRAINING_FILE: &str = "checkpoint_last.pt";
/// What every key of the weights starts with after training on several devices.
const PARALLEL_PREFIX: &str = "module.";
const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// Reads an official checkpoint.
///
/// # Errors
/// Arguments that are missing or out of bounds, tensors that are missing, superfluous or of another shape, anything that a
/// checkpoint of this code does not hold.
pub fn read(from: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    if !from.is_dir() {
        return read_training_file(from, progress);
    }
    let (config, training) = (from.join(CONFIG_FILE), from.join(TRAINING_FILE));
    match (config.exists(), training.exists()) {
        (true, false) => read_folder(from, progress),
        (false, true) => read_training_file(&training, progress),
        (both, _) => {
            let found = if both { "both" } else { "neither" };
            Err(Error::checkpoint(from, "the folder", format!("either {CONFIG_FILE} or {TRAINING_FILE}"), found))
        }
    }
}

fn read_folder(dir: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    let file = dir.join(CONFIG_FILE);
    let arguments: Arguments = parse(&read_limited(&file, MAX_CONFIG_BYTES)?, &file, "")?;
    let config = arguments.config(&file)?;
    let specs = blueprint(&config, &file).map_err(arguments::in_official_terms)?.tensors();
    let (official, _) = read_weights_telling(dir, &names::official(&specs), progress)?;
    Ok(Converted { config, weights: renamed(&specs, official)? })
}

fn read_training_file(file: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    let mut torch = TorchFile::open(file)?;
    let arguments = training_arguments(&torch.pickle, file)?;
    let config = arguments.config(file)?;
    let specs = blueprint(&config, file).map_err(arguments::in_official_terms)?.tensors();
    let official = names::official(&specs);
    let tensors = training_tensors(&torch, file)?;
    let expected: BTreeSet<String> = official.iter().map(|spec| spec.name.clone()).collect();
    same_names(file, &expected, tensors.keys())?;
    let total: usize = official.iter().map(|spec| 4 * spec.shape.iter().product::<usize>()).sum();
    let (mut weights, mut done) = (Weights::default(), 0);
    for spec in official {
        let Some(tensor) = tensors.get(&spec.name) else {
            return Err(Error::Internal(format!("{} was there and is not", spec.name)));
        };
        if tensor.shape != spec.shape {
            let (expected, found) = (format!("shape {:?}", spec.shape), format!("shape {:?}", tensor.shape));
            return Err(Error::checkpoint(file, spec.name, expected, found));
        }
        let numbers = torch.read(&spec.name, tensor)?;
        done += 4 * numbers.len() as u64;
        progress(done, total as u64);
        weights.insert(spec.name, Tensor { dtype: Dtype::F32, shape: spec.shape, numbers });
    }
    Ok(Converted { config, weights: renamed(&specs, weights)? })
}

/// Official tensors under weir's names.
fn renamed(specs: &[TensorSpec], mut official: Weights) -> Result<Weights> {
    let mut weights = Weights::default();
    for spec in specs {
        let numbers = official.take(&names::official_name(&spec.name))?;
        weights.insert(spec.name.clone(), Tensor { dtype: Dtype::F32, shape: spec.shape.clone(), numbers });
    }
    Ok(weights)
}

/// The arguments in a training checkpoint: those of the command line, overridden by those that the model was built with,
/// and the vocabulary.
fn training_arguments(pickle: &Pickle, file: &Path) -> Result<Arguments> {
    let part = |key: &str| {
        let found = || Error::checkpoint(file, key, "a value", "nothing");
        pickle.item(pickle.root(), key).ok_or_else(found)
    };
    let wrong =
        |key: &str, expected: &str, found: &Value| Error::checkpoint(file, key, expected, pickle.describe(found));
    let (args, model, vocabulary) = (part("args")?, part("model_config")?, part("vocab")?);
    let namespace = pickle.call(args).and_then(|call| call.state.as_ref());
    let namespace = namespace.and_then(|state| pickle.items(state)).or_else(|| pickle.items(args));
    let mut all = Map::new();
    for items in [
        namespace.ok_or_else(|| wrong("args", "a Namespace", args))?,
        pickle.items(model).ok_or_else(|| wrong("model_config", "a dict", model))?,
    ] {
        all.extend(items.iter().filter_map(|(key, value)| Some((text(key)?, scalar(value)?))));
    }
    let state = pickle.call(vocabulary).and_then(|call| call.state.as_ref()).unwrap_or(vocabulary);
    let symbols = pickle.item(state, "idx2sym").unwrap_or(state);
    let symbols = pickle.elements(symbols).ok_or_else(|| wrong("vocab.idx2sym", "a list", symbols))?;
    let symbols = symbols.iter().map(|symbol| text(symbol).ok_or_else(|| wrong("vocab.idx2sym", "strings", symbol)));
    all.insert("vocab".into(), symbols.collect::<Result<Vec<_>>>()?.into());
    parse(Json::Object(all).to_string().as_bytes(), file, "args")
}

fn text(value: &Value) -> Option<String> {
    if let Value::Text(text) = value { Some(text.to_string()) } else { None }
}

/// A plain value as JSON; what is not plain is no argument that matters here.
fn scalar(value: &Value) -> Option<Json> {
    match value {
        Value::None => Some(Json::Null),
        Value::Bool(value) => Some((*value).into()),
        Value::Int(value) => Some((*value).into()),
        Value::Float(value) => Some((*value).into()),
        Value::Text(value) => Some((**value).into()),
        Value::LongInt | Value::Bytes | Value::Object(_) => None,
    }
}

/// The tensors of `model_state` by their names, without the prefix of parallel training.
fn training_tensors(torch: &TorchFile, file: &Path) -> Result<BTreeMap<String, TorchTensor>> {
    let pickle = &torch.pickle;
    let state = pickle.item(pickle.root(), "model_state");
    let items = state.and_then(|state| pickle.items(state));
    let Some(items) = items else {
        let found = state.map_or("nothing".into(), |state| pickle.describe(state));
        return Err(Error::checkpoint(file, "model_state", "a dict of tensors", found));
    };
    let parallel = items.iter().all(|(key, _)| text(key).is_some_and(|key| key.starts_with(PARALLEL_PREFIX)));
    let mut tensors = BTreeMap::new();
    for (key, value) in items {
        let Some(name) = text(key) else {
            return Err(Error::checkpoint(file, "model_state", "names of tensors", pickle.describe(key)));
        };
        let name = name.strip_prefix(PARALLEL_PREFIX).filter(|_| parallel).map(str::to_owned).unwrap_or(name);
        let tensor = torch.tensor(&name, value)?;
        if tensors.insert(name.clone(), tensor).is_some() {
            return Err(Error::checkpoint(file, name, "one tensor of this name", "two"));
        }
    }
    Ok(tensors)
}
