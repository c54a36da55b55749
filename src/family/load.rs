//! From a checkpoint folder to a running model.

use super::{
    Blueprint, FAMILIES, Parts, TensorSpec,
    checkpoint::{CONFIG_FILE, Config, read_weights},
};
use crate::{
    decode::contract::Model,
    error::{Error, Result},
    kernels::{Dtype, Isa, ThreadPool},
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// The most symbols that a sequence may ever have, whatever a checkpoint or a flag says: tables are made for as many.
pub const MAX_SYMBOLS: usize = 1 << 24;

/// What a model may use. Companion models share the threads and have the same limits.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Threads that share a step's work, the caller's included.
    pub threads: usize,
    /// What weights, keys and values are stored in.
    pub dtype: Dtype,
    /// The most symbols of one sequence, at most [`MAX_SYMBOLS`]. If not given: as many where windows bound what is kept, else four
    /// training windows, but at least 8,192, and no more than the model can hold.
    pub max_symbols: Option<usize>,
    /// Bytes of key-value memory.
    pub memory_bytes: usize,
    /// The instruction set of the kernels; the widest that the processor has, unless a test asks for another.
    pub isa: Isa,
    /// The threads, once started: models loaded with clones of the same settings share them.
    pub pool: Option<Arc<ThreadPool>>,
}

impl Default for Settings {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self { threads, dtype: Dtype::F32, max_symbols: None, memory_bytes: 2 << 30, isa: Isa::detect(), pool: None }
    }
}

impl Settings {
    /// The same with the threads started: all models loaded with these settings, or clones of them, share those.
    pub fn with_threads(mut self) -> Self {
        self.pool.get_or_insert_with(|| Arc::new(ThreadPool::new(self.threads)));
        self
    }

    /// The longest sequence of a model trained on windows of `training_length`.
    pub fn max_symbols(&self, training_length: usize) -> usize {
        self.max_symbols.unwrap_or(training_length.saturating_mul(4).max(8192)).min(MAX_SYMBOLS)
    }

    /// The same of a model with such bounds; and why not more, if that is the model's own bound.
    ///
    /// # Errors
    /// More symbols were asked for than the model can hold.
    pub fn longest(&self, training_length: usize, bounds: Bounds) -> Result<(usize, Option<&'static str>)> {
        match (self.max_symbols, bounds.longest) {
            (Some(asked), Some((limit, why))) if asked > limit => {
                let bound = format!("at most {limit}: {why}");
                Err(Error::BadOption { field: "--max-symbols", found: asked.to_string(), bound })
            }
            (None, None) if bounds.endless => Ok((MAX_SYMBOLS, None)),
            (_, longest) => {
                let wanted = self.max_symbols(training_length);
                Ok(match longest {
                    Some((limit, why)) if limit <= wanted => (limit, Some(why)),
                    _ => (wanted, None),
                })
            }
        }
    }
}

/// What bounds a model's sequences.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bounds {
    /// The most symbols that it can hold, and why not more; none if there is no such limit.
    pub longest: Option<(usize, &'static str)>,
    /// Whether it holds no more of a long sequence than of a short one.
    pub endless: bool,
}

/// Loads the checkpoint in `dir` under its folder's name.
///
/// # Errors
/// [`Error::Checkpoint`] naming file, key, what was expected and found; [`Error::Io`].
pub fn load(dir: &Path, settings: &Settings) -> Result<Arc<dyn Model>> {
    load_as(dir, &name_of(dir), settings)
}

/// The same under another name.
///
/// # Errors
/// As [`load`]'s.
pub fn load_as(dir: &Path, name: &str, settings: &Settings) -> Result<Arc<dyn Model>> {
    load_checked(dir, name.to_owned(), &settings.clone().with_threads())
}

/// Bytes of memory that the checkpoint in `dir` may take: its weights as they are read and as they are kept, and the
/// key-value memory it may fill.
///
/// # Errors
/// As [`load`]'s about its configuration.
pub fn needs(dir: &Path, settings: &Settings) -> Result<usize> {
    let config = Config::read(dir)?;
    let blueprint = blueprint(&config, &dir.join(CONFIG_FILE))?;
    let numbers = |spec: &TensorSpec| spec.shape.iter().fold(1_usize, |size, &dim| size.saturating_mul(dim));
    let weights = blueprint.tensors().iter().map(numbers).fold(0, usize::saturating_add);
    let twice = weights.saturating_mul(2 * size_of::<f32>());
    let mut all = twice.saturating_add(settings.memory_bytes);
    for companion in companions(dir, &config, &*blueprint)? {
        all = all.saturating_add(needs(&companion, settings)?);
    }
    Ok(all)
}

