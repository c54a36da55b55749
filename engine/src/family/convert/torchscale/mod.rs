//! Checkpoints of torchscale's decoder (microsoft/torchscale at commit 4d1e0e8, and its fork with blockwise causal attention,
//! sunyt32/torchscale at 4ad9dfd).
//!
//! A source is the `.pt` that training with fairseq writes (`checkpoint_last.pt`, or a folder that holds it), or a folder with
//! the arguments in `config.json` and the official tensors in `model.safetensors`; with or without fairseq's prefix. Arguments
//! have the code's own names (`decoder_embed_dim` …) or those of `arguments`. The arguments determine xPos's scales,
//! one buffer at the top or one a layer: they are compared, not stored.

mod arguments;
mod names;
mod official;

use super::{
    converted::{Converted, read_config},
    pickle::PickleValue,
    torch::TorchFile,
    training::{SourceForm, TorchTensors, items, plain},
};
use crate::{
    error::{Error, Result},
    family::{
        TensorSpec,
        checkpoint::{
            CONFIG_FILE, Tensor, WEIGHTS_FILE, Weights, json::parse, read_weights_with_progress, reader::shapes_in,
        },
        families::blueprint,
    },
};
use arguments::{Arguments, in_official_terms};
use names::{TensorMap, TensorSource};
use official::{Shapes, in_own_names, read_arguments};
use serde_json::Value as Json;
use std::path::Path;

/// Largest difference of a scale from the computed one: the official code computes it in f32.
const SCALE_TOLERANCE: f32 = 1e-5;
/// Keys of a training checkpoint's arguments: fairseq's configuration, and that of older versions.
const ARGUMENTS: &[&[&str]] = &[&["cfg", "model"], &["args"], &["cfg"], &["config"]];
/// Keys of its tensors.
const TENSORS: &[&str] = &["model", "state_dict", "model_state_dict"];

/// Reads an official checkpoint. Fails if arguments are missing or out of bounds, or if tensors are missing,
/// superfluous or of another shape. Fails if scales contradict the arguments.
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
        let numbers = |name: &str| official.get(name).map(Tensor::numbers);
        if numbers(name) != numbers(&map.embedding) {
            let expected = format!("the numbers of {}, to which it is tied", map.embedding);
            return Err(Error::checkpoint(weights_file, name.as_str(), expected, "other numbers"));
        }
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
