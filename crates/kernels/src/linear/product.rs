//! The product kernel: register tiles of rows × outputs, where each output is one sum over the inputs, in order.
//!
//! If the registers hold the sums of all rows over a panel, the rows read it as one stream. More rows share slices of [`SLICE`]
//! bytes of a panel while these are in the nearest cache, and prefetch the next one. Between slices, sums are kept in memory
//! without rounding, so slices and tiles do not change any bit.

use crate::isa::{Simd, multiversion};
use crate::linear::weights::{
    FloatWeights, Int4Cell, Int4Weights, Int8Weights, IntegerOutputs, Linear, SumSlot, WeightFormat,
};
use crate::pool::DisjointSlice;
use crate::{LANES, rowwise};
use std::ops::Range;

/// Bytes of a slice of a full panel, which then uses at most four lines of each cache set.
const SLICE: usize = 16384;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Prefetch distance of a stream in bytes. Some processors prefetch by themselves, but not beyond a 4 KiB boundary.
const AHEAD: usize = 4096;

/// Prefetch distance of a stream for more than [`FEW_ROWS`] rows.
const FAR_AHEAD: usize = 3 * 4096;

/// Maximum rows of a stream that prefetches at the shorter distance.
const FEW_ROWS: usize = 4;

/// Rows that share a panel; their inputs stay in the second-level cache.
const ROW_BLOCK: usize = 96;

/// Maximum outputs of a panel.
pub(super) const MAX_WIDTH: usize = 4 * LANES;

/// Function that is applied to each output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Epilogue {
    /// Identity.
    None,
    /// GELU: x·Φ(x).
    Gelu,
    /// Approximation of GELU by tanh, as in GPT-2.
    GeluTanh,
    /// SiLU: x·σ(x).
    Silu,
    /// ReLU: max(x, 0).
    Relu,
}

/// Input that all tasks share. `x`: (rows, stride) cells, as many of each row as there are steps; `out`: (rows, outputs).
pub(super) struct ProductJob<'a, C> {
    pub(super) matrix: &'a Linear,
    pub(super) x: &'a [C],
    /// Cells from the start of a row to the start of the next.
    pub(super) stride: usize,
    /// Scale of each row for int8 and int4; empty if rows are floats.
    pub(super) scales: &'a [f32],
    pub(super) epilogue: Epilogue,
    pub(super) out: &'a DisjointSlice<'a>,
}

