//! Checkpoints of the Byte Latent Transformer as Hugging Face's transformers stores them, the older names of the published
//! conversions included. Keys that its inference ignores are ignored here; keys that it does not know, and values that change what
//! it computes without a word, are refused.

use crate::checkpoint::config::{OFFICIAL_BLT_KEY, official_blt};
use crate::checkpoint::files::{UniqueMap, check_source, parse};
use crate::checkpoint::hugging_face::stated_sampling;
use crate::checkpoint::weights::{HEAD, UnusedTensors, read_weights_with, shapes_in};
use crate::checkpoint::{CONFIG_FILE, Config, VocabularyConfig, Weights};
use crate::convert::converted::{Converted, read_config, rename_key, source_name};
use crate::family::TensorSpec;
use crate::family::families::blueprint;
use crate::text::{TextMarks, TextNormaliser};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use weir_kernels::error::{Error, QUOTED, Result, clip};

/// Reads a folder for `weir convert`.
pub(super) fn read(dir: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    check_source(dir, SOURCE)?;
    let folder = BltFolder::open(dir)?;
    let (weights, _) = folder.weights(progress)?;
    Ok(Converted { config: folder.config, weights })
}

/// The expected source of a conversion, in an error that also tells those who have Meta's files what to do.
const SOURCE: &str = "a folder with Hugging Face's config.json and model.safetensors, which transformers' \
                      convert_blt_weights_to_hf.py writes from Meta's files";

pub(super) fn config_in_place(dir: &Path) -> Result<Config> {
    Ok(BltFolder::open(dir)?.config)
}

/// Reads the weights that [`config_in_place`] asks for, under weir's names, and their SHA-256.
pub(super) fn weights_in_place(dir: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<(Weights, String)> {
    BltFolder::open(dir)?.weights(progress)
}

/// The official vocabulary: id 0 has no meaning after the start, 1 starts a text, 2 ends it, 3 is unused, then come the bytes.
const FIRST_BYTE: u32 = 4;

const MARKS: TextMarks = TextMarks { start: 1, end: 2 };
const SYMBOLS: usize = 260;
const TABLE: &str = "model.encoder_hash_tok_embedding.weight";

/// The official name of the encoder's embedding, which a tied head replaces.
const EMBEDDING: &str = "model.local_encoder.embed_tokens.weight";

/// A folder in Hugging Face's layout, without the data of its tensors.
struct BltFolder<'a> {
    dir: &'a Path,
    config: Config,
    /// Cross-attention layers that the encoder's part of the file has; the last one counts.
    encoder_crosses: usize,
    /// Width of encoder and decoder.
    dim: usize,
    has_table: bool,
}

impl<'a> BltFolder<'a> {
    fn open(dir: &'a Path) -> Result<Self> {
        let file = dir.join(CONFIG_FILE);
        let UniqueMap(keys): UniqueMap<Value> = parse(&read_config(&file)?, &file, "")?;
        if keys.contains_key(OFFICIAL_BLT_KEY) && !keys.contains_key("model_type") {
            return Err(official_blt(&file));
        }
        let top = Keys { keys, parent: String::new(), file: file.clone() };
        top.check_known(TRANSFORMERS_KEYS, &[TOP_KEYS, IGNORED_KEYS])?;
        top.rotary_base(0.0)?;
        top.check_mode()?;
        let stacks = STACKS.map(|(name, defaults)| top.stack(name, defaults));
        let [patcher, encoder, global, decoder] = stacks;
        let stacks = [patcher?, encoder?, global?, decoder?];
        let [_, encoder, global, decoder] = &stacks;
        let vectors = top.unsigned("cross_attn_k", 2)?;
        for part in [encoder, decoder] {
            let own = part.unsigned("cross_attn_k", 2)?;
            part.require(own == vectors, "cross_attn_k", format!("{vectors}, as at the top level"), own)?;
        }
        let width = global.unsigned("hidden_size", 2048)?;
        let own = decoder.unsigned("hidden_size_global", 2048)?;
        decoder.require(own == width, "hidden_size_global", format!("{width}, global_config's hidden_size"), own)?;
        let mut architecture = top.architecture(&stacks, vectors)?;
        // transformers reads a head and an embedding that a configuration ties, if the files have both
        if shapes_in(dir).is_ok_and(|shapes| [HEAD, EMBEDDING].iter().all(|name| shapes.contains_key(*name))) {
            architecture["tied"] = false.into();
        }
        let layers = encoder.unsigned("num_hidden_layers", 1)?;
        let encoder_crosses = if encoder.boolean("cross_attn_all_layers", false)? { layers as usize } else { 1 };
        let length = top.unsigned("max_position_embeddings", 4096)? as usize;
        let vocabulary = VocabularyConfig::BytesAfterMarks(FIRST_BYTE, MARKS);
        let config = Config::new("blt", vocabulary, TextNormaliser::None, length, &architecture, &file);
        let mut config = config.map_err(in_official_terms)?;
        config.sampling = stated_sampling(dir)?;
        blueprint(&config, &file).map_err(in_official_terms)?;
        let dim = encoder.unsigned("hidden_size", 1024)? as usize;
        let has_table = !architecture["ngrams"].is_null();
        Ok(Self { dir, config, encoder_crosses, dim, has_table })
    }

