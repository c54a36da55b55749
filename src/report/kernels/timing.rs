//! Nanoseconds of a call.

use crate::{
    error::{Error, Result},
    report::quantiles::Quantiles,
};
use std::time::{Duration, Instant};

/// At least so many samples …
const LEAST_SAMPLES: usize = 11;
/// … and at most so many, each kept.
const MOST_SAMPLES: usize = 1 << 20;
/// Calls are timed together until they take so long, so that reading the clock costs a sample nothing that shows.
const SAMPLE: Duration = Duration::from_micros(200);

/// A call's nanoseconds, over samples that took `least` together; `call` is told its number, so that it can take turns.
/// The number goes on from sample to sample.
pub(super) fn calls(least: Duration, call: &mut dyn FnMut(usize)) -> Result<Quantiles> {
    let (mut number, mut batch) = (0, 1);
    let mut sample = |batch: usize| {
        let begun = Instant::now();
        for _ in 0..batch {
            call(number);
            number += 1;
        }
        begun.elapsed()
    };
    sample(1);
    while sample(batch) < SAMPLE {
        batch *= 2;
    }
    repeat(least, &mut || sample(batch).as_nanos() as f64 / batch as f64)
}

/// The same with each call timed by itself, the clock's own cost included: where the slow ones are what matters.
pub(super) fn each(least: Duration, call: &mut dyn FnMut()) -> Result<Quantiles> {
    call();
    repeat(least, &mut || {
        let begun = Instant::now();
        call();
        begun.elapsed().as_nanos() as f64
    })
}

fn repeat(least: Duration, sample: &mut dyn FnMut() -> f64) -> Result<Quantiles> {
    let (start, mut samples) = (Instant::now(), Vec::new());
    while samples.len() < LEAST_SAMPLES || (start.elapsed() < least && samples.len() < MOST_SAMPLES) {
        samples.push(sample());
    }
    // a clock too coarse for the call must not make a rate infinite
    let samples = samples.into_iter().map(|ns| ns.max(1e-3)).collect();
    Quantiles::of(samples).ok_or_else(|| Error::Internal("nothing was timed".into()))
}
