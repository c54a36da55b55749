//! What both programs do with any command line: errors in one form, empty variables, and the variable behind a value.

use crate::error::quoted;
use clap::{
    Arg, ArgMatches, Command, Error,
    builder::{PossibleValue, Resettable},
    error::{ContextKind, ContextValue, ErrorKind},
    parser::ValueSource,
};
use std::{any::TypeId, error::Error as _, ffi::OsString};

/// Start of the message of a value parser that names what it expects.
const EXPECTED: &str = "expected ";
/// The flag that gives a server's address to some commands.
const SERVER: &str = "--server";
/// The name of a server's address without a flag.
const ADDRESS: &str = "ADDRESS";
/// Flags for the input of a command.
const INPUTS: [&str; 4] = ["text", "file", "prompt", "table"];
/// Maximum bytes of a number that a message shows as it is.
const NUMBER: usize = 64;

/// Replaces the message of an error about a wrong, missing or unknown argument or command, or about arguments that exclude each other.
/// `arguments`, which `command` parsed, begin with the program's name. Returns other errors, and the texts of `--help` and
/// `--version`, as they are.
///
/// A value parser returns what it expects (`expected a size such as 2GiB`), or a complete message about a part of its value
/// (`rate: expected a number, found "x"`).
pub fn explain(error: Error, command: &Command, arguments: &[OsString]) -> Error {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let message = match error.kind() {
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            let Some(shown) = text(ContextKind::InvalidArg) else { return error };
            let found = text(ContextKind::InvalidValue).unwrap_or_default();
            let name = name(shown);
            let arg = find(command, arguments, &name);
            let origin = arg.map(|arg| origin_of(arg, arguments)).unwrap_or_default();
            wrong_value(&error, arg, &format!("{name}{origin}"), found)
        }
        ErrorKind::MissingRequiredArgument => {
            let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else { return error };
            let missing: Vec<_> = missing.iter().map(|shown| missing_value(command, arguments, &name(shown))).collect();
            missing.join("\n  ") + &usage(&error)
        }
        ErrorKind::ArgumentConflict => {
            let Some(shown) = text(ContextKind::InvalidArg) else { return error };
            let name = name(shown);
            match conflicting(&error) {
                Some(others) if others == name => {
                    format!("{name}: expected one value, found several{}", usage(&error))
                }
                Some(others) => {
                    format!("{name}: expected no value next to {others}, found one{}", usage(&error))
                }
                None => return error,
            }
        }
        ErrorKind::InvalidSubcommand => {
            let Some(found) = text(ContextKind::InvalidSubcommand) else { return error };
            let known = command_names(selected(command, arguments));
            let similar = similar(&known, found).map(|name| format!(" (is it {name}?)")).unwrap_or_default();
            format!("COMMAND: expected one of {}, found {}{similar}", known.join(", "), shown(found))
        }
        ErrorKind::MissingSubcommand => {
            let known = command_names(selected(command, arguments));
            format!("COMMAND: expected one of {}, found none", known.join(", "))
        }
        ErrorKind::UnknownArgument => {
            let Some(found) = text(ContextKind::InvalidArg) else { return error };
            match misplaced(selected(command, arguments), arguments, found) {
                Some(message) => message + &usage(&error),
                None if found.starts_with('-') => {
                    let is_it = |name| format!(" (is it {name}?)");
                    let similar = text(ContextKind::SuggestedArg).map(is_it).unwrap_or_default();
                    format!(
                        "FLAG: {EXPECTED}a flag that --help lists, found {}{similar}{}",
                        shown(found),
                        usage(&error)
                    )
                }
                None => {
                    let takes_more = selected(command, arguments).get_positionals().next().is_some();
                    let expected = if takes_more { "no further argument" } else { "flags only" };
                    format!("ARGUMENT: {EXPECTED}{expected}, found {}{}", quoted(found), usage(&error))
                }
            }
        }
        _ => return error,
    };
    let message = format!("{message}\n\nFor more information, try '--help'.\n");
    Error::raw(error.kind(), message).with_cmd(command)
}

