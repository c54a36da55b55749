//! Checkpoints of torchscale's decoder (github.com/microsoft/torchscale, and its fork with blockwise causal attention,
//! github.com/sunyt32/torchscale).
//!
//! A source is a folder with the arguments in `config.json` and the official tensors in `model.safetensors`, with or without
//! fairseq's prefix. xPos's scales, one buffer at the top or one a layer, follow from the arguments: they are compared, not
//! kept.

mod arguments;
mod names;

use super::Converted;
use crate::{
    error::{Error, Result},
    family::{
        TensorSpec,
        checkpoint::{
            CONFIG_FILE, Dtype, Tensor, WEIGHTS_FILE, Weights,
            json::{parse, read_limited},
            read_weights_telling,
            reader::names_in,
        },
        load::blueprint,
    },
};
use arguments::{Arguments, in_official_terms};
use names::Part;
use std::path::Path;

const MAX_CONFIG_BYTES: u64 = 16 << 20;
/// How far a scale may be from what follows from the arguments: the official code computes it in f32.
const SCALE_TOLERANCE: f32 = 1e-5;

/// Reads an official checkpoint.
///
/// # Errors
/// Arguments that are missing or out of bounds, tensors that are missing, superfluous or of another shape, scales that are
/// not the arguments'.
pub fn read(from: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    let file = from.join(CONFIG_FILE);
    let arguments: Arguments = parse(&read_limited(&file, MAX_CONFIG_BYTES)?, &file, "")?;
    let config = arguments.config(&file)?;
    let specs = blueprint(&config, &file).map_err(in_official_terms)?.tensors();
    let plan = names::Plan::new(&names_in(from)?, &specs, &arguments);
    let (mut official, _) = read_weights_telling(from, &plan.official(), progress)?;
    let weights_file = from.join(WEIGHTS_FILE);
    check_scales(&plan, &official, &arguments, &weights_file)?;
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
    Ok(Converted { config, weights })
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