    /// Reads the weights under weir's names. Tensors of the file that have no influence are dropped.
    fn weights(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<(Weights, String)> {
        let specs = blueprint(&self.config, &self.dir.join(CONFIG_FILE))?.tensors();
        let has_embedding = specs.iter().any(|spec| spec.name == "encoder.embedding.weight");
        let mut official = Vec::with_capacity(specs.len());
        for spec in &specs {
            let name = official_name(&spec.name, self.encoder_crosses - 1);
            let tied_to = (name == HEAD && !has_embedding).then_some(EMBEDDING);
            official.push(TensorSpec { name, tied_to, ..spec.clone() });
        }
        let last = format!("model.local_encoder.cross_attn_layers.{}.", self.encoder_crosses - 1);
        let used: Vec<_> = official.iter().filter(|spec| spec.name.starts_with(&last)).cloned().collect();
        for layer in 0..self.encoder_crosses - 1 {
            let other = |name: &str| name.replace(&last, &format!("model.local_encoder.cross_attn_layers.{layer}."));
            official.extend(used.iter().map(|spec| TensorSpec { name: other(&spec.name), ..spec.clone() }));
        }
        if !self.has_table {
            official.push(TensorSpec::zeros(TABLE, vec![0, self.dim]));
        }
        let (mut tensors, sha256) = read_weights_with(self.dir, &official, UnusedTensors::Ignored, progress)?;
        let mut weights = Weights::default();
        for (spec, official) in specs.into_iter().zip(official) {
            match spec.stays_in_file {
                true => weights.insert_table(spec.name, tensors.take_table(&official.name)?),
                false => weights.insert(spec.name, tensors.take_tensor(&official.name)?),
            }
        }
        Ok((weights, sha256))
    }
}

/// Returns the official name of a tensor; `cross` is the encoder's cross-attention that counts.
fn official_name(name: &str, cross: usize) -> String {
    match name {
        "head.weight" => return HEAD.to_owned(),
        "ngrams.weight" => return TABLE.to_owned(),
        _ => {}
    }
    let name = name.strip_suffix(".weight").unwrap_or(name);
    let (stack, part) = name.split_once('.').unwrap_or((name, ""));
    let stack = source_name(STACK_NAMES, stack).unwrap_or(stack);
    let (group, rest) = part.split_once('.').unwrap_or((part, ""));
    let part = match group {
        "cross" => match rest.split_once('.') {
            Some((layer, part)) => format!("cross_attn_layers.{layer}.{}", layer_name(part)),
            None => format!("cross_attn_layers.{cross}.{}", layer_name(rest)),
        },
        layer if !rest.is_empty() => format!("layers.{layer}.{}", layer_name(rest)),
        part => layer_name(part).to_owned(),
    };
    format!("model.{stack}.{part}.weight")
}

/// Names of the stacks: weir's, and the official ones.
const STACK_NAMES: &[(&str, &str)] = &[
    ("patcher", "patcher"),
    ("encoder", "local_encoder"),
    ("global", "global_transformer"),
    ("decoder", "local_decoder"),
];

/// Returns the official name of a part of a stack, a layer or a cross-attention.
fn layer_name(part: &str) -> &str {
    const NAMES: &[(&str, &str)] = &[
        ("embedding", "embed_tokens"),
        ("head", "lm_head"),
        ("patch", "patch_embedding_projection"),
        ("input", "token_embedding_projection"),
        ("attention.norm", "input_layernorm"),
        ("attention.query", "self_attn.q_proj"),
        ("attention.key", "self_attn.k_proj"),
        ("attention.value", "self_attn.v_proj"),
        ("attention.output", "self_attn.o_proj"),
        ("feed_forward.norm", "post_attention_layernorm"),
        ("feed_forward.gate", "mlp.gate_proj"),
        ("feed_forward.up", "mlp.up_proj"),
        ("feed_forward.down", "mlp.down_proj"),
        ("query_norm", "q_norm"),
        ("key_norm", "k_norm"),
        ("query", "q_proj"),
        ("key", "k_proj"),
        ("value", "v_proj"),
        ("output", "o_proj"),
    ];
    source_name(NAMES, part).unwrap_or(part)
}

/// Gives a key of weir's configuration its name in `config.json`.
fn in_official_terms(error: Error) -> Error {
    const KEYS: &[(&str, &str)] = &[
        ("training_length", "max_position_embeddings"),
        ("architecture.patch_vectors", "cross_attn_k"),
        ("architecture.threshold", "patching_threshold"),
        ("architecture.max_patch", "max_patch_length"),
        ("architecture.ngrams.sizes", "encoder_hash_byte_group_size"),
        ("architecture.ngrams.functions", "encoder_hash_byte_group_nb_functions"),
        ("architecture.ngrams.rows", "encoder_hash_byte_group_vocab"),
    ];
    const PARTS: &[(&str, &str)] = &[
        ("layers", "num_hidden_layers"),
        ("dim", "hidden_size"),
        ("heads", "num_attention_heads"),
        ("kv_heads", "num_key_value_heads"),
        ("feed_forward", "intermediate_size"),
        ("rotary_base", "rope_theta"),
        ("norm_eps", "rms_norm_eps"),
    ];
    rename_key(error, KEYS, |key| {
        let stack = || key.strip_prefix("architecture.")?.split_once('.');
        match stack() {
            Some(("patcher", window)) if window.starts_with("window") => "patcher_config.sliding_window".to_owned(),
            Some((_, window)) if window.starts_with("window") => "local_attention_window_len".to_owned(),
            Some((stack, part)) => format!("{stack}_config.{}", source_name(PARTS, part).unwrap_or(part)),
            None => key.to_owned(),
        }
    })
}

/// Values of absent keys of a sub-configuration.
struct StackDefaults {
    dim: u64,
    heads: u64,
    layers: u64,
    /// `None`: int(8·hidden_size/3).
    feed_forward: Option<u64>,
    rotary_base: f64,
}

/// The sub-configurations with their defaults, in the order of weir's stacks.
const STACKS: [(&str, StackDefaults); 4] = [
    (
        "patcher_config",
        StackDefaults { dim: 768, heads: 12, layers: 14, feed_forward: Some(2048), rotary_base: 10_000.0 },
    ),
    ("encoder_config", StackDefaults { dim: 1024, heads: 16, layers: 1, feed_forward: None, rotary_base: 500_000.0 }),
    (
        "global_config",
        StackDefaults { dim: 2048, heads: 16, layers: 25, feed_forward: Some(5632), rotary_base: 500_000.0 },
    ),
    (
        "decoder_config",
        StackDefaults { dim: 1024, heads: 16, layers: 9, feed_forward: Some(2816), rotary_base: 500_000.0 },
    ),
];

/// Window of an absent key; null is none.
const WINDOW: usize = 512;

/// Official default of `patching_threshold`.
const THRESHOLD: f64 = 1.335_442_066_192_627;

/// Keys that count at the top level.
const TOP_KEYS: &str = "model_type, vocab_size, patching_threshold, max_patch_length, local_attention_window_len, cross_attn_k, \
    encoder_hash_byte_group_size, encoder_hash_byte_group_vocab, encoder_hash_byte_group_nb_functions, \
    tie_word_embeddings, patching_mode, patch_in_forward, patch_size, monotonicity, patching_threshold_add, \
    patcher_config, encoder_config, global_config, decoder_config";

/// Keys that count in a sub-configuration.
const STACK_KEYS: &str = "hidden_size, num_attention_heads, num_key_value_heads, num_hidden_layers, intermediate_size, head_dim, \
    hidden_act, rms_norm_eps, vocab_size, sliding_window, cross_attn_all_layers, cross_attn_k, hidden_size_global";

/// Keys that change nothing in transformers' inference, or that are read where they count: `max_position_embeddings` and the
/// keys of rotary positions.
const IGNORED_KEYS: &str = "max_position_embeddings, rope_theta, rope_scaling, rope_parameters, norm_eps, model_type, tie_word_embeddings, \
    architectures, transformers_version, _name_or_path, _attn_implementation, attn_impl, attn_bias_type, auto_map, \
    bos_token_id, eos_token_id, pad_token_id, sep_token_id, decoder_start_token_id, forced_bos_token_id, \
    forced_eos_token_id, dtype, torch_dtype, dropout, initializer_range, use_cache, patching_batch_size, \
    patching_device, realtime_patching, pm_size, encoder_cross_output_size, id2label, label2id, return_dict, \
    is_encoder_decoder, is_decoder, add_cross_attention, cross_attention_hidden_size, chunk_size_feed_forward, \
    problem_type, finetuning_task, task_specific_params, tokenizer_class, prefix, pruned_heads, tie_encoder_decoder, \
    torchscript, tf_legacy_loss, use_bfloat16, max_length, min_length, do_sample, early_stopping, num_beams, \
    num_beam_groups, diversity_penalty, temperature, top_k, top_p, typical_p, repetition_penalty, length_penalty, \
    no_repeat_ngram_size, encoder_no_repeat_ngram_size, bad_words_ids, num_return_sequences, remove_invalid_values, \
    exponential_decay_length_penalty, suppress_tokens, begin_suppress_tokens";

/// Keys that count in `rope_parameters` and `rope_scaling`.
const ROTARY_KEYS: &str = "rope_type, type, rope_theta";

/// The expectation in the error about an unknown key.
const TRANSFORMERS_KEYS: &str = "a key of transformers' BltConfig";

/// The keys of `config.json`, or of an object in it.
struct Keys {
    keys: BTreeMap<String, Value>,
    /// Prefix of the keys in errors.
    parent: String,
    file: PathBuf,
}

impl Keys {
    fn path(&self, key: &str) -> String {
        if self.parent.is_empty() { key.to_owned() } else { format!("{}.{key}", self.parent) }
    }

