//! What several families have in their checkpoints: the tensors of layers and position schemes, and their loading.
//!
//! A blueprint lists its tensors with [`specs`]; a model takes them out of the checkpoint with a [`Loader`](loader::Loader),
//! by the same names. [`step`] is of steps.

pub mod loader;
pub mod specs;
pub mod step;

use crate::nn::{Activation, position::PositionKind};

/// What the layers of a model's stacks have in common. D = width, I = heads · head_dim, F = feed_forward.
#[derive(Debug, Clone, Copy)]
pub struct StackShape {
    /// D.
    pub dim: usize,
    /// Heads.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// F.
    pub feed_forward: usize,
    /// The feed-forwards' nonlinearity.
    pub activation: Activation,
    /// The position scheme.
    pub position: PositionKind,
    /// Whether there are norms inside the sub-layers.
    pub sub_norms: bool,
}

impl StackShape {
    /// I.
    pub fn inner(&self) -> usize {
        self.heads * self.head_dim
    }
}
