//! Packed matrices: y = W·x + b for one row or many, with one order of summation.
//!
//! Layout: panels of 128 bytes a step, (outputs/width, steps, width), so that one row's product reads memory as one
//! sequential stream. A step is one input (f32: 32 outputs, bf16: 64) or four neighbouring ones (int8: 32 outputs). Each
//! output is one chain over the inputs in order, whatever the tile it is computed in; tiles only decide how many such chains
//! run side by side.
//!
//! int8: an output's weights have one scale, a row's inputs have one each time it comes; products are summed as integers,
//! exactly, so no order matters.

mod format;
mod product;
mod quantized;

pub use quantized::QuantizedRows;

use super::{
    Compute, LANES,
    disjoint::DisjointSlice,
    dtype::{Dtype, inverse_of, scale_of, to_bf16, to_byte},
    memory::{Arena, Region},
};
use crate::error::{Error, Result};
use product::Job;

/// Multiply-adds below which waking other threads costs more than it brings.
const WORTH_SHARING: usize = 1 << 15;
/// Tasks of a product for each thread, so that one whose core is busy elsewhere delays the others by one task.
const PARTS: usize = 4;
/// Memory that is mapped at a time for weights.
const ARENA: usize = 8 << 20;

/// Where matrices are packed to: in the order in which they come, one behind the other.
pub struct WeightArena {
    dtype: Dtype,
    arena: Arena,
}

impl WeightArena {
    /// A store of matrices in one type of numbers.
    pub fn new(dtype: Dtype) -> Self {
        Self { dtype, arena: Arena::new(ARENA) }
    }

    /// The type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }
}

/// A weight matrix, packed, with its bias.
pub struct Linear {
    dtype: Dtype,
    inputs: usize,
    outputs: usize,
    /// Steps over the inputs.
    steps: usize,
    /// Panels; the last one as narrow as its groups of sixteen outputs allow, the last group filled up with zeros.
    packed: Region,
    /// (outputs)
    bias: Vec<f32>,
    /// (outputs), for int8.
    scales: Vec<f32>,
    /// Of each output's bytes, for int8: (outputs).
    sums: Vec<i32>,
}

/// What becomes of each output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Epilogue {
    /// It stays.
    None,
    /// x·Φ(x).
    Gelu,
    /// The same by tanh, as GPT-2 has it.
    GeluTanh,
    /// x·σ(x).
    Silu,
    /// max(x, 0).
    Relu,
}

impl Linear {
    /// Packs `weight`, (outputs, inputs) row-major, and `bias`, (outputs) or empty for none.
    ///
    /// # Errors
    /// No memory; int8 with more inputs than a sum of bytes has room for.
    ///
    /// # Panics
    /// If the lengths do not fit; the checkpoint reader has checked shapes.
    pub fn pack(store: &WeightArena, weight: &[f32], bias: &[f32], outputs: usize, inputs: usize) -> Result<Self> {
        assert_eq!(weight.len(), outputs * inputs);
        assert!(bias.is_empty() || bias.len() == outputs);
        let dtype = store.dtype;
        if dtype == Dtype::Int8 && inputs > MOST_BYTES {
            let bound =
                format!("f32 or bf16: a matrix has {inputs} inputs, and the sums of int8 are exact up to {MOST_BYTES}");
            return Err(Error::BadOption { field: "--dtype", found: dtype.name().into(), bound });
        }
        let steps = if dtype == Dtype::Int8 { inputs.div_ceil(4) } else { inputs };
        let bytes = outputs.div_ceil(LANES) * steps * group_bytes(dtype);
        let bias = if bias.is_empty() { vec![0.0; outputs] } else { bias.to_vec() };
        let scales = match dtype {
            Dtype::Int8 => weight.chunks_exact(inputs).map(scale_of).collect(),
            _ => Vec::new(),
        };
        let (packed, sums) = (store.arena.allocate(bytes)?, vec![0; scales.len()]);
        let mut linear = Self { dtype, inputs, outputs, steps, packed, bias, scales, sums };
        for (output, row) in weight.chunks_exact(inputs).enumerate() {
            linear.pack_row(output, row);
        }
        Ok(linear)
    }

