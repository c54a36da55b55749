//! Latent Segment Language Models: a causal encoder reads segments, and a decoder writes them one by one.
//!
//! Written from the paper (anonymous ACL submission), whose authors released no code: docs/checkpoints.md lists the decisions
//! where it is silent. The three stacks are T5's (Raffel et al. 2020, v1.0), checked against `T5Stack` of Hugging Face
//! transformers 4.33.3, `modeling_t5.py`.
//!
//! token encoder → boundary predictor → pool → context encoder → segment decoder, with cross-attention to the closed
//! segments. Start with [`model`]: the weights and that forward pass. [`config`] describes an architecture, `load` its tensors;
//! [`state`] is one sequence, [`work`] a thread's buffers; `gather` and `decode` move vectors between these two, for the encoders
//! and for the decoder.

pub mod config;
mod decode;
mod gather;
pub(super) mod load;
pub mod model;
pub mod state;
pub mod work;
