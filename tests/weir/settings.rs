//! Settings of `weir serve`: flags before environment before file before defaults, and all errors reported at once.

use crate::process::{outcome, program};
use crate::*;
use clap::{Arg, ArgAction, CommandFactory};
use weir::cli::Cli;

/// Runs `weir serve`. Returns stdout if it succeeds, otherwise stderr.
fn serve(environment: &[(String, String)], args: &[String]) -> Result<String, String> {
    let environment = environment.iter().map(|(name, value)| (name, value));
    outcome(program(&["serve"]).args(args).envs(environment))
}

fn texts(args: &[&str]) -> Vec<String> {
    args.iter().map(|arg| (*arg).to_owned()).collect()
}

/// Returns all flags that are settings.
fn settings() -> Vec<Arg> {
    let command = Cli::command();
    let serve = command.find_subcommand("serve").unwrap();
    let about = ["config", "print-config", "check-config", "help", "version"];
    let all: Vec<_> = serve.get_arguments().cloned().collect();
    all.into_iter().filter(|arg| arg.get_long().is_some_and(|long| !about.contains(&long))).collect()
}

fn is(arg: &Arg, names: &[&str]) -> bool {
    arg.get_value_names().is_some_and(|value_names| names.contains(&value_names[0].as_str()))
}

/// Returns a value that is not the default, different for each source `nth`.
fn value(arg: &Arg, nth: usize) -> String {
    match () {
        () if is(arg, &["BOOL"]) => (nth % 2 == 1).to_string(),
        () if is(arg, &["N", "SECONDS", "SIZE"]) => (7000 + nth).to_string(),
        () => format!("value-{nth}"),
    }
}

/// Returns the value as TOML.
fn in_toml(arg: &Arg, nth: usize) -> String {
    let value = value(arg, nth);
    match arg.get_action() {
        ArgAction::Append => format!("[\"{value}\"]"),
        _ if is(arg, &["N", "SECONDS", "SIZE", "BOOL"]) => value,
        _ => format!("\"{value}\""),
    }
}

/// Sets each setting by file, by file and environment, and by all three. Walks the flags, so a new setting is tested automatically.
#[test]
fn every_setting_can_be_given_in_three_ways() {
    let folder = TempDir::new().unwrap();
    let all = settings();
    assert!(all.len() > 25, "only {} settings: looked in the wrong place", all.len());
    let long = |arg: &Arg| arg.get_long().unwrap().to_owned();
    let file = folder.path().join("weir.toml");
    fs::write(&file, all.iter().map(|arg| format!("{} = {}\n", long(arg), in_toml(arg, 1))).collect::<String>())
        .unwrap();
    let environment: Vec<_> =
        all.iter().map(|arg| (arg.get_env().unwrap().to_str().unwrap().to_owned(), value(arg, 2))).collect();
    let flags = all.iter().map(|arg| format!("--{}={}", long(arg), value(arg, 3)));
    let base = texts(&["--print-config", "--config", file.to_str().unwrap()]);
    let with_flags = [base.clone(), flags.collect()].concat();
    let file_name = file.display();
    for (nth, environment, args) in
        [(1, &[][..], &base), (2, &environment[..], &base), (3, &environment[..], &with_flags)]
    {
        let output_text = serve(environment, args).unwrap();
        for (line, arg) in (1..).zip(&all) {
            let long = long(arg);
            let origin = match nth {
                1 => format!("{file_name}, line {line}"),
                2 => arg.get_env().unwrap().to_str().unwrap().to_owned(),
                _ => format!("--{long}"),
            };
            let expected = match arg.is_hide_env_values_set() {
                true => format!("# {long}: set, a secret # {origin}"),
                false => format!("{long} = {} # {origin}", in_toml(arg, nth)),
            };
            assert!(output_text.lines().any(|line| line == expected), "{expected}\nis not in\n{output_text}");
        }
    }
}
