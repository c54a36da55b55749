//! Checkpoints of torchscale's decoder (github.com/microsoft/torchscale, and its fork with blockwise causal attention,
//! github.com/sunyt32/torchscale).
//!
//! A source is the `.pt` that training with fairseq writes (`checkpoint_last.pt`, or a folder that holds it), or a folder with
//! the arguments in `config.json` and the official tensors in `model.safetensors`; with or without fairseq's prefix. Arguments
//! have the code's own names (`decoder_embed_dim` …) or those of `arguments`. xPos's scales, one buffer at the top or one a
//! layer, follow from the arguments: they are compared, not kept.

mod arguments;
mod names;
mod official;

use super::{
    Converted,
    pickle::Value,
    torch::TorchFile,
    training::{Form, Tensors, items, plain},
};
use crate::{
    error::{Error, Result},
    family::{
        TensorSpec,
        checkpoint::{
            CONFIG_FILE, Dtype, Tensor, WEIGHTS_FILE, Weights,
            json::{parse, read_limited},
            read_weights_telling,
            reader::shapes_in,
        },
        load::blueprint,
    },
};
use arguments::{Arguments, in_official_terms};
use names::Part;
use official::Shapes;
use serde_json::Value as Json;
use std::path::{Path, PathBuf};

const MAX_CONFIG_BYTES: u64 = 16 << 20;
/// How far a scale may be from what follows from the arguments: the official code computes it in f32.
const SCALE_TOLERANCE: f32 = 1e-5;
/// Where a training checkpoint may have its arguments: in fairseq's configuration, in that of older versions.
const ARGUMENTS: &[&[&str]] = &[&["cfg", "model"], &["args"], &["cfg"], &["config"]];
/// And its tensors.
const TENSORS: &[&str] = &["model", "state_dict", "model_state_dict"];

/// Reads an official checkpoint.
///
/// # Errors
/// Arguments that are missing or out of bounds, tensors that are missing, superfluous or of another shape, scales that are
/// not the arguments'.
pub fn read(from: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    match Form::of(from)? {
        Form::Folder(dir) => {
            let file = dir.join(CONFIG_FILE);
            let arguments: Json = parse(&read_limited(&file, MAX_CONFIG_BYTES)?, &file, "")?;
            let shapes = shapes_in(&dir)?;
            let arguments = Arguments::of(arguments, &shapes, &file)?;
            let tensors = dir.join(WEIGHTS_FILE);
            let read = &mut |specs: Vec<TensorSpec>| Ok(read_weights_telling(&dir, &specs, progress)?.0);
            converted(arguments, shapes, &[file, tensors], read)
        }
        Form::Training(file) => {
            let mut torch = TorchFile::open(&file)?;
            let arguments = training_arguments(&torch, &file)?;
            let root = torch.pickle.root();
            let there = |key: &&&str| torch.pickle.item(root, key).is_some();
            let tensors = Tensors::of(&torch, TENSORS.iter().find(there).unwrap_or(&TENSORS[0]), &file)?;
            let shapes: Shapes =
                tensors.all.iter().map(|(name, tensor)| (name.clone(), tensor.shape.clone())).collect();
            let arguments = Arguments::of(arguments, &shapes, &file)?;
            let read = &mut |specs| tensors.read(&mut torch, specs, progress);
            converted(arguments, shapes, &[file.clone(), file], read)
        }
    }
}

/// The arguments in a training checkpoint.
fn training_arguments(torch: &TorchFile, file: &Path) -> Result<Json> {
    let pickle = &torch.pickle;
    let within = |path: &&[&str]| {
        let inside = |value: &Value, key: &&str| {
            let found = items(pickle, value)?.iter().rev();
            found.clone().find(|(name, _)| *name == Value::Text((**key).into())).map(|(_, value)| value.clone())
        };
        let value = path.iter().try_fold(pickle.root().clone(), |value, key| inside(&value, key))?;
        items(pickle, &value).map(|items| Json::Object(plain(pickle, items)))
    };
    let found =
        || Error::checkpoint(file, "cfg.model", "the arguments of the model, in a dict or Namespace", "nothing");
    ARGUMENTS.iter().find_map(within).ok_or_else(found)
}

/// The checkpoint with such arguments and tensors; `files` are those of the two.
fn converted(
    mut arguments: Arguments,
    shapes: Shapes,
    [file, weights_file]: &[PathBuf; 2],
    read: &mut dyn FnMut(Vec<TensorSpec>) -> Result<Weights>,
) -> Result<Converted> {
    let config = |arguments: &Arguments| arguments.config(file).map_err(|error| arguments.named(error));
    let specs =
        blueprint(&config(&arguments)?, file).map_err(|error| arguments.named(in_official_terms(error)))?.tensors();
    let plan = names::Plan::new(&shapes.into_keys().collect(), &specs, &arguments);
    let mut official = read(plan.official())?;
    arguments.see_scales(plan.scales.first().and_then(|name| official.get(name)).map(|scales| &*scales.numbers));
    check_scales(&plan, &official, &arguments, weights_file)?;
    if let Some(name) = &plan.tied_head {
        let numbers = |name: &str| official.get(name).map(|tensor| &tensor.numbers);
        if numbers(name) != numbers(&plan.embedding) {
            let expected = format!("the numbers of {}, to which it is tied", plan.embedding);
            return Err(Error::checkpoint(weights_file, name.as_str(), expected, "others"));
        }
    }
    let mut weights = Weights::default();
    for spec in specs {
        let tensor = assemble(&spec, plan.sources(&spec.name), &mut official, &arguments)?;
        weights.insert(spec.name, tensor);
    }
    Ok(Converted { config: config(&arguments)?, weights })
}

/// One of weir's tensors from official ones.
fn assemble(spec: &TensorSpec, parts: Vec<Part>, official: &mut Weights, arguments: &Arguments) -> Result<Tensor> {
    let mut numbers = Vec::new();
    for part in parts {
        match part {
            Part::Whole(name) => numbers.append(&mut official.take(&name)?),
            Part::Rows { name, from, count } => {
                let all = official.take(&name)?;
                let width = spec.shape.iter().skip(1).product::<usize>();
                numbers.extend_from_slice(all.get(from * width..(from + count) * width).unwrap_or_default());
            }
            Part::Given => numbers = arguments.given(&spec.name, spec),
        }
    }
    if numbers.len() != spec.shape.iter().product::<usize>() {
        return Err(Error::Internal(format!("{} was put together from {} numbers", spec.name, numbers.len())));
    }
    Ok(Tensor { dtype: Dtype::F32, shape: spec.shape.clone(), numbers })
}

/// Whether the scales of xPos are those that weir will compute.
fn check_scales(plan: &names::Plan, official: &Weights, arguments: &Arguments, file: &Path) -> Result<()> {
    let expected = arguments.scales();
    for name in &plan.scales {
        let found = official.get(name).map_or(&[][..], |tensor| &tensor.numbers);
        let off = found.iter().zip(&expected).position(|(a, b)| (a - b).abs() > SCALE_TOLERANCE);
        if let Some(at) = off {
            let (expected, found) =
                (format!("{} at index {at}: position is {}", expected[at], arguments.position), found[at]);
            return Err(Error::checkpoint(file, name.as_str(), expected, found.to_string()));
        }
    }
    Ok(())
}
