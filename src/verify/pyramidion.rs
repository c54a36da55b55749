//! Trainable Representation Pooling (Pietruszka et al. 2022): an encoder with poolings between its layers, and a decoder that
//! attends to the vectors that are left. fairseq's Transformer layers.

use super::{
    Given, Input, NearTie, Outputs, Reference,
    checkpoint::Checkpoint,
    document_attention::{DocumentAttention, HeadInputs, blocks},
    pooling::{LayerPooling, SCORE_EPSILON, ScoreOrder, ScoreSource, Scored},
    stack::sinusoids,
    tensors::{Nonlinearity, Tensors, head_of, mask, products, sigmoid, softmax, table},
};
use crate::{
    decode::{
        document::{KeptVector, PoolingChoice},
        random::{Purpose, uniform},
    },
    error::Result,
};
use candle_core::{Device, Result as CandleResult, Tensor};
use serde::Deserialize;

/// Id of padding in all fairseq dictionaries.
const PAD: u32 = 1;
/// Position of the first token; lower ones belong to padding.
const FIRST_POSITION: usize = 2;
/// Maximum vectors that all attend to each other: every pair has a score in memory.
const MAX_BLOCK: usize = 8192;

#[derive(Deserialize)]
struct Architecture {
    encoder_layers: usize,
    decoder_layers: usize,
    dim: usize,
    heads: usize,
    activation: Nonlinearity,
    layer_norm_eps: f64,
    pre_norm: bool,
    source_length: usize,
    #[serde(default)]
    attention: DocumentAttention,
    block: Option<usize>,
    pooling: LayerPooling,
    decoder_positions: bool,
    #[serde(default = "always")]
    scale_embedding: bool,
    #[serde(default = "always")]
    padded: bool,
}

fn always() -> bool {
    true
}

struct Pyramidion {
    tensors: Tensors,
    architecture: Architecture,
}

/// A document between two layers.
struct Vectors {
    /// (n, D)
    x: Tensor,
    /// The token that each vector came from: (n). Padding is at least the number of tokens.
    origins: Vec<usize>,
    /// Attention weight that each vector received in the last layer, over all heads and queries: (n).
    mass: Vec<f64>,
}

/// The vectors that the decoder attends to, and how they were chosen.
struct EncodedVectors {
    /// (k, D)
    x: Tensor,
    choices: Vec<PoolingChoice>,
    smallest_gap: f64,
    near_ties: Vec<NearTie>,
}

/// Reads the model. Fails if a file cannot be read, or if more vectors attend to each other than fit into memory.
pub(super) fn read(checkpoint: Checkpoint) -> Result<Box<dyn Reference>> {
    let architecture: Architecture = checkpoint.architecture()?;
    let block = architecture.block.unwrap_or(architecture.source_length).min(architecture.source_length);
    if block > MAX_BLOCK {
        let expected = format!("at most {MAX_BLOCK} vectors that attend to each other, to be verified");
        return Err(checkpoint.error("architecture.block", expected, block.to_string()));
    }
    Ok(Box::new(Pyramidion { tensors: checkpoint.tensors()?, architecture }))
}

impl Reference for Pyramidion {
    fn forward(&self, input: &Input, given: Given<'_>) -> CandleResult<Outputs> {
        let encoded = self.encode(&input.document, given.swapped)?; // (k, D)
        let mut x = self.embed(&input.symbols)?; // (len, D)
        if self.architecture.decoder_positions {
            x = (x + self.positions(FIRST_POSITION, input.symbols.len())?)?;
        }
        for layer in 0..self.architecture.decoder_layers {
            x = self.decoder_layer(&format!("decoder.layers.{layer}"), x, &encoded.x)?;
        }
        let x = self.final_norm("decoder", x)?;
        let logits = self.tensors.matrix("encoder.embed_tokens.weight", &x)?; // (len, V)
        let EncodedVectors { choices, smallest_gap, near_ties, .. } = encoded;
        Ok(Outputs { logits: logits.flatten_all()?.to_vec1()?, choices, smallest_gap, near_ties, ..Outputs::default() })
    }
}

