//! Checkpoints of goombalab/hnet: a folder with the official `config.json`, and either `model.safetensors` or one `.pt` file of
//! `torch.save(model.state_dict())`.
//!
//! Three kinds of tensors change their form: `in_proj` and `fc1` are split into their parts, convolutions become (taps,
//! channels), and the rotated rows of queries and keys are reordered so that a pair is two neighbours.

use crate::checkpoint::files::{check_source, contents, parse};
use crate::checkpoint::{
    self, CONFIG_FILE, Config, INDEX_FILE, Tensor, VocabularyConfig, WEIGHTS_FILE, Weights, read_weights_with_progress,
    require,
};
use crate::convert::converted::{
    Converted, TIED, check_copy, only_file, read_config, rename_key, source_name, transpose,
};
use crate::convert::torch::{TorchFile, TorchTensors};
use crate::family::TensorSpec;
use crate::family::families::blueprint;
use crate::family::hnet::{Architecture, HnetBlueprint, StageConfig, parse_layers};
use crate::nn::window::MAX_LENGTH;
use crate::text::{TextMarks, TextNormaliser};
use serde::de::value::SeqAccessDeserializer;
use serde::de::{self, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use std::{borrow::Cow, fmt, path::Path};
use weir_kernels::error::{Error, Result};
use weir_kernels::ssm::HEAD;

pub(super) fn read(dir: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    let file = dir.join(CONFIG_FILE);
    check_source(dir, SOURCE)?;
    let text = read_config(&file)?;
    let arguments: Arguments = parse(&text, &file, "")?;
    let architecture = arguments.architecture(&file)?;
    let config = arguments.config(&architecture, &file)?;
    let specs = blueprint(&config, &file).map_err(in_official_terms)?.tensors();
    let architecture: Architecture = checkpoint::architecture(&config, &file)?;
    let parsed = HnetBlueprint::new(architecture, arguments.vocab_size, &file)?;
    let mut official = Vec::new();
    for spec in &specs {
        let part = Part::of(spec, &parsed);
        if part.offset == 0 {
            official.push(TensorSpec::zeros(part.name, part.shape));
        }
    }
    if parsed.architecture.tied {
        official.push(TensorSpec::zeros(HEAD_NAME, specs[0].shape.clone()));
    }
    let tensors = read_tensors(dir, official, progress)?;
    if parsed.architecture.tied {
        check_copy(&tensors, HEAD_NAME, EMBEDDING_NAME, TIED, dir)?;
    }
    let weights = Weights::collect(specs, |spec| {
        let part = Part::of(spec, &parsed);
        let all = numbers(&tensors, &part.name)?;
        let own = &all[part.offset..part.offset + spec.numbers()];
        Ok(match part.form {
            Form::Same => own.to_vec(),
            Form::Transposed => transpose(own, &spec.shape),
            Form::Rotated { heads, rotary_dim } => neighbour_pairs(own, heads, rotary_dim),
        })
    })?;
    Ok(Converted { config, weights })
}

fn numbers<'a>(tensors: &'a Weights, name: &str) -> Result<Cow<'a, [f32]>> {
    let missing = || Error::Internal(format!("tensor {name} was listed but not read"));
    tensors.get(name).map(Tensor::numbers).ok_or_else(missing)
}

fn read_tensors(dir: &Path, specs: Vec<TensorSpec>, progress: &mut dyn FnMut(u64, u64)) -> Result<Weights> {
    let expected = format!("{WEIGHTS_FILE}, or one .pt file");
    let torch = only_file(dir, "pt", &expected)?;
    let safetensors = [WEIGHTS_FILE, INDEX_FILE].iter().any(|name| dir.join(name).exists());
    match (safetensors, torch) {
        (false, Some(file)) => {
            let mut torch = TorchFile::open(&file)?;
            TorchTensors::at_root(&torch, &file)?.read(&mut torch, specs, progress)
        }
        (true, Some(_)) => Err(Error::checkpoint(dir, "the folder", expected, "both")),
        (true, None) => Ok(read_weights_with_progress(dir, &specs, progress)?.0),
        (false, None) => Err(Error::checkpoint(dir, "the folder", expected, format!("neither; {}", contents(dir)))),
    }
}

const SOURCE: &str = "a folder with the official config.json, and model.safetensors or one .pt file";
const HEAD_NAME: &str = "lm_head.weight";
const EMBEDDING_NAME: &str = "embeddings.weight";

/// Where the numbers of one of weir's tensors are in an official checkpoint.
struct Part {
    /// Name of the official tensor.
    name: String,
    /// Shape of the official tensor.
    shape: Vec<usize>,
    /// First of the numbers.
    offset: usize,
    form: Form,
}

