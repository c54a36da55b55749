//! Llama, Qwen2, Qwen3, Gemma 2 and GPT-BigCode as candle-transformers computes them, token by token, in f32.
//!
//! This file avoids its faults, which docs/hugging-face.md lists. It builds the configuration itself, and limits a text to the length of
//! a window. It refuses a model that candle-transformers computes differently from transformers.

use super::keys::{TransformerKeys, activation, limit_of_window, only};
use crate::{
    error::{Error, Result},
    verify::{Given, Input, LengthLimit, Outputs, Reference, checkpoint::Checkpoint},
};
use candle_core::{DType, Device, Result as CandleResult, Tensor};
use candle_nn::{Activation, VarBuilder};
use candle_transformers::models::{
    bigcode, gemma2, llama as llama_models, qwen2 as qwen2_models, qwen3 as qwen3_models,
};
use serde::Deserialize;
use std::collections::HashMap;

/// Positions that the tables of angles have.
const POSITIONS: usize = LengthLimit::PAIRS.symbols;
/// Width of a head of Qwen3 if `config.json` states none.
const QWEN3_HEAD_DIM: usize = 128;
const HEAD: &str = "lm_head.weight";
const BIGCODE_POSITIONS: &str = "transformer.wpe.weight";

/// Computes the logits after a token (1, 1) at a position; the tokens before it have been computed.
type Step = Box<dyn FnMut(&Tensor, usize) -> CandleResult<Tensor>>;
/// Builds a model that has computed no token.
type Build = Box<dyn Fn(VarBuilder<'_>) -> CandleResult<Step>>;

struct Transformer {
    /// In f32.
    tensors: HashMap<String, Tensor>,
    build: Build,
    limit: LengthLimit,
}

impl Reference for Transformer {
    fn limit(&self) -> LengthLimit {
        self.limit
    }

    fn forward(&self, input: &Input, _: Given<'_>) -> CandleResult<Outputs> {
        let weights = VarBuilder::from_tensors(self.tensors.clone(), DType::F32, &Device::Cpu);
        let mut step = (self.build)(weights)?;
        let mut logits = Vec::new();
        for (position, &symbol) in input.symbols.iter().enumerate() {
            let token = Tensor::new(&[[symbol]], &Device::Cpu)?;
            let row = step(&token, position)?.flatten_all()?; // (V)
            logits.extend(row.to_vec1::<f32>()?.into_iter().map(f64::from));
        }
        Ok(Outputs { logits, smallest_gap: f64::INFINITY, ..Outputs::default() })
    }
}

fn boxed(tensors: HashMap<String, Tensor>, build: Build, limit: LengthLimit) -> Result<Box<dyn Reference>> {
    Ok(Box::new(Transformer { tensors, build, limit }))
}

pub(super) fn llama(checkpoint: Checkpoint) -> Result<Box<dyn Reference>> {
    let keys: TransformerKeys = checkpoint.architecture()?;
    only(&checkpoint, "head_dim", keys.equal_part(), keys.head_dim(None))?;
    only(&checkpoint, "attention_bias", false, keys.attention_bias)?;
    only(&checkpoint, "mlp_bias", false, keys.mlp_bias)?;
    if keys.activation(&checkpoint)? != Activation::Silu {
        only(&checkpoint, "hidden_act", "silu", keys.activation_name())?;
    }
    let config = llama_models::Config {
        hidden_size: keys.hidden_size,
        intermediate_size: keys.intermediate_size,
        vocab_size: keys.vocab_size,
        num_hidden_layers: keys.num_hidden_layers,
        num_attention_heads: keys.num_attention_heads,
        num_key_value_heads: keys.kv_heads(),
        use_flash_attn: false,
        rms_norm_eps: keys.rms_norm_eps,
        rope_theta: keys.theta() as f32,
        bos_token_id: None,
        eos_token_id: None,
        rope_scaling: keys.llama3(&checkpoint)?,
        max_position_embeddings: POSITIONS,
        tie_word_embeddings: keys.tie_word_embeddings.unwrap_or(false),
    };
    let build: Build = Box::new(move |weights| {
        let mut cache = llama_models::Cache::new(true, DType::F32, &config, &Device::Cpu)?;
        let model = llama_models::Llama::load(weights, &config)?;
        Ok(Box::new(move |token, position| model.forward(token, position, &mut cache)))
    });
    boxed(checkpoint.tensors_f32()?, build, LengthLimit::PAIRS)
}

pub(super) fn qwen2(checkpoint: Checkpoint) -> Result<Box<dyn Reference>> {
    let keys: TransformerKeys = checkpoint.architecture()?;
    only(&checkpoint, "head_dim", keys.equal_part(), keys.head_dim(None))?;
    keys.unscaled(&checkpoint)?;
    let tied = keys.tie_word_embeddings.unwrap_or(false);
    let config = qwen2_models::Config {
        vocab_size: keys.vocab_size,
        hidden_size: keys.hidden_size,
        intermediate_size: keys.intermediate_size,
        num_hidden_layers: keys.num_hidden_layers,
        num_attention_heads: keys.num_attention_heads,
        num_key_value_heads: keys.kv_heads(),
        max_position_embeddings: POSITIONS,
        sliding_window: POSITIONS,
        max_window_layers: keys.num_hidden_layers,
        tie_word_embeddings: tied,
        rope_theta: keys.theta(),
        rms_norm_eps: keys.rms_norm_eps,
        use_sliding_window: false,
        hidden_act: keys.activation(&checkpoint)?,
    };
    let mut tensors = checkpoint.tensors_f32()?;
    if tied {
        // It would be used.
        tensors.remove(HEAD);
    }
    let build: Build = Box::new(move |weights| {
        let mut model = qwen2_models::ModelForCausalLM::new(&config, weights)?;
        Ok(Box::new(move |token, position| model.forward(token, position)))
    });
    boxed(tensors, build, limit_of_window(keys.window()))
}

pub(super) fn qwen3(checkpoint: Checkpoint) -> Result<Box<dyn Reference>> {
    let keys: TransformerKeys = checkpoint.architecture()?;
    keys.unscaled(&checkpoint)?;
    let config = qwen3_models::Config {
        vocab_size: keys.vocab_size,
        hidden_size: keys.hidden_size,
        intermediate_size: keys.intermediate_size,
        num_hidden_layers: keys.num_hidden_layers,
        num_attention_heads: keys.num_attention_heads,
        head_dim: keys.head_dim(Some(QWEN3_HEAD_DIM)),
        attention_bias: keys.attention_bias,
        num_key_value_heads: keys.kv_heads(),
        max_position_embeddings: POSITIONS,
        sliding_window: None,
        max_window_layers: keys.num_hidden_layers,
        tie_word_embeddings: keys.tie_word_embeddings.unwrap_or(false),
        rope_theta: keys.theta(),
        rms_norm_eps: keys.rms_norm_eps,
        use_sliding_window: false,
        hidden_act: keys.activation(&checkpoint)?,
    };
    let build: Build = Box::new(move |weights| {
        let mut model = qwen3_models::ModelForCausalLM::new(&config, weights)?;
        Ok(Box::new(move |token, position| model.forward(token, position)))
    });
    boxed(checkpoint.tensors_f32()?, build, limit_of_window(keys.window()))
}

pub(super) fn gemma2(checkpoint: Checkpoint) -> Result<Box<dyn Reference>> {
    let keys: TransformerKeys = checkpoint.architecture()?;
    keys.unscaled(&checkpoint)?;
    let head_dim = keys.head_dim(None);
    let name = keys.hidden_activation.as_deref().unwrap_or("gelu_pytorch_tanh");
    let scalar = keys.query_pre_attn_scalar.unwrap_or(head_dim as f64);
    only(&checkpoint, "query_pre_attn_scalar", head_dim as f64, scalar)?;
    only(&checkpoint, "tie_word_embeddings", true, keys.tie_word_embeddings.unwrap_or(true))?;
    let config = gemma2::Config {
        attention_bias: keys.attention_bias,
        head_dim,
        hidden_activation: activation(&checkpoint, "hidden_activation", name)?,
        hidden_size: keys.hidden_size,
        intermediate_size: keys.intermediate_size,
        num_attention_heads: keys.num_attention_heads,
        num_hidden_layers: keys.num_hidden_layers,
        num_key_value_heads: keys.kv_heads(),
        rms_norm_eps: keys.rms_norm_eps,
        rope_theta: keys.theta(),
        vocab_size: keys.vocab_size,
        final_logit_softcapping: keys.final_logit_softcapping,
        attn_logit_softcapping: keys.attn_logit_softcapping,
        query_pre_attn_scalar: head_dim,
        sliding_window: None,
        max_position_embeddings: POSITIONS,
    };
    let build: Build = Box::new(move |weights| {
        let mut model = gemma2::Model::new(false, &config, weights)?;
        Ok(Box::new(move |token, position| model.forward(token, position)))
    });
    boxed(checkpoint.tensors_f32()?, build, limit_of_window(keys.sliding_window))
}

#[derive(Clone, Deserialize)]
struct BigCodeKeys {
    vocab_size: usize,
    n_positions: usize,
    n_embd: usize,
    n_layer: usize,
    n_head: usize,
    n_inner: Option<usize>,
    activation_function: Option<String>,
    layer_norm_epsilon: f64,
    tie_word_embeddings: Option<bool>,
}

pub(super) fn gpt_bigcode(checkpoint: Checkpoint) -> Result<Box<dyn Reference>> {
    let keys: BigCodeKeys = checkpoint.architecture()?;
    let name = keys.activation_function.as_deref().unwrap_or("gelu_pytorch_tanh");
    if activation(&checkpoint, "activation_function", name)? != Activation::GeluPytorchTanh {
        only(&checkpoint, "activation_function", "gelu_pytorch_tanh", name)?;
    }
    only(&checkpoint, "tie_word_embeddings", true, keys.tie_word_embeddings.unwrap_or(true))?;
    let mut tensors = checkpoint.tensors_f32()?;
    // The model allocates a mask of the square of its positions.
    let positions = keys.n_positions.min(POSITIONS);
    if let Some(table) = tensors.get_mut(BIGCODE_POSITIONS) {
        let rows = table.narrow(0, 0, positions);
        *table = rows.map_err(|error| Error::Internal(format!("{BIGCODE_POSITIONS}: {error}")))?;
    }
    let build: Build = Box::new(move |weights| {
        let config = bigcode::Config {
            vocab_size: keys.vocab_size,
            max_position_embeddings: positions,
            num_hidden_layers: keys.n_layer,
            hidden_size: keys.n_embd,
            layer_norm_epsilon: keys.layer_norm_epsilon,
            n_inner: keys.n_inner,
            num_attention_heads: keys.n_head,
            multi_query: true,
            use_cache: true,
        };
        let mut model = bigcode::GPTBigCode::load(weights, config)?;
        Ok(Box::new(move |token, position| model.forward(token, position)))
    });
    boxed(tensors, build, LengthLimit::PAIRS)
}
