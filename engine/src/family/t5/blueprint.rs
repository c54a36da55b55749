//! The encoder-decoder as a [`Blueprint`]: its tensors, its limits, and how the model is built.

use super::{
    config::{Architecture, EncoderAttention, SPECIALS},
    model::T5,
};
use crate::{
    decode::contract::Model,
    error::{Error, Result},
    family::{
        Blueprint, Parts, TensorSpec,
        checkpoint::{self, Config},
        parts::{check::Check, generation::check_generation},
        settings::Bounds,
    },
};
use std::{path::Path, sync::Arc};

/// Embedding of both sides.
pub(super) const EMBEDDING: &str = "shared.weight";

/// A validated encoder-decoder.
#[derive(Debug, Clone)]
pub struct T5Blueprint {
    /// The validated architecture.
    pub architecture: Architecture,
    /// Vocabulary size V.
    pub symbols: usize,
}

/// Reads an encoder-decoder's architecture. Fails if a key is unknown, missing, of the wrong type or out of bounds.
pub fn read(config: &Config, file: &Path) -> Result<Box<dyn Blueprint>> {
    let architecture: Architecture = checkpoint::architecture(config, file)?;
    let vocabulary = config.vocabulary(file)?;
    if !vocabulary.is_subword() && !vocabulary.is_sparse() {
        let expected = "`size`, with `tokenizer`, or with `bytes` and `first_byte`: this family has ids without text";
        return Err(Error::checkpoint(file, "vocabulary", expected, "characters or bytes"));
    }
    if vocabulary.len() <= SPECIALS.unknown as usize {
        let expected = format!("more than {}: the first ids are special symbols", SPECIALS.unknown + 1);
        return Err(Error::checkpoint(file, "vocabulary.size", expected, vocabulary.len().to_string()));
    }
    architecture.validate(vocabulary.len(), Check { file })?;
    check_generation(config, architecture.target_length, file)?;
    let prefix = config.generation.as_ref().map_or("", |generation| &generation.prefix);
    let prefix_len =
        if prefix.is_empty() { 0 } else { vocabulary.encode("generation.prefix", prefix, usize::MAX)?.len() };
    if prefix_len + 2 > architecture.source_length {
        let expected = format!("at most {} tokens: source_length less two", architecture.source_length - 2);
        return Err(Error::checkpoint(file, "generation.prefix", expected, format!("{prefix_len} tokens")));
    }
    Ok(Box::new(T5Blueprint { architecture, symbols: vocabulary.len() }))
}

/// Names and sizes of one stack's tensors.
pub(super) struct StackTensors<'a> {
    /// `encoder` or `decoder`.
    pub(super) name: &'a str,
    pub(super) layers: usize,
    /// Index of the feed-forward among a block's sub-layers.
    pub(super) feed_forward: usize,
}

impl T5Blueprint {
    /// Returns the two stacks.
    pub(super) fn stacks(&self) -> [StackTensors<'static>; 2] {
        let a = &self.architecture;
        [
            StackTensors { name: "encoder", layers: a.encoder_layers, feed_forward: 1 },
            StackTensors { name: "decoder", layers: a.decoder_layers, feed_forward: 2 },
        ]
    }

    fn stack(&self, out: &mut Vec<TensorSpec>, stack: &StackTensors<'_>) {
        let Architecture { dim, feed_forward, gated, .. } = self.architecture;
        let is_decoder = stack.name == "decoder";
        for block in 0..stack.layers {
            let key = |layer: usize, name: &str| format!("{}.block.{block}.layer.{layer}.{name}.weight", stack.name);
            self.attention(out, &|name| key(0, &format!("SelfAttention.{name}")));
            if block == 0 {
                out.push(self.bias(key(0, "SelfAttention.relative_attention_bias")));
            }
            if !is_decoder && self.architecture.attention.group().is_some() {
                let name = "SelfAttention.global_input_layer_norm";
                out.push(norm(key(0, name), dim));
                if block == 0 {
                    out.push(self.bias(key(0, "SelfAttention.global_relative_attention_bias")));
                }
            }
            out.push(norm(key(0, "layer_norm"), dim));
            if is_decoder {
                self.attention(out, &|name| key(1, &format!("EncDecAttention.{name}")));
                out.push(norm(key(1, "layer_norm"), dim));
            }
            let inner: &[&str] = if gated { &["wi_0", "wi_1"] } else { &["wi"] };
            for name in inner {
                out.push(matrix(key(stack.feed_forward, &format!("DenseReluDense.{name}")), feed_forward, dim));
            }
            out.push(matrix(key(stack.feed_forward, "DenseReluDense.wo"), dim, feed_forward));
            out.push(norm(key(stack.feed_forward, "layer_norm"), dim));
        }
        out.push(norm(format!("{}.final_layer_norm.weight", stack.name), dim));
    }

