//! GPT-2 as Hugging Face's `GPT2LMHeadModel` keeps it: a folder with `config.json` and `model.safetensors` (or shards), its names
//! with or without `transformer.`. A vocabulary may stand in `config.json` as latent segment models have it, marks included;
//! without one symbols have ids only.

use super::{Converted, vocabulary};
use crate::{
    error::{Error, Result},
    family::{
        Init, TensorSpec,
        checkpoint::{
            CONFIG_FILE, Config, Dtype, Tensor, WEIGHTS_FILE, Weights,
            json::{parse, read_limited},
            read_weights_telling,
            reader::shapes_in,
        },
        load::blueprint,
    },
    text::TextNormaliser,
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{collections::BTreeMap, path::Path};

const MAX_CONFIG_BYTES: u64 = 16 << 20;
/// Before every name but the head's.
const PREFIX: &str = "transformer.";
const HEAD: &str = "lm_head.weight";

/// Weir's name, theirs, and whether theirs is the transpose: their products have (inputs, outputs).
const MODEL: &[(&str, &str, bool)] = &[
    ("embedding.weight", "wte.weight", false),
    ("position.table", "wpe.weight", false),
    ("norm.weight", "ln_f.weight", false),
    ("norm.bias", "ln_f.bias", false),
    ("head.weight", HEAD, false),
];

/// The same within a layer.
const LAYER: &[(&str, &str, bool)] = &[
    ("attention.norm.weight", "ln_1.weight", false),
    ("attention.norm.bias", "ln_1.bias", false),
    ("attention.qkv.weight", "attn.c_attn.weight", true),
    ("attention.qkv.bias", "attn.c_attn.bias", false),
    ("attention.output.weight", "attn.c_proj.weight", true),
    ("attention.output.bias", "attn.c_proj.bias", false),
    ("feed_forward.norm.weight", "ln_2.weight", false),
    ("feed_forward.norm.bias", "ln_2.bias", false),
    ("feed_forward.up.weight", "mlp.c_fc.weight", true),
    ("feed_forward.up.bias", "mlp.c_fc.bias", false),
    ("feed_forward.down.weight", "mlp.c_proj.weight", true),
    ("feed_forward.down.bias", "mlp.c_proj.bias", false),
];

/// Buffers of a layer that follow from its shape: the causal mask, and what is masked with.
const BUFFERS: &[&str] = &["attn.bias", "attn.masked_bias"];

/// Those keys of `config.json` that shape the model, with Hugging Face's defaults.
#[derive(Debug, Deserialize)]
struct Arguments {
    vocab_size: usize,
    vocab: Option<Vec<String>>,
    #[serde(default = "positions")]
    n_positions: usize,
    #[serde(default = "width")]
    n_embd: usize,
    #[serde(default = "twelve")]
    n_layer: usize,
    #[serde(default = "twelve")]
    n_head: usize,
    n_inner: Option<usize>,
    #[serde(default = "activation")]
    activation_function: String,
    #[serde(default = "epsilon")]
    layer_norm_epsilon: f64,
    #[serde(default = "yes")]
    tie_word_embeddings: bool,
    #[serde(default = "yes")]
    scale_attn_weights: bool,
    #[serde(default)]
    scale_attn_by_inverse_layer_idx: bool,
    #[serde(default)]
    add_cross_attention: bool,
}

fn positions() -> usize {
    1024
}

fn width() -> usize {
    768
}

fn twelve() -> usize {
    12
}

fn activation() -> String {
    "gelu_new".into()
}

fn epsilon() -> f64 {
    1e-5
}

fn yes() -> bool {
    true
}

/// Whether a `config.json` is a GPT-2's.
pub(super) fn is_meant(text: &[u8]) -> bool {
    serde_json::from_slice::<Value>(text).is_ok_and(|config| config["model_type"] == "gpt2")
}

/// Reads such a folder.
///
/// # Errors
/// Arguments that are missing, out of bounds or stand for another architecture; tensors that are missing, superfluous or of
/// another shape.
pub fn read(dir: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    let file = dir.join(CONFIG_FILE);
    let text = read_limited(&file, MAX_CONFIG_BYTES)?;
    let arguments: Arguments = parse(&text, &file, "")?;
    let config = arguments.config(&text, &file)?;
    let specs = blueprint(&config, &file).map_err(in_official_terms)?.tensors();
    let shapes = shapes_in(dir)?;
    let prefix = if shapes.keys().any(|name| name.starts_with(PREFIX)) { PREFIX } else { "" };
    let mut official: Vec<_> = specs.iter().map(|spec| Official::of(spec, prefix).spec).collect();
    official.extend(ignored(&shapes, prefix, arguments.n_layer));
    let tied = shapes.contains_key(HEAD) && arguments.tie_word_embeddings;
    if tied {
        official.push(like(HEAD, vec![arguments.vocab_size, arguments.n_embd]));
    }
    let (mut theirs, _) = read_weights_telling(dir, &official, progress)?;
    if tied && theirs.take(HEAD)? != theirs.get(&format!("{prefix}wte.weight")).map_or(&[][..], |table| &table.numbers)
    {
        let expected = format!("the numbers of {prefix}wte.weight, to which it is tied");
        return Err(Error::checkpoint(dir.join(WEIGHTS_FILE), HEAD, expected, "others"));
    }
    let mut weights = Weights::default();
    for spec in specs {
        let Official { spec: official, transposed } = Official::of(&spec, prefix);
        let numbers = theirs.take(&official.name)?;
        let numbers = if transposed { transpose(&numbers, &spec.shape) } else { numbers };
        weights.insert(spec.name, Tensor { dtype: Dtype::F32, shape: spec.shape, numbers });
    }
    Ok(Converted { config, weights })
}

impl Arguments {
    /// The configuration that these stand for, in the file's `text`.
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
        if self.n_head == 0 || !self.n_embd.is_multiple_of(self.n_head) {
            return wrong("n_head", &format!("a divisor of n_embd, {}", self.n_embd), self.n_head.to_string());
        }
        let activation = match self.activation_function.as_str() {
            "gelu_new" | "gelu_pytorch_tanh" => "gelu-tanh",
            "silu" | "swish" => "silu",
            "gelu" => "gelu",
            "relu" => "relu",
            other => return wrong("activation_function", "gelu_new, gelu, relu or silu", format!("{other:?}")),
        };
        let architecture = json!({
            "layers": self.n_layer,
            "dim": self.n_embd,
            "heads": self.n_head,
            "head_dim": self.n_embd / self.n_head,
            "feed_forward": self.n_inner.unwrap_or(self.n_embd.saturating_mul(4)),
            "activation": activation,
            "layer_norm_eps": self.layer_norm_epsilon,
            "position": { "learned": { "positions": self.n_positions } },
            "window": "full",
            "sub_norms": false,
            "scale_embedding": false,
            "tied": self.tie_word_embeddings,
        });
        let marked = serde_json::from_slice::<Value>(text).is_ok_and(|config| config.get("vocab_type").is_some());
        let symbols = if marked {
            parse::<vocabulary::Marked>(text, file, "")?.config(file)?
        } else {
            vocabulary::listed(self.vocab.as_deref(), self.vocab_size, file)?
        };
        Config::new("decoder", (symbols, TextNormaliser::None), self.n_positions, &architecture, file)
            .map_err(in_official_terms)
    }
}

