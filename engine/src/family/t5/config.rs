//! The `architecture` of a checkpoint of this family, and its bounds.

use crate::{
    decode::document::SpecialIds,
    error::Result,
    family::parts::check::Check,
    nn::{Activation, position::buckets::Buckets},
};
use serde::Deserialize;

/// Ids of the special symbols, in all published vocabularies. Padding also starts a text.
pub(super) const SPECIALS: SpecialIds = SpecialIds { start: 0, pad: 0, end: 1, unknown: 2 };

/// Maximum tokens of a document and of a text: far above any model, and within 32 bits.
const MAX_LENGTH: usize = 1 << 24;
/// Maximum buckets, and maximum `max_distance`.
const MAX_BUCKETS: usize = 1 << 16;

/// `architecture` of a checkpoint.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Architecture {
    /// Layers of the encoder.
    pub encoder_layers: usize,
    /// Layers of the decoder.
    pub decoder_layers: usize,
    /// Width D of the residual stream.
    pub dim: usize,
    /// Attention heads H.
    pub heads: usize,
    /// Width of a head; not necessarily D/H.
    pub head_dim: usize,
    /// Inner width F of the feed-forward.
    pub feed_forward: usize,
    /// Nonlinearity of the feed-forward.
    pub activation: Activation,
    /// True if the feed-forward has a gate (v1.1).
    pub gated: bool,
    /// Added to the mean square in every norm.
    pub norm_eps: f32,
    /// Buckets of distances.
    pub buckets: usize,
    /// The first distance that may share the last bucket.
    pub max_distance: usize,
    /// Attention of the encoder.
    #[serde(default)]
    pub attention: EncoderAttention,
    /// The gate that deletes tokens (MrT5).
    pub deletion: Option<Deletion>,
    /// True if every softmax has one more key, of score zero and value zero ("softmax1").
    #[serde(default)]
    pub softmax1: bool,
    /// True if the head is the embedding.
    pub tied_head: bool,
    /// True if the head's input is multiplied by D^−½.
    pub scale_head: bool,
    /// Maximum tokens of a document, the end mark included.
    pub source_length: usize,
    /// Maximum symbols of a text, the start symbol included.
    pub target_length: usize,
}

/// Attention of the encoder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum EncoderAttention {
    /// Every token attends to all tokens.
    #[default]
    Full,
    /// Every token attends to those at a distance of at most `radius`.
    Local {
        /// Largest distance.
        radius: usize,
    },
    /// Like `local`, and every token attends to one global token for each `group` tokens.
    TransientGlobal {
        /// Largest distance.
        radius: usize,
        /// Tokens of a group.
        group: usize,
    },
}

impl EncoderAttention {
    /// Returns the largest distance between two tokens that attend to each other; none if there is no limit.
    pub fn radius(self) -> Option<usize> {
        match self {
            Self::Full => None,
            Self::Local { radius } | Self::TransientGlobal { radius, .. } => Some(radius),
        }
    }

    /// Returns the tokens of a group, if there are global tokens.
    pub fn group(self) -> Option<usize> {
        match self {
            Self::TransientGlobal { group, .. } => Some(group),
            _ => None,
        }
    }
}

/// The gate that deletes tokens.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deletion {
    /// The encoder layer whose input the gate reads, counted from 0.
    pub layer: usize,
    /// Function of the gate's logit.
    pub function: GateFunction,
    /// Tokens are kept if their gate value is above this.
    pub threshold: f32,
    /// True if the gate norms its input.
    pub norm: bool,
}

/// Function from the logit a of a gate to its value.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum GateFunction {
    /// scale · σ(−a), with a negative scale.
    ScaledSigmoid {
        /// The lowest value.
        scale: f32,
    },
    /// ln σ(a).
    LogSigmoid,
}

impl Architecture {
    /// Width I of all heads together.
    pub fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Maps distances to buckets, in the encoder (`bidirectional`) or in the decoder.
    pub fn buckets(&self, bidirectional: bool) -> Buckets {
        Buckets { count: self.buckets, max_distance: self.max_distance, bidirectional }
    }

