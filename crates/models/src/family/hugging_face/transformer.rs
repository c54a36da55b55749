//! The interfaces of an architecture and its network, shared parts, and the decoder of llama, qwen2, qwen3 and gemma2.

use crate::{
    checkpoint::{Weights, files},
    family::{
        TensorSpec,
        hugging_face::memory::{LayerBlocks, LayerMemory, Memory, MemoryShape, failed},
        parts::{MAX_LAYERS, MAX_PARAMETERS, matrix},
        settings::Bounds,
    },
};
use candle_core::{Device, Tensor};
use rayon::prelude::*;
use serde::{Deserialize, de::DeserializeOwned};
use std::{
    f64::consts::TAU,
    fmt::{Debug, Display},
    path::Path,
};
use weir_kernels::error::{Error, Result};

/// Reads the keys of an architecture. Fails if one is missing, invalid or not supported.
pub(super) type ReadArchitecture = fn(&Keys<'_>) -> Result<Box<dyn Architecture>>;

pub(super) trait Architecture: Debug + Send + Sync {
    fn tensors(&self) -> Vec<TensorSpec>;

    fn shape(&self) -> String;

    fn bounds(&self) -> Bounds;

    /// Shape of a sequence's memory.
    fn memory(&self) -> MemoryShape;

    /// The name of the embedding, of which a step reads one row.
    fn embedding(&self) -> &'static str;

    /// True if the embedding computes the logits.
    fn is_tied(&self) -> bool;

    /// Returns the embedding, which a file of a tied head may have under the head's name.
    fn embedding_tensor(&self, symbols: usize, dim: usize) -> TensorSpec {
        TensorSpec { tied_to: self.is_tied().then_some(HEAD), ..matrix(self.embedding(), vec![symbols, dim]) }
    }

    /// The name of the matrix that computes logits.
    fn head(&self) -> &'static str {
        if self.is_tied() { self.embedding() } else { HEAD }
    }

    /// Multiply-adds of a token's attention to one key, all layers together; of its recurrence, if there is no attention.
    fn memory_products(&self) -> usize;

    /// Builds the network. Fails if candle fails.
    fn build(&self, tensors: &mut Tensors) -> Result<Box<dyn Network>>;
}

pub(super) trait Network: Send + Sync {
    /// Computes `tokens`, which follow the tokens of `memory`. Fails if candle fails.
    fn forward(&self, tokens: &Tensor, memory: &Memory, wanted: usize) -> candle_core::Result<Computed>;
}

/// The parts of a network before and after its layers.
pub(super) struct Ends {
    /// (V, D)
    embedding: Tensor,
    norm: Norm,
    head: Projection,
}

impl Ends {
    /// Moves the embedding, and the head unless both are tied, next to the last norm.
    pub(super) fn load(architecture: &dyn Architecture, norm: Norm, tensors: &mut Tensors) -> Result<Self> {
        let embedding = tensors.take(architecture.embedding())?;
        let weight = if architecture.is_tied() { embedding.clone() } else { tensors.take(HEAD)? };
        Ok(Self { embedding, norm, head: Projection { weight, bias: None } })
    }

    /// Returns (len, D).
    pub(super) fn embed(&self, tokens: &Tensor) -> candle_core::Result<Tensor> {
        self.embedding.index_select(tokens, 0)
    }

    /// Returns (wanted, V), the logits after the last rows of `x` (len, D); none if none are wanted.
    pub(super) fn logits(&self, x: &Tensor, wanted: usize) -> candle_core::Result<Option<Tensor>> {
        if wanted == 0 {
            return Ok(None);
        }
        let x = x.narrow(0, x.dim(0)? - wanted, wanted)?.contiguous()?;
        self.head.apply(&self.norm.apply(&x)?).map(Some)
    }
}

pub(super) struct Computed {
    /// (wanted, V): the logits after the last tokens; none if none are wanted.
    pub(super) logits: Option<Tensor>,
    /// Each layer's keys and values of these tokens, or its state after them.
    pub(super) layers: Vec<LayerMemory>,
}

/// Maximum of a dimension: far above any model, far below an overflow of a product.
pub(super) const MAX_DIM: usize = 1 << 22;

#[derive(Clone, Copy)]
pub(super) struct Keys<'a> {
    pub(super) text: &'a str,
    pub(super) file: &'a Path,
}

