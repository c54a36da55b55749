//! Pictures of measurements, from their JSON: what was just measured and what was saved are drawn alike.
//!
//! `panels` knows the entries' fields; `draw` knows lines and axes.

mod draw;
mod panels;

use crate::error::{Error, Result};
use serde_json::Value;
use std::path::PathBuf;

/// The most entries of one picture.
pub const MAX_ENTRIES: usize = 10_000;

/// One chart.
#[derive(Debug, Clone, PartialEq)]
struct Panel {
    title: String,
    x: String,
    y: String,
    /// Whether y is drawn by its logarithm; x always is, to base 2.
    log_y: bool,
    /// What bars and hollow markers are.
    note: String,
    lines: Vec<Line>,
}

/// One line of a chart.
#[derive(Debug, Clone, PartialEq)]
struct Line {
    label: String,
    points: Vec<Point>,
}

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Point {
    x: f64,
    y: f64,
    /// The tenth and the ninetieth percentile.
    bar: Option<(f64, f64)>,
    /// What it could be at best.
    bound: Option<f64>,
}

/// Measurements, and where they are from.
#[derive(Debug, Clone)]
pub struct Source {
    /// The file, or what else they are called in errors.
    pub name: PathBuf,
    /// What `weir bench` printed with `--json`.
    pub entries: Vec<Value>,
}

/// What is wrong with an entry.
#[derive(Debug, Clone, PartialEq)]
struct Wrong {
    /// Its key, dotted; empty for the entry itself.
    key: String,
    expected: String,
    found: String,
}

/// An SVG of the entries that `weir bench decode`, `compare`, `prefill` and `kernels` print with `--json`, of any number of
/// runs; `field` names all of them together in errors.
///
/// # Errors
/// [`Error::BadOption`] if there are none or too many, [`Error::Checkpoint`] naming the entry that is none of those.
pub fn svg(field: &'static str, sources: &[Source]) -> Result<String> {
    let count: usize = sources.iter().map(|source| source.entries.len()).sum();
    if !(1..=MAX_ENTRIES).contains(&count) {
        let bound = format!("1 to {MAX_ENTRIES} measurements");
        return Err(Error::BadOption { field, found: count.to_string(), bound });
    }
    let mut panels = panels::Panels::default();
    for Source { name, entries } in sources {
        for (index, entry) in entries.iter().enumerate() {
            panels.add(entry).map_err(|Wrong { key, expected, found }| {
                let place = if key.is_empty() { format!("entry {index}") } else { format!("entry {index}, {key}") };
                Error::checkpoint(name, place, expected, found)
            })?;
        }
    }
    draw::svg(&panels.finish())
}
