//! Writes checkpoints with random weights, to benchmark architectures that have not been trained.

use super::{
    Blueprint, Init, TensorSpec,
    checkpoint::{Column, Config, FileDtype, Writer, WrittenCheckpoint, writer::check_vacant},
    load::{blueprint, check_entropy_model},
};
use crate::error::{Error, Result};
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};
use std::{f64::consts::TAU, path::Path};

/// Writes a checkpoint with the configuration in `config_file` and random f32 weights to `dest`. The same seed gives the
/// same weights, tensor by tensor. An entropy model that the configuration names gets random weights too; its
/// configuration is `NAME.json` in the folder of `config_file`. Fails if a configuration is invalid, an entropy model's
/// included, or the folder is not empty, unless `overwrite` allows it.
pub fn init(config_file: &Path, dest: &Path, seed: u64, overwrite: bool) -> Result<WrittenCheckpoint> {
    let weights = RandomWeights { seed, matrices: FileDtype::F32 };
    init_with_progress(config_file, dest, weights, overwrite, &mut |_, _| {})
}

/// The weights of a new checkpoint.
#[derive(Debug, Clone, Copy)]
pub struct RandomWeights {
    /// Seed of the random numbers.
    pub seed: u64,
    /// Type of the numbers of matrices in the file. Vectors are f32.
    pub matrices: FileDtype,
}

/// Writes a checkpoint as [`init`] does, and reports numbers written and numbers to write to `progress`. Fails as
/// [`init`] does.
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

    /// Returns the entropy models' names and sources.
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

/// Draws a tensor's numbers. Each tensor has its own random stream.
fn fill(spec: &TensorSpec, seed: u64, stream: u64) -> Result<Vec<f32>> {
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

    fn spec(shape: &[usize], init: Init) -> TensorSpec {
        TensorSpec { name: "x".into(), shape: shape.into(), init, trained: true }
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
