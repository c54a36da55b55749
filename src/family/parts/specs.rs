//! The tensors of layers and position schemes. Random ones are the official initialisation: normal with deviation 0.02;
//! LayerNorm weights around one; biases zero.

use super::StackShape;
use crate::{
    error::{Error, Result},
    family::{Init, TensorSpec, checkpoint::Config},
    nn::position::{PositionKind, absolute, alibi, transformer_xl},
};
use std::path::Path;

/// A matrix, or a table of vectors.
pub fn matrix(name: String, shape: Vec<usize>) -> TensorSpec {
    TensorSpec { name, shape, init: Init::Normal(0.0, 0.02), trained: true }
}

/// A matrix with its bias.
pub fn linear(out: &mut Vec<TensorSpec>, name: &str, outputs: usize, inputs: usize) {
    out.push(matrix(format!("{name}.weight"), vec![outputs, inputs]));
    let (name, shape) = (format!("{name}.bias"), vec![outputs]);
    out.push(TensorSpec { name, shape, init: Init::Normal(0.0, 0.0), trained: true });
}

/// A LayerNorm.
pub fn norm(out: &mut Vec<TensorSpec>, name: &str, dim: usize) {
    for (part, init) in [("weight", Init::Normal(1.0, 0.02)), ("bias", Init::Normal(0.0, 0.0))] {
        out.push(TensorSpec { name: format!("{name}.{part}"), shape: vec![dim], init, trained: true });
    }
}

/// Numbers that follow from the shape.
fn given(name: &str, values: Vec<f32>) -> TensorSpec {
    let (name, shape) = (name.to_owned(), vec![values.len()]);
    TensorSpec { name, shape, init: Init::Values(values), trained: false }
}

/// Refuses a training window with more symbols than positions were learned for.
///
/// # Errors
/// `training_length`, with the bound.
pub fn trained_within(position: PositionKind, config: &Config, file: &Path) -> Result<()> {
    match position {
        PositionKind::Learned { positions } if config.training_length > positions => {
            let expected = format!("at most {positions} (position.learned.positions): no more positions were learned");
            Err(Error::checkpoint(file, "training_length", expected, config.training_length.to_string()))
        }
        _ => Ok(()),
    }
}

/// What all stacks share of a position scheme.
pub fn position(out: &mut Vec<TensorSpec>, shape: &StackShape) {
    let StackShape { dim, heads, head_dim, position, .. } = *shape;
    match position {
        PositionKind::TransformerXl => {
            out.push(given("position.inverse_frequency", transformer_xl::inverse_frequencies(dim)));
            for name in ["position.content_bias", "position.distance_bias"] {
                out.push(matrix(name.into(), vec![heads, head_dim]));
            }
        }
        PositionKind::Alibi => out.push(given("position.slopes", alibi::slopes(heads))),
        PositionKind::Buckets { count, .. } => out.push(matrix("position.bias".into(), vec![count, heads])),
        PositionKind::Sinusoidal => out.push(given("position.frequency", absolute::frequencies(dim))),
        PositionKind::Learned { positions } => out.push(matrix("position.table".into(), vec![positions, dim])),
        PositionKind::Rotary | PositionKind::Xpos { .. } | PositionKind::None => {}
    }
}

/// One layer.
pub fn layer(out: &mut Vec<TensorSpec>, prefix: &str, shape: &StackShape) {
    let StackShape { dim, feed_forward: wide, .. } = *shape;
    let inner = shape.inner();
    let at = |name: &str| format!("{prefix}.{name}");
    linear(out, &at("attention.qkv"), 3 * inner, dim);
    if shape.position == PositionKind::TransformerXl {
        out.push(matrix(at("attention.distance.weight"), vec![inner, dim]));
    }
    linear(out, &at("attention.output"), dim, inner);
    norm(out, &at("attention.norm"), dim);
    linear(out, &at("feed_forward.up"), wide, dim);
    linear(out, &at("feed_forward.down"), dim, wide);
    norm(out, &at("feed_forward.norm"), dim);
    if shape.sub_norms {
        norm(out, &at("attention.inner_norm"), inner);
        norm(out, &at("feed_forward.inner_norm"), wide);
    }
}

/// The most numbers all tensors may have together: 64 GiB of f32.
pub const MAX_PARAMETERS: usize = 1 << 34;

/// An upper bound on the numbers of so many layers, if it fits.
pub fn layer_numbers(shape: &StackShape, layers: usize) -> Option<usize> {
    let inner = shape.heads.checked_mul(shape.head_dim)?;
    let width = shape.dim.max(1);
    // (3 + 1 + 1) projections of attention, two of the feed-forward; biases and norms are below one more D a unit
    let layer = inner.checked_mul(5)?.checked_add(shape.feed_forward.checked_mul(2)?)?.checked_mul(width + 1)?;
    let norms = inner.checked_mul(2)?.checked_add(shape.feed_forward.checked_mul(2)?)?.checked_add(8 * width)?;
    layer.checked_add(norms)?.checked_mul(layers)
}

/// An upper bound on the numbers of a position scheme's shared tensors, if it fits.
pub fn position_numbers(shape: &StackShape) -> Option<usize> {
    match shape.position {
        PositionKind::Learned { positions } => positions.checked_mul(shape.dim),
        PositionKind::Buckets { count, .. } => count.checked_mul(shape.heads),
        _ => shape.heads.checked_mul(shape.head_dim)?.checked_mul(2)?.checked_add(shape.dim),
    }
}