    fn pack_row(&mut self, output: usize, row: &[f32]) {
        let (panel, within) = (output / self.width(), output % self.width());
        let (group, lane) = (within / LANES, within % LANES);
        let size = group_bytes(self.dtype);
        let (stride, start) = (self.groups(panel) * size, self.panel_start(panel) + group * size);
        let at = |step: usize| start + step * stride;
        let inverse = self.scales.get(output).map_or(0.0, |&scale| inverse_of(scale));
        let dtype = self.dtype;
        let packed = self.packed.bytes_mut();
        for (input, &x) in row.iter().enumerate() {
            match dtype {
                Dtype::F32 => packed[at(input) + 4 * lane..][..4].copy_from_slice(&x.to_ne_bytes()),
                Dtype::Bf16 => {
                    // output i beside output i + 8
                    let place = 2 * (lane % 8) + lane / 8;
                    packed[at(input) + 2 * place..][..2].copy_from_slice(&to_bf16(x).to_ne_bytes());
                }
                Dtype::Int8 => {
                    let byte = to_byte(x, inverse);
                    packed[at(input / 4) + 4 * lane + input % 4] = byte.cast_unsigned();
                    self.sums[output] += i32::from(byte);
                }
            }
        }
    }

    /// Numbers in a row of the input.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Numbers in a row of the output.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Bytes that a product reads of it, the zeros that fill up its last group included.
    pub fn bytes(&self) -> usize {
        self.packed.bytes().len() + size_of_val(&*self.bias) + size_of_val(&*self.scales) + size_of_val(&*self.sums)
    }

    /// Outputs of a full panel.
    fn width(&self) -> usize {
        PANEL / group_bytes(self.dtype) * LANES
    }

    /// Groups of sixteen outputs in a panel.
    fn groups(&self, panel: usize) -> usize {
        (self.outputs.div_ceil(LANES) - panel * self.width() / LANES).min(self.width() / LANES)
    }

    fn panel_start(&self, panel: usize) -> usize {
        panel * self.steps * PANEL
    }

    fn panel(&self, panel: usize) -> &[u8] {
        let bytes = self.steps * self.groups(panel) * group_bytes(self.dtype);
        &self.packed.bytes()[self.panel_start(panel)..][..bytes]
    }

    /// `out` (rows, outputs) = then(`x` (rows, inputs) · Wᵀ + b).
    ///
    /// # Panics
    /// If the lengths are not those of the same number of rows.
    pub fn apply(&self, compute: &Compute, x: &[f32], then: Epilogue, work: &mut QuantizedRows, out: &mut [f32]) {
        let rows = x.len() / self.inputs;
        assert_eq!(x.len(), rows * self.inputs);
        assert_eq!(out.len(), rows * self.outputs);
        let (isa, out) = (compute.isa, &DisjointSlice::new(out));
        let (matrix, scales) = (self, &[][..]);
        match self.dtype {
            Dtype::F32 => {
                let job = Job { matrix, x, scales, then, out };
                self.share(compute, rows, &|panels| product::full(isa, &job, panels));
            }
            Dtype::Bf16 => {
                let job = Job { matrix, x, scales, then, out };
                self.share(compute, rows, &|panels| product::half(isa, &job, panels));
            }
            Dtype::Int8 => {
                work.fill(compute, x, self.inputs);
                let job = Job { matrix, x: work.cells(), scales: work.scales(), then, out };
                self.share(compute, rows, &|panels| product::bytes(isa, &job, panels));
            }
        }
    }