    /// The numbers in all tables of distances, which are computed when the model is loaded; `usize::MAX` if that overflows.
    pub(super) fn table_numbers(&self) -> usize {
        let encoder = self.buckets(true).two_sided_table_numbers(self.heads);
        let global = if self.attention.group().is_some() { encoder } else { 0 };
        self.buckets(false).table_numbers(self.heads).saturating_add(encoder).saturating_add(global)
    }

    /// Checks every bound. The error names the first key that is out of bounds, and the bound.
    pub(super) fn validate(&self, symbols: usize, check: Check<'_>) -> Result<()> {
        check.layers("encoder_layers", self.encoder_layers)?;
        check.layers("decoder_layers", self.decoder_layers)?;
        check.dim("dim", self.dim)?;
        check.dim("heads", self.heads)?;
        check.dim("head_dim", self.head_dim)?;
        check.dim("feed_forward", self.feed_forward)?;
        check.fraction("norm_eps", self.norm_eps)?;
        if !(4..=MAX_BUCKETS).contains(&self.buckets) {
            return check.fail("buckets", format!("4 to {MAX_BUCKETS}"), self.buckets);
        }
        if self.max_distance > MAX_BUCKETS || ![true, false].iter().all(|&both| self.buckets(both).is_valid()) {
            let expected = format!("more than half the buckets, at most {MAX_BUCKETS}");
            return check.fail("max_distance", expected, self.max_distance);
        }
        // the encoder's table, the largest one
        check.distance_table("max_distance", self.buckets(true).two_sided_table_numbers(self.heads))?;
        for (key, length) in [("source_length", self.source_length), ("target_length", self.target_length)] {
            if !(2..=MAX_LENGTH).contains(&length) {
                return check.fail(key, format!("2 to {MAX_LENGTH}"), length);
            }
        }
        if let Some(radius) = self.attention.radius().filter(|radius| !(1..=MAX_LENGTH).contains(radius)) {
            return check.fail("attention.radius", format!("1 to {MAX_LENGTH}"), radius);
        }
        if let Some(group) = self.attention.group().filter(|group| !(1..=MAX_LENGTH).contains(group)) {
            return check.fail("attention.group", format!("1 to {MAX_LENGTH}"), group);
        }
        if let Some(deletion) = &self.deletion {
            self.validate_deletion(deletion, check)?;
        }
        check.parameters("dim", self.parameters(symbols))
    }

    fn validate_deletion(&self, deletion: &Deletion, check: Check<'_>) -> Result<()> {
        if deletion.layer >= self.encoder_layers {
            let expected = format!("0 to {}: a layer of the encoder", self.encoder_layers - 1);
            return check.fail("deletion.layer", expected, deletion.layer);
        }
        if self.attention != EncoderAttention::Full {
            return check.fail("attention.kind", "full, next to `deletion`", "another kind");
        }
        if let GateFunction::ScaledSigmoid { scale } = deletion.function
            && !(-1e4..0.0).contains(&scale)
        {
            return check.fail("deletion.function.scaled-sigmoid.scale", "-10000 to 0, 0 excluded", scale);
        }
        if !(-1e4..=0.0).contains(&deletion.threshold) {
            return check.fail("deletion.threshold", "-10000 to 0", deletion.threshold);
        }
        Ok(())
    }

    /// An upper bound on the numbers in all tensors; `None` if it overflows.
    fn parameters(&self, symbols: usize) -> Option<usize> {
        let inner = self.heads.checked_mul(self.head_dim)?;
        // four matrices of each attention, two or three of the feed-forward, and norms
        let rows = inner.checked_mul(8)?.checked_add(self.feed_forward.checked_mul(3)?)?.checked_add(4)?;
        let layers = rows.checked_mul(self.dim)?.checked_mul(self.encoder_layers.checked_add(self.decoder_layers)?)?;
        let tables = self.buckets.checked_mul(self.heads)?.checked_mul(3)?;
        let embeddings = symbols.checked_mul(self.dim)?.checked_mul(2)?;
        layers.checked_add(tables)?.checked_add(embeddings)?.checked_add(self.dim.checked_mul(4)?)
    }
}
