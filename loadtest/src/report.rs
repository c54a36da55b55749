//! Reports: the JSON of a measurement, and the text and the page of Markdown that are drawn from it. docs/report.md explains each key.

use crate::client::{ModelInfo, ServerSoftware, SymbolUnit};
use crate::comparison::{ComparedModel, Gains, ModelComparison};
use crate::driver::LoadResult;
use crate::error::{Error, Result};
use crate::knee::Knee;
use crate::schedule::{LoadPattern, RunLength};
use crate::stats::{EditFigures, OutcomeCounts, RequestFigures, RequestStats};
use crate::tester::TesterFigures;
use crate::timer::TOGETHER;
use crate::workload::WorkloadInfo;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{fs, path::Path};
use weir_measure::chart::{Axis, Chart, Mark, Scale, Series, escape};
use weir_measure::format::{self, digits, ns};
use weir_measure::histogram::{HistogramBar, Percentiles};
use weir_measure::stats::{Gain, MeanDifference};

/// Name and version of the format.
pub const FORMAT: &str = "weir-loadtest/2";

/// Maximum bytes of a report.
const MAX_BYTES: u64 = 256 << 20;

/// Measurements made together under the same conditions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasurementReport {
    pub format: String,
    pub conditions: Conditions,
    pub parts: Vec<ReportPart>,
    /// Why the command ended early. Absent if it did not.
    pub broken_off: Option<String>,
}

impl MeasurementReport {
    /// Returns how requests ended, for each load and for each model of a comparison.
    pub fn outcomes(&self) -> impl Iterator<Item = &OutcomeCounts> {
        self.parts.iter().flat_map(ReportPart::outcomes)
    }
}

impl ReportPart {
    /// Returns the tester's figures of each measurement.
    fn testers(&self) -> Vec<&TesterFigures> {
        match self {
            ReportPart::Run { point, .. } => vec![&point.tester],
            ReportPart::Batches { points, .. } | ReportPart::Rates { points, .. } => {
                points.iter().map(|point| &point.tester).collect()
            }
            ReportPart::Compare { comparison } => vec![&comparison.tester],
        }
    }

    /// Returns how requests ended, for each load and for each model of a comparison.
    pub fn outcomes(&self) -> Vec<&OutcomeCounts> {
        match self {
            ReportPart::Run { point, .. } => vec![&point.figures.requests],
            ReportPart::Batches { points, .. } | ReportPart::Rates { points, .. } => {
                points.iter().map(|point| &point.figures.requests).collect()
            }
            ReportPart::Compare { comparison } => comparison.models.iter().map(|side| &side.figures.requests).collect(),
        }
    }
}