impl Pyramidion {
    /// Returns the embeddings of tokens, multiplied by √D if the model does so: (len, D).
    fn embed(&self, tokens: &[u32]) -> CandleResult<Tensor> {
        let scale = if self.architecture.scale_embedding { (self.architecture.dim as f64).sqrt() } else { 1.0 };
        self.tensors.rows("encoder.embed_tokens.weight", tokens)? * scale
    }

    /// Returns fairseq's sinusoids, whose frequencies are rounded to f32: (count, D).
    fn positions(&self, first: usize, count: usize) -> CandleResult<Tensor> {
        let half = self.architecture.dim / 2;
        let step = (10_000f64.ln() / half.saturating_sub(1).max(1) as f64) as f32;
        let frequencies: Vec<f64> = (0..half).map(|i| f64::from((i as f32 * -step).exp())).collect();
        sinusoids(&frequencies, first, count)
    }

    /// Runs the encoder with its poolings. Near ties that are `swapped` change places.
    fn encode(&self, tokens: &[u32], swapped: &[NearTie]) -> CandleResult<EncodedVectors> {
        let a = &self.architecture;
        let length = if a.padded { a.source_length } else { tokens.len() };
        let padded: Vec<u32> = (0..length).map(|position| tokens.get(position).copied().unwrap_or(PAD)).collect();
        let mut v = Vectors { x: self.embed_document(&padded)?, origins: (0..length).collect(), mass: Vec::new() };
        // Vanilla encoders mask padding; all others treat it as tokens.
        let masks = a.block.is_none() && matches!(a.pooling, LayerPooling::None);
        let hide = |&token: &u32| if token == PAD { f64::NEG_INFINITY } else { 0.0 };
        let hidden = Tensor::new(padded.iter().map(hide).collect::<Vec<f64>>(), &Device::Cpu)?;
        let hidden = (masks && padded.contains(&PAD)).then_some(hidden);
        // Vectors of the longest document.
        let mut longest = a.source_length;
        let mut factors = 1;
        let mut unpooled: Option<Tensor> = None;
        let mut choices = Vec::new();
        let mut order = ScoreOrder::new(swapped);
        for layer in 0..a.encoder_layers {
            v = self.encoder_layer(layer, v, hidden.as_ref())?; // (n, D)
            let Some(kept) = a.pooling.length_after(layer) else { continue };
            let factor = longest / kept;
            let from = if a.padded { longest } else { v.origins.len().next_multiple_of(factor) };
            let scores = self.scores(layer, &v)?; // (n)
            let pooled = a.pooling.pool(&v.x, scores, from, factor, &mut order)?; // (n, D) → (k, D)
            unpooled.get_or_insert(v.x);
            let Scored { x, scores, winners } = pooled;
            let origin = |&winner: &usize| v.origins.get(winner).copied().unwrap_or(tokens.len() + winner);
            let origins: Vec<usize> = match winners.is_empty() {
                true => (0..from / factor).collect(),
                false => winners.iter().map(origin).collect(),
            };
            if !winners.is_empty() {
                let kept = origins.iter().zip(scores).map(|(&token, score)| KeptVector { token, score: score as f32 });
                choices.push(PoolingChoice { layer, kept: kept.collect() });
            }
            order.pooling += 1;
            v = Vectors { x, origins, mass: Vec::new() };
            longest = kept;
            factors *= factor;
        }
        let x = match (unpooled, &a.pooling) {
            (Some(unpooled), LayerPooling::Funnel { .. }) => {
                let windows: Vec<u32> = (0..unpooled.dim(0)?).map(|position| (position / factors) as u32).collect();
                (unpooled + v.x.index_select(&Tensor::new(windows, &Device::Cpu)?, 0)?)? // (n, D)
            }
            _ => v.x,
        };
        let ScoreOrder { smallest_gap, near_ties, .. } = order;
        Ok(EncodedVectors { x: self.final_norm("encoder", x)?, choices, smallest_gap, near_ties })
    }

