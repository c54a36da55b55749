//! Checkpoints of the official Dynamic Token Pooling code (github.com/PiotrNawrot/dynamic-pooling, commit 1e6f360).
//!
//! A source is the `.pt` that its training writes (`checkpoint_last.pt`, or a folder that holds it), or a folder with the
//! official arguments in `config.json`, the vocabulary among them, and the official tensors in `model.safetensors`.

mod arguments;
mod names;

use super::{
    Converted,
    pickle::{Pickle, Value},
    torch::TorchFile,
    training::{self, text},
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
use std::{collections::BTreeSet, path::Path};

/// What training writes into its working folder.
const TRAINING_FILE: &str = "checkpoint_last.pt";
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
    let tensors = training::tensors(&torch, "model_state", file)?;
    let expected: BTreeSet<String> = official.iter().map(|spec| spec.name.clone()).collect();
    same_names(file, &expected, tensors.keys())?;
    let weights = training::read(&mut torch, &tensors, &official, (file, progress))?;
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
    let mut all = Map::new();
    all.extend(training::arguments(pickle, args).ok_or_else(|| wrong("args", "a Namespace", args))?);
    all.extend(training::arguments(pickle, model).ok_or_else(|| wrong("model_config", "a dict", model))?);
    let state = pickle.call(vocabulary).and_then(|call| call.state.as_ref()).unwrap_or(vocabulary);
    let symbols = pickle.item(state, "idx2sym").unwrap_or(state);
    let symbols = pickle.elements(symbols).ok_or_else(|| wrong("vocab.idx2sym", "a list", symbols))?;
    let symbols = symbols.iter().map(|symbol| text(symbol).ok_or_else(|| wrong("vocab.idx2sym", "strings", symbol)));
    all.insert("vocab".into(), symbols.collect::<Result<Vec<_>>>()?.into());
    parse(Json::Object(all).to_string().as_bytes(), file, "args")
}
