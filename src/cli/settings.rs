//! Settings of `weir serve`. A flag overrides the environment, which overrides the settings file, which overrides the default.
//!
//! The file's values become the defaults of the flags, so one parser checks all of them and every flag is also a key of the file.

use crate::cli::command::Cli;
use crate::cli::model::IN_PROCESS_FLAGS;
use crate::cli::serve::{SecretFlag, SettingSources};
use clap::{
    Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches, error::ErrorKind, parser::ValueSource,
};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use weir_client::flags::{FlagOrigins, without_empty};
use weir_server::config::file::{FileSetting, ValueKind, read};
use weir_server::config::parse_switch;

/// The command that reads a settings file.
const SERVE: &str = "serve";

/// The flag that names checkpoints, and the arguments without a flag that name more.
const MODEL: (&str, &str) = ("model", "checkpoints");

/// A flag, and the older name of its variable.
const OLD_VARIABLE: (&str, &str) = ("unpooled_baselines", "WEIR_UNPOOLED_TWINS");

/// Flags that are not settings themselves.
const NOT_SETTINGS: [&str; 5] = ["config", "print-config", "check-config", "help", "version"];

/// Parses a command line and the settings file that it names. Returns clap's error for invalid arguments. For `--help`
/// and `--version`, that error holds the text to print.
pub(super) fn parse(arguments: &[OsString]) -> Result<(Cli, SettingSources), clap::Error> {
    let command = with_old_variable(without_empty(Cli::command()));
    let arguments = &with_joined_switches(&command, arguments);
    let mut sources = SettingSources::default();
    let mut matches = command.clone().try_get_matches_from(arguments)?;
    let mut entries = Vec::new();
    let file = matches.subcommand_matches(SERVE).and_then(|serve| serve.get_one::<PathBuf>("config"));
    if let Some(file) = file {
        (entries, sources.problems) = read(file, |key| setting(&command, key).map(kind));
        matches = with_defaults(command.clone(), &entries).try_get_matches_from(arguments)?;
    }
    if let Some(serve) = matches.subcommand_matches(SERVE) {
        settings(&command).for_each(|arg| record(&mut sources, arg, serve, &entries));
    }
    // `command` lacks variables that are empty.
    record_secrets(&mut sources, &Cli::command(), &matches);
    check_in_process_flags(&command, &matches)?;
    sources.flag_origins = FlagOrigins::of(&command, &matches);
    Cli::from_arg_matches(&matches).map(|cli| (cli, sources))
}

/// Joins values of switches to their flags: `--late-headers false` is `--late-headers=false`, because `false` is no checkpoint.
fn with_joined_switches(command: &Command, arguments: &[OsString]) -> Vec<OsString> {
    let mut joined: Vec<OsString> = Vec::with_capacity(arguments.len());
    for argument in arguments {
        let is_value = argument.to_str().and_then(parse_switch).is_some();
        let flag = joined.last().and_then(|last| setting(command, last.to_str()?.strip_prefix("--")?));
        let takes_value = is_value && flag.is_some_and(Arg::is_require_equals_set);
        match joined.last_mut().filter(|_| takes_value) {
            Some(flag) => {
                flag.push("=");
                flag.push(argument);
            }
            None => joined.push(argument.clone()),
        }
    }
    joined
}

/// Records the flags on the command line whose values are secrets, flags of subcommands included.
fn record_secrets(sources: &mut SettingSources, command: &Command, matches: &ArgMatches) {
    let secrets = command.get_arguments().filter(|arg| arg.is_hide_env_values_set());
    let given = secrets.filter(|arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine));
    sources.secret_flags.extend(given.filter_map(|arg| {
        let flag = format!("--{}", arg.get_long()?);
        Some(SecretFlag { flag, variable: arg.get_env()?.display().to_string() })
    }));
    if let Some((name, matches)) = matches.subcommand()
        && let Some(command) = command.find_subcommand(name)
    {
        record_secrets(sources, command, matches);
    }
}

