//! `config.json`: everything but the weights.

pub use crate::checkpoint::files::CONFIG_FILE;
use crate::{
    checkpoint::{
        files::{self, check_folder, check_inside, require},
        hugging_face,
    },
    contract::{GenerationDefaults, SamplingDefaults},
    text::{
        AddedToken, SpecialSymbols, SubwordTokenizer, TextMarks, TextNormaliser, TokenMarks, Vocabulary,
        VocabularyError,
        subwords::{MAX_TOKENIZER_BYTES, TOKENIZER_FILE},
    },
};
use serde::{
    Deserialize,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_json::value::RawValue;
use std::{path::Path, sync::Arc};
use weir_kernels::error::{Error, QUOTED, Result, clip};

/// The format that this module reads and writes.
pub const FORMAT: &str = "weir/1";

/// Maximum size of `config.json`: a vocabulary of every code point fits.
const MAX_BYTES: u64 = 16 << 20;

/// Maximum training window.
const MAX_TRAINING_LENGTH: usize = 1 << 30;

/// The part of a configuration that all families have.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    format: String,
    /// The family that reads `architecture`.
    pub family: String,
    vocabulary: VocabularyConfig,
    normaliser: TextNormaliser,
    /// Symbols in one training window.
    pub training_length: usize,
    /// The family's own part, as JSON text, so that it is parsed once, into the family's type: see [`architecture`].
    architecture: Box<RawValue>,
    /// Default options of summaries, in a family that writes summaries.
    pub generation: Option<GenerationDefaults>,
    /// The tokenizer that the vocabulary names.
    #[serde(skip)]
    subwords: Option<Arc<SubwordTokenizer>>,
    /// Sampling options of requests that state none.
    #[serde(default)]
    pub sampling: SamplingDefaults,
}

/// The symbols, as the file lists them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Kinds")]
pub enum VocabularyConfig {
    /// Characters; the index is the id.
    Symbols(Vec<String>),
    /// Byte values, always `true`.
    Bytes(bool),
    /// Characters and special symbols; the list's entries at the special ids are ignored.
    MarkedSymbols(Vec<String>, SpecialSymbols),
    /// Byte values from this id on; all other ids are special symbols.
    MarkedBytes(u32, SpecialSymbols),
    /// Byte values from this id on, the number of ids, and added tokens. The other ids are ByT5's.
    SparseBytes(u32, usize, Vec<AddedToken>),
    /// Byte values, two of which mark the start and the end of a text.
    DelimitedBytes(TextMarks),
    /// Byte values from this id on, and the marks before it.
    BytesAfterMarks(u32, TextMarks),
    /// Byte values, one of which ends a text when the model generates it.
    BytesWithEnd(u32),
    /// Number of ids, and the file name of the tokenizer whose pieces they are, if there is one.
    Pieces(usize, Option<String>),
    /// Number of ids, and marks, of a Hugging Face checkpoint.
    Tokens(usize, TokenMarks),
}

/// Keys of `vocabulary`, of exactly one kind.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Kinds {
    symbols: Option<Vec<String>>,
    bytes: Option<bool>,
    first_byte: Option<u32>,
    start: Option<u32>,
    end: Option<u32>,
    specials: Option<SpecialSymbols>,
    size: Option<usize>,
    tokenizer: Option<String>,
    #[serde(default)]
    added: Vec<AddedToken>,
}

impl TryFrom<Kinds> for VocabularyConfig {
    /// In serde's form, so that it is parsed like serde's own messages.
    type Error = &'static str;

