//! Reads checkpoints of the official code of Trainable Representation Pooling (github.com/applicaai/pyramidions, commit fa9dddc,
//! a fork of fairseq).
//!
//! A source is a training checkpoint (`.pt`), a folder with `checkpoint_best.pt`, `checkpoint_last.pt` or a single `.pt`, or a
//! folder with the arguments in `config.json` and the official tensors in `model.safetensors`. The folder may also contain the
//! dictionary, `dict.txt`, and a SentencePiece model, `*.model`. Tensors keep their names. Copies of the embedding, version
//! numbers and scorers of layers without pooling are checked and dropped.

mod arguments;
mod dictionary;

use super::{
    converted::{Converted, only_file, read_config},
    torch::TorchFile,
    training::{TorchTensors, items, plain},
};
use crate::{
    error::{Error, Result},
    family::{
        TensorSpec,
        checkpoint::{CONFIG_FILE, Tensor, Weights, json::parse, read_weights_with_progress, reader::shapes_in},
        families::blueprint,
    },
};
use arguments::{Arguments, in_official_terms};
use serde_json::{Map, Value as Json};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// Names of training checkpoints, in order of preference.
const TRAINING_FILES: [&str; 2] = ["checkpoint_best.pt", "checkpoint_last.pt"];
const EMBEDDING: &str = "encoder.embed_tokens.weight";
/// Copies of the embedding.
const COPIES: [&str; 2] = ["decoder.embed_tokens.weight", "decoder.output_projection.weight"];
/// Tensors of one number without meaning.
const IGNORED: [&str; 4] =
    ["encoder.version", "decoder.version", "encoder.embed_positions._float_tensor", DECODER_POSITIONS];
/// Present if the decoder adds position embeddings.
const DECODER_POSITIONS: &str = "decoder.embed_positions._float_tensor";

/// Reads an official checkpoint. Fails if an argument is missing or out of range, or if a tensor is missing, unknown or
/// of another shape. Fails if a copy of the embedding differs, or the vocabulary does not match the model.
pub(super) fn read(from: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    if !from.is_dir() {
        return read_training_file(from, from.parent().unwrap_or(Path::new(".")), progress);
    }
    match (from.join(CONFIG_FILE).exists(), training_file(from)?) {
        (true, None) => read_folder(from, progress),
        (false, Some(file)) => read_training_file(&file, from, progress),
        (both, _) => {
            let expected = format!("either {CONFIG_FILE} or a checkpoint of training, .pt");
            Err(Error::checkpoint(from, "the folder", expected, if both { "both" } else { "neither" }))
        }
    }
}

fn training_file(dir: &Path) -> Result<Option<PathBuf>> {
    match TRAINING_FILES.iter().map(|name| dir.join(name)).find(|file| file.exists()) {
        None => only_file(dir, "pt", "one .pt file, checkpoint_best.pt or checkpoint_last.pt"),
        preferred => Ok(preferred),
    }
}

fn read_folder(dir: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    let file = dir.join(CONFIG_FILE);
    let arguments: Arguments = parse(&read_config(&file)?, &file, "")?;
    let names: BTreeSet<_> = shapes_in(dir)?.into_keys().collect();
    let source = OfficialCheckpoint { arguments: &arguments, names: &names, file: &file, dir };
    source.convert(&mut |specs| Ok(read_weights_with_progress(dir, &specs, progress)?.0))
}

fn read_training_file(file: &Path, dir: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    let mut torch = TorchFile::open(file)?;
    let tensors = TorchTensors::find(&torch, "model", file)?;
    let arguments = training_arguments(&torch, &tensors, file)?;
    let names = tensors.all.keys().cloned().collect();
    let source = OfficialCheckpoint { arguments: &arguments, names: &names, file, dir };
    source.convert(&mut |specs| tensors.read(&mut torch, specs, progress))
}

/// Reads the arguments in a training checkpoint: those of the command line, or those of the model in a tree of settings. The size
/// of the vocabulary is that of the embedding.
fn training_arguments(torch: &TorchFile, tensors: &TorchTensors, file: &Path) -> Result<Arguments> {
    let pickle = &torch.pickle;
    let mut all = Map::new();
    let model = pickle.item(&pickle.root, "cfg").and_then(|settings| pickle.item(settings, "model"));
    for arguments in [pickle.item(&pickle.root, "args"), model].into_iter().flatten() {
        all.extend(items(pickle, arguments).into_iter().flat_map(|items| plain(pickle, items)));
    }
    if all.is_empty() {
        return Err(Error::checkpoint(file, "args", "the arguments of training, here or in cfg.model", "none"));
    }
    let rows = tensors.all.get(EMBEDDING).and_then(|tensor| tensor.shape.first());
    let rows = rows.ok_or_else(|| Error::checkpoint(file, EMBEDDING, "a tensor", "none"))?;
    all.insert("vocab_size".into(), (*rows).into());
    parse(Json::Object(all).to_string().as_bytes(), file, "args")
}

/// The parts of an official checkpoint that both kinds of source have.
struct OfficialCheckpoint<'a> {
    arguments: &'a Arguments,
    names: &'a BTreeSet<String>,
    /// File of the arguments, for error messages.
    file: &'a Path,
    /// Folder of the vocabulary.
    dir: &'a Path,
}

impl OfficialCheckpoint<'_> {
    fn convert(self, read: &mut dyn FnMut(Vec<TensorSpec>) -> Result<Weights>) -> Result<Converted> {
        let Self { arguments, names, file, dir } = self;
        let subwords = dictionary::read(dir, arguments.vocab_size)?;
        let config = arguments.config(file, subwords, names.contains(DECODER_POSITIONS))?;
        let specs = blueprint(&config, file).map_err(in_official_terms)?.tensors();
        let embedding = specs.iter().find(|spec| spec.name == EMBEDDING).map_or(vec![], |spec| spec.shape.clone());
        let own: BTreeSet<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
        let extra = names.iter().filter(|name| !own.contains(name.as_str())).filter_map(|name| {
            let shape = match name.as_str() {
                name if COPIES.contains(&name) => embedding.clone(),
                name if IGNORED.contains(&name) => vec![1],
                // The scorer of a layer without pooling.
                name if name.starts_with("encoder.pooler.scorer.") && name.ends_with(".bias") => vec![1],
                name if name.starts_with("encoder.pooler.scorer.") => vec![1, *embedding.last()?],
                _ => return None,
            };
            Some(TensorSpec::zeros(name, shape))
        });
        let mut official = read(specs.iter().cloned().chain(extra).collect())?;
        let numbers = |name: &str| official.get(name).map(Tensor::numbers);
        if let Some(copy) = COPIES.iter().find(|copy| numbers(copy).is_some() && numbers(copy) != numbers(EMBEDDING)) {
            let expected = format!("the numbers of {EMBEDDING}, since official models share all embeddings");
            return Err(Error::checkpoint(file, *copy, expected, "other numbers"));
        }
        Ok(Converted { config, weights: Weights::collect(specs, |spec| official.take(&spec.name))? })
    }
}
