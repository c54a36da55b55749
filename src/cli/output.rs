//! Output to stdout. A closed pipe is returned as an error instead of a panic.

use crate::{
    error::{Error, Result},
    family::checkpoint::WrittenCheckpoint,
};
use serde_json::json;
use std::{io::Write, path::Path};

/// Writes text to stdout and flushes it.
///
/// # Errors
/// [`Error::Io`], for example for a closed pipe or a full disk.
pub fn write(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Error::io("stdout"))
}

/// Writes a JSON value and a newline to stdout.
///
/// # Errors
/// [`Error::Io`], as [`write()`].
pub fn json(value: &serde_json::Value) -> Result<()> {
    write(&format!("{value}\n"))
}

/// Prints a checkpoint that was written to `folder`: shape, number of parameters and hash.
///
/// # Errors
/// [`Error::Io`], as [`write()`].
pub fn checkpoint(folder: &Path, written: &WrittenCheckpoint, as_json: bool) -> Result<()> {
    let WrittenCheckpoint { shape, parameters, sha256 } = written;
    if as_json {
        return json(&json!({ "path": folder, "shape": shape, "parameters": parameters, "sha256": sha256 }));
    }
    write(&format!("{}: {shape}, {parameters} parameters, sha256 {sha256}\n", folder.display()))
}

/// Formats `value` with three decimals, or as a dash if absent.
pub fn optional(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| format!("{value:.3}"))
}