    fn try_from(kinds: Kinds) -> Result<Self, &'static str> {
        let Kinds { symbols, bytes, first_byte, start, end, specials, size, tokenizer, added } = kinds;
        let unmarked = start.is_none() && end.is_none();
        if let (Some(true), Some(size), None, None, None, true) =
            (bytes, size, &symbols, &specials, &tokenizer, unmarked)
        {
            return Ok(Self::SparseBytes(first_byte.unwrap_or(0), size, added));
        }
        if !added.is_empty() {
            return Err("`added` next to other keys, expected it only next to `bytes`, `first_byte` and `size`");
        }
        let pieces = size.is_some() || tokenizer.is_some();
        if !unmarked {
            let alone = symbols.is_none() && specials.is_none() && !pieces;
            if let (Some(true), Some(start), Some(end), Some(first), true) = (bytes, start, end, first_byte, alone) {
                return Ok(Self::BytesAfterMarks(first, TextMarks { start, end }));
            }
            let alone = alone && first_byte.is_none();
            return match (bytes, start, end) {
                (Some(true), Some(start), Some(end)) if alone => Ok(Self::DelimitedBytes(TextMarks { start, end })),
                (Some(true), None, Some(end)) if alone => Ok(Self::BytesWithEnd(end)),
                (Some(true), Some(_), None) => Err("`start` without `end`, expected both `start` and `end`"),
                (Some(true), ..) => {
                    Err("`start` or `end` next to other keys, expected only `bytes` next to `start` and `end`")
                }
                _ => Err("`start` or `end` without `bytes` true, expected `bytes` true next to `start` and `end`"),
            };
        }
        if pieces && (symbols.is_some() || bytes.is_some() || first_byte.is_some() || specials.is_some()) {
            return Err("`size` next to other keys, expected only `tokenizer` there, or `bytes` and `first_byte`");
        }
        match (size, tokenizer) {
            (Some(size), tokenizer) => return Ok(Self::Pieces(size, tokenizer)),
            (None, Some(_)) => return Err("`tokenizer` alone, expected `size` next to it"),
            (None, None) => {}
        }
        match (symbols, bytes, first_byte, specials) {
            (Some(symbols), None, None, None) => Ok(Self::Symbols(symbols)),
            (None, Some(bytes), None, None) => Ok(Self::Bytes(bytes)),
            (Some(symbols), None, None, Some(specials)) => Ok(Self::MarkedSymbols(symbols, specials)),
            (None, Some(true), first, Some(specials)) => Ok(Self::MarkedBytes(first.unwrap_or(0), specials)),
            (Some(_), Some(_), ..) => Err("both, expected either `symbols` or `bytes`"),
            (None, None, ..) => Err("neither, expected either `symbols` or `bytes`"),
            (None, Some(false), ..) => Err("`bytes` false, expected true"),
            (_, _, Some(_), _) => Err("`first_byte`, expected it only next to `bytes` and `specials`"),
        }
    }
}

/// Returns false if a folder's `config.json` can be read and states no format, like those of Hugging Face; otherwise true.
pub(crate) fn has_format(dir: &Path) -> bool {
    #[derive(Deserialize)]
    struct FormatKey {
        format: Option<IgnoredAny>,
    }
    let file = dir.join(CONFIG_FILE);
    let keys = files::read_limited(&file, MAX_BYTES).and_then(|text| files::parse::<FormatKey>(&text, &file, ""));
    !keys.is_ok_and(|keys| keys.format.is_none())
}

/// The key that holds everything in a `config.json` of the Byte Latent Transformer's official code.
pub(crate) const OFFICIAL_BLT_KEY: &str = "args";

/// The error for such a `config.json`.
pub(crate) fn official_blt(file: &Path) -> Error {
    let expected =
        "Hugging Face's form of the Byte Latent Transformer, which transformers' convert_blt_weights_to_hf.py writes";
    Error::checkpoint(file, OFFICIAL_BLT_KEY, expected, "a folder in the form of facebookresearch/blt")
}

impl Config {
    /// Returns a configuration to write; errors name `file`. Fails if the vocabulary or the training length is invalid.
    pub fn new(
        family: &str,
        vocabulary: VocabularyConfig,
        normaliser: TextNormaliser,
        training_length: usize,
        architecture: &serde_json::Value,
        file: &Path,
    ) -> Result<Self> {
        let raw = serde_json::value::to_raw_value(architecture);
        let architecture = raw.map_err(|error| Error::Internal(format!("architecture: {error}")))?;
        let config = Self {
            format: FORMAT.to_owned(),
            family: family.to_owned(),
            vocabulary,
            normaliser,
            training_length,
            architecture,
            generation: None,
            subwords: None,
            sampling: SamplingDefaults::default(),
        };
        config.validate(file)?;
        Ok(config)
    }

