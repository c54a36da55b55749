//! Qwen3 (Yang et al. 2025, arXiv 2505.09388): Llama's layers with a norm on each head's queries and keys.
//!
//! Read from `modeling_qwen3.py` of transformers 5.23.0.

use super::{architecture::Architecture, keys::Keys, llama::LlamaKeys, qwen2::windows, transformer::Transformer};
use crate::error::Result;

/// Width of a head if `config.json` states none.
const DEFAULT_HEAD_DIM: usize = 128;

pub(super) fn read(keys: &Keys<'_>) -> Result<Box<dyn Architecture>> {
    let config: LlamaKeys = keys.parse()?;
    let plain = config.transformer(keys, "qwen3", Some(DEFAULT_HEAD_DIM))?;
    let model = Transformer {
        windows: windows(&config, keys)?,
        qkv_bias: config.attention_bias,
        output_bias: config.attention_bias,
        head_norms: true,
        ..plain
    };
    model.checked(*keys)
}
