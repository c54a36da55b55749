//! What both programs do with any command line: empty variables, and the variable behind a value.

use clap::{
    Arg, ArgMatches, Command, Error,
    builder::Resettable,
    error::{ContextKind, ContextValue},
    parser::ValueSource,
};

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
    flags
        .extend(command.get_arguments().filter(is_from_variable).filter_map(|arg| Some((arg_name(arg), origin(arg)?))));
    if let Some((name, matches)) = matches.subcommand()
        && let Some(command) = command.find_subcommand(name)
    {
        collect(command, matches, flags);
    }
}

/// Adds to clap's error about a value the environment variable that the value comes from.
#[expect(clippy::disallowed_methods, reason = "clap does not say whether a wrong value came from the environment")]
pub fn with_variable(mut error: Error, command: &Command) -> Error {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) if !text.is_empty() => Some(text.as_str()),
        _ => None,
    };
    let (Some(flag), Some(value)) = (text(ContextKind::InvalidArg), text(ContextKind::InvalidValue)) else {
        return error;
    };
    let long = flag.split([' ', '=', '[']).next().and_then(|flag| flag.strip_prefix("--"));
    let variable = long.and_then(|long| variable_of(command, long));
    if let Some(name) = variable
        && std::env::var(&name).is_ok_and(|whole| whole.contains(value))
    {
        let tip = format!("the value comes from the environment variable {name}").into();
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
    error
}

/// Returns the variable of a flag of a command or its subcommands.
fn variable_of(command: &Command, long: &str) -> Option<String> {
    let flag = command.get_arguments().find(|arg| arg.get_long() == Some(long));
    let variable = flag.and_then(Arg::get_env).map(|name| name.display().to_string());
    variable.or_else(|| command.get_subcommands().find_map(|command| variable_of(command, long)))
}

fn origin(arg: &Arg) -> Option<String> {
    Some(format!(" (from {})", arg.get_env()?.display()))
}

/// Returns the name of an argument in messages.
fn arg_name(arg: &Arg) -> String {
    let value = || arg.get_value_names().and_then(<[_]>::first).map(ToString::to_string);
    arg.get_long().map(|long| format!("--{long}")).or_else(value).unwrap_or_else(|| arg.get_id().to_string())
}

/// Removes the empty environment variables from the flags of a command and of its subcommands. Otherwise they would be values.
pub fn without_empty(command: Command) -> Command {
    let command = command.mut_args(|arg| match arg.get_env().and_then(std::env::var_os) {
        Some(value) if value.is_empty() => arg.env(Resettable::Reset),
        _ => arg,
    });
    command.mut_subcommands(without_empty)
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
