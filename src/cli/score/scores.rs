//! Scores that the command prints.

use crate::{cli::output, error::Result};

/// Scores, formatted as text and JSON.
pub(super) trait Scores {
    fn as_json(&self) -> serde_json::Value;
    fn as_text(&self) -> String;
}

/// Prints scores. Fails as [`output::write()`] does.
pub(super) fn print(json: bool, scores: &dyn Scores) -> Result<()> {
    if json { output::json(&scores.as_json()) } else { output::write(&scores.as_text()) }
}
