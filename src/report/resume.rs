//! What a cache hit costs the model: a sequence that already holds the prompt is forked, forgets its last symbol and is fed
//! it again, which gives the logits; beside it, the same logits from a cold prefill. Looking the prompt up in a cache is not
//! part of it: there is no lookup here.

use super::{
    compare::Ratio,
    head::Head,
    machine::Machine,
    prefill::{self, MAX_RUNS},
    quantiles::Quantiles,
    sample::Sample,
};
use crate::{
    decode::contract::{Card, Model, Row, Scratch, Want, advance},
    error::{Error, Result},
};
use serde::Serialize;
use std::time::Instant;

/// What is to be timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Symbols of the prompt.
    pub context: usize,
    /// Symbols a step of the cold prefill.
    pub chunk: usize,
    /// Timed pairs of a cold and a resumed run, after one that is not timed.
    pub runs: usize,
}

impl Plan {
    /// Whether the model can do it.
    ///
    /// # Errors
    /// [`Error::BadOption`] with the command line's option and its bound.
    pub fn check(&self, card: &Card) -> Result<()> {
        let limit = card.max_symbols;
        if !(1..=limit).contains(&self.context) {
            let bound = format!("1 to {limit}, the most symbols of a sequence, which --max-symbols sets");
            return Err(Error::BadOption { field: "--context", found: self.context.to_string(), bound });
        }
        super::bounded("--chunk", self.chunk, 1, limit)?;
        super::bounded("--runs", self.runs, 1, MAX_RUNS)
    }
}

/// A measurement of resuming, as it is told.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Entry {
    /// The model, and what it runs on.
    #[serde(flatten)]
    pub head: Head,
    /// Symbols of the prompt.
    pub context: usize,
    /// Symbols a step of the cold prefill.
    pub chunk: usize,
    /// From the empty sequence to the logits after the prompt: the median run.
    pub cold_ns_p50: f64,
    /// A fast run.
    pub cold_ns_p10: f64,
    /// A slow run.
    pub cold_ns_p90: f64,
    /// Fork, rollback of one symbol, and one step, to the same logits: the median run.
    pub resumed_ns_p50: f64,
    /// A fast run.
    pub resumed_ns_p10: f64,
    /// A slow run.
    pub resumed_ns_p90: f64,
    /// Cold ÷ resumed, over the pairs.
    pub ratio: Ratio,
    /// Bytes of the pages that the held sequence refers to: what a cache has to keep for it.
    pub state_bytes: usize,
    /// Pairs timed.
    pub runs: usize,
    /// Letters of the sample that the vocabulary does not have.
    pub foreign_letters: usize,
}

/// Times a plan: cold, resumed, cold, resumed …
///
/// # Errors
/// A plan that the model cannot do, what its steps say, and [`Error::Internal`] if the two ways give different logits.
pub fn measure(model: &dyn Model, plan: Plan, machine: &Machine) -> Result<Entry> {
    let card = model.card();
    plan.check(card)?;
    let sample = Sample::new(&card.vocabulary);
    let symbols = sample.window(Sample::start(0), plan.context);
    let mut scratch = model.scratch();
    let held = prefill::run(model, &symbols, plan.chunk, &mut scratch)?.row;
    resumed(model, &held, &symbols, &mut scratch)?;
    let mut pairs = Vec::with_capacity(plan.runs);
    for _ in 0..plan.runs {
        let cold = prefill::run(model, &symbols, plan.chunk, &mut scratch)?;
        let (again, resumed_ns) = resumed(model, &held, &symbols, &mut scratch)?;
        if cold.row.logits != again.logits {
            return Err(Error::Internal("a resumed sequence has other logits than a cold one".into()));
        }
        pairs.push((resumed_ns, cold.ns));
    }
    let empty = || Error::Internal("no run was timed".into());
    let resumed = Quantiles::of(pairs.iter().map(|pair| pair.0).collect()).ok_or_else(empty)?;
    let cold = Quantiles::of(pairs.iter().map(|pair| pair.1).collect()).ok_or_else(empty)?;
    Ok(Entry {
        head: Head::new(card, machine),
        context: plan.context,
        chunk: plan.chunk,
        cold_ns_p50: cold.p50,
        cold_ns_p10: cold.p10,
        cold_ns_p90: cold.p90,
        resumed_ns_p50: resumed.p50,
        resumed_ns_p10: resumed.p10,
        resumed_ns_p90: resumed.p90,
        ratio: Ratio::of(&pairs).ok_or_else(empty)?,
        state_bytes: held.state.bytes(),
        runs: plan.runs,
        foreign_letters: sample.foreign(),
    })
}

/// From a sequence that holds all symbols to the logits, and the nanoseconds that took: what is shared is copied on the way
/// where the step writes to it.
fn resumed(model: &dyn Model, held: &Row, symbols: &[u32], scratch: &mut Scratch) -> Result<(Row, f64)> {
    let last = symbols.len() - 1;
    let begun = Instant::now();
    let mut row = Row::new(held.state.fork());
    row.state.rollback(last)?;
    row.set(&symbols[last..], Want::Last);
    advance(model, std::slice::from_mut(&mut row), &[0], scratch)?;
    Ok((row, begun.elapsed().as_nanos() as f64))
}
