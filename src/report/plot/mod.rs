//! Pictures of measurements, from their JSON: what was just measured and what was saved are drawn alike.
//!
//! `panels` knows the entries' fields; `draw` knows lines and axes.

mod draw;
mod panels;

use crate::error::{Error, Result};
use serde_json::Value;

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

/// An SVG of the entries that `weir bench decode`, `compare`, `prefill` and `kernels` print with `--json`, of any number of
/// runs; `source` names them in errors.
///
/// # Errors
/// [`Error::BadOption`] if there is nothing to draw, or an entry is none of those.
pub fn svg(source: &'static str, entries: &[Value]) -> Result<String> {
    if !(1..=MAX_ENTRIES).contains(&entries.len()) {
        let bound = format!("1 to {MAX_ENTRIES} measurements");
        return Err(Error::BadOption { field: source, found: entries.len().to_string(), bound });
    }
    let panels = panels::panels(entries).map_err(|index| Error::BadOption {
        field: source,
        found: format!("entry {index}"),
        bound: "measurements of weir bench decode, compare, prefill or kernels, as --json prints them".into(),
    })?;
    draw::svg(&panels)
}
