//! Text tables of a report.

use super::{
    conditions::server,
    data::{Conditions, LoadPoint, MeasurementReport, MissingPart, ReportPart},
    edits,
    figures::{
        COLUMNS, GOODPUT, MODEL_COLUMNS, ModelColumn, NONE, SUMMARIES, cached_shares, describe_cached, optional_number,
        rows, used_columns,
    },
    points::{load_cell, mark, point_columns},
    warnings::tester_warnings,
};
use crate::{
    client::models::ModelInfo,
    comparison::result::{EstimateError, ModelComparison},
    knee::Knee,
    load::workload::WorkloadInfo,
    measure::{
        stats::{OutcomeCounts, RequestFigures},
        tester::TesterFigures,
    },
    units::{digits, time},
};
use std::{collections::BTreeMap, fmt::Write, iter};

/// Draws all parts of all reports, and then the warnings about the tester.
pub fn table(reports: &[MeasurementReport]) -> String {
    let mut out = String::new();
    // never fails: the writer is a `String`
    let _ = reports.iter().try_for_each(|report| write_report(&mut out, report));
    let _ = tester_warnings(reports).iter().try_for_each(|warning| writeln!(out, "WARNING: {warning}"));
    out
}

fn write_report(out: &mut String, report: &MeasurementReport) -> std::fmt::Result {
    if let Some(why) = report.broken_off_sentence() {
        writeln!(out, "ENDED EARLY: {why}")?;
        for MissingPart { model, what } in report.missing.iter().flatten() {
            writeln!(out, "  {model}: {what}")?;
        }
        out.push('\n');
    }
    for part in &report.parts {
        match part {
            ReportPart::Run { model, point } => {
                writeln!(out, "{model}: {}{}", point.load.describe(), mark(&point.tester_limits()))?;
                run(out, point, &report.conditions.workloads)?;
            }
            ReportPart::Batches { model, points } => {
                writeln!(out, "{model}: closed loops")?;
                points_table(out, points)?;
            }
            ReportPart::Rates { model, points, knee } => {
                let arrivals = points.first().and_then(|point| point.load.arrivals());
                let arrivals = arrivals.map(|arrivals| format!(", {arrivals} arrivals")).unwrap_or_default();
                writeln!(out, "{model}: open loops{arrivals}")?;
                points_table(out, points)?;
                writeln!(out, "{}", describe_knee(knee))?;
            }
            ReportPart::Compare { comparison } => compare(out, comparison)?,
        }
        out.push('\n');
    }
    if report.parts.iter().any(|part| !matches!(part, ReportPart::Compare { .. })) {
        let objectives = report.conditions.objectives.as_ref().map(|all| format!(", with {all}")).unwrap_or_default();
        writeln!(out, "good: succeeds{objectives}; goodput: {GOODPUT}")?;
    }
    conditions(out, &report.conditions)
}

/// Writes the server's description of itself, and the settings of the requests.
fn conditions(out: &mut String, conditions: &Conditions) -> std::fmt::Result {
    writeln!(out, "server: {}", server(conditions))?;
    for ModelInfo { name, family, shape, dtype, rows, unit, .. } in &conditions.models {
        let shape = if shape.is_empty() { family } else { shape };
        let unit = unit.map_or_else(String::new, |unit| format!(", symbols are {}", unit.name()));
        writeln!(out, "  {name}: {shape}, {dtype}{unit}, at most {rows} requests at once")?;
    }
    for WorkloadInfo { name, settings, .. } in
        conditions.workloads.iter().filter(|workload| !workload.settings.is_empty())
    {
        let mut values: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        settings.iter().for_each(|(name, value)| values.entry(value).or_default().push(name));
        let values: Vec<_> = values.iter().map(|(value, names)| format!("{}: {value}", names.join(", "))).collect();
        writeln!(out, "settings of workload {name}: {}", values.join("; "))?;
    }
    Ok(())
}

/// Writes lines of cells; each column is as wide as its widest cell.
fn aligned(out: &mut String, lines: &[Vec<String>]) -> std::fmt::Result {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| lines.iter().filter_map(|line| Some(line.get(column)?.chars().count())).max().unwrap_or(0);
    let widths: Vec<_> = (0..columns).map(width).collect();
    for line in lines {
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            let gap = " ".repeat(width - cell.chars().count());
            if column == 0 { write!(out, "{cell}{gap}")? } else { write!(out, "  {gap}{cell}")? }
        }
        writeln!(out)?;
    }
    Ok(())
}

