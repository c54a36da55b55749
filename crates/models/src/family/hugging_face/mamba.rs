//! Mamba (Gu and Dao 2023, arXiv 2312.00752): a recurrent state of fixed size instead of keys and values.
//!
//! Read from `modeling_mamba.py` of transformers 5.23.0, whose sequential path this follows.

use crate::family::{
    TensorSpec,
    hugging_face::{
        memory::{LayerMemory, Memory, MemoryShape, failed},
        transformer::{
            Activation, Architecture, Computed, Ends, HEAD, Keys, MAX_DIM, Network, Norm, Projection, Tensors,
        },
    },
    parts::matrix,
    settings::Bounds,
};
use candle_core::{D, Tensor};
use serde::Deserialize;
use serde_json::Value;
use weir_kernels::error::{QUOTED, Result, clip};

const EMBEDDING: &str = "backbone.embeddings.weight";

/// The keys of `config.json`. D = `hidden_size`, I = `intermediate_size`, N = `state_size`, R = `time_step_rank`, K = `conv_kernel`.
#[derive(Debug, Clone, Deserialize)]
struct Mamba {
    vocab_size: usize,
    hidden_size: usize,
    state_size: usize,
    num_hidden_layers: usize,
    intermediate_size: Option<usize>,
    expand: usize,
    conv_kernel: usize,
    time_step_rank: TimeStepRank,
    layer_norm_epsilon: f64,
    hidden_act: Activation,
    use_bias: bool,
    use_conv_bias: bool,
    tie_word_embeddings: bool,
}

/// A number, or the default rule.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "Value")]
enum TimeStepRank {
    Number(usize),
    Rule,
}

impl TryFrom<Value> for TimeStepRank {
    /// In serde's form, so that it is parsed like serde's own messages.
    type Error = String;

    fn try_from(value: Value) -> std::result::Result<Self, String> {
        match value.as_u64().and_then(|rank| usize::try_from(rank).ok()) {
            Some(rank) => Ok(Self::Number(rank)),
            None if value == "auto" => Ok(Self::Rule),
            None => Err(format!("{}, expected a number or \"auto\"", clip(&value.to_string(), QUOTED))),
        }
    }
}

pub(super) fn read(keys: &Keys<'_>) -> Result<Box<dyn Architecture>> {
    let config: Mamba = keys.parse()?;
    keys.layers("num_hidden_layers", config.num_hidden_layers)?;
    keys.dims([
        ("vocab_size", config.vocab_size),
        ("hidden_size", config.hidden_size),
        ("state_size", config.state_size),
        ("intermediate_size", config.intermediate_size.unwrap_or(1)),
        ("time_step_rank", config.rank()),
        ("conv_kernel", config.conv_kernel),
    ])?;
    let most = MAX_DIM / config.hidden_size;
    if config.intermediate_size.is_none() && !(1..=most).contains(&config.expand) {
        return keys.fail("expand", format!("1 to {most}, without intermediate_size"), config.expand);
    }
    if config.conv_kernel < 2 {
        return keys.fail("conv_kernel", "at least 2", config.conv_kernel);
    }
    keys.fraction("layer_norm_epsilon", config.layer_norm_epsilon)?;
    keys.parameters(config.tensors().iter().map(TensorSpec::numbers).fold(0, usize::saturating_add))?;
    Ok(Box::new(config))
}

impl Mamba {
    fn inner(&self) -> usize {
        self.intermediate_size.unwrap_or(self.expand.saturating_mul(self.hidden_size))
    }

    fn rank(&self) -> usize {
        match self.time_step_rank {
            TimeStepRank::Number(rank) => rank,
            TimeStepRank::Rule => self.hidden_size.div_ceil(16),
        }
    }

    fn has_conv_bias(&self) -> bool {
        self.use_conv_bias
    }

    fn norm(&self, tensors: &mut Tensors, name: &str) -> Result<Norm> {
        Ok(Norm { weight: tensors.take(&format!("{name}.weight"))?, bias: None, eps: self.layer_norm_epsilon })
    }

