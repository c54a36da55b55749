//! `weir man`: writes the manual pages of all commands.

use crate::error::{Error, Result};
use clap::Command;
use std::{fs, path::PathBuf};

/// Writes the manual pages of all commands to a folder: `weir.1`, `weir-serve.1` and so on.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder. Created if it does not exist.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Writes the pages of `command` and its subcommands. Fails if the folder or a file in it cannot be written.
pub fn run(args: &Args, command: Command) -> Result<()> {
    let Args { folder } = args;
    fs::create_dir_all(folder).map_err(Error::io(folder))?;
    clap_mangen::generate_to(command, folder).map_err(Error::io(folder))
}
