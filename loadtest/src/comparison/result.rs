//! Result of a comparison, as it is reported.

use super::bootstrap::Gain;
use crate::{
    client::models::{CalibrationSummary, SymbolUnit},
    error::{Error, Result},
    measure::{limits::TesterLimit, stats::RequestFigures, tester::TesterFigures},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Comparison of several models.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelComparison {
    /// Model to which the others are compared.
    pub baseline: String,
    /// Rounds, in each of which every model answered the same request.
    pub rounds: u64,
    /// Rounds in which all models succeeded; gains are computed from these.
    pub complete: u64,
    /// Rounds in flight at a time; within each, one model answers at a time.
    pub concurrency: usize,
    /// Rounds before, which were not measured.
    pub warm_up: u64,
    /// True if the comparison was stopped early.
    pub interrupted: bool,
    /// Source of the text scored for `bits_per_char`, and its characters.
    pub scored: Option<String>,
    /// Models, the baseline first.
    pub models: Vec<ComparedModel>,
    /// Load of the tester itself, warm-up included. Absent from reports of versions that did not record it.
    #[serde(default)]
    pub tester: Option<TesterFigures>,
}

/// Model in a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComparedModel {
    /// Name.
    pub model: String,
    /// Unit of its answers' lengths. Absent from reports of versions that did not record it.
    #[serde(default)]
    pub unit: Option<SymbolUnit>,
    /// Bits per character of the scored text, from the server's `Score`. Absent if not requested or rejected.
    pub bits_per_char: Option<f64>,
    /// Why there is no `bits_per_char` although it was requested.
    pub score_refused: Option<String>,
    /// Figures of its requests.
    pub figures: RequestFigures,
    /// Medians whose ratios are the gains. Absent from reports of versions that did not record them.
    #[serde(default)]
    pub medians: Option<Medians>,
    /// Measured speed relative to the baseline, from the medians of complete rounds. Absent for the baseline itself.
    pub gains: Option<Gains>,
    /// Estimated, not measured: speed relative to the same model without pooling, from the server's estimates for the same rounds.
    /// Absent if the server reports no estimates.
    pub estimated: Option<Gains>,
    /// Quality of the calibration behind `estimated`. Absent if the server does not report it.
    #[serde(default)]
    pub calibrated: Option<CalibrationSummary>,
}

/// Medians over the rounds in which all models have the figure, counted from sending. `figures` has percentiles of histograms
/// over all requests of the model, which may differ.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Medians {
    /// Time from sending to the end.
    pub total_ns: Option<f64>,
    /// Time from sending to the first character.
    pub time_to_first_char_ns: Option<f64>,
    /// Mean time per character after the first.
    pub char_ns: Option<f64>,
    /// Encoding time of a document, as the server reports it.
    pub encode_ns: Option<f64>,
    /// Time per token of a summary after its first, as the server reports it.
    pub decode_token_ns: Option<f64>,
    /// Median time of a session from keystroke to completions, counted from the planned time.
    #[serde(default)]
    pub keystroke_ns: Option<f64>,
}

/// Gains: the baseline's median divided by this model's, over complete rounds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gains {
    /// Gain in time from sending to the end.
    pub total: Option<Gain>,
    /// Gain in time from sending to the first character.
    pub time_to_first_char: Option<Gain>,
    /// Gain in mean time per character after the first.
    pub char: Option<Gain>,
    /// Gain in encoding time of a document, as the server reports it.
    pub encode: Option<Gain>,
    /// Gain in time per token of a summary after its first, as the server reports it.
    pub decode_token: Option<Gain>,
    /// Gain in the median time of a session from keystroke to completions.
    #[serde(default)]
    pub keystroke: Option<Gain>,
}

/// Deviation of an estimated gain from the measured one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EstimateError {
    /// Figure that the gain is about.
    pub figure: &'static str,
    /// Estimated gain divided by the measured one, minus 1.
    pub relative: f64,
}

