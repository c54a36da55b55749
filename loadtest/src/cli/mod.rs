//! The command line. Data goes to stdout, everything else to stderr.

mod abort;
mod arrivals;
mod compare;
mod draw;
mod output;
mod report;
mod run;
mod run_length;
mod self_test;
mod server;
mod session;
mod stub;
mod sweep;
mod workload;

use crate::error::{Error, Result};
use clap::{Parser, Subcommand};
use std::{ffi::OsString, process::ExitCode};
use tokio::runtime::{Builder, Runtime};

/// The most threads.
const MAX_THREADS: usize = 256;

/// Load tester of weir's gRPC API: latency as a client sees it, and the gain of one model over another.
#[derive(Debug, Parser)]
#[command(name = "weir-loadtest", version, propagate_version = true, max_term_width = 120)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure one load: a closed loop (--concurrency) or an open one (--rate).
    Run(run::Args),
    /// Measure several loads: closed loops of growing concurrency, or open loops of growing rate up to the knee.
    Sweep(sweep::Args),
    /// Compare models of one server request by request: measured gain with its confidence interval.
    Compare(compare::Args),
    /// All of it for every model of a server: batch-size curve, knee, a run below it, comparison.
    Report(report::Args),
    /// Draw saved measurements again, as table or HTML.
    Draw(draw::Args),
    /// Measure the tester itself: how many messages a second it can read on one core.
    SelfTest(self_test::Args),
    /// Serve known delays instead of text: what the tester must then find can be worked out.
    Stub(stub::Args),
}

/// Runs the command that these arguments ask for, the program's name first; tells its error on stderr.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<_> = arguments.into_iter().collect();
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // where help cannot be written to, there is nobody to tell
            let _ = error.print();
            return u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from);
        }
    };
    let given = output::command(&arguments);
    let result = match cli.command {
        Command::Run(args) => run::run(args, given),
        Command::Sweep(args) => sweep::run(args, given),
        Command::Compare(args) => compare::run(args, given),
        Command::Report(args) => report::run(args, given),
        Command::Draw(args) => draw::run(args),
        Command::SelfTest(args) => self_test::run(args),
        Command::Stub(args) => stub::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // a reader such as `head` has seen enough
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weir-loadtest: {}", printable(&error.to_string()));
            ExitCode::FAILURE
        }
    }
}

/// Others' words without what would move the terminal's cursor.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}

/// What requests run on: one thread, unless more are asked for.
fn runtime(threads: usize) -> Result<Runtime> {
    if !(1..=MAX_THREADS).contains(&threads) {
        return Err(Error::option("--threads", threads, format!("from 1 to {MAX_THREADS}")));
    }
    let built = if threads == 1 {
        Builder::new_current_thread().enable_all().build()
    } else {
        Builder::new_multi_thread().worker_threads(threads).enable_all().build()
    };
    built.map_err(|error| Error::Internal(format!("no threads for the network: {error}")))
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
    fn flags_have_help_and_those_that_are_habits_have_environment_twins() {
        Cli::command().debug_assert();
        let mut all = Vec::new();
        flags(&Cli::command(), "", &mut all);
        assert!(all.len() > 60, "only {} flags: looked in the wrong place", all.len());
        // how a server is reached is a habit; what is measured is not
        let habits =
            ["api-key", "api-key-file", "tls-ca", "tls-client-cert", "tls-client-key", "timeout", "threads", "note"];
        let mut wrong = Vec::new();
        for (path, flag) in &all {
            let long = flag.get_long().unwrap_or_default();
            if flag.get_help().is_none_or(|help| help.to_string().trim().is_empty()) {
                wrong.push(format!("{path} --{long} has no help"));
            }
            let twin = habits.contains(&long).then(|| format!("WEIR_{}", long.replace('-', "_").to_uppercase()));
            if flag.get_env().and_then(|env| env.to_str()) != twin.as_deref() {
                wrong.push(format!("{path} --{long}: {:?}, not {twin:?}", flag.get_env()));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
