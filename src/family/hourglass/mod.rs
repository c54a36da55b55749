//! Dynamic Token Pooling's hourglass (Nawrot et al. 2023, arXiv 2211.09761), fixed pooling and vanilla included.
//!
//! pre stack → boundaries → pool → middle stack → upsample + residual → post stack → logits. [`config`] is the blueprint,
//! [`model`] the weights, [`step`] the three steps (`upper` what lies above the pre stack), [`state`] what a sequence remembers.

pub mod config;
pub mod ends;
pub mod model;
pub mod state;
pub mod step;
mod upper;
