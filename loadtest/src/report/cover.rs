//! First page of the report: the results in sentences and pictures, the conditions in short, and the contents.

use super::{
    bars,
    chapters::{Chapter, ModelPoints, ModelRun},
    charts::label_of,
    conditions::{distinct, server, utc},
    edits,
    figures::{NONE, optional_gap, optional_time},
    sections::sections,
    warnings::tester_warnings,
};
use crate::{
    comparison::{
        bootstrap::Gain,
        result::{ComparedModel, ModelComparison},
    },
    load::workload::{EDIT, WorkloadInfo},
    units::digits,
};
use maud::{Markup, html};

/// Anchor of the warnings about the tester.
pub(super) const WARNINGS: &str = "warnings";

/// Draws the first page.
pub(super) fn cover(title: &str, chapters: &[Chapter<'_>]) -> Markup {
    let warnings = tester_warnings(chapters.iter().flat_map(|chapter| chapter.reports.iter().copied()));
    html! {
        section.cover {
            h1 { (title) }
            p.note { "Measured by weir-loadtest, a gRPC client." @if let Some(made) = chapters.first().and_then(Chapter::conditions) { " Begun " (utc(made.begun_unix_s)) "." } }
            @for chapter in chapters { (early_ends(chapter)) (results(chapter)) }
            @if !warnings.is_empty() {
                div id=(WARNINGS) { @for warning in &warnings { p.warn { strong { "Warning: " } (warning) "." } } }
            }
            (short_conditions(chapters))
            (contents(chapters))
        }
    }
}

fn early_ends(chapter: &Chapter<'_>) -> Markup {
    html! {
        @for report in &chapter.reports { @if let Some(why) = report.broken_off_sentence() {
            div.warn {
                strong { "Ended early: " } (why)
                @if let Some(missing) = report.missing.as_ref().filter(|missing| !missing.is_empty()) {
                    ul { @for missing in missing { li { (missing.model) ": " (missing.what) } } }
                } @else { "." }
            }
        } }
    }
}

fn results(chapter: &Chapter<'_>) -> Markup {
    html! {
        div.result {
            h2.short { (chapter.title()) }
            ul.headlines {
                @for comparison in &chapter.comparisons {
                    @for line in comparison_sentences(comparison) { li { (line) } }
                }
                @if let Some(line) = rates_sentence(&chapter.rates) { li { (line) } }
                @if let Some(line) = batches_sentence(&chapter.batches) { li { (line) } }
                @if chapter.comparisons.is_empty() { @for run in &chapter.runs { li { (run_sentence(run, &chapter.runs)) } } }
            }
            @for comparison in &chapter.comparisons {
                div.pair { (bars::gains(comparison)) (bars::bits(comparison)) }
            }
        }
    }
}

fn times(gain: Gain) -> String {
    let interval = match gain.low.zip(gain.high) {
        Some((low, high)) => format!("95 % interval {low:.2} to {high:.2}"),
        None => "too few rounds for an interval".into(),
    };
    format!("{:.2} times as fast ({interval})", gain.ratio)
}

/// Describes each model's gain over the baseline, and what it costs in bits per character.
fn comparison_sentences(comparison: &ModelComparison) -> Vec<String> {
    let baseline = comparison.models.first();
    let describe = |model: &ComparedModel| {
        let gains = model.gains.as_ref()?;
        let total = gains.total.map(|gain| format!("is {} for a whole answer", times(gain)));
        let chars = gains.char.filter(|_| total.is_none()).map(|gain| format!("is {} per character", times(gain)));
        let keystroke = gains.keystroke.map(|gain| format!("is {} from keystroke to completions", times(gain)));
        let mut parts: Vec<_> = total.into_iter().chain(chars).chain(keystroke).collect();
        if let Some((bits, first)) = model.bits_per_char.zip(baseline.and_then(|baseline| baseline.bits_per_char)) {
            let change = if first > 0.0 { format!(" ({:+.1} %)", (bits / first - 1.0) * 100.0) } else { String::new() };
            parts.push(format!("needs {bits:.3} bits per character instead of {first:.3}{change}"));
        }
        let all = parts.join(" and ");
        (!all.is_empty()).then(|| format!("{} {all}, compared with {}.", model.model, comparison.baseline))
    };
    comparison.models.iter().filter_map(describe).collect()
}

/// Describes the highest rates that the models sustained.
fn rates_sentence(rates: &[ModelPoints<'_>]) -> Option<String> {
    let one = |all: &ModelPoints<'_>| {
        let knee = all.knee?;
        let rate = |rate: f64| format!("{} requests/s", digits(rate));
        Some(match (knee.rate, knee.broken_at) {
            (Some(held), Some(_)) => format!("{} {}", all.model, rate(held)),
            (Some(held), None) => format!("{} at least {}", all.model, rate(held)),
            (None, Some(broken)) => format!("{} less than {}", all.model, rate(broken)),
            (None, None) => return None,
        })
    };
    let all: Vec<_> = rates.iter().filter_map(one).collect();
    (!all.is_empty()).then(|| format!("Sustained request rate: {}.", all.join(", ")))
}

/// Describes the throughput at the highest concurrency that all models have.
fn batches_sentence(batches: &[ModelPoints<'_>]) -> Option<String> {
    let counts =
        |all: &ModelPoints<'_>| all.points.iter().filter_map(|point| point.load.concurrency()).collect::<Vec<_>>();
    let common = batches.iter().map(counts).reduce(|a, b| a.into_iter().filter(|count| b.contains(count)).collect());
    let highest = common?.into_iter().max()?;
    let has_summaries = batches.iter().any(|all| all.points.iter().any(|point| point.figures.summaries.is_some()));
    let one = |all: &ModelPoints<'_>| {
        let point = all.points.iter().find(|point| point.load.concurrency() == Some(highest))?;
        // summaries have equally many tokens, but not characters
        let (speed, unit) = if has_summaries {
            (point.window.succeeded_per_second, "summaries/s")
        } else {
            (point.window.chars_per_second, "characters/s")
        };
        Some(format!("{} {} {unit}", all.model, digits(speed)))
    };
    let all: Vec<_> = batches.iter().filter_map(one).collect();
    Some(format!(
        "Throughput with {highest} {} at a time: {}.",
        if highest == 1 { "request" } else { "requests" },
        all.join(", ")
    ))
}

fn run_sentence(run: &ModelRun<'_>, all: &[ModelRun<'_>]) -> String {
    let figures = &run.point.figures;
    let first = figures.time_to_first_char_ns;
    if let Some(edits) = &figures.edits {
        return format!(
            "{}, {}: {} of {} requests succeeded; keystroke to completions p50 {}, p90 {}, p99 {}; keystrokes saved by the first \
             completion: {}.",
            label_of(run, all),
            run.point.load.describe(),
            figures.requests.well,
            figures.requests.measured,
            optional_time(edits.keystroke_ns.p50),
            optional_time(edits.keystroke_ns.p90),
            optional_time(edits.keystroke_ns.p99),
            edits::saved(figures)
        );
    }
    format!(
        "{}, {}: {} of {} requests succeeded; first character p50 {}, p90 {}; gap p50 {}.",
        label_of(run, all),
        run.point.load.describe(),
        figures.requests.well,
        figures.requests.measured,
        optional_time(first.p50),
        optional_time(first.p90),
        optional_gap(figures.gap_ns.p50)
    )
}

