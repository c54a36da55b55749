//! Rows of floats as rows of bytes, each with its scale.

use crate::kernels::{Compute, rowwise};

/// Working memory of products with bytes, kept between steps.
#[derive(Default)]
pub struct QuantizedRows {
    /// (rows, width/4), filled up to whole cells with zeros
    cells: Vec<[i8; 4]>,
    /// (rows): what each row's numbers were divided by
    scales: Vec<f32>,
}

impl QuantizedRows {
    /// Takes rows of floats, (rows, width).
    pub(in crate::kernels) fn fill(&mut self, compute: &Compute, x: &[f32], width: usize) {
        let (rows, cells) = (x.len() / width, width.div_ceil(4));
        self.scales.resize(rows, 0.0);
        self.cells.resize(rows * cells, [0; 4]);
        let rows = x.chunks_exact(width).zip(self.cells.chunks_exact_mut(cells)).zip(&mut self.scales);
        for ((x, cells), scale) in rows {
            *scale = rowwise::quantize(compute.isa, x, cells);
        }
    }

    /// All rows' bytes, (rows, width/4).
    pub(in crate::kernels) fn cells(&self) -> &[[i8; 4]] {
        &self.cells
    }

    /// All rows' scales.
    pub(in crate::kernels) fn scales(&self) -> &[f32] {
        &self.scales
    }
}
