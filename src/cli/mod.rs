//! The command line, with one file per subcommand. Data goes to stdout, everything else to stderr.

pub mod admin;
pub mod bench;
pub mod check;
pub mod codec;
pub mod command;
pub mod convert;
mod document;
mod flag_names;
pub mod generate;
pub mod health;
pub mod init;
pub mod inspect;
pub mod lsp;
pub mod model;
pub mod ngrams;
pub mod output;
pub mod pull;
pub mod report;
pub mod score;
pub mod segment;
pub mod serve;
pub mod settings;
mod signals;
pub mod summarize;
#[cfg(feature = "candle")]
pub mod verify;

pub use crate::cli::command::Cli;
use crate::cli::command::Command;
use clap::CommandFactory;
use std::{ffi::OsString, process::ExitCode, thread};
use weir_kernels::{
    error::{Error, Result, printable},
    memory::{self, MemoryLimit},
};

/// Runs the command that `arguments` name and returns its exit code. The first argument is the program's name. Errors are
/// printed to stderr. On Linux it sets `RAYON_NUM_THREADS`, if this variable is not set and no other threads run.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    if let Err(error) = check_memory_limit() {
        output::to_stderr(format_args!("weir: {error}"));
        return ExitCode::FAILURE;
    }
    // candle 0.11 looks up the number of threads at every large product. Without the variable it counts the machine's cores each time,
    // on Linux from `/proc/cpuinfo`, which takes longer than many products.
    #[cfg(feature = "candle")]
    memory::set_default("RAYON_NUM_THREADS", &thread::available_parallelism().map_or(1, usize::from).to_string());
    flag_names::PROGRAM.get_or_init(|| Cli::command);
    let arguments: Vec<_> = arguments.into_iter().collect();
    let (cli, sources) = match settings::parse(&arguments) {
        Ok(parsed) => parsed,
        Err(error) => {
            // If help cannot be printed, neither can an error about that.
            let _ = error.print();
            return u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from);
        }
    };
    for serve::SecretFlag { flag, variable } in &sources.secret_flags {
        let why = "other users of this machine can see it in the list of processes";
        output::to_stderr(format_args!("weir: warning: {flag} has a secret: {why}; use {variable} or {flag}-file"));
    }
    if !matches!(cli.command, Command::Serve(_)) {
        // A server logs its warnings instead.
        let warnings = tracing_subscriber::fmt().with_env_filter("weir_models=warn").with_writer(std::io::stderr);
        let _ = warnings.without_time().with_target(false).with_ansi(false).try_init();
    }
    let color = cli.color.color;
    let origins = sources.flag_origins.clone();
    let result = match cli.command {
        Command::Serve(args) => serve::run(args, sources, color),
        Command::Admin(args) => admin::run(args),
        Command::Health(args) => health::run(args),
        Command::Report(args) => report::run(args),
        Command::Generate(args) => generate::run(args),
        Command::Summarize(args) => summarize::run(args, color),
        Command::Score(args) => score::run(args),
        Command::Segment(args) => segment::run(args, color),
        Command::Check(args) => check::run(args),
        Command::Lsp(args) => lsp::run(args),
        Command::Compress(args) => codec::run_compress(args),
        Command::Decompress(args) => codec::run_decompress(args),
        Command::Convert(args) => convert::run(args),
        Command::Pull(args) => pull::run(args),
        Command::Init(args) => init::run(args),
        Command::Ngrams(args) => ngrams::run(args),
        Command::Inspect(args) => inspect::run(args),
        #[cfg(feature = "candle")]
        Command::Verify(args) => verify::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Completions(args) => command::print_completions(&args, Cli::command()),
        Command::Man(args) => command::write_man_pages(&args, Cli::command()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // A reader such as `head` closed the pipe: the output that it wanted is complete.
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            // File and model names come from others, so control characters are replaced. Line breaks are ours.
            let error = origins.explain(&crate::cli::flag_names::message(error));
            let message = error.lines().map(printable).collect::<Vec<_>>().join("\n");
            output::to_stderr(format_args!("weir: {message}"));
            ExitCode::FAILURE
        }
    }
}

/// Bytes of memory that any command takes: stack, heap and files.
const COMMAND_BYTES: usize = 32 << 20;

/// Bytes of memory for the stacks of the threads of each core.
const CORE_BYTES: usize = 4 << 20;

/// Checks that the memory limit, if there is one, leaves room for a command. Without this check, a signal would end the command.
fn check_memory_limit() -> Result<()> {
    let Some(MemoryLimit { command, bytes, used }) = memory::memory_limit() else { return Ok(()) };
    // Before other threads start, because a heap of each would take 64 MiB of the limit.
    memory::return_large_blocks();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let needed = COMMAND_BYTES.saturating_add(cores.saturating_mul(CORE_BYTES)).saturating_add(used);
    if needed <= bytes {
        return Ok(());
    }
    let message = format!("{command}: expected at least {needed} bytes of memory, found {bytes}");
    Err(Error::Setting(message))
}
