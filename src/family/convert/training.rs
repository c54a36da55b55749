//! What training writes: a pickle with arguments and tensors, in the shapes that torch's users give it.

use super::{
    pickle::{Pickle, Value},
    torch::{TorchFile, TorchTensor},
};
use crate::{
    error::{Error, Result},
    family::{
        TensorSpec,
        checkpoint::{Dtype, Tensor, Weights},
    },
};
use serde_json::Value as Json;
use std::{collections::BTreeMap, path::Path};

/// What every key of the weights starts with after training on several devices.
const PARALLEL_PREFIX: &str = "module.";

/// A string of a pickle.
pub(super) fn text(value: &Value) -> Option<String> {
    if let Value::Text(text) = value { Some(text.to_string()) } else { None }
}

/// A plain value as JSON; what is not plain is no argument that matters here.
fn scalar(value: &Value) -> Option<Json> {
    match value {
        Value::None => Some(Json::Null),
        Value::Bool(value) => Some((*value).into()),
        Value::Int(value) => Some((*value).into()),
        Value::Float(value) => Some((*value).into()),
        Value::Text(value) => Some((**value).into()),
        Value::LongInt | Value::Bytes | Value::Object(_) => None,
    }
}

/// The plain arguments of a `Namespace`, or of a dict.
pub(super) fn arguments<'a>(pickle: &'a Pickle, value: &'a Value) -> Option<impl Iterator<Item = (String, Json)> + 'a> {
    let state = pickle.call(value).and_then(|call| call.state.as_ref());
    let items = state.and_then(|state| pickle.items(state)).or_else(|| pickle.items(value))?;
    Some(items.iter().filter_map(|(key, value)| Some((text(key)?, scalar(value)?))))
}

/// The tensors of the dict under `at`, by their names, without the prefix of parallel training.
///
/// # Errors
/// Anything but a dict of tensors.
pub(super) fn tensors(torch: &TorchFile, at: &str, file: &Path) -> Result<BTreeMap<String, TorchTensor>> {
    let pickle = &torch.pickle;
    let state = pickle.item(pickle.root(), at);
    let items = state.and_then(|state| pickle.items(state));
    let Some(items) = items else {
        let found = state.map_or("nothing".into(), |state| pickle.describe(state));
        return Err(Error::checkpoint(file, at, "a dict of tensors", found));
    };
    let parallel = items.iter().all(|(key, _)| text(key).is_some_and(|key| key.starts_with(PARALLEL_PREFIX)));
    let mut tensors = BTreeMap::new();
    for (key, value) in items {
        let Some(name) = text(key) else {
            return Err(Error::checkpoint(file, at, "names of tensors", pickle.describe(key)));
        };
        let name = name.strip_prefix(PARALLEL_PREFIX).filter(|_| parallel).map(str::to_owned).unwrap_or(name);
        let tensor = torch.tensor(&name, value)?;
        if tensors.insert(name.clone(), tensor).is_some() {
            return Err(Error::checkpoint(file, name, "one tensor of this name", "two"));
        }
    }
    Ok(tensors)
}

/// Reads the tensors that `specs` name, and checks their shapes.
///
/// # Errors
/// A tensor that is not there or has another shape, numbers that are not finite, a damaged archive.
pub(super) fn read(
    torch: &mut TorchFile,
    tensors: &BTreeMap<String, TorchTensor>,
    specs: &[TensorSpec],
    (file, progress): (&Path, &mut dyn FnMut(u64, u64)),
) -> Result<Weights> {
    let total: usize = specs.iter().map(|spec| 4 * spec.shape.iter().product::<usize>()).sum();
    let (mut weights, mut done) = (Weights::default(), 0);
    for spec in specs {
        let Some(tensor) = tensors.get(&spec.name) else {
            return Err(Error::checkpoint(file, spec.name.as_str(), "a tensor", "none"));
        };
        if tensor.shape != spec.shape {
            let (expected, found) = (format!("shape {:?}", spec.shape), format!("shape {:?}", tensor.shape));
            return Err(Error::checkpoint(file, spec.name.as_str(), expected, found));
        }
        let numbers = torch.read(&spec.name, tensor)?;
        done += 4 * numbers.len() as u64;
        progress(done, total as u64);
        weights.insert(spec.name.clone(), Tensor { dtype: Dtype::F32, shape: spec.shape.clone(), numbers });
    }
    Ok(weights)
}
