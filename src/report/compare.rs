//! Two models on one machine, in turns: whatever else the machine does meanwhile, it does to both.

use super::{
    bounded,
    decode::{Decoding, Entry, Plan},
    machine::Machine,
    quantiles::Quantiles,
    rounds::Run,
    sample::Sample,
};
use crate::{
    decode::contract::Model,
    error::{Error, Result},
};
use serde::Serialize;

/// The most pairs of runs.
pub const MAX_PAIRS: usize = 10_000;

/// A comparison, as it is told.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Rows of a step.
    pub batch: usize,
    /// Symbols that each row held before the first round of a run.
    pub context: usize,
    /// Rounds that a row was allowed to wait for its segment step.
    pub boundary_wait: usize,
    /// Runs of each model.
    pub pairs: usize,
    /// The first model, all its runs together.
    pub a: Entry,
    /// The second.
    pub b: Entry,
    /// Speed of the first ÷ speed of the second.
    pub ratio: Ratio,
}

/// How many times as fast one model was as the other, over the pairs of neighbouring runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ratio {
    /// The median pair.
    pub median: f64,
    /// A tenth of the pairs is at most this.
    pub p10: f64,
    /// Nine tenths are.
    pub p90: f64,
}

impl Ratio {
    /// Of the speeds of two models, pair by pair: first the first model's.
    pub fn of(speeds: &[(f64, f64)]) -> Option<Self> {
        let ratios = speeds.iter().map(|(a, b)| a / b.max(1e-9)).collect();
        Quantiles::of(ratios).map(|Quantiles { p10, p50, p90 }| Self { median: p50, p10, p90 })
    }
}

/// Whether so many pairs can be run.
///
/// # Errors
/// [`Error::BadOption`] with the bound.
pub fn check(pairs: usize) -> Result<()> {
    bounded("--pairs", pairs, 1, MAX_PAIRS)
}

/// Runs the plan with both models, A B A B …, each time on the same text from the same context (how far into
/// it a row comes in a run's rounds depends on how often it waits); `progress` is told the pairs
/// done.
///
/// # Errors
/// A plan that one of the models cannot do, and what their steps say.
pub fn compare(
    [a, b]: [&dyn Model; 2],
    plan: Plan,
    pairs: usize,
    machine: &Machine,
    progress: &mut dyn FnMut(usize),
) -> Result<Comparison> {
    check(pairs)?;
    let [text_a, text_b] = [a, b].map(|model| Sample::new(&model.card().vocabulary));
    let (mut a, mut b) = (Decoding::begin(a, &text_a, plan)?, Decoding::begin(b, &text_b, plan)?);
    let (mut runs_a, mut runs_b, mut speeds) = (Run::default(), Run::default(), Vec::with_capacity(pairs));
    for pair in 0..pairs {
        let (run_a, run_b) = (a.run()?, b.run()?);
        speeds.push((run_a.chars_per_second(), run_b.chars_per_second()));
        runs_a.extend(run_a);
        runs_b.extend(run_b);
        progress(pair + 1);
    }
    let ratio = Ratio::of(&speeds).ok_or_else(|| Error::Internal("no pair was timed".into()))?;
    let (a, b) = (Entry::new(&a, runs_a, machine)?, Entry::new(&b, runs_b, machine)?);
    let Plan { batch, context, boundary_wait, .. } = plan;
    Ok(Comparison { batch, context, boundary_wait, pairs, a, b, ratio })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_above_one_says_that_the_first_is_faster() {
        assert_eq!(Ratio::of(&[]), None);
        let ratio = Ratio::of(&[(2.0, 1.0), (2.0, 2.0), (4.0, 1.0)]).unwrap();
        assert!(ratio.median == 2.0 && (ratio.p10 - 1.2).abs() < 1e-12 && (ratio.p90 - 3.6).abs() < 1e-12);
    }
}
