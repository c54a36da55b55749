//! Products of rows with a matrix, whose weights come from memory or from a cache.

use super::{Ceilings, Entry, Plan, Work, timing};
use crate::{
    error::Result,
    kernels::{
        Dtype,
        linear::{Epilogue, Linear, QuantizedRows, WeightArena},
    },
    report::{machine::Machine, quantiles::Quantiles},
};
use std::hint::black_box;

/// (inputs, outputs): a 512 wide model's feed-forward, output, and fused query, key and value projections.
pub(super) const SHAPES: [(usize, usize); 4] = [(512, 2048), (2048, 512), (512, 512), (512, 1536)];
/// The one whose outputs go through GELU.
const ACTIVATED: (usize, usize) = SHAPES[0];
/// Rows of a decoding step, and of a prefill chunk.
const ROWS: [usize; 6] = [1, 2, 4, 8, 16, 512];

/// Matrices that are all alike: where their numbers differ would not matter.
fn matrices(dtype: Dtype, (inputs, outputs): (usize, usize), count: usize) -> Result<Vec<Linear>> {
    let weight: Vec<f32> = (0..inputs * outputs).map(|index| (index % 251) as f32 / 251.0 - 0.5).collect();
    let (store, bias) = (WeightArena::new(dtype), vec![0.1; outputs]);
    (0..count).map(|_| Linear::pack(&store, &weight, &bias, outputs, inputs)).collect()
}

/// All numbers of rows of one shape: cold, hot, and hot with GELU where a model has it.
pub(super) fn measure(
    dtype: Dtype,
    shape: (usize, usize),
    peak_gflops: Option<f64>,
    plan: Plan,
    machine: &Machine,
) -> Result<Vec<Entry>> {
    // as many matrices for every dtype, so that a narrow one is seen to fit where a wide one does not
    let count = (plan.megabytes * 1_000_000).div_ceil(shape.0 * shape.1 * size_of::<f32>());
    let matrices = matrices(dtype, shape, count)?;
    let mut entries = Vec::new();
    for (weights, matrices) in [("cold", &matrices[..]), ("hot", &matrices[..1])] {
        let working_set = matrices.iter().map(Linear::bytes).sum();
        let ceilings = Ceilings { read: machine.read_bytes_per_second(working_set)?, peak_gflops };
        let gelu = (weights == "hot" && shape == ACTIVATED).then_some(("matrix+gelu", Epilogue::Gelu));
        for (kernel, then) in [Some(("matrix", Epilogue::None)), gelu].into_iter().flatten() {
            for rows in ROWS {
                let (times, work) = product(matrices, rows, then, plan, machine)?;
                let mut entry = Entry::new(kernel, rows, times, machine);
                entry = entry.rated(Work { working_set, ..work }, ceilings);
                (entry.dtype, entry.weights) = (Some(dtype.name()), Some(weights));
                (entry.inputs, entry.outputs) = (Some(shape.0), Some(shape.1));
                entries.push(entry);
            }
        }
    }
    Ok(entries)
}

/// The matrices in turns: a product's time, and what one of them is.
fn product(
    matrices: &[Linear],
    rows: usize,
    then: Epilogue,
    plan: Plan,
    machine: &Machine,
) -> Result<(Quantiles, Work)> {
    let (inputs, outputs) = (matrices[0].inputs(), matrices[0].outputs());
    let (x, mut out, mut quantized) = (vec![0.5; rows * inputs], vec![0.0; rows * outputs], QuantizedRows::default());
    let times = timing::calls(plan.least(), &mut |number| {
        let matrix = &matrices[number % matrices.len()];
        matrix.apply(&machine.compute, black_box(&x), then, &mut quantized, &mut out);
        black_box(&mut out);
    })?;
    let bytes = matrices[0].bytes();
    Ok((times, Work { bytes, working_set: bytes, multiply_adds: rows * inputs * outputs }))
}
