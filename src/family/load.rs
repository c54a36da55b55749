//! From a checkpoint folder to a running model.

use super::{
    FAMILIES, Parts,
    checkpoint::{Config, read_weights},
};
use crate::{
    decode::contract::Model,
    error::{Error, Result},
    kernels::Pool,
};
use std::{path::Path, sync::Arc};

/// What a model may use. Companion models share the threads and have the same limits.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Threads that share a step's work, the caller's included.
    pub threads: usize,
    /// The most symbols of one sequence; four training windows, but at least 8,192, if not given.
    pub max_symbols: Option<usize>,
    /// Bytes of key-value memory.
    pub memory_bytes: usize,
    /// The threads, once started: models loaded with clones of the same settings share them.
    pub pool: Option<Arc<Pool>>,
}

impl Default for Settings {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self { threads, max_symbols: None, memory_bytes: 2 << 30, pool: None }
    }
}

impl Settings {
    /// The same with the threads started: all models loaded with these settings, or clones of them, share those.
    pub fn with_threads(mut self) -> Self {
        self.pool.get_or_insert_with(|| Arc::new(Pool::new(self.threads)));
        self
    }

    /// The longest sequence of a model trained on windows of `training_length`.
    pub fn max_symbols(&self, training_length: usize) -> usize {
        self.max_symbols.unwrap_or(training_length.saturating_mul(4).max(8192))
    }
}

/// Loads the checkpoint in `dir` under its folder's name.
///
/// # Errors
/// [`Error::Checkpoint`] naming file, key, what was expected and found; [`Error::Io`].
pub fn load(dir: &Path, settings: &Settings) -> Result<Arc<dyn Model>> {
    load_nested(dir, &settings.clone().with_threads(), true)
}

fn load_nested(dir: &Path, settings: &Settings, may_have_companions: bool) -> Result<Arc<dyn Model>> {
    let config = Config::read(dir)?;
    let file = dir.join("config.json");
    let blueprint = blueprint(&config, &file)?;
    let mut companions = Vec::new();
    for name in blueprint.companions() {
        if !may_have_companions {
            return Err(Error::checkpoint(file, "architecture.boundaries", "a companion without companions", name));
        }
        let companion = load_nested(&dir.join(name), settings, false)?;
        let symbols = config.vocabulary(&file)?;
        if !companion.card().vocabulary.same_symbols(&symbols) {
            let expected = format!("the symbols of {}", file.display());
            return Err(Error::checkpoint(dir.join(name).join("config.json"), "vocabulary", expected, "others"));
        }
        companions.push(companion);
    }
    let (weights, sha256) = read_weights(dir, &blueprint.tensors())?;
    let name = name_of(dir);
    blueprint.build(Parts { config, name, weights, sha256, companions, settings: settings.clone() })
}

/// The architecture of a checkpoint.
///
/// # Errors
/// [`Error::Checkpoint`]: an unknown family, or what the family finds wrong.
pub fn blueprint(config: &Config, file: &Path) -> Result<Box<dyn super::Blueprint>> {
    match FAMILIES.iter().find(|(name, _)| *name == config.family) {
        Some((_, read)) => read(config, file),
        None => {
            let names: Vec<_> = FAMILIES.iter().map(|(name, _)| *name).collect();
            Err(Error::checkpoint(file, "family", format!("one of {}", names.join(", ")), config.family.as_str()))
        }
    }
}

fn name_of(dir: &Path) -> String {
    let full = dir.canonicalize().unwrap_or_else(|_| dir.to_path_buf());
    full.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
}
