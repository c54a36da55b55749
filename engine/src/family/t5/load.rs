//! Builds the model from a checkpoint's tensors, whose names are those of Hugging Face's transformers.

use super::{
    blueprint::{EMBEDDING, StackTensors, T5Blueprint},
    config::{Architecture, Deletion, SPECIALS},
    gate::DeletionGate,
    model::T5,
};
use crate::{
    decode::document::{DocumentLimits, GenerationDefaults, PoolingStep},
    error::Result,
    family::{Parts, checkpoint::Weights},
    kernels::{
        attention::PageLayout,
        linear::{Linear, WeightArena},
        pages::PagePool,
        rowwise::RmsNorm,
    },
    nn::{
        attention::layer::Cross,
        position::PositionScheme,
        t5::{
            T5Layer, T5Stack,
            encoder::{GlobalTokens, T5Encoder},
        },
    },
};

/// Added to the mean square in the gate's norm, whatever the other norms add.
const GATE_NORM_EPS: f32 = 1e-6;
/// Vectors of one unit of the encoder's work.
const BLOCK: usize = super::encoding::UNIT;

impl T5 {
    /// Builds the model from checked weights. Fails if the settings ask for more symbols than the model can hold.
    pub fn load(blueprint: &T5Blueprint, mut parts: Parts) -> Result<Self> {
        let mut card = parts.card("t5", blueprint)?;
        let a = &blueprint.architecture;
        let deletion = a.deletion.filter(|_| !parts.settings.unpooled);
        if a.deletion.is_some() && deletion.is_none() {
            card.unpooled_twin = true;
            card.shape.push_str(", gate off");
        }
        let store = WeightArena::new(parts.settings.dtype);
        let mut loader = Loader { blueprint, weights: &mut parts.weights, store };
        let [encoder_tensors, decoder_tensors] = blueprint.stacks();
        let embedding = loader.weights.take(EMBEDDING)?;
        let head = loader.head(&embedding)?;
        let head_scale = if a.scale_head { (1.0 / (a.dim as f64).sqrt()) as f32 } else { 1.0 };
        Ok(Self {
            compute: parts.settings.compute(),
            embedding,
            encoder: loader.encoder(&encoder_tensors)?,
            gate: deletion.map(|deletion| loader.gate(&deletion)).transpose()?,
            decoder: loader.decoder(&decoder_tensors)?,
            head,
            head_scale,
            pages: PagePool::new(parts.settings.memory_bytes),
            limits: limits(a, deletion, parts.config.generation, card.max_symbols),
            card,
        })
    }
}

fn limits(
    a: &Architecture,
    deletion: Option<Deletion>,
    generation: Option<GenerationDefaults>,
    targets: usize,
) -> DocumentLimits {
    let pooling =
        |deletion: &Deletion| PoolingStep { layer: deletion.layer, from: a.source_length, to: a.source_length };
    DocumentLimits {
        tokens: a.source_length,
        targets,
        padded: false,
        block: BLOCK,
        poolings: deletion.iter().map(pooling).collect(),
        marks: SPECIALS,
        generation: generation.unwrap_or_else(GenerationDefaults::transformers).within(targets.saturating_sub(1)),
    }
}

/// Takes tensors from a checkpoint and packs them.
struct Loader<'a> {
    blueprint: &'a T5Blueprint,
    weights: &'a mut Weights,
    store: WeightArena,
}

