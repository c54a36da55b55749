//! A layer of T5, in the families that have such layers: its tensors, their names in Hugging Face's transformers, and loading.

use crate::checkpoint::TensorSpec;
use crate::family::parts::Tensors;
use crate::nn::Activation;
use crate::nn::attention::{Cross, FeedForward};
use crate::nn::t5::T5Layer;
use weir_kernels::error::Result;

/// Dimensions of a layer.
#[derive(Debug, Clone, Copy)]
pub struct T5LayerShape {
    /// Width of its input.
    pub inputs: usize,
    /// Width D of its output.
    pub dim: usize,
    /// Attention heads H.
    pub heads: usize,
    /// Width h of a head.
    pub head_dim: usize,
    /// Width of the memory that cross-attention reads, in a decoder.
    pub memory: Option<usize>,
    /// Inner width F of the feed-forward.
    pub feed_forward: usize,
    /// Nonlinearity of the feed-forward.
    pub activation: Activation,
    /// True if the feed-forward has a gate (v1.1).
    pub gated: bool,
    /// True if `weir init` divides queries by √h, because scores are not divided.
    pub small_queries: bool,
}

impl T5LayerShape {
    /// Appends the tensors, whose parts `name` names; `more` follow the matrices of self-attention.
    pub fn tensors(&self, out: &mut Vec<TensorSpec>, name: &dyn Fn(&str) -> String, more: Vec<TensorSpec>) {
        let Self { inputs, dim, memory, feed_forward, .. } = *self;
        self.attention(out, &|part| name(&format!("attention.{part}")), inputs, inputs);
        out.extend(more);
        out.push(norm(name("attention.norm"), inputs));
        if let Some(memory) = memory {
            self.attention(out, &|part| name(&format!("memory.{part}")), dim, memory);
            out.push(norm(name("memory.norm"), dim));
        }
        if self.gated {
            out.push(matrix(name("feed_forward.gate"), feed_forward, dim));
        }
        out.push(matrix(name("feed_forward.up"), feed_forward, dim));
        out.push(matrix(name("feed_forward.down"), dim, feed_forward));
        out.push(norm(name("feed_forward.norm"), dim));
    }

    fn attention(&self, out: &mut Vec<TensorSpec>, name: &dyn Fn(&str) -> String, inputs: usize, keys: usize) {
        let inner = self.heads * self.head_dim;
        let divisor = if self.small_queries { self.head_dim } else { 1 };
        let deviation = 1.0 / ((inputs * divisor) as f32).sqrt();
        out.push(TensorSpec::normal(format!("{}.weight", name("query")), vec![inner, inputs], 0.0, deviation));
        out.push(matrix(name("key"), inner, keys));
        out.push(matrix(name("value"), inner, keys));
        out.push(matrix(name("output"), self.dim, inner));
    }

    /// Loads the layer. Fails if a tensor is missing, or if memory runs out.
    pub fn load(&self, tensors: &mut Tensors<'_>, name: &dyn Fn(&str) -> String) -> Result<T5Layer> {
        let Self { inputs, dim, memory, feed_forward, activation, .. } = *self;
        let inner = self.heads * self.head_dim;
        let mut cross = |memory: usize| {
            Ok(Cross {
                norm: tensors.rms_norm(name("memory.norm"))?,
                query: tensors.matrix(&[name("memory.query")], dim)?,
                memory: tensors.matrix(&["memory.key", "memory.value"].map(name), memory)?,
                output: tensors.matrix(&[name("memory.output")], inner)?,
            })
        };
        Ok(T5Layer {
            cross: memory.map(&mut cross).transpose()?,
            attention_norm: tensors.rms_norm(name("attention.norm"))?,
            qkv: tensors.matrix(&["attention.query", "attention.key", "attention.value"].map(name), inputs)?,
            output: tensors.matrix(&[name("attention.output")], inner)?,
            feed_forward: FeedForward {
                norm: tensors.rms_norm(name("feed_forward.norm"))?,
                activation,
                gate: self.gated.then(|| tensors.matrix(&[name("feed_forward.gate")], dim)).transpose()?,
                up: tensors.matrix(&[name("feed_forward.up")], dim)?,
                down: tensors.matrix(&[name("feed_forward.down")], feed_forward)?,
            },
        })
    }
}

/// Returns the name in transformers of a layer's part, within the block.
pub fn transformers_name(part: &str, decoder: bool, gated: bool) -> String {
    let (group, part) = part.split_once('.').unwrap_or_default();
    let (layer, module) = match group {
        "attention" => (0, "SelfAttention"),
        "memory" => (1, "EncDecAttention"),
        _ => (if decoder { 2 } else { 1 }, "DenseReluDense"),
    };
    let matrix = match part {
        "query" => "q",
        "key" => "k",
        "value" => "v",
        "output" => "o",
        "gate" => "wi_0",
        "up" if gated => "wi_1",
        "up" => "wi",
        "down" => "wo",
        _ => return format!("layer.{layer}.layer_norm"),
    };
    format!("layer.{layer}.{module}.{matrix}")
}

/// Returns the spec of a matrix, whose deviation of inputs^−½ keeps the size of a sum.
pub fn matrix(name: impl Into<String>, outputs: usize, inputs: usize) -> TensorSpec {
    TensorSpec::normal(name.into() + ".weight", vec![outputs, inputs], 0.0, 1.0 / (inputs as f32).sqrt())
}

/// Returns the spec of a norm.
pub fn norm(name: impl Into<String>, dim: usize) -> TensorSpec {
    TensorSpec::normal(name.into() + ".weight", vec![dim], 1.0, 0.0)
}