    fn error(&self, key: &str, expected: impl Into<String>, found: impl ToString) -> Error {
        Error::checkpoint(&self.file, self.path(key), expected, clip(&found.to_string(), QUOTED))
    }

    fn require(&self, holds: bool, key: &str, expected: impl Into<String>, found: impl ToString) -> Result<()> {
        if holds { Ok(()) } else { Err(self.error(key, expected, found)) }
    }

    /// Fails for the first key that is in none of the lists; `expected` describes them.
    fn check_known(&self, expected: &str, lists: &[&str]) -> Result<()> {
        let is_known = |key: &str| {
            lists.iter().any(|list| list.split(", ").any(|known| known == key)) || key.starts_with("output_")
        };
        match self.keys.iter().find(|(key, _)| !is_known(key)) {
            None => Ok(()),
            Some((key, value)) => Err(self.error(key, expected, value)),
        }
    }

    /// Returns the keys of an object, which may be absent or null.
    fn object(&self, key: &str) -> Result<Self> {
        let keys = match self.stated(key) {
            None => BTreeMap::new(),
            Some(Value::Object(keys)) => keys.clone().into_iter().collect(),
            Some(other) => return Err(self.error(key, "an object", other)),
        };
        Ok(Self { keys, parent: self.path(key), file: self.file.clone() })
    }