impl Keys<'_> {
    /// Parses the keys that an architecture reads; others are ignored. Fails if a key is missing or of the wrong type.
    pub(super) fn parse<T: DeserializeOwned>(self) -> Result<T> {
        files::parse(self.text.as_bytes(), self.file, "")
    }

    pub(super) fn fail<T>(self, key: impl Display, expected: impl Into<String>, found: impl Display) -> Result<T> {
        Err(Error::checkpoint(self.file, key.to_string(), expected.into(), found.to_string()))
    }

    pub(super) fn layers(self, key: &str, layers: usize) -> Result<()> {
        if (1..=MAX_LAYERS).contains(&layers) { Ok(()) } else { self.fail(key, format!("1 to {MAX_LAYERS}"), layers) }
    }

    /// Checks dimensions. Fails at the first that is 0 or exceeds the limit.
    pub(super) fn dims<const N: usize>(self, dims: [(&str, usize); N]) -> Result<()> {
        match dims.into_iter().find(|(_, dim)| !(1..=MAX_DIM).contains(dim)) {
            Some((key, dim)) => self.fail(key, format!("1 to {MAX_DIM}"), dim),
            None => Ok(()),
        }
    }

    pub(super) fn fraction(self, key: &str, value: f64) -> Result<()> {
        if value > 0.0 && value < 1.0 { Ok(()) } else { self.fail(key, "above 0, below 1", value) }
    }

    pub(super) fn positive(self, key: &str, value: f64) -> Result<()> {
        if value > 0.0 && value.is_finite() { Ok(()) } else { self.fail(key, "above 0", value) }
    }

    /// Checks the numbers in all tensors together.
    pub(super) fn parameters(self, numbers: usize) -> Result<()> {
        let expected = || format!("at most {MAX_PARAMETERS} numbers in all tensors");
        if numbers <= MAX_PARAMETERS { Ok(()) } else { self.fail("the file", expected(), numbers) }
    }

    /// Checks that a key has the only value that the implementation computes.
    pub(super) fn only<T: PartialEq + Display>(self, key: &str, supported: T, found: T) -> Result<()> {
        if found == supported {
            Ok(())
        } else {
            self.fail(key, format!("{supported}, the only one that weir computes"), found)
        }
    }

    pub(super) fn unquantized(self) -> Result<()> {
        #[derive(Deserialize)]
        struct Quantization {
            quantization_config: Option<Method>,
        }
        #[derive(Deserialize)]
        struct Method {
            quant_method: Option<String>,
        }
        match self.parse::<Quantization>()?.quantization_config {
            Some(Method { quant_method }) => {
                let found = quant_method.unwrap_or_else(|| "a quantized layout".into());
                self.fail("quantization_config", "nothing: weights in f32, f16 or bf16", found)
            }
            None => Ok(()),
        }
    }
}

pub(super) struct Tensors {
    pub(super) weights: Weights,
    pub(super) device: Device,
}

impl Tensors {
    /// Moves a tensor to the device. Fails if it was taken before, or the device has no room.
    pub(super) fn take(&mut self, name: &str) -> Result<Tensor> {
        let shape = self.weights.get(name).map(|tensor| tensor.shape.clone()).unwrap_or_default();
        Tensor::from_vec(self.weights.take(name)?, shape, &self.device).map_err(failed)
    }

    /// Moves the matrix `name.weight`, and `name.bias` if `has_bias`.
    pub(super) fn projection(&mut self, name: &str, has_bias: bool) -> Result<Projection> {
        let weight = self.take(&format!("{name}.weight"))?;
        let bias = if has_bias { Some(self.take(&format!("{name}.bias"))?) } else { None };
        Ok(Projection { weight, bias })
    }
}

/// A product with a matrix.
/// Minimum multiply-adds of a thread's part of a product. A smaller part takes less time than the thread's start.
const MIN_PART: usize = 1 << 17;

/// Minimum outputs of a thread's part. candle sums products of fewer outputs, up to 256, in another order (gemm 0.19, `gemm.rs`).
const MIN_OUTPUTS: usize = 257;

pub(super) struct Projection {
    pub(super) weight: Tensor,
    /// (outputs)
    pub(super) bias: Option<Tensor>,
}

impl Projection {
    /// Returns (rows, outputs) for `x` (rows, inputs).
    pub(super) fn apply(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let is_single = x.dim(0)? == 1 && x.device().is_cpu();
        let product = if is_single { self.shared_product(x)? } else { x.matmul(&self.weight.t()?)? };
        match &self.bias {
            Some(bias) => product.broadcast_add(bias),
            None => Ok(product),
        }
    }

    /// Returns (1, outputs) for `x` (1, inputs), computed on all threads: candle's product of one row and a matrix runs on one.
    /// It sums each output by itself, so the result is the same on any number of threads.
    fn shared_product(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let (outputs, inputs) = self.weight.dims2()?;
        let most = (outputs * inputs / MIN_PART).min(outputs / MIN_OUTPUTS);
        let parts = rayon::current_num_threads().min(most).max(1);
        let width = outputs / parts;
        let product = |part: usize| {
            let start = part * width;
            let end = if part + 1 == parts { outputs } else { start + width };
            x.matmul(&self.weight.narrow(0, start, end - start)?.t()?)
        };
        let products: Vec<Tensor> = (0..parts).into_par_iter().map(product).collect::<candle_core::Result<_>>()?;
        Tensor::cat(&products, 1)
    }
}