/// Returns the message about a missing argument, with the values that it can have if they are few.
fn missing_value(command: &Command, arguments: &[OsString], name: &str) -> String {
    let known = find(command, arguments, name).map(Arg::get_possible_values).unwrap_or_default();
    let known: Vec<_> = known.iter().map(PossibleValue::get_name).collect();
    let expected = if known.is_empty() { "a value".to_owned() } else { format!("one of {}", known.join(", ")) };
    format!("{name}: {EXPECTED}{expected}, found none")
}

/// Returns the message about an address that was given with a flag to a command that takes it without one, about an input without
/// its flag, or about the second word of an input without quotation marks. `None` for other arguments.
fn misplaced(command: &Command, arguments: &[OsString], found: &str) -> Option<String> {
    if found == SERVER {
        let takes_address =
            |arg: &Arg| arg.is_positional() && arg.get_value_names().is_some_and(|names| names == [ADDRESS]);
        let is_known = command.get_arguments().any(takes_address);
        return is_known.then(|| format!("{ADDRESS}: expected the server's address without a flag, found {SERVER}"));
    }
    let is_input = |arg: &&Arg| arg.get_long().is_some_and(|long| INPUTS.contains(&long));
    let inputs: Vec<_> =
        command.get_arguments().filter(is_input).filter_map(|arg| Some(format!("--{}", arg.get_long()?))).collect();
    if found.starts_with('-') || inputs.is_empty() {
        return None;
    }
    let words: Vec<_> = arguments.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    let given = words.iter().enumerate().find_map(|(index, word)| {
        let flag = inputs.iter().find(|flag| word.split('=').next() == Some(flag.as_str()))?;
        // The flag has its value in the same word, or in the next one.
        Some((flag, index + if word.contains('=') { 1 } else { 2 }))
    });
    if let Some((flag, after)) = given {
        let follows = words.get(after) == Some(&found);
        let expected = "quotation marks around a value of several words";
        return follows.then(|| format!("{flag}: {EXPECTED}{expected}, found {} after it", quoted(found)));
    }
    Some(format!("{}: {EXPECTED}a flag before the input, found {} without one", inputs.join("|"), quoted(found)))
}

/// Returns clap's lines about the usage of the command, after an empty line.
fn usage(error: &Error) -> String {
    match error.get(ContextKind::Usage) {
        Some(ContextValue::StyledStr(usage)) => format!("\n\n{usage}"),
        _ => String::new(),
    }
}

/// Returns the names of the arguments with which an argument conflicts.
fn conflicting(error: &Error) -> Option<String> {
    match error.get(ContextKind::PriorArg)? {
        ContextValue::String(shown) => Some(name(shown)),
        ContextValue::Strings(all) => Some(all.iter().map(|shown| name(shown)).collect::<Vec<_>>().join(", ")),
        _ => None,
    }
}

/// Returns the names of the commands within a command that its help shows.
fn command_names(command: &Command) -> Vec<&str> {
    command.get_subcommands().filter(|known| !known.is_hide_set()).map(Command::get_name).collect()
}

/// Returns the command that the arguments select.
fn selected<'a>(command: &'a Command, arguments: &[OsString]) -> &'a Command {
    path(command, arguments).last().copied().unwrap_or(command)
}

/// Returns the commands that the arguments name, the program's first.
fn path<'a>(command: &'a Command, arguments: &[OsString]) -> Vec<&'a Command> {
    let mut path = vec![command];
    for word in arguments.iter().skip(1).filter_map(|word| word.to_str()) {
        path.extend(path.last().and_then(|last| last.find_subcommand(word)));
    }
    path
}

/// Returns the message about the value `found` of an argument.
fn wrong_value(error: &Error, arg: Option<&Arg>, name: &str, found: &str) -> String {
    let reason = error.source().map(ToString::to_string);
    if let Some(whole) = reason.as_deref().filter(|reason| is_complete(reason)) {
        return format!("{name}: {whole}");
    }
    let own = reason.as_deref().and_then(|reason| reason.strip_prefix(EXPECTED));
    let expected = match (own, error.get(ContextKind::ValidValue)) {
        (Some(own), _) => own.to_owned(),
        (None, Some(ContextValue::Strings(known))) if !known.is_empty() => format!("one of {}", known.join(", ")),
        (None, _) => match (arg.and_then(|arg| type_name(arg, found)), reason) {
            _ if found.is_empty() => "a value".to_owned(),
            (Some(words), _) => words,
            (None, Some(reason)) => format!("a valid value ({reason})"),
            (None, None) => "a valid value".to_owned(),
        },
    };
    let found =
        if found.is_empty() && error.kind() == ErrorKind::InvalidValue { "none".to_owned() } else { shown(found) };
    format!("{name}: {EXPECTED}{expected}, found {found}")
}