fn load_checked(dir: &Path, name: String, settings: &Settings) -> Result<Arc<dyn Model>> {
    let config = Config::read(dir)?;
    let file = dir.join(CONFIG_FILE);
    let blueprint = blueprint(&config, &file)?;
    let folders = companions(dir, &config, &*blueprint)?;
    // Whatever it was trained on, a companion is fed all that its model is fed.
    let (max_symbols, _) = settings.longest(config.training_length, blueprint.bounds())?;
    let beside = Settings { max_symbols: Some(max_symbols), ..settings.clone() };
    let load_beside = |dir: &PathBuf| load_checked(dir, name_of(dir), &beside);
    let companions = folders.iter().map(load_beside).collect::<Result<_>>()?;
    let (weights, sha256) = read_weights(dir, &blueprint.tensors())?;
    let parts = Parts { config, name, weights, sha256, companions, settings: settings.clone() };
    blueprint.build(parts).map_err(|error| match error {
        // What the model itself holds, before the first sequence.
        Error::OutOfPages { needed, limit } => {
            Error::checkpoint(dir, "--kv-memory", format!("at least {needed} bytes"), format!("{limit}"))
        }
        other => other,
    })
}

/// The folders of the companions that a checkpoint names, their configurations checked.
///
/// # Errors
/// A companion that is not there, or cannot be one.
pub fn companions(dir: &Path, config: &Config, blueprint: &dyn Blueprint) -> Result<Vec<PathBuf>> {
    let checked = |name: &str| {
        let dir = dir.join(name);
        let (companion, file) = (Config::read(&dir)?, dir.join(CONFIG_FILE));
        check_companion(config, &companion, &*self::blueprint(&companion, &file)?, &file)?;
        Ok(dir)
    };
    blueprint.companions().into_iter().map(checked).collect()
}

/// Whether a model can be stepped beside the one that names it: the same symbols, and no companion of its own.
///
/// # Errors
/// [`Error::Checkpoint`] about the companion's configuration, `file`.
pub fn check_companion(config: &Config, companion: &Config, blueprint: &dyn Blueprint, file: &Path) -> Result<()> {
    if let Some(name) = blueprint.companions().first() {
        let expected = "a companion without companions";
        return Err(Error::checkpoint(file, "architecture.boundaries.companion", expected, format!("{name:?}")));
    }
    let (own, others) = (config.vocabulary(file)?, companion.vocabulary(file)?);
    if !own.same_symbols(&others) {
        let (expected, found) = ("the symbols of the model it accompanies", format!("{} others", others.len()));
        return Err(Error::checkpoint(file, "vocabulary", expected, found));
    }
    Ok(())
}

/// The architecture of a checkpoint.
///
/// # Errors
/// [`Error::Checkpoint`]: an unknown family, or what the family finds wrong.
pub fn blueprint(config: &Config, file: &Path) -> Result<Box<dyn Blueprint>> {
    match FAMILIES.iter().find(|(name, _)| *name == config.family) {
        Some((_, read)) => {
            let blueprint = read(config, file)?;
            if !blueprint.reads_documents() {
                if config.vocabulary(file)?.is_subword() {
                    let expected = "`symbols` or `bytes`: this family's symbols are characters or bytes";
                    return Err(Error::checkpoint(file, "vocabulary", expected, "pieces of a tokenizer"));
                }
                if config.generation.is_some() {
                    let expected = "none: this family writes no summaries";
                    return Err(Error::checkpoint(file, "generation", expected, "options"));
                }
            }
            Ok(blueprint)
        }
        None => {
            let names: Vec<_> = FAMILIES.iter().map(|(name, _)| *name).collect();
            Err(Error::checkpoint(file, "family", format!("one of {}", names.join(", ")), config.family.as_str()))
        }
    }
}

/// The name that a checkpoint is served under unless it is given another: its folder's.
pub fn name_of(dir: &Path) -> String {
    // a link has a name of its own; `.` and `..` have none
    let full = if dir.file_name().is_some() { dir.to_path_buf() } else { dir.canonicalize().unwrap_or_default() };
    full.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
}
