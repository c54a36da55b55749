//! Columns of loads that the page and the text table share.

use super::{
    data::LoadPoint,
    edits,
    figures::{NONE, optional_gap, optional_time},
    table::{describe_failures, describe_load},
};
use crate::{
    measure::{histogram::Percentiles, limits::TesterLimit},
    units::{digits, time},
};

/// Mark of a measurement whose figures the tester may have distorted.
pub(super) const LIMITED: &str = "†";
/// Mark after a name.
const AFTER_NAME: &str = " †";

/// Returns the mark that follows the name of a measurement with these limits; empty if there are none.
pub(super) fn mark(limits: &[TesterLimit]) -> &'static str {
    if limits.is_empty() { "" } else { AFTER_NAME }
}

/// Heading of the column of failed requests.
const FAILED: &str = "failed";

/// Column of a table of loads.
pub(super) struct PointColumn {
    /// Heading on the page.
    pub(super) page: &'static str,
    /// Heading in the text table.
    pub(super) table: &'static str,
    pub(super) value: fn(&LoadPoint) -> String,
}

impl PointColumn {
    /// Returns true for the column of failed requests, whose cells have lists.
    pub(super) fn is_of_failures(&self) -> bool {
        self.page == FAILED
    }
}

const fn column(page: &'static str, table: &'static str, value: fn(&LoadPoint) -> String) -> PointColumn {
    PointColumn { page, table, value }
}

const POINT_COLUMNS: [PointColumn; 15] = [
    column("window", "window", window),
    column("started /s", "started/s", |point| digits(point.window.started_per_second)),
    column("characters /s", "characters/s", |point| digits(point.window.chars_per_second)),
    column("goodput /s", "good/s", |point| digits(point.window.good_per_second)),
    column("first character p50", "first p50", |point| optional_time(point.figures.time_to_first_char_ns.p50)),
    column("p90", "first p90", |point| optional_time(point.figures.time_to_first_char_ns.p90)),
    column("p99", "first p99", |point| optional_time(point.figures.time_to_first_char_ns.p99)),
    column("gap p50", "gap p50", |point| optional_gap(point.figures.gap_ns.p50)),
    column("p99", "gap p99", |point| optional_gap(point.figures.gap_ns.p99)),
    column("keystroke to completions p50", "keystroke p50", |point| optional_time(keystroke(point).p50)),
    column("p99", "keystroke p99", |point| optional_time(keystroke(point).p99)),
    column("keystrokes saved by the first completion", "saved", |point| edits::saved(&point.figures)),
    column("queue p90", "queue p90", |point| optional_time(point.figures.server.queue_ns.p90)),
    column("succeeded", "succeeded", |point| {
        format!("{} of {}", point.figures.requests.well, point.figures.requests.measured)
    }),
    column(FAILED, FAILED, |point| describe_failures(&point.figures.requests)),
];

fn keystroke(point: &LoadPoint) -> Percentiles {
    point.figures.edits.as_ref().map(|edits| edits.keystroke_ns).unwrap_or_default()
}

pub(super) fn window(point: &LoadPoint) -> String {
    time(point.window.window_ns as f64)
}

/// Returns the columns in which any of the loads has a value. A count of zero failures is not a value.
pub(super) fn point_columns(points: &[&LoadPoint]) -> Vec<&'static PointColumn> {
    let empty = |column: &PointColumn| if column.is_of_failures() { "0" } else { NONE };
    let has_values = |column: &&PointColumn| points.iter().any(|point| (column.value)(point) != empty(column));
    POINT_COLUMNS.iter().filter(has_values).collect()
}

/// Describes a load next to others of its kind: by its number of clients or its rate.
pub(super) fn short_load(point: &LoadPoint) -> String {
    match (point.load.concurrency(), point.load.rate()) {
        (Some(concurrency), _) => format!("{concurrency} at a time"),
        (None, Some(rate)) => format!("{} requests/s", digits(rate)),
        (None, None) => point.load.describe(),
    }
}

/// Describes a load in a table: with a mark if the tester may have distorted its figures, and whether it ended early.
pub(super) fn load_cell(point: &LoadPoint) -> String {
    let load = describe_load(point).replacen(&point.load.describe(), &short_load(point), 1);
    load + mark(&point.tester_limits())
}