/// How an official tensor's numbers are arranged.
enum Form {
    Same,
    /// (channels, 1, taps) instead of (taps, channels).
    Transposed,
    /// Rows of queries and keys whose pairs are half the rotated numbers apart.
    Rotated {
        heads: usize,
        rotary_dim: usize,
    },
}

impl Part {
    /// Finds a tensor; under its own name if there is none, so that it is reported as missing.
    fn of(spec: &TensorSpec, blueprint: &HnetBlueprint) -> Self {
        let same = |name: String| Self { name, shape: spec.shape.clone(), offset: 0, form: Form::Same };
        match &*spec.name {
            "embedding.weight" => return same(EMBEDDING_NAME.into()),
            "head.weight" => return same(HEAD_NAME.into()),
            _ => {}
        }
        let in_stage = || {
            let (index, rest) = spec.name.strip_prefix("stages.")?.split_once('.')?;
            let index: usize = index.parse().ok()?;
            Some((index, blueprint.architecture.stages.get(index)?, rest))
        };
        let Some((index, stage, rest)) = in_stage() else { return same(spec.name.clone()) };
        let prefix = format!("backbone.{}", "main_network.".repeat(index));
        match rest {
            "padding" => same(format!("{prefix}pad_dimension")),
            "router.query.weight" => same(format!("{prefix}routing_module.q_proj_layer.weight")),
            "router.key.weight" => same(format!("{prefix}routing_module.k_proj_layer.weight")),
            "residual.weight" | "residual.bias" => {
                same(format!("{prefix}residual_proj.{}", &rest["residual.".len()..]))
            }
            _ => {
                let Some((stack, rest)) = rest.split_once('.') else { return same(spec.name.clone()) };
                let stack = if stack == "main" { "main_network" } else { stack };
                match rest.split_once('.') {
                    Some(("norm", "weight")) => same(format!("{prefix}{stack}.rmsnorm.weight")),
                    Some((layer, part)) => {
                        Self::in_layer(&format!("{prefix}{stack}.layers.{layer}"), part, spec, stage)
                    }
                    None => same(spec.name.clone()),
                }
            }
        }
    }

    fn in_layer(prefix: &str, part: &str, spec: &TensorSpec, stage: &StageConfig) -> Self {
        const NAMES: &[(&str, &str)] = &[
            ("norm.weight", "norm1.weight"),
            ("feed_forward.norm.weight", "norm2.weight"),
            ("feed_forward.down.weight", "mlp.fc2.weight"),
            ("attention.output.weight", "mixer.out_proj.weight"),
            ("mamba.convolution.bias", "mixer.conv1d.bias"),
            ("mamba.step_bias", "mixer.dt_bias"),
            ("mamba.log_rate", "mixer.A_log"),
            ("mamba.skip", "mixer.D"),
            ("mamba.norm.weight", "mixer.norm.weight"),
            ("mamba.output.weight", "mixer.out_proj.weight"),
        ];
        let StageConfig { dim, heads, rotary_dim, conv_width, feed_forward, .. } = *stage;
        let inner = stage.inner();
        let full = |name: &str| format!("{prefix}.{name}");
        let rows = |name, count: usize, first: usize| Self {
            name: full(name),
            shape: vec![count, dim],
            offset: first * dim,
            form: Form::Same,
        };
        match part {
            "mamba.gate.weight" => rows("mixer.in_proj.weight", inner + stage.channels() + inner / HEAD, 0),
            "mamba.input.weight" => rows("mixer.in_proj.weight", inner + stage.channels() + inner / HEAD, inner),
            "feed_forward.up.weight" => rows("mlp.fc1.weight", 2 * feed_forward, 0),
            "feed_forward.gate.weight" => rows("mlp.fc1.weight", 2 * feed_forward, feed_forward),
            "mamba.convolution.weight" => Self {
                name: full("mixer.conv1d.weight"),
                shape: vec![stage.channels(), 1, conv_width],
                offset: 0,
                form: Form::Transposed,
            },
            "attention.qkv.weight" => Self {
                name: full("mixer.Wqkv.weight"),
                shape: spec.shape.clone(),
                offset: 0,
                form: Form::Rotated { heads, rotary_dim },
            },
            _ => {
                let name = source_name(NAMES, part).unwrap_or(part);
                Self { name: full(name), shape: spec.shape.clone(), offset: 0, form: Form::Same }
            }
        }
    }
}

