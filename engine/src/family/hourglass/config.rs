//! The `architecture` of an hourglass checkpoint and its bounds.

use super::ngrams::NgramConfig;
use crate::{
    error::Result,
    family::parts::{StackShape, check::Check, specs},
    nn::{Activation, ConfigError, boundary::BoundaryConfig, pooling::Pooling, position::PositionKind, window::Window},
    text::Vocabulary,
};
use serde::Deserialize;
use std::path::Path;

/// The hourglass's `architecture` in `config.json`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Architecture {
    /// Layers of each stack.
    pub layers: StackLayers,
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
    /// The position scheme of all stacks.
    pub position: PositionKind,
    /// Embeddings of n-grams, if the model has them.
    pub ngrams: Option<NgramConfig>,
    /// Symbols that pre and post stack attend to.
    #[serde(default = "full")]
    pub window: Window,
    /// Segments that the middle stack attends to.
    #[serde(default = "full")]
    pub middle_window: Window,
    /// Reduces a segment to one vector; absent in vanilla models.
    pub pooling: Option<Pooling>,
    /// Source of segment boundaries.
    pub boundaries: BoundaryConfig,
}

fn full() -> Window {
    Window::Full
}

/// Layers of each stack; a vanilla model has `pre` alone.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StackLayers {
    /// Full resolution, before pooling.
    pub pre: usize,
    /// Segment resolution.
    pub middle: Option<usize>,
    /// Full resolution, after upsampling.
    pub post: Option<usize>,
}

/// A validated hourglass.
#[derive(Debug, Clone)]
pub struct HourglassBlueprint {
    /// The validated architecture.
    pub architecture: Architecture,
    /// Vocabulary size V.
    pub symbols: usize,
}

/// Positions of the middle stack before the first segment's: the null group's.
pub(super) const NULL_GROUP: usize = 1;

impl HourglassBlueprint {
    /// Checks every bound of the architecture. The error names the first key that is out of bounds, and the bound.
    pub(super) fn validate(&self, vocabulary: &Vocabulary, file: &Path) -> Result<()> {
        let a = &self.architecture;
        let check = Check { file };
        check.layers("layers.pre", a.layers.pre)?;
        a.layers.middle.map_or(Ok(()), |middle| check.layers("layers.middle", middle))?;
        a.layers.post.map_or(Ok(()), |post| check.layers("layers.post", post))?;
        if a.layers.middle.is_some() != a.layers.post.is_some() {
            let found = if a.layers.middle.is_some() { "middle without post" } else { "post without middle" };
            return check.fail("layers", "pre alone, or pre, middle and post", found);
        }
        check.dim("dim", a.dim)?;
        check.dim("heads", a.heads)?;
        check.dim("head_dim", a.head_dim)?;
        check.dim("feed_forward", a.feed_forward)?;
        for (name, window) in [("window", a.window), ("middle_window", a.middle_window)] {
            if let Err(ConfigError { key, expected, found }) = window.validate() {
                return check.fail(format!("{name}.{key}"), expected, found);
            }
            if let Err(ConfigError { key, expected, found }) = a.position.validate(a.dim, a.head_dim, window) {
                return check.fail(if key == "window" { name } else { &key }, expected, found);
            }
        }
        check.fraction("layer_norm_eps", a.layer_norm_eps)?;
        self.validate_pooling(vocabulary, check)?;
        self.validate_lookback(check)?;
        if let Some(Err(ConfigError { key, expected, found })) = a.ngrams.as_ref().map(NgramConfig::validate) {
            return check.fail(format!("ngrams.{key}"), expected, found);
        }
        check.distance_table("position.buckets.max_distance", specs::table_numbers(&self.stack_shape()))?;
        check.parameters("dim", self.parameters())?;
        // the middle stack needs a position for a segment too
        let lead = a.layers.middle.map_or(0, |_| NULL_GROUP);
        match a.position {
            PositionKind::Learned { positions } if positions <= lead => {
                let expected = format!("room for {} positions: the null group's and a symbol's", lead + 1);
                check.fail("position", expected, positions)
            }
            _ => Ok(()),
        }
    }

    /// Checks that boundaries, pooling and middle window are given exactly if there is a middle stack.
    fn validate_pooling(&self, vocabulary: &Vocabulary, check: Check<'_>) -> Result<()> {
        let a = &self.architecture;
        let pooled = a.layers.middle.is_some();
        if a.boundaries.pools() != pooled {
            let expected = if pooled { "a kind that closes segments" } else { "none: there is no middle stack" };
            return check.fail("boundaries.kind", expected, a.boundaries.name());
        }
        if !pooled && a.middle_window != Window::Full {
            return check.fail("middle_window", "nothing: there is no middle stack", a.middle_window.describe());
        }
        if a.pooling.is_some() != pooled {
            let expected = if pooled { "mean, last or hops" } else { "nothing: there is no middle stack" };
            return check.fail("pooling", expected, if pooled { "nothing" } else { "a pooling" });
        }
        match a.boundaries.validate(&|character| vocabulary.id_of(character)) {
            Err(ConfigError { key, expected, found }) => check.fail(format!("boundaries.{key}"), expected, found),
            Ok(()) => Ok(()),
        }
    }

    /// Checks that pooling reads only outputs that the pre stack's cache still holds, also after a rollback.
    fn validate_lookback(&self, check: Check<'_>) -> Result<()> {
        let a = &self.architecture;
        // without a window the cache holds all outputs
        let (Some(pooling), Some(held)) = (a.pooling, a.window.min_keys()) else { return Ok(()) };
        match pooling {
            Pooling::Hops(hops) if hops >= held => {
                let limit = held - 1;
                let expected = format!("at most {limit} (the pre stack keeps {held} outputs with this `window`)");
                check.fail("pooling.hops", expected, hops)
            }
            Pooling::Mean if held < 2 => {
                let expected = "at least 2 (`mean` pooling adds each output to the sum at the previous position)";
                check.fail("window.sliding.keys", expected, held)
            }
            _ => Ok(()),
        }
    }

    /// Names and layers of the stacks.
    pub fn stacks(&self) -> impl Iterator<Item = (&'static str, usize)> {
        let layers = self.architecture.layers;
        let middle = layers.middle.map(|count| ("middle", count));
        let post = layers.post.map(|count| ("post", count));
        std::iter::once(("pre", layers.pre)).chain(middle).chain(post)
    }

    /// An upper bound on the numbers in all tensors; `None` if it overflows.
    fn parameters(&self) -> Option<usize> {
        let a = &self.architecture;
        let shape = self.stack_shape();
        let layers: usize = self.stacks().map(|(_, count)| count).sum();
        // embedding, head and boundary predictor
        let others = self.symbols.checked_mul(2)?.checked_add(a.boundaries.hidden())?.checked_mul(a.dim + 2)?;
        let shared = specs::position_numbers(&shape)?;
        let ngrams = a.ngrams.as_ref().map_or(Some(0), |ngrams| ngrams.rows.checked_mul(ngrams.sizes.len() * a.dim))?;
        specs::layer_numbers(&shape, layers)?.checked_add(others)?.checked_add(shared)?.checked_add(ngrams)
    }

    /// The dimensions that the layers of all stacks share.
    pub fn stack_shape(&self) -> StackShape {
        let Architecture { dim, heads, head_dim, feed_forward, activation, position, .. } = self.architecture;
        StackShape { dim, heads, head_dim, feed_forward, activation, position, sub_norms: false }
    }
}
