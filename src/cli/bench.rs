//! `weir bench`: how fast a model is on this machine, beside what the machine can do. What is measured: docs/performance.md.

mod measure;
mod picture;
mod resume;
mod served;
mod stream;
mod summarize;
mod table;

use super::{
    model::{self, ComputeArgs, count},
    output,
    progress::Progress,
};
use crate::{
    decode::{
        boundary_wait::{BOUNDARY_WAIT, MAX_BOUNDARY_WAIT},
        contract::Model,
    },
    error::{Error, Result},
    family::load::{MAX_SYMBOLS, Settings, load},
    kernels::{self, Dtype, Isa},
    report::{compare, decode, machine::Machine, plot::MeasurementFile, prefill},
};
use picture::Picture;
use serde::Serialize;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Measures speed.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Decoding: rows that hold a context get one symbol a step, of bundled English, logits included.
    Decode(DecodeArgs),
    /// Prefill: a fresh sequence gets many symbols a step.
    Prefill(PrefillArgs),
    /// Decoding with two models in turns: how many times as fast A is as B.
    Compare(CompareArgs),
    /// What the segment cache spares: the time to the first character over gRPC, of a prompt whose beginning is cached beside
    /// one of which nothing is, in turns.
    Resume(resume::ResumeArgs),
    /// A long stream, symbol by symbol: how long its symbols take and what the sequence holds, from its first part to its last.
    Endless(measure::EndlessArgs),
    /// Summaries by two models in turns: encoding by layer, a token's time, the whole, and what of the encoding an upload hides.
    Summarize(summarize::SummarizeArgs),
    /// What the gRPC stream costs: the same generations in the process and through a server on loopback, in turns.
    Stream(stream::StreamArgs),
    /// The client of `stream` and `resume`, in a process of its own.
    #[command(hide = true)]
    StreamClient(served::ClientArgs),
    /// Kernels one at a time, without a model.
    Kernels(measure::KernelsArgs),
    /// One picture of several saved runs.
    Plot(measure::PlotArgs),
}

#[derive(Debug, clap::Args)]
struct DecodeArgs {
    /// The checkpoint's folder.
    #[arg(long, value_name = "DIR", env = "WEIR_MODEL")]
    model: PathBuf,
    #[command(flatten)]
    plans: PlanArgs,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
struct CompareArgs {
    /// The checkpoint whose speed is told in units of the other's.
    #[arg(value_name = "DIR_A")]
    a: PathBuf,
    /// The other checkpoint.
    #[arg(value_name = "DIR_B")]
    b: PathBuf,
    #[command(flatten)]
    plans: PlanArgs,
    /// Runs of each model, A B A B …; each run times all steps.
    #[arg(long, value_name = "N", default_value_t = 10,
        value_parser = count(1..=compare::MAX_PAIRS), allow_negative_numbers = true)]
    pairs: usize,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
struct PrefillArgs {
    /// The checkpoint's folder.
    #[arg(long, value_name = "DIR", env = "WEIR_MODEL")]
    model: PathBuf,
    /// Symbols of the prompt; several lengths are measured one after the other.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "512",
        value_parser = count(1..=MAX_SYMBOLS), allow_negative_numbers = true)]
    symbols: Vec<usize>,
    /// Symbols a step.
    #[arg(long, value_name = "N", default_value_t = 512,
        value_parser = count(1..=MAX_SYMBOLS), allow_negative_numbers = true)]
    chunk: usize,
    /// Timed runs, after one that is not timed.
    #[arg(long, value_name = "N", default_value_t = 11,
        value_parser = count(1..=prefill::MAX_RUNS), allow_negative_numbers = true)]
    runs: usize,
    #[command(flatten)]
    common: Common,
}

/// What is decoded: every batch with every context and every wait.
#[derive(Debug, clap::Args)]
struct PlanArgs {
    /// Rows of a step; several are measured one after the other.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1",
        value_parser = count(1..=decode::MAX_BATCH), allow_negative_numbers = true)]
    batch: Vec<usize>,
    /// Symbols that each row holds before the first timed step; several are measured one after the other.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "512",
        value_parser = count(0..=MAX_SYMBOLS), allow_negative_numbers = true)]
    context: Vec<usize>,
    /// Timed steps, after a few that are not timed.
    #[arg(long, value_name = "N", default_value_t = 256,
        value_parser = count(1..=decode::MAX_STEPS), allow_negative_numbers = true)]
    steps: usize,
    /// Steps that a row whose segment ended may wait for others, to share a step of the middle layers; several are measured
    /// one after the other.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [BOUNDARY_WAIT],
        value_parser = count(0..=MAX_BOUNDARY_WAIT), allow_negative_numbers = true)]
    boundary_wait: Vec<usize>,
}

