//! Loads a model from a checkpoint folder.

use super::{
    Blueprint, Parts,
    checkpoint::{CheckpointSource, Config, TensorSpec, Weights, ngrams},
    convert::InPlace,
};
use crate::{
    decode::{contract::Model, ngrams::NgramTable},
    error::{Error, Result},
};
use std::{path::Path, sync::Arc};

pub use super::{
    families::{FAMILIES, blueprint},
    settings::{MAX_SYMBOLS, Settings},
};

/// Loads the checkpoint in `dir` under its folder's name. Fails with [`Error::Io`], or with [`Error::Checkpoint`] that
/// names file, key, expected and actual value.
pub fn load(dir: &Path, settings: &Settings) -> Result<Arc<dyn Model>> {
    let source = dir.into();
    load_as(&source, &source.name(), settings)
}

/// Loads a checkpoint under `name`. Fails as [`load`] does.
///
/// ```
/// use weir_engine::{
///     family::{checkpoint::CheckpointSource, load::{Settings, load_as}},
///     kernels::Dtype,
/// };
///
/// let settings = Settings { threads: 1, dtype: Dtype::Bf16, ..Settings::default() };
/// let model = load_as(&CheckpointSource::default(), "english", &settings)?;
/// assert_eq!((model.card().name.as_str(), model.card().dtype), ("english", "bf16"));
/// # Ok::<(), weir_engine::error::Error>(())
/// ```
pub fn load_as(source: &CheckpointSource, name: &str, settings: &Settings) -> Result<Arc<dyn Model>> {
    load_with_threads(source, name.to_owned(), &settings.clone().with_threads())
}

/// Bytes of memory that a checkpoint may take: its weights as read and as stored, the tables computed from them, and its key-value
/// memory. Fails if the configuration is invalid, or as [`tensors`] does.
pub fn needs(source: &CheckpointSource, settings: &Settings) -> Result<usize> {
    let config = config(source)?;
    let blueprint = blueprint(&config, &source.config_file())?;
    let weights = tensors(source, &*blueprint)?.iter().map(TensorSpec::numbers).fold(0, usize::saturating_add);
    let twice = weights.saturating_mul(2 * size_of::<f32>());
    let computed = blueprint.computed_numbers().saturating_mul(size_of::<f32>());
    let mut all = twice.saturating_add(computed).saturating_add(settings.memory_bytes);
    for entropy_model in entropy_models(source, &config, &*blueprint)? {
        all = all.saturating_add(needs(&entropy_model, settings)?);
    }
    Ok(all)
}

/// Returns true if a checkpoint's model can run without its pooling ([`Settings::unpooled`]). Fails if the configuration is invalid.
pub fn has_unpooled_baseline(source: &CheckpointSource) -> Result<bool> {
    Ok(blueprint(&config(source)?, &source.config_file())?.has_unpooled_baseline())
}

fn load_with_threads(source: &CheckpointSource, name: String, settings: &Settings) -> Result<Arc<dyn Model>> {
    let config = config(source)?;
    let blueprint = blueprint(&config, &source.config_file())?;
    let entropy_models = entropy_models(source, &config, &*blueprint)?;
    // An entropy model is fed every symbol that its model is fed, even beyond its own training length.
    let (max_symbols, _) = settings.longest(config.training_length, blueprint.bounds())?;
    let entropy_settings = Settings { max_symbols: Some(max_symbols), ..settings.clone() };
    let load_entropy_model = |source: &CheckpointSource| load_with_threads(source, source.name(), &entropy_settings);
    let entropy_models = entropy_models.iter().map(load_entropy_model).collect::<Result<_>>()?;
    if settings.require_sha256 {
        source.require_digest()?;
    }
    if settings.unpooled && !blueprint.has_unpooled_baseline() {
        let expected = "a model whose pooling can be turned off: MrT5 with its gate";
        return Err(Error::checkpoint(source.config_file(), "architecture", expected, blueprint.shape()));
    }
    let (weights, sha256) = weights(source, &*blueprint, &mut |_, _| {})?;
    let ngrams = if blueprint.speculates() { ngrams(source, &config)? } else { None };
    let parts = Parts { config, name, weights, sha256, entropy_models, ngrams, settings: settings.clone() };
    blueprint.build(parts).map_err(|error| match error {
        // the model's own pages, before the first sequence
        Error::OutOfPages { needed, limit } => {
            Error::checkpoint(source.path(), "--kv-memory", format!("at least {needed} bytes"), format!("{limit}"))
        }
        other => other,
    })
}

