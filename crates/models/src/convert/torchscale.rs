//! Checkpoints of torchscale's decoder (microsoft/torchscale at commit 4d1e0e8, and its fork with blockwise causal attention,
//! sunyt32/torchscale at 4ad9dfd): the `.pt` that training writes, or a folder with arguments and `model.safetensors`. Arguments
//! have the code's own names (`decoder_embed_dim` …) or the names in `arguments`. xPos's scales are compared, not stored.

use crate::checkpoint::files::parse;
use crate::checkpoint::weights::shapes_in;
use crate::checkpoint::{CONFIG_FILE, Config, Tensor, WEIGHTS_FILE, Weights, read_weights_with_progress};
use crate::convert::converted::{
    Converted, TIED, check_copy, listed, official_key, read_config, rename_key, source_name,
};
use crate::convert::pickle::PickleValue;
use crate::convert::torch::{SourceForm, TorchFile, TorchTensors, items, plain};
use crate::family::families::blueprint;
use crate::family::{Init, TensorSpec};
use crate::nn::position::zeta;
use crate::text::TextNormaliser;
use serde::Deserialize;
use serde_json::{Value as Json, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use weir_kernels::error::{Error, Result};

/// Largest difference of a scale from the computed one: the official code computes it in f32.
const SCALE_TOLERANCE: f32 = 1e-5;

/// Keys of a training checkpoint's arguments: the configuration of fairseq, and of its older versions.
const ARGUMENTS: &[&[&str]] = &[&["cfg", "model"], &["args"], &["cfg"], &["config"]];

const TENSORS: &[&str] = &["model", "state_dict", "model_state_dict"];

/// Reads an official checkpoint. Fails if arguments or tensors are missing, superfluous, out of bounds, or contradict others.
pub(super) fn read(from: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    match SourceForm::detect(from)? {
        SourceForm::Folder(dir) => {
            let file = dir.join(CONFIG_FILE);
            let arguments: Json = parse(&read_config(&file)?, &file, "")?;
            let shapes = shapes_in(&dir)?;
            let arguments = read_arguments(&arguments, &shapes, &file)?;
            let read = &mut |specs: Vec<TensorSpec>| Ok(read_weights_with_progress(&dir, &specs, progress)?.0);
            convert(arguments, shapes, &file, &dir.join(WEIGHTS_FILE), read)
        }
        SourceForm::Training(file) => {
            let mut torch = TorchFile::open(&file)?;
            let arguments = training_arguments(&torch, &file)?;
            let is_present = |key: &&&str| torch.pickle.item(&torch.pickle.root, key).is_some();
            let key = TENSORS.iter().find(is_present).unwrap_or(&TENSORS[0]);
            let tensors = TorchTensors::find(&torch, key, &file)?;
            let shapes: Shapes =
                tensors.all.iter().map(|(name, tensor)| (name.clone(), tensor.shape.clone())).collect();
            let arguments = read_arguments(&arguments, &shapes, &file)?;
            let read = &mut |specs| tensors.read(&mut torch, specs, progress);
            convert(arguments, shapes, &file, &file, read)
        }
    }
}

fn training_arguments(torch: &TorchFile, file: &Path) -> Result<Json> {
    let pickle = &torch.pickle;
    let within = |path: &&[&str]| {
        let inside = |value: &PickleValue, key: &&str| {
            let found = items(pickle, value)?.iter().rev();
            found.clone().find(|(name, _)| *name == PickleValue::Text((**key).into())).map(|(_, value)| value.clone())
        };
        let value = path.iter().try_fold(pickle.root.clone(), |value, key| inside(&value, key))?;
        items(pickle, &value).map(|items| Json::Object(plain(pickle, items)))
    };
    let expected = "the arguments of the model, in a dict or Namespace";
    ARGUMENTS.iter().find_map(within).ok_or_else(|| Error::checkpoint(file, "cfg.model", expected, "nothing"))
}

/// Converts a checkpoint; errors name the arguments' file and the tensors' file.
fn convert(
    mut arguments: Arguments,
    shapes: Shapes,
    file: &Path,
    weights_file: &Path,
    read: &mut dyn FnMut(Vec<TensorSpec>) -> Result<Weights>,
) -> Result<Converted> {
    let config = |arguments: &Arguments| arguments.config(file).map_err(|error| in_own_names(arguments, error));
    let specs = blueprint(&config(&arguments)?, file)
        .map_err(|error| in_own_names(&arguments, in_official_terms(error)))?
        .tensors();
    let map = TensorMap::new(&shapes.into_keys().collect(), &specs, &arguments);
    let mut official = read(map.official())?;
    arguments.apply_scales(map.scales.first().and_then(|name| official.get(name)).map(Tensor::numbers).as_deref());
    check_scales(&map, &official, &arguments, weights_file)?;
    if let Some(name) = &map.tied_head {
        check_copy(&official, name, &map.embedding, TIED, weights_file)?;
    }
    let assemble = |spec: &TensorSpec| assemble(spec, map.sources(&spec.name), &mut official, &arguments);
    let weights = Weights::collect(specs, assemble)?;
    Ok(Converted { config: config(&arguments)?, weights })
}

fn assemble(
    spec: &TensorSpec,
    parts: Vec<TensorSource>,
    official: &mut Weights,
    arguments: &Arguments,
) -> Result<Vec<f32>> {
    let mut numbers = Vec::new();
    for part in parts {
        match part {
            TensorSource::Complete(name) => numbers.append(&mut official.take(&name)?),
            TensorSource::Rows { name, from, count } => {
                let all = official.take(&name)?;
                let width = spec.shape.iter().skip(1).product::<usize>();
                numbers.extend_from_slice(all.get(from * width..(from + count) * width).unwrap_or_default());
            }
            TensorSource::Derived => numbers = arguments.derived(&spec.name, spec),
        }
    }
    if numbers.len() != spec.shape.iter().product::<usize>() {
        return Err(Error::Internal(format!("{} was assembled from {} numbers", spec.name, numbers.len())));
    }
    Ok(numbers)
}

/// Checks that xPos's scales are those that weir computes.
fn check_scales(map: &TensorMap, official: &Weights, arguments: &Arguments, file: &Path) -> Result<()> {
    let expected = arguments.scales();
    for name in &map.scales {
        let found = official.get(name).map_or_else(Default::default, Tensor::numbers);
        if let Some(index) = found.iter().zip(&expected).position(|(a, b)| (a - b).abs() > SCALE_TOLERANCE) {
            let expected = format!("{} at index {index}: position is {}", expected[index], arguments.position);
            return Err(Error::checkpoint(file, name.as_str(), expected, found[index].to_string()));
        }
    }
    Ok(())
}

const LAYER_NORM_EPS: f64 = 1e-5;

/// The arguments that shape the model.
#[derive(Debug, Default, Deserialize)]
struct Arguments {
    vocab_size: usize,
    d_model: usize,
    heads: usize,
    ffn_dim: usize,
    layers: usize,
    train_length: usize,
    position: String,
    /// Two blocks; −1: no window.
    #[serde(default = "none")]
    block_size: i64,
    /// Keys of a sliding window.
    window: Option<usize>,
    /// Description of the mask; "sliding" means the fork's incremental decoding, anything else its blockwise attention.
    mask: Option<String>,
    #[serde(default = "scale_base")]
    xpos_scale_base: f64,
    subln: bool,
    activation: String,
    #[serde(default)]
    scale_embedding: bool,
    #[serde(default)]
    tied: bool,
    layer_norm_eps: Option<f64>,
    gamma: Option<f64>,
    rotary_base: Option<f64>,
    rel_pos_buckets: Option<usize>,
    max_rel_pos: Option<usize>,
    max_positions: Option<usize>,
    alibi_slopes: Option<Vec<f32>>,
    /// The symbols, one character each.
    vocab: Option<Vec<String>>,
    /// True if the arguments have the code's own names: then only xPos's scales distinguish xPos from rotary positions.
    #[serde(skip)]
    own_names: bool,
}

fn none() -> i64 {
    -1
}

fn scale_base() -> f64 {
    512.0
}

impl Arguments {
    /// Switches to rotary positions if xPos's scales are all ones, which only rotate.
    fn apply_scales(&mut self, scales: Option<&[f32]>) {
        if self.own_names && scales.is_some_and(|scales| scales.iter().all(|&scale| scale == 1.0)) {
            self.position = "rope".into();
        }
    }

    fn config(&self, file: &Path) -> Result<Config> {
        let wrong = |key: &str, expected: String, found: String| Err(Error::checkpoint(file, key, expected, found));
        if self.heads == 0 || !self.d_model.is_multiple_of(self.heads) {
            return wrong("heads", format!("a divisor of d_model, {}", self.d_model), self.heads.to_string());
        }
        for (key, found, only) in [("gamma", self.gamma, 0.4), ("rotary_base", self.rotary_base, 10_000.0)] {
            if let Some(found) = found.filter(|found| *found != only) {
                return wrong(key, only.to_string(), found.to_string());
            }
        }
        if let Some(slopes) = self.alibi_slopes.as_ref().filter(|slopes| slopes.len() != self.heads) {
            return wrong("alibi_slopes", format!("{} slopes, one a head", self.heads), slopes.len().to_string());
        }
        let architecture = json!({
            "layers": self.layers,
            "dim": self.d_model,
            "heads": self.heads,
            "head_dim": self.d_model / self.heads,
            "feed_forward": self.ffn_dim,
            "activation": if self.activation == "swish" { "silu" } else { self.activation.as_str() },
            "layer_norm_eps": self.layer_norm_eps.unwrap_or(LAYER_NORM_EPS),
            "position": self.position(file)?,
            "window": self.window(file)?,
            "sub_norms": self.subln,
            "scale_embedding": self.scale_embedding,
            "tied": self.tied,
        });
        let vocabulary = listed(self.vocab.as_deref(), self.vocab_size, file)?;
        Config::new("decoder", vocabulary, TextNormaliser::None, self.train_length, &architecture, file)
            .map_err(in_official_terms)
    }

    fn position(&self, file: &Path) -> Result<Value> {
        let needed = |key: &str, value: Option<usize>| {
            let expected = format!("a number: position is {}", self.position);
            value.ok_or_else(|| Error::checkpoint(file, key, expected, "nothing"))
        };
        Ok(match self.position.as_str() {
            "xpos" => json!({ "xpos": { "scale_base": self.xpos_scale_base } }),
            "rope" => json!("rotary"),
            "alibi" => json!("alibi"),
            "sinusoidal" => json!("sinusoidal"),
            "none" => json!("none"),
            // half of the official buckets are for keys after the query, which a decoder never sees
            "bucket" => {
                let count = needed("rel_pos_buckets", self.rel_pos_buckets)? / 2;
                let max_distance = needed("max_rel_pos", self.max_rel_pos)?;
                json!({ "buckets": { "count": count, "max_distance": max_distance } })
            }
            "learned" => json!({ "learned": { "positions": needed("max_positions", self.max_positions)? } }),
            other => {
                let expected = "xpos, rope, alibi, bucket, sinusoidal, learned or none";
                return Err(Error::checkpoint(file, "position", expected, format!("{other:?}")));
            }
        })
    }

    fn window(&self, file: &Path) -> Result<Value> {
        let sliding = self.mask.as_ref().is_some_and(|mask| mask.starts_with("sliding"));
        Ok(match (self.window, usize::try_from(self.block_size)) {
            (Some(keys), _) => json!({ "sliding": { "keys": keys } }),
            // the fork's incremental code keeps `block_size` keys in addition to the new one
            (None, Ok(length)) if sliding => json!({ "sliding": { "keys": length + 1 } }),
            (None, Ok(length)) => json!({ "blockwise": { "length": length } }),
            (None, Err(_)) if self.block_size == none() => json!("full"),
            (None, Err(_)) => {
                let expected = "a length, or -1 for no window";
                return Err(Error::checkpoint(file, "block_size", expected, self.block_size.to_string()));
            }
        })
    }

    /// xPos's scale buffer: all ones for rotary positions.
    fn scales(&self) -> Vec<f32> {
        let dim = self.d_model / self.heads;
        let scale = |pair| if self.position == "xpos" { zeta(dim, pair) as f32 } else { 1.0 };
        (0..dim / 2).map(scale).collect()
    }

    /// Returns a tensor that no checkpoint holds: from the arguments, or from the shape.
    fn derived(&self, name: &str, spec: &TensorSpec) -> Vec<f32> {
        match (&self.alibi_slopes, &spec.init) {
            (Some(slopes), _) if name == "position.slopes" => slopes.clone(),
            (_, Init::Values(values)) => values.clone(),
            (_, Init::Normal(..) | Init::Columns(..)) => Vec::new(),
        }
    }
}

fn in_official_terms(error: Error) -> Error {
    const KEYS: &[(&str, &str)] = &[
        ("architecture.layers", "layers"),
        ("architecture.dim", "d_model"),
        ("architecture.heads", "heads"),
        ("architecture.head_dim", "d_model / heads"),
        ("architecture.feed_forward", "ffn_dim"),
        ("architecture.activation", "activation"),
        ("architecture.layer_norm_eps", "layer_norm_eps"),
        ("architecture.window", "block_size"),
        ("architecture.window.blockwise.length", "block_size"),
        ("architecture.window.sliding.keys", "window"),
        ("architecture.position.xpos.scale_base", "xpos_scale_base"),
        ("architecture.position.buckets.count", "rel_pos_buckets / 2"),
        ("architecture.position.buckets.max_distance", "max_rel_pos"),
        ("architecture.position.learned.positions", "max_positions"),
        ("training_length", "train_length"),
    ];
    rename_key(error, KEYS, official_key)
}

// Arguments under the code's own names, which are torchscale's `DecoderConfig`'s and fairseq's.

/// The argument that only the code's own names have.
const OWN_ARGUMENT: &str = "decoder_embed_dim";

/// Positions of a learned table that fairseq reserves for padding.
const PADDING: usize = 2;

type Shapes = BTreeMap<String, Vec<usize>>;

/// Reads arguments under either names; the tensors' shapes complete the code's own.
fn read_arguments(arguments: &Value, shapes: &Shapes, file: &Path) -> Result<Arguments> {
    let text = arguments.to_string();
    if arguments.get(OWN_ARGUMENT).is_none() {
        return parse(text.as_bytes(), file, "");
    }
    let arguments: OwnArguments = parse(text.as_bytes(), file, "")?;
    arguments.translate(shapes, file)
}

/// The arguments that shape a decoder. A missing one has `DecoderConfig`'s default, as in the code.
#[derive(Debug, Deserialize)]
struct OwnArguments {
    decoder_embed_dim: usize,
    decoder_attention_heads: usize,
    decoder_ffn_embed_dim: usize,
    decoder_layers: usize,
    activation_fn: Option<String>,
    no_scale_embedding: Option<bool>,
    subln: Option<bool>,
    share_decoder_input_output_embed: Option<bool>,
    xpos_rel_pos: Option<bool>,
    xpos_scale_base: Option<f64>,
    rel_pos_buckets: Option<usize>,
    max_rel_pos: Option<usize>,
    layernorm_eps: Option<f64>,
    /// The fork's: two blocks.
    block_size: Option<i64>,
    /// fairseq's: symbols of a training window.
    tokens_per_sample: Option<usize>,
    max_target_positions: Option<usize>,
    /// fairseq's: true if there is no table of positions next to the embedding.
    no_token_positional_embeddings: Option<bool>,
    decoder_normalize_before: Option<bool>,
    deepnorm: Option<bool>,
    layernorm_embedding: Option<bool>,
    multiway: Option<bool>,
    moe_freq: Option<usize>,
}

impl OwnArguments {
    /// Translates the arguments to the other names. Fails for another architecture and without an embedding.
    fn translate(self, shapes: &Shapes, file: &Path) -> Result<Arguments> {
        self.check_architecture(file)?;
        let shape = |name: &str| shapes.get(&format!("decoder.{name}")).or_else(|| shapes.get(name));
        let missing = || Error::checkpoint(file, "embed_tokens.weight", "a tensor with the vocabulary's size", "none");
        let vocab_size = shape("embed_tokens.weight").and_then(|shape| shape.first()).ok_or_else(missing)?;
        let table = shape("embed_positions.weight").and_then(|shape| shape.first());
        let has_positions = table.is_some() || shape("embed_positions._float_tensor").is_some();
        let absolute = self.no_token_positional_embeddings.map_or(has_positions, |none| !none);
        let buckets = self.rel_pos_buckets.unwrap_or(0) > 0 && self.max_rel_pos.unwrap_or(0) > 0;
        let schemes = [
            (self.xpos_rel_pos == Some(true), "xpos"),
            (buckets, "bucket"),
            (absolute, if table.is_some() { "learned" } else { "sinusoidal" }),
        ];
        let chosen: Vec<_> = schemes.into_iter().filter(|(present, _)| *present).map(|(_, name)| name).collect();
        let position = match chosen[..] {
            [] => "none",
            [scheme] => scheme,
            _ => return Err(Error::checkpoint(file, "xpos_rel_pos", "one position scheme", chosen.join(" and "))),
        };
        Ok(Arguments {
            vocab_size: *vocab_size,
            d_model: self.decoder_embed_dim,
            heads: self.decoder_attention_heads,
            ffn_dim: self.decoder_ffn_embed_dim,
            layers: self.decoder_layers,
            train_length: self.tokens_per_sample.or(self.max_target_positions).unwrap_or(1024),
            position: position.into(),
            block_size: self.block_size.unwrap_or_else(none),
            xpos_scale_base: self.xpos_scale_base.unwrap_or_else(scale_base),
            subln: self.subln.unwrap_or(true),
            activation: self.activation_fn.unwrap_or_else(|| "gelu".into()),
            scale_embedding: self.no_scale_embedding == Some(false),
            tied: self.share_decoder_input_output_embed == Some(true),
            layer_norm_eps: self.layernorm_eps,
            rel_pos_buckets: self.rel_pos_buckets,
            max_rel_pos: self.max_rel_pos,
            max_positions: table.map(|rows| rows.saturating_sub(PADDING)),
            own_names: true,
            ..Arguments::default()
        })
    }

    /// Checks that the arguments describe a pre-norm decoder.
    fn check_architecture(&self, file: &Path) -> Result<()> {
        let post_norm = self.decoder_normalize_before == Some(false);
        let switches = [
            ("decoder_normalize_before", post_norm, "true: norms before the sub-layers"),
            ("deepnorm", self.deepnorm == Some(true), "false: norms before the sub-layers"),
            ("layernorm_embedding", self.layernorm_embedding == Some(true), "false: no norm behind the embedding"),
            ("multiway", self.multiway == Some(true), "false: one set of weights"),
            ("moe_freq", self.moe_freq.unwrap_or(0) > 0, "0: no mixture of experts"),
        ];
        match switches.into_iter().find(|(_, wrong, _)| *wrong) {
            None => Ok(()),
            Some((key, _, expected)) => Err(Error::checkpoint(file, key, expected, "another architecture")),
        }
    }
}

/// Replaces an argument in an error by the code's own name, if `arguments` had those.
fn in_own_names(arguments: &Arguments, error: Error) -> Error {
    const KEYS: &[(&str, &str)] = &[
        ("layers", "decoder_layers"),
        ("d_model", "decoder_embed_dim"),
        ("heads", "decoder_attention_heads"),
        ("d_model / heads", "decoder_embed_dim / decoder_attention_heads"),
        ("ffn_dim", "decoder_ffn_embed_dim"),
        ("activation", "activation_fn"),
        ("layer_norm_eps", "layernorm_eps"),
        ("train_length", "tokens_per_sample"),
    ];
    if arguments.own_names { rename_key(error, KEYS, str::to_owned) } else { error }
}

/// fairseq's prefix of every name.
const PREFIX: &str = "decoder.";

const EMBEDDING: &str = "embed_tokens.weight";
const HEAD: &str = "output_projection.weight";
const TABLE: &str = "embed_positions.weight";
const BUCKETS: &str = "self_attn_relative_position.relative_attention_bias.weight";

/// fairseq's first position: the rows before it belong to padding.
const FIRST_POSITION: usize = 2;

/// Complete names.
const MODEL: &[(&str, &str)] = &[
    ("embedding.weight", EMBEDDING),
    ("norm.weight", "layer_norm.weight"),
    ("norm.bias", "layer_norm.bias"),
    ("head.weight", HEAD),
];

/// Names within a layer.
const LAYER: &[(&str, &str)] = &[
    ("attention.output", "self_attn.out_proj"),
    ("attention.norm", "self_attn_layer_norm"),
    ("attention.inner_norm", "self_attn.inner_attn_ln"),
    ("feed_forward.up", "ffn.fc1"),
    ("feed_forward.down", "ffn.fc2"),
    ("feed_forward.inner_norm", "ffn.ffn_layernorm"),
    ("feed_forward.norm", "final_layer_norm"),
];

/// A source of one of weir's tensors; several parts are concatenated.
#[derive(Debug, Clone, PartialEq, Eq)]
enum TensorSource {
    Complete(String),
    Rows {
        name: String,
        from: usize,
        count: usize,
    },
    /// No tensor: the arguments determine it.
    Derived,
}

/// The official tensors that a checkpoint must hold, optional ones only if it has them.
#[derive(Debug)]
struct TensorMap {
    prefix: &'static str,
    specs: Vec<TensorSpec>,
    buckets: usize,
    scales: Vec<String>,
    /// Official name of the head, if it is tied and in the checkpoint nevertheless.
    tied_head: Option<String>,
    embedding: String,
    /// Tensors of fairseq in the checkpoint that do not affect the decoder.
    ignored: Vec<TensorSpec>,
    pair_count: usize,
}

impl TensorMap {
    fn new(found: &BTreeSet<String>, specs: &[TensorSpec], arguments: &Arguments) -> Self {
        let prefix = if found.iter().all(|name| name.starts_with(PREFIX)) { PREFIX } else { "" };
        let present = |name: &str| Some(format!("{prefix}{name}")).filter(|name| found.contains(name));
        let layer_scale =
            |name: &&String| name.starts_with(&format!("{prefix}layers.")) && name.ends_with(".self_attn.xpos.scale");
        let is_rotary = ["xpos", "rope"].contains(&arguments.position.as_str());
        let scales = found.iter().filter(layer_scale).cloned().chain(present("self_attn_xpos.scale"));
        let ignored = ["embed_positions._float_tensor", "version"].into_iter().filter_map(present);
        Self {
            prefix,
            specs: specs.to_vec(),
            buckets: arguments.rel_pos_buckets.unwrap_or(0),
            scales: scales.filter(|_| is_rotary).collect(),
            tied_head: present(HEAD).filter(|_| arguments.tied),
            embedding: format!("{prefix}{EMBEDDING}"),
            ignored: ignored.map(|name| TensorSpec::zeros(name, vec![1])).collect(),
            pair_count: arguments.d_model / arguments.heads / 2,
        }
    }

    /// Sources of one of weir's tensors; its own name if the official code has none, so that it is reported as missing.
    fn sources(&self, name: &str) -> Vec<TensorSource> {
        let official = |name: &str| format!("{}{name}", self.prefix);
        let rows = || self.specs.iter().find(|spec| spec.name == name).map_or(0, |spec| spec.shape[0]);
        if let Some(source) = source_name(MODEL, name) {
            return vec![TensorSource::Complete(official(source))];
        }
        match name {
            "position.slopes" | "position.frequency" => return vec![TensorSource::Derived],
            "position.table" => {
                return vec![TensorSource::Rows { name: official(TABLE), from: FIRST_POSITION, count: rows() }];
            }
            "position.bias" => return vec![TensorSource::Rows { name: official(BUCKETS), from: 0, count: rows() }],
            _ => {}
        }
        let mut pieces = name.splitn(3, '.');
        if let (Some("layers"), Some(index), Some(part)) = (pieces.next(), pieces.next(), pieces.next())
            && let Some((part, kind)) = part.rsplit_once('.')
        {
            let complete = |source: &str| TensorSource::Complete(official(&format!("layers.{index}.{source}.{kind}")));
            if part == "attention.qkv" {
                return ["q", "k", "v"].map(|letter| complete(&format!("self_attn.{letter}_proj"))).into();
            }
            if let Some(source) = source_name(LAYER, part) {
                return vec![complete(source)];
            }
        }
        vec![TensorSource::Complete(official(name))]
    }

    fn official(&self) -> Vec<TensorSpec> {
        let mut all = self.ignored.clone();
        all.extend(self.scales.iter().map(|name| TensorSpec::zeros(name, vec![self.pair_count])));
        for spec in &self.specs {
            let parts = self.sources(&spec.name);
            let count = parts.len();
            for part in parts {
                let mut shape = spec.shape.clone();
                match part {
                    TensorSource::Complete(name) => {
                        shape[0] /= count;
                        all.push(TensorSpec::zeros(name, shape));
                    }
                    TensorSource::Rows { name, from, count } => {
                        shape[0] = if name.ends_with(BUCKETS) { self.buckets } else { from + count };
                        all.push(TensorSpec::zeros(name, shape));
                    }
                    TensorSource::Derived => {}
                }
            }
        }
        if let Some(name) = &self.tied_head
            && let Some(embedding) = self.specs.iter().find(|spec| spec.name == "embedding.weight")
        {
            all.push(TensorSpec::zeros(name, embedding.shape.clone()));
        }
        all
    }
}