/// Rejects flags of a model in this process if the command calls a server. Environment variables of such flags have no effect then,
/// because they may hold for other commands.
fn check_in_process_flags(command: &Command, matches: &ArgMatches) -> Result<(), clap::Error> {
    let Some((name, matches)) = matches.subcommand() else { return Ok(()) };
    let Some(command) = command.find_subcommand(name) else { return Ok(()) };
    let server = matches.try_get_one::<String>("server").ok().flatten();
    if server.is_none() {
        return Ok(());
    }
    let origin = match matches.value_source("server") {
        Some(ValueSource::EnvVariable) => "WEIR_SERVER",
        _ => "--server",
    };
    let is_given = |arg: &&Arg| {
        let id = arg.get_id().as_str();
        IN_PROCESS_FLAGS.contains(&id) && matches.value_source(id) == Some(ValueSource::CommandLine)
    };
    let Some(flag) = command.get_arguments().find(is_given).and_then(Arg::get_long) else { return Ok(()) };
    let message = format!(
        "--{flag}: expected no value next to {origin}, found one: it applies to a model that runs in this process (leave out {origin} \
         for that)"
    );
    Err(command.clone().bin_name(format!("weir {name}")).error(ErrorKind::ArgumentConflict, message))
}

fn settings(command: &Command) -> impl Iterator<Item = &Arg> {
    let serve = command.find_subcommand(SERVE);
    let flags = serve.into_iter().flat_map(Command::get_arguments);
    flags.filter(|arg| arg.get_long().is_some_and(|long| !NOT_SETTINGS.contains(&long)))
}

fn setting<'a>(command: &'a Command, key: &str) -> Option<&'a Arg> {
    settings(command).find(|arg| has_name(arg, key))
}

/// Returns true for a flag's name and for its older names.
fn has_name(arg: &Arg, key: &str) -> bool {
    arg.get_long() == Some(key) || arg.get_all_aliases().is_some_and(|older| older.contains(&key))
}

/// Lets a flag read its older variable if its own is unset.
fn with_old_variable(command: Command) -> Command {
    let (id, old) = OLD_VARIABLE;
    let is_set = |name: &OsStr| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if !is_set(OsStr::new(old)) {
        return command;
    }
    command.mut_subcommand(SERVE, |serve| {
        serve.mut_arg(id, |arg| if arg.get_env().is_some_and(is_set) { arg } else { arg.env(old) })
    })
}

/// Type of a flag's value in a settings file, derived from the flag's action and value name.
fn kind(arg: &Arg) -> ValueKind {
    let value = arg.get_value_names().and_then(<[_]>::first).map(|name| name.as_str());
    match (arg.get_action(), value) {
        (ArgAction::SetTrue, _) => ValueKind::Switch,
        (ArgAction::Append, _) => ValueKind::List,
        (_, Some("BOOL")) => ValueKind::Switch,
        (_, Some("N" | "SECONDS")) => ValueKind::Number,
        (_, Some("SIZE")) => ValueKind::Size,
        _ => ValueKind::Text,
    }
}

fn with_defaults(command: Command, entries: &[FileSetting]) -> Command {
    let set = entries.iter().filter(|entry| !entry.values.is_empty());
    set.fold(command, |command, entry| {
        let id = setting(&command, &entry.key).map(|arg| arg.get_id().clone());
        command.mut_subcommand(SERVE, |serve| match id {
            Some(id) => serve.mut_arg(id, |arg| arg.default_values(entry.values.iter().cloned())),
            None => serve,
        })
    })
}

