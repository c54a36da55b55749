//! Loads a model from a checkpoint folder.

pub use crate::family::{
    families::{FAMILIES, blueprint},
    settings::{DeviceChoice, MAX_SYMBOLS, Settings},
};
use crate::{
    checkpoint::{
        CheckpointSource, Column, Config, FileDtype, TensorSpec, Weights, Writer, WrittenCheckpoint, files,
        writer::{NGRAMS_FILE, check_vacant},
    },
    contract::Model,
    convert::InPlace,
    family::{Blueprint, Init, Parts},
    ngrams::{MAX_BYTES, NgramTable},
};
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};
use std::{f64::consts::TAU, path::Path, sync::Arc};
use weir_kernels::{
    error::{Error, Result},
    memory::{MemoryLimit, memory_limit},
};

/// Loads the checkpoint in `dir` under its folder's name. The error names file, key, expected and actual value.
pub fn load(dir: &Path, settings: &Settings) -> Result<Arc<dyn Model>> {
    let source = dir.into();
    load_as(&source, &source.name(), settings)
}

/// Loads a checkpoint under `name`. Fails as [`load`] does.
///
/// ```
/// use weir_kernels::Dtype;
/// use weir_models::{checkpoint::CheckpointSource, load::{Settings, load_as}};
///
/// let settings = Settings { threads: 1, dtype: Dtype::Bf16, ..Settings::default() };
/// let model = load_as(&CheckpointSource::default(), "english", &settings)?;
/// assert_eq!((model.card().name.as_str(), model.card().dtype), ("english", "bf16"));
/// # Ok::<(), weir_kernels::error::Error>(())
/// ```
pub fn load_as(source: &CheckpointSource, name: &str, settings: &Settings) -> Result<Arc<dyn Model>> {
    load_with_threads(source, name.to_owned(), &settings.clone().with_threads())
}

/// Bytes of memory that a checkpoint may take: its weights as read and as stored, tables, and key-value memory.
pub fn needs(source: &CheckpointSource, settings: &Settings) -> Result<usize> {
    let config = config(source)?;
    let blueprint = blueprint(&config, &source.config_file())?;
    let weights = blueprint.tensors().iter().map(TensorSpec::loaded_numbers).fold(0, usize::saturating_add);
    let twice = weights.saturating_mul(2 * size_of::<f32>()).saturating_add(copied_bytes(&*blueprint, settings));
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
        source.check_tables(&blueprint.tensors())?;
    }
    if settings.unpooled && !blueprint.has_unpooled_baseline() {
        let expected = "a model whose pooling can be turned off: MrT5 with its gate";
        return Err(Error::checkpoint(source.config_file(), "architecture", expected, blueprint.shape()));
    }
    check_memory_limit(source, &*blueprint, settings)?;
    let (weights, sha256) = weights(source, &*blueprint, &mut |_, _| {})?;
    // Damaged n-grams are reported even if the model has no use for them.
    let ngrams = ngrams(source, &config)?.filter(|_| blueprint.speculates());
    let scope = source.scope()?;
    let parts = Parts { config, name, scope, weights, sha256, entropy_models, ngrams, settings: settings.clone() };
    blueprint.build(parts).map_err(|error| match error {
        // the model's own pages, before the first sequence
        Error::OutOfPages { needed, limit } => {
            Error::checkpoint(source.path(), "--kv-memory", format!("at least {needed} bytes"), format!("{limit}"))
        }
        other => other,
    })
}

/// Maximum bytes of the tables that the settings copy into memory.
fn copied_bytes(blueprint: &dyn Blueprint, settings: &Settings) -> usize {
    let tables = blueprint.tensors().into_iter().filter(|spec| settings.copy_tables && spec.stays_in_file);
    tables.map(|spec| spec.numbers().saturating_mul(size_of::<f32>())).fold(0, usize::saturating_add)
}

/// Memory that a program takes next to the weights of a model, while it is loaded and for the first steps.
const LOADING_BYTES: usize = 64 << 20;

