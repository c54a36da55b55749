//! Loads the models before the server listens, and logs each step.

use crate::{
    config::{AdminToken, ServeConfig, ServedCheckpoint},
    decode::contract::{Model, unpooled_name},
    error::{Error, Result},
    family::{checkpoint::CheckpointSource, load},
    serve::{AdminConfig, Engines, ModelLoader},
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

/// Loads checkpoints with the same settings. Models share the thread pool of the settings, if it is started.
pub(super) struct CheckpointLoader(pub(super) load::Settings);

impl ModelLoader for CheckpointLoader {
    fn memory_needed(&self, folder: &Path) -> Result<usize> {
        load::needs(&folder.into(), &self.0)
    }

    fn load(&self, folder: &Path, name: &str) -> Result<Arc<dyn Model>> {
        load::load_as(&folder.into(), name, &self.0)
    }
}

/// Loads every model and starts its engine, and then the unpooled twins. A checkpoint of the models folder that cannot be served is
/// logged and left out. Fails if a named checkpoint or a twin cannot be served, or if no checkpoint can.
pub(super) fn load_all(settings: &ServeConfig, loader: &CheckpointLoader, engines: &Engines) -> Result<()> {
    let mut first_failure = None;
    for checkpoint in &settings.checkpoints {
        match caught(|| launch(checkpoint, settings, loader, engines)) {
            Ok(()) => {}
            Err(error) if checkpoint.named => return Err(error),
            Err(error) => {
                let ServedCheckpoint { name, source, .. } = checkpoint;
                tracing::error!(model = name, folder = %source, %error, "not served: the checkpoint cannot be loaded");
                engines.metrics().count_skipped_checkpoint();
                first_failure.get_or_insert(error);
            }
        }
    }
    let served = engines.names();
    if let Some(error) = first_failure.filter(|_| served.is_empty()) {
        return Err(error);
    }
    if settings.unpooled_twins {
        // Last, so that a twin never takes the name of a checkpoint.
        for checkpoint in settings.checkpoints.iter().filter(|checkpoint| served.contains(&checkpoint.name)) {
            launch_twin(checkpoint, settings, loader, engines)?;
        }
    }
    Ok(())
}

/// Runs `work` and turns a panic into an error, so that a checkpoint on which loading panics does not keep the others from being
/// served. A panic drops everything that `work` has built.
fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let panicked = |_| Err(Error::Internal("loading the model panicked; the log has the location".into()));
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(panicked)
}

fn launch(
    checkpoint: &ServedCheckpoint,
    settings: &ServeConfig,
    loader: &CheckpointLoader,
    engines: &Engines,
) -> Result<()> {
    let ServedCheckpoint { name, source, .. } = checkpoint;
    let folder = source.folder().map(PathBuf::from);
    engines.add(engines.launch(load_model(source, name, &loader.0)?, settings.engine, folder)?)?;
    Ok(())
}

/// Serves a model a second time without its pooling, if it has an unpooled twin.
fn launch_twin(
    checkpoint: &ServedCheckpoint,
    settings: &ServeConfig,
    loader: &CheckpointLoader,
    engines: &Engines,
) -> Result<()> {
    let ServedCheckpoint { name, source, .. } = checkpoint;
    if load::has_unpooled_baseline(source)? {
        let unpooled = load::Settings { unpooled: true, ..loader.0.clone() };
        let twin = load_model(source, &unpooled_name(name), &unpooled)?;
        // Without its folder: a reload of this name would load the model with its pooling.
        engines.add(engines.launch(twin, settings.engine, None)?)?;
    }
    Ok(())
}

fn load_model(source: &CheckpointSource, name: &str, settings: &load::Settings) -> Result<Arc<dyn Model>> {
    tracing::info!(model = name, from = %source, "loading");
    let began = Instant::now();
    let model = load::load_as(source, name, settings)?;
    tracing::info!(model = name, took = ?began.elapsed(), "loaded; running the first steps, and timing them");
    Ok(model)
}

pub(super) fn admin(settings: &ServeConfig, loader: &Arc<CheckpointLoader>, token: AdminToken) -> AdminConfig {
    AdminConfig {
        token,
        loader: Arc::clone(loader) as _,
        models_folder: settings.operations.models.clone(),
        max_generations: settings.operations.max_models,
        limits: settings.engine,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_of_its_checkpoint() {
        let error = caught(|| -> Result<()> { panic!("a defect") }).unwrap_err();
        assert!(matches!(&error, Error::Internal(why) if why.contains("panicked")), "{error}");
        assert_eq!(caught(|| Ok(1)).unwrap(), 1);
    }
}
