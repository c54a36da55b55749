//! The product itself: tiles of rows × outputs, each output its own chain over the inputs in order.
//!
//! One row reads a panel from its first byte to its last, as one stream of memory, asked for a little ahead. Several rows pass
//! slices of a panel, as many groups of sixteen outputs wide as registers have room for and [`SLICE`] steps long, while they are in
//! the nearest cache; what the next slice needs is asked for meanwhile. Sums rest in memory between slices, unrounded, so slices
//! and tiles change no bit.

use super::{
    Epilogue, Linear,
    format::{Bytes, Floats, Format},
};
use crate::kernels::{
    LANES,
    disjoint::DisjointSlice,
    isa::{Simd, multiversion},
    rowwise,
};
use std::ops::Range;

/// Steps of a slice: with four lines of each cache set at most.
const SLICE: usize = 128;
/// Bytes of a line of the caches.
const LINE: usize = 64;
/// How far ahead one stream is asked for, in bytes. Some processors foresee streams by themselves, but only to the end of each
/// 4 KiB.
const AHEAD: usize = 4096;
/// Rows that pass a panel together; their inputs stay in the second level.
const BLOCK: usize = 96;
/// Outputs of the widest panel.
const WIDEST: usize = 4 * LANES;

/// What all tasks of a product share. `x`: (rows, steps) cells; `out`: (rows, outputs).
pub(super) struct Job<'a, C> {
    pub(super) matrix: &'a Linear,
    pub(super) x: &'a [C],
    /// What each row was divided by; empty where rows are floats.
    pub(super) scales: &'a [f32],
    pub(super) then: Epilogue,
    pub(super) out: &'a DisjointSlice<'a>,
}

