//! Checkpoints of GPT-2 as Hugging Face's `GPT2LMHeadModel` stores them. `config.json` may have a vocabulary in the form of
//! latent segment models; without one, symbols have ids only.

use crate::checkpoint::files::parse;
use crate::checkpoint::hugging_face::completed;
use crate::checkpoint::weights::{UnusedTensors, read_weights_with, shapes_in};
use crate::checkpoint::{CONFIG_FILE, Config, WEIGHTS_FILE, Weights};
use crate::convert::converted::{
    Converted, SpecialVocabulary, TIED, activation, check_copy, listed, official_key, read_config, rename_key,
    source_name, transpose,
};
use crate::family::TensorSpec;
use crate::family::families::blueprint;
use crate::text::TextNormaliser;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::Path;
use weir_kernels::error::{Error, Result};

/// Prefix of every name but the head's.
const PREFIX: &str = "transformer.";

const HEAD: &str = "lm_head.weight";

const MODEL: &[(&str, &str)] = &[
    ("embedding.weight", "wte.weight"),
    ("position.table", "wpe.weight"),
    ("norm.weight", "ln_f.weight"),
    ("norm.bias", "ln_f.bias"),
    ("head.weight", HEAD),
];

/// Names within a layer, without `.weight` or `.bias`; true if the source's weight is the transpose, (inputs, outputs).
const LAYER: &[(&str, &str, bool)] = &[
    ("attention.norm", "ln_1", false),
    ("attention.qkv", "attn.c_attn", true),
    ("attention.output", "attn.c_proj", true),
    ("feed_forward.norm", "ln_2", false),
    ("feed_forward.up", "mlp.c_fc", true),
    ("feed_forward.down", "mlp.c_proj", true),
];

/// The keys of `config.json` that shape the model.
#[derive(Debug, Deserialize)]
struct Arguments {
    vocab_size: usize,
    vocab: Option<Vec<String>>,
    n_positions: usize,
    n_embd: usize,
    n_layer: usize,
    n_head: usize,
    n_inner: Option<usize>,
    activation_function: String,
    layer_norm_epsilon: f64,
    tie_word_embeddings: bool,
    scale_attn_weights: bool,
    scale_attn_by_inverse_layer_idx: bool,
    add_cross_attention: bool,
}

pub(super) fn read(dir: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    let file = dir.join(CONFIG_FILE);
    let completed = completed(&read_config(&file)?, &file)?;
    let text = completed.get().as_bytes();
    let arguments: Arguments = parse(text, &file, "")?;
    let config = arguments.config(text, &file)?;
    let specs = blueprint(&config, &file).map_err(in_official_terms)?.tensors();
    let shapes = shapes_in(dir)?;
    let prefix = if shapes.keys().any(|name| name.starts_with(PREFIX)) { PREFIX } else { "" };
    let mut official: Vec<_> = specs.iter().map(|spec| SourceTensor::from_spec(spec, prefix).spec).collect();
    let tied = shapes.contains_key(HEAD) && arguments.tie_word_embeddings;
    let embedding = format!("{prefix}wte.weight");
    if let Some(spec) = official.iter_mut().find(|spec| tied && spec.name == embedding) {
        if shapes.contains_key(&embedding) {
            let head = TensorSpec { name: HEAD.into(), ..spec.clone() };
            official.push(head);
        } else {
            spec.tied_to = Some(HEAD);
        }
    }
    let (mut tensors, _) = read_weights_with(dir, &official, UnusedTensors::Ignored, progress)?;
    if tied {
        check_copy(&tensors, HEAD, &embedding, TIED, &dir.join(WEIGHTS_FILE))?;
    }
    let weights = Weights::collect(specs, |spec| {
        let SourceTensor { spec: source, transposed } = SourceTensor::from_spec(spec, prefix);
        let numbers = tensors.take(&source.name)?;
        Ok(if transposed { transpose(&numbers, &spec.shape) } else { numbers })
    })?;
    Ok(Converted { config, weights })
}

