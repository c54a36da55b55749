//! Layers and their attention: [`stack`] (causal, over cached keys; [`cross`], to an encoder's memory; [`mix`], the part that
//! reads the caches) and [`encoder`] (both ways; [`encoder_attention`], across a whole document). [`layer`] is what they share.

pub mod cross;
pub mod encoder;
pub mod encoder_attention;
pub mod layer;
pub(super) mod mix;
pub mod stack;
