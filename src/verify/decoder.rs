//! Decoders: LeX (Sun et al. 2023) and its baselines, GPT-2. One causal stack with norms before the sub-layers.

use crate::verify::{
    Checkpoint, Given, Input, Outputs, Reference,
    tensors::{Tensors, activate, bucket_bias, distances, head_of, mask, products, softmax, t5_buckets, table},
};
use candle_core::{Result as CandleResult, Tensor};
use weir_kernels::error::Result;
use weir_models::family::{decoder::Architecture, parts::StackShape};
use weir_models::nn::{position::PositionKind, window::Window};

struct Decoder {
    tensors: Tensors,
    architecture: Architecture,
    /// The mark that precedes each text, if the vocabulary has marks.
    start: Option<u32>,
}

/// Reads the model. Fails if a file cannot be read.
pub(super) fn read(checkpoint: Checkpoint) -> Result<Box<dyn Reference>> {
    Ok(Box::new(Decoder::read(checkpoint)?))
}

impl Decoder {
    fn read(checkpoint: Checkpoint) -> Result<Self> {
        let architecture = checkpoint.architecture()?;
        let start = checkpoint.vocabulary()?.specials().map(|specials| specials.start);
        Ok(Self { tensors: checkpoint.tensors()?, architecture, start })
    }

    /// Embeds a text, and runs all layers: (len, D).
    fn run(&self, symbols: &[u32]) -> CandleResult<Tensor> {
        let a = &self.architecture;
        let symbols: Vec<u32> = self.start.iter().chain(symbols).copied().collect();
        let embedded = self.tensors.rows("embedding.weight", &symbols)?; // (len, D)
        let scale = if a.scale_embedding { (a.dim as f64).sqrt() } else { 1.0 };
        let stack = CausalStack {
            tensors: &self.tensors,
            name: "layers",
            layers: a.layers,
            shape: a.stack_shape(),
            eps: a.layer_norm_eps,
            window: a.window,
            norms: Norms::BeforeSublayers,
        };
        stack.forward(&(embedded * scale)?)
    }
}

impl Reference for Decoder {
    fn forward(&self, input: &Input, _: Given<'_>) -> CandleResult<Outputs> {
        let x = self.run(&input.symbols)?; // (len, D)
        let x = self.tensors.layer_norm("norm", &x, self.architecture.layer_norm_eps)?;
        let head = if self.architecture.tied { "embedding.weight" } else { "head.weight" };
        Outputs::of_logits(&self.tensors.matrix(head, &x)?) // (len, V)
    }
}

/// Position of the first symbol in fairseq's sinusoids.
const FIRST_SINUSOID: usize = 2;

/// Base of the rotations' angles (Su et al. 2021).
pub(super) const ROTARY_BASE: f64 = 10_000.0;

/// γ of xPos (Sun et al. 2023, §3.2).
const XPOS_GAMMA: f64 = 0.4;

#[derive(Debug, Clone, Copy)]
pub(super) enum Norms {
    BeforeSublayers,
    AfterSublayers,
}

pub(super) struct CausalStack<'a> {
    pub(super) tensors: &'a Tensors,
    /// Prefix of its tensors' names.
    pub(super) name: &'a str,
    pub(super) layers: usize,
    pub(super) shape: StackShape,
    pub(super) eps: f32,
    pub(super) window: Window,
    pub(super) norms: Norms,
}

/// Values that all layers of a pass over one text share.
struct Pairs {
    /// max(query − key, 0): (len, len)
    distances: Tensor,
    /// (len, len)
    mask: Tensor,
}

/// Returns true if a position sees a key.
pub(super) fn sees(window: Window, query: usize, key: usize) -> bool {
    let near = match window {
        Window::Full => true,
        Window::Blockwise { length } => key / (length / 2) + 1 >= query / (length / 2),
        Window::Sliding { keys } => key + keys > query,
    };
    key <= query && near
}

