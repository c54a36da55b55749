//! Packed weight matrices, their storage formats with the arithmetic of each, and rows of activations in int8.

use crate::dtype::{LoadAsF32, inverse_of, to_bf16, to_byte};
use crate::error::{Error, Result};
use crate::isa::{Portable, Simd, from_bf16, pack_bytes};
use crate::memory::{Arena, Region};
use crate::pool::DisjointSlice;
use crate::rowwise::{self, scale_of};
use crate::{Compute, Dtype, LANES};
use std::marker::PhantomData;

/// A storage format of weights on one instruction set.
pub(super) trait WeightFormat<S: Simd>: Copy {
    /// Input of a row for one step: one float, four bytes, or a block of bytes.
    type Cell: Copy;
    /// The weights of sixteen outputs for one step.
    type Weights: Copy;
    /// A running sum in memory.
    type Slot: SumSlot<S>;
    /// Bytes of a group of sixteen outputs.
    const GROUP: usize;
    /// Rows of the largest register tile.
    const TILE: usize;
    /// Groups of a panel. Except for int4, a step of it has 128 bytes.
    const GROUPS: usize = 128 / Self::GROUP;
    /// Value that is added to each byte of an int8 row.
    const OFFSET: i32 = 0;

    /// Loads the weights of a group.
    ///
    /// # Safety
    /// `from` points to `GROUP` bytes.
    unsafe fn weights(simd: S, from: *const u8) -> Self::Weights;
    fn madd(simd: S, x: &Self::Cell, weights: Self::Weights, sums: Sums<S, Self>) -> Sums<S, Self>;
    /// Returns a + b, or `None` if sums are not exact: a product of few rows sums even and odd steps separately.
    #[inline(always)]
    fn merge(_: S, _: Sums<S, Self>, _: Sums<S, Self>) -> Option<Sums<S, Self>> {
        None
    }
    /// Converts sums to floats.
    fn floats(simd: S, sums: Sums<S, Self>, outputs: Option<IntegerOutputs<'_>>) -> S::V;
}

/// Sixteen running sums of a format.
pub(super) type Sums<S, F> = <<F as WeightFormat<S>>::Slot as SumSlot<S>>::Sums;

/// A running sum in memory: a float or an integer.
pub(super) trait SumSlot<S: Simd>: Copy + Default {
    /// Sixteen running sums.
    type Sums: Copy;

    /// Returns sixteen zeros.
    fn zero(simd: S) -> Self::Sums;
    /// Loads sixteen sums.
    ///
    /// # Safety
    /// `from` points to sixteen slots.
    unsafe fn load(simd: S, from: *const Self) -> Self::Sums;
    /// Stores sixteen sums.
    ///
    /// # Safety
    /// `to` points to sixteen slots.
    unsafe fn store(simd: S, sums: Self::Sums, to: *mut Self);
}

impl<S: Simd> SumSlot<S> for f32 {
    type Sums = S::V;

    #[inline(always)]
    fn zero(simd: S) -> S::V {
        simd.splat(0.0)
    }

    #[inline(always)]
    unsafe fn load(simd: S, from: *const f32) -> S::V {
        // SAFETY: the caller guarantees the length.
        unsafe { simd.load_at(from) }
    }

    #[inline(always)]
    unsafe fn store(simd: S, sums: S::V, to: *mut f32) {
        // SAFETY: the caller guarantees the length.
        unsafe { simd.store_at(sums, to) }
    }
}

impl<S: Simd> SumSlot<S> for i32 {
    type Sums = S::I;

    #[inline(always)]
    fn zero(simd: S) -> S::I {
        simd.splat_int(0)
    }

    #[inline(always)]
    unsafe fn load(simd: S, from: *const i32) -> S::I {
        // SAFETY: the caller guarantees the length.
        unsafe { simd.load_ints(from) }
    }

