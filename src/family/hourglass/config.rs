//! The `architecture` of an hourglass checkpoint: read, bounded, and turned into the list of its tensors.

use super::model::Hourglass;
use crate::{
    decode::contract::Model,
    error::{Error, Result},
    family::{
        Blueprint, Init, Parts, TensorSpec,
        checkpoint::{self, Config},
        load::Bounds,
        parts::{
            StackShape,
            specs::{self, MAX_PARAMETERS, linear, matrix, norm},
        },
    },
    nn::{Activation, boundary::BoundaryConfig, pooling::Pooling, position::PositionKind, window::Window},
};
use serde::Deserialize;
use std::{path::Path, sync::Arc};

/// The most layers a stack may have, and the most any other dimension may be: far above any model, far below what would
/// overflow a product.
const MAX_LAYERS: usize = 1024;
const MAX_DIM: usize = 1 << 20;

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
    /// Which symbols the stacks at full resolution attend to.
    #[serde(default = "full")]
    pub window: Window,
    /// Which segments the middle stack attends to.
    #[serde(default = "full")]
    pub middle_window: Window,
    /// How a segment becomes one vector; absent in vanilla models.
    pub pooling: Option<Pooling>,
    /// Where segments end.
    pub boundaries: BoundaryConfig,
}

fn full() -> Window {
    Window::Full
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
    blueprint.has_room(file)?;
    specs::trained_within(blueprint.architecture.position, config, file)?;
    Ok(Box::new(blueprint))
}

/// Positions of the middle stack before the first segment's: the null group's.
const NULL: usize = 1;

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
            let found = if a.layers.middle.is_some() { "middle without post" } else { "post without middle" };
            return wrong("layers", "pre alone, or pre, middle and post".into(), found.into());
        }
        let dims = [("dim", a.dim), ("heads", a.heads), ("head_dim", a.head_dim), ("feed_forward", a.feed_forward)];
        for (key, value) in dims {
            if !(1..=MAX_DIM).contains(&value) {
                return wrong(key, format!("1 to {MAX_DIM}"), value.to_string());
            }
        }
        for (name, window) in [("window", a.window), ("middle_window", a.middle_window)] {
            if let Err((key, expected, found)) = window.validate() {
                return wrong(&format!("{name}.{key}"), expected, found);
            }
            if let Err((key, expected, found)) = a.position.validate(a.dim, a.head_dim, window) {
                let key = if key == "window" { name } else { &key };
                return wrong(key, expected, found);
            }
        }
        if !(a.layer_norm_eps > 0.0 && a.layer_norm_eps < 1.0) {
            return wrong("layer_norm_eps", "above 0, below 1".into(), a.layer_norm_eps.to_string());
        }
        let pooled = a.layers.middle.is_some();
        if a.boundaries.pools() != pooled {
            let expected = if pooled { "a kind that closes segments" } else { "none: there is no middle stack" };
            return wrong("boundaries.kind", expected.into(), a.boundaries.name().into());
        }
        if !pooled && a.middle_window != Window::Full {
            return wrong("middle_window", "nothing: there is no middle stack".into(), a.middle_window.describe());
        }
        if a.pooling.is_some() != pooled {
            let expected = if pooled { "mean, last or hops" } else { "nothing: there is no middle stack" };
            return wrong("pooling", expected.into(), if pooled { "nothing" } else { "a pooling" }.into());
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

    /// Whether the middle stack has a position for a segment.
    fn has_room(&self, file: &Path) -> Result<()> {
        let lead = self.architecture.layers.middle.map_or(0, |_| NULL);
        match self.architecture.position {
            PositionKind::Learned { positions } if positions <= lead => {
                let expected = format!("room for {} positions: the null group's and a symbol's", lead + 1);
                Err(Error::checkpoint(file, "architecture.position", expected, positions.to_string()))
            }
            _ => Ok(()),
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
        let (a, shape) = (&self.architecture, self.stack_shape());
        let layers: usize = self.stacks().map(|(_, count)| count).sum();
        let ends = self.symbols.checked_mul(2)?.checked_add(a.boundaries.hidden())?.checked_mul(a.dim + 2)?;
        let shared = specs::position_numbers(&shape)?;
        specs::layer_numbers(&shape, layers)?.checked_add(ends)?.checked_add(shared)
    }

    /// What the layers of all stacks have in common.
    pub fn stack_shape(&self) -> StackShape {
        let Architecture { dim, heads, head_dim, feed_forward, activation, position, .. } = self.architecture;
        StackShape { dim, heads, head_dim, feed_forward, activation, position, sub_norms: false }
    }
}

impl Blueprint for HourglassBlueprint {
    fn tensors(&self) -> Vec<TensorSpec> {
        let a = &self.architecture;
        let mut out = vec![matrix("embedding.weight".into(), vec![self.symbols, a.dim])];
        let shape = self.stack_shape();
        specs::position(&mut out, &shape);
        for (stack, layers) in self.stacks() {
            (0..layers).for_each(|index| specs::layer(&mut out, &format!("{stack}.{index}"), &shape));
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
        let mut shape =
            format!("{} layers × {}, {} heads × {}, {boundaries}", layers.join("+"), a.dim, a.heads, a.head_dim);
        if a.position != PositionKind::TransformerXl {
            shape += &format!(", {}", a.position.name());
        }
        if a.window != Window::Full {
            shape += &format!(", {}", a.window.describe());
        }
        if a.middle_window != Window::Full {
            shape += &format!(", middle stack: {}", a.middle_window.describe());
        }
        shape
    }

    fn bounds(&self) -> Bounds {
        let a = &self.architecture;
        let middle = a.layers.middle.map(|_| a.middle_window);
        let longest = |window, lead| {
            let (most, why) = a.position.longest(a.head_dim, window)?;
            Some((most - lead, why))
        };
        // of the middle stack, where every symbol may end a segment, the null group takes the first position
        let stacks = [longest(a.window, 0), middle.and_then(|window| longest(window, NULL))];
        let longest = stacks.into_iter().flatten().min_by_key(|(most, _)| *most);
        let mut windows = std::iter::once(a.window).chain(middle);
        // a companion remembers every symbol's entropy
        let endless = windows.all(|window| window.max_keys().is_some()) && a.boundaries.companion().is_none();
        Bounds { longest, endless }
    }

    fn companions(&self) -> Vec<&str> {
        self.architecture.boundaries.companion().into_iter().collect()
    }

    fn build(&self, parts: Parts) -> Result<Arc<dyn Model>> {
        Ok(Arc::new(Hourglass::load(self, parts)?))
    }
}
