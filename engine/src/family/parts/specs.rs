//! Tensors of layers and position schemes, with the official initialisation: weights normal with deviation 0.02, LayerNorm
//! weights around one, biases zero.

use super::StackShape;
use crate::{
    error::{Error, Result},
    family::checkpoint::{Config, Init, TensorSpec},
    nn::position::{PositionKind, absolute, alibi, buckets::Buckets, transformer_xl},
};
use std::path::Path;

/// Returns the spec of a matrix, or a table of vectors.
pub fn matrix(name: impl Into<String>, shape: Vec<usize>) -> TensorSpec {
    TensorSpec::normal(name, shape, 0.0, 0.02)
}

/// Appends a matrix with its bias.
pub fn linear(out: &mut Vec<TensorSpec>, name: &str, outputs: usize, inputs: usize) {
    out.push(matrix(format!("{name}.weight"), vec![outputs, inputs]));
    out.push(TensorSpec::zeros(format!("{name}.bias"), vec![outputs]));
}

/// Appends a LayerNorm.
pub fn norm(out: &mut Vec<TensorSpec>, name: &str, dim: usize) {
    out.push(TensorSpec::normal(format!("{name}.weight"), vec![dim], 1.0, 0.02));
    out.push(TensorSpec::zeros(format!("{name}.bias"), vec![dim]));
}

/// Returns the spec of numbers that follow from the architecture.
fn constant(name: &str, values: Vec<f32>) -> TensorSpec {
    TensorSpec { name: name.to_owned(), shape: vec![values.len()], init: Init::Values(values), trained: false }
}

/// Rejects a training window that is longer than the table of learned positions.
pub fn trained_within(position: PositionKind, config: &Config, file: &Path) -> Result<()> {
    match position {
        PositionKind::Learned { positions } if config.training_length > positions => {
            let expected = format!("at most {positions} (position.learned.positions): no more positions were learned");
            Err(Error::checkpoint(file, "training_length", expected, config.training_length.to_string()))
        }
        _ => Ok(()),
    }
}

/// Appends the tensors of a position scheme that all stacks share.
pub fn position(out: &mut Vec<TensorSpec>, shape: &StackShape) {
    let StackShape { dim, heads, head_dim, position, .. } = *shape;
    match position {
        PositionKind::TransformerXl => {
            out.push(constant("position.inverse_frequency", transformer_xl::inverse_frequencies(dim)));
            for name in ["position.content_bias", "position.distance_bias"] {
                out.push(matrix(name, vec![heads, head_dim]));
            }
        }
        PositionKind::Alibi => out.push(constant("position.slopes", alibi::slopes(heads))),
        PositionKind::Buckets { count, .. } => out.push(matrix("position.bias", vec![count, heads])),
        PositionKind::Sinusoidal => out.push(constant("position.frequency", absolute::frequencies(dim))),
        PositionKind::Learned { positions } => out.push(matrix("position.table", vec![positions, dim])),
        PositionKind::Rotary | PositionKind::Xpos { .. } | PositionKind::None => {}
    }
}

/// Appends the tensors of one layer, whose names begin with `prefix`.
pub fn layer(out: &mut Vec<TensorSpec>, prefix: &str, shape: &StackShape) {
    let StackShape { dim, feed_forward, .. } = *shape;
    let inner = shape.inner();
    let key = |name: &str| format!("{prefix}.{name}");
    linear(out, &key("attention.qkv"), 3 * inner, dim);
    if shape.position == PositionKind::TransformerXl {
        out.push(matrix(key("attention.distance.weight"), vec![inner, dim]));
    }
    linear(out, &key("attention.output"), dim, inner);
    norm(out, &key("attention.norm"), dim);
    linear(out, &key("feed_forward.up"), feed_forward, dim);
    linear(out, &key("feed_forward.down"), dim, feed_forward);
    norm(out, &key("feed_forward.norm"), dim);
    if shape.sub_norms {
        norm(out, &key("attention.inner_norm"), inner);
        norm(out, &key("feed_forward.inner_norm"), feed_forward);
    }
}

/// Maximum numbers in all tensors together: 64 GiB of f32.
pub const MAX_PARAMETERS: usize = 1 << 34;

/// An upper bound on the numbers in `layers` layers; `None` if it overflows.
pub fn layer_numbers(shape: &StackShape, layers: usize) -> Option<usize> {
    let inner = shape.heads.checked_mul(shape.head_dim)?;
    let width = shape.dim.max(1);
    // attention has 3 + 1 + 1 projections, the feed-forward two; biases and norms are below one more D a unit
    let layer = inner.checked_mul(5)?.checked_add(shape.feed_forward.checked_mul(2)?)?.checked_mul(width + 1)?;
    let norms = inner.checked_mul(2)?.checked_add(shape.feed_forward.checked_mul(2)?)?.checked_add(8 * width)?;
    layer.checked_add(norms)?.checked_mul(layers)
}

/// An upper bound on the numbers in a position scheme's shared tensors; `None` if it overflows.
pub fn position_numbers(shape: &StackShape) -> Option<usize> {
    match shape.position {
        PositionKind::Learned { positions } => positions.checked_mul(shape.dim),
        PositionKind::Buckets { count, .. } => count.checked_mul(shape.heads),
        _ => shape.heads.checked_mul(shape.head_dim)?.checked_mul(2)?.checked_add(shape.dim),
    }
}

/// The numbers in the tables that a position scheme computes when the model is loaded, and that all stacks share; `usize::MAX` if
/// that overflows.
pub fn table_numbers(shape: &StackShape) -> usize {
    match shape.position {
        PositionKind::Buckets { count, max_distance } => {
            Buckets { count, max_distance, bidirectional: false }.table_numbers(shape.heads)
        }
        _ => 0,
    }
}