    /// Reads a Hugging Face checkpoint, whose configuration the family validates.
    fn of_hugging_face(text: &[u8], file: &Path) -> Result<Self> {
        let read = hugging_face::read(text, file)?;
        Ok(Self {
            format: FORMAT.to_owned(),
            family: hugging_face::FAMILY.to_owned(),
            vocabulary: VocabularyConfig::Tokens(read.vocab_size, read.marks),
            normaliser: TextNormaliser::None,
            training_length: read.training_length,
            architecture: read.architecture,
            generation: None,
            subwords: read.subwords,
            sampling: read.sampling,
        })
    }

    /// Adds a tokenizer, which is written next to the configuration, and summary options.
    #[must_use]
    pub fn with(mut self, subwords: Option<Arc<SubwordTokenizer>>, generation: Option<GenerationDefaults>) -> Self {
        self.subwords = subwords;
        self.generation = generation;
        self
    }

    /// The tokenizer, if the vocabulary has one.
    pub fn subwords(&self) -> Option<&Arc<SubwordTokenizer>> {
        self.subwords.as_ref()
    }

    /// Reads the `config.json` of a checkpoint. The error names the file, and the key that is unknown, missing or out of bounds.
    pub fn read(dir: &Path) -> Result<Self> {
        check_folder(dir)?;
        let file = dir.join(CONFIG_FILE);
        check_inside(dir, &file)?;
        Self::read_file(&file)
    }

    /// Reads a configuration from a file of any name. Fails as [`read`](Self::read) does.
    pub fn read_file(file: &Path) -> Result<Self> {
        Self::parse(&files::read_limited(file, MAX_BYTES)?, file)
    }

    /// Parses a configuration; errors name `file`. Fails as [`read`](Self::read) does.
    pub fn parse(text: &[u8], file: &Path) -> Result<Self> {
        /// The format, which is checked first: a file of another format has other keys as well.
        #[derive(Deserialize)]
        struct FormatKey {
            format: Option<Box<RawValue>>,
            model_type: Option<Box<RawValue>>,
            args: Option<Box<RawValue>>,
        }
        let expected = format!("{FORMAT:?}");
        let keys: FormatKey = files::parse(text, file, "")?;
        match keys.format {
            None if keys.model_type.is_some() => {
                hugging_face::check_needs_no_conversion(keys.model_type.as_deref(), file)?;
                return Self::of_hugging_face(text, file);
            }
            Some(found) if found.get() == expected => {}
            Some(found) => return Err(Error::checkpoint(file, "format", expected, clip(found.get(), QUOTED))),
            None if keys.args.is_some_and(|args| args.get().contains("patch")) => return Err(official_blt(file)),
            None => {
                let other = "`weir convert --help` lists other projects whose checkpoints weir can convert";
                let expected = format!("{expected}, or model_type in a Hugging Face folder ({other})");
                return Err(Error::checkpoint(file, "format", expected, "neither"));
            }
        }
        let mut config: Self = files::parse(text, file, "")?;
        if let VocabularyConfig::Pieces(_, Some(name)) = &config.vocabulary {
            if name != TOKENIZER_FILE {
                let expected = format!("{TOKENIZER_FILE:?}");
                return Err(Error::checkpoint(file, "vocabulary.tokenizer", expected, name.as_str()));
            }
            let tokenizer = file.with_file_name(name);
            if let Some(dir) = file.parent() {
                check_inside(dir, &tokenizer)?;
            }
            let subwords = SubwordTokenizer::parse(&files::read_limited(&tokenizer, MAX_TOKENIZER_BYTES)?);
            let subwords = subwords.map_err(|error| error.in_file(&tokenizer))?;
            // as in transformers; fairseq, from which the others are, reads special tokens as text
            let subwords = if config.family == "t5" { subwords.with_special_tokens() } else { subwords };
            config.subwords = Some(Arc::new(subwords));
        }
        config.validate(file)?;
        Ok(config)
    }

