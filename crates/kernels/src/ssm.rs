//! State space recurrence and causal convolution of Mamba-2 (Dao and Gu 2024, arXiv 2405.21060, §7). An output is one sum over
//! the state's columns, and a convolution one over the taps, in order; a prefill runs the recurrence of single steps. Threads
//! divide sequences and heads.

use crate::isa::{Simd, multiversion};
use crate::pool::DisjointSlice;
use crate::rowwise::silu_body;
use crate::{Compute, LANES};

/// Width of a head.
pub const HEAD: usize = 64;

const VECTORS: usize = HEAD / LANES;

/// Minimum multiply-adds for which it pays to use other threads.
const MIN_SHARED: usize = 1 << 15;

/// Inputs of a recurrence. H = heads, N = columns of a state, E = 64·H.
#[derive(Clone, Copy)]
pub struct ScanInput<'a> {
    /// Heads H.
    pub heads: usize,
    /// Columns N of each head's state.
    pub columns: usize,
    /// x, B and C of each position: (positions, E + 2·N).
    pub x: &'a [f32],
    /// Step size of each head at each position: (positions, H).
    pub steps: &'a [f32],
    /// Factor of each head's old state at each position: (positions, H).
    pub decays: &'a [f32],
    /// Factor with which x is added to the output: (H).
    pub skip: &'a [f32],
}

/// Consecutive positions of one sequence.
pub struct ScanRun<'a> {
    /// State before the first position, and afterwards the state after the last: (H, N, 64).
    pub state: &'a mut [f32],
    /// First of these positions among all sequences' positions.
    pub first: usize,
    /// Number of positions.
    pub count: usize,
}

/// Runs the recurrence S ← decay · S + step · B ⊗ x, y = S · C + skip · x, and writes y to `out`, (positions, E). Panics if
/// lengths do not match.
pub fn scan(compute: &Compute, input: &ScanInput<'_>, runs: &mut [ScanRun<'_>], out: &mut [f32]) {
    let ScanInput { heads, columns, .. } = *input;
    let positions: usize = runs.iter().map(|run| run.count).sum();
    assert!(runs.iter().all(|run| run.state.len() == heads * columns * HEAD));
    assert!(input.x.len() == positions * (heads * HEAD + 2 * columns) && out.len() == positions * heads * HEAD);
    let out = DisjointSlice::new(out);
    let states: Vec<_> = runs.iter_mut().map(|run| (run.first, run.count, DisjointSlice::new(run.state))).collect();
    let task = |task: usize| {
        let (first, count, state) = &states[task / heads];
        let head = task % heads;
        // SAFETY: each head of each sequence belongs to one task.
        let state = unsafe { state.part(head * columns * HEAD, columns * HEAD) };
        scan_head(compute.isa, input, head, *first..first + count, state, &out);
    };
    let tasks = states.len() * heads;
    if 2 * positions * heads * columns * HEAD >= MIN_SHARED {
        compute.pool.run(tasks, &task);
    } else {
        (0..tasks).for_each(task);
    }
}

multiversion! {
    fn scan_head(
        input: &ScanInput<'_>,
        head: usize,
        positions: std::ops::Range<usize>,
        state: &mut [f32],
        out: &DisjointSlice<'_>,
    ) = scan_body
}

#[inline(always)]
fn scan_body<S: Simd>(
    simd: S,
    input: &ScanInput<'_>,
    head: usize,
    positions: std::ops::Range<usize>,
    state: &mut [f32],
    out: &DisjointSlice<'_>,
) {
    let ScanInput { heads, columns, .. } = *input;
    let inner = heads * HEAD;
    let width = inner + 2 * columns;
    let zero = simd.splat(0.0);
    let skip = simd.splat(input.skip[head]);
    for position in positions {
        let row = &input.x[position * width..][..width];
        let x: [S::V; VECTORS] = std::array::from_fn(|index| simd.load(&row[head * HEAD + index * LANES..]));
        let (b, c) = row[inner..].split_at(columns);
        let step = input.steps[position * heads + head];
        let decay = simd.splat(input.decays[position * heads + head]);
        let mut y: [S::V; VECTORS] = std::array::from_fn(|index| simd.madd(skip, x[index], zero));
        for ((cells, b), c) in state.as_chunks_mut::<HEAD>().0.iter_mut().zip(b).zip(c) {
            let b = simd.splat(step * b);
            let c = simd.splat(*c);
            for (index, cells) in cells.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
                let new = simd.madd(decay, simd.load(cells), simd.madd(b, x[index], zero));
                simd.store(new, cells);
                y[index] = simd.madd(new, c, y[index]);
            }
        }
        // SAFETY: each head of each position belongs to one task.
        let out = unsafe { out.part(position * inner + head * HEAD, HEAD) };
        for (y, out) in y.into_iter().zip(out.as_chunks_mut::<LANES>().0) {
            simd.store(y, out);
        }
    }
}

