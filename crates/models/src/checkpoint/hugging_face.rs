//! Configuration of a Hugging Face folder: `config.json`, `generation_config.json` and `tokenizer.json`. The architecture's own
//! keys are kept as text for the family, with transformers' defaults of absent ones; keys that change nothing here are ignored, as
//! transformers does.

use crate::{
    checkpoint::{
        files::{self, UniqueMap, parent},
        weights::shapes_in,
    },
    contract::SamplingDefaults,
    text::{
        SubwordTokenizer, TokenMarks,
        subwords::{MAX_TOKENIZER_BYTES, TOKENIZER_FILE},
    },
};
use serde::Deserialize;
use serde_json::{
    Value,
    value::{RawValue, to_raw_value},
};
use std::{collections::BTreeMap, path::Path, sync::Arc};
use weir_kernels::error::{Error, QUOTED, Result, clip};

/// The family that computes such checkpoints.
pub const FAMILY: &str = "hugging-face";

/// The file with defaults of generation.
pub const GENERATION_FILE: &str = "generation_config.json";

const MAX_GENERATION_BYTES: u64 = 1 << 20;

/// Training window of a model without a maximum length: as in Mamba's official checkpoints.
const UNBOUNDED_TRAINING_LENGTH: usize = 2048;

/// Values of `model_type` whose checkpoints `weir convert` reads, and the kind of source that they are for it.
pub const CONVERTED: [(&str, &str); 6] =
    [("t5", "t5"), ("mt5", "t5"), ("longt5", "t5"), ("mrt5", "mrt5"), ("gpt2", "gpt2"), ("blt", "blt")];

/// Values of `model_type` of the family `t5`, which reads such folders without conversion.
pub const T5_MODEL_TYPES: [&str; 4] = ["t5", "mt5", "longt5", "mrt5"];

/// The value of `model_type` of the family `blt`, which reads such folders without conversion.
pub const BLT_MODEL_TYPE: &str = "blt";

/// Advice for folders that lack files.
pub const DOWNLOAD: &str = "`weir pull hf:ORG/NAME` downloads a complete folder";

/// Values of keys that `config.json` lacks, from `configuration_NAME.py` of transformers 5.23.0, by `model_type`. Later ones win.
const DEFAULTS: [(&[&str], &str); 9] = [
    (
        &["llama", "qwen2", "qwen3", "gemma2"],
        r#"{"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "attention_bias": false, "mlp_bias": false, "tie_word_embeddings": false, "use_sliding_window": false,
        "sliding_window": 4096, "max_window_layers": 28}"#,
    ),
    (
        &["llama"],
        r#"{"vocab_size": 32000, "intermediate_size": 11008, "max_position_embeddings": 2048, "eos_token_id": 2}"#,
    ),
    (
        &["qwen2", "qwen3"],
        r#"{"vocab_size": 151936, "intermediate_size": 22016, "max_position_embeddings": 32768, "num_key_value_heads": 32}"#,
    ),
    (&["qwen3"], r#"{"head_dim": 128}"#),
    (
        &["gemma2"],
        r#"{"vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192, "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0, "tie_word_embeddings": true, "use_bidirectional_attention": false,
        "eos_token_id": 1}"#,
    ),
    (
        &["gpt2", "gpt_bigcode"],
        r#"{"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12, "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_pytorch_tanh", "scale_attn_weights": true, "scale_attn_by_inverse_layer_idx": false,
        "add_cross_attention": false, "multi_query": true, "tie_word_embeddings": true, "eos_token_id": 50256}"#,
    ),
    (
        &["mamba"],
        r#"{"vocab_size": 50280, "hidden_size": 768, "state_size": 16, "num_hidden_layers": 32, "expand": 2, "conv_kernel": 4,
        "time_step_rank": "auto", "layer_norm_epsilon": 1e-5, "hidden_act": "silu", "use_bias": false, "use_conv_bias": true,
        "tie_word_embeddings": true, "eos_token_id": 0}"#,
    ),
    (
        &T5_MODEL_TYPES,
        r#"{"vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8,
        "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128, "feed_forward_proj": "relu",
        "layer_norm_epsilon": 1e-6, "tie_word_embeddings": true, "encoder_attention_type": "local", "local_radius": 127,
        "global_block_size": 16, "sigmoid_mask_scale": -10.0, "delete_gate_layer": 2, "gate_layer_norm": true,
        "use_softmax1": false}"#,
    ),
    (
        &["mt5"],
        r#"{"vocab_size": 250112, "d_ff": 1024, "num_layers": 8, "num_heads": 6, "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": false}"#,
    ),
];

