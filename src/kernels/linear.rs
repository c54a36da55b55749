//! Packed matrices: y = W·x + b for one row or many, with one order of summation.
//!
//! Layout: panels of sixteen outputs, (outputs/16, inputs, 16), so that one row's product reads memory as one sequential
//! stream. Each output is one chain of multiply-adds over the inputs in order, whatever the tile it is computed in; tiles
//! only decide how many such chains run side by side.

use super::{
    Isa, LANES, Lane, Pool,
    isa::{Simd, WIDTH, multiversion},
    shared::Shared,
};

/// Multiply-adds below which waking other threads costs more than it brings.
const WORTH_SHARING: usize = 1 << 16;
/// Rows of the largest register tile: 6 × 16 outputs fill twelve of sixteen vector registers.
const TILE_ROWS: usize = 6;

/// A weight matrix, packed, with its bias.
pub struct Linear {
    inputs: usize,
    outputs: usize,
    /// (panels, inputs) lanes of 16 outputs; the last panel is filled up with zeros.
    panels: Vec<Lane>,
    /// (panels) lanes.
    bias: Vec<Lane>,
}

impl Linear {
    /// Packs `weight`, (outputs, inputs) row-major, and `bias`, (outputs) or empty for none.
    ///
    /// # Panics
    /// If the lengths do not fit; the checkpoint reader has checked shapes.
    pub fn new(weight: &[f32], bias: &[f32], outputs: usize, inputs: usize) -> Self {
        assert_eq!(weight.len(), outputs * inputs);
        assert!(bias.is_empty() || bias.len() == outputs);
        let count = outputs.div_ceil(LANES);
        let mut panels = vec![Lane::default(); count * inputs];
        for output in 0..outputs {
            let (panel, lane) = (output / LANES, output % LANES);
            for input in 0..inputs {
                panels[panel * inputs + input].0[lane] = weight[output * inputs + input];
            }
        }
        let mut packed_bias = vec![Lane::default(); count];
        for (output, &value) in bias.iter().enumerate() {
            packed_bias[output / LANES].0[output % LANES] = value;
        }
        Self { inputs, outputs, panels, bias: packed_bias }
    }

    /// Numbers in a row of the input.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Numbers in a row of the output.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Bytes that a product reads of it, the last panel's zeros included.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.panels) + size_of_val(&*self.bias)
    }

    /// `out` (rows, outputs) = `x` (rows, inputs) · Wᵀ + b.
    ///
    /// # Panics
    /// If the lengths are not those of the same number of rows.
    pub fn apply(&self, isa: Isa, pool: &Pool, x: &[f32], out: &mut [f32]) {
        let rows = x.len() / self.inputs;
        assert_eq!(x.len(), rows * self.inputs);
        assert_eq!(out.len(), rows * self.outputs);
        let panels = self.bias.len();
        let shared = Shared::new(out);
        let work = rows * self.panels.len() * LANES;
        // a task is a group of panels for all rows: no two tasks write the same output
        let tasks = if work < WORTH_SHARING { 1 } else { (pool.threads() * 4).min(panels) };
        let group = panels.div_ceil(tasks.max(1)).next_multiple_of(4);
        pool.run(panels.div_ceil(group), &|task| {
            let range = task * group..((task + 1) * group).min(panels);
            product(isa, self, x, range, &shared);
        });
    }
}

multiversion! {
    fn product(matrix: &Linear, x: &[f32], panels: std::ops::Range<usize>, out: &Shared<'_>) = product_body
}

#[inline(always)]
fn product_body<S: Simd>(simd: S, matrix: &Linear, x: &[f32], panels: std::ops::Range<usize>, out: &Shared<'_>) {
    let job = Job { simd, matrix, x, out };
    let rows = x.len() / matrix.inputs;
    let mut row = 0;
    // Full tiles go panel by panel, so that a panel stays in the nearest cache while all rows pass it.
    let full = rows / TILE_ROWS * TILE_ROWS;
    if full > 0 {
        for panel in panels.clone() {
            for row in (0..full).step_by(TILE_ROWS) {
                job.tile::<6, 1>(row, panel);
            }
        }
        row = full;
    }
    match rows - row {
        1 => job.sweep::<1, 4>(row, panels),
        2 => job.sweep::<2, 2>(row, panels),
        3 => job.sweep::<3, 2>(row, panels),
        4 => job.sweep::<4, 1>(row, panels),
        5 => job.sweep::<5, 1>(row, panels),
        _ => {}
    }
}

/// What all tiles of a task share.
struct Job<'a, S> {
    simd: S,
    matrix: &'a Linear,
    x: &'a [f32],
    out: &'a Shared<'a>,
}

