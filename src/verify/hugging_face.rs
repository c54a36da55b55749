//! Hugging Face checkpoints: the transformers of candle-transformers, whose authors are not weir's, and a plain pass of Mamba.

use crate::verify::tensors::{Tensors, convolve, softplus};
use crate::verify::{Checkpoint, Given, Input, LengthLimit, Outputs, Reference, ReferenceReader};
use candle_core::{DType, Device, Module, Result as CandleResult, Tensor};
use candle_nn::{Activation, VarBuilder};
use candle_transformers::models::llama::{Llama3RopeConfig, Llama3RopeType};
use candle_transformers::models::{bigcode, llama as llama_models, qwen2 as qwen2_models, qwen3 as qwen3_models};
use serde::Deserialize;
use std::{collections::HashMap, fmt::Display};
use weir_kernels::error::{Error, Result};

/// The architectures: `model_type` in `config.json`, and reader of its checkpoint.
const ARCHITECTURES: &[(&str, ReferenceReader)] = &[
    ("llama", llama),
    ("qwen2", qwen2),
    ("qwen3", qwen3),
    ("gemma2", gemma2),
    ("gpt_bigcode", gpt_bigcode),
    ("mamba", mamba),
];

/// Reads the model. Fails if a file cannot be read, or if the configuration has a value that the reference does not compute.
pub(super) fn read(checkpoint: Checkpoint) -> Result<Box<dyn Reference>> {
    #[derive(Deserialize)]
    struct ModelType {
        model_type: String,
    }
    let ModelType { model_type } = checkpoint.architecture()?;
    match ARCHITECTURES.iter().find(|(name, _)| *name == model_type) {
        Some((_, read)) => read(checkpoint),
        None => {
            let known: Vec<_> = ARCHITECTURES.iter().map(|(name, _)| *name).collect();
            Err(checkpoint.error("model_type", format!("one of {}", known.join(", ")), model_type))
        }
    }
}

// The keys of `config.json` that the transformers share. They are read a second time, so that a key that the family misreads is
// noticed.

/// Frequency base of a checkpoint that states none.
const DEFAULT_THETA: f64 = 10_000.0;

/// Keys of Llama, Qwen2, Qwen3 and Gemma 2. Each of them ignores the others' keys.
#[derive(Deserialize)]
struct TransformerKeys {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    hidden_act: Option<String>,
    /// The name that Gemma 2 reads.
    hidden_activation: Option<String>,
    rms_norm_eps: f64,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    tie_word_embeddings: Option<bool>,
    #[serde(default)]
    use_sliding_window: bool,
    /// Qwen and Gemma 2 have the same default; null stands for no window.
    #[serde(default = "window")]
    sliding_window: Option<usize>,
    query_pre_attn_scalar: Option<f64>,
    #[serde(default = "score_cap")]
    attn_logit_softcapping: Option<f64>,
    #[serde(default = "logit_cap")]
    final_logit_softcapping: Option<f64>,
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
    fn kv_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    /// Returns the width of a head; `default` if the keys state none, or else an equal part of the hidden size.
    fn head_dim(&self, default: Option<usize>) -> usize {
        self.head_dim.or(default).unwrap_or(self.equal_part())
    }

    /// Returns a head's part of the hidden size.
    fn equal_part(&self) -> usize {
        self.hidden_size / self.num_attention_heads.max(1)
    }

    /// Returns the activation of Llama and Qwen. Fails if it is unknown.
    fn activation(&self, checkpoint: &Checkpoint) -> Result<Activation> {
        activation(checkpoint, "hidden_act", self.activation_name())
    }

    /// Returns the name of the activation of Llama and Qwen.
    fn activation_name(&self) -> &str {
        self.hidden_act.as_deref().unwrap_or("silu")
    }

    /// Returns the window of Qwen's layers, if any has one.
    fn window(&self) -> Option<usize> {
        self.sliding_window.filter(|_| self.use_sliding_window)
    }

