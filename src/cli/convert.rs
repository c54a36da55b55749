//! `weir convert`: converts an official checkpoint into weir's format.

use crate::cli::init::StoredDtype;
use crate::cli::model::named;
use crate::cli::output::{self, Progress};
use std::path::PathBuf;
use weir_kernels::error::Result;
use weir_models::convert::{Source, convert_with_progress};

/// Converts an official checkpoint.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Project that the checkpoint comes from.
    #[arg(long, value_name = "KIND", value_parser = named(Source::names(), Source::parse), env = "WEIR_FROM")]
    from: Source,
    /// Training checkpoint (.pt), a folder with checkpoint_last.pt, or a folder with the official arguments in
    /// config.json and the official tensors in model.safetensors. Pickles are read, never executed.
    source: PathBuf,
    /// Folder to write the checkpoint to. It must not be SOURCE.
    dest: PathBuf,
    /// Number format of the matrices in the file. Vectors are f32; a table of n-grams keeps its format.
    #[arg(long, value_name = "TYPE", value_enum, default_value = "f32")]
    dtype: StoredDtype,
    /// Replace an existing checkpoint, including its model card and shards. A folder with other files is never replaced.
    #[arg(long, env = "WEIR_FORCE")]
    force: bool,
    /// Print JSON.
    #[arg(long, env = "WEIR_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,
}

/// Converts the checkpoint and prints its shape, size and hash. Fails if the source does not match its kind, or if the
/// destination folder is not empty.
pub fn run(args: Args) -> Result<()> {
    let mut progress = Progress::bytes();
    let report = &mut |done, total| progress.update(done, total);
    let written = convert_with_progress(args.from, &args.source, &args.dest, args.dtype.into(), args.force, report)?;
    drop(progress);
    output::tokenizer_not_converted(args.from, &args.source);
    output::checkpoint(&args.dest, &written, args.json)
}