#[derive(Debug, clap::Args)]
struct Common {
    #[command(flatten)]
    compute: Compute,
    #[command(flatten)]
    told: Told,
}

/// What models run on: every dtype with every number of threads, one after the other.
#[derive(Debug, clap::Args)]
struct Compute {
    /// Numbers that weights, keys and values are stored in: f32, bf16 or int8; several are measured one after the other.
    #[arg(long, value_name = "TYPE", value_parser = model::dtype, value_delimiter = ',', default_value = "f32",
        env = "WEIR_DTYPE")]
    dtype: Vec<Dtype>,
    /// Threads; all cores if not given. Several are measured one after the other.
    #[arg(long, value_name = "N", value_delimiter = ',', env = "WEIR_THREADS",
        value_parser = clap::value_parser!(u16).range(1..=1024), allow_negative_numbers = true)]
    threads: Vec<u16>,
    /// The most symbols of one sequence; if not given four training windows, but at least 8192, or 2^24 where windows bound what
    /// a sequence holds.
    #[arg(long, value_name = "N", env = "WEIR_MAX_SYMBOLS",
        value_parser = clap::value_parser!(u32).range(1..=1 << 24), allow_negative_numbers = true)]
    max_symbols: Option<u32>,
    /// Instruction set of the kernels: avx512 (F, BW, VL and VNNI), avx2 (with FMA) or portable; the widest that the processor
    /// has if not given.
    #[arg(long, value_name = "NAME", value_parser = isa)]
    isa: Option<Isa>,
}

/// How measurements are told.
#[derive(Debug, clap::Args)]
struct Told {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Draw the measurements into this file too, as SVG.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// What is wrong with the checkpoint or an option.
pub fn run(args: Args) -> Result<()> {
    match args.what {
        What::Decode(args) => run_decode(&args),
        What::Prefill(args) => run_prefill(&args),
        What::Compare(args) => run_compare(&args),
        What::Resume(args) => resume::run_resume(&args),
        What::Endless(args) => measure::run_endless(&args),
        What::Summarize(args) => summarize::run_summarize(&args),
        What::Stream(args) => stream::run_stream(&args),
        What::StreamClient(args) => served::run_client(&args),
        What::Kernels(args) => measure::run_kernels(&args),
        What::Plot(args) => measure::run_plot(&args),
    }
}

impl PlanArgs {
    /// In the order in which they are measured; all are checked before the first one is.
    fn plans(&self, models: &[&dyn Model]) -> Result<Vec<decode::DecodePlan>> {
        let (steps, mut plans) = (self.steps, Vec::new());
        for &context in &self.context {
            for &batch in &self.batch {
                let waits = self.boundary_wait.iter();
                plans.extend(waits.map(|&boundary_wait| decode::DecodePlan { batch, context, steps, boundary_wait }));
            }
        }
        for plan in &plans {
            models.iter().try_for_each(|model| plan.check(model.card()))?;
        }
        Ok(plans)
    }
}

impl Compute {
    /// Numbers of threads to measure with; none stands for all cores.
    fn threads(&self) -> Vec<Option<u16>> {
        if self.threads.is_empty() { vec![None] } else { self.threads.iter().copied().map(Some).collect() }
    }

    fn isa(&self) -> Isa {
        self.isa.unwrap_or_else(Isa::detect)
    }

