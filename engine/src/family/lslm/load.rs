//! The latent segment model as a [`Blueprint`]: its tensors, in the names of docs/checkpoints.md, and how the model is built.

use super::{
    config::{Architecture, LslmBlueprint, T5Shape, Widths},
    model::Lslm,
    state::{LslmState, StartCaches},
    work::{EncoderCaches, TOKEN, Work, state},
};
use crate::{
    decode::contract::{Model, SequenceRow, state_ref},
    error::{Error, Result},
    family::{
        Blueprint, Parts, TensorSpec,
        checkpoint::{self, Config, Weights},
        parts::step::first_logits,
    },
    kernels::{
        attention::PageLayout,
        linear::{Linear, WeightArena},
        pages::PagePool,
        rowwise::RmsNorm,
    },
    nn::{
        Activation, Position,
        attention::layer::Cross,
        boundary::summed::Summed,
        kv_cache::KvCache,
        pooling::Pooling,
        position::PositionScheme,
        t5::{T5Layer, T5Stack},
    },
};
use std::{path::Path, sync::Arc};

/// Reads a latent segment model's architecture. Fails if a key is unknown, missing, of the wrong type or out of bounds,
/// or the vocabulary has no special symbols.
pub(crate) fn read(config: &Config, file: &Path) -> Result<Box<dyn Blueprint>> {
    let architecture: Architecture = checkpoint::architecture(config, file)?;
    let vocabulary = config.vocabulary(file)?;
    if vocabulary.specials().is_none() {
        let expected = "the ids of the model's special symbols";
        return Err(Error::checkpoint(file, "vocabulary.specials", expected, "nothing"));
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
        let embedding = |name: &str, dim| TensorSpec::normal(name, vec![self.symbols, dim], 0.0, 1.0);
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
        out.push(matrix("boundary.hidden.weight", a.boundaries.hidden, a.token.dim));
        out.push(matrix("boundary.output.weight", a.token.dim, a.boundaries.hidden));
        if a.widths == Widths::Projection {
            out.push(matrix("context.projection.weight", a.context.dim, a.token.dim));
        }
        if !a.tied_head {
            out.push(matrix("head.weight", self.symbols, a.decoder.dim));
        }
        out.push(TensorSpec::zeros("head.bias", vec![self.symbols]));
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
        let token = stack(&a.token);
        let context = stack(&a.context);
        let decoder = stack(&a.decoder);
        format!(
            "token encoder {token}, context encoder {context}, segment decoder {decoder}, {pooling}, learned boundaries"
        )
    }

    fn computed_numbers(&self) -> usize {
        let tables = self.stacks().map(|(_, stack)| stack.buckets().table_numbers(stack.heads));
        tables.into_iter().fold(0, usize::saturating_add)
    }

    fn build(&self, parts: Parts) -> Result<Arc<dyn Model>> {
        Ok(Arc::new(Lslm::load(self, parts)?))
    }
}

/// Returns the spec of a matrix, whose deviation of inputs^−½ keeps the size of a sum.
fn matrix(name: impl Into<String>, outputs: usize, inputs: usize) -> TensorSpec {
    TensorSpec::normal(name, vec![outputs, inputs], 0.0, 1.0 / (inputs as f32).sqrt())
}

fn norm(name: String, dim: usize) -> TensorSpec {
    TensorSpec::normal(name, vec![dim], 1.0, 0.0)
}

impl Lslm {
    /// Builds the model from checked weights. Fails if key-value memory is too small for the start symbol.
    pub fn load(blueprint: &LslmBlueprint, mut parts: Parts) -> Result<Self> {
        let mut card = parts.card("lslm", blueprint)?;
        card.boundary_modes = blueprint.architecture.driver.modes();
        card.pooled = true;
        let pages = PagePool::new(parts.settings.memory_bytes);
        let specials = card.vocabulary.specials();
        let mut loader =
            Loader { blueprint, weights: &mut parts.weights, store: WeightArena::new(parts.settings.dtype) };
        let [token_embedding, decoder_embedding] = loader.embeddings()?;
        let token = loader.stack("token", &blueprint.architecture.token)?;
        let context = loader.stack("context", &blueprint.architecture.context)?;
        let decoder = loader.stack("decoder", &blueprint.architecture.decoder)?;
        let (head, head_scale) = loader.head(&decoder_embedding)?;
        // the memory's keys have the decoder's heads, and are stored as its own
        let memory = PageLayout { output: 0, ..decoder.layout };
        let cache = |layout| KvCache::new(layout, pages.clone());
        let start = StartCaches { token: cache(token.layout), context: cache(context.layout), memory: cache(memory) };
        let mut model = Self {
            card,
            compute: parts.settings.compute(),
            specials: specials.ok_or_else(|| Error::Internal("a vocabulary without special symbols".into()))?,
            token_embedding,
            decoder_embedding,
            token,
            predictor: loader.predictor()?,
            pooling: blueprint.architecture.pooling,
            projection: loader.projection()?,
            context,
            decoder,
            head,
            head_scale,
            memory,
            start,
            pages,
            own_bytes: 0,
        };
        model.start = model.read_start()?;
        model.own_bytes = model.pages.in_use();
        model.card.first_logits = Some(first_logits(&model)?);
        Ok(model)
    }

