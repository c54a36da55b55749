//! Decoders: LeX (Sun et al. 2023) and its baselines, GPT-2. One causal stack with norms before the sub-layers.

use super::{
    Given, Input, Outputs, Reference,
    checkpoint::Checkpoint,
    stack::{CausalStack, LayerShape, Norms, Reach},
    tensors::Tensors,
};
use crate::error::Result;
use candle_core::{Result as CandleResult, Tensor};
use serde::Deserialize;

#[derive(Deserialize)]
struct Architecture {
    layers: usize,
    #[serde(flatten)]
    shape: LayerShape,
    window: Reach,
    scale_embedding: bool,
    tied: bool,
}

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

/// Returns the mean attention score before the softmax at each distance, over the heads and queries of each layer (LeX, eq. 13).
/// Distances that no query sees are left out. Fails if a file cannot be read.
pub fn mean_scores(checkpoint: Checkpoint, symbols: &[u32]) -> Result<CandleResult<Vec<Vec<f64>>>> {
    let decoder = Decoder::read(checkpoint)?;
    let mut scores = Vec::new();
    let layers = decoder.run(symbols, |head| scores.push(head.to_vec2::<f64>())).and_then(|_| {
        let scores = scores.into_iter().collect::<CandleResult<Vec<_>>>()?; // (layers · heads, len, len)
        Ok(scores.chunks(decoder.architecture.shape.heads).map(mean_by_distance).collect())
    });
    Ok(layers)
}

/// Scores of one layer (heads, len, len) → their mean at each distance.
fn mean_by_distance(heads: &[Vec<Vec<f64>>]) -> Vec<f64> {
    let len = heads.first().map_or(0, Vec::len);
    let mean = |distance: usize| {
        let pairs = heads.iter().flat_map(|head| (distance..len).map(move |query| head[query][query - distance]));
        let seen: Vec<f64> = pairs.filter(|score| score.is_finite()).collect();
        (!seen.is_empty()).then(|| seen.iter().sum::<f64>() / seen.len() as f64)
    };
    (0..len).map_while(mean).collect()
}

impl Decoder {
    fn read(checkpoint: Checkpoint) -> Result<Self> {
        let architecture = checkpoint.architecture()?;
        let start = checkpoint.vocabulary()?.specials().map(|specials| specials.start);
        Ok(Self { tensors: checkpoint.tensors()?, architecture, start })
    }

    /// Embeds a text, and runs all layers: (len, D). `record` receives the attention scores.
    fn run(&self, symbols: &[u32], record: impl FnMut(&Tensor)) -> CandleResult<Tensor> {
        let Architecture { layers, shape, window, scale_embedding, .. } = &self.architecture;
        let symbols: Vec<u32> = self.start.iter().chain(symbols).copied().collect();
        let embedded = self.tensors.rows("embedding.weight", &symbols)?; // (len, D)
        let scale = if *scale_embedding { (shape.dim as f64).sqrt() } else { 1.0 };
        let stack = CausalStack {
            tensors: &self.tensors,
            name: "layers",
            layers: *layers,
            shape,
            reach: *window,
            norms: Norms::BeforeSublayers,
        };
        stack.forward_with_scores(&(embedded * scale)?, record)
    }
}

impl Reference for Decoder {
    fn forward(&self, input: &Input, _: Given<'_>) -> CandleResult<Outputs> {
        let Architecture { shape, tied, .. } = &self.architecture;
        let x = self.run(&input.symbols, |_| ())?; // (len, D)
        let x = self.tensors.layer_norm("norm", &x, shape.layer_norm_eps)?;
        let logits = self.tensors.matrix(if *tied { "embedding.weight" } else { "head.weight" }, &x)?; // (len, V)
        Ok(Outputs { logits: logits.flatten_all()?.to_vec1()?, smallest_gap: f64::INFINITY, ..Outputs::default() })
    }
}
