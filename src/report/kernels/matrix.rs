//! Benchmark of matrix products with weights in memory (cold) or in a cache (hot).

use crate::report::{
    kernels::measurement::{KernelMeasurement, KernelPlan, KernelWork, time_batches},
    machine::Machine,
};
use std::hint::black_box;
use weir_kernels::{
    Dtype,
    error::Result,
    linear::{Epilogue, Linear, QuantizedRows, WeightArena},
};
use weir_measure::stats::Quantiles;

/// Shape of a weight matrix.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct MatrixShape {
    inputs: usize,
    outputs: usize,
}

/// Matrices of a model of width 512: feed-forward up and down, attention output, fused query-key-value projection.
pub(super) const SHAPES: [MatrixShape; 4] = [
    MatrixShape { inputs: 512, outputs: 2048 },
    MatrixShape { inputs: 2048, outputs: 512 },
    MatrixShape { inputs: 512, outputs: 512 },
    MatrixShape { inputs: 512, outputs: 1536 },
];

/// Shape that is also measured with GELU.
const ACTIVATED: MatrixShape = SHAPES[0];

/// Rows of decoding steps, and of a prefill chunk.
const ROWS: [usize; 6] = [1, 2, 4, 8, 16, 512];

/// Packs `count` equal matrices.
fn matrices(dtype: Dtype, shape: MatrixShape, count: usize) -> Result<Vec<Linear>> {
    let MatrixShape { inputs, outputs } = shape;
    let weight: Vec<f32> = (0..inputs * outputs).map(|index| (index % 251) as f32 / 251.0 - 0.5).collect();
    let bias = vec![0.1; outputs];
    let arena = WeightArena::new(dtype);
    (0..count).map(|_| Linear::pack(&arena, &weight, &bias, outputs, inputs)).collect()
}

/// Measures one shape with every number of rows: cold, hot, and hot with GELU where models use it.
pub(super) fn measure(
    dtype: Dtype,
    shape: MatrixShape,
    peak_gflops: Option<f64>,
    plan: KernelPlan,
    machine: &Machine,
) -> Result<Vec<KernelMeasurement>> {
    // the same number of matrices for every dtype, so that narrow ones may fit into a cache where wide ones do not
    let count = (plan.megabytes * 1_000_000).div_ceil(shape.inputs * shape.outputs * size_of::<f32>());
    let matrices = matrices(dtype, shape, count)?;
    let mut entries = Vec::new();
    for (weights, matrices) in [("cold", &matrices[..]), ("hot", &matrices[..1])] {
        let working_set = matrices.iter().map(Linear::bytes).sum();
        let ceiling = machine.read_bytes_per_second(working_set)?;
        let gelu = (weights == "hot" && shape == ACTIVATED).then_some(("matrix+gelu", Epilogue::Gelu));
        for (kernel, epilogue) in [Some(("matrix", Epilogue::None)), gelu].into_iter().flatten() {
            for rows in ROWS {
                let (times, work) = product(matrices, rows, epilogue, plan, machine)?;
                let measurement = KernelMeasurement::new(kernel, rows, times, machine);
                entries.push(KernelMeasurement {
                    dtype: Some(dtype.name()),
                    weights: Some(weights),
                    inputs: Some(shape.inputs),
                    outputs: Some(shape.outputs),
                    ..measurement.with_rates(KernelWork { working_set, ..work }, ceiling, peak_gflops)
                });
            }
        }
    }
    Ok(entries)
}

/// Times products with the matrices in turns. Returns the time and the work of one product.
fn product(
    matrices: &[Linear],
    rows: usize,
    epilogue: Epilogue,
    plan: KernelPlan,
    machine: &Machine,
) -> Result<(Quantiles, KernelWork)> {
    let inputs = matrices[0].inputs();
    let outputs = matrices[0].outputs();
    let x = vec![0.5; rows * inputs];
    let mut out = vec![0.0; rows * outputs];
    let mut quantized = QuantizedRows::default();
    let times = time_batches(plan.min_time(), &mut |number| {
        let matrix = &matrices[number % matrices.len()];
        matrix.apply(&machine.compute, black_box(&x), epilogue, &mut quantized, &mut out);
        black_box(&mut out);
    })?;
    let bytes = matrices[0].bytes();
    Ok((times, KernelWork { bytes, working_set: bytes, multiply_adds: rows * inputs * outputs }))
}
