//! Samples of one kind of step, and what they come to.

use super::Cell;
use crate::error::Result;
use std::time::{Duration, Instant};

/// What one cell's samples are, in nanoseconds: symbol, middle and finish step, and symbol and finish without a middle.
pub(super) type Samples = [Vec<u64>; 5];

/// Nanoseconds of a step.
pub(super) fn timed_step(step: impl FnOnce() -> Result<()>) -> Result<u64> {
    let began = Instant::now();
    step()?;
    Ok(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// What the samples of one kind of step come to.
pub(super) fn cell(
    (rows, symbols): (usize, usize),
    (context, context_segments): (usize, usize),
    closed: usize,
    samples: &mut Samples,
) -> Cell {
    let count = samples[0].len();
    let [symbol, middle, finish, plain_symbol, plain_finish] = samples.each_mut().map(|samples| median(samples));
    let plain = plain_symbol.zip(plain_finish);
    Cell {
        rows,
        symbols,
        context,
        context_segments,
        closed,
        samples: count,
        symbol: symbol.unwrap_or_default(),
        middle: middle.unwrap_or_default(),
        finish: finish.unwrap_or_default(),
        plain,
    }
}

fn median(samples: &mut [u64]) -> Option<Duration> {
    samples.sort_unstable();
    samples.get(samples.len() / 2).map(|&nanoseconds| Duration::from_nanos(nanoseconds))
}
