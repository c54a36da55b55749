//! The Mamba-2 mixer (Dao and Gu 2024, arXiv 2405.21060): a gated state space recurrence with a short convolution before it.
//! Read from state-spaces/mamba at commit a6a1dae, `mamba_ssm/modules/mamba2.py`, with one group of B and C, biases only in the
//! convolution, and the gate before the norm. A [`HybridStack`] has such mixers and attention.

use crate::nn::attention::{Caches, FeedForward, SelfAttention, Softmax, StackPass, StackWork, add};
use crate::nn::kv_cache::KvCache;
use crate::nn::position::PositionScheme;
use crate::nn::window::Window;
use crate::nn::{Position, sized};
use std::sync::Arc;
use weir_kernels::Compute;
use weir_kernels::attention::PageLayout;
use weir_kernels::error::{Error, Result};
use weir_kernels::linear::{Epilogue, Linear, QuantizedRows};
use weir_kernels::memory::cast_mut;
use weir_kernels::pages::{Page, PagePool};
use weir_kernels::rowwise::{RmsNorm, rms_norm};
use weir_kernels::ssm::{HEAD, ScanInput, ScanRun, Taps, convolve, scan};

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
    /// First of these positions among all sequences' positions.
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
    /// Returns the numbers of one sequence's state: convolution inputs, (W − 1, C), then the recurrent state, (H, N, 64).
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

    /// Writes the mixer's output for `x`, (positions, D), to `out`, (positions, D), and advances the states at `offset`.
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

// A recurrent state cannot be rewound; a copy shares the page until one of both is written, so snapshots are cheap.

/// One sequence's states of the recurrent layers of a stack.
#[derive(Clone)]
pub struct RecurrentMemory {
    pool: Arc<PagePool>,
    /// Size of the page in bytes; 0 in a stack without recurrent layers.
    bytes: usize,
    /// `None` before the first position, where every number is zero.
    page: Option<Page>,
}

impl RecurrentMemory {
    /// Returns the memory of a sequence without positions; `numbers` are the numbers of all layers' states.
    pub fn new(pool: Arc<PagePool>, numbers: usize) -> Self {
        Self { pool, bytes: page_bytes(numbers), page: None }
    }

    /// Returns the page, if the sequence has one.
    pub fn page(&self) -> Option<&Page> {
        self.page.as_ref()
    }

    /// Returns the bytes of the page, shared or not.
    pub fn bytes(&self) -> usize {
        self.page.as_ref().map_or(0, |page| page.bytes().len())
    }

    /// Returns the bytes that the next write allocates: for a first page, or for a copy of a shared one.
    pub fn growth(&self) -> usize {
        if self.page.as_ref().is_some_and(|page| !page.is_shared()) { 0 } else { self.bytes }
    }

    /// Moves the page out for writing: zeroed if new, copied if shared. `None` in a stack without recurrent layers.
    pub fn take(&mut self) -> Result<Option<Page>> {
        if self.bytes == 0 {
            return Ok(None);
        }
        let mut page = match self.page.take() {
            Some(page) => page,
            None => {
                let mut page = self.pool.allocate(self.bytes)?;
                page.bytes_mut()?.fill(0);
                page
            }
        };
        page.bytes_mut()?;
        Ok(Some(page))
    }

    /// Puts a page back that [`take`](Self::take) returned.
    pub fn put(&mut self, page: Option<Page>) {
        self.page = page;
    }

    /// Forgets all positions.
    pub fn clear(&mut self) {
        self.page = None;
    }
}

/// Returns the bytes of a page for `numbers` numbers; 0 for none.
pub fn page_bytes(numbers: usize) -> usize {
    (numbers * size_of::<f32>()).next_multiple_of(64)
}

/// Returns a taken page's numbers for writing; none without a page. Fails with [`Error::OutOfPages`] if the page is shared.
pub fn recurrent_numbers(page: &mut Option<Page>) -> Result<&mut [f32], Error> {
    match page {
        Some(page) => Ok(cast_mut(page.bytes_mut()?)),
        None => Ok(&mut []),
    }
}

// A stack of pre-norm layers, each with a Mamba-2 mixer or self-attention, and optionally a gated feed-forward (SwiGLU): x +=
// mixer(rms(x)); x += down(up(rms(x)) · silu(gate(rms(x)))); one more norm after the last layer. The residual stream is f32.

/// Layers that share a cache and a recurrent memory.
pub struct HybridStack {
    /// Width D.
    pub dim: usize,
    /// Layers, bottom first; there may be none.
    pub layers: Vec<HybridLayer>,
    /// Norm after the last layer, if there is one: (D)
    pub norm: Option<RmsNorm>,
    /// Position scheme of the attention layers.
    pub position: PositionScheme,
    /// Keys that a position attends to.
    pub window: Window,
    /// Layout of the pages of the attention layers, which may be none.
    pub layout: PageLayout,
}

/// One layer's weights. D = width.
pub struct HybridLayer {
    /// Norm before the mixer: (D)
    pub norm: RmsNorm,
    /// The part that mixes positions.
    pub mixer: Mixer,
    /// The part that follows it, if any.
    pub feed_forward: Option<FeedForward>,
}

/// The part of a layer that mixes positions.
pub enum Mixer {
    /// A recurrence; boxed because it has more parts.
    Mamba2(Box<Mamba2>),
    /// Self-attention. I = heads · head_dim.
    Attention {
        /// Queries, keys, values: (3·I, D).
        qkv: Linear,
        /// (D, I)
        output: Linear,
    },
}