    #[inline(always)]
    unsafe fn store(simd: S, sums: S::I, to: *mut i32) {
        // SAFETY: the caller guarantees the length.
        unsafe { simd.store_ints(sums, to) }
    }
}

/// Dequantization of a row's integer sums of sixteen outputs.
#[derive(Clone, Copy)]
pub(super) struct IntegerOutputs<'a> {
    /// Value that was added to each byte of the row.
    pub(super) offset: i32,
    pub(super) row_scale: f32,
    /// Scale of each output's weights.
    pub(super) scales: &'a [f32; LANES],
    /// Sum of each output's weights, if the offset needs it.
    pub(super) weight_sums: Option<&'a [i32; LANES]>,
}

/// f32 or bf16 weights with f32 sums.
#[derive(Clone, Copy)]
pub(super) struct FloatWeights<W>(PhantomData<W>);

impl<S: Simd, W: LoadAsF32> WeightFormat<S> for FloatWeights<W> {
    type Cell = f32;
    type Weights = S::V;
    type Slot = f32;
    const GROUP: usize = LANES * size_of::<W>();
    const TILE: usize = S::ROWS;

    #[inline(always)]
    unsafe fn weights(simd: S, from: *const u8) -> S::V {
        // SAFETY: the caller guarantees the length.
        unsafe { W::load_pairs(simd, from.cast()) }
    }

    #[inline(always)]
    fn madd(simd: S, x: &f32, weights: S::V, sums: S::V) -> S::V {
        simd.madd(simd.splat(*x), weights, sums)
    }

    #[inline(always)]
    fn floats(_: S, sums: S::V, _: Option<IntegerOutputs<'_>>) -> S::V {
        sums
    }
}

/// int8 weights with exact 32-bit sums: four consecutive inputs of each output are multiplied with four bytes of a row.
#[derive(Clone, Copy)]
pub(super) struct Int8Weights;

impl<S: Simd> WeightFormat<S> for Int8Weights {
    type Cell = [i8; 4];
    type Weights = S::I;
    type Slot = i32;
    const GROUP: usize = 64;
    const TILE: usize = S::BYTE_ROWS;
    const OFFSET: i32 = S::OFFSET;

    #[inline(always)]
    unsafe fn weights(simd: S, from: *const u8) -> S::I {
        // SAFETY: the caller guarantees the length.
        unsafe { simd.load_bytes(from.cast()) }
    }

    #[inline(always)]
    fn madd(simd: S, x: &[i8; 4], weights: S::I, sums: S::I) -> S::I {
        simd.dot_bytes(weights, simd.offset(simd.splat_int(pack_bytes(*x))), sums)
    }

    #[inline(always)]
    fn merge(simd: S, a: S::I, b: S::I) -> Option<S::I> {
        Some(simd.add_product(a, b, simd.splat_int(1)))
    }

    #[inline(always)]
    fn floats(simd: S, sums: S::I, outputs: Option<IntegerOutputs<'_>>) -> S::V {
        let Some(IntegerOutputs { offset, row_scale, scales, weight_sums }) = outputs else {
            return simd.to_floats(sums);
        };
        // the offset was multiplied with every weight; both sums are modulo 2^32, but their difference fits
        let exact = match weight_sums {
            Some(weight_sums) if offset != 0 => {
                // SAFETY: there are sixteen sums.
                let weight_sums = unsafe { simd.load_ints(weight_sums.as_ptr()) };
                simd.add_product(sums, simd.splat_int(-offset), weight_sums)
            }
            _ => sums,
        };
        // not fused with what follows, so that every instruction set gives the same bits
        simd.mul(simd.to_floats(exact), simd.mul(simd.splat(row_scale), simd.load(scales)))
    }
}

// int4 weights: sixteen levels for each weight, one small multiplier for 32 inputs of an output, and one scale for an output.
//
// A weight is scale · multiplier · level, where levels are −8 … 7 and multipliers −15 … 15. The product of multiplier and level is
// an integer that int8 holds, so sums are exact integers as for int8, and the tiles of AMX multiply expanded weights.
//
// A block of sixteen outputs and 32 inputs has [`BLOCK_BYTES`]: four vectors of 64 bytes, then sixteen multipliers. Byte 4·o + i of
// vector v has output o's level of input 8·v + i in its lower four bits, and that of input 8·v + 4 + i in its upper four. Levels are
// stored plus eight.

