//! Dynamic Token Pooling's hourglass (Nawrot et al. 2023, arXiv 2211.09761), with fixed pooling and the vanilla baseline.
//!
//! Read from PiotrNawrot/dynamic-pooling at commit 1e6f360d13dd: `hourglass.py` (stacks, boundary predictor) and
//! `shortening.py` (pooling, upsampling).
//!
//! pre stack → boundaries → pool → middle stack → upsample + residual → post stack → logits. Start with [`model`]:
//! the weights and that forward pass. [`config`] describes an architecture, `load` its tensors; [`state`] is one sequence,
//! [`work`] a thread's buffers; `gather` moves vectors between these two. [`ngrams`] adds to the embedding.

pub mod config;
mod gather;
pub(super) mod load;
pub mod model;
pub mod ngrams;
pub mod recent;
pub mod segment_ends;
pub mod state;
pub mod work;
