//! `weir man`: writes the manual pages of all commands.

use crate::error::{Error, Result};
use clap::{Arg, Command};
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
    if folder.exists() && !folder.is_dir() {
        return Err(Error::Setting(format!("DIR: expected a folder, found the file {}", folder.display())));
    }
    let failed = |error| Error::Setting(format!("DIR: cannot write {}: {error}", folder.display()));
    fs::create_dir_all(folder).map_err(failed)?;
    clap_mangen::generate_to(with_aliases(command), folder).map_err(failed)
}

/// Adds the other names of each flag to its help, because the generator of pages omits them.
fn with_aliases(command: Command) -> Command {
    command.mut_args(with_alias).mut_subcommands(with_aliases)
}

fn with_alias(arg: Arg) -> Arg {
    let Some(aliases) = arg.get_visible_aliases().filter(|aliases| !aliases.is_empty()) else { return arg };
    let names: Vec<_> = aliases.iter().map(|alias| format!("--{alias}")).collect();
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let help = format!("{help} Other names: {}.", names.join(", "));
    arg.long_help(help)
}
