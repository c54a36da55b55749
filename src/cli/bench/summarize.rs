//! `weir bench summarize`: two models summarize documents in alternating runs.

use super::{
    setup::{BenchCompute, BenchOutput},
    table,
};
use crate::{
    cli::{model::count, progress::Progress},
    error::Result,
    report::summaries,
};
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(super) struct SummarizeArgs {
    /// Checkpoint A, whose speed is reported relative to checkpoint B.
    #[arg(value_name = "DIR_A")]
    a: PathBuf,
    /// Checkpoint B, for example the same shape without pooling.
    #[arg(value_name = "DIR_B")]
    b: PathBuf,
    /// Documents per batch. Several batch sizes are measured one after the other.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,8",
        value_parser = count(1..=summaries::MAX), allow_negative_numbers = true)]
    batch: Vec<usize>,
    /// Tokens per document.
    #[arg(long, value_name = "N", default_value_t = 8192,
        value_parser = count(2..=1 << 24), allow_negative_numbers = true)]
    source: usize,
    /// Tokens per summary.
    #[arg(long, value_name = "N", default_value_t = 512,
        value_parser = count(2..=1 << 24), allow_negative_numbers = true)]
    tokens: usize,
    /// Timed runs of each model, in the order A B A B …, after one warm-up run of each.
    #[arg(long, value_name = "N", default_value_t = 3,
        value_parser = count(1..=summaries::MAX), allow_negative_numbers = true)]
    pairs: usize,
    #[command(flatten)]
    compute: BenchCompute,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run_summarize(args: &SummarizeArgs) -> Result<()> {
    let SummarizeArgs { source, tokens, pairs, .. } = *args;
    let mut entries = Vec::new();
    for setup in args.compute.setups() {
        let ([a, b], machine) = setup.load([&args.a, &args.b])?;
        let mut progress = Progress::measurements();
        let total = (args.batch.len() * pairs) as u64;
        for (index, &batch) in args.batch.iter().enumerate() {
            let plan = summaries::SummaryBenchPlan { batch, source, tokens, pairs };
            let mut report = |done: usize| progress.update((index * pairs + done) as u64, total);
            entries.push(summaries::compare([&*a, &*b], plan, &machine, &mut report)?);
        }
    }
    BenchOutput { json: args.json, plot: None }.print(None, &entries, table::summaries)
}
