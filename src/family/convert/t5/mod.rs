//! Checkpoints of T5, flan-T5, mT5, ByT5, LongT5 and MrT5 as Hugging Face stores them: a folder with `config.json`, the weights in
//! `model.safetensors` (or shards) or `pytorch_model.bin`, and the tokenizer in `tokenizer.json` or `spiece.model`. Bytes need no
//! file. `generation_config.json` and `task_specific_params.summarization` become defaults of requests.
//!
//! Tensors keep their names, except that a LongT5 encoder's attention is named `SelfAttention` as in all others. Copies of the
//! embedding and the stale table of the first cross-attention are checked and dropped.

mod arguments;
mod generation;
mod tokenizer;

use super::{
    converted::{Converted, read_config},
    torch::TorchFile,
    training::TorchTensors,
};
use crate::{
    error::{Error, Result},
    family::{
        TensorSpec,
        checkpoint::{
            CONFIG_FILE, INDEX_FILE, PICKLE_FILE, VocabularyConfig, WEIGHTS_FILE, Weights, json::parse,
            read_weights_with_progress, reader::shapes_in,
        },
        load::blueprint,
    },
};
use arguments::Arguments;
use serde_json::Value as Json;
use std::{collections::BTreeSet, path::Path};

const EMBEDDING: &str = "shared.weight";
/// Names of the embedding, of which a file has one or several.
const EMBEDDINGS: [&str; 3] = [EMBEDDING, "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"];
const HEAD: &str = "lm_head.weight";
/// A table that files of T5 v1.0 contain and that no model reads.
const STALE: &str = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight";

/// Reads a folder of T5, mT5, ByT5 or LongT5. Fails if an argument is missing or out of range, a tensor is missing, unknown or of
/// another shape, copies of the embedding differ, or the tokenizer does not match the model.
pub(super) fn read(dir: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    read_types(dir, &["t5", "mt5", "longt5"], progress)
}

/// Reads a folder of MrT5. Fails as [`read`] does.
pub(super) fn read_mrt5(dir: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    read_types(dir, &["mrt5"], progress)
}

fn read_types(dir: &Path, types: &[&str], progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    let file = dir.join(CONFIG_FILE);
    let json: Json = parse(&read_config(&file)?, &file, "")?;
    let arguments = Arguments::read(&json, types, &file)?;
    let mut source = SourceWeights::open(dir)?;
    let (vocabulary, subwords) = tokenizer::read(dir, &json, arguments.vocab_size)?;
    let mut generation = generation::read(dir, &json)?;
    if matches!(vocabulary, VocabularyConfig::Pieces(_, None)) {
        // without a tokenizer the model takes ids only
        generation.prefix.clear();
    }
    let has_head = source.names.contains(HEAD);
    let config = |tied_head: bool| {
        let config = arguments.config(vocabulary.clone(), tied_head, &file)?;
        Ok::<_, Error>(config.with(subwords.clone(), Some(generation.clone())))
    };
    let separate = config(!has_head)?;
    let specs = blueprint(&separate, &file)?.tensors();
    let embedding = EMBEDDINGS.into_iter().find(|name| source.names.contains(*name)).unwrap_or(EMBEDDING);
    let official = |name: &str| if name == EMBEDDING { embedding.to_owned() } else { arguments.official_name(name) };
    let mut tensors = source.read(&specs, &official, progress)?;
    let numbers = |name: &str| tensors.get(name).map(|tensor| &tensor.numbers);
    let differs = |name: &str| numbers(name).is_some_and(|own| Some(own) != numbers(embedding));
    if let Some(copy) = EMBEDDINGS.into_iter().find(|name| differs(name)) {
        let expected = format!("the numbers of {embedding}, since both sides share the embedding");
        return Err(Error::checkpoint(&file, copy, expected, "other numbers"));
    }
    let is_copy = !has_head || !differs(HEAD);
    if arguments.is_tied() && !is_copy {
        let expected = format!("the numbers of {embedding}, since tie_word_embeddings is true");
        return Err(Error::checkpoint(&file, HEAD, expected, "other numbers"));
    }
    let config = config(is_copy)?;
    let specs = blueprint(&config, &file)?.tensors();
    Ok(Converted { config, weights: Weights::collect(specs, |spec| tensors.take(&official(&spec.name)))? })
}

/// The weights of a folder.
struct SourceWeights<'a> {
    dir: &'a Path,
    names: BTreeSet<String>,
    /// The tensors of a pickle; none: safetensors.
    pickle: Option<(TorchFile, TorchTensors)>,
}

impl<'a> SourceWeights<'a> {
    /// Finds the weights. Fails if there are none, or a header cannot be read.
    fn open(dir: &'a Path) -> Result<Self> {
        let pickle = dir.join(PICKLE_FILE);
        let index = dir.join(format!("{PICKLE_FILE}.index.json"));
        let has_safetensors = dir.join(WEIGHTS_FILE).exists() || dir.join(INDEX_FILE).exists();
        if !has_safetensors && pickle.exists() {
            let torch = TorchFile::open(&pickle)?;
            let tensors = TorchTensors::at_root(&torch, &pickle)?;
            let names = tensors.all.keys().cloned().collect();
            return Ok(Self { dir, names, pickle: Some((torch, tensors)) });
        }
        if !has_safetensors && index.exists() {
            let expected = format!("one {PICKLE_FILE}, or safetensors in one or several files");
            return Err(Error::checkpoint(&index, "the file", expected, "several pickles"));
        }
        Ok(Self { dir, names: shapes_in(dir)?.into_keys().collect(), pickle: None })
    }

    /// Reads the tensors of `specs` under the source's names, and all copies.
    fn read(
        &mut self,
        specs: &[TensorSpec],
        official: &dyn Fn(&str) -> String,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Weights> {
        let renamed = |spec: &TensorSpec| TensorSpec { name: official(&spec.name), ..spec.clone() };
        let mut all: Vec<TensorSpec> = specs.iter().map(renamed).collect();
        let shape_of = |name: &str| specs.iter().find(|spec| spec.name == name).map(|spec| spec.shape.clone());
        let table = "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight";
        let copies = EMBEDDINGS.iter().map(|name| (*name, EMBEDDING)).chain([(STALE, table)]);
        for (name, like) in copies.filter(|(name, _)| self.names.contains(*name)) {
            if let Some(shape) = shape_of(like).filter(|_| all.iter().all(|spec| spec.name != name)) {
                all.push(TensorSpec::zeros(name, shape));
            }
        }
        match &mut self.pickle {
            Some((torch, tensors)) => tensors.read(torch, all, progress),
            None => Ok(read_weights_with_progress(self.dir, &all, progress)?.0),
        }
    }
}
