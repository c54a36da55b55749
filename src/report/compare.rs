//! Benchmark of two models in turns on one machine, so that other load on the machine affects both.

use crate::report::{
    decode::{DecodeBench, DecodeMeasurement, DecodePlan, DecodeRun},
    machine::Machine,
    ratios,
    sample::Sample,
};
use serde::Serialize;
use weir_kernels::error::Result;
use weir_measure::stats::Quantiles;
use weir_models::contract::Model;

/// Maximum pairs of runs.
pub const MAX_PAIRS: usize = 10_000;

/// Result of comparing two models.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DecodeComparison {
    /// Rows of a step.
    pub batch: usize,
    /// Symbols that each row holds before the first round of a run.
    pub context: usize,
    /// Rounds that a row may wait for its segment step.
    pub boundary_wait: usize,
    /// Runs of each model.
    pub pairs: usize,
    /// All runs of the first model.
    pub a: DecodeMeasurement,
    /// All runs of the second model.
    pub b: DecodeMeasurement,
    /// Speed of the first model in characters of text, divided by the speed of the second, over pairs of consecutive runs.
    pub ratio: Quantiles,
}

/// Runs the plan with both models in turns (A B A B …), each time on the same text from the same context. How far a row
/// advances in a run depends on how often it waits. `progress` receives the number of finished pairs.
/// Fails if the plan exceeds a limit of a model, or if a step fails.
pub fn compare(
    [a, b]: [&dyn Model; 2],
    plan: DecodePlan,
    pairs: usize,
    machine: &Machine,
    progress: &mut dyn FnMut(usize),
) -> Result<DecodeComparison> {
    let [text_a, text_b] = [a, b].map(|model| Sample::new(&model.card().vocabulary));
    let mut a = DecodeBench::start(a, &text_a, plan)?;
    let mut b = DecodeBench::start(b, &text_b, plan)?;
    let mut runs_a = DecodeRun::default();
    let mut runs_b = DecodeRun::default();
    let mut speeds = Vec::with_capacity(pairs);
    for pair in 0..pairs {
        let run_a = a.run()?;
        let run_b = b.run()?;
        speeds.push((a.chars_per_second(&run_a), b.chars_per_second(&run_b)));
        runs_a.extend(run_a);
        runs_b.extend(run_b);
        progress(pair + 1);
    }
    let ratio = ratios(speeds.into_iter())?;
    let a = DecodeMeasurement::new(&a, runs_a, machine)?;
    let b = DecodeMeasurement::new(&b, runs_b, machine)?;
    let DecodePlan { batch, context, boundary_wait, .. } = plan;
    Ok(DecodeComparison { batch, context, boundary_wait, pairs, a, b, ratio })
}
