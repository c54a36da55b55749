//! The Mamba-2 mixer (Dao & Gu 2024) in its quadratic form: every output is a weighted sum over all earlier positions, without a
//! recurrent state. Used by [`hnet`](super::hnet).

use super::tensors::{Tensors, head_of, products};
use candle_core::{Device, Result as CandleResult, Tensor};

/// Width of a head.
const HEAD: usize = 64;

/// One mixer. E = inner width, N = `state_dim`, H = E / 64 heads.
pub(super) struct Mamba2<'a> {
    pub(super) tensors: &'a Tensors,
    /// Prefix of its tensors' names.
    pub(super) name: &'a str,
    /// E.
    pub(super) inner: usize,
    pub(super) state_dim: usize,
    pub(super) norm_eps: f64,
}

impl Mamba2<'_> {
    /// Mixes one text: (len, D) → (len, D).
    pub(super) fn forward(&self, x: &Tensor) -> CandleResult<Tensor> {
        let Self { tensors, name, inner, state_dim, norm_eps } = *self;
        let heads = inner / HEAD;
        let channels = inner + 2 * state_dim;
        let gate = tensors.matrix(&format!("{name}.gate.weight"), x)?; // (len, E)
        let projected = tensors.matrix(&format!("{name}.input.weight"), x)?; // (len, E + 2·N + H)
        let mixed = self.convolve(&projected.narrow(1, 0, channels)?)?.silu()?; // (len, E + 2·N)
        let inputs = mixed.narrow(1, inner, state_dim)?.contiguous()?; // B: (len, N)
        let outputs = mixed.narrow(1, inner + state_dim, state_dim)?.contiguous()?; // C: (len, N)
        let similarities = products(&outputs, &inputs)?; // (len, len)
        let raw = projected.narrow(1, channels, heads)?;
        let steps = softplus(&raw.broadcast_add(tensors.get(&format!("{name}.step_bias"))?)?)?; // Δ: (len, H)
        let rates = tensors.get(&format!("{name}.log_rate"))?.exp()?; // −A: (H)
        let skip: Vec<f64> = tensors.get(&format!("{name}.skip"))?.to_vec1()?;
        let decay: Vec<Vec<f64>> = steps.broadcast_mul(&rates)?.t()?.to_vec2()?; // −Δ·A: (H, len)
        let mut all = Vec::with_capacity(heads);
        for (head, (decay, skip)) in decay.iter().zip(skip).enumerate() {
            let x = head_of(&mixed, head, HEAD)?; // (len, 64)
            let weights = (decays(decay)? * &similarities)?; // (len, len)
            let scaled = x.broadcast_mul(&steps.narrow(1, head, 1)?)?;
            all.push((weights.matmul(&scaled)? + (x * skip)?)?);
        }
        let gated = (Tensor::cat(&all, 1)? * gate.silu()?)?; // (len, E)
        let normed = tensors.rms_norm(&format!("{name}.norm"), &gated, norm_eps)?;
        tensors.matrix(&format!("{name}.output.weight"), &normed) // (len, D)
    }

    /// Convolves each channel with its taps; the last tap belongs to the current position: (len, channels) → (len, channels).
    fn convolve(&self, x: &Tensor) -> CandleResult<Tensor> {
        let taps = self.tensors.get(&format!("{}.convolution.weight", self.name))?; // (W, channels)
        let width = taps.dim(0)?;
        let len = x.dim(0)?;
        let padded = x.pad_with_zeros(0, width - 1, 0)?; // (W − 1 + len, channels)
        let mut sum = x.zeros_like()?.broadcast_add(self.tensors.get(&format!("{}.convolution.bias", self.name))?)?;
        for tap in 0..width {
            sum = (sum + padded.narrow(0, tap, len)?.broadcast_mul(&taps.narrow(0, tap, 1)?)?)?;
        }
        Ok(sum)
    }
}

/// Returns the factor by which what enters at position j has decayed at position i, exp(−Σ decay over j < k ≤ i), and 0 for j > i:
/// (len, len).
fn decays(decay: &[f64]) -> CandleResult<Tensor> {
    let len = decay.len();
    let mut numbers = vec![0.0; len * len];
    for j in 0..len {
        let mut sum = 0.0;
        for i in j..len {
            if i > j {
                sum += decay[i];
            }
            numbers[i * len + j] = f64::exp(-sum);
        }
    }
    Tensor::from_vec(numbers, (len, len), &Device::Cpu)
}

/// Returns ln(1 + e^x) for each number, without overflow.
fn softplus(x: &Tensor) -> CandleResult<Tensor> {
    x.relu()? + x.abs()?.neg()?.exp()?.affine(1.0, 1.0)?.log()?
}
