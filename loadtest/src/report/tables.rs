//! HTML tables of a report. Columns without values are left out.

use super::{
    chapters::{ModelPoints, ModelRun},
    charts::label_of,
    cover::WARNINGS,
    figures::{BASELINE, COLUMNS, FigureRow, MODEL_COLUMNS, NONE, rows, used_columns},
    points::{LIMITED, load_cell, mark, point_columns, window},
};
use crate::{
    comparison::result::ComparedModel,
    load::workload::WorkloadInfo,
    measure::{
        stats::RequestFigures,
        tester::{MIN_CPU_SHARE, TesterFigures},
    },
    units::{digits, time},
};
use maud::{Markup, html};

/// Draws the loads of several models and marks those that the tester may have distorted.
pub(super) fn points_table(models: &[ModelPoints<'_>]) -> Markup {
    let points = || models.iter().flat_map(|all| all.points);
    let mut windows: Vec<_> = points().map(window).collect();
    windows.dedup();
    let mut arrivals: Vec<_> = points().filter_map(|point| point.load.arrivals()).collect();
    arrivals.dedup();
    let mut columns = point_columns(&points().collect::<Vec<_>>());
    columns.retain(|column| column.page != "window" || windows.len() > 1);
    let has_failures = columns.iter().any(|column| column.is_of_failures());
    html! {
        p.note {
            "Each load is a separate run"
            @if let [window] = &windows[..] { ", measured for " (window) }
            @if !arrivals.is_empty() { "; arrivals: " (arrivals.join(", ")) }
            "."
            @if has_failures { " Failed requests are counted by gRPC code." }
        }
        (marked_note(points().any(|point| !point.tester_limits().is_empty())))
        div.scroll { table.points {
            thead { tr { th { "model, load" } @for column in &columns { th { (column.page) } } } }
            tbody {
                @for all in models {
                    @if models.len() > 1 { tr.group { th colspan=(columns.len() + 1) { (all.model) } } }
                    @for point in all.points {
                        tr {
                            td { (load_cell(point)) }
                            @for column in &columns {
                                td.list[column.is_of_failures()] { ((column.value)(point)) }
                            }
                        }
                    }
                }
            }
        } }
    }
}

/// Explains the mark, where there is one.
pub(super) fn marked_note(is_marked: bool) -> Markup {
    html! {
        @if is_marked {
            p.note { (LIMITED) " The tester may have distorted these figures: " a href=(format!("#{WARNINGS}")) { "see why" } "." }
        }
    }
}

/// Row of the figures of several loads: the values of each that has them, with the load's index.
struct MergedRow {
    /// Name with that of the row it belongs to, which identifies the row.
    key: String,
    name: &'static str,
    definition: &'static str,
    values: Vec<(usize, FigureRow)>,
}

/// Merges the rows of several loads in their order.
fn merge(all: &[&RequestFigures]) -> Vec<MergedRow> {
    let mut merged: Vec<MergedRow> = Vec::new();
    for (index, figures) in all.iter().enumerate() {
        let mut parent = "";
        let mut place = 0;
        for row in rows(figures) {
            // a row that begins with dots belongs to the one before
            let key = if row.name.starts_with('…') { format!("{parent}{}", row.name) } else { row.name.to_owned() };
            if !row.name.starts_with('…') {
                parent = row.name;
            }
            let found = merged.iter().position(|known| known.key == key);
            let at = found.unwrap_or_else(|| {
                let new = MergedRow { key, name: row.name, definition: row.definition, values: vec![] };
                merged.insert(place, new);
                place
            });
            place = at + 1;
            if let Some(known) = merged.get_mut(at) {
                known.values.push((index, row));
            }
        }
    }
    merged
}

/// Draws the figures of loads, those of each of their workloads, and how busy the tester was.
pub(super) fn run_tables(runs: &[ModelRun<'_>], workloads: &[WorkloadInfo]) -> Markup {
    let labels: Vec<_> = runs.iter().map(|run| label_of(run, runs)).collect();
    let all: Vec<_> = runs.iter().map(|run| &run.point.figures).collect();
    let marked = |(run, label): (&ModelRun<'_>, &String)| format!("{label}{}", mark(&run.point.tester_limits()));
    let names = runs.iter().zip(&labels).map(marked);
    let testers: Vec<_> = names.zip(runs.iter().map(|run| &run.point.tester)).collect();
    html! {
        (figures(&labels, &all))
        @for (run, label) in runs.iter().zip(&labels) {
            @for (workload, part) in workloads.iter().zip(&run.point.workloads) {
                h4 { (label) ": workload " (workload.name) }
                (figures(std::slice::from_ref(label), &[part]))
            }
        }
        (tester(&testers))
    }
}

fn figures(labels: &[String], all: &[&RequestFigures]) -> Markup {
    let merged = merge(all);
    let used = used_columns(merged.iter().flat_map(|row| row.values.iter().map(|(_, value)| value)));
    let several = labels.len() > 1;
    html! {
        div.scroll { table.figures {
            thead { tr {
                th { "figure" }
                @if several { th { "model" } }
                th { "count" }
                @for column in &used { th { (COLUMNS.get(*column).copied().unwrap_or_default()) } }
            } }
            tbody { @for row in &merged { @for (position, (index, value)) in row.values.iter().enumerate() {
                tr.first[position == 0] {
                    @if position == 0 { td rowspan=(row.values.len()) { (row.name) small { (row.definition) } } }
                    @if several { td { (labels.get(*index).map(String::as_str).unwrap_or_default()) } }
                    td { (value.values.count) }
                    @let cells = value.cells();
                    @for column in &used { td { (cells.get(*column).map(String::as_str).unwrap_or_default()) } }
                }
            } } }
        } }
    }
}

/// Row of the tester's table: its name, and its value.
type TesterRow = (&'static str, fn(&TesterFigures) -> String);

const TESTER_ROWS: [TesterRow; 5] = [
    ("messages", |tester| {
        let peak = tester.peak_messages_per_second.map(|peak| format!(", at most {} /s", digits(peak)));
        format!("{} /s{}", digits(tester.messages_per_second), peak.unwrap_or_default())
    }),
    ("processor time", |tester| {
        let share =
            tester.cpu_share.map(|share| format!("{} % of {} thread(s)", digits(share * 100.0), tester.threads));
        share.unwrap_or_else(|| "not reported by this system".into())
    }),
    ("capacity", |tester| {
        // reports of earlier versions have `messages_per_cpu_second` for any load
        let used = tester.cpu_share.unwrap_or(0.0) * tester.threads as f64;
        let capacity = tester.messages_per_cpu_second.filter(|_| used >= MIN_CPU_SHARE);
        capacity.map_or(NONE.into(), |capacity| format!("{} messages/s per core at this cost", digits(capacity)))
    }),
    ("event lag", |tester| {
        let lag = tester.event_lag_ns;
        let all = [("p50", lag.p50), ("p99", lag.p99), ("max", lag.max)];
        let all: Vec<_> = all.iter().filter_map(|(name, lag)| Some(format!("{name} {}", time((*lag)?)))).collect();
        if all.is_empty() { "not measured".into() } else { all.join(", ") }
    }),
    ("connections", |tester| tester.connections.to_string()),
];

/// Draws how busy the tester was in several measurements.
pub(super) fn tester(measured: &[(String, &TesterFigures)]) -> Markup {
    let has_values = |(_, value): &&TesterRow| measured.iter().any(|(_, tester)| value(tester) != NONE);
    html! {
        div.scroll { table.words {
            thead { tr { th { "The tester itself" } @for (label, _) in measured { th { (label) } } } }
            tbody { @for (name, value) in TESTER_ROWS.iter().filter(has_values) {
                tr { td { (name) } @for (_, tester) in measured { td { (value(tester)) } } }
            } }
        } }
    }
}

/// Draws the models of a comparison side by side, with the figures that any of them has.
pub(super) fn models_table(models: &[ComparedModel]) -> Markup {
    let rows = MODEL_COLUMNS.iter().skip(1).filter_map(|column| {
        let cells: Vec<_> = models.iter().map(|model| (column.value)(model)).collect();
        let has_values = cells.iter().any(|cell| ![NONE, BASELINE].contains(&cell.as_str()));
        has_values.then_some((column.page, cells))
    });
    html! {
        div.scroll { table.compared {
            thead { tr { th { "figure" } @for model in models { th { (model.model) } } } }
            tbody { @for (name, cells) in rows { tr { td { (name) } @for text in cells { (cell(&text)) } } } }
        } }
    }
}

/// Draws a cell; text in brackets goes to a second line.
fn cell(text: &str) -> Markup {
    match text.split_once(" (") {
        Some((text, rest)) => html! { td { (text) " " small { "(" (rest) } } },
        None => html! { td { (text) } },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::histogram::Percentiles;

    #[test]
    fn rows_of_several_loads_are_merged_in_order() {
        let some = Percentiles { count: 1, p50: Some(5e3), ..Percentiles::default() };
        let whole = RequestFigures { time_to_first_char_ns: some, gap_ns: some, ..RequestFigures::default() };
        let split = RequestFigures {
            plain_gap_ns: Some(some),
            boundary_gap_ns: Some(some),
            time_to_first_char_from_send_ns: some,
            total_ns: some,
            total_from_send_ns: some,
            ..whole.clone()
        };
        let merged = merge(&[&whole, &split]);
        let names: Vec<_> = merged.iter().map(|row| (row.name, row.values.len())).collect();
        let expected = [
            ("time to first character", 2),
            ("… from sending", 1),
            ("total", 1),
            ("… from sending", 1),
            ("plain gap", 1),
            ("boundary gap", 1),
            ("gap", 1),
        ];
        assert_eq!(names, expected);
        let drawn = figures(&["a".into(), "b".into()], &[&whole, &split]).into_string();
        assert!(drawn.contains("<th>p50</th>") && !drawn.contains("<th>p99</th>"), "{drawn}");
        assert!(drawn.contains("&lt; 20 µs") && drawn.contains("5.00 µs"), "{drawn}");
    }
}