    fn validate(&self, file: &Path) -> Result<()> {
        let fits = (1..=MAX_TRAINING_LENGTH).contains(&self.training_length);
        require(fits, file, "training_length", format!("1 to {MAX_TRAINING_LENGTH}"), self.training_length)?;
        self.sampling.check(file, "sampling.")?;
        self.vocabulary(file).map(|_| ())
    }

    /// The vocabulary. Fails if there are no symbols, or a symbol is repeated or not one character.
    pub fn vocabulary(&self, file: &Path) -> Result<Arc<Vocabulary>> {
        let normaliser = self.normaliser;
        let vocabulary = match &self.vocabulary {
            VocabularyConfig::Symbols(symbols) => Vocabulary::from_symbols(symbols, normaliser),
            VocabularyConfig::Bytes(true) => Ok(Vocabulary::byte_level(normaliser)),
            VocabularyConfig::Bytes(false) => Err(VocabularyError::new("vocabulary.bytes", "true", "false")),
            VocabularyConfig::DelimitedBytes(marks) => Vocabulary::byte_level_with_marks(*marks, normaliser),
            VocabularyConfig::BytesWithEnd(end) => Vocabulary::byte_level_with_end(*end, normaliser),
            VocabularyConfig::BytesAfterMarks(first, marks) => {
                Vocabulary::bytes_after_marks(*first, *marks, normaliser)
            }
            VocabularyConfig::MarkedSymbols(symbols, specials) => {
                Vocabulary::from_symbols_with_specials(symbols, *specials, normaliser)
            }
            VocabularyConfig::MarkedBytes(first, specials) => {
                Vocabulary::byte_level_with_specials(*first, *specials, normaliser)
            }
            VocabularyConfig::SparseBytes(first, size, added) => {
                Vocabulary::sparse_bytes(*first, *size, added, normaliser)
            }
            VocabularyConfig::Pieces(size, _) => Vocabulary::from_tokenizer(*size, self.subwords.clone(), normaliser),
            VocabularyConfig::Tokens(size, marks) => {
                Vocabulary::from_tokens(*size, self.subwords.clone(), marks.clone())
            }
        };
        vocabulary.map(Arc::new).map_err(|error| error.in_file(file))
    }

    /// The family's own part, as JSON text.
    pub fn architecture(&self) -> &str {
        self.architecture.get()
    }

