//! int8 and int4 products of several rows on AMX tiles: the sums of up to 32 rows × 32 outputs stay in four tiles. Tiles are
//! loaded from the same packed weights as vectors; int4 weights are expanded to that layout. Integer sums are exact.

use crate::isa::{ActiveTiles, Simd, TILE_BYTES, TILE_ROWS, TileShape, Tiles, multiversion};
use crate::linear::product::{MAX_WIDTH, ProductJob, finish};
use crate::linear::weights::{self, Int8Weights};
use crate::memory::Aligned;
use std::{arch::asm, cell::RefCell, ops::Range};

/// Minimum rows. The product of one row with weights from memory is a little faster with vectors.
pub(super) const MIN_ROWS: usize = 2;

/// Minimum rows of an int4 product, whose weights must be expanded.
pub(super) const MIN_INT4_ROWS: usize = 8;

/// Bytes of a cell: four inputs of a row, or of an output.
const CELL: usize = 4;

const STEPS: usize = TILE_BYTES / CELL;

/// Rows of two tiles, which are multiplied together.
const PAIR: usize = 2 * TILE_ROWS;

/// Bytes of a group of sixteen outputs in a step.
const GROUP: usize = 64;

/// Prefetch distance in a panel, in bytes.
const TILES_AHEAD: usize = 6144;

/// Groups of a full panel.
const GROUPS: usize = 2;

/// Sums of a pair of row tiles and a panel, whose rows start at cache lines.
type PairSums = Aligned<[[i32; MAX_WIDTH]; PAIR]>;

