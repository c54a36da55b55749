//! `weir bench endless`, `kernels` and `plot`.

use crate::{
    cli::{
        bench::{
            picture,
            setup::{BenchArgs, TableBenchArgs, measure_each},
            table,
        },
        model::{CheckpointArgs, count},
    },
    report::{
        self, endless,
        machine::{Machine, free_bytes},
    },
};
use std::path::PathBuf;
use weir_kernels::{self, ThreadPool, error::Result};
use weir_models::load::MAX_SYMBOLS;

#[derive(Debug, clap::Args)]
pub(super) struct EndlessArgs {
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// Symbols of the stream.
    #[arg(long, value_name = "N", default_value_t = 1_000_000,
        value_parser = count(2..=MAX_SYMBOLS), allow_negative_numbers = true)]
    symbols: usize,
    /// Parts of the stream to report.
    #[arg(long, value_name = "N", default_value_t = 10,
        value_parser = count(2..=endless::MAX_PARTS), allow_negative_numbers = true)]
    parts: usize,
    #[command(flatten)]
    bench: TableBenchArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct KernelsArgs {
    /// Minimum seconds per measurement.
    #[arg(long, value_name = "S", default_value_t = 0.2, allow_negative_numbers = true)]
    seconds: f64,
    /// Size of the weights in f32, in units of 10⁶ bytes. Matrices take turns, so that weights are read from memory, not caches.
    #[arg(long, value_name = "MB", default_value_t = 160,
        value_parser = count(1..=report::kernels::MAX_MEGABYTES), allow_negative_numbers = true)]
    megabytes: usize,
    #[command(flatten)]
    bench: BenchArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct PlotArgs {
    /// Output of decode, compare, prefill or kernels with --json.
    #[arg(value_name = "FILE.json", required = true)]
    files: Vec<PathBuf>,
    /// SVG file to write.
    #[arg(long, value_name = "FILE.svg")]
    out: PathBuf,
}

pub(super) fn run_endless(args: &EndlessArgs) -> Result<()> {
    let plan = endless::EndlessPlan { symbols: args.symbols, parts: args.parts };
    let mut entries = Vec::new();
    for setup in args.bench.compute.setups() {
        let ([model], machine) = setup.load([args.checkpoint.argument()])?;
        plan.check(model.card())?;
        entries.extend(measure_each(vec![plan], |plan| endless::measure(&*model, plan, &machine))?);
    }
    args.bench.print(&entries, table::endless)
}

pub(super) fn run_kernels(args: &KernelsArgs) -> Result<()> {
    let BenchArgs { compute, output } = &args.bench;
    let plan = report::kernels::KernelPlan { seconds: args.seconds, megabytes: args.megabytes };
    plan.check()?;
    if let Some(bytes) = free_bytes() {
        plan.check_memory(&compute.dtype, bytes)?;
    }
    let picture = output.picture()?;
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let entries = measure_each(compute.threads(), |threads| {
        let pool = ThreadPool::new(threads.map_or_else(cores, usize::from)).into();
        let machine = Machine { compute: weir_kernels::Compute { isa: compute.isa(), pool } };
        report::kernels::measure(&compute.dtype, plan, &machine)
    })?;
    output.print(picture, &entries.concat(), table::kernels)
}

pub(super) fn run_plot(args: &PlotArgs) -> Result<()> {
    let sources = picture::read_all(&args.files)?;
    picture::Picture::open(&args.out)?.write("FILE.json", &sources)
}