/// Keys whose null is a value: no window, no cap, no end, as many heads as there are. Null stands for the default of any other key.
const NULLABLE: [&str; 5] =
    ["sliding_window", "attn_logit_softcapping", "final_logit_softcapping", "eos_token_id", "num_key_value_heads"];

/// Returns the keys of `text`, a `config.json` of Hugging Face, and the defaults of absent ones. Values stay as they are written.
pub(crate) fn completed(text: &[u8], file: &Path) -> Result<Box<RawValue>> {
    let UniqueMap(own): UniqueMap<Box<RawValue>> = files::parse(text, file, "")?;
    let model_type = own.get("model_type").map_or("", |name| name.get().trim_matches('"'));
    let mut keys = BTreeMap::new();
    for (_, defaults) in DEFAULTS.iter().filter(|(types, _)| types.contains(&model_type)) {
        let UniqueMap(defaults): UniqueMap<Box<RawValue>> = files::parse(defaults.as_bytes(), file, "")?;
        keys.extend(defaults);
    }
    keys.extend(own.into_iter().filter(|(key, value)| value.get() != "null" || NULLABLE.contains(&key.as_str())));
    to_raw_value(&keys).map_err(|error| Error::Internal(format!("config.json: {error}")))
}

/// The contents of the files of a folder.
pub(crate) struct HuggingFaceConfig {
    /// Number of ids.
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
    /// 0 if the `model_type` is unknown.
    #[serde(default)]
    vocab_size: usize,
    max_position_embeddings: Option<usize>,
    n_positions: Option<usize>,
    eos_token_id: Option<EndIds>,
}

