//! Checkpoints of the official Dynamic Token Pooling code (PiotrNawrot/dynamic-pooling at commit 1e6f360).
//!
//! A source is the `.pt` that its training writes (`checkpoint_last.pt`, or a folder that holds it), or a folder with the
//! official arguments in `config.json`, the vocabulary among them, and the official tensors in `model.safetensors`.

mod arguments;
mod names;

use super::{
    converted::{Converted, read_config},
    pickle::{Pickle, PickleValue},
    torch::TorchFile,
    training::{SourceForm, TorchTensors, items, plain, text},
};
use crate::{
    error::{Error, Result},
    family::{
        TensorSpec,
        checkpoint::{CONFIG_FILE, Weights, json::parse, read_weights_with_progress},
        load::blueprint,
    },
};
use arguments::Arguments;
use serde_json::{Map, Value as Json};
use std::path::Path;

/// Reads an official checkpoint. Fails if arguments are missing or out of bounds, or if tensors are missing,
/// superfluous or of another shape. Fails if the file holds anything else that the official code does not save.
pub fn read(from: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    match SourceForm::detect(from)? {
        SourceForm::Folder(dir) => {
            let file = dir.join(CONFIG_FILE);
            let arguments = parse(&read_config(&file)?, &file, "")?;
            convert(&arguments, &file, |specs| Ok(read_weights_with_progress(&dir, &specs, progress)?.0))
        }
        SourceForm::Training(file) => {
            let mut torch = TorchFile::open(&file)?;
            let arguments = training_arguments(&torch.pickle, &file)?;
            let read = |specs| TorchTensors::find(&torch, "model_state", &file)?.read(&mut torch, specs, progress);
            convert(&arguments, &file, read)
        }
    }
}

/// Converts a checkpoint, whose official tensors `read` returns.
fn convert(
    arguments: &Arguments,
    file: &Path,
    read: impl FnOnce(Vec<TensorSpec>) -> Result<Weights>,
) -> Result<Converted> {
    let config = arguments.config(file)?;
    let specs = blueprint(&config, file).map_err(arguments::in_official_terms)?.tensors();
    let mut official = read(names::official(&specs))?;
    let weights = Weights::collect(specs, |spec| official.take(&names::official_name(&spec.name)))?;
    Ok(Converted { config, weights })
}

/// Reads the arguments of a training checkpoint: the command line's, overridden by the model's, and the vocabulary.
fn training_arguments(pickle: &Pickle, file: &Path) -> Result<Arguments> {
    let part = |key: &str| {
        let missing = || Error::checkpoint(file, key, "a value", "nothing");
        pickle.item(&pickle.root, key).ok_or_else(missing)
    };
    let wrong =
        |key: &str, expected: &str, found: &PickleValue| Error::checkpoint(file, key, expected, pickle.describe(found));
    let args = part("args")?;
    let model = part("model_config")?;
    let vocabulary = part("vocab")?;
    let mut all = Map::new();
    all.extend(plain(pickle, items(pickle, args).ok_or_else(|| wrong("args", "a Namespace", args))?));
    all.extend(plain(pickle, pickle.items(model).ok_or_else(|| wrong("model_config", "a dict", model))?));
    let state = pickle.call(vocabulary).and_then(|call| call.state.as_ref()).unwrap_or(vocabulary);
    let symbols = pickle.item(state, "idx2sym").unwrap_or(state);
    let symbols = pickle.elements(symbols).ok_or_else(|| wrong("vocab.idx2sym", "a list", symbols))?;
    let symbols = symbols.iter().map(|symbol| text(symbol).ok_or_else(|| wrong("vocab.idx2sym", "strings", symbol)));
    all.insert("vocab".into(), symbols.collect::<Result<Vec<_>>>()?.into());
    parse(Json::Object(all).to_string().as_bytes(), file, "args")
}
