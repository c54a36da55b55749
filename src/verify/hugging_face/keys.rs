//! The keys of `config.json` that the transformers share. They are read a second time, so that a key that the family misreads is
//! noticed.

use crate::{
    error::Result,
    verify::{LengthLimit, checkpoint::Checkpoint},
};
use candle_nn::Activation;
use candle_transformers::models::llama::{Llama3RopeConfig, Llama3RopeType};
use serde::Deserialize;
use std::fmt::Display;

/// Frequency base of a checkpoint that states none.
const DEFAULT_THETA: f64 = 10_000.0;

/// Keys of Llama, Qwen2, Qwen3 and Gemma 2. Each of them ignores those of the others.
#[derive(Deserialize)]
pub(super) struct TransformerKeys {
    pub(super) vocab_size: usize,
    pub(super) hidden_size: usize,
    pub(super) intermediate_size: usize,
    pub(super) num_hidden_layers: usize,
    pub(super) num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    hidden_act: Option<String>,
    /// The name that Gemma 2 reads.
    pub(super) hidden_activation: Option<String>,
    pub(super) rms_norm_eps: f64,
    #[serde(default)]
    pub(super) attention_bias: bool,
    #[serde(default)]
    pub(super) mlp_bias: bool,
    pub(super) tie_word_embeddings: Option<bool>,
    #[serde(default)]
    use_sliding_window: bool,
    /// Qwen and Gemma 2 have the same default; null stands for no window.
    #[serde(default = "window")]
    pub(super) sliding_window: Option<usize>,
    pub(super) query_pre_attn_scalar: Option<f64>,
    #[serde(default = "score_cap")]
    pub(super) attn_logit_softcapping: Option<f64>,
    #[serde(default = "logit_cap")]
    pub(super) final_logit_softcapping: Option<f64>,
    rope_theta: Option<f64>,
    rope_scaling: Option<Scaling>,
    rope_parameters: Option<Scaling>,
}

/// Frequencies of positions.
#[derive(Clone, PartialEq, Default, Deserialize)]
struct Scaling {
    rope_theta: Option<f64>,
    rope_type: Option<String>,
    /// The older name; some versions of transformers write both.
    r#type: Option<String>,
    factor: Option<f32>,
    low_freq_factor: Option<f32>,
    high_freq_factor: Option<f32>,
    original_max_position_embeddings: Option<usize>,
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

impl TransformerKeys {
    pub(super) fn kv_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    /// Returns the width of a head; `default` if the keys state none, or else an equal part of the hidden size.
    pub(super) fn head_dim(&self, default: Option<usize>) -> usize {
        self.head_dim.or(default).unwrap_or(self.equal_part())
    }

    /// Returns a head's part of the hidden size.
    pub(super) fn equal_part(&self) -> usize {
        self.hidden_size / self.num_attention_heads.max(1)
    }

    /// Returns the activation of Llama and Qwen. Fails if it is unknown.
    pub(super) fn activation(&self, checkpoint: &Checkpoint) -> Result<Activation> {
        activation(checkpoint, "hidden_act", self.activation_name())
    }

    /// Returns the name of the activation of Llama and Qwen.
    pub(super) fn activation_name(&self) -> &str {
        self.hidden_act.as_deref().unwrap_or("silu")
    }

    /// Returns the window of Qwen's layers, if any has one.
    pub(super) fn window(&self) -> Option<usize> {
        self.sliding_window.filter(|_| self.use_sliding_window)
    }

    /// Returns the frequency base.
    pub(super) fn theta(&self) -> f64 {
        let stated = self.scaling().and_then(|scaling| scaling.rope_theta).or(self.rope_theta);
        stated.unwrap_or(DEFAULT_THETA)
    }

    /// transformers 5 writes `rope_parameters`. It prefers `rope_scaling`, which transformers 4 wrote, unless that is empty.
    fn scaling(&self) -> Option<&Scaling> {
        let old = self.rope_scaling.as_ref().filter(|scaling| **scaling != Scaling::default());
        old.or(self.rope_parameters.as_ref())
    }

    fn rope_type(&self) -> &str {
        let stated = self.scaling().and_then(|scaling| scaling.rope_type.as_deref().or(scaling.r#type.as_deref()));
        stated.unwrap_or("default")
    }

    /// Fails if frequencies are scaled.
    pub(super) fn unscaled(&self, checkpoint: &Checkpoint) -> Result<()> {
        only(checkpoint, "rope_type", "default", self.rope_type())
    }

    /// Returns Llama 3's scaling, if the checkpoint has it. Fails if it has another.
    pub(super) fn llama3(&self, checkpoint: &Checkpoint) -> Result<Option<Llama3RopeConfig>> {
        match (self.rope_type(), self.scaling()) {
            ("llama3", Some(scaling)) => Ok(Some(Llama3RopeConfig {
                factor: scaling.factor.unwrap_or(1.0),
                low_freq_factor: scaling.low_freq_factor.unwrap_or(1.0),
                high_freq_factor: scaling.high_freq_factor.unwrap_or(1.0),
                original_max_position_embeddings: scaling.original_max_position_embeddings.unwrap_or(0),
                rope_type: Llama3RopeType::Llama3,
            })),
            ("default", _) => Ok(None),
            (other, _) => {
                let expected = "default or llama3, the only ones that the reference, candle-transformers, computes";
                Err(checkpoint.error("rope_type", expected.into(), other.into()))
            }
        }
    }
}

/// Returns the activation that `name` states. Fails if it is unknown.
pub(super) fn activation(checkpoint: &Checkpoint, key: &str, name: &str) -> Result<Activation> {
    match name {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu" => Ok(Activation::Gelu),
        "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" => Ok(Activation::GeluPytorchTanh),
        "relu" => Ok(Activation::Relu),
        other => Err(checkpoint.error(key, "silu, gelu, gelu_pytorch_tanh or relu".into(), other.into())),
    }
}

/// Fails unless a key has the only value that candle-transformers computes.
pub(super) fn only<T: PartialEq + Display>(checkpoint: &Checkpoint, key: &str, supported: T, found: T) -> Result<()> {
    match found == supported {
        true => Ok(()),
        false => {
            let expected = format!("{supported} (candle-transformers, the reference, computes no other)");
            Err(checkpoint.error(key, expected, found.to_string()))
        }
    }
}

/// Returns the limit of a model whose layers see `window` tokens: longer texts need a window, which candle-transformers does not
/// compute as transformers does.
pub(super) fn limit_of_window(window: Option<usize>) -> LengthLimit {
    match window {
        Some(symbols) if symbols < LengthLimit::PAIRS.symbols => {
            LengthLimit { symbols, why: "candle-transformers and transformers compute longer texts differently" }
        }
        _ => LengthLimit::PAIRS,
    }
}
