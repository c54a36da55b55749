//! Takes the tensors out of a checkpoint. Their names are the published code's, as in docs/checkpoints.md.

use super::{
    config::{Architecture, PyramidionBlueprint, Scorer},
    score::Scores,
};
use crate::{
    error::Result,
    family::checkpoint::Weights,
    kernels::{
        Dtype,
        attention::PageLayout,
        linear::{Linear, WeightArena},
        rowwise::LayerNorm,
    },
    nn::{
        attention::encoder::Encoder,
        attention::layer::Cross,
        attention::{
            layer::{Layer, NormOrder},
            stack::Stack,
        },
        position::{
            PositionScheme,
            absolute::{Absolute, frequencies},
        },
        window::Window,
    },
};

/// What the first position counts as in fairseq's sinusoids: rows below are its padding's.
pub(super) const FIRST_SINUSOID: usize = 2;

/// Takes tensors.
pub(super) struct Loader<'a> {
    blueprint: &'a PyramidionBlueprint,
    weights: &'a mut Weights,
    store: WeightArena,
}

impl<'a> Loader<'a> {
    pub(super) fn new(blueprint: &'a PyramidionBlueprint, weights: &'a mut Weights, dtype: Dtype) -> Self {
        Self { blueprint, weights, store: WeightArena::new(dtype) }
    }

