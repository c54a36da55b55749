//! Kernels one at a time, each beside what the machine can do: where a model's time goes, without a model.
//!
//! Matrix products with cold and hot weights, attention of one row, a norm, and what handing work to the threads costs by
//! itself.

mod matrix;
mod single;
mod timing;

use super::{bounded, machine::Machine, quantiles::Quantiles};
use crate::{
    error::{Error, Result},
    kernels::Dtype,
};
use serde::Serialize;
use std::time::Duration;

/// The most bytes of matrices that are held at a time, in units of 10⁶.
pub const MAX_MEGABYTES: usize = 1 << 16;
/// Its unit.
const MEGABYTE: usize = 1_000_000;
/// The most seconds of one measurement.
pub const MAX_SECONDS: f64 = 60.0;

/// How long and how much.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// The least seconds of one measurement.
    pub seconds: f64,
    /// So many matrices take turns that in f32 they would fill at least this many bytes, in units of 10⁶: cold weights.
    pub megabytes: usize,
}

impl Plan {
    /// Whether it can be done.
    ///
    /// # Errors
    /// [`Error::BadOption`] with the command line's option and its bound.
    pub fn check(&self) -> Result<()> {
        bounded("--megabytes", self.megabytes, 1, MAX_MEGABYTES)?;
        if self.seconds > 0.0 && self.seconds <= MAX_SECONDS {
            return Ok(());
        }
        let bound = format!("above 0, up to {MAX_SECONDS}");
        Err(Error::BadOption { field: "--seconds", found: self.seconds.to_string(), bound })
    }

    /// Whether what is held at a time fits into the memory that is free: the matrices, and as much again to measure what
    /// they could be read at.
    ///
    /// # Errors
    /// [`Error::BadOption`] with what would fit.
    pub fn check_memory(&self, dtypes: &[Dtype], free_bytes: usize) -> Result<()> {
        // so many matrices take turns that in f32 they would fill the bytes asked for; a narrower type fills less
        let narrowing = dtypes.iter().map(|dtype| 4 / dtype.bytes().max(1)).min().unwrap_or(1);
        let fit = free_bytes / MEGABYTE / 2 * narrowing;
        if self.megabytes <= fit {
            return Ok(());
        }
        let (free, found) = (free_bytes / MEGABYTE, self.megabytes.to_string());
        let bound = format!(
            "at most {fit}, as matrices and a ceiling of their size share the {free} MB of memory that are free"
        );
        Err(Error::BadOption { field: "--megabytes", found, bound })
    }

    fn least(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

/// A measurement of a kernel, as it is told. What a kernel does not have is none.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Entry {
    /// `matrix`, `matrix+gelu`, `attention`, `attention+distances`, `norm`, `dispatch`.
    pub kernel: &'static str,
    /// Numbers that the matrix, or keys and values, are stored in.
    pub dtype: Option<&'static str>,
    /// Threads that shared the work.
    pub threads: usize,
    /// The instruction set.
    pub isa: &'static str,
    /// `cold` (many matrices take turns) or `hot` (one again and again).
    pub weights: Option<&'static str>,
    /// Numbers in a row of the input.
    pub inputs: Option<usize>,
    /// Numbers in a row of the output.
    pub outputs: Option<usize>,
    /// Rows of a call.
    pub rows: usize,
    /// Keys that a row of attention meets.
    pub keys: Option<usize>,
    /// A call's time in the median group of calls.
    pub ns_p50: f64,
    /// In a fast group.
    pub ns_p10: f64,
    /// In a slow group.
    pub ns_p90: f64,
    /// Bytes of weights, or of keys, values and distances, that a call has to read.
    pub bytes: Option<usize>,
    /// Bytes that calls go through before they meet the same ones again.
    pub working_set_bytes: Option<usize>,
    /// Those that a call reads, by the median call.
    pub bytes_per_second: Option<f64>,
    /// A streaming read of the same working set on the same threads.
    pub ceiling_bytes_per_second: Option<f64>,
    /// Two for each multiply-add, by the median call; 10⁹ a second.
    pub gflops: Option<f64>,
    /// What the machine's registers do at most, in f32; none where bytes are multiplied, which is other work.
    pub peak_gflops: Option<f64>,
}

impl Entry {
    /// One without rates.
    fn new(kernel: &'static str, rows: usize, times: Quantiles, machine: &Machine) -> Self {
        Self {
            kernel,
            dtype: None,
            threads: machine.threads(),
            isa: machine.compute.isa.name(),
            weights: None,
            inputs: None,
            outputs: None,
            rows,
            keys: None,
            ns_p50: times.p50,
            ns_p10: times.p10,
            ns_p90: times.p90,
            bytes: None,
            working_set_bytes: None,
            bytes_per_second: None,
            ceiling_bytes_per_second: None,
            gflops: None,
            peak_gflops: None,
        }
    }

    /// With what a call reads and does beside what the machine can.
    fn rated(mut self, work: Work, ceilings: Ceilings) -> Self {
        self.bytes = Some(work.bytes);
        self.working_set_bytes = Some(work.working_set);
        self.bytes_per_second = Some(work.bytes as f64 / self.ns_p50 * 1e9);
        self.ceiling_bytes_per_second = Some(ceilings.read);
        self.gflops = Some(2.0 * work.multiply_adds as f64 / self.ns_p50);
        self.peak_gflops = ceilings.peak_gflops;
        self
    }
}

/// What a call reads and does.
#[derive(Clone, Copy)]
struct Work {
    bytes: usize,
    working_set: usize,
    multiply_adds: usize,
}

/// What the machine can do.
#[derive(Clone, Copy)]
struct Ceilings {
    /// Bytes a second.
    read: f64,
    peak_gflops: Option<f64>,
}

/// Times all kernels on one machine, matrices, keys and values in each of `dtypes`.
///
/// # Errors
/// A plan out of bounds, [`Error::Internal`] if nothing was timed.
pub fn measure(dtypes: &[Dtype], plan: Plan, machine: &Machine) -> Result<Vec<Entry>> {
    plan.check()?;
    let peak = 2.0 * machine.multiply_adds_per_second() / 1e9;
    let mut entries = Vec::new();
    for &dtype in dtypes {
        for shape in matrix::SHAPES {
            let peak = (dtype != Dtype::Int8).then_some(peak);
            entries.extend(matrix::measure(dtype, shape, peak, plan, machine)?);
        }
    }
    for &dtype in dtypes {
        for keys in single::KEYS {
            let attention = single::Attention::new(dtype, keys)?;
            entries.push(attention.measure(false, peak, plan, machine)?);
            entries.push(attention.measure(true, peak, plan, machine)?);
        }
    }
    for width in single::WIDTHS {
        entries.push(single::norm(width, plan, machine)?);
    }
    entries.push(single::dispatch(plan, machine)?);
    Ok(entries)
}
