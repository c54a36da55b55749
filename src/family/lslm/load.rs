//! Takes a latent segment model's tensors out of the checkpoint, in the names of docs/checkpoints.md.

use super::config::{LslmBlueprint, StackShape, Widths};
use crate::{
    error::Result,
    family::checkpoint::Weights,
    kernels::{
        Dtype,
        attention::PageLayout,
        linear::{Linear, WeightArena},
        rowwise::RmsNorm,
    },
    nn::{
        boundary::summed::Summed,
        position::PositionScheme,
        t5::{T5Cross, T5Layer, T5Stack},
    },
};
use std::sync::Arc;

/// Takes tensors.
pub(super) struct Loader<'a> {
    blueprint: &'a LslmBlueprint,
    weights: &'a mut Weights,
    store: WeightArena,
}

impl<'a> Loader<'a> {
    pub(super) fn new(blueprint: &'a LslmBlueprint, weights: &'a mut Weights, dtype: Dtype) -> Self {
        Self { blueprint, weights, store: WeightArena::new(dtype) }
    }

    /// The token encoder's and the decoder's: (V, D) each.
    pub(super) fn embeddings(&mut self) -> Result<[Arc<[f32]>; 2]> {
        if self.blueprint.architecture.shared_embedding {
            let shared: Arc<[f32]> = self.weights.take("embedding.weight")?.into();
            return Ok([shared.clone(), shared]);
        }
        let mut table = |name: &str| self.weights.take(name).map(Arc::from);
        Ok([table("token.embedding.weight")?, table("decoder.embedding.weight")?])
    }

    pub(super) fn stack(&mut self, name: &str) -> Result<T5Stack> {
        let shapes = self.blueprint.stacks();
        let [token, context, decoder] = shapes.map(|(_, shape)| *shape);
        let shape = match name {
            "token" => token,
            "context" => context,
            _ => decoder,
        };
        // pooling reads the token encoder's outputs; nobody looks back at the others'
        let output = if name == "token" { shape.dim } else { 0 };
        let StackShape { layers: count, heads, head_dim, .. } = shape;
        let layout = PageLayout { dtype: self.store.dtype(), layers: count, heads, head_dim, output };
        let mut layers = Vec::with_capacity(count);
        for index in 0..count {
            layers.push(self.layer(name, &shape, index)?);
        }
        let table = self.weights.take(&format!("{name}.distance_bias.weight"))?;
        let position = PositionScheme::Buckets(shape.buckets().tables(&table));
        Ok(T5Stack { layers, position, layout, norm: self.norm(&format!("{name}.norm"))? })
    }

    fn layer(&mut self, stack: &str, shape: &StackShape, index: usize) -> Result<T5Layer> {
        let at = |name: &str| format!("{stack}.{index}.{name}");
        let (dim, inner, taken) = (shape.dim, shape.inner(), self.blueprint.taken(stack, index));
        let parts = ["query", "key", "value"].map(|name| at(&format!("attention.{name}")));
        let cross = if stack == "decoder" { Some(self.cross(shape, &at)?) } else { None };
        Ok(T5Layer {
            attention_norm: self.norm(&at("attention.norm"))?,
            qkv: self.joined(&parts, inner, taken)?,
            output: self.linear(&at("attention.output"), dim, inner)?,
            cross,
            feed_forward_norm: self.norm(&at("feed_forward.norm"))?,
            up: self.linear(&at("feed_forward.up"), shape.feed_forward, dim)?,
            down: self.linear(&at("feed_forward.down"), dim, shape.feed_forward)?,
        })
    }

    fn cross(&mut self, shape: &StackShape, at: &dyn Fn(&str) -> String) -> Result<T5Cross> {
        let (dim, inner, memory) = (shape.dim, shape.inner(), self.blueprint.architecture.context.dim);
        Ok(T5Cross {
            norm: self.norm(&at("memory.norm"))?,
            query: self.linear(&at("memory.query"), inner, dim)?,
            memory: self.joined(&[at("memory.key"), at("memory.value")], inner, memory)?,
            output: self.linear(&at("memory.output"), dim, inner)?,
        })
    }

    /// The head, and what its vectors are multiplied with: an embedding's numbers are of size one, a head's are not.
    pub(super) fn head(&mut self, embedding: &[f32]) -> Result<(Linear, f32)> {
        let (symbols, dim) = (self.blueprint.symbols, self.blueprint.architecture.decoder.dim);
        let bias = self.weights.take("head.bias")?;
        if self.blueprint.architecture.tied_head {
            let head = Linear::pack(&self.store, embedding, &bias, symbols, dim)?;
            return Ok((head, (1.0 / (dim as f64).sqrt()) as f32));
        }
        let weight = self.weights.take("head.weight")?;
        Ok((Linear::pack(&self.store, &weight, &bias, symbols, dim)?, 1.0))
    }

    pub(super) fn predictor(&mut self) -> Result<Summed> {
        let (first, second) =
            (self.weights.take("boundary.hidden.weight")?, self.weights.take("boundary.output.weight")?);
        let a = &self.blueprint.architecture;
        Summed::new(&first, &second, (a.boundaries.hidden, a.token.dim), a.boundaries.threshold)
    }

    pub(super) fn projection(&mut self) -> Result<Option<Linear>> {
        let a = &self.blueprint.architecture;
        if a.widths != Widths::Projection {
            return Ok(None);
        }
        self.linear("context.projection", a.context.dim, a.token.dim).map(Some)
    }

    fn linear(&mut self, name: &str, outputs: usize, inputs: usize) -> Result<Linear> {
        let weight = self.weights.take(&format!("{name}.weight"))?;
        Linear::pack(&self.store, &weight, &[], outputs, inputs)
    }

    /// Matrices of the same inputs as one: their outputs one behind the other, `outputs` each.
    fn joined(&mut self, names: &[String], outputs: usize, inputs: usize) -> Result<Linear> {
        let mut weight = Vec::with_capacity(names.len() * outputs * inputs);
        for name in names {
            weight.extend(self.weights.take(&format!("{name}.weight"))?);
        }
        Linear::pack(&self.store, &weight, &[], names.len() * outputs, inputs)
    }

    fn norm(&mut self, name: &str) -> Result<RmsNorm> {
        let weight = self.weights.take(&format!("{name}.weight"))?;
        Ok(RmsNorm { weight, eps: self.blueprint.architecture.norm_eps })
    }
}
