//! What torchscale calls the tensors of a decoder.

use super::arguments::Arguments;
use crate::family::checkpoint::{Init, TensorSpec};
use std::collections::BTreeSet;

/// fairseq's, before every name.
const PREFIX: &str = "decoder.";
const EMBEDDING: &str = "embed_tokens.weight";
const HEAD: &str = "output_projection.weight";
const TABLE: &str = "embed_positions.weight";
const BUCKETS: &str = "self_attn_relative_position.relative_attention_bias.weight";
/// fairseq's first position: the rows before it are its padding's.
const FIRST_POSITION: usize = 2;

/// Whole names.
const MODEL: &[(&str, &str)] = &[
    ("embedding.weight", EMBEDDING),
    ("norm.weight", "layer_norm.weight"),
    ("norm.bias", "layer_norm.bias"),
    ("head.weight", HEAD),
];

/// Within a layer.
const LAYER: &[(&str, &str)] = &[
    ("attention.output", "self_attn.out_proj"),
    ("attention.norm", "self_attn_layer_norm"),
    ("attention.inner_norm", "self_attn.inner_attn_ln"),
    ("feed_forward.up", "ffn.fc1"),
    ("feed_forward.down", "ffn.fc2"),
    ("feed_forward.inner_norm", "ffn.ffn_layernorm"),
    ("feed_forward.norm", "final_layer_norm"),
];

/// Where one of weir's tensors comes from; several parts are stacked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    /// All of an official tensor.
    Whole(String),
    /// Some rows of one.
    Rows {
        /// The tensor.
        name: String,
        /// The first row.
        from: usize,
        /// How many.
        count: usize,
    },
    /// No tensor: it follows from the arguments.
    Given,
}

/// What a checkpoint must hold, seeing what it holds of what it may.
#[derive(Debug)]
pub(super) struct Plan {
    prefix: &'static str,
    specs: Vec<TensorSpec>,
    buckets: usize,
    /// The official names of xPos's scales that are there.
    pub(super) scales: Vec<String>,
    /// The head's official name, where it is tied and there all the same.
    pub(super) tied_head: Option<String>,
    /// The embedding's official name.
    pub(super) embedding: String,
    /// What else may be there, and means nothing to a decoder without fairseq.
    ignored: Vec<TensorSpec>,
    pair_count: usize,
}

impl Plan {
    pub(super) fn new(found: &BTreeSet<String>, specs: &[TensorSpec], arguments: &Arguments) -> Self {
        let prefix = if found.iter().all(|name| name.starts_with(PREFIX)) { PREFIX } else { "" };
        let there = |name: &str| Some(format!("{prefix}{name}")).filter(|name| found.contains(name));
        let of_layer =
            |name: &&String| name.starts_with(&format!("{prefix}layers.")) && name.ends_with(".self_attn.xpos.scale");
        let turned = ["xpos", "rope"].contains(&arguments.position.as_str());
        let scales = found.iter().filter(of_layer).cloned().chain(there("self_attn_xpos.scale"));
        let one = |name: String| spec(name, vec![1]);
        let ignored = ["embed_positions._float_tensor", "version"].into_iter().filter_map(there).map(one);
        Self {
            prefix,
            specs: specs.to_vec(),
            buckets: arguments.rel_pos_buckets.unwrap_or(0),
            scales: scales.filter(|_| turned).collect(),
            tied_head: there(HEAD).filter(|_| arguments.tied),
            embedding: format!("{prefix}{EMBEDDING}"),
            ignored: ignored.collect(),
            pair_count: arguments.d_model / arguments.heads / 2,
        }
    }

    /// Where one of weir's tensors comes from; from itself if the official code has none, so that it is reported as missing.
    pub(super) fn sources(&self, name: &str) -> Vec<Part> {
        let official = |name: &str| format!("{}{name}", self.prefix);
        let rows = || self.specs.iter().find(|spec| spec.name == name).map_or(0, |spec| spec.shape[0]);
        if let Some((_, theirs)) = MODEL.iter().find(|(ours, _)| *ours == name) {
            return vec![Part::Whole(official(theirs))];
        }
        match name {
            "position.slopes" | "position.frequency" => return vec![Part::Given],
            "position.table" => return vec![Part::Rows { name: official(TABLE), from: FIRST_POSITION, count: rows() }],
            "position.bias" => return vec![Part::Rows { name: official(BUCKETS), from: 0, count: rows() }],
            _ => {}
        }
        let mut pieces = name.splitn(3, '.');
        if let (Some("layers"), Some(index), Some(part)) = (pieces.next(), pieces.next(), pieces.next())
            && let Some((part, kind)) = part.rsplit_once('.')
        {
            let whole = |theirs: &str| Part::Whole(official(&format!("layers.{index}.{theirs}.{kind}")));
            if part == "attention.qkv" {
                return ["q", "k", "v"].map(|letter| whole(&format!("self_attn.{letter}_proj"))).into();
            }
            if let Some((_, theirs)) = LAYER.iter().find(|(ours, _)| *ours == part) {
                return vec![whole(theirs)];
            }
        }
        vec![Part::Whole(official(name))]
    }

    /// Every tensor that the checkpoint must hold.
    pub(super) fn official(&self) -> Vec<TensorSpec> {
        let mut all = self.ignored.clone();
        all.extend(self.scales.iter().map(|name| spec(name.clone(), vec![self.pair_count])));
        for ours in &self.specs {
            let parts = self.sources(&ours.name);
            let count = parts.len();
            for part in parts {
                let mut shape = ours.shape.clone();
                match part {
                    Part::Whole(name) => {
                        shape[0] /= count;
                        all.push(spec(name, shape));
                    }
                    Part::Rows { name, from, count } => {
                        shape[0] = if name.ends_with(BUCKETS) { self.buckets } else { from + count };
                        all.push(spec(name, shape));
                    }
                    Part::Given => {}
                }
            }
        }
        if let Some(name) = &self.tied_head
            && let Some(embedding) = self.specs.iter().find(|spec| spec.name == "embedding.weight")
        {
            all.push(spec(name.clone(), embedding.shape.clone()));
        }
        all
    }
}

fn spec(name: String, shape: Vec<usize>) -> TensorSpec {
    TensorSpec { name, shape, init: Init::Normal(0.0, 0.0), trained: true }
}
