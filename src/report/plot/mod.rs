//! Charts of measurements, drawn from their JSON, so that new and saved measurements look alike.
//!
//! `panels` converts entries to charts, and `draw` renders them as SVG.

mod chart;
mod draw;
mod panels;

use crate::error::{Error, Result};
use serde_json::Value;
use std::path::PathBuf;

pub(crate) const MAX_ENTRIES: usize = 10_000;

#[derive(Debug, Clone)]
pub(crate) struct MeasurementFile {
    /// File, or another name for errors.
    pub name: PathBuf,
    /// Entries that `weir bench --json` printed.
    pub entries: Vec<Value>,
}

/// Draws entries of `weir bench decode`, `compare`, `prefill` and `kernels` as SVG. `field` names the option in errors.
/// Fails if there are no entries or more than [`MAX_ENTRIES`]; the error for an entry that cannot be drawn names the entry.
pub(crate) fn svg(field: &'static str, sources: &[MeasurementFile]) -> Result<String> {
    let count: usize = sources.iter().map(|source| source.entries.len()).sum();
    if !(1..=MAX_ENTRIES).contains(&count) {
        let bound = format!("1 to {MAX_ENTRIES} measurements");
        return Err(Error::BadOption { field, found: count.to_string(), bound });
    }
    let mut panels = panels::Panels::default();
    for MeasurementFile { name, entries } in sources {
        for (index, entry) in entries.iter().enumerate() {
            panels.add(entry).map_err(|panels::EntryError { key, expected, found }| {
                let location = if key.is_empty() { format!("entry {index}") } else { format!("entry {index}, {key}") };
                Error::checkpoint(name, location, expected, found)
            })?;
        }
    }
    draw::svg(&panels.finish())
}
