//! `weir bench resume`: time to the first character with and without a cached prefix, measured by a gRPC client.

use super::{
    served::LoopbackServer,
    setup::{BenchCompute, BenchOutput, Setup, measure_each},
    table,
};
use crate::{
    cli::model::count,
    engine::{Handle, Limits},
    error::Result,
    family::load::MAX_SYMBOLS,
    report::{
        machine::MeasuredModel,
        prefill::MAX_RUNS,
        resume::{ResumeMeasurement, ResumePlan, TimedAnswer},
    },
    serve::client::streams::PromptRequest,
};
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(super) struct ResumeArgs {
    /// Checkpoint folder.
    #[arg(long, value_name = "DIR", env = "WEIR_MODEL")]
    model: PathBuf,
    /// Symbols of the prefix that the two prompts of a pair share. Several lengths are measured one after the other.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "512",
        value_parser = count(1..=MAX_SYMBOLS), allow_negative_numbers = true)]
    context: Vec<usize>,
    /// Symbols of each prompt after the shared prefix.
    #[arg(long, value_name = "N", default_value_t = 32, allow_negative_numbers = true,
        value_parser = count(1..=MAX_SYMBOLS))]
    more: usize,
    /// Prompt symbols per step.
    #[arg(long, value_name = "N", default_value_t = Limits::default().chunk,
        value_parser = count(1..=MAX_SYMBOLS), allow_negative_numbers = true)]
    chunk: usize,
    /// Timed pairs of a cold and a resumed prompt, after one warm-up pair.
    #[arg(long, value_name = "N", default_value_t = 11,
        value_parser = count(1..=MAX_RUNS), allow_negative_numbers = true)]
    runs: usize,
    #[command(flatten)]
    compute: BenchCompute,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run_resume(args: &ResumeArgs) -> Result<()> {
    let ResumeArgs { more, runs, .. } = *args;
    let plans: Vec<_> = args.context.iter().map(|&context| ResumePlan { context, more, runs }).collect();
    let mut entries = Vec::new();
    for setup in args.compute.setups() {
        entries.extend(measure(setup, args, &plans)?);
    }
    BenchOutput { json: args.json, plot: None }.print(None, &entries, table::resume)
}

fn measure(setup: Setup, args: &ResumeArgs, plans: &[ResumePlan]) -> Result<Vec<ResumeMeasurement>> {
    let ([model], machine) = setup.load([&args.model])?;
    let card = model.card();
    plans.iter().try_for_each(|plan| plan.check(card))?;
    // Each length gets an engine of its own, because prompts of different lengths may share prefixes.
    measure_each(plans.to_vec(), |plan| {
        let cache_bytes = model.memory().limit / 2;
        let limits = Limits { chunk: args.chunk, cache_bytes, ..Limits::default() };
        let mut served = LoopbackServer::start(Handle::start(model.clone(), limits)?)?;
        let mut pair = |number| -> Result<[TimedAnswer; 2]> {
            let [cold, resumed] = plan.prompts(card, number);
            Ok([first_char(&mut served, cold)?, first_char(&mut served, resumed)?])
        };
        pair(0)?;
        let pairs = (1..=plan.runs).map(pair).collect::<Result<Vec<_>>>()?;
        ResumeMeasurement::new(MeasuredModel::new(card, &machine), card, plan, args.chunk, &pairs)
    })
}

/// Requests one character.
fn first_char(served: &mut LoopbackServer, prompt: String) -> Result<TimedAnswer> {
    let read = served.request(&[PromptRequest { prompt, seed: 1, chars: 1 }])?;
    Ok(TimedAnswer { ns: read.ns as f64, cached_chars: read.cached_chars })
}
