//! The table of model families: a new family is a file and a line here.

use crate::checkpoint::{Config, require};
#[cfg(feature = "candle")]
use crate::family::hugging_face;
use crate::family::{Blueprint, Reader, blt, decoder, hnet, hourglass, lslm, pyramidion, t5};
use std::path::Path;
use weir_kernels::error::{Error, Result};

/// The families: name in `config.json`, and reader of its architecture.
pub const FAMILIES: &[(&str, Reader)] = &[
    ("hourglass", hourglass::read),
    ("decoder", decoder::read),
    ("lslm", lslm::read),
    ("pyramidion", pyramidion::read),
    ("t5", t5::read),
    ("hnet", hnet::read),
    ("blt", blt::read),
    #[cfg(feature = "candle")]
    ("hugging-face", hugging_face::read),
];

/// Reads the architecture of a checkpoint. Fails if the family is unknown or rejects it.
pub fn blueprint(config: &Config, file: &Path) -> Result<Box<dyn Blueprint>> {
    match FAMILIES.iter().find(|(name, _)| *name == config.family) {
        Some((_, read)) => {
            let blueprint = read(config, file)?;
            if !blueprint.reads_documents() {
                let vocabulary = config.vocabulary(file)?;
                let fits = !vocabulary.is_subword() || blueprint.reads_tokens();
                let expected = "`symbols` or `bytes`: this family's symbols are characters or bytes";
                require(fits, file, "vocabulary", expected, "pieces of a tokenizer")?;
                let expected = "no `size` next to `bytes`: every id of this family's vocabulary has a meaning";
                require(!vocabulary.is_sparse(), file, "vocabulary", expected, "ids without text")?;
                let expected = "nothing: this family writes no summaries";
                require(config.generation.is_none(), file, "generation", expected, "generation options")?;
            }
            Ok(blueprint)
        }
        None => {
            let names: Vec<_> = FAMILIES.iter().map(|(name, _)| *name).collect();
            Err(Error::checkpoint(file, "family", format!("one of {}", names.join(", ")), config.family.as_str()))
        }
    }
}
