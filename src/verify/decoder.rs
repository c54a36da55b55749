//! Decoders: LeX (Sun et al. 2023) and its baselines, GPT-2. One causal stack with norms before the sub-layers.

use super::{
    Given, Input, Outputs, Reference,
    checkpoint::Checkpoint,
    stack::{CausalStack, LayerShape, Norms, Reach},
    tensors::Tensors,
};
use crate::error::Result;
use candle_core::Result as CandleResult;
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
    let architecture = checkpoint.architecture()?;
    let start = checkpoint.vocabulary()?.specials().map(|specials| specials.start);
    Ok(Box::new(Decoder { tensors: checkpoint.tensors()?, architecture, start }))
}

impl Reference for Decoder {
    fn forward(&self, input: &Input, _: Given<'_>) -> CandleResult<Outputs> {
        let Architecture { layers, shape, window, scale_embedding, tied } = &self.architecture;
        let symbols: Vec<u32> = self.start.iter().chain(&input.symbols).copied().collect();
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
        let x = stack.forward(&(embedded * scale)?)?; // (len, D)
        let x = self.tensors.layer_norm("norm", &x, shape.layer_norm_eps)?;
        let logits = self.tensors.matrix(if *tied { "embedding.weight" } else { "head.weight" }, &x)?; // (len, V)
        Ok(Outputs { logits: logits.flatten_all()?.to_vec1()?, smallest_gap: f64::INFINITY, ..Outputs::default() })
    }
}
