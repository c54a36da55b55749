//! Gemma 2 (Gemma Team 2024, arXiv 2408.00118): norms before and after each part, capped scores and logits, and windows in every
//! other layer.
//!
//! Read from `modeling_gemma2.py` and `configuration_gemma2.py` of transformers 5.23.0.

use super::{
    architecture::Architecture,
    attention::Scores,
    keys::Keys,
    layers::Activation,
    qwen2::{layer_windows, selected_windows},
    rotary::Rotary,
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
    num_key_value_heads: usize,
    head_dim: usize,
    hidden_activation: Option<Activation>,
    max_position_embeddings: usize,
    rms_norm_eps: f64,
    query_pre_attn_scalar: f64,
    /// Null stands for no window.
    #[serde(default = "window")]
    sliding_window: Option<usize>,
    layer_types: Option<Vec<String>>,
    /// Null stands for no cap, as below.
    #[serde(default = "score_cap")]
    attn_logit_softcapping: Option<f64>,
    #[serde(default = "logit_cap")]
    final_logit_softcapping: Option<f64>,
    #[serde(default)]
    attention_bias: bool,
    tie_word_embeddings: Option<bool>,
    use_bidirectional_attention: Option<bool>,
}

fn window() -> Option<usize> {
    Some(4096)
}

fn score_cap() -> Option<f64> {
    Some(50.0)
}

fn logit_cap() -> Option<f64> {
    Some(30.0)
}

pub(super) fn read(keys: &Keys<'_>) -> Result<Box<dyn Architecture>> {
    let config: Config = keys.parse()?;
    keys.layers("num_hidden_layers", config.num_hidden_layers)?;
    keys.dims([("head_dim", config.head_dim)])?;
    keys.positive("query_pre_attn_scalar", config.query_pre_attn_scalar)?;
    for (key, cap) in [
        ("attn_logit_softcapping", config.attn_logit_softcapping),
        ("final_logit_softcapping", config.final_logit_softcapping),
    ] {
        cap.map_or(Ok(()), |cap| keys.positive(key, cap))?;
    }
    keys.only("use_bidirectional_attention", false, config.use_bidirectional_attention.unwrap_or(false))?;
    let windows = match &config.layer_types {
        Some(types) => layer_windows(keys, types, config.num_hidden_layers, config.sliding_window)?,
        // before transformers listed the layers, every other one had a window
        None => selected_windows(keys, config.num_hidden_layers, config.sliding_window, |layer| layer % 2 == 0)?,
    };
    let model = Transformer {
        model_type: "gemma2",
        symbols: config.vocab_size,
        dim: config.hidden_size,
        heads: config.num_attention_heads,
        kv_heads: config.num_key_value_heads,
        head_dim: config.head_dim,
        feed_forward: config.intermediate_size,
        activation: config.hidden_activation.unwrap_or(Activation::GeluTanh),
        eps: config.rms_norm_eps,
        rotary: Rotary::read(*keys, config.head_dim)?,
        windows,
        qkv_bias: config.attention_bias,
        output_bias: config.attention_bias,
        feed_forward_bias: false,
        head_norms: false,
        gemma: true,
        scores: Scores { scale: 1.0 / config.query_pre_attn_scalar.sqrt(), cap: config.attn_logit_softcapping },
        logit_cap: config.final_logit_softcapping,
        embedding_scale: (config.hidden_size as f64).sqrt(),
        tied: config.tie_word_embeddings.unwrap_or(true),
        positions: config.max_position_embeddings,
    };
    model.checked(*keys)
}
