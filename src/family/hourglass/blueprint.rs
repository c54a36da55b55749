//! The hourglass as a [`Blueprint`]: its tensors, its limits, and how the model is built.

use super::{
    config::{Architecture, HourglassBlueprint, NULL_GROUP},
    model::Hourglass,
};
use crate::{
    decode::contract::Model,
    error::{Error, Result},
    family::{
        Blueprint, Init, Parts, TensorSpec,
        checkpoint::{self, Config},
        parts::specs::{self, linear, matrix, norm},
        settings::Bounds,
    },
    nn::{boundary::BoundaryConfig, position::PositionKind, window::Window},
};
use std::{path::Path, sync::Arc};

/// Reads an hourglass's architecture. Fails if a key is unknown, missing, of the wrong type or out of bounds.
pub fn read(config: &Config, file: &Path) -> Result<Box<dyn Blueprint>> {
    let architecture: Architecture = checkpoint::architecture(config, file)?;
    let vocabulary = config.vocabulary(file)?;
    if vocabulary.specials().is_some() {
        let expected = "nothing: an hourglass has no special symbols";
        return Err(Error::checkpoint(file, "vocabulary.specials", expected, "special symbols"));
    }
    let blueprint = HourglassBlueprint { architecture, symbols: vocabulary.len() };
    blueprint.validate(&vocabulary, file)?;
    specs::trained_within(blueprint.architecture.position, config, file)?;
    Ok(Box::new(blueprint))
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
            let init = Init::Normal(0.0, 1.0);
            out.push(TensorSpec { name: "null_group".into(), shape: vec![a.dim], init, trained: true });
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
            let (positions, why) = a.position.max_length(a.head_dim, window)?;
            Some((positions - lead, why))
        };
        // every symbol may close a segment, and the null group takes the middle stack's first position
        let stacks = [longest(a.window, 0), middle.and_then(|window| longest(window, NULL_GROUP))];
        let longest = stacks.into_iter().flatten().min_by_key(|(symbols, _)| *symbols);
        let mut windows = std::iter::once(a.window).chain(middle);
        // a companion's state keeps the entropy of every symbol
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