/// Buffers of a pass, kept between steps.
#[derive(Default)]
pub struct HybridWork {
    attention: StackWork,
    mamba2: Mamba2Work,
}

/// Place of a layer among those that have keys, and in the recurrent memory.
#[derive(Clone, Copy, Default)]
struct LayerPlace {
    cached_layer: usize,
    offset: usize,
}

impl LayerPlace {
    fn pass(&mut self, layer: &HybridLayer) {
        self.cached_layer += usize::from(matches!(layer.mixer, Mixer::Attention { .. }));
        self.offset += layer.recurrent_numbers();
    }
}

impl HybridStack {
    /// Returns the numbers of one sequence's recurrent states, all layers together.
    pub fn recurrent_numbers(&self) -> usize {
        self.layers.iter().map(HybridLayer::recurrent_numbers).sum()
    }

    /// Runs `x`, (positions, D), through all layers in place; writes keys and values into the caches, which have the positions
    /// reserved, and advances the recurrent states. Positions of one sequence are consecutive and form one of `runs`.
    pub fn forward(
        &self,
        compute: &Compute,
        x: &mut [f32],
        positions: &[Position],
        caches: &mut impl Caches,
        runs: &mut [RecurrentRun<'_>],
        work: &mut HybridWork,
    ) -> Result<()> {
        let HybridWork { attention, mamba2 } = work;
        let mut pass = StackPass { compute, positions, caches, work: attention };
        let mut place = LayerPlace::default();
        for layer in &self.layers {
            self.run_layer(layer, place, x, runs, &mut pass, mamba2)?;
            place.pass(layer);
        }
        let Some(norm) = &self.norm else { return Ok(()) };
        let normed = sized(&mut attention.normed, x.len());
        rms_norm(compute, x, norm, normed);
        x.copy_from_slice(normed);
        Ok(())
    }

    /// Runs one layer, which is not recurrent, as [`forward`](Self::forward) runs all.
    pub fn forward_layer(
        &self,
        index: usize,
        compute: &Compute,
        x: &mut [f32],
        positions: &[Position],
        caches: &mut impl Caches,
        work: &mut HybridWork,
    ) -> Result<()> {
        let HybridWork { attention, mamba2 } = work;
        let mut pass = StackPass { compute, positions, caches, work: attention };
        let mut place = LayerPlace::default();
        self.layers[..index].iter().for_each(|layer| place.pass(layer));
        self.run_layer(&self.layers[index], place, x, &mut [], &mut pass, mamba2)
    }

    fn run_layer(
        &self,
        layer: &HybridLayer,
        place: LayerPlace,
        x: &mut [f32],
        runs: &mut [RecurrentRun<'_>],
        pass: &mut StackPass<'_, impl Caches>,
        mamba2: &mut Mamba2Work,
    ) -> Result<()> {
        let compute = pass.compute;
        let mut normed = std::mem::take(&mut pass.work.normed);
        rms_norm(compute, x, &layer.norm, sized(&mut normed, x.len()));
        match &layer.mixer {
            Mixer::Mamba2(mixer) => {
                let delta = sized(&mut pass.work.delta, x.len());
                mixer.forward(compute, &normed, runs, place.offset, mamba2, delta); // (positions, D)
            }
            Mixer::Attention { qkv, output } => {
                self.attention(place.cached_layer, qkv, output).forward(&normed, pass)?; // (positions, D)
            }
        }
        pass.work.normed = normed;
        add(x, &pass.work.delta);
        if let Some(feed_forward) = &layer.feed_forward {
            feed_forward.forward(compute, x, pass.work);
        }
        Ok(())
    }

    /// Reserves `more` positions in a sequence's cache as [`Window::reserve`] does.
    pub fn reserve(&self, cache: &mut KvCache, more: usize) -> Result<()> {
        self.window.reserve(cache, more)
    }

    /// Returns the maximum bytes of pages in a cache of `positions`.
    pub fn bytes_for(&self, positions: usize) -> usize {
        self.window.bytes_for(&self.layout, positions)
    }

    /// Returns the maximum bytes of pages that extending a cache to `len` positions allocates.
    pub fn growth(&self, cache: &KvCache, len: usize) -> usize {
        self.window.growth(&self.layout, cache, len)
    }

    fn attention<'a>(&'a self, layer: usize, qkv: &'a Linear, output: &'a Linear) -> SelfAttention<'a> {
        let Self { position, window, layout, .. } = self;
        let softmax = Softmax::scaled(layout);
        SelfAttention { layer, qkv, output, context_norm: None, position, window: *window, layout, softmax }
    }
}

impl HybridLayer {
    fn recurrent_numbers(&self) -> usize {
        match &self.mixer {
            Mixer::Mamba2(mixer) => mixer.state_len(),
            Mixer::Attention { .. } => 0,
        }
    }

    /// Returns the layer's matrices.
    pub fn matrices(&self) -> impl Iterator<Item = &Linear> {
        let mixer = match &self.mixer {
            Mixer::Mamba2(mixer) => vec![&mixer.gate, &mixer.input, &mixer.output],
            Mixer::Attention { qkv, output } => vec![qkv, output],
        };
        mixer.into_iter().chain(self.feed_forward.iter().flat_map(FeedForward::matrices))
    }
}
