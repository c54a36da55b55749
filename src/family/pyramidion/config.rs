//! The `architecture` of an encoder-decoder that pools its document: read, bounded, and turned into the list of its tensors.

use super::{
    attention::{self, Attention},
    model::Pyramidion,
    plan::{Plan, PlanError},
};
use crate::{
    decode::contract::Model,
    error::{Error, Result},
    family::{
        Blueprint, Init, Parts, TensorSpec,
        checkpoint::{self, Config},
        parts::specs::{MAX_PARAMETERS, linear, norm},
        settings::Bounds,
    },
    nn::{Activation, topk::PoolerKind},
};
use serde::Deserialize;
use std::{collections::BTreeMap, path::Path, sync::Arc};

/// Bounds far above any model, far below what would overflow a product.
const MAX_LAYERS: usize = 1024;
const MAX_DIM: usize = 1 << 20;
const MAX_LENGTH: usize = 1 << 24;

/// The ids of the marks, which fairseq's dictionaries all begin with.
pub(super) const MARKS: [u32; 4] = [0, 1, 2, 3];
/// Padding among them.
pub(super) const PAD: u32 = 1;

/// What `architecture` says.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Architecture {
    /// Layers that read.
    pub encoder_layers: usize,
    /// Layers that write.
    pub decoder_layers: usize,
    /// Width D of the residual stream.
    pub dim: usize,
    /// Attention heads H, of D/H numbers each.
    pub heads: usize,
    /// Width F of the feed-forward's inner layer.
    pub feed_forward: usize,
    /// Between the feed-forward's two products.
    pub activation: Activation,
    /// Added to the variance in every LayerNorm.
    pub layer_norm_eps: f32,
    /// Whether norms stand before the sub-layers, with one more at the end of each stack.
    pub pre_norm: bool,
    /// The most tokens of a document, and what shorter ones are padded to.
    pub source_length: usize,
    /// The most tokens that are written, the one that writing starts from included.
    pub target_length: usize,
    /// How the encoder's vectors attend to each other.
    #[serde(default)]
    pub attention: Attention,
    /// Vectors that attend to each other in the encoder, or in its local heads; none if all do.
    pub block: Option<usize>,
    /// What makes fewer vectors of them between layers.
    pub pooling: Pooling,
    /// Whether the decoder's input has positions.
    pub decoder_positions: bool,
    /// Whether embeddings are multiplied by √D before positions are added to them.
    #[serde(default = "always")]
    pub scale_embedding: bool,
    /// Whether short documents are padded: then padding is part of the model, and every document has the same length.
    #[serde(default = "always")]
    pub padded: bool,
}

fn always() -> bool {
    true
}

/// What makes fewer vectors of them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Pooling {
    /// Nothing does.
    None {},
    /// See [`halving`](crate::nn::topk::halving).
    SuccessiveHalving {
        /// Vectors that are left after a layer, by its number from 0.
        lengths: BTreeMap<String, usize>,
        /// Whether the best meets the worst.
        flip_right: bool,
        /// Whether what is left goes back to the document's order.
        sort_back: bool,
        /// Where scores come from.
        #[serde(default)]
        scorer: Scorer,
    },
    /// See [`hard`](crate::nn::topk::hard).
    HardTopK {
        /// As above.
        lengths: BTreeMap<String, usize>,
        /// As above.
        sort_back: bool,
        /// As above.
        #[serde(default)]
        scorer: Scorer,
    },
    /// See [`window`](crate::nn::topk::window).
    Mean {
        /// As above.
        lengths: BTreeMap<String, usize>,
    },
    /// The same with maxima.
    Max {
        /// As above.
        lengths: BTreeMap<String, usize>,
    },
    /// Means of windows between layers, and behind the last layer each place of the document gets its window's vector and what
    /// stood there before the first pooling (Funnel, Dai et al. 2020): the decoder attends to as many as without pooling.
    Funnel {
        /// As above.
        lengths: BTreeMap<String, usize>,
    },
}

/// Where the scores that a pooling chooses by come from (arXiv 2009.05169, appendix A).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Scorer {
    /// σ(w·x + b)
    #[default]
    Linear,
    /// σ(w·tanh(W·x + c) + b)
    Ffn,
    /// σ(x_j)
    Embedding {
        /// j, from 0.
        dimension: usize,
    },
    /// 1 at every so many positions from the first, 0 elsewhere.
    Index {
        /// How many.
        every: usize,
    },
    /// The attention that the vector got in the layer before, summed over heads and queries (PoWER, Goyal et al. 2020).
    Attention,
    /// Uniform noise, a function of the seed, the layer and the place.
    Random {
        /// The seed.
        seed: u64,
    },
}

impl Pooling {
    /// What it is, unless it is nothing.
    pub fn kind(&self) -> Option<PoolerKind> {
        match *self {
            Self::None {} => None,
            Self::SuccessiveHalving { flip_right, sort_back, .. } => {
                Some(PoolerKind::Halving { flip_right, sort_back })
            }
            Self::HardTopK { sort_back, .. } => Some(PoolerKind::HardTopK { sort_back }),
            Self::Mean { .. } | Self::Funnel { .. } => Some(PoolerKind::Mean),
            Self::Max { .. } => Some(PoolerKind::Max),
        }
    }

