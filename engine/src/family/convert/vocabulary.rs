//! Vocabularies of sources: listed, of a given size only, or with special symbols.

use super::converted::source_name;
use crate::{
    error::{Error, Result},
    family::checkpoint::VocabularyConfig,
    text::SpecialSymbols,
};
use serde::Deserialize;
use std::path::Path;

/// First of the private-use characters (plane 15) that stand for symbols of unknown text.
const PRIVATE: u32 = 0xF_0000;
/// Number of these characters.
const PRIVATE_COUNT: usize = 0xFFFE;
const BYTES: usize = 256;

/// Returns a vocabulary of `size` symbols. If the source does not list them, 256 are bytes; otherwise each gets a
/// private-use character. Fails if the list has another length, or too many symbols are not listed.
pub(super) fn listed(symbols: Option<&[String]>, size: usize, file: &Path) -> Result<VocabularyConfig> {
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
pub(super) struct SpecialVocabulary {
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
    pub(super) fn config(&self, file: &Path) -> Result<VocabularyConfig> {
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
pub(super) fn official_key(key: &str) -> String {
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