/// Reads a checkpoint's configuration, also that of a Hugging Face folder that needs no conversion. Fails as
/// [`CheckpointSource::config`] does.
pub fn config(source: &CheckpointSource) -> Result<Config> {
    match in_place(source) {
        Some(folder) => folder.config(),
        None => source.config(),
    }
}

/// Reads a checkpoint's weights, under weir's names, and reports bytes read and bytes to read to `progress`. Also returns their
/// SHA-256. Fails as [`CheckpointSource::weights`] does.
pub fn weights(
    source: &CheckpointSource,
    blueprint: &dyn Blueprint,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Weights, String)> {
    match in_place(source) {
        Some(folder) => folder.weights(progress),
        None => source.weights(&tensors(source, blueprint)?, progress),
    }
}

/// Reads the weights of a Hugging Face folder that needs no conversion, under weir's names. `None` for any other checkpoint. Fails
/// as the conversion does.
pub fn weights_in_place(source: &CheckpointSource) -> Result<Option<Weights>> {
    let Some(folder) = in_place(source) else { return Ok(None) };
    let (weights, _) = folder.weights(&mut |_, _| {})?;
    Ok(Some(weights))
}

/// Reads the n-grams of a checkpoint, if it has any. Fails if they are not those of its vocabulary.
fn ngrams(source: &CheckpointSource, config: &Config) -> Result<Option<Arc<NgramTable>>> {
    // an embedded checkpoint has none
    let Some(folder) = source.folder() else { return Ok(None) };
    let vocabulary = config.vocabulary(&source.config_file())?;
    Ok(ngrams::read(folder, vocabulary.len())?.map(Arc::new))
}

fn in_place(source: &CheckpointSource) -> Option<InPlace<'_>> {
    source.folder().and_then(InPlace::find)
}

/// Returns all tensors of a checkpoint, those that the model does not use included. Fails if a header cannot be read.
pub fn tensors(source: &CheckpointSource, blueprint: &dyn Blueprint) -> Result<Vec<TensorSpec>> {
    // An embedded checkpoint has no others.
    let unused = source.folder().map(|folder| blueprint.unused_tensors(folder)).transpose()?;
    Ok([blueprint.tensors(), unused.unwrap_or_default()].concat())
}

/// Returns the entropy models that a checkpoint names, after checking their configurations. Fails if an
/// entropy model is missing or cannot accompany this model.
pub fn entropy_models(
    source: &CheckpointSource,
    config: &Config,
    blueprint: &dyn Blueprint,
) -> Result<Vec<CheckpointSource>> {
    let checked = |name: &str| {
        let source = source.entropy_model(name)?;
        let entropy_model = source.config()?;
        let file = source.config_file();
        check_entropy_model(config, &entropy_model, &*self::blueprint(&entropy_model, &file)?, &file)?;
        Ok(source)
    };
    blueprint.entropy_models().into_iter().map(checked).collect()
}

/// Checks that a model can accompany the one that names it: it has the same symbols, and no entropy model of its own. The
/// error names the entropy model's configuration, `file`.
pub fn check_entropy_model(
    config: &Config,
    entropy_model: &Config,
    blueprint: &dyn Blueprint,
    file: &Path,
) -> Result<()> {
    if let Some(name) = blueprint.entropy_models().first() {
        let expected = "an entropy model without entropy models";
        return Err(Error::checkpoint(file, "architecture.boundaries.companion", expected, format!("{name:?}")));
    }
    let symbols = entropy_model.vocabulary(file)?;
    if !config.vocabulary(file)?.same_symbols(&symbols) {
        let expected = "the symbols of the model that it accompanies";
        return Err(Error::checkpoint(file, "vocabulary", expected, format!("{} other symbols", symbols.len())));
    }
    Ok(())
}