    /// Embeds a document. Padding is zero and does not advance the positions: (n, D).
    fn embed_document(&self, tokens: &[u32]) -> CandleResult<Tensor> {
        let mut position = 0;
        let mut rows = Vec::with_capacity(tokens.len());
        for &token in tokens {
            rows.push(position as u32);
            position += usize::from(token != PAD);
        }
        let positions =
            self.positions(FIRST_POSITION, tokens.len())?.index_select(&Tensor::new(rows, &Device::Cpu)?, 0)?;
        let present = table(tokens.len(), 1, |row, _| if tokens[row] == PAD { 0.0 } else { 1.0 })?;
        (self.embed(tokens)? + positions)?.broadcast_mul(&present)
    }

    fn encoder_layer(&self, layer: usize, v: Vectors, hidden: Option<&Tensor>) -> CandleResult<Vectors> {
        let a = &self.architecture;
        let prefix = format!("encoder.layers.{layer}");
        let Vectors { mut x, mut origins, .. } = v;
        let mut len = x.dim(0)?;
        let block = a.block.unwrap_or(len).min(len);
        if a.padded && matches!(a.attention, DocumentAttention::Softmax) {
            // The published code drops what does not fill a block.
            len = len / block * block;
            x = x.narrow(0, 0, len)?;
            origins.truncate(len);
        }
        let mut mass = vec![0.0; len];
        let x = self.residual(&prefix, "self_attn_layer_norm", &x, |x| {
            self.document_attention(&prefix, x, block, hidden, &mut mass)
        })?;
        let x = self.feed_forward(&prefix, &x)?;
        Ok(Vectors { x, origins, mass })
    }

    /// Attention of an encoder layer: (n, D) → (n, D).
    fn document_attention(
        &self,
        prefix: &str,
        x: &Tensor,
        block: usize,
        hidden: Option<&Tensor>,
        mass: &mut [f64],
    ) -> CandleResult<Tensor> {
        let Architecture { dim, heads, attention, .. } = self.architecture;
        let head_dim = dim / heads;
        let local = attention.local_heads(heads);
        let project = |part: &str| self.tensors.linear(&format!("{prefix}.self_attn.{part}"), x); // (n, D)
        let queries = project("q_proj")?;
        let values = project("v_proj")?;
        // Heads that hash have no keys of their own.
        let hashes = matches!(attention, DocumentAttention::Lsh { .. });
        let keys = if hashes && local == 0 { queries.clone() } else { project("k_proj")? };
        let mut outputs = Vec::with_capacity(heads);
        for head in 0..heads {
            let shares_keys = hashes && head >= local;
            let inputs = HeadInputs {
                queries: head_of(&queries, head, head_dim)?,
                keys: head_of(if shares_keys { &queries } else { &keys }, head, head_dim)?,
                values: head_of(&values, head, head_dim)?,
            };
            outputs.push(match head.checked_sub(local) {
                None => blocks(&inputs, block, hidden, mass)?,
                Some(global) if hashes => {
                    let rotations = self.tensors.get(&format!("{prefix}.self_attn.rotations"))?.get(global)?;
                    attention.global_head(&inputs, Some(&rotations))?
                }
                Some(_) => attention.global_head(&inputs, None)?,
            });
        }
        self.tensors.linear(&format!("{prefix}.self_attn.out_proj"), &Tensor::cat(&outputs, 1)?)
    }