impl<S: Simd> Job<'_, S> {
    /// `R` rows against all panels of a range, `P` at a time.
    #[inline(always)]
    fn sweep<const R: usize, const P: usize>(&self, row: usize, panels: std::ops::Range<usize>) {
        let mut panel = panels.start;
        while panel + P <= panels.end {
            self.tile::<R, P>(row, panel);
            panel += P;
        }
        while panel < panels.end {
            self.tile::<R, 1>(row, panel);
            panel += 1;
        }
    }

    /// `R` rows times `P` panels: R · P · 16 outputs, each its own chain over the inputs in order.
    #[inline(always)]
    fn tile<const R: usize, const P: usize>(&self, row: usize, panel: usize) {
        let (simd, matrix, inputs) = (self.simd, self.matrix, self.matrix.inputs);
        let xs: [&[f32]; R] = std::array::from_fn(|r| &self.x[(row + r) * inputs..][..inputs]);
        let ws: [&[Lane]; P] = std::array::from_fn(|p| &matrix.panels[(panel + p) * inputs..][..inputs]);
        let mut sums = [[[simd.splat(0.0); 2]; P]; R];
        for k in 0..inputs {
            for p in 0..P {
                let weights = &ws[p][k].0;
                let (low, high) = (simd.load(&weights[..WIDTH]), simd.load(&weights[WIDTH..]));
                for r in 0..R {
                    let factor = simd.splat(xs[r][k]);
                    sums[r][p] = [simd.madd(factor, low, sums[r][p][0]), simd.madd(factor, high, sums[r][p][1])];
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (p, &[low, high]) in sums.iter().enumerate() {
                let mut outputs = [0f32; LANES];
                simd.store(low, &mut outputs);
                simd.store(high, &mut outputs[WIDTH..]);
                self.write(row + r, panel + p, &outputs);
            }
        }
    }

    /// A row's outputs of a panel, with the bias.
    #[inline(always)]
    fn write(&self, row: usize, panel: usize, sums: &[f32; LANES]) {
        let first = panel * LANES;
        let width = LANES.min(self.matrix.outputs - first);
        // SAFETY: a panel belongs to one task, and a task visits each row of it once.
        let target = unsafe { self.out.part(row * self.matrix.outputs + first, width) };
        for (lane, target) in target.iter_mut().enumerate() {
            *target = sums[lane] + self.matrix.bias[panel].0[lane];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The naive twin, in f64.
    fn naive(weight: &[f32], bias: &[f32], x: &[f32], outputs: usize, inputs: usize) -> Vec<f64> {
        let rows = x.len() / inputs;
        let mut out = Vec::new();
        for row in 0..rows {
            for output in 0..outputs {
                let products =
                    (0..inputs).map(|k| f64::from(weight[output * inputs + k]) * f64::from(x[row * inputs + k]));
                out.push(products.sum::<f64>() + bias.get(output).map_or(0.0, |&b| f64::from(b)));
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

    proptest! {
        #[test]
        fn agrees_with_the_naive_twin(rows in 1usize..15, outputs in 1usize..150, inputs in 1usize..70, seed: u32) {
            let (weight, bias, x) =
                (numbers(seed, outputs * inputs), numbers(seed ^ 1, outputs), numbers(seed ^ 2, rows * inputs));
            let linear = Linear::new(&weight, &bias, outputs, inputs);
            let expected = naive(&weight, &bias, &x, outputs, inputs);
            let pool = Pool::new(2);
            for isa in [Isa::detect(), Isa::portable()] {
                let mut out = vec![f32::NAN; rows * outputs];
                linear.apply(isa, &pool, &x, &mut out);
                for (got, want) in out.iter().zip(&expected) {
                    prop_assert!((f64::from(*got) - want).abs() < 1e-4, "{} {}", got, want);
                }
            }
        }

        #[test]
        fn a_row_alone_has_the_bits_it_has_in_company(rows in 1usize..40, outputs in 1usize..200, seed: u32) {
            let inputs = 333;
            let (weight, x) = (numbers(seed, outputs * inputs), numbers(seed ^ 2, rows * inputs));
            let linear = Linear::new(&weight, &[], outputs, inputs);
            for isa in [Isa::detect(), Isa::portable()] {
                let mut together = vec![0.0; rows * outputs];
                linear.apply(isa, &Pool::new(2), &x, &mut together);
                for row in 0..rows {
                    let mut alone = vec![0.0; outputs];
                    linear.apply(isa, &Pool::new(1), &x[row * inputs..(row + 1) * inputs], &mut alone);
                    prop_assert_eq!(&alone[..], &together[row * outputs..(row + 1) * outputs]);
                }
            }
        }
    }
}