/// Conditions under which all parts were measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    pub version: String,
    pub begun_unix_s: u64,
    pub command: String,
    pub server: String,
    /// Software of the server. Absent if the server does not report it.
    pub software: Option<ServerSoftware>,
    pub tester: String,
    pub note: Option<String>,
    pub models: Vec<ModelInfo>,
    pub workloads: Vec<WorkloadInfo>,
    pub seed: u64,
    pub boundaries: bool,
    pub timeout_ns: u64,
    /// Objectives of a good request; absent if it only has to succeed.
    pub objectives: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ReportPart {
    Run {
        model: String,
        point: LoadPoint,
    },
    /// Closed loops of growing concurrency.
    Batches {
        model: String,
        /// Measurement of each concurrency.
        points: Vec<LoadPoint>,
    },
    /// Open loops of several rates.
    Rates {
        model: String,
        /// Measurements in order of rate.
        points: Vec<LoadPoint>,
        /// Highest sustained rate.
        knee: Knee,
    },
    /// Comparison of models request by request.
    Compare {
        comparison: ModelComparison,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadPoint {
    pub load: LoadPattern,
    pub warm_up_ns: u64,
    pub window: MeasuredWindow,
    pub interrupted: bool,
    /// Message if the server went away: the figures then do not describe a running server.
    pub broken_off: Option<String>,
    pub figures: RequestFigures,
    pub workloads: Vec<RequestFigures>,
    pub tester: TesterFigures,
}

/// Events in the measured window, whichever requests they belong to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasuredWindow {
    pub window_ns: u64,
    pub started: u64,
    pub ended: u64,
    /// Requests that began and ended in the window.
    pub begun_and_ended: u64,
    pub characters: u64,
    pub started_per_second: f64,
    #[serde(rename = "well_per_second")]
    pub succeeded_per_second: f64,
    pub good_per_second: f64,
    pub chars_per_second: f64,
}

impl LoadPoint {
    /// Computes the figures of a load.
    pub fn new(load: LoadPattern, length: RunLength, result: LoadResult, threads: usize, connections: usize) -> Self {
        let LoadResult { stats, window: change, lags, held, interrupted } = result;
        let mut all = RequestStats::new(stats.first().is_some_and(|stats| stats.splits_gaps));
        stats.iter().for_each(|stats| all.merge(stats));
        let figures = all.figures();
        let workloads = if stats.len() > 1 { stats.iter().map(RequestStats::figures).collect() } else { Vec::new() };
        let mut tester = TesterFigures::new(threads, connections, change, &lags);
        tester.held = held;
        let broken_off = figures.requests.server_gone();
        // if the server ended the measurement, it does not matter how busy the tester was
        if broken_off.is_none() {
            tester.find_limits(&[&figures]);
        }
        let seconds = change.span.as_secs_f64();
        let rate = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let counts = change.counts;
        let window = MeasuredWindow {
            window_ns: ns(change.span),
            started: counts.started,
            ended: counts.finished + counts.failed,
            begun_and_ended: counts.measured,
            characters: counts.characters,
            started_per_second: rate(counts.started),
            succeeded_per_second: rate(counts.finished),
            good_per_second: rate(counts.good),
            chars_per_second: rate(counts.characters),
        };
        Self { load, warm_up_ns: ns(length.warm_up), window, interrupted, broken_off, figures, workloads, tester }
    }
}

/// Serializes reports as a JSON list. A number that is not finite becomes `null`.
pub fn json(reports: &[MeasurementReport]) -> Result<String> {
    serde_json::to_string_pretty(reports).map_err(|error| Error::Internal(format!("a report: {error}")))
}

/// Reads reports that [`json`] serialized; keys of another version that it does not know are ignored. Fails if the file is missing,
/// too large, or not a report of this format.
pub fn read(path: &Path) -> Result<Vec<MeasurementReport>> {
    let wrong = |problem: String| Error::Setting(format!("{}: {problem}", path.display()));
    let bytes = fs::metadata(path).map_err(Error::file("FILE", "read", path))?.len();
    if bytes > MAX_BYTES {
        return Err(wrong(format!("expected at most {MAX_BYTES} bytes, found {bytes}")));
    }
    let text = fs::read_to_string(path).map_err(Error::file("FILE", "read", path))?;
    // another version may have other keys
    let heads: Vec<ReportHead> = parse(&text).map_err(wrong)?;
    match heads.iter().find(|head| head.format != FORMAT) {
        None => parse(&text).map_err(wrong),
        Some(other) => Err(wrong(format!("format: expected {FORMAT:?}, found {:?}", other.format))),
    }
}

/// The key of a report that all versions of the format have.
#[derive(Deserialize)]
struct ReportHead {
    format: String,
}

/// Parses reports. Errors name the place.
fn parse<T: DeserializeOwned>(text: &str) -> Result<Vec<T>, String> {
    serde_path_to_error::deserialize(&mut serde_json::Deserializer::from_str(text)).map_err(|error| {
        let location = match error.path().to_string() {
            root if root == "." => String::new(),
            inner => format!("{inner}: "),
        };
        format!("{location}expected a report that --json wrote, found other JSON ({})", error.inner())
    })
}

/// Shown where a value is absent.
const NONE: &str = "–";

/// Mark of a measurement whose figures the tester may have distorted.
const LIMITED: &str = "†";

/// Shortest gap that is shown, in nanoseconds: see [`TOGETHER`].
const TOGETHER_NS: f64 = TOGETHER.as_nanos() as f64;

/// Shown instead of figures if the load was interrupted before any measured request.
const NOTHING_MEASURED: &str = "nothing was measured: interrupted before a request began after the warm-up";

const GOODPUT: &str = "good requests that ended in the measured window, divided by its length; requests that began in the warm-up \
                       count, requests that ended after the window do not";

/// Remark on comparisons of summarizing models.
const SUMMARIES: &str = "pooled: how many times fewer of a document's keys and values the decoder attends to than without pooling, as \
    the server reports it. Summaries are not scored in bits per character, and their gains are not estimated.";

/// Part of the report as people read it.
enum Block {
    Heading(String),
    Line(String),
    Warning(String),
    /// Lines of cells, the headings first.
    Table(Vec<Vec<String>>),
    /// Table that only the page shows.
    Details(Vec<Vec<String>>),
    /// Chart that only the page shows.
    Chart(Chart),
}

/// Writes reports as text: headings, lines and tables.
pub fn table(reports: &[MeasurementReport]) -> String {
    let mut text = String::new();
    for block in blocks(reports) {
        match block {
            Block::Heading(heading) if text.is_empty() => text = heading + "\n",
            Block::Heading(heading) => text += &format!("\n{heading}\n"),
            Block::Line(line) => text += &format!("{line}\n"),
            Block::Warning(warning) => text += &format!("WARNING: {warning}\n"),
            Block::Table(lines) => text += &format::table(&lines),
            Block::Details(_) | Block::Chart(_) => {}
        }
    }
    text
}

/// File of a picture that a page shows: its name, and its content.
pub type Picture = (String, String);

/// Draws reports as a page of Markdown that shows pictures in the folder `folder`. Returns the page and these pictures.
pub fn markdown(title: &str, folder: &str, reports: &[MeasurementReport]) -> (String, Vec<Picture>) {
    let mut page = format!("# {}\n", escape(title));
    let mut pictures: Vec<Picture> = Vec::new();
    let mut in_charts = false;
    for block in blocks(reports) {
        if !(in_charts && matches!(block, Block::Chart(_))) {
            page.push('\n');
        }
        in_charts = matches!(block, Block::Chart(_));
        page += &match block {
            Block::Heading(heading) => format!("## {}\n", escape(&heading)),
            Block::Line(line) => format!("{}\n", escape(&line)),
            Block::Warning(warning) => format!("> **Warning:** {}\n", escape(&warning)),
            Block::Table(lines) => markdown_table(&lines),
            Block::Details(lines) => {
                let name = lines.first().and_then(|heading| heading.first()).map(String::as_str).unwrap_or_default();
                format!("<details><summary>{}</summary>\n\n{}\n</details>\n", escape(name), markdown_table(&lines))
            }
            Block::Chart(chart) => {
                let name = file_name(pictures.len() + 1, &chart.title);
                let shown = format!("<img src=\"{folder}/{name}\" alt=\"{}\" width=\"49%\">\n", escape(&chart.title));
                pictures.push((name, weir_measure::chart::picture(&chart)));
                shown
            }
        };
    }
    (page, pictures)
}

/// Returns the name of a picture's file: its number and its title in lower case, with hyphens.
fn file_name(number: usize, title: &str) -> String {
    let words = title.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let words: Vec<_> = words.map(str::to_ascii_lowercase).collect();
    format!("{number:02}-{}.svg", words.join("-"))
}

fn markdown_table(lines: &[Vec<String>]) -> String {
    let mut table = String::new();
    for (index, line) in lines.iter().enumerate() {
        let cells: Vec<_> = line.iter().map(|cell| escape(cell).replace('|', "\\|")).collect();
        table += &format!("| {} |\n", cells.join(" | "));
        if index == 0 {
            table += &format!("|{}\n", "---|".repeat(line.len()));
        }
    }
    table
}

/// Builds the report: for each measurement its parts by kind and its conditions, and then the warnings about the tester.
fn blocks(reports: &[MeasurementReport]) -> Vec<Block> {
    let mut out = Vec::new();
    for (index, report) in reports.iter().enumerate() {
        if let Some(why) = &report.broken_off {
            out.push(Block::Line(format!("ENDED EARLY: {why}")));
        }
        write_parts(report, &mut out);
        if report.parts.iter().any(|part| !matches!(part, ReportPart::Compare { .. })) {
            let objectives =
                report.conditions.objectives.as_ref().map(|all| format!(", with {all}")).unwrap_or_default();
            out.push(Block::Line(format!("good: succeeds{objectives}; goodput: {GOODPUT}")));
        }
        let next = reports.get(index + 1).map(|next| &next.conditions);
        // at most the time and the requested boundaries differ
        let is_same = |next: &Conditions| {
            let Conditions { begun_unix_s, boundaries, .. } = *next;
            *next == Conditions { begun_unix_s, boundaries, ..report.conditions.clone() }
        };
        if !next.is_some_and(is_same) {
            write_conditions(&report.conditions, &mut out);
        }
    }
    out.extend(tester_warning(reports).map(Block::Warning));
    out
}

#[derive(Clone, Copy)]
struct ModelPoints<'a> {
    model: &'a str,
    points: &'a [LoadPoint],
    /// Highest sustained rate, if the loads are open loops of several rates.
    knee: Option<&'a Knee>,
}

