//! The `Admin` service: operators with the token load and unload models while the server runs.

mod load_checks;
mod service;

pub(super) use service::{AdminService, guarded};

use crate::{config::AdminToken, decode::contract::Model, engine::Limits, error::Result};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Loads checkpoints, so that the server does not depend on the model families.
pub trait ModelLoader: Send + Sync {
    /// Returns the maximum bytes of memory for loading and serving this checkpoint. Fails if it is invalid.
    fn memory_needed(&self, folder: &Path) -> Result<usize>;

    /// Loads a checkpoint under a name. Blocks. Fails if the checkpoint is invalid.
    fn load(&self, folder: &Path, name: &str) -> Result<Arc<dyn Model>>;
}

/// Settings of the `Admin` service.
#[derive(Clone)]
pub struct AdminConfig {
    /// The token that every call must carry.
    pub token: AdminToken,
    /// Loads the checkpoints.
    pub loader: Arc<dyn ModelLoader>,
    /// The folder that new checkpoints are loaded from. Without it, only models in service can be loaded again.
    pub models_folder: Option<PathBuf>,
    /// Maximum generations in memory, draining ones included.
    pub max_generations: usize,
    /// Limits of each engine.
    pub limits: Limits,
}
