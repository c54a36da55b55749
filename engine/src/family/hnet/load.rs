//! The H-Net as a [`Blueprint`]: its tensors, in the names of docs/checkpoints.md, its limits, and how the model is built.

use super::{
    config::{Architecture, HnetBlueprint, StackConfig, StageConfig},
    init,
    model::{ChunkingStage, Hnet},
};
use crate::{
    decode::contract::{BoundaryMode, Model},
    error::{Error, Result},
    family::{
        Blueprint, Parts, TensorSpec,
        checkpoint::{self, Config, Init, Weights},
        parts::specs::{linear, matrix},
    },
    kernels::{
        Dtype,
        attention::PageLayout,
        linear::{Linear, WeightArena},
        pages::PagePool,
        rowwise::RmsNorm,
        ssm::{HEAD, Taps},
    },
    nn::{
        hybrid::{GatedFeedForward, HybridLayer, HybridStack, Mixer},
        mamba2::Mamba2,
        position::{PositionScheme, rotary::Rotary},
        router::Router,
    },
};
use std::{path::Path, sync::Arc};

/// Reads an H-Net's architecture. Fails if a key is unknown, missing, of the wrong type or out of bounds.
pub(crate) fn read(config: &Config, file: &Path) -> Result<Box<dyn Blueprint>> {
    let architecture: Architecture = checkpoint::architecture(config, file)?;
    let vocabulary = config.vocabulary(file)?;
    if vocabulary.specials().is_some() {
        let expected = "nothing: an H-Net has no segment marks";
        return Err(Error::checkpoint(file, "vocabulary.specials", expected, "special symbols"));
    }
    if vocabulary.end_byte().is_some() {
        return Err(Error::checkpoint(
            file,
            "vocabulary.start",
            "the mark before a text, as there is an `end`",
            "nothing",
        ));
    }
    let mut blueprint = HnetBlueprint::new(architecture, vocabulary.len(), file)?;
    blueprint.beginnings = init::beginnings(&vocabulary, blueprint.levels(), blueprint.architecture.stages[0].dim);
    Ok(Box::new(blueprint))
}

impl Blueprint for HnetBlueprint {
    fn tensors(&self) -> Vec<TensorSpec> {
        let a = &self.architecture;
        let mut out = vec![self.embedding()];
        for (index, stage) in a.stages.iter().enumerate() {
            let key = |name: &str| format!("stages.{index}.{name}");
            if self.padding(index) > 0 {
                out.push(TensorSpec::zeros(key("padding"), vec![self.padding(index)]));
            }
            if index < self.levels() {
                out.push(self.router_query(index));
                out.push(self.router_key(index));
                linear(&mut out, &key("residual"), stage.dim, stage.dim);
            }
        }
        for stack in &self.stacks {
            stack_tensors(&mut out, stack, &a.stages[stack.stage]);
        }
        if !a.tied {
            out.push(matrix("head.weight", vec![self.symbols, a.stages[0].dim]));
        }
        out
    }

    fn shape(&self) -> String {
        let stages = self.architecture.stages.iter().map(|stage| {
            let layers = [&stage.encoder, &stage.main, &stage.decoder].into_iter().flatten();
            let layers: Vec<_> = layers.map(String::as_str).collect();
            format!("{} × {}", layers.join("+"), stage.dim)
        });
        let stages: Vec<_> = stages.collect();
        let levels = self.levels();
        let unit = if levels == 1 { "level" } else { "levels" };
        format!("{}, {levels} {unit} of dynamic chunking", stages.join(", "))
    }

    fn build(&self, parts: Parts) -> Result<Arc<dyn Model>> {
        Ok(Arc::new(Hnet::load(self, parts)?))
    }
}

fn rms(name: impl Into<String>, dim: usize) -> TensorSpec {
    TensorSpec::normal(name, vec![dim], 1.0, 0.02)
}

