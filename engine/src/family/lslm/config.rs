//! The `architecture` of a latent segment model and its bounds.

use crate::{
    decode::contract::BoundaryMode,
    error::Result,
    family::parts::check::Check,
    nn::{pooling::Pooling, position::buckets::Buckets},
};
use serde::Deserialize;
use std::path::Path;

/// The latent segment model's `architecture` in `config.json`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Architecture {
    /// The token encoder, which reads symbols.
    pub token: T5Shape,
    /// The context encoder, which reads segments.
    pub context: T5Shape,
    /// The segment decoder.
    pub decoder: T5Shape,
    /// Added to the mean square in every norm.
    pub norm_eps: f32,
    /// Reduces a segment to one vector.
    pub pooling: Pooling,
    /// Ends segments of a prompt.
    pub boundaries: Predictor,
    /// Changes a segment vector's width to the context encoder's.
    pub widths: Widths,
    /// True if token encoder and decoder share one embedding.
    pub shared_embedding: bool,
    /// True if the head is the decoder's embedding.
    pub tied_head: bool,
    /// Ends segments of generated text, unless the request names another mode.
    pub driver: Driver,
}

/// One of the three stacks.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct T5Shape {
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
    /// Buckets B of distances.
    pub buckets: usize,
    /// The first distance that may share the last bucket.
    pub max_distance: usize,
    /// True if half of the buckets are for later keys, which a causal stack does not have.
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
    /// Least probability of a boundary.
    pub threshold: f32,
}

/// The kind of predictor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PredictorKind {
    /// A learned predictor on the token encoder's output.
    Learned,
}

/// Changes a segment vector's width from the token encoder's to the context encoder's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Widths {
    /// The widths are equal.
    Equal,
    /// A matrix between pooling and context encoder.
    Projection,
    /// The first layer's attention changes the width, without a residual around it.
    FirstLayer,
}

impl Widths {
    /// Its name in a checkpoint.
    fn name(self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::Projection => "projection",
            Self::FirstLayer => "first-layer",
        }
    }
}

/// Ends segments of generated text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Driver {
    /// The decoder, by generating its end symbol.
    Nxt,
    /// The predictor, as in a prompt.
    Predictor,
}

impl Driver {
    /// Both boundary modes, the default first.
    pub fn modes(self) -> Vec<BoundaryMode> {
        match self {
            Self::Nxt => vec![BoundaryMode::Nxt, BoundaryMode::Predictor],
            Self::Predictor => vec![BoundaryMode::Predictor, BoundaryMode::Nxt],
        }
    }
}

impl T5Shape {
    /// Width I of all heads together.
    pub fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Maps distances to buckets.
    pub fn buckets(&self) -> Buckets {
        Buckets { count: self.buckets, max_distance: self.max_distance, bidirectional: self.bidirectional_buckets }
    }

    /// Checks every bound of the stack `name`.
    fn validate(&self, name: &str, check: Check<'_>) -> Result<()> {
        check.layers(format_args!("{name}.layers"), self.layers)?;
        check.dim(format_args!("{name}.dim"), self.dim)?;
        check.dim(format_args!("{name}.heads"), self.heads)?;
        check.dim(format_args!("{name}.head_dim"), self.head_dim)?;
        check.dim(format_args!("{name}.feed_forward"), self.feed_forward)?;
        check.dim(format_args!("{name}.buckets"), self.buckets)?;
        check.dim(format_args!("{name}.max_distance"), self.max_distance)?;
        let min_buckets = if self.bidirectional_buckets { 4 } else { 2 };
        if self.buckets < min_buckets {
            let expected = format!("at least {min_buckets}, half of them for single distances");
            return check.fail(format_args!("{name}.buckets"), expected, self.buckets);
        }
        if !self.buckets().is_valid() {
            let expected = "more than the distances that have buckets of their own";
            return check.fail(format_args!("{name}.max_distance"), expected, self.max_distance);
        }
        check.distance_table(format_args!("{name}.max_distance"), self.buckets().table_numbers(self.heads))
    }

    /// An upper bound on the numbers in its tensors, `None` if it overflows; `memory` is the width of a decoder's memory.
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
    /// The validated architecture.
    pub architecture: Architecture,
    /// Vocabulary size V.
    pub symbols: usize,
}

impl LslmBlueprint {
    /// Checks every bound of the architecture. The error names the first key that is out of bounds, and the bound.
    pub(super) fn validate(&self, file: &Path) -> Result<()> {
        let a = &self.architecture;
        let check = Check { file };
        for (name, stack) in self.stacks() {
            stack.validate(name, check)?;
        }
        check.fraction("norm_eps", a.norm_eps)?;
        check.dim("boundaries.hidden", a.boundaries.hidden)?;
        check.fraction("boundaries.threshold", a.boundaries.threshold)?;
        let [token, context, decoder] = self.stacks().map(|(_, stack)| stack.dim);
        if (a.widths == Widths::Equal) != (token == context) {
            let expected = match token == context {
                true => "equal, as both widths are",
                false => "projection or first-layer, as widths differ",
            };
            let expected = format!("{expected} (token encoder {token}, context encoder {context})");
            return check.fail("widths", expected, a.widths.name());
        }
        if a.shared_embedding && token != decoder {
            let expected = format!("false: token encoder and decoder have widths {token} and {decoder}");
            return check.fail("shared_embedding", expected, true);
        }
        check.parameters("token.dim", self.parameters())
    }

    /// The three stacks with their names.
    pub fn stacks(&self) -> [(&'static str, &T5Shape); 3] {
        let a = &self.architecture;
        [("token", &a.token), ("context", &a.context), ("decoder", &a.decoder)]
    }

    /// An upper bound on the numbers in all tensors; `None` if it overflows.
    fn parameters(&self) -> Option<usize> {
        let a = &self.architecture;
        let mut sum = 0usize;
        for (name, stack) in self.stacks() {
            let memory = (name == "decoder").then_some(a.context.dim);
            sum = sum.checked_add(stack.parameters(memory)?)?;
        }
        let embeddings_and_heads =
            self.symbols.checked_mul(a.token.dim.checked_add(a.decoder.dim)?.checked_mul(2)?.checked_add(1)?)?;
        let between = a.token.dim.checked_mul(a.context.dim.checked_add(a.boundaries.hidden.checked_mul(2)?)?)?;
        sum.checked_add(embeddings_and_heads)?.checked_add(between)
    }

    /// Width of the input of a layer's attention.
    pub fn input_width(&self, stack: &str, index: usize) -> usize {
        let a = &self.architecture;
        match stack {
            "token" => a.token.dim,
            "decoder" => a.decoder.dim,
            _ if index == 0 && a.widths == Widths::FirstLayer => a.token.dim,
            _ => a.context.dim,
        }
    }
}
