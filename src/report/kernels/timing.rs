//! Measures the time of a call.

use crate::{error::Result, report::quantiles::Quantiles};
use std::time::{Duration, Instant};

/// Minimum samples.
const MIN_SAMPLES: usize = 11;
/// Maximum samples, all of which are kept in memory.
const MAX_SAMPLES: usize = 1 << 20;
/// Minimum time of a batch of calls, so that the cost of reading the clock is negligible.
const SAMPLE: Duration = Duration::from_micros(200);

/// Times batches of calls for at least `min_time` and returns the nanoseconds per call. `call` receives its number, which
/// increases across batches.
pub(super) fn time_batches(min_time: Duration, call: &mut dyn FnMut(usize)) -> Result<Quantiles> {
    let mut number = 0;
    let mut batch = 1;
    let mut sample = |batch: usize| {
        let start = Instant::now();
        for _ in 0..batch {
            call(number);
            number += 1;
        }
        start.elapsed()
    };
    sample(1);
    while sample(batch) < SAMPLE {
        batch *= 2;
    }
    repeat(min_time, &mut || sample(batch).as_nanos() as f64 / batch as f64)
}

/// Times each call separately, including the cost of reading the clock, so that slow calls are visible.
pub(super) fn time_each(min_time: Duration, call: &mut dyn FnMut()) -> Result<Quantiles> {
    call();
    repeat(min_time, &mut || {
        let start = Instant::now();
        call();
        start.elapsed().as_nanos() as f64
    })
}

fn repeat(min_time: Duration, sample: &mut dyn FnMut() -> f64) -> Result<Quantiles> {
    let start = Instant::now();
    let mut samples = Vec::new();
    while samples.len() < MIN_SAMPLES || (start.elapsed() < min_time && samples.len() < MAX_SAMPLES) {
        samples.push(sample());
    }
    // a clock that is too coarse must not make a rate infinite
    Quantiles::from_values(samples.into_iter().map(|ns| ns.max(1e-3)).collect())
}