    pub(super) fn architecture(&self) -> &'a Architecture {
        &self.blueprint.architecture
    }

    fn order(&self) -> NormOrder {
        if self.architecture().pre_norm { NormOrder::Pre } else { NormOrder::Post }
    }

    /// (V, D), scaled by √D where the model does that, and the head made of it.
    pub(super) fn embedding(&mut self) -> Result<(Vec<f32>, Linear)> {
        let dim = self.architecture().dim;
        let mut table = self.weights.take("encoder.embed_tokens.weight")?;
        let head = Linear::pack(&self.store, &table, &[], self.blueprint.symbols, dim)?;
        let scale = if self.architecture().scale_embedding { (dim as f64).sqrt() as f32 } else { 1.0 };
        table.iter_mut().for_each(|x| *x *= scale);
        Ok((table, head))
    }

    pub(super) fn encoder(&mut self) -> Result<Encoder> {
        let a = self.architecture();
        let mut layers = Vec::with_capacity(a.encoder_layers);
        for index in 0..a.encoder_layers {
            let prefix = format!("encoder.layers.{index}");
            let projections = self.projections(&prefix)?;
            layers.push(self.layer(&prefix, projections, None)?);
        }
        let (heads, head_dim, pattern) = (a.heads, a.dim / a.heads, self.attending()?);
        Ok(Encoder { layers, order: self.order(), activation: a.activation, heads, head_dim, pattern })
    }

    pub(super) fn decoder(&mut self) -> Result<Stack> {
        let a = self.architecture();
        let mut layers = Vec::with_capacity(a.decoder_layers);
        for index in 0..a.decoder_layers {
            let prefix = format!("decoder.layers.{index}");
            let projections =
                self.joined(&["q_proj", "k_proj", "v_proj"].map(|part| format!("{prefix}.self_attn.{part}")))?;
            let cross = Some(self.cross(&prefix)?);
            layers.push(self.layer(&prefix, projections, cross)?);
        }
        let position = match a.decoder_positions {
            true => PositionScheme::Absolute(Absolute::Sinusoidal {
                frequencies: frequencies(a.dim),
                first: FIRST_SINUSOID,
            }),
            false => PositionScheme::None,
        };
        let (heads, head_dim) = (a.heads, a.dim / a.heads);
        let layout = PageLayout { dtype: self.store.dtype(), layers: a.decoder_layers, heads, head_dim, output: 0 };
        let (window, order, activation) = (Window::Full, self.order(), a.activation);
        Ok(Stack { layers, position, window, order, layout, activation })
    }

    /// The norm behind a stack's last layer, where norms stand before sub-layers.
    pub(super) fn last_norm(&mut self, stack: &str) -> Result<Option<LayerNorm>> {
        self.architecture().pre_norm.then(|| self.norm(&format!("{stack}.layer_norm"))).transpose()
    }

    /// The scores of each pooling that chooses, by rising layer.
    pub(super) fn scorers(&mut self) -> Result<Vec<Scores>> {
        let blueprint = self.blueprint;
        let Some(scorer) = blueprint.architecture.pooling.scorer() else { return Ok(Vec::new()) };
        blueprint.plan.pooled_layers().map(|layer| self.scorer(scorer, layer)).collect()
    }

    fn scorer(&mut self, scorer: Scorer, layer: usize) -> Result<Scores> {
        let mut pair = |name: String| -> Result<_> {
            Ok((self.weights.take(&format!("{name}.weight"))?, self.weights.take(&format!("{name}.bias"))?))
        };
        let prefix = format!("encoder.pooler.scorer.{layer}");
        match scorer {
            Scorer::Linear => {
                let (weight, bias) = pair(prefix)?;
                Ok(Scores::Linear(weight, bias.iter().sum()))
            }
            Scorer::Ffn => {
                let (dense, shift) = pair(format!("{prefix}.dense"))?;
                let (weight, bias) = pair(format!("{prefix}.out_proj"))?;
                Ok(Scores::Ffn { dense, shift, weight, bias: bias.iter().sum() })
            }
            Scorer::Embedding { dimension } => Ok(Scores::Embedding(dimension)),
            Scorer::Index { every } => Ok(Scores::Index(every)),
            Scorer::Attention => Ok(Scores::Attention),
            Scorer::Random { seed } => Ok(Scores::Random(seed.wrapping_add(layer as u64))),
        }
    }

    fn layer(&mut self, prefix: &str, qkv: Linear, cross: Option<Cross>) -> Result<Layer> {
        let at = |name: &str| format!("{prefix}.{name}");
        Ok(Layer {
            qkv,
            output: self.joined(&[at("self_attn.out_proj")])?,
            attention_norm: self.norm(&at("self_attn_layer_norm"))?,
            context_norm: None,
            up: self.joined(&[at("fc1")])?,
            down: self.joined(&[at("fc2")])?,
            feed_forward_norm: self.norm(&at("final_layer_norm"))?,
            hidden_norm: None,
            cross,
        })
    }

    fn cross(&mut self, prefix: &str) -> Result<Cross> {
        let at = |part: &str| format!("{prefix}.encoder_attn.{part}");
        Ok(Cross {
            norm: self.norm(&format!("{prefix}.encoder_attn_layer_norm"))?,
            query: self.joined(&[at("q_proj")])?,
            memory: self.joined(&[at("k_proj"), at("v_proj")])?,
            output: self.joined(&[at("out_proj")])?,
        })
    }

    /// Matrices of the same inputs as one: their outputs one behind the other.
    pub(super) fn joined(&mut self, names: &[String]) -> Result<Linear> {
        let (mut weight, mut bias) = (Vec::new(), Vec::new());
        for name in names {
            weight.extend(self.take(&format!("{name}.weight"))?);
            bias.extend(self.take(&format!("{name}.bias"))?);
        }
        self.pack(&weight, &bias)
    }

    /// A matrix, (outputs, inputs), and its bias.
    pub(super) fn pack(&self, weight: &[f32], bias: &[f32]) -> Result<Linear> {
        Linear::pack(&self.store, weight, bias, bias.len(), weight.len() / bias.len())
    }

    pub(super) fn take(&mut self, name: &str) -> Result<Vec<f32>> {
        self.weights.take(name)
    }

    fn norm(&mut self, name: &str) -> Result<LayerNorm> {
        let (weight, bias) =
            (self.weights.take(&format!("{name}.weight"))?, self.weights.take(&format!("{name}.bias"))?);
        Ok(LayerNorm { weight, bias, eps: self.architecture().layer_norm_eps })
    }
}
