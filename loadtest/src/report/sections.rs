//! Sections of a chapter: the comparison request by request, batch size, request rate, and single loads.

use super::{
    chapters::{Chapter, ModelPoints},
    charts,
    figures::SUMMARIES,
    points::mark,
    table::{describe_knee_result, describe_outcomes, is_nothing},
    tables::{marked_note, models_table, points_table, run_tables, tester},
};
use crate::comparison::result::{ComparedModel, ModelComparison};
use maud::{Markup, html};

/// Section of a chapter.
pub(super) struct Section {
    /// Anchor within the chapter.
    pub(super) anchor: &'static str,
    pub(super) title: &'static str,
    pub(super) draw: fn(&Chapter<'_>) -> Markup,
}

const SECTIONS: [Section; 4] = [
    Section { anchor: "comparison", title: "request by request", draw: comparisons },
    Section { anchor: "batches", title: "batch size", draw: batches },
    Section { anchor: "rates", title: "request rate", draw: rates },
    Section { anchor: "runs", title: "single loads", draw: runs },
];

/// Returns the sections for which a chapter has measurements.
pub(super) fn sections(chapter: &Chapter<'_>) -> Vec<&'static Section> {
    let counts = [chapter.comparisons.len(), chapter.batches.len(), chapter.rates.len(), chapter.runs.len()];
    SECTIONS.iter().zip(counts).filter(|(_, count)| *count > 0).map(|(section, _)| section).collect()
}

fn batches(chapter: &Chapter<'_>) -> Markup {
    html! {
        h3 { "Batch size: closed loops of growing concurrency" }
        div.charts { (charts::batches(&chapter.batches)) }
        (points_table(&chapter.batches))
    }
}

fn rates(chapter: &Chapter<'_>) -> Markup {
    let mut rules: Vec<&str> = Vec::new();
    for rule in chapter.rates.iter().filter_map(|all| all.knee).map(|knee| knee.rule.as_str()) {
        if !rules.contains(&rule) {
            rules.push(rule);
        }
    }
    html! {
        h3 { "Request rate: open loops" }
        ul.headlines {
            @for ModelPoints { model, knee, .. } in &chapter.rates { @if let Some(knee) = knee {
                li { (model) ": " strong { (describe_knee_result(knee)) } "." }
            } }
        }
        @for rule in rules { p.note { "Rule: " (rule) "." } }
        div.charts { (charts::rates(&chapter.rates)) }
        (points_table(&chapter.rates))
    }
}

fn runs(chapter: &Chapter<'_>) -> Markup {
    let workloads = chapter.conditions().map(|conditions| conditions.workloads.as_slice()).unwrap_or_default();
    let measured: Vec<_> = chapter.runs.iter().copied().filter(|run| !is_nothing(run.point)).collect();
    let labels: Vec<_> = measured.iter().map(|run| charts::label_of(run, &measured)).collect();
    let gaps: Vec<_> = labels.iter().map(String::as_str).zip(measured.iter().map(|run| &run.point.figures)).collect();
    html! {
        h3 { "Single loads" }
        ul.headlines {
            @for run in &chapter.runs {
                li { (run.model) ", " (run.point.load.describe()) (mark(&run.point.tester_limits())) ": " (describe_outcomes(run.point)) "." }
            }
        }
        (marked_note(chapter.runs.iter().any(|run| !run.point.tester_limits().is_empty())))
        @if !measured.is_empty() {
            div.charts {
                (charts::keystrokes(&gaps))
                (charts::gaps("Distribution of gaps", &gaps))
                (charts::timeline(&measured))
            }
            (run_tables(&measured, workloads))
        }
    }
}

fn comparisons(chapter: &Chapter<'_>) -> Markup {
    html! { @for comparison in &chapter.comparisons { (compare(comparison)) } }
}

fn compare(comparison: &ModelComparison) -> Markup {
    let ModelComparison { baseline, rounds, complete, concurrency, warm_up, scored, models, .. } = comparison;
    let any = |has: fn(&ComparedModel) -> bool| models.iter().any(has);
    let gaps: Vec<_> = models.iter().map(|model| (model.model.as_str(), &model.figures)).collect();
    html! {
        h3 { "Request by request: measured gain over " (baseline) (mark(&comparison.tester_limits())) }
        (marked_note(!comparison.tester_limits().is_empty()))
        p {
            (complete) " rounds (of " (rounds) ", after " (warm_up) " not measured) in which every model answered the same prompt with "
            "the same seed and length, one after the other in changing order; " (concurrency) " round(s) at a time. "
            "A gain is the ratio of the baseline's median to the model's, over these rounds and from sending; in brackets is its 95 % "
            "bootstrap interval over rounds. Gains are measured, not estimated."
            @if any(|model| model.estimated.is_some()) {
                " Rows marked ESTIMATED are the server's estimates for the same requests: the time that each would have taken if the "
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
        div.beside {
            (models_table(models))
            (charts::keystrokes(&gaps))
            (charts::gaps(&format!("Distribution of gaps, {concurrency} at a time"), &gaps))
        }
        @if let Some(scored) = scored { p.note { "Bits per character: scored by the server on " (scored) "." } }
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
        @if let Some(measured) = &comparison.tester { (tester(&[("the comparison".into(), measured)])) }
    }
}
