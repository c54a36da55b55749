//! The `architecture` of a latent segment model: read, bounded, and turned into the list of its tensors.

use super::model::Lslm;
use crate::{
    decode::contract::{BoundaryMode, Model},
    error::{Error, Result},
    family::{
        Blueprint, Init, Parts, TensorSpec,
        checkpoint::{self, Config},
    },
    nn::{pooling::Pooling, position::buckets::Buckets},
};
use serde::Deserialize;
use std::{path::Path, sync::Arc};

/// Bounds far above any model, far below what would overflow a product.
const MAX_LAYERS: usize = 1024;
const MAX_DIM: usize = 1 << 20;
/// The most numbers all tensors may have together: 64 GiB of f32.
const MAX_PARAMETERS: usize = 1 << 34;

/// What `architecture` says.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Architecture {
    /// Reads symbols.
    pub token: StackShape,
    /// Reads segments.
    pub context: StackShape,
    /// Writes segments.
    pub decoder: StackShape,
    /// Added to the mean square in every norm.
    pub norm_eps: f32,
    /// How a segment becomes one vector.
    pub pooling: Pooling,
    /// Where given text ends a segment.
    pub boundaries: Predictor,
    /// How a segment's vector gets the context encoder's width.
    pub widths: Widths,
    /// Whether token encoder and decoder have one embedding.
    pub shared_embedding: bool,
    /// Whether the head is the decoder's embedding.
    pub tied_head: bool,
    /// What ends segments of generated text, unless a request says.
    pub driver: Driver,
}

/// One of the three stacks.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StackShape {
    /// Layers.
    pub layers: usize,
    /// Width D of the residual stream.
    pub dim: usize,
    /// Attention heads H.
    pub heads: usize,
    /// Width h of a head; not necessarily D/H.
    pub head_dim: usize,
    /// Width F of the feed-forward's inner layer.
    pub feed_forward: usize,
    /// Buckets of distances B.
    pub buckets: usize,
    /// The first distance that may share the last bucket.
    pub max_distance: usize,
    /// Whether half of the buckets are for keys that come later, of which there are none.
    pub bidirectional_buckets: bool,
}

/// The boundary predictor: b = Σ W₂·relu(W₁·h), a boundary where sigmoid(b) reaches the threshold.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Predictor {
    /// Always `learned`.
    pub kind: PredictorKind,
    /// Width of its hidden layer.
    pub hidden: usize,
    /// A boundary from this probability on.
    pub threshold: f32,
}

/// The one kind of predictor there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PredictorKind {
    /// On the token encoder's output.
    Learned,
}

/// How a segment's vector, of the token encoder's width, gets the context encoder's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Widths {
    /// They are equal.
    Equal,
    /// A matrix between pooling and context encoder.
    Projection,
    /// The first layer's attention takes one and gives the other, without a residual around it.
    FirstLayer,
}

impl Widths {
    /// As a checkpoint names it.
    fn name(self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::Projection => "projection",
            Self::FirstLayer => "first-layer",
        }
    }
}

/// What ends segments of generated text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Driver {
    /// The decoder, by its mark.
    Nxt,
    /// The predictor, as in given text.
    Predictor,
}

impl Driver {
    /// Both, this one first.
    pub fn modes(self) -> Vec<BoundaryMode> {
        let (nxt, predictor) = (BoundaryMode::Nxt, BoundaryMode::Predictor);
        if self == Self::Nxt { vec![nxt, predictor] } else { vec![predictor, nxt] }
    }
}

impl StackShape {
    /// Width I of all heads together.
    pub fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    /// How distances fall into buckets.
    pub fn buckets(&self) -> Buckets {
        Buckets { count: self.buckets, max_distance: self.max_distance, bidirectional: self.bidirectional_buckets }
    }

    /// The first key that is out of bounds: its name, what was expected, what was found.
    fn wrong(&self) -> Option<(&'static str, String, usize)> {
        let bounded = [
            ("layers", self.layers, MAX_LAYERS),
            ("dim", self.dim, MAX_DIM),
            ("heads", self.heads, MAX_DIM),
            ("head_dim", self.head_dim, MAX_DIM),
            ("feed_forward", self.feed_forward, MAX_DIM),
            ("buckets", self.buckets, MAX_DIM),
            ("max_distance", self.max_distance, MAX_DIM),
        ];
        if let Some((key, value, most)) = bounded.into_iter().find(|(_, value, most)| !(1..=*most).contains(value)) {
            return Some((key, format!("1 to {most}"), value));
        }
        let least = if self.bidirectional_buckets { 4 } else { 2 };
        if self.buckets < least {
            return Some(("buckets", format!("at least {least}, half of them for single distances"), self.buckets));
        }
        let sound = self.buckets().is_valid();
        (!sound).then(|| {
            ("max_distance", "more than the distances that have buckets of their own".into(), self.max_distance)
        })
    }

