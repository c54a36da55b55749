//! The `weir` command: parse, run, exit code.

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    weir::cli::run(weir::cli::Cli::parse())
}
