//! Rows of activations in int8.

use super::int4::{CELLS, Int4Cell};
use crate::kernels::{Compute, disjoint::DisjointSlice, rowwise};

/// Cells of a line.
const LINE_CELLS: usize = 16;
/// Rows of a task.
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
    pub(in crate::kernels) fn fill(&mut self, compute: &Compute, x: &[f32], width: usize) {
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
    pub(in crate::kernels) fn all(&self) -> &[[i8; 4]] {
        // SAFETY: a line is its cells, without padding.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.lines.len() * LINE_CELLS) }
    }

    /// Returns the cells from the start of a row to that of the next, a multiple of sixteen. The first row starts at a cache line.
    pub(in crate::kernels) fn stride(&self) -> usize {
        self.cells.next_multiple_of(LINE_CELLS)
    }

    /// Returns the cells of a row, or none if there is no such row.
    pub(in crate::kernels) fn row(&self, row: usize) -> &[[i8; 4]] {
        self.all().get(row * self.stride()..).and_then(|rest| rest.get(..self.cells)).unwrap_or(&[])
    }

    /// Returns the scale of each row.
    pub(in crate::kernels) fn scales(&self) -> &[f32] {
        &self.scales
    }
}

/// Calls `body` with each row, on several threads if the rows of `width` numbers are large enough. A row belongs to one task.
fn share(compute: &Compute, rows: usize, width: usize, body: &(dyn Fn(usize) + Sync)) {
    let run_task = |task: usize| (task * TASK_ROWS..rows.min((task + 1) * TASK_ROWS)).for_each(body);
    let tasks = rows.div_ceil(TASK_ROWS);
    if rows * width < MIN_SHARED { (0..tasks).for_each(run_task) } else { compute.pool.run(tasks, &run_task) }
}

/// Returns the cells of lines.
fn cells_mut(lines: &mut [CellLine]) -> &mut [[i8; 4]] {
    // SAFETY: a line is its cells, without padding; exclusive because the borrow is.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * LINE_CELLS) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{computes, numbers};

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
