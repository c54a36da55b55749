//! Builds the model from a checkpoint's tensors. Their names are the published code's, as in docs/checkpoints.md.

use super::{
    blueprint::PyramidionBlueprint,
    config::{Architecture, AttentionKind, SPECIAL_IDS, ScorerKind},
    model::Pyramidion,
    scorer::Scorer,
};
use crate::{
    decode::{
        contract::Card,
        document::{DocumentLimits, GenerationDefaults, PoolingStep, SpecialIds},
    },
    error::Result,
    family::{Blueprint, Parts, checkpoint::Weights, decoder::model::Decoder},
    kernels::{
        attention::PageLayout,
        linear::{Linear, WeightArena},
        pages::PagePool,
        rowwise::LayerNorm,
    },
    nn::{
        attention::{
            encoder::EncoderStack,
            encoder_attention::{AttentionPattern, Global, hashed::Hashing},
            layer::{Cross, Layer, NormOrder},
            stack::Stack,
        },
        position::{
            PositionScheme,
            absolute::{Absolute, frequencies},
        },
        window::Window,
    },
};
use std::sync::{Arc, Mutex};

/// n of the first position in fairseq's sinusoids; lower ones belong to padding.
const FIRST_SINUSOID: usize = 2;

impl Pyramidion {
    /// Builds the model from checked weights. Fails if the settings ask for more symbols than the model can hold.
    pub fn load(blueprint: &PyramidionBlueprint, mut parts: Parts) -> Result<Self> {
        let a = &blueprint.architecture;
        let parameters = blueprint.tensors().iter().map(|tensor| tensor.shape.iter().product::<usize>()).sum();
        let card = Card { parameters, ..parts.card("pyramidion", blueprint)? };
        let arena = WeightArena::new(parts.settings.dtype);
        let mut loader = Loader { blueprint, weights: &mut parts.weights, arena };
        let (embedding, head) = loader.embedding()?;
        Ok(Self {
            encoder: loader.encoder()?,
            positions: sinusoids(a.dim),
            encoder_norm: loader.final_norm("encoder")?,
            scorers: loader.scorers()?,
            pooling: a.pooling.kind(),
            plan: Arc::new(blueprint.plan.clone()),
            padding: Mutex::new(None),
            limits: limits(blueprint, parts.config.generation, card.max_symbols),
            decoder: Decoder {
                card,
                compute: parts.settings.compute(),
                embedding,
                stack: loader.decoder()?,
                norm: loader.final_norm("decoder")?,
                head,
                start: None,
                pages: PagePool::new(parts.settings.memory_bytes),
                own_bytes: 0,
            },
        })
    }
}

/// Returns fairseq's sinusoidal positions for vectors of width `dim`.
fn sinusoids(dim: usize) -> PositionScheme {
    PositionScheme::Absolute(Absolute::Sinusoidal { frequencies: frequencies(dim), first: FIRST_SINUSOID })
}

fn limits(blueprint: &PyramidionBlueprint, generation: Option<GenerationDefaults>, targets: usize) -> DocumentLimits {
    let [_, pad, end, unknown] = SPECIAL_IDS;
    let plan = &blueprint.plan;
    let steps = plan.groups.iter().zip(plan.lengths().into_iter().skip(1));
    let max = targets.saturating_sub(1);
    let generation = generation.unwrap_or_else(|| GenerationDefaults::fairseq(max));
    DocumentLimits {
        tokens: blueprint.architecture.source_length,
        targets,
        padded: blueprint.architecture.padded,
        block: plan.max_unit(),
        poolings: steps.map(|(group, to)| PoolingStep { layer: group.end - 1, from: group.length, to }).collect(),
        marks: SpecialIds { start: end, pad, end, unknown },
        generation: generation.within(max),
    }
}

/// Takes tensors from a checkpoint and packs them.
struct Loader<'a> {
    blueprint: &'a PyramidionBlueprint,
    weights: &'a mut Weights,
    arena: WeightArena,
}

