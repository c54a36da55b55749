//! The `architecture` of a decoder checkpoint and its bounds.

use crate::{
    error::Result,
    family::parts::{StackShape, check::Check, specs},
    nn::{Activation, ConfigError, position::PositionKind, window::Window},
};
use serde::Deserialize;
use std::path::Path;

/// The decoder's `architecture` in `config.json`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Architecture {
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
    /// Nonlinearity between the feed-forward's two products.
    pub activation: Activation,
    /// Added to the variance in every LayerNorm.
    pub layer_norm_eps: f32,
    /// The position scheme.
    pub position: PositionKind,
    /// Keys that a position attends to.
    pub window: Window,
    /// True if there are norms inside the sub-layers: before attention's output matrix and before the feed-forward's.
    pub sub_norms: bool,
    /// True if embeddings are multiplied by √D.
    pub scale_embedding: bool,
    /// True if the head is the embedding.
    pub tied: bool,
}

/// A validated decoder.
#[derive(Debug, Clone)]
pub struct DecoderBlueprint {
    /// The validated architecture.
    pub architecture: Architecture,
    /// Vocabulary size V.
    pub symbols: usize,
    /// True if a text begins with a start symbol, which takes a position.
    pub has_start: bool,
}

impl DecoderBlueprint {
    /// Checks every bound of the architecture. The error names the first key that is out of bounds, and the bound.
    pub(super) fn validate(&self, file: &Path) -> Result<()> {
        let a = &self.architecture;
        let check = Check { file };
        check.layers("layers", a.layers)?;
        check.dim("dim", a.dim)?;
        check.dim("heads", a.heads)?;
        check.dim("head_dim", a.head_dim)?;
        check.dim("feed_forward", a.feed_forward)?;
        check.fraction("layer_norm_eps", a.layer_norm_eps)?;
        if let Err(ConfigError { key, expected, found }) = a.window.validate() {
            return check.fail(format!("window.{key}"), expected, found);
        }
        if let Err(ConfigError { key, expected, found }) = a.position.validate(a.dim, a.head_dim, a.window) {
            return check.fail(key, expected, found);
        }
        check.distance_table("position.buckets.max_distance", specs::table_numbers(&self.stack_shape()))?;
        match a.position.max_length(a.head_dim, a.window) {
            Some((positions, _)) if positions <= self.lead() => {
                let expected = format!("room for {} positions: the start symbol's and a symbol's", self.lead() + 1);
                check.fail("position", expected, positions)
            }
            _ => check.parameters("dim", self.parameters()),
        }
    }

    /// An upper bound on the numbers in all tensors; `None` if it overflows.
    fn parameters(&self) -> Option<usize> {
        let shape = self.stack_shape();
        let embedding_and_head = self.symbols.checked_add(1)?.checked_mul(2)?.checked_mul(shape.dim)?;
        let shared = specs::position_numbers(&shape)?;
        specs::layer_numbers(&shape, self.architecture.layers)?.checked_add(embedding_and_head)?.checked_add(shared)
    }

    /// Positions before a text's first symbol: the start symbol's, if there is one.
    pub fn lead(&self) -> usize {
        usize::from(self.has_start)
    }

    /// The dimensions of its layers.
    pub fn stack_shape(&self) -> StackShape {
        let Architecture { dim, heads, head_dim, feed_forward, activation, position, sub_norms, .. } =
            self.architecture;
        StackShape { dim, heads, head_dim, feed_forward, activation, position, sub_norms }
    }
}
