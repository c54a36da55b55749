//! `weir completions`: prints the completions of a shell.

use super::output;
use crate::error::{Error, Result};
use clap::Command;
use clap_complete::Shell;

/// Prints the completions of a shell. The shell reads them from a file; `docs/getting-started.md` lists where.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Shell.
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

/// Prints the completions of `command`. Fails if stdout cannot be written.
pub fn run(args: &Args, mut command: Command) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "weir", &mut script);
    let script = String::from_utf8(script).map_err(|error| Error::Internal(format!("completions: {error}")))?;
    output::write(&script)
}
