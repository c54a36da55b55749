//! `weir bench decode`, `prefill`, `compare`, `summarize` and `kernels`.

use crate::{
    cli::{
        bench::{
            setup::{BenchArgs, measure_each},
            table,
        },
        model::{CheckpointArgs, checkpoint, count},
    },
    report::{
        compare,
        decode::{self, DecodePlan},
        kernels::{self, KernelPlan},
        machine::{Machine, free_bytes},
        prefill::{self, PrefillPlan},
        summaries::{self, SummaryBenchPlan},
    },
};
use std::path::PathBuf;
use weir_kernels::{Compute, ThreadPool, error::Result};
use weir_models::{
    checkpoint::CheckpointSource,
    contract::{BOUNDARY_WAIT, MAX_BOUNDARY_WAIT, Model},
    load::MAX_SYMBOLS,
};

#[derive(Debug, clap::Args)]
pub(super) struct DecodeArgs {
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    #[command(flatten)]
    plans: PlanArgs,
    #[command(flatten)]
    bench: BenchArgs,
}

/// Two models to compare, each a checkpoint folder or the name of a model in the user's models folder.
#[derive(Debug, clap::Args)]
struct ComparedModels {
    /// Model A, whose speed is reported relative to model B: checkpoint folder, or name of a model in the user's models folder.
    #[arg(value_name = "DIR_A")]
    a: PathBuf,
    /// Model B, for example the same shape without pooling.
    #[arg(value_name = "DIR_B")]
    b: PathBuf,
}

impl ComparedModels {
    fn sources(&self) -> Result<[CheckpointSource; 2]> {
        Ok([checkpoint("DIR_A", Some(&self.a))?, checkpoint("DIR_B", Some(&self.b))?])
    }
}

#[derive(Debug, clap::Args)]
pub(super) struct CompareArgs {
    #[command(flatten)]
    models: ComparedModels,
    #[command(flatten)]
    plans: PlanArgs,
    /// Runs of each model, in the order A B A B …. Each run times all steps.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = count(1..=compare::MAX_PAIRS))]
    pairs: usize,
    #[command(flatten)]
    bench: BenchArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct PrefillArgs {
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// Symbols of the prompt. Several lengths are measured one after the other.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "512", value_parser = count(1..=MAX_SYMBOLS))]
    symbols: Vec<usize>,
    /// Symbols per step.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = count(1..=MAX_SYMBOLS))]
    chunk: usize,
    /// Timed runs, after one warm-up run.
    #[arg(long, value_name = "N", default_value_t = 11, value_parser = count(1..=prefill::MAX_RUNS))]
    runs: usize,
    #[command(flatten)]
    bench: BenchArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct SummarizeArgs {
    #[command(flatten)]
    models: ComparedModels,
    /// Documents per batch. Several batch sizes are measured one after the other.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,8",
        value_parser = count(1..=summaries::MAX))]
    batch: Vec<usize>,
    /// Tokens per document.
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = count(2..=1 << 24))]
    source: usize,
    /// Tokens per summary.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = count(2..=1 << 24))]
    tokens: usize,
    /// Timed runs of each model, in the order A B A B …, after one warm-up run of each.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = count(1..=summaries::MAX))]
    pairs: usize,
    #[command(flatten)]
    bench: BenchArgs,
}

/// Decoding plans: every batch size with every context length and every boundary wait.
#[derive(Debug, clap::Args)]
struct PlanArgs {
    /// Rows per step. Several batch sizes are measured one after the other.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1",
        value_parser = count(1..=decode::MAX_BATCH))]
    batch: Vec<usize>,
    /// Symbols in each row before the first timed step. Several lengths are measured one after the other.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "512", value_parser = count(0..=MAX_SYMBOLS))]
    context: Vec<usize>,
    /// Timed steps, after a few warm-up steps.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = count(1..=decode::MAX_STEPS))]
    steps: usize,
    /// Maximum steps that a row waits after its segment closed, to share the segment step with other rows. Several values are
    /// measured one after the other.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [BOUNDARY_WAIT],
        value_parser = count(0..=MAX_BOUNDARY_WAIT))]
    boundary_wait: Vec<usize>,
}

