//! The command and its subcommands, as clap parses them; the flags that errors name; completions and manual pages.

#[cfg(feature = "candle")]
use crate::cli::verify;
use crate::cli::{
    admin, bench, check, codec, convert, generate, health, init, inspect, lsp, ngrams, output, pull, report, score,
    segment, serve, summarize,
};
use clap::{Arg, Parser, Subcommand};
use clap_complete::Shell;
use std::{fs, path::PathBuf};
use weir_kernels::error::{Error, Result};

/// Inference server for character- and byte-level language models that pool their own input.
#[derive(Debug, Parser)]
#[command(name = "weir", version, propagate_version = true, max_term_width = 120)]
pub struct Cli {
    #[command(flatten)]
    pub(super) color: output::ColorArgs,
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Serve models over gRPC and HTTP.
    Serve(serve::Args),
    /// Load, unload and list the models of a running server.
    Admin(admin::Args),
    /// Check that a server is healthy.
    Health(health::Args),
    /// Show the latencies of a running server's models, and the time that pooling saved.
    Report(report::Args),
    /// Generate text from a prompt.
    Generate(generate::Args),
    /// Summarize a document.
    Summarize(summarize::Args),
    /// Score a text: bits per character or byte, boundaries, log-probabilities, logits.
    Score(score::Args),
    /// Show where a text's segments end.
    Segment(segment::Args),
    /// Find misspelt words of texts.
    Check(check::Args),
    /// Complete text in editors, as a language server on standard input and output.
    Lsp(lsp::Args),
    /// Compress texts losslessly with a model.
    Compress(codec::CompressArgs),
    /// Decompress texts with the model that compressed them.
    Decompress(codec::DecompressArgs),
    /// Convert an official checkpoint into weir's format.
    Convert(convert::Args),
    /// Copy a checkpoint from a folder, a URL or the Hugging Face Hub into the user's models folder.
    Pull(pull::Args),
    /// Create a checkpoint of a given shape with random weights.
    Init(init::Args),
    /// Count the n-grams of a text, from which a checkpoint's model guesses symbols.
    Ngrams(ngrams::Args),
    /// Check a checkpoint and print its contents.
    Inspect(inspect::Args),
    /// Compare a checkpoint's outputs with those of a second implementation.
    #[cfg(feature = "candle")]
    Verify(verify::Args),
    /// Measure speed, and compare it with the machine's limits.
    Bench(bench::Args),
    /// Print the completions of a shell.
    Completions(CompletionsArgs),
    /// Write the manual pages of all commands.
    Man(ManArgs),
}

/// Prints the completions of a shell.
#[derive(Debug, clap::Args)]
pub struct CompletionsArgs {
    /// Shell. Bash reads completions from `~/.local/share/bash-completion/completions/weir`, fish from
    /// `~/.config/fish/completions/weir.fish`, zsh from a file `_weir` in a folder of its `fpath`.
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

/// Prints the completions of `command`. Fails if stdout cannot be written.
pub fn print_completions(args: &CompletionsArgs, mut command: clap::Command) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "weir", &mut script);
    let script = String::from_utf8(script).map_err(|error| Error::Internal(format!("completions: {error}")))?;
    output::write(&script)
}

/// Writes the manual pages of all commands to a folder: `weir.1`, `weir-serve.1` and so on.
#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// Folder. Created if it does not exist.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Writes the pages of `command` and its subcommands. Fails if the folder or a file in it cannot be written.
pub fn write_man_pages(args: &ManArgs, command: clap::Command) -> Result<()> {
    let folder = &args.folder;
    if folder.exists() && !folder.is_dir() {
        return Err(Error::Setting(format!("DIR: expected a folder, found the file {}", folder.display())));
    }
    let failed = |error| Error::Setting(format!("DIR: cannot write {}: {error}", folder.display()));
    fs::create_dir_all(folder).map_err(failed)?;
    clap_mangen::generate_to(with_aliases(command), folder).map_err(failed)
}

/// Adds the other names of each flag to its help, because the generator of pages omits them.
fn with_aliases(command: clap::Command) -> clap::Command {
    let with_alias = |arg: Arg| {
        let Some(aliases) = arg.get_visible_aliases().filter(|aliases| !aliases.is_empty()) else { return arg };
        let names: Vec<_> = aliases.iter().map(|alias| format!("--{alias}")).collect();
        let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
        let help = format!("{help} Other names: {}.", names.join(", "));
        arg.long_help(help)
    };
    command.mut_args(with_alias).mut_subcommands(with_aliases)
}

#[cfg(test)]
mod tests {
    use crate::cli::{
        command::Cli,
        flag_names::{ALIASES, NAMES, PROGRAM, with_flag, with_flag_names},
    };
    use clap::{Command, CommandFactory};
    use std::collections::BTreeSet;
    use weir_client::status::api_name;
    use weir_kernels::error::Error;

