//! The `weir-loadtest` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    weir_loadtest::cli::run(std::env::args_os())
}