    /// Returns the value of a key, unless it is absent or null.
    fn stated(&self, key: &str) -> Option<&Value> {
        self.keys.get(key).filter(|value| !value.is_null())
    }

    fn unsigned(&self, key: &str, default: u64) -> Result<u64> {
        match self.keys.get(key) {
            None => Ok(default),
            Some(value) => value.as_u64().ok_or_else(|| self.error(key, "a whole number of at least 0", value)),
        }
    }

    fn float(&self, key: &str, default: f64) -> Result<f64> {
        match self.keys.get(key) {
            None => Ok(default),
            Some(value) => {
                let number = value.as_f64().ok_or_else(|| self.error(key, "a number", value))?;
                // the architecture has it in f32
                let fits = number.abs() <= f64::from(f32::MAX);
                self.require(fits, key, format!("a number of at most {:e}", f32::MAX), value).map(|()| number)
            }
        }
    }

    fn boolean(&self, key: &str, default: bool) -> Result<bool> {
        match self.keys.get(key) {
            None => Ok(default),
            Some(value) => value.as_bool().ok_or_else(|| self.error(key, "true or false", value)),
        }
    }

    /// Returns weir's window: an absent key is [`WINDOW`] positions, and null is all.
    fn window(&self, key: &str) -> Result<Value> {
        match self.keys.get(key) {
            Some(Value::Null) => Ok("full".into()),
            _ => Ok(json!({ "sliding": { "keys": self.unsigned(key, WINDOW as u64)? } })),
        }
    }

