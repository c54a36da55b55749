//! Checkpoints of the official Dynamic Token Pooling code (PiotrNawrot/dynamic-pooling at commit 1e6f360).
//!
//! A source is the `.pt` that its training writes (`checkpoint_last.pt`, or a folder that holds it), or a folder with the
//! official arguments in `config.json`, the vocabulary among them, and the official tensors in `model.safetensors`.

mod arguments;

use super::{
    converted::{Converted, read_config, source_name},
    pickle::{Pickle, PickleValue},
    torch::TorchFile,
    training::{SourceForm, TorchTensors, items, plain, text},
};
use crate::{
    error::{Error, Result},
    family::{
        TensorSpec,
        checkpoint::{CONFIG_FILE, Weights, json::parse, read_weights_with_progress},
        families::blueprint,
    },
};
use arguments::Arguments;
use serde_json::{Map, Value as Json};
use std::path::Path;

/// Complete names.
const MODEL: &[(&str, &str)] = &[
    ("embedding.weight", "word_emb.weight"),
    ("position.inverse_frequency", "pos_emb.inv_freq"),
    ("position.content_bias", "r_w_bias"),
    ("position.distance_bias", "r_r_bias"),
    (NULL_GROUP, "null_group"),
    ("pool_norm.weight", "down_ln.weight"),
    ("pool_norm.bias", "down_ln.bias"),
    ("boundary.hidden.weight", "boundary_predictor.boundary_predictor.0.weight"),
    ("boundary.hidden.bias", "boundary_predictor.boundary_predictor.0.bias"),
    ("boundary.output.weight", "boundary_predictor.boundary_predictor.2.weight"),
    ("boundary.output.bias", "boundary_predictor.boundary_predictor.2.bias"),
    ("head.weight", "final_cast.weight"),
    ("head.bias", "final_cast.bias"),
];

/// Names within a layer.
const LAYER: &[(&str, &str)] = &[
    ("attention.qkv.weight", "dec_attn.qkv_net.weight"),
    ("attention.qkv.bias", "dec_attn.qkv_net.bias"),
    (DISTANCE, "dec_attn.r_net.weight"),
    ("attention.output.weight", "dec_attn.o_net.weight"),
    ("attention.output.bias", "dec_attn.o_net.bias"),
    ("attention.norm.weight", "dec_attn.layer_norm.weight"),
    ("attention.norm.bias", "dec_attn.layer_norm.bias"),
    ("feed_forward.up.weight", "pos_ff.CoreNet.0.weight"),
    ("feed_forward.up.bias", "pos_ff.CoreNet.0.bias"),
    ("feed_forward.down.weight", "pos_ff.CoreNet.3.weight"),
    ("feed_forward.down.bias", "pos_ff.CoreNet.3.bias"),
    ("feed_forward.norm.weight", "pos_ff.layer_norm.weight"),
    ("feed_forward.norm.bias", "pos_ff.layer_norm.bias"),
];

const NULL_GROUP: &str = "null_group";
const DISTANCE: &str = "attention.distance.weight";
/// Bias of each [`DISTANCE`]. It must be in the checkpoint and is dropped: it shifts all scores of a query equally, which the
/// softmax cancels.
const DISTANCE_BIAS: &str = "dec_attn.r_net.bias";

const STACKS: &[(&str, &str)] = &[("pre", "layers.0"), ("middle", "layers.1"), ("post", "layers.2")];

/// Reads an official checkpoint. Fails if arguments are missing or out of bounds, or if tensors are missing,
/// superfluous or of another shape. Fails if the file holds anything else that the official code does not save.
pub(super) fn read(from: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
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

fn convert(
    arguments: &Arguments,
    file: &Path,
    read: impl FnOnce(Vec<TensorSpec>) -> Result<Weights>,
) -> Result<Converted> {
    let config = arguments.config(file)?;
    let specs = blueprint(&config, file).map_err(arguments::in_official_terms)?.tensors();
    let mut official = read(official_tensors(&specs))?;
    Ok(Converted { config, weights: Weights::collect(specs, |spec| official.take(&official_name(&spec.name)))? })
}

/// Reads the arguments of a training checkpoint: the command line's, overridden by the model's, and the vocabulary.
fn training_arguments(pickle: &Pickle, file: &Path) -> Result<Arguments> {
    let part = |key: &str| {
        let missing = || Error::checkpoint(file, key, "a value", "nothing");
        pickle.item(&pickle.root, key).ok_or_else(missing)
    };
    let wrong = |key, expected, found: &PickleValue| Error::checkpoint(file, key, expected, pickle.describe(found));
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

/// The official name of one of weir's tensors; the name itself if there is none, so that it is reported as missing.
fn official_name(name: &str) -> String {
    let layer = || {
        let (stack, index, part) = in_layer(name)?;
        Some(format!("{stack}.{index}.{}", source_name(LAYER, part)?))
    };
    source_name(MODEL, name).map(str::to_owned).or_else(layer).unwrap_or_else(|| name.to_owned())
}

/// Returns the official stack, the layer's index, and the name within the layer.
fn in_layer(name: &str) -> Option<(&'static str, &str, &str)> {
    let (stack, rest) = name.split_once('.')?;
    let (index, part) = rest.split_once('.')?;
    Some((source_name(STACKS, stack)?, index, part))
}

/// Every tensor that an official checkpoint must hold for a model of weir's tensors.
fn official_tensors(specs: &[TensorSpec]) -> Vec<TensorSpec> {
    let mut official = Vec::with_capacity(specs.len());
    for spec in specs {
        let mut shape = spec.shape.clone();
        if spec.name == NULL_GROUP {
            shape.splice(0..0, [1, 1]);
        }
        if let Some((stack, index, DISTANCE)) = in_layer(&spec.name) {
            let name = format!("{stack}.{index}.{DISTANCE_BIAS}");
            official.push(TensorSpec::zeros(name, shape.iter().copied().take(1).collect()));
        }
        official.push(TensorSpec::zeros(official_name(&spec.name), shape));
    }
    official
}
