//! Where the settings of `weir serve` come from: a flag, else the environment, else a file, else the default.
//!
//! The file's settings become the flags' defaults, so that one parser decides about all: whatever is a flag is a setting of
//! the file too.

use super::Cli;
use crate::config::{
    Origins,
    file::{Entry, Kind, read},
    parse_switch,
};
use clap::{
    Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches, builder::Resettable, parser::ValueSource,
};
use std::{ffi::OsString, fmt::Write, path::PathBuf};

/// The command that reads a file.
const SERVE: &str = "serve";
/// Flags that are about settings, and none themselves.
const ABOUT: [&str; 5] = ["config", "print-config", "check-config", "help", "version"];

/// What is known of the settings beside their values.
#[derive(Debug, Default)]
pub struct Sources {
    /// What is wrong with the file.
    pub problems: Vec<String>,
    /// Where the settings come from that were not given as flags.
    pub origins: Origins,
    /// All settings as a file would have them.
    pub shown: String,
}

/// Parses a command line, and the file that it names.
///
/// # Errors
/// What cannot be parsed; also a request for help.
pub(super) fn gather(arguments: &[OsString]) -> Result<(Cli, Sources), clap::Error> {
    let (command, mut sources) = (without_empty(Cli::command()), Sources::default());
    let mut matches = command.clone().try_get_matches_from(arguments)?;
    let mut entries = Vec::new();
    let file = matches.subcommand_matches(SERVE).and_then(|serve| serve.get_one::<PathBuf>("config"));
    if let Some(file) = file {
        (entries, sources.problems) = read(file, |key| setting(&command, key).map(kind));
        matches = with_defaults(command.clone(), &entries).try_get_matches_from(arguments)?;
    }
    if let Some(serve) = matches.subcommand_matches(SERVE) {
        settings(&command).for_each(|arg| sources.note(arg, serve, &entries));
    }
    Cli::from_arg_matches(&matches).map(|cli| (cli, sources))
}

/// A variable that is set to nothing is not set.
fn without_empty(command: Command) -> Command {
    command.mut_subcommand(SERVE, |serve| {
        serve.mut_args(|arg| match arg.get_env().and_then(std::env::var_os) {
            Some(value) if value.is_empty() => arg.env(Resettable::Reset),
            _ => arg,
        })
    })
}

fn settings(command: &Command) -> impl Iterator<Item = &Arg> {
    let serve = command.find_subcommand(SERVE);
    let flags = serve.into_iter().flat_map(Command::get_arguments);
    flags.filter(|arg| arg.get_long().is_some_and(|long| !ABOUT.contains(&long)))
}

fn setting<'a>(command: &'a Command, key: &str) -> Option<&'a Arg> {
    settings(command).find(|arg| arg.get_long() == Some(key))
}

/// What a flag's value is in a file, by how the flag is declared: what it takes is told by its value's name.
fn kind(arg: &Arg) -> Kind {
    let value = arg.get_value_names().and_then(<[_]>::first).map(|name| name.as_str());
    match (arg.get_action(), value) {
        (ArgAction::SetTrue, _) => Kind::Switch,
        (ArgAction::Append, _) => Kind::List,
        (_, Some("BOOL")) => Kind::Switch,
        (_, Some("N" | "SECONDS")) => Kind::Number,
        (_, Some("SIZE")) => Kind::Size,
        _ => Kind::Text,
    }
}

fn with_defaults(command: Command, entries: &[Entry]) -> Command {
    let given = entries.iter().filter(|entry| !entry.values.is_empty());
    given.fold(command, |command, entry| {
        let id = setting(&command, &entry.key).map(|arg| arg.get_id().clone());
        command.mut_subcommand(SERVE, |serve| match id {
            Some(id) => serve.mut_arg(id, |arg| arg.default_values(entry.values.iter().cloned())),
            None => serve,
        })
    })
}

impl Sources {
    /// Notes where a setting comes from, and how it looks in a file.
    fn note(&mut self, arg: &Arg, serve: &ArgMatches, entries: &[Entry]) {
        let long = arg.get_long().unwrap_or_default();
        let entry = entries.iter().find(|entry| entry.key == long);
        let origin = match (serve.value_source(arg.get_id().as_str()), entry) {
            (Some(ValueSource::CommandLine), _) => Some(format!("--{long}")),
            (Some(ValueSource::EnvVariable), _) => arg.get_env().map(|name| name.display().to_string()),
            (Some(ValueSource::DefaultValue), Some(entry)) => Some(entry.origin.clone()),
            _ => None,
        };
        let given: Vec<_> = serve
            .get_raw(arg.get_id().as_str())
            .into_iter()
            .flatten()
            .map(|value| value.to_string_lossy().into_owned())
            .collect();
        let comment = origin.as_ref().map(|origin| format!(" # {origin}")).unwrap_or_default();
        // Writing to a string does not fail.
        let _ = match given.as_slice() {
            [] => writeln!(self.shown, "# {long}: not set"),
            _ if arg.is_hide_env_values_set() => writeln!(self.shown, "# {long}: set, a secret{comment}"),
            given => writeln!(self.shown, "{long} = {}{comment}", written(kind(arg), given)),
        };
        if let Some(origin) = origin.filter(|origin| !origin.starts_with("--")) {
            self.origins.insert(format!("--{long}"), origin);
        }
    }
}

/// Values as TOML.
fn written(kind: Kind, values: &[String]) -> String {
    // A string of JSON is one of TOML.
    let quoted = |value: &String| serde_json::Value::from(value.as_str()).to_string();
    let plain = |value: &String| match kind {
        Kind::Number | Kind::Size if value.parse::<i64>().is_ok() => value.clone(),
        Kind::Switch => parse_switch(value).map_or_else(|| quoted(value), |on| on.to_string()),
        _ => quoted(value),
    };
    match kind {
        Kind::List => format!("[{}]", values.iter().map(quoted).collect::<Vec<_>>().join(", ")),
        _ => values.iter().map(plain).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_marked() {
        let command = Cli::command();
        for arg in settings(&command) {
            let long = arg.get_long().unwrap();
            let named = ["token", "secret", "password"].iter().any(|word| long.contains(word));
            assert!(!named || arg.is_hide_env_values_set() || long.ends_with("-file"), "--{long} would be shown");
        }
    }

    #[test]
    fn values_are_written_as_toml() {
        let written = |kind, values: &[&str]| written(kind, &values.iter().map(|&v| v.to_owned()).collect::<Vec<_>>());
        assert_eq!(written(Kind::Number, &["8"]), "8");
        assert_eq!(written(Kind::Number, &["eight"]), "\"eight\"");
        assert_eq!(written(Kind::Size, &["2GiB"]), "\"2GiB\"");
        assert_eq!(written(Kind::List, &["a", "b\"c"]), r#"["a", "b\"c"]"#);
        for (given, on) in [("true", "true"), ("yes", "true"), ("0", "false"), ("maybe", "\"maybe\"")] {
            assert_eq!(written(Kind::Switch, &[given]), on);
        }
        assert_eq!(written(Kind::Text, &["1"]), "\"1\"");
    }
}
