//! Qwen3 (Yang et al. 2025, arXiv 2505.09388): Llama's layers with a norm on each head's queries and keys.
//!
//! Read from `modeling_qwen3.py` of transformers 5.23.0.

use super::{
    architecture::Architecture, attention::Scores, keys::Keys, layers::Activation, qwen2::QwenKeys, rotary::Rotary,
    transformer::Transformer,
};
use crate::error::Result;

/// Width of a head if `config.json` states none.
const DEFAULT_HEAD_DIM: usize = 128;

pub(super) fn read(keys: &Keys<'_>) -> Result<Box<dyn Architecture>> {
    let config: QwenKeys = keys.parse()?;
    let heads = config.num_attention_heads;
    let head_dim = config.head_dim.unwrap_or(DEFAULT_HEAD_DIM);
    keys.dims([("num_attention_heads", heads), ("head_dim", head_dim)])?;
    let model = Transformer {
        model_type: "qwen3",
        symbols: config.vocab_size,
        dim: config.hidden_size,
        heads,
        kv_heads: config.num_key_value_heads.unwrap_or(heads),
        head_dim,
        feed_forward: config.intermediate_size,
        activation: config.hidden_act.unwrap_or(Activation::Silu),
        eps: config.rms_norm_eps,
        rotary: Rotary::read(*keys, head_dim)?,
        windows: config.windows(keys)?,
        qkv_bias: config.attention_bias,
        output_bias: config.attention_bias,
        feed_forward_bias: false,
        head_norms: true,
        gemma: false,
        scores: Scores { scale: 1.0 / (head_dim as f64).sqrt(), cap: None },
        logit_cap: None,
        embedding_scale: 1.0,
        tied: config.tie_word_embeddings,
        positions: config.max_position_embeddings,
    };
    model.checked(*keys)
}
