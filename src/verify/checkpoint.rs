//! A checkpoint that a family reads: its configuration and its tensors.

use super::{
    Reference,
    tensors::{Tensors, read_tensors},
};
use crate::{
    error::{Error, Result},
    family::{
        checkpoint::{self, CheckpointSource, Config},
        load,
    },
    text::Vocabulary,
};
use candle_core::{DType, Tensor};
use serde::de::DeserializeOwned;
use std::{collections::HashMap, path::PathBuf, sync::Arc};

/// Loads the reference implementation of a checkpoint.
pub(super) type LoadReference = fn(&CheckpointSource) -> Result<Box<dyn Reference>>;

/// Reads a checkpoint whose configuration was read.
pub type ReferenceReader = fn(Checkpoint) -> Result<Box<dyn Reference>>;

/// A checkpoint's files and its configuration.
pub struct Checkpoint {
    source: CheckpointSource,
    config: Config,
    /// Loads the companion model, if the checkpoint has one.
    load: LoadReference,
}

impl Checkpoint {
    /// Reads the configuration; `companion` loads a companion. Fails if the configuration cannot be read.
    pub fn read(source: &CheckpointSource, companion: LoadReference) -> Result<Self> {
        Ok(Self { source: source.clone(), config: load::config(source)?, load: companion })
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
        Tensors::read(&self.source)
    }

    /// Reads all tensors in f32. Fails if a file cannot be read.
    pub(super) fn tensors_f32(&self) -> Result<HashMap<String, Tensor>> {
        read_tensors(&self.source, DType::F32)
    }

    /// Loads the companion in a subfolder. Fails if it cannot be read.
    pub(super) fn companion(&self, name: &str) -> Result<Box<dyn Reference>> {
        (self.load)(&self.source.entropy_model(name)?)
    }

    fn file(&self) -> PathBuf {
        self.source.config_file()
    }
}