/// Inputs that share a multiplier.
pub(crate) const BLOCK: usize = 32;

/// Bytes of a block of sixteen outputs.
pub(super) const BLOCK_BYTES: usize = NIBBLE_BYTES + LANES;

/// Bytes of the levels of a block of sixteen outputs.
const NIBBLE_BYTES: usize = BLOCK * LANES / 2;

/// Bytes of a vector.
const VECTOR: usize = 64;

/// Vectors of levels in a block.
const VECTORS: usize = NIBBLE_BYTES / VECTOR;

/// Inputs of a cell.
const CELL: usize = 4;

pub(crate) const CELLS: usize = BLOCK / CELL;

/// Value that is added to a stored level.
const LEVEL_OFFSET: i32 = 8;

const MIN_LEVEL: f32 = -8.0;
const MAX_LEVEL: f32 = 7.0;
const MAX_MULTIPLIER: i8 = 15;

/// Largest magnitude of multiplier · level.
const MAX_WEIGHT: f32 = 120.0;

/// 32 consecutive inputs of a quantized row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Int4Cell {
    pub(crate) cells: [[i8; CELL]; CELLS],
    /// −8 · the sum of the inputs, since levels are stored plus eight.
    offset: i32,
}

impl Int4Cell {
    pub(crate) const ZERO: Self = Self { cells: [[0; CELL]; CELLS], offset: 0 };

    pub(crate) fn new(cells: [[i8; CELL]; CELLS]) -> Self {
        let sum: i32 = cells.as_flattened().iter().map(|&x| i32::from(x)).sum();
        Self { cells, offset: -LEVEL_OFFSET * sum }
    }
}

/// Blocks of int4 weights with exact 32-bit sums.
#[derive(Clone, Copy)]
pub(super) struct Int4Weights;

#[derive(Clone, Copy)]
pub(super) struct Block<I> {
    /// Levels plus eight of each cell.
    nibbles: [I; CELLS],
    multipliers: I,
}

impl<S: Simd> WeightFormat<S> for Int4Weights {
    type Cell = Int4Cell;
    type Weights = Block<S::I>;
    type Slot = i32;
    const GROUP: usize = BLOCK_BYTES;
    const GROUPS: usize = GROUPS;
    const TILE: usize = S::BYTE_ROWS;

    #[inline(always)]
    unsafe fn weights(simd: S, from: *const u8) -> Block<S::I> {
        let mut nibbles = [simd.splat_int(0); CELLS];
        for vector in 0..VECTORS {
            // SAFETY: the caller guarantees the length.
            let packed = unsafe { simd.load_bytes(from.wrapping_add(vector * VECTOR).cast()) };
            let [low, high] = simd.nibbles(packed);
            nibbles[2 * vector] = low;
            nibbles[2 * vector + 1] = high;
        }
        // SAFETY: as above.
        let multipliers = unsafe { simd.load_small_ints(from.wrapping_add(NIBBLE_BYTES).cast()) };
        Block { nibbles, multipliers }
    }

    #[inline(always)]
    fn madd(simd: S, x: &Int4Cell, weights: Block<S::I>, sums: S::I) -> S::I {
        // each block begins a sum of its own, so the blocks overlap, and few rows need no second chain
        let block = simd.dot_nibbles(&weights.nibbles, &x.cells, simd.splat_int(x.offset));
        simd.add_product(sums, block, weights.multipliers)
    }

    #[inline(always)]
    fn floats(simd: S, sums: S::I, outputs: Option<IntegerOutputs<'_>>) -> S::V {
        <Int8Weights as WeightFormat<S>>::floats(simd, sums, outputs)
    }
}

/// Groups of sixteen outputs in a full panel.
pub(super) const GROUPS: usize = 2;

