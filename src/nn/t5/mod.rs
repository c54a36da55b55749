//! The stack of T5 (Raffel et al. 2020, v1.0), made causal: norms by the root of the mean square before each part, no biases,
//! scores without a scale but with a learned bias for each bucket of distances, and, in a decoder, attention to a memory.
//!
//! Reading order: [`bias`] (distances), `attention` (rows over caches), [`stack`] (layers).

mod attention;
pub mod bias;
pub mod stack;
