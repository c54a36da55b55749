//! The command line, one file a subcommand. Data goes to stdout, everything else to stderr.

pub mod bench;
pub mod convert;
pub mod generate;
pub mod init;
pub mod inspect;
pub mod model;
pub mod output;
pub mod progress;
pub mod score;
pub mod segment;
pub mod serve;

use crate::error::Error;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Inference server for character- and byte-level language models that pool their own input.
#[derive(Debug, Parser)]
#[command(name = "weir", version, propagate_version = true, max_term_width = 120)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve models over gRPC.
    Serve(serve::Args),
    /// Generate text from a prompt.
    Generate(generate::Args),
    /// Score a text: bits per character, boundaries, log-probabilities, logits.
    Score(score::Args),
    /// Show where a text's segments end.
    Segment(segment::Args),
    /// Convert an official checkpoint into weir's format.
    Convert(convert::Args),
    /// Make a checkpoint of a given shape with random weights.
    Init(init::Args),
    /// Check a checkpoint and tell what is in it.
    Inspect(inspect::Args),
    /// Measure speed, beside what this machine can do.
    Bench(bench::Args),
}

/// Runs a command; tells its error on stderr.
pub fn run(cli: Cli) -> ExitCode {
    let result = match cli.command {
        Command::Serve(args) => serve::run(args),
        Command::Generate(args) => generate::run(args),
        Command::Score(args) => score::run(args),
        Command::Segment(args) => segment::run(args),
        Command::Convert(args) => convert::run(args),
        Command::Init(args) => init::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Bench(args) => bench::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // a reader such as `head` has seen enough
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weir: {error}");
            ExitCode::FAILURE
        }
    }
}