    fn layer(&self, tensors: &mut Tensors, layer: usize) -> Result<Layer> {
        let key = |name: &str| format!("backbone.layers.{layer}.{name}");
        let taps = tensors.take(&key("mixer.conv1d.weight"))?; // (I, 1, K)
        let rates = tensors.take(&key("mixer.A_log"))?.exp().and_then(|rates| rates.neg()).map_err(failed)?;
        Ok(Layer {
            norm: self.norm(tensors, &key("norm"))?,
            input: tensors.projection(&key("mixer.in_proj"), self.use_bias)?,
            taps: taps.squeeze(1).and_then(|taps| taps.t()?.contiguous()).map_err(failed)?,
            taps_bias: if self.has_conv_bias() { Some(tensors.take(&key("mixer.conv1d.bias"))?) } else { None },
            parameters: tensors.projection(&key("mixer.x_proj"), false)?,
            step: tensors.projection(&key("mixer.dt_proj"), true)?,
            rates,
            skip: tensors.take(&key("mixer.D"))?,
            output: tensors.projection(&key("mixer.out_proj"), self.use_bias)?,
        })
    }
}

impl Architecture for Mamba {
    fn tensors(&self) -> Vec<TensorSpec> {
        let dim = self.hidden_size;
        let inner = self.inner();
        let rank = self.rank();
        let state = self.state_size;
        let mut out = vec![self.embedding_tensor(self.vocab_size, dim)];
        for layer in 0..self.num_hidden_layers {
            let mut add = |name: &str, shape: &[usize]| {
                out.push(matrix(format!("backbone.layers.{layer}.{name}"), shape.to_vec()));
            };
            add("norm.weight", &[dim]);
            add("mixer.A_log", &[inner, state]);
            add("mixer.D", &[inner]);
            add("mixer.conv1d.weight", &[inner, 1, self.conv_kernel]);
            add("mixer.in_proj.weight", &[inner.saturating_mul(2), dim]);
            add("mixer.x_proj.weight", &[state.saturating_mul(2).saturating_add(rank), inner]);
            add("mixer.dt_proj.weight", &[inner, rank]);
            add("mixer.dt_proj.bias", &[inner]);
            add("mixer.out_proj.weight", &[dim, inner]);
            if self.has_conv_bias() {
                add("mixer.conv1d.bias", &[inner]);
            }
            if self.use_bias {
                add("mixer.in_proj.bias", &[inner.saturating_mul(2)]);
                add("mixer.out_proj.bias", &[dim]);
            }
        }
        out.push(matrix("backbone.norm_f.weight", vec![dim]));
        if !self.is_tied() {
            out.push(matrix(HEAD, vec![self.vocab_size, dim]));
        }
        out
    }

    fn shape(&self) -> String {
        let Self { num_hidden_layers, hidden_size, state_size, .. } = self;
        format!("mamba: {num_hidden_layers} layers × {hidden_size}, {} channels × {state_size} states", self.inner())
    }

    fn bounds(&self) -> Bounds {
        Bounds { longest: None, endless: true }
    }

    fn memory(&self) -> MemoryShape {
        let numbers = self.inner() * (self.conv_kernel - 1 + self.state_size);
        MemoryShape::Recurrent { layers: self.num_hidden_layers, numbers }
    }

    fn embedding(&self) -> &'static str {
        EMBEDDING
    }

    fn is_tied(&self) -> bool {
        self.tie_word_embeddings
    }

    fn memory_products(&self) -> usize {
        // the old state, the input, and the output
        3 * self.num_hidden_layers * self.inner() * self.state_size
    }

    fn build(&self, tensors: &mut Tensors) -> Result<Box<dyn Network>> {
        let norm = self.norm(tensors, "backbone.norm_f")?;
        let ends = Ends::load(self, norm, tensors)?;
        let layers = (0..self.num_hidden_layers).map(|layer| self.layer(tensors, layer)).collect::<Result<_>>()?;
        Ok(Box::new(MambaNetwork { config: self.clone(), ends, layers }))
    }
}

struct Layer {
    norm: Norm,
    /// Computes the channels, then their gates.
    input: Projection,
    /// (K, I): the convolution, oldest tap first.
    taps: Tensor,
    /// (I)
    taps_bias: Option<Tensor>,
    /// Computes the time step's R numbers, then the vectors B and C of N numbers.
    parameters: Projection,
    step: Projection,
    /// (I, N): logarithm of the decay in one unit of time.
    rates: Tensor,
    /// (I)
    skip: Tensor,
    output: Projection,
}