impl CausalStack<'_> {
    /// Runs all layers over one text: (len, D) → (len, D).
    pub(super) fn forward(&self, x: &Tensor) -> CandleResult<Tensor> {
        let len = x.dim(0)?;
        let pairs = Pairs { distances: distances(len)?, mask: mask(len, |query, key| sees(self.window, query, key))? };
        let mut x = self.add_positions(x)?;
        for index in 0..self.layers {
            let prefix = format!("{}.{index}", self.name);
            let norm = |name: &str, x: &Tensor| self.tensors.layer_norm(&format!("{prefix}.{name}.norm"), x, self.eps);
            x = match self.norms {
                Norms::AfterSublayers => {
                    let x = norm("attention", &(&x + self.attention(&prefix, &x, &pairs)?)?)?;
                    norm("feed_forward", &(&x + self.feed_forward(&prefix, &x)?)?)?
                }
                Norms::BeforeSublayers => {
                    let x = (&x + self.attention(&prefix, &norm("attention", &x)?, &pairs)?)?;
                    (&x + self.feed_forward(&prefix, &norm("feed_forward", &x)?)?)?
                }
            };
        }
        Ok(x)
    }

    /// Adds absolute positions, if the scheme has them.
    fn add_positions(&self, x: &Tensor) -> CandleResult<Tensor> {
        let len = x.dim(0)?;
        match self.shape.position {
            PositionKind::Sinusoidal => {
                x + sinusoids(&self.tensors.get("position.frequency")?.to_vec1()?, FIRST_SINUSOID, len)?
            }
            PositionKind::Learned { .. } => x + self.tensors.get("position.table")?.narrow(0, 0, len)?,
            _ => Ok(x.clone()),
        }
    }

    fn attention(&self, prefix: &str, x: &Tensor, pairs: &Pairs) -> CandleResult<Tensor> {
        let StackShape { heads, head_dim, .. } = self.shape;
        let qkv = self.tensors.linear(&format!("{prefix}.attention.qkv"), x)?; // (len, 3·I)
        let mut outputs = Vec::with_capacity(heads);
        for head in 0..heads {
            let queries = head_of(&qkv, head, head_dim)?; // (len, head_dim)
            let keys = head_of(&qkv, heads + head, head_dim)?;
            let values = head_of(&qkv, 2 * heads + head, head_dim)?;
            let scores = (self.scores(prefix, head, &queries, &keys, pairs)? + &pairs.mask)?; // (len, len)
            outputs.push(softmax(&scores)?.matmul(&values)?);
        }
        let mut mixed = Tensor::cat(&outputs, 1)?; // (len, I)
        if self.shape.sub_norms {
            let name = format!("{prefix}.attention.inner_norm");
            mixed = self.tensors.layer_norm(&name, &mixed, self.eps)?;
        }
        self.tensors.linear(&format!("{prefix}.attention.output"), &mixed) // (len, D)
    }

    /// Returns the scores of one head, positions included: (len, len).
    fn scores(
        &self,
        prefix: &str,
        head: usize,
        queries: &Tensor,
        keys: &Tensor,
        pairs: &Pairs,
    ) -> CandleResult<Tensor> {
        let root = (self.shape.head_dim as f64).sqrt();
        let len = queries.dim(0)?;
        let content = || products(queries, keys)? / root;
        match self.shape.position {
            PositionKind::TransformerXl => {
                let bias = |name: &str| self.tensors.get(&format!("position.{name}"))?.narrow(0, head, 1); // (1, head_dim)
                let vectors = self.distance_vectors(prefix, head, len)?; // (len, head_dim), by distance
                let content = products(&queries.broadcast_add(&bias("content_bias")?)?, keys)?;
                let by_distance = products(&queries.broadcast_add(&bias("distance_bias")?)?, &vectors)?;
                (content + by_distance.gather(&pairs.distances, 1)?)? / root
            }
            PositionKind::Rotary => {
                products(&rotate(queries, ROTARY_BASE, None)?, &rotate(keys, ROTARY_BASE, None)?)? / root
            }
            PositionKind::Xpos { scale_base } => {
                let queries = rotate(queries, ROTARY_BASE, Some(scale_base))?;
                products(&queries, &rotate(keys, ROTARY_BASE, Some(-scale_base))?)? / root
            }
            PositionKind::Alibi => {
                let slopes = self.tensors.get("position.slopes")?.to_vec1::<f64>()?;
                let slope = slopes.get(head).copied().unwrap_or_default();
                let fall = table(len, len, |query, key| slope * query.saturating_sub(key) as f64)?;
                content()? - fall
            }
            PositionKind::Buckets { count, max_distance } => {
                let buckets = t5_buckets(len, count, max_distance)?;
                content()? + bucket_bias(self.tensors.get("position.bias")?, head, &buckets, &pairs.distances)?
            }
            PositionKind::Sinusoidal | PositionKind::Learned { .. } | PositionKind::None => content(),
        }
    }

    /// Returns Transformer-XL's R_d of one head, for each distance d below `len`: (len, head_dim). The angle d·f is rounded to f32,
    /// as in the official code.
    fn distance_vectors(&self, prefix: &str, head: usize, len: usize) -> CandleResult<Tensor> {
        let frequencies: Vec<f64> = self.tensors.get("position.inverse_frequency")?.to_vec1()?;
        let projected =
            self.tensors.matrix(&format!("{prefix}.attention.distance.weight"), &sinusoids(&frequencies, 0, len)?)?;
        head_of(&projected, head, self.shape.head_dim)
    }

    fn feed_forward(&self, prefix: &str, x: &Tensor) -> CandleResult<Tensor> {
        let hidden = activate(self.shape.activation, &self.tensors.linear(&format!("{prefix}.feed_forward.up"), x)?)?; // (len, F)
        let hidden = match self.shape.sub_norms {
            true => self.tensors.layer_norm(&format!("{prefix}.feed_forward.inner_norm"), &hidden, self.eps)?,
            false => hidden,
        };
        self.tensors.linear(&format!("{prefix}.feed_forward.down"), &hidden) // (len, D)
    }
}

