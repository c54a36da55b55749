//! Builds a decoder from a checkpoint's tensors, in the names of docs/checkpoints.md.

use super::{
    config::DecoderBlueprint,
    model::{Decoder, StartState},
    state::DecoderState,
    work::Work,
};
use crate::{
    decode::contract::{BoundaryOptions, Model, SequenceRow, Want, state_ref},
    error::Result,
    family::{
        Parts,
        parts::{
            loader::{Loader, StackSpec},
            step::first_logits,
        },
    },
    kernels::pages::PagePool,
    nn::attention::layer::NormOrder,
};
use std::sync::Arc;

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
