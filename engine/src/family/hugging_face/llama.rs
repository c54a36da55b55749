//! Llama (Touvron et al. 2023, arXiv 2302.13971), and the models that share its layout, SmolLM among them.
//!
//! Read from `modeling_llama.py` of transformers 5.23.0.

use super::{
    architecture::Architecture, attention::Scores, keys::Keys, layers::Activation, rotary::Rotary,
    transformer::Transformer,
};
use crate::error::Result;
use serde::Deserialize;

/// Keys of Llama, Qwen2 and Qwen3. Each of them ignores those of the others.
#[derive(Deserialize)]
pub(super) struct LlamaKeys {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    pub(super) num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    hidden_act: Option<Activation>,
    max_position_embeddings: usize,
    rms_norm_eps: f64,
    #[serde(default)]
    pub(super) attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(default)]
    pub(super) use_sliding_window: bool,
    /// Qwen's default; null stands for no window.
    #[serde(default = "window")]
    pub(super) sliding_window: Option<usize>,
    pub(super) max_window_layers: Option<usize>,
    pub(super) layer_types: Option<Vec<String>>,
}

fn window() -> Option<usize> {
    Some(4096)
}

impl LlamaKeys {
    /// Returns a transformer without biases, windows and norms of heads. A head has `default_head_dim` numbers if the keys state
    /// none: without a default, an equal part of the hidden size. Fails if a dimension is out of bounds.
    pub(super) fn transformer(
        &self,
        keys: &Keys<'_>,
        model_type: &'static str,
        default_head_dim: Option<usize>,
    ) -> Result<Transformer> {
        let heads = self.num_attention_heads;
        let equal_part = self.hidden_size / heads.max(1);
        let head_dim = self.head_dim.or(default_head_dim).unwrap_or(equal_part);
        keys.layers("num_hidden_layers", self.num_hidden_layers)?;
        keys.dims([("num_attention_heads", heads), ("head_dim", head_dim)])?;
        Ok(Transformer {
            model_type,
            symbols: self.vocab_size,
            dim: self.hidden_size,
            heads,
            kv_heads: self.num_key_value_heads.unwrap_or(heads),
            head_dim,
            feed_forward: self.intermediate_size,
            activation: self.hidden_act.unwrap_or(Activation::Silu),
            eps: self.rms_norm_eps,
            rotary: Rotary::read(*keys, head_dim)?,
            windows: vec![None; self.num_hidden_layers],
            qkv_bias: false,
            output_bias: false,
            feed_forward_bias: false,
            head_norms: false,
            gemma: false,
            scores: Scores { scale: 1.0 / (head_dim as f64).sqrt(), cap: None },
            logit_cap: None,
            embedding_scale: 1.0,
            tied: self.tie_word_embeddings,
            positions: self.max_position_embeddings,
        })
    }
}

pub(super) fn read(keys: &Keys<'_>) -> Result<Box<dyn Architecture>> {
    let config: LlamaKeys = keys.parse()?;
    let model = Transformer {
        qkv_bias: config.attention_bias,
        output_bias: config.attention_bias,
        feed_forward_bias: config.mlp_bias,
        ..config.transformer(keys, "llama", None)?
    };
    model.checked(*keys)
}
