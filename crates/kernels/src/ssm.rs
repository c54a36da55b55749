//! State space recurrence and causal convolution of Mamba-2 (Dao and Gu 2024, arXiv 2405.21060, §7). An output is one sum over
//! the state's columns, and a convolution one over the taps, in order; a prefill runs the recurrence of single steps. Threads
//! divide sequences and heads.

use crate::{
    Compute, LANES,
    isa::{Simd, multiversion},
    pool::DisjointSlice,
    rowwise::silu_body,
};

/// Width of a head.
pub const HEAD: usize = 64;

/// Vectors of a head.
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
    /// First of these positions among those of all sequences.
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
    /// (W, C); the last tap is that of the current position.
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

    struct Case {
        heads: usize,
        columns: usize,
        counts: Vec<usize>,
    }

    impl Case {
        fn positions(&self) -> usize {
            self.counts.iter().sum()
        }

        fn state_len(&self) -> usize {
            self.heads * self.columns * HEAD
        }

        fn x(&self) -> Vec<f32> {
            numbers(1, self.positions() * (self.heads * HEAD + 2 * self.columns))
        }

        fn steps(&self) -> Vec<f32> {
            numbers(2, self.positions() * self.heads).iter().map(|x| x.abs()).collect()
        }

        fn decays(&self) -> Vec<f32> {
            numbers(3, self.positions() * self.heads).iter().map(|x| 0.9 * x.abs()).collect()
        }

        fn states(&self) -> Vec<f32> {
            numbers(4, self.counts.len() * self.state_len())
        }

        /// Runs the kernel on all sequences together; each is cut into pieces of at most `piece` positions.
        fn run(&self, compute: &Compute, piece: usize) -> (Vec<f32>, Vec<f32>) {
            let inner = self.heads * HEAD;
            let width = inner + 2 * self.columns;
            let skip = numbers(5, self.heads);
            let mut states = self.states();
            let mut out = vec![f32::NAN; self.positions() * inner];
            let mut first = 0;
            for (&count, state) in self.counts.iter().zip(states.chunks_exact_mut(self.state_len())) {
                for start in (first..first + count).step_by(piece) {
                    let count = piece.min(first + count - start);
                    let x = self.x();
                    let steps = self.steps();
                    let decays = self.decays();
                    let input = ScanInput {
                        heads: self.heads,
                        columns: self.columns,
                        x: &x[start * width..(start + count) * width],
                        steps: &steps[start * self.heads..(start + count) * self.heads],
                        decays: &decays[start * self.heads..(start + count) * self.heads],
                        skip: &skip,
                    };
                    let mut runs = [ScanRun { state, first: 0, count }];
                    scan(compute, &input, &mut runs, &mut out[start * inner..(start + count) * inner]);
                }
                first += count;
            }
            (out, states)
        }

        fn run_together(&self, compute: &Compute) -> (Vec<f32>, Vec<f32>) {
            let mut states = self.states();
            let mut out = vec![f32::NAN; self.positions() * self.heads * HEAD];
            let x = self.x();
            let steps = self.steps();
            let decays = self.decays();
            let skip = numbers(5, self.heads);
            let input = ScanInput {
                heads: self.heads,
                columns: self.columns,
                x: &x,
                steps: &steps,
                decays: &decays,
                skip: &skip,
            };
            let mut first = 0;
            let mut runs = Vec::new();
            for (&count, state) in self.counts.iter().zip(states.chunks_exact_mut(self.state_len())) {
                runs.push(ScanRun { state, first, count });
                first += count;
            }
            scan(compute, &input, &mut runs, &mut out);
            (out, states)
        }

        /// The definition, in f64.
        fn naive(&self) -> (Vec<f64>, Vec<f64>) {
            let inner = self.heads * HEAD;
            let width = inner + 2 * self.columns;
            let wide = |numbers: Vec<f32>| numbers.into_iter().map(f64::from).collect::<Vec<_>>();
            let x = wide(self.x());
            let steps = wide(self.steps());
            let decays = wide(self.decays());
            let skip = wide(numbers(5, self.heads));
            let mut states = wide(self.states());
            let mut out = vec![0.0; self.positions() * inner];
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
        [
            Case { heads: 1, columns: 5, counts: vec![1] },
            Case { heads: 3, columns: 16, counts: vec![1, 7, 2] },
            Case { heads: 4, columns: 33, counts: vec![40, 1] },
        ]
    }

    #[test]
    fn a_scan_agrees_with_the_naive_implementation() {
        for case in cases() {
            let (expected, expected_states) = case.naive();
            let mut all = Vec::new();
            for compute in computes(2) {
                let (out, states) = case.run_together(&compute);
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
                let together = case.run_together(&compute);
                assert!([1, 3, 100].iter().all(|&piece| case.run(&compute, piece) == together));
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