    /// Hands panels out: a task is a run of panels for all rows, so no two tasks write the same output.
    fn share(&self, compute: &Compute, rows: usize, body: &(dyn Fn(std::ops::Range<usize>) + Sync)) {
        let panels = self.outputs.div_ceil(self.width());
        let work = rows * self.inputs * self.outputs;
        let tasks = if work < WORTH_SHARING { 1 } else { (compute.pool.threads() * PARTS).min(panels) };
        let run = panels.div_ceil(tasks.max(1));
        compute.pool.run(panels.div_ceil(run.max(1)), &|task| body(task * run..((task + 1) * run).min(panels)));
    }
}

/// Inputs whose products of bytes a 32-bit sum has room for.
const MOST_BYTES: usize = i32::MAX as usize / (127 * 127);

/// Bytes of a full panel's step.
const PANEL: usize = 128;

/// Bytes of sixteen outputs in a step.
fn group_bytes(dtype: Dtype) -> usize {
    match dtype {
        Dtype::F32 | Dtype::Int8 => 64,
        Dtype::Bf16 => 32,
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Isa, ThreadPool},
        *,
    };
    use proptest::prelude::*;
    use std::sync::Arc;

    /// The naive twin, in f64, of the weights as they are stored and of the rows as they are taken; beside each output, what
    /// its products' sizes add up to.
    fn naive(dtype: Dtype, weight: &[f32], x: &[f32], outputs: usize, inputs: usize) -> Vec<(f64, f64)> {
        let stored = |row: &[f32]| -> Vec<f64> {
            let scale = scale_of(row);
            let number = |&x: &f32| match dtype {
                Dtype::F32 => f64::from(x),
                Dtype::Bf16 => f64::from(crate::kernels::dtype::from_bf16(to_bf16(x))),
                Dtype::Int8 => f64::from(to_byte(x, inverse_of(scale))) * f64::from(scale),
            };
            row.iter().map(number).collect()
        };
        let taken = |row: &[f32]| match dtype {
            Dtype::Int8 => stored(row),
            _ => row.iter().map(|&x| f64::from(x)).collect(),
        };
        let weights: Vec<_> = weight.chunks_exact(inputs).map(stored).collect();
        let mut out = Vec::new();
        for x in x.chunks_exact(inputs).map(taken) {
            for weight in &weights[..outputs] {
                let products = || weight.iter().zip(&x).map(|(w, x)| w * x);
                out.push((products().sum(), products().map(f64::abs).sum()));
            }
        }
        out
    }

    fn numbers(seed: u32, count: usize) -> Vec<f32> {
        let mut state = seed | 1;
        let next = || {
            state = state.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
            (state >> 9) as f32 / (1 << 22) as f32 - 1.0
        };
        std::iter::repeat_with(next).take(count).collect()
    }

    fn computes(threads: usize) -> Vec<Compute> {
        let pool = Arc::new(ThreadPool::new(threads));
        Isa::all().into_iter().map(|isa| Compute { isa, pool: pool.clone() }).collect()
    }

    proptest! {
        #[test]
        fn agrees_with_the_naive_twin(rows in 1usize..60, outputs in 1usize..150, inputs in 1usize..300, seed: u32) {
            let (weight, bias, x) =
                (numbers(seed, outputs * inputs), numbers(seed ^ 1, outputs), numbers(seed ^ 2, rows * inputs));
            for dtype in Dtype::ALL {
                let linear = Linear::pack(&WeightArena::new(dtype), &weight, &bias, outputs, inputs).unwrap();
                let expected = naive(dtype, &weight, &x, outputs, inputs);
                for compute in computes(2) {
                    let mut out = vec![f32::NAN; rows * outputs];
                    linear.apply(&compute, &x, Epilogue::None, &mut QuantizedRows::default(), &mut out);
                    for (index, (got, (want, size))) in out.iter().zip(&expected).enumerate() {
                        let want = want + f64::from(bias[index % outputs]);
                        prop_assert!((f64::from(*got) - want).abs() < 3e-6 * (size + 1.0), "{dtype:?} {got} {want}");
                    }
                }
            }
        }

        #[test]
        fn a_row_alone_has_the_bits_it_has_in_company(rows in 1usize..60, outputs in 1usize..200, seed: u32) {
            let inputs = 333;
            let (weight, x) = (numbers(seed, outputs * inputs), numbers(seed ^ 2, rows * inputs));
            for dtype in Dtype::ALL {
                let linear = Linear::pack(&WeightArena::new(dtype), &weight, &[], outputs, inputs).unwrap();
                for (compute, alone) in computes(2).iter().zip(computes(1)) {
                    let (mut together, mut work) = (vec![0.0; rows * outputs], QuantizedRows::default());
                    linear.apply(compute, &x, Epilogue::Gelu, &mut work, &mut together);
                    for row in 0..rows {
                        let mut out = vec![0.0; outputs];
                        linear.apply(&alone, &x[row * inputs..(row + 1) * inputs], Epilogue::Gelu, &mut work, &mut out);
                        prop_assert_eq!(&out[..], &together[row * outputs..(row + 1) * outputs]);
                    }
                }
            }
        }

        #[test]
        fn bytes_never_saturate(rows in 1usize..9, inputs in 1usize..90, signs: u64) {
            // all inputs and weights as large as bytes can be
            let sign = |index: usize| if signs >> (index % 61) & 1 == 0 { 1.0 } else { -1.0 };
            let (outputs, x) = (40, (0..rows * inputs).map(|i| sign(i * 7)).collect::<Vec<_>>());
            let weight: Vec<f32> = (0..outputs * inputs).map(|i| sign(i * 3 + 1)).collect();
            let linear = Linear::pack(&WeightArena::new(Dtype::Int8), &weight, &[], outputs, inputs).unwrap();
            let expected = naive(Dtype::F32, &weight, &x, outputs, inputs);
            for compute in computes(1) {
                let mut out = vec![0.0; rows * outputs];
                linear.apply(&compute, &x, Epilogue::None, &mut QuantizedRows::default(), &mut out);
                for (got, (want, size)) in out.iter().zip(&expected) {
                    prop_assert!((f64::from(*got) - want).abs() < 1e-6 * (size + 1.0), "{got} {want}");
                }
            }
        }
    }

    #[test]
    fn a_sum_of_bytes_has_room_or_is_refused() {
        let row = |inputs| vec![1.0; inputs];
        assert!(Linear::pack(&WeightArena::new(Dtype::Int8), &row(MOST_BYTES + 1), &[], 1, MOST_BYTES + 1).is_err());
        let linear = Linear::pack(&WeightArena::new(Dtype::Int8), &row(MOST_BYTES), &[], 1, MOST_BYTES).unwrap();
        for compute in computes(1) {
            let mut out = [0.0];
            linear.apply(&compute, &row(MOST_BYTES), Epilogue::None, &mut QuantizedRows::default(), &mut out);
            assert!((out[0] - MOST_BYTES as f32).abs() < 1.0, "{out:?}");
        }
    }

    #[test]
    fn instruction_sets_agree_to_the_bit_on_bytes_and_on_floats_where_all_have_fused_multiply_adds() {
        let (outputs, inputs) = (177, 300);
        for (dtype, rows) in Dtype::ALL.into_iter().flat_map(|dtype| [1, 2, 7, 20].map(|rows| (dtype, rows))) {
            let linear =
                Linear::pack(&WeightArena::new(dtype), &numbers(1, outputs * inputs), &[], outputs, inputs).unwrap();
            let x = numbers(2, rows * inputs);
            let apply = |compute: &Compute| {
                let mut out = vec![0.0; rows * outputs];
                linear.apply(compute, &x, Epilogue::None, &mut QuantizedRows::default(), &mut out);
                out
            };
            // with one set that has them, there is nothing to compare but bytes
            let mut computes = computes(1);
            if dtype != Dtype::Int8 && computes.len() > 1 {
                computes.retain(|compute| compute.isa != Isa::portable());
            }
            let outs: Vec<_> = computes.iter().map(apply).collect();
            assert!(outs.iter().all(|out| *out == outs[0]), "{dtype:?}, {rows} rows");
        }
    }
}
