//! What the machine can do, measured in the same run as the models: a figure alone says nothing about how good it is.

use super::quantiles::Quantiles;
use crate::{
    error::Result,
    kernels::{
        Compute,
        peak::{MemoryStream, multiply_adds},
    },
};
use std::{
    hint::black_box,
    time::{Duration, Instant},
};
use sysinfo::System;

/// What models run on.
#[derive(Debug, Clone)]
pub struct Machine {
    /// The kernels' instruction set, and the threads that models share.
    pub compute: Compute,
}

/// A ceiling is the median of at least so many passes …
const LEAST_PASSES: usize = 11;
/// … that took at least so long together, after two that warm caches up.
const LEAST_TIME: Duration = Duration::from_millis(200);
const WARM_UP: usize = 2;
/// A pass reads at least so much, or the threads' own hand-over would be measured.
const LEAST_BYTES: usize = 4 << 20;
/// Multiply-adds of a pass.
const MULTIPLY_ADDS: usize = 1 << 27;

/// Bytes of memory that can be had now without pushing others out, within this process's share if it has one; none where
/// the system does not tell.
pub fn free_bytes() -> Option<usize> {
    let mut system = System::new();
    system.refresh_memory();
    let share = system.cgroup_limits().map(|limits| limits.free_memory);
    let free = Some(system.available_memory()).filter(|&bytes| bytes > 0);
    let least = free.into_iter().chain(share).min()?;
    Some(usize::try_from(least).unwrap_or(usize::MAX))
}

impl Machine {
    /// Threads that share a step's work.
    pub fn threads(&self) -> usize {
        self.compute.pool.threads()
    }

    /// Bytes a second that all threads read together when they go through `bytes` again and again.
    ///
    /// # Errors
    /// No memory for them.
    pub fn read_bytes_per_second(&self, bytes: usize) -> Result<f64> {
        let stream = MemoryStream::new(bytes)?;
        let times = LEAST_BYTES.div_ceil(stream.bytes());
        let bytes = (stream.bytes() * times) as f64;
        Ok(median_rate(&mut || {
            black_box(stream.read(self.compute.isa, &self.compute.pool, times));
            bytes
        }))
    }

    /// Multiply-adds of f32 that all threads do a second, in registers.
    pub fn multiply_adds_per_second(&self) -> f64 {
        median_rate(&mut || {
            let (count, end) = multiply_adds(self.compute.isa, &self.compute.pool, MULTIPLY_ADDS);
            black_box(end);
            count as f64
        })
    }
}

/// What a pass says it did, a second: the median over the passes.
fn median_rate(pass: &mut dyn FnMut() -> f64) -> f64 {
    for _ in 0..WARM_UP {
        pass();
    }
    let (start, mut rates) = (Instant::now(), Vec::new());
    while rates.len() < LEAST_PASSES || start.elapsed() < LEAST_TIME {
        let begun = Instant::now();
        let done = pass();
        rates.push(done / begun.elapsed().as_secs_f64().max(1e-9));
    }
    Quantiles::of(rates).map_or(0.0, |rates| rates.p50)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn free_memory_is_some_and_not_more_than_there_is() {
        let mut system = System::new();
        system.refresh_memory();
        let free = free_bytes().unwrap();
        assert!(free > 0 && free as u64 <= system.total_memory(), "{free}");
    }
}