/// One of their tensors.
struct Official {
    spec: TensorSpec,
    transposed: bool,
}

impl Official {
    /// The one that one of weir's comes from; under its own name if there is none, so that it is reported as missing.
    fn of(spec: &TensorSpec, prefix: &str) -> Self {
        let found = |table: &[(&str, &'static str, bool)], name: &str| {
            table.iter().find(|(ours, ..)| *ours == name).map(|&(_, theirs, transposed)| (theirs, transposed))
        };
        let in_layer = || {
            let (index, part) = spec.name.strip_prefix("layers.")?.split_once('.')?;
            let (theirs, transposed) = found(LAYER, part)?;
            Some((format!("{prefix}h.{index}.{theirs}"), transposed))
        };
        let whole = |(theirs, transposed): (&str, bool)| {
            (if theirs == HEAD { theirs.to_owned() } else { format!("{prefix}{theirs}") }, transposed)
        };
        let known = found(MODEL, &spec.name).map(whole).or_else(in_layer);
        let (name, transposed) = known.unwrap_or_else(|| (spec.name.clone(), false));
        let mut shape = spec.shape.clone();
        if transposed {
            shape.reverse();
        }
        Self { spec: like(&name, shape), transposed }
    }
}

/// The buffers that are there.
fn ignored(shapes: &BTreeMap<String, Vec<usize>>, prefix: &str, layers: usize) -> Vec<TensorSpec> {
    let names = (0..layers).flat_map(|layer| BUFFERS.iter().map(move |name| format!("{prefix}h.{layer}.{name}")));
    names.filter_map(|name| shapes.get(&name).map(|shape| like(&name, shape.clone()))).collect()
}

fn like(name: &str, shape: Vec<usize>) -> TensorSpec {
    TensorSpec { name: name.into(), shape, init: Init::Normal(0.0, 0.0), trained: true }
}

/// (outputs, inputs) of (inputs, outputs).
fn transpose(numbers: &[f32], shape: &[usize]) -> Vec<f32> {
    let (outputs, inputs) = (shape.first().copied().unwrap_or(0), shape.get(1).copied().unwrap_or(0));
    (0..outputs).flat_map(|o| (0..inputs).map(move |i| numbers[i * outputs + o])).collect()
}

/// Puts an error about a key of weir's configuration in terms of theirs.
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
    match error {
        Error::Checkpoint { file, key, expected, found } => {
            let official = KEYS.iter().find(|(ours, _)| *ours == key).map(|(_, theirs)| (*theirs).to_owned());
            let key = official.unwrap_or_else(|| vocabulary::official_key(&key));
            Error::Checkpoint { file, key, expected, found }
        }
        other => other,
    }
}
