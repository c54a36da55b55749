//! `weir init`: creates a checkpoint of a given shape with random weights.

use super::{output, progress::Progress};
use crate::{error::Result, family::init::init_with_progress};
use std::path::PathBuf;

/// Creates a checkpoint with random weights.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Shape of the model: a file like a checkpoint's config.json. models/shapes/ contains examples.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Folder to write the checkpoint to.
    dest: PathBuf,
    /// Seed of the random weights.
    #[arg(long, value_name = "N", default_value_t = 0, env = "WEIR_SEED")]
    seed: u64,
    /// Replace an existing checkpoint, including its model card and shards. A folder with other files is never replaced.
    #[arg(long, env = "WEIR_FORCE")]
    force: bool,
    /// Print JSON.
    #[arg(long, env = "WEIR_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,
}

/// Creates the checkpoint and prints its shape, size and hash. Fails if a setting is invalid, or if DEST is
/// not empty and `--force` may not replace it.
pub fn run(args: Args) -> Result<()> {
    let mut progress = Progress::numbers();
    let report = &mut |done, total| progress.update(done, total);
    let written = init_with_progress(&args.config, &args.dest, args.seed, args.force, report)?;
    drop(progress);
    output::checkpoint(&args.dest, &written, args.json)
}
