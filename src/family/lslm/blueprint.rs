//! The latent segment model as a [`Blueprint`]: its tensors and how the model is built.

use super::{
    config::{Architecture, LslmBlueprint, T5Shape, Widths},
    model::Lslm,
};
use crate::{
    decode::contract::Model,
    error::{Error, Result},
    family::{
        Blueprint, Init, Parts, TensorSpec,
        checkpoint::{self, Config},
    },
    nn::pooling::Pooling,
};
use std::{path::Path, sync::Arc};

/// Reads a latent segment model's architecture. Fails if a key is unknown, missing, of the wrong type or out of bounds,
/// or the vocabulary has no special symbols.
pub fn read(config: &Config, file: &Path) -> Result<Box<dyn Blueprint>> {
    let architecture: Architecture = checkpoint::architecture(config, file)?;
    let vocabulary = config.vocabulary(file)?;
    if vocabulary.specials().is_none() {
        return Err(Error::checkpoint(
            file,
            "vocabulary.specials",
            "the ids of the model's special symbols",
            "nothing",
        ));
    }
    let blueprint = LslmBlueprint { architecture, symbols: vocabulary.len() };
    blueprint.validate(file)?;
    Ok(Box::new(blueprint))
}

impl LslmBlueprint {
    /// Appends the tensors of one layer.
    fn layer(&self, stack: &str, shape: &T5Shape, index: usize, out: &mut Vec<TensorSpec>) {
        let T5Shape { dim, feed_forward, .. } = *shape;
        let inner = shape.inner();
        let input = self.input_width(stack, index);
        let key = |name: &str| format!("{stack}.{index}.{name}");
        for name in ["query", "key", "value"] {
            out.push(matrix(key(&format!("attention.{name}.weight")), inner, input));
        }
        out.push(matrix(key("attention.output.weight"), dim, inner));
        out.push(norm(key("attention.norm.weight"), input));
        if stack == "decoder" {
            let memory = self.architecture.context.dim;
            for (name, inputs) in [("query", dim), ("key", memory), ("value", memory)] {
                out.push(matrix(key(&format!("memory.{name}.weight")), inner, inputs));
            }
            out.push(matrix(key("memory.output.weight"), dim, inner));
            out.push(norm(key("memory.norm.weight"), dim));
        }
        out.push(matrix(key("feed_forward.up.weight"), feed_forward, dim));
        out.push(matrix(key("feed_forward.down.weight"), dim, feed_forward));
        out.push(norm(key("feed_forward.norm.weight"), dim));
    }
}

impl Blueprint for LslmBlueprint {
    fn tensors(&self) -> Vec<TensorSpec> {
        let a = &self.architecture;
        let embedding = |name: &str, dim| TensorSpec {
            name: name.into(),
            shape: vec![self.symbols, dim],
            init: Init::Normal(0.0, 1.0),
            trained: true,
        };
        let mut out = if a.shared_embedding {
            vec![embedding("embedding.weight", a.token.dim)]
        } else {
            vec![embedding("token.embedding.weight", a.token.dim), embedding("decoder.embedding.weight", a.decoder.dim)]
        };
        for (name, stack) in self.stacks() {
            (0..stack.layers).for_each(|index| self.layer(name, stack, index, &mut out));
            out.push(matrix(format!("{name}.distance_bias.weight"), stack.buckets, stack.heads));
            out.push(norm(format!("{name}.norm.weight"), stack.dim));
        }
        out.push(matrix("boundary.hidden.weight".into(), a.boundaries.hidden, a.token.dim));
        out.push(matrix("boundary.output.weight".into(), a.token.dim, a.boundaries.hidden));
        if a.widths == Widths::Projection {
            out.push(matrix("context.projection.weight".into(), a.context.dim, a.token.dim));
        }
        if !a.tied_head {
            out.push(matrix("head.weight".into(), self.symbols, a.decoder.dim));
        }
        let bias = Init::Normal(0.0, 0.0);
        out.push(TensorSpec { name: "head.bias".into(), shape: vec![self.symbols], init: bias, trained: true });
        out
    }

    fn shape(&self) -> String {
        let a = &self.architecture;
        let stack = |s: &T5Shape| format!("{} × {}", s.layers, s.dim);
        let pooling = match a.pooling {
            Pooling::Mean => "mean pooling".to_owned(),
            Pooling::Last => "0-hops pooling".to_owned(),
            Pooling::Hops(hops) => format!("{hops}-hops pooling"),
        };
        format!(
            "token encoder {}, context encoder {}, segment decoder {}, {pooling}, learned boundaries",
            stack(&a.token),
            stack(&a.context),
            stack(&a.decoder)
        )
    }

    fn build(&self, parts: Parts) -> Result<Arc<dyn Model>> {
        Ok(Arc::new(Lslm::load(self, parts)?))
    }
}

/// Returns the spec of a matrix, whose deviation of inputs^−½ keeps the size of a sum.
fn matrix(name: String, outputs: usize, inputs: usize) -> TensorSpec {
    let init = Init::Normal(0.0, 1.0 / (inputs as f32).sqrt());
    TensorSpec { name, shape: vec![outputs, inputs], init, trained: true }
}

fn norm(name: String, dim: usize) -> TensorSpec {
    TensorSpec { name, shape: vec![dim], init: Init::Normal(1.0, 0.0), trained: true }
}
