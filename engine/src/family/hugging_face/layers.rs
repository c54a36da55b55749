//! The parts of all architectures: tensors of a checkpoint on the device, products, norms and activations.

use crate::{
    error::{Error, Result},
    family::checkpoint::Weights,
};
use candle_core::{Device, Tensor};
use serde::Deserialize;

/// The tensors of a checkpoint, which are moved to a device one by one.
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

/// Returns the error for a failure of candle.
pub(super) fn failed(error: candle_core::Error) -> Error {
    Error::Internal(format!("candle: {error}"))
}

/// A product with a matrix.
pub(super) struct Projection {
    /// (outputs, inputs)
    pub(super) weight: Tensor,
    /// (outputs)
    pub(super) bias: Option<Tensor>,
}

impl Projection {
    /// Returns (rows, outputs) for `x` (rows, inputs).
    pub(super) fn apply(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let product = x.matmul(&self.weight.t()?)?;
        match &self.bias {
            Some(bias) => product.broadcast_add(bias),
            None => Ok(product),
        }
    }
}

/// A normalisation over the last dimension.
pub(super) struct Norm {
    /// (dim)
    pub(super) weight: Tensor,
    /// (dim) of LayerNorm; none for RMSNorm.
    pub(super) bias: Option<Tensor>,
    pub(super) eps: f64,
}

impl Norm {
    /// Normalises each vector of `x`, whose last dimension is contiguous.
    pub(super) fn apply(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        match &self.bias {
            Some(bias) => candle_nn::ops::layer_norm(x, &self.weight, bias, self.eps as f32),
            None => candle_nn::ops::rms_norm(x, &self.weight, self.eps as f32),
        }
    }
}

/// A nonlinearity, by its name in `config.json`.
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

/// Returns the last `wanted` rows of `x` (rows, dim); none if none are wanted.
pub(super) fn last_rows(x: &Tensor, wanted: usize) -> candle_core::Result<Option<Tensor>> {
    match wanted {
        0 => Ok(None),
        _ => x.narrow(0, x.dim(0)? - wanted, wanted)?.contiguous().map(Some),
    }
}

/// Limits `x` smoothly to ±`cap`.
pub(super) fn soft_cap(x: Tensor, cap: Option<f64>) -> candle_core::Result<Tensor> {
    match cap {
        Some(cap) => (x / cap)?.tanh()? * cap,
        None => Ok(x),
    }
}