/// Checks that the memory limit, if there is one, leaves room for a model, because a failed allocation would end the process.
fn check_memory_limit(source: &CheckpointSource, blueprint: &dyn Blueprint, settings: &Settings) -> Result<()> {
    let Some(MemoryLimit { command, bytes, used }) = memory_limit() else { return Ok(()) };
    let weights = blueprint.tensors().iter().map(TensorSpec::loaded_numbers).fold(0, usize::saturating_add);
    let numbers = weights.saturating_mul(2).saturating_add(blueprint.computed_numbers());
    let copied = copied_bytes(blueprint, settings);
    let needed = numbers.saturating_mul(size_of::<f32>()).saturating_add(LOADING_BYTES).saturating_add(copied);
    let left = bytes.saturating_sub(used);
    if needed <= left {
        return Ok(());
    }
    let expected = format!("at most {left} bytes to load it: {command} allows {bytes}, of which {used} are in use");
    Err(Error::checkpoint(source.path(), "the model", expected, format!("{needed} bytes")))
}

/// Reads the configuration of a checkpoint, or of a Hugging Face folder that needs no conversion.
pub fn config(source: &CheckpointSource) -> Result<Config> {
    match in_place(source) {
        Some(folder) => folder.config(),
        None => source.config(),
    }
}

/// Reads a checkpoint's weights, under weir's names, and their SHA-256. Reports bytes read and to read to `progress`.
pub fn weights(
    source: &CheckpointSource,
    blueprint: &dyn Blueprint,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Weights, String)> {
    match in_place(source) {
        Some(folder) => folder.weights(progress),
        None => source.weights(&blueprint.tensors(), progress),
    }
}

/// Reads the weights of a Hugging Face folder that needs no conversion, under weir's names; `None` for others.
pub fn weights_in_place(source: &CheckpointSource) -> Result<Option<Weights>> {
    let Some(folder) = in_place(source) else { return Ok(None) };
    let (weights, _) = folder.weights(&mut |_, _| {})?;
    Ok(Some(weights))
}

/// Reads the n-grams of a checkpoint, if it has any. Fails if they belong to another vocabulary.
pub fn ngrams(source: &CheckpointSource, config: &Config) -> Result<Option<Arc<NgramTable>>> {
    // an embedded checkpoint has none
    let Some(folder) = source.folder() else { return Ok(None) };
    let vocabulary = config.vocabulary(&source.config_file())?;
    Ok(read_ngrams(folder, vocabulary.len())?.map(Arc::new))
}

/// Reads the n-grams of the checkpoint in a folder, if it has any. Fails if the file is damaged or of another vocabulary.
pub(crate) fn read_ngrams(dir: &Path, vocabulary: usize) -> Result<Option<NgramTable>> {
    let Some(file) = files::present(dir, NGRAMS_FILE)? else { return Ok(None) };
    let bytes = files::read_limited(&file, MAX_BYTES as u64)?;
    let table = NgramTable::from_bytes(&bytes, vocabulary);
    let table = table.map_err(|mismatch| Error::checkpoint(&file, "the n-grams", mismatch.expected, mismatch.found))?;
    Ok(Some(table))
}

fn in_place(source: &CheckpointSource) -> Option<InPlace<'_>> {
    source.folder().and_then(InPlace::find)
}

/// Returns the entropy models that a checkpoint names. Fails if one is missing or cannot accompany this model.
pub fn entropy_models(
    source: &CheckpointSource,
    config: &Config,
    blueprint: &dyn Blueprint,
) -> Result<Vec<CheckpointSource>> {
    let checked = |name: &str| {
        let source = source.entropy_model(name)?;
        let entropy_model = source.config()?;
        let file = source.config_file();
        check_entropy_model(
            config,
            &entropy_model,
            &*crate::family::families::blueprint(&entropy_model, &file)?,
            &file,
        )?;
        Ok(source)
    };
    blueprint.entropy_models().into_iter().map(checked).collect()
}

