//! H-Net (Hwang et al. 2025): stages of an encoder, dynamic chunking, the next stage on the chunks, a moving average and a
//! decoder. Decisions of inner stages that are close to the threshold count as near ties.

use crate::verify::decoder::{ROTARY_BASE, rotate, sees};
use crate::verify::tensors::{Tensors, convolve, head_of, indices, mask, products, softmax, softplus};
use crate::verify::{Checkpoint, Given, Input, NearTie, Outputs, Reference};
use candle_core::{D, Device, Result as CandleResult, Tensor, bail};
use weir_kernels::error::Result;
use weir_models::contract::SymbolBoundary;
use weir_models::family::hnet::{Architecture, StageConfig};

/// A chunk begins where the router's probability is above this (§2.2).
const THRESHOLD: f64 = 0.5;

/// The moving average's weights are at least this far from 0 and 1.
const CLAMP: f64 = 1e-4;

/// A norm below this counts as this, in the router's cosine.
const SMALLEST_NORM: f64 = 1e-12;

/// Probabilities of an inner stage that are closer to the threshold may fall on either side of it in f32.
const NEAR: f64 = 2e-5;

/// Width of a head of the Mamba-2 mixer.
const HEAD: usize = 64;

struct Hnet {
    tensors: Tensors,
    architecture: Architecture,
}

/// The router's outputs for one stage.
struct Routing {
    /// Boundary probabilities: (len).
    probabilities: Vec<f64>,
    /// True at each position at which a chunk begins: (len).
    begins: Vec<bool>,
}

/// Values of a pass over one text.
struct Pass<'a> {
    given: Given<'a>,
    /// The outermost router's own decisions.
    outermost: Vec<SymbolBoundary>,
    margins: Vec<f64>,
    near_ties: Vec<NearTie>,
}

/// Reads the model. Fails if a file cannot be read.
pub(super) fn read(checkpoint: Checkpoint) -> Result<Box<dyn Reference>> {
    Ok(Box::new(Hnet { tensors: checkpoint.tensors()?, architecture: checkpoint.architecture()? }))
}

impl Reference for Hnet {
    fn forward(&self, input: &Input, given: Given<'_>) -> CandleResult<Outputs> {
        let embedded = self.tensors.rows("embedding.weight", &input.symbols)?; // (len, D)
        let mut pass = Pass { given, outermost: Vec::new(), margins: Vec::new(), near_ties: Vec::new() };
        let x = self.stage(0, &embedded, &mut pass)?; // (len, D)
        let head = if self.architecture.tied { "embedding.weight" } else { "head.weight" };
        let logits = self.tensors.matrix(head, &x)?; // (len, V)
        Ok(Outputs {
            boundaries: pass.outermost,
            margins: pass.margins,
            near_ties: pass.near_ties,
            ..Outputs::of_logits(&logits)?
        })
    }
}

impl Hnet {
    /// Runs a stage and all stages inside it: (len, width of the stage around it) → the same shape.
    fn stage(&self, index: usize, x: &Tensor, pass: &mut Pass<'_>) -> CandleResult<Tensor> {
        let stage = &self.architecture.stages[index];
        let (len, outer) = x.dims2()?;
        let mut padded = x.clone();
        if stage.dim > outer {
            let padding = self.tensors.get(&format!("stages.{index}.padding"))?.broadcast_left(len)?;
            padded = Tensor::cat(&[x, &padding], 1)?; // (len, D)
        }
        let encoded = match &stage.main {
            Some(main) => return self.stack(index, "main", main, &padded)?.narrow(1, 0, outer),
            None => self.stack(index, "encoder", layers(&stage.encoder)?, &padded)?, // (len, D)
        };
        let residual = self.tensors.linear(&format!("stages.{index}.residual"), &encoded)?; // (len, D)
        let routing = self.route(index, &encoded, pass)?;
        let starts: Vec<u32> = (0u32..).zip(&routing.begins).filter(|(_, begins)| **begins).map(|(t, _)| t).collect();
        let chunks = encoded.index_select(&indices(&starts)?, 0)?; // (chunks, D)
        let outputs = self.stage(index + 1, &chunks, pass)?; // (chunks, D)
        let averages = moving_average(&outputs, &routing)?; // (len, D)
        let decoded = self.stack(index, "decoder", layers(&stage.decoder)?, &(averages + residual)?)?; // (len, D)
        decoded.narrow(1, 0, outer)
    }