impl<'a> Loader<'a> {
    fn architecture(&self) -> &'a Architecture {
        &self.blueprint.architecture
    }

    fn head(&mut self, embedding: &[f32]) -> Result<Linear> {
        let Architecture { dim, tied_head, .. } = *self.architecture();
        if tied_head {
            return Linear::pack(&self.store, embedding, &[], self.blueprint.symbols, dim);
        }
        let weight = self.weights.take("lm_head.weight")?;
        Linear::pack(&self.store, &weight, &[], self.blueprint.symbols, dim)
    }

    fn encoder(&mut self, stack: &StackTensors<'_>) -> Result<T5Encoder> {
        let a = self.architecture();
        let buckets = a.buckets(true);
        let attention = |name: &str| format!("encoder.block.0.layer.0.SelfAttention.{name}.weight");
        let bias = buckets.two_sided_tables(&self.weights.take(&attention("relative_attention_bias"))?);
        let global = match a.attention.group() {
            None => None,
            Some(group) => {
                let name =
                    |block: usize| format!("encoder.block.{block}.layer.0.SelfAttention.global_input_layer_norm");
                let table = self.weights.take(&attention("global_relative_attention_bias"))?;
                Some(GlobalTokens {
                    group,
                    norms: (0..stack.layers).map(|block| self.norm(&name(block))).collect::<Result<_>>()?,
                    bias: buckets.two_sided_tables(&table),
                })
            }
        };
        Ok(T5Encoder {
            layers: self.layers(stack)?,
            heads: a.heads,
            head_dim: a.head_dim,
            bias,
            radius: a.attention.radius(),
            global,
            sink: a.softmax1,
            norm: self.norm("encoder.final_layer_norm")?,
        })
    }

    fn decoder(&mut self, stack: &StackTensors<'_>) -> Result<T5Stack> {
        let a = self.architecture();
        let table = self.weights.take("decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight")?;
        Ok(T5Stack {
            layers: self.layers(stack)?,
            position: PositionScheme::Buckets(a.buckets(false).tables(&table).into()),
            layout: PageLayout {
                dtype: self.store.dtype().cache_dtype(),
                layers: stack.layers,
                heads: a.heads,
                head_dim: a.head_dim,
                output: 0,
            },
            sink: a.softmax1,
            norm: self.norm("decoder.final_layer_norm")?,
        })
    }

    fn layers(&mut self, stack: &StackTensors<'_>) -> Result<Vec<T5Layer>> {
        (0..stack.layers).map(|block| self.layer(stack, block)).collect()
    }

    fn layer(&mut self, stack: &StackTensors<'_>, block: usize) -> Result<T5Layer> {
        let a = self.architecture();
        let key = |layer: usize, name: &str| format!("{}.block.{block}.layer.{layer}.{name}", stack.name);
        let attention = |name: &str| key(0, &format!("SelfAttention.{name}"));
        let inner = |name: &str| key(stack.feed_forward, &format!("DenseReluDense.{name}"));
        let cross = match stack.name {
            "decoder" => Some(self.cross(&|name| key(1, name))?),
            _ => None,
        };
        let (gate, up) = match a.gated {
            true => (Some(self.joined(&[inner("wi_0")], a.dim)?), inner("wi_1")),
            false => (None, inner("wi")),
        };
        Ok(T5Layer {
            attention_norm: self.norm(&key(0, "layer_norm"))?,
            qkv: self.joined(&["q", "k", "v"].map(attention), a.dim)?,
            output: self.joined(&[attention("o")], a.inner())?,
            cross,
            feed_forward_norm: self.norm(&key(stack.feed_forward, "layer_norm"))?,
            activation: a.activation,
            gate,
            up: self.joined(&[up], a.dim)?,
            down: self.joined(&[inner("wo")], a.feed_forward)?,
        })
    }

    fn cross(&mut self, key: &dyn Fn(&str) -> String) -> Result<Cross<RmsNorm>> {
        let a = self.architecture();
        let attention = |name: &str| key(&format!("EncDecAttention.{name}"));
        Ok(Cross {
            norm: self.norm(&key("layer_norm"))?,
            query: self.joined(&[attention("q")], a.dim)?,
            memory: self.joined(&[attention("k"), attention("v")], a.dim)?,
            output: self.joined(&[attention("o")], a.inner())?,
        })
    }

    fn gate(&mut self, deletion: &Deletion) -> Result<DeletionGate> {
        let key = |name: &str| format!("encoder.block.{}.delete_gate.{name}", deletion.layer);
        let norm = match deletion.norm {
            true => Some(RmsNorm { weight: self.weights.take(&key("layer_norm.weight"))?, eps: GATE_NORM_EPS }),
            false => None,
        };
        Ok(DeletionGate {
            layer: deletion.layer,
            function: deletion.function,
            threshold: deletion.threshold,
            norm,
            weight: self.weights.take(&key("feed_forward.weight"))?,
            bias: self.weights.take(&key("feed_forward.bias"))?.iter().sum(),
        })
    }

    /// Packs matrices with the same `inputs` as one, with their outputs concatenated.
    fn joined(&mut self, names: &[String], inputs: usize) -> Result<Linear> {
        let mut weight = Vec::new();
        for name in names {
            weight.extend(self.weights.take(&format!("{name}.weight"))?);
        }
        Linear::pack(&self.store, &weight, &[], weight.len() / inputs, inputs)
    }

    fn norm(&mut self, name: &str) -> Result<RmsNorm> {
        Ok(RmsNorm { weight: self.weights.take(&format!("{name}.weight"))?, eps: self.architecture().norm_eps })
    }
}
