//! Packed weight matrices.
//!
//! Layout: panels of 128 bytes per step, (outputs/width, steps, width), so that the product with one row reads memory as one
//! sequential stream. A step is one input (f32: 32 outputs, bf16: 64 outputs) or four consecutive inputs (int8: 32 outputs).
//! An int4 step is a block of 32 inputs (32 outputs, 544 bytes).

use super::int4;
use crate::{
    error::{Error, Result},
    kernels::{
        Dtype, LANES,
        dtype::{inverse_of, scale_of, to_bf16, to_byte},
        memory::{Arena, Region},
    },
};

/// Bytes that are mapped at a time for weights.
const ARENA: usize = 8 << 20;

/// Memory for packed matrices, which are stored consecutively in the order of packing.
pub struct WeightArena {
    dtype: Dtype,
    arena: Arena,
}

impl WeightArena {
    /// Creates an arena for matrices of type `dtype`.
    pub fn new(dtype: Dtype) -> Self {
        Self { dtype, arena: Arena::new(ARENA) }
    }

    /// Returns the type of the stored weights.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }
}

/// A packed weight matrix with its bias.
pub struct Linear {
    pub(super) dtype: Dtype,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    /// Steps over the inputs.
    pub(super) steps: usize,
    /// Panels. The last one has only the groups of sixteen outputs that it needs; its last group is padded with zeros.
    packed: Region,
    /// (outputs), in groups, padded with zeros
    pub(super) bias: Vec<[f32; LANES]>,
    /// Scale of each output's weights for int8 and int4: (outputs), in groups.
    pub(super) scales: Vec<[f32; LANES]>,
    /// Sum of each output's weights for int8: (outputs), in groups.
    pub(super) sums: Vec<[i32; LANES]>,
}

impl Linear {
    /// Packs `weight`, (outputs, inputs) row-major, and `bias`, (outputs), or empty for no bias. Fails if memory runs
    /// out, or if the type is int8 or int4 and 32-bit sums of `inputs` products could overflow. Panics if a length does not
    /// match; the checkpoint reader checks shapes.
    pub fn pack(arena: &WeightArena, weight: &[f32], bias: &[f32], outputs: usize, inputs: usize) -> Result<Self> {
        assert_eq!(weight.len(), outputs * inputs);
        assert!(bias.is_empty() || bias.len() == outputs);
        let dtype = arena.dtype;
        if dtype.is_integer() && inputs > MAX_INTEGER_INPUTS {
            let name = dtype.name();
            let bound =
                format!("f32 or bf16 (a matrix has {inputs} inputs, and {name} supports at most {MAX_INTEGER_INPUTS})");
            return Err(Error::BadOption { field: "--dtype", found: name.into(), bound });
        }
        let steps = inputs.div_ceil(step_inputs(dtype));
        let groups = outputs.div_ceil(LANES);
        let bytes = groups * steps * group_bytes(dtype);
        let mut grouped_bias = vec![[0.0; LANES]; groups];
        grouped_bias.as_flattened_mut()[..bias.len()].copy_from_slice(bias);
        let mut scales = vec![[0.0; LANES]; if dtype.is_integer() { groups } else { 0 }];
        for (scale, row) in scales.as_flattened_mut().iter_mut().zip(weight.chunks_exact(inputs)) {
            *scale = if dtype == Dtype::Int4 { int4::scale_of(row) } else { scale_of(row) };
        }
        let sums = vec![[0; LANES]; if dtype == Dtype::Int8 { groups } else { 0 }];
        let packed = arena.arena.allocate(bytes)?;
        let mut linear = Self { dtype, inputs, outputs, steps, packed, bias: grouped_bias, scales, sums };
        for (output, row) in weight.chunks_exact(inputs).enumerate() {
            linear.pack_row(output, row);
        }
        Ok(linear)
    }

    fn pack_row(&mut self, output: usize, row: &[f32]) {
        let panel = output / self.width();
        let group = output % self.width() / LANES;
        let lane = output % LANES;
        let group_bytes = group_bytes(self.dtype);
        let stride = self.groups(panel) * group_bytes;
        let start = self.panel_start(panel) + group * group_bytes;
        let offset = |step: usize| start + step * stride;
        let scale = self.scales.as_flattened().get(output).copied().unwrap_or_default();
        let inverse = inverse_of(scale);
        let dtype = self.dtype;
        let packed = self.packed.bytes_mut();
        if dtype == Dtype::Int4 {
            return int4::pack_row(row, scale, lane, packed, offset);
        }
        for (input, &x) in row.iter().enumerate() {
            match dtype {
                Dtype::F32 => packed[offset(input) + 4 * lane..][..4].copy_from_slice(&x.to_ne_bytes()),
                Dtype::Bf16 => {
                    // output i is next to output i + 8
                    let index = 2 * (lane % 8) + lane / 8;
                    packed[offset(input) + 2 * index..][..2].copy_from_slice(&to_bf16(x).to_ne_bytes());
                }
                Dtype::Int8 => {
                    let byte = to_byte(x, inverse);
                    packed[offset(input / 4) + 4 * lane + input % 4] = byte.cast_unsigned();
                    self.sums[output / LANES][lane] += i32::from(byte);
                }
                Dtype::Int4 => {}
            }
        }
    }

    /// Returns the width of an input row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Returns the width of an output row.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Returns the bytes that a product reads, including padding.
    pub fn bytes(&self) -> usize {
        self.packed.bytes().len() + size_of_val(&*self.bias) + size_of_val(&*self.scales) + size_of_val(&*self.sums)
    }

    /// Returns the outputs of a full panel.
    pub(super) fn width(&self) -> usize {
        panel_groups(self.dtype) * LANES
    }

    /// Returns the groups of sixteen outputs in a panel.
    pub(super) fn groups(&self, panel: usize) -> usize {
        (self.outputs.div_ceil(LANES) - panel * self.width() / LANES).min(self.width() / LANES)
    }

    fn panel_start(&self, panel: usize) -> usize {
        panel * self.steps * panel_groups(self.dtype) * group_bytes(self.dtype)
    }

    pub(super) fn panel(&self, panel: usize) -> &[u8] {
        let bytes = self.steps * self.groups(panel) * group_bytes(self.dtype);
        &self.packed.bytes()[self.panel_start(panel)..][..bytes]
    }
}

/// Maximum inputs of an int8 or int4 matrix: the number of products of two bytes that a 32-bit sum can hold.
pub(super) const MAX_INTEGER_INPUTS: usize = i32::MAX as usize / (127 * 127);

/// Bytes per step of a full panel. An int4 panel has more.
const PANEL: usize = 128;

/// Returns the groups of sixteen outputs in a full panel.
fn panel_groups(dtype: Dtype) -> usize {
    match dtype {
        Dtype::F32 | Dtype::Bf16 | Dtype::Int8 => PANEL / group_bytes(dtype),
        Dtype::Int4 => int4::GROUPS,
    }
}

/// Returns the inputs of a step.
fn step_inputs(dtype: Dtype) -> usize {
    match dtype {
        Dtype::F32 | Dtype::Bf16 => 1,
        Dtype::Int8 => 4,
        Dtype::Int4 => int4::BLOCK,
    }
}

/// Returns the bytes of sixteen outputs in a step.
fn group_bytes(dtype: Dtype) -> usize {
    match dtype {
        Dtype::F32 | Dtype::Int8 => 64,
        Dtype::Bf16 => 32,
        Dtype::Int4 => int4::BLOCK_BYTES,
    }
}
