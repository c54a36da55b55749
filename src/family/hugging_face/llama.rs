//! Llama (Touvron et al. 2023, arXiv 2302.13971), and the models that share its layout, SmolLM among them.
//!
//! Read from `modeling_llama.py` of transformers 5.23.0.

use super::{
    architecture::Architecture, attention::Scores, keys::Keys, layers::Activation, rotary::Rotary,
    transformer::Transformer,
};
use crate::error::Result;
use serde::Deserialize;

#[derive(Deserialize)]
struct Config {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    hidden_act: Option<Activation>,
    max_position_embeddings: usize,
    rms_norm_eps: f64,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default)]
    tie_word_embeddings: bool,
}

pub(super) fn read(keys: &Keys<'_>) -> Result<Box<dyn Architecture>> {
    let config: Config = keys.parse()?;
    let heads = config.num_attention_heads;
    let head_dim = config.head_dim.unwrap_or(config.hidden_size / heads.max(1));
    keys.layers("num_hidden_layers", config.num_hidden_layers)?;
    keys.dims([("num_attention_heads", heads), ("head_dim", head_dim)])?;
    let model = Transformer {
        model_type: "llama",
        symbols: config.vocab_size,
        dim: config.hidden_size,
        heads,
        kv_heads: config.num_key_value_heads.unwrap_or(heads),
        head_dim,
        feed_forward: config.intermediate_size,
        activation: config.hidden_act.unwrap_or(Activation::Silu),
        eps: config.rms_norm_eps,
        rotary: Rotary::read(*keys, head_dim)?,
        windows: vec![None; config.num_hidden_layers],
        qkv_bias: config.attention_bias,
        output_bias: config.attention_bias,
        feed_forward_bias: config.mlp_bias,
        head_norms: false,
        gemma: false,
        scores: Scores { scale: 1.0 / (head_dim as f64).sqrt(), cap: None },
        logit_cap: None,
        embedding_scale: 1.0,
        tied: config.tie_word_embeddings,
        positions: config.max_position_embeddings,
    };
    model.checked(*keys)
}
