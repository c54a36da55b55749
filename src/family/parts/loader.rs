//! Takes tensors out of a checkpoint, in the names of docs/checkpoints.md.

use super::StackShape;
use crate::{
    error::Result,
    family::checkpoint::Weights,
    kernels::{
        Dtype,
        attention::{POSITIONS, PageLayout, ROW_TILE},
        linear::{Linear, WeightArena},
        rowwise::LayerNorm,
    },
    nn::{
        attention::{
            layer::{Layer, Order},
            stack::Stack,
        },
        position::{
            PositionKind, PositionScheme,
            absolute::Absolute,
            buckets::Buckets,
            rotary::Rotary,
            transformer_xl::{SharedTerms, TransformerXl},
        },
        window::Window,
    },
};
use std::sync::Arc;

/// What the first position counts as in fairseq's sinusoids: rows below are its padding's.
const FIRST_SINUSOID: usize = 2;

/// Packs a checkpoint's tensors into parts.
pub struct Loader<'a> {
    /// What is still to be taken.
    pub weights: &'a mut Weights,
    shape: StackShape,
    eps: f32,
    store: WeightArena,
    /// Of what is computed once and kept as a table.
    tables: WeightArena,
    shared: SharedPosition,
}

/// What all stacks share of a position scheme.
enum SharedPosition {
    TransformerXl(Arc<SharedTerms>),
    Turned(Option<f64>),
    Slopes(Vec<f32>),
    Buckets(Vec<Vec<f32>>),
    Sinusoidal(Vec<f32>),
    Learned(Arc<[f32]>),
    None,
}

/// One stack among a model's.
#[derive(Debug, Clone, Copy)]
pub struct StackPlan<'a> {
    /// What its tensors' names begin with.
    pub name: &'a str,
    /// Layers.
    pub count: usize,
    /// Width of the output kept for each position; 0 if none is.
    pub output: usize,
    /// Which keys it attends to.
    pub window: Window,
    /// Where its norms stand.
    pub order: Order,
    /// The most positions of a sequence.
    pub positions: usize,
}

impl<'a> Loader<'a> {
    /// Of a checkpoint whose layers have that shape and whose norms add `eps`.
    ///
    /// # Errors
    /// A tensor that is missing, which the checkpoint reader has excluded.
    pub fn new(weights: &'a mut Weights, shape: StackShape, eps: f32, dtype: Dtype) -> Result<Self> {
        let mut take = |name: &str| weights.take(&format!("position.{name}"));
        let shared = match shape.position {
            PositionKind::TransformerXl => SharedPosition::TransformerXl(Arc::new(SharedTerms {
                inverse_frequency: take("inverse_frequency")?,
                content_bias: take("content_bias")?,
                distance_bias: take("distance_bias")?,
            })),
            PositionKind::Rotary => SharedPosition::Turned(None),
            PositionKind::Xpos { scale_base } => SharedPosition::Turned(Some(scale_base)),
            PositionKind::Alibi => SharedPosition::Slopes(take("slopes")?),
            PositionKind::Buckets { count, max_distance } => {
                let buckets = Buckets { count, max_distance, bidirectional: false };
                SharedPosition::Buckets(buckets.tables(&take("bias")?))
            }
            PositionKind::Sinusoidal => SharedPosition::Sinusoidal(take("frequency")?),
            PositionKind::Learned { .. } => SharedPosition::Learned(take("table")?.into()),
            PositionKind::None => SharedPosition::None,
        };
        let (store, tables) = (WeightArena::new(dtype), WeightArena::new(Dtype::F32));
        Ok(Self { weights, shape, eps, store, tables, shared })
    }

    /// A matrix with its bias.
    ///
    /// # Errors
    /// As for [`new`](Self::new), and no memory.
    pub fn linear(&mut self, name: &str) -> Result<Linear> {
        let bias = self.weights.take(&format!("{name}.bias"))?;
        let weight = self.weights.take(&format!("{name}.weight"))?;
        let outputs = bias.len();
        Linear::pack(&self.store, &weight, &bias, outputs, weight.len() / outputs)
    }

