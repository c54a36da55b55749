//! Tables for a terminal.

use super::{
    conditions::server,
    data::{Conditions, LoadPoint, MeasurementReport, MissingPart, ReportPart},
    figure_rows::{COLUMNS, SUMMARIES, pooled_words, rows},
};
use crate::{
    client::models::ModelInfo,
    comparison::{ModelComparison, bootstrap::Gain},
    knee::Knee,
    load::workload::WorkloadInfo,
    measure::{
        stats::{OutcomeCounts, RequestFigures},
        tester::TesterFigures,
    },
    units::{digits, time},
};
use std::{collections::BTreeMap, fmt::Write};

/// All parts of a report.
pub fn table(document: &MeasurementReport) -> String {
    let mut out = String::new();
    if let Some(why) = document.broken_words() {
        let _ = writeln!(out, "BROKEN OFF: {why}");
        for MissingPart { model, what } in document.missing.iter().flatten() {
            let _ = writeln!(out, "  {model}: {what}");
        }
        out.push('\n');
    }
    for part in &document.parts {
        // writing to a string does not fail
        let _ = match part {
            ReportPart::Run { model, point } => writeln!(out, "{model}: {}", point.load.describe()).and(run(
                &mut out,
                point,
                &document.conditions.workloads,
            )),
            ReportPart::Batches { model, points } => {
                writeln!(out, "{model}: closed loops").and(points_table(&mut out, points))
            }
            ReportPart::Rates { model, points, knee } => writeln!(out, "{model}: open loops")
                .and(points_table(&mut out, points))
                .and(writeln!(out, "{}", knee_words(knee))),
            ReportPart::Compare { comparison } => compare(&mut out, comparison),
        };
        out.push('\n');
    }
    if document.parts.iter().any(|part| !matches!(part, ReportPart::Compare { .. })) {
        let objectives =
            document.conditions.objectives.as_ref().map(|more| format!(", with {more}")).unwrap_or_default();
        let _ = writeln!(out, "good: ends well{objectives}; goodput: {GOODPUT}");
    }
    // writing to a string does not fail
    let _ = conditions(&mut out, &document.conditions);
    out
}

/// What the server says of itself, and the settings that requests were made with.
fn conditions(out: &mut String, conditions: &Conditions) -> std::fmt::Result {
    writeln!(out, "server: {}", server(conditions))?;
    for ModelInfo { name, family, shape, dtype, rows, .. } in &conditions.models {
        let shape = if shape.is_empty() { family } else { shape };
        writeln!(out, "  {name}: {shape}, {dtype}, at most {rows} requests at once")?;
    }
    for WorkloadInfo { name, settings, .. } in conditions.workloads.iter().filter(|one| !one.settings.is_empty()) {
        let mut values: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        settings.iter().for_each(|(name, value)| values.entry(value).or_default().push(name));
        let values: Vec<_> = values.iter().map(|(value, names)| format!("{}: {value}", names.join(", "))).collect();
        writeln!(out, "settings of workload {name}: {}", values.join("; "))?;
    }
    Ok(())
}

/// Lines of cells, each column as wide as its widest.
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
        return writeln!(out, "{NOTHING}");
    }
    figures_table(out, &point.figures)?;
    for (described, figures) in workloads.iter().zip(&point.workloads) {
        writeln!(out, "workload {}: {}", described.name, figures.requests.describe())?;
        figures_table(out, figures)?;
    }
    writeln!(out, "{}", ends(point))?;
    tester(out, &point.tester)
}

fn figures_table(out: &mut String, figures: &RequestFigures) -> std::fmt::Result {
    let head = ["", "count"].into_iter().chain(COLUMNS).map(str::to_owned).collect();
    let mut lines = vec![head];
    for row in rows(figures) {
        let first = [row.name.to_owned(), row.spread.count.to_string()];
        lines.push(first.into_iter().chain(row.cells()).collect());
    }
    aligned(out, &lines)
}

/// What goodput counts.
pub(super) const GOODPUT: &str = "good requests that ended in the measured window, by its length: those count, too, that began in the \
                                  warm-up; those do not that ended after the window";

/// Whether it was interrupted before any request was to be measured.
pub(super) fn is_nothing(point: &LoadPoint) -> bool {
    point.interrupted && point.figures.requests.measured == 0
}

/// What stands for all figures of a load that was interrupted before any request was to be measured.
const NOTHING: &str = "nothing was measured: interrupted before a request began after the warm-up";

