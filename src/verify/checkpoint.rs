//! A checkpoint that a family reads: its configuration and its tensors.

use super::{Reference, tensors::Tensors};
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

/// Loads the reference implementation of the checkpoint in a folder.
pub(super) type LoadReference = fn(&Path) -> Result<Box<dyn Reference>>;

/// A checkpoint's folder and its configuration.
pub struct Checkpoint {
    dir: PathBuf,
    config: Config,
    /// Loads the companion model, if the checkpoint has one.
    load: LoadReference,
}

impl Checkpoint {
    /// Reads the configuration in `dir`; `load` loads a companion. Fails if the configuration cannot be read.
    pub(super) fn read(dir: &Path, load: LoadReference) -> Result<Self> {
        Ok(Self { dir: dir.to_owned(), config: Config::read(dir)?, load })
    }

    /// Returns the family's name.
    pub(super) fn family(&self) -> &str {
        &self.config.family
    }

    /// Returns an error about a key of the configuration.
    pub(super) fn error(&self, key: &str, expected: String, found: String) -> Error {
        Error::checkpoint(self.file(), key, expected, found)
    }

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

    /// Loads the companion in a subfolder. Fails if it cannot be read.
    pub(super) fn companion(&self, name: &str) -> Result<Box<dyn Reference>> {
        (self.load)(&self.dir.join(name))
    }

    fn file(&self) -> PathBuf {
        self.dir.join(CONFIG_FILE)
    }
}
