//! `weir init`: random weights of a given shape.

use super::{output, progress::Progress};
use crate::{error::Result, family::init::init_with_progress};
use serde_json::json;
use std::path::PathBuf;

/// Makes a checkpoint with random weights.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shape: a config.json, of any name (models/shapes/ has some).
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The folder to write the checkpoint to.
    dest: PathBuf,
    /// Seeds the weights.
    #[arg(long, value_name = "N", default_value_t = 0, env = "WEIR_SEED")]
    seed: u64,
    /// Overwrite a checkpoint: its model card and shards go too. A folder that holds anything else is left alone.
    #[arg(long, env = "WEIR_FORCE")]
    force: bool,
    /// Print JSON.
    #[arg(long, env = "WEIR_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,
}

/// Makes the checkpoint and tells what was made.
///
/// # Errors
/// A configuration that cannot be used; a folder that is not empty.
pub fn run(args: Args) -> Result<()> {
    let mut progress = Progress::numbers();
    let tell = &mut |done, total| progress.tell(done, total);
    let made = init_with_progress(&args.config, &args.dest, args.seed, args.force, tell)?;
    drop(progress);
    if args.json {
        let (shape, parameters, sha256) = (made.shape, made.parameters, made.sha256);
        return output::json(&json!({ "path": args.dest, "shape": shape, "parameters": parameters, "sha256": sha256 }));
    }
    let dest = args.dest.display();
    output::write(&format!("{dest}: {}, {} parameters, sha256 {}\n", made.shape, made.parameters, made.sha256))
}
