//! `weir convert`: an official checkpoint into weir's format.

use super::{output, progress::Progress};
use crate::{
    error::Result,
    family::convert::{Source, convert_with_progress},
};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde_json::json;
use std::path::PathBuf;

/// Converts an official checkpoint.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Whose checkpoint it is.
    #[arg(long, value_name = "KIND", value_parser = source(), env = "WEIR_FROM")]
    from: Source,
    /// A training checkpoint (.pt), a folder with checkpoint_last.pt, or a folder with the official arguments in
    /// config.json and the official tensors in model.safetensors. Pickles are read, never executed.
    source: PathBuf,
    /// The folder to write the checkpoint to; not SOURCE.
    dest: PathBuf,
    /// Overwrite a checkpoint: its model card and shards go too. A folder that holds anything else is left alone.
    #[arg(long, env = "WEIR_FORCE")]
    force: bool,
    /// Print JSON.
    #[arg(long, env = "WEIR_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,
}

fn source() -> impl TypedValueParser<Value = Source> {
    PossibleValuesParser::new(Source::names()).try_map(|name| Source::parse(&name).ok_or("no such kind of source"))
}

/// Converts and tells what was made.
///
/// # Errors
/// A source that is not as its kind must be; a folder that is not empty.
pub fn run(args: Args) -> Result<()> {
    let mut progress = Progress::bytes();
    let tell = &mut |done, total| progress.tell(done, total);
    let made = convert_with_progress(args.from, &args.source, &args.dest, args.force, tell)?;
    drop(progress);
    if args.json {
        let (shape, parameters, sha256) = (made.shape, made.parameters, made.sha256);
        return output::json(&json!({ "path": args.dest, "shape": shape, "parameters": parameters, "sha256": sha256 }));
    }
    let dest = args.dest.display();
    output::write(&format!("{dest}: {}, {} parameters, sha256 {}\n", made.shape, made.parameters, made.sha256))
}
