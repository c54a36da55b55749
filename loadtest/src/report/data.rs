//! What a measurement leaves: the JSON that every report is drawn from. docs/loadtest.md explains each key.

use crate::{
    client::models::{ModelInfo, ServerSoftware},
    comparison::ModelComparison,
    error::{Error, Result},
    knee::Knee,
    load::{
        driver::LoadResult,
        schedule::{LoadPattern, RunLength},
        workload::WorkloadInfo,
    },
    measure::{
        counters::TimelineSample,
        shortening::ModelShortening,
        stats::{OutcomeCounts, RequestFigures, RequestStats, shortening},
        tester::{TesterFigures, TesterMeasurement},
    },
    units::ns,
};
use serde::{Deserialize, Serialize};
use std::{fs, path::Path};

/// The format's name and version.
pub const FORMAT: &str = "weir-loadtest/1";
/// Bytes of a report.
const MAX_BYTES: u64 = 256 << 20;

/// Measurements made together, under the same conditions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasurementReport {
    /// [`FORMAT`].
    pub format: String,
    /// Under which conditions.
    pub conditions: Conditions,
    /// What was measured, in order.
    pub parts: Vec<ReportPart>,
    /// Why what was to follow is missing, if it is: an interruption, or the error that ended the command.
    #[serde(default)]
    pub broken_off: Option<String>,
    /// What that is, in the order in which it would have been measured. Absent if nothing was broken off, and from reports of versions
    /// that did not list it.
    #[serde(default)]
    pub missing: Option<Vec<MissingPart>>,
}

/// Something that was to be measured and was not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MissingPart {
    /// The model; of a comparison all of them, with commas.
    pub model: String,
    /// A load, a comparison, or a search, in words.
    pub what: String,
}

impl MeasurementReport {
    /// Why it was broken off, in a sentence that ends before the list of what is missing.
    pub fn broken_words(&self) -> Option<String> {
        let why = self.broken_off.as_ref()?;
        Some(match &self.missing {
            None => format!("{why}; what was to follow is missing"),
            Some(missing) if missing.is_empty() => why.clone(),
            Some(_) => format!("{why}; missing:"),
        })
    }

    /// How requests ended, of each load, or of each model of a comparison.
    pub fn ends(&self) -> impl Iterator<Item = &OutcomeCounts> {
        self.parts.iter().flat_map(ReportPart::ends)
    }
}

impl ReportPart {
    /// Whether it looks for loads that are too much: that requests fail then is what it is for.
    pub fn is_search(&self) -> bool {
        matches!(self, Self::Rates { .. })
    }

    /// As [`MeasurementReport::ends`].
    pub fn ends(&self) -> Vec<&OutcomeCounts> {
        match self {
            ReportPart::Run { point, .. } => vec![&point.figures.requests],
            ReportPart::Batches { points, .. } | ReportPart::Rates { points, .. } => {
                points.iter().map(|point| &point.figures.requests).collect()
            }
            ReportPart::Compare { comparison } => comparison.models.iter().map(|side| &side.figures.requests).collect(),
        }
    }
}

/// Under which conditions all parts were measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conditions {
    /// The tester's version.
    pub version: String,
    /// When it began: seconds since 1970, UTC.
    pub begun_unix_s: u64,
    /// The command that was given, without keys.
    pub command: String,
    /// The server's address.
    pub server: String,
    /// The server's program. Absent where it does not tell, and from reports of versions that did not ask.
    #[serde(default)]
    pub software: Option<ServerSoftware>,
    /// The tester's system, and cores that it may use.
    pub tester: String,
    /// What the user says of machine and server.
    pub note: Option<String>,
    /// The server's models that were asked.
    pub models: Vec<ModelInfo>,
    /// What was asked for.
    pub workloads: Vec<WorkloadInfo>,
    /// Of all draws.
    pub seed: u64,
    /// Whether clients asked where segments end; characters then come a step later.
    pub boundaries: bool,
    /// How long a request may take.
    pub timeout_ns: u64,
    /// The share of requests that the client gave up on purpose.
    pub cancel_share: f64,
    /// What a good request keeps; absent: only that it ends well.
    pub objectives: Option<String>,
}

/// A part of a report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum ReportPart {
    /// One load.
    Run {
        /// The model.
        model: String,
        /// What came of it.
        point: LoadPoint,
    },
    /// Closed loops of growing concurrency.
    Batches {
        /// The model.
        model: String,
        /// What came of each.
        points: Vec<LoadPoint>,
    },
    /// Open loops of several rates.
    Rates {
        /// The model.
        model: String,
        /// What came of each, by rate.
        points: Vec<LoadPoint>,
        /// The highest rate that was sustained.
        knee: Knee,
    },
    /// Models compared request by request.
    Compare {
        /// What came of it.
        comparison: ModelComparison,
    },
}

