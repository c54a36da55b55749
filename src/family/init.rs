//! Random weights of a given shape: to benchmark a shape that nobody has trained.

use super::{
    Blueprint, Init, TensorSpec,
    checkpoint::{Config, Writer, writer::check_vacant},
    load::{blueprint, check_companion},
};
use crate::error::{Error, Result};
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};
use std::{f64::consts::TAU, path::Path};

/// What was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// One line for people.
    pub shape: String,
    /// Trained numbers.
    pub parameters: usize,
    /// Of the weights, hexadecimal.
    pub sha256: String,
}

/// Writes a checkpoint with the configuration in `config_file` and random weights to `dest`. The same seed gives the same
/// weights, tensor by tensor. A companion model that the configuration names gets random weights too: its own configuration
/// is the file of its name beside `config_file`, `NAME.json`.
///
/// # Errors
/// A configuration that cannot be used, a companion's included; a folder that holds something, unless it may be overwritten.
pub fn init(config_file: &Path, dest: &Path, seed: u64, overwrite: bool) -> Result<Made> {
    init_telling(config_file, dest, seed, overwrite, &mut |_, _| {})
}

/// As [`init`]; `progress` is told numbers written and numbers to write.
///
/// # Errors
/// As for [`init`].
pub fn init_telling(
    config_file: &Path,
    dest: &Path,
    seed: u64,
    overwrite: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Made> {
    let shape = Shape::read(config_file)?;
    let companions = shape.companions(config_file)?;
    check_vacant(dest, overwrite)?;
    let total = shape.numbers() + companions.iter().map(|(_, companion)| companion.numbers()).sum::<u64>();
    let mut done = 0;
    let mut written = |numbers: u64| {
        done += numbers;
        progress(done, total);
    };
    let made = shape.write(dest, seed, overwrite, &mut written)?;
    for (index, (name, companion)) in (1..).zip(&companions) {
        companion.write(&dest.join(name), seed.wrapping_add(index), overwrite, &mut written)?;
    }
    Ok(made)
}

/// A configuration and what it asks for.
struct Shape {
    config: Config,
    blueprint: Box<dyn Blueprint>,
    specs: Vec<TensorSpec>,
}

impl Shape {
    fn read(file: &Path) -> Result<Self> {
        let config = Config::read_file(file)?;
        let blueprint = blueprint(&config, file)?;
        let specs = blueprint.tensors();
        Ok(Self { config, blueprint, specs })
    }

    /// The companions' names and shapes.
    fn companions(&self, file: &Path) -> Result<Vec<(String, Self)>> {
        let read = |name: &str| {
            let file = file.with_file_name(format!("{name}.json"));
            let companion = Self::read(&file)?;
            check_companion(&self.config, &companion.config, &*companion.blueprint, &file)?;
            Ok((name.to_string(), companion))
        };
        self.blueprint.companions().into_iter().map(read).collect()
    }

    fn numbers(&self) -> u64 {
        self.specs.iter().map(|spec| count(spec) as u64).sum()
    }

    fn write(&self, dest: &Path, seed: u64, overwrite: bool, written: &mut dyn FnMut(u64)) -> Result<Made> {
        let mut writer = Writer::create(dest, &self.config, &self.specs, overwrite)?;
        for (index, spec) in (0..).zip(&self.specs) {
            let numbers = fill(spec, seed, index)?;
            writer.tensor(&spec.name, &numbers)?;
            written(numbers.len() as u64);
        }
        let trained = self.specs.iter().filter(|spec| spec.trained);
        let parameters = trained.map(count).sum();
        Ok(Made { shape: self.blueprint.shape(), parameters, sha256: writer.finish()? })
    }
}

fn count(spec: &TensorSpec) -> usize {
    spec.shape.iter().product()
}

/// A tensor's numbers. Each tensor draws from a stream of its own.
fn fill(spec: &TensorSpec, seed: u64, stream: u64) -> Result<Vec<f32>> {
    match &spec.init {
        Init::Values(values) if values.len() == count(spec) => Ok(values.clone()),
        Init::Values(values) => {
            Err(Error::Internal(format!("{}: {} initial numbers for {:?}", spec.name, values.len(), spec.shape)))
        }
        Init::Normal(mean, 0.0) => Ok(vec![*mean; count(spec)]),
        Init::Normal(mean, deviation) => {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            random.set_stream(stream);
            let mut numbers = Vec::with_capacity(count(spec) + 1);
            while numbers.len() < count(spec) {
                let pair = normal_pair(&mut random);
                numbers.extend(pair.map(|normal| mean + deviation * normal as f32));
            }
            numbers.truncate(count(spec));
            Ok(numbers)
        }
    }
}

/// Two independent standard normal numbers (Box and Muller).
fn normal_pair(random: &mut impl Rng) -> [f64; 2] {
    // 53 bits, strictly between 0 and 1
    let mut uniform = || ((random.next_u64() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    let (radius, angle) = ((-2.0 * uniform().ln()).sqrt(), TAU * uniform());
    [radius * angle.cos(), radius * angle.sin()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(shape: &[usize], init: Init) -> TensorSpec {
        TensorSpec { name: "x".into(), shape: shape.into(), init, trained: true }
    }

    #[test]
    fn numbers_have_the_moments_asked_for() {
        let numbers = fill(&spec(&[100, 999], Init::Normal(1.0, 0.02)), 7, 3).unwrap();
        assert_eq!(numbers.len(), 99_900);
        let mean = numbers.iter().map(|&x| f64::from(x)).sum::<f64>() / numbers.len() as f64;
        let variance = numbers.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / numbers.len() as f64;
        assert!((mean - 1.0).abs() < 3e-4, "{mean}");
        assert!((variance.sqrt() - 0.02).abs() < 2e-4, "{variance}");
        assert!(numbers.iter().all(|x| x.is_finite()));
    }

    #[test]
    fn seeds_and_streams_differ() {
        let spec = spec(&[3], Init::Normal(0.0, 1.0));
        assert_eq!(fill(&spec, 1, 0).unwrap(), fill(&spec, 1, 0).unwrap());
        assert_ne!(fill(&spec, 1, 0).unwrap(), fill(&spec, 2, 0).unwrap());
        assert_ne!(fill(&spec, 1, 0).unwrap(), fill(&spec, 1, 1).unwrap());
    }

    #[test]
    fn given_numbers_must_fit() {
        assert_eq!(fill(&spec(&[2], Init::Values(vec![1.0, 2.0])), 0, 0).unwrap(), [1.0, 2.0]);
        assert!(fill(&spec(&[3], Init::Values(vec![1.0, 2.0])), 0, 0).is_err());
    }
}
