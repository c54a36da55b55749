//! Benchmark of streaming over gRPC: the same generations, read in turns from the engine in its own process and by a gRPC
//! client.
//!
//! The command starts the server and the client and reads the clock. This file defines the requests and the result.

use crate::report::{check_length, check_range, machine::MeasuredModel, quantiles, sample::Sample};
use serde::{Deserialize, Serialize};
use weir_engine::options::{Generate, Sampling, Stopping};
use weir_kernels::error::{Error, Result};
use weir_measure::stats::Quantiles;
use weir_models::contract::{BoundaryOptions, Card, Noise};

/// Maximum concurrent requests: the number of streams that one connection carries.
pub(crate) const MAX_BATCH: usize = 256;

/// The plan of the benchmark: the flags of `weir bench stream` describe the fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamPlan {
    pub batch: usize,
    pub context: usize,
    pub chars: usize,
    pub pairs: usize,
}

/// A request for a generation, with defaults for everything else.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct StreamRequest {
    /// Prompt, in characters of the model's vocabulary.
    pub prompt: String,
    pub seed: u64,
    /// Maximum characters.
    pub chars: u32,
}

impl StreamPlan {
    /// Checks the plan against the limits of the model. The error names the command-line option and its limit.
    pub(crate) fn check(&self, card: &Card) -> Result<()> {
        let limit = card.max_symbols;
        check_range("--context", self.context, 1, limit)?;
        check_range("--chars", self.chars, 1, limit)?;
        check_length("--context and --chars together", self.context + self.chars, limit)
    }

    /// Returns the requests. Each continues a different part of the sample with a different seed.
    pub(crate) fn requests(&self, card: &Card) -> Vec<StreamRequest> {
        let sample = Sample::new(&card.vocabulary);
        let text = |row| card.vocabulary.decode(&sample.window(Sample::start(row), self.context));
        let chars = u32::try_from(self.chars).unwrap_or(u32::MAX);
        (0..self.batch).map(|row| StreamRequest { prompt: text(row), seed: row as u64 + 1, chars }).collect()
    }

    /// Converts a request to the engine's form, with gRPC's defaults. Fails if the vocabulary cannot encode the prompt.
    pub(crate) fn engine_request(&self, request: &StreamRequest, card: &Card) -> Result<Generate> {
        Ok(Generate {
            prompt: card.vocabulary.encode("--context", &request.prompt, card.max_symbols)?,
            sampling: Sampling { seed: request.seed, ..Sampling::default() },
            stopping: Stopping { max_chars: self.chars, ignore_end: true, ..Stopping::default() },
            boundaries: BoundaryOptions { noise: Noise::Seeded(request.seed), ..BoundaryOptions::default() },
            ..Generate::default()
        })
    }
}

/// One run of concurrent requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct StreamRun {
    /// Nanoseconds from the first request to the end of the last answer.
    pub ns: f64,
    /// Generated texts in the order of the requests.
    pub texts: Vec<String>,
    /// Events or messages received, summed over requests.
    pub messages: usize,
    /// Prompt characters that the server had cached, summed over requests; 0 in the process.
    pub cached_chars: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct StreamMeasurement {
    #[serde(flatten)]
    pub measured: MeasuredModel,
    pub batch: usize,
    /// Median time per character in the process: the time of a run divided by the characters of one request.
    pub engine_step_ns: f64,
    /// Median time per character over gRPC.
    pub served_step_ns: f64,
    /// Relative overhead of gRPC: a step's time over gRPC divided by its time in the process, minus 1; 0.02 is 2 % slower.
    pub overhead: Quantiles,
    /// Symbols of each prompt. A run includes their prefill.
    pub context: usize,
    pub chars: usize,
    pub pairs: usize,
    /// Messages of a run over gRPC, summed over requests. Coalescing makes them fewer than characters.
    pub messages: usize,
    pub engine_step_ns_p10: f64,
    pub engine_step_ns_p90: f64,
    pub served_step_ns_p10: f64,
    pub served_step_ns_p90: f64,
}

impl StreamMeasurement {
    /// Summarizes pairs of runs, in the process and over gRPC. Fails if there are no pairs, or if the texts differ.
    pub(crate) fn new(measured: MeasuredModel, plan: StreamPlan, runs: &[(StreamRun, StreamRun)]) -> Result<Self> {
        let Some((first, served)) = runs.first() else { return Err(Error::Internal("nothing was timed".into())) };
        if runs.iter().any(|(engine, served)| engine.texts != first.texts || served.texts != first.texts) {
            return Err(Error::Internal("a text over gRPC differs from the engine's".into()));
        }
        let step = |run: &StreamRun| run.ns.max(1.0) / plan.chars as f64;
        let engine = quantiles(runs.iter().map(|(engine, _)| step(engine)).collect())?;
        let wire = quantiles(runs.iter().map(|(_, served)| step(served)).collect())?;
        let overhead = runs.iter().map(|(engine, served)| step(served) / step(engine) - 1.0);
        Ok(Self {
            measured,
            batch: plan.batch,
            engine_step_ns: engine.median,
            served_step_ns: wire.median,
            overhead: quantiles(overhead.collect())?,
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

    fn measured() -> MeasuredModel {
        MeasuredModel { model: "m".into(), family: "f", dtype: "f32", threads: 1, isa: "portable" }
    }

    fn run(ns: f64, text: &str) -> StreamRun {
        StreamRun { ns, texts: vec![text.into()], messages: 3, cached_chars: 0 }
    }

    #[test]
    fn overhead_is_the_relative_increase_of_a_step() {
        let plan = StreamPlan { batch: 1, context: 1, chars: 10, pairs: 3 };
        let runs = [(100.0, 110.0), (200.0, 240.0), (100.0, 90.0)].map(|(a, b)| (run(a, "x"), run(b, "x")));
        let entry = StreamMeasurement::new(measured(), plan, &runs).unwrap();
        assert_eq!((entry.engine_step_ns, entry.served_step_ns, entry.messages), (10.0, 11.0, 3));
        let close = |a: f64, b: f64| (a - b).abs() < 1e-12;
        let Quantiles { median, p10, p90 } = entry.overhead;
        assert!(close(median, 0.1) && close(p10, -0.06) && close(p90, 0.18), "{:?}", entry.overhead);
    }

    #[test]
    fn different_texts_are_an_error() {
        let plan = StreamPlan { batch: 1, context: 1, chars: 10, pairs: 1 };
        assert!(StreamMeasurement::new(measured(), plan, &[]).is_err());
        assert!(StreamMeasurement::new(measured(), plan, &[(run(1.0, "x"), run(1.0, "y"))]).is_err());
    }
}