    /// Refuses patches that are not placed by entropies: transformers then makes every id a patch without a word.
    fn check_mode(&self) -> Result<()> {
        let one = |key: &str, expected: &str, value: Value| match self.keys.get(key) {
            Some(found) if *found != value => Err(self.error(key, expected, found)),
            _ => Ok(()),
        };
        one("patching_mode", "\"entropy\", the only mode that weir computes", "entropy".into())?;
        one("patch_in_forward", "true: patches are placed while the text is read", true.into())?;
        one("monotonicity", "false", false.into())?;
        one("patching_threshold_add", "null", Value::Null)?;
        let size = self.keys.get("patch_size");
        self.require(size != Some(&Value::Null), "patch_size", "a number, though it has no influence", "null")?;
        let symbols = self.unsigned("vocab_size", SYMBOLS as u64)?;
        self.require(symbols == SYMBOLS as u64, "vocab_size", format!("{SYMBOLS}: 4 marks and 256 bytes"), symbols)
    }

    /// Reads and checks a sub-configuration, which may be absent; its keys are completed with the defaults.
    fn stack(&self, name: &'static str, defaults: StackDefaults) -> Result<Self> {
        let mut own = self.object(name)?;
        own.check_known(TRANSFORMERS_KEYS, &[STACK_KEYS, IGNORED_KEYS])?;
        let symbols = own.unsigned("vocab_size", SYMBOLS as u64)?;
        own.require(symbols == SYMBOLS as u64, "vocab_size", SYMBOLS.to_string(), symbols)?;
        let activation = own.keys.get("hidden_act").unwrap_or(&Value::Null);
        let is_silu = activation.is_null() || activation == "silu";
        own.require(is_silu, "hidden_act", "\"silu\"", activation)?;
        let dim = own.unsigned("hidden_size", defaults.dim)?;
        let heads = own.unsigned("num_attention_heads", defaults.heads)?;
        let layers = own.unsigned("num_hidden_layers", defaults.layers)?;
        let kv_heads = if own.stated("num_key_value_heads").is_some() {
            own.unsigned("num_key_value_heads", heads)?
        } else {
            heads
        };
        if own.stated("head_dim").is_some() {
            let head_dim = own.unsigned("head_dim", 0)?;
            let expected = format!("hidden_size / num_attention_heads, {dim} / {heads}");
            own.require(head_dim.checked_mul(heads) == Some(dim), "head_dim", expected, head_dim)?;
        }
        let computed = dim.saturating_mul(8) / 3;
        let default = defaults.feed_forward.unwrap_or(computed);
        let stated = match own.keys.get("intermediate_size") {
            Some(Value::Null) if defaults.feed_forward.is_none() => 0,
            _ => own.unsigned("intermediate_size", default)?,
        };
        let feed_forward = if stated == 0 { computed } else { stated };
        let base = own.rotary_base(defaults.rotary_base)?;
        let complete = json!({
            "hidden_size": dim,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "num_hidden_layers": layers,
            "intermediate_size": feed_forward,
            "rope_theta": base,
            "rms_norm_eps": own.float("rms_norm_eps", 1e-5)?,
        });
        if let Value::Object(complete) = complete {
            own.keys.extend(complete);
        }
        Ok(own)
    }

