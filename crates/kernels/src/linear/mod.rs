//! Matrix products with packed weights: out (rows, outputs) = epilogue(x (rows, inputs) · Wᵀ + bias).
//!
//! Order of summation: each output is one sum over the inputs, in order. It does not depend on tile, batch size, thread
//! count or (with fused multiply-adds) instruction set. Tiles only decide how many such sums are computed concurrently.
//!
//! int8 and int4: the weights of an output share one scale, and each input row is quantized with its own scale. Products are
//! summed as exact integers, so their order does not matter. The tests compare with a naive implementation in f64.

mod product;
#[cfg(target_arch = "x86_64")]
mod tiles;
mod weights;

pub use crate::linear::product::Epilogue;
pub use crate::linear::weights::{Linear, QuantizedRows, WeightArena, stored_weights};
use crate::{Compute, Dtype, Isa, linear::product::ProductJob, pool::DisjointSlice};
use std::ops::Range;

/// Minimum [cost](Linear::cost) for which it pays to use other threads: some 3 µs of one core, where handing over takes less than 1.
const MIN_SHARED: usize = 1 << 20;

const MIN_DIVIDED: usize = 1 << 24;

/// Tasks per thread of such a product, so that a thread whose core is busy delays the others by at most one task.
const TASKS_PER_THREAD: usize = 4;

/// Up to this many rows, a product takes as long as with one: reading the weights dominates.
const WEIGHT_BOUND_ROWS: usize = 4;

impl Linear {
    /// Computes `out` (rows, outputs) = epilogue(`x` (rows, inputs) · Wᵀ + bias). Panics if `x` and `out` differ in rows.
    pub fn apply(
        &self,
        compute: &Compute,
        x: &[f32],
        epilogue: Epilogue,
        quantized: &mut QuantizedRows,
        out: &mut [f32],
    ) {
        let rows = x.len() / self.inputs;
        assert_eq!(x.len(), rows * self.inputs);
        assert_eq!(out.len(), rows * self.outputs);
        let isa = compute.isa;
        let out = &DisjointSlice::new(out);
        match self.dtype {
            Dtype::F32 => {
                let job = ProductJob { matrix: self, x, stride: self.steps, scales: &[], epilogue, out };
                self.share(compute, rows, &|panels| product::multiply_f32(isa, &job, panels));
            }
            Dtype::Bf16 => {
                let job = ProductJob { matrix: self, x, stride: self.steps, scales: &[], epilogue, out };
                self.share(compute, rows, &|panels| product::multiply_bf16(isa, &job, panels));
            }
            Dtype::Int8 => {
                quantized.fill(compute, x, self.inputs);
                let stride = quantized.stride();
                let scales = quantized.scales();
                let job = ProductJob { matrix: self, x: quantized.all(), stride, scales, epilogue, out };
                #[cfg(target_arch = "x86_64")]
                if let Some(tiles) = isa.tiles().filter(|_| rows >= tiles::MIN_ROWS) {
                    return self.share(compute, rows, &|panels| tiles::multiply_int8(isa, tiles, &job, panels));
                }
                self.share(compute, rows, &|panels| product::multiply_int8(isa, &job, panels));
            }
            Dtype::Int4 => {
                #[cfg(target_arch = "x86_64")]
                if let Some(tiles) = isa.tiles().filter(|_| rows >= tiles::MIN_INT4_ROWS) {
                    quantized.fill(compute, x, self.inputs);
                    let stride = quantized.stride();
                    let scales = quantized.scales();
                    let job = ProductJob { matrix: self, x: quantized.all(), stride, scales, epilogue, out };
                    return self.share(compute, rows, &|panels| tiles::multiply_int4(isa, tiles, &job, panels));
                }
                quantized.fill_blocks(compute, x, self.inputs);
                let scales = quantized.scales();
                let job = ProductJob { matrix: self, x: quantized.blocks(), stride: self.steps, scales, epilogue, out };
                self.share(compute, rows, &|panels| product::multiply_int4(isa, &job, panels));
            }
        }
    }

