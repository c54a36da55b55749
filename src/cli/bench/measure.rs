//! A long stream, kernels without a model, and pictures of runs.

use super::{Common, Compute, Told, count, each, picture, table};
use crate::{
    error::Result,
    family::load::MAX_SYMBOLS,
    kernels::{self, ThreadPool},
    report::{
        self, endless,
        machine::{Machine, free_bytes},
    },
};
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(super) struct EndlessArgs {
    /// The checkpoint's folder.
    #[arg(long, value_name = "DIR", env = "WEIR_MODEL")]
    model: PathBuf,
    /// Symbols of the stream.
    #[arg(long, value_name = "N", default_value_t = 1_000_000,
        value_parser = count(2..=MAX_SYMBOLS), allow_negative_numbers = true)]
    symbols: usize,
    /// Parts of it that are told of.
    #[arg(long, value_name = "N", default_value_t = 10,
        value_parser = count(2..=endless::MAX_PARTS), allow_negative_numbers = true)]
    parts: usize,
    #[command(flatten)]
    compute: Compute,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct KernelsArgs {
    /// The least seconds of one measurement.
    #[arg(long, value_name = "S", default_value_t = 0.2, allow_negative_numbers = true)]
    seconds: f64,
    /// Cold weights: so many matrices take turns that in f32 they would fill this many times 10⁶ bytes.
    #[arg(long, value_name = "MB", default_value_t = 160,
        value_parser = count(1..=report::kernels::MAX_MEGABYTES), allow_negative_numbers = true)]
    megabytes: usize,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
pub(super) struct PlotArgs {
    /// What decode, compare, prefill or kernels printed with --json.
    #[arg(value_name = "FILE.json", required = true)]
    files: Vec<PathBuf>,
    /// Where the picture goes.
    #[arg(long, value_name = "FILE.svg")]
    out: PathBuf,
}

pub(super) fn run_endless(args: &EndlessArgs) -> Result<()> {
    let (plan, mut entries) = (endless::EndlessPlan { symbols: args.symbols, parts: args.parts }, Vec::new());
    for setup in args.compute.setups() {
        let ([model], machine) = setup.load([&args.model])?;
        plan.check(model.card())?;
        entries.extend(each(vec![plan], |plan| endless::measure(&*model, plan, &machine))?);
    }
    Told { json: args.json, plot: None }.tell(None, &entries, table::endless)
}

pub(super) fn run_kernels(args: &KernelsArgs) -> Result<()> {
    let Common { compute, told } = &args.common;
    let plan = report::kernels::KernelPlan { seconds: args.seconds, megabytes: args.megabytes };
    plan.check()?;
    if let Some(bytes) = free_bytes() {
        plan.check_memory(&compute.dtype, bytes)?;
    }
    let picture = told.picture()?;
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let entries = each(compute.threads(), |threads| {
        let pool = ThreadPool::new(threads.map_or_else(cores, usize::from)).into();
        let machine = Machine { compute: kernels::Compute { isa: compute.isa(), pool } };
        report::kernels::measure(&compute.dtype, plan, &machine)
    })?;
    told.tell(picture, &entries.concat(), table::kernels)
}

pub(super) fn run_plot(args: &PlotArgs) -> Result<()> {
    let sources = picture::saved(&args.files)?;
    picture::Picture::open(&args.out)?.write("FILE.json", &sources)
}