fn stack_tensors(out: &mut Vec<TensorSpec>, stack: &StackConfig, stage: &StageConfig) {
    let StageConfig { dim, feed_forward, conv_width, .. } = *stage;
    let heads = stage.inner() / HEAD;
    for (index, layer) in stack.layers.iter().enumerate() {
        let key = |name: &str| format!("stages.{}.{}.{index}.{name}", stack.stage, stack.name);
        out.push(rms(key("norm.weight"), dim));
        if layer.attention {
            out.push(matrix(key("attention.qkv.weight"), vec![3 * dim, dim]));
            out.push(matrix(key("attention.output.weight"), vec![dim, dim]));
        } else {
            let channels = stage.channels();
            out.push(matrix(key("mamba.gate.weight"), vec![stage.inner(), dim]));
            out.push(matrix(key("mamba.input.weight"), vec![channels + heads, dim]));
            out.push(TensorSpec::normal(key("mamba.convolution.weight"), vec![conv_width, channels], 0.0, 0.3));
            out.push(TensorSpec::zeros(key("mamba.convolution.bias"), vec![channels]));
            // softplus(−4) ≈ 0.018; the official draw is between 0.001 and 0.1
            out.push(TensorSpec::normal(key("mamba.step_bias"), vec![heads], -4.0, 1.0));
            let logs = (0..heads).map(|head| (1.0 + 15.0 * head as f32 / heads as f32).ln()).collect();
            let name = key("mamba.log_rate");
            out.push(TensorSpec { name, shape: vec![heads], init: Init::Values(logs), trained: true });
            out.push(TensorSpec::normal(key("mamba.skip"), vec![heads], 1.0, 0.0));
            out.push(rms(key("mamba.norm.weight"), stage.inner()));
            out.push(matrix(key("mamba.output.weight"), vec![dim, stage.inner()]));
        }
        if layer.feed_forward {
            out.push(rms(key("feed_forward.norm.weight"), dim));
            out.push(matrix(key("feed_forward.up.weight"), vec![feed_forward, dim]));
            out.push(matrix(key("feed_forward.gate.weight"), vec![feed_forward, dim]));
            out.push(matrix(key("feed_forward.down.weight"), vec![dim, feed_forward]));
        }
    }
    out.push(rms(format!("stages.{}.{}.norm.weight", stack.stage, stack.name), dim));
}

impl Hnet {
    /// Builds the model from checked weights. Fails if memory runs out, or the settings ask for more symbols than the model
    /// can hold.
    pub fn load(blueprint: &HnetBlueprint, mut parts: Parts) -> Result<Self> {
        let mut card = parts.card("hnet", blueprint)?;
        card.pooled = true;
        card.begins_chunks = true;
        card.boundary_modes = vec![BoundaryMode::Threshold];
        let a = &blueprint.architecture;
        let mut builder = Builder {
            blueprint,
            weights: &mut parts.weights,
            store: WeightArena::new(parts.settings.dtype),
            exact: WeightArena::new(Dtype::F32),
            positions: card.max_symbols,
        };
        let mut padding = Vec::new();
        for stage in 0..a.stages.len() {
            padding.push(match blueprint.padding(stage) {
                0 => Vec::new(),
                _ => builder.weights.take(&format!("stages.{stage}.padding"))?,
            });
        }
        let stacks = blueprint.stacks.iter().map(|stack| builder.stack(stack)).collect::<Result<Vec<_>>>()?;
        let chunking = (0..blueprint.levels()).map(|stage| builder.chunking(stage)).collect::<Result<Vec<_>>>()?;
        let embedding = builder.weights.take("embedding.weight")?;
        let head = match a.tied {
            true => builder.pack(&embedding, a.stages[0].dim)?,
            false => builder.linear("head.weight", a.stages[0].dim)?,
        };
        let compute = parts.settings.compute();
        let pages = PagePool::new(parts.settings.memory_bytes);
        Ok(Self { card, compute, embedding, padding, stacks, chunking, head, pages })
    }
}

/// Builds the parts of an H-Net.
struct Builder<'a> {
    blueprint: &'a HnetBlueprint,
    weights: &'a mut Weights,
    store: WeightArena,
    /// Matrices that stay f32, as the official code keeps them.
    exact: WeightArena,
    positions: usize,
}

