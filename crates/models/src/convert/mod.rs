//! Converts official checkpoints into weir's format, one kind of source a file. Each reader of the table turns a source into a
//! configuration and its tensors, under weir's names. [`pickle`] reads pickles and executes nothing.

mod dynamic_pooling;
mod gpt2;
mod hnet;
mod lslm;
pub mod pickle;
mod pyramidions;
mod sentencepiece;
mod t5;
mod torch;
mod torchscale;

use crate::{
    checkpoint::{
        CONFIG_FILE, Config, FileDtype, VocabularyConfig, Weights, Writer, WrittenCheckpoint,
        files::{check_inside, check_source},
        hugging_face::{self, GENERATION_FILE, explain_missing_key},
        json::{self, read_limited},
        writer::check_vacant,
    },
    load::blueprint,
    text::SpecialSymbols,
};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;
use std::path::{Path, PathBuf};
use weir_kernels::error::{Error, Result};

/// A source of checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The official Dynamic Token Pooling code.
    DynamicPooling,
    /// Hugging Face's GPT-2.
    Gpt2,
    /// Latent Segment Language Models, in the layout of Hugging Face's T5; their baseline, GPT-2, as well.
    Lslm,
    /// H-Net's official code.
    Hnet,
    /// torchscale's decoder, LeX's fork included.
    Torchscale,
    /// The official code of Trainable Representation Pooling, a fork of fairseq.
    Pyramidions,
    /// T5, flan-T5, mT5, ByT5 and LongT5 of Hugging Face.
    T5,
    /// MrT5 of Hugging Face.
    MrT5,
}

/// Reads a source, and reports bytes read and bytes to read.
type SourceReader = fn(&Path, &mut dyn FnMut(u64, u64)) -> Result<Converted>;

const SOURCES: &[(Source, &str, SourceReader)] = &[
    (Source::DynamicPooling, "dynamic-pooling", dynamic_pooling::read),
    (Source::Gpt2, "gpt2", gpt2::read),
    (Source::Lslm, "lslm", lslm::read),
    (Source::Hnet, "hnet", hnet::read),
    (Source::Torchscale, "torchscale", torchscale::read),
    (Source::Pyramidions, "pyramidions", pyramidions::read),
    (Source::T5, "t5", t5::read),
    (Source::MrT5, "mrt5", t5::read_mrt5),
];

impl Source {
    /// The names of all sources.
    pub fn names() -> impl Iterator<Item = &'static str> {
        SOURCES.iter().map(|(_, name, _)| *name)
    }

    /// The source of that name.
    pub fn parse(name: &str) -> Option<Self> {
        SOURCES.iter().find(|(_, known, _)| *known == name).map(|(source, ..)| *source)
    }

    /// The source of a Hugging Face folder that must be converted; `None` if weir reads it as it is, or not at all.
    pub fn of_folder(dir: &Path) -> Result<Option<Self>> {
        #[derive(Deserialize)]
        struct Keys {
            format: Option<IgnoredAny>,
            model_type: Option<Box<RawValue>>,
        }
        let file = dir.join(CONFIG_FILE);
        let keys: Keys = json::parse(&read_config(&file)?, &file, "")?;
        let kind = keys.model_type.filter(|_| keys.format.is_none()).and_then(|name| hugging_face::conversion(&name));
        Ok(kind.and_then(Self::parse))
    }

    fn reader(self) -> Result<SourceReader> {
        let found = SOURCES.iter().find(|(source, ..)| *source == self).map(|(.., reader)| *reader);
        found.ok_or_else(|| Error::Internal(format!("{self:?} is not in the table of sources")))
    }
}

/// Reads the checkpoint at `from` and writes it to the folder `dest`. Fails if the source is invalid, or if the destination is
/// the source or not empty, unless it holds a checkpoint and `overwrite` is set.
pub fn convert(source: Source, from: &Path, dest: &Path, overwrite: bool) -> Result<WrittenCheckpoint> {
    convert_with_progress(source, from, dest, overwrite, &mut |_, _| {})
}