fn run(out: &mut String, point: &LoadPoint, workloads: &[WorkloadInfo]) -> std::fmt::Result {
    if is_nothing(point) {
        return writeln!(out, "{NOTHING_MEASURED}");
    }
    figures_table(out, &point.figures)?;
    for (workload, figures) in workloads.iter().zip(&point.workloads) {
        writeln!(out, "workload {}: {}", workload.name, figures.requests.describe())?;
        figures_table(out, figures)?;
    }
    writeln!(out, "{}", describe_outcomes(point))?;
    tester(out, &point.tester)
}

fn figures_table(out: &mut String, figures: &RequestFigures) -> std::fmt::Result {
    let rows = rows(figures);
    let used = used_columns(rows.iter());
    let headings = used.iter().filter_map(|column| COLUMNS.get(*column).copied());
    let mut lines: Vec<Vec<_>> = vec![["", "count"].into_iter().chain(headings).map(str::to_owned).collect()];
    for row in &rows {
        let first = [row.name.to_owned(), row.values.count.to_string()];
        let cells = row.cells();
        lines.push(first.into_iter().chain(used.iter().filter_map(|column| cells.get(*column).cloned())).collect());
    }
    aligned(out, &lines)
}

/// True if the load was interrupted before any measured request.
pub(super) fn is_nothing(point: &LoadPoint) -> bool {
    point.interrupted && point.figures.requests.measured == 0
}

/// Shown instead of figures if the load was interrupted before any measured request.
const NOTHING_MEASURED: &str = "nothing was measured: interrupted before a request began after the warm-up";

/// Describes in a line how requests ended and what happened in the window.
pub(super) fn describe_outcomes(point: &LoadPoint) -> String {
    let LoadPoint { figures, window, .. } = point;
    if is_nothing(point) {
        return NOTHING_MEASURED.into();
    }
    let mut line = figures.requests.describe();
    let good = 100.0 * figures.good as f64 / (figures.requests.measured.max(1)) as f64;
    line += &format!(
        "; good {} ({} %), goodput {} requests/s; {} characters/s of all requests, over {}",
        figures.good,
        digits(good),
        digits(window.good_per_second),
        digits(window.chars_per_second),
        time(window.window_ns as f64)
    );
    if figures.messages > 0 {
        line += &format!("; {} characters in {} messages", figures.characters, figures.messages);
    }
    if cached_shares(figures).iter().any(|(share, _)| *share > 0.0) {
        line += &format!("; the server had cached: {}", describe_cached(figures));
    }
    line += &edits::describe(figures);
    line += &describe_shortening(point);
    if point.interrupted {
        line += "; interrupted";
    }
    if let Some(why) = &point.broken_off {
        line += &format!("; ENDED EARLY: {why}");
    }
    line
}

/// Describes the shortening factors; empty if no segment was closed.
fn describe_shortening(point: &LoadPoint) -> String {
    if let Some(factor) = point.figures.shortening_factor {
        return format!("; shortening factor {}", optional_number(Some(factor), 3));
    }
    let models = &point.shortening_by_model;
    if models.iter().all(|model| model.factor.is_none()) {
        return String::new();
    }
    let models: Vec<_> =
        models.iter().map(|model| format!("{} of {}", optional_number(model.factor, 3), model.model)).collect();
    format!("; shortening factor {} (separate, because the models differ)", models.join(", "))
}

/// Describes one of several loads, and whether it ended early.
pub(super) fn describe_load(point: &LoadPoint) -> String {
    let end = match (&point.broken_off, point.interrupted) {
        (Some(_), _) => " (ended early: the server went away)",
        (None, true) => " (interrupted)",
        (None, false) => "",
    };
    format!("{}{end}", point.load.describe())
}

pub(super) fn describe_failures(outcomes: &OutcomeCounts) -> String {
    let all: Vec<_> = outcomes.errors.iter().map(|(code, count)| format!("{count} {code}")).collect();
    if all.is_empty() { "0".into() } else { all.join(", ") }
}

