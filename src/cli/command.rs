//! The command and its subcommands, as clap parses them.

#[cfg(feature = "candle")]
use super::verify;
use super::{
    admin, bench, codec, color, completions, convert, generate, health, init, inspect, lsp, man, ngrams, pull, report,
    score, segment, serve, summarize,
};
use clap::{Parser, Subcommand};

/// Inference server for character- and byte-level language models that pool their own input.
#[derive(Debug, Parser)]
#[command(name = "weir", version, propagate_version = true, max_term_width = 120)]
pub struct Cli {
    #[command(flatten)]
    pub(super) color: color::ColorArgs,
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
    /// Score a text: bits per character, boundaries, log-probabilities, logits.
    Score(score::Args),
    /// Show where a text's segments end.
    Segment(segment::Args),
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
    /// Count the n-grams of a text, from which a checkpoint's model guesses characters.
    Ngrams(ngrams::Args),
    /// Check a checkpoint and print its contents.
    Inspect(inspect::Args),
    /// Compare a checkpoint's outputs with those of a second implementation.
    #[cfg(feature = "candle")]
    Verify(verify::Args),
    /// Measure speed, and compare it with the machine's limits.
    Bench(bench::Args),
    /// Print the completions of a shell.
    Completions(completions::Args),
    /// Write the manual pages of all commands.
    Man(man::Args),
}

#[cfg(test)]
mod tests {
    use super::Cli;
    use clap::{Command, CommandFactory};

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
        const DATA: &str = "text file ids prompt mode name service resolution resolution-ids target-ids table";
        let mut all = Vec::new();
        flags(&Cli::command(), "", &mut all);
        assert!(all.len() > 60, "only {} flags were found", all.len());
        // Benchmark flags describe one run, so they have no variables either.
        all.retain(|(path, flag)| {
            let long = flag.get_long().unwrap_or_default();
            // WEIR_DTYPE is the format in memory.
            let shape = path == " weir init" && ["config", "dtype"].contains(&long);
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
}