/// Checks that an entropy model has the same symbols, and no entropy model of its own. The error names its `file`.
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

// Writes checkpoints with random weights, to benchmark architectures that have not been trained.

/// Writes a checkpoint with the configuration in `config_file` and random f32 weights to `dest`, the same for the same seed. An
/// entropy model that it names has its configuration in `NAME.json`, and gets random weights too. Fails if a configuration is
/// invalid, or the folder is not empty, unless `overwrite` allows it.
pub fn init(config_file: &Path, dest: &Path, seed: u64, overwrite: bool) -> Result<WrittenCheckpoint> {
    let weights = RandomWeights { seed, matrices: FileDtype::F32 };
    init_with_progress(config_file, dest, weights, overwrite, &mut |_, _| {})
}

/// The weights of a new checkpoint.
#[derive(Debug, Clone, Copy)]
pub struct RandomWeights {
    /// Seed of the random numbers.
    pub seed: u64,
    /// Element type of matrices in the file. Vectors are f32.
    pub matrices: FileDtype,
}

/// Writes a checkpoint as [`init`] does, and reports elements written and elements to write to `progress`.
pub fn init_with_progress(
    config_file: &Path,
    dest: &Path,
    weights: RandomWeights,
    overwrite: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<WrittenCheckpoint> {
    let source = InitSource::read(config_file)?;
    let entropy_models = source.entropy_models(config_file)?;
    check_vacant(dest, overwrite)?;
    let total = source.numbers() + entropy_models.iter().map(|(_, entropy_model)| entropy_model.numbers()).sum::<u64>();
    let mut done = 0;
    let mut written = |numbers: u64| {
        done += numbers;
        progress(done, total);
    };
    let initialized = source.write(dest, weights, overwrite, &mut written)?;
    for (index, (name, entropy_model)) in (1..).zip(&entropy_models) {
        let own = RandomWeights { seed: weights.seed.wrapping_add(index), ..weights };
        entropy_model.write(&dest.join(name), own, overwrite, &mut written)?;
    }
    Ok(initialized)
}

/// A configuration and the tensors that it asks for.
struct InitSource {
    config: Config,
    blueprint: Box<dyn Blueprint>,
    specs: Vec<TensorSpec>,
}

impl InitSource {
    fn read(file: &Path) -> Result<Self> {
        let config = Config::read_file(file)?;
        let blueprint = blueprint(&config, file)?;
        let specs = blueprint.tensors();
        Ok(Self { config, blueprint, specs })
    }

    fn entropy_models(&self, file: &Path) -> Result<Vec<(String, Self)>> {
        let read = |name: &str| {
            let file = file.with_file_name(format!("{name}.json"));
            let entropy_model = Self::read(&file)?;
            check_entropy_model(&self.config, &entropy_model.config, &*entropy_model.blueprint, &file)?;
            Ok((name.to_string(), entropy_model))
        };
        self.blueprint.entropy_models().into_iter().map(read).collect()
    }

    fn numbers(&self) -> u64 {
        self.specs.iter().map(|spec| spec.numbers() as u64).sum()
    }

    fn write(
        &self,
        dest: &Path,
        weights: RandomWeights,
        overwrite: bool,
        written: &mut dyn FnMut(u64),
    ) -> Result<WrittenCheckpoint> {
        let mut writer = Writer::create(dest, &self.config, &self.specs, weights.matrices, overwrite)?;
        for (index, spec) in (0..).zip(&self.specs) {
            let numbers = fill(spec, weights.seed, index)?;
            writer.tensor(&spec.name, &numbers)?;
            written(numbers.len() as u64);
        }
        let trained = self.specs.iter().filter(|spec| spec.trained);
        let parameters = trained.map(TensorSpec::numbers).sum();
        Ok(WrittenCheckpoint { shape: self.blueprint.shape(), parameters, sha256: writer.finish()? })
    }
}

/// Draws a tensor's elements. Each tensor has its own random stream.
pub(super) fn fill(spec: &TensorSpec, seed: u64, stream: u64) -> Result<Vec<f32>> {
    match &spec.init {
        Init::Values(values) if values.len() == spec.numbers() => Ok(values.clone()),
        Init::Values(values) => {
            Err(Error::Internal(format!("{}: {} initial numbers for shape {:?}", spec.name, values.len(), spec.shape)))
        }
        Init::Normal(mean, 0.0) => Ok(vec![*mean; spec.numbers()]),
        Init::Columns(deviation, columns) => {
            let matrix = TensorSpec { init: Init::Normal(0.0, *deviation), ..spec.clone() };
            let mut numbers = fill(&matrix, seed, stream)?;
            let width = spec.shape.last().copied().unwrap_or(1).max(1);
            for Column { index, values } in columns {
                let cells = numbers.iter_mut().skip(*index).step_by(width);
                cells.zip(values).for_each(|(number, value)| *number = *value);
            }
            Ok(numbers)
        }
        Init::Normal(mean, deviation) => {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            random.set_stream(stream);
            let mut numbers = Vec::with_capacity(spec.numbers() + 1);
            while numbers.len() < spec.numbers() {
                let pair = normal_pair(&mut random);
                numbers.extend(pair.map(|normal| mean + deviation * normal as f32));
            }
            numbers.truncate(spec.numbers());
            Ok(numbers)
        }
    }
}

/// Draws two independent standard normal numbers (Box and Muller).
fn normal_pair(random: &mut impl Rng) -> [f64; 2] {
    // 53 bits, strictly between 0 and 1
    let mut uniform = || ((random.next_u64() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    let radius = (-2.0 * uniform().ln()).sqrt();
    let angle = TAU * uniform();
    [radius * angle.cos(), radius * angle.sin()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::fill;

    fn spec(shape: &[usize], init: Init) -> TensorSpec {
        TensorSpec { init, ..TensorSpec::zeros("x", shape.into()) }
    }

    #[test]
    fn random_numbers_have_the_specified_moments() {
        let numbers = fill(&spec(&[100, 999], Init::Normal(1.0, 0.02)), 7, 3).unwrap();
        assert_eq!(numbers.len(), 99_900);
        let mean = numbers.iter().map(|&x| f64::from(x)).sum::<f64>() / numbers.len() as f64;
        let variance = numbers.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / numbers.len() as f64;
        assert!((mean - 1.0).abs() < 3e-4, "{mean}");
        assert!((variance.sqrt() - 0.02).abs() < 2e-4, "{variance}");
        assert!(numbers.iter().all(|x| x.is_finite()));
    }

    #[test]
    fn each_seed_and_stream_gives_other_numbers() {
        let spec = spec(&[3], Init::Normal(0.0, 1.0));
        assert_eq!(fill(&spec, 1, 0).unwrap(), fill(&spec, 1, 0).unwrap());
        assert_ne!(fill(&spec, 1, 0).unwrap(), fill(&spec, 2, 0).unwrap());
        assert_ne!(fill(&spec, 1, 0).unwrap(), fill(&spec, 1, 1).unwrap());
    }

    #[test]
    fn columns_replace_random_numbers() {
        let matrix = |columns| fill(&spec(&[2, 3], Init::Columns(1.0, columns)), 1, 0).unwrap();
        let random = matrix(Vec::new());
        let marked = matrix(vec![Column { index: 1, values: vec![7.0, 8.0] }]);
        assert_eq!(marked, [random[0], 7.0, random[2], random[3], 8.0, random[5]]);
        assert_eq!(random, fill(&spec(&[2, 3], Init::Normal(0.0, 1.0)), 1, 0).unwrap());
    }

    #[test]
    fn initial_values_must_fit_the_shape() {
        assert_eq!(fill(&spec(&[2], Init::Values(vec![1.0, 2.0])), 0, 0).unwrap(), [1.0, 2.0]);
        assert!(fill(&spec(&[3], Init::Values(vec![1.0, 2.0])), 0, 0).is_err());
    }
}
