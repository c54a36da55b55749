//! What a stream over the wire costs: the same generations read from the engine by the process that runs it, and by a client
//! over gRPC, in turns. Who serves, who calls and how the clock is read is the command's business; here is what they are
//! asked for, and what is told of the times.

use super::{bounded, compare::MAX_PAIRS, head::Head, quantiles::Quantiles, sample::Sample};
use crate::{
    decode::contract::{BoundaryOptions, Card, Noise},
    decode::options::{Details, Generate, Sampling, Stopping},
    error::{Error, Result},
};
use serde::Serialize;

/// The most requests at a time: no more calls than one connection carries.
pub const MAX_BATCH: usize = 256;

/// What is to be timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Requests at a time, each a stream of its own.
    pub batch: usize,
    /// Symbols of each prompt.
    pub context: usize,
    /// Characters that each request generates.
    pub chars: usize,
    /// Pairs of runs, one in the process and one over the wire, after one pair that is not timed.
    pub pairs: usize,
}

/// A request, as both ways ask for it.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    /// The prompt, in characters that the model's vocabulary has.
    pub prompt: String,
    /// Seeds the draws.
    pub seed: u64,
}

impl Plan {
    /// Whether the model can do it.
    ///
    /// # Errors
    /// [`Error::BadOption`] or [`Error::TooLong`] with the command line's option and its bound.
    pub fn check(&self, card: &Card) -> Result<()> {
        let limit = card.max_symbols;
        bounded("--batch", self.batch, 1, MAX_BATCH)?;
        bounded("--context", self.context, 1, limit)?;
        bounded("--chars", self.chars, 1, limit)?;
        bounded("--pairs", self.pairs, 1, MAX_PAIRS)?;
        let length = self.context + self.chars;
        if length > limit {
            return Err(Error::TooLong {
                field: "--context and --chars together",
                length,
                limit,
                unit: "characters",
                why: None,
            });
        }
        Ok(())
    }

    /// The requests: each goes on from a place of its own in the sample, by draws of its own.
    pub fn asked(&self, card: &Card) -> Vec<Asked> {
        let sample = Sample::new(&card.vocabulary);
        let text = |row| card.vocabulary.decode(&sample.window(Sample::start(row), self.context));
        (0..self.batch).map(|row| Asked { prompt: text(row), seed: row as u64 + 1 }).collect()
    }

    /// A request as the wire's conversion hands it to the engine, where it leaves everything else to the defaults.
    ///
    /// # Errors
    /// A prompt that the vocabulary does not take.
    pub fn job(&self, asked: &Asked, card: &Card) -> Result<Generate> {
        let (sampling, stopping) = (Sampling { seed: asked.seed, ..Sampling::default() }, self.stopping());
        let boundaries = BoundaryOptions { noise: Noise::Seeded(asked.seed), ..BoundaryOptions::default() };
        let prompt = card.vocabulary.encode("--context", &asked.prompt, card.max_symbols)?;
        Ok(Generate { prompt, sampling, stopping, details: Details::default(), boundaries })
    }

    fn stopping(&self) -> Stopping {
        let stop = Vec::new();
        Stopping {
            max_chars: self.chars,
            min_chars: 0,
            max_segments: None,
            stop,
            include_stop: false,
            ignore_end: true,
        }
    }
}

/// What one run gave.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// From the first request to the last answer's end.
    pub ns: f64,
    /// What each request got, in the order in which they were sent.
    pub texts: Vec<String>,
    /// Events or messages that it came in, those of all requests together.
    pub messages: usize,
}

/// How much more a step took over the wire, as a share of the engine's own, over the pairs of neighbouring runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Overhead {
    /// The median pair: 0.02 is two percent more.
    pub median: f64,
    /// A tenth of the pairs is at most this; it may be below zero.
    pub p10: f64,
    /// Nine tenths are.
    pub p90: f64,
}

