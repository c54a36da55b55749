//! The decoder as a [`Blueprint`]: its tensors, its limits, and how the model is built.

use super::{
    config::{Architecture, DecoderBlueprint},
    model::Decoder,
};
use crate::{
    decode::contract::Model,
    error::Result,
    family::{
        Blueprint, Parts, TensorSpec,
        checkpoint::{self, Config},
        parts::specs::{self, matrix, norm},
        settings::Bounds,
    },
};
use std::{path::Path, sync::Arc};

/// Reads a decoder's architecture. Fails if a key is unknown, missing, of the wrong type or out of bounds, or if the
/// position scheme does not work with the window.
pub fn read(config: &Config, file: &Path) -> Result<Box<dyn Blueprint>> {
    let architecture: Architecture = checkpoint::architecture(config, file)?;
    let vocabulary = config.vocabulary(file)?;
    let blueprint =
        DecoderBlueprint { architecture, symbols: vocabulary.len(), has_start: vocabulary.specials().is_some() };
    blueprint.validate(file)?;
    specs::trained_within(blueprint.architecture.position, config, file)?;
    Ok(Box::new(blueprint))
}

impl Blueprint for DecoderBlueprint {
    fn tensors(&self) -> Vec<TensorSpec> {
        let a = &self.architecture;
        let shape = self.stack_shape();
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
        let Architecture { layers, dim, heads, head_dim, position, window, .. } = a;
        format!("{layers} layers × {dim}, {heads} heads × {head_dim}, {}, {}", position.name(), window.describe())
    }

    fn bounds(&self) -> Bounds {
        let a = &self.architecture;
        let longest =
            a.position.max_length(a.head_dim, a.window).map(|(positions, why)| (positions - self.lead(), why));
        Bounds { longest, endless: a.window.max_keys().is_some() }
    }

    fn build(&self, parts: Parts) -> Result<Arc<dyn Model>> {
        Ok(Arc::new(Decoder::load(self, parts)?))
    }
}