    /// An upper bound on the numbers in its tensors, if it fits; `memory` is the width that a decoder attends to.
    fn parameters(&self, memory: Option<usize>) -> Option<usize> {
        let inner = self.heads.checked_mul(self.head_dim)?;
        let width = self.dim.max(memory.unwrap_or(0)).checked_add(1)?;
        let attentions = if memory.is_some() { 8 } else { 4 };
        let rows = inner.checked_mul(attentions)?.checked_add(self.feed_forward.checked_mul(2)?)?.checked_add(4)?;
        let bias = self.buckets.checked_mul(self.heads)?;
        rows.checked_mul(width)?.checked_mul(self.layers)?.checked_add(bias)?.checked_add(width)
    }
}

/// A validated latent segment model.
#[derive(Debug, Clone)]
pub struct LslmBlueprint {
    /// What was asked for.
    pub architecture: Architecture,
    /// Vocabulary size V.
    pub symbols: usize,
}

/// Reads a latent segment model's architecture.
///
/// # Errors
/// A key that is unknown, missing, of the wrong type or out of bounds, named with its bound; a vocabulary without marks.
pub fn read(config: &Config, file: &Path) -> Result<Box<dyn Blueprint>> {
    let architecture: Architecture = checkpoint::architecture(config, file)?;
    let vocabulary = config.vocabulary(file)?;
    if vocabulary.specials().is_none() {
        return Err(Error::checkpoint(file, "vocabulary.specials", "the ids of the model's marks", "nothing"));
    }
    let blueprint = LslmBlueprint { architecture, symbols: vocabulary.len() };
    blueprint.validate(file)?;
    Ok(Box::new(blueprint))
}

impl LslmBlueprint {
    fn validate(&self, file: &Path) -> Result<()> {
        let a = &self.architecture;
        let wrong = |key: &str, expected: String, found: String| {
            Err(Error::checkpoint(file, format!("architecture.{key}"), expected, found))
        };
        for (name, stack) in self.stacks() {
            if let Some((key, expected, found)) = stack.wrong() {
                return wrong(&format!("{name}.{key}"), expected, found.to_string());
            }
        }
        if !(a.norm_eps > 0.0 && a.norm_eps < 1.0) {
            return wrong("norm_eps", "above 0, below 1".into(), a.norm_eps.to_string());
        }
        if !(1..=MAX_DIM).contains(&a.boundaries.hidden) {
            return wrong("boundaries.hidden", format!("1 to {MAX_DIM}"), a.boundaries.hidden.to_string());
        }
        if !(a.boundaries.threshold > 0.0 && a.boundaries.threshold < 1.0) {
            return wrong("boundaries.threshold", "above 0, below 1".into(), a.boundaries.threshold.to_string());
        }
        let (token, context, decoder) = (a.token.dim, a.context.dim, a.decoder.dim);
        if (a.widths == Widths::Equal) != (token == context) {
            let expected = if token == context {
                "equal, as both widths are"
            } else {
                "projection or first-layer, as widths differ"
            };
            return wrong(
                "widths",
                format!("{expected} (token encoder {token}, context encoder {context})"),
                a.widths.name().into(),
            );
        }
        if a.shared_embedding && token != decoder {
            let expected = format!("false: token encoder and decoder have widths {token} and {decoder}");
            return wrong("shared_embedding", expected, "true".into());
        }
        match self.parameters() {
            Some(count) if count <= MAX_PARAMETERS => Ok(()),
            count => {
                let found = count.map_or("a product beyond 64 bits".into(), |count| count.to_string());
                wrong("token.dim", format!("at most {MAX_PARAMETERS} numbers in all tensors"), found)
            }
        }
    }

