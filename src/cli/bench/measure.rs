//! Kernels without a model, and pictures of runs.

use super::{Common, count, each, picture, table};
use crate::{
    error::Result,
    kernels::{self, Isa, Pool},
    report::{
        self,
        machine::{Machine, free_bytes},
    },
};
use std::path::PathBuf;

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

pub(super) fn run_kernels(args: &KernelsArgs) -> Result<()> {
    let Common { compute, told } = &args.common;
    let plan = report::kernels::Plan { seconds: args.seconds, megabytes: args.megabytes };
    plan.check()?;
    if let Some(bytes) = free_bytes() {
        plan.check_memory(&compute.dtype, bytes)?;
    }
    let picture = told.picture()?;
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let entries = each(compute.threads(), |threads| {
        let pool = Pool::new(threads.map_or_else(cores, usize::from)).into();
        let machine = Machine { compute: kernels::Compute { isa: Isa::detect(), pool } };
        report::kernels::measure(&compute.dtype, plan, &machine)
    })?;
    told.tell(picture, &entries.concat(), table::kernels)
}

pub(super) fn run_plot(args: &PlotArgs) -> Result<()> {
    let sources = picture::saved(&args.files)?;
    picture::Picture::open(&args.out)?.write("FILE.json", &sources)
}
