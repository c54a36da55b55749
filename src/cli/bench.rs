//! `weir bench`: how fast a model is on this machine, beside what the machine can do. What is measured: docs/performance.md.

mod table;

use super::{model::ComputeArgs, output, progress::Progress};
use crate::{
    decode::{contract::Model, gather::BOUNDARY_WAIT},
    error::{Error, Result},
    family::load::{Settings, load},
    report::{compare, decode, machine::Machine, prefill},
};
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
    #[arg(long, value_name = "N", default_value_t = 10)]
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
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "512")]
    symbols: Vec<usize>,
    /// Symbols a step.
    #[arg(long, value_name = "N", default_value_t = 512)]
    chunk: usize,
    /// Timed runs, after one that is not timed.
    #[arg(long, value_name = "N", default_value_t = 11)]
    runs: usize,
    #[command(flatten)]
    common: Common,
}

/// What is decoded: every batch with every context and every wait.
#[derive(Debug, clap::Args)]
struct PlanArgs {
    /// Rows of a step; several are measured one after the other.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    batch: Vec<usize>,
    /// Symbols that each row holds before the first timed step; several are measured one after the other.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "512")]
    context: Vec<usize>,
    /// Timed steps, after a few that are not timed.
    #[arg(long, value_name = "N", default_value_t = 256)]
    steps: usize,
    /// Steps that a row whose segment ended may wait for others, to share a step of the middle layers; several are measured
    /// one after the other.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [BOUNDARY_WAIT])]
    boundary_wait: Vec<usize>,
}

#[derive(Debug, clap::Args)]
struct Common {
    #[command(flatten)]
    compute: ComputeArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
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
    }
}

impl PlanArgs {
    /// In the order in which they are measured; all are checked before the first one is.
    fn plans(&self, models: &[&dyn Model]) -> Result<Vec<decode::Plan>> {
        let (steps, mut plans) = (self.steps, Vec::new());
        for &context in &self.context {
            for &batch in &self.batch {
                let waits = self.boundary_wait.iter();
                plans.extend(waits.map(|&boundary_wait| decode::Plan { batch, context, steps, boundary_wait }));
            }
        }
        for plan in &plans {
            models.iter().try_for_each(|model| plan.check(model.card()))?;
        }
        Ok(plans)
    }
}

impl Common {
    /// The models, which share their threads, and the machine that they run on.
    fn load<const N: usize>(&self, dirs: [&Path; N]) -> Result<([Arc<dyn Model>; N], Machine)> {
        let settings = self.compute.settings().with_threads();
        let Settings { isa, pool: Some(pool), .. } = settings.clone() else {
            return Err(Error::Internal("threads were started and are not there".into()));
        };
        let models = dirs.into_iter().map(|dir| load(dir, &settings)).collect::<Result<Vec<_>>>()?;
        let models = models.try_into().map_err(|_| Error::Internal("a model was lost".into()))?;
        Ok((models, Machine { isa, pool }))
    }

    fn tell<T: Serialize>(&self, entries: &[T], table: impl Fn(&[T]) -> String) -> Result<()> {
        if !self.json {
            return output::write(&table(entries));
        }
        let value = serde_json::to_value(entries).map_err(|error| Error::Internal(error.to_string()))?;
        output::json(&value)
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
    let ([model], machine) = args.common.load([&args.model])?;
    let plans = args.plans.plans(&[&*model])?;
    let entries = each(plans, |plan| decode::measure(&*model, plan, &machine))?;
    args.common.tell(&entries, table::decode)
}

fn run_prefill(args: &PrefillArgs) -> Result<()> {
    let ([model], machine) = args.common.load([&args.model])?;
    let PrefillArgs { chunk, runs, .. } = *args;
    let plans: Vec<_> = args.symbols.iter().map(|&symbols| prefill::Plan { symbols, chunk, runs }).collect();
    plans.iter().try_for_each(|plan| plan.check(model.card()))?;
    let entries = each(plans, |plan| prefill::measure(&*model, plan, &machine))?;
    args.common.tell(&entries, table::prefill)
}

fn run_compare(args: &CompareArgs) -> Result<()> {
    let ([a, b], machine) = args.common.load([&args.a, &args.b])?;
    let plans = args.plans.plans(&[&*a, &*b])?;
    compare::check(args.pairs)?;
    let (mut progress, total) = (Progress::measurements(), (plans.len() * args.pairs) as u64);
    let mut entries = Vec::with_capacity(plans.len());
    for (index, plan) in plans.into_iter().enumerate() {
        let mut tell = |pairs: usize| progress.tell((index * args.pairs + pairs) as u64, total);
        tell(0);
        entries.push(compare::compare([&*a, &*b], plan, args.pairs, &machine, &mut tell)?);
    }
    drop(progress);
    args.common.tell(&entries, table::compare)
}
