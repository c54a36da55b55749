//! JSON report of a measurement, from which all other reports are drawn. docs/loadtest.md explains each key.

use crate::{
    client::models::{ModelInfo, ServerSoftware},
    comparison::result::ModelComparison,
    error::{Error, Result},
    knee::Knee,
    load::{
        driver::LoadResult,
        schedule::{LoadPattern, RunLength},
        workload::WorkloadInfo,
    },
    measure::{
        limits::{LimitEvidence, TesterLimit},
        shortening::{ModelShortening, by_model},
        stats::{OutcomeCounts, RequestFigures, RequestStats},
        tester::{TesterFigures, TesterMeasurement},
        timeline::TimelineSample,
    },
    units::ns,
};
use serde::{Deserialize, Serialize, de::IgnoredAny};
use std::{fs, path::Path};

/// Name and version of the format.
pub const FORMAT: &str = "weir-loadtest/1";
/// Maximum bytes of a report.
const MAX_BYTES: u64 = 256 << 20;

/// Measurements made together under the same conditions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasurementReport {
    /// [`FORMAT`].
    pub format: String,
    /// Conditions of the measurements.
    pub conditions: Conditions,
    /// Measurements in order.
    pub parts: Vec<ReportPart>,
    /// Why the command ended early, if it did: an interruption, or the error that ended it.
    #[serde(default)]
    pub broken_off: Option<String>,
    /// Measurements that are missing for this reason, in order. Absent if the command did not end early, and in reports of versions
    /// that did not list them.
    #[serde(default)]
    pub missing: Option<Vec<MissingPart>>,
}

/// Measurement that was not made because the command ended early.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MissingPart {
    /// Model; for a comparison all models, separated by commas.
    pub model: String,
    /// What was to be measured, in words: a load, a comparison, or a search.
    pub what: String,
}

impl MeasurementReport {
    /// Returns why the command ended early, in a sentence that introduces the list of missing measurements.
    pub fn broken_off_sentence(&self) -> Option<String> {
        let why = self.broken_off.as_ref()?;
        Some(match &self.missing {
            None => format!("{why}; later measurements are missing"),
            Some(missing) if missing.is_empty() => why.clone(),
            Some(_) => format!("{why}; missing:"),
        })
    }

    /// Returns how requests ended, for each load and for each model of a comparison.
    pub fn outcomes(&self) -> impl Iterator<Item = &OutcomeCounts> {
        self.parts.iter().flat_map(ReportPart::outcomes)
    }
}

impl ReportPart {
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
#[serde(deny_unknown_fields)]
pub struct Conditions {
    /// Version of the tester.
    pub version: String,
    /// Start of the measurement: seconds since 1970, UTC.
    pub begun_unix_s: u64,
    /// Command line, without keys.
    pub command: String,
    /// Address of the server.
    pub server: String,
    /// Software of the server. Absent if the server does not report it, and in reports of versions that did not ask.
    #[serde(default)]
    pub software: Option<ServerSoftware>,
    /// Operating system and cores of the tester.
    pub tester: String,
    /// The user's note about machine and server.
    pub note: Option<String>,
    /// Models that received requests.
    pub models: Vec<ModelInfo>,
    /// Workloads.
    pub workloads: Vec<WorkloadInfo>,
    /// Seed of all random choices.
    pub seed: u64,
    /// True if clients requested segment boundaries, which delays characters by one step.
    pub boundaries: bool,
    /// Time limit of a request.
    pub timeout_ns: u64,
    /// Share of requests that the client cancelled on purpose.
    pub cancel_share: f64,
    /// Objectives of a good request; absent if it only has to succeed.
    pub objectives: Option<String>,
}

/// Part of a report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum ReportPart {
    /// One load.
    Run {
        /// Model.
        model: String,
        /// Measurement.
        point: LoadPoint,
    },
    /// Closed loops of growing concurrency.
    Batches {
        /// Model.
        model: String,
        /// Measurement of each concurrency.
        points: Vec<LoadPoint>,
    },
    /// Open loops of several rates.
    Rates {
        /// Model.
        model: String,
        /// Measurements in order of rate.
        points: Vec<LoadPoint>,
        /// Highest sustained rate.
        knee: Knee,
    },
    /// Comparison of models request by request.
    Compare {
        /// Measurement.
        comparison: ModelComparison,
    },
}

/// Measurement of one load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadPoint {
    /// The load that was sent.
    pub load: LoadPattern,
    /// Length of the warm-up: requests that were due in it were not measured.
    pub warm_up_ns: u64,
    /// Measured window.
    pub window: MeasuredWindow,
    /// True if the measurement was stopped early.
    pub interrupted: bool,
    /// Message if the server went away: the figures then do not describe a running server. Absent in reports of versions that did
    /// not check.
    #[serde(default)]
    pub broken_off: Option<String>,
    /// Figures of all requests together.
    pub figures: RequestFigures,
    /// Figures of each workload if there are several, in the order of `conditions.workloads`.
    pub workloads: Vec<RequestFigures>,
    /// Shortening factor of each model if several models generated texts; `figures` then has none.
    #[serde(default)]
    pub shortening_by_model: Vec<ModelShortening>,
    /// Timeline until the last request had ended.
    #[serde(rename = "course")]
    pub timeline: Vec<TimelineSample>,
    /// How busy the tester was.
    pub tester: TesterFigures,
}