/// Keys that count only if the file has them.
#[derive(Deserialize)]
struct StatedKeys {
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
#[serde(try_from = "Value")]
struct EndIds(Vec<u32>);

impl TryFrom<Value> for EndIds {
    /// In serde's form, so that it is parsed like serde's own messages.
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let id = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids = match &value {
            Value::Array(ids) => ids.iter().map(id).collect(),
            one => id(one).map(|id| vec![id]),
        };
        ids.map(Self).ok_or_else(|| format!("{}, expected an id or a list of ids", clip(&value.to_string(), QUOTED)))
    }
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

/// Reads a configuration from the text of `file`, a `config.json`, and from the files next to it.
pub(crate) fn read(text: &[u8], file: &Path) -> Result<HuggingFaceConfig> {
    let architecture = completed(text, file)?;
    let stated: StatedKeys = files::parse(text, file, "")?;
    let keys: SharedKeys = files::parse(architecture.get().as_bytes(), file, "")?;
    let dir = parent(file);
    let generation_file = files::present(dir, GENERATION_FILE)?;
    let generation = match &generation_file {
        Some(file) => files::parse(&files::read_limited(file, MAX_GENERATION_BYTES)?, file, "")?,
        None => GenerationKeys::default(),
    };
    let has_generation = generation_file.is_some();
    let generation_file = dir.join(GENERATION_FILE);
    let sampling = sampling(&generation, &generation_file)?;
    let tokenizer_file = dir.join(TOKENIZER_FILE);
    let subwords = match files::present(dir, TOKENIZER_FILE)? {
        Some(file) => {
            let parsed = SubwordTokenizer::parse_for_prompts(&files::read_limited(&file, MAX_TOKENIZER_BYTES)?);
            Some(Arc::new(parsed.map_err(|error| error.in_file(&file))?))
        }
        None => None,
    };
    let (ends, ends_file) = match generation.eos_token_id {
        Some(EndIds(ids)) => (ids, &*generation_file),
        None => (stated.eos_token_id.map_or_else(Vec::new, |EndIds(ids)| ids), file),
    };
    // The default of a model of another size is no id of this one.
    let default_ends = keys.eos_token_id.filter(|_| ends.is_empty() && !has_generation);
    let default_ends = default_ends.into_iter().flat_map(|EndIds(ids)| ids);
    let start = subwords.as_ref().map_or_else(Vec::new, |subwords| subwords.leading().to_vec());
    let size = keys.vocab_size;
    for (file, key, ids) in [(ends_file, "eos_token_id", &ends), (&*tokenizer_file, "post_processor", &start)] {
        if let Some(id) = ids.iter().find(|id| **id as usize >= size) {
            let expected = format!("ids below vocab_size, {size}");
            return Err(Error::checkpoint(file, key, expected, id.to_string()));
        }
    }
    let ends = ends.into_iter().chain(default_ends.filter(|id| (*id as usize) < size)).collect();
    let positions = keys.max_position_embeddings.or(keys.n_positions);
    Ok(HuggingFaceConfig {
        vocab_size: size,
        marks: TokenMarks { start, ends },
        training_length: positions.unwrap_or(UNBOUNDED_TRAINING_LENGTH),
        architecture,
        subwords,
        sampling,
    })
}

/// Returns the sampling options that the folder's `generation_config.json`, if there is one, states, and the API's defaults of the
/// others.
pub(crate) fn stated_sampling(dir: &Path) -> Result<SamplingDefaults> {
    let Some(file) = files::present(dir, GENERATION_FILE)? else { return Ok(SamplingDefaults::default()) };
    sampling(&files::parse(&files::read_limited(&file, MAX_GENERATION_BYTES)?, &file, "")?, &file)
}

/// Returns the stated sampling options, and the API's defaults of the others. `do_sample` does not count.
fn sampling(keys: &GenerationKeys, file: &Path) -> Result<SamplingDefaults> {
    let api = SamplingDefaults::default();
    let stated = SamplingDefaults {
        temperature: keys.temperature.unwrap_or(api.temperature),
        top_k: keys.top_k.unwrap_or(api.top_k),
        top_p: keys.top_p.unwrap_or(api.top_p),
        min_p: keys.min_p.unwrap_or(api.min_p),
        repetition_penalty: keys.repetition_penalty.unwrap_or(api.repetition_penalty),
    };
    stated.check(file, "").map(|()| stated)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_and_null_keys_have_defaults() {
        let read = |text: &str| -> Value {
            serde_json::from_str(completed(text.as_bytes(), Path::new("c")).unwrap().get()).unwrap()
        };
        let gemma2 =
            read(r#"{"model_type": "gemma2", "rms_norm_eps": null, "sliding_window": null, "hidden_size": 1e1}"#);
        for (key, value) in
            [("rms_norm_eps", "1e-6"), ("sliding_window", "null"), ("hidden_size", "10.0"), ("head_dim", "256")]
        {
            assert_eq!(gemma2[key], serde_json::from_str::<Value>(value).unwrap(), "{key}");
        }
        assert_eq!(read(r#"{"model_type": "mt5"}"#)["num_heads"], 6);
        assert_eq!(
            read(r#"{"model_type": "bert", "x": 1, "y": null}"#),
            serde_json::json!({"model_type": "bert", "x": 1})
        );
        let twice = completed(br#"{"model_type": "llama", "hidden_size": 1, "hidden_size": 2}"#, Path::new("c"));
        assert_eq!(twice.unwrap_err().to_string(), "c: hidden_size: expected one value, found two");
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
        assert!(matches!(ends, Some(EndIds(ids)) if ids == [3, 4]));
    }
}