    /// Vectors that are left after layers.
    pub fn lengths(&self) -> Option<&BTreeMap<String, usize>> {
        match self {
            Self::None {} => None,
            Self::SuccessiveHalving { lengths, .. }
            | Self::HardTopK { lengths, .. }
            | Self::Mean { lengths }
            | Self::Max { lengths }
            | Self::Funnel { lengths } => Some(lengths),
        }
    }

    /// Where scores come from, where something is chosen.
    pub fn scorer(&self) -> Option<Scorer> {
        match self {
            Self::SuccessiveHalving { scorer, .. } | Self::HardTopK { scorer, .. } => Some(*scorer),
            _ => None,
        }
    }
}

/// A validated encoder-decoder.
#[derive(Debug, Clone)]
pub struct PyramidionBlueprint {
    /// What was asked for.
    pub architecture: Architecture,
    /// What the encoder does, layer by layer.
    pub(super) plan: Plan,
    /// Vocabulary size V.
    pub symbols: usize,
}

/// Reads the architecture.
///
/// # Errors
/// A key that is unknown, missing, of the wrong type or out of bounds, named with its bound; lengths that no rule leads to.
pub fn read(config: &Config, file: &Path) -> Result<Box<dyn Blueprint>> {
    let architecture: Architecture = checkpoint::architecture(config, file)?;
    let vocabulary = config.vocabulary(file)?;
    if !vocabulary.is_subword() {
        let expected = "`size`, and `tokenizer` where there is one: this family's symbols are subwords";
        return Err(Error::checkpoint(file, "vocabulary", expected, "characters or bytes"));
    }
    if vocabulary.len() <= MARKS.len() {
        let expected = format!("more than {}: the first ids are marks", MARKS.len());
        return Err(Error::checkpoint(file, "vocabulary.size", expected, vocabulary.len().to_string()));
    }
    let wrong = |PlanError { key, expected, found }: PlanError| {
        Error::checkpoint(file, format!("architecture.{key}"), expected, found)
    };
    check(&architecture, vocabulary.len()).map_err(wrong)?;
    let plan = Plan::of(&architecture).map_err(wrong)?;
    check_generation(config, &architecture, file)?;
    Ok(Box::new(PyramidionBlueprint { architecture, plan, symbols: vocabulary.len() }))
}

fn check(a: &Architecture, symbols: usize) -> Result<(), PlanError> {
    let bounded = [
        ("encoder_layers", a.encoder_layers, MAX_LAYERS),
        ("decoder_layers", a.decoder_layers, MAX_LAYERS),
        ("dim", a.dim, MAX_DIM),
        ("heads", a.heads, MAX_DIM),
        ("feed_forward", a.feed_forward, MAX_DIM),
        ("source_length", a.source_length, MAX_LENGTH),
        ("block", a.block.unwrap_or(1), MAX_LENGTH),
    ];
    if let Some((key, value, most)) = bounded.into_iter().find(|(_, value, most)| !(1..=*most).contains(value)) {
        return Err(PlanError::new(key, format!("1 to {most}"), value));
    }
    if !(2..=MAX_LENGTH).contains(&a.target_length) {
        return Err(PlanError::new("target_length", format!("2 to {MAX_LENGTH}"), a.target_length));
    }
    if !a.dim.is_multiple_of(2) {
        return Err(PlanError::new("dim", "an even number (half sines, half cosines)", a.dim));
    }
    if !a.dim.is_multiple_of(a.heads) {
        return Err(PlanError::new("heads", format!("a divisor of dim, {}", a.dim), a.heads));
    }
    if !(a.layer_norm_eps > 0.0 && a.layer_norm_eps < 1.0) {
        return Err(PlanError::new("layer_norm_eps", "above 0, below 1", a.layer_norm_eps));
    }
    attention::check(a)?;
    match a.pooling.scorer() {
        Some(Scorer::Embedding { dimension }) if dimension >= a.dim => {
            let key = "pooling.scorer.embedding.dimension";
            return Err(PlanError::new(key, format!("0 to {}: one of dim", a.dim - 1), dimension));
        }
        Some(Scorer::Attention) if matches!(a.pooling, Pooling::SuccessiveHalving { .. }) => {
            let expected = "scores near 1, which weights are powers of, or hard-top-k";
            return Err(PlanError::new("pooling.scorer", expected, "attention"));
        }
        Some(Scorer::Index { every: 0 }) => {
            return Err(PlanError::new("pooling.scorer.index.every", "at least 1", 0));
        }
        _ => {}
    }
    match parameters(a, symbols) {
        Some(count) if count <= MAX_PARAMETERS => Ok(()),
        count => {
            let found = count.map_or("a product beyond 64 bits".into(), |count| count.to_string());
            Err(PlanError::new("dim", format!("at most {MAX_PARAMETERS} numbers in all tensors"), found))
        }
    }
}

