//! One causal stack: LeX (Sun et al. 2023, arXiv 2212.10554) and its baselines, GPT-2 among them.
//!
//! Read from microsoft/torchscale at commit 4d1e0e8: `xpos_relative_position.py` (xPos). Blockwise causal attention is `block_size`
//! in `multihead_attention.py` and `decoder.py` of the first author's fork, sunyt32/torchscale at commit 4ad9dfd. GPT-2 is
//! `GPT2LMHeadModel` of Hugging Face transformers 4.33.3, `modeling_gpt2.py`.
//!
//! embed → pre-norm stack → norm → logits. Nothing is pooled, so a row never waits. The configuration names position scheme
//! and window; keys that the window has left behind are dropped, so a stream of any length takes the memory of a window.
//! [`config`] describes an architecture, `load` its tensors, [`model`] has the weights and the forward pass, [`state`] is one
//! sequence, [`work`] a thread's buffers; [`resolution`] measures a decoder's attention.

pub mod config;
pub(super) mod load;
pub mod model;
pub mod resolution;
pub mod state;
pub mod work;