    /// Decides at which positions of a stage chunks begin, from the encoder's outputs (len, D) (§2.2).
    fn route(&self, index: usize, encoded: &Tensor, pass: &mut Pass<'_>) -> CandleResult<Routing> {
        let len = encoded.dim(0)?;
        let project = |name: &str| {
            let projected = self.tensors.matrix(&format!("stages.{index}.router.{name}.weight"), encoded)?; // (len, D)
            let norm = projected.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?.maximum(SMALLEST_NORM)?;
            projected.broadcast_div(&norm)
        };
        let previous = project("query")?.narrow(0, 0, len - 1)?;
        let current = project("key")?.narrow(0, 1, len - 1)?;
        let cosines: Vec<f64> = (previous * current)?.sum(D::Minus1)?.to_vec1()?; // (len − 1)
        let later = cosines.into_iter().map(|cosine| ((1.0 - cosine) / 2.0).clamp(0.0, 1.0));
        let probabilities: Vec<f64> = std::iter::once(1.0).chain(later).collect();
        let mut begins: Vec<bool> = probabilities.iter().map(|&probability| probability > THRESHOLD).collect();
        let margin = |(position, p): (usize, &f64)| if position == 0 { f64::INFINITY } else { (p - THRESHOLD).abs() };
        let margins: Vec<f64> = probabilities.iter().enumerate().map(margin).collect();
        if index == 0 {
            let decided = probabilities.iter().zip(&begins);
            pass.outermost = decided.map(|(&probability, &boundary)| decision(boundary, probability)).collect();
            pass.margins = margins;
            begins = pass.given.boundaries.map_or(begins, <[bool]>::to_vec);
        } else {
            for (rank, _) in margins.iter().enumerate().filter(|(_, margin)| **margin < NEAR) {
                let tie = NearTie { pooling: index, round: 0, rank };
                begins[rank] ^= pass.given.swapped.contains(&tie);
                pass.near_ties.push(tie);
            }
        }
        if begins.first() != Some(&true) {
            bail!("a text's first symbol begins a chunk");
        }
        Ok(Routing { probabilities, begins })
    }

    /// Runs the stack `name` of a stage, with its final norm: (len, D) → (len, D).
    fn stack(&self, stage: usize, name: &str, layers: &str, x: &Tensor) -> CandleResult<Tensor> {
        let prefix = format!("stages.{stage}.{name}");
        let norm = |name: &str, x: &Tensor| {
            self.tensors.rms_norm(&format!("{prefix}.{name}norm"), x, self.architecture.norm_eps)
        };
        let mut x = x.clone();
        for (index, letter) in letters(layers)?.into_iter().enumerate() {
            let layer = format!("{prefix}.{index}");
            let normed = norm(&format!("{index}."), &x)?;
            let mixed = match letter.to_ascii_lowercase() {
                't' => self.attention(stage, &layer, &normed)?,
                _ => self.mamba(stage, &layer, &normed)?,
            };
            x = (x + mixed)?;
            if letter.is_ascii_uppercase() {
                x = (&x + self.feed_forward(&layer, &norm(&format!("{index}.feed_forward."), &x)?)?)?;
            }
        }
        norm("", &x)
    }

    /// The Mamba-2 mixer (Dao & Gu 2024) in its quadratic form: every output is a weighted sum over all earlier positions, without a
    /// recurrent state. E = inner width, N = `state_dim`, H = E / 64 heads. (len, D) → (len, D).
    fn mamba(&self, stage: usize, layer: &str, x: &Tensor) -> CandleResult<Tensor> {
        let StageConfig { dim, expand, state_dim, .. } = self.architecture.stages[stage];
        let tensors = &self.tensors;
        let name = format!("{layer}.mamba");
        let inner = expand * dim;
        let heads = inner / HEAD;
        let channels = inner + 2 * state_dim;
        let gate = tensors.matrix(&format!("{name}.gate.weight"), x)?; // (len, E)
        let projected = tensors.matrix(&format!("{name}.input.weight"), x)?; // (len, E + 2·N + H)
        let taps = tensors.get(&format!("{name}.convolution.weight"))?; // (W, E + 2·N)
        let mixed = convolve(&projected.narrow(1, 0, channels)?, taps)?; // (len, E + 2·N)
        let mixed = mixed.broadcast_add(tensors.get(&format!("{name}.convolution.bias"))?)?.silu()?;
        let inputs = mixed.narrow(1, inner, state_dim)?.contiguous()?; // B: (len, N)
        let outputs = mixed.narrow(1, inner + state_dim, state_dim)?.contiguous()?; // C: (len, N)
        let similarities = products(&outputs, &inputs)?; // (len, len)
        let raw = projected.narrow(1, channels, heads)?;
        let steps = softplus(&raw.broadcast_add(tensors.get(&format!("{name}.step_bias"))?)?)?; // Δ: (len, H)
        let rates = tensors.get(&format!("{name}.log_rate"))?.exp()?; // −A: (H)
        let skip: Vec<f64> = tensors.get(&format!("{name}.skip"))?.to_vec1()?;
        let decay: Vec<Vec<f64>> = steps.broadcast_mul(&rates)?.t()?.to_vec2()?; // −Δ·A: (H, len)
        let mut all = Vec::with_capacity(heads);
        for (head, (decay, skip)) in decay.iter().zip(skip).enumerate() {
            let x = head_of(&mixed, head, HEAD)?; // (len, 64)
            let weights = (decays(decay)? * &similarities)?; // (len, len)
            let scaled = x.broadcast_mul(&steps.narrow(1, head, 1)?)?;
            all.push((weights.matmul(&scaled)? + (x * skip)?)?);
        }
        let gated = (Tensor::cat(&all, 1)? * gate.silu()?)?; // (len, E)
        let normed = tensors.rms_norm(&format!("{name}.norm"), &gated, self.architecture.norm_eps)?;
        tensors.matrix(&format!("{name}.output.weight"), &normed) // (len, D)
    }

