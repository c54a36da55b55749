//! Transformer layers and their attention.
//!
//! [`stack`] runs decoder layers over cached keys (`self_attention`, through `mix`) and attends to a memory ([`cross`]). [`encoder`] runs layers
//! that look both ways, within blocks or across a document ([`encoder_attention`]). [`layer`] holds what they share.

pub mod cross;
pub mod encoder;
pub mod encoder_attention;
pub mod layer;
pub(super) mod mix;
pub(super) mod self_attention;
pub mod stack;