/// Returns the scale of an output's weights: the largest magnitude is 15 · 8 scales. 0 for zeros, NaN if one is not finite.
pub(super) fn group_scale(row: &[f32]) -> f32 {
    let max = row.iter().fold(0.0f32, |max, x| max.max(x.abs()));
    if row.iter().all(|x| x.is_finite()) { max / MAX_WEIGHT } else { f32::NAN }
}

/// Levels and multiplier of one output's weights of a block.
#[derive(Debug, Clone, Copy, PartialEq)]
struct QuantizedBlock {
    levels: [f32; BLOCK],
    multiplier: i8,
    /// Sum of the squared differences in units of the scale.
    error: f32,
}

impl QuantizedBlock {
    /// Rounds weights in units of the scale to levels of `multiplier`.
    fn new(weights: &[f32; BLOCK], multiplier: i8) -> Self {
        let unit = f32::from(multiplier);
        let inverse = 1.0 / unit;
        let mut error = 0.0;
        let levels = weights.map(|weight| (weight * inverse).round_ties_even().clamp(MIN_LEVEL, MAX_LEVEL));
        for (weight, level) in weights.iter().zip(levels) {
            error += (weight - level * unit) * (weight - level * unit);
        }
        Self { levels, multiplier, error }
    }

    /// Returns the levels and the multiplier with the smallest error, among the multipliers whose range is close to the weights'.
    fn best(weights: &[f32; BLOCK]) -> Self {
        let max = weights.iter().fold(0.0f32, |max, x| max.max(x.abs()));
        let least = (max / -MIN_LEVEL) as i8;
        let candidates = least.saturating_sub(1).max(1)..=(least + 2).min(MAX_MULTIPLIER);
        let mut best = Self { levels: [0.0; BLOCK], multiplier: 0, error: f32::INFINITY };
        for multiplier in candidates.flat_map(|magnitude| [magnitude, -magnitude]) {
            let candidate = Self::new(weights, multiplier);
            if candidate.error < best.error {
                best = candidate;
            }
        }
        best
    }
}

/// Packs one output's weights. `scale` is the row's. `block_at` returns the index of the first byte of a block's group in `packed`.
pub(super) fn pack_row(row: &[f32], scale: f32, lane: usize, packed: &mut [u8], block_at: impl Fn(usize) -> usize) {
    let inverse = inverse_of(scale);
    for (index, weights) in row.chunks(BLOCK).enumerate() {
        let mut block = [0.0; BLOCK];
        for (scaled, weight) in block.iter_mut().zip(weights) {
            *scaled = weight * inverse;
        }
        let quantized = QuantizedBlock::best(&block);
        let bytes = &mut packed[block_at(index)..][..BLOCK_BYTES];
        bytes[NIBBLE_BYTES + lane] = quantized.multiplier.cast_unsigned();
        for (input, level) in quantized.levels.iter().enumerate() {
            let nibble = (*level as i32 + LEVEL_OFFSET) as u8;
            let shift = input / CELL % 2 * 4;
            bytes[input / (2 * CELL) * VECTOR + CELL * lane + input % CELL] |= nibble << shift;
        }
    }
}

/// Bytes to prefetch ahead while a panel is expanded: nearly a full panel of 512 inputs.
const AHEAD: usize = 8192;

/// Expands the blocks of a panel, (blocks, groups), to int8 weights, (cells, groups, 64 bytes), as int8 matrices store them.
#[inline(always)]
pub(super) fn expand<S: Simd>(simd: S, panel: &[u8], groups: usize, weights: &mut [u8]) {
    let blocks = panel.chunks_exact(groups * BLOCK_BYTES);
    for (blocks, out) in blocks.zip(weights.chunks_exact_mut(CELLS * groups * VECTOR)) {
        for (group, block) in blocks.chunks_exact(BLOCK_BYTES).enumerate() {
            for line in (0..BLOCK_BYTES).step_by(VECTOR) {
                simd.prefetch_near(block.as_ptr().wrapping_add(AHEAD + line));
            }
            // SAFETY: the block has as many bytes.
            let Block { nibbles, .. } = unsafe { <Int4Weights as WeightFormat<S>>::weights(simd, block.as_ptr()) };
            let scaling = Scaling::new(simd, &block[NIBBLE_BYTES..]);
            let (cells, _) = out.as_chunks_mut::<VECTOR>();
            for (cell, nibbles) in cells.iter_mut().skip(group).step_by(groups).zip(nibbles) {
                let scaled = simd.scale_nibbles(nibbles, scaling.flips, scaling.factors, scaling.offsets);
                // SAFETY: a cell has 64 bytes.
                unsafe { simd.store_bytes(scaled, cell.as_mut_ptr().cast()) };
            }
        }
    }
}

