//! Checkpoints on disk: format `weir/1` (docs/checkpoints.md).
//!
//! Files may come from anywhere, so every number in them is checked against what the configuration asks for before memory
//! is set aside for it, and whatever is wrong is told with file, key, expected and found. Reading order: [`config`] (all but
//! the weights), [`header`] (what a safetensors file says it holds), [`shards`] (which files there are), [`reader`],
//! [`writer`].

pub mod config;
pub mod header;
pub mod json;
pub mod reader;
pub mod shards;
mod spec;
pub mod writer;

pub use config::{CONFIG_FILE, Config, Generation, VocabularyConfig, architecture};
pub use header::Dtype;
pub use reader::{Tensor, Weights, read_from, read_weights, read_weights_telling};
pub use shards::WEIGHTS_FILE;
pub use spec::{Init, TensorSpec};
pub use writer::{Writer, WrittenCheckpoint};