    /// Returns the frequency base.
    fn theta(&self) -> f64 {
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
    fn unscaled(&self, checkpoint: &Checkpoint) -> Result<()> {
        only(checkpoint, "rope_type", "default", self.rope_type())
    }

    /// Returns Llama 3's scaling, if the checkpoint has it. Fails if it has another.
    fn llama3(&self, checkpoint: &Checkpoint) -> Result<Option<Llama3RopeConfig>> {
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
fn activation(checkpoint: &Checkpoint, key: &str, name: &str) -> Result<Activation> {
    match name {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu" => Ok(Activation::Gelu),
        "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" => Ok(Activation::GeluPytorchTanh),
        "relu" => Ok(Activation::Relu),
        other => Err(checkpoint.error(key, "silu, gelu, gelu_pytorch_tanh or relu".into(), other.into())),
    }
}

/// Fails unless a key has the only value that candle-transformers computes.
fn only<T: PartialEq + Display>(checkpoint: &Checkpoint, key: &str, supported: T, found: T) -> Result<()> {
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
fn limit_of_window(window: Option<usize>) -> LengthLimit {
    match window {
        Some(symbols) if symbols < LengthLimit::PAIRS.symbols => {
            LengthLimit { symbols, why: "candle-transformers and transformers compute longer texts differently" }
        }
        _ => LengthLimit::PAIRS,
    }
}

// Mamba (Gu and Dao 2023, arXiv 2312.00752) in f64, with the recurrence as loops over channels and states.
//
// candle-transformers computes it only with 16 states and 4 taps, and rounds small time steps.

/// D = hidden width, I = inner width, N = `state_size`, R = rank of the time step, K = taps of the convolution.
#[derive(Deserialize)]
struct Keys {
    num_hidden_layers: usize,
    state_size: usize,
    layer_norm_epsilon: f64,
    hidden_act: Option<String>,
    tie_word_embeddings: Option<bool>,
    #[serde(default)]
    use_bias: bool,
    use_conv_bias: Option<bool>,
}

struct Mamba {
    tensors: Tensors,
    keys: Keys,
    activation: Activation,
}

/// Reads the model. Fails if a file cannot be read.
fn mamba(checkpoint: Checkpoint) -> Result<Box<dyn Reference>> {
    let keys: Keys = checkpoint.architecture()?;
    let activation = activation(&checkpoint, "hidden_act", keys.hidden_act.as_deref().unwrap_or("silu"))?;
    Ok(Box::new(Mamba { tensors: checkpoint.tensors()?, keys, activation }))
}

impl Reference for Mamba {
    fn limit(&self) -> LengthLimit {
        LengthLimit {
            why: "the reference implementation has the vectors of all symbols in memory",
            ..LengthLimit::PAIRS
        }
    }

    fn forward(&self, input: &Input, _: Given<'_>) -> CandleResult<Outputs> {
        let mut x = self.tensors.rows("backbone.embeddings.weight", &input.symbols)?; // (len, D)
        for layer in 0..self.keys.num_hidden_layers {
            let name = format!("backbone.layers.{layer}");
            let normed = self.tensors.rms_norm(&format!("{name}.norm"), &x, self.keys.layer_norm_epsilon)?;
            x = (x + self.mix(&format!("{name}.mixer"), &normed)?)?;
        }
        let x = self.tensors.rms_norm("backbone.norm_f", &x, self.keys.layer_norm_epsilon)?;
        let tied = self.keys.tie_word_embeddings.unwrap_or(true);
        let head = if tied { "backbone.embeddings.weight" } else { "lm_head.weight" };
        let logits = self.tensors.matrix(head, &x)?; // (len, V)
        Outputs::of_logits(&logits)
    }
}

impl Mamba {
    /// Mixes one text: (len, D) → (len, D).
    fn mix(&self, name: &str, x: &Tensor) -> CandleResult<Tensor> {
        let states = self.keys.state_size;
        let projected = self.project(&format!("{name}.in_proj"), x)?; // (len, 2·I)
        let inner = projected.dim(1)? / 2;
        let gate = self.activation.forward(&projected.narrow(1, inner, inner)?.contiguous()?)?;
        let taps = self.tensors.get(&format!("{name}.conv1d.weight"))?.squeeze(1)?.t()?; // (K, I)
        let mut channels = convolve(&projected.narrow(1, 0, inner)?, &taps)?; // (len, I)
        if self.keys.use_conv_bias.unwrap_or(true) {
            channels = channels.broadcast_add(self.tensors.get(&format!("{name}.conv1d.bias"))?)?;
        }
        let channels = self.activation.forward(&channels)?;
        let parameters = self.tensors.matrix(&format!("{name}.x_proj.weight"), &channels)?; // (len, R + 2·N)
        let rank = parameters.dim(1)? - 2 * states;
        let steps = self.tensors.linear(&format!("{name}.dt_proj"), &parameters.narrow(1, 0, rank)?)?; // (len, I)
        let steps = softplus(&steps)?;
        let inputs: Vec<Vec<f64>> = parameters.narrow(1, rank, states)?.to_vec2()?; // B: (len, N)
        let outputs: Vec<Vec<f64>> = parameters.narrow(1, rank + states, states)?.to_vec2()?; // C: (len, N)
        let rates: Vec<Vec<f64>> = self.tensors.get(&format!("{name}.A_log"))?.exp()?.to_vec2()?; // −A: (I, N)
        let driven: Vec<Vec<f64>> = (&steps * &channels)?.t()?.to_vec2()?; // Δ·x: (I, len)
        let steps: Vec<Vec<f64>> = steps.t()?.to_vec2()?; // Δ: (I, len)
        let len = inputs.len();
        let mut scanned = vec![0.0; inner * len];
        for (channel, rates) in rates.iter().enumerate() {
            let mut state = vec![0.0; states];
            for position in 0..len {
                let step = steps[channel][position];
                let entering = driven[channel][position];
                for (n, kept) in state.iter_mut().enumerate() {
                    *kept = f64::exp(-rates[n] * step) * *kept + entering * inputs[position][n];
                    scanned[position * inner + channel] += outputs[position][n] * *kept;
                }
            }
        }
        let scanned = Tensor::from_vec(scanned, (len, inner), x.device())?;
        let skipped = channels.broadcast_mul(self.tensors.get(&format!("{name}.D"))?)?;
        self.project(&format!("{name}.out_proj"), &((scanned + skipped)? * gate)?)
    }

    fn project(&self, name: &str, x: &Tensor) -> CandleResult<Tensor> {
        match self.keys.use_bias {
            true => self.tensors.linear(name, x),
            false => self.tensors.matrix(&format!("{name}.weight"), x),
        }
    }
}

// Llama, Qwen2, Qwen3, Gemma 2 and GPT-BigCode as candle-transformers computes them, token by token, in f32.
//
// This file avoids its faults, which docs/upstream.md lists. It builds the configuration itself, and limits a text to the length of
// a window. It refuses a model that candle-transformers computes differently from transformers.

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
    /// Weights, in f32.
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
        Ok(Outputs { logits, ..Outputs::default() })
    }
}

fn boxed(tensors: HashMap<String, Tensor>, build: Build, limit: LengthLimit) -> Result<Box<dyn Reference>> {
    Ok(Box::new(Transformer { tensors, build, limit }))
}

fn llama(checkpoint: Checkpoint) -> Result<Box<dyn Reference>> {
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

fn qwen2(checkpoint: Checkpoint) -> Result<Box<dyn Reference>> {
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

fn qwen3(checkpoint: Checkpoint) -> Result<Box<dyn Reference>> {
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

fn gemma2(checkpoint: Checkpoint) -> Result<Box<dyn Reference>> {
    let keys: TransformerKeys = checkpoint.architecture()?;
    keys.unscaled(&checkpoint)?;
    let head_dim = keys.head_dim(None);
    let name = keys.hidden_activation.as_deref().unwrap_or("gelu_pytorch_tanh");
    let scalar = keys.query_pre_attn_scalar.unwrap_or(head_dim as f64);
    only(&checkpoint, "query_pre_attn_scalar", head_dim as f64, scalar)?;
    only(&checkpoint, "tie_word_embeddings", true, keys.tie_word_embeddings.unwrap_or(true))?;
    let config = candle_transformers::models::gemma2::Config {
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
        let mut model = candle_transformers::models::gemma2::Model::new(false, &config, weights)?;
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

fn gpt_bigcode(checkpoint: Checkpoint) -> Result<Box<dyn Reference>> {
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