/// Factors that turn the stored levels of a block into int8 weights.
struct Scaling<I> {
    /// 15 in each byte of a negative multiplier: x ^ 15 turns a stored level + 8 into −level + 7.
    flips: I,
    /// Two copies of each multiplier's magnitude.
    factors: I,
    /// The magnitude times 8, or times 7 for a negative multiplier.
    offsets: I,
}

impl<I> Scaling<I> {
    #[inline(always)]
    fn new<S: Simd<I = I>>(simd: S, multipliers: &[u8]) -> Self {
        let [mut flips, mut factors, mut offsets] = [[0; LANES]; 3];
        for (lane, &multiplier) in multipliers.iter().take(LANES).enumerate() {
            let multiplier = i32::from(multiplier.cast_signed());
            let sign = multiplier >> 31;
            flips[lane] = sign & 0x0f0f_0f0f;
            factors[lane] = multiplier.abs() * 0x0001_0001;
            offsets[lane] = multiplier.abs() * (LEVEL_OFFSET + sign) * 0x0101_0101;
        }
        // SAFETY: each array has sixteen integers.
        let [flips, factors, offsets] = [flips, factors, offsets].map(|ints| unsafe { simd.load_ints(ints.as_ptr()) });
        Self { flips, factors, offsets }
    }
}

/// Returns the weights, (outputs, inputs), with which products compute after [`Linear::pack`] has stored these as `dtype`.
pub fn stored_weights(dtype: Dtype, weight: &[f32], inputs: usize) -> Vec<f32> {
    let row = |row: &[f32]| -> Vec<f32> {
        let scale = scale_of(Portable, row);
        match dtype {
            Dtype::F32 => row.to_vec(),
            Dtype::Bf16 => row.iter().map(|&weight| from_bf16(to_bf16(weight))).collect(),
            Dtype::Int8 => row.iter().map(|&weight| f32::from(to_byte(weight, inverse_of(scale))) * scale).collect(),
            Dtype::Int4 => stored_int4(row),
        }
    };
    weight.chunks_exact(inputs).flat_map(row).collect()
}

/// Returns a row after a round trip through int4.
fn stored_int4(row: &[f32]) -> Vec<f32> {
    let scale = group_scale(row);
    let inverse = inverse_of(scale);
    let mut out = Vec::new();
    for weights in row.chunks(BLOCK) {
        let mut block = [0.0; BLOCK];
        block.iter_mut().zip(weights).for_each(|(scaled, weight)| *scaled = weight * inverse);
        let quantized = QuantizedBlock::best(&block);
        let weight = |level: &f32| level * f32::from(quantized.multiplier) * scale;
        out.extend(quantized.levels.iter().take(weights.len()).map(weight));
    }
    out
}

// Layout of packed matrices: panels of 128 bytes per step, (outputs/width, steps, width), which one row reads as one stream. A
// step is one input (f32, bf16), four inputs (int8: 32 outputs), or a block of 32 inputs (int4: 32 outputs, 544 bytes).

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
    /// Packs `weight`, (outputs, inputs) row-major, and `bias`, (outputs) or empty. Fails if memory runs out, or if integer sums
    /// of `inputs` products could overflow. Panics if a length does not match; the checkpoint reader checks shapes.
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
            *scale = if dtype == Dtype::Int4 { group_scale(row) } else { scale_of(Portable, row) };
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
            return pack_row(row, scale, lane, packed, offset);
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
        Dtype::Int4 => GROUPS,
    }
}

