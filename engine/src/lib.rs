//! The engine of [weir](https://docs.rs/weir): texts, decoding, model families with their checkpoints, and the scheduler.
//!
//! `weir` exports these modules, and its documentation has examples.

pub mod decode;
pub mod engine;
pub mod family;
pub mod text;

pub use weir_core::{error, kernels};
use weir_core::{nn, sync};