multiversion! { pub(super) fn multiply_f32(job: &ProductJob<'_, f32>, panels: Range<usize>) = product::<_, FloatWeights<f32>> }

multiversion! { pub(super) fn multiply_bf16(job: &ProductJob<'_, f32>, panels: Range<usize>) = product::<_, FloatWeights<u16>> }

multiversion! { pub(super) fn multiply_int8(job: &ProductJob<'_, [i8; 4]>, panels: Range<usize>) = product::<_, Int8Weights> }

multiversion! { pub(super) fn multiply_int4(job: &ProductJob<'_, Int4Cell>, panels: Range<usize>) = product::<_, Int4Weights> }

#[inline(always)]
fn product<S: Simd, F: WeightFormat<S>>(simd: S, job: &ProductJob<'_, F::Cell>, panels: Range<usize>) {
    let stride = job.stride;
    let rows = job.x.len() / stride;
    let mut sums = [[F::Slot::default(); MAX_WIDTH]; ROW_BLOCK];
    for first in (0..rows).step_by(ROW_BLOCK) {
        let block = first..rows.min(first + ROW_BLOCK);
        for index in panels.clone() {
            let panel = WeightPanel::<F::Cell> {
                x: &job.x[block.start * stride..block.end * stride],
                stride,
                weights: job.matrix.panel(index),
                steps: job.matrix.steps,
                groups: job.matrix.groups(index),
            };
            let sums = &mut sums[..block.len()];
            sums.fill([F::Slot::default(); MAX_WIDTH]);
            if sums.len() <= const { stream_rows::<S, F>() } {
                panel.stream::<S, F>(simd, sums);
            } else {
                panel.rows::<S, F>(simd, sums);
            }
            for (row, sums) in block.clone().zip(sums) {
                finish::<S, F>(simd, job, row, index, sums, F::OFFSET);
            }
        }
    }
}

/// Writes the outputs of a row and a panel: applies scale, bias and epilogue. `offset` was added to each byte of an int8 row.
#[inline(always)]
pub(super) fn finish<S: Simd, F: WeightFormat<S>>(
    simd: S,
    job: &ProductJob<'_, F::Cell>,
    row: usize,
    panel: usize,
    sums: &[F::Slot; MAX_WIDTH],
    offset: i32,
) {
    let ProductJob { matrix, scales, epilogue, out, .. } = job;
    let first = panel * F::GROUPS * LANES;
    let width = (F::GROUPS * LANES).min(matrix.outputs - first);
    // SAFETY: a panel belongs to one task, which finishes each row of it once.
    let out = unsafe { out.part(row * matrix.outputs + first, width) };
    for (group, numbers) in out.chunks_mut(LANES).enumerate() {
        let index = first / LANES + group;
        let integers = scales.get(row).map(|&row_scale| IntegerOutputs {
            offset,
            row_scale,
            scales: &matrix.scales[index],
            weight_sums: matrix.sums.get(index),
        });
        // SAFETY: there are sixteen sums for each group.
        let sums = unsafe { F::Slot::load(simd, sums[group * LANES..][..LANES].as_ptr()) };
        let values = simd.add(F::floats(simd, sums, integers), simd.load(&matrix.bias[index]));
        if numbers.len() == LANES {
            simd.store(values, numbers);
        } else {
            let mut padded = [0.0; LANES];
            simd.store(values, &mut padded);
            numbers.copy_from_slice(&padded[..numbers.len()]);
        }
    }
    match epilogue {
        Epilogue::None => {}
        Epilogue::Gelu => rowwise::gelu_body(simd, out),
        Epilogue::GeluTanh => rowwise::gelu_tanh_body(simd, out),
        Epilogue::Silu => rowwise::silu_body(simd, out),
        Epilogue::Relu => rowwise::relu(out),
    }
}

/// A block of rows and a panel of weights.
struct WeightPanel<'a, C> {
    /// (rows, stride)
    x: &'a [C],
    stride: usize,
    /// (steps, groups, GROUP) bytes
    weights: &'a [u8],
    steps: usize,
    groups: usize,
}

/// The part of a panel that a tile multiplies, and the part that it prefetches.
#[derive(Clone, Copy)]
struct PanelSlice {
    row: usize,
    group: usize,
    start: usize,
    end: usize,
    prefetch: Prefetch,
}

/// The part of the next slice that a tile prefetches. Equal parts keep memory equally busy during all tiles.
#[derive(Clone, Copy)]
struct Prefetch {
    /// Distance to the next slice in bytes.
    ahead: usize,
    near: bool,
    tile: usize,
    tiles: usize,
}

impl<C: Copy> WeightPanel<'_, C> {
    /// Multiplies at most [`stream_rows`] rows with all groups, as one stream.
    #[inline(always)]
    fn stream<S: Simd, F: WeightFormat<S, Cell = C>>(&self, simd: S, sums: &mut [[F::Slot; MAX_WIDTH]]) {
        let ahead = if sums.len() <= FEW_ROWS { AHEAD } else { FAR_AHEAD };
        // unpacking 16-bit weights leaves no time to hide the latency of the second level
        let prefetch = Prefetch { ahead, near: F::GROUPS > 2, tile: 0, tiles: 1 };
        let all = PanelSlice { row: 0, group: 0, start: 0, end: self.steps, prefetch };
        // each number of rows and groups is compiled separately, if its constant condition holds
        macro_rules! tile {
            ($($rows:literal: $($groups:literal)*;)*) => {
                match (sums.len(), self.groups) {
                    $($(($rows, $groups) if const { $groups <= F::GROUPS && $rows <= stream_rows::<S, F>() } => {
                        self.tile::<S, F, $rows, $groups>(simd, all, sums);
                    })*)*
                    (rows, groups) => unreachable!("a stream of {rows} rows and {groups} groups"),
                }
            };
        }
        tile!(1: 1 2 3 4; 2: 1 2 3 4; 3: 1 2 3 4; 4: 1 2 3 4; 5: 1 2; 6: 1 2; 7: 1 2; 8: 1 2;);
    }

    #[inline(always)]
    fn rows<S: Simd, F: WeightFormat<S, Cell = C>>(&self, simd: S, sums: &mut [[F::Slot; MAX_WIDTH]]) {
        // two rows take two groups at a time, to have enough independent chains
        let groups_per_tile = if sums.len() == 2 { 2 } else { S::ACROSS };
        let slice = const { SLICE / (F::GROUPS * F::GROUP) };
        for start in (0..self.steps).step_by(slice) {
            let end = self.steps.min(start + slice);
            for group in (0..self.groups).step_by(groups_per_tile) {
                let last = group + groups_per_tile >= self.groups;
                // next comes the next slice of these steps, or the first one of the next steps or panel
                let ahead =
                    if last { ((end - start) * self.groups - group) * F::GROUP } else { groups_per_tile * F::GROUP };
                let both_groups = groups_per_tile == 2 && group + 1 < self.groups;
                let tiles = sums.len().div_ceil(F::TILE);
                let mut row = 0;
                for (tile, rows) in split(sums.len(), F::TILE).enumerate() {
                    let prefetch = Prefetch { ahead, near: false, tile, tiles };
                    let slice = PanelSlice { row, group, start, end, prefetch };
                    self.tile_of::<S, F>(simd, rows, both_groups, slice, &mut sums[row..]);
                    row += rows;
                }
            }
        }
    }

    /// Calls [`tile`](Self::tile) for a number of rows, with one group or both.
    #[inline(always)]
    fn tile_of<S: Simd, F: WeightFormat<S, Cell = C>>(
        &self,
        simd: S,
        rows: usize,
        both_groups: bool,
        slice: PanelSlice,
        sums: &mut [[F::Slot; MAX_WIDTH]],
    ) {
        // each number of rows and groups is compiled separately
        macro_rules! tile {
            ($($rows:literal)*) => {
                match (rows, both_groups) {
                    $(($rows, false) if const { $rows <= F::TILE } => self.tile::<S, F, $rows, 1>(simd, slice, sums),
                    ($rows, true) if const { $rows <= F::TILE && (S::ACROSS == 2 || $rows == 2) } => {
                        self.tile::<S, F, $rows, 2>(simd, slice, sums);
                    })*
                    (rows, _) => unreachable!("a tile of {rows} rows"),
                }
            };
        }
        tile!(1 2 3 4 5 6 7 8);
    }

    /// Multiplies `R` rows with `G` groups: continues R · G · 16 independent sums over the steps of a slice.
    #[inline(always)]
    fn tile<S: Simd, F: WeightFormat<S, Cell = C>, const R: usize, const G: usize>(
        &self,
        simd: S,
        slice: PanelSlice,
        sums: &mut [[F::Slot; MAX_WIDTH]],
    ) {
        let PanelSlice { row, group, start, end, prefetch } = slice;
        let stride = self.groups * F::GROUP;
        assert!(end <= self.steps && group + G <= self.groups && self.groups * LANES <= MAX_WIDTH);
        assert!(self.weights.len() >= self.steps * stride && sums.len() >= R);
        let xs: [&[C]; R] = std::array::from_fn(|r| &self.x[(row + r) * self.stride..][..self.steps]);
        let slots: [*mut F::Slot; R] = std::array::from_fn(|r| sums[r][group * LANES..].as_mut_ptr());
        // no closures here: a closure that is not inlined is not compiled for the instruction set
        let zero = F::Slot::zero(simd);
        let mut chains = [[zero; G]; R];
        for (chains, &slots) in chains.iter_mut().zip(&slots) {
            for (index, chain) in chains.iter_mut().enumerate() {
                // SAFETY: a row of sums has MAX_WIDTH slots, which include groups up to group + G, as checked.
                *chain = unsafe { F::Slot::load(simd, slots.wrapping_add(index * LANES)) };
            }
        }
        // few chains leave the units for products idle, so exact sums have two parts, of even and of odd steps
        let halves = S::ACROSS == 2 && R * G <= 4 && F::merge(simd, zero, zero).is_some();
        let mut odd = [[zero; G]; R];
        let mut weights_at = self.weights.as_ptr().wrapping_add(start * stride + group * F::GROUP);
        // each tile prefetches its part of the next slice, one step of it per `tiles` steps
        let Prefetch { ahead, near, tile, tiles } = prefetch;
        let mut prefetch_at = weights_at.wrapping_add(ahead + (end - start) * tile / tiles * stride);
        let mut step = start;
        macro_rules! prefetch_step {
            () => {
                for line in (0..G * F::GROUP).step_by(LINE) {
                    let line = prefetch_at.wrapping_add(line);
                    if near { simd.prefetch_near(line) } else { simd.prefetch(line) }
                }
                prefetch_at = prefetch_at.wrapping_add(stride);
            };
        }
        macro_rules! multiply_step {
            ($chains:ident) => {
                for g in 0..G {
                    // SAFETY: step < steps and group + g < groups, so the group's bytes lie within the panel, as checked.
                    let weights = unsafe { F::weights(simd, weights_at.wrapping_add(g * F::GROUP)) };
                    for (chains, x) in $chains.iter_mut().zip(&xs) {
                        // SAFETY: every row has `steps` cells.
                        chains[g] = F::madd(simd, unsafe { x.get_unchecked(step) }, weights, chains[g]);
                    }
                }
                weights_at = weights_at.wrapping_add(stride);
                step += 1;
            };
        }
        while step < end {
            prefetch_step!();
            let stop = end.min(step + tiles);
            while step < stop {
                multiply_step!(chains);
                if halves && step < stop {
                    multiply_step!(odd);
                }
            }
            if halves && tiles == 1 && step < end {
                prefetch_step!();
                multiply_step!(odd);
            }
        }
        if halves {
            for (chains, odd) in chains.iter_mut().zip(odd) {
                for (chain, odd) in chains.iter_mut().zip(odd) {
                    if let Some(sum) = F::merge(simd, *chain, odd) {
                        *chain = sum;
                    }
                }
            }
        }
        for (chains, slots) in chains.iter().zip(slots) {
            for (index, &chain) in chains.iter().enumerate() {
                // SAFETY: as for the loads.
                unsafe { F::Slot::store(simd, chain, slots.wrapping_add(index * LANES)) };
            }
        }
    }
}

/// Returns the number of rows whose sums over all outputs of a panel fit into registers, next to a step's weights.
const fn stream_rows<S: Simd, F: WeightFormat<S>>() -> usize {
    let groups = if S::ACROSS == 2 { 16 } else { 4 };
    groups / F::GROUPS
}

/// Splits rows into tiles of at most `max` rows of nearly equal size, because one row may cost as much as three.
fn split(rows: usize, max: usize) -> impl Iterator<Item = usize> {
    let tiles = rows.div_ceil(max);
    (0..tiles).map(move |tile| rows / tiles + usize::from(tile < rows % tiles))
}
