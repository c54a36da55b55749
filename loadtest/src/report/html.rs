//! Self-contained HTML page of a report: it fetches nothing, runs no script, and prints well.

use super::{
    charts,
    conditions::conditions,
    data::{Conditions, LoadPoint, MeasurementReport, MissingPart, ReportPart},
    figures::{BASELINE, COLUMNS, MODEL_COLUMNS, ModelColumn, NONE, SUMMARIES, optional_time, rows},
    table::{describe_failures, describe_knee, describe_load, describe_outcomes, is_nothing},
};
use crate::{
    comparison::result::{ComparedModel, ModelComparison},
    measure::{
        stats::RequestFigures,
        tester::{MIN_CPU_SHARE, TesterFigures},
    },
    units::{digits, time},
};
use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("style.css");

/// Draws the page of several reports, in order.
pub fn page(title: &str, reports: &[MeasurementReport]) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (title) }
                p.note {
                    "Measured by weir-loadtest, a gRPC client. Times of a request count from its intended start unless the row says "
                    "otherwise. A dash stands for a percentile of too few values."
                }
                @for report in reports { (report_section(report)) }
            }
        }
    };
    page.into_string()
}

fn report_section(report: &MeasurementReport) -> Markup {
    html! {
        @if let Some(why) = report.broken_off_sentence() {
            div.warn {
                strong { "Ended early: " } (why)
                @if let Some(missing) = report.missing.as_ref().filter(|missing| !missing.is_empty()) {
                    ul { @for MissingPart { model, what } in missing { li { (model) ": " (what) } } }
                } @else { "." }
            }
        }
        @for part in &report.parts { (part_section(part, &report.conditions)) }
        h2 { "Conditions" }
        (conditions(&report.conditions))
    }
}

fn part_section(part: &ReportPart, conditions: &Conditions) -> Markup {
    match part {
        ReportPart::Run { model, point } => {
            html! { h2 { (model) ": " (point.load.describe()) } (run(point, model, conditions)) }
        }
        ReportPart::Batches { model, points } => html! {
            h2 { (model) ": closed loops of growing concurrency" }
            (charts::batches(model, points, conditions))
            (points_table(points))
        },
        ReportPart::Rates { model, points, knee } => html! {
            h2 { (model) ": open loops of several rates" }
            p { strong { (describe_knee(knee)) } }
            (charts::rates(model, points, knee, conditions))
            (points_table(points))
        },
        ReportPart::Compare { comparison } => compare(comparison, conditions),
    }
}

fn warnings(tester: &TesterFigures) -> Markup {
    html! {
        @for limit in &tester.limits {
            p.warn { strong { "The tester may be the limit: " } (limit) "." }
        }
    }
}

fn run(point: &LoadPoint, model: &str, conditions: &Conditions) -> Markup {
    if is_nothing(point) {
        return html! { p.warn { (describe_outcomes(point)) "." } };
    }
    html! {
        p { (describe_outcomes(point)) "." }
        (warnings(&point.tester))
        (figures(&point.figures))
        (charts::gaps(&format!("{model}, {}", point.load.describe()), &point.figures, conditions))
        (charts::timeline(model, point))
        @for (workload, part) in conditions.workloads.iter().zip(&point.workloads) {
            h3 { "Workload " (workload.name) }
            (figures(part))
        }
        (tester(&point.tester))
    }
}

fn figures(figures: &RequestFigures) -> Markup {
    html! {
        div.scroll { table {
            thead { tr { th { "figure" } th { "count" } @for column in COLUMNS { th { (column) } } } }
            tbody {
                @for row in rows(figures) {
                    tr {
                        td { (row.name) small { (row.definition) } }
                        td { (row.values.count) }
                        @for cell in row.cells() { td { (cell) } }
                    }
                }
            }
        } }
    }
}

fn points_table(points: &[LoadPoint]) -> Markup {
    let head = "load | window | started | characters/s, all requests | goodput (see conditions) | first character p50 | p90 | \
        p99 | gap p50 | p99 | queue p90 (server) | succeeded | failed | tester";
    html! {
        div.scroll { table {
            thead { tr { @for cell in head.split(" | ") { th { (cell) } } } }
            tbody { @for point in points {
                @let figures = &point.figures;
                @let window = &point.window;
                tr {
                    (cell(&describe_load(point)))
                    td { (time(window.window_ns as f64)) }
                    td { (window.started) ", " (digits(window.started_per_second)) " /s" }
                    td { (digits(window.chars_per_second)) " /s" }
                    td { (digits(window.good_per_second)) " /s" }
                    td { (optional_time(figures.time_to_first_char_ns.p50)) }
                    td { (optional_time(figures.time_to_first_char_ns.p90)) }
                    td { (optional_time(figures.time_to_first_char_ns.p99)) }
                    td { (optional_time(figures.gap_ns.p50)) }
                    td { (optional_time(figures.gap_ns.p99)) }
                    td { (optional_time(figures.server.queue_ns.p90)) }
                    td { (figures.requests.well) " of " (figures.requests.measured) }
                    (cell(&describe_failures(&figures.requests)))
                    (cell(if point.tester.limits.is_empty() { "not the limit" } else { "may be the limit" }))
                }
            } }
        } }
        @for point in points { @for limit in &point.tester.limits {
            p.warn { strong { "At " (point.load.describe()) " the tester may be the limit: " } (limit) "." }
        } }
    }
}