/// An upper bound on the numbers in all tensors, if it fits.
fn parameters(a: &Architecture, symbols: usize) -> Option<usize> {
    // a decoder's layer has two attentions, a pooled encoder's a scorer of up to one matrix
    let rows = a.dim.checked_mul(10)?.checked_add(a.feed_forward.checked_mul(2)?)?;
    let layer = rows.checked_mul(a.dim.checked_add(2)?)?.checked_add(a.attention.rotations(a.dim)?)?;
    layer.checked_mul(a.encoder_layers + a.decoder_layers)?.checked_add(symbols.checked_mul(a.dim)?)
}

/// Whether what a request gets by default can be.
fn check_generation(config: &Config, a: &Architecture, file: &Path) -> Result<()> {
    let Some(generation) = config.generation else { return Ok(()) };
    let wrong = |key: &str, expected: String, found: String| {
        Err(Error::checkpoint(file, format!("generation.{key}"), expected, found))
    };
    // the last place is the end mark's
    let most = a.target_length - 1;
    match generation {
        g if !(1..=64).contains(&g.beam) => wrong("beam", "1 to 64".into(), g.beam.to_string()),
        g if !(1..=most).contains(&g.max_tokens) => {
            wrong("max_tokens", format!("1 to {most}: target_length less one"), g.max_tokens.to_string())
        }
        g if g.min_tokens > g.max_tokens => {
            wrong("min_tokens", format!("at most max_tokens, {}", g.max_tokens), g.min_tokens.to_string())
        }
        g if !(-10.0..=10.0).contains(&g.length_penalty) => {
            wrong("length_penalty", "-10 to 10".into(), g.length_penalty.to_string())
        }
        _ => Ok(()),
    }
}

impl PyramidionBlueprint {
    fn layer(&self, out: &mut Vec<TensorSpec>, prefix: &str, cross: bool) {
        let Architecture { dim, feed_forward, .. } = self.architecture;
        if !cross {
            attention::tensors(&self.architecture, out, prefix);
            linear(out, &format!("{prefix}.self_attn.out_proj"), dim, dim);
            norm(out, &format!("{prefix}.self_attn_layer_norm"), dim);
        }
        for attention in ["self_attn", "encoder_attn"].into_iter().take(2 * usize::from(cross)) {
            for part in ["q_proj", "k_proj", "v_proj", "out_proj"] {
                linear(out, &format!("{prefix}.{attention}.{part}"), dim, dim);
            }
            norm(out, &format!("{prefix}.{attention}_layer_norm"), dim);
        }
        linear(out, &format!("{prefix}.fc1"), feed_forward, dim);
        linear(out, &format!("{prefix}.fc2"), dim, feed_forward);
        norm(out, &format!("{prefix}.final_layer_norm"), dim);
    }
}

impl Blueprint for PyramidionBlueprint {
    fn tensors(&self) -> Vec<TensorSpec> {
        let a = &self.architecture;
        let (name, init) = ("encoder.embed_tokens.weight".into(), Init::Normal(0.0, (a.dim as f32).powf(-0.5)));
        let mut out = vec![TensorSpec { name, shape: vec![self.symbols, a.dim], init, trained: true }];
        (0..a.encoder_layers).for_each(|index| self.layer(&mut out, &format!("encoder.layers.{index}"), false));
        for layer in self.plan.pooled_layers() {
            let prefix = format!("encoder.pooler.scorer.{layer}");
            match a.pooling.scorer() {
                Some(Scorer::Ffn) => {
                    linear(&mut out, &format!("{prefix}.dense"), a.dim, a.dim);
                    linear(&mut out, &format!("{prefix}.out_proj"), 1, a.dim);
                }
                Some(Scorer::Linear) => linear(&mut out, &prefix, 1, a.dim),
                _ => {}
            }
        }
        (0..a.decoder_layers).for_each(|index| self.layer(&mut out, &format!("decoder.layers.{index}"), true));
        if a.pre_norm {
            norm(&mut out, "encoder.layer_norm", a.dim);
            norm(&mut out, "decoder.layer_norm", a.dim);
        }
        out
    }

    fn shape(&self) -> String {
        let a = &self.architecture;
        let stacks = format!("encoder {} × {}, decoder {} × {}", a.encoder_layers, a.dim, a.decoder_layers, a.dim);
        let block = a.block.map_or("full attention".into(), |block| format!("blocks of {block}"));
        let lengths: Vec<String> = self.plan.lengths().iter().map(ToString::to_string).collect();
        let block = match (a.attention.name(), a.block) {
            (None, _) => block,
            (Some(name), None) => format!("{name} attention"),
            (Some(name), Some(_)) => format!("{name} attention beside {block}"),
        };
        format!("{stacks}, {block}, {} vectors", lengths.join(" → "))
    }

    fn reads_documents(&self) -> bool {
        true
    }

    fn bounds(&self) -> Bounds {
        let why = "no more were foreseen in training (target_length)";
        Bounds { longest: Some((self.architecture.target_length, why)), endless: false }
    }

    fn build(&self, parts: Parts) -> Result<Arc<dyn Model>> {
        Ok(Arc::new(Pyramidion::load(self, parts)?))
    }
}
