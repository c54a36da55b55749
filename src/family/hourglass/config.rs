//! The `architecture` of an hourglass checkpoint: read, bounded, and turned into the list of its tensors.

use super::model::Hourglass;
use crate::{
    decode::contract::Model,
    error::{Error, Result},
    family::{
        Blueprint, Init, Parts, TensorSpec,
        checkpoint::{self, Config},
    },
    nn::{Activation, boundary::BoundaryConfig, pooling::Pooling, position::PositionKind},
};
use serde::Deserialize;
use std::{path::Path, sync::Arc};

/// The most layers a stack may have, and the most any other dimension may be: far above any model, far below what would
/// overflow a product.
const MAX_LAYERS: usize = 1024;
const MAX_DIM: usize = 1 << 20;
/// The most numbers all tensors may have together: 64 GiB of f32.
const MAX_PARAMETERS: usize = 1 << 34;

/// What `architecture` says.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Architecture {
    /// Layers of each stack.
    pub layers: Layers,
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
    /// The position scheme of all stacks.
    pub position: PositionKind,
    /// How a segment becomes one vector; absent in vanilla models.
    pub pooling: Option<Pooling>,
    /// Where segments end.
    pub boundaries: BoundaryConfig,
}

/// Layers of each stack; a vanilla model has `pre` alone.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layers {
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
    /// What was asked for.
    pub architecture: Architecture,
    /// Vocabulary size V.
    pub symbols: usize,
}

/// Reads an hourglass's architecture.
///
/// # Errors
/// A key that is unknown, missing, of the wrong type or out of bounds, named with its bound.
pub fn read(config: &Config, file: &Path) -> Result<Box<dyn Blueprint>> {
    let architecture: Architecture = checkpoint::architecture(config, file)?;
    if config.vocabulary(file)?.specials().is_some() {
        return Err(Error::checkpoint(file, "vocabulary.specials", "nothing: an hourglass has no marks", "marks"));
    }
    let blueprint = HourglassBlueprint { architecture, symbols: config.vocabulary(file)?.len() };
    blueprint.validate(config, file)?;
    Ok(Box::new(blueprint))
}

impl HourglassBlueprint {
    fn validate(&self, config: &Config, file: &Path) -> Result<()> {
        let (a, vocabulary) = (&self.architecture, config.vocabulary(file)?);
        let wrong = |key: &str, expected: String, found: String| {
            Err(Error::checkpoint(file, format!("architecture.{key}"), expected, found))
        };
        let layers =
            [("layers.pre", Some(a.layers.pre)), ("layers.middle", a.layers.middle), ("layers.post", a.layers.post)];
        for (key, count) in layers {
            if let Some(count) = count.filter(|count| !(1..=MAX_LAYERS).contains(count)) {
                return wrong(key, format!("1 to {MAX_LAYERS}"), count.to_string());
            }
        }
        if a.layers.middle.is_some() != a.layers.post.is_some() {
            return wrong("layers", "pre alone, or pre, middle and post".into(), format!("{:?}", a.layers));
        }
        let dims = [("dim", a.dim), ("heads", a.heads), ("head_dim", a.head_dim), ("feed_forward", a.feed_forward)];
        for (key, value) in dims {
            if !(1..=MAX_DIM).contains(&value) {
                return wrong(key, format!("1 to {MAX_DIM}"), value.to_string());
            }
        }
        if !a.dim.is_multiple_of(2) {
            return wrong("dim", "an even number (half sines, half cosines)".into(), a.dim.to_string());
        }
        if !(a.layer_norm_eps > 0.0 && a.layer_norm_eps < 1.0) {
            return wrong("layer_norm_eps", "above 0, below 1".into(), a.layer_norm_eps.to_string());
        }
        let pooled = a.layers.middle.is_some();
        if a.boundaries.pools() != pooled {
            let expected = if pooled { "a kind that closes segments" } else { "none: there is no middle stack" };
            return wrong("boundaries.kind", expected.into(), a.boundaries.name().into());
        }
        if a.pooling.is_some() != pooled {
            let expected = if pooled { "mean or last" } else { "nothing: there is no middle stack" };
            return wrong("pooling", expected.into(), format!("{:?}", a.pooling));
        }
        if let Err((key, expected, found)) = a.boundaries.validate(&|character| vocabulary.id_of(character)) {
            return wrong(&format!("boundaries.{key}"), expected, found);
        }
        match self.parameters() {
            Some(count) if count <= MAX_PARAMETERS => Ok(()),
            count => {
                let found = count.map_or("a product beyond 64 bits".into(), |count| count.to_string());
                wrong("dim", format!("at most {MAX_PARAMETERS} numbers in all tensors"), found)
            }
        }
    }