/// A measurement of streaming, as it is told.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Entry {
    /// The model, and what it runs on.
    #[serde(flatten)]
    pub head: Head,
    /// Requests at a time.
    pub batch: usize,
    /// A run in the process, by the characters of one request: the time in which every request got one. The median run.
    pub engine_step_ns: f64,
    /// The same over the wire.
    pub served_step_ns: f64,
    /// The second in units of the first, less one.
    pub overhead: Overhead,
    /// Symbols of each prompt; their prefill is part of a run.
    pub context: usize,
    /// Characters that each request generated.
    pub chars: usize,
    /// Pairs timed.
    pub pairs: usize,
    /// Messages of a run over the wire, of all requests together: fewer than characters where they were coalesced.
    pub messages: usize,
    /// A fast run in the process.
    pub engine_step_ns_p10: f64,
    /// A slow one.
    pub engine_step_ns_p90: f64,
    /// A fast run over the wire.
    pub served_step_ns_p10: f64,
    /// A slow one.
    pub served_step_ns_p90: f64,
}

impl Entry {
    /// Of pairs of runs, each first in the process, then over the wire.
    ///
    /// # Errors
    /// [`Error::Internal`] if there is none, or the two ways gave different texts.
    pub fn new(head: Head, plan: Plan, runs: &[(Run, Run)]) -> Result<Self> {
        let Some((first, served)) = runs.first() else { return Err(Error::Internal("no pair was timed".into())) };
        if runs.iter().any(|(engine, served)| engine.texts != first.texts || served.texts != first.texts) {
            return Err(Error::Internal("a text over the wire is not the engine's".into()));
        }
        let step = |run: &Run| run.ns.max(1.0) / plan.chars as f64;
        let empty = || Error::Internal("no pair was timed".into());
        let engine = Quantiles::of(runs.iter().map(|(engine, _)| step(engine)).collect()).ok_or_else(empty)?;
        let wire = Quantiles::of(runs.iter().map(|(_, served)| step(served)).collect()).ok_or_else(empty)?;
        let more = Quantiles::of(runs.iter().map(|(engine, served)| step(served) / step(engine) - 1.0).collect());
        let more = more.ok_or_else(empty)?;
        Ok(Self {
            head,
            batch: plan.batch,
            engine_step_ns: engine.p50,
            served_step_ns: wire.p50,
            overhead: Overhead { median: more.p50, p10: more.p10, p90: more.p90 },
            context: plan.context,
            chars: plan.chars,
            pairs: runs.len(),
            messages: served.messages,
            engine_step_ns_p10: engine.p10,
            engine_step_ns_p90: engine.p90,
            served_step_ns_p10: wire.p10,
            served_step_ns_p90: wire.p90,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head {
        Head { model: "m".into(), family: "f", dtype: "f32", threads: 1, isa: "portable" }
    }

    fn run(ns: f64, text: &str) -> Run {
        Run { ns, texts: vec![text.into()], messages: 3 }
    }

    #[test]
    fn overhead_is_what_the_wire_adds_to_a_step() {
        let plan = Plan { batch: 1, context: 1, chars: 10, pairs: 3 };
        let runs = [(100.0, 110.0), (200.0, 240.0), (100.0, 90.0)].map(|(a, b)| (run(a, "x"), run(b, "x")));
        let entry = Entry::new(head(), plan, &runs).unwrap();
        assert_eq!((entry.engine_step_ns, entry.served_step_ns, entry.messages), (10.0, 11.0, 3));
        let close = |a: f64, b: f64| (a - b).abs() < 1e-12;
        let Overhead { median, p10, p90 } = entry.overhead;
        assert!(close(median, 0.1) && close(p10, -0.06) && close(p90, 0.18), "{:?}", entry.overhead);
    }

    #[test]
    fn other_texts_are_no_comparison() {
        let plan = Plan { batch: 1, context: 1, chars: 10, pairs: 1 };
        assert!(Entry::new(head(), plan, &[]).is_err());
        assert!(Entry::new(head(), plan, &[(run(1.0, "x"), run(1.0, "y"))]).is_err());
    }
}
