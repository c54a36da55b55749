//! T5 (Raffel et al. 2020), LongT5's attention (Guo et al. 2022) and MrT5's deletion gate (Kallini et al. 2024). Layers have no
//! biases, and scores are not divided by √head_dim.

use crate::verify::{
    Checkpoint, Given, Input, Outputs, Reference,
    tensors::{Tensors, activate, attend, indices, sigmoid, softmax, softmax_with_sink, t5_buckets, table},
};
use candle_core::{Result as CandleResult, Tensor, bail};
use weir_kernels::error::Result;
use weir_models::contract::{KeptVector, PoolingChoice};
use weir_models::family::t5::{Architecture, Deletion, EncoderAttention, GateFunction};

/// Added to the mean square in the gate's norm.
const GATE_EPS: f64 = 1e-6;

/// Queries whose scores are in memory at a time.
const QUERIES: usize = 256;

struct T5 {
    tensors: Tensors,
    architecture: Architecture,
}

/// The document's vectors between two layers.
struct Vectors {
    /// (n, D)
    x: Tensor,
    /// Position of each vector's token in the document: (n).
    positions: Vec<usize>,
}

/// The encoder's outputs.
struct Encoded {
    /// (n, D)
    x: Tensor,
    /// The gate's own decision, if there is a gate.
    choices: Vec<PoolingChoice>,
    /// Distance of each token's gate value from the threshold.
    margins: Vec<f64>,
}

/// A learned number for each bucket of distances and each head.
struct DistanceBias {
    /// (buckets, heads)
    numbers: Vec<Vec<f64>>,
    /// Bucket of each distance to an earlier or equal position.
    buckets: Vec<u32>,
    /// Added to the bucket of a later position.
    later: usize,
}

/// Reads the model. Fails if a file cannot be read.
pub(super) fn read(checkpoint: Checkpoint) -> Result<Box<dyn Reference>> {
    Ok(Box::new(T5 { tensors: checkpoint.tensors()?, architecture: checkpoint.architecture()? }))
}

impl Reference for T5 {
    fn forward(&self, input: &Input, given: Given<'_>) -> CandleResult<Outputs> {
        let encoded = self.encode(&input.document, given.choices)?; // (n, D)
        let mut x = self.tensors.rows("shared.weight", &input.symbols)?; // (len, D)
        let bias = self.bias("decoder", "relative_attention_bias", input.symbols.len(), false)?;
        let causal = |head: usize, query: usize, key: usize| match key <= query {
            true => bias.number(head, query, key),
            false => f64::NEG_INFINITY,
        };
        for block in 0..self.architecture.decoder_layers {
            let layer = |index: usize| format!("decoder.block.{block}.layer.{index}");
            let normed = self.norm(&layer(0), &x)?;
            x = (x + self.attend(&format!("{}.SelfAttention", layer(0)), &normed, &normed, &causal)?)?;
            let normed = self.norm(&layer(1), &x)?;
            x = (x + self.attend(&format!("{}.EncDecAttention", layer(1)), &normed, &encoded.x, &|_, _, _| 0.0)?)?;
            x = self.feed_forward(&layer(2), x)?;
        }
        let x = self.final_norm("decoder", &x)?;
        let scale = if self.architecture.scale_head { (self.architecture.dim as f64).sqrt().recip() } else { 1.0 };
        let head = if self.architecture.tied_head { "shared.weight" } else { "lm_head.weight" };
        let logits = self.tensors.matrix(head, &(x * scale)?)?; // (len, V)
        let Encoded { choices, margins, .. } = encoded;
        Ok(Outputs { choices, margins, ..Outputs::of_logits(&logits)? })
    }
}