/// How requests ended and what the window saw, in a line.
pub(super) fn ends(point: &LoadPoint) -> String {
    let (requests, window) = (&point.figures.requests, &point.window);
    if is_nothing(point) {
        return NOTHING.into();
    }
    let mut line = requests.describe();
    let good = 100.0 * point.figures.good as f64 / (requests.measured.max(1)) as f64;
    line += &format!(
        "; good {} ({} %), goodput {} requests/s; {} characters/s in all, over {}",
        point.figures.good,
        digits(good),
        digits(window.good_per_second),
        digits(window.chars_per_second),
        time(window.window_ns as f64)
    );
    if point.figures.messages > 0 {
        line += &format!("; {} characters came in {} messages", point.figures.characters, point.figures.messages);
    }
    if cached(&point.figures).iter().any(|(share, _)| *share > 0.0) {
        line += &format!("; the server had cached: {}", cached_words(&point.figures));
    }
    line += &shortening(point);
    if point.interrupted {
        line += "; interrupted";
    }
    if let Some(why) = &point.broken_off {
        line += &format!("; BROKEN OFF: {why}");
    }
    line
}

/// What pooling made of texts; nothing where no segment was closed.
fn shortening(point: &LoadPoint) -> String {
    let told = |factor: Option<f64>| factor.map_or("–".into(), |factor| format!("{factor:.3}"));
    if let Some(factor) = point.figures.shortening_factor {
        return format!("; shortening factor {}", told(Some(factor)));
    }
    let each = &point.shortening_by_model;
    if each.iter().all(|one| one.factor.is_none()) {
        return String::new();
    }
    let each: Vec<_> = each.iter().map(|one| format!("{} of {}", told(one.factor), one.model)).collect();
    format!("; shortening factor {} (models differ, so that there is none of all)", each.join(", "))
}

/// The shares that the server had cached, of what: texts' characters and documents' tokens do not add up.
fn cached(figures: &RequestFigures) -> Vec<(f64, &'static str)> {
    let tokens = figures.summaries.as_ref().map_or((0, 0), |told| (told.cached_tokens, told.document_tokens));
    // reports of earlier versions have documents' tokens here again
    let chars = if figures.prompt_chars == tokens.1 { (0, 0) } else { (figures.cached_chars, figures.prompt_chars) };
    let all = [(chars, "the prompts' characters"), (tokens, "the documents' tokens")].into_iter();
    all.filter(|((_, all), _)| *all > 0).map(|((part, all), what)| (part as f64 / all as f64, what)).collect()
}

/// The same in words; a dash where there was nothing to cache.
pub(super) fn cached_words(figures: &RequestFigures) -> String {
    let all: Vec<_> =
        cached(figures).iter().map(|(share, what)| format!("{} % of {what}", digits(share * 100.0))).collect();
    if all.is_empty() { "–".into() } else { all.join(", ") }
}

/// A load of several: what it was, and whether it is only a part of what was to be measured.
pub(super) fn load_words(point: &LoadPoint) -> String {
    let how = match (&point.broken_off, point.interrupted) {
        (Some(_), _) => " (broken off: the server went away)",
        (None, true) => " (interrupted)",
        (None, false) => "",
    };
    format!("{}{how}", point.load.describe())
}

/// Those that failed, by code.
pub(super) fn failures(ends: &OutcomeCounts) -> String {
    let all: Vec<_> = ends.errors.iter().map(|(code, count)| format!("{count} {code}")).collect();
    if all.is_empty() { "0".into() } else { all.join(", ") }
}

fn tester(out: &mut String, tester: &TesterFigures) -> std::fmt::Result {
    let mut line = format!("tester: {} messages/s", digits(tester.messages_per_second));
    if let Some(most) = tester.peak_messages_per_second {
        line += &format!(", at most {} /s", digits(most));
    }
    if let Some(share) = tester.cpu_share {
        line += &format!(", {} % of {} thread(s)", digits(share * 100.0), tester.threads);
    }
    if let Some(late) = tester.event_lag_ns.p99 {
        let most = tester.event_lag_ns.max.map(|most| format!(", {} at most", time(most))).unwrap_or_default();
        line += &format!(", events seen {} late (p99){most}", time(late));
    }
    writeln!(out, "{line}")?;
    tester.limits.iter().try_for_each(|limit| writeln!(out, "THE TESTER MAY BE THE LIMIT: {limit}"))
}

fn points_table(out: &mut String, points: &[LoadPoint]) -> std::fmt::Result {
    let head = [
        "load",
        "started/s",
        "characters/s",
        "good/s",
        "first p50",
        "first p90",
        "first p99",
        "gap p50",
        "gap p99",
        "queue p90",
        "well",
        "failed",
        "tester limits",
    ];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    for point in points {
        let (figures, window) = (&point.figures, &point.window);
        let told = |ns: Option<f64>| ns.map_or("–".into(), time);
        let (first, gap) = (figures.time_to_first_char_ns, figures.gap_ns);
        lines.push(vec![
            load_words(point),
            digits(window.started_per_second),
            digits(window.chars_per_second),
            digits(window.good_per_second),
            told(first.p50),
            told(first.p90),
            told(first.p99),
            told(gap.p50),
            told(gap.p99),
            told(figures.server.queue_ns.p90),
            format!("{}/{}", figures.requests.well, figures.requests.measured),
            failures(&figures.requests),
            point.tester.limits.len().to_string(),
        ]);
    }
    aligned(out, &lines)?;
    for point in points.iter().filter(|point| !point.tester.limits.is_empty()) {
        for limit in &point.tester.limits {
            writeln!(out, "at {}, THE TESTER MAY BE THE LIMIT: {limit}", point.load.describe())?;
        }
    }
    Ok(())
}

