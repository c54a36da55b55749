//! The `architecture` of a decoder checkpoint: read, bounded, and turned into the list of its tensors.

use super::model::Decoder;
use crate::{
    decode::contract::Model,
    error::{Error, Result},
    family::{
        Blueprint, Parts, TensorSpec,
        checkpoint::{self, Config},
        load::Bounds,
        parts::{
            StackShape,
            specs::{self, MAX_PARAMETERS, matrix, norm},
        },
    },
    nn::{Activation, position::PositionKind, window::Window},
};
use serde::Deserialize;
use std::{path::Path, sync::Arc};

/// The most layers, and the most any other dimension may be: far above any model, far below what would overflow a product.
const MAX_LAYERS: usize = 1024;
const MAX_DIM: usize = 1 << 20;

/// What `architecture` says.
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
    /// Between the feed-forward's two products.
    pub activation: Activation,
    /// Added to the variance in every LayerNorm.
    pub layer_norm_eps: f32,
    /// The position scheme.
    pub position: PositionKind,
    /// Which keys a position attends to.
    pub window: Window,
    /// Whether there are norms inside the sub-layers: before attention's output matrix and before the feed-forward's.
    pub sub_norms: bool,
    /// Whether embeddings are multiplied by √D.
    pub scale_embedding: bool,
    /// Whether the logits' matrix is the embedding.
    pub tied: bool,
}

/// A validated decoder.
#[derive(Debug, Clone)]
pub struct DecoderBlueprint {
    /// What was asked for.
    pub architecture: Architecture,
    /// Vocabulary size V.
    pub symbols: usize,
    /// Whether a text begins with a mark, which takes a position.
    pub marked: bool,
}

/// Reads a decoder's architecture.
///
/// # Errors
/// A key that is unknown, missing, of the wrong type or out of bounds, named with its bound; a position scheme and a window
/// that cannot work together, with the rule that they break.
pub fn read(config: &Config, file: &Path) -> Result<Box<dyn Blueprint>> {
    let architecture: Architecture = checkpoint::architecture(config, file)?;
    let vocabulary = config.vocabulary(file)?;
    let (symbols, marked) = (vocabulary.len(), vocabulary.specials().is_some());
    let blueprint = DecoderBlueprint { architecture, symbols, marked };
    blueprint.validate(file)?;
    specs::trained_within(blueprint.architecture.position, config, file)?;
    Ok(Box::new(blueprint))
}

impl DecoderBlueprint {
    fn validate(&self, file: &Path) -> Result<()> {
        let a = &self.architecture;
        let wrong = |key: &str, expected: String, found: String| {
            Err(Error::checkpoint(file, format!("architecture.{key}"), expected, found))
        };
        if !(1..=MAX_LAYERS).contains(&a.layers) {
            return wrong("layers", format!("1 to {MAX_LAYERS}"), a.layers.to_string());
        }
        let dims = [("dim", a.dim), ("heads", a.heads), ("head_dim", a.head_dim), ("feed_forward", a.feed_forward)];
        for (key, value) in dims {
            if !(1..=MAX_DIM).contains(&value) {
                return wrong(key, format!("1 to {MAX_DIM}"), value.to_string());
            }
        }
        if !(a.layer_norm_eps > 0.0 && a.layer_norm_eps < 1.0) {
            return wrong("layer_norm_eps", "above 0, below 1".into(), a.layer_norm_eps.to_string());
        }
        if let Err((key, expected, found)) = a.window.validate() {
            return wrong(&format!("window.{key}"), expected, found);
        }
        if let Err((key, expected, found)) = a.position.validate(a.dim, a.head_dim, a.window) {
            return wrong(&key, expected, found);
        }
        if let Some((positions, _)) = a.position.longest(a.head_dim, a.window).filter(|(most, _)| *most <= self.lead())
        {
            let expected = format!("room for {} positions: the mark's and a symbol's", self.lead() + 1);
            return wrong("position", expected, positions.to_string());
        }
        match self.parameters() {
            Some(count) if count <= MAX_PARAMETERS => Ok(()),
            count => {
                let found = count.map_or("a product beyond 64 bits".into(), |count| count.to_string());
                wrong("dim", format!("at most {MAX_PARAMETERS} numbers in all tensors"), found)
            }
        }
    }

    /// An upper bound on the numbers in all tensors, if it fits.
    fn parameters(&self) -> Option<usize> {
        let (a, shape) = (&self.architecture, self.stack_shape());
        let ends = self.symbols.checked_add(1)?.checked_mul(2)?.checked_mul(a.dim)?;
        let shared = specs::position_numbers(&shape)?;
        specs::layer_numbers(&shape, a.layers)?.checked_add(ends)?.checked_add(shared)
    }

    /// Positions before a text's first symbol: the start's mark, where there is one.
    pub fn lead(&self) -> usize {
        usize::from(self.marked)
    }

    /// What its layers are like.
    pub fn stack_shape(&self) -> StackShape {
        let Architecture { dim, heads, head_dim, feed_forward, activation, position, sub_norms, .. } =
            self.architecture;
        StackShape { dim, heads, head_dim, feed_forward, activation, position, sub_norms }
    }
}

impl Blueprint for DecoderBlueprint {
    fn tensors(&self) -> Vec<TensorSpec> {
        let (a, shape) = (&self.architecture, self.stack_shape());
        let mut out = vec![matrix("embedding.weight".into(), vec![self.symbols, a.dim])];
        specs::position(&mut out, &shape);
        (0..a.layers).for_each(|index| specs::layer(&mut out, &format!("layers.{index}"), &shape));
        norm(&mut out, "norm", a.dim);
        if !a.tied {
            out.push(matrix("head.weight".into(), vec![self.symbols, a.dim]));
        }
        out
    }

    fn shape(&self) -> String {
        let a = &self.architecture;
        let (position, window) = (a.position.name(), a.window.describe());
        format!("{} layers × {}, {} heads × {}, {position}, {window}", a.layers, a.dim, a.heads, a.head_dim)
    }

    fn bounds(&self) -> Bounds {
        let a = &self.architecture;
        let longest = a.position.longest(a.head_dim, a.window).map(|(most, why)| (most - self.lead(), why));
        Bounds { longest, endless: a.window.max_keys().is_some() }
    }

    fn build(&self, parts: Parts) -> Result<Arc<dyn Model>> {
        Ok(Arc::new(Decoder::load(self, parts)?))
    }
}
