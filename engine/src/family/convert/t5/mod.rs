//! Checkpoints of T5, flan-T5, mT5, ByT5, LongT5 and MrT5 as Hugging Face stores them: a folder with `config.json`, the weights in
//! `model.safetensors` or `pytorch_model.bin` (or shards of either), and the tokenizer in `tokenizer.json` or `spiece.model`. Bytes
//! need no file. `generation_config.json` and `task_specific_params.summarization` become defaults of requests.
//!
//! Tensors keep their names, except that a LongT5 encoder's attention is named `SelfAttention` as in all others. Copies of the
//! embedding and the stale table of the first cross-attention are checked and dropped.

mod arguments;
mod generation;
mod tokenizer;
mod weights;

use super::converted::{Converted, read_config};
use crate::{
    decode::document::GenerationDefaults,
    error::{Error, Result},
    family::{
        checkpoint::{CONFIG_FILE, Config, VocabularyConfig, Weights, json::parse},
        families::blueprint,
    },
    text::SubwordTokenizer,
};
use arguments::Arguments;
use serde_json::Value as Json;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
pub(super) use tokenizer::FILES as TOKENIZER_FILES;
use weights::{EMBEDDING, EMBEDDINGS, ReadWeights, SourceWeights};

/// Values of `model_type`.
pub(super) const T5_TYPES: &[&str] = &["t5", "mt5", "longt5"];
pub(super) const MRT5_TYPES: &[&str] = &["mrt5"];

const HEAD: &str = "lm_head.weight";

/// Reads a folder of T5, mT5, ByT5 or LongT5. Fails if an argument is missing or out of range, a tensor is missing, unknown or of
/// another shape, copies of the embedding differ, or the tokenizer does not match the model.
pub(super) fn read(dir: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    read_types(dir, T5_TYPES, progress)
}

/// Reads a folder of MrT5. Fails as [`read`] does.
pub(super) fn read_mrt5(dir: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    read_types(dir, MRT5_TYPES, progress)
}

fn read_types(dir: &Path, types: &[&str], progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    let folder = T5Folder::open(dir, types)?;
    let tensors = folder.read(progress)?.tensors;
    // a stored copy of the embedding is not written again
    let config = folder.config(folder.head_is_copy(&tensors))?;
    let weights = folder.collect(&config, tensors)?;
    Ok(Converted { config, weights })
}

/// Returns the configuration of a folder that is read without conversion. Reads the headers of its weights only. Fails as [`read`]
/// does.
pub(super) fn config_in_place(dir: &Path, types: &[&str]) -> Result<Config> {
    let folder = T5Folder::open(dir, types)?;
    folder.config(folder.is_tied())
}

/// Reads the weights that [`config_in_place`] asks for, under weir's names. Also returns the SHA-256 of their files. Fails as [`read`]
/// does.
pub(super) fn weights_in_place(
    dir: &Path,
    types: &[&str],
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Weights, String)> {
    let folder = T5Folder::open(dir, types)?;
    let ReadWeights { tensors, sha256 } = folder.read(progress)?;
    let config = folder.config(folder.is_tied())?;
    Ok((folder.collect(&config, tensors)?, sha256))
}

/// A folder in Hugging Face's layout, without the data of its tensors.
struct T5Folder<'a> {
    file: PathBuf,
    arguments: Arguments,
    source: SourceWeights<'a>,
    vocabulary: VocabularyConfig,
    subwords: Option<Arc<SubwordTokenizer>>,
    generation: GenerationDefaults,
}

impl<'a> T5Folder<'a> {
    fn open(dir: &'a Path, types: &[&str]) -> Result<Self> {
        let file = dir.join(CONFIG_FILE);
        let json: Json = parse(&read_config(&file)?, &file, "")?;
        let arguments = Arguments::read(&json, types, &file)?;
        let source = SourceWeights::open(dir)?;
        let (vocabulary, subwords) = tokenizer::read(dir, &json, arguments.vocab_size)?;
        let mut generation = generation::read(dir, &json)?;
        if matches!(vocabulary, VocabularyConfig::Pieces(_, None)) {
            // without a tokenizer the model takes ids only
            generation.prefix.clear();
        }
        Ok(Self { file, arguments, source, vocabulary, subwords, generation })
    }

    fn has_head(&self) -> bool {
        self.source.names.contains(HEAD)
    }

    /// Returns true if the head is the embedding, by the names of the tensors and the keys of the configuration.
    fn is_tied(&self) -> bool {
        !self.has_head() || self.arguments.is_tied()
    }

    /// Returns true if the head is the embedding, by the numbers of both.
    fn head_is_copy(&self, tensors: &Weights) -> bool {
        !self.has_head() || !self.differs(HEAD, tensors)
    }

    /// Returns true if a tensor is there and differs from the embedding.
    fn differs(&self, name: &str, tensors: &Weights) -> bool {
        let embedding = self.embedding();
        let own = tensors.get(name).filter(|_| name != embedding);
        own.is_some_and(|own| !tensors.get(embedding).is_some_and(|table| own.has_numbers_of(table)))
    }

    /// The source's name of the embedding.
    fn embedding(&self) -> &'static str {
        EMBEDDINGS.into_iter().find(|name| self.source.names.contains(*name)).unwrap_or(EMBEDDING)
    }

    /// Returns the source's name of a tensor.
    fn official(&self, name: &str) -> String {
        if name == EMBEDDING { self.embedding().to_owned() } else { self.arguments.official_name(name) }
    }

    fn config(&self, tied_head: bool) -> Result<Config> {
        let config = self.arguments.config(self.vocabulary.clone(), tied_head, &self.file)?;
        Ok(config.with(self.subwords.clone(), Some(self.generation.clone())))
    }

    /// Reads all tensors under the source's names. Fails if copies of the embedding differ.
    fn read(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<ReadWeights> {
        let separate = self.config(!self.has_head())?;
        let specs = blueprint(&separate, &self.file)?.tensors();
        let official: Vec<String> = specs.iter().map(|spec| self.official(&spec.name)).collect();
        let read = self.source.read(&specs, &official, progress)?;
        let tensors = &read.tensors;
        let embedding = self.embedding();
        if let Some(copy) = EMBEDDINGS.into_iter().find(|name| self.differs(name, tensors)) {
            let expected = format!("the numbers of {embedding} (both sides share the embedding)");
            return Err(Error::checkpoint(&self.file, copy, expected, "other numbers"));
        }
        if self.arguments.is_tied() && !self.head_is_copy(tensors) {
            let expected = format!("the numbers of {embedding} (tie_word_embeddings is true)");
            return Err(Error::checkpoint(&self.file, HEAD, expected, "other numbers"));
        }
        Ok(read)
    }

    /// Returns the tensors that a configuration asks for, under weir's names.
    fn collect(&self, config: &Config, mut tensors: Weights) -> Result<Weights> {
        let mut weights = Weights::default();
        for spec in blueprint(config, &self.file)?.tensors() {
            let tensor = tensors.take_tensor(&self.official(&spec.name))?;
            weights.insert(spec.name, tensor);
        }
        Ok(weights)
    }
}
