//! Benchmarks and quality measurements, reported next to the measured limits of the machine.
//!
//! Reading order: [`sample`] (the text that models are fed), [`decode`] (symbol by symbol, many rows; also two models in turns),
//! [`prefill`] (many symbols a step), `summaries` (summarization), `documents` (given documents, one by one),
//! `constraints` (texts that must have a form), [`kernels`] (single
//! kernels), [`machine`] (the machine's limits, measured in the same run) and `rouge` (summary quality). The package `weir-measure` has
//! the statistics.

pub(crate) mod constraints;
pub mod decode;
pub(crate) mod documents;
pub mod kernels;
pub mod machine;
pub mod prefill;
pub(crate) mod rouge;
pub mod sample;
pub(crate) mod summaries;

use weir_kernels::error::{Error, Result};
use weir_measure::stats::Quantiles;

/// Checks that the option `field` is in the range `min` to `max`.
fn check_range(field: &'static str, value: usize, min: usize, max: usize) -> Result<()> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(Error::BadOption { field, found: value.to_string(), bound: format!("{min} to {max}") })
}

/// Checks that the option `field` is at most `limit` symbols.
fn check_length(field: &'static str, length: usize, limit: usize) -> Result<()> {
    match length <= limit {
        true => Ok(()),
        false => Err(Error::TooLong { field, length, limit, unit: "symbols", why: None }),
    }
}

/// Returns quantiles of measured values. Fails if there are none.
fn quantiles(values: Vec<f64>) -> Result<Quantiles> {
    Quantiles::from_values(values).ok_or_else(|| Error::Internal("nothing was timed".into()))
}

/// Returns quantiles of the ratios of pairs (numerator, denominator), such as two speeds. Fails if there are no pairs.
fn ratios(pairs: impl Iterator<Item = (f64, f64)>) -> Result<Quantiles> {
    Quantiles::from_ratios(pairs).ok_or_else(|| Error::Internal("nothing was timed".into()))
}