impl PlanArgs {
    /// Lists the plans in the order of measurement.
    fn plans(&self) -> Vec<DecodePlan> {
        let mut plans = Vec::new();
        for &context in &self.context {
            for &batch in &self.batch {
                for &boundary_wait in &self.boundary_wait {
                    plans.push(DecodePlan { batch, context, steps: self.steps, boundary_wait });
                }
            }
        }
        plans
    }
}

pub(super) fn run_decode(args: &DecodeArgs) -> Result<()> {
    let plans = args.plans.plans();
    let compute = &args.bench.compute;
    let entries = compute.measure(&args.checkpoint, &plans, DecodePlan::check, decode::measure)?;
    args.bench.print(&entries, table::decode)
}

pub(super) fn run_prefill(args: &PrefillArgs) -> Result<()> {
    let PrefillArgs { chunk, runs, .. } = *args;
    let plans: Vec<_> = args.symbols.iter().map(|&symbols| PrefillPlan { symbols, chunk, runs }).collect();
    let compute = &args.bench.compute;
    let entries = compute.measure(&args.checkpoint, &plans, PrefillPlan::check, prefill::measure)?;
    args.bench.print(&entries, table::prefill)
}

pub(super) fn run_compare(args: &CompareArgs) -> Result<()> {
    let check = |plan: &DecodePlan, model: &dyn Model| plan.check(model.card());
    let plans = args.plans.plans();
    let compute = &args.bench.compute;
    let compare = |models: [&dyn Model; 2], plan, machine: &Machine, report: &mut dyn FnMut(usize)| {
        compare::compare(models, plan, args.pairs, machine, report)
    };
    let entries = compute.compare(args.models.sources()?, &plans, args.pairs, check, compare)?;
    args.bench.print(&entries, table::compare)
}

pub(super) fn run_summarize(args: &SummarizeArgs) -> Result<()> {
    let SummarizeArgs { source, tokens, pairs, .. } = *args;
    let plans: Vec<_> = args.batch.iter().map(|&batch| SummaryBenchPlan { batch, source, tokens, pairs }).collect();
    let compute = &args.bench.compute;
    let entries =
        compute.compare(args.models.sources()?, &plans, pairs, SummaryBenchPlan::check, summaries::compare)?;
    args.bench.print(&entries, table::summaries)
}

#[derive(Debug, clap::Args)]
pub(super) struct KernelsArgs {
    /// Minimum seconds per measurement.
    #[arg(long, value_name = "S", default_value_t = 0.2)]
    seconds: f64,
    /// Size of the weights in f32, in units of 10⁶ bytes. Matrices take turns, so that weights are read from memory, not caches.
    #[arg(long, value_name = "MB", default_value_t = 160, value_parser = count(1..=kernels::MAX_MEGABYTES))]
    megabytes: usize,
    #[command(flatten)]
    bench: BenchArgs,
}

pub(super) fn run_kernels(args: &KernelsArgs) -> Result<()> {
    let plan = KernelPlan { seconds: args.seconds, megabytes: args.megabytes };
    let compute = &args.bench.compute;
    plan.check()?;
    free_bytes().map_or(Ok(()), |bytes| plan.check_memory(&compute.dtype, bytes))?;
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let entries = measure_each(compute.threads(), |threads| {
        let pool = ThreadPool::new(threads.map_or_else(cores, usize::from)).into();
        let machine = Machine { compute: Compute { isa: compute.isa(), pool } };
        kernels::measure(&compute.dtype, plan, &machine)
    })?;
    args.bench.print(&entries.concat(), table::kernels)
}
