//! What a converter returns, and what all converters read alike.

use crate::{
    checkpoint::{
        Config, VocabularyConfig, Weights,
        files::{check_source, read_limited},
    },
    text::SpecialSymbols,
};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use weir_kernels::error::{Error, Result};

#[derive(Debug)]
pub(super) struct Converted {
    /// Its configuration in weir's terms.
    pub config: Config,
    /// The tensors that the configuration asks for, under weir's names.
    pub weights: Weights,
}

/// Returns the source's name for one of weir's names, from a table of both.
pub(crate) fn source_name<'a>(names: &[(&str, &'a str)], name: &str) -> Option<&'a str> {
    names.iter().find(|(weir, _)| *weir == name).map(|(_, source)| *source)
}

/// Replaces the key of a checkpoint error, and keys in backticks of what is expected, by their names in the table of (weir's, source's)
/// names; `otherwise` renames other keys of errors.
pub(crate) fn rename_key(error: Error, names: &[(&str, &str)], otherwise: impl Fn(&str) -> String) -> Error {
    match error {
        Error::Checkpoint { file, key, expected, found } => {
            let key = source_name(names, &key).map_or_else(|| otherwise(&key), str::to_owned);
            let renamed = |expected: String, (weir, source): &(&str, &str)| {
                let name = weir.rsplit('.').next().unwrap_or_default();
                expected.replace(&format!("`{name}`"), source)
            };
            Error::Checkpoint { file, key, expected: names.iter().fold(expected, renamed), found }
        }
        other => other,
    }
}

/// Checks that a copy of a tensor, if there is one, has its numbers; `why` follows the tensor's name in the error, which names `file`.
pub(super) fn check_copy(tensors: &Weights, copy: &str, of: &str, why: &str, file: &Path) -> Result<()> {
    match tensors.get(copy) {
        Some(own) if !tensors.get(of).is_some_and(|tensor| own.has_numbers_of(tensor)) => {
            Err(Error::checkpoint(file, copy, format!("the numbers of {of}{why}"), "other numbers"))
        }
        _ => Ok(()),
    }
}

/// The reason that an error gives for a head that must equal the embedding.
pub(super) const TIED: &str = ", to which it is tied";

/// Transposes a matrix to `shape`, (rows, columns).
pub(super) fn transpose(numbers: &[f32], shape: &[usize]) -> Vec<f32> {
    let rows = shape.first().copied().unwrap_or(0);
    let columns = shape.get(1).copied().unwrap_or(0);
    (0..rows).flat_map(|row| (0..columns).map(move |column| numbers[column * rows + row])).collect()
}

/// Returns weir's name of a nonlinearity that transformers names.
pub(super) fn activation(name: &str) -> Option<&'static str> {
    match name {
        "gelu_new" | "gelu_pytorch_tanh" => Some("gelu-tanh"),
        "silu" | "swish" => Some("silu"),
        "gelu" => Some("gelu"),
        "relu" => Some("relu"),
        _ => None,
    }
}

/// Reads the `config.json` of a source. The error of a missing file says what its folder has.
pub(super) fn read_config(file: &Path) -> Result<Vec<u8>> {
    if let Some(dir) = file.parent() {
        check_source(dir, "a checkpoint (a folder with a config.json)")?;
    }
    read_limited(file, 16 << 20)
}

/// Returns the file with this extension in a folder, if there is one. Fails if there are several; `expected` is for the message.
pub(crate) fn only_file(dir: &Path, extension: &str, expected: &str) -> Result<Option<PathBuf>> {
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
pub(crate) fn listed(symbols: Option<&[String]>, size: usize, file: &Path) -> Result<VocabularyConfig> {
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
pub(crate) struct SpecialVocabulary {
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
    pub(crate) fn config(&self, file: &Path) -> Result<VocabularyConfig> {
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
pub(crate) fn official_key(key: &str) -> String {
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
