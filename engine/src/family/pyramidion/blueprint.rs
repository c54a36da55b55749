//! The encoder-decoder as a [`Blueprint`]: its tensors, its limits, and how the model is built.

use super::{
    config::{Architecture, AttentionKind, SPECIAL_IDS, ScorerKind},
    model::Pyramidion,
    plan::EncoderPlan,
};
use crate::{
    decode::contract::Model,
    error::{Error, Result},
    family::{
        Blueprint, Init, Parts, TensorSpec,
        checkpoint::{self, Config},
        parts::{
            check::Check,
            generation::check_generation,
            specs::{linear, norm},
        },
        settings::Bounds,
    },
    nn::ConfigError,
};
use std::{path::Path, sync::Arc};

/// A validated encoder-decoder.
#[derive(Debug, Clone)]
pub struct PyramidionBlueprint {
    /// The validated architecture.
    pub architecture: Architecture,
    /// The encoder's layer groups and poolings.
    pub(super) plan: EncoderPlan,
    /// Vocabulary size V.
    pub symbols: usize,
}

/// Reads an encoder-decoder's architecture. Fails if a key is unknown, missing, of the wrong type or out of bounds, or
/// if no pooling produces the lengths.
pub fn read(config: &Config, file: &Path) -> Result<Box<dyn Blueprint>> {
    let architecture: Architecture = checkpoint::architecture(config, file)?;
    let vocabulary = config.vocabulary(file)?;
    if !vocabulary.is_subword() {
        let expected = "`size`, and optionally `tokenizer`: this family's symbols are subwords";
        return Err(Error::checkpoint(file, "vocabulary", expected, "characters or bytes"));
    }
    if vocabulary.len() <= SPECIAL_IDS.len() {
        let expected = format!("more than {}: the first ids are special symbols", SPECIAL_IDS.len());
        return Err(Error::checkpoint(file, "vocabulary.size", expected, vocabulary.len().to_string()));
    }
    let invalid = |ConfigError { key, expected, found }: ConfigError| {
        Error::checkpoint(file, format!("architecture.{key}"), expected, found)
    };
    architecture.validate(vocabulary.len(), Check { file })?;
    let plan = EncoderPlan::new(&architecture).map_err(invalid)?;
    check_generation(config, architecture.target_length, file)?;
    Ok(Box::new(PyramidionBlueprint { architecture, plan, symbols: vocabulary.len() }))
}

impl PyramidionBlueprint {
    fn encoder_layer(&self, out: &mut Vec<TensorSpec>, prefix: &str) {
        let a = &self.architecture;
        // Global heads that hash have no keys of their own: a key is the query.
        let keys = match a.attention {
            AttentionKind::Lsh { local_heads, .. } => local_heads * (a.dim / a.heads),
            _ => a.dim,
        };
        for (part, outputs) in [("q_proj", a.dim), ("k_proj", keys), ("v_proj", a.dim)] {
            if outputs > 0 {
                linear(out, &format!("{prefix}.self_attn.{part}"), outputs, a.dim);
            }
        }
        if let AttentionKind::Lsh { local_heads, hashes, buckets, .. } = a.attention {
            let shape = vec![a.heads - local_heads, hashes, a.dim / a.heads, buckets / 2];
            let name = format!("{prefix}.self_attn.rotations");
            out.push(TensorSpec { name, shape, init: Init::Normal(0.0, 1.0), trained: false });
        }
        linear(out, &format!("{prefix}.self_attn.out_proj"), a.dim, a.dim);
        norm(out, &format!("{prefix}.self_attn_layer_norm"), a.dim);
        self.feed_forward(out, prefix);
    }

    fn decoder_layer(&self, out: &mut Vec<TensorSpec>, prefix: &str) {
        let dim = self.architecture.dim;
        for attention in ["self_attn", "encoder_attn"] {
            for part in ["q_proj", "k_proj", "v_proj", "out_proj"] {
                linear(out, &format!("{prefix}.{attention}.{part}"), dim, dim);
            }
            norm(out, &format!("{prefix}.{attention}_layer_norm"), dim);
        }
        self.feed_forward(out, prefix);
    }

    fn feed_forward(&self, out: &mut Vec<TensorSpec>, prefix: &str) {
        let Architecture { dim, feed_forward, .. } = self.architecture;
        linear(out, &format!("{prefix}.fc1"), feed_forward, dim);
        linear(out, &format!("{prefix}.fc2"), dim, feed_forward);
        norm(out, &format!("{prefix}.final_layer_norm"), dim);
    }
}

impl Blueprint for PyramidionBlueprint {
    fn tensors(&self) -> Vec<TensorSpec> {
        let a = &self.architecture;
        let deviation = (a.dim as f32).powf(-0.5);
        let mut out =
            vec![TensorSpec::normal("encoder.embed_tokens.weight", vec![self.symbols, a.dim], 0.0, deviation)];
        (0..a.encoder_layers).for_each(|index| self.encoder_layer(&mut out, &format!("encoder.layers.{index}")));
        for layer in self.plan.pooled_layers() {
            let prefix = format!("encoder.pooler.scorer.{layer}");
            match a.pooling.scorer() {
                Some(ScorerKind::Ffn) => {
                    linear(&mut out, &format!("{prefix}.dense"), a.dim, a.dim);
                    linear(&mut out, &format!("{prefix}.out_proj"), 1, a.dim);
                }
                Some(ScorerKind::Linear) => linear(&mut out, &prefix, 1, a.dim),
                _ => {}
            }
        }
        (0..a.decoder_layers).for_each(|index| self.decoder_layer(&mut out, &format!("decoder.layers.{index}")));
        if a.pre_norm {
            norm(&mut out, "encoder.layer_norm", a.dim);
            norm(&mut out, "decoder.layer_norm", a.dim);
        }
        out
    }

    fn shape(&self) -> String {
        let a = &self.architecture;
        let stacks = format!("encoder {} × {}, decoder {} × {}", a.encoder_layers, a.dim, a.decoder_layers, a.dim);
        let attention = match (a.attention.name(), a.block) {
            (None, None) => "full attention".into(),
            (None, Some(block)) => format!("blocks of {block}"),
            (Some(name), None) => format!("{name} attention"),
            (Some(name), Some(block)) => format!("{name} attention next to blocks of {block}"),
        };
        let lengths: Vec<String> = self.plan.lengths().iter().map(ToString::to_string).collect();
        format!("{stacks}, {attention}, {} vectors", lengths.join(" → "))
    }

    fn reads_documents(&self) -> bool {
        true
    }

    fn bounds(&self) -> Bounds {
        let why = "the model has no more positions (target_length)";
        Bounds { longest: Some((self.architecture.target_length, why)), endless: false }
    }

    fn build(&self, parts: Parts) -> Result<Arc<dyn Model>> {
        Ok(Arc::new(Pyramidion::load(self, parts)?))
    }
}