    /// Returns the file's text, one line a key. Fails if JSON cannot represent a value.
    pub fn to_json(&self) -> Result<String> {
        let internal = |error: serde_json::Error| Error::Internal(format!("config.json: {error}"));
        let vocabulary = match &self.vocabulary {
            VocabularyConfig::Symbols(symbols) => serde_json::json!({ "symbols": symbols }),
            VocabularyConfig::Bytes(bytes) => serde_json::json!({ "bytes": bytes }),
            VocabularyConfig::DelimitedBytes(TextMarks { start, end }) => {
                serde_json::json!({ "bytes": true, "start": start, "end": end })
            }
            VocabularyConfig::BytesAfterMarks(first, TextMarks { start, end }) => {
                serde_json::json!({ "bytes": true, "first_byte": first, "start": start, "end": end })
            }
            VocabularyConfig::BytesWithEnd(end) => serde_json::json!({ "bytes": true, "end": end }),
            VocabularyConfig::MarkedSymbols(symbols, specials) => {
                serde_json::json!({ "symbols": symbols, "specials": specials })
            }
            VocabularyConfig::MarkedBytes(first, specials) => {
                serde_json::json!({ "bytes": true, "first_byte": first, "specials": specials })
            }
            VocabularyConfig::SparseBytes(first, size, added) if added.is_empty() => {
                serde_json::json!({ "bytes": true, "first_byte": first, "size": size })
            }
            VocabularyConfig::SparseBytes(first, size, added) => {
                serde_json::json!({ "bytes": true, "first_byte": first, "size": size, "added": added })
            }
            VocabularyConfig::Tokens(..) => {
                let expected = format!("{FORMAT:?}: weir writes no other format");
                return Err(Error::checkpoint(CONFIG_FILE, "format", expected, "the keys of Hugging Face"));
            }
            VocabularyConfig::Pieces(size, None) => serde_json::json!({ "size": size }),
            VocabularyConfig::Pieces(size, Some(name)) => serde_json::json!({ "tokenizer": name, "size": size }),
        };
        let architecture: serde_json::Value = serde_json::from_str(self.architecture.get()).map_err(internal)?;
        let architecture = match architecture.as_object() {
            Some(keys) => {
                let line = |key: &str, value| format!("    {}: {value}", serde_json::Value::from(key));
                let lines: Vec<_> = keys.iter().map(|(key, value)| line(key, value)).collect();
                format!("{{\n{}\n  }}", lines.join(",\n"))
            }
            None => architecture.to_string(),
        };
        let family = serde_json::to_string(&self.family).map_err(internal)?;
        let mut lines = vec![
            ("format", format!("{:?}", self.format)),
            ("family", family),
            ("vocabulary", vocabulary.to_string()),
            ("normaliser", format!("{:?}", self.normaliser.name())),
            ("training_length", self.training_length.to_string()),
            ("architecture", architecture),
        ];
        if let Some(generation) = &self.generation {
            lines.push(("generation", serde_json::to_string(generation).map_err(internal)?));
        }
        if self.sampling != SamplingDefaults::default() {
            lines.push(("sampling", serde_json::to_string(&self.sampling).map_err(internal)?));
        }
        let lines: Vec<_> = lines.iter().map(|(key, value)| format!("  \"{key}\": {value}")).collect();
        Ok(format!("{{\n{}\n}}\n", lines.join(",\n")))
    }
}

/// Parses the family's own part. Fails if a key is unknown, missing or of the wrong type; errors name `architecture.KEY`.
pub fn architecture<T: DeserializeOwned>(config: &Config, file: &Path) -> Result<T> {
    files::parse(config.architecture.get().as_bytes(), file, "architecture")
}

#[cfg(test)]
mod tests {
    //! Tests of reading, writing and rejecting a configuration.
    use super::*;

    const GOOD: &str = r#"{"format": "weir/1", "family": "hourglass", "vocabulary": {"symbols": [" ", "é", "\""]},
    "normaliser": "none", "training_length": 512, "architecture": {"layers": {"pre": 2}, "dim": 4, "x": "\u0001"},
    "sampling": {"temperature": 0.7}}"#;

    fn parse(text: &str) -> Result<Config> {
        Config::parse(text.as_bytes(), Path::new("config.json"))
    }

    #[test]
    fn a_written_configuration_reads_back() {
        let config = parse(GOOD).unwrap();
        let again = parse(&config.to_json().unwrap()).unwrap();
        assert_eq!(config.vocabulary, again.vocabulary);
        assert_eq!(again.sampling, SamplingDefaults { temperature: 0.7, ..SamplingDefaults::default() });
        assert_eq!(again.sampling, config.sampling);
        let value = |config: &Config| serde_json::from_str::<serde_json::Value>(config.architecture()).unwrap();
        assert_eq!(value(&config), value(&again));
        assert_eq!(again.to_json().unwrap(), config.to_json().unwrap());
    }

    #[test]
    fn bytes_may_have_an_end_or_two_marks() {
        let of = |vocabulary: &str| parse(&GOOD.replace(r#"{"symbols": [" ", "é", "\""]}"#, vocabulary));
        for (text, ends) in [
            (r#"{"bytes": true}"#, vec![]),
            (r#"{"bytes": true, "end": 3}"#, vec![3]),
            (r#"{"bytes": true, "start": 254, "end": 255}"#, vec![255]),
        ] {
            let config = of(text).unwrap();
            let vocabulary = config.vocabulary(Path::new("c")).unwrap();
            assert_eq!(vocabulary.end_marks().collect::<Vec<_>>(), ends, "{text}");
            assert_eq!(parse(&config.to_json().unwrap()).unwrap().vocabulary, config.vocabulary, "{text}");
        }
    }
}
