//! Loads checkpoints for the server, at start-up and while it runs.

use crate::{decode::contract::Model, error::Result, family::load, serve::ModelLoader};
use std::{path::Path, sync::Arc};

/// Loads checkpoints with the same settings.
pub(super) struct Checkpoints(load::Settings);

impl Checkpoints {
    /// Creates a loader. Models share the thread pool of `settings`, if it is started.
    pub(super) fn new(settings: load::Settings) -> Self {
        Self(settings)
    }
}

impl ModelLoader for Checkpoints {
    fn memory_needed(&self, folder: &Path) -> Result<usize> {
        load::needs(folder, &self.0)
    }

    fn load(&self, folder: &Path, name: &str) -> Result<Arc<dyn Model>> {
        load::load_as(folder, name, &self.0)
    }
}