fn tester(tester: &TesterFigures) -> Markup {
    let share = tester.cpu_share.map(|share| format!("{} % of {} thread(s)", digits(share * 100.0), tester.threads));
    // reports of earlier versions have `messages_per_cpu_second` for any load
    let used = tester.cpu_share.unwrap_or(0.0) * tester.threads as f64;
    let capacity = tester.messages_per_cpu_second.filter(|_| used >= MIN_CPU_SHARE).map(digits);
    let peak = tester.peak_messages_per_second.map(|peak| format!(", at most {} /s", digits(peak)));
    html! {
        h3 { "The tester itself" }
        dl {
            dt { "messages" } dd { (digits(tester.messages_per_second)) " /s" (peak.unwrap_or_default()) }
            dt { "processor time" } dd { (share.unwrap_or_else(|| "not reported by this system".into())) }
            @if let Some(capacity) = capacity { dt { "capacity" } dd { (capacity) " messages/s per core at this cost" } }
            dt { "event lag" } dd {
                @for (name, lag) in [("p50", tester.event_lag_ns.p50), ("p99", tester.event_lag_ns.p99), ("max", tester.event_lag_ns.max)] {
                    @if let Some(lag) = lag { (name) " " (time(lag)) " " }
                }
                @if tester.event_lag_ns.count == 0 { "not measured" }
            }
            dt { "connections" } dd { (tester.connections) }
        }
    }
}

fn compare(comparison: &ModelComparison, conditions: &Conditions) -> Markup {
    let ModelComparison { baseline, rounds, complete, concurrency, warm_up, scored, models, .. } = comparison;
    let any = |has: fn(&ComparedModel) -> bool| models.iter().any(has);
    html! {
        h2 { "Measured gain over " (baseline) }
        p {
            "Request by request: " (complete) " rounds (of " (rounds) ", after " (warm_up) " not measured) in which every model answered "
            "the same prompt with the same seed and length, one after the other in changing order; " (concurrency) " round(s) at a time. "
            "A gain is the ratio of the baseline's median to the model's, over these rounds and from sending; in brackets is its 95 % "
            "bootstrap interval over rounds. Gains are measured, not estimated."
            @if any(|model| model.estimated.is_some()) {
                " Columns marked ESTIMATED are the server's estimates for the same requests: the time that each would have taken if the "
                "model ran its middle layers at every character, from the server's calibration, divided by the time it took. Measured "
                "and estimated gains are comparable if the baseline is such a model."
            }
            @if any(|model| model.figures.summaries.is_some()) {
                " All summaries have the requested number of tokens, but their characters depend on the model: compare tokens. "
                (SUMMARIES)
            }
        }
        @if let Some(units) = comparison.mixed_units() { p.note { (units) "." } }
        @if comparison.interrupted { p.warn { "The comparison was interrupted." } }
        @if let Some(tester) = &comparison.tester { (warnings(tester)) }
        (models_table(models))
        @if let Some(scored) = scored { p.note { "Bits per character: of " (scored) ", from the server's Score." } }
        @for model in models { @for error in model.estimate_errors() {
            p.note { (model.model) ", " (error.figure) ": the ESTIMATED gain is " (format!("{:+.1}", error.relative * 100.0)) " % from the measured one." }
        } }
        @for model in models { @if let Some(calibration) = &model.calibrated {
            p.(if calibration.doubt.is_some() { "warn" } else { "note" }) {
                strong { (model.model) ": calibration of the ESTIMATED gains: " } (calibration.describe()) "."
            }
        } }
        @for model in models { @if let Some(why) = &model.score_refused {
            p.note { (model.model) " has no bits per character: " (why) }
        } }
        (charts::gains(comparison))
        @for model in models {
            (charts::gaps(&format!("{}, {concurrency} at a time", model.model), &model.figures, conditions))
        }
        @if let Some(measured) = &comparison.tester { (tester(measured)) }
    }
}

/// Draws the models of a comparison, with the columns that have a value for any of them.
fn models_table(models: &[ComparedModel]) -> Markup {
    let has_values =
        |column: &&ModelColumn| models.iter().any(|model| ![NONE, BASELINE].contains(&(column.value)(model).as_str()));
    let columns: Vec<_> = MODEL_COLUMNS.iter().filter(has_values).collect();
    html! {
        div.scroll { table {
            thead { tr { @for column in &columns { th { (column.page) } } } }
            tbody { @for model in models { tr { @for column in &columns { (cell(&(column.value)(model))) } } } }
        } }
    }
}

/// Maximum characters of a cell without line breaks.
const MAX_UNWRAPPED: usize = 12;

/// Draws a cell; text in brackets goes to a second line, and long text wraps.
fn cell(text: &str) -> Markup {
    match text.split_once(" (") {
        Some((text, rest)) => html! { td { (text) small { "(" (rest) } } },
        None => html! { td.wrap[text.chars().count() > MAX_UNWRAPPED] { (text) } },
    }
}