/// Events in the measured window, whichever requests they belong to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredWindow {
    /// Length. The window begins at the end of the warm-up. It ends when no more requests are started or, if only the number of
    /// requests was given, when the last one has ended.
    pub window_ns: u64,
    /// Requests that this program began to send in the window.
    pub started: u64,
    /// Requests that ended in the window, with any outcome.
    pub ended: u64,
    /// Requests that began and ended in the window. Absent from reports of versions that did not count them.
    #[serde(default)]
    pub begun_and_ended: Option<u64>,
    /// Characters received in the window.
    pub characters: u64,
    /// Requests that this program began to send, per second.
    pub started_per_second: f64,
    /// Requests that succeeded, per second.
    #[serde(rename = "well_per_second")]
    pub succeeded_per_second: f64,
    /// Good requests per second: the goodput.
    pub good_per_second: f64,
    /// Characters received per second, of all requests together.
    pub chars_per_second: f64,
}

impl LoadPoint {
    /// Returns the ways in which the tester may have distorted the figures.
    pub fn tester_limits(&self) -> Vec<TesterLimit> {
        TesterLimit::of(&self.tester, &[&self.figures])
    }

    /// Computes the figures of a load.
    pub fn new(load: LoadPattern, length: RunLength, result: LoadResult, threads: usize, connections: usize) -> Self {
        let LoadResult { stats, models, window: change, cpu, timeline, lags, held, interrupted } = result;
        let mut all = RequestStats::new(stats.first().is_some_and(|stats| stats.splits_gaps));
        stats.iter().for_each(|stats| all.merge(stats));
        let mut figures = all.figures();
        let texts = stats.iter().map(|stats| stats.texts);
        let mut shortening_by_model = by_model(models.iter().map(String::as_str).zip(texts));
        if shortening_by_model.len() > 1 {
            figures.shortening_factor = None;
        } else {
            shortening_by_model.clear();
        }
        let workloads = if stats.len() > 1 { stats.iter().map(RequestStats::figures).collect() } else { Vec::new() };
        let measurement = TesterMeasurement {
            threads,
            connections,
            window: change,
            cpu,
            peak: timeline.peak_messages(),
            lags,
            held,
            evidence: LimitEvidence::of(&[&figures]),
        };
        let mut tester = measurement.assess();
        let broken_off = figures.requests.server_gone();
        if broken_off.is_some() {
            // the server ended the measurement, however busy the tester was
            tester.limits.clear();
        }
        let seconds = change.span.as_secs_f64();
        let rate = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let counts = change.counts;
        let window = MeasuredWindow {
            window_ns: ns(change.span),
            started: counts.started,
            ended: counts.finished + counts.failed,
            begun_and_ended: Some(counts.measured),
            characters: counts.characters,
            started_per_second: rate(counts.started),
            succeeded_per_second: rate(counts.finished),
            good_per_second: rate(counts.good),
            chars_per_second: rate(counts.characters),
        };
        Self {
            load,
            warm_up_ns: ns(length.warm_up),
            window,
            interrupted,
            broken_off,
            figures,
            workloads,
            shortening_by_model,
            timeline: timeline.samples(),
            tester,
        }
    }
}

/// Serializes reports as a JSON list. A number that is not finite becomes `null`.
pub fn json(reports: &[MeasurementReport]) -> Result<String> {
    serde_json::to_string_pretty(reports).map_err(|error| Error::Internal(format!("a report: {error}")))
}

/// Reads reports that [`json`] serialized. Fails if the file is missing, too large, or not a report of this version.
pub fn read(path: &Path) -> Result<Vec<MeasurementReport>> {
    let wrong = |problem: String| Error::Report { path: path.to_owned(), problem };
    let bytes = fs::metadata(path).map_err(Error::unreadable("FILE", path))?.len();
    match bytes {
        0 => return Err(wrong("expected a report that --json wrote, found an empty file".into())),
        1..=MAX_BYTES => {}
        _ => return Err(wrong(format!("expected at most {MAX_BYTES} bytes, found {bytes}"))),
    }
    let text = fs::read_to_string(path).map_err(Error::unreadable("FILE", path))?;
    let mut reader = serde_json::Deserializer::from_str(&text);
    let reports: Vec<MeasurementReport> = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        // A value of another type hides an error of syntax behind it.
        if let Err(error) = serde_json::from_str::<IgnoredAny>(&text) {
            return wrong(format!("expected valid JSON, found a syntax error ({error})"));
        }
        let location = match error.path().to_string() {
            root if root == "." => String::new(),
            inner => format!("{inner}: "),
        };
        wrong(format!("{location}expected a report that --json wrote, found other JSON ({})", error.inner()))
    })?;
    match reports.iter().find(|report| report.format != FORMAT) {
        None => Ok(reports),
        Some(other) => Err(wrong(format!("format: expected {FORMAT:?}, found {:?}", other.format))),
    }
}
