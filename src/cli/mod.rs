//! The command line, one file a subcommand. Data goes to stdout, everything else to stderr.

pub mod admin;
pub mod bench;
pub mod convert;
mod flags;
pub mod generate;
pub mod health;
pub mod init;
pub mod inspect;
pub mod model;
pub mod output;
pub mod progress;
mod reach;
pub mod report;
pub mod score;
pub mod segment;
pub mod serve;
pub mod settings;
pub mod summarize;

use crate::error::{Error, Result, printable};
use clap::{Parser, Subcommand};
use std::{ffi::OsString, process::ExitCode};
use tokio::runtime::Runtime;

/// Inference server for character- and byte-level language models that pool their own input.
#[derive(Debug, Parser)]
#[command(name = "weir", version, propagate_version = true, max_term_width = 120)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve models over gRPC.
    Serve(serve::Args),
    /// Load, unload and list the models of a running server.
    Admin(admin::Args),
    /// Ask whether a server serves.
    Health(health::Args),
    /// Tell what a running server's models took, and what pooling spared.
    Report(report::Args),
    /// Generate text from a prompt.
    Generate(generate::Args),
    /// Summarize a document.
    Summarize(summarize::Args),
    /// Score a text: bits per character, boundaries, log-probabilities, logits.
    Score(score::Args),
    /// Show where a text's segments end.
    Segment(segment::Args),
    /// Convert an official checkpoint into weir's format.
    Convert(convert::Args),
    /// Make a checkpoint of a given shape with random weights.
    Init(init::Args),
    /// Check a checkpoint and tell what is in it.
    Inspect(inspect::Args),
    /// Measure speed, beside what this machine can do.
    Bench(bench::Args),
}

/// Runs the command that these arguments ask for, the program's name first; tells its error on stderr.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<_> = arguments.into_iter().collect();
    let (cli, sources) = match settings::gather(&arguments) {
        Ok(gathered) => gathered,
        Err(error) => {
            // Where help cannot be written to, there is nobody to tell.
            let _ = error.print();
            return u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from);
        }
    };
    let result = match cli.command {
        Command::Serve(args) => serve::run(args, sources),
        Command::Admin(args) => admin::run(args),
        Command::Health(args) => health::run(args),
        Command::Report(args) => report::run(args),
        Command::Generate(args) => generate::run(args),
        Command::Summarize(args) => summarize::run(args),
        Command::Score(args) => score::run(args),
        Command::Segment(args) => segment::run(args),
        Command::Convert(args) => convert::run(args),
        Command::Init(args) => init::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Bench(args) => bench::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // a reader such as `head` has seen enough
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            // names of files and models are others' words; the lines are ours
            let told = flags::named(error).to_string().lines().map(printable).collect::<Vec<_>>().join("\n");
            eprintln!("weir: {told}");
            ExitCode::FAILURE
        }
    }
}

/// What asks and answers over the network runs on.
fn runtime() -> Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|error| Error::Internal(format!("no threads for the network: {error}")))
}

#[cfg(test)]
mod tests {
    use super::Cli;
    use clap::{Command, CommandFactory};

    /// Every flag of a command and of those within it: the command's name and the flag.
    fn flags(command: &Command, path: &str, out: &mut Vec<(String, clap::Arg)>) {
        let path = format!("{path} {}", command.get_name());
        for flag in command.get_arguments().filter(|flag| flag.get_long().is_some()) {
            out.push((path.clone(), flag.clone()));
        }
        command.get_subcommands().for_each(|command| flags(command, &path, out));
    }

    #[test]
    fn flags_have_help_and_environment_twins() {
        let mut all = Vec::new();
        flags(&Cli::command(), "", &mut all);
        assert!(all.len() > 60, "only {} flags: looked in the wrong place", all.len());
        // The flags of measurements name one run, not a habit: only those that all commands share have twins. What a command
        // works on is no habit either, and one in the environment would stand in the way of another that is given.
        let data = [
            "text",
            "file",
            "ids",
            "prompt",
            "mode",
            "name",
            "service",
            "resolution",
            "resolution-ids",
            "target-ids",
            "table",
        ];
        all.retain(|(path, flag)| {
            let long = flag.get_long().unwrap_or_default();
            let shape = path == " weir init" && long == "config";
            !(path.starts_with(" weir bench") || shape || data.contains(&long))
        });
        let mut wrong = Vec::new();
        for (path, flag) in &all {
            let long = flag.get_long().unwrap_or_default();
            if flag.get_help().is_none_or(|help| help.to_string().trim().is_empty()) {
                wrong.push(format!("{path} --{long} has no help"));
            }
            let twin = format!("WEIR_{}", long.replace('-', "_").to_uppercase());
            if flag.get_env().and_then(|env| env.to_str()) != Some(&twin) && !["help", "version"].contains(&long) {
                wrong.push(format!("{path} --{long}: {:?}, not {twin}", flag.get_env()));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
