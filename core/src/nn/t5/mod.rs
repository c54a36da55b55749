//! The layers of T5 (Raffel et al. 2020, v1.0 and v1.1), in encoders and decoders.
//!
//! x += attention(rms(x)); in a decoder x += attention(rms(x), memory); x += feed-forward(rms(x)); one more norm after the last
//! layer. Norms divide by the root of the mean square, there are no biases, and scores are unscaled with a learned number for
//! each bucket of distances.
//!
//! [`layer`] holds what all stacks share. [`stack`] is causal and caches its keys: decoders, and encoders that were made causal.
//! [`encoder`] looks both ways.

pub mod encoder;
pub mod layer;
pub mod stack;

pub use layer::T5Layer;
pub use stack::{T5Memory, T5Stack, T5Work};
