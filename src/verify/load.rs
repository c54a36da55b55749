//! The table of families, and the reading of a checkpoint.

use super::{Reference, decoder, hourglass, lslm, pyramidion, tensors::Tensors};
use crate::{
    error::{Error, Result},
    family::checkpoint::{self, CONFIG_FILE, Config},
    text::Vocabulary,
};
use serde::de::DeserializeOwned;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Reads a family's checkpoint.
pub type ReferenceReader = fn(Checkpoint) -> Result<Box<dyn Reference>>;

/// The families: name in `config.json`, and reader of its checkpoint.
pub const FAMILIES: &[(&str, ReferenceReader)] = &[
    ("hourglass", hourglass::read),
    ("decoder", decoder::read),
    ("lslm", lslm::read),
    ("pyramidion", pyramidion::read),
];

/// A checkpoint's folder and its configuration.
pub struct Checkpoint {
    pub(super) dir: PathBuf,
    config: Config,
}

impl Checkpoint {
    /// Parses the family's own part of the configuration. Fails if it does not have the family's keys.
    pub(super) fn architecture<T: DeserializeOwned>(&self) -> Result<T> {
        checkpoint::architecture(&self.config, &self.file())
    }

    /// Returns the vocabulary. Fails if it is invalid.
    pub(super) fn vocabulary(&self) -> Result<Arc<Vocabulary>> {
        self.config.vocabulary(&self.file())
    }

    /// Reads all tensors. Fails if a file cannot be read.
    pub(super) fn tensors(&self) -> Result<Tensors> {
        Tensors::read(&self.dir)
    }

    pub(super) fn file(&self) -> PathBuf {
        self.dir.join(CONFIG_FILE)
    }
}

/// Loads the reference implementation of the checkpoint in `dir`. The model's own loader checks a checkpoint; this one reads a
/// checkpoint that passed. Fails if a file cannot be read, or if the family has no reference implementation.
pub fn load(dir: &Path) -> Result<Box<dyn Reference>> {
    let checkpoint = Checkpoint { dir: dir.to_owned(), config: Config::read(dir)? };
    match FAMILIES.iter().find(|(name, _)| *name == checkpoint.config.family) {
        Some((_, read)) => read(checkpoint),
        None => {
            let names: Vec<_> = FAMILIES.iter().map(|(name, _)| *name).collect();
            let expected = format!("a family that can be verified: {}", names.join(", "));
            Err(Error::checkpoint(checkpoint.file(), "family", expected, checkpoint.config.family.as_str()))
        }
    }
}
