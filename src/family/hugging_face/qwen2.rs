//! Qwen2 and Qwen2.5 (Yang et al. 2024, arXiv 2407.10671): Llama's layers with biases on queries, keys and values.
//!
//! Read from `modeling_qwen2.py` and `configuration_qwen2.py` of transformers 5.23.0.

use super::{
    architecture::Architecture, attention::Scores, keys::Keys, layers::Activation, rotary::Rotary,
    transformer::Transformer,
};
use crate::error::Result;
use serde::Deserialize;

/// Keys of Qwen2 and Qwen3.
#[derive(Deserialize)]
pub(super) struct QwenKeys {
    pub(super) vocab_size: usize,
    pub(super) hidden_size: usize,
    pub(super) intermediate_size: usize,
    pub(super) num_hidden_layers: usize,
    pub(super) num_attention_heads: usize,
    pub(super) num_key_value_heads: Option<usize>,
    pub(super) head_dim: Option<usize>,
    pub(super) hidden_act: Option<Activation>,
    pub(super) max_position_embeddings: usize,
    pub(super) rms_norm_eps: f64,
    #[serde(default)]
    pub(super) attention_bias: bool,
    #[serde(default)]
    pub(super) tie_word_embeddings: bool,
    #[serde(default)]
    use_sliding_window: bool,
    sliding_window: Option<usize>,
    max_window_layers: Option<usize>,
    layer_types: Option<Vec<String>>,
}

impl QwenKeys {
    /// Returns each layer's window. transformers 5 lists the layers; transformers 4 stated the first layer with a window. Fails if
    /// the list is invalid.
    pub(super) fn windows(&self, keys: &Keys<'_>) -> Result<Vec<Option<usize>>> {
        keys.layers("num_hidden_layers", self.num_hidden_layers)?;
        let window = self.sliding_window.filter(|_| self.use_sliding_window);
        match &self.layer_types {
            Some(types) => layer_windows(keys, types, self.num_hidden_layers, window),
            None => {
                let first = self.max_window_layers.unwrap_or(0);
                Ok((0..self.num_hidden_layers).map(|layer| window.filter(|_| layer >= first)).collect())
            }
        }
    }
}

/// Returns each layer's window from `layer_types`. Fails if the list has another length, or an unknown type.
pub(super) fn layer_windows(
    keys: &Keys<'_>,
    types: &[String],
    layers: usize,
    window: Option<usize>,
) -> Result<Vec<Option<usize>>> {
    if types.len() != layers {
        return keys.fail("layer_types", format!("{layers} types, one for each layer"), types.len());
    }
    let read = |(index, kind): (usize, &String)| match (kind.as_str(), window) {
        ("full_attention", _) => Ok(None),
        ("sliding_attention", Some(window)) if window > 0 => Ok(Some(window)),
        ("sliding_attention", found) => {
            let found = found.map_or("nothing".into(), |found| found.to_string());
            keys.fail("sliding_window", "at least 1, for layers of type sliding_attention", found)
        }
        (other, _) => keys.fail(format!("layer_types[{index}]"), "full_attention or sliding_attention", other),
    };
    types.iter().enumerate().map(read).collect()
}

pub(super) fn read(keys: &Keys<'_>) -> Result<Box<dyn Architecture>> {
    let config: QwenKeys = keys.parse()?;
    let heads = config.num_attention_heads;
    let head_dim = config.head_dim.unwrap_or(config.hidden_size / heads.max(1));
    keys.dims([("num_attention_heads", heads), ("head_dim", head_dim)])?;
    let model = Transformer {
        model_type: "qwen2",
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
        qkv_bias: true,
        output_bias: false,
        feed_forward_bias: false,
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
