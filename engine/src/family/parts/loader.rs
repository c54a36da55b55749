//! Takes tensors out of a checkpoint, in the names of docs/checkpoints.md.

use super::StackShape;
use crate::{
    error::Result,
    family::checkpoint::Weights,
    kernels::{
        Dtype,
        attention::{POSITIONS, PageLayout},
        linear::{Linear, WeightArena},
        rowwise::LayerNorm,
    },
    nn::{
        attention::{
            layer::{Layer, NormOrder},
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

/// Index of the first position in fairseq's sinusoids, whose lower indices belong to padding.
const FIRST_SINUSOID: usize = 2;

/// Packs a checkpoint's tensors into model parts.
pub struct Loader<'a> {
    /// The tensors not yet taken.
    pub weights: &'a mut Weights,
    shape: StackShape,
    eps: f32,
    store: WeightArena,
    /// Storage of tables that are computed once.
    tables: WeightArena,
    shared: SharedPosition,
}

/// The tensors of a position scheme that all stacks share.
enum SharedPosition {
    TransformerXl(Arc<SharedTerms>),
    /// Rotary positions; with the scale base of xPos, if they have one.
    Rotary(Option<f64>),
    Slopes(Vec<f32>),
    Buckets(Arc<[Vec<f32>]>),
    Sinusoidal(Vec<f32>),
    Learned(Arc<[f32]>),
    None,
}

/// Names and describes one stack of a model.
#[derive(Debug, Clone, Copy)]
pub struct StackSpec<'a> {
    /// Prefix of its tensors' names.
    pub name: &'a str,
    /// Number of layers.
    pub layers: usize,
    /// Width of the output that the cache keeps for each position; 0 if it keeps none.
    pub output: usize,
    /// Keys that a position attends to.
    pub window: Window,
    /// Position of its norms.
    pub order: NormOrder,
    /// Maximum positions of a sequence.
    pub positions: usize,
}

impl<'a> Loader<'a> {
    /// Returns a loader for layers of that shape, whose norms add `eps` to the variance. Fails if a tensor is missing,
    /// which the checkpoint reader has excluded.
    pub fn new(weights: &'a mut Weights, shape: StackShape, eps: f32, dtype: Dtype) -> Result<Self> {
        let mut take = |name: &str| weights.take(&format!("position.{name}"));
        let shared = match shape.position {
            PositionKind::TransformerXl => SharedPosition::TransformerXl(Arc::new(SharedTerms {
                inverse_frequency: take("inverse_frequency")?,
                content_bias: take("content_bias")?,
                distance_bias: take("distance_bias")?,
            })),
            PositionKind::Rotary => SharedPosition::Rotary(None),
            PositionKind::Xpos { scale_base } => SharedPosition::Rotary(Some(scale_base)),
            PositionKind::Alibi => SharedPosition::Slopes(take("slopes")?),
            PositionKind::Buckets { count, max_distance } => {
                let buckets = Buckets { count, max_distance, bidirectional: false };
                SharedPosition::Buckets(buckets.tables(&take("bias")?).into())
            }
            PositionKind::Sinusoidal => SharedPosition::Sinusoidal(take("frequency")?),
            PositionKind::Learned { .. } => SharedPosition::Learned(take("table")?.into()),
            PositionKind::None => SharedPosition::None,
        };
        Ok(Self { weights, shape, eps, store: WeightArena::new(dtype), tables: WeightArena::new(Dtype::F32), shared })
    }

    /// Loads a matrix with its bias. Fails as [`new`](Self::new) does, or if memory runs out.
    pub fn linear(&mut self, name: &str) -> Result<Linear> {
        let bias = self.weights.take(&format!("{name}.bias"))?;
        let weight = self.weights.take(&format!("{name}.weight"))?;
        let outputs = bias.len();
        Linear::pack(&self.store, &weight, &bias, outputs, weight.len() / outputs)
    }

    /// Packs `weight`, (outputs, inputs), as a matrix without bias. Fails if memory runs out.
    pub fn pack(&self, weight: &[f32], outputs: usize) -> Result<Linear> {
        Linear::pack(&self.store, weight, &[], outputs, weight.len() / outputs)
    }

    /// Loads a LayerNorm. Fails as [`new`](Self::new) does.
    pub fn norm(&mut self, name: &str) -> Result<LayerNorm> {
        let weight = self.weights.take(&format!("{name}.weight"))?;
        Ok(LayerNorm { weight, bias: self.weights.take(&format!("{name}.bias"))?, eps: self.eps })
    }

    /// Loads a stack. Fails as [`linear`](Self::linear) does.
    pub fn stack(&mut self, spec: &StackSpec<'_>) -> Result<Stack> {
        let StackShape { dim, heads, head_dim, activation, .. } = self.shape;
        let StackSpec { layers: count, output, window, order, .. } = *spec;
        let layout = PageLayout { dtype: self.store.dtype().cache_dtype(), layers: count, heads, head_dim, output };
        let mut layers = Vec::with_capacity(count);
        let mut distances = Vec::new();
        for index in 0..count {
            let prefix = format!("{}.{index}", spec.name);
            if let SharedPosition::TransformerXl(_) = self.shared {
                let weight = self.weights.take(&format!("{prefix}.attention.distance.weight"))?;
                distances.push(Linear::pack(&self.tables, &weight, &[], heads * head_dim, dim)?);
            }
            layers.push(self.layer(&prefix)?);
        }
        let position = self.position(distances, &layout, spec);
        Ok(Stack { layers, position, window, order, layout, activation })
    }

    fn layer(&mut self, prefix: &str) -> Result<Layer> {
        let sub_norms = self.shape.sub_norms;
        let sub_norm = |name: &str, loader: &mut Self| {
            sub_norms.then(|| loader.norm(&format!("{prefix}.{name}.inner_norm"))).transpose()
        };
        let context_norm = sub_norm("attention", self)?;
        let hidden_norm = sub_norm("feed_forward", self)?;
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

    fn position(&self, distances: Vec<Linear>, layout: &PageLayout, spec: &StackSpec<'_>) -> PositionScheme {
        let StackSpec { window, positions, .. } = *spec;
        match &self.shared {
            SharedPosition::TransformerXl(shared) => {
                // attention reads complete pages of keys
                let reach = window.max_keys().map_or(positions, |reach| reach + POSITIONS);
                PositionScheme::TransformerXl(TransformerXl::new(shared.clone(), distances, layout, reach))
            }
            SharedPosition::Rotary(scale_base) => {
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