    /// The stacks there are, each with its name and layers.
    pub fn stacks(&self) -> impl Iterator<Item = (&'static str, usize)> {
        let layers = self.architecture.layers;
        let middle = layers.middle.map(|count| ("middle", count));
        let post = layers.post.map(|count| ("post", count));
        std::iter::once(("pre", layers.pre)).chain(middle).chain(post)
    }

    /// An upper bound on the numbers in all tensors, if it fits.
    fn parameters(&self) -> Option<usize> {
        let a = &self.architecture;
        let inner = a.heads.checked_mul(a.head_dim)?;
        let width = a.dim.max(1);
        // (3 + 1 + 1) projections of attention, two of the feed-forward; biases and norms are below one more D a unit
        let layer = inner.checked_mul(5)?.checked_add(a.feed_forward.checked_mul(2)?)?.checked_mul(width + 1)?;
        let layers: usize = self.stacks().map(|(_, count)| count).sum();
        let ends = self.symbols.checked_mul(2)?.checked_add(a.boundaries.hidden())?.checked_mul(width + 2)?;
        layer.checked_add(8 * width)?.checked_mul(layers)?.checked_add(ends)
    }

    fn layer(&self, stack: &str, index: usize, out: &mut Vec<TensorSpec>) {
        let a = &self.architecture;
        let (dim, inner, wide) = (a.dim, a.heads * a.head_dim, a.feed_forward);
        let at = |name: &str| format!("{stack}.{index}.{name}");
        linear(out, &at("attention.qkv"), 3 * inner, dim);
        out.push(matrix(at("attention.distance.weight"), vec![inner, dim]));
        linear(out, &at("attention.output"), dim, inner);
        norm(out, &at("attention.norm"), dim);
        linear(out, &at("feed_forward.up"), wide, dim);
        linear(out, &at("feed_forward.down"), dim, wide);
        norm(out, &at("feed_forward.norm"), dim);
    }
}

impl Blueprint for HourglassBlueprint {
    fn tensors(&self) -> Vec<TensorSpec> {
        let a = &self.architecture;
        let mut out = vec![matrix("embedding.weight".into(), vec![self.symbols, a.dim])];
        let frequencies = a.position.inverse_frequencies(a.dim);
        let (shape, init) = (vec![frequencies.len()], Init::Values(frequencies));
        out.push(TensorSpec { name: "position.inverse_frequency".into(), shape, init, trained: false });
        for name in ["position.content_bias", "position.distance_bias"] {
            out.push(matrix(name.into(), vec![a.heads, a.head_dim]));
        }
        for (stack, layers) in self.stacks() {
            (0..layers).for_each(|index| self.layer(stack, index, &mut out));
        }
        if a.layers.middle.is_some() {
            let (name, shape) = ("null_group".into(), vec![a.dim]);
            out.push(TensorSpec { name, shape, init: Init::Normal(0.0, 1.0), trained: true });
            norm(&mut out, "pool_norm", a.dim);
        }
        if let BoundaryConfig::Learned { hidden, .. } = a.boundaries {
            linear(&mut out, "boundary.hidden", hidden, a.dim);
            linear(&mut out, "boundary.output", 1, hidden);
        }
        linear(&mut out, "head", self.symbols, a.dim);
        out
    }

    fn shape(&self) -> String {
        let a = &self.architecture;
        let layers: Vec<_> = self.stacks().map(|(_, count)| count.to_string()).collect();
        let boundaries = a.boundaries.describe();
        format!("{} layers × {}, {} heads × {}, {boundaries}", layers.join("+"), a.dim, a.heads, a.head_dim)
    }

    fn companions(&self) -> Vec<&str> {
        self.architecture.boundaries.companion().into_iter().collect()
    }

    fn build(&self, parts: Parts) -> Result<Arc<dyn Model>> {
        Ok(Arc::new(Hourglass::load(self, parts)?))
    }
}

// The official initialisation: normal with deviation 0.02; LayerNorm weights around one; biases zero.

fn matrix(name: String, shape: Vec<usize>) -> TensorSpec {
    TensorSpec { name, shape, init: Init::Normal(0.0, 0.02), trained: true }
}

fn linear(out: &mut Vec<TensorSpec>, name: &str, outputs: usize, inputs: usize) {
    out.push(matrix(format!("{name}.weight"), vec![outputs, inputs]));
    let (name, shape) = (format!("{name}.bias"), vec![outputs]);
    out.push(TensorSpec { name, shape, init: Init::Normal(0.0, 0.0), trained: true });
}

fn norm(out: &mut Vec<TensorSpec>, name: &str, dim: usize) {
    for (part, init) in [("weight", Init::Normal(1.0, 0.02)), ("bias", Init::Normal(0.0, 0.0))] {
        out.push(TensorSpec { name: format!("{name}.{part}"), shape: vec![dim], init, trained: true });
    }
}