fn step_inputs(dtype: Dtype) -> usize {
    match dtype {
        Dtype::F32 | Dtype::Bf16 => 1,
        Dtype::Int8 => 4,
        Dtype::Int4 => BLOCK,
    }
}

/// Returns the bytes of sixteen outputs in a step.
fn group_bytes(dtype: Dtype) -> usize {
    match dtype {
        Dtype::F32 | Dtype::Int8 => 64,
        Dtype::Bf16 => 32,
        Dtype::Int4 => BLOCK_BYTES,
    }
}

const LINE_CELLS: usize = 16;

const TASK_ROWS: usize = 8;

/// Minimum numbers for which it pays to use other threads.
const MIN_SHARED: usize = 1 << 16;

/// A cache line of cells, each of which is four consecutive numbers of a row.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct CellLine([[i8; 4]; LINE_CELLS]);

/// Quantized input rows of an int8 or int4 product. The memory is reused between steps.
#[derive(Default)]
pub struct QuantizedRows {
    /// (rows, width/64), padded with zeros
    lines: Vec<CellLine>,
    /// Blocks of the rows for an int4 product: (rows, ⌈width/32⌉)
    blocks: Vec<Int4Cell>,
    /// Scale of each row: (rows)
    scales: Vec<f32>,
    /// Cells of a row, without those that fill its last line: ⌈width/4⌉.
    cells: usize,
}

impl QuantizedRows {
    /// Quantizes rows of floats, (rows, width).
    pub(crate) fn fill(&mut self, compute: &Compute, x: &[f32], width: usize) {
        let rows = x.len() / width;
        self.cells = width.div_ceil(4);
        let row_lines = self.cells.div_ceil(LINE_CELLS);
        self.scales.resize(rows, 0.0);
        self.lines.resize(rows * row_lines, CellLine([[0; 4]; LINE_CELLS]));
        let lines = &DisjointSlice::new(&mut self.lines[..]);
        let scales = &DisjointSlice::new(&mut self.scales[..]);
        share(compute, rows, width, &|row| {
            // SAFETY: a row belongs to one task.
            let scale = unsafe { scales.part(row, 1) };
            // SAFETY: as above.
            let lines = unsafe { lines.part(row * row_lines, row_lines) };
            scale[0] = rowwise::quantize(compute.isa, &x[row * width..][..width], cells_mut(lines));
        });
    }

    /// Quantizes rows of floats, (rows, width), and fills [`blocks`](Self::blocks).
    pub(super) fn fill_blocks(&mut self, compute: &Compute, x: &[f32], width: usize) {
        self.fill(compute, x, width);
        let rows = x.len() / width;
        let row_blocks = self.cells.div_ceil(CELLS);
        let stride = self.stride();
        let mut blocks = std::mem::take(&mut self.blocks);
        blocks.resize(rows * row_blocks, Int4Cell::ZERO);
        let shared = &DisjointSlice::new(&mut blocks[..]);
        let cells = self.all();
        share(compute, rows, width, &|row| {
            // SAFETY: a row belongs to one task.
            let blocks = unsafe { shared.part(row * row_blocks, row_blocks) };
            for (cells, block) in cells[row * stride..][..stride].as_chunks::<CELLS>().0.iter().zip(blocks) {
                *block = Int4Cell::new(*cells);
            }
        });
        self.blocks = blocks;
    }

    /// Returns the blocks of all rows, (rows, ⌈width/32⌉), of the last [`fill_blocks`](Self::fill_blocks).
    pub(super) fn blocks(&self) -> &[Int4Cell] {
        &self.blocks
    }

    /// Returns all cells, (rows, [`stride`](Self::stride)).
    pub(crate) fn all(&self) -> &[[i8; 4]] {
        // SAFETY: a line is its cells, without padding.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.lines.len() * LINE_CELLS) }
    }