struct MambaNetwork {
    config: Mamba,
    ends: Ends,
    layers: Vec<Layer>,
}

impl Network for MambaNetwork {
    /// Embed → layers → norm → logits.
    fn forward(&self, tokens: &Tensor, memory: &Memory, wanted: usize) -> candle_core::Result<Computed> {
        let mut x = self.ends.embed(tokens)?; // (len, D)
        let mut layers = Vec::with_capacity(self.layers.len());
        for (index, layer) in self.layers.iter().enumerate() {
            let past = memory.state(index);
            let (mixed, computed) = self.mix(layer, &layer.norm.apply(&x)?, past)?;
            x = (x + mixed)?;
            layers.push(computed);
        }
        Ok(Computed { logits: self.ends.logits(&x, wanted)?, layers })
    }
}

impl MambaNetwork {
    /// Returns the layer's output (len, D) for `x` (len, D), the last inputs of the convolution (K − 1, I), and the state (I,
    /// N).
    fn mix(&self, layer: &Layer, x: &Tensor, past: Option<LayerMemory>) -> candle_core::Result<(Tensor, LayerMemory)> {
        let Mamba { state_size, conv_kernel, .. } = self.config;
        let activation = self.config.hidden_act;
        let inner = self.config.inner();
        let rank = self.config.rank();
        let len = x.dim(0)?;
        let (before, mut state) = match past {
            Some(past) => (past.first, past.second),
            None => {
                let zeros = |rows, columns| Tensor::zeros((rows, columns), x.dtype(), x.device());
                (zeros(conv_kernel - 1, inner)?, zeros(inner, state_size)?)
            }
        };
        let projected = layer.input.apply(x)?; // (len, 2·I)
        let gate = projected.narrow(1, inner, inner)?.contiguous()?;
        let inputs = Tensor::cat(&[&before, &projected.narrow(1, 0, inner)?.contiguous()?], 0)?; // (K − 1 + len, I)
        let mut channels = inputs.narrow(0, 0, len)?.broadcast_mul(&layer.taps.narrow(0, 0, 1)?)?;
        for tap in 1..conv_kernel {
            channels = (channels + inputs.narrow(0, tap, len)?.broadcast_mul(&layer.taps.narrow(0, tap, 1)?)?)?;
        }
        if let Some(bias) = &layer.taps_bias {
            channels = channels.broadcast_add(bias)?;
        }
        let channels = activation.apply(&channels)?; // (len, I)
        let parameters = layer.parameters.apply(&channels)?; // (len, R + 2·N)
        let steps = softplus(&layer.step.apply(&parameters.narrow(1, 0, rank)?.contiguous()?)?)?; // (len, I)
        let inward = parameters.narrow(1, rank, state_size)?.contiguous()?; // B: (len, N)
        let outward = parameters.narrow(1, rank + state_size, state_size)?.contiguous()?; // C: (len, N)
        let driven = (&steps * &channels)?; // (len, I)
        let mut outputs = Vec::with_capacity(len);
        for position in 0..len {
            let column = |x: &Tensor| x.narrow(0, position, 1)?.reshape((inner, 1));
            let decay = layer.rates.broadcast_mul(&column(&steps)?)?.exp()?; // (I, N)
            let added = column(&driven)?.broadcast_mul(&inward.narrow(0, position, 1)?)?;
            state = ((decay * state)? + added)?;
            outputs.push(state.broadcast_mul(&outward.narrow(0, position, 1)?)?.sum(D::Minus1)?); // (I)
        }
        let scanned = (Tensor::stack(&outputs, 0)? + channels.broadcast_mul(&layer.skip)?)?; // (len, I)
        let mixed = layer.output.apply(&(scanned * activation.apply(&gate)?)?)?;
        let rest = inputs.narrow(0, len, conv_kernel - 1)?.copy()?;
        Ok((mixed, LayerMemory { first: rest, second: state }))
    }
}

/// Returns ln(1 + eˣ), without overflow.
fn softplus(x: &Tensor) -> candle_core::Result<Tensor> {
    let magnitude = x.abs()?.neg()?.exp()?;
    x.relu()? + (magnitude + 1.0)?.log()?
}
