//! Checkpoints of goombalab/hnet: a folder with the official `config.json`, and either `model.safetensors` or one `.pt` file of
//! `torch.save(model.state_dict())`.
//!
//! Three kinds of tensors change their form: `in_proj` and `fc1` are split into their parts, convolutions become (taps,
//! channels), and the rotated rows of queries and keys are reordered so that a pair is two neighbours.

mod arguments;

use super::{
    converted::{Converted, only_file, read_config},
    torch::TorchFile,
    training::TorchTensors,
};
use crate::{
    error::{Error, Result},
    family::{
        TensorSpec,
        checkpoint::{
            CONFIG_FILE, INDEX_FILE, Tensor, WEIGHTS_FILE, Weights,
            folder::{check_source, contents},
            json::parse,
            read_weights_with_progress,
        },
        families::blueprint,
        hnet::{Architecture, HnetBlueprint, StageConfig},
    },
    kernels::ssm::HEAD,
};
use arguments::Arguments;
use std::{borrow::Cow, path::Path};

/// Reads a folder. Fails if arguments are missing, unknown or out of bounds, or if tensors are missing, superfluous or of
/// another shape.
pub(super) fn read(dir: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    let file = dir.join(CONFIG_FILE);
    check_source(dir, SOURCE)?;
    let text = read_config(&file)?;
    let arguments: Arguments = parse(&text, &file, "")?;
    let architecture = arguments.architecture(&file)?;
    let config = arguments.config(&architecture, &file)?;
    let specs = blueprint(&config, &file).map_err(arguments::in_official_terms)?.tensors();
    let architecture: Architecture = crate::family::checkpoint::architecture(&config, &file)?;
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
    if parsed.architecture.tied && numbers(&tensors, HEAD_NAME)? != numbers(&tensors, EMBEDDING_NAME)? {
        let expected = format!("the numbers of {EMBEDDING_NAME}, to which it is tied");
        return Err(Error::checkpoint(dir, HEAD_NAME, expected, "other numbers"));
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

/// The folder that the conversion reads.
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
                let name = super::converted::source_name(NAMES, part).unwrap_or(part);
                Self { name: full(name), shape: spec.shape.clone(), offset: 0, form: Form::Same }
            }
        }
    }
}

/// Transposes (channels, taps) to `shape`, (taps, channels).
fn transpose(numbers: &[f32], shape: &[usize]) -> Vec<f32> {
    let taps = shape.first().copied().unwrap_or(0);
    let channels = shape.get(1).copied().unwrap_or(0);
    (0..taps).flat_map(|tap| (0..channels).map(move |channel| numbers[channel * taps + tap])).collect()
}

/// Reorders the rows of queries and keys in `weight`, (3·D, D): row j and row j + R/2 of each head become neighbours, for the
/// first R rows of the head.
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
