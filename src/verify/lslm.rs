//! Latent Segment Language Models: token encoder, boundary predictor, pooling, context encoder, segment decoder. The stacks are
//! those of T5 (Raffel et al. 2020) with causal masks.

use crate::verify::tensors::{
    Tensors, attend, bucket_bias, closed, distances, log_sum_exp, mask, pool_segments, sigmoid, softmax, t5_buckets,
};
use crate::verify::{Checkpoint, Given, Input, Outputs, Reference};
use candle_core::{Result as CandleResult, Tensor, bail};
use weir_kernels::error::{Error, Result};
use weir_models::family::lslm::{Architecture, T5Shape, Widths};
use weir_models::{contract::SymbolBoundary, text::SpecialSymbols};

struct Lslm {
    tensors: Tensors,
    architecture: Architecture,
    specials: SpecialSymbols,
}

/// The decoder's keys and values of all closed segments in one layer: (segments, I) each.
struct LayerMemory {
    keys: Tensor,
    values: Tensor,
}

/// Reads the model. Fails if a file cannot be read.
pub(super) fn read(checkpoint: Checkpoint) -> Result<Box<dyn Reference>> {
    let architecture = checkpoint.architecture()?;
    let specials = checkpoint.vocabulary()?.specials();
    let specials = specials.ok_or_else(|| Error::Internal("the vocabulary has no marks".into()))?;
    Ok(Box::new(Lslm { tensors: checkpoint.tensors()?, architecture, specials }))
}

impl Reference for Lslm {
    fn forward(&self, input: &Input, given: Given<'_>) -> CandleResult<Outputs> {
        let a = &self.architecture;
        let symbols: Vec<u32> = std::iter::once(self.specials.start).chain(input.symbols.iter().copied()).collect();
        let table = if a.shared_embedding { "embedding.weight" } else { "token.embedding.weight" };
        let hidden = self.stack("token", &a.token, &self.tensors.rows(table, &symbols)?, None)?; // (1 + len, D)
        let (mut own, margins) = self.decide(&hidden)?;
        let given = given.boundaries.map(<[bool]>::to_vec);
        let ends = given.unwrap_or_else(|| own.iter().map(|decision| decision.boundary).collect());
        // The start mark is a segment of its own.
        let ends: Vec<bool> = std::iter::once(true).chain(ends).collect();
        let Some(pooled) = pool_segments(a.pooling, &hidden, &ends)? else { bail!("the start mark closed no segment") };
        let pooled = match a.widths {
            Widths::Projection => self.tensors.matrix("context.projection.weight", &pooled)?, // (segments, C)
            Widths::Equal | Widths::FirstLayer => pooled,
        };
        let context = self.stack("context", &a.context, &pooled, None)?; // (segments, C)
        let memory = self.memory(&context)?;
        let mut logits = Vec::new();
        let closed = closed(&ends);
        let last = closed.len();
        let open = closed.last().map_or(0, |segment| segment.end)..symbols.len();
        // Segment 0 is the start mark, which is not decoded. The open segment is the last one.
        for (segment, positions) in closed.into_iter().chain([open]).enumerate().skip(1) {
            let rows = self.segment_logits(&symbols[positions.clone()], &memory, segment)?; // 1 + symbols rows of (V)
            let count = if segment < last { positions.len() } else { rows.len() };
            rows.iter().take(count).for_each(|row| logits.extend_from_slice(row));
            if let Some(row) = rows.get(count) {
                // The last vector of a closed segment predicts the segment's end.
                let end = self.specials.segment_end as usize;
                let logprob = row[end] - log_sum_exp(row);
                own[positions.end - 2].end_logprob = Some(logprob as f32);
            }
        }
        Ok(Outputs { logits, boundaries: own, margins, ..Outputs::default() })
    }
}

impl Lslm {
    /// Decides for each symbol after the start mark whether a segment ends with it; also returns the decisions' margins.
    fn decide(&self, hidden: &Tensor) -> CandleResult<(Vec<SymbolBoundary>, Vec<f64>)> {
        let threshold = f64::from(self.architecture.boundaries.threshold);
        let inner = self.tensors.matrix("boundary.hidden.weight", hidden)?.relu()?; // (1 + len, boundary width)
        let logits = self.tensors.matrix("boundary.output.weight", &inner)?.sum(1)?; // (1 + len)
        let probabilities: Vec<f64> = sigmoid(&logits)?.to_vec1()?;
        let own = &probabilities[1..];
        let decide = |&p: &f64| SymbolBoundary {
            boundary: p >= threshold,
            probability: Some(p as f32),
            ..SymbolBoundary::default()
        };
        Ok((own.iter().map(decide).collect(), own.iter().map(|p| (p - threshold).abs()).collect()))
    }