pub(super) struct Norm {
    /// (dim)
    pub(super) weight: Tensor,
    /// (dim) of LayerNorm; none for RMSNorm.
    pub(super) bias: Option<Tensor>,
    pub(super) eps: f64,
}

impl Norm {
    pub(super) fn apply(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        match &self.bias {
            Some(bias) => candle_nn::ops::layer_norm(x, &self.weight, bias, self.eps as f32),
            None => candle_nn::ops::rms_norm(x, &self.weight, self.eps as f32),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(super) enum Activation {
    #[serde(rename = "silu", alias = "swish")]
    Silu,
    #[serde(rename = "gelu")]
    Gelu,
    /// The approximation with tanh.
    #[serde(rename = "gelu_pytorch_tanh", alias = "gelu_new", alias = "gelu_fast")]
    GeluTanh,
    #[serde(rename = "relu")]
    Relu,
}

impl Activation {
    pub(super) fn apply(self, x: &Tensor) -> candle_core::Result<Tensor> {
        match self {
            Self::Silu => x.silu(),
            Self::Gelu => x.gelu_erf(),
            Self::GeluTanh => x.gelu(),
            Self::Relu => x.relu(),
        }
    }
}

/// Limits `x` smoothly to ±`cap`.
pub(super) fn soft_cap(x: Tensor, cap: Option<f64>) -> candle_core::Result<Tensor> {
    match cap {
        Some(cap) => (x / cap)?.tanh()? * cap,
        None => Ok(x),
    }
}

// Rotary positions have the frequency scalings of transformers that do not depend on the text's length. transformers 5 writes `rope_parameters`; transformers 4 wrote `rope_theta` and `rope_scaling`, which wins if a file has both.

#[derive(Debug, Deserialize)]
pub(super) struct RotaryKeys {
    rope_theta: Option<f64>,
    rope_scaling: Option<Scaling>,
    rope_parameters: Option<Scaling>,
}

#[derive(Debug, PartialEq, Default, Deserialize)]
struct Scaling {
    rope_theta: Option<f64>,
    rope_type: Option<String>,
    /// The older name; some versions of transformers write both.
    r#type: Option<String>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    partial_rotary_factor: Option<f64>,
}

/// Frequency base of a checkpoint that states none.
const DEFAULT_THETA: f64 = 10_000.0;

/// Minimum of the base, below which frequencies grow.
const MIN_THETA: f64 = 1.0;

/// Minimum of a number that scales frequencies, so that angles stay finite.
const MIN_SCALE: f64 = 1e-6;

#[derive(Debug, Clone)]
pub(super) struct Rotary {
    /// (head_dim / 2): angle of one position.
    inverse: Vec<f32>,
}

impl Rotary {
    /// Reads the frequencies of heads of `head_dim` numbers, which are even. Fails if the scaling is not supported.
    pub(super) fn read(keys: Keys<'_>, head_dim: usize) -> Result<Self> {
        let RotaryKeys { rope_theta, rope_scaling, rope_parameters } = keys.parse()?;
        let (name, scaling) = match rope_scaling.filter(|scaling| *scaling != Scaling::default()) {
            Some(scaling) => ("rope_scaling", Some(scaling)),
            None => ("rope_parameters", rope_parameters),
        };
        let inner_theta = scaling.as_ref().and_then(|scaling| scaling.rope_theta);
        let theta_key = if inner_theta.is_some() { format!("{name}.rope_theta") } else { "rope_theta".into() };
        let theta = inner_theta.or(rope_theta).unwrap_or(DEFAULT_THETA);
        if !(MIN_THETA..f64::INFINITY).contains(&theta) {
            return keys.fail(theta_key, format!("at least {MIN_THETA}"), theta);
        }
        let plain: Vec<f64> =
            (0..head_dim).step_by(2).map(|index| 1.0 / theta.powf(index as f64 / head_dim as f64)).collect();
        let Some(scaling) = scaling else { return Ok(Self::from(&plain)) };
        if let Some(part) = scaling.partial_rotary_factor.filter(|part| *part != 1.0) {
            return keys.fail(format!("{name}.partial_rotary_factor"), "1, the only one that weir computes", part);
        }
        let number = |key: &str, value: Option<f64>| match value {
            Some(value) if value >= MIN_SCALE && value.is_finite() => Ok(value),
            Some(value) => keys.fail(format!("{name}.{key}"), format!("at least {MIN_SCALE}"), value),
            None => keys.fail(format!("{name}.{key}"), "a number", "nothing"),
        };
        let type_key = if scaling.rope_type.is_some() { "rope_type" } else { "type" };
        match scaling.rope_type.as_deref().or(scaling.r#type.as_deref()).unwrap_or("default") {
            "default" => Ok(Self::from(&plain)),
            "linear" => {
                let factor = number("factor", scaling.factor)?;
                let scaled: Vec<f64> = plain.iter().map(|frequency| frequency / factor).collect();
                Ok(Self::from(&scaled))
            }
            "llama3" => {
                let factor = number("factor", scaling.factor)?;
                let low = number("low_freq_factor", scaling.low_freq_factor)?;
                let high = number("high_freq_factor", scaling.high_freq_factor)?;
                let length = number("original_max_position_embeddings", scaling.original_max_position_embeddings)?;
                if high <= low {
                    return keys.fail(
                        format!("{name}.high_freq_factor"),
                        format!("above low_freq_factor, {low}"),
                        high,
                    );
                }
                let scaled = plain.iter().map(|&frequency| {
                    // the periods of `frequency` that fit into the original length
                    let periods = length * frequency / TAU;
                    let share = ((periods - low) / (high - low)).clamp(0.0, 1.0);
                    (1.0 - share) * frequency / factor + share * frequency
                });
                Ok(Self::from(&scaled.collect::<Vec<_>>()))
            }
            other => keys.fail(format!("{name}.{type_key}"), "one of default, linear, llama3", other),
        }
    }

    fn from(frequencies: &[f64]) -> Self {
        Self { inverse: frequencies.iter().map(|&frequency| frequency as f32).collect() }
    }

    /// Returns the angles of positions `start..start + len`. Fails if candle fails.
    pub(super) fn angles(&self, start: usize, len: usize, device: &Device) -> candle_core::Result<Angles> {
        let angles: Vec<f32> = (start..start + len)
            .flat_map(|position| self.inverse.iter().map(move |frequency| position as f32 * frequency))
            .collect();
        let angles = Tensor::from_vec(angles, (len, self.inverse.len()), device)?;
        Ok(Angles { cos: angles.cos()?, sin: angles.sin()? })
    }
}

/// Angles of a step's tokens.
pub(super) struct Angles {
    /// (len, head_dim / 2)
    cos: Tensor,
    /// (len, head_dim / 2)
    sin: Tensor,
}

impl Angles {
    pub(super) fn rotate(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        candle_nn::rotary_emb::rope(&x.unsqueeze(0)?, &self.cos, &self.sin)?.squeeze(0)
    }
}

/// The conversion of scores to weights.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scores {
    /// Multiplies the products of queries and keys.
    pub(super) scale: f64,
    /// Limits them smoothly, if given.
    pub(super) cap: Option<f64>,
}

/// Returns (len, heads · head_dim) for queries (heads, len, head_dim) and keys and values (kv_heads, keys, head_dim). The mask
/// (len, keys) is added to the scores.
pub(super) fn attend(
    queries: &Tensor,
    keys: &Tensor,
    values: &Tensor,
    scores: Scores,
    mask: Option<&Tensor>,
) -> candle_core::Result<Tensor> {
    let (heads, len, head_dim) = queries.dims3()?;
    let (kv_heads, count, _) = keys.dims3()?;
    let group = heads / kv_heads;
    // The heads that share keys are neighbours, so their queries are rows of one matrix.
    let grouped = queries.reshape((kv_heads, group * len, head_dim))?;
    let products = (grouped.matmul(&keys.t()?)? * scores.scale)?; // (kv_heads, group · len, keys)
    let mut products = soft_cap(products, scores.cap)?;
    if let Some(mask) = mask {
        products =
            products.reshape((heads, len, count))?.broadcast_add(mask)?.reshape((kv_heads, group * len, count))?;
    }
    let context = candle_nn::ops::softmax_last_dim(&products)?.matmul(values)?; // (kv_heads, group · len, head_dim)
    context.reshape((heads, len, head_dim))?.transpose(0, 1)?.reshape((len, heads * head_dim))
}

/// The masks of one step's tokens. Layers with equal windows share one.
pub(super) struct Masks {
    len: usize,
    keys: usize,
    /// The mask of each window that a layer has asked for.
    built: Vec<(Option<usize>, Option<Tensor>)>,
}

impl Masks {
    pub(super) fn new(len: usize, keys: usize) -> Self {
        Self { len, keys, built: Vec::new() }
    }

    /// Returns the mask of a window, in which a query sees that many keys, its own included; none if it sees all.
    pub(super) fn of(&mut self, window: Option<usize>, device: &Device) -> candle_core::Result<Option<Tensor>> {
        if let Some((_, mask)) = self.built.iter().find(|(built, _)| *built == window) {
            return Ok(mask.clone());
        }
        let mask = mask(self.len, self.keys, window, device)?;
        self.built.push((window, mask.clone()));
        Ok(mask)
    }
}

/// Returns (len, keys): 0 where a query sees a key, −∞ elsewhere; none if all queries see all keys.
fn mask(len: usize, keys: usize, window: Option<usize>, device: &Device) -> candle_core::Result<Option<Tensor>> {
    let window = window.unwrap_or(usize::MAX);
    if len == 1 && keys <= window {
        return Ok(None);
    }
    let row = |query: usize| {
        let position = keys - len + query;
        let sees = move |key: usize| key <= position && position - key < window;
        (0..keys).map(move |key| if sees(key) { 0.0_f32 } else { f32::NEG_INFINITY })
    };
    let mask: Vec<f32> = (0..len).flat_map(row).collect();
    Tensor::from_vec(mask, (len, keys), device).map(Some)
}

pub(super) const EMBEDDING: &str = "model.embed_tokens.weight";

pub(super) use crate::checkpoint::weights::HEAD;

/// An architecture of this kind. D = `dim`, H = `heads`, K = `kv_heads`, h = `head_dim`, F = `feed_forward`, V = `symbols`.
#[derive(Debug, Clone)]
pub(super) struct Transformer {
    pub(super) model_type: &'static str,
    pub(super) symbols: usize,
    pub(super) dim: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) feed_forward: usize,
    pub(super) activation: Activation,
    pub(super) eps: f64,
    pub(super) rotary: Rotary,
    /// Keys that each layer's queries see; all, if `None`. One entry a layer.
    pub(super) windows: Vec<Option<usize>>,
    /// Biases of the query, key and value products.
    pub(super) qkv_bias: bool,
    pub(super) output_bias: bool,
    pub(super) feed_forward_bias: bool,
    /// True if each head's queries and keys are normalised.
    pub(super) head_norms: bool,
    /// True if attention and feed-forward are also normalised after they ran, and norms multiply by 1 + weight.
    pub(super) gemma: bool,
    pub(super) scores: Scores,
    /// Limits the logits smoothly, if given.
    pub(super) logit_cap: Option<f64>,
    /// Multiplies the embeddings.
    pub(super) embedding_scale: f64,
    pub(super) tied: bool,
    /// Positions that the model was made for.
    pub(super) positions: usize,
}

impl Transformer {
    pub(super) fn checked(self, keys: Keys<'_>) -> Result<Box<dyn Architecture>> {
        keys.dims([("num_key_value_heads", self.kv_heads)])?;
        if !self.heads.is_multiple_of(self.kv_heads) {
            let expected = format!("a divisor of num_attention_heads, {}", self.heads);
            return keys.fail("num_key_value_heads", expected, self.kv_heads);
        }
        keys.fraction("rms_norm_eps", self.eps)?;
        keys.parameters(self.tensors().iter().map(TensorSpec::numbers).fold(0, usize::saturating_add))?;
        Ok(Box::new(self))
    }