impl Arguments {
    /// Returns the configuration of these arguments, which are in the file's `text`.
    fn config(&self, text: &[u8], file: &Path) -> Result<Config> {
        let wrong = |key: &str, expected: &str, found: String| Err(Error::checkpoint(file, key, expected, found));
        let switches = [
            ("scale_attn_weights", self.scale_attn_weights, true),
            ("scale_attn_by_inverse_layer_idx", self.scale_attn_by_inverse_layer_idx, false),
            ("add_cross_attention", self.add_cross_attention, false),
        ];
        if let Some((key, found, expected)) = switches.into_iter().find(|(_, found, expected)| found != expected) {
            return wrong(key, &expected.to_string(), found.to_string());
        }
        let dim = self.n_embd;
        let heads = self.n_head;
        if heads == 0 || !dim.is_multiple_of(heads) {
            return wrong("n_head", &format!("a divisor of n_embd, {dim}"), heads.to_string());
        }
        let function = self.activation_function.as_str();
        let Some(activation) = activation(function) else {
            return wrong("activation_function", "gelu_new, gelu, relu or silu", format!("{function:?}"));
        };
        let architecture = json!({
            "layers": self.n_layer,
            "dim": dim,
            "heads": heads,
            "head_dim": dim / heads,
            "feed_forward": self.n_inner.unwrap_or(dim.saturating_mul(4)),
            "activation": activation,
            "layer_norm_eps": self.layer_norm_epsilon,
            "position": { "learned": { "positions": self.n_positions } },
            "window": "full",
            "sub_norms": false,
            "scale_embedding": false,
            "tied": self.tie_word_embeddings,
        });
        let has_specials = serde_json::from_slice::<Value>(text).is_ok_and(|config| config.get("vocab_type").is_some());
        let symbols = if has_specials {
            parse::<SpecialVocabulary>(text, file, "")?.config(file)?
        } else {
            listed(self.vocab.as_deref(), self.vocab_size, file)?
        };
        Config::new("decoder", symbols, TextNormaliser::None, self.n_positions, &architecture, file)
            .map_err(in_official_terms)
    }
}

struct SourceTensor {
    spec: TensorSpec,
    transposed: bool,
}

impl SourceTensor {
    /// Returns the source of one of weir's tensors; under its own name if there is none, so that it is reported as missing.
    fn from_spec(spec: &TensorSpec, prefix: &str) -> Self {
        let in_layer = || {
            let (index, part) = spec.name.strip_prefix("layers.")?.split_once('.')?;
            let (part, kind) = part.rsplit_once('.')?;
            let (_, source, transposed) = LAYER.iter().find(|(weir, ..)| *weir == part)?;
            Some((format!("{prefix}h.{index}.{source}.{kind}"), *transposed && kind == "weight"))
        };
        let prefixed =
            |source: &str| (if source == HEAD { source.to_owned() } else { format!("{prefix}{source}") }, false);
        let known = source_name(MODEL, &spec.name).map(prefixed).or_else(in_layer);
        let (name, transposed) = known.unwrap_or_else(|| (spec.name.clone(), false));
        let mut shape = spec.shape.clone();
        if transposed {
            shape.reverse();
        }
        Self { spec: TensorSpec::zeros(name, shape), transposed }
    }
}

fn in_official_terms(error: Error) -> Error {
    const KEYS: &[(&str, &str)] = &[
        ("architecture.layers", "n_layer"),
        ("architecture.dim", "n_embd"),
        ("architecture.heads", "n_head"),
        ("architecture.head_dim", "n_embd / n_head"),
        ("architecture.feed_forward", "n_inner"),
        ("architecture.layer_norm_eps", "layer_norm_epsilon"),
        ("architecture.position", "n_positions"),
        ("architecture.position.learned.positions", "n_positions"),
        ("training_length", "n_positions"),
    ];
    rename_key(error, KEYS, official_key)
}