    /// Returns the base of rotary positions: `rope_scaling` replaces `rope_parameters`, and its `rope_theta` precedes the plain key.
    fn rotary_base(&self, default: f64) -> Result<f64> {
        let plain = if self.stated("rope_theta").is_some() { self.float("rope_theta", default)? } else { default };
        let parameters = self.object("rope_parameters")?;
        let scaling = self.object("rope_scaling")?;
        for object in [&parameters, &scaling] {
            object.check_known("rope_type or rope_theta: weir computes no scaled positions", &[ROTARY_KEYS])?;
        }
        let rope = if scaling.keys.is_empty() { parameters } else { scaling };
        for name in ["rope_type", "type"] {
            if let Some(kind) = rope.stated(name).filter(|kind| *kind != "default") {
                return Err(rope.error(name, "\"default\"", kind));
            }
        }
        if rope.stated("rope_theta").is_some() { rope.float("rope_theta", plain) } else { Ok(plain) }
    }

    /// Returns weir's `architecture` from the top level's keys and the completed `stacks`.
    fn architecture(&self, stacks: &[Self; 4], vectors: u64) -> Result<Value> {
        let [patcher, encoder, global, decoder] = stacks;
        let local = self.window("local_attention_window_len")?;
        let stack = |keys: &Self, window: Value| {
            json!({
                "layers": keys.keys["num_hidden_layers"],
                "dim": keys.keys["hidden_size"],
                "heads": keys.keys["num_attention_heads"],
                "kv_heads": keys.keys["num_key_value_heads"],
                "feed_forward": keys.keys["intermediate_size"],
                "rotary_base": keys.keys["rope_theta"],
                "norm_eps": keys.keys["rms_norm_eps"],
                "window": window,
            })
        };
        Ok(json!({
            "patcher": stack(patcher, patcher.window("sliding_window")?),
            "encoder": stack(encoder, local.clone()),
            "global": stack(global, "full".into()),
            "decoder": stack(decoder, local),
            "patch_vectors": vectors,
            "cross_every_layer": decoder.boolean("cross_attn_all_layers", true)?,
            "ngrams": self.ngrams()?,
            "threshold": self.float("patching_threshold", THRESHOLD)?,
            "max_patch": match self.stated("max_patch_length") {
                None => Value::Null,
                Some(_) => self.unsigned("max_patch_length", 0)?.into(),
            },
            "tied": self.boolean("tie_word_embeddings", false)?,
        }))
    }

    /// Returns weir's `ngrams`; null without hash functions.
    fn ngrams(&self) -> Result<Value> {
        let functions = self.unsigned("encoder_hash_byte_group_nb_functions", 1)?;
        if functions == 0 {
            return Ok(Value::Null);
        }
        let sizes = match self.stated("encoder_hash_byte_group_size") {
            None => json!([3, 4, 5, 6, 7, 8]),
            Some(Value::Array(sizes)) if sizes.is_empty() => json!([3, 4, 5, 6, 7, 8]),
            Some(Value::Array(sizes)) if sizes.iter().all(Value::is_u64) => sizes.clone().into(),
            Some(other) => return Err(self.error("encoder_hash_byte_group_size", "a list of whole numbers", other)),
        };
        let rows = self.unsigned("encoder_hash_byte_group_vocab", 500_002)?;
        Ok(json!({ "sizes": sizes, "functions": functions, "rows": rows }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_have_their_official_names() {
        for (name, expected) in [
            ("head.weight", "lm_head.weight"),
            ("patcher.head.weight", "model.patcher.lm_head.weight"),
            ("patcher.norm.weight", "model.patcher.norm.weight"),
            ("encoder.embedding.weight", EMBEDDING),
            ("encoder.cross.query_norm.weight", "model.local_encoder.cross_attn_layers.2.q_norm.weight"),
            ("decoder.cross.7.output.weight", "model.local_decoder.cross_attn_layers.7.o_proj.weight"),
            ("global.24.attention.key.weight", "model.global_transformer.layers.24.self_attn.k_proj.weight"),
            ("global.input.weight", "model.global_transformer.token_embedding_projection.weight"),
            ("decoder.patch.weight", "model.local_decoder.patch_embedding_projection.weight"),
            ("encoder.0.feed_forward.norm.weight", "model.local_encoder.layers.0.post_attention_layernorm.weight"),
            ("ngrams.weight", TABLE),
        ] {
            assert_eq!(official_name(name, 2), expected);
        }
    }
}