multiversion! {
    /// Multiplies all rows with the weights of `panels`.
    pub(super) fn multiply_int8(tiles: Tiles, job: &ProductJob<'_, [i8; 4]>, panels: Range<usize>) = multiply
}

#[inline(always)]
fn multiply<S: Simd>(simd: S, tiles: Tiles, job: &ProductJob<'_, [i8; 4]>, panels: Range<usize>) {
    let rows = job.x.len() / job.stride;
    let mut sums = Aligned([[0; MAX_WIDTH]; PAIR]);
    for first in (0..rows).step_by(PAIR) {
        let pair = PAIR.min(rows - first);
        let x = &job.x[first * job.stride..(first + pair) * job.stride];
        let shaped = ShapedTiles::new(tiles, pair);
        // the rows stay in the nearest cache, and the panels of a task in the second level
        for index in panels.clone() {
            shaped.multiply(x, job.stride, job.matrix.panel(index), job.matrix.groups(index), &mut sums);
            for (row, sums) in sums.0[..pair].iter().enumerate() {
                finish::<S, Int8Weights>(simd, job, first + row, index, sums, 0);
            }
        }
    }
}

multiversion! {
    /// Multiplies all rows with the int4 weights of `panels`.
    pub(super) fn multiply_int4(tiles: Tiles, job: &ProductJob<'_, [i8; 4]>, panels: Range<usize>) = multiply_expanded
}

thread_local! {
    /// The int8 weights of a panel, and room to begin them at a cache line.
    static EXPANDED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

#[inline(always)]
fn multiply_expanded<S: Simd>(simd: S, tiles: Tiles, job: &ProductJob<'_, [i8; 4]>, panels: Range<usize>) {
    let mut buffer = EXPANDED.take();
    buffer.resize(job.matrix.steps * weights::CELLS * GROUPS * GROUP + GROUP, 0);
    // tiles and vectors are slow if their rows straddle cache lines
    let aligned = buffer.as_ptr().align_offset(GROUP);
    let rows = job.x.len() / job.stride;
    let mut sums = Aligned([[0; MAX_WIDTH]; PAIR]);
    let mut shaped = ShapedTiles::new(tiles, rows.min(PAIR));
    for index in panels {
        let groups = job.matrix.groups(index);
        let weights = &mut buffer[aligned..][..job.matrix.steps * weights::CELLS * groups * GROUP];
        weights::expand(simd, job.matrix.panel(index), groups, weights);
        for first in (0..rows).step_by(PAIR) {
            let pair = PAIR.min(rows - first);
            if shaped.rows != pair {
                // dropping releases the tiles, so it comes before the next shape
                drop(shaped);
                shaped = ShapedTiles::new(tiles, pair);
            }
            let x = &job.x[first * job.stride..(first + pair) * job.stride];
            shaped.multiply(x, job.stride, weights, groups, &mut sums);
            for (row, sums) in sums.0[..pair].iter().enumerate() {
                finish::<S, Int8Weights>(simd, job, first + row, index, sums, 0);
            }
        }
    }
    EXPANDED.set(buffer);
}

/// Tiles that are shaped for a number of rows from 1 to [`PAIR`].
struct ShapedTiles {
    rows: usize,
    _active: ActiveTiles,
}

impl ShapedTiles {
    /// Shapes the tiles: two of sums for each tile of rows, the tiles of rows, and two of weights.
    fn new(tiles: Tiles, rows: usize) -> Self {
        assert!((1..=PAIR).contains(&rows));
        let upper = rows.min(TILE_ROWS) as u8;
        let lower = rows.saturating_sub(TILE_ROWS) as u8;
        let all = TILE_ROWS as u8;
        let shapes = [upper, upper, lower, lower, upper, lower, all, all].map(TileShape::full);
        Self { rows, _active: ActiveTiles::new(tiles, shapes) }
    }

    /// Sets `sums` to the products of the rows, (rows, stride), and a panel, (steps, groups, [`GROUP`]).
    fn multiply(&self, x: &[[i8; CELL]], stride: usize, weights: &[u8], groups: usize, sums: &mut PairSums) {
        let rows = self.rows;
        assert!((1..=GROUPS).contains(&groups));
        let whole = weights.len() / (STEPS * groups * GROUP);
        let rest = &weights[whole * STEPS * groups * GROUP..];
        let needed = (whole + usize::from(!rest.is_empty())) * STEPS;
        assert!(x.len() == rows * stride && stride >= needed);
        if whole > 0 {
            let part = Part { x: x.as_ptr(), stride, weights: weights.as_ptr(), tiles: whole };
            // SAFETY: the tiles are shaped for these rows, and each row and the panel have `whole` tiles, as checked.
            unsafe { part.multiply(rows, groups, false, sums) };
        }
        if !rest.is_empty() {
            // the cells of a row are padded with zeros, its weights are not
            let mut padded = [0; STEPS * GROUPS * GROUP];
            padded[..rest.len()].copy_from_slice(rest);
            let part = Part { x: x[whole * STEPS..].as_ptr(), stride, weights: padded.as_ptr(), tiles: 1 };
            // SAFETY: the tiles are shaped for these rows. Each row has one more tile, as checked, and so has `padded`.
            unsafe { part.multiply(rows, groups, whole > 0, sums) };
        }
    }
}

/// Steps of rows and of a panel, in whole tiles.
struct Part {
    /// First cell of the first row.
    x: *const [i8; CELL],
    /// Cells from the start of a row to the start of the next.
    stride: usize,
    /// First step of the panel.
    weights: *const u8,
    /// Tiles along the steps, at least one.
    tiles: usize,
}

/// Prefetches a tile of a panel's steps.
macro_rules! prefetch {
    (1) => {
        lines!(0 64 128 192 256 320 384 448 512 576 640 704 768 832 896 960)
    };
    (2) => {
        concat!(prefetch!(1), lines!(1024 1088 1152 1216 1280 1344 1408 1472 1536 1600 1664 1728 1792 1856 1920 1984))
    };
}

/// Prefetches lines of the panel.
macro_rules! lines {
    ($($line:literal)*) => { concat!($("prefetcht0 [{weights} + {ahead} + ", $line, "]\n"),*) };
}

/// Assembly of one shape: `$lower` for the second tile of rows, `$right` for the second group, `$corner` for both.
macro_rules! assembly {
    ($part:ident, $groups:tt, $continued:ident, $sums:ident; $lower:literal $right:literal $corner:literal) => {
        asm!(
            "test {continued:e}, {continued:e}",
            "jnz 2f",
            "tilezero tmm0",
            concat!($right, "tilezero tmm1"),
            concat!($lower, "tilezero tmm2"),
            concat!($corner, "tilezero tmm3"),
            "jmp 3f",
            "2:",
            "tileloadd tmm0, [{upper} + {sum_stride}]",
            concat!($right, "tileloadd tmm1, [{upper} + {sum_stride} + 64]"),
            concat!($lower, "tileloadd tmm2, [{lower} + {sum_stride}]"),
            concat!($corner, "tileloadd tmm3, [{lower} + {sum_stride} + 64]"),
            "3:",
            "tileloadd tmm4, [{x} + {x_stride}]",
            "tileloadd tmm6, [{weights} + {weight_stride}]",
            "tdpbssd tmm0, tmm4, tmm6",
            concat!($lower, "tileloadd tmm5, [{lower_x} + {x_stride}]"),
            concat!($lower, "tdpbssd tmm2, tmm5, tmm6"),
            concat!($right, "tileloadd tmm7, [{weights} + {weight_stride} + 64]"),
            concat!($right, "tdpbssd tmm1, tmm4, tmm7"),
            concat!($corner, "tdpbssd tmm3, tmm5, tmm7"),
            prefetch!($groups),
            "add {x}, 64",
            "add {lower_x}, 64",
            "add {weights}, {tile_bytes}",
            "dec {tiles}",
            "jnz 3b",
            "tilestored [{upper} + {sum_stride}], tmm0",
            concat!($right, "tilestored [{upper} + {sum_stride} + 64], tmm1"),
            concat!($lower, "tilestored [{lower} + {sum_stride}], tmm2"),
            concat!($corner, "tilestored [{lower} + {sum_stride} + 64], tmm3"),
            continued = in(reg) u32::from($continued),
            upper = in(reg) $sums,
            lower = in(reg) $sums.wrapping_add(TILE_ROWS),
            sum_stride = in(reg) MAX_WIDTH * size_of::<i32>(),
            x = inout(reg) $part.x => _,
            lower_x = inout(reg) $part.x.wrapping_add(TILE_ROWS * $part.stride) => _,
            x_stride = in(reg) $part.stride * CELL,
            weights = inout(reg) $part.weights => _,
            weight_stride = in(reg) $groups * GROUP,
            ahead = const TILES_AHEAD,
            tile_bytes = const STEPS * $groups * GROUP,
            tiles = inout(reg) $part.tiles => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
}

impl Part {
    /// Sets `sums` to the products of `rows` rows and `groups` groups, or adds them if `continued`.
    ///
    /// # Safety
    /// `x` has `rows` rows of at least as many steps as `tiles` tiles have, `weights` as many steps of `groups` groups, and the tiles
    /// are shaped for `rows` rows, from 1 to [`PAIR`].
    unsafe fn multiply(self, rows: usize, groups: usize, continued: bool, sums: &mut PairSums) {
        let part = self;
        let sums = sums.0.as_mut_ptr();
        // `#` turns an instruction for a tile that the shape lacks into a comment
        match (rows > TILE_ROWS, groups == GROUPS) {
            // SAFETY: the caller guarantees the lengths, and `sums` has a row for each row.
            (false, false) => unsafe { assembly!(part, 1, continued, sums; "#" "#" "#") },
            // SAFETY: as above.
            (false, true) => unsafe { assembly!(part, 2, continued, sums; "#" "" "#") },
            // SAFETY: as above.
            (true, false) => unsafe { assembly!(part, 1, continued, sums; "" "#" "#") },
            // SAFETY: as above.
            (true, true) => unsafe { assembly!(part, 2, continued, sums; "" "" "") },
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::linear::{Epilogue, Linear, WeightArena};
    use crate::testing::{apply, computes, numbers, packed};
    use crate::{Dtype, Isa};

    /// Rows that fill no tile, one, two and more; steps that fill no tile, whole tiles, and leave a rest; one group, a whole panel,
    /// and a panel with one group after others.
    #[test]
    fn every_shape_has_the_bits_of_the_portable_kernel() {
        let computes = computes(2);
        let portable = computes.iter().find(|compute| compute.isa == Isa::portable()).unwrap();
        for inputs in [1, 4, 61, 64, 65, 128, 190, 260] {
            for outputs in [1, 16, 17, 32, 33, 48, 100] {
                let weight = numbers(3, outputs * inputs);
                let bias = numbers(4, outputs);
                let pack = |dtype| Linear::pack(&WeightArena::new(dtype), &weight, &bias, outputs, inputs).unwrap();
                let linears = [pack(Dtype::Int8), pack(Dtype::Int4)];
                for rows in [1, 2, 3, 5, 15, 16, 17, 31, 32, 33, 47, 64, 70] {
                    let x = numbers(rows as u32, rows * inputs);
                    for (linear, epilogue) in
                        linears.iter().flat_map(|linear| [(linear, Epilogue::None), (linear, Epilogue::Relu)])
                    {
                        let expected = apply(linear, portable, &x, epilogue);
                        for compute in &computes {
                            let name = compute.isa.name();
                            let out = apply(linear, compute, &x, epilogue);
                            let dtype = linear.dtype;
                            assert!(
                                out == expected,
                                "{name}, {dtype:?}: {rows} rows, {inputs} -> {outputs}, {epilogue:?}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn rows_of_zeros_give_zeros_and_rows_with_infinities_give_nan() {
        let rows = 20;
        let inputs = 100;
        let outputs = 40;
        let mut x = numbers(2, rows * inputs);
        x[..inputs].fill(0.0);
        x[5 * inputs + 3] = f32::INFINITY;
        let computes = computes(1);
        for (dtype, compute) in
            [Dtype::Int8, Dtype::Int4].iter().flat_map(|dtype| computes.iter().map(move |c| (*dtype, c)))
        {
            let out = apply(&packed(dtype, &numbers(1, inputs * outputs), inputs), compute, &x, Epilogue::None);
            assert!(out[..outputs].iter().all(|&x| x == 0.0), "{dtype:?}, {}", compute.isa.name());
            for (row, out) in out.chunks_exact(outputs).enumerate() {
                assert_eq!(out.iter().all(|x| x.is_nan()), row == 5, "{dtype:?}, {}", compute.isa.name());
            }
        }
    }
}
