//! Configuration of a Hugging Face folder: `config.json`, `generation_config.json` and `tokenizer.json`. The architecture's own
//! keys are kept as text for the family; keys that change nothing here are ignored, as transformers does.

use crate::{
    checkpoint::{
        files::{check_inside, parent},
        json,
        weights::{INDEX_FILE, PICKLE_FILE, PICKLE_INDEX_FILE, WEIGHTS_FILE, shapes_in},
    },
    contract::SamplingDefaults,
    text::{
        SubwordTokenizer, TokenMarks,
        subwords::{MAX_TOKENIZER_BYTES, TOKENIZER_FILE},
    },
};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{path::Path, sync::Arc};
use weir_kernels::error::{Error, Result};

/// The family that computes such checkpoints.
pub const FAMILY: &str = "hugging-face";

/// The file with defaults of generation.
pub const GENERATION_FILE: &str = "generation_config.json";

const MAX_GENERATION_BYTES: u64 = 1 << 20;

/// Training window of a model without a maximum length: that of Mamba's official checkpoints.
const UNBOUNDED_TRAINING_LENGTH: usize = 2048;

/// Values of `model_type` whose checkpoints `weir convert` reads, and the kind of source that they are for it.
pub const CONVERTED: [(&str, &str); 5] =
    [("t5", "t5"), ("mt5", "t5"), ("longt5", "t5"), ("mrt5", "mrt5"), ("gpt2", "gpt2")];

/// Values of `model_type` of the family `t5`, which reads such folders without conversion.
pub const T5_MODEL_TYPES: [&str; 4] = ["t5", "mt5", "longt5", "mrt5"];

/// The contents of the files of a folder.
pub(crate) struct HuggingFaceConfig {
    /// Number of ids; 0 if it is missing.
    pub(crate) vocab_size: usize,
    pub(crate) marks: TokenMarks,
    /// Tokens in one training window.
    pub(crate) training_length: usize,
    pub(crate) architecture: Box<RawValue>,
    pub(crate) subwords: Option<Arc<SubwordTokenizer>>,
    pub(crate) sampling: SamplingDefaults,
}

/// Keys of `config.json` that all architectures share.
#[derive(Deserialize)]
struct SharedKeys {
    vocab_size: Option<usize>,
    max_position_embeddings: Option<usize>,
    n_positions: Option<usize>,
    eos_token_id: Option<EndIds>,
}

#[derive(Deserialize, Default)]
struct GenerationKeys {
    eos_token_id: Option<EndIds>,
    temperature: Option<f32>,
    top_k: Option<usize>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
}

/// One id, or several.
#[derive(Deserialize)]
#[serde(untagged, expecting = "an id or a list of ids")]
enum EndIds {
    One(u32),
    Several(Vec<u32>),
}

/// Returns the kind of source that a checkpoint is for `weir convert`, if its `model_type`, as JSON, is one of [`CONVERTED`].
pub fn conversion(model_type: &RawValue) -> Option<&'static str> {
    let name: String = serde_json::from_str(model_type.get()).ok()?;
    CONVERTED.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
}

/// Checks that weir computes a checkpoint without conversion. The error has the command that converts it, if its weights can be read.
pub(crate) fn check_needs_no_conversion(model_type: Option<&RawValue>, file: &Path) -> Result<()> {
    let Some((model_type, kind)) = model_type.and_then(|name| Some((name, conversion(name)?))) else { return Ok(()) };
    shapes_in(parent(file))?;
    let dir = parent(file).display();
    let expected = format!("weir's format (`weir convert --from {kind} {dir} NEW-FOLDER` writes it)");
    Err(Error::checkpoint(file, "model_type", expected, model_type.get()))
}

/// Adds the files that the folder lacks, if any, to an error about a missing key of `config.json`.
pub fn explain_missing_key(error: Error, dir: &Path) -> Error {
    let Error::Checkpoint { file, key, expected, found } = error else { return error };
    if found != "nothing" {
        return Error::Checkpoint { file, key, expected, found };
    }
    let has_any = |names: &[&str]| names.iter().any(|name| dir.join(name).exists());
    let weights = [WEIGHTS_FILE, INDEX_FILE, PICKLE_FILE, PICKLE_INDEX_FILE];
    let groups = [(TOKENIZER_FILE, &[TOKENIZER_FILE, "spiece.model"][..]), (WEIGHTS_FILE, &weights)];
    let missing: Vec<_> = groups.iter().filter(|(_, names)| !has_any(names)).map(|(name, _)| *name).collect();
    let found = match missing[..] {
        [] => found,
        _ => format!(
            "nothing; this Hugging Face folder also lacks {}: `weir pull hf:ORG/NAME` downloads a complete one",
            missing.join(" and ")
        ),
    };
    Error::Checkpoint { file, key, expected, found }
}