/// Returns true if the message already has the value found, as one about a part of the argument's value does.
fn is_complete(reason: &str) -> bool {
    reason.contains(EXPECTED) && reason.contains(", found ")
}

/// Describes the values that an argument's type allows. `found` is not one of them. `None` unless the type is a number or a switch.
fn type_name(arg: &Arg, found: &str) -> Option<String> {
    let id = arg.get_value_parser().type_id();
    let naturals = [
        (TypeId::of::<u8>(), u64::from(u8::MAX)),
        (TypeId::of::<u16>(), u64::from(u16::MAX)),
        (TypeId::of::<u32>(), u64::from(u32::MAX)),
        (TypeId::of::<u64>(), u64::MAX),
        (TypeId::of::<usize>(), usize::MAX as u64),
    ];
    if let Some((_, max)) = naturals.into_iter().find(|(natural, _)| id == *natural) {
        let is_too_large = !found.is_empty() && found.bytes().all(|byte| byte.is_ascii_digit());
        let bound = if is_too_large { format!("at most {max}") } else { "at least 0".to_owned() };
        return Some(format!("a whole number of {bound}"));
    }
    let others = [
        (TypeId::of::<i32>(), "a whole number"),
        (TypeId::of::<i64>(), "a whole number"),
        (TypeId::of::<f32>(), "a number"),
        (TypeId::of::<f64>(), "a number"),
        (TypeId::of::<bool>(), "true or false"),
    ];
    others.into_iter().find(|(other, _)| id == *other).map(|(_, words)| words.to_owned())
}

/// Returns the argument of that name, as [`name`] returns it, of the command that the arguments select.
fn find<'a>(command: &'a Command, arguments: &[OsString], name: &str) -> Option<&'a Arg> {
    let is_named = |arg: &&Arg| match (arg.get_long(), arg.get_value_names()) {
        (Some(long), _) => name.strip_prefix("--") == Some(long),
        (None, Some([only])) => only.as_str() == name,
        (None, _) => arg.get_id().as_str() == name,
    };
    // a global argument belongs to the top-level command
    path(command, arguments).into_iter().rev().flat_map(Command::get_arguments).find(is_named)
}

/// Returns the name of an argument as users type it: `--rows` for `--rows <N>`, `DIR` for `<DIR>`, `[DIR]` and `<DIR> <DIR>...`, and
/// `--text|--file` for the group `<--text <TEXT>|--file <FILE>>`.
fn name(shown: &str) -> String {
    let shown = shown.strip_suffix("...").unwrap_or(shown);
    let shown = shown.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(shown);
    let first = shown.split_once("> <").filter(|_| !shown.contains('|')).map(|(first, _)| &shown[..=first.len()]);
    let shown = first.unwrap_or(shown);
    let flag = |shown: &str| shown.split([' ', '=', '[']).next().unwrap_or_default().to_owned();
    match shown.strip_prefix('<').and_then(|rest| rest.strip_suffix('>')) {
        Some(inner) => inner.split('|').map(flag).collect::<Vec<_>>().join("|"),
        None if shown.starts_with('-') => flag(shown),
        None => shown.to_owned(),
    }
}

/// Returns a value as messages show it: numbers as they are, texts in quotation marks.
fn shown(found: &str) -> String {
    if found.parse::<f64>().is_ok() && found.len() <= NUMBER { found.to_owned() } else { quoted(found) }
}

/// Returns the name that begins with `found`, or differs from it in few letters.
fn similar<'a>(known: &[&'a str], found: &str) -> Option<&'a str> {
    let is_start = |name: &&&str| found.len() > 1 && name.starts_with(found);
    let nearest = || known.iter().map(|name| (edits(name, found), *name)).min().filter(|(edits, _)| *edits < 3);
    let near = nearest().filter(|(edits, _)| edits * 2 <= found.chars().count()).map(|(_, name)| name);
    known.iter().find(is_start).copied().or(near)
}

