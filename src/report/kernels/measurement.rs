//! Plan, timing and result of a kernel benchmark.

use crate::report::{check_range, machine::Machine, quantiles};
use serde::Serialize;
use std::time::{Duration, Instant};
use weir_kernels::{
    Dtype,
    error::{Error, Result},
};
use weir_measure::stats::Quantiles;

/// Maximum size of the matrices in memory, in units of 10⁶ bytes.
pub const MAX_MEGABYTES: usize = 1 << 16;

const MEGABYTE: usize = 1_000_000;

/// Maximum seconds of one measurement.
pub const MAX_SECONDS: f64 = 60.0;

const MIN_SAMPLES: usize = 11;

/// Maximum samples, all of which are kept in memory.
const MAX_SAMPLES: usize = 1 << 20;

/// Minimum time of a batch of calls, so that the cost of reading the clock is negligible.
const SAMPLE: Duration = Duration::from_micros(200);

/// Duration and size of the measurements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KernelPlan {
    /// Minimum seconds of one measurement.
    pub seconds: f64,
    /// Size of the matrices that take turns as cold weights, as if stored in f32, in units of 10⁶ bytes.
    pub megabytes: usize,
}

impl KernelPlan {
    /// Checks the plan against its limits. The error names the command-line option and its limit.
    pub fn check(&self) -> Result<()> {
        check_range("--megabytes", self.megabytes, 1, MAX_MEGABYTES)?;
        if self.seconds > 0.0 && self.seconds <= MAX_SECONDS {
            return Ok(());
        }
        let bound = format!("above 0, up to {MAX_SECONDS}");
        Err(Error::BadOption { field: "--seconds", found: self.seconds.to_string(), bound })
    }

    /// Checks that the matrices, and a buffer of the same size to measure the read bandwidth, fit into free memory.
    /// The error names the size that would fit.
    pub fn check_memory(&self, dtypes: &[Dtype], free_bytes: usize) -> Result<()> {
        // the option counts f32 bytes; a narrower type needs less
        let compression = dtypes.iter().map(|dtype| 4 / dtype.cache_dtype().bytes()).min().unwrap_or(1);
        let fit = free_bytes / MEGABYTE / 2 * compression;
        if self.megabytes <= fit {
            return Ok(());
        }
        let free = free_bytes / MEGABYTE;
        let why = format!("the matrices and a buffer of equal size must fit into {free} MB of free memory");
        let bound = format!("at most {fit} ({why})");
        Err(Error::BadOption { field: "--megabytes", found: self.megabytes.to_string(), bound })
    }

    pub(super) fn min_time(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

/// Result of a kernel benchmark. Fields that do not apply to the kernel are `None`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct KernelMeasurement {
    /// Kernel: `matrix`, `matrix+gelu`, `attention`, `attention+distances`, `norm`, `dispatch`.
    pub kernel: &'static str,
    /// Type in which the matrix, or keys and values, are stored.
    pub dtype: Option<&'static str>,
    /// Threads that share the work.
    pub threads: usize,
    /// Instruction set of the kernels.
    pub isa: &'static str,
    /// `cold` (many matrices take turns) or `hot` (the same matrix in every call).
    pub weights: Option<&'static str>,
    /// Width of an input row.
    pub inputs: Option<usize>,
    /// Width of an output row.
    pub outputs: Option<usize>,
    /// Rows of a call.
    pub rows: usize,
    /// Keys that a query attends to.
    pub keys: Option<usize>,
    /// Time of a call: median over groups of calls.
    pub ns_p50: f64,
    /// 10th percentile over groups of calls.
    pub ns_p10: f64,
    /// 90th percentile over groups of calls.
    pub ns_p90: f64,
    /// Bytes of weights, or of keys, values and distances, that a call reads.
    pub bytes: Option<usize>,
    /// Bytes that calls read before they read the same ones again.
    pub working_set_bytes: Option<usize>,
    /// Read rate of the median call.
    pub bytes_per_second: Option<f64>,
    /// Measured rate of a streaming read of the same working set on the same threads.
    pub ceiling_bytes_per_second: Option<f64>,
    /// GFLOP/s of the median call: two floating-point operations per multiply-add.
    pub gflops: Option<f64>,
    /// Measured peak GFLOP/s of the machine in f32; `None` for int8, whose operations are not floating-point.
    pub peak_gflops: Option<f64>,
}

impl KernelMeasurement {
    /// Creates a result without rates.
    pub(super) fn new(kernel: &'static str, rows: usize, times: Quantiles, machine: &Machine) -> Self {
        Self {
            kernel,
            threads: machine.threads(),
            isa: machine.compute.isa.name(),
            rows,
            ns_p50: times.median,
            ns_p10: times.p10,
            ns_p90: times.p90,
            ..Self::default()
        }
    }

    /// Adds the rates of a call, and the measured limits of the machine: its read rate and its peak arithmetic.
    pub(super) fn with_rates(mut self, work: KernelWork, ceiling: f64, peak_gflops: Option<f64>) -> Self {
        self.bytes = Some(work.bytes);
        self.working_set_bytes = Some(work.working_set);
        self.bytes_per_second = Some(work.bytes as f64 / self.ns_p50 * 1e9);
        self.ceiling_bytes_per_second = Some(ceiling);
        self.gflops = Some(2.0 * work.multiply_adds as f64 / self.ns_p50);
        self.peak_gflops = peak_gflops;
        self
    }
}

#[derive(Clone, Copy)]
pub(super) struct KernelWork {
    /// Bytes that a call reads.
    pub(super) bytes: usize,
    /// Bytes that calls read before they read the same ones again.
    pub(super) working_set: usize,
    pub(super) multiply_adds: usize,
}

/// Times batches of calls for at least `min_time` and returns the nanoseconds per call. `call` receives its number.
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
    quantiles(samples.into_iter().map(|ns| ns.max(1e-3)).collect())
}
