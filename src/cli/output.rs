//! Writing to stdout so that a closed pipe is an error like any other, and JSON.

use crate::error::{Error, Result};
use std::io::Write;

/// Writes text to stdout and flushes it.
///
/// # Errors
/// A closed pipe, a full disk.
pub fn write(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Error::io("stdout"))
}

/// Writes a JSON value and a newline.
///
/// # Errors
/// As for [`write()`].
pub fn json(value: &serde_json::Value) -> Result<()> {
    write(&format!("{value}\n"))
}

/// `value` with three digits after the point, or a dash if there is none.
pub fn optional(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| format!("{value:.3}"))
}