    /// Every combination, in the order in which they are measured.
    fn setups(&self) -> Vec<Setup> {
        let mut setups = Vec::new();
        for &dtype in &self.dtype {
            let max_symbols = self.max_symbols;
            let each = self.threads().into_iter();
            let settings = |threads| ComputeArgs { dtype, threads, max_symbols }.settings();
            setups.extend(each.map(|threads| Setup(Settings { isa: self.isa(), ..settings(threads) })));
        }
        setups
    }
}

fn isa(name: &str) -> std::result::Result<Isa, String> {
    let names = || Isa::all().iter().map(|isa| isa.name()).collect::<Vec<_>>().join(", ");
    Isa::parse(name).ok_or_else(|| format!("this processor has {}", names()))
}

/// One dtype with one number of threads, not started yet.
struct Setup(Settings);

impl Setup {
    /// The models, which share their threads, and the machine that they run on.
    fn load<const N: usize>(self, dirs: [&Path; N]) -> Result<([Arc<dyn Model>; N], Machine)> {
        let settings = self.0.with_threads();
        let Settings { isa, pool: Some(pool), .. } = settings.clone() else {
            return Err(Error::Internal("threads were started and are not there".into()));
        };
        let models = dirs.into_iter().map(|dir| load(dir, &settings)).collect::<Result<Vec<_>>>()?;
        let models = models.try_into().map_err(|_| Error::Internal("a model was lost".into()))?;
        Ok((models, Machine { compute: kernels::Compute { isa, pool } }))
    }
}

impl Told {
    /// The picture's file, if one is wanted: opened before anything is measured.
    fn picture(&self) -> Result<Option<Picture>> {
        self.plot.as_deref().map(Picture::open).transpose()
    }

    fn tell<T: Serialize>(
        &self,
        picture: Option<Picture>,
        entries: &[T],
        table: impl Fn(&[T]) -> String,
    ) -> Result<()> {
        let values = entries.iter().map(serde_json::to_value).collect::<std::result::Result<Vec<_>, _>>();
        let values = values.map_err(|error| Error::Internal(error.to_string()))?;
        // what was measured is told first: a picture that fails must not take it along
        let drawn = values.clone();
        if self.json {
            output::json(&values.into())?
        } else {
            output::write(&table(entries))?
        }
        let sources = [MeasurementFile { name: "this run".into(), entries: drawn }];
        picture.map_or(Ok(()), |picture| picture.write("--plot", &sources))
    }
}

/// Measures one after the other; the bar is told between measurements only, never during one.
fn each<P, T>(plans: Vec<P>, mut measure: impl FnMut(P) -> Result<T>) -> Result<Vec<T>> {
    let (mut progress, total) = (Progress::measurements(), plans.len() as u64);
    progress.tell(0, total);
    let mut entries = Vec::with_capacity(plans.len());
    for plan in plans {
        entries.push(measure(plan)?);
        progress.tell(entries.len() as u64, total);
    }
    Ok(entries)
}

fn run_decode(args: &DecodeArgs) -> Result<()> {
    let Common { compute, told } = &args.common;
    let (picture, mut entries) = (told.picture()?, Vec::new());
    for setup in compute.setups() {
        let ([model], machine) = setup.load([&args.model])?;
        let plans = args.plans.plans(&[&*model])?;
        entries.extend(each(plans, |plan| decode::measure(&*model, plan, &machine))?);
    }
    told.tell(picture, &entries, table::decode)
}

fn run_prefill(args: &PrefillArgs) -> Result<()> {
    let Common { compute, told } = &args.common;
    let (picture, mut entries) = (told.picture()?, Vec::new());
    let PrefillArgs { chunk, runs, .. } = *args;
    for setup in compute.setups() {
        let ([model], machine) = setup.load([&args.model])?;
        let plans: Vec<_> = args.symbols.iter().map(|&symbols| prefill::PrefillPlan { symbols, chunk, runs }).collect();
        plans.iter().try_for_each(|plan| plan.check(model.card()))?;
        entries.extend(each(plans, |plan| prefill::measure(&*model, plan, &machine))?);
    }
    told.tell(picture, &entries, table::prefill)
}

fn run_compare(args: &CompareArgs) -> Result<()> {
    let Common { compute, told } = &args.common;
    compare::check(args.pairs)?;
    let (picture, mut entries) = (told.picture()?, Vec::new());
    for setup in compute.setups() {
        let ([a, b], machine) = setup.load([&args.a, &args.b])?;
        let plans = args.plans.plans(&[&*a, &*b])?;
        let (mut progress, total) = (Progress::measurements(), (plans.len() * args.pairs) as u64);
        for (index, plan) in plans.into_iter().enumerate() {
            let mut tell = |pairs: usize| progress.tell((index * args.pairs + pairs) as u64, total);
            tell(0);
            entries.push(compare::compare([&*a, &*b], plan, args.pairs, &machine, &mut tell)?);
        }
    }
    told.tell(picture, &entries, table::compare)
}