/// Reorders the rows of `weight`, (3·D, D): rows j and j + R/2 of each head's first R rows become neighbours.
fn neighbour_pairs(weight: &[f32], heads: usize, rotary_dim: usize) -> Vec<f32> {
    let third = weight.len() / 3;
    let head = third / heads.max(1);
    // 3·D² numbers
    let dim = (third as f64).sqrt().round() as usize;
    let mut out = weight.to_vec();
    for (to, from) in out[..2 * third].chunks_exact_mut(head).zip(weight.chunks_exact(head)) {
        for pair in 0..rotary_dim / 2 {
            for (offset, row) in [(0, pair), (1, pair + rotary_dim / 2)] {
                to[(2 * pair + offset) * dim..][..dim].copy_from_slice(&from[row * dim..][..dim]);
            }
        }
    }
    out
}

/// The official training window in bytes.
const TRAINING_LENGTH: usize = 8192;

/// The official inner widths of feed-forwards are rounded up to a multiple of this.
const FEED_FORWARD_UNIT: usize = 128;

/// Marks of the official tokenizer.
const MARKS: TextMarks = TextMarks { start: 254, end: 255 };

const NORM_EPS: f64 = 1e-5;

/// Maximum keys of a window, one more than the largest `window_size`.
const MAX_WINDOW: i64 = MAX_LENGTH as i64;

/// Maximum nesting of `arch_layout`, far above the stages that the family accepts.
const MAX_DEPTH: usize = 64;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    arch_layout: Value,
    d_model: Vec<usize>,
    d_intermediate: Vec<usize>,
    vocab_size: usize,
    ssm_cfg: SsmArguments,
    attn_cfg: AttentionArguments,
    tie_embeddings: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SsmArguments {
    /// Only blocks the official kernel's scan; results do not depend on it.
    #[serde(rename = "chunk_size")]
    _chunk_size: Option<PerStage>,
    d_conv: PerStage,
    d_state: PerStage,
    expand: PerStage,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AttentionArguments {
    num_heads: Vec<usize>,
    rotary_emb_dim: Vec<usize>,
    window_size: Vec<i64>,
}

/// One number for all stages, or one for each.
#[derive(Debug)]
enum PerStage {
    All(usize),
    Each(Vec<usize>),
}

impl<'de> Deserialize<'de> for PerStage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_any(PerStageVisitor)
    }
}

struct PerStageVisitor;

impl<'de> Visitor<'de> for PerStageVisitor {
    type Value = PerStage;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a whole number of at least 0, or a list with one for each stage")
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> std::result::Result<PerStage, E> {
        let too_large = |_| E::invalid_value(Unexpected::Unsigned(number), &self);
        usize::try_from(number).map(PerStage::All).map_err(too_large)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, numbers: A) -> std::result::Result<PerStage, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(numbers)).map(PerStage::Each)
    }
}

/// The layers of one stage: encoder and decoder, or the main stack's.
enum StageLayers<'a> {
    Outer(&'a str, &'a str),
    Innermost(&'a str),
}

impl Arguments {
    /// Returns weir's `architecture`. Fails if the layout is malformed, or a list's length is not the number of stages.
    fn architecture(&self, file: &Path) -> Result<Value> {
        let layouts = layouts(&self.arch_layout, file)?;
        let stages = layouts.len();
        let check = |key: &str, len: usize| match len == stages {
            true => Ok(()),
            false => {
                let expected = format!("{stages} numbers, one for each stage of arch_layout");
                Err(Error::checkpoint(file, key, expected, format!("{len} numbers")))
            }
        };
        check("d_model", self.d_model.len())?;
        check("d_intermediate", self.d_intermediate.len())?;
        check("attn_cfg.num_heads", self.attn_cfg.num_heads.len())?;
        check("attn_cfg.rotary_emb_dim", self.attn_cfg.rotary_emb_dim.len())?;
        check("attn_cfg.window_size", self.attn_cfg.window_size.len())?;
        let per_stage = |key: &str, value: &PerStage, stage: usize| match value {
            PerStage::All(value) => Ok(*value),
            PerStage::Each(values) => {
                check(key, values.len())?;
                Ok(values[stage])
            }
        };
        let mut list = Vec::new();
        for (stage, layout) in layouts.iter().enumerate() {
            let window = match self.attn_cfg.window_size[stage] {
                -1 => json!("full"),
                window @ 0..MAX_WINDOW => json!({ "sliding": { "keys": window + 1 } }),
                other => {
                    let key = format!("attn_cfg.window_size[{stage}]");
                    let expected = format!("-1 for no window, or 0 to {}", MAX_WINDOW - 1);
                    return Err(Error::checkpoint(file, key, expected, other.to_string()));
                }
            };
            let feed_forward = self.d_intermediate[stage];
            let mut object = json!({
                "dim": self.d_model[stage],
                "feed_forward": feed_forward.checked_next_multiple_of(FEED_FORWARD_UNIT).unwrap_or(feed_forward),
                "heads": self.attn_cfg.num_heads[stage],
                "rotary_dim": self.attn_cfg.rotary_emb_dim[stage],
                "window": window,
                "state_dim": per_stage("ssm_cfg.d_state", &self.ssm_cfg.d_state, stage)?,
                "conv_width": per_stage("ssm_cfg.d_conv", &self.ssm_cfg.d_conv, stage)?,
                "expand": per_stage("ssm_cfg.expand", &self.ssm_cfg.expand, stage)?,
            });
            match layout {
                StageLayers::Outer(encoder, decoder) => {
                    object["encoder"] = json!(encoder);
                    object["decoder"] = json!(decoder);
                }
                StageLayers::Innermost(main) => object["main"] = json!(main),
            }
            list.push(object);
        }
        Ok(json!({ "stages": list, "norm_eps": NORM_EPS, "tied": self.tie_embeddings }))
    }

