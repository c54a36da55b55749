//! int8 quantization of input rows.

use crate::kernels::{Compute, rowwise};

/// Quantized input rows of an int8 product. The memory is reused between steps.
#[derive(Default)]
pub struct QuantizedRows {
    /// (rows, width/4), padded with zeros
    pub(in crate::kernels) cells: Vec<[i8; 4]>,
    /// Scale of each row: (rows)
    pub(in crate::kernels) scales: Vec<f32>,
}

impl QuantizedRows {
    /// Quantizes rows of floats, (rows, width).
    pub(in crate::kernels) fn fill(&mut self, compute: &Compute, x: &[f32], width: usize) {
        let rows = x.len() / width;
        let cells = width.div_ceil(4);
        self.scales.resize(rows, 0.0);
        self.cells.resize(rows * cells, [0; 4]);
        let rows = x.chunks_exact(width).zip(self.cells.chunks_exact_mut(cells)).zip(&mut self.scales);
        for ((x, cells), scale) in rows {
            *scale = rowwise::quantize(compute.isa, x, cells);
        }
    }
}
