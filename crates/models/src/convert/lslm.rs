//! Checkpoints of Latent Segment Language Models. The authors released no code, so the source is the layout of the paper's parts
//! in Hugging Face's T5: a folder with `config.json` (`model_type` "lslm") and `model.safetensors`. The paper's baseline is
//! Hugging Face's GPT-2 (`model_type` "gpt2") with the same vocabulary.

use crate::checkpoint::files::{UniqueMap, parse};
use crate::checkpoint::{CONFIG_FILE, Config, TensorSpec, Weights, read_weights_with_progress};
use crate::convert::converted::{Converted, SpecialVocabulary, official_key, read_config, rename_key, source_name};
use crate::convert::gpt2;
use crate::family::families::blueprint;
use crate::family::t5_layers::transformers_name;
use crate::text::TextNormaliser;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Value, json};
use std::path::Path;
use weir_kernels::error::{Error, Result};

/// Complete names.
const MODEL: &[(&str, &str)] = &[
    ("embedding", "shared"),
    ("boundary.hidden", "boundary_predictor.wi"),
    ("boundary.output", "boundary_predictor.wo"),
    ("head", "lm_head"),
];

const STACKS: &[(&str, &str)] = &[("token", "token_encoder"), ("context", "context_encoder"), ("decoder", "decoder")];

/// Names within a stack, except those in a layer.
const STACK: &[(&str, &str)] = &[
    ("embedding", "embed_tokens"),
    ("distance_bias", "block.0.layer.0.SelfAttention.relative_attention_bias"),
    ("norm", "final_layer_norm"),
    ("projection", "input_projection"),
];

/// Reads a folder in that layout, or GPT-2's. Fails if arguments or tensors are missing, superfluous or out of bounds.
pub(super) fn read(dir: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    let file = dir.join(CONFIG_FILE);
    let text = read_config(&file)?;
    if serde_json::from_slice::<Value>(&text).is_ok_and(|config| config["model_type"] == "gpt2") {
        return gpt2::read(dir, progress);
    }
    let UniqueMap(keys): UniqueMap<IgnoredAny> = parse(&text, &file, "")?;
    check_keys(keys.keys().map(String::as_str), &file)?;
    let arguments: Arguments = parse(&text, &file, "")?;
    let vocabulary: SpecialVocabulary = parse(&text, &file, "")?;
    let config = arguments.config(&vocabulary, &file)?;
    let specs = blueprint(&config, &file).map_err(in_official_terms)?.tensors();
    let official: Vec<_> = specs.iter().map(official_tensor).collect();
    let (mut tensors, _) = read_weights_with_progress(dir, &official, progress)?;
    Ok(Converted { config, weights: Weights::collect(specs, |spec| tensors.take(&official_tensor(spec).name))? })
}

/// Returns the tensor under the source's name; under its own if there is none, so that it is reported as missing.
fn official_tensor(spec: &TensorSpec) -> TensorSpec {
    let rename = || {
        let (name, kind) = spec.name.rsplit_once('.')?;
        let in_stack = || {
            let (stack, part) = name.split_once('.')?;
            let official = source_name(STACKS, stack)?;
            if let Some(part) = source_name(STACK, part) {
                return Some(format!("{official}.{part}"));
            }
            let (index, part) = part.split_once('.')?;
            Some(format!("{official}.block.{index}.{}", transformers_name(part, stack == "decoder", false)))
        };
        let name = source_name(MODEL, name).map(str::to_owned).or_else(in_stack)?;
        Some(format!("{name}.{kind}"))
    };
    TensorSpec { name: rename().unwrap_or_else(|| spec.name.clone()), ..spec.clone() }
}

/// The paper's training window in symbols (English; App. A), for which there is no key.
const TRAINING_LENGTH: usize = 150;

/// Keys of `config.json` that do not change the outputs: Hugging Face's own, settings of training, and the file's origin.
const IGNORED: &str = "_name_or_path, architectures, auto_map, dropout_rate, dtype, golden_info, initializer_factor, \
    torch_dtype, transformers_version, use_cache";

/// Keys that [`Arguments`] and [`SpecialVocabulary`] read.
const READ: &str = "model_type, token_encoder, context_encoder, decoder, feed_forward_proj, layer_norm_epsilon, \
    boundary_predictor, pooling, width_matching, share_embeddings, tie_word_embeddings, generation_boundary_source, \
    vocab_type, vocab_size, vocab, byte_offset, bos_token_id, eos_token_id, segment_bos_token_id, next_token_id, \
    unk_token_id";

/// Rejects an unknown key, which would otherwise be silently ignored. The error names the first one.
fn check_keys<'a>(mut keys: impl Iterator<Item = &'a str>, file: &Path) -> Result<()> {
    match keys.find(|key| READ.split(", ").chain(IGNORED.split(", ")).all(|known| known != *key)) {
        None => Ok(()),
        Some(key) => {
            let expected = format!("one of {READ}; or, ignored, {IGNORED}");
            Err(Error::checkpoint(file, key, expected, "an unknown key"))
        }
    }
}