impl ComparedModel {
    /// Returns the medians behind its gains; for reports without them, the percentiles of its requests' histograms.
    pub fn medians(&self) -> Medians {
        let figures = &self.figures;
        self.medians.clone().unwrap_or_else(|| Medians {
            total_ns: figures.total_from_send_ns.p50,
            time_to_first_char_ns: figures.time_to_first_char_from_send_ns.p50,
            // all summaries have the same number of tokens, but not of characters
            char_ns: figures.char_ns.p50.filter(|_| figures.summaries.is_none()),
            encode_ns: figures.summaries.as_ref().and_then(|summaries| summaries.encode_ns.p50),
            decode_token_ns: figures.summaries.as_ref().and_then(|summaries| summaries.decode_token_ns.p50),
            keystroke_ns: figures.edits.as_ref().and_then(|edits| edits.keystroke_ns.p50),
        })
    }

    /// Compares the estimated with the measured gains in total time and in time per character. Both are about the same thing only
    /// if the baseline is this model without pooling.
    pub fn estimate_errors(&self) -> Vec<EstimateError> {
        let (Some(gains), Some(estimated)) = (&self.gains, &self.estimated) else { return Vec::new() };
        let pairs = [("total", gains.total, estimated.total), ("per character", gains.char, estimated.char)];
        let error = |(figure, measured, estimate): (_, Option<Gain>, Option<Gain>)| {
            Some(EstimateError { figure, relative: estimate?.ratio / measured?.ratio - 1.0 })
        };
        pairs.into_iter().filter_map(error).collect()
    }
}

impl ModelComparison {
    /// Returns the ways in which the tester may have distorted the figures.
    pub fn tester_limits(&self) -> Vec<TesterLimit> {
        let figures: Vec<_> = self.models.iter().map(|model| &model.figures).collect();
        self.tester.as_ref().map(|tester| TesterLimit::of(tester, &figures)).unwrap_or_default()
    }

    /// Sets the unit of each model's answers. If they differ, answers of N symbols are texts of different length, so their total
    /// times have no gain.
    pub fn set_units(&mut self, units: impl IntoIterator<Item = Option<SymbolUnit>>) {
        self.models.iter_mut().zip(units).for_each(|(model, unit)| model.unit = unit);
        if self.mixed_units().is_some() {
            self.models.iter_mut().filter_map(|model| model.gains.as_mut()).for_each(|gains| gains.total = None);
        }
    }

    /// Describes the units of the answers, if the models that write texts have different ones.
    pub fn mixed_units(&self) -> Option<String> {
        let mut units: BTreeMap<SymbolUnit, Vec<&str>> = BTreeMap::new();
        for model in self.models.iter().filter(|model| model.figures.summaries.is_none()) {
            model.unit.into_iter().for_each(|unit| units.entry(unit).or_default().push(&model.model));
        }
        let all: Vec<_> =
            units.iter().map(|(unit, models)| format!("N {} from {}", unit.name(), models.join(" and "))).collect();
        (all.len() > 1).then(|| {
            format!(
                "an answer of N symbols is {}: the texts have different lengths, so total times are not compared; compare times per \
                 character",
                all.join(", but ")
            )
        })
    }

    /// Fails if an estimated gain deviates more than `percent` from the measured one, or if the server reports no estimate.
    pub fn check_estimates(&self, percent: f64) -> Result<()> {
        let errors =
            || self.models.iter().flat_map(|model| model.estimate_errors().into_iter().map(move |e| (model, e)));
        if errors().next().is_none() {
            let none = "--agree-within: the server reports no estimate of any model but the baseline";
            return Err(Error::Setting(none.into()));
        }
        match errors().find(|(_, error)| (error.relative * 100.0).abs() > percent) {
            None => Ok(()),
            Some((model, EstimateError { figure, relative })) => Err(Error::Setting(format!(
                "{}, {figure}: the estimated gain is {:+.1} % from the measured one, more than {percent} %",
                model.model,
                relative * 100.0
            ))),
        }
    }
}
