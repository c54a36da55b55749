//! Timings: what was measured, beside what the machine can do.
//!
//! Reading order: [`sample`] (the text that is fed), [`decode`] (symbol by symbol, many rows) and [`rounds`] (what came of
//! it), [`prefill`] (many symbols a step), [`endless`] (a long stream), [`compare`] (two models in turns), [`resume`] (what the
//! segment cache spares),
//! [`stream`] (what the wire adds), [`kernels`] (one at a time), [`machine`] (the ceilings, measured in the same run),
//! [`head`] and [`quantiles`] (what measurements have in common), [`plot`] (pictures of them). What is counted and what is
//! not: docs/performance.md.

pub mod compare;
pub mod decode;
pub mod endless;
pub mod head;
pub mod kernels;
pub mod machine;
pub mod plot;
pub mod prefill;
pub mod quantiles;
pub mod resume;
pub mod rouge;
pub mod rounds;
pub mod sample;
pub mod stream;
pub mod summaries;

use crate::error::{Error, Result};

/// An option that counts something: from `least` to `most`.
fn bounded(field: &'static str, value: usize, least: usize, most: usize) -> Result<()> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Error::BadOption { field, found: value.to_string(), bound: format!("{least} to {most}") })
}