impl Builder<'_> {
    fn pack(&self, weight: &[f32], inputs: usize) -> Result<Linear> {
        Linear::pack(&self.store, weight, &[], weight.len() / inputs, inputs)
    }

    fn linear(&mut self, name: &str, inputs: usize) -> Result<Linear> {
        let weight = self.weights.take(name)?;
        self.pack(&weight, inputs)
    }

    fn norm(&mut self, name: &str) -> Result<RmsNorm> {
        Ok(RmsNorm { weight: self.weights.take(name)?, eps: self.blueprint.architecture.norm_eps })
    }

    fn chunking(&mut self, stage: usize) -> Result<ChunkingStage> {
        let dim = self.blueprint.architecture.stages[stage].dim;
        let key = |name: &str| format!("stages.{stage}.{name}");
        let query = self.linear(&key("router.query.weight"), dim)?;
        let key_matrix = self.linear(&key("router.key.weight"), dim)?;
        let weight = self.weights.take(&key("residual.weight"))?;
        let bias = self.weights.take(&key("residual.bias"))?;
        let residual = Linear::pack(&self.exact, &weight, &bias, dim, dim)?;
        Ok(ChunkingStage { router: Router { query, key: key_matrix }, residual })
    }

    fn stack(&mut self, stack: &StackConfig) -> Result<HybridStack> {
        let stage = self.blueprint.architecture.stages[stack.stage].clone();
        let prefix = format!("stages.{}.{}", stack.stage, stack.name);
        let mut layers = Vec::with_capacity(stack.layers.len());
        for (index, kind) in stack.layers.iter().enumerate() {
            let key = |name: &str| format!("{prefix}.{index}.{name}");
            let norm = self.norm(&key("norm.weight"))?;
            let mixer = match kind.attention {
                true => Mixer::Attention {
                    qkv: self.linear(&key("attention.qkv.weight"), stage.dim)?,
                    output: self.linear(&key("attention.output.weight"), stage.dim)?,
                },
                false => Mixer::Mamba2(Box::new(self.mamba2(&key("mamba"), &stage)?)),
            };
            let feed_forward = match kind.feed_forward {
                true => Some(GatedFeedForward {
                    norm: self.norm(&key("feed_forward.norm.weight"))?,
                    up: self.linear(&key("feed_forward.up.weight"), stage.dim)?,
                    gate: self.linear(&key("feed_forward.gate.weight"), stage.dim)?,
                    down: self.linear(&key("feed_forward.down.weight"), stage.feed_forward)?,
                }),
                false => None,
            };
            layers.push(HybridLayer { norm, mixer, feed_forward });
        }
        let norm = self.norm(&format!("{prefix}.norm.weight"))?;
        let attending = stack.layers.iter().filter(|layer| layer.attention).count();
        let heads = stage.heads.max(1);
        let layout = PageLayout {
            dtype: self.store.dtype().cache_dtype(),
            layers: attending,
            heads,
            head_dim: stage.dim / heads,
            output: 0,
        };
        let position = match (attending, stage.rotary_dim) {
            (0, _) | (_, 0) => PositionScheme::None,
            (_, dim) => PositionScheme::Rotary(Rotary::new(dim, None, stage.window.max_keys(), self.positions)),
        };
        Ok(HybridStack { layers, norm, position, window: stage.window, layout })
    }

    fn mamba2(&mut self, prefix: &str, stage: &StageConfig) -> Result<Mamba2> {
        let key = |name: &str| format!("{prefix}.{name}");
        let rates = self.weights.take(&key("log_rate"))?;
        Ok(Mamba2 {
            gate: self.linear(&key("gate.weight"), stage.dim)?,
            input: self.linear(&key("input.weight"), stage.dim)?,
            taps: Taps {
                weight: self.weights.take(&key("convolution.weight"))?,
                bias: self.weights.take(&key("convolution.bias"))?,
            },
            step_bias: self.weights.take(&key("step_bias"))?,
            rates: rates.into_iter().map(|log| -log.exp()).collect(),
            skip: self.weights.take(&key("skip"))?,
            norm: self.norm(&key("norm.weight"))?,
            output: self.linear(&key("output.weight"), stage.inner())?,
        })
    }
}