/// Converts as [`convert`] does, and reports bytes read and bytes to read to `progress`. Fails as [`convert`] does.
pub fn convert_with_progress(
    source: Source,
    from: &Path,
    dest: &Path,
    overwrite: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<WrittenCheckpoint> {
    // also through links
    if let (Ok(source), Ok(target)) = (from.canonicalize(), dest.canonicalize())
        && source == target
    {
        let dest = dest.display();
        return Err(Error::Setting(format!("{dest}: the destination is the source itself; give another folder")));
    }
    check_vacant(dest, overwrite)?;
    let Converted { config, mut weights } = source.reader()?(from, progress)?;
    let blueprint = blueprint(&config, from)?;
    let specs = blueprint.tensors();
    let mut writer = Writer::create(dest, &config, &specs, FileDtype::F32, overwrite)?;
    let mut parameters = 0;
    for spec in &specs {
        let numbers = weights.take(&spec.name)?;
        writer.tensor(&spec.name, &numbers)?;
        parameters += if spec.trained { numbers.len() } else { 0 };
    }
    Ok(WrittenCheckpoint { shape: blueprint.shape(), parameters, sha256: writer.finish()? })
}

/// A folder that is read without conversion.
pub(crate) struct InPlace<'a> {
    dir: &'a Path,
    /// Values of `model_type` that its reader takes.
    types: &'static [&'static str],
}

impl<'a> InPlace<'a> {
    /// Returns the folder if its `model_type` is one of the T5 family.
    pub(crate) fn find(dir: &'a Path) -> Option<Self> {
        let file = dir.join(CONFIG_FILE);
        // The reader of the configuration reports what is wrong with it.
        if !file.is_file() || check_inside(dir, &file).is_err() {
            return None;
        }
        let Ok(Some(kind)) = Source::of_folder(dir) else { return None };
        let types = match kind {
            Source::T5 => t5::T5_TYPES,
            Source::MrT5 => t5::MRT5_TYPES,
            _ => return None,
        };
        Some(Self { dir, types })
    }

    pub(crate) fn config(&self) -> Result<Config> {
        for name in [CONFIG_FILE, GENERATION_FILE].into_iter().chain(t5::TOKENIZER_FILES) {
            let file = self.dir.join(name);
            if file.exists() {
                check_inside(self.dir, &file)?;
            }
        }
        t5::config_in_place(self.dir, self.types).map_err(|error| explain_missing_key(error, self.dir))
    }

    /// Reads the weights under weir's names and their SHA-256. Reports bytes read and bytes to read to `progress`.
    pub(crate) fn weights(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<(Weights, String)> {
        t5::weights_in_place(self.dir, self.types, progress)
    }
}

// Result of reading a source, and what several readers share: keys under official names, vocabularies.

#[derive(Debug)]
struct Converted {
    /// Its configuration in weir's terms.
    pub config: Config,
    /// The tensors that the configuration asks for, under weir's names.
    pub weights: Weights,
}

/// Returns the source's name for one of weir's names, from a table of both.
fn source_name<'a>(names: &[(&str, &'a str)], name: &str) -> Option<&'a str> {
    names.iter().find(|(weir, _)| *weir == name).map(|(_, source)| *source)
}

/// Replaces the key of a checkpoint error by its name in the table of (weir's, source's) names; `otherwise` renames the rest.
fn rename_key(error: Error, names: &[(&str, &str)], otherwise: impl Fn(&str) -> String) -> Error {
    match error {
        Error::Checkpoint { file, key, expected, found } => {
            let key = source_name(names, &key).map_or_else(|| otherwise(&key), str::to_owned);
            Error::Checkpoint { file, key, expected, found }
        }
        other => other,
    }
}

/// Reads the `config.json` of a source. The error of a missing file says what its folder has.
fn read_config(file: &Path) -> Result<Vec<u8>> {
    if let Some(dir) = file.parent() {
        check_source(dir, "a checkpoint (a folder with a config.json)")?;
    }
    read_limited(file, 16 << 20)
}