    /// Returns the keys and values of the closed segments in each layer of the decoder.
    fn memory(&self, context: &Tensor) -> CandleResult<Vec<LayerMemory>> {
        let project = |layer: usize, part: &str| {
            self.tensors.matrix(&format!("decoder.{layer}.memory.{part}.weight"), context) // (segments, I)
        };
        (0..self.architecture.decoder.layers)
            .map(|layer| Ok(LayerMemory { keys: project(layer, "key")?, values: project(layer, "value")? }))
            .collect()
    }

    /// Decodes segment number `segment`, which sees the segments before it: a row of logits (V) after its mark and after each
    /// symbol.
    fn segment_logits(&self, symbols: &[u32], memory: &[LayerMemory], segment: usize) -> CandleResult<Vec<Vec<f64>>> {
        let a = &self.architecture;
        let fed: Vec<u32> = std::iter::once(self.specials.segment_start).chain(symbols.iter().copied()).collect();
        let table = if a.shared_embedding { "embedding.weight" } else { "decoder.embedding.weight" };
        let x = self.tensors.rows(table, &fed)?; // (1 + symbols, E)
        let x = self.stack("decoder", &a.decoder, &x, Some((memory, segment)))?;
        let logits = match a.tied_head {
            true => self.tensors.matrix(table, &(x / (a.decoder.dim as f64).sqrt())?)?,
            false => self.tensors.matrix("head.weight", &x)?,
        };
        logits.broadcast_add(self.tensors.get("head.bias")?)?.to_vec2() // (1 + symbols, V)
    }

    /// Runs a stack over one sequence. `memory` has the decoder's keys and values, and how many segments it sees.
    fn stack(
        &self,
        name: &str,
        shape: &T5Shape,
        x: &Tensor,
        memory: Option<(&[LayerMemory], usize)>,
    ) -> CandleResult<Tensor> {
        let len = x.dim(0)?;
        let distances = distances(len)?;
        let mask = mask(len, |query, key| key <= query)?;
        let used = if shape.bidirectional_buckets { shape.buckets / 2 } else { shape.buckets };
        let buckets = t5_buckets(len, used, shape.max_distance)?;
        let bias = self.tensors.get(&format!("{name}.distance_bias.weight"))?; // (buckets, heads)
        let bias = |head: usize| bucket_bias(bias, head, &buckets, &distances)? + &mask; // (len, len)
        let mut x = x.clone();
        for layer in 0..shape.layers {
            let prefix = format!("{name}.{layer}");
            let norm = |part: &str, x: &Tensor| {
                self.tensors.rms_norm(&format!("{prefix}.{part}.norm"), x, self.architecture.norm_eps)
            };
            let project = |part: &str, x: &Tensor| self.tensors.matrix(&format!("{prefix}.{part}.weight"), x);
            let normed = norm("attention", &x)?;
            let keys = project("attention.key", &normed)?; // (len, I)
            let values = project("attention.value", &normed)?;
            let queries = project("attention.query", &normed)?;
            // T5 does not divide by √head_dim.
            let weights = |head, scores| softmax(&(scores + bias(head)?)?);
            let mixed = attend(&queries, &keys, &values, shape.head_dim, weights)?;
            let attended = project("attention.output", &mixed)?; // (len, D)
            let changes_width = name == "context" && layer == 0 && self.architecture.widths == Widths::FirstLayer;
            x = if changes_width { attended } else { (x + attended)? };
            if let Some((memory, seen)) = memory {
                let normed = norm("memory", &x)?;
                let keys = memory[layer].keys.narrow(0, 0, seen)?; // (seen, I)
                let values = memory[layer].values.narrow(0, 0, seen)?;
                let queries = project("memory.query", &normed)?;
                let mixed = attend(&queries, &keys, &values, shape.head_dim, |_, scores| softmax(&scores))?;
                x = (x + project("memory.output", &mixed)?)?;
            }
            let hidden = project("feed_forward.up", &norm("feed_forward", &x)?)?.relu()?; // (len, F)
            x = (x + project("feed_forward.down", &hidden)?)?;
        }
        self.tensors.rms_norm(&format!("{name}.norm"), &x, self.architecture.norm_eps)
    }
}