    fn widths(&self) -> (usize, usize) {
        (self.heads * self.head_dim, self.kv_heads * self.head_dim)
    }

    /// Names of a layer's norms before and after attention, and before and after the feed-forward.
    fn norm_names(&self) -> &'static [&'static str] {
        match self.gemma {
            true => &[
                "input_layernorm",
                "post_attention_layernorm",
                "pre_feedforward_layernorm",
                "post_feedforward_layernorm",
            ],
            false => &["input_layernorm", "post_attention_layernorm"],
        }
    }

    fn layer_tensors(&self, out: &mut Vec<TensorSpec>, layer: usize) {
        let key = |name: &str| format!("model.layers.{layer}.{name}");
        let (queries, keys) = self.widths();
        let mut linear = |name: &str, outputs: usize, inputs: usize, bias: bool| {
            out.push(matrix(key(&format!("{name}.weight")), vec![outputs, inputs]));
            if bias {
                out.push(matrix(key(&format!("{name}.bias")), vec![outputs]));
            }
        };
        linear("self_attn.q_proj", queries, self.dim, self.qkv_bias);
        linear("self_attn.k_proj", keys, self.dim, self.qkv_bias);
        linear("self_attn.v_proj", keys, self.dim, self.qkv_bias);
        linear("self_attn.o_proj", self.dim, queries, self.output_bias);
        linear("mlp.gate_proj", self.feed_forward, self.dim, self.feed_forward_bias);
        linear("mlp.up_proj", self.feed_forward, self.dim, self.feed_forward_bias);
        linear("mlp.down_proj", self.dim, self.feed_forward, self.feed_forward_bias);
        let norms = self.norm_names().iter().map(|name| matrix(key(&format!("{name}.weight")), vec![self.dim]));
        out.extend(norms);
        if self.head_norms {
            let norms =
                ["q_norm", "k_norm"].map(|name| matrix(key(&format!("self_attn.{name}.weight")), vec![self.head_dim]));
            out.extend(norms);
        }
    }