    /// Returns the configuration with that architecture. Fails unless the symbols are bytes.
    fn config(&self, architecture: &Value, file: &Path) -> Result<Config> {
        require(self.vocab_size == 256, file, "vocab_size", "256, the byte values", self.vocab_size)?;
        let vocabulary = VocabularyConfig::DelimitedBytes(MARKS);
        Config::new("hnet", vocabulary, TextNormaliser::None, TRAINING_LENGTH, architecture, file)
    }
}

/// Returns each stage's layers, outermost first. Fails if the layout is not nested as the official code nests it.
fn layouts<'a>(layout: &'a Value, file: &Path) -> Result<Vec<StageLayers<'a>>> {
    let mut stages = Vec::new();
    let mut key = "arch_layout".to_owned();
    let mut rest = layout;
    loop {
        let expected = "[encoder, [inner stage], decoder], or [main] in the innermost stage";
        let wrong = |found: &Value| {
            Err(Error::checkpoint(file, &*key, expected, weir_kernels::error::clip(&found.to_string(), 60)))
        };
        let layers = |index: usize, text: &'a Value| match text.as_str() {
            Some(layers) => match parse_layers(layers) {
                Ok(_) => Ok(layers),
                Err(found) => {
                    let expected = "letters of mMtT with counts, at most 1024 layers";
                    Err(Error::checkpoint(file, format!("{key}[{index}]"), expected, found))
                }
            },
            None => Err(Error::checkpoint(file, format!("{key}[{index}]"), "a string", text.to_string())),
        };
        match rest.as_array().map(Vec::as_slice) {
            Some([main]) => {
                stages.push(StageLayers::Innermost(layers(0, main)?));
                return Ok(stages);
            }
            Some([encoder, inner @ Value::Array(_), decoder]) if stages.len() < MAX_DEPTH => {
                stages.push(StageLayers::Outer(layers(0, encoder)?, layers(2, decoder)?));
                key += "[1]";
                rest = inner;
            }
            _ => return wrong(rest),
        }
    }
}

fn in_official_terms(error: Error) -> Error {
    const KEYS: &[(&str, &str)] = &[
        ("dim", "d_model"),
        ("feed_forward", "d_intermediate"),
        ("heads", "attn_cfg.num_heads"),
        ("rotary_dim", "attn_cfg.rotary_emb_dim"),
        ("state_dim", "ssm_cfg.d_state"),
        ("conv_width", "ssm_cfg.d_conv"),
        ("expand", "ssm_cfg.expand"),
    ];
    let error = match error {
        Error::Checkpoint { file, key, expected, found } => {
            let expected = expected.replace("of dim,", "of d_model,").replace("· dim ", "· d_model ");
            Error::Checkpoint { file, key, expected, found }
        }
        other => other,
    };
    rename_key(error, &[("architecture.stages", "arch_layout")], |key| {
        let in_stage = key.strip_prefix("architecture.stages").and_then(|rest| rest.split_once('.'));
        let found = in_stage.and_then(|(stage, name)| Some((stage, source_name(KEYS, name)?)));
        found.map_or_else(|| key.to_owned(), |(stage, name)| format!("{name}{stage}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotated_rows_become_neighbours() {
        // one head, D = 4; R = 4, then R = 2
        let weight: Vec<f32> = (0..48).map(|number| number as f32).collect();
        let rows = |weight: &[f32]| weight.iter().step_by(4).map(|number| *number as usize / 4).collect::<Vec<_>>();
        assert_eq!(rows(&neighbour_pairs(&weight, 1, 4)), [0, 2, 1, 3, 4, 6, 5, 7, 8, 9, 10, 11]);
        assert_eq!(rows(&neighbour_pairs(&weight, 1, 2)), (0..12).collect::<Vec<_>>());
        assert_eq!(transpose(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]), [1.0, 3.0, 5.0, 2.0, 4.0, 6.0]);
    }
}
