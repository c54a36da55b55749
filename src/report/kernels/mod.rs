//! Benchmark of single kernels without a model, compared with the limits of the machine.
//!
//! Measures matrix products with cold and hot weights, attention of one row, layer norm, and the time to start and join
//! the threads.

mod matrix;
mod measurement;
mod single;

pub use crate::report::kernels::measurement::{KernelMeasurement, KernelPlan, MAX_MEGABYTES, MAX_SECONDS};
use crate::report::machine::Machine;
use weir_kernels::{CacheDtype, Dtype, error::Result};

/// Measures all kernels, with matrices, keys and values in each of `dtypes`. Fails if the plan is invalid or memory runs out.
pub fn measure(dtypes: &[Dtype], plan: KernelPlan, machine: &Machine) -> Result<Vec<KernelMeasurement>> {
    plan.check()?;
    let peak = 2.0 * machine.multiply_adds_per_second() / 1e9;
    let mut entries = Vec::new();
    for &dtype in dtypes {
        for shape in matrix::SHAPES {
            let peak = (!dtype.is_integer()).then_some(peak);
            entries.extend(matrix::measure(dtype, shape, peak, plan, machine)?);
        }
    }
    // int8 and int4 have the same keys and values
    let is_needed = |cache: &CacheDtype| dtypes.iter().any(|dtype| dtype.cache_dtype() == *cache);
    for dtype in CacheDtype::ALL.into_iter().filter(is_needed) {
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