    fn norm(&self, tensors: &mut Tensors, name: &str) -> Result<Norm> {
        let weight = tensors.take(&format!("{name}.weight"))?;
        let weight = if self.gemma { (weight + 1.0).map_err(failed)? } else { weight };
        Ok(Norm { weight, bias: None, eps: self.eps })
    }

    fn layer(&self, tensors: &mut Tensors, layer: usize) -> Result<Layer> {
        let key = |name: &str| format!("model.layers.{layer}.{name}");
        let mut norms = Vec::new();
        for name in self.norm_names() {
            norms.push(self.norm(tensors, &key(name))?);
        }
        let mut head_norms = Vec::new();
        if self.head_norms {
            for name in ["self_attn.q_norm", "self_attn.k_norm"] {
                head_norms.push(self.norm(tensors, &key(name))?);
            }
        }
        Ok(Layer {
            norms,
            query: tensors.projection(&key("self_attn.q_proj"), self.qkv_bias)?,
            key: tensors.projection(&key("self_attn.k_proj"), self.qkv_bias)?,
            value: tensors.projection(&key("self_attn.v_proj"), self.qkv_bias)?,
            head_norms,
            output: tensors.projection(&key("self_attn.o_proj"), self.output_bias)?,
            gate: tensors.projection(&key("mlp.gate_proj"), self.feed_forward_bias)?,
            up: tensors.projection(&key("mlp.up_proj"), self.feed_forward_bias)?,
            down: tensors.projection(&key("mlp.down_proj"), self.feed_forward_bias)?,
            window: self.windows[layer],
        })
    }
}