    /// Causal attention whose first `rotary_dim` numbers of each query and key are rotated: (len, D) → (len, D).
    fn attention(&self, stage: usize, layer: &str, x: &Tensor) -> CandleResult<Tensor> {
        let StageConfig { dim, heads, rotary_dim, window, .. } = self.architecture.stages[stage];
        let head_dim = dim / heads;
        let mask = mask(x.dim(0)?, |query, key| sees(window, query, key))?; // (len, len)
        let qkv = self.tensors.matrix(&format!("{layer}.attention.qkv.weight"), x)?; // (len, 3·D)
        let turned = |part: Tensor| match rotary_dim {
            0 => Ok(part),
            _ => {
                let rest = part.narrow(1, rotary_dim, head_dim - rotary_dim)?;
                Tensor::cat(&[rotate(&part.narrow(1, 0, rotary_dim)?.contiguous()?, ROTARY_BASE, None)?, rest], 1)
            }
        };
        let mut outputs = Vec::with_capacity(heads);
        for head in 0..heads {
            let queries = turned(head_of(&qkv, head, head_dim)?)?; // (len, head_dim)
            let keys = turned(head_of(&qkv, heads + head, head_dim)?)?;
            let values = head_of(&qkv, 2 * heads + head, head_dim)?;
            let scores = (products(&queries, &keys)? / (head_dim as f64).sqrt())?; // (len, len)
            outputs.push(softmax(&(scores + &mask)?)?.matmul(&values)?);
        }
        self.tensors.matrix(&format!("{layer}.attention.output.weight"), &Tensor::cat(&outputs, 1)?)
    }

    /// SwiGLU: W_down (W_up x · silu(W_gate x)).
    fn feed_forward(&self, layer: &str, x: &Tensor) -> CandleResult<Tensor> {
        let matrix = |name: &str, x: &Tensor| self.tensors.matrix(&format!("{layer}.feed_forward.{name}.weight"), x);
        matrix("down", &(matrix("up", x)? * matrix("gate", x)?.silu()?)?)
    }
}

/// Averages the chunks' outputs, (chunks, D), with the router's probabilities as weights, and repeats each average until the next
/// chunk: (len, D) (§2.2).
fn moving_average(outputs: &Tensor, routing: &Routing) -> CandleResult<Tensor> {
    let mut average = outputs.get(0)?.zeros_like()?; // (D)
    let mut chunks = 0;
    let mut averages = Vec::with_capacity(routing.begins.len());
    for (&begins, probability) in routing.begins.iter().zip(&routing.probabilities) {
        if begins {
            let weight = probability.clamp(CLAMP, 1.0 - CLAMP);
            average = ((outputs.get(chunks)? * weight)? + (average * (1.0 - weight))?)?;
            chunks += 1;
        }
        averages.push(average.clone());
    }
    Tensor::stack(&averages, 0)
}

fn decision(boundary: bool, probability: f64) -> SymbolBoundary {
    SymbolBoundary {
        boundary,
        depth: u8::from(boundary),
        probability: Some(probability as f32),
        ..SymbolBoundary::default()
    }
}

fn layers(text: &Option<String>) -> CandleResult<&str> {
    match text {
        Some(text) => Ok(text),
        None => bail!("a stage has neither an encoder and a decoder nor main layers"),
    }
}

/// Returns one letter for each layer of a text such as `T1m4`.
fn letters(text: &str) -> CandleResult<Vec<char>> {
    let mut letters = Vec::new();
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let digits = rest[1..].trim_start_matches(|c: char| c.is_ascii_digit());
        let count: usize = rest[1..rest.len() - digits.len()].parse().map_err(candle_core::Error::wrap)?;
        letters.extend(std::iter::repeat_n(letter, count));
        rest = digits;
    }
    Ok(letters)
}

/// Returns the factor by which what enters at position j has decayed at position i, exp(−Σ decay over j < k ≤ i), and 0 for j > i:
/// (len, len).
fn decays(decay: &[f64]) -> CandleResult<Tensor> {
    let len = decay.len();
    let mut numbers = vec![0.0; len * len];
    for j in 0..len {
        let mut sum = 0.0;
        for i in j..len {
            if i > j {
                sum += decay[i];
            }
            numbers[i * len + j] = f64::exp(-sum);
        }
    }
    Tensor::from_vec(numbers, (len, len), &Device::Cpu)
}