#[derive(Debug, Deserialize)]
struct Arguments {
    model_type: String,
    token_encoder: StackArguments,
    context_encoder: StackArguments,
    decoder: StackArguments,
    feed_forward_proj: Option<String>,
    layer_norm_epsilon: Option<f64>,
    boundary_predictor: PredictorArguments,
    pooling: PoolingArguments,
    width_matching: Option<WidthMatching>,
    #[serde(default)]
    share_embeddings: bool,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(default)]
    generation_boundary_source: BoundarySource,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StackArguments {
    num_layers: usize,
    d_model: usize,
    d_ff: usize,
    num_heads: usize,
    d_kv: Option<usize>,
    relative_attention_num_buckets: Option<usize>,
    relative_attention_max_distance: Option<usize>,
    #[serde(default)]
    relative_attention_bidirectional: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PredictorArguments {
    d_ff: Option<usize>,
    threshold: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
enum PoolingArguments {
    Dp {},
    Hops { n_hops: usize },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WidthMatching {
    None,
    Projection,
    FirstLayer,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum BoundarySource {
    #[default]
    Nxt,
    Predictor,
}

impl Arguments {
    /// Returns the configuration of arguments and vocabulary; errors name `file`. Fails if a key is out of bounds or missing.
    fn config(&self, vocabulary: &SpecialVocabulary, file: &Path) -> Result<Config> {
        let wrong = |key: &str, expected: &str, found: String| Err(Error::checkpoint(file, key, expected, found));
        if self.model_type != "lslm" {
            return wrong("model_type", "\"lslm\"", format!("{:?}", self.model_type));
        }
        if let Some(found) = self.feed_forward_proj.as_ref().filter(|found| *found != "relu") {
            return wrong("feed_forward_proj", "\"relu\", without gates", format!("{found:?}"));
        }
        let pooling = match self.pooling {
            PoolingArguments::Dp {} => json!("mean"),
            PoolingArguments::Hops { n_hops } => json!({ "hops": n_hops }),
        };
        let widths = match self.width_matching {
            Some(WidthMatching::None) => "equal",
            Some(WidthMatching::Projection) => "projection",
            Some(WidthMatching::FirstLayer) => "first-layer",
            None if self.token_encoder.d_model == self.context_encoder.d_model => "equal",
            None => "projection",
        };
        let driver = if self.generation_boundary_source == BoundarySource::Nxt { "nxt" } else { "predictor" };
        let hidden = self.boundary_predictor.d_ff.unwrap_or(self.token_encoder.d_ff);
        let threshold = self.boundary_predictor.threshold.unwrap_or(0.5);
        let architecture = json!({
            "token": self.token_encoder.architecture("token_encoder", file)?,
            "context": self.context_encoder.architecture("context_encoder", file)?,
            "decoder": self.decoder.architecture("decoder", file)?,
            "norm_eps": self.layer_norm_epsilon.unwrap_or(1e-6),
            "pooling": pooling,
            "boundaries": { "kind": "learned", "hidden": hidden, "threshold": threshold },
            "widths": widths,
            "shared_embedding": self.share_embeddings,
            "tied_head": self.tie_word_embeddings,
            "driver": driver,
        });
        Config::new("lslm", vocabulary.config(file)?, TextNormaliser::None, TRAINING_LENGTH, &architecture, file)
            .map_err(in_official_terms)
    }
}

impl StackArguments {
    fn architecture(&self, key: &str, file: &Path) -> Result<Value> {
        let head_dim = match self.d_kv {
            Some(width) => width,
            None if self.num_heads > 0 && self.d_model.is_multiple_of(self.num_heads) => self.d_model / self.num_heads,
            None => {
                let found = format!("{} / {}", self.d_model, self.num_heads);
                let expected = "a d_kv, where num_heads does not divide d_model";
                return Err(Error::checkpoint(file, format!("{key}.d_kv"), expected, found));
            }
        };
        Ok(json!({
            "layers": self.num_layers,
            "dim": self.d_model,
            "heads": self.num_heads,
            "head_dim": head_dim,
            "feed_forward": self.d_ff,
            "buckets": self.relative_attention_num_buckets.unwrap_or(32),
            "max_distance": self.relative_attention_max_distance.unwrap_or(128),
            "bidirectional_buckets": self.relative_attention_bidirectional,
        }))
    }
}

/// Replaces the values of `widths` in a message by the source's.
fn official_widths(message: &str) -> String {
    message.replacen("equal", "none", 1).replace("first-layer", "first_layer")
}

fn in_official_terms(error: Error) -> Error {
    const KEYS: &[(&str, &str)] = &[
        ("architecture.norm_eps", "layer_norm_epsilon"),
        ("architecture.boundaries.hidden", "boundary_predictor.d_ff"),
        ("architecture.boundaries.threshold", "boundary_predictor.threshold"),
        ("architecture.widths", "width_matching"),
        ("architecture.shared_embedding", "share_embeddings"),
    ];
    const SIZES: &[(&str, &str)] = &[
        ("layers", "num_layers"),
        ("dim", "d_model"),
        ("heads", "num_heads"),
        ("head_dim", "d_kv"),
        ("feed_forward", "d_ff"),
        ("buckets", "relative_attention_num_buckets"),
        ("max_distance", "relative_attention_max_distance"),
    ];
    let in_stack = |key: &str| {
        let (stack, size) = key.strip_prefix("architecture.")?.split_once('.')?;
        Some(format!("{}.{}", source_name(STACKS, stack)?, source_name(SIZES, size)?))
    };
    match rename_key(error, KEYS, |key| in_stack(key).unwrap_or_else(|| official_key(key))) {
        Error::Checkpoint { file, key, expected, found } if key == "width_matching" => {
            Error::Checkpoint { file, key, expected: official_widths(&expected), found: official_widths(&found) }
        }
        other => other,
    }
}
