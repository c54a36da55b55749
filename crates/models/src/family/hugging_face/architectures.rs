//! Architectures that only fill in a [`Transformer`], read from `modeling_NAME.py` and `configuration_NAME.py` of transformers
//! 5.23.0.

use crate::family::hugging_face::transformer::{Activation, Architecture, Keys, Rotary, Scores, Transformer};
use serde::Deserialize;
use weir_kernels::error::Result;

// Llama (Touvron et al. 2023, arXiv 2302.13971), and the models that share its layout, SmolLM among them.

#[derive(Deserialize)]
pub(super) struct LlamaKeys {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    pub(super) num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    hidden_act: Activation,
    max_position_embeddings: usize,
    rms_norm_eps: f64,
    pub(super) attention_bias: bool,
    mlp_bias: bool,
    tie_word_embeddings: bool,
    pub(super) use_sliding_window: bool,
    /// Null stands for no window.
    pub(super) sliding_window: Option<usize>,
    /// The first layer with a window if `layer_types` states none.
    pub(super) max_window_layers: usize,
    pub(super) layer_types: Option<Vec<String>>,
}

impl LlamaKeys {
    /// Returns a transformer without biases, windows and norms of heads. Heads share the hidden size unless `head_dim` is stated.
    pub(super) fn transformer(&self, keys: &Keys<'_>, model_type: &'static str) -> Result<Transformer> {
        let heads = self.num_attention_heads;
        keys.layers("num_hidden_layers", self.num_hidden_layers)?;
        keys.dims([
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("num_attention_heads", heads),
            ("intermediate_size", self.intermediate_size),
            ("max_position_embeddings", self.max_position_embeddings),
        ])?;
        let head_dim = match self.head_dim {
            Some(stated) => {
                keys.dims([("head_dim", stated)])?;
                if stated % 2 == 1 {
                    return keys.fail("head_dim", "an even number", stated);
                }
                stated
            }
            // the positions of a head's numbers are pairs
            None if self.hidden_size.is_multiple_of(heads.saturating_mul(2)) => self.hidden_size / heads,
            None => {
                let expected = format!("an even multiple of num_attention_heads, {heads}, without head_dim");
                return keys.fail("hidden_size", expected, self.hidden_size);
            }
        };
        Ok(Transformer {
            model_type,
            symbols: self.vocab_size,
            dim: self.hidden_size,
            heads,
            kv_heads: self.num_key_value_heads.unwrap_or(heads),
            head_dim,
            feed_forward: self.intermediate_size,
            activation: self.hidden_act,
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

pub(super) fn read_llama(keys: &Keys<'_>) -> Result<Box<dyn Architecture>> {
    let config: LlamaKeys = keys.parse()?;
    let model = Transformer {
        qkv_bias: config.attention_bias,
        output_bias: config.attention_bias,
        feed_forward_bias: config.mlp_bias,
        ..config.transformer(keys, "llama")?
    };
    model.checked(*keys)
}

// Qwen2 and Qwen2.5 (Yang et al. 2024, arXiv 2407.10671): Llama's layers with biases on queries, keys and values.

/// Returns each layer's window: transformers 5 lists the layers, transformers 4 stated the first with a window.
pub(super) fn windows(config: &LlamaKeys, keys: &Keys<'_>) -> Result<Vec<Option<usize>>> {
    let window = config.sliding_window.filter(|_| config.use_sliding_window);
    match &config.layer_types {
        Some(types) => layer_windows(keys, types, config.num_hidden_layers, window),
        None => selected_windows(keys, config.num_hidden_layers, window, |layer| layer >= config.max_window_layers),
    }
}

/// Returns the window of each layer that `has_window` selects. Fails if the window is 0.
pub(super) fn selected_windows(
    keys: &Keys<'_>,
    layers: usize,
    window: Option<usize>,
    has_window: impl Fn(usize) -> bool,
) -> Result<Vec<Option<usize>>> {
    if window == Some(0) {
        return keys.fail("sliding_window", "at least 1, or null", 0);
    }
    Ok((0..layers).map(|layer| window.filter(|_| has_window(layer))).collect())
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

pub(super) fn read_qwen2(keys: &Keys<'_>) -> Result<Box<dyn Architecture>> {
    let config: LlamaKeys = keys.parse()?;
    let plain = config.transformer(keys, "qwen2")?;
    Transformer { windows: windows(&config, keys)?, qkv_bias: true, ..plain }.checked(*keys)
}

// Qwen3 (Yang et al. 2025, arXiv 2505.09388): Llama's layers with a norm on each head's queries and keys.

pub(super) fn read_qwen3(keys: &Keys<'_>) -> Result<Box<dyn Architecture>> {
    let config: LlamaKeys = keys.parse()?;
    let plain = config.transformer(keys, "qwen3")?;
    let model = Transformer {
        windows: windows(&config, keys)?,
        qkv_bias: config.attention_bias,
        output_bias: config.attention_bias,
        head_norms: true,
        ..plain
    };
    model.checked(*keys)
}

// Gemma 2 (arXiv 2408.00118): norms before and after each part, capped scores, and windows in every other layer.

/// The keys next to [`LlamaKeys`].
#[derive(Deserialize)]
struct Gemma2Keys {
    hidden_activation: Activation,
    query_pre_attn_scalar: f64,
    /// Null stands for no cap, as below.
    attn_logit_softcapping: Option<f64>,
    final_logit_softcapping: Option<f64>,
    use_bidirectional_attention: bool,
}

pub(super) fn read_gemma2(keys: &Keys<'_>) -> Result<Box<dyn Architecture>> {
    let config: LlamaKeys = keys.parse()?;
    let own: Gemma2Keys = keys.parse()?;
    let plain = config.transformer(keys, "gemma2")?;
    keys.positive("query_pre_attn_scalar", own.query_pre_attn_scalar)?;
    for (key, cap) in [
        ("attn_logit_softcapping", own.attn_logit_softcapping),
        ("final_logit_softcapping", own.final_logit_softcapping),
    ] {
        cap.map_or(Ok(()), |cap| keys.positive(key, cap))?;
    }
    keys.only("use_bidirectional_attention", false, own.use_bidirectional_attention)?;
    let windows = match &config.layer_types {
        Some(types) => layer_windows(keys, types, config.num_hidden_layers, config.sliding_window)?,
        // before transformers listed the layers, every other one had a window
        None => selected_windows(keys, config.num_hidden_layers, config.sliding_window, |layer| layer % 2 == 0)?,
    };
    let model = Transformer {
        activation: own.hidden_activation,
        windows,
        qkv_bias: config.attention_bias,
        output_bias: config.attention_bias,
        gemma: true,
        scores: Scores { scale: 1.0 / own.query_pre_attn_scalar.sqrt(), cap: own.attn_logit_softcapping },
        logit_cap: own.final_logit_softcapping,
        embedding_scale: (config.hidden_size as f64).sqrt(),
        ..plain
    };
    model.checked(*keys)
}