    /// A matrix (outputs, inputs) of numbers at hand, without bias.
    ///
    /// # Errors
    /// No memory.
    pub fn pack(&self, weight: &[f32], outputs: usize) -> Result<Linear> {
        Linear::pack(&self.store, weight, &[], outputs, weight.len() / outputs)
    }

    /// A LayerNorm.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn norm(&mut self, name: &str) -> Result<LayerNorm> {
        let (weight, bias) =
            (self.weights.take(&format!("{name}.weight"))?, self.weights.take(&format!("{name}.bias"))?);
        Ok(LayerNorm { weight, bias, eps: self.eps })
    }

    /// A stack.
    ///
    /// # Errors
    /// As for [`linear`](Self::linear).
    pub fn stack(&mut self, plan: &StackPlan<'_>) -> Result<Stack> {
        let StackShape { dim, heads, head_dim, activation, .. } = self.shape;
        let StackPlan { name, count, output, window, order, .. } = *plan;
        let layout = PageLayout { dtype: self.store.dtype(), layers: count, heads, head_dim, output };
        let (mut layers, mut distances) = (Vec::with_capacity(count), Vec::new());
        for index in 0..count {
            let prefix = format!("{name}.{index}");
            if let SharedPosition::TransformerXl(_) = self.shared {
                let weight = self.weights.take(&format!("{prefix}.attention.distance.weight"))?;
                distances.push(Linear::pack(&self.tables, &weight, &[], heads * head_dim, dim)?);
            }
            layers.push(self.layer(&prefix)?);
        }
        let position = self.position(distances, &layout, plan);
        Ok(Stack { layers, position, window, order, layout, activation })
    }

    fn layer(&mut self, prefix: &str) -> Result<Layer> {
        let sub_norms = self.shape.sub_norms;
        let sub_norm = |name: &str, loader: &mut Self| {
            sub_norms.then(|| loader.norm(&format!("{prefix}.{name}.inner_norm"))).transpose()
        };
        let (context_norm, hidden_norm) = (sub_norm("attention", self)?, sub_norm("feed_forward", self)?);
        Ok(Layer {
            qkv: self.linear(&format!("{prefix}.attention.qkv"))?,
            output: self.linear(&format!("{prefix}.attention.output"))?,
            attention_norm: self.norm(&format!("{prefix}.attention.norm"))?,
            context_norm,
            up: self.linear(&format!("{prefix}.feed_forward.up"))?,
            down: self.linear(&format!("{prefix}.feed_forward.down"))?,
            feed_forward_norm: self.norm(&format!("{prefix}.feed_forward.norm"))?,
            hidden_norm,
            cross: None,
        })
    }

    fn position(&self, distances: Vec<Linear>, layout: &PageLayout, plan: &StackPlan<'_>) -> PositionScheme {
        let StackPlan { window, positions, .. } = *plan;
        match &self.shared {
            SharedPosition::TransformerXl(shared) => {
                // whole pages of keys are met, and those of the rows beside
                let reach = window.max_keys().map_or(positions, |reach| reach + POSITIONS + ROW_TILE);
                PositionScheme::TransformerXl(TransformerXl::new(shared.clone(), distances, layout, reach))
            }
            SharedPosition::Turned(scale_base) => {
                PositionScheme::Rotary(Rotary::new(layout.head_dim, *scale_base, window.max_keys(), positions))
            }
            SharedPosition::Slopes(slopes) => PositionScheme::Alibi(slopes.clone()),
            SharedPosition::Buckets(tables) => PositionScheme::Buckets(tables.clone()),
            SharedPosition::Sinusoidal(frequencies) => PositionScheme::Absolute(Absolute::Sinusoidal {
                frequencies: frequencies.clone(),
                first: FIRST_SINUSOID,
            }),
            SharedPosition::Learned(table) => PositionScheme::Absolute(Absolute::Learned { table: table.clone() }),
            SharedPosition::None => PositionScheme::None,
        }
    }
}
