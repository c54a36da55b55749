//! `weir bench`: measures the speed of models on this machine, and compares it with the machine's limits. The
//! modules of `report` describe the measurements.

mod documents;
mod setup;
mod speed;
mod table;

use weir_kernels::error::Result;

/// Measures speed.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Debug, clap::Subcommand)]
enum BenchCommand {
    /// Decoding: each step feeds one symbol of bundled English text to every row and computes its logits.
    Decode(speed::DecodeArgs),
    /// Prefill: feeds a fresh sequence many symbols per step.
    Prefill(speed::PrefillArgs),
    /// Decoding with two models in alternating runs: speed of A ÷ speed of B.
    Compare(speed::CompareArgs),
    /// Summaries by two models in alternating runs: encoding time per layer, time per token, total time, and the share of the
    /// encoding that overlaps with the upload.
    Summarize(speed::SummarizeArgs),
    /// Given documents by two models in alternating runs: share of each document that is kept, encoding time, time per token, and bytes
    /// of cross-attention.
    Documents(documents::DocumentsArgs),
    /// Single kernels, without a model.
    Kernels(speed::KernelsArgs),
}

/// Runs the command. Fails if a checkpoint or an option is invalid, or if an output file cannot be written.
pub fn run(args: Args) -> Result<()> {
    match args.command {
        BenchCommand::Decode(args) => speed::run_decode(&args),
        BenchCommand::Prefill(args) => speed::run_prefill(&args),
        BenchCommand::Compare(args) => speed::run_compare(&args),
        BenchCommand::Summarize(args) => speed::run_summarize(&args),
        BenchCommand::Documents(args) => documents::run(&args),
        BenchCommand::Kernels(args) => speed::run_kernels(&args),
    }
}
