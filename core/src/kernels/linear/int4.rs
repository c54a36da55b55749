//! int4 weights: sixteen levels for each weight, one small multiplier for 32 inputs of an output, and one scale for an output.
//!
//! A weight is scale · multiplier · level, where levels are −8 … 7 and multipliers −15 … 15. The product of multiplier and level is
//! an integer that int8 holds, so sums are exact integers as for int8, and the tiles of AMX multiply expanded weights.
//!
//! A block of sixteen outputs and 32 inputs has [`BLOCK_BYTES`]: four vectors of 64 bytes, then sixteen multipliers. Byte 4·o + i of
//! vector v has output o's level of input 8·v + i in its lower four bits, and that of input 8·v + 4 + i in its upper four. Levels are
//! stored plus eight.

use super::format::{Int8Weights, IntegerOutputs, WeightFormat};
use crate::kernels::{LANES, isa::Simd};

/// Inputs that share a multiplier.
pub(in crate::kernels) const BLOCK: usize = 32;
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
/// Cells of a block.
pub(in crate::kernels) const CELLS: usize = BLOCK / CELL;
/// Value that is added to a stored level.
const LEVEL_OFFSET: i32 = 8;
const MIN_LEVEL: f32 = -8.0;
const MAX_LEVEL: f32 = 7.0;
const MAX_MULTIPLIER: i8 = 15;
/// Largest magnitude of multiplier · level.
const MAX_WEIGHT: f32 = 120.0;

/// 32 consecutive inputs of a quantized row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::kernels) struct Int4Cell {
    pub(in crate::kernels) cells: [[i8; CELL]; CELLS],
    /// −8 · the sum of the inputs, since levels are stored plus eight.
    offset: i32,
}

impl Int4Cell {
    /// An unused cell.
    pub(in crate::kernels) const ZERO: Self = Self { cells: [[0; CELL]; CELLS], offset: 0 };

    pub(in crate::kernels) fn new(cells: [[i8; CELL]; CELLS]) -> Self {
        let sum: i32 = cells.as_flattened().iter().map(|&x| i32::from(x)).sum();
        Self { cells, offset: -LEVEL_OFFSET * sum }
    }
}

/// Blocks of int4 weights with exact 32-bit sums.
#[derive(Clone, Copy)]
pub(super) struct Int4Weights;

/// The weights of a block.
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
pub(super) fn scale_of(row: &[f32]) -> f32 {
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

    /// Returns the levels and the multiplier with the smallest error, among those whose range is close to that of the weights.
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

/// Packs one output's weights. `scale` is that of the row. `block_at` returns the index of the first byte of a block's group in `packed`.
pub(super) fn pack_row(row: &[f32], scale: f32, lane: usize, packed: &mut [u8], block_at: impl Fn(usize) -> usize) {
    let inverse = crate::kernels::dtype::inverse_of(scale);
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

/// Returns a row after a round trip through int4.
#[cfg(test)]
pub(in crate::kernels) fn stored(row: &[f32]) -> Vec<f32> {
    let scale = scale_of(row);
    let inverse = crate::kernels::dtype::inverse_of(scale);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::numbers;

    #[test]
    fn errors_are_those_of_sixteen_levels() {
        let row = numbers(5, 10 * BLOCK + 7);
        let scale = scale_of(&row);
        for (weights, stored) in row.chunks(BLOCK).zip(stored(&row).chunks(BLOCK)) {
            let max = weights.iter().fold(0.0f32, |max, x| max.max(x.abs()));
            for (weight, stored) in weights.iter().zip(stored) {
                // a step is at most an eighth of the largest weight, rounded up to whole scales, and one more if that is better overall
                assert!((weight - stored).abs() <= 0.5 * (max / 8.0 + 2.0 * scale) + max / 8.0, "{weight} {stored}");
            }
        }
        let mean =
            |errors: &mut dyn Iterator<Item = f32>| errors.map(|x| f64::from(x * x)).sum::<f64>() / row.len() as f64;
        let error = mean(&mut row.iter().zip(stored(&row)).map(|(x, y)| x - y));
        // a sixteenth of the range, uniform: (2 / 16)² / 12
        assert!(error < 1.1 * (0.125f64.powi(2) / 12.0), "{error}");
    }

    #[test]
    fn extremes_have_their_own_level() {
        for sign in [1.0, -1.0] {
            let row: Vec<f32> = (0..64).map(|index| if index == 40 { sign * 12.0 } else { 0.1 }).collect();
            assert!((stored(&row)[40] - sign * 12.0).abs() < 1e-5);
        }
        assert!(stored(&[0.0; 33]).iter().all(|x| *x == 0.0));
        assert!(scale_of(&[1.0, f32::NAN]).is_nan() && scale_of(&[f32::NEG_INFINITY]).is_nan());
    }
}