/// Writes the parts of a report. The models share tables and charts.
fn write_parts(report: &MeasurementReport, out: &mut Vec<Block>) {
    let mut batches = Vec::new();
    let mut rates = Vec::new();
    for part in &report.parts {
        match part {
            ReportPart::Compare { comparison } => write_comparison(comparison, out),
            ReportPart::Batches { model, points } => batches.push(ModelPoints { model, points, knee: None }),
            ReportPart::Rates { model, points, knee } => rates.push(ModelPoints { model, points, knee: Some(knee) }),
            ReportPart::Run { .. } => {}
        }
    }
    let names = |all: &[ModelPoints<'_>]| all.iter().map(|model| model.model).collect::<Vec<_>>().join(", ");
    if !batches.is_empty() {
        out.push(Block::Heading(format!("{}: closed loops", names(&batches))));
        out.push(Block::Table(points_table(&batches)));
        out.extend(batch_charts(&batches).into_iter().map(Block::Chart));
    }
    if !rates.is_empty() {
        out.push(Block::Heading(format!("{}: open loops, Poisson arrivals", names(&rates))));
        out.push(Block::Table(points_table(&rates)));
        for ModelPoints { model, knee, .. } in &rates {
            out.extend(knee.map(|knee| Block::Line(format!("{model}: {}", describe_knee(knee)))));
        }
        let rule = rates.iter().find_map(|model| model.knee).map(|knee| format!("rule: {}", knee.rule));
        out.extend(rule.map(Block::Line));
        out.extend(rate_charts(&rates).into_iter().map(Block::Chart));
    }
    for part in &report.parts {
        if let ReportPart::Run { model, point } = part {
            write_run(model, point, &report.conditions.workloads, out);
        }
    }
}

fn write_run(model: &str, point: &LoadPoint, workloads: &[WorkloadInfo], out: &mut Vec<Block>) {
    out.push(Block::Heading(format!("{model}: {}{}", point.load.describe(), mark(&point.tester))));
    if point.interrupted && point.figures.requests.measured == 0 {
        return out.push(Block::Line(NOTHING_MEASURED.into()));
    }
    out.push(Block::Table(figures_table(&point.figures)));
    for (workload, figures) in workloads.iter().zip(&point.workloads) {
        out.push(Block::Line(format!("workload {}: {}", workload.name, figures.requests.describe())));
        out.push(Block::Table(figures_table(figures)));
    }
    out.push(Block::Line(describe_outcomes(point)));
    out.push(Block::Line(describe_tester(&point.tester)));
    let models = [(model, &point.figures)];
    out.extend(gap_charts(&models).into_iter().map(Block::Chart));
}

fn write_comparison(comparison: &ModelComparison, out: &mut Vec<Block>) {
    let ModelComparison { baseline, complete, rounds, models, .. } = comparison;
    let marked = mark(&comparison.tester);
    out.push(Block::Heading(format!("measured gain over {baseline}{marked}")));
    out.push(Block::Line(format!(
        "{complete} complete rounds of {rounds}, in which every model answered the same request. A gain is the ratio of the baseline's \
         median to the model's, measured, not estimated; 95 % intervals in brackets."
    )));
    let mut lines =
        vec![["figure".to_owned()].into_iter().chain(models.iter().map(|model| model.model.clone())).collect()];
    for (name, value) in MODEL_ROWS {
        let cells: Vec<_> = models.iter().map(value).collect();
        // rows of other kinds of requests are left out
        if cells.iter().any(|cell| cell != NONE) {
            lines.push([name.to_owned()].into_iter().chain(cells).collect());
        }
    }
    out.push(Block::Table(lines));
    if models.iter().any(|model| model.figures.summaries.is_some()) {
        out.push(Block::Line(SUMMARIES.into()));
    }
    let remarks = [
        comparison.interrupted.then(|| "the comparison was interrupted".to_owned()),
        comparison.mixed_units(),
        comparison.scored.as_ref().map(|text| {
            let is_compared = models.iter().any(|model| model.bits_difference.is_some());
            let brackets = "; in brackets the difference from the baseline and its 95 % interval";
            format!("bits: scored by the server on {text}{}", if is_compared { brackets } else { "" })
        }),
        Some(describe_tester(&comparison.tester)),
    ];
    out.extend(remarks.into_iter().flatten().map(Block::Line));
    models.iter().for_each(|model| out.extend(model_remarks(model, baseline).into_iter().map(Block::Line)));
    let figures: Vec<_> = models.iter().map(|model| (model.model.as_str(), &model.figures)).collect();
    out.extend(gap_charts(&figures).into_iter().map(Block::Chart));
}

/// Returns what a table of figures does not say about a model.
fn model_remarks(model: &ComparedModel, baseline: &str) -> Vec<String> {
    let name = &model.model;
    let mut remarks = Vec::new();
    for (figure, relative) in model.estimate_errors() {
        remarks.push(format!(
            "{name}: {figure}: the ESTIMATED gain is {:+.1} % from the measured one (comparable only if {baseline} is this model \
             without pooling)",
            relative * 100.0
        ));
    }
    if let Some(calibration) = &model.calibrated {
        remarks.push(format!("{name}: calibration of the ESTIMATED gains: {}", calibration.describe()));
    }
    if let Some(why) = &model.score_refused {
        remarks.push(format!("{name}: no bits per character: {why}"));
    }
    let requests = &model.figures.requests;
    if requests.well < requests.measured {
        remarks.push(format!("{name}: {}", requests.describe()));
    }
    remarks
}

/// Writes the server, its models, and on the page all conditions by their JSON keys.
fn write_conditions(conditions: &Conditions, out: &mut Vec<Block>) {
    out.push(Block::Heading("conditions".into()));
    let software = conditions.software.as_ref().map(|it| format!(", {} {}", it.name, it.version)).unwrap_or_default();
    let note = conditions.note.as_ref().map(|note| format!("; {note}")).unwrap_or_default();
    let begun = utc(conditions.begun_unix_s);
    out.push(Block::Line(format!("server: {}{software}; begun {begun}{note}", conditions.server)));
    for ModelInfo { name, family, shape, dtype, rows, unit, .. } in &conditions.models {
        let shape = if shape.is_empty() { family } else { shape };
        let unit = unit.name();
        out.push(Block::Line(format!("{name}: {shape}, {dtype}, symbols are {unit}, at most {rows} requests at once")));
    }
    for WorkloadInfo { name, kind, text, prompt_chars, output_chars, .. } in &conditions.workloads {
        let kind = kind.name();
        let line = format!("workload {name} ({kind}): {prompt_chars} characters of {text}, answers of {output_chars}");
        out.push(Block::Line(line));
    }
    let Ok(Value::Object(mut all)) = serde_json::to_value(conditions) else { return };
    for key in ["models", "workloads"] {
        if let Some(Value::Array(items)) = all.shift_remove(key) {
            out.push(Block::Details(key_table(key, &items)));
        }
    }
    out.push(Block::Details(key_table("conditions", &[Value::Object(all)])));
}

/// Lists the keys of objects, with a column of values for each object.
fn key_table(title: &str, objects: &[Value]) -> Vec<Vec<String>> {
    fn flatten(value: &Value, path: &str, index: usize, rows: &mut Vec<(String, Vec<String>)>, count: usize) {
        if let Value::Object(map) = value {
            for (key, value) in map {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                flatten(value, &path, index, rows, count);
            }
            return;
        }
        let shown = match value {
            Value::Null => NONE.into(),
            Value::String(text) => text.clone(),
            Value::Number(number) if path.ends_with("_ns") => format::time(number.as_f64().unwrap_or_default()),
            other => other.to_string(),
        };
        let at = rows.iter().position(|(known, _)| known == path).unwrap_or_else(|| {
            rows.push((path.to_owned(), vec![NONE.into(); count]));
            rows.len() - 1
        });
        rows[at].1[index] = shown;
    }
    let mut rows = Vec::new();
    objects.iter().enumerate().for_each(|(index, object)| flatten(object, "", index, &mut rows, objects.len()));
    let mut lines = vec![vec![title.to_owned()]];
    lines[0].resize(objects.len() + 1, String::new());
    lines.extend(rows.into_iter().map(|(key, values)| [key].into_iter().chain(values).collect()));
    lines
}

/// Formats a time in the proleptic Gregorian calendar, with Hinnant's `civil_from_days`.
fn utc(seconds: u64) -> String {
    let days = seconds / 86_400;
    let second = seconds % 86_400;
    // counted from 1 March of the year 0 in eras of 400 years
    let z = days + 719_468;
    let era = z / 146_097;
    let day = z % 146_097;
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let year = year + era * 400 + u64::from(month >= 10);
    let month = if month < 10 { month + 3 } else { month - 9 };
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", second / 3600, second / 60 % 60, second % 60)
}

/// Formats a time, or a dash if it is absent.
fn optional_time(ns: Option<f64>) -> String {
    ns.map_or(NONE.into(), format::time)
}

/// Formats a gap; a dash if it is absent.
fn optional_gap(ns: Option<f64>) -> String {
    match ns {
        Some(ns) if ns < TOGETHER_NS => format!("< {}", format::time(TOGETHER_NS).replace(".0", "")),
        ns => optional_time(ns),
    }
}

/// Formats a speed in characters or tokens per second; a dash if it is absent.
fn optional_speed(speed: Option<f64>) -> String {
    speed.map_or(NONE.into(), |speed| format!("{} /s", digits(speed)))
}

/// Formats a number with `decimals` decimals, or a dash if it is absent.
fn optional_number(number: Option<f64>, decimals: usize) -> String {
    number.map_or(NONE.into(), |number| format!("{number:.decimals$}"))
}

/// Row of a table of figures: its name, the spread of the values, and how a value is shown.
type FigureRow = (&'static str, Percentiles, fn(Option<f64>) -> String);

/// Returns the figures for which the measurement has values.
fn figure_rows(figures: &RequestFigures) -> Vec<FigureRow> {
    let time = |name, values| -> FigureRow { (name, values, optional_time) };
    let gap = |name, values| -> FigureRow { (name, values, optional_gap) };
    let server = &figures.server;
    let mut rows = vec![
        time("time to first character", figures.time_to_first_char_ns),
        time("… from sending", figures.time_to_first_char_from_send_ns),
        time("total", figures.total_ns),
        time("… from sending", figures.total_from_send_ns),
    ];
    match (figures.plain_gap_ns, figures.boundary_gap_ns) {
        (Some(plain), Some(boundary)) => rows.extend([gap("plain gap", plain), gap("boundary gap", boundary)]),
        _ => rows.push(gap("gap", figures.gap_ns)),
    }
    rows.extend(figures.segment_ns.map(|values| gap("segment", values)));
    rows.extend([
        time("time per character", figures.char_ns),
        ("speed", figures.chars_per_second, optional_speed),
        time("queue (server)", server.queue_ns),
        time("prefill (server)", server.prefill_ns),
        time("first character (server)", server.time_to_first_char_ns),
        time("start lag (tester)", figures.start_lag_ns),
    ]);
    if let Some(summaries) = &figures.summaries {
        rows.extend([
            time("upload", summaries.upload_ns),
            time("encode (server)", summaries.encode_ns),
            time("… after the upload", summaries.encode_rest_ns),
            time("decode (server)", summaries.decode_ns),
            time("… per token", summaries.decode_token_ns),
            ("tokens (server)", summaries.tokens_per_second, optional_speed),
        ]);
    }
    if let Some(edits) = &figures.edits {
        rows.extend([
            time("keystroke to completions", edits.keystroke_ns),
            time("… at the server", edits.keystroke_server_ns),
            time("… start lag (tester)", edits.keystroke_lag_ns),
            ("recomputed symbols", edits.recomputed_chars, |value| value.map_or(NONE.into(), digits)),
        ]);
    }
    rows.retain(|(_, values, _)| values.count > 0);
    rows
}

/// Returns a line for each figure, without the columns in which no figure has a value.
fn figures_table(figures: &RequestFigures) -> Vec<Vec<String>> {
    let headings = ["figure", "count", "mean", "min", "p50", "p90", "p95", "p99", "p99.9", "max"];
    let mut lines = vec![headings.map(str::to_owned).to_vec()];
    for (name, values, show) in figure_rows(figures) {
        let Percentiles { mean, min, p50, p90, p95, p99, p999, max, .. } = values;
        let cells = [mean, min, p50, p90, p95, p99, p999, max].map(show);
        lines.push([name.to_owned(), values.count.to_string()].into_iter().chain(cells).collect());
    }
    without_empty_columns(lines, NONE)
}

fn without_empty_columns(lines: Vec<Vec<String>>, empty: &str) -> Vec<Vec<String>> {
    let is_used = |column: usize| lines.iter().skip(1).any(|line| line.get(column).is_some_and(|cell| cell != empty));
    let used: Vec<_> = (0..lines.first().map_or(0, Vec::len)).filter(|column| is_used(*column)).collect();
    lines.iter().map(|line| used.iter().filter_map(|column| line.get(*column).cloned()).collect()).collect()
}

/// Column of a table of loads: its heading, and its cell.
type PointColumn = (&'static str, fn(&LoadPoint) -> String);

const POINT_COLUMNS: [PointColumn; 15] = [
    ("window", |point| format::time(point.window.window_ns as f64)),
    ("started/s", |point| digits(point.window.started_per_second)),
    ("characters/s", |point| digits(point.window.chars_per_second)),
    ("good/s", |point| digits(point.window.good_per_second)),
    ("first p50", |point| optional_time(point.figures.time_to_first_char_ns.p50)),
    ("first p90", |point| optional_time(point.figures.time_to_first_char_ns.p90)),
    ("first p99", |point| optional_time(point.figures.time_to_first_char_ns.p99)),
    ("gap p50", |point| optional_gap(point.figures.gap_ns.p50)),
    ("gap p99", |point| optional_gap(point.figures.gap_ns.p99)),
    ("keystroke p50", |point| optional_time(keystroke(point).p50)),
    ("keystroke p99", |point| optional_time(keystroke(point).p99)),
    ("saved", |point| saved(&point.figures)),
    ("queue p90", |point| optional_time(point.figures.server.queue_ns.p90)),
    ("succeeded", |point| format!("{} of {}", point.figures.requests.well, point.figures.requests.measured)),
    ("failed", |point| {
        let all: Vec<_> = point.figures.requests.errors.iter().map(|(code, count)| format!("{count} {code}")).collect();
        if all.is_empty() { NONE.into() } else { all.join(", ") }
    }),
];

fn keystroke(point: &LoadPoint) -> Percentiles {
    point.figures.edits.as_ref().map(|edits| edits.keystroke_ns).unwrap_or_default()
}

/// Returns a line for each load of several models, with a mark if the tester may have distorted its figures.
fn points_table(models: &[ModelPoints<'_>]) -> Vec<Vec<String>> {
    let headings = ["model", "load"].into_iter().chain(POINT_COLUMNS.iter().map(|(heading, _)| *heading));
    let mut lines = vec![headings.map(str::to_owned).collect::<Vec<_>>()];
    for all in models {
        for point in all.points {
            let load = match (point.load.concurrency(), point.load.rate()) {
                (Some(concurrency), _) => format!("{concurrency} at a time"),
                (None, Some(rate)) => format!("{} requests/s", digits(rate)),
                (None, None) => point.load.describe(),
            };
            let end = match (&point.broken_off, point.interrupted) {
                (Some(_), _) => " (ended early: the server went away)",
                (None, true) => " (interrupted)",
                (None, false) => "",
            };
            let load = format!("{load}{end}{}", mark(&point.tester));
            let cells = POINT_COLUMNS.iter().map(|(_, value)| value(point));
            // the first line of a model names it
            let model = if std::ptr::eq(point, &all.points[0]) { all.model.to_owned() } else { String::new() };
            lines.push([model, load].into_iter().chain(cells).collect());
        }
    }
    without_empty_columns(lines, NONE)
}

/// Row of a comparison: its name, and its cell for a model.
type ModelRow = (&'static str, fn(&ComparedModel) -> String);

const MODEL_ROWS: [ModelRow; 22] = [
    ("gain: total", |model| gain(&model.gains, |gains| gains.total)),
    ("gain: first character", |model| gain(&model.gains, |gains| gains.time_to_first_char)),
    ("gain: per character", |model| gain(&model.gains, |gains| gains.char)),
    ("ESTIMATED gain: total", |model| gain(&model.estimated, |gains| gains.total)),
    ("ESTIMATED gain: per character", |model| gain(&model.estimated, |gains| gains.char)),
    ("gain: encode", |model| gain(&model.gains, |gains| gains.encode)),
    ("gain: per token of a summary", |model| gain(&model.gains, |gains| gains.decode_token)),
    ("gain: keystroke to completions", |model| gain(&model.gains, |gains| gains.keystroke)),
    ("median: total", |model| optional_time(model.medians.total_ns)),
    ("median: first character", |model| optional_time(model.medians.time_to_first_char_ns)),
    ("median: per character", |model| optional_time(model.medians.char_ns)),
    ("median: encode (server)", |model| optional_time(model.medians.encode_ns)),
    ("median: per token (server)", |model| optional_time(model.medians.decode_token_ns)),
    ("median: keystroke to completions", |model| optional_time(model.medians.keystroke_ns)),
    ("keystrokes saved by the first completion", |model| saved(&model.figures)),
    ("symbols per segment (SF)", |model| optional_number(model.figures.shortening_factor, 3)),
    ("kept share of a document's tokens", |model| kept_share(&model.figures)),
    ("pooled (keys and values of a document)", |model| pooling(&model.figures)),
    ("bits per byte", |model| if model.unit == SymbolUnit::Bytes { bits(model) } else { NONE.into() }),
    ("bits per character", |model| if model.unit == SymbolUnit::Bytes { NONE.into() } else { bits(model) }),
    ("cached by the server", |model| describe_cached(&model.figures)),
    ("succeeded", |model| format!("{} of {}", model.figures.requests.well, model.figures.requests.measured)),
];

fn gain(gains: &Option<Gains>, figure: fn(&Gains) -> Option<Gain>) -> String {
    let Some(Gain { ratio, low, high, pairs }) = gains.as_ref().and_then(figure) else { return NONE.into() };
    match low.zip(high) {
        Some((low, high)) => format!("{ratio:.2}× ({low:.2} to {high:.2})"),
        None => format!("{ratio:.2}× (too few pairs for an interval: {pairs})"),
    }
}

/// Describes the bits of the scored text, with the difference from the baseline's.
fn bits(model: &ComparedModel) -> String {
    let bits = optional_number(model.bits_per_char, 4);
    let Some(MeanDifference { difference, low, high, .. }) = model.bits_difference else { return bits };
    match low.zip(high) {
        Some((low, high)) => format!("{bits} ({difference:+.4}: {low:+.4} to {high:+.4})"),
        None => format!("{bits} ({difference:+.4})"),
    }
}

/// Describes how far documents were pooled, with the bytes of keys and values per document.
fn pooling(figures: &RequestFigures) -> String {
    let Some(summaries) = &figures.summaries else { return NONE.into() };
    let Some(factor) = summaries.pooled() else { return NONE.into() };
    let each = summaries.cross_attention_bytes as f64 / summaries.count.max(1) as f64 / f64::from(1 << 20);
    format!("{}× ({} MiB per document)", digits(factor), digits(each))
}

/// Describes the share of a document's tokens that the last pooling kept: the median over documents, and their range.
fn kept_share(figures: &RequestFigures) -> String {
    let Some(summaries) = &figures.summaries else { return NONE.into() };
    let Percentiles { p50, min, max, .. } = summaries.kept_share;
    let percent = |share: f64| digits(share * 100.0);
    let described = |((median, min), max)| format!("{} % ({} to {})", percent(median), percent(min), percent(max));
    p50.zip(min).zip(max).map_or(NONE.into(), described)
}

/// Describes the shares of keystrokes that completions would have saved; a dash without edited documents.
fn saved(figures: &RequestFigures) -> String {
    let Some(EditFigures { keystrokes, saved_by_first, saved_by_first_three, .. }) = &figures.edits else {
        return NONE.into();
    };
    let percent = |saved: u64| digits(100.0 * (saved as f64 / (*keystrokes).max(1) as f64));
    format!("{} % ({} % by the first three)", percent(*saved_by_first), percent(*saved_by_first_three))
}

/// Describes the shares that the server had cached, each with its unit, because characters and tokens cannot be added; a dash if
/// nothing could be cached.
fn describe_cached(figures: &RequestFigures) -> String {
    let summaries = figures.summaries.as_ref();
    let tokens = summaries.map_or((0, 0), |summaries| (summaries.cached_tokens, summaries.document_tokens));
    let chars = (figures.cached_chars, figures.prompt_chars);
    let all = [(chars, "the prompts' symbols"), (tokens, "the documents' tokens")].into_iter();
    let all = all.filter(|((_, all), _)| *all > 0);
    let all: Vec<_> =
        all.map(|((part, all), unit)| format!("{} % of {unit}", digits(part as f64 / all as f64 * 100.0))).collect();
    if all.is_empty() { NONE.into() } else { all.join(", ") }
}

/// Describes in a line how requests ended and what happened in the window.
fn describe_outcomes(point: &LoadPoint) -> String {
    let LoadPoint { figures, window, .. } = point;
    let good = 100.0 * figures.good as f64 / (figures.requests.measured.max(1)) as f64;
    let mut line = format!(
        "{}; good {} ({} %), goodput {} requests/s; {} characters/s of all requests, over {}; {} characters in {} messages; cached by \
         the server: {}",
        figures.requests.describe(),
        figures.good,
        digits(good),
        digits(window.good_per_second),
        digits(window.chars_per_second),
        format::time(window.window_ns as f64),
        figures.characters,
        figures.messages,
        describe_cached(figures)
    );
    if let Some(EditFigures { keystrokes, stale, failed, .. }) = &figures.edits {
        line += &format!("; {keystrokes} keystrokes: {stale} overtaken by the next, {failed} failed");
        line += &format!("; keystrokes saved by the first completion: {}", saved(figures));
    }
    if figures.shortening_factor.is_some() {
        line += &format!("; shortening factor {}", optional_number(figures.shortening_factor, 3));
    }
    if point.interrupted {
        line += "; interrupted";
    }
    if let Some(why) = &point.broken_off {
        line += &format!("; ENDED EARLY: {why}");
    }
    line
}

fn describe_tester(tester: &TesterFigures) -> String {
    let mut line = format!("the tester itself: {} messages/s", digits(tester.messages_per_second));
    if let Some(share) = tester.cpu_share {
        line += &format!(", {} % of {} thread(s)", digits(share * 100.0), tester.threads);
    }
    if let Some(lag) = tester.event_lag_ns.p99 {
        let max = tester.event_lag_ns.max.map(|max| format!(", at most {}", format::time(max))).unwrap_or_default();
        line += &format!(", event lag p99 {}{max}", format::time(lag));
    }
    line
}

fn describe_knee(knee: &Knee) -> String {
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

/// Returns the mark that follows the name of a measurement that the tester may have distorted; empty for others.
fn mark(tester: &TesterFigures) -> String {
    if tester.limits.is_empty() { String::new() } else { format!(" {LIMITED}") }
}

/// Returns a warning if the tester may have distorted figures: in how many measurements, and an example.
fn tester_warning(reports: &[MeasurementReport]) -> Option<String> {
    let testers: Vec<_> = reports.iter().flat_map(|report| &report.parts).flat_map(ReportPart::testers).collect();
    let limits: Vec<_> = testers.iter().filter_map(|tester| tester.limits.first()).collect();
    let example = limits.first()?;
    let place = match testers.len() {
        1 => String::new(),
        measured => format!(" in {} of {measured} measurements ({LIMITED}), for example", limits.len()),
    };
    Some(format!("the tester may be the limit{place}: {example}"))
}

fn chart(title: &str, x: Axis, y: Axis, mut series: Vec<Series>, note: &str) -> Option<Chart> {
    series.retain(|series| !series.points.is_empty());
    let chart = Chart { title: title.into(), x, y, series, marks: Vec::new(), note: note.into() };
    (!chart.series.is_empty()).then_some(chart)
}

fn line(label: String, points: impl Iterator<Item = (f64, f64)>, colour: usize, dash: usize) -> Series {
    Series { label, points: points.collect(), steps: false, colour, dash }
}

/// Returns a line for each model and each percentile of a figure over the load: p50 and p90.
fn percentile_lines(
    models: &[ModelPoints<'_>],
    x: fn(&LoadPoint) -> Option<f64>,
    y: impl Fn(&RequestFigures) -> Percentiles,
) -> Vec<Series> {
    let mut series = Vec::new();
    for (colour, all) in models.iter().enumerate() {
        for (dash, name) in ["p50", "p90"].into_iter().enumerate() {
            let value = |point: &LoadPoint| {
                let figure = y(&point.figures);
                Some((x(point)?, [figure.p50, figure.p90][dash]?))
            };
            series.push(line(format!("{}, {name}", all.model), all.points.iter().filter_map(value), colour, dash));
        }
    }
    series
}

/// Returns a line for each model over the load.
fn model_lines(
    models: &[ModelPoints<'_>],
    x: fn(&LoadPoint) -> Option<f64>,
    y: impl Fn(&LoadPoint) -> Option<f64>,
) -> Vec<Series> {
    let lines = models.iter().enumerate().map(|(colour, all)| {
        line(all.model.to_owned(), all.points.iter().filter_map(|point| Some((x(point)?, y(point)?))), colour, 0)
    });
    lines.collect()
}

/// Draws latency, and answered requests, over offered rate.
fn rate_charts(models: &[ModelPoints<'_>]) -> Vec<Chart> {
    let rate = |point: &LoadPoint| point.load.rate();
    let axis = || Axis::new("offered rate (requests/s)", Scale::Log);
    let first = percentile_lines(models, rate, |figures| figures.time_to_first_char_ns);
    let time = Axis::new("time to first character", Scale::LogTime);
    let good = model_lines(models, rate, |point| Some(point.window.good_per_second));
    let charts = [
        chart("Time to first character over rate", axis(), time, first, "From the intended start."),
        chart("Good requests over rate", axis(), Axis::new("good requests/s", Scale::Linear), good, ""),
    ];
    let mut charts: Vec<_> = charts.into_iter().flatten().collect();
    for (colour, knee) in models.iter().enumerate().filter_map(|(colour, all)| Some((colour, all.knee?.rate?))) {
        charts.iter_mut().for_each(|chart| chart.marks.push(Mark { x: knee, label: "knee".into(), colour }));
    }
    charts
}

/// Draws speed and latency over concurrency.
fn batch_charts(models: &[ModelPoints<'_>]) -> Vec<Chart> {
    let clients = |point: &LoadPoint| point.load.concurrency().map(|clients| clients as f64);
    let axis = || Axis::new("requests at a time", Scale::Counts);
    let linear = |label: &str| Axis::new(label, Scale::Linear);
    let charts = if models.iter().any(|all| all.points.iter().any(|point| point.figures.summaries.is_some())) {
        // summaries have equally many tokens, but not characters
        let answered = model_lines(models, clients, |point| Some(point.window.succeeded_per_second));
        let tokens = model_lines(models, clients, |point| point.figures.summaries.as_ref()?.tokens_per_second.p50);
        let speed = linear("tokens/s of one summary, median");
        [
            chart("Summaries over batch size", axis(), linear("summaries/s"), answered, ""),
            chart("Speed of a summary over batch size", axis(), speed, tokens, "Reported by the server."),
            None,
        ]
    } else {
        let all = model_lines(models, clients, |point| Some(point.window.chars_per_second));
        let apart = |gap: Option<f64>| gap.filter(|gap| *gap >= TOGETHER_NS);
        let gaps = percentile_lines(models, clients, |figures| {
            let gap = figures.gap_ns;
            Percentiles { p50: apart(gap.p50), p90: apart(gap.p90), ..gap }
        });
        let keys = percentile_lines(models, clients, |figures| {
            figures.edits.as_ref().map(|edits| edits.keystroke_ns).unwrap_or_default()
        });
        let time = |label: &str| Axis::new(label, Scale::LogTime);
        let title = "Keystroke to completions by number of editors";
        [
            chart("Characters over batch size", axis(), linear("characters/s, all requests"), all, ""),
            chart("Gaps over batch size", axis(), time("gap between messages"), gaps, ""),
            chart(title, axis(), time("keystroke to completions"), keys, "From the planned time of the keystroke."),
        ]
    };
    charts.into_iter().flatten().collect()
}

/// Returns the outline of a distribution: the share of the values in each bar. Bars of messages that came together are left out.
fn outline(label: String, bars: &[HistogramBar], colour: usize, dash: usize) -> Series {
    let all: u64 = bars.iter().map(|bar| bar.count).sum();
    let mut points = Vec::new();
    let mut end = None;
    for bar in bars.iter().filter(|bar| bar.from >= TOGETHER_NS) {
        let share = 100.0 * bar.count as f64 / all.max(1) as f64;
        if end.is_none_or(|end: f64| bar.from > end * 1.0001) {
            points.extend(end.map(|end| (end, 0.0)));
            points.push((bar.from, 0.0));
        }
        // up at the bar's lower bound, along to its upper bound
        points.extend([(bar.from, share), (bar.to, share)]);
        end = Some(bar.to);
    }
    points.extend(end.map(|end| (end, 0.0)));
    Series { steps: true, ..line(label, points.into_iter(), colour, dash) }
}

/// Draws the distributions of gaps, and of times from keystroke to completions, of several models.
fn gap_charts(models: &[(&str, &RequestFigures)]) -> Vec<Chart> {
    let mut gaps = Vec::new();
    let mut keystrokes = Vec::new();
    for (colour, (model, figures)) in models.iter().enumerate() {
        let count = |spread: Option<Percentiles>| spread.map_or(0, |spread| spread.count);
        let plain = if figures.plain_gap_ns.is_some() { "plain gaps" } else { "gaps" };
        let plain = format!("{model}, {} {plain}", count(figures.plain_gap_ns.or(Some(figures.gap_ns))));
        let boundary = format!("{model}, {} boundary gaps", count(figures.boundary_gap_ns));
        gaps.push(outline(plain, &figures.plain_gap_bars, colour, 0));
        gaps.push(outline(boundary, &figures.boundary_gap_bars, colour, 1));
        if let Some(edits) = &figures.edits {
            let label = format!("{model}, {} keystrokes", edits.keystroke_ns.count);
            keystrokes.push(outline(label, &edits.keystroke_bars, colour, 0));
        }
    }
    let time = |label: &str| Axis::new(label, Scale::LogTime);
    let share = |of: &str| Axis::new(&format!("share of the {of} (%)"), Scale::Linear);
    let note = "A step spans a 24th of a factor of ten. Gaps of messages that came together are left out.";
    let title = "Distribution of times from keystroke to completions";
    let charts = [
        chart("Distribution of gaps", time("gap between messages"), share("gaps of the kind"), gaps, note),
        chart(title, time("keystroke to completions"), share("keystrokes"), keystrokes, "From the planned time."),
    ];
    charts.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::SummaryFigures;

    #[test]
    fn times_follow_the_calendar() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(951_827_696), "2000-02-29 12:34:56 UTC");
        assert_eq!(utc(1_798_761_599), "2026-12-31 23:59:59 UTC");
    }

    #[test]
    fn gaps_are_hidden_if_messages_came_together_but_means_are_shown() {
        let values = |p50| Percentiles { count: 9, p50: Some(p50), ..Percentiles::default() };
        let shown = |gap| {
            let figures = RequestFigures {
                gap_ns: values(gap),
                segment_ns: Some(values(gap)),
                char_ns: values(4e3),
                chars_per_second: values(250e3),
                ..RequestFigures::default()
            };
            figures_table(&figures).iter().skip(1).map(|line| line[2].clone()).collect::<Vec<_>>()
        };
        assert_eq!(shown(1e3), ["< 20 µs", "< 20 µs", "4.00 µs", "250000 /s"]);
        assert_eq!(shown(80e3), ["80.0 µs", "80.0 µs", "4.00 µs", "250000 /s"]);
    }

    #[test]
    fn pooling_is_described_with_bytes_per_document_and_kept_shares_with_their_range() {
        let described = |summaries| {
            let figures = RequestFigures { summaries, ..RequestFigures::default() };
            [pooling(&figures), kept_share(&figures)]
        };
        let kept_share =
            Percentiles { count: 2, min: Some(0.25), p50: Some(0.5), max: Some(1.0), ..Percentiles::default() };
        let pooled = SummaryFigures {
            count: 2,
            cross_attention_bytes: 3 << 20,
            unpooled_cross_attention_bytes: 48 << 20,
            kept_share,
            ..SummaryFigures::default()
        };
        assert_eq!(described(Some(pooled)), ["16.0× (1.50 MiB per document)", "50.0 % (25.0 to 100)"]);
        assert_eq!(described(Some(SummaryFigures::default())), [NONE, NONE]);
        assert_eq!(described(None), [NONE, NONE]);
    }

    #[test]
    fn objects_are_listed_by_their_keys() {
        let objects = [serde_json::json!({"a": {"b_ns": 2e6}, "c": null}), serde_json::json!({"c": "x", "d": true})];
        let expected = [["t", "", ""], ["a.b_ns", "2.00 ms", NONE], ["c", NONE, "x"], ["d", NONE, "true"]];
        assert_eq!(key_table("t", &objects), expected.map(|line| line.map(str::to_owned).to_vec()));
    }
}
