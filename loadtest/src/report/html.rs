//! The report as one page of HTML: nothing is fetched, no script runs, and it prints.

use super::{
    charts,
    conditions::conditions,
    data::{Conditions, LoadPoint, MeasurementReport, MissingPart, ReportPart},
    figure_rows::{COLUMNS, SUMMARIES, pooled_words, rows},
    table::{cached_words, ends, failures, gain_words, is_nothing, knee_words, load_words},
};
use crate::{
    comparison::{ComparedModel, Gains, ModelComparison, bootstrap::Gain},
    measure::{
        stats::RequestFigures,
        tester::{TELLING, TesterFigures},
    },
    units::{digits, time},
};
use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("style.css");

/// The page of several documents, in order.
pub fn page(title: &str, documents: &[MeasurementReport]) -> String {
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
                    "Measured by a client over gRPC with weir-loadtest. Times of a request count from the moment at which it was "
                    "to be sent, unless the row says otherwise; a dash stands where there are too few numbers for a percentile."
                }
                @for document in documents { (one(document)) }
            }
        }
    };
    page.into_string()
}

fn one(document: &MeasurementReport) -> Markup {
    html! {
        @if let Some(why) = document.broken_words() {
            div.warn {
                strong { "Broken off: " } (why)
                @if let Some(missing) = document.missing.as_ref().filter(|missing| !missing.is_empty()) {
                    ul { @for MissingPart { model, what } in missing { li { (model) ": " (what) } } }
                } @else { "." }
            }
        }
        @for part in &document.parts { (part_of(part, &document.conditions)) }
        h2 { "Conditions" }
        (conditions(&document.conditions))
    }
}

fn part_of(part: &ReportPart, conditions: &Conditions) -> Markup {
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
            p { strong { (knee_words(knee)) } }
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
        return html! { p.warn { (ends(point)) "." } };
    }
    html! {
        p { (ends(point)) "." }
        (warnings(&point.tester))
        (figures(&point.figures))
        (charts::gaps(&format!("{model}, {}", point.load.describe()), &point.figures, conditions))
        (charts::course(model, point))
        @if !point.workloads.is_empty() {
            @for (described, part) in conditions.workloads.iter().zip(&point.workloads) {
                h3 { "Workload " (described.name) }
                (figures(part))
            }
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
                        td { (row.name) small { (row.what) } }
                        td { (row.spread.count) }
                        @for cell in row.cells() { td { (cell) } }
                    }
                }
            }
        } }
    }
}