/// The knee, and what it means.
pub(super) fn knee_words(knee: &Knee) -> String {
    let per_second = |rate: f64| format!("{} requests/s", digits(rate));
    let found = match (knee.rate, knee.broken_at) {
        (Some(held), Some(broken)) => format!("knee: {}; {} was not sustained", per_second(held), per_second(broken)),
        (Some(held), None) => format!("no knee: {} was the highest rate tried, and sustained", per_second(held)),
        (None, Some(broken)) => format!("knee below {}, the lowest rate tried", per_second(broken)),
        (None, None) => "no rate was tried".into(),
    };
    let why = knee.broken_by.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
    format!("{found}{why}. Rule: {}", knee.rule)
}

/// A gain and how sure it is.
pub(super) fn gain_words(gain: Option<Gain>) -> String {
    let Some(Gain { ratio, low, high, pairs }) = gain else { return "–".into() };
    match low.zip(high) {
        Some((low, high)) => format!("{ratio:.2}× ({low:.2} to {high:.2})"),
        None => format!("{ratio:.2}× (too few pairs for an interval: {pairs})"),
    }
}

fn compare(out: &mut String, comparison: &ModelComparison) -> std::fmt::Result {
    let ModelComparison { baseline, complete, rounds, concurrency, .. } = comparison;
    writeln!(
        out,
        "measured gain over {baseline}: {complete} complete rounds of {rounds}, {concurrency} at a time; in brackets 95 % intervals"
    )?;
    let head = [
        "model",
        "total",
        "first character",
        "per character",
        "ESTIMATED total",
        "ESTIMATED per char",
        "encode",
        "decode/token",
        "median total",
        "median first",
        "median char",
        "median encode",
        "median token",
        "SF",
        "pooled",
        "bits/char",
        "cached",
    ];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    for side in &comparison.models {
        let (figures, gains, medians) = (&side.figures, side.gains.clone(), side.told());
        let gain = |of: fn(&crate::comparison::Gains) -> Option<Gain>| {
            gains.as_ref().map_or_else(|| "baseline".to_owned(), |gains| gain_words(of(gains)))
        };
        let told = |ns: Option<f64>| ns.map_or("–".into(), time);
        lines.push(vec![
            side.model.clone(),
            gain(|gains| gains.total),
            gain(|gains| gains.time_to_first_char),
            gain(|gains| gains.char),
            gain_words(side.estimated.as_ref().and_then(|gains| gains.total)),
            gain_words(side.estimated.as_ref().and_then(|gains| gains.char)),
            gain_words(side.gains.as_ref().and_then(|gains| gains.encode)),
            gain_words(side.gains.as_ref().and_then(|gains| gains.decode_token)),
            told(medians.total_ns),
            told(medians.time_to_first_char_ns),
            told(medians.char_ns),
            told(medians.encode_ns),
            told(medians.decode_token_ns),
            figures.shortening_factor.map_or("–".into(), |factor| format!("{factor:.3}")),
            pooled_words(figures),
            side.bits_per_char.map_or("–".into(), |bits| format!("{bits:.4}")),
            cached_words(figures),
        ]);
    }
    aligned(out, &lines)?;
    if comparison.models.iter().any(|side| side.figures.summaries.is_some()) {
        writeln!(out, "{SUMMARIES}")?;
    }
    comparison.tester.iter().try_for_each(|told| tester(out, told))?;
    remarks(out, comparison)
}

/// What the table has no room for.
fn remarks(out: &mut String, comparison: &ModelComparison) -> std::fmt::Result {
    if comparison.interrupted {
        writeln!(out, "the comparison was interrupted")?;
    }
    for side in &comparison.models {
        for (what, share) in side.disagreement() {
            writeln!(
                out,
                "{}: {what}: the ESTIMATED gain is {:+.1} % from the measured one (both are about the same thing only if {} is it \
                 without pooling)",
                side.model,
                share * 100.0,
                comparison.baseline
            )?;
        }
        if let Some(table) = &side.calibrated {
            writeln!(out, "{}: ESTIMATED by a calibration: {}", side.model, table.describe())?;
        }
        if let Some(why) = &side.score_refused {
            writeln!(out, "{}: no bits per character: {why}", side.model)?;
        }
        if side.figures.requests.well < side.figures.requests.measured {
            let told = &side.figures.requests;
            let why = told.errors.iter().map(|(code, count)| format!("{count} {code}"));
            let unfinished = (told.unfinished > 0).then(|| format!("{} interrupted", told.unfinished));
            let why = why.chain(unfinished).collect::<Vec<_>>().join(", ");
            writeln!(out, "{}: {} of {} requests ended well; {why}", side.model, told.well, told.measured)?;
        }
    }
    Ok(())
}