    /// Reads the start symbol into an empty sequence: it is a segment by itself.
    fn read_start(&self) -> Result<StartCaches> {
        let mut work = Work::default();
        let decoder = KvCache::new(self.decoder.layout, self.pages.clone());
        let rows = &mut [SequenceRow::new(Box::new(LslmState::new(self.start.clone(), decoder)))];
        let LslmState { token, context, memory, .. } = state(rows, 0)?;
        [token, context, memory].into_iter().try_for_each(|cache| cache.reserve(1))?;
        let dim = self.width();
        work.positions.push(Position { sequence: 0, index: 0 });
        work.x.extend_from_slice(&self.token_embedding[self.specials.start as usize * dim..][..dim]); // (1, D)
        let caches = &mut EncoderCaches::<TOKEN>(rows);
        self.token.forward(&self.compute, &mut work.x, &work.positions, caches, None, &mut work.stack)?; // (1, D)
        let token = &mut state(rows, 0)?.token;
        token.write_output(0, &work.x)?;
        token.advance(1);
        self.encode_segments(rows, &mut work)?; // (1, C)
        let state: &LslmState = state_ref(&*rows[0].state)?;
        Ok(StartCaches { token: state.token.clone(), context: state.context.clone(), memory: state.memory.clone() })
    }
}

/// Takes the tensors of a latent segment model.
struct Loader<'a> {
    blueprint: &'a LslmBlueprint,
    weights: &'a mut Weights,
    store: WeightArena,
}

impl Loader<'_> {
    /// Embeddings of token encoder, (V, D), and decoder, (V, E).
    fn embeddings(&mut self) -> Result<[Arc<[f32]>; 2]> {
        if self.blueprint.architecture.shared_embedding {
            let shared: Arc<[f32]> = self.weights.take("embedding.weight")?.into();
            return Ok([shared.clone(), shared]);
        }
        let mut table = |name: &str| self.weights.take(name).map(Arc::from);
        Ok([table("token.embedding.weight")?, table("decoder.embedding.weight")?])
    }

    fn stack(&mut self, name: &str, shape: &T5Shape) -> Result<T5Stack> {
        // pooling reads the token encoder's outputs; the others' are not kept
        let output = if name == "token" { shape.dim } else { 0 };
        let T5Shape { layers, heads, head_dim, .. } = *shape;
        let layout = PageLayout { dtype: self.store.dtype().cache_dtype(), layers, heads, head_dim, output };
        let layers = (0..layers).map(|index| self.layer(name, shape, index)).collect::<Result<_>>()?;
        let table = self.weights.take(&format!("{name}.distance_bias.weight"))?;
        let position = PositionScheme::Buckets(shape.buckets().tables(&table).into());
        Ok(T5Stack { layers, position, layout, sink: false, norm: self.norm(&format!("{name}.norm"))? })
    }

    fn layer(&mut self, stack: &str, shape: &T5Shape, index: usize) -> Result<T5Layer> {
        let key = |name: &str| format!("{stack}.{index}.{name}");
        let dim = shape.dim;
        let inner = shape.inner();
        let qkv = ["query", "key", "value"].map(|name| key(&format!("attention.{name}")));
        let cross = if stack == "decoder" { Some(self.cross(shape, &key)?) } else { None };
        Ok(T5Layer {
            attention_norm: self.norm(&key("attention.norm"))?,
            qkv: self.joined(&qkv, inner, self.blueprint.input_width(stack, index))?,
            output: self.linear(&key("attention.output"), dim, inner)?,
            cross,
            feed_forward_norm: self.norm(&key("feed_forward.norm"))?,
            activation: Activation::Relu,
            gate: None,
            up: self.linear(&key("feed_forward.up"), shape.feed_forward, dim)?,
            down: self.linear(&key("feed_forward.down"), dim, shape.feed_forward)?,
        })
    }

    fn cross(&mut self, shape: &T5Shape, key: &dyn Fn(&str) -> String) -> Result<Cross<RmsNorm>> {
        let inner = shape.inner();
        let memory = self.blueprint.architecture.context.dim;
        Ok(Cross {
            norm: self.norm(&key("memory.norm"))?,
            query: self.linear(&key("memory.query"), inner, shape.dim)?,
            memory: self.joined(&[key("memory.key"), key("memory.value")], inner, memory)?,
            output: self.linear(&key("memory.output"), shape.dim, inner)?,
        })
    }

    /// The head, and the factor of its input: a tied embedding has numbers of size one, unlike a head's.
    fn head(&mut self, embedding: &[f32]) -> Result<(Linear, f32)> {
        let symbols = self.blueprint.symbols;
        let dim = self.blueprint.architecture.decoder.dim;
        let bias = self.weights.take("head.bias")?;
        if self.blueprint.architecture.tied_head {
            let head = Linear::pack(&self.store, embedding, &bias, symbols, dim)?;
            return Ok((head, (1.0 / (dim as f64).sqrt()) as f32));
        }
        let weight = self.weights.take("head.weight")?;
        Ok((Linear::pack(&self.store, &weight, &bias, symbols, dim)?, 1.0))
    }

    fn predictor(&mut self) -> Result<Summed> {
        let hidden = self.weights.take("boundary.hidden.weight")?;
        let output = self.weights.take("boundary.output.weight")?;
        let a = &self.blueprint.architecture;
        Summed::new(&hidden, &output, a.boundaries.hidden, a.boundaries.threshold)
    }

    fn projection(&mut self) -> Result<Option<Linear>> {
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

    /// Joins matrices with the same inputs: their outputs, `outputs` each, follow one another.
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