impl T5 {
    /// Runs the encoder. Its gate keeps the `given` tokens if there are any.
    fn encode(&self, tokens: &[u32], given: &[PoolingChoice]) -> CandleResult<Encoded> {
        let a = &self.architecture;
        let embedded = self.tensors.rows("shared.weight", tokens)?; // (n, D)
        let mut v = Vectors { x: embedded, positions: (0..tokens.len()).collect() };
        let bias = self.bias("encoder", "relative_attention_bias", tokens.len(), true)?;
        let mut choices = Vec::new();
        let mut margins = Vec::new();
        for block in 0..a.encoder_layers {
            if let Some(gate) = a.deletion.as_ref().filter(|gate| gate.layer == block) {
                let values = self.gate_values(gate, &v.x)?; // (n)
                margins = values.iter().map(|value| (value - f64::from(gate.threshold)).abs()).collect();
                let own = kept_tokens(gate, &values);
                let kept = given.first().unwrap_or(&own).kept.iter().map(|kept| kept.token);
                v.positions = kept.collect();
                let rows: Vec<u32> = v.positions.iter().map(|&position| position as u32).collect();
                v.x = v.x.index_select(&indices(&rows)?, 0)?; // (n, D) → (kept, D)
                choices.push(own);
            }
            let layer = |index: usize| format!("encoder.block.{block}.layer.{index}");
            let normed = self.norm(&layer(0), &v.x)?; // (n, D)
            let attended = self.document_attention(&layer(0), &normed, &v.positions, &bias)?;
            v.x = self.feed_forward(&layer(1), (v.x + attended)?)?;
        }
        Ok(Encoded { x: self.final_norm("encoder", &v.x)?, choices, margins })
    }

    /// Attention of an encoder layer: (n, D) → (n, D).
    fn document_attention(
        &self,
        layer: &str,
        normed: &Tensor,
        positions: &[usize],
        bias: &DistanceBias,
    ) -> CandleResult<Tensor> {
        let name = format!("{layer}.SelfAttention");
        let len = positions.len();
        let radius = self.architecture.attention.radius().unwrap_or(usize::MAX);
        let near = |head: usize, query: usize, key: usize| match positions[query].abs_diff(positions[key]) <= radius {
            true => bias.number(head, positions[query], positions[key]),
            false => f64::NEG_INFINITY,
        };
        let size = match self.architecture.attention {
            EncoderAttention::TransientGlobal { group, .. } if len >= group => group,
            _ => return self.attend(&name, normed, normed, &near),
        };
        let groups = len / size;
        // The tokens after the last whole group belong to it.
        let group_of = |position: usize| (position / size).min(groups - 1);
        let members = table(groups, len, |group, position| if group_of(position) == group { 1.0 } else { 0.0 })?;
        let sums = members.matmul(normed)?; // (groups, D)
        let norm = format!("{name}.global_input_layer_norm");
        let sums = self.tensors.rms_norm(&norm, &sums, self.architecture.norm_eps)?;
        let side = self.bias("encoder", "global_relative_attention_bias", groups, true)?;
        let seen = Tensor::cat(&[normed, &sums], 0)?; // (n + groups, D)
        self.attend(&name, normed, &seen, &|head, query, key| match key.checked_sub(len) {
            Some(group) => side.number(head, group_of(query), group),
            None => near(head, query, key),
        })
    }

    /// Multi-head attention from `x`, (len, D), to `seen`, (keys, D), with `bias` of head, query and key added to the scores.
    fn attend(
        &self,
        name: &str,
        x: &Tensor,
        seen: &Tensor,
        bias: &dyn Fn(usize, usize, usize) -> f64,
    ) -> CandleResult<Tensor> {
        let Architecture { head_dim, softmax1, .. } = self.architecture;
        let (len, keys) = (x.dim(0)?, seen.dim(0)?);
        let project = |part: &str, x: &Tensor| self.tensors.matrix(&format!("{name}.{part}.weight"), x);
        let all_queries = project("q", x)?; // (len, I)
        let all_keys = project("k", seen)?; // (keys, I)
        let all_values = project("v", seen)?;
        let mut parts = Vec::new();
        for start in (0..len).step_by(QUERIES) {
            let count = QUERIES.min(len - start);
            let weights = |head, scores: Tensor| {
                let bias = table(count, keys, |query, key| bias(head, start + query, key))?;
                let scores = (scores + bias)?; // (count, keys)
                if softmax1 { softmax_with_sink(&scores) } else { softmax(&scores) }
            };
            let queries = all_queries.narrow(0, start, count)?; // (count, I)
            parts.push(attend(&queries, &all_keys, &all_values, head_dim, weights)?);
        }
        project("o", &Tensor::cat(&parts, 0)?) // (len, D)
    }

