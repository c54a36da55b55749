//! Matrix products. Weights are cold where so many matrices take turns that no cache holds them, and hot where one is used
//! again and again.

use super::{Ceilings, Dtype, Entry, Plan, Work, timing};
use crate::{error::Result, kernels::linear::Linear, report::machine::Machine};
use std::hint::black_box;

/// (inputs, outputs): a 512 wide model's feed-forward, output, and fused query, key and value projections.
pub(super) const SHAPES: [(usize, usize); 4] = [(512, 2048), (2048, 512), (512, 512), (512, 1536)];
/// Rows of a decoding step.
const ROWS: [usize; 5] = [1, 2, 4, 8, 16];
/// Rows of a prefill chunk, whose weights are cold as a chunk finds them.
const CHUNK: usize = 512;

/// The matrix that all of a shape are like; where their numbers differ would not matter.
fn matrix(dtype: Dtype, (inputs, outputs): (usize, usize)) -> Linear {
    let weight: Vec<f32> = (0..inputs * outputs).map(|index| (index % 251) as f32 / 251.0 - 0.5).collect();
    match dtype {
        Dtype::F32 => Linear::new(&weight, &vec![0.1; outputs], outputs, inputs),
    }
}

/// All numbers of rows of one shape: cold, then hot.
pub(super) fn measure(
    dtype: Dtype,
    shape: (usize, usize),
    peak_gflops: f64,
    plan: Plan,
    machine: &Machine,
) -> Result<Vec<Entry>> {
    // as many matrices for every dtype, so that a narrow one is seen to fit where a wide one does not
    let count = (plan.megabytes * 1_000_000).div_ceil(shape.0 * shape.1 * size_of::<f32>());
    let matrices: Vec<_> = (0..count).map(|_| matrix(dtype, shape)).collect();
    let mut entries = Vec::new();
    for (weights, matrices) in [("cold", &matrices[..]), ("hot", &matrices[..1])] {
        let working_set = matrices.iter().map(Linear::bytes).sum();
        let ceilings = Ceilings { read: machine.read_bytes_per_second(working_set), peak_gflops };
        let chunk = (weights == "cold").then_some(CHUNK);
        for rows in ROWS.into_iter().chain(chunk) {
            let (x, mut out) = (vec![0.5; rows * shape.0], vec![0.0; rows * shape.1]);
            let times = timing::calls(plan.least(), &mut |number| {
                matrices[number % matrices.len()].apply(machine.isa, &machine.pool, black_box(&x), &mut out);
                black_box(&mut out);
            })?;
            let multiply_adds = rows * shape.0 * shape.1;
            let work = Work { bytes: matrices[0].bytes(), working_set, multiply_adds };
            let mut entry = Entry::new("matrix", rows, times, machine).rated(work, ceilings);
            (entry.dtype, entry.weights) = (Some(dtype.name()), Some(weights));
            (entry.inputs, entry.outputs) = (Some(shape.0), Some(shape.1));
            entries.push(entry);
        }
    }
    Ok(entries)
}
