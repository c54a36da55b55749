//! The table of architectures. A new one is a file and a line.

use super::{architecture::ReadArchitecture, gemma2, gpt_bigcode, llama, mamba, qwen2, qwen3};

/// The architectures: `model_type` in `config.json`, and reader of its keys.
pub(super) const ARCHITECTURES: &[(&str, ReadArchitecture)] = &[
    ("llama", llama::read),
    ("qwen2", qwen2::read),
    ("qwen3", qwen3::read),
    ("gemma2", gemma2::read),
    ("gpt_bigcode", gpt_bigcode::read),
    ("mamba", mamba::read),
];

/// The values of `model_type` that weir computes.
pub(super) fn model_types() -> impl Iterator<Item = &'static str> {
    ARCHITECTURES.iter().map(|(name, _)| *name)
}
