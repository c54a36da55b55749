//! Limits of the machine, measured in the same run as the models: peak memory bandwidth and peak arithmetic.

use serde::Serialize;
use std::hint::black_box;
use std::time::{Duration, Instant};
use sysinfo::System;
use weir_kernels::Compute;
use weir_kernels::error::Result;
use weir_kernels::memory::{MemoryStream, multiply_adds};
use weir_measure::stats::median;
use weir_models::contract::Card;

/// The instruction set and threads that models run on.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Instruction set of the kernels, and the threads that models share.
    pub compute: Compute,
}

/// Minimum timed passes of a limit, which is their median.
const MIN_PASSES: usize = 11;

/// Minimum time of all timed passes of a limit together.
pub const LIMIT_TIME: Duration = Duration::from_millis(200);

/// Passes before the timed ones, which warm up the caches.
const WARM_UP: usize = 2;

/// Minimum bytes that a pass reads, so that the time to start the threads does not matter.
const MIN_BYTES: usize = 4 << 20;

/// Multiply-adds of a pass.
const MULTIPLY_ADDS: usize = 1 << 27;

/// Returns the bytes of memory that can be allocated without swapping, within the limit of the process's cgroup if there
/// is one. Returns `None` if the system does not report it.
pub fn free_bytes() -> Option<usize> {
    let mut system = System::new();
    system.refresh_memory();
    // cached files count as used there, but the system frees them when a program needs memory
    let cgroup = system.cgroup_limits().map(|limits| limits.total_memory.saturating_sub(limits.rss));
    let free = Some(system.available_memory()).filter(|&bytes| bytes > 0);
    let available = free.into_iter().chain(cgroup).min()?;
    Some(usize::try_from(available).unwrap_or(usize::MAX))
}

/// The measured model and the conditions of the measurement.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MeasuredModel {
    /// Name of the model.
    pub model: String,
    /// Family of the model.
    pub family: &'static str,
    /// Type of its stored elements.
    pub dtype: &'static str,
    /// Threads that share each step.
    pub threads: usize,
    /// Instruction set of the kernels.
    pub isa: &'static str,
}

impl MeasuredModel {
    /// Creates the description of a model on a machine.
    pub fn new(card: &Card, machine: &Machine) -> Self {
        Self {
            model: card.name.clone(),
            family: card.family,
            dtype: card.dtype,
            threads: machine.threads(),
            isa: machine.compute.isa.name(),
        }
    }
}

impl Machine {
    /// Returns the number of threads that share a step.
    pub fn threads(&self) -> usize {
        self.compute.pool.threads()
    }

    /// Measures for at least `min_time` how many bytes per second all threads read from a working set of `bytes`. Fails if memory
    /// runs out.
    pub fn read_bytes_per_second(&self, bytes: usize, min_time: Duration) -> Result<f64> {
        let stream = MemoryStream::new(bytes)?;
        let times = MIN_BYTES.div_ceil(stream.bytes());
        let bytes = (stream.bytes() * times) as f64;
        Ok(median_rate(min_time, &mut || {
            black_box(stream.read(self.compute.isa, &self.compute.pool, times));
            bytes
        }))
    }

    /// Measures the f32 multiply-adds per second of all threads, in registers.
    pub fn multiply_adds_per_second(&self) -> f64 {
        median_rate(LIMIT_TIME, &mut || {
            let (count, result) = multiply_adds(self.compute.isa, &self.compute.pool, MULTIPLY_ADDS);
            black_box(result);
            count as f64
        })
    }
}

/// Returns the median rate, in units per second, of a pass that returns its number of units.
fn median_rate(min_time: Duration, pass: &mut dyn FnMut() -> f64) -> f64 {
    for _ in 0..WARM_UP {
        pass();
    }
    let start = Instant::now();
    let mut rates = Vec::new();
    while rates.len() < MIN_PASSES || start.elapsed() < min_time {
        let pass_start = Instant::now();
        let units = pass();
        rates.push(units / pass_start.elapsed().as_secs_f64().max(1e-9));
    }
    median(rates).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn free_memory_is_at_most_the_total() {
        let mut system = System::new();
        system.refresh_memory();
        let free = free_bytes().unwrap();
        assert!(free > 0 && free as u64 <= system.total_memory(), "{free}");
    }
}