/// Returns the file with this extension in a folder, if there is one. Fails if there are several; `expected` is for the message.
fn only_file(dir: &Path, extension: &str, expected: &str) -> Result<Option<PathBuf>> {
    let mut found = Vec::new();
    for entry in dir.read_dir().map_err(Error::io(dir))? {
        let path = entry.map_err(Error::io(dir))?.path();
        if path.extension().is_some_and(|own| own == extension) {
            found.push(path);
        }
    }
    match found.len() {
        0 | 1 => Ok(found.pop()),
        count => Err(Error::checkpoint(dir, "the folder", expected, count.to_string())),
    }
}

/// First of the private-use characters (plane 15) that stand for symbols of unknown text.
const PRIVATE: u32 = 0xF_0000;

const PRIVATE_COUNT: usize = 0xFFFE;

const BYTES: usize = 256;

/// Returns a vocabulary of `size` symbols: the list, or bytes if there are 256, or else private-use characters.
fn listed(symbols: Option<&[String]>, size: usize, file: &Path) -> Result<VocabularyConfig> {
    let wrong =
        |key: &str, expected: String, found: usize| Err(Error::checkpoint(file, key, expected, found.to_string()));
    match symbols {
        Some(symbols) if symbols.len() != size => wrong("vocab", format!("{size} symbols (vocab_size)"), symbols.len()),
        Some(symbols) => Ok(VocabularyConfig::Symbols(symbols.to_vec())),
        None if size == BYTES => Ok(VocabularyConfig::Bytes(true)),
        None if size > PRIVATE_COUNT => wrong("vocab_size", format!("at most {PRIVATE_COUNT} without vocab"), size),
        None => {
            let characters = (PRIVATE..).take(size).filter_map(char::from_u32);
            Ok(VocabularyConfig::Symbols(characters.map(String::from).collect()))
        }
    }
}

/// A vocabulary with special symbols in `config.json`, in the names of latent segment models' checkpoints.
#[derive(Debug, Deserialize)]
struct SpecialVocabulary {
    vocab_type: SymbolKind,
    vocab_size: usize,
    vocab: Option<Vec<String>>,
    byte_offset: Option<u32>,
    bos_token_id: u32,
    eos_token_id: u32,
    segment_bos_token_id: u32,
    next_token_id: u32,
    unk_token_id: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum SymbolKind {
    Char,
    Byte,
}

impl SpecialVocabulary {
    /// Returns the vocabulary's configuration. Fails if the size is not the number of symbols, or no characters are listed.
    fn config(&self, file: &Path) -> Result<VocabularyConfig> {
        let specials = SpecialSymbols {
            start: self.bos_token_id,
            end: self.eos_token_id,
            segment_start: self.segment_bos_token_id,
            segment_end: self.next_token_id,
            unknown: self.unk_token_id,
        };
        let (size, config) = match (self.vocab_type, &self.vocab) {
            (SymbolKind::Byte, _) => {
                let first = self.byte_offset.unwrap_or(0);
                (BYTES + SpecialSymbols::COUNT, VocabularyConfig::MarkedBytes(first, specials))
            }
            (SymbolKind::Char, Some(vocab)) => (vocab.len(), VocabularyConfig::MarkedSymbols(vocab.clone(), specials)),
            (SymbolKind::Char, None) => return Err(Error::checkpoint(file, "vocab", "a list of symbols", "nothing")),
        };
        if size == self.vocab_size {
            return Ok(config);
        }
        let expected = format!("{size}, as many as there are symbols");
        Err(Error::checkpoint(file, "vocab_size", expected, self.vocab_size.to_string()))
    }
}

/// Returns a source's name of one of weir's keys about the vocabulary.
fn official_key(key: &str) -> String {
    const KEYS: &[(&str, &str)] = &[
        ("vocabulary.first_byte", "byte_offset"),
        ("vocabulary.specials.start", "bos_token_id"),
        ("vocabulary.specials.end", "eos_token_id"),
        ("vocabulary.specials.segment_start", "segment_bos_token_id"),
        ("vocabulary.specials.segment_end", "next_token_id"),
        ("vocabulary.specials.unknown", "unk_token_id"),
    ];
    source_name(KEYS, key).map_or_else(|| key.replace("vocabulary.symbols", "vocab"), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_that_errors_name_exist() {
        for (model_type, kind) in hugging_face::CONVERTED {
            assert!(Source::parse(kind).is_some(), "{model_type}: {kind}");
        }
    }
}