    /// Returns the cells from one row's start to the next row's, a multiple of sixteen. The first row starts at a cache line.
    pub(crate) fn stride(&self) -> usize {
        self.cells.next_multiple_of(LINE_CELLS)
    }

    /// Returns the cells of a row, or none if there is no such row.
    pub(crate) fn row(&self, row: usize) -> &[[i8; 4]] {
        self.all().get(row * self.stride()..).and_then(|rest| rest.get(..self.cells)).unwrap_or(&[])
    }

    pub(crate) fn scales(&self) -> &[f32] {
        &self.scales
    }
}

/// Calls `body` with each row, on several threads if the rows of `width` numbers are large enough. A row belongs to one task.
fn share(compute: &Compute, rows: usize, width: usize, body: &(dyn Fn(usize) + Sync)) {
    let run_task = |task: usize| (task * TASK_ROWS..rows.min((task + 1) * TASK_ROWS)).for_each(body);
    let tasks = rows.div_ceil(TASK_ROWS);
    if rows * width < MIN_SHARED { (0..tasks).for_each(run_task) } else { compute.pool.run(tasks, &run_task) }
}

fn cells_mut(lines: &mut [CellLine]) -> &mut [[i8; 4]] {
    // SAFETY: a line is its cells, without padding; exclusive because the borrow is.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * LINE_CELLS) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{computes, numbers};

    #[test]
    fn errors_are_those_of_sixteen_levels() {
        let row = numbers(5, 10 * BLOCK + 7);
        let scale = group_scale(&row);
        for (weights, stored) in row.chunks(BLOCK).zip(stored_int4(&row).chunks(BLOCK)) {
            let max = weights.iter().fold(0.0f32, |max, x| max.max(x.abs()));
            for (weight, stored) in weights.iter().zip(stored) {
                // a step is at most an eighth of the largest weight, rounded up to whole scales, and one more if that is better overall
                assert!((weight - stored).abs() <= 0.5 * (max / 8.0 + 2.0 * scale) + max / 8.0, "{weight} {stored}");
            }
        }
        let mean =
            |errors: &mut dyn Iterator<Item = f32>| errors.map(|x| f64::from(x * x)).sum::<f64>() / row.len() as f64;
        let error = mean(&mut row.iter().zip(stored_int4(&row)).map(|(x, y)| x - y));
        // a sixteenth of the range, uniform: (2 / 16)² / 12
        assert!(error < 1.1 * (0.125f64.powi(2) / 12.0), "{error}");
    }

    #[test]
    fn extremes_have_their_own_level() {
        for sign in [1.0, -1.0] {
            let row: Vec<f32> = (0..64).map(|index| if index == 40 { sign * 12.0 } else { 0.1 }).collect();
            assert!((stored_int4(&row)[40] - sign * 12.0).abs() < 1e-5);
        }
        assert!(stored_int4(&[0.0; 33]).iter().all(|x| *x == 0.0));
        assert!(group_scale(&[1.0, f32::NAN]).is_nan() && group_scale(&[f32::NEG_INFINITY]).is_nan());
    }

    #[test]
    fn threads_fill_the_same_cells_and_blocks() {
        // the last block of a row and the last task are not full
        let width = 10 * 32 + 3;
        let rows = MIN_SHARED / width + 2;
        let x = numbers(1, rows * width);
        for (one, three) in computes(1).iter().zip(computes(3)) {
            let mut alone = QuantizedRows::default();
            alone.fill_blocks(one, &x, width);
            let mut shared = QuantizedRows::default();
            shared.fill_blocks(&three, &x, width);
            assert!(alone.all() == shared.all() && alone.scales() == shared.scales());
            assert!(alone.blocks() == shared.blocks());
            for (row, blocks) in shared.blocks().chunks_exact(11).enumerate() {
                let cells = blocks.iter().flat_map(|block| block.cells);
                assert!(cells.take(81).eq(shared.row(row).iter().copied()), "row {row}");
            }
        }
    }
}
