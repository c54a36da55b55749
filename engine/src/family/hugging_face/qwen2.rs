//! Qwen2 and Qwen2.5 (Yang et al. 2024, arXiv 2407.10671): Llama's layers with biases on queries, keys and values.
//!
//! Read from `modeling_qwen2.py` and `configuration_qwen2.py` of transformers 5.23.0.

use super::{architecture::Architecture, keys::Keys, llama::LlamaKeys, transformer::Transformer};
use crate::error::Result;

/// The first layer with a window if the keys state none.
const FIRST_WINDOW: usize = 28;

/// Returns each layer's window. transformers 5 lists the layers; transformers 4 stated the first layer with a window. Fails if the
/// list is invalid.
pub(super) fn windows(config: &LlamaKeys, keys: &Keys<'_>) -> Result<Vec<Option<usize>>> {
    let window = config.sliding_window.filter(|_| config.use_sliding_window);
    match &config.layer_types {
        Some(types) => layer_windows(keys, types, config.num_hidden_layers, window),
        None => {
            let first = config.max_window_layers.unwrap_or(FIRST_WINDOW);
            selected_windows(keys, config.num_hidden_layers, window, |layer| layer >= first)
        }
    }
}

/// Returns the window of each layer that `has_window` selects. Fails if the window is 0.
pub(super) fn selected_windows(
    keys: &Keys<'_>,
    layers: usize,
    window: Option<usize>,
    has_window: impl Fn(usize) -> bool,
) -> Result<Vec<Option<usize>>> {
    if window == Some(0) {
        return keys.fail("sliding_window", "at least 1, or null", 0);
    }
    Ok((0..layers).map(|layer| window.filter(|_| has_window(layer))).collect())
}

/// Returns each layer's window from `layer_types`. Fails if the list has another length, or an unknown type.
pub(super) fn layer_windows(
    keys: &Keys<'_>,
    types: &[String],
    layers: usize,
    window: Option<usize>,
) -> Result<Vec<Option<usize>>> {
    if types.len() != layers {
        return keys.fail("layer_types", format!("{layers} types, one for each layer"), types.len());
    }
    let read = |(index, kind): (usize, &String)| match (kind.as_str(), window) {
        ("full_attention", _) => Ok(None),
        ("sliding_attention", Some(window)) if window > 0 => Ok(Some(window)),
        ("sliding_attention", found) => {
            let found = found.map_or("nothing".into(), |found| found.to_string());
            keys.fail("sliding_window", "at least 1, for layers of type sliding_attention", found)
        }
        (other, _) => keys.fail(format!("layer_types[{index}]"), "full_attention or sliding_attention", other),
    };
    types.iter().enumerate().map(read).collect()
}

pub(super) fn read(keys: &Keys<'_>) -> Result<Box<dyn Architecture>> {
    let config: LlamaKeys = keys.parse()?;
    let plain = config.transformer(keys, "qwen2", None)?;
    Transformer { windows: windows(&config, keys)?, qkv_bias: true, ..plain }.checked(*keys)
}
