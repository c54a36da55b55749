//! Parts that several families share: a stack's dimensions, tensors and loading, and helpers of steps and states.
//!
//! A blueprint lists its tensors with [`specs`] and checks its architecture with [`check`]; a model takes the tensors out of the
//! checkpoint with a [`Loader`](loader::Loader), by the same names.

pub mod check;
pub mod document;
pub mod encoder_hook;
pub mod generation;
pub mod loader;
pub mod specs;
pub mod step;

use crate::nn::{Activation, position::PositionKind};

/// Dimensions that the layers of a model's stacks share. D = width, I = heads · head_dim, F = feed_forward.
#[derive(Debug, Clone, Copy)]
pub struct StackShape {
    /// Width D.
    pub dim: usize,
    /// Attention heads.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Inner width F of the feed-forward.
    pub feed_forward: usize,
    /// Nonlinearity of the feed-forward.
    pub activation: Activation,
    /// Position scheme.
    pub position: PositionKind,
    /// True if there are norms inside the sub-layers.
    pub sub_norms: bool,
}

impl StackShape {
    /// Width I of all heads together.
    pub fn inner(&self) -> usize {
        self.heads * self.head_dim
    }
}
