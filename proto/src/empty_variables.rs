//! Empty environment variables, which count as unset.

use clap::{Command, builder::Resettable};

/// Removes the empty environment variables from the flags of a command and of its subcommands. Otherwise they would be values.
pub fn without_empty(command: Command) -> Command {
    let command = command.mut_args(|arg| match arg.get_env().and_then(std::env::var_os) {
        Some(value) if value.is_empty() => arg.env(Resettable::Reset),
        _ => arg,
    });
    command.mut_subcommands(without_empty)
}