/// Reads a configuration from the text of `file`, a `config.json`, and from the files next to it.
pub(crate) fn read(text: &[u8], file: &Path) -> Result<HuggingFaceConfig> {
    let keys: SharedKeys = json::parse(text, file, "")?;
    let architecture: Box<RawValue> = json::parse(text, file, "")?;
    let generation_file = file.with_file_name(GENERATION_FILE);
    let generation = match generation_file.exists() {
        true => json::parse(&read_inside(&generation_file, MAX_GENERATION_BYTES)?, &generation_file, "")?,
        false => GenerationKeys::default(),
    };
    let sampling = sampling(&generation, &generation_file)?;
    let tokenizer_file = file.with_file_name(TOKENIZER_FILE);
    let subwords = match tokenizer_file.exists() {
        true => {
            let parsed = SubwordTokenizer::parse_for_prompts(&read_inside(&tokenizer_file, MAX_TOKENIZER_BYTES)?);
            Some(Arc::new(parsed.map_err(|error| error.in_file(&tokenizer_file))?))
        }
        false => None,
    };
    let (ends, ends_file) = match generation.eos_token_id {
        Some(ids) => (Some(ids), &*generation_file),
        None => (keys.eos_token_id, file),
    };
    let ends = match ends {
        Some(EndIds::One(id)) => vec![id],
        Some(EndIds::Several(ids)) => ids,
        None => Vec::new(),
    };
    let start = subwords.as_ref().map_or_else(Vec::new, |subwords| subwords.leading().to_vec());
    if let Some(size) = keys.vocab_size {
        for (file, key, ids) in [(ends_file, "eos_token_id", &ends), (&*tokenizer_file, "post_processor", &start)] {
            if let Some(id) = ids.iter().find(|id| **id as usize >= size) {
                let expected = format!("ids below vocab_size, {size}");
                return Err(Error::checkpoint(file, key, expected, id.to_string()));
            }
        }
    }
    let positions = keys.max_position_embeddings.or(keys.n_positions);
    Ok(HuggingFaceConfig {
        vocab_size: keys.vocab_size.unwrap_or(0),
        marks: TokenMarks { start, ends },
        training_length: positions.unwrap_or(UNBOUNDED_TRAINING_LENGTH),
        architecture,
        subwords,
        sampling,
    })
}

/// Reads a small file completely. Fails if it is too long, or a link out of its folder.
fn read_inside(file: &Path, limit: u64) -> Result<Vec<u8>> {
    if let Some(dir) = file.parent() {
        check_inside(dir, file)?;
    }
    json::read_limited(file, limit)
}

/// Returns the stated sampling options, and the API's defaults of the others. `do_sample` does not count.
fn sampling(keys: &GenerationKeys, file: &Path) -> Result<SamplingDefaults> {
    let api = SamplingDefaults::default();
    let bounded = |key: &str, value: Option<f32>, default: f32, min: f32, max: f32| match value {
        Some(value) if !(min..=max).contains(&value) => {
            Err(Error::checkpoint(file, key, format!("{min} to {max}"), value.to_string()))
        }
        value => Ok(value.unwrap_or(default)),
    };
    Ok(SamplingDefaults {
        temperature: bounded("temperature", keys.temperature, api.temperature, 0.0, 100.0)?,
        top_k: keys.top_k.unwrap_or(api.top_k),
        top_p: bounded("top_p", keys.top_p, api.top_p, f32::MIN_POSITIVE, 1.0)?,
        min_p: bounded("min_p", keys.min_p, api.min_p, 0.0, 1.0)?,
        repetition_penalty: bounded(
            "repetition_penalty",
            keys.repetition_penalty,
            api.repetition_penalty,
            0.01,
            100.0,
        )?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_files_are_listed() {
        let dir = tempfile::tempdir().unwrap();
        let shown = |found: &str| {
            explain_missing_key(Error::checkpoint("c", "vocab_size", "a value", found), dir.path()).to_string()
        };
        let download = ": `weir pull hf:ORG/NAME` downloads a complete one";
        let start = "c: vocab_size: expected a value, found nothing";
        let lacks = "; this Hugging Face folder also lacks tokenizer.json";
        assert_eq!(shown("nothing"), format!("{start}{lacks} and model.safetensors{download}"));
        std::fs::write(dir.path().join(INDEX_FILE), "").unwrap();
        assert_eq!(shown("nothing"), format!("{start}{lacks}{download}"));
        std::fs::write(dir.path().join("spiece.model"), "").unwrap();
        assert_eq!(shown("nothing"), start);
        assert_eq!(shown("5"), "c: vocab_size: expected a value, found 5");
    }

    #[test]
    fn stated_options_are_defaults_within_bounds() {
        let keys = |json: &str| serde_json::from_str::<GenerationKeys>(json).unwrap();
        let stated =
            sampling(&keys(r#"{"temperature": 0.6, "top_k": 20, "do_sample": false, "min_p": null}"#), Path::new("g"));
        assert_eq!(stated.unwrap(), SamplingDefaults { temperature: 0.6, top_k: 20, ..SamplingDefaults::default() });
        let message = sampling(&keys(r#"{"top_p": 1.5}"#), Path::new("g")).unwrap_err().to_string();
        assert!(message.starts_with("g: top_p: expected") && message.ends_with("found 1.5"), "{message}");
        let ends = keys(r#"{"eos_token_id": [3, 4]}"#).eos_token_id;
        assert!(matches!(ends, Some(EndIds::Several(ids)) if ids == [3, 4]));
    }
}