multiversion! { pub(super) fn full(job: &Job<'_, f32>, panels: Range<usize>) = full_body }
multiversion! { pub(super) fn half(job: &Job<'_, f32>, panels: Range<usize>) = half_body }
multiversion! { pub(super) fn bytes(job: &Job<'_, [i8; 4]>, panels: Range<usize>) = bytes_body }

#[inline(always)]
fn full_body<S: Simd>(simd: S, job: &Job<'_, f32>, panels: Range<usize>) {
    product::<S, Floats<f32>>(simd, job, panels);
}

#[inline(always)]
fn half_body<S: Simd>(simd: S, job: &Job<'_, f32>, panels: Range<usize>) {
    product::<S, Floats<u16>>(simd, job, panels);
}

#[inline(always)]
fn bytes_body<S: Simd>(simd: S, job: &Job<'_, [i8; 4]>, panels: Range<usize>) {
    product::<S, Bytes>(simd, job, panels);
}

#[inline(always)]
fn product<S: Simd, F: Format<S>>(simd: S, job: &Job<'_, F::Cell>, panels: Range<usize>) {
    let steps = job.matrix.steps;
    let rows = job.x.len() / steps;
    let mut sums = [[F::Slot::default(); WIDEST]; BLOCK];
    for first in (0..rows).step_by(BLOCK) {
        let block = first..rows.min(first + BLOCK);
        for index in panels.clone() {
            let panel = Panel::<F::Cell> {
                x: &job.x[block.start * steps..block.end * steps],
                weights: job.matrix.panel(index),
                steps,
                groups: job.matrix.groups(index),
            };
            let sums = &mut sums[..block.len()];
            if let [sums] = sums {
                panel.row::<S, F>(simd, sums);
            } else {
                sums.fill([F::Slot::default(); WIDEST]);
                panel.rows::<S, F>(simd, sums);
            }
            for (row, sums) in block.clone().zip(sums) {
                finish::<S, F>(simd, job, (row, index), sums);
            }
        }
    }
}

/// A row's outputs of a panel: scale, bias, and what comes then.
#[inline(always)]
fn finish<S: Simd, F: Format<S>>(
    simd: S,
    job: &Job<'_, F::Cell>,
    (row, panel): (usize, usize),
    sums: &[F::Slot; WIDEST],
) {
    let Job { matrix, scales, then, out, .. } = job;
    let first = panel * F::GROUPS * LANES;
    let width = (F::GROUPS * LANES).min(matrix.outputs - first);
    let mut numbers = [0f32; WIDEST];
    let numbers = &mut numbers[..width];
    let outputs = numbers.iter_mut().zip(sums).zip(&matrix.bias[first..][..width]);
    if let Some(row_scale) = scales.get(row) {
        let each = matrix.scales[first..][..width].iter().zip(&matrix.sums[first..][..width]);
        for (((number, &sum), bias), (scale, &weights)) in outputs.zip(each) {
            // not fused: every instruction set gives the same bits
            *number = F::value(sum, Some((weights, row_scale * scale))) + bias;
        }
    } else {
        for ((number, &sum), bias) in outputs {
            *number = F::value(sum, None) + bias;
        }
    }
    match then {
        Epilogue::None => {}
        Epilogue::Gelu => rowwise::gelu_body(simd, numbers),
        Epilogue::GeluTanh => rowwise::gelu_tanh_body(simd, numbers),
        Epilogue::Silu => rowwise::silu_body(simd, numbers),
        Epilogue::Relu => rowwise::relu(numbers),
    }
    // SAFETY: a panel belongs to one task, and a task finishes each row of it once.
    unsafe { out.part(row * matrix.outputs + first, width) }.copy_from_slice(numbers);
}

/// Some rows and a panel of weights.
struct Panel<'a, C> {
    /// (rows, steps)
    x: &'a [C],
    /// (steps, groups, GROUP) bytes
    weights: &'a [u8],
    steps: usize,
    groups: usize,
}

/// Some rows of a panel's work, and what to ask for meanwhile.
#[derive(Clone, Copy)]
struct Slice {
    row: usize,
    group: usize,
    start: usize,
    end: usize,
    next: Next,
}

/// What comes next: of the next slice, each tile of this one asks for its part, so that memory is as busy under the last tile as
/// under the first.
#[derive(Clone, Copy)]
struct Next {
    /// How far ahead it lies, in bytes.
    ahead: usize,
    /// Which tile this is, and of how many.
    tile: usize,
    tiles: usize,
}

impl<C: Copy> Panel<'_, C> {
    /// One row against all groups, in one stream.
    #[inline(always)]
    fn row<S: Simd, F: Format<S, Cell = C>>(&self, simd: S, sums: &mut [F::Slot; WIDEST]) {
        *sums = [F::Slot::default(); WIDEST];
        let sums = std::slice::from_mut(sums);
        let next = Next { ahead: AHEAD, tile: 0, tiles: 1 };
        let all = Slice { row: 0, group: 0, start: 0, end: self.steps, next };
        match self.groups {
            1 => self.tile::<S, F, 1, 1>(simd, all, sums),
            2 => self.tile::<S, F, 1, 2>(simd, all, sums),
            3 => self.tile::<S, F, 1, 3>(simd, all, sums),
            _ => self.tile::<S, F, 1, 4>(simd, all, sums),
        }
    }

    /// Several rows, slice by slice.
    #[inline(always)]
    fn rows<S: Simd, F: Format<S, Cell = C>>(&self, simd: S, sums: &mut [[F::Slot; WIDEST]]) {
        // two rows take two groups at a time, for enough chains side by side
        let wide = if sums.len() == 2 { 2 } else { F::ACROSS };
        for start in (0..self.steps).step_by(SLICE) {
            let end = self.steps.min(start + SLICE);
            for group in (0..self.groups).step_by(wide) {
                let last = group + wide >= self.groups;
                // the slice beside this one, or the first one of the next steps, or of the next panel
                let ahead = if last { ((end - start) * self.groups - group) * F::GROUP } else { wide * F::GROUP };
                let both = wide == 2 && group + 1 < self.groups;
                let (mut row, tiles) = (0, sums.len().div_ceil(F::TILE));
                // one tile that has the whole panel reads it as one stream
                let ahead = if tiles == 1 && wide >= self.groups { AHEAD } else { ahead };
                for (tile, rows) in split(sums.len(), F::TILE).enumerate() {
                    let slice = Slice { row, group, start, end, next: Next { ahead, tile, tiles } };
                    self.some_rows::<S, F>(simd, (rows, both), slice, &mut sums[row..]);
                    row += rows;
                }
            }
        }
    }

    #[inline(always)]
    fn some_rows<S: Simd, F: Format<S, Cell = C>>(
        &self,
        simd: S,
        shape: (usize, bool),
        slice: Slice,
        sums: &mut [[F::Slot; WIDEST]],
    ) {
        // one tile for each number of rows and groups that may come, compiled for itself
        macro_rules! tile {
            ($($rows:literal)*) => {
                match shape {
                    $(($rows, false) if $rows <= F::TILE => self.tile::<S, F, $rows, 1>(simd, slice, sums),
                    ($rows, true) if $rows <= F::TILE && (F::ACROSS == 2 || $rows == 2) => {
                        self.tile::<S, F, $rows, 2>(simd, slice, sums);
                    })*
                    (rows, _) => unreachable!("a tile of {rows} rows"),
                }
            };
        }
        tile!(1 2 3 4 5 6 7 8);
    }

    /// `R` rows times `G` groups: R · G · 16 chains side by side, continued over a slice's steps.
    #[inline(always)]
    fn tile<S: Simd, F: Format<S, Cell = C>, const R: usize, const G: usize>(
        &self,
        simd: S,
        slice: Slice,
        sums: &mut [[F::Slot; WIDEST]],
    ) {
        let Slice { row, group, start, end, next } = slice;
        let stride = self.groups * F::GROUP;
        assert!(end <= self.steps && group + G <= self.groups && self.groups * LANES <= WIDEST);
        assert!(self.weights.len() >= self.steps * stride && sums.len() >= R);
        let xs: [&[C]; R] = std::array::from_fn(|r| &self.x[(row + r) * self.steps..][..self.steps]);
        let slots: [*mut F::Slot; R] = std::array::from_fn(|r| sums[r][group * LANES..].as_mut_ptr());
        // loops, not closures: a closure that is not inlined is not compiled for the instruction set
        let mut chains = [[F::zero(simd); G]; R];
        for (chains, &slots) in chains.iter_mut().zip(&slots) {
            for (index, chain) in chains.iter_mut().enumerate() {
                // SAFETY: a row of sums has WIDEST slots, of which groups up to group + G are within, as checked.
                *chain = unsafe { F::load(simd, slots.wrapping_add(index * LANES)) };
            }
        }
        let mut at = self.weights.as_ptr().wrapping_add(start * stride + group * F::GROUP);
        // of what comes next, each tile asks for its part, and for a step of it in as many steps as there are tiles
        let Next { ahead, tile, tiles } = next;
        let mut part = at.wrapping_add(ahead + (end - start) * tile / tiles * stride);
        let mut step = start;
        while step < end {
            for line in (0..G * F::GROUP).step_by(LINE) {
                simd.prefetch(part.wrapping_add(line));
            }
            part = part.wrapping_add(stride);
            let stop = end.min(step + tiles);
            while step < stop {
                for g in 0..G {
                    // SAFETY: step < steps and group + g < groups, so the group's bytes lie within the panel, as checked.
                    let weights = unsafe { F::weights(simd, at.wrapping_add(g * F::GROUP)) };
                    for (chains, x) in chains.iter_mut().zip(&xs) {
                        // SAFETY: every row has `steps` cells.
                        let x = F::spread(simd, *unsafe { x.get_unchecked(step) });
                        chains[g] = F::madd(simd, x, weights, chains[g]);
                    }
                }
                at = at.wrapping_add(stride);
                step += 1;
            }
        }
        for (chains, slots) in chains.iter().zip(slots) {
            for (index, &chain) in chains.iter().enumerate() {
                // SAFETY: as for the loads.
                unsafe { F::store(simd, chain, slots.wrapping_add(index * LANES)) };
            }
        }
    }
}

/// Rows in tiles of at most `most`, as equal as can be: a tile of one row may cost as much as one of three.
fn split(rows: usize, most: usize) -> impl Iterator<Item = usize> {
    let tiles = rows.div_ceil(most);
    (0..tiles).map(move |tile| rows / tiles + usize::from(tile < rows % tiles))
}
