//! Checks of a checkpoint's generation defaults.

use crate::{
    decode::summary::SummaryLimits,
    error::{Error, Result},
    family::checkpoint::Config,
};
use std::path::Path;

/// Checks the checkpoint's generation defaults, for texts of at most `target_length` symbols with the start symbol. The error
/// names the first key that is out of bounds, and the bound.
pub fn check_generation(config: &Config, target_length: usize, file: &Path) -> Result<()> {
    let Some(generation) = &config.generation else { return Ok(()) };
    let fail = |key: &str, expected: String, found: String| {
        Err(Error::checkpoint(file, format!("generation.{key}"), expected, found))
    };
    // The last position is the end symbol's.
    let max = target_length - 1;
    match generation {
        g if !(0.01..=100.0).contains(&g.repetition_penalty) => {
            fail("repetition_penalty", "0.01 to 100".into(), g.repetition_penalty.to_string())
        }
        g if !(1..=64).contains(&g.beam) => fail("beam", "1 to 64".into(), g.beam.to_string()),
        g if !(1..=max).contains(&g.max_tokens) => {
            fail("max_tokens", format!("1 to {max}: target_length less one"), g.max_tokens.to_string())
        }
        g if g.min_tokens > g.max_tokens => {
            fail("min_tokens", format!("at most max_tokens, {}", g.max_tokens), g.min_tokens.to_string())
        }
        g if g.no_repeat_ngram == 1 || g.no_repeat_ngram > SummaryLimits::NGRAM => {
            let expected = format!("0 to disable the rule, or 2 to {}", SummaryLimits::NGRAM);
            fail("no_repeat_ngram", expected, g.no_repeat_ngram.to_string())
        }
        g if !(-10.0..=10.0).contains(&g.length_penalty) => {
            fail("length_penalty", "-10 to 10".into(), g.length_penalty.to_string())
        }
        _ => Ok(()),
    }
}
