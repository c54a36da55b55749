//! Hugging Face checkpoints, as transformers wrote them: golden logits, bad input, and the serving of tokens.

mod bad_input;
mod commands;
mod golden;
mod sequences;
mod served;
mod text;
mod verify;

use super::support::settings;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};
use tempfile::TempDir;
use weir::{decode::contract::Model, family::load::load};

/// The golden checkpoints, one for each architecture.
pub(super) const MODEL_TYPES: [&str; 6] = ["llama", "qwen2", "qwen3", "gemma2", "gpt_bigcode", "mamba"];

/// Returns the folder of a golden checkpoint.
pub(super) fn folder(model_type: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/hugging-face").join(model_type)
}

/// Loads a golden checkpoint.
fn model(model_type: &str) -> Arc<dyn Model> {
    load(&folder(model_type), &settings()).unwrap()
}

/// Models for the conformance suite.
pub(super) fn configurations() -> impl Iterator<Item = (String, Arc<dyn Model>)> {
    MODEL_TYPES.iter().map(|model_type| (format!("hugging-face {model_type}"), model(model_type)))
}

/// Copies a golden checkpoint, so that a test can change it.
pub(super) fn copied(model_type: &str) -> TempDir {
    let copy = TempDir::new().unwrap();
    for file in ["config.json", "generation_config.json", "tokenizer.json", "model.safetensors"] {
        fs::copy(folder(model_type).join(file), copy.path().join(file)).unwrap();
    }
    copy
}

/// Replaces the only occurrence of `from` in a file.
pub(super) fn edit(file: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(file).unwrap();
    assert_eq!(text.matches(from).count(), 1, "{from:?} in {}", file.display());
    fs::write(file, text.replace(from, to)).unwrap();
}