    /// Distributes panels to threads. A task is a range of panels for all rows, so tasks write different outputs.
    fn share(&self, compute: &Compute, rows: usize, body: &(dyn Fn(Range<usize>) + Sync)) {
        let panels = self.outputs.div_ceil(self.width());
        let threads = compute.pool.threads();
        let max_tasks = match self.cost(rows, compute.isa) {
            ..MIN_SHARED => 1,
            MIN_SHARED..MIN_DIVIDED => threads,
            MIN_DIVIDED.. => threads * TASKS_PER_THREAD,
        };
        let tasks = max_tasks.min(panels);
        let size = panels.div_ceil(tasks.max(1));
        compute.pool.run(panels.div_ceil(size.max(1)), &|task| body(task * size..((task + 1) * size).min(panels)));
    }

    /// Estimates the time of a product, in multiply-adds of integers with AVX-512. Those of floats take about four times as long.
    fn cost(&self, rows: usize, isa: Isa) -> usize {
        let unit = if self.dtype.is_integer() { 1 } else { 4 };
        rows.max(WEIGHT_BOUND_ROWS) * self.inputs * self.outputs * unit * isa.relative_time()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{apply, assert_fused_agree, computes, numbers, packed, stored};
    use proptest::prelude::*;

    /// An output of the naive implementation.
    struct ExpectedOutput {
        value: f64,
        /// Sum of the absolute products, to which rounding errors are proportional.
        magnitude: f64,
    }

    /// Naive implementation in f64, with weights and rows rounded as they are stored.
    fn naive(dtype: Dtype, weight: &[f32], x: &[f32], inputs: usize) -> Vec<ExpectedOutput> {
        let weight = stored_weights(dtype, weight, inputs);
        let x = if dtype.is_integer() { stored(dtype.cache_dtype(), x, inputs) } else { x.to_vec() };
        let mut out = Vec::new();
        for x in x.chunks_exact(inputs) {
            for weight in weight.chunks_exact(inputs) {
                let products = || weight.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x));
                out.push(ExpectedOutput { value: products().sum(), magnitude: products().map(f64::abs).sum() });
            }
        }
        out
    }

    proptest! {
        /// A row alone has the bits of a batch, and so have the instruction sets with fused multiply-adds.
        #[test]
        fn agrees_with_the_naive_implementation(rows in 1usize..60, outputs in 1usize..200, inputs in 1usize..340, seed: u32) {
            let weight = numbers(seed, outputs * inputs);
            let bias = numbers(seed ^ 1, outputs);
            let x = numbers(seed ^ 2, rows * inputs);
            for dtype in Dtype::ALL {
                let linear = Linear::pack(&WeightArena::new(dtype), &weight, &bias, outputs, inputs).unwrap();
                let expected = naive(dtype, &weight, &x, inputs);
                let mut all = Vec::new();
                for (compute, alone) in computes(2).iter().zip(computes(1)) {
                    let out = apply(&linear, compute, &x, Epilogue::None);
                    for (index, (actual, ExpectedOutput { value, magnitude })) in out.iter().zip(&expected).enumerate() {
                        let expected = value + f64::from(bias[index % outputs]);
                        prop_assert!((f64::from(*actual) - expected).abs() < 3e-6 * (magnitude + 1.0), "{dtype:?} {actual} {expected}");
                    }
                    all.push((compute.isa, out));
                    let batch = apply(&linear, compute, &x, Epilogue::Gelu);
                    for (x, expected) in x.chunks(inputs).zip(batch.chunks(outputs)) {
                        prop_assert_eq!(&apply(&linear, &alone, x, Epilogue::Gelu)[..], expected);
                    }
                }
                assert_fused_agree(&all);
            }
        }
    }

    #[test]
    fn results_are_the_same_on_any_number_of_threads() {
        let inputs = 240;
        let outputs = 1050;
        for dtype in Dtype::ALL {
            let linear = packed(dtype, &numbers(1, outputs * inputs), inputs);
            // integers with AVX-512: one task, then one task per thread, then several
            for rows in [1, 12, 70] {
                let x = numbers(2, rows * inputs);
                for (one, three) in computes(1).iter().zip(computes(3)) {
                    let alone = apply(&linear, one, &x, Epilogue::None);
                    assert_eq!(apply(&linear, &three, &x, Epilogue::None), alone, "{dtype:?}, {rows} rows");
                }
            }
        }
    }
}