    /// Collects every flag of a command and its subcommands as (command path, flag).
    fn flags(command: &Command, path: &str, out: &mut Vec<(String, clap::Arg)>) {
        let path = format!("{path} {}", command.get_name());
        for flag in command.get_arguments().filter(|flag| flag.get_long().is_some()) {
            out.push((path.clone(), flag.clone()));
        }
        command.get_subcommands().for_each(|command| flags(command, &path, out));
    }

    #[test]
    fn flags_have_help_and_an_environment_variable() {
        // Input data has no environment variable, which would conflict with the flag.
        const DATA: &str = "text file ids prompt mode name service target-ids table";
        let mut all = Vec::new();
        flags(&Cli::command(), "", &mut all);
        assert!(all.len() > 60, "only {} flags were found", all.len());
        // Benchmark flags describe one run, so they have no variables either.
        all.retain(|(path, flag)| {
            let long = flag.get_long().unwrap_or_default();
            // WEIR_DTYPE is the format in memory.
            let shape = [" weir init", " weir convert"].contains(&&**path) && ["config", "dtype"].contains(&long);
            !(path.starts_with(" weir bench") || shape || DATA.split(' ').any(|name| name == long))
        });
        let mut wrong = Vec::new();
        for (path, flag) in &all {
            let long = flag.get_long().unwrap_or_default();
            if flag.get_help().is_none_or(|help| help.to_string().trim().is_empty()) {
                wrong.push(format!("{path} --{long} has no help"));
            }
            let variable = format!("WEIR_{}", long.replace('-', "_").to_uppercase());
            if flag.get_env().and_then(|env| env.to_str()) != Some(&variable) && !["help", "version"].contains(&long) {
                wrong.push(format!("{path} --{long}: {:?}, not {variable}", flag.get_env()));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn each_is_a_flag_of_some_command() {
        let command = Cli::command();
        let arguments = command.get_subcommands().flat_map(|subcommand| subcommand.get_arguments());
        let flags: Vec<&str> = arguments.filter_map(|flag| flag.get_long()).collect();
        for (field, own) in NAMES {
            let subcommand = own.strip_prefix("`weir ").map(|name| name.trim_end_matches('`'));
            let is_subcommand = subcommand.is_some_and(|name| command.find_subcommand(name).is_some());
            assert!(is_subcommand || flags.contains(&own.trim_start_matches("--")), "{field}: no command has {own}");
            assert!(api_name(field).is_some(), "{field}: the client keeps no such name apart");
        }
    }

    #[test]
    fn flags_with_another_name_are_listed() {
        let mut all = Vec::new();
        flags(&Cli::command(), "", &mut all);
        let long = |name: &str| format!("--{name}");
        let aliases = all.iter().flat_map(|(_, flag)| {
            let main = flag.get_long().map(long).unwrap_or_default();
            flag.get_visible_aliases().unwrap_or_default().into_iter().map(move |alias| (main.clone(), long(alias)))
        });
        let aliases: BTreeSet<_> = aliases.collect();
        let listed = ALIASES.map(|(main, alias)| (main.to_owned(), alias.to_owned()));
        assert_eq!(aliases, listed.into());
    }

    #[test]
    fn a_field_is_reported_as_its_flag() {
        PROGRAM.get_or_init(|| Cli::command);
        let message = |field| with_flag_names(Error::bad_option(field, "65", "1 to 64")).to_string();
        assert_eq!(message("options.beam_size"), "--beam: expected 1 to 64, found 65");
        assert_eq!(message("--windowed"), "--windowed: expected 1 to 64, found 65");
        assert_eq!(message("prompt"), "--prompt: expected 1 to 64, found 65");
        assert_eq!(message("sampling.min_p"), "--min-p: expected 1 to 64, found 65");
        assert_eq!(message("options.constraint.json_schema"), "--json-schema: expected 1 to 64, found 65");
        assert_eq!(message("details.top_logprobs"), "details.top_logprobs: expected 1 to 64, found 65");
        assert_eq!(message("stopping.stop[3]"), "--stop: expected 1 to 64, found 65");
        let refused = || {
            let error = Error::Answer { field: "prompt", why: ": 65".into() };
            Error::Refused { server: "h:1".into(), error: error.into() }
        };
        assert_eq!(with_flag_names(with_flag(refused(), "prompt", "--ids")).to_string(), "h:1: --ids: 65");
        assert_eq!(with_flag_names(with_flag(refused(), "text", "--file")).to_string(), "h:1: --prompt: 65");
        assert_eq!(
            with_flag_names(Error::only_continues_text("m", "s")).to_string(),
            "--model: expected a model that reads documents, found \"m\", a model that continues text: s (use `weir generate`)"
        );
    }
}