    /// Returns the scores by which the pooling after `layer` selects: (n). Empty if it selects nothing.
    fn scores(&self, layer: usize, v: &Vectors) -> CandleResult<Vec<f64>> {
        let prefix = format!("encoder.pooler.scorer.{layer}");
        let positions = 0..v.origins.len();
        let logits = match self.architecture.pooling.scorer() {
            None => return Ok(Vec::new()),
            Some(ScoreSource::Attention) => return Ok(v.mass.clone()),
            Some(ScoreSource::Index { every }) => {
                return Ok(positions.map(|position| if position % every == 0 { 1.0 } else { 0.0 }).collect());
            }
            Some(ScoreSource::Random { seed }) => {
                let seed = seed.wrapping_add(layer as u64);
                return Ok(positions.map(|position| f64::from(uniform(seed, Purpose::Scores, position))).collect());
            }
            Some(ScoreSource::Linear) => self.tensors.linear(&prefix, &v.x)?, // (n, 1)
            Some(ScoreSource::Ffn) => {
                let inner = self.tensors.linear(&format!("{prefix}.dense"), &v.x)?.tanh()?; // (n, D)
                self.tensors.linear(&format!("{prefix}.out_proj"), &inner)?
            }
            Some(ScoreSource::Embedding { dimension }) => v.x.narrow(1, dimension, 1)?.contiguous()?,
        };
        sigmoid(&logits)?.affine(1.0, SCORE_EPSILON)?.flatten_all()?.to_vec1()
    }

    fn decoder_layer(&self, prefix: &str, x: Tensor, encoded: &Tensor) -> CandleResult<Tensor> {
        let len = x.dim(0)?;
        let causal = mask(len, |query, key| key <= query)?;
        let x = self
            .residual(prefix, "self_attn_layer_norm", &x, |x| self.attend(prefix, "self_attn", x, x, Some(&causal)))?;
        let attend = |x: &Tensor| self.attend(prefix, "encoder_attn", x, encoded, None);
        let x = self.residual(prefix, "encoder_attn_layer_norm", &x, attend)?;
        self.feed_forward(prefix, &x)
    }

    /// Attention of the decoder from `x`, (len, D), to `seen`, (keys, D).
    fn attend(
        &self,
        prefix: &str,
        name: &str,
        x: &Tensor,
        seen: &Tensor,
        mask: Option<&Tensor>,
    ) -> CandleResult<Tensor> {
        let Architecture { dim, heads, .. } = self.architecture;
        let head_dim = dim / heads;
        let project = |part: &str, x: &Tensor| self.tensors.linear(&format!("{prefix}.{name}.{part}"), x);
        let queries = (project("q_proj", x)? / (head_dim as f64).sqrt())?;
        let keys = project("k_proj", seen)?;
        let values = project("v_proj", seen)?;
        let head = |head: usize| {
            let scores = products(&head_of(&queries, head, head_dim)?, &head_of(&keys, head, head_dim)?)?; // (len, keys)
            let scores = match mask {
                Some(mask) => (scores + mask)?,
                None => scores,
            };
            softmax(&scores)?.matmul(&head_of(&values, head, head_dim)?)
        };
        let outputs = (0..heads).map(head).collect::<CandleResult<Vec<_>>>()?;
        project("out_proj", &Tensor::cat(&outputs, 1)?)
    }

    fn feed_forward(&self, prefix: &str, x: &Tensor) -> CandleResult<Tensor> {
        self.residual(prefix, "final_layer_norm", x, |x| {
            let hidden = self.architecture.activation.apply(&self.tensors.linear(&format!("{prefix}.fc1"), x)?)?; // (n, F)
            self.tensors.linear(&format!("{prefix}.fc2"), &hidden)
        })
    }

    /// Adds a sub-layer's output to its input, with the norm before the sub-layer or after the sum.
    fn residual(
        &self,
        prefix: &str,
        norm: &str,
        x: &Tensor,
        sublayer: impl FnOnce(&Tensor) -> CandleResult<Tensor>,
    ) -> CandleResult<Tensor> {
        let norm =
            |x: &Tensor| self.tensors.layer_norm(&format!("{prefix}.{norm}"), x, self.architecture.layer_norm_eps);
        if self.architecture.pre_norm { x + sublayer(&norm(x)?)? } else { norm(&(x + sublayer(x)?)?) }
    }

    /// Applies the norm after a stack's last layer, if norms precede the sub-layers.
    fn final_norm(&self, stack: &str, x: Tensor) -> CandleResult<Tensor> {
        match self.architecture.pre_norm {
            true => self.tensors.layer_norm(&format!("{stack}.layer_norm"), &x, self.architecture.layer_norm_eps),
            false => Ok(x),
        }
    }
}
