//! The Mamba-2 mixer (Dao and Gu 2024, arXiv 2405.21060): a gated state space recurrence with a short convolution before it.
//!
//! Read from state-spaces/mamba at commit a6a1dae, `mamba_ssm/modules/mamba2.py`, with one group of B and C, biases only in the
//! convolution, and the gate before the norm. Positions of a sequence run one after another, so a prefill and single steps
//! give the same bits.

use super::sized;
use crate::kernels::{
    Compute,
    linear::{Epilogue, Linear, QuantizedRows},
    rowwise::{RmsNorm, rms_norm},
    ssm::{HEAD, ScanInput, ScanRun, Taps, convolve, scan},
};

/// Weights of a mixer. D = width, H = heads of 64, E = 64·H, N = columns of a head's state, W = taps, C = E + 2·N channels.
pub struct Mamba2 {
    /// (E, D)
    pub gate: Linear,
    /// x, B, C and the step sizes: (C + H, D).
    pub input: Linear,
    /// Convolution of x, B and C: (W, C).
    pub taps: Taps,
    /// Added to the step sizes before softplus: (H).
    pub step_bias: Vec<f32>,
    /// −exp(A_log), the rate at which a state changes per unit of step size: (H).
    pub rates: Vec<f32>,
    /// Factor with which x is added to the output: (H).
    pub skip: Vec<f32>,
    /// Norm of the gated output: (E).
    pub norm: RmsNorm,
    /// (D, E)
    pub output: Linear,
}

/// Consecutive positions of one sequence, and the memory of its recurrent layers.
pub struct RecurrentRun<'a> {
    /// The states of all recurrent layers of the stack, in order.
    pub memory: &'a mut [f32],
    /// First of these positions among those of all sequences.
    pub first: usize,
    /// Number of positions.
    pub count: usize,
}

/// Buffers of a pass, kept between steps.
#[derive(Default)]
pub struct Mamba2Work {
    /// Quantized inputs of matrix products.
    quantized: QuantizedRows,
    /// (positions, E)
    gate: Vec<f32>,
    /// (positions, C + H)
    input: Vec<f32>,
    /// Each sequence's inputs of the convolution with the W − 1 before them.
    windows: Vec<f32>,
    /// Start of each position's W inputs in `windows`.
    starts: Vec<usize>,
    /// (positions, C)
    convolved: Vec<f32>,
    /// (positions, H)
    steps: Vec<f32>,
    /// (positions, H)
    decays: Vec<f32>,
    /// (positions, E)
    mixed: Vec<f32>,
    /// (positions, E)
    normed: Vec<f32>,
}

impl Mamba2 {
    /// Returns the numbers of one sequence's state: the last W − 1 inputs of the convolution, (W − 1, C), then the recurrent
    /// state, (H, N, 64).
    pub fn state_len(&self) -> usize {
        self.history_len() + self.rates.len() * self.columns() * HEAD
    }

    /// Returns the multiply-adds of the convolution and the recurrence for one position.
    pub fn recurrence_multiply_adds(&self) -> usize {
        self.taps.weight.len() + 3 * self.rates.len() * self.columns() * HEAD
    }

    fn channels(&self) -> usize {
        self.taps.bias.len()
    }

    fn columns(&self) -> usize {
        (self.channels() - self.gate.outputs()) / 2
    }

    fn history_len(&self) -> usize {
        (self.taps.count() - 1) * self.channels()
    }

    /// Writes the mixer's output for `x`, (positions, D), to `out`, (positions, D), and advances the states, which begin at
    /// `offset` in each run's memory.
    pub fn forward(
        &self,
        compute: &Compute,
        x: &[f32],
        runs: &mut [RecurrentRun<'_>],
        offset: usize,
        work: &mut Mamba2Work,
        out: &mut [f32],
    ) {
        let positions = x.len() / self.gate.inputs();
        let inner = self.gate.outputs();
        let gate = sized(&mut work.gate, positions * inner);
        self.gate.apply(compute, x, Epilogue::Silu, &mut work.quantized, gate); // (positions, E)
        let input = sized(&mut work.input, positions * self.input.outputs());
        self.input.apply(compute, x, Epilogue::None, &mut work.quantized, input); // (positions, C + H)
        self.fill_windows(runs, offset, work);
        let convolved = sized(&mut work.convolved, positions * self.channels());
        convolve(compute, &work.windows, &work.starts, &self.taps, convolved); // (positions, C)
        self.discretize(work);
        let input = ScanInput {
            heads: self.rates.len(),
            columns: self.columns(),
            x: &work.convolved,
            steps: &work.steps,
            decays: &work.decays,
            skip: &self.skip,
        };
        let states = offset + self.history_len()..offset + self.state_len();
        let mut scans: Vec<_> = runs
            .iter_mut()
            .map(|run| ScanRun { state: &mut run.memory[states.clone()], first: run.first, count: run.count })
            .collect();
        let mixed = sized(&mut work.mixed, positions * inner);
        scan(compute, &input, &mut scans, mixed); // (positions, E)
        for (mixed, gate) in mixed.iter_mut().zip(&work.gate) {
            *mixed *= gate;
        }
        let normed = sized(&mut work.normed, positions * inner);
        rms_norm(compute, mixed, &self.norm, normed);
        self.output.apply(compute, normed, Epilogue::None, &mut work.quantized, out); // (positions, D)
    }

    /// Collects each sequence's inputs of the convolution behind those that its state keeps, and keeps the last ones.
    fn fill_windows(&self, runs: &mut [RecurrentRun<'_>], offset: usize, work: &mut Mamba2Work) {
        let channels = self.channels();
        let history = offset..offset + self.history_len();
        work.windows.clear();
        work.starts.clear();
        for run in runs {
            let start = work.windows.len();
            work.windows.extend_from_slice(&run.memory[history.clone()]);
            for row in work.input.chunks_exact(self.input.outputs()).skip(run.first).take(run.count) {
                work.windows.extend_from_slice(&row[..channels]);
            }
            work.starts.extend((0..run.count).map(|position| start + position * channels));
            let kept = work.windows.len() - history.len();
            run.memory[history.clone()].copy_from_slice(&work.windows[kept..]);
        }
    }

    /// Computes step sizes, softplus of the projections plus their bias, and decays, e^(rate · step).
    fn discretize(&self, work: &mut Mamba2Work) {
        work.steps.clear();
        work.decays.clear();
        for row in work.input.chunks_exact(self.input.outputs()) {
            for ((projected, bias), rate) in row[self.channels()..].iter().zip(&self.step_bias).zip(&self.rates) {
                let step = softplus(projected + bias);
                work.steps.push(step);
                work.decays.push((rate * step).exp());
            }
        }
    }
}

/// ln(1 + e^x).
fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}
