//! Benchmark of the segment cache: the time to the first character of a prompt whose beginning is cached, compared with a
//! prompt that is not cached.
//!
//! The command starts the server, sends the requests and reads the clock. This file defines the prompts and the result.

use crate::report::{
    check_length, check_range, machine::MeasuredModel, quantiles, ratios, sample::Sample, stream::StreamRun,
};
use serde::Serialize;
use weir_kernels::error::{Error, Result};
use weir_measure::stats::Quantiles;
use weir_models::contract::Card;

/// The plan of the benchmark: the flags of `weir bench resume` describe the fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ResumePlan {
    pub context: usize,
    pub more: usize,
    pub runs: usize,
}

/// Symbols at the start of a pair's prompts that encode its number. A cold prompt shares at most these with earlier ones.
const NUMBER: usize = 16;

impl ResumePlan {
    /// Checks the plan against the limits of the model. The error names the command-line option and its limit.
    pub(crate) fn check(&self, card: &Card) -> Result<()> {
        // the generated character needs a position, too
        let limit = card.max_symbols.saturating_sub(1);
        check_range("--more", self.more, 1, limit)?;
        if self.context < 2 * NUMBER {
            let bound = format!("at least {}, of which {NUMBER} distinguish the pairs", 2 * NUMBER);
            return Err(Error::BadOption { field: "--context", found: self.context.to_string(), bound });
        }
        if card.vocabulary.len() < 2 {
            return Err(Error::Setting("resume: the vocabulary has one symbol, so all prompts are equal".into()));
        }
        check_length("--context and --more together", self.context + self.more, limit)
    }

    /// Returns the two prompts of a pair. They share their first `context` symbols, and no other pair starts with them.
    pub(crate) fn prompts(&self, card: &Card, pair: usize) -> [String; 2] {
        let sample = Sample::new(&card.vocabulary);
        // the number of the pair in binary, with the first two distinct letters of the sample as digits
        let first = sample.symbol(0);
        let symbols = sample.window(1, sample.len() - 1);
        let other = symbols.into_iter().find(|&symbol| symbol != first).unwrap_or(first);
        let digit = |index| if pair >> index & 1 == 1 { other } else { first };
        let mut prefix: Vec<u32> = (0..NUMBER).map(digit).collect();
        prefix.extend(sample.window(Sample::start(pair), self.context - NUMBER));
        [1, 2].map(|which| {
            let more = sample.window(Sample::start(pair + which) + self.context, self.more);
            card.vocabulary.decode(&[prefix.as_slice(), &more].concat())
        })
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ResumeMeasurement {
    #[serde(flatten)]
    pub measured: MeasuredModel,
    pub context: usize,
    pub more: usize,
    pub chunk: usize,
    /// Median time to the first character of a prompt that is not cached.
    pub cold_ns_p50: f64,
    pub cold_ns_p10: f64,
    pub cold_ns_p90: f64,
    /// Median time to the first character of a prompt whose beginning is cached.
    pub resumed_ns_p50: f64,
    pub resumed_ns_p10: f64,
    pub resumed_ns_p90: f64,
    /// Cold time divided by resumed time, over the pairs.
    pub ratio: Quantiles,
    /// Mean cached characters of a resumed prompt: the shared ones except those of the open segment.
    pub cached_chars: f64,
    pub runs: usize,
    pub foreign_letters: usize,
}

impl ResumeMeasurement {
    /// Summarizes pairs of a cold and a resumed answer. Fails if there are no pairs, or if a cold prompt was cached.
    pub(crate) fn new(
        measured: MeasuredModel,
        card: &Card,
        plan: ResumePlan,
        chunk: usize,
        pairs: &[[StreamRun; 2]],
    ) -> Result<Self> {
        if pairs.iter().any(|[cold, _]| cold.cached_chars > NUMBER as u64) {
            return Err(Error::Internal("a cold prompt was cached".into()));
        }
        let cold = quantiles(pairs.iter().map(|[cold, _]| cold.ns).collect())?;
        let resumed = quantiles(pairs.iter().map(|[_, resumed]| resumed.ns).collect())?;
        let cached: u64 = pairs.iter().map(|[_, resumed]| resumed.cached_chars).sum();
        Ok(Self {
            measured,
            context: plan.context,
            more: plan.more,
            chunk,
            cold_ns_p50: cold.median,
            cold_ns_p10: cold.p10,
            cold_ns_p90: cold.p90,
            resumed_ns_p50: resumed.median,
            resumed_ns_p10: resumed.p10,
            resumed_ns_p90: resumed.p90,
            ratio: ratios(pairs.iter().map(|[cold, resumed]| (cold.ns, resumed.ns)))?,
            cached_chars: cached as f64 / pairs.len() as f64,
            runs: pairs.len(),
            foreign_letters: Sample::new(&card.vocabulary).foreign,
        })
    }
}