impl Architecture for Transformer {
    fn tensors(&self) -> Vec<TensorSpec> {
        let mut out = vec![self.embedding_tensor(self.symbols, self.dim)];
        (0..self.windows.len()).for_each(|layer| self.layer_tensors(&mut out, layer));
        out.push(matrix("model.norm.weight", vec![self.dim]));
        if !self.tied {
            out.push(matrix(HEAD, vec![self.symbols, self.dim]));
        }
        out
    }

    fn shape(&self) -> String {
        let Self { model_type, dim, heads, kv_heads, head_dim, .. } = self;
        let windows = match self.windows.iter().flatten().max() {
            Some(keys) => format!(", windows of {keys} keys"),
            None => String::new(),
        };
        let layers = self.windows.len();
        format!("{model_type}: {layers} layers × {dim}, {heads} heads × {head_dim}, {kv_heads} of keys{windows}")
    }

    fn bounds(&self) -> Bounds {
        Bounds { longest: Some((self.positions, "the checkpoint's max_position_embeddings")), endless: false }
    }

    fn memory(&self) -> MemoryShape {
        MemoryShape::Keys { layers: self.windows.len(), heads: self.kv_heads, head_dim: self.head_dim }
    }

    fn embedding(&self) -> &'static str {
        EMBEDDING
    }

    fn is_tied(&self) -> bool {
        self.tied
    }

    fn memory_products(&self) -> usize {
        2 * self.windows.len() * self.heads * self.head_dim
    }

    fn build(&self, tensors: &mut Tensors) -> Result<Box<dyn Network>> {
        let norm = self.norm(tensors, "model.norm")?;
        let ends = Ends::load(self, norm, tensors)?;
        let layers = (0..self.windows.len()).map(|layer| self.layer(tensors, layer)).collect::<Result<_>>()?;
        Ok(Box::new(TransformerNetwork { config: self.clone(), ends, layers }))
    }
}

struct Layer {
    /// The norms that [`Transformer::norm_names`] lists, in its order.
    norms: Vec<Norm>,
    query: Projection,
    key: Projection,
    value: Projection,
    /// The norms of queries and of keys, if heads are normalised.
    head_norms: Vec<Norm>,
    output: Projection,
    gate: Projection,
    up: Projection,
    down: Projection,
    window: Option<usize>,
}

/// The parts of a step that all layers share.
struct Step {
    angles: Angles,
    masks: Masks,
}

struct TransformerNetwork {
    config: Transformer,
    ends: Ends,
    layers: Vec<Layer>,
}