/// What came of one load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadPoint {
    /// The load.
    pub load: LoadPattern,
    /// Requests before this were not measured.
    pub warm_up_ns: u64,
    /// The measured window.
    pub window: MeasuredWindow,
    /// Whether the measurement was ended before its time.
    pub interrupted: bool,
    /// That the server went away, if it did: the point tells nothing of a server that is there. Absent from reports of versions that did
    /// not look.
    #[serde(default)]
    pub broken_off: Option<String>,
    /// Figures of all requests together.
    pub figures: RequestFigures,
    /// Figures of each workload, where there are several; in the order of `conditions.workloads`.
    pub workloads: Vec<RequestFigures>,
    /// Shortening factors of each model, where texts are of several: one of all would be of none of them. `figures` then has none.
    #[serde(default)]
    pub shortening_by_model: Vec<ModelShortening>,
    /// The course of time, until the last request had ended.
    pub course: Vec<TimelineSample>,
    /// What the tester took.
    pub tester: TesterFigures,
}

/// What happened in the measured window, whichever requests it belongs to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredWindow {
    /// Its length: from the end of the warm-up until no more requests are started, or, if only their number is given, until the
    /// last has ended.
    pub window_ns: u64,
    /// Requests that were to start in it.
    pub started: u64,
    /// Requests that ended in it, however they did.
    pub ended: u64,
    /// Those of them that began in it, too. Absent from reports of versions that did not count them.
    #[serde(default)]
    pub begun_and_ended: Option<u64>,
    /// Characters that came in it.
    pub characters: u64,
    /// Requests that were to start, a second.
    pub started_per_second: f64,
    /// Requests that ended well, a second.
    pub well_per_second: f64,
    /// Good requests that ended, a second: the goodput.
    pub good_per_second: f64,
    /// Characters that came, a second, of all requests together.
    pub chars_per_second: f64,
}

impl LoadPoint {
    /// Of what was driven.
    ///
    /// # Errors
    /// No memory.
    pub fn new(
        load: LoadPattern,
        extent: RunLength,
        driven: LoadResult,
        threads: usize,
        connections: usize,
    ) -> Result<Self> {
        let LoadResult { tallies, models, window: change, cpu, course, lags, held, interrupted } = driven;
        let split = tallies.first().is_some_and(RequestStats::is_split);
        let mut all = RequestStats::new(split)?;
        tallies.iter().try_for_each(|tally| all.add(tally))?;
        let mut figures = all.figures()?;
        let mut shortening_by_model = shortening(models.iter().map(String::as_str).zip(&tallies));
        if shortening_by_model.len() > 1 {
            figures.shortening_factor = None;
        } else {
            shortening_by_model.clear();
        }
        let workloads =
            if tallies.len() > 1 { tallies.iter().map(RequestStats::figures).collect::<Result<_>>()? } else { vec![] };
        let medians = [figures.time_to_first_char_ns.p50, figures.gap_ns.p50];
        let peak = course.peak_messages();
        let own = figures.requests.own();
        let mut tester =
            TesterMeasurement { threads, connections, window: change, cpu, peak, lags, held, own, medians }.judge();
        let broken_off = figures.requests.gone();
        if broken_off.is_some() {
            // whatever the tester took, it was the server that ended it
            tester.limits.clear();
        }
        let seconds = change.span.as_secs_f64();
        let rate = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let [characters, _, started, well, failed, good, measured] = change.counts;
        let window = MeasuredWindow {
            window_ns: ns(change.span),
            started,
            ended: well + failed,
            begun_and_ended: Some(measured),
            characters,
            started_per_second: rate(started),
            well_per_second: rate(well),
            good_per_second: rate(good),
            chars_per_second: rate(characters),
        };
        let warm_up_ns = ns(extent.warm_up);
        let course = course.told();
        Ok(Self {
            load,
            warm_up_ns,
            window,
            interrupted,
            broken_off,
            figures,
            workloads,
            shortening_by_model,
            course,
            tester,
        })
    }
}

/// As JSON: a list of documents.
///
/// # Errors
/// Numbers that JSON does not have.
pub fn json(documents: &[MeasurementReport]) -> Result<String> {
    serde_json::to_string_pretty(documents).map_err(|error| Error::Internal(format!("a report: {error}")))
}

/// Reads what [`json`] made from a file.
///
/// # Errors
/// A file that is not there, too large, or no report of this version.
pub fn read(path: &Path) -> Result<Vec<MeasurementReport>> {
    let wrong = |place: String, why: String| Error::Report { path: path.to_owned(), place, why };
    let bytes = fs::metadata(path).map_err(Error::io(path))?.len();
    if bytes > MAX_BYTES {
        return Err(wrong("size".into(), format!("{bytes} bytes, of at most {MAX_BYTES}")));
    }
    let text = fs::read_to_string(path).map_err(Error::io(path))?;
    let mut reader = serde_json::Deserializer::from_str(&text);
    let documents: Vec<MeasurementReport> = serde_path_to_error::deserialize(&mut reader)
        .map_err(|error| wrong(error.path().to_string(), error.inner().to_string()))?;
    match documents.iter().find(|document| document.format != FORMAT) {
        None => Ok(documents),
        Some(other) => Err(wrong("format".into(), format!("{:?}, but this program reads {FORMAT:?}", other.format))),
    }
}
