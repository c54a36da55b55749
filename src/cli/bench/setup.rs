//! Flags that the benchmarks share, and the loading of models to measure.

use crate::{
    cli::{
        model::{self, CheckpointArgs, ComputeArgs},
        output::{self, Progress},
    },
    report::machine::Machine,
};
use serde::Serialize;
use std::sync::Arc;
use weir_kernels::{
    Compute, Dtype, Isa,
    error::{Error, Result},
};
use weir_models::{
    checkpoint::CheckpointSource,
    contract::{Card, Model, unpooled_name},
    load::{DeviceChoice, Settings, load_as},
};

/// Compute and output flags.
#[derive(Debug, clap::Args)]
pub(super) struct BenchArgs {
    #[command(flatten)]
    pub(super) compute: BenchCompute,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl BenchArgs {
    pub(super) fn print<T: Serialize>(&self, entries: &[T], table: impl Fn(&[T]) -> String) -> Result<()> {
        if !self.json {
            return output::write(&table(entries));
        }
        output::json(&serde_json::to_value(entries).map_err(|error| Error::Internal(error.to_string()))?)
    }
}

/// Compute settings. Every dtype is measured with every number of threads, one after the other.
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
pub(super) struct BenchCompute {
    /// Number formats of weights, keys and values: f32, bf16, int8, or int4 (weights in int4, keys and values in int8). Several are
    /// measured one after the other.
    #[arg(long, value_name = "TYPE", value_parser = model::dtype(), value_delimiter = ',', default_value = "f32",
        env = "WEIR_DTYPE")]
    pub(super) dtype: Vec<Dtype>,
    /// Numbers of threads. Several are measured one after the other. Default: all cores.
    #[arg(long, value_name = "N", value_delimiter = ',', env = "WEIR_THREADS",
        value_parser = model::whole::<u16>(1..=1024))]
    threads: Vec<u16>,
    /// Maximum symbols in one sequence. Default: four training windows, at least 8192; 2^24 if attention windows bound the
    /// memory of a sequence.
    #[arg(long, value_name = "N", env = "WEIR_MAX_SYMBOLS", value_parser = model::whole::<u32>(1..=1 << 24))]
    max_symbols: Option<u32>,
    /// Device of Hugging Face models: cpu, cuda, cuda:N or metal. Other models run on the CPU.
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceChoice::Cpu, env = "WEIR_DEVICE")]
    device: DeviceChoice,
    /// Instruction set of the kernels: amx (AVX-512, and tiles for int8), avx512 (F, BW, VL and VNNI), avx2 (with FMA) or portable.
    /// Default: the widest that the processor and the system permit.
    #[arg(long, value_name = "NAME", value_parser = model::isa)]
    isa: Option<Isa>,
}

impl BenchCompute {
    /// Numbers of threads to measure with. `None` means all cores.
    pub(super) fn threads(&self) -> Vec<Option<u16>> {
        if self.threads.is_empty() { vec![None] } else { self.threads.iter().copied().map(Some).collect() }
    }

    pub(super) fn isa(&self) -> Isa {
        self.isa.unwrap_or_else(Isa::detect)
    }

    /// Every combination of dtype and threads, in the order of measurement.
    pub(super) fn setups(&self) -> Vec<Setup> {
        let mut setups = Vec::new();
        for &dtype in &self.dtype {
            for threads in self.threads() {
                let settings =
                    ComputeArgs { dtype, threads, max_symbols: self.max_symbols, device: self.device }.settings();
                setups.push(Setup(Settings { isa: self.isa(), ..settings }));
            }
        }
        setups
    }
}

/// One dtype and number of threads. The threads are not started yet.
pub(super) struct Setup(Settings);

