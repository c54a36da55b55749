//! Checkpoints on disk: format `weir/1` (docs/checkpoints.md).
//!
//! Files may come from anywhere, so every number in them is checked against the configuration before memory is allocated for
//! it. An error names file, key, expected and actual value. Reading order: [`config`] (all but the weights), `spec` (the
//! tensors that there must be), [`header`] (of a safetensors file), [`shards`] (the files of weights), [`reader`], [`writer`].

pub mod config;
pub mod header;
pub mod json;
pub mod reader;
pub mod shards;
mod spec;
pub mod writer;

pub use config::{CONFIG_FILE, Config, Generation, VocabularyConfig, architecture};
pub use header::Dtype;
pub use reader::{Tensor, Weights, read_from, read_weights, read_weights_with_progress};
pub use shards::WEIGHTS_FILE;
pub use spec::{Init, TensorSpec};
pub use writer::{Writer, WrittenCheckpoint};