/// Records where a setting comes from and its line of a settings file.
fn record(sources: &mut SettingSources, arg: &Arg, serve: &ArgMatches, entries: &[FileSetting]) {
    let long = arg.get_long().unwrap_or_default();
    let entry = entries.iter().find(|entry| has_name(arg, &entry.key));
    let more = serve.get_raw(MODEL.1).filter(|_| long == MODEL.0).map_or_else(Vec::new, Iterator::collect);
    let origin = match (serve.value_source(arg.get_id().as_str()), entry) {
        (Some(ValueSource::CommandLine), _) => Some(format!("--{long}")),
        _ if !more.is_empty() => Some(format!("--{long}")),
        (Some(ValueSource::EnvVariable), _) => arg.get_env().map(|name| name.display().to_string()),
        (Some(ValueSource::DefaultValue), Some(entry)) => Some(entry.origin.clone()),
        _ => None,
    };
    let values: Vec<_> = serve
        .get_raw(arg.get_id().as_str())
        .into_iter()
        .flatten()
        .chain(more)
        .map(|value| value.to_string_lossy().into_owned())
        .collect();
    let comment = origin.as_ref().map(|origin| format!(" # {origin}")).unwrap_or_default();
    sources.shown += &match values.as_slice() {
        [] => format!("# {long}: not set\n"),
        _ if arg.is_hide_env_values_set() => format!("# {long}: set, a secret{comment}\n"),
        values => format!("{long} = {}{comment}\n", toml(kind(arg), values)),
    };
    if let Some(origin) = origin.filter(|origin| !origin.starts_with("--")) {
        sources.origins.insert(format!("--{long}"), origin);
    }
}

/// Formats values as TOML.
fn toml(kind: ValueKind, values: &[String]) -> String {
    // A JSON string is a valid TOML string.
    let quoted = |value: &String| serde_json::Value::from(value.as_str()).to_string();
    let plain = |value: &String| match kind {
        ValueKind::Number | ValueKind::Size if value.parse::<i64>().is_ok() => value.clone(),
        ValueKind::Switch => parse_switch(value).map_or_else(|| quoted(value), |on| on.to_string()),
        _ => quoted(value),
    };
    match kind {
        ValueKind::List => format!("[{}]", values.iter().map(quoted).collect::<Vec<_>>().join(", ")),
        _ => values.iter().map(plain).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_of_this_process_exists() {
        let command = Cli::command();
        let exists =
            |id: &&str| command.get_subcommands().flat_map(Command::get_arguments).any(|arg| arg.get_id() == id);
        let missing: Vec<_> = IN_PROCESS_FLAGS.iter().filter(|id| !exists(id)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    /// A secret can always be given without showing it to other users.
    #[test]
    fn secret_flags_have_files_and_variables() {
        fn check(command: &Command) {
            let find = |long: &str| command.get_arguments().find(|arg| arg.get_long() == Some(long));
            for arg in command.get_arguments().filter(|arg| arg.is_hide_env_values_set()) {
                let file = format!("{}-file", arg.get_long().unwrap());
                assert!(arg.get_env().is_some() && find(&file).is_some(), "{}: {file}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }

    #[test]
    fn secrets_are_marked() {
        let command = Cli::command();
        for arg in settings(&command) {
            let long = arg.get_long().unwrap();
            let named = long.split('-').any(|word| ["token", "secret", "password"].contains(&word));
            assert!(!named || arg.is_hide_env_values_set() || long.ends_with("-file"), "--{long} would be shown");
        }
    }

    #[test]
    fn values_are_written_as_toml() {
        let toml = |kind, values: &[&str]| toml(kind, &values.iter().map(|&v| v.to_owned()).collect::<Vec<_>>());
        assert_eq!(toml(ValueKind::Number, &["8"]), "8");
        assert_eq!(toml(ValueKind::Number, &["eight"]), "\"eight\"");
        assert_eq!(toml(ValueKind::Size, &["2GiB"]), "\"2GiB\"");
        assert_eq!(toml(ValueKind::List, &["a", "b\"c"]), r#"["a", "b\"c"]"#);
        for (value, on) in [("true", "true"), ("yes", "true"), ("0", "false"), ("maybe", "\"maybe\"")] {
            assert_eq!(toml(ValueKind::Switch, &[value]), on);
        }
        assert_eq!(toml(ValueKind::Text, &["1"]), "\"1\"");
    }
}
