//! What the models of [weir](https://docs.rs/weir) compute with: kernels, and the layers of models.
//!
//! `weir` exports these modules, and its documentation shows how the packages depend on each other.

pub mod error;
pub mod kernels;
pub mod nn;
pub mod sync;
