//! The decoder as a [`Blueprint`]: its tensors, in the names of docs/checkpoints.md, its limits, and how the model is built.

use super::{
    config::{Architecture, DecoderBlueprint},
    model::{Decoder, StartState},
    state::DecoderState,
    work::Work,
};
use crate::{
    decode::contract::{BoundaryOptions, Model, SequenceRow, Want, state_ref},
    error::Result,
    family::{
        Blueprint, Parts, TensorSpec,
        checkpoint::{self, Config},
        parts::{
            loader::{Loader, StackSpec},
            specs::{self, matrix, norm},
            step::first_logits,
        },
        settings::Bounds,
    },
    kernels::pages::PagePool,
    nn::attention::layer::NormOrder,
};
use std::{path::Path, sync::Arc};

/// Reads a decoder's architecture. Fails if a key is unknown, missing, of the wrong type or out of bounds, or if the
/// position scheme does not work with the window.
pub(crate) fn read(config: &Config, file: &Path) -> Result<Box<dyn Blueprint>> {
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
        let mut out = vec![matrix("embedding.weight", vec![self.symbols, a.dim])];
        specs::position(&mut out, &shape);
        (0..a.layers).for_each(|index| specs::layer(&mut out, &format!("layers.{index}"), &shape));
        norm(&mut out, "norm", a.dim);
        if !a.tied {
            out.push(matrix("head.weight", vec![self.symbols, a.dim]));
        }
        out
    }

    fn shape(&self) -> String {
        let Architecture { layers, dim, heads, head_dim, position, window, .. } = &self.architecture;
        format!("{layers} layers × {dim}, {heads} heads × {head_dim}, {}, {}", position.name(), window.describe())
    }

    fn bounds(&self) -> Bounds {
        let a = &self.architecture;
        let longest =
            a.position.max_length(a.head_dim, a.window).map(|(positions, why)| (positions - self.lead(), why));
        Bounds { longest, endless: a.window.max_keys().is_some() }
    }

    fn speculates(&self) -> bool {
        true
    }

    fn computed_numbers(&self) -> usize {
        specs::table_numbers(&self.stack_shape())
    }

    fn build(&self, parts: Parts) -> Result<Arc<dyn Model>> {
        Ok(Arc::new(Decoder::load(self, parts)?))
    }
}

impl Decoder {
    /// Builds the model from checked weights. Fails if the settings ask for more symbols than the model can hold, or
    /// key-value memory is too small for the start symbol.
    pub fn load(blueprint: &DecoderBlueprint, mut parts: Parts) -> Result<Self> {
        let card = parts.card("decoder", blueprint)?;
        let a = &blueprint.architecture;
        let dtype = parts.settings.dtype;
        let mut loader = Loader::new(&mut parts.weights, blueprint.stack_shape(), a.layer_norm_eps, dtype)?;
        let stack = loader.stack(&StackSpec {
            name: "layers",
            layers: a.layers,
            output: 0,
            window: a.window,
            order: NormOrder::Pre,
            positions: card.max_symbols + blueprint.lead(),
        })?;
        let norm = Some(loader.norm("norm")?);
        let mut embedding = loader.weights.take("embedding.weight")?;
        let head = match a.tied {
            true => loader.pack(&embedding, blueprint.symbols)?,
            false => {
                let weight = loader.weights.take("head.weight")?;
                loader.pack(&weight, blueprint.symbols)?
            }
        };
        if a.scale_embedding {
            let scale = (a.dim as f64).sqrt() as f32;
            embedding.iter_mut().for_each(|x| *x *= scale);
        }
        let compute = parts.settings.compute();
        let pages = PagePool::new(parts.settings.memory_bytes);
        let mut model = Self { card, compute, embedding, stack, norm, head, start: None, pages, own_bytes: 0 };
        if let Some(specials) = model.card.vocabulary.specials() {
            model.start = Some(model.feed_start(specials.start)?);
            model.own_bytes = model.pages.in_use();
            model.card.first_logits = Some(first_logits(&model)?);
        }
        Ok(model)
    }

    /// Feeds the start symbol to an empty sequence.
    fn feed_start(&self, symbol: u32) -> Result<StartState> {
        let mut rows = [SequenceRow::new(self.begin(BoundaryOptions::default())?)];
        rows[0].set(&[symbol], Want::Last);
        self.feed_symbols(&mut rows, &[0], &mut Work::default())?;
        let state: &DecoderState = state_ref(&*rows[0].state)?;
        Ok(StartState { cache: Arc::new(state.cache.clone()), hidden: state.hidden.clone() })
    }
}
