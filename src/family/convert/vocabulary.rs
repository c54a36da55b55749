//! Vocabularies of sources: listed, of a given size only, or with a model's own marks.

use crate::{
    error::{Error, Result},
    family::checkpoint::VocabularyConfig,
    text::SpecialSymbols,
};
use serde::Deserialize;
use std::path::Path;

/// The first of the characters that stand for symbols without text, one each: private use, plane 15.
const PRIVATE: u32 = 0xF_0000;
/// How many there are.
const PRIVATE_COUNT: usize = 0xFFFE;
const BYTES: usize = 256;

/// Of `size` symbols. Where the source does not tell them, each has a character of its own that means nothing; 256 are bytes.
///
/// # Errors
/// A list of another length; too many that are not told.
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

/// What `config.json` says of a vocabulary with marks, by the names of latent segment models' checkpoints.
#[derive(Debug, Deserialize)]
pub(super) struct Marked {
    vocab_type: Kind,
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
enum Kind {
    Char,
    Byte,
}

impl Marked {
    /// The same in a checkpoint.
    ///
    /// # Errors
    /// Another size than there are symbols; no list of characters.
    pub(super) fn config(&self, file: &Path) -> Result<VocabularyConfig> {
        let specials = SpecialSymbols {
            start: self.bos_token_id,
            end: self.eos_token_id,
            segment_start: self.segment_bos_token_id,
            segment_end: self.next_token_id,
            unknown: self.unk_token_id,
        };
        let sized = |size: usize, config: VocabularyConfig| {
            let expected = format!("{size}, as many as there are symbols");
            let wrong = || Error::checkpoint(file, "vocab_size", expected, self.vocab_size.to_string());
            if size == self.vocab_size { Ok(config) } else { Err(wrong()) }
        };
        match (self.vocab_type, &self.vocab) {
            (Kind::Byte, _) => sized(
                BYTES + SpecialSymbols::COUNT,
                VocabularyConfig::MarkedBytes(self.byte_offset.unwrap_or(0), specials),
            ),
            (Kind::Char, Some(vocab)) => sized(vocab.len(), VocabularyConfig::MarkedSymbols(vocab.clone(), specials)),
            (Kind::Char, None) => Err(Error::checkpoint(file, "vocab", "a list of symbols", "nothing")),
        }
    }
}

/// What a source calls a key of weir's about its vocabulary.
pub(super) fn official_key(key: &str) -> String {
    const KEYS: &[(&str, &str)] = &[
        ("vocabulary.first_byte", "byte_offset"),
        ("vocabulary.specials.start", "bos_token_id"),
        ("vocabulary.specials.end", "eos_token_id"),
        ("vocabulary.specials.segment_start", "segment_bos_token_id"),
        ("vocabulary.specials.segment_end", "next_token_id"),
        ("vocabulary.specials.unknown", "unk_token_id"),
    ];
    let found = KEYS.iter().find(|(ours, _)| *ours == key);
    found.map_or_else(|| key.replace("vocabulary.symbols", "vocab"), |(_, theirs)| (*theirs).to_owned())
}
