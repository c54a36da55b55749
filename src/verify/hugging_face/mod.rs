//! Hugging Face checkpoints: the transformers of candle-transformers, whose authors are not weir's, and a plain pass of Mamba.

mod keys;
mod mamba;
mod transformers;

use super::{
    Reference,
    checkpoint::{Checkpoint, ReferenceReader},
};
use crate::error::Result;
use serde::Deserialize;

/// The architectures: `model_type` in `config.json`, and reader of its checkpoint.
const ARCHITECTURES: &[(&str, ReferenceReader)] = &[
    ("llama", transformers::llama),
    ("qwen2", transformers::qwen2),
    ("qwen3", transformers::qwen3),
    ("gemma2", transformers::gemma2),
    ("gpt_bigcode", transformers::gpt_bigcode),
    ("mamba", mamba::read),
];

/// Reads the model. Fails if a file cannot be read, or if the configuration has a value that the reference does not compute.
pub(super) fn read(checkpoint: Checkpoint) -> Result<Box<dyn Reference>> {
    #[derive(Deserialize)]
    struct ModelType {
        model_type: String,
    }
    let ModelType { model_type } = checkpoint.architecture()?;
    match ARCHITECTURES.iter().find(|(name, _)| *name == model_type) {
        Some((_, read)) => read(checkpoint),
        None => {
            let known: Vec<_> = ARCHITECTURES.iter().map(|(name, _)| *name).collect();
            Err(checkpoint.error("model_type", format!("one of {}", known.join(", ")), model_type))
        }
    }
}