impl Network for TransformerNetwork {
    /// Embed → layers → norm → logits.
    fn forward(&self, tokens: &Tensor, memory: &Memory, wanted: usize) -> candle_core::Result<Computed> {
        let len = tokens.dim(0)?;
        let mut step = Step {
            angles: self.config.rotary.angles(memory.len(), len, tokens.device())?,
            masks: Masks::new(len, memory.len() + len),
        };
        let mut x = self.ends.embed(tokens)?; // (len, D)
        if self.config.embedding_scale != 1.0 {
            x = (x * self.config.embedding_scale)?;
        }
        let mut layers = Vec::with_capacity(self.layers.len());
        for (index, layer) in self.layers.iter().enumerate() {
            let past = memory.blocks(index)?;
            let (next, computed) = self.layer(layer, &x, &mut step, past)?;
            x = next;
            layers.push(computed);
        }
        let logits = self.ends.logits(&x, wanted)?.map(|logits| soft_cap(logits, self.config.logit_cap)).transpose()?;
        Ok(Computed { logits, layers })
    }
}

impl TransformerNetwork {
    /// Returns `x` (len, D) after a layer, and the layer's keys and values of these tokens.
    fn layer(
        &self,
        layer: &Layer,
        x: &Tensor,
        step: &mut Step,
        past: LayerBlocks,
    ) -> candle_core::Result<(Tensor, LayerMemory)> {
        let Transformer { heads, kv_heads, head_dim, activation, scores, gemma, .. } = self.config;
        let len = x.dim(0)?;
        let split = |x: Tensor, heads: usize, norm: Option<&Norm>| {
            let x = x.reshape((len, heads, head_dim))?;
            let x = norm.map_or(Ok(x.clone()), |norm| norm.apply(&x))?;
            x.transpose(0, 1)?.contiguous() // (heads, len, h)
        };
        let normed = layer.norms[0].apply(x)?;
        let queries = step.angles.rotate(&split(layer.query.apply(&normed)?, heads, layer.head_norms.first())?)?;
        let keys = step.angles.rotate(&split(layer.key.apply(&normed)?, kv_heads, layer.head_norms.get(1))?)?;
        let values = split(layer.value.apply(&normed)?, kv_heads, None)?;
        let all = past.joined(&keys, &values)?;
        let mask = step.masks.of(layer.window, x.device())?;
        let context = attend(&queries, &all.first, &all.second, scores, mask.as_ref())?; // (len, H·h)
        let mut attended = layer.output.apply(&context)?;
        if gemma {
            attended = layer.norms[1].apply(&attended)?;
        }
        let x = (x + attended)?;
        let normed = layer.norms[if gemma { 2 } else { 1 }].apply(&x)?;
        let hidden = (activation.apply(&layer.gate.apply(&normed)?)? * layer.up.apply(&normed)?)?; // (len, F)
        let mut fed = layer.down.apply(&hidden)?;
        if gemma {
            fed = layer.norms[3].apply(&fed)?;
        }
        Ok(((x + fed)?, LayerMemory { first: keys, second: values }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Computes attention with loops, in f64.
    fn naive(
        queries: &[f32],
        keys: &[f32],
        values: &[f32],
        shape: [usize; 5],
        scores: Scores,
        window: usize,
    ) -> Vec<f64> {
        let [heads, kv_heads, len, count, dim] = shape;
        let mut out = vec![0.0; len * heads * dim];
        for head in 0..heads {
            let shared = head * kv_heads / heads;
            for query in 0..len {
                let position = count - len + query;
                let product = |key: usize| -> f64 {
                    let terms = (0..dim).map(|d| {
                        f64::from(queries[(head * len + query) * dim + d])
                            * f64::from(keys[(shared * count + key) * dim + d])
                    });
                    let score = terms.sum::<f64>() * scores.scale;
                    scores.cap.map_or(score, |cap| (score / cap).tanh() * cap)
                };
                let seen: Vec<usize> = (0..=position).filter(|key| position - key < window).collect();
                let total: f64 = seen.iter().map(|&key| product(key).exp()).sum();
                for d in 0..dim {
                    let weighted = seen
                        .iter()
                        .map(|&key| product(key).exp() / total * f64::from(values[(shared * count + key) * dim + d]));
                    out[(query * heads + head) * dim + d] = weighted.sum();
                }
            }
        }
        out
    }

    #[test]
    fn attention_equals_its_definition() {
        let numbers = |count: usize, seed: usize| -> Vec<f32> {
            (0..count).map(|index| (((index * 7919 + seed * 104_729) % 1000) as f32 / 500.0) - 1.0).collect()
        };
        for (shape, cap, window) in [
            ([4, 2, 3, 7, 4], None, usize::MAX),
            ([4, 4, 1, 9, 2], Some(2.0), usize::MAX),
            ([6, 1, 5, 5, 4], Some(0.5), 3),
            ([2, 1, 1, 8, 4], None, 4),
        ] {
            let [heads, kv_heads, len, count, dim] = shape;
            let scores = Scores { scale: 0.7, cap };
            let q = numbers(heads * len * dim, 1);
            let k = numbers(kv_heads * count * dim, 2);
            let v = numbers(kv_heads * count * dim, 3);
            let tensor = |data: &[f32], a, b| Tensor::from_slice(data, (a, b, dim), &Device::Cpu).unwrap();
            let limit = (window != usize::MAX).then_some(window);
            let mask = Masks::new(len, count).of(limit, &Device::Cpu).unwrap();
            let fast = attend(
                &tensor(&q, heads, len),
                &tensor(&k, kv_heads, count),
                &tensor(&v, kv_heads, count),
                scores,
                mask.as_ref(),
            );
            let fast = fast.unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let slow = naive(&q, &k, &v, shape, scores, window);
            let difference = fast.iter().zip(&slow).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
            assert!(difference < 1e-5, "{shape:?}: {difference}");
        }
    }

    #[test]
    fn a_product_has_the_same_bits_on_any_number_of_threads() {
        let numbers = |count: usize, seed: usize| -> Vec<f32> {
            (0..count).map(|index| (((index * 7919 + seed * 104_729) % 1013) as f32 / 500.0) - 1.0).collect()
        };
        for (outputs, inputs) in [(1, 700), (256, 2000), (257, 2000), (999, 1031), (2048, 768), (7, 100_003)] {
            let weight = Tensor::from_vec(numbers(outputs * inputs, 1), (outputs, inputs), &Device::Cpu).unwrap();
            let x = Tensor::from_vec(numbers(inputs, 2), (1, inputs), &Device::Cpu).unwrap();
            let whole = x.matmul(&weight.t().unwrap()).unwrap().to_vec2::<f32>().unwrap();
            let projection = Projection { weight, bias: None };
            for threads in [1, 2, 3, 8] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let shared = pool.install(|| projection.apply(&x)).unwrap().to_vec2::<f32>().unwrap();
                assert!(shared == whole, "{outputs} × {inputs} on {threads} threads");
            }
        }
    }

    fn inverse(json: &str) -> Result<Vec<f32>> {
        Rotary::read(Keys { text: json, file: Path::new("config.json") }, 8).map(|rotary| rotary.inverse)
    }

    #[test]
    fn both_layouts_give_the_same_frequencies() {
        let new = r#"{"rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}}"#;
        let old = r#"{"rope_theta": 500000.0, "rope_scaling": {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}}"#;
        let scaled = inverse(new).unwrap();
        assert_eq!(scaled, inverse(old).unwrap());
        let both = old.replace(r#""type""#, r#""rope_type": "llama3", "type""#);
        assert_eq!(scaled, inverse(&both).unwrap());
        // high frequencies stay, low ones are divided, as in transformers' `_compute_llama3_parameters`
        let plain = inverse(r#"{"rope_theta": 500000.0}"#).unwrap();
        assert_eq!((scaled[0], scaled[3]), (plain[0], plain[3] / 8.0));
        assert!(plain[2] / 8.0 < scaled[2] && scaled[2] < plain[2], "{scaled:?}, {plain:?}");
        assert_eq!(inverse("{}").unwrap()[0], 1.0);
    }

    /// `convert_rope_params_to_dict` of transformers: `rope_scaling or self.rope_parameters`.
    #[test]
    fn rope_scaling_wins_over_rope_parameters() {
        let scaled = r#""rope_scaling": {"rope_type": "linear", "factor": 4.0}"#;
        let other = r#""rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}"#;
        let both = inverse(&format!("{{{scaled}, {other}}}")).unwrap();
        assert_eq!(both, inverse(&format!("{{{scaled}}}")).unwrap());
        let empty = inverse(&format!(r#"{{"rope_scaling": {{}}, {other}}}"#)).unwrap();
        assert_eq!(empty, inverse(&format!("{{{other}}}")).unwrap());
        assert_ne!(both, empty);
    }

    #[test]
    fn unsupported_scalings_are_named() {
        let message = |json: &str| inverse(json).unwrap_err().to_string();
        let yarn = message(r#"{"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}"#);
        assert_eq!(yarn, "config.json: rope_scaling.rope_type: expected one of default, linear, llama3, found yarn");
        let linear = message(r#"{"rope_parameters": {"rope_type": "linear"}}"#);
        assert_eq!(linear, "config.json: rope_parameters.factor: expected a number, found nothing");
    }
}
