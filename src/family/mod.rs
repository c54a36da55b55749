//! Whole models, one paper a folder, and the table of families.
//!
//! A family reads the `architecture` of a [`Config`] into a [`Blueprint`]: which tensors there must be,
//! and how to build a [`Model`] from them. Loading, `weir init`, `weir inspect` and the converters know families only so.

use crate::{decode::contract::Model, error::Result};
use checkpoint::{Config, Weights};
use std::{fmt::Debug, path::Path, sync::Arc};

pub mod checkpoint;
pub mod convert;
pub mod cost;
pub mod decoder;
pub mod hourglass;
pub mod init;
pub mod load;
pub mod lslm;
pub mod parts;
pub mod pyramidion;

/// The table of families: its name in `config.json`, and the reader of its architecture.
pub const FAMILIES: &[(&str, Reader)] = &[
    ("hourglass", hourglass::config::read),
    ("decoder", decoder::config::read),
    ("lslm", lslm::config::read),
    ("pyramidion", pyramidion::config::read),
];

/// Reads and validates a family's architecture; the path is `config.json`'s, for messages.
pub type Reader = fn(&Config, &Path) -> Result<Box<dyn Blueprint>>;

/// A validated architecture.
pub trait Blueprint: Debug + Send + Sync {
    /// Every tensor that the checkpoint must hold, no more and no fewer.
    fn tensors(&self) -> Vec<TensorSpec>;

    /// One line for people.
    fn shape(&self) -> String;

    /// The subfolders with companion models that this one needs.
    fn companions(&self) -> Vec<&str> {
        Vec::new()
    }

    /// Whether it reads documents and writes summaries. Only such a family has pieces of a tokenizer for symbols, and a way
    /// of writing in its configuration.
    fn reads_documents(&self) -> bool {
        false
    }

    /// What bounds its sequences.
    fn bounds(&self) -> load::Bounds {
        load::Bounds::default()
    }

    /// Builds the model. `parts` has the weights, checked against [`tensors`](Self::tensors).
    fn build(&self, parts: Parts) -> Result<Arc<dyn Model>>;
}

/// What a model is built from.
pub struct Parts {
    /// The common part of its configuration.
    pub config: Config,
    /// The name it will be served under.
    pub name: String,
    /// Its tensors.
    pub weights: Weights,
    /// Of its weight files, hexadecimal.
    pub sha256: String,
    /// The models that [`Blueprint::companions`] named, in that order.
    pub companions: Vec<Arc<dyn Model>>,
    /// Threads, memory, limits.
    pub settings: load::Settings,
}

/// A tensor that a checkpoint must hold.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorSpec {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// How `weir init` fills it.
    pub init: Init,
    /// Whether its numbers are trained (and counted as parameters).
    pub trained: bool,
}

/// How `weir init` fills a tensor.
#[derive(Debug, Clone, PartialEq)]
pub enum Init {
    /// Normal, with this mean and standard deviation.
    Normal(f32, f32),
    /// These numbers.
    Values(Vec<f32>),
}