/// Weights of a causal convolution of each channel. C = channels, W = taps.
pub struct Taps {
    /// (W, C); the last tap is the current position's.
    pub weight: Vec<f32>,
    /// (C)
    pub bias: Vec<f32>,
}

impl Taps {
    /// Returns the number W of taps.
    pub fn count(&self) -> usize {
        self.weight.len() / self.bias.len().max(1)
    }
}

/// Computes each row of `out`, (positions, C), as silu(bias + Σ weight · input over the taps). The inputs of row i, (W, C),
/// begin at `starts[i]` in `inputs`. Panics if lengths do not match.
pub fn convolve(compute: &Compute, inputs: &[f32], starts: &[usize], taps: &Taps, out: &mut [f32]) {
    let channels = taps.bias.len();
    assert_eq!(out.len(), starts.len() * channels);
    let share = out.len() * taps.count() >= MIN_SHARED;
    compute.pool.for_chunks(out, channels, share, &|row, out| {
        convolve_row(compute.isa, &inputs[starts[row]..][..taps.weight.len()], taps, out);
    });
}

multiversion! { fn convolve_row(inputs: &[f32], taps: &Taps, out: &mut [f32]) = convolve_body }

#[inline(always)]
fn convolve_body<S: Simd>(simd: S, inputs: &[f32], taps: &Taps, out: &mut [f32]) {
    let channels = taps.bias.len();
    out.copy_from_slice(&taps.bias);
    for (weight, x) in taps.weight.chunks_exact(channels).zip(inputs.chunks_exact(channels)) {
        for ((out, weight), x) in out.iter_mut().zip(weight).zip(x) {
            *out = S::madd1(*weight, *x, *out);
        }
    }
    silu_body(simd, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_fused_agree, assert_near, computes, numbers};
    use std::ops::Range;

    struct Case {
        heads: usize,
        columns: usize,
        counts: Vec<usize>,
        x: Vec<f32>,
        steps: Vec<f32>,
        decays: Vec<f32>,
        skip: Vec<f32>,
        states: Vec<f32>,
    }

    impl Case {
        fn new(heads: usize, columns: usize, counts: &[usize]) -> Self {
            let positions: usize = counts.iter().sum();
            Self {
                heads,
                columns,
                counts: counts.to_vec(),
                x: numbers(1, positions * (heads * HEAD + 2 * columns)),
                steps: numbers(2, positions * heads).iter().map(|x| x.abs()).collect(),
                decays: numbers(3, positions * heads).iter().map(|x| 0.9 * x.abs()).collect(),
                skip: numbers(5, heads),
                states: numbers(4, counts.len() * heads * columns * HEAD),
            }
        }

        /// Runs the kernel, all sequences together or each alone, in pieces of at most `piece` positions.
        fn run(&self, compute: &Compute, piece: Option<usize>) -> (Vec<f32>, Vec<f32>) {
            let heads = self.heads;
            let inner = heads * HEAD;
            let width = inner + 2 * self.columns;
            let mut states = self.states.clone();
            let mut out = vec![f32::NAN; self.steps.len() * HEAD];
            let mut scan_positions = |positions: Range<usize>, runs: &mut [ScanRun<'_>]| {
                let input = ScanInput {
                    heads,
                    columns: self.columns,
                    x: &self.x[positions.start * width..positions.end * width],
                    steps: &self.steps[positions.start * heads..positions.end * heads],
                    decays: &self.decays[positions.start * heads..positions.end * heads],
                    skip: &self.skip,
                };
                scan(compute, &input, runs, &mut out[positions.start * inner..positions.end * inner]);
            };
            let mut first = 0;
            let mut together = Vec::new();
            for (&count, state) in self.counts.iter().zip(states.chunks_exact_mut(self.columns * inner)) {
                match piece {
                    None => together.push(ScanRun { state, first, count }),
                    Some(piece) => {
                        for start in (first..first + count).step_by(piece) {
                            let count = piece.min(first + count - start);
                            scan_positions(start..start + count, &mut [ScanRun { state, first: 0, count }]);
                        }
                    }
                }
                first += count;
            }
            if piece.is_none() {
                scan_positions(0..first, &mut together);
            }
            (out, states)
        }

        /// The definition, in f64.
        fn naive(&self) -> (Vec<f64>, Vec<f64>) {
            let inner = self.heads * HEAD;
            let width = inner + 2 * self.columns;
            let wide = |numbers: &[f32]| numbers.iter().copied().map(f64::from).collect::<Vec<_>>();
            let [x, steps, decays, skip] =
                [&self.x, &self.steps, &self.decays, &self.skip].map(|numbers| wide(numbers));
            let mut states = wide(&self.states);
            let mut out = vec![0.0; steps.len() * HEAD];
            let mut position = 0;
            for (sequence, &count) in self.counts.iter().enumerate() {
                for _ in 0..count {
                    let row = &x[position * width..][..width];
                    for (head, p) in (0..self.heads).flat_map(|head| (0..HEAD).map(move |p| (head, p))) {
                        let own = row[head * HEAD + p];
                        let mut y = skip[head] * own;
                        for n in 0..self.columns {
                            let cell = &mut states[((sequence * self.heads + head) * self.columns + n) * HEAD + p];
                            let step = steps[position * self.heads + head];
                            *cell = decays[position * self.heads + head] * *cell + step * row[inner + n] * own;
                            y += *cell * row[inner + self.columns + n];
                        }
                        out[position * inner + head * HEAD + p] = y;
                    }
                    position += 1;
                }
            }
            (out, states)
        }
    }

    fn cases() -> [Case; 3] {
        [Case::new(1, 5, &[1]), Case::new(3, 16, &[1, 7, 2]), Case::new(4, 33, &[40, 1])]
    }

    #[test]
    fn a_scan_agrees_with_the_naive_implementation() {
        for case in cases() {
            let (expected, expected_states) = case.naive();
            let mut all = Vec::new();
            for compute in computes(2) {
                let (out, states) = case.run(&compute, None);
                assert_near(&out, &expected, 1e-4, compute.isa.name());
                assert_near(&states, &expected_states, 1e-4, compute.isa.name());
                all.push((compute.isa, out));
            }
            assert_fused_agree(&all);
        }
    }

    #[test]
    fn a_scan_has_the_bits_of_its_steps() {
        for case in cases() {
            for compute in computes(2) {
                let together = case.run(&compute, None);
                assert!([1, 3, 100].iter().all(|&piece| case.run(&compute, Some(piece)) == together));
            }
        }
    }

    #[test]
    fn a_convolution_agrees_with_the_naive_implementation() {
        for (channels, count, positions) in [(1, 1, 1), (37, 4, 3), (70, 3, 200)] {
            let taps = Taps { weight: numbers(1, channels * count), bias: numbers(2, channels) };
            let inputs = numbers(3, (positions + count - 1) * channels);
            let starts: Vec<usize> = (0..positions).map(|position| position * channels).collect();
            let mut expected = Vec::new();
            for (position, channel) in (0..positions).flat_map(|p| (0..channels).map(move |c| (p, c))) {
                let tap = |tap: usize| {
                    f64::from(taps.weight[tap * channels + channel])
                        * f64::from(inputs[(position + tap) * channels + channel])
                };
                let sum = f64::from(taps.bias[channel]) + (0..count).map(tap).sum::<f64>();
                expected.push(sum / (1.0 + (-sum).exp()));
            }
            let mut all = Vec::new();
            for compute in computes(2) {
                let mut out = vec![f32::NAN; positions * channels];
                convolve(&compute, &inputs, &starts, &taps, &mut out);
                assert_near(&out, &expected, 2e-6, compute.isa.name());
                all.push((compute.isa, out));
            }
            assert_fused_agree(&all);
        }
    }
}