/// Counts the letters that must be inserted, removed or replaced to make `b` of `a`.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (index, letter) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, other) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

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

/// Returns the suffix ` (from VARIABLE)` of an argument's name in messages. Empty unless the value comes from a variable and not
/// from `arguments`.
fn origin_of(arg: &Arg, arguments: &[OsString]) -> String {
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
    use clap::{ArgAction, ArgGroup, builder::BoolishValueParser, value_parser};

    fn command() -> Command {
        let parser = |text: &str| match text {
            "part" => Err("rate: expected a number, found \"x\"".to_owned()),
            "pair" => Err("expected KEY=VALUE, found \"pair\"".to_owned()),
            _ => Err::<u64, _>("expected an even number".to_owned()),
        };
        let flag = |name: &'static str| Arg::new(name).long(name).value_name("N").action(ArgAction::Set);
        let run = Command::new("run")
            .arg(flag("count").value_parser(value_parser!(u16)).allow_negative_numbers(true))
            .arg(flag("size").value_parser(value_parser!(usize)))
            .arg(flag("heat").value_parser(value_parser!(f32)))
            .arg(flag("json").value_parser(BoolishValueParser::new()))
            .arg(flag("kind").value_parser(["a", "b"]))
            .arg(flag("even").value_parser(parser))
            .arg(flag("text").value_parser(|_: &str| Err::<String, _>("no luck".to_owned())))
            .arg(Arg::new("dir").value_name("DIR").required(true));
        let read = Command::new("read")
            .args([flag("text"), flag("file")])
            .group(ArgGroup::new("source").args(["text", "file"]).required(true));
        let call = Command::new("call")
            .arg(Arg::new("address").value_name("ADDRESS"))
            .args([flag("seed"), flag("kind").value_parser(["a", "b"]).required(true)]);
        let inner = Command::new("group")
            .subcommand_required(true)
            .subcommands([Command::new("list"), Command::new("secret").hide(true)]);
        Command::new("tool")
            .arg(flag("level").value_parser(value_parser!(i64)).global(true))
            .subcommands([run, read, call, inner])
    }

    fn message(arguments: &[&str]) -> String {
        message_of("run", arguments)
    }

    fn message_of(command_name: &str, arguments: &[&str]) -> String {
        let arguments: Vec<_> = [&["tool", command_name][..], arguments].concat().iter().map(OsString::from).collect();
        let error = command().try_get_matches_from(&arguments).unwrap_err();
        let code = error.exit_code();
        let explained = explain(error, &command(), &arguments);
        assert_eq!(explained.exit_code(), code);
        let message = explained.to_string();
        assert!(
            message.starts_with("error: ") && message.ends_with("\n\nFor more information, try '--help'.\n"),
            "{message}"
        );
        message["error: ".len()..].split("\n\n").next().unwrap().to_owned()
    }

    #[test]
    fn unknown_arguments_are_named() {
        assert_eq!(
            message(&["dir", "--cuont", "2"]),
            "FLAG: expected a flag that --help lists, found \"--cuont\" (is it --count?)"
        );
        assert_eq!(message(&["dir", "--zzz"]), "FLAG: expected a flag that --help lists, found \"--zzz\"");
        let more = message_of("call", &["h:1", "more", "--kind", "a"]);
        assert_eq!(more, "ARGUMENT: expected no further argument, found \"more\"");
    }

    #[test]
    fn arguments_have_the_names_that_users_type() {
        for (shown, expected) in [
            ("--rows <N>", "--rows"),
            ("<DIR>", "DIR"),
            ("<FILE>...", "FILE"),
            ("<FILE> <FILE>...", "FILE"),
            ("[NAME]", "NAME"),
            ("[[NAME=]DIR]...", "[NAME=]DIR"),
            ("<--text <TEXT>|--file <FILE>>", "--text|--file"),
        ] {
            assert_eq!(name(shown), expected, "{shown}");
        }
    }

    #[test]
    fn wrong_values_have_the_form_of_all_errors() {
        for (arguments, expected) in [
            (["--count", "x"], "--count: expected a whole number of at least 0, found \"x\""),
            (["--count", "-1"], "--count: expected a whole number of at least 0, found -1"),
            (["--count", "65536"], "--count: expected a whole number of at most 65535, found 65536"),
            (["--size", "1.5"], "--size: expected a whole number of at least 0, found 1.5"),
            (["--heat", "hot"], "--heat: expected a number, found \"hot\""),
            (["--json", "perhaps"], "--json: expected true or false, found \"perhaps\""),
            (["--kind", "c"], "--kind: expected one of a, b, found \"c\""),
            (["--even", "3"], "--even: expected an even number, found 3"),
            (["--even", "part"], "--even: rate: expected a number, found \"x\""),
            (["--even", "pair"], "--even: expected KEY=VALUE, found \"pair\""),
            (["--text", "foreign"], "--text: expected a valid value (no luck), found \"foreign\""),
            (["--level", "high"], "--level: expected a whole number, found \"high\""),
        ] {
            assert_eq!(message(&[&arguments[..], &["."]].concat()), expected);
        }
        assert_eq!(message(&[".", "--heat"]), "--heat: expected a value, found none");
        let long = "é".repeat(100);
        assert!(message(&["--heat", &long, "."]).ends_with(&format!("found \"{}…\"", "é".repeat(32))));
    }

    #[test]
    fn missing_arguments_have_the_form_of_all_errors() {
        assert_eq!(message(&["--count", "1"]), "DIR: expected a value, found none");
        assert_eq!(message_of("read", &[]), "--text|--file: expected a value, found none");
    }

    #[test]
    fn misplaced_arguments_are_explained() {
        let input = "--text|--file: expected a flag before the input, found \"a.txt\" without one";
        assert_eq!(message_of("read", &["a.txt"]), input);
        let quotes = "--text: expected quotation marks around a value of several words, found \"world\" after it";
        assert_eq!(message_of("read", &["--text", "hello", "world"]), quotes);
        assert_eq!(message_of("read", &["--text=hello", "world"]), quotes);
        let unexpected = "ARGUMENT: expected flags only, found \"./model\"";
        assert_eq!(message_of("read", &["./model", "--text", "a"]), unexpected);
        let address = "ADDRESS: expected the server's address without a flag, found --server";
        assert_eq!(message_of("call", &["--server", "h:1"]), address);
        assert_eq!(message_of("call", &["h:1"]), "--kind: expected one of a, b, found none");
    }

    #[test]
    fn conflicts_have_the_form_of_all_errors() {
        let both = message_of("read", &["--text", "a", "--file", "b"]);
        assert_eq!(both, "--text: expected no value next to --file, found one");
        assert_eq!(message(&["--count", "1", "--count", "2", "."]), "--count: expected one value, found several");
    }

    #[test]
    fn wrong_commands_have_the_form_of_all_errors() {
        assert_eq!(message_of("nosuch", &[]), "COMMAND: expected one of run, read, call, group, found \"nosuch\"");
        let similar = "COMMAND: expected one of run, read, call, group, found \"raed\" (is it read?)";
        assert_eq!(message_of("raed", &[]), similar);
        // The hidden command is not listed.
        assert_eq!(message_of("group", &["secre"]), "COMMAND: expected one of list, found \"secre\"");
        assert_eq!(message_of("group", &[]), "COMMAND: expected one of list, found none");
    }

    #[test]
    fn the_help_stays_as_it_is() {
        let arguments = ["tool", "--help"].map(OsString::from);
        let help = || command().try_get_matches_from(&arguments).unwrap_err();
        assert_eq!(explain(help(), &command(), &arguments).to_string(), help().to_string());
    }

    #[test]
    fn edits_are_counted() {
        assert_eq!((edits("", "ab"), edits("kitten", "sitting"), edits("ab", "")), (2, 3, 2));
    }

    #[test]
    fn only_near_names_are_similar() {
        let similar = |found| similar(&["run", "read", "group"], found);
        assert_eq!((similar("rea"), similar("raed"), similar("gruop")), (Some("read"), Some("read"), Some("group")));
        assert_eq!((similar("nosuch"), similar("g")), (None, None));
    }

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
