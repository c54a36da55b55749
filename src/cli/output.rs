//! Output of the commands, to stdout or to a file. A closed pipe is an error, not a panic.

use crate::{
    error::{Error, Result},
    family::checkpoint::WrittenCheckpoint,
};
use safetensors::{Dtype, tensor::TensorView};
use serde_json::json;
use std::{io::Write, path::Path};

/// Writes text to stdout and flushes it. Fails if stdout cannot be written, for example because the pipe is closed.
pub fn write(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Error::io("stdout"))
}

/// Writes a JSON value and a newline to stdout. Fails as [`write()`] does.
pub fn json(value: &serde_json::Value) -> Result<()> {
    write(&format!("{value}\n"))
}

/// Prints a checkpoint that was written to `folder`: shape, number of parameters and hash. Fails as [`write()`] does.
pub fn checkpoint(folder: &Path, written: &WrittenCheckpoint, as_json: bool) -> Result<()> {
    let WrittenCheckpoint { shape, parameters, sha256 } = written;
    if as_json {
        return json(&json!({ "path": folder, "shape": shape, "parameters": parameters, "sha256": sha256 }));
    }
    write(&format!("{}: {shape}, {parameters} parameters, sha256 {sha256}\n", folder.display()))
}

/// Writes logits (positions, vocabulary) and, if given, boundaries (positions) to a safetensors file.
pub fn logits(path: &Path, logits: &[f32], shape: [usize; 2], boundaries: Option<&[u8]>) -> Result<()> {
    let bytes: Vec<u8> = logits.iter().flat_map(|value| value.to_le_bytes()).collect();
    let view = TensorView::new(Dtype::F32, shape.to_vec(), &bytes).map(|view| ("logits", view));
    let boundaries = boundaries.map(|flags| TensorView::new(Dtype::U8, vec![shape[0]], flags));
    let tensors = std::iter::once(view).chain(boundaries.map(|view| view.map(|view| ("boundaries", view))));
    let file = tensors.collect::<std::result::Result<Vec<_>, _>>().and_then(|all| safetensors::serialize(all, None));
    let file = file.map_err(|error| Error::Internal(format!("safetensors: {error}")))?;
    std::fs::write(path, file).map_err(Error::io(path))
}

/// Formats `value` with three decimals, or as a dash if absent.
pub fn optional(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| format!("{value:.3}"))
}