    fn attention(&self, out: &mut Vec<TensorSpec>, key: &dyn Fn(&str) -> String) {
        let Architecture { dim, head_dim, .. } = self.architecture;
        let inner = self.architecture.inner();
        // Scores are unscaled, so the queries are small.
        let deviation = 1.0 / ((dim * head_dim) as f32).sqrt();
        out.push(TensorSpec::normal(key("q"), vec![inner, dim], 0.0, deviation));
        for name in ["k", "v"] {
            out.push(matrix(key(name), inner, dim));
        }
        out.push(matrix(key("o"), dim, inner));
    }

    /// Returns the spec of a table of numbers for buckets of distances.
    fn bias(&self, name: String) -> TensorSpec {
        let Architecture { dim, buckets, heads, .. } = self.architecture;
        TensorSpec::normal(name, vec![buckets, heads], 0.0, 1.0 / (dim as f32).sqrt())
    }
}

/// Returns the spec of a matrix, whose deviation of inputs^−½ keeps the size of a sum.
fn matrix(name: String, outputs: usize, inputs: usize) -> TensorSpec {
    TensorSpec::normal(name, vec![outputs, inputs], 0.0, 1.0 / (inputs as f32).sqrt())
}

fn norm(name: String, dim: usize) -> TensorSpec {
    TensorSpec::normal(name, vec![dim], 1.0, 0.0)
}

impl Blueprint for T5Blueprint {
    fn tensors(&self) -> Vec<TensorSpec> {
        let a = &self.architecture;
        let mut out = vec![TensorSpec::normal(EMBEDDING, vec![self.symbols, a.dim], 0.0, 1.0)];
        self.stacks().iter().for_each(|stack| self.stack(&mut out, stack));
        if let Some(deletion) = &a.deletion {
            let key = |name: &str| format!("encoder.block.{}.delete_gate.{name}", deletion.layer);
            out.push(matrix(key("feed_forward.weight"), 1, a.dim));
            out.push(TensorSpec::zeros(key("feed_forward.bias"), vec![1]));
            if deletion.norm {
                out.push(norm(key("layer_norm.weight"), a.dim));
            }
        }
        if !a.tied_head {
            out.push(matrix("lm_head.weight".into(), self.symbols, a.dim));
        }
        out
    }

    fn shape(&self) -> String {
        let a = &self.architecture;
        let attention = match a.attention {
            EncoderAttention::Full => "full attention".into(),
            EncoderAttention::Local { radius } => format!("attention within {radius} tokens"),
            EncoderAttention::TransientGlobal { radius, group } => {
                format!("attention within {radius} tokens and to groups of {group}")
            }
        };
        let deletion =
            a.deletion.map_or_else(String::new, |gate| format!(", tokens deleted before layer {}", gate.layer));
        let stacks = format!("encoder {} × {}, decoder {} × {}", a.encoder_layers, a.dim, a.decoder_layers, a.dim);
        format!("{stacks}, {attention}{deletion}")
    }

    fn reads_documents(&self) -> bool {
        true
    }

    fn has_unpooled_twin(&self) -> bool {
        self.architecture.deletion.is_some()
    }

    fn bounds(&self) -> Bounds {
        Bounds { longest: Some((self.architecture.target_length, "the checkpoint's target_length")), endless: false }
    }

    fn computed_numbers(&self) -> usize {
        self.architecture.table_numbers()
    }

    fn build(&self, parts: Parts) -> Result<Arc<dyn Model>> {
        Ok(Arc::new(T5::load(self, parts)?))
    }
}
