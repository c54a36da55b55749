//! The service `Admin`: models are loaded and unloaded while the server runs, by whoever has the token.

mod place;
mod service;

pub(super) use service::{Orders, guarded};

use crate::{config::AdminToken, decode::contract::Model, engine::Limits, error::Result};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Makes models of checkpoints: this room knows none of their families.
pub trait Loader: Send + Sync {
    /// Bytes of memory that loading this checkpoint and serving it may take at most.
    ///
    /// # Errors
    /// It is no checkpoint.
    fn needs(&self, folder: &Path) -> Result<usize>;

    /// Loads a checkpoint under a name. Blocks.
    ///
    /// # Errors
    /// What is wrong with it.
    fn load(&self, folder: &Path, name: &str) -> Result<Arc<dyn Model>>;
}

/// What the service needs to be there.
#[derive(Clone)]
pub struct Admin {
    /// What every call must have.
    pub token: AdminToken,
    /// Loads the checkpoints.
    pub loader: Arc<dyn Loader>,
    /// The only folder that checkpoints are loaded from, beside those that a model was loaded from before; none if there
    /// is none.
    pub folder: Option<PathBuf>,
    /// The most generations in memory, those that drain included.
    pub most: usize,
    /// Each engine's limits.
    pub limits: Limits,
}
