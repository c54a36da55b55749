//! Checkpoints of the official Dynamic Token Pooling code (PiotrNawrot/dynamic-pooling at commit 1e6f360).
//!
//! A source is the `.pt` that its training writes (`checkpoint_last.pt`, or a folder that holds it), or a folder with the
//! official arguments in `config.json`, the vocabulary among them, and the official tensors in `model.safetensors`.

mod arguments;
mod names;

use super::{
    converted::Converted,
    pickle::{Pickle, Value},
    torch::TorchFile,
    training::{SourceForm, Tensors, items, plain, text},
};
use crate::{
    error::{Error, Result},
    family::{
        TensorSpec,
        checkpoint::{
            CONFIG_FILE, Dtype, Tensor, Weights,
            json::{parse, read_limited},
            read_weights_with_progress,
        },
        load::blueprint,
    },
};
use arguments::Arguments;
use serde_json::{Map, Value as Json};
use std::path::Path;

const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// Reads an official checkpoint. Fails if arguments are missing or out of bounds, or if tensors are missing,
/// superfluous or of another shape. Fails if the file holds anything else that the official code does not save.
pub fn read(from: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    match SourceForm::detect(from)? {
        SourceForm::Folder(dir) => read_folder(&dir, progress),
        SourceForm::Training(file) => read_training_file(&file, progress),
    }
}

fn read_folder(dir: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    let file = dir.join(CONFIG_FILE);
    let arguments: Arguments = parse(&read_limited(&file, MAX_CONFIG_BYTES)?, &file, "")?;
    let config = arguments.config(&file)?;
    let specs = blueprint(&config, &file).map_err(arguments::in_official_terms)?.tensors();
    let (official, _) = read_weights_with_progress(dir, &names::official(&specs), progress)?;
    Ok(Converted { config, weights: rename(&specs, official)? })
}

fn read_training_file(file: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    let mut torch = TorchFile::open(file)?;
    let arguments = training_arguments(&torch.pickle, file)?;
    let config = arguments.config(file)?;
    let specs = blueprint(&config, file).map_err(arguments::in_official_terms)?.tensors();
    let tensors = Tensors::find(&torch, "model_state", file)?;
    let weights = tensors.read(&mut torch, names::official(&specs), progress)?;
    Ok(Converted { config, weights: rename(&specs, weights)? })
}

/// Returns official tensors under weir's names.
fn rename(specs: &[TensorSpec], mut official: Weights) -> Result<Weights> {
    let mut weights = Weights::default();
    for spec in specs {
        let numbers = official.take(&names::official_name(&spec.name))?;
        weights.insert(spec.name.clone(), Tensor { dtype: Dtype::F32, shape: spec.shape.clone(), numbers });
    }
    Ok(weights)
}

/// Reads the arguments of a training checkpoint: the command line's, overridden by the model's, and the vocabulary.
fn training_arguments(pickle: &Pickle, file: &Path) -> Result<Arguments> {
    let part = |key: &str| {
        let found = || Error::checkpoint(file, key, "a value", "nothing");
        pickle.item(pickle.root(), key).ok_or_else(found)
    };
    let wrong =
        |key: &str, expected: &str, found: &Value| Error::checkpoint(file, key, expected, pickle.describe(found));
    let args = part("args")?;
    let model = part("model_config")?;
    let vocabulary = part("vocab")?;
    let mut all = Map::new();
    for found in [
        items(pickle, args).ok_or_else(|| wrong("args", "a Namespace", args))?,
        pickle.items(model).ok_or_else(|| wrong("model_config", "a dict", model))?,
    ] {
        all.extend(plain(pickle, found));
    }
    let state = pickle.call(vocabulary).and_then(|call| call.state.as_ref()).unwrap_or(vocabulary);
    let symbols = pickle.item(state, "idx2sym").unwrap_or(state);
    let symbols = pickle.elements(symbols).ok_or_else(|| wrong("vocab.idx2sym", "a list", symbols))?;
    let symbols = symbols.iter().map(|symbol| text(symbol).ok_or_else(|| wrong("vocab.idx2sym", "strings", symbol)));
    all.insert("vocab".into(), symbols.collect::<Result<Vec<_>>>()?.into());
    parse(Json::Object(all).to_string().as_bytes(), file, "args")
}