fn points_table(points: &[LoadPoint]) -> Markup {
    let head = [
        "load",
        "window",
        "started in it",
        "characters/s, all requests",
        "goodput (see conditions)",
        "first character p50",
        "p90",
        "p99",
        "gap p50",
        "p99",
        "queue p90 (server's word)",
        "well",
        "failed",
        "tester",
    ];
    html! {
        div.scroll { table {
            thead { tr { @for cell in head { th { (cell) } } } }
            tbody { @for point in points {
                @let (figures, window) = (&point.figures, &point.window);
                tr {
                    (cell(&load_words(point)))
                    td { (time(window.window_ns as f64)) }
                    td { (window.started) ", " (digits(window.started_per_second)) " /s" }
                    td { (digits(window.chars_per_second)) " /s" }
                    td { (digits(window.good_per_second)) " /s" }
                    td { (told(figures.time_to_first_char_ns.p50)) }
                    td { (told(figures.time_to_first_char_ns.p90)) }
                    td { (told(figures.time_to_first_char_ns.p99)) }
                    td { (told(figures.gap_ns.p50)) }
                    td { (told(figures.gap_ns.p99)) }
                    td { (told(figures.server.queue_ns.p90)) }
                    td { (figures.requests.well) " of " (figures.requests.measured) }
                    (cell(&failures(&figures.requests)))
                    (cell(if point.tester.limits.is_empty() { "at ease" } else { "may be the limit" }))
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
    // reports of earlier versions have one of any load
    let used = tester.cpu_share.unwrap_or(0.0) * tester.threads as f64;
    let most = tester.messages_per_cpu_second.filter(|_| used >= TELLING).map(digits);
    let peak = tester.peak_messages_per_second.map(|most| format!(", at most {} /s", digits(most)));
    html! {
        h3 { "The tester itself" }
        dl {
            dt { "messages" } dd { (digits(tester.messages_per_second)) " /s" (peak.unwrap_or_default()) }
            dt { "processor time" } dd { (share.unwrap_or_else(|| "not told by this system".into())) }
            @if let Some(most) = most { dt { "it could take" } dd { (most) " messages/s and core at this cost" } }
            dt { "events seen late by" } dd {
                @for (name, late) in [("p50", tester.event_lag_ns.p50), ("p99", tester.event_lag_ns.p99), ("max", tester.event_lag_ns.max)] {
                    @if let Some(late) = late { (name) " " (time(late)) " " }
                }
                @if tester.event_lag_ns.count == 0 { "not measured" }
            }
            dt { "connections" } dd { (tester.connections) }
        }
    }
}

/// What stands where there is nothing to tell.
const NONE: &str = "–";
/// What stands for the gain of the model that others are measured by.
const BASELINE: &str = "baseline";

fn gain(gains: Option<&Gains>, of: fn(&Gains) -> Option<Gain>) -> String {
    gains.map_or_else(|| BASELINE.into(), |gains| gain_words(of(gains)))
}

fn told(ns: Option<f64>) -> String {
    ns.map_or(NONE.to_owned(), time)
}

fn compare(comparison: &ModelComparison, conditions: &Conditions) -> Markup {
    let ModelComparison { baseline, rounds, complete, concurrency, warm_up, scored, models, .. } = comparison;
    let has = |of: fn(&ComparedModel) -> bool| models.iter().any(of);
    html! {
        h2 { "Measured gain over " (baseline) }
        p {
            "Request by request: " (complete) " rounds (of " (rounds) ", after " (warm_up) " that were not measured) in which every model "
            "answered the same prompt with the same seed and length, one after the other in changing order; " (concurrency)
            " round(s) at a time. A gain is a ratio of medians over these rounds, the baseline's by the model's, both from sending; in "
            "brackets its 95 % bootstrap interval over rounds. Measured, not estimated."
            @if has(|side| side.estimated.is_some()) {
                " Columns that say ESTIMATED are the server's own word of the same requests: what each would have taken by the server's "
                "calibration had the model run its middle layers at every character, by what it took. Where the baseline is that "
                "model, both are about the same thing."
            }
            @if has(|side| side.figures.summaries.is_some()) {
                " Summaries have as many tokens as asked for, and as many characters as the model writes with them: compare tokens. "
                (SUMMARIES)
            }
        }
        @if comparison.interrupted { p.warn { "The comparison was interrupted." } }
        @if let Some(told) = &comparison.tester { (warnings(told)) }
        (sides(models))
        @if let Some(scored) = scored { p.note { "Bits per character: of " (scored) ", by the server's Score." } }
        @for side in models { @for (what, share) in side.disagreement() {
            p.note { (side.model) ", " (what) ": the ESTIMATED gain is " (format!("{:+.1}", share * 100.0)) " % from the measured one." }
        } }
        @for side in models { @if let Some(table) = &side.calibrated {
            p.(if table.doubt.is_some() { "warn" } else { "note" }) {
                strong { (side.model) ": ESTIMATED gains by a calibration: " } (table.describe()) "."
            }
        } }
        @for side in models { @if let Some(why) = &side.score_refused {
            p.note { (side.model) " has no bits per character: " (why) }
        } }
        (charts::gains(comparison))
        @for side in models {
            (charts::gaps(&format!("{}, {concurrency} at a time", side.model), &side.figures, conditions))
        }
        @if let Some(told) = &comparison.tester { (tester(told)) }
    }
}

/// A column of a comparison: what it is called, and what it says of a model; `–` where there is nothing to say.
type Column = (&'static str, fn(&ComparedModel) -> String);

const SIDES: [Column; 18] = [
    ("model", |side| side.model.clone()),
    ("gain: total", |side| gain(side.gains.as_ref(), |gains| gains.total)),
    ("gain: first character", |side| gain(side.gains.as_ref(), |gains| gains.time_to_first_char)),
    ("gain: per character", |side| gain(side.gains.as_ref(), |gains| gains.char)),
    ("ESTIMATED gain: total", |side| gain_words(side.estimated.as_ref().and_then(|gains| gains.total))),
    ("ESTIMATED gain: per character", |side| gain_words(side.estimated.as_ref().and_then(|gains| gains.char))),
    ("gain: encode", |side| gain_words(side.gains.as_ref().and_then(|gains| gains.encode))),
    ("gain: per token of a summary", |side| gain_words(side.gains.as_ref().and_then(|gains| gains.decode_token))),
    ("median: total", |side| told(side.told().total_ns)),
    ("median: first character", |side| told(side.told().time_to_first_char_ns)),
    ("median: per character", |side| told(side.told().char_ns)),
    ("median: encode (server's word)", |side| told(side.told().encode_ns)),
    ("median: per token (server's word)", |side| told(side.told().decode_token_ns)),
    ("characters per segment (SF)", |side| {
        side.figures.shortening_factor.map_or(NONE.to_owned(), |factor| format!("{factor:.3}"))
    }),
    ("pooled (keys and values of a document)", |side| pooled_words(&side.figures)),
    ("bits per character", |side| side.bits_per_char.map_or(NONE.to_owned(), |bits| format!("{bits:.4}"))),
    ("cached by the server", |side| cached_words(&side.figures)),
    ("well", |side| format!("{} of {}", side.figures.requests.well, side.figures.requests.measured)),
];

/// The models of a comparison, in the columns that say something of any of them: the page is no wider than it must be.
fn sides(models: &[ComparedModel]) -> Markup {
    let says = |(_, of): &&Column| models.iter().any(|side| ![NONE, BASELINE].contains(&of(side).as_str()));
    let columns: Vec<_> = SIDES.iter().filter(says).collect();
    html! {
        div.scroll { table {
            thead { tr { @for (head, _) in &columns { th { (head) } } } }
            tbody { @for side in models { tr { @for (_, of) in &columns { (cell(&of(side))) } } } }
        } }
    }
}

/// Characters of a cell that needs no second line.
const SHORT: usize = 12;

/// A cell whose words in brackets stand below the others, and which wraps where there are many.
fn cell(words: &str) -> Markup {
    match words.split_once(" (") {
        Some((words, more)) => html! { td { (words) small { "(" (more) } } },
        None => html! { td.wrap[words.chars().count() > SHORT] { (words) } },
    }
}
