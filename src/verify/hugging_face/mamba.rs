//! Mamba (Gu and Dao 2023, arXiv 2312.00752) in f64, with the recurrence as loops over channels and states.
//!
//! candle-transformers computes it only with 16 states and 4 taps, and rounds small time steps.

use crate::{
    error::Result,
    verify::{
        Given, Input, LengthLimit, Outputs, Reference,
        checkpoint::Checkpoint,
        tensors::{Nonlinearity, Tensors},
    },
};
use candle_core::{D, Result as CandleResult, Tensor};
use serde::Deserialize;

/// D = hidden width, I = inner width, N = `state_size`, R = rank of the time step, K = `conv_kernel`.
#[derive(Deserialize)]
struct Keys {
    num_hidden_layers: usize,
    state_size: usize,
    conv_kernel: usize,
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
    activation: Nonlinearity,
}

/// Reads the model. Fails if a file cannot be read.
pub(super) fn read(checkpoint: Checkpoint) -> Result<Box<dyn Reference>> {
    let keys: Keys = checkpoint.architecture()?;
    let activation = match keys.hidden_act.as_deref().unwrap_or("silu") {
        "silu" | "swish" => Nonlinearity::Silu,
        "gelu" => Nonlinearity::Gelu,
        "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" => Nonlinearity::GeluTanh,
        "relu" => Nonlinearity::Relu,
        other => {
            return Err(checkpoint.error("hidden_act", "silu, gelu, gelu_pytorch_tanh or relu".into(), other.into()));
        }
    };
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
        Ok(Outputs { logits: logits.flatten_all()?.to_vec1()?, smallest_gap: f64::INFINITY, ..Outputs::default() })
    }
}

impl Mamba {
    /// Mixes one text: (len, D) → (len, D).
    fn mix(&self, name: &str, x: &Tensor) -> CandleResult<Tensor> {
        let states = self.keys.state_size;
        let projected = self.project(&format!("{name}.in_proj"), x)?; // (len, 2·I)
        let inner = projected.dim(1)? / 2;
        let gate = self.activation.apply(&projected.narrow(1, inner, inner)?.contiguous()?)?;
        let channels = self.activation.apply(&self.convolve(name, &projected.narrow(1, 0, inner)?)?)?; // (len, I)
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

    /// Convolves each channel with its taps; the last tap belongs to the current position: (len, I) → (len, I).
    fn convolve(&self, name: &str, x: &Tensor) -> CandleResult<Tensor> {
        let taps = self.tensors.get(&format!("{name}.conv1d.weight"))?.squeeze(1)?; // (I, K)
        let width = self.keys.conv_kernel;
        let padded = x.pad_with_zeros(0, width - 1, 0)?; // (K − 1 + len, I)
        let windows: Vec<Tensor> =
            (0..width).map(|tap| padded.narrow(0, tap, x.dim(0)?)).collect::<CandleResult<_>>()?;
        let windows = Tensor::stack(&windows, D::Minus1)?; // (len, I, K)
        let sum = windows.broadcast_mul(&taps)?.sum(D::Minus1)?;
        match self.keys.use_conv_bias.unwrap_or(true) {
            true => sum.broadcast_add(self.tensors.get(&format!("{name}.conv1d.bias"))?),
            false => Ok(sum),
        }
    }
}

/// Returns ln(1 + eˣ) for each number.
fn softplus(x: &Tensor) -> CandleResult<Tensor> {
    // max(x, 0) + ln(1 + e^−|x|)
    x.maximum(0.0)? + x.abs()?.neg()?.exp()?.affine(1.0, 1.0)?.log()?
}
