//! Checkpoints of Latent Segment Language Models. The authors released no code, so the source is the layout of the paper's parts
//! in Hugging Face's T5: a folder with `config.json` (`model_type` "lslm") and `model.safetensors`. The paper's baseline is
//! Hugging Face's GPT-2 (`model_type` "gpt2") with the same vocabulary.

mod arguments;
mod names;

use super::{
    converted::{Converted, read_config},
    gpt2,
    vocabulary::SpecialVocabulary,
};
use crate::{
    error::Result,
    family::{
        checkpoint::{
            CONFIG_FILE, Weights,
            json::{UniqueMap, parse},
            read_weights_with_progress,
        },
        load::blueprint,
    },
};
use arguments::Arguments;
use serde::de::IgnoredAny;
use std::path::Path;

/// Reads a folder in that layout, or GPT-2's. Fails if arguments are missing, unknown, out of bounds or of another
/// architecture, or if tensors are missing, superfluous or of another shape.
pub fn read(dir: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    let file = dir.join(CONFIG_FILE);
    let text = read_config(&file)?;
    if gpt2::is_gpt2(&text) {
        return gpt2::read(dir, progress);
    }
    let UniqueMap(keys): UniqueMap<IgnoredAny> = parse(&text, &file, "")?;
    arguments::check_keys(keys.keys().map(String::as_str), &file)?;
    let arguments: Arguments = parse(&text, &file, "")?;
    let vocabulary: SpecialVocabulary = parse(&text, &file, "")?;
    let config = arguments.config(&vocabulary, &file)?;
    let specs = blueprint(&config, &file).map_err(arguments::in_official_terms)?.tensors();
    let official: Vec<_> = specs.iter().map(names::official).collect();
    let (mut tensors, _) = read_weights_with_progress(dir, &official, progress)?;
    let weights = Weights::collect(specs, |spec| tensors.take(&names::official(spec).name))?;
    Ok(Converted { config, weights })
}
