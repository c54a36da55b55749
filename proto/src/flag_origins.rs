//! Adds the environment variable to a message about a flag whose value comes from it.

use clap::{Arg, ArgMatches, Command, parser::ValueSource};
use std::ffi::OsString;

/// The flags whose values come from environment variables.
#[derive(Debug, Clone, Default)]
pub struct FlagOrigins {
    /// The flag, and the end of its name in messages: ` (from WEIR_ROWS)`.
    flags: Vec<(String, String)>,
}

impl FlagOrigins {
    /// Finds the flags among the arguments of a command and of the subcommands that `matches` selects.
    pub fn of(command: &Command, matches: &ArgMatches) -> Self {
        let mut flags = Vec::new();
        collect(command, matches, &mut flags);
        Self { flags }
    }

    /// Returns a message with the variable after the name of the flag that it is about.
    pub fn explain(&self, message: &str) -> String {
        self.flags.iter().fold(message.to_owned(), |message, (flag, origin)| {
            let named = format!("{flag}: ");
            if let Some(rest) = message.strip_prefix(&named) {
                return format!("{flag}{origin}: {rest}");
            }
            // The name may follow the address of a server.
            message.replacen(&format!(": {named}"), &format!(": {flag}{origin}: "), 1)
        })
    }
}

fn collect(command: &Command, matches: &ArgMatches, flags: &mut Vec<(String, String)>) {
    let is_from_variable = |arg: &&Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::EnvVariable);
    flags.extend(command.get_arguments().filter(is_from_variable).filter_map(|arg| Some((name(arg), origin(arg)?))));
    if let Some((name, matches)) = matches.subcommand()
        && let Some(command) = command.find_subcommand(name)
    {
        collect(command, matches, flags);
    }
}

/// Returns the suffix ` (from VARIABLE)` of an argument's name in messages. Empty unless the value comes from a variable and not
/// from `arguments`.
pub(crate) fn origin_of(arg: &Arg, arguments: &[OsString]) -> String {
    let is_set = arg.get_env().is_some_and(|variable| std::env::var_os(variable).is_some());
    let names: Vec<_> = arg.get_long_and_visible_aliases().unwrap_or_default();
    let is_given = arguments.iter().filter_map(|word| word.to_str()?.strip_prefix("--")).any(|word| {
        let word = word.split('=').next().unwrap_or(word);
        names.contains(&word)
    });
    // A value without a flag could be any word.
    if names.is_empty() || is_given || !is_set { String::new() } else { origin(arg).unwrap_or_default() }
}

fn origin(arg: &Arg) -> Option<String> {
    Some(format!(" (from {})", arg.get_env()?.display()))
}

/// Returns the name of an argument in messages.
fn name(arg: &Arg) -> String {
    let value = || arg.get_value_names().and_then(<[_]>::first).map(ToString::to_string);
    arg.get_long().map(|long| format!("--{long}")).or_else(value).unwrap_or_else(|| arg.get_id().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_follows_the_flag() {
        let flags = vec![("--max-chars".to_owned(), " (from WEIR_MAX_CHARS)".to_owned())];
        let origins = FlagOrigins { flags };
        for (message, expected) in [
            ("--max-chars: expected 1", "--max-chars (from WEIR_MAX_CHARS): expected 1"),
            ("h:1: --max-chars: expected 1", "h:1: --max-chars (from WEIR_MAX_CHARS): expected 1"),
            ("--min-chars: expected --max-chars", "--min-chars: expected --max-chars"),
        ] {
            assert_eq!(origins.explain(message), expected);
        }
    }
}
