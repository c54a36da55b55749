//! torchscale's names of a decoder's tensors.

use super::arguments::Arguments;
use crate::family::{checkpoint::TensorSpec, convert::converted::source_name};
use std::collections::BTreeSet;

/// fairseq's prefix of every name.
const PREFIX: &str = "decoder.";
const EMBEDDING: &str = "embed_tokens.weight";
const HEAD: &str = "output_projection.weight";
const TABLE: &str = "embed_positions.weight";
const BUCKETS: &str = "self_attn_relative_position.relative_attention_bias.weight";
/// fairseq's first position: the rows before it belong to padding.
const FIRST_POSITION: usize = 2;

/// Complete names.
const MODEL: &[(&str, &str)] = &[
    ("embedding.weight", EMBEDDING),
    ("norm.weight", "layer_norm.weight"),
    ("norm.bias", "layer_norm.bias"),
    ("head.weight", HEAD),
];

/// Names within a layer.
const LAYER: &[(&str, &str)] = &[
    ("attention.output", "self_attn.out_proj"),
    ("attention.norm", "self_attn_layer_norm"),
    ("attention.inner_norm", "self_attn.inner_attn_ln"),
    ("feed_forward.up", "ffn.fc1"),
    ("feed_forward.down", "ffn.fc2"),
    ("feed_forward.inner_norm", "ffn.ffn_layernorm"),
    ("feed_forward.norm", "final_layer_norm"),
];

/// A source of one of weir's tensors; several parts are concatenated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TensorSource {
    Complete(String),
    Rows {
        name: String,
        from: usize,
        count: usize,
    },
    /// No tensor: the arguments determine it.
    Derived,
}

/// The official tensors that a checkpoint must hold, optional ones only if it has them.
#[derive(Debug)]
pub(super) struct TensorMap {
    prefix: &'static str,
    specs: Vec<TensorSpec>,
    buckets: usize,
    pub(super) scales: Vec<String>,
    /// Official name of the head, if it is tied and in the checkpoint nevertheless.
    pub(super) tied_head: Option<String>,
    pub(super) embedding: String,
    /// Tensors of fairseq in the checkpoint that do not affect the decoder.
    ignored: Vec<TensorSpec>,
    pair_count: usize,
}

impl TensorMap {
    pub(super) fn new(found: &BTreeSet<String>, specs: &[TensorSpec], arguments: &Arguments) -> Self {
        let prefix = if found.iter().all(|name| name.starts_with(PREFIX)) { PREFIX } else { "" };
        let present = |name: &str| Some(format!("{prefix}{name}")).filter(|name| found.contains(name));
        let layer_scale =
            |name: &&String| name.starts_with(&format!("{prefix}layers.")) && name.ends_with(".self_attn.xpos.scale");
        let is_rotary = ["xpos", "rope"].contains(&arguments.position.as_str());
        let scales = found.iter().filter(layer_scale).cloned().chain(present("self_attn_xpos.scale"));
        let ignored = ["embed_positions._float_tensor", "version"].into_iter().filter_map(present);
        Self {
            prefix,
            specs: specs.to_vec(),
            buckets: arguments.rel_pos_buckets.unwrap_or(0),
            scales: scales.filter(|_| is_rotary).collect(),
            tied_head: present(HEAD).filter(|_| arguments.tied),
            embedding: format!("{prefix}{EMBEDDING}"),
            ignored: ignored.map(|name| TensorSpec::zeros(name, vec![1])).collect(),
            pair_count: arguments.d_model / arguments.heads / 2,
        }
    }

    /// Sources of one of weir's tensors; its own name if the official code has none, so that it is reported as missing.
    pub(super) fn sources(&self, name: &str) -> Vec<TensorSource> {
        let official = |name: &str| format!("{}{name}", self.prefix);
        let rows = || self.specs.iter().find(|spec| spec.name == name).map_or(0, |spec| spec.shape[0]);
        if let Some(source) = source_name(MODEL, name) {
            return vec![TensorSource::Complete(official(source))];
        }
        match name {
            "position.slopes" | "position.frequency" => return vec![TensorSource::Derived],
            "position.table" => {
                return vec![TensorSource::Rows { name: official(TABLE), from: FIRST_POSITION, count: rows() }];
            }
            "position.bias" => return vec![TensorSource::Rows { name: official(BUCKETS), from: 0, count: rows() }],
            _ => {}
        }
        let mut pieces = name.splitn(3, '.');
        if let (Some("layers"), Some(index), Some(part)) = (pieces.next(), pieces.next(), pieces.next())
            && let Some((part, kind)) = part.rsplit_once('.')
        {
            let complete = |source: &str| TensorSource::Complete(official(&format!("layers.{index}.{source}.{kind}")));
            if part == "attention.qkv" {
                return ["q", "k", "v"].map(|letter| complete(&format!("self_attn.{letter}_proj"))).into();
            }
            if let Some(source) = source_name(LAYER, part) {
                return vec![complete(source)];
            }
        }
        vec![TensorSource::Complete(official(name))]
    }

    pub(super) fn official(&self) -> Vec<TensorSpec> {
        let mut all = self.ignored.clone();
        all.extend(self.scales.iter().map(|name| TensorSpec::zeros(name, vec![self.pair_count])));
        for spec in &self.specs {
            let parts = self.sources(&spec.name);
            let count = parts.len();
            for part in parts {
                let mut shape = spec.shape.clone();
                match part {
                    TensorSource::Complete(name) => {
                        shape[0] /= count;
                        all.push(TensorSpec::zeros(name, shape));
                    }
                    TensorSource::Rows { name, from, count } => {
                        shape[0] = if name.ends_with(BUCKETS) { self.buckets } else { from + count };
                        all.push(TensorSpec::zeros(name, shape));
                    }
                    TensorSource::Derived => {}
                }
            }
        }
        if let Some(name) = &self.tied_head
            && let Some(embedding) = self.specs.iter().find(|spec| spec.name == "embedding.weight")
        {
            all.push(TensorSpec::zeros(name, embedding.shape.clone()));
        }
        all
    }
}
