//! Command line. Data goes to stdout, everything else to stderr.

mod abort;
mod compare;
mod load_args;
mod output;
mod progress;
mod report;
mod self_test;
mod server;
mod session;
mod steps;
mod sweep;
mod workload;

use crate::error::Error;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::{ffi::OsString, process::ExitCode};
use weir_proto::{argument_errors, empty_variables::without_empty, flag_origins::FlagOrigins};

/// Load tester for weir's gRPC API: measures latency as clients see it, and the gain of one model over another.
#[derive(Debug, Parser)]
#[command(name = "weir-loadtest", version, propagate_version = true, max_term_width = 120)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure one load: a closed loop (--concurrency) or an open one (--rate).
    Run(sweep::RunArgs),
    /// Measure several loads: closed loops of growing concurrency, or open loops of growing rate up to the knee.
    Sweep(sweep::SweepArgs),
    /// Compare models of one server request by request: measured gain with its confidence interval.
    Compare(compare::Args),
    /// Measure everything for every model of a server: batch-size curve, knee, a run below it, comparison.
    Report(report::Args),
    /// Draw saved measurements again, as table or HTML.
    Draw(output::DrawArgs),
    /// Measure the tester itself: how many messages per second it can read on one core.
    SelfTest(self_test::Args),
    /// Serve placeholder text with known delays, to check the tester's figures.
    Stub(self_test::StubArgs),
}

/// Runs the command given by `arguments`, the program's name first. Prints its error to stderr.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<_> = arguments.into_iter().collect();
    let command = without_empty(Cli::command());
    let parsed = command.clone().try_get_matches_from(&arguments);
    let parsed = parsed.and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
    let (cli, origins) = match parsed {
        Ok((cli, matches)) => (cli, FlagOrigins::of(&command, &matches)),
        Err(error) => {
            let error = argument_errors::explain(error, &command, &arguments);
            // there is no other place to report that help cannot be printed
            let _ = error.print();
            return u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from);
        }
    };
    if let Some(flag) = output::secret_flag(&arguments) {
        let why = "other users of this machine can see it in the list of processes";
        eprintln!("weir-loadtest: warning: {flag} has a secret: {why}; use WEIR_API_KEY or {flag}-file");
    }
    let command = output::command_line(&arguments);
    let result = match cli.command {
        Command::Run(args) => sweep::run(args, command),
        Command::Sweep(args) => sweep::sweep(args, command),
        Command::Compare(args) => compare::run(args, command),
        Command::Report(args) => report::run(args, command),
        Command::Draw(args) => output::draw(args),
        Command::SelfTest(args) => self_test::run(args),
        Command::Stub(args) => self_test::run_stub(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // a reader such as `head` closed the pipe
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weir-loadtest: {}", printable(&origins.explain(&error.to_string())));
            ExitCode::FAILURE
        }
    }
}

/// Replaces control characters, because messages of a server could move the terminal's cursor.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::Cli;
    use clap::{Command, CommandFactory};

    fn flags(command: &Command, path: &str, out: &mut Vec<(String, clap::Arg)>) {
        let path = format!("{path} {}", command.get_name());
        for flag in command.get_arguments().filter(|flag| flag.get_long().is_some()) {
            out.push((path.clone(), flag.clone()));
        }
        command.get_subcommands().for_each(|command| flags(command, &path, out));
    }

    #[test]
    fn flags_have_help_and_connection_flags_have_environment_twins() {
        Cli::command().debug_assert();
        let mut all = Vec::new();
        flags(&Cli::command(), "", &mut all);
        assert!(all.len() > 60, "only {} flags found", all.len());
        // flags that stay the same across measurements can be set in the environment
        let settable =
            ["api-key", "api-key-file", "tls-ca", "tls-client-cert", "tls-client-key", "timeout", "threads", "note"];
        let mut wrong = Vec::new();
        for (path, flag) in &all {
            let long = flag.get_long().unwrap_or_default();
            if flag.get_help().is_none_or(|help| help.to_string().trim().is_empty()) {
                wrong.push(format!("{path} --{long} has no help"));
            }
            let twin = settable.contains(&long).then(|| format!("WEIR_{}", long.replace('-', "_").to_uppercase()));
            if flag.get_env().and_then(|env| env.to_str()) != twin.as_deref() {
                wrong.push(format!("{path} --{long}: {:?}, not {twin:?}", flag.get_env()));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