    /// The three stacks with their names.
    pub fn stacks(&self) -> [(&'static str, &StackShape); 3] {
        let a = &self.architecture;
        [("token", &a.token), ("context", &a.context), ("decoder", &a.decoder)]
    }

    /// An upper bound on the numbers in all tensors, if it fits.
    fn parameters(&self) -> Option<usize> {
        let a = &self.architecture;
        let mut sum = 0usize;
        for (name, stack) in self.stacks() {
            let memory = (name == "decoder").then_some(a.context.dim);
            sum = sum.checked_add(stack.parameters(memory)?)?;
        }
        let ends = self.symbols.checked_mul(a.token.dim.checked_add(a.decoder.dim)?.checked_mul(2)?.checked_add(1)?)?;
        let between = a.token.dim.checked_mul(a.context.dim.checked_add(a.boundaries.hidden.checked_mul(2)?)?)?;
        sum.checked_add(ends)?.checked_add(between)
    }

    /// The width that a layer's attention takes.
    pub fn taken(&self, stack: &str, index: usize) -> usize {
        let a = &self.architecture;
        match stack {
            "token" => a.token.dim,
            "decoder" => a.decoder.dim,
            _ if index == 0 && a.widths == Widths::FirstLayer => a.token.dim,
            _ => a.context.dim,
        }
    }

    fn layer(&self, stack: &str, shape: &StackShape, index: usize, out: &mut Vec<TensorSpec>) {
        let (dim, inner, wide) = (shape.dim, shape.inner(), shape.feed_forward);
        let taken = self.taken(stack, index);
        let at = |name: &str| format!("{stack}.{index}.{name}");
        for name in ["query", "key", "value"] {
            out.push(matrix(at(&format!("attention.{name}.weight")), inner, taken));
        }
        out.push(matrix(at("attention.output.weight"), dim, inner));
        out.push(norm(at("attention.norm.weight"), taken));
        if stack == "decoder" {
            let memory = self.architecture.context.dim;
            for (name, inputs) in [("query", dim), ("key", memory), ("value", memory)] {
                out.push(matrix(at(&format!("memory.{name}.weight")), inner, inputs));
            }
            out.push(matrix(at("memory.output.weight"), dim, inner));
            out.push(norm(at("memory.norm.weight"), dim));
        }
        out.push(matrix(at("feed_forward.up.weight"), wide, dim));
        out.push(matrix(at("feed_forward.down.weight"), dim, wide));
        out.push(norm(at("feed_forward.norm.weight"), dim));
    }
}

impl Blueprint for LslmBlueprint {
    fn tensors(&self) -> Vec<TensorSpec> {
        let a = &self.architecture;
        let embedding = |name: &str, dim| TensorSpec {
            name: name.into(),
            shape: vec![self.symbols, dim],
            init: Init::Normal(0.0, 1.0),
            trained: true,
        };
        let mut out = if a.shared_embedding {
            vec![embedding("embedding.weight", a.token.dim)]
        } else {
            vec![embedding("token.embedding.weight", a.token.dim), embedding("decoder.embedding.weight", a.decoder.dim)]
        };
        for (name, stack) in self.stacks() {
            (0..stack.layers).for_each(|index| self.layer(name, stack, index, &mut out));
            out.push(matrix(format!("{name}.distance_bias.weight"), stack.buckets, stack.heads));
            out.push(norm(format!("{name}.norm.weight"), stack.dim));
        }
        out.push(matrix("boundary.hidden.weight".into(), a.boundaries.hidden, a.token.dim));
        out.push(matrix("boundary.output.weight".into(), a.token.dim, a.boundaries.hidden));
        if a.widths == Widths::Projection {
            out.push(matrix("context.projection.weight".into(), a.context.dim, a.token.dim));
        }
        if !a.tied_head {
            out.push(matrix("head.weight".into(), self.symbols, a.decoder.dim));
        }
        let bias = Init::Normal(0.0, 0.0);
        out.push(TensorSpec { name: "head.bias".into(), shape: vec![self.symbols], init: bias, trained: true });
        out
    }

    fn shape(&self) -> String {
        let a = &self.architecture;
        let stack = |s: &StackShape| format!("{} × {}", s.layers, s.dim);
        let pooling = match a.pooling {
            Pooling::Mean => "mean pooling".to_owned(),
            Pooling::Last => "0-hops pooling".to_owned(),
            Pooling::Hops(hops) => format!("{hops}-hops pooling"),
        };
        format!(
            "token encoder {}, context encoder {}, segment decoder {}, {pooling}, learned boundaries",
            stack(&a.token),
            stack(&a.context),
            stack(&a.decoder)
        )
    }

    fn build(&self, parts: Parts) -> Result<Arc<dyn Model>> {
        Ok(Arc::new(Lslm::load(self, parts)?))
    }
}

// Deviations of inputs^−½, which keep a sum's size.

fn matrix(name: String, outputs: usize, inputs: usize) -> TensorSpec {
    let init = Init::Normal(0.0, 1.0 / (inputs as f32).sqrt());
    TensorSpec { name, shape: vec![outputs, inputs], init, trained: true }
}

fn norm(name: String, dim: usize) -> TensorSpec {
    TensorSpec { name, shape: vec![dim], init: Init::Normal(1.0, 0.0), trained: true }
}
