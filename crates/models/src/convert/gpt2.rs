//! Checkpoints of GPT-2 as Hugging Face's `GPT2LMHeadModel` stores them. `config.json` may have a vocabulary in the form of
//! latent segment models; without one, symbols have ids only.

use crate::{
    checkpoint::{
        CONFIG_FILE, Config, WEIGHTS_FILE, Weights, json::parse, read_weights_with_progress, weights::shapes_in,
    },
    convert::converted::{
        Converted, SpecialVocabulary, TIED, activation, check_copy, listed, official_key, read_config, rename_key,
        source_name, transpose,
    },
    family::{TensorSpec, families::blueprint},
    text::TextNormaliser,
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{collections::BTreeMap, path::Path};
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

/// Buffers of a layer that its shape determines: the causal mask, and the masked scores' value.
const BUFFERS: &[&str] = &["attn.bias", "attn.masked_bias"];

/// The keys of `config.json` that shape the model; a missing one has Hugging Face's default.
#[derive(Debug, Deserialize)]
struct Arguments {
    vocab_size: usize,
    vocab: Option<Vec<String>>,
    n_positions: Option<usize>,
    n_embd: Option<usize>,
    n_layer: Option<usize>,
    n_head: Option<usize>,
    n_inner: Option<usize>,
    activation_function: Option<String>,
    layer_norm_epsilon: Option<f64>,
    tie_word_embeddings: Option<bool>,
    scale_attn_weights: Option<bool>,
    #[serde(default)]
    scale_attn_by_inverse_layer_idx: bool,
    #[serde(default)]
    add_cross_attention: bool,
}

pub(super) fn is_gpt2(text: &[u8]) -> bool {
    serde_json::from_slice::<Value>(text).is_ok_and(|config| config["model_type"] == "gpt2")
}

pub(super) fn read(dir: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    let file = dir.join(CONFIG_FILE);
    let text = read_config(&file)?;
    let arguments: Arguments = parse(&text, &file, "")?;
    let config = arguments.config(&text, &file)?;
    let specs = blueprint(&config, &file).map_err(in_official_terms)?.tensors();
    let shapes = shapes_in(dir)?;
    let prefix = if shapes.keys().any(|name| name.starts_with(PREFIX)) { PREFIX } else { "" };
    let mut official: Vec<_> = specs.iter().map(|spec| SourceTensor::from_spec(spec, prefix).spec).collect();
    official.extend(ignored(&shapes, prefix, arguments.layers()));
    let tied = shapes.contains_key(HEAD) && arguments.is_tied();
    if tied {
        official.push(TensorSpec::zeros(HEAD, vec![arguments.vocab_size, arguments.width()]));
    }
    let (mut tensors, _) = read_weights_with_progress(dir, &official, progress)?;
    if tied {
        check_copy(&tensors, HEAD, &format!("{prefix}wte.weight"), TIED, &dir.join(WEIGHTS_FILE))?;
    }
    let weights = Weights::collect(specs, |spec| {
        let SourceTensor { spec: source, transposed } = SourceTensor::from_spec(spec, prefix);
        let numbers = tensors.take(&source.name)?;
        Ok(if transposed { transpose(&numbers, &spec.shape) } else { numbers })
    })?;
    Ok(Converted { config, weights })
}

impl Arguments {
    fn width(&self) -> usize {
        self.n_embd.unwrap_or(768)
    }

    fn layers(&self) -> usize {
        self.n_layer.unwrap_or(12)
    }

    fn is_tied(&self) -> bool {
        self.tie_word_embeddings.unwrap_or(true)
    }

    /// Returns the configuration of these arguments, which are in the file's `text`.
    fn config(&self, text: &[u8], file: &Path) -> Result<Config> {
        let wrong = |key: &str, expected: &str, found: String| Err(Error::checkpoint(file, key, expected, found));
        let switches = [
            ("scale_attn_weights", self.scale_attn_weights.unwrap_or(true), true),
            ("scale_attn_by_inverse_layer_idx", self.scale_attn_by_inverse_layer_idx, false),
            ("add_cross_attention", self.add_cross_attention, false),
        ];
        if let Some((key, found, expected)) = switches.into_iter().find(|(_, found, expected)| found != expected) {
            return wrong(key, &expected.to_string(), found.to_string());
        }
        let dim = self.width();
        let heads = self.n_head.unwrap_or(12);
        if heads == 0 || !dim.is_multiple_of(heads) {
            return wrong("n_head", &format!("a divisor of n_embd, {dim}"), heads.to_string());
        }
        let function = self.activation_function.as_deref().unwrap_or("gelu_new");
        let Some(activation) = activation(function) else {
            return wrong("activation_function", "gelu_new, gelu, relu or silu", format!("{function:?}"));
        };
        let positions = self.n_positions.unwrap_or(1024);
        let architecture = json!({
            "layers": self.layers(),
            "dim": dim,
            "heads": heads,
            "head_dim": dim / heads,
            "feed_forward": self.n_inner.unwrap_or(dim.saturating_mul(4)),
            "activation": activation,
            "layer_norm_eps": self.layer_norm_epsilon.unwrap_or(1e-5),
            "position": { "learned": { "positions": positions } },
            "window": "full",
            "sub_norms": false,
            "scale_embedding": false,
            "tied": self.is_tied(),
        });
        let has_specials = serde_json::from_slice::<Value>(text).is_ok_and(|config| config.get("vocab_type").is_some());
        let symbols = if has_specials {
            parse::<SpecialVocabulary>(text, file, "")?.config(file)?
        } else {
            listed(self.vocab.as_deref(), self.vocab_size, file)?
        };
        Config::new("decoder", symbols, TextNormaliser::None, positions, &architecture, file).map_err(in_official_terms)
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

/// Returns the buffers that the file has. Older versions of transformers stored them as numbers, bytes or booleans.
fn ignored(shapes: &BTreeMap<String, Vec<usize>>, prefix: &str, layers: usize) -> Vec<TensorSpec> {
    let names = (0..layers).flat_map(|layer| BUFFERS.iter().map(move |name| format!("{prefix}h.{layer}.{name}")));
    names.filter_map(|name| Some(TensorSpec::unused(&*name, shapes.get(&name)?.clone()))).collect()
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