impl Setup {
    /// Loads models that share one thread pool, and describes the machine that they run on.
    pub(super) fn load<const N: usize>(
        self,
        sources: [&CheckpointSource; N],
    ) -> Result<([Arc<dyn Model>; N], Machine)> {
        let settings = self.0.with_threads();
        let models = sources.into_iter().map(|source| load_as(source, &source.name(), &settings));
        let models = models.collect::<Result<Vec<_>>>()?.try_into();
        Ok((models.map_err(|_| Error::Internal("a model is missing after loading".into()))?, machine(&settings)?))
    }

    /// Loads a model and, on the same threads, the same model with its pooling turned off. Fails if the model cannot run without its
    /// pooling.
    pub(super) fn load_with_unpooled(self, source: &CheckpointSource) -> Result<([Arc<dyn Model>; 2], Machine)> {
        let settings = self.0.with_threads();
        let name = source.name();
        let pooled = load_as(source, &name, &settings)?;
        let unpooled = load_as(source, &unpooled_name(&name), &Settings { unpooled: true, ..settings.clone() })?;
        Ok(([pooled, unpooled], machine(&settings)?))
    }
}

fn machine(settings: &Settings) -> Result<Machine> {
    match settings.clone() {
        Settings { isa, pool: Some(pool), .. } => Ok(Machine { compute: Compute { isa, pool } }),
        _ => Err(Error::Internal("the thread pool was not started".into())),
    }
}

impl BenchCompute {
    /// Loads a model with every setup, and returns all that `measure` returns.
    pub(super) fn with_each_setup<T>(
        &self,
        checkpoint: &CheckpointArgs,
        measure: impl Fn(&Arc<dyn Model>, &Machine) -> Result<Vec<T>>,
    ) -> Result<Vec<T>> {
        let source = checkpoint.source()?;
        let mut entries = Vec::new();
        for setup in self.setups() {
            let ([model], machine) = setup.load([&source])?;
            entries.extend(measure(&model, &machine)?);
        }
        Ok(entries)
    }

    /// Measures plans on one model, with every setup. All plans are checked before the first one is measured.
    pub(super) fn measure<P: Copy, T>(
        &self,
        checkpoint: &CheckpointArgs,
        plans: &[P],
        check: impl Fn(&P, &Card) -> Result<()>,
        measure: impl Fn(&dyn Model, P, &Machine) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.with_each_setup(checkpoint, |model, machine| {
            plans.iter().try_for_each(|plan| check(plan, model.card()))?;
            measure_each(plans.to_vec(), |plan| measure(&**model, plan, machine))
        })
    }

    /// Measures plans on two models in turns, with every setup. `compare` reports the number of pairs done, out of `pairs`.
    pub(super) fn compare<P: Copy, T>(
        &self,
        [a, b]: [CheckpointSource; 2],
        plans: &[P],
        pairs: usize,
        check: impl Fn(&P, &dyn Model) -> Result<()>,
        compare: impl Fn([&dyn Model; 2], P, &Machine, &mut dyn FnMut(usize)) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut entries = Vec::new();
        for setup in self.setups() {
            let ([a, b], machine) = setup.load([&a, &b])?;
            for model in [&*a, &*b] {
                plans.iter().try_for_each(|plan| check(plan, model))?;
            }
            let mut progress = Progress::measurements();
            let total = (plans.len() * pairs) as u64;
            for (index, &plan) in plans.iter().enumerate() {
                let mut report = |done: usize| progress.update((index * pairs + done) as u64, total);
                report(0);
                entries.push(compare([&*a, &*b], plan, &machine, &mut report)?);
            }
        }
        Ok(entries)
    }
}

/// Runs one measurement after the other. The progress bar is updated between measurements, never during one.
pub(super) fn measure_each<P, T>(plans: Vec<P>, mut measure: impl FnMut(P) -> Result<T>) -> Result<Vec<T>> {
    let mut progress = Progress::measurements();
    let total = plans.len() as u64;
    progress.update(0, total);
    let mut entries = Vec::with_capacity(plans.len());
    for plan in plans {
        entries.push(measure(plan)?);
        progress.update(entries.len() as u64, total);
    }
    Ok(entries)
}
