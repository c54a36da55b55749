//! Chapters of the page: measurements of the same models by one command, their parts by kind.

use super::data::{Conditions, LoadPoint, MeasurementReport, ReportPart};
use crate::{comparison::result::ModelComparison, knee::Knee};

/// Loads of one model.
#[derive(Clone, Copy)]
pub(super) struct ModelPoints<'a> {
    pub(super) model: &'a str,
    pub(super) points: &'a [LoadPoint],
    /// Highest sustained rate, if the loads are open loops of several rates.
    pub(super) knee: Option<&'a Knee>,
}

/// One load of one model.
#[derive(Clone, Copy)]
pub(super) struct ModelRun<'a> {
    pub(super) model: &'a str,
    pub(super) point: &'a LoadPoint,
}

/// Measurements of the same models by one command.
pub(super) struct Chapter<'a> {
    /// Prefix of the chapter's anchors.
    pub(super) id: String,
    pub(super) reports: Vec<&'a MeasurementReport>,
    pub(super) comparisons: Vec<&'a ModelComparison>,
    pub(super) batches: Vec<ModelPoints<'a>>,
    pub(super) rates: Vec<ModelPoints<'a>>,
    pub(super) runs: Vec<ModelRun<'a>>,
}

impl<'a> Chapter<'a> {
    fn new(id: String) -> Self {
        Self { id, reports: vec![], comparisons: vec![], batches: vec![], rates: vec![], runs: vec![] }
    }

    fn add(&mut self, report: &'a MeasurementReport) {
        self.reports.push(report);
        for part in &report.parts {
            match part {
                ReportPart::Run { model, point } => self.runs.push(ModelRun { model, point }),
                ReportPart::Batches { model, points } => {
                    self.batches.push(ModelPoints { model, points, knee: None });
                }
                ReportPart::Rates { model, points, knee } => {
                    self.rates.push(ModelPoints { model, points, knee: Some(knee) });
                }
                ReportPart::Compare { comparison } => self.comparisons.push(comparison),
            }
        }
    }

    /// Returns the conditions of the first measurement. The others differ at most in their time and in requested boundaries.
    pub(super) fn conditions(&self) -> Option<&'a Conditions> {
        self.reports.first().map(|report| &report.conditions)
    }

    /// Returns the names of the measured models.
    pub(super) fn title(&self) -> String {
        let mut names: Vec<&str> = Vec::new();
        let compared =
            self.comparisons.iter().flat_map(|comparison| comparison.models.iter().map(|side| side.model.as_str()));
        let loaded = self.batches.iter().chain(&self.rates).map(|all| all.model);
        for name in compared.chain(loaded).chain(self.runs.iter().map(|run| run.model)) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        match names.len() {
            0 => "Nothing measured".into(),
            1..=3 => names.join(" and "),
            count => format!("{count} models"),
        }
    }
}

/// Groups reports: consecutive ones of the same command about the same models form a chapter.
pub(super) fn chapters(reports: &[MeasurementReport]) -> Vec<Chapter<'_>> {
    let mut chapters: Vec<Chapter> = Vec::new();
    for report in reports {
        let belongs = chapters.last().and_then(Chapter::conditions).is_some_and(|first| {
            let next = &report.conditions;
            first.command == next.command && first.models == next.models && first.workloads == next.workloads
        });
        if !belongs {
            chapters.push(Chapter::new(format!("c{}", chapters.len() + 1)));
        }
        chapters.iter_mut().last().into_iter().for_each(|chapter| chapter.add(report));
    }
    chapters
}

/// Returns an index for each model in order of first use, which chooses its colour.
pub(super) fn colour(models: &mut Vec<String>, model: &str) -> usize {
    models.iter().position(|known| known == model).unwrap_or_else(|| {
        models.push(model.to_owned());
        models.len() - 1
    })
}