    /// Returns the gate's value for each of `x`, (n, D).
    fn gate_values(&self, gate: &Deletion, x: &Tensor) -> CandleResult<Vec<f64>> {
        let name = format!("encoder.block.{}.delete_gate", gate.layer);
        let normed = match gate.norm {
            true => self.tensors.rms_norm(&format!("{name}.layer_norm"), x, GATE_EPS)?,
            false => x.clone(),
        };
        let logits = self.tensors.linear(&format!("{name}.feed_forward"), &normed)?; // (n, 1)
        let values = match gate.function {
            GateFunction::ScaledSigmoid { scale } => (sigmoid(&logits.neg()?)? * f64::from(scale))?,
            GateFunction::LogSigmoid => sigmoid(&logits)?.log()?,
        };
        values.flatten_all()?.to_vec1()
    }

    /// Adds the feed-forward of `x` to it; a gate multiplies the inner vectors in v1.1: (len, D) → (len, D).
    fn feed_forward(&self, layer: &str, x: Tensor) -> CandleResult<Tensor> {
        let normed = self.norm(layer, &x)?;
        let matrix = |name: &str, x: &Tensor| self.tensors.matrix(&format!("{layer}.DenseReluDense.{name}.weight"), x);
        let activation = self.architecture.activation;
        let hidden = match self.architecture.gated {
            true => (activate(activation, &matrix("wi_0", &normed)?)? * matrix("wi_1", &normed)?)?, // (len, F)
            false => activate(activation, &matrix("wi", &normed)?)?,
        };
        x + matrix("wo", &hidden)?
    }

    fn norm(&self, layer: &str, x: &Tensor) -> CandleResult<Tensor> {
        self.tensors.rms_norm(&format!("{layer}.layer_norm"), x, self.architecture.norm_eps)
    }

    fn final_norm(&self, stack: &str, x: &Tensor) -> CandleResult<Tensor> {
        self.tensors.rms_norm(&format!("{stack}.final_layer_norm"), x, self.architecture.norm_eps)
    }

    /// Returns the numbers of a stack's first block, for distances below `count`.
    fn bias(&self, stack: &str, name: &str, count: usize, bidirectional: bool) -> CandleResult<DistanceBias> {
        let Architecture { buckets, max_distance, .. } = self.architecture;
        let table = self.tensors.get(&format!("{stack}.block.0.layer.0.SelfAttention.{name}.weight"))?;
        let own = if bidirectional { buckets / 2 } else { buckets };
        if own < 2 {
            bail!("{buckets} buckets are too few");
        }
        Ok(DistanceBias {
            numbers: table.to_vec2()?,
            buckets: t5_buckets(count, own, max_distance)?,
            later: buckets / 2,
        })
    }
}

/// Keeps the tokens whose value is above the gate's threshold. The published code fails if there is none; weir keeps the first token.
fn kept_tokens(gate: &Deletion, values: &[f64]) -> PoolingChoice {
    let is_kept = |token: &usize| values[*token] > f64::from(gate.threshold);
    let mut kept: Vec<usize> = (0..values.len()).filter(is_kept).collect();
    if kept.is_empty() {
        kept.push(0);
    }
    let kept = kept.into_iter().map(|token| KeptVector { token, score: values[token] as f32 });
    PoolingChoice { layer: gate.layer, kept: kept.collect() }
}

impl DistanceBias {
    fn number(&self, head: usize, query: usize, key: usize) -> f64 {
        let bucket = self.buckets[query.abs_diff(key)] as usize;
        self.numbers[bucket + if key > query { self.later } else { 0 }][head]
    }
}
