//! One causal stack: LeX (Sun et al. 2023, arXiv 2212.10554) and its baselines, GPT-2 among them.
//!
//! Symbols are embedded, flow through one pre-norm stack whose position scheme and window the configuration names, and leave as
//! logits; nothing is pooled, so a row never waits. What a window has left behind is forgotten, so a stream of any length
//! takes the memory of a window. [`config`] is the blueprint, [`model`] the weights, [`step`] the steps, [`state`] what a
//! sequence remembers.

pub mod config;
pub mod model;
pub mod resolution;
pub mod state;
pub mod step;
