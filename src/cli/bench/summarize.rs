//! `weir bench summarize`: two models read documents and write about them, in turns.

use super::{Compute, Told, count, table};
use crate::{cli::progress::Progress, error::Result, report::summaries};
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(super) struct SummarizeArgs {
    /// The checkpoint whose speed is told in units of the other's.
    #[arg(value_name = "DIR_A")]
    a: PathBuf,
    /// The other checkpoint, such as the same shape without pooling.
    #[arg(value_name = "DIR_B")]
    b: PathBuf,
    /// Documents that are written about side by side; several are measured one after the other.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,8",
        value_parser = count(1..=summaries::MAX), allow_negative_numbers = true)]
    batch: Vec<usize>,
    /// Tokens of a document.
    #[arg(long, value_name = "N", default_value_t = 8192,
        value_parser = count(2..=1 << 24), allow_negative_numbers = true)]
    source: usize,
    /// Tokens that are written about each.
    #[arg(long, value_name = "N", default_value_t = 512,
        value_parser = count(2..=1 << 24), allow_negative_numbers = true)]
    tokens: usize,
    /// Runs of each model, A B A B …, after one of each that is not timed.
    #[arg(long, value_name = "N", default_value_t = 3,
        value_parser = count(1..=summaries::MAX), allow_negative_numbers = true)]
    pairs: usize,
    #[command(flatten)]
    compute: Compute,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run_summarize(args: &SummarizeArgs) -> Result<()> {
    let SummarizeArgs { source, tokens, pairs, .. } = *args;
    let mut entries = Vec::new();
    for setup in args.compute.setups() {
        let ([a, b], machine) = setup.load([&args.a, &args.b])?;
        let (mut progress, total) = (Progress::measurements(), (args.batch.len() * pairs) as u64);
        for (index, &batch) in args.batch.iter().enumerate() {
            let plan = summaries::SummaryPlan { batch, source, tokens, pairs };
            let mut tell = |done: usize| progress.tell((index * pairs + done) as u64, total);
            entries.push(summaries::compare([&*a, &*b], plan, &machine, &mut tell)?);
        }
    }
    Told { json: args.json, plot: None }.tell(None, &entries, table::summaries)
}
