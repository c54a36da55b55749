//! Replaces names of request fields in errors with the flags that set them.

use crate::cli::model::IN_PROCESS;
use clap::Command;
use std::{collections::BTreeSet, sync::OnceLock};
use weir_client::flags::is_on_command_line;
use weir_kernels::error::Error;

/// Methods and request fields, dotted as on the wire, and their commands and flags. Other fields with a dot have the flag of their last
/// part: `sampling.top_p` has `--top-p`.
pub(crate) const NAMES: [(&str, &str); 18] = [
    ("Generate", "`weir generate`"),
    ("Summarize", "`weir summarize`"),
    ("block_chars", "--block"),
    ("boundary_mode", "--boundary-mode"),
    ("boundary_threshold", "--boundary-threshold"),
    ("chunk.text", "--file"),
    ("model", "--model"),
    ("name", "--model"),
    ("normalise", "--normalise"),
    ("options.beam_size", "--beam"),
    ("options.max_tokens", "--max-len"),
    ("options.min_tokens", "--min-len"),
    ("options.sampling", "--temperature"),
    ("prompt", "--prompt"),
    ("prompt_ids", "--ids"),
    ("threshold", "--threshold"),
    ("windows.length", "--windowed"),
    ("windows.stride", "--windowed"),
];

/// Returns the program with all its commands. Set before the first error, since commands use this module and it cannot use them.
pub(crate) static PROGRAM: OnceLock<fn() -> Command> = OnceLock::new();

/// Returns the flags of all commands, with their dashes.
fn flags() -> Option<&'static BTreeSet<String>> {
    static FLAGS: OnceLock<BTreeSet<String>> = OnceLock::new();
    let program = PROGRAM.get()?;
    Some(FLAGS.get_or_init(|| {
        let command = program();
        let arguments = command.get_subcommands().flat_map(|subcommand| subcommand.get_arguments());
        arguments.filter_map(|flag| Some(format!("--{}", flag.get_long()?))).collect()
    }))
}

/// Flags with another name, each with that.
pub(crate) const ALIASES: [(&str, &str); 6] = [
    ("--boundary-threshold", "--patching-threshold"),
    ("--max-chars", "--max-tokens"),
    ("--max-len", "--max-new-tokens"),
    ("--max-len", "--max-tokens"),
    ("--min-len", "--min-new-tokens"),
    ("--no-repeat-ngram", "--no-repeat-ngram-size"),
];

/// Returns the name by which the user gave a flag.
fn as_given(flag: &'static str) -> &'static str {
    ALIASES.iter().find(|(main, alias)| *main == flag && is_on_command_line(alias)).map_or(flag, |(_, alias)| alias)
}

/// Returns the flag or the command that sets a field or calls a method of the gRPC API.
fn own_name(name: &'static str) -> &'static str {
    // An element of a list has the flag of the list.
    let list = name.split_once('[').map_or(name, |(list, _)| list);
    if let Some((_, own)) = NAMES.iter().find(|(field, _)| *field == list) {
        return as_given(own);
    }
    let flag = list.rsplit_once('.').map(|(_, last)| format!("--{}", last.replace('_', "-")));
    flag.and_then(|flag| flags()?.get(&flag)).map_or(name, |flag| as_given(flag))
}

/// Returns an error's message with flag names in place of field names, and commands in place of methods. The server in this process
/// has no name in it.
pub(super) fn message(error: Error) -> String {
    match with_flag_names(error) {
        Error::Remote { server, answer } if server == IN_PROCESS => answer,
        Error::Refused { server, error } if server == IN_PROCESS => error.to_string(),
        other => other.to_string(),
    }
}

pub(crate) fn with_flag_names(error: Error) -> Error {
    error.named(own_name)
}

/// Returns the error with the name `flag` in place of `name`, for a field that several flags set.
pub(super) fn with_flag(error: Error, name: &str, flag: &'static str) -> Error {
    error.named(|field| if field == name { flag } else { field })
}
