//! Latent Segment Language Models: segments are read by a causal encoder and written, one by one, by a decoder.
//!
//! Text flows through the token encoder, whose vectors tell the boundary predictor where given text ends a segment and are
//! pooled into one vector a segment; those flow through the context encoder, whose outputs are the memory of the segment
//! decoder, which writes each segment from its own beginning and ends it with a mark. Decisions where the paper is silent are
//! those that docs/checkpoints.md tells of.
//!
//! [`config`] is the blueprint, [`model`] the weights, [`state`] what a sequence remembers, [`step`] the symbol and the segment
//! step (the two encoders), `write` the finish step (the decoder).

pub mod config;
mod load;
pub mod model;
pub mod state;
pub mod step;
mod write;