/// Returns sin(n·f), then cos(n·f), for `count` positions n from `first` on: (count, 2 · frequencies). Each product n·f is rounded
/// to f32, as in the official codes.
pub(super) fn sinusoids(frequencies: &[f64], first: usize, count: usize) -> CandleResult<Tensor> {
    let half = frequencies.len();
    table(count, 2 * half, |row, column| {
        let angle = f64::from((first + row) as f32 * frequencies[column % half] as f32);
        if column < half { angle.sin() } else { angle.cos() }
    })
}

/// Rotates each pair of neighbouring numbers by n·θ_m, where θ_m follows from `base`, n = 0, 1 …: (len, head_dim). With xPos's B it also multiplies the pair by
/// ζ_m^(n/B), counted from the middle of the text so that the powers stay in range; a negative B divides.
pub(super) fn rotate(x: &Tensor, base: f64, scale_base: Option<f64>) -> CandleResult<Tensor> {
    let (len, head_dim) = x.dims2()?;
    let angle = |n: usize, m: usize| n as f64 * base.powf(-2.0 * m as f64 / head_dim as f64);
    let scale = |n: usize, m: usize| {
        let zeta = (2.0 * m as f64 + XPOS_GAMMA * head_dim as f64) / ((1.0 + XPOS_GAMMA) * head_dim as f64);
        scale_base.map_or(1.0, |scale| zeta.powf((n as f64 - len as f64 / 2.0) / scale))
    };
    rotate_by(x, angle, scale)
}

/// Rotates pair m of each position n by its angle, and scales it: (len, head_dim) → (len, head_dim).
pub(super) fn rotate_by(
    x: &Tensor,
    angle: impl Fn(usize, usize) -> f64,
    scale: impl Fn(usize, usize) -> f64,
) -> CandleResult<Tensor> {
    let (len, head_dim) = x.dims2()?;
    let pairs = head_dim / 2;
    let turn =
        |part: fn(f64) -> f64| table(len, pairs, |n, m| part(angle(n, m)) * scale(n, m))?.reshape((len, pairs, 1));
    let cos = turn(f64::cos)?;
    let sin = turn(f64::sin)?;
    let x = x.reshape((len, pairs, 2))?;
    let a = x.narrow(2, 0, 1)?.contiguous()?;
    let b = x.narrow(2, 1, 1)?.contiguous()?;
    let turned_a = ((&a * &cos)? - (&b * &sin)?)?;
    let turned_b = ((&b * &cos)? + (&a * &sin)?)?;
    Tensor::cat(&[turned_a, turned_b], 2)?.reshape((len, head_dim))
}