/// Describes a workload in a line.
pub(super) fn describe_workload(workload: &WorkloadInfo) -> String {
    let model = workload.model.as_ref().map(|model| format!(", of {model}")).unwrap_or_default();
    let WorkloadInfo { name, kind, text, prompt_chars, output_chars, .. } = workload;
    if kind == EDIT {
        return format!("{name} ({kind}): {output_chars} after {prompt_chars} characters of {text}{model}");
    }
    format!("{name} ({kind}): prompts of {prompt_chars} characters from {text}, answers of {output_chars}{model}")
}

/// Draws the conditions of all chapters that a reader needs first.
fn short_conditions(chapters: &[Chapter<'_>]) -> Markup {
    let Some(first) = chapters.first().and_then(Chapter::conditions) else { return html! {} };
    let all = || chapters.iter().filter_map(Chapter::conditions);
    html! {
        h2.short { "Conditions in short" }
        dl {
            @if let Some(note) = &first.note { dt { "machine" } dd { (note) } } @else { dt { "tester" } dd { (first.tester) } }
            dt { "served by" } dd { (server(first)) }
            @for model in distinct(all().flat_map(|conditions| &conditions.models)) {
                @let shape = if model.shape.is_empty() { &model.family } else { &model.shape };
                dt { (model.name) } dd { (shape) @if !model.dtype.is_empty() { ", " (model.dtype) } }
            }
            @for workload in distinct(all().flat_map(|conditions| &conditions.workloads)) { dt { "load" } dd { (describe_workload(workload)) } }
            @for comparison in chapters.iter().flat_map(|chapter| &chapter.comparisons) {
                dt { "comparison" }
                dd {
                    (comparison.complete) " rounds, " (comparison.concurrency) " at a time; in each, every model answered the same request"
                    @if comparison.models.iter().all(|model| model.bits_per_char.is_none()) { "; bits per character not measured" }
                }
            }
        }
        p.note { "A dash (" (NONE) ") stands for a percentile of too few values. " a href="#conditions" { "All conditions" } }
    }
}

fn contents(chapters: &[Chapter<'_>]) -> Markup {
    html! {
        nav aria-label="Contents" {
            h2.short { "Contents" }
            ul {
                @for chapter in chapters {
                    li {
                        a href=(format!("#{}", chapter.id)) { (chapter.title()) } ": "
                        @for (index, section) in sections(chapter).iter().enumerate() {
                            @if index > 0 { ", " }
                            a href=(format!("#{}-{}", chapter.id, section.anchor)) { (section.title) }
                        }
                    }
                }
                li { a href="#conditions" { "Conditions" } }
            }
        }
    }
}
