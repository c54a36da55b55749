//! The `weir` command: parse, run, exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    weir::cli::run(std::env::args_os())
}
