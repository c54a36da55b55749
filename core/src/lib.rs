//! Kernels and model layers of [weir](https://docs.rs/weir), an inference server.
//!
//! `weir` exports these modules except [`sync`], and its documentation shows how the packages depend on each other.

pub mod error;
pub mod kernels;
pub mod nn;
pub mod sync;