fn tester(out: &mut String, tester: &TesterFigures) -> std::fmt::Result {
    let mut line = format!("tester: {} messages/s", digits(tester.messages_per_second));
    if let Some(peak) = tester.peak_messages_per_second {
        line += &format!(", at most {} /s", digits(peak));
    }
    if let Some(share) = tester.cpu_share {
        line += &format!(", {} % of {} thread(s)", digits(share * 100.0), tester.threads);
    }
    if let Some(lag) = tester.event_lag_ns.p99 {
        let max = tester.event_lag_ns.max.map(|max| format!(", at most {}", time(max))).unwrap_or_default();
        line += &format!(", event lag p99 {}{max}", time(lag));
    }
    writeln!(out, "{line}")
}

fn points_table(out: &mut String, points: &[LoadPoint]) -> std::fmt::Result {
    let columns = point_columns(&points.iter().collect::<Vec<_>>());
    let headings = columns.iter().map(|column| column.table);
    let mut lines: Vec<Vec<_>> = vec![iter::once("load").chain(headings).map(str::to_owned).collect()];
    for point in points {
        let cells = columns.iter().map(|column| (column.value)(point));
        lines.push(iter::once(load_cell(point)).chain(cells).collect());
    }
    aligned(out, &lines)
}

pub(super) fn describe_knee(knee: &Knee) -> String {
    format!("{}. Rule: {}", describe_knee_result(knee), knee.rule)
}

/// Describes the knee without the rule.
pub(super) fn describe_knee_result(knee: &Knee) -> String {
    let per_second = |rate: f64| format!("{} requests/s", digits(rate));
    let result = match (knee.rate, knee.broken_at) {
        (Some(held), Some(broken)) => format!("knee: {}; {} was not sustained", per_second(held), per_second(broken)),
        (Some(held), None) => format!("no knee: {}, the highest rate tried, was sustained", per_second(held)),
        (None, Some(broken)) => format!("knee below {}, the lowest rate tried", per_second(broken)),
        (None, None) => "no rate was tried".into(),
    };
    let why = knee.broken_by.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
    format!("{result}{why}")
}

fn compare(out: &mut String, comparison: &ModelComparison) -> std::fmt::Result {
    let ModelComparison { baseline, complete, rounds, concurrency, .. } = comparison;
    writeln!(
        out,
        "measured gain over {baseline}{}: {complete} complete rounds of {rounds}, {concurrency} at a time; 95 % intervals in brackets",
        mark(&comparison.tester_limits())
    )?;
    // columns of the other kinds of requests are left out
    let has_values = |column: &ModelColumn| comparison.models.iter().any(|model| (column.value)(model) != NONE);
    let columns = || MODEL_COLUMNS.iter().filter(|column| !column.table.is_empty() && has_values(column));
    let mut lines = vec![columns().map(|column| column.table.to_owned()).collect()];
    lines.extend(comparison.models.iter().map(|model| columns().map(|column| (column.value)(model)).collect()));
    aligned(out, &lines)?;
    if comparison.models.iter().any(|model| model.figures.summaries.is_some()) {
        writeln!(out, "{SUMMARIES}")?;
    }
    comparison.mixed_units().iter().try_for_each(|units| writeln!(out, "{units}"))?;
    comparison.tester.iter().try_for_each(|measured| tester(out, measured))?;
    remarks(out, comparison)
}

/// Writes remarks for which the table has no room.
fn remarks(out: &mut String, comparison: &ModelComparison) -> std::fmt::Result {
    if comparison.interrupted {
        writeln!(out, "the comparison was interrupted")?;
    }
    for model in &comparison.models {
        let name = &model.model;
        for EstimateError { figure, relative } in model.estimate_errors() {
            writeln!(
                out,
                "{name}: {figure}: the ESTIMATED gain is {:+.1} % from the measured one (comparable only if {} is this model without \
                 pooling)",
                relative * 100.0,
                comparison.baseline
            )?;
        }
        if let Some(calibration) = &model.calibrated {
            writeln!(out, "{name}: calibration of the ESTIMATED gains: {}", calibration.describe())?;
        }
        if let Some(why) = &model.score_refused {
            writeln!(out, "{name}: no bits per character: {why}")?;
        }
        let outcomes = &model.figures.requests;
        if outcomes.well < outcomes.measured {
            let errors = outcomes.errors.iter().map(|(code, count)| format!("{count} {code}"));
            let unfinished = (outcomes.unfinished > 0).then(|| format!("{} interrupted", outcomes.unfinished));
            let causes = errors.chain(unfinished).collect::<Vec<_>>().join(", ");
            writeln!(out, "{name}: {} of {} requests succeeded; {causes}", outcomes.well, outcomes.measured)?;
        }
    }
    Ok(())
}