impl<'a> Loader<'a> {
    fn architecture(&self) -> &'a Architecture {
        &self.blueprint.architecture
    }

    fn order(&self) -> NormOrder {
        if self.architecture().pre_norm { NormOrder::Pre } else { NormOrder::Post }
    }

    /// Returns the embedding, (V, D), multiplied by √D if the model does so, and the head that shares its weights.
    fn embedding(&mut self) -> Result<(Vec<f32>, Linear)> {
        let dim = self.architecture().dim;
        let mut table = self.weights.take("encoder.embed_tokens.weight")?;
        let head = Linear::pack(&self.arena, &table, &[], self.blueprint.symbols, dim)?;
        let scale = if self.architecture().scale_embedding { (dim as f64).sqrt() as f32 } else { 1.0 };
        table.iter_mut().for_each(|x| *x *= scale);
        Ok((table, head))
    }

    fn encoder(&mut self) -> Result<EncoderStack> {
        let a = self.architecture();
        let mut layers = Vec::with_capacity(a.encoder_layers);
        for index in 0..a.encoder_layers {
            let prefix = format!("encoder.layers.{index}");
            let qkv = self.encoder_qkv(&prefix)?;
            layers.push(self.layer(&prefix, qkv, None)?);
        }
        let pattern = self.pattern()?;
        let head_dim = a.dim / a.heads;
        Ok(EncoderStack { layers, order: self.order(), activation: a.activation, heads: a.heads, head_dim, pattern })
    }

    /// Returns the attention of all encoder layers.
    fn pattern(&mut self) -> Result<AttentionPattern> {
        let a = self.architecture();
        let global = match a.attention {
            AttentionKind::Softmax => return Ok(AttentionPattern::Full),
            AttentionKind::Efficient { .. } => Global::Efficient,
            AttentionKind::Lsh { chunk, hashes, buckets, .. } => {
                let name = |layer| format!("encoder.layers.{layer}.self_attn.rotations");
                let rotations = (0..a.encoder_layers).map(|layer| self.weights.take(&name(layer)));
                let rotations = rotations.collect::<Result<_>>()?;
                Global::Hashed(Hashing { chunk, rounds: hashes, buckets, rotations })
            }
        };
        let block = a.block.unwrap_or(a.source_length);
        Ok(AttentionPattern::Hybrid { local: a.attention.local_heads(), block, global })
    }

    /// Returns an encoder layer's queries, keys and values. The keys of heads that hash are their queries.
    fn encoder_qkv(&mut self, prefix: &str) -> Result<Linear> {
        let names = ["q_proj", "k_proj", "v_proj"].map(|part| format!("{prefix}.self_attn.{part}"));
        let a = self.architecture();
        let AttentionKind::Lsh { local_heads, .. } = a.attention else { return self.joined(&names) };
        let own = local_heads * (a.dim / a.heads);
        let (mut weight, mut bias) = self.weight_and_bias(&names[0])?;
        let shared_weight = weight[own * a.dim..].to_vec();
        let shared_bias = bias[own..].to_vec();
        if own > 0 {
            let (key_weight, key_bias) = self.weight_and_bias(&names[1])?;
            weight.extend(key_weight);
            bias.extend(key_bias);
        }
        let (value_weight, value_bias) = self.weight_and_bias(&names[2])?;
        weight.extend(shared_weight);
        weight.extend(value_weight);
        bias.extend(shared_bias);
        bias.extend(value_bias);
        self.pack(&weight, &bias)
    }

    fn decoder(&mut self) -> Result<Stack> {
        let a = self.architecture();
        let mut layers = Vec::with_capacity(a.decoder_layers);
        for index in 0..a.decoder_layers {
            let prefix = format!("decoder.layers.{index}");
            let qkv = self.joined(&["q_proj", "k_proj", "v_proj"].map(|part| format!("{prefix}.self_attn.{part}")))?;
            let cross = Some(self.cross(&prefix)?);
            layers.push(self.layer(&prefix, qkv, cross)?);
        }
        Ok(Stack {
            position: if a.decoder_positions { sinusoids(a.dim) } else { PositionScheme::None },
            window: Window::Full,
            order: self.order(),
            layout: PageLayout {
                dtype: self.arena.dtype().cache_dtype(),
                layers: layers.len(),
                heads: a.heads,
                head_dim: a.dim / a.heads,
                output: 0,
            },
            activation: a.activation,
            layers,
        })
    }

    /// Returns the norm after a stack's last layer, if norms precede the sub-layers.
    fn final_norm(&mut self, stack: &str) -> Result<Option<LayerNorm>> {
        self.architecture().pre_norm.then(|| self.norm(&format!("{stack}.layer_norm"))).transpose()
    }

    /// Returns the scorer of each pooling that selects by scores, by rising layer.
    fn scorers(&mut self) -> Result<Vec<Scorer>> {
        let blueprint = self.blueprint;
        let Some(kind) = blueprint.architecture.pooling.scorer() else { return Ok(Vec::new()) };
        blueprint.plan.pooled_layers().map(|layer| self.scorer(kind, layer)).collect()
    }

    fn scorer(&mut self, kind: ScorerKind, layer: usize) -> Result<Scorer> {
        let prefix = format!("encoder.pooler.scorer.{layer}");
        match kind {
            ScorerKind::Linear => {
                let (weight, bias) = self.weight_and_bias(&prefix)?;
                Ok(Scorer::Linear(weight, bias.iter().sum()))
            }
            ScorerKind::Ffn => {
                let (dense, shift) = self.weight_and_bias(&format!("{prefix}.dense"))?;
                let (weight, bias) = self.weight_and_bias(&format!("{prefix}.out_proj"))?;
                Ok(Scorer::Ffn { dense, shift, weight, bias: bias.iter().sum() })
            }
            ScorerKind::Embedding { dimension } => Ok(Scorer::Embedding(dimension)),
            ScorerKind::Index { every } => Ok(Scorer::Index(every)),
            ScorerKind::Attention => Ok(Scorer::Attention),
            ScorerKind::Random { seed } => Ok(Scorer::Random(seed.wrapping_add(layer as u64))),
        }
    }

    fn layer(&mut self, prefix: &str, qkv: Linear, cross: Option<Cross<LayerNorm>>) -> Result<Layer> {
        let name = |name: &str| format!("{prefix}.{name}");
        Ok(Layer {
            qkv,
            output: self.joined(&[name("self_attn.out_proj")])?,
            attention_norm: self.norm(&name("self_attn_layer_norm"))?,
            context_norm: None,
            up: self.joined(&[name("fc1")])?,
            down: self.joined(&[name("fc2")])?,
            feed_forward_norm: self.norm(&name("final_layer_norm"))?,
            hidden_norm: None,
            cross,
        })
    }

    fn cross(&mut self, prefix: &str) -> Result<Cross<LayerNorm>> {
        let name = |part: &str| format!("{prefix}.encoder_attn.{part}");
        Ok(Cross {
            norm: self.norm(&format!("{prefix}.encoder_attn_layer_norm"))?,
            query: self.joined(&[name("q_proj")])?,
            memory: self.joined(&[name("k_proj"), name("v_proj")])?,
            output: self.joined(&[name("out_proj")])?,
        })
    }

    /// Packs matrices of the same inputs as one, with their outputs concatenated.
    fn joined(&mut self, names: &[String]) -> Result<Linear> {
        let mut weight = Vec::new();
        let mut bias = Vec::new();
        for name in names {
            weight.extend(self.weights.take(&format!("{name}.weight"))?);
            bias.extend(self.weights.take(&format!("{name}.bias"))?);
        }
        self.pack(&weight, &bias)
    }

    /// Packs a matrix, (outputs, inputs), and its bias, (outputs).
    fn pack(&self, weight: &[f32], bias: &[f32]) -> Result<Linear> {
        Linear::pack(&self.arena, weight, bias, bias.len(), weight.len() / bias.len())
    }

    fn weight_and_bias(&mut self, name: &str) -> Result<(Vec<f32>, Vec<f32>)> {
        Ok((self.weights.take(&format!("{name}.weight"))?, self.weights.take(&format!("{name}.bias"))?))
    }

    fn norm(&mut self, name: &str) -> Result<LayerNorm> {
        let (weight, bias) = self.weight_and_bias(name)?;
        Ok(LayerNorm { weight, bias, eps: self.architecture().layer_norm_eps })
    }
}
